"""What the programs share: interleaved timing, their options, Markdown tables, reports in a folder.

Import it before SciPy: OpenBLAS's threads sleep after 2^18 cycles without work, in place of 2^26,
as at the command line. JAX's decompositions on CPUs run on SciPy's OpenBLAS, which reads the
variable once, when it is loaded."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")

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
    import jax  # whose platform `compile.py` names before

    start = time.perf_counter()
    result = jax.block_until_ready(run())
    return time.perf_counter() - start, result


def options_of(words: str) -> argparse.ArgumentParser:
    """A parser whose help is the docstring as it stands."""
    return argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def line(*cells) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(*names) -> str:
    """The first two lines of one."""
    return f"{line(*names)}\n|{'---|' * len(names)}"


def say(text: str) -> None:
    print(text, flush=True)


def read(file) -> Any:
    return json.loads(Path(file).read_text(encoding="utf-8"))


def write(folder: Path, name: str, data, markdown: str) -> None:
    """A report as JSON, from which all else is made, and as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    (folder / f"{name}.md").write_text(markdown + "\n", encoding="utf-8")
