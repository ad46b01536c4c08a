"""The best λ of a solution without a grid: value and slope of its criterion at about ten λ, each of
them where the piecewise cubic through the earlier ones is smallest.

Where every λ needs a Cholesky factor, these and one for the model are the whole cost. With a
spectrum, the result is finer than that of a grid.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.factors import Solution
from jaxrls.core.fit.grid import Chosen, choose_lam, lambda_range
from jaxrls.core.fit.problem import Problem
from jaxrls.core.problem import compiled

# First points, as shares of the line of log λ: closer where the best λ usually is.
COARSE = (0.1, 0.3, 0.44, 0.58, 0.72, 0.88)
MOST = 11  # points in all
GAIN = 1e-5  # the least promised decrease that is worth a point
WIDE = 1.5  # a gap this wide may hide a minimum
LOW = 0.1  # if one of its ends is this low


def search(problem: Problem, solution: Solution, per_target: bool) -> tuple[Chosen, str]:
    """The best λ, or one for each target, searched in parallel, among all that were evaluated; and
    a description of the search.
    """
    factor, apart = solution.factor, per_target and problem.Y.ndim == 2
    count = problem.Y.shape[1] if apart else 1
    look = _look_with_slopes if problem.traceable else _look
    low, high = (float(np.log(end)) for end in _ends(factor))
    points, errors = np.full((1, count, 3), low), []  # log λ, value and slope at every look
    while len(errors) < MOST:
        wanted = np.array([next_place(points[1:, j], low, high) for j in range(count)])
        if np.isnan(wanted).all():
            break
        log_lams = np.where(np.isnan(wanted), points[-1, :, 0], wanted)
        error, *point = jax.device_get(look(problem, solution, jnp.asarray(log_lams, factor.dtype)))
        errors.append(error.reshape(-1))
        points = np.concatenate([points, np.stack([log_lams, *point], axis=1)[None]])
    lams, table = _ascending(np.exp(points[1:, :, 0]), np.stack(errors))
    lams = jnp.asarray(lams if apart else lams[:, 0], factor.dtype)
    table = jnp.asarray(table.reshape(len(lams), *problem.Y.shape[1:]))
    return Chosen(lams, table, *choose_lam(lams, table, apart)), _words(factor, len(errors), count)


_ends = compiled(lambda_range)


def _ascending(lams: np.ndarray, errors: np.ndarray) -> Iterator[np.ndarray]:
    """Both sorted, without λ at which the factor broke down, unless it did at all."""
    defined = np.isfinite(errors).all(axis=1)
    keep = defined if defined.any() else ~defined
    order = np.argsort(lams[keep], axis=0)
    return (np.take_along_axis(part[keep], order, axis=0) for part in (lams, errors))


def next_place(points: np.ndarray, low: float, high: float) -> float:
    """Where between `low` and `high` to evaluate next, after `points` with places, values and
    slopes; NaN where nothing is worth it.

    First come the coarse places. Then, from the best of all points, the minimum of the cubic
    through it and its neighbour downhill; or where it has none the end of the line, or half way to
    where a factor broke down. Then the middle of a gap that may hide another minimum.

    The cubic is that of f = log(1 + value − smallest): errors and evidence grow exponentially in
    log λ on one side, where f is a line. A slope that is NaN is estimated from the neighbours.
    """
    if len(points) < len(COARSE):
        return low + (high - low) * COARSE[len(points)]
    points = points[np.unique(points[:, 0], return_index=True)[1]]
    finite = np.isfinite(points[:, 1])
    if finite.sum() < 2:
        return np.nan
    x, values, slopes = points[finite].T
    f, slopes = np.log1p(values - values.min()), slopes / (1 + values - values.min())
    slopes = np.where(np.isfinite(slopes), slopes, np.gradient(f, x))
    best = np.flatnonzero(f == 0)[-1]
    downhill = 1 if slopes[best] <= 0 else -1
    neighbour = best + downhill
    if 0 <= neighbour < len(x):
        gap = x[neighbour] - x[best]
        share, lowest = lowest_of_cubic(f[neighbour], slopes[best] * gap, slopes[neighbour] * gap)
        margin = 0.3 if abs(gap) > WIDE else 0.1  # for a wide gap the cubic may be far off
        step, promising = gap * np.clip(share, margin, 1 - margin), lowest < -GAIN
    else:
        reach = np.array([low, high, *(points[~finite, 0] + x[best]) / 2]) - x[best]
        step = min(reach[reach * downhill > 0], key=abs, default=0)
        promising = abs(step) > WIDE / 2
    return x[best] + step if promising else _middle_of_gap(x, f)


def _middle_of_gap(x: np.ndarray, f: np.ndarray) -> float:
    """That of the widest gap of those with a low end, NaN where it is not wide."""
    gaps = np.diff(x) * (np.minimum(f[:-1], f[1:]) < LOW)
    widest = np.argmax(gaps)
    return x[widest] + gaps[widest] / 2 if gaps[widest] > WIDE else np.nan


def lowest_of_cubic(rise, start, end) -> tuple[float, float]:
    """Where the cubic between 0 and 1 is smallest, and how small: it starts at 0 with slope `start`
    ≤ 0, and ends at `rise` ≥ 0 with slope `end`.
    """
    second, third = 3 * rise - 2 * start - end, start + end - 2 * rise
    t = -start / (second + np.sqrt(second**2 - 3 * third * start) or 1)
    return t, t * (start + t * (second + t * third))


def _look(problem: Problem, solution: Solution, log_lams, *, slopes: bool = False):
    """The errors at λ, and value and slope for each search, the slope NaN where there is none."""

    def value_and_errors(log_lams):
        lams = jnp.exp(log_lams)
        errors = problem.errors(solution, lams if len(lams) == 1 else lams[None])[0]
        value = errors if errors.shape == lams.shape else jnp.mean(errors)[None]
        return problem.criterion.to_search(value, len(problem.Y)), errors

    if slopes:
        one = jnp.ones_like(log_lams)
        value, slope, errors = jax.jvp(value_and_errors, (log_lams,), (one,), has_aux=True)
        return errors, value, slope
    value, errors = value_and_errors(log_lams)
    return errors, value, jnp.full_like(value, jnp.nan)


@compiled
def _look_with_slopes(problem, solution, log_lams):
    """The same in a program, with slopes where there are any."""
    slopes = problem.criterion.smooth and solution.factor.exact
    return _look(problem, solution, log_lams, slopes=slopes)


def _words(factor, looks: int, count: int) -> str:
    """How many λ were evaluated, in words."""
    if not factor.exact:
        return f"{looks} iterations and one for the model"
    if factor.shares_work:
        return f"{looks} values of λ, from one factorization"
    return f"{looks * count} Cholesky factors and {count if count > 1 else 'one'} for the model"
