"""Interleaved timing: every contestant in turn, round after round, so that a machine that drifts drifts for all."""

import statistics
import time
from collections.abc import Callable

import jax


def interleaved(contestants: dict[str, Callable], rounds: int = 5) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each contestant, and seconds of its first call, which compiles."""
    first, times = {}, {name: [] for name in contestants}
    for name, run in contestants.items():
        first[name] = _seconds(run)
    for _ in range(rounds):
        for name, run in contestants.items():
            times[name].append(_seconds(run))
    return {name: statistics.median(t) for name, t in times.items()}, first


def _seconds(run) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start
