"""The smallest value of a function on a line from few evaluations, each with its slope: what finds
λ where every λ costs a factor.

A few points across the line show in which valley to look. Each further one is where the piecewise
cubic through all values and slopes is lowest, so that a wide flat stretch and a second valley are
seen too. It is the logarithm of 1 + (value − smallest) that is interpolated, as errors and evidence
grow exponentially in log λ on one side: that is a line there, and has the same valleys."""

import numpy as np

# Points before any is chosen, as shares of the line: closer where λ mostly is.
COARSE = (0.1, 0.3, 0.44, 0.58, 0.72, 0.88)
MOST = 11  # points in all
GAIN = 1e-5  # the least promised decrease that is worth a point
TIE = 0.01  # a promise that goes before a look elsewhere; valleys as deep as that are as good
SAFE = 0.02  # a promise so large is not trusted near an end of its stretch
CLOSE = np.log(30.0)  # a longer stretch may hide a valley
HIDES = 0.3  # unless both its ends are so much higher than the lowest point
LAST = 3  # points left when a look for a hidden valley goes before the last digits


def next_place(seen: dict, low: float, high: float, left: int) -> float | None:
    """The place between `low` and `high` that promises most, or None where none is worth a look.

    `seen` has value and slope by place. A slope that is NaN is not known, and taken from the
    neighbours; a value that is not finite is a cliff, beyond which nothing is looked at. `left` is
    how many looks there are."""
    at = np.array(sorted(seen))
    values, slopes = np.array([seen[place] for place in at], np.float64).T
    finite = np.isfinite(values)
    if not finite.any():
        return None
    x, values, slopes = at[finite], values[finite], slopes[finite]
    best = len(x) - 1 - int(np.argmin(values[::-1]))  # the last of equals
    above = values - values[best]
    f, g, known = np.log1p(above), slopes / (1 + above), np.isfinite(slopes)
    if len(x) > 1:
        g = np.where(known, g, np.gradient(f, x))

    below, beyond = at[at < x[0]], at[at > x[-1]]  # cliffs, half way to which may be looked at
    first = (below[-1] + x[0]) / 2 if len(below) else low
    last = (beyond[0] + x[-1]) / 2 if len(beyond) else high
    if best == 0 and not g[0] <= 0 and x[0] - first > CLOSE / 4:
        return float(first)
    if best == len(x) - 1 and not g[-1] > 0 and last - x[-1] > CLOSE / 4:
        return float(last)
    if len(x) == 1:
        return None

    gaps, each = np.diff(x), np.arange(len(x) - 1)
    promises, places = _cubics(x, gaps, f, g)
    beside = (each == best - 1) | (each == best)
    worth = promises < -50 * GAIN
    if not worth.any():
        worth = ~beside & (_hidden(above, gaps, slopes) < TIE) & (gaps > CLOSE / 3)
    if not worth.any():
        worth = promises < -GAIN
        if left == LAST or not worth.any():
            if x[0] - first > CLOSE / 4 and f[0] < HIDES:
                return float(first)
            doubt = (gaps > CLOSE) & (np.minimum(f[:-1], f[1:]) < HIDES) & (each <= best)
            doubt |= beside & (gaps > (CLOSE if known[best] else CLOSE / 3))
            if doubt.any():
                j = int(np.argmax(np.where(doubt, gaps, 0)))
                return float(x[j] + gaps[j] / 2)
    if not worth.any():
        return None
    j = int(np.argmin(np.where(worth, promises, np.inf)))
    margin = 0.3 * gaps[j] if promises[j] < -SAFE else min(0.1 * gaps[j], 0.15)
    i = int(np.searchsorted(x, next(reversed(seen))))  # the place before, and the gaps beside it
    little = i - 1 <= j <= i and gaps[max(i - 1, 0) : i + 1].min() < 0.3 * gaps[j]
    if (
        little and known[best] and promises[j] < -100 * GAIN
    ):  # it cut off little, as the cubic misjudges
        margin = gaps[j] / 2
    return float(np.clip(places[j], x[j] + margin, x[j + 1] - margin))


def valleys(seen: dict) -> list[float]:
    """The places that are lower than both neighbours and nearly as low as the lowest, itself among
    them.
    """
    at = [place for place in sorted(seen) if np.isfinite(seen[place][0])]
    values = [np.inf, *(seen[place][0] for place in at), np.inf]
    around = zip(at, values, values[1:], values[2:], strict=False)
    deep = min(values) + TIE
    return [place for place, left, here, right in around if left > here <= right and here <= deep]


def _cubics(x, gaps, f, g):
    """The smallest value inside of the cubic on each gap, infinite where it has none, and where."""
    rise, a, b = np.diff(f), g[:-1] * gaps, g[1:] * gaps
    second, third = 3 * rise - 2 * a - b, a + b - 2 * rise
    with np.errstate(all="ignore"):
        t = -a / (second + np.sqrt(second**2 - 3 * third * a))  # slope 0, in units of the gap
    inside = (t > 0) & (t < 1)
    t = np.where(inside, t, 0)
    lowest = f[:-1] + t * (a + t * (second + t * third))
    return np.where(inside, lowest, np.inf), x[:-1] + t * gaps


def _hidden(values, gaps, g):
    """How low a valley that slopes down into from both sides may be at most, where their tangents
    meet, and infinity between all other places.
    """
    with np.errstate(all="ignore"):
        t = (np.diff(values) - g[1:] * gaps) / (g[:-1] - g[1:])
        return np.where((g[:-1] < 0) & (g[1:] > 0), values[:-1] + t * g[:-1], np.inf)
