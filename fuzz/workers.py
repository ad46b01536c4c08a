"""Processes that fit rows together, one of which is killed or stopped: `python fuzz/workers.py --cases 10 --seed 1`.

The others must end within a minute, in words and without a result; and the same processes, begun again, go on from their checkpoints and end with the
numbers of processes that nobody killed, to the bit. Where the kill came after the end, the result must be those numbers too.
"""

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from harness import Failure, drive, parse

COUNT, BLOCKS, ROWS = 2, 12, 50
MINUTE = 60
PATIENCE = 10  # seconds without a heartbeat, after which a process counts as gone
SLOWLY = 0.05  # seconds a block, so that kills find the fit at work


def work(index: int, count: int, port: str, folder: Path) -> None:
    """One process."""
    import jax

    import jaxrls as rls

    jax.config.update("jax_enable_x64", True)
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, count, index, coordinator_bind_address=address, heartbeat_timeout_seconds=PATIENCE)
    (folder / f"begun{index}").touch()
    rng = np.random.default_rng(index)
    X = rng.normal(size=(BLOCKS, ROWS, 3))

    class Slow:
        def __iter__(self):
            for part in X:
                time.sleep(SLOWLY)
                yield part, np.sin(part[:, 0])

    rows = rls.stream(Slow(), distributed=True, checkpoint=folder / "sums", block_size=ROWS)
    fit = rls.fit(rls.Gaussian(1.0), rows, landmarks=np.arange(10), lams=np.geomspace(1e-3, 1, 4))
    np.savez(folder / f"result{index}.npz", errors=fit.errors, coef=fit.model.coef, residuals=fit.loo_residuals)


def start(folder: Path) -> list[subprocess.Popen]:
    """All processes; each says in a file that it has begun, and what it has to say in another."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    processes = []
    for index in range(COUNT):
        (folder / f"begun{index}").unlink(missing_ok=True)
        with open(folder / f"said{index}", "w") as said:
            command = [sys.executable, __file__, "--work", str(index), str(COUNT), str(port), str(folder)]
            environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
            processes.append(subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment))
    return processes


def results(folder: Path) -> list[dict[str, np.ndarray]]:
    """Of those that have one."""
    return [dict(np.load(folder / f"result{i}.npz")) for i in range(COUNT) if (folder / f"result{i}.npz").exists()]


def finish(folder: Path) -> list[dict[str, np.ndarray]]:
    """Run to the end."""
    if any(process.wait(5 * MINUTE) for process in start(folder)):
        raise Failure("a run that nobody killed failed: " + (folder / "said0").read_text()[-2000:], {})
    return results(folder)


@functools.cache
def undisturbed() -> list[dict[str, np.ndarray]]:
    """What comes of processes that nobody kills, and the seconds that they take from their beginning."""
    with tempfile.TemporaryDirectory() as name:
        return finish(Path(name))


def same(found, want) -> bool:
    """To the bit."""
    return all((one[name] == other[name]).all() for one, other in zip(found, want, strict=True) for name in other)


def case(victim: int, delay: float, how: int) -> str:
    """One kill."""
    want = undisturbed()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = start(folder)
        try:
            while not (folder / f"begun{victim}").exists():
                time.sleep(0.01)
            time.sleep(delay)
            os.kill(processes[victim].pid, how)
            since = time.monotonic()
            other = processes[1 - victim]
            try:
                other.wait(MINUTE)
            except subprocess.TimeoutExpired:
                raise Failure(f"the other process had not ended a minute after the kill, {delay:.1f} s in", {}) from None
            took = time.monotonic() - since
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if other.returncode == 0:
            outcome = "was done before"
        else:
            outcome = f"ended within {10 * int(1 + took / 10)} s"
            if not (folder / f"said{1 - victim}").read_text().strip():
                raise Failure("the other process ended without a word", {})
        if any(not same([found], [want[0]]) for found in results(folder)):
            raise Failure("a result was left that is wrong", {})
        if not same(finish(folder), want):
            raise Failure(f"the run that went on ended with other numbers, killed {delay:.1f} s in", {})
    return outcome


def main(argv=None) -> int:
    """Attack."""
    options = parse(__doc__, argv)

    def draw(rng):
        how = signal.SIGKILL if rng.random() < 0.7 else signal.SIGSTOP
        return how.name, partial(case, int(rng.integers(COUNT)), float(rng.uniform(0, 12)), how)

    return drive("workers", options, [], draw)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    else:
        sys.exit(main())
