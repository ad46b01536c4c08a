"""The best λ of a solution without a grid: value and slope of its criterion at about ten λ, the
first six at fixed places, the others where the piecewise cubic through the earlier ones is
smallest.

Where every λ needs a Cholesky factor, these and one for the model are the whole cost. With a
spectrum, the result is finer than that of a grid.
"""

from functools import singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import compiled
from jaxrls.core.factors import Factor, Solution
from jaxrls.core.fit import Chosen, Problem, choose_lam, lambda_range

# First points, as shares of the line of log λ: closer where the best λ usually is.
COARSE = (0.1, 0.3, 0.44, 0.58, 0.72, 0.88)
MOST = 11  # points in all
GAIN = 1e-5  # the least promised decrease that is worth a point
WIDE = 1.5  # a gap this wide may hide a minimum
LOW = 0.1  # if one of its ends is this low


class SearchResult(NamedTuple):
    """The chosen λ among all that were evaluated, the solution, and the search in words."""

    chosen: Chosen
    solution: Solution
    words: str


class Evaluation(NamedTuple):
    """The errors at λ, and for each search value and slope, the slope NaN where there is none."""

    errors: Any
    value: Any
    slope: Any


class Evaluations(NamedTuple):
    """All λ that a search evaluated."""

    log_lams: Any  # (evaluations, searches)
    errors: Any  # (evaluations, targets)
    solution: Solution  # with what it may have learned


def search_lam(problem: Problem, solution: Solution, per_target: bool) -> SearchResult:
    """The best λ, or one for each target, searched in parallel."""
    factor = solution.factor
    separate = per_target and problem.Y.ndim == 2
    count = problem.Y.shape[1] if separate else 1
    log_lams, errors, solution = evaluate_lams(factor, problem, solution, count)
    log_lams, ascending = _ascending(log_lams, errors)
    lams = jnp.asarray(np.exp(log_lams if separate else log_lams[:, 0]), factor.dtype)
    table = jnp.asarray(ascending.reshape(len(lams), *problem.Y.shape[1:]))
    lam, error = choose_lam(lams, table, separate)
    chosen = Chosen(lams, table, lam, error)
    return SearchResult(chosen, solution, _words(factor, len(errors), count))


def _ascending(
    log_lams: Float[np.ndarray, "E k"], errors: Float[np.ndarray, "E t"]
) -> tuple[np.ndarray, np.ndarray]:
    """λ of every search in ascending order with their errors, without those at which the factor
    broke down, unless it did at all.
    """
    defined = np.isfinite(errors).all(axis=1)
    if defined.any():
        log_lams = log_lams[defined]
        errors = errors[defined]
    order = np.argsort(log_lams, axis=0)
    in_order = np.take_along_axis(errors, order, axis=0)  # one order, or one for each target
    return np.take_along_axis(log_lams, order, axis=0), in_order


@singledispatch
def evaluate_lams(factor: Any, problem: Problem, solution: Solution, count: int) -> Evaluations:
    """Evaluate λ for `count` searches on the whole line; a factor for which a λ is expensive has
    another function.
    """
    evaluate = _evaluate_at_once if problem.traceable else _evaluate_at
    dtype = solution.factor.dtype
    low, high = jax.device_get(_ends(solution.factor))
    low, high = np.log([low, high], dtype=float)
    errors: list[np.ndarray] = []
    points = np.empty((0, count, 3))  # log λ, value and slope of every evaluation
    log_lams = np.full(count, low)
    while len(errors) < MOST:
        wanted = np.array([next_place(points[:, j], low, high) for j in range(count)])
        if np.isnan(wanted).all():
            break
        log_lams = np.where(np.isnan(wanted), log_lams, wanted)
        evaluation: Any = jax.device_get(evaluate(problem, solution, jnp.asarray(log_lams, dtype)))
        errors.append(evaluation.errors.reshape(-1))
        point = np.stack([log_lams, evaluation.value, evaluation.slope], axis=1)
        points = np.concatenate([points, point[None]])
    return Evaluations(points[:, :, 0], np.stack(errors), solution)


_ends = compiled(lambda_range)


