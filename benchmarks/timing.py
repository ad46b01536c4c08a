"""Interleaved timing: every contestant in turn, round after round, so that a machine that drifts drifts for all."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax

SLOW = 20.0


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant: median, fastest and slowest of `rounds`, and the first call, which compiles."""

    median: float
    low: float
    high: float
    first: float
    rounds: int


def interleaved(contestants: dict[str, Callable], rounds: int = 5) -> tuple[dict[str, Timing], dict]:
    """Timings and last results. What took longer than SLOW seconds the first time runs once more, and that time counts."""
    first, times, results = {}, {name: [] for name in contestants}, {}
    for name, run in contestants.items():
        first[name], results[name] = _timed(run)
    for _ in range(rounds):
        for name, run in contestants.items():
            if first[name] <= SLOW:
                seconds, results[name] = _timed(run)
                times[name].append(seconds)
    for name, run in contestants.items():
        if not times[name]:
            seconds, results[name] = _timed(run)
            times[name].append(seconds)
    return {name: Timing(statistics.median(t), min(t), max(t), first[name], len(t)) for name, t in times.items()}, results


def _timed(run):
    start = time.perf_counter()
    result = jax.block_until_ready(run())
    return time.perf_counter() - start, result
