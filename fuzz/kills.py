"""Saving under `kill -9`: `python fuzz/kills.py --seconds 60 --seed 1`.

A process saves one of two models over and over, and is killed at some moment: the file must be the one or the other, whole. The next save in
that folder must leave no temporary file but those of writers that live. In a third of the cases a second process saves there too and lives on.
"""

import os
import signal
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from harness import Failure, drive, parse

import jaxrls as rls
from jaxrls.support.files import PREFIX

SIZE = 400_000


def models() -> list[rls.Model]:
    """Two that differ in every number."""
    return [rls.Model(rls.Linear(), None, np.full(SIZE, float(i)), np.array(float(i))) for i in (1, 2)]


def start_saving(path: Path) -> int:
    """A process that saves to a file until it is killed; it says in another file that it has begun."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX has threads, and the child touches none of what they do
        child = os.fork()
    if child:
        return child
    try:
        pair = models()
        for i in range(10**9):
            rls.save(path, pair[i % 2])
            path.with_suffix(".begun").touch()
    finally:
        os._exit(1)


def stop(child: int) -> None:
    """Kill and bury."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def orphans(folder: Path) -> list[str]:
    """Temporary files, whoever wrote them."""
    return sorted(name for name in os.listdir(folder) if name.startswith(PREFIX))


def whole(path: Path) -> str:
    """Whether a file is one of the two models."""
    loaded = rls.load(path)
    value = float(loaded.intercept)
    if value not in (1.0, 2.0) or loaded.coef.shape != (SIZE,) or not (loaded.coef == value).all():
        raise Failure("the file is neither the old one nor the new one", {path.name: path.read_bytes()})
    return "whole"


def case(delay: float, beside: bool) -> str:
    """One kill."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, other = folder / "model.npz", folder / "other.npz"
        children = [start_saving(path), *([start_saving(other)] if beside else [])]
        try:
            deadline = time.monotonic() + 60
            while not all(p.with_suffix(".begun").exists() for p in (path, *([other] if beside else []))):
                if time.monotonic() > deadline:
                    raise Failure("a process did not begin to save within a minute", {})
                time.sleep(0.002)
            time.sleep(delay)
            stop(children.pop(0))
            left = [file for file in orphans(folder) if f"-{os.getpid()}-" not in file]
            whole(path)
            rls.save(folder / "next.npz", rls.Linear())
            if beside:
                time.sleep(0.05)
                if os.waitpid(children[0], os.WNOHANG) != (0, 0):
                    children.clear()
                    raise Failure("the process that lives on could not save", {})
                stop(children.pop())
                whole(other)
                rls.save(folder / "next.npz", rls.Linear())
        finally:
            for child in children:
                stop(child)
        if orphans(folder):
            raise Failure(f"orphans after the next save: {orphans(folder)}", {})
    return "cleared" if left else "whole"


def main(argv=None) -> int:
    """Attack."""
    options = parse(__doc__, argv)

    def draw(rng):
        beside = rng.random() < 1 / 3
        return "beside a living one" if beside else "alone", partial(case, float(rng.uniform(0, 0.03)), beside)

    return drive("kills", options, [], draw)


if __name__ == "__main__":
    sys.exit(main())