def next_place(points: np.ndarray, low: float, high: float) -> float:
    """Where between `low` and `high` to evaluate next, after `points` with places, values and
    slopes; NaN where nothing is worth it.

    First come the coarse places, then the minimum next to the best of all points, then the middle
    of a gap that may hide another.
    """
    if len(points) < len(COARSE):
        return low + (high - low) * COARSE[len(points)]
    points = points[np.unique(points[:, 0], return_index=True)[1]]
    finite = np.isfinite(points[:, 1])
    if finite.sum() < 2:
        return np.nan
    x, values, slopes = points[finite].T
    f, slopes = _as_logarithms(x, values, slopes)
    best = np.flatnonzero(f == 0)[-1]
    downhill = 1 if slopes[best] <= 0 else -1
    neighbour = best + downhill
    if 0 <= neighbour < len(x):
        step = _to_minimum(x[neighbour] - x[best], f[neighbour], slopes[best], slopes[neighbour])
    else:  # to the end of the line, or half way to where the factor broke down
        reach = np.array([low, high, *(points[~finite, 0] + x[best]) / 2]) - x[best]
        step = min(reach[reach * downhill > 0], key=abs, default=0)
        step = step if abs(step) > WIDE / 2 else np.nan
    return _middle_of_gap(x, f) if np.isnan(step) else x[best] + step


def _as_logarithms(
    x: np.ndarray, values: np.ndarray, slopes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """f = log(1 + value − smallest) and its slopes: errors and evidence grow exponentially in
    log λ on one side, where f is a line. A slope that is NaN is estimated from the neighbours.
    """
    above = values - values.min()
    f = np.log1p(above)
    slopes = slopes / (1 + above)
    return f, np.where(np.isfinite(slopes), slopes, np.gradient(f, x))


def _to_minimum(gap: float, rise: float, slope: float, slope_there: float) -> float:
    """The step to the minimum of the cubic that rises by `rise` ≥ 0 over the gap, and falls first;
    NaN where it gains too little.
    """
    start = slope * gap
    end = slope_there * gap
    second = 3 * rise - 2 * start - end
    third = start + end - 2 * rise
    # The cubic is start·u + second·u² + third·u³ for u from 0 to 1; its slope is 0 at u.
    u = -start / (second + np.sqrt(second**2 - 3 * third * start) or 1)
    gain = -u * (start + u * (second + u * third))
    if gain < GAIN:
        return np.nan
    margin = 0.3 if abs(gap) > WIDE else 0.1  # for a wide gap the cubic may be far off
    return gap * np.clip(u, margin, 1 - margin)


def _middle_of_gap(x: np.ndarray, f: np.ndarray) -> float:
    """That of the widest gap of those with a low end, NaN where it is not wide."""
    gaps = np.diff(x) * (np.minimum(f[:-1], f[1:]) < LOW)
    widest = np.argmax(gaps)
    return x[widest] + gaps[widest] / 2 if gaps[widest] > WIDE else np.nan


def _evaluate_at(problem: Problem, solution: Solution, log_lams: Float[Array, " k"]) -> Evaluation:
    """What searches see, each at its own λ: one for all targets, or one for each."""
    separate = len(log_lams) > 1

    def value_and_errors(log_lams: Float[Array, " k"]) -> tuple[Any, Any]:
        lams = jnp.exp(log_lams)
        errors = problem.errors(solution, lams[None] if separate else lams)[0]
        value = errors if separate else jnp.mean(errors)[None]
        return problem.to_search(value), errors

    if not (problem.traceable and problem.criterion.smooth and solution.factor.exact):
        value, errors = value_and_errors(log_lams)
        return Evaluation(errors, value, jnp.full_like(value, jnp.nan))
    along = jnp.ones_like(log_lams)
    value, slope, errors = jax.jvp(value_and_errors, (log_lams,), (along,), has_aux=True)
    return Evaluation(errors, value, slope)


_evaluate_at_once = compiled(_evaluate_at)  # where all rows go into a program


def _words(factor: Factor, points: int, count: int) -> str:
    """How many λ were evaluated, in words."""
    if not factor.exact:
        return f"{points} iterations and one for the model"
    if factor.shares_work:
        return f"{points} values of λ, from one factorization"
    return f"{points * count} Cholesky factors and {count if count > 1 else 'one'} for the model"
