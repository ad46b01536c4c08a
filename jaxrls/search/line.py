"""The smallest value of a function on a line from few evaluations, each with its slope: what finds
λ where every λ costs a factor.

A few points across the line show in which valley to look. Each further one is where the piecewise
cubic through all values and slopes is lowest, so that a wide flat stretch and a second valley are
seen too. It is the logarithm of 1 + (value − smallest) that is interpolated, as errors and evidence
grow exponentially in log λ on one side: that is a line there, and has the same valleys."""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

COARSE = (
    0.1,
    0.3,
    0.44,
    0.58,
    0.72,
    0.88,
)  # points before any is chosen, as shares of the line: closer where λ mostly is
MOST = 11  # points in all
CLOSE = np.log(30.0)  # a valley's neighbours are looked at until they are nearer than this
GAIN = 1e-5  # the least promised decrease that is worth a point
LAST = 3  # points left when a look for a hidden valley goes before the last digits, for which the others do
HIDES = 0.3  # a stretch that wide may hide a valley where one of its ends is not higher above the lowest than that
TIE = 0.01  # valleys as deep as that are as good, and both to be named


class Seen(NamedTuple):
    """Places that were looked at, ascending, with what was there."""

    at: np.ndarray
    values: np.ndarray
    slopes: np.ndarray


def lowest(
    low: float, high: float, known: dict[float, tuple[float, float]] | None = None
) -> Generator[float, tuple[float, float], Seen]:
    """Ask for value and slope at one place after another, between `low` and `high`, and return all
    that was seen.

    `known` has places at the upper end with value and slope, from which the search goes on in place
    of the coarse ones: to the lower end first.

    A generator, so that many searches go on side by side: it yields a place and is sent the value
    and slope there. A slope that is NaN is not known, and taken from the neighbours; a value that
    is not finite is a cliff, beyond which nothing is looked at."""
    seen, most = dict(known or {}), MOST - len(COARSE) + len(known) if known else MOST
    wanted: float | None = float(low)
    for share in (0.0,) if known else COARSE:
        wanted = low + (high - low) * share
        seen[wanted] = yield wanted
    while len(seen) < most and (wanted := _next(seen, low, high, most - len(seen))) is not None:
        seen[wanted] = yield wanted
    return _sorted(seen)


def valleys(seen: Seen) -> np.ndarray:
    """The places that are lower than both neighbours and nearly as low as the lowest, itself among
    them.
    """
    values = np.where(np.isfinite(seen.values), seen.values, np.inf)
    if not np.isfinite(values).any():
        return seen.at[:0]
    around = np.concatenate([[np.inf], values, [np.inf]])
    deep = values - values.min() <= TIE
    return seen.at[(values < around[:-2]) & (values <= around[2:]) & deep]


def _sorted(seen) -> Seen:
    places = np.array(sorted(seen))
    return Seen(places, *np.array([seen[place] for place in places], np.float64).T)


def _next(seen, low, high, left) -> float | None:
    """The place that promises most, or None where none is worth a look, with so many looks left."""
    every = _sorted(seen)
    finite = np.isfinite(every.values)
    if not finite.any():
        return None
    x, f, g = (part[finite] for part in every)
    best = int(np.argmin(f))
    known, hidden = np.isfinite(g), _hidden(x, f - f[best], g)
    f, g = np.log1p(f - f[best]), g / (1 + f - f[best])
    g = np.where(known, g, np.gradient(f, x) if len(x) > 1 else 0.0)
    outside = _outside(every.at[~finite], x, g, best, low, high)
    if outside is not None or len(x) == 1:
        return outside
    gaps, each = np.diff(x), np.arange(len(x) - 1)
    promises, places = np.array(
        [_cubic(*ends) for ends in zip(x[:-1], gaps, f[:-1], f[1:], g[:-1], g[1:], strict=True)]
    ).T
    beside = (each == best - 1) | (each == best)
    other = (hidden < TIE) & ~beside & (gaps > CLOSE / 3)
    worth = next((worth for worth in (promises < -50 * GAIN, other) if worth.any()), None)
    if worth is None:
        worth, place = promises < -GAIN, _unseen(x, f, best, low if every.at[0] == x[0] else x[0])
        if place is not None and (left == LAST or not worth.any()):
            return place
    if worth.any():
        j = int(np.argmin(np.where(worth, promises, np.inf)))
        stuck = (
            known[best] and promises[j] < -100 * GAIN and _cut_little(x, gaps, j, list(seen)[-1])
        )
        margin = 0.5 * gaps[j] if stuck else min(0.1 * gaps[j], 0.2)
        return float(np.clip(places[j], x[j] + margin, x[j + 1] - margin))
    j = int(np.argmax(np.where(beside, gaps, 0)))
    return None if gaps[j] <= (CLOSE if known[best] else CLOSE / 3) else float(x[j] + gaps[j] / 2)


def _outside(cliffs, x, g, best, low, high) -> float | None:
    """A place beyond the outermost, where the way down leads there: the end of the line, or half
    way to a cliff.
    """
    for out, end, downhill in (
        (best == 0, low, g[best] > 0),
        (best == len(x) - 1, high, g[best] < 0),
    ):
        if out and downhill and x[best] != end:
            beyond = cliffs[(cliffs - x[best]) * (end - x[best]) > 0]
            place = (
                float(end)
                if not len(beyond)
                else float(x[best] + beyond[np.argmin(np.abs(beyond - x[best]))]) / 2
            )
            if abs(place - x[best]) > CLOSE / 4:
                return place
    return None


def _unseen(x, f, best, low):
    """A place where another valley may hide left of the lowest: the end of the line, or the middle
    of the widest stretch; None where there is no doubt.
    """
    gaps = np.diff(x[: best + 1])
    doubt = (gaps > CLOSE) & (np.minimum(f[:best], f[1 : best + 1]) < HIDES)
    if x[0] - low > CLOSE / 4 and f[0] < HIDES:
        return float(low)
    if not doubt.any():
        return None
    j = int(np.argmax(np.where(doubt, gaps, 0)))
    return float(x[j] + gaps[j] / 2)


def _cut_little(x, gaps, j, last) -> bool:
    """Whether the last place is an end of this gap and cut off little of it: the cubic misjudges
    it, and its middle is the safe choice.
    """
    other = j - 1 if x[j] == last else j + 1 if x[j + 1] == last else -1
    return bool(0 <= other < len(gaps) and gaps[other] < 0.3 * gaps[j])


def _hidden(x, f, g):
    """How low a valley that slopes down into from both sides may be at most, where their tangents
    meet, and infinity between all other places.
    """
    with np.errstate(all="ignore"):
        t = (f[1:] - f[:-1] - g[1:] * np.diff(x)) / (g[:-1] - g[1:])
        return np.where((g[:-1] < 0) & (g[1:] > 0), f[:-1] + t * g[:-1], np.inf)


def _cubic(start, width, left, right, slope_left, slope_right) -> tuple[float, float]:
    """The smallest value inside of the cubic with these values and slopes at its ends, and where;
    at an end it promises nothing.
    """
    rise, a, b = right - left, slope_left * width, slope_right * width
    second, third = 3 * rise - 2 * a - b, a + b - 2 * rise
    with np.errstate(all="ignore"):
        root = np.sqrt(second**2 - 3 * third * a)
        t = (
            a / -(second + root) if second > 0 else (root - second) / (3 * third)
        )  # where the slope is 0 and rises, without cancellation
    if not 0 < t < 1:
        return np.inf, start
    return left + t * (a + t * (second + t * third)), start + t * width
