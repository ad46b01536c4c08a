"""Streamed fits under `kill -9`: `python fuzz/stream_kills.py --cases 20 --seconds 3600 --seed 1`.

A process fits a stream with a checkpoint, by the library or by the command line, and is killed: at some moment, or just when a checkpoint is being
written. The same call again, which in a third of the cases is killed too, goes on from the checkpoint, and in the end there must be the numbers of a
run that was never killed, to the bit. Whenever it was, the checkpoint is whole, and no temporary file is left in the end.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from harness import Failure, chance, drive, parse

from jaxrls.rows.checkpoint import read
from jaxrls.support.files import PREFIX

ROWS, COLUMNS, SHARDS, LANDMARKS, BLOCK = 3000, 4, 3, 60, 50
LONGEST = 300.0  # seconds that a run may take
ROOT = Path(__file__).parents[1]


# what the processes do -----------------------------------------------------------------------------------------------------------


def by_library(data: str, checkpoint: str, out: str) -> None:
    """A fit with blocks so small that there are many checkpoints."""
    import jaxrls as rls

    rows = rls.stream(data, checkpoint=checkpoint, block_size=BLOCK)
    rls.save(out, rls.fit(rls.Gaussian(1.5), rows, landmarks=LANDMARKS))


def by_command(data: str, checkpoint: str, out: str) -> None:
    """The same from the command line, whose blocks are made as small."""
    from jaxrls.cli.main import main as command
    from jaxrls.rows import streamed

    streamed.BLOCK_BYTES = 8 * COLUMNS * BLOCK
    code = command(["fit", data, "--landmarks", str(LANDMARKS), "--checkpoint", checkpoint, "--out", out])
    if code:
        sys.exit(code)


WAYS = {"library": by_library, "command line": by_command}


# what is done to them ------------------------------------------------------------------------------------------------------------


def write_shards(folder: Path) -> None:
    """Rows of a smooth function with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS))
    table = np.column_stack([X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=ROWS)])
    folder.mkdir()
    for i, part in enumerate(np.array_split(table, SHARDS)):
        np.save(folder / f"part{i}.npy", part)


def begin(way: str, data: Path, work: Path, programs: Path) -> subprocess.Popen:
    """A process that fits; programs compiled once are kept for all."""
    kept = {"JAX_COMPILATION_CACHE_DIR": str(programs), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    environment = os.environ | kept | {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, "--fit", way, str(data), str(work / "sums.npz"), str(work / "model.npz")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen) -> None:
    """Wait for a process, which must end well."""
    _, told = process.communicate(timeout=LONGEST)
    if process.returncode:
        raise Failure(f"a run ended with {process.returncode}: {told[-500:]}", {})


def wait_for(process: subprocess.Popen, seen) -> None:
    """Until something is seen, or the process has ended."""
    deadline = time.monotonic() + LONGEST
    while not seen() and process.poll() is None:
        if time.monotonic() > deadline:
            raise Failure("a run took too long", {})
        time.sleep(0.0002)


def kill(process: subprocess.Popen, work: Path, moment: str, delay: float) -> str:
    """Kill it so many seconds after its start, or after its first checkpoint, and then maybe when it begins the next; what it was killed in."""
    if moment != "start":
        wait_for(process, (work / "sums.npz").exists)
    time.sleep(delay)
    if moment == "write":
        wait_for(process, lambda: orphans(work))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if process.returncode == 0:
        return "after the end"
    if not (work / "sums.npz").exists():
        return "before sums"
    read(str(work / "sums.npz"))  # raises where it is not whole
    return "in a write" if orphans(work) else "between"


def orphans(folder: Path) -> list[str]:
    """Temporary files."""
    return [name for name in os.listdir(folder) if name.startswith(PREFIX)]


def numbers(path: Path) -> dict[str, bytes]:
    """All arrays of a saved fit, to the bit."""
    with np.load(path) as file:
        return {name: f"{file[name].dtype}{file[name].shape}".encode() + file[name].tobytes() for name in file.files}


class Attack:
    """Shards, kept programs, and for each way what a run that is not killed gives and how long it takes."""

    def __init__(self, folder: Path):
        self.folder, self.data, self.known = folder, folder / "shards", {}  # type: ignore[var-annotated]
        write_shards(self.data)

    def begin(self, way: str, work: Path) -> subprocess.Popen:
        """A run."""
        return begin(way, self.data, work, self.folder / "programs")

    def whole(self, way: str) -> tuple[dict[str, bytes], float, float]:
        """Arrays of a run whose programs are all kept, the seconds to its first checkpoint, and those from there on."""
        if way not in self.known:
            for _ in range(2):
                with tempfile.TemporaryDirectory(dir=self.folder) as name:
                    work, start = Path(name), time.monotonic()
                    process = self.begin(way, work)
                    wait_for(process, (work / "sums.npz").exists)
                    first = time.monotonic()
                    end(process)
                    self.known[way] = numbers(work / "model.npz"), first - start, time.monotonic() - first
        return self.known[way]

    def case(self, way: str, moment: str, share: float, again: float | None) -> str:
        """One kill, or two."""
        want, before, after = self.whole(way)
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            work = Path(name)
            killed = kill(self.begin(way, work), work, moment, share * (before if moment == "start" else after))
            if killed == "after the end":  # the machine was faster than in the run that was timed
                return self.case(way, moment, share / 2, again)
            if again is not None:
                kill(self.begin(way, work), work, "start", before + again * after)
            end(self.begin(way, work))
            found = numbers(work / "model.npz")
            if found != want:
                wrong = sorted(name for name in {*found, *want} if found.get(name) != want.get(name))
                raise Failure(f"{way}, killed {killed}: {', '.join(wrong)} are not those of a run that was not killed", {})
            if orphans(work):
                raise Failure(f"{way}, killed {killed}: left {orphans(work)}", {})
        return killed


def main(argv=None) -> int:
    """Attack."""
    options = parse(__doc__, argv)
    with tempfile.TemporaryDirectory() as folder:
        attack = Attack(Path(folder))

        def draw(rng):
            way, moment = chance(rng, list(WAYS)), chance(rng, ("start", "sums", "sums", "write", "write"))
            again = float(rng.random()) if rng.random() < 1 / 3 else None
            return way, partial(attack.case, way, moment, float(rng.random()), again)

        return drive("stream kills", options, [], draw)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fit"]:
        WAYS[sys.argv[2]](*sys.argv[3:])
        sys.exit()
    sys.exit(main())
