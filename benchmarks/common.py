"""What the programs share: interleaved timing, processes of their own, tables of data in a folder,
and lines of Markdown.

Import it before SciPy: OpenBLAS's threads sleep after 2^18 cycles without work, in place of 2^26,
as at the command line. JAX's decompositions on CPUs run on SciPy's OpenBLAS, which reads the
variable once, when it is loaded."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")

import jax
import numpy as np

SLOW, ENDLESS = 20.0, 100.0


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant: median, fastest and slowest of `rounds`, and the first call, which
    compiles.
    """

    median: float
    low: float
    high: float
    first: float
    rounds: int


def interleaved(
    contestants: dict[str, Callable], rounds: int = 5
) -> tuple[dict[str, Timing], dict, dict[str, str]]:
    """Timings, last results, and in words what failed: every contestant in turn, round after round,
    so that a machine that drifts drifts for all.

    What took longer than SLOW seconds the first time runs once more, and that time counts; past
    ENDLESS seconds the first time does."""
    first, results, failures = {}, {}, {}
    for name, run in contestants.items():
        try:
            first[name], results[name] = timed(run)
        except Exception as error:  # out of memory, say: a result too, and the others go on
            said = (str(error).splitlines() or [type(error).__name__])[0]
            failures[name] = f"failed: {said[:200]}"
    times = {name: [seconds] if seconds > ENDLESS else [] for name, seconds in first.items()}
    for _ in range(max(1, rounds)):
        for name in first:
            if first[name] <= SLOW or not times[name]:
                seconds, results[name] = timed(contestants[name])
                times[name].append(seconds)
    timings = {
        name: Timing(statistics.median(t), min(t), max(t), first[name], len(t))
        for name, t in times.items()
    }
    return timings, results, failures


def timed(run) -> tuple[float, Any]:
    """Seconds of one call, waited for, and its result."""
    start = time.perf_counter()
    result = jax.block_until_ready(run())
    return time.perf_counter() - start, result


def in_a_process(function: Callable, *arguments, **environment: str):
    """What a function of a program here gives in a fresh process, as JSON."""
    module = Path(function.__code__.co_filename)
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import importlib; "
        "found = getattr(importlib.import_module(sys.argv[2]), sys.argv[3]); "
        "print(json.dumps(found(*json.loads(sys.argv[4]))))"
    )
    words = str(module.parent), module.stem, function.__name__, json.dumps(arguments)
    command = [sys.executable, "-W", "ignore", "-c", code, *words]
    options = {"check": True, "stdout": subprocess.PIPE, "text": True}
    out = subprocess.run(command, env=os.environ | environment, **options).stdout
    return json.loads(out.splitlines()[-1])


def peak() -> int:
    """The most bytes that this process ever held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def slope(sizes, values) -> float:
    """The exponent of values in sizes."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def table(name: str, folder: str | None):
    """All rows with the target as the last column, of NAME.csv.gz in a folder, or None, said, where
    it is not there; the airfoil data come with the package.
    """
    if name == "airfoil":
        import jaxrls as rls

        X, y, _ = rls.airfoil()
        return np.column_stack([X, y]).astype(float)
    file = Path(folder or "") / f"{name}.csv.gz"
    if not folder or not file.exists():
        where = folder or "a folder named by --data or JAXRLS_DATA"
        print(f"{name}: skipped, no {file.name} in {where}", flush=True)
        return None
    return np.loadtxt(file, delimiter=",")


def scaled(values, n: int, new: int | None = None):
    """The first n rows and so many of the others, columns in units of the former: X, y, X_new,
    y_new.
    """
    scale = values[:n].std(axis=0)
    values = (values - values[:n].mean(axis=0)) / np.where(scale > 0, scale, 1)
    rest = values[n:][:new]
    return values[:n, :-1], values[:n, -1], rest[:, :-1], rest[:, -1]


def load(name, folder, n, share=0.8, new=5000):
    """n rows or that share of all, drawn by chance, and others to test on; None without a file."""
    values = table(name, folder)
    if values is None:
        return None
    n = min(n, int(share * len(values)))
    return scaled(np.random.default_rng(0).permutation(values), n, new)


def line(*cells) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(*names) -> str:
    """The first two lines of one."""
    return f"{line(*names)}\n|{'---|' * len(names)}"


def say(text: str) -> None:
    print(text, flush=True)
