"""Interleaved timing: every contestant in turn, round after round, so that a machine that drifts
drifts for all.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import threads  # noqa: F401

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
    """Timings, last results, and in words what failed.

    What took longer than SLOW seconds the first time runs once more, and that time counts; past
    ENDLESS seconds the first time does."""
    first, results, failures = {}, {}, {}
    for name, run in contestants.items():
        try:
            first[name], results[name] = timed(run)
        except Exception as error:  # out of memory, a size that a library cannot take: a result too, and the others go on
            failures[name] = (
                f"failed: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"
            )
    times = {name: [seconds] if seconds > ENDLESS else [] for name, seconds in first.items()}
    for _ in range(max(1, rounds)):
        for name in first:
            if first[name] <= SLOW or not times[name]:
                seconds, results[name] = timed(contestants[name])
                times[name].append(seconds)
    return (
        {
            name: Timing(statistics.median(t), min(t), max(t), first[name], len(t))
            for name, t in times.items()
        },
        results,
        failures,
    )


def timed(run) -> tuple[float, Any]:
    """Seconds of one call, waited for, and its result."""
    start = time.perf_counter()
    result = jax.block_until_ready(run())
    return time.perf_counter() - start, result
