"""`search_lam` finds the best λ without a grid, from errors and slopes at about ten values of λ.

The first six λ are at fixed places. Each further λ is at the minimum of the piecewise cubic
through the earlier values and slopes, as functions of log λ; see `next_place`.

If every λ needs a Cholesky factor, the cost is about ten of them and one for the model. With a
spectrum, the result is finer than the best λ of a grid.
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

# The first places, as fractions of the range of log λ: closer where the best λ usually is.
COARSE = (0.1, 0.3, 0.44, 0.58, 0.72, 0.88)
MOST = 11  # evaluations in all
GAIN = 1e-5  # an evaluation must promise to lower f by this; `_as_logarithms` defines f
WIDE = 1.5  # a gap in log λ that is wider may hide a minimum, if f is below LOW at one end
LOW = 0.1


class SearchResult(NamedTuple):
    """What `search_lam` returns: the chosen λ, the solution, and a description of the search."""

    chosen: Chosen
    solution: Solution
    words: str


class Curve(NamedTuple):
    """The value that a search minimises at the λ of its evaluations, and its slope in log λ.

    A slope is NaN if the criterion has none. A value is not finite if the factor broke down. The
    curves of several searches side by side are the columns of such arrays.
    """

    log_lams: np.ndarray
    values: np.ndarray
    slopes: np.ndarray

    def take(self, places: Any) -> "Curve":
        """Return the part of the curve at these places, an index of its arrays."""
        return Curve(*(part[places] for part in self))


class Evaluation(NamedTuple):
    """What one evaluation at λ gives: the error of every target, and what each search needs.

    Each search needs the value that it minimises, and its slope in log λ, as `Curve` has them.
    """

    errors: Any
    value: Any
    slope: Any


class Evaluations(NamedTuple):
    """All λ at which the searches evaluated the criterion, with the errors."""

    log_lams: Any  # (evaluations, searches)
    errors: Any  # (evaluations, targets)
    solution: Solution  # an iterative one may hold the columns that the next iteration begins with


def search_lam(problem: Problem, solution: Solution, per_target: bool) -> SearchResult:
    """Search for the best λ, or for the best λ of each target, side by side."""
    factor = solution.factor
    of_each_target = per_target and problem.Y.ndim == 2
    count = problem.Y.shape[1] if of_each_target else 1
    log_lams, errors, solution = evaluate_lams(factor, problem, solution, count)
    log_lams, ascending = _ascending(log_lams, errors)
    lams = jnp.asarray(np.exp(log_lams if of_each_target else log_lams[:, 0]), factor.dtype)
    table = jnp.asarray(ascending.reshape(len(lams), *problem.Y.shape[1:]))
    lam, error = choose_lam(lams, table, of_each_target)
    chosen = Chosen(lams, table, lam, error)
    return SearchResult(chosen, solution, _words(factor, len(errors), count))


def _ascending(
    log_lams: Float[np.ndarray, "E k"], errors: Float[np.ndarray, "E t"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the λ of every search in ascending order, and the errors in the same order.

    A λ at which the factor broke down is left out, unless the factor broke down at every λ.
    """
    defined = np.isfinite(errors).all(axis=1)
    if defined.any():
        log_lams = log_lams[defined]
        errors = errors[defined]
    order = np.argsort(log_lams, axis=0)
    # `order` has one column for all targets, or one for each.
    in_order = np.take_along_axis(errors, order, axis=0)
    return np.take_along_axis(log_lams, order, axis=0), in_order


@singledispatch
def evaluate_lams(factor: Any, problem: Problem, solution: Solution, count: int) -> Evaluations:
    """Evaluate the criterion at the λ that `count` searches ask for.

    The searches run side by side, one for all targets or one for each target, over the whole range
    of λ of the factor. A class of factors with expensive λ may register its own version.
    """
    evaluate = _evaluate_at_once if problem.traceable else _evaluate_at
    dtype = solution.factor.dtype
    low, high = jax.device_get(_ends(solution.factor))
    low, high = np.log([low, high], dtype=float)
    errors: list[np.ndarray] = []
    curves = Curve(*np.empty((3, 0, count)))
    log_lams = np.full(count, low)
    while len(errors) < MOST:
        each = [curves.take(np.s_[:, j]) for j in range(count)]
        if problem.criterion.needs_unit:
            each = [_in_units_of_the_smallest(curve) for curve in each]
        wanted = np.array([next_place(curve, low, high) for curve in each])
        if np.isnan(wanted).all():
            break
        # A search that is over evaluates its last λ again, while others go on. That does no harm:
        # `next_place` takes each λ once, and `choose_lam` finds the same λ among equal ones.
        log_lams = np.where(np.isnan(wanted), log_lams, wanted)
        evaluation: Any = jax.device_get(evaluate(problem, solution, jnp.asarray(log_lams, dtype)))
        errors.append(evaluation.errors.reshape(-1))
        new = Curve(log_lams, evaluation.value, evaluation.slope)
        curves = Curve(*(np.vstack(rows) for rows in zip(curves, new, strict=True)))
    return Evaluations(curves.log_lams, np.stack(errors), solution)


_ends = compiled(lambda_range)


def _in_units_of_the_smallest(curve: Curve) -> Curve:
    """Return the curve with its values and slopes in units of the smallest value."""
    finite = curve.values[np.isfinite(curve.values)]
    size = abs(finite.min(initial=np.inf))
    if not 0 < size < np.inf:
        return curve
    return Curve(curve.log_lams, curve.values / size, curve.slopes / size)


def next_place(curve: Curve, low: float, high: float) -> float:
    """Return the log λ between `low` and `high` to evaluate next, NaN if the search is over.

    `curve` has the earlier evaluations, in their order. The next place is the first of these that
    exists:

    1. the next of the COARSE places;
    2. a minimum beside the best evaluation, by `_step_from`;
    3. the middle of a wide gap that may hide another minimum.
    """
    evaluated = len(curve.log_lams)
    if evaluated < len(COARSE):
        return low + (high - low) * COARSE[evaluated]
    curve = curve.take(np.unique(curve.log_lams, return_index=True)[1])
    is_finite = np.isfinite(curve.values)
    if is_finite.sum() < 2:
        return np.nan
    f = _as_logarithms(curve.take(is_finite))
    # `_as_logarithms` makes exactly 0 of the smallest value. The largest λ that has it is taken.
    best = int(np.flatnonzero(f.values == 0)[-1])
    # The search goes at most half of the way to where the factor broke down.
    ends = np.array([low, high, *(curve.log_lams[~is_finite] + f.log_lams[best]) / 2])
    step = _step_from(best, f, ends)
    return _middle_of_gap(f) if np.isnan(step) else f.log_lams[best] + step


def _step_from(best: int, f: Curve, ends: Float[np.ndarray, " k"]) -> float:
    """Return the step from the best evaluation to a minimum of f, NaN if there is none.

    The step goes to the side where f falls. It is to the minimum of the cubic between the best
    evaluation and its neighbour. If there is no neighbour, it is to the nearest of the `ends` on
    that side, unless that is near.
    """
    downhill = 1 if f.slopes[best] <= 0 else -1
    neighbour = best + downhill
    if 0 <= neighbour < len(f.values):
        gap = f.log_lams[neighbour] - f.log_lams[best]
        return _to_minimum(gap, f.values[neighbour], f.slopes[best], f.slopes[neighbour])
    reach = ends - f.log_lams[best]
    step = min(reach[reach * downhill > 0], key=abs, default=0)
    return step if abs(step) > WIDE / 2 else np.nan


def _as_logarithms(curve: Curve) -> Curve:
    """Return the curve of f = log(1 + value − smallest value).

    Near the minimum f is the value itself, up to a constant. A value that is not a logarithm, such
    as the evidence with a given variance of the prior, may grow exponentially in log λ on one side
    of its minimum. There f is nearly a line, which a cubic fits well. A slope that is NaN is
    estimated from the neighbours.
    """
    log_lams, values, slopes = curve
    above = values - values.min()
    f = np.log1p(above)
    slopes = slopes / (1 + above)
    slopes = np.where(np.isfinite(slopes), slopes, np.gradient(f, log_lams))
    return Curve(log_lams, f, slopes)


def _to_minimum(gap: float, rise: float, slope: float, slope_there: float) -> float:
    """Return the step to the minimum of a cubic over a gap, or NaN if it lowers f too little.

    The cubic falls at first, with slope `slope`. Over the gap it rises by `rise` ≥ 0, and it ends
    with slope `slope_there`. With the share u ∈ [0, 1] of the gap,

        f(u) = start u + second u² + third u³
    """
    start = slope * gap
    end = slope_there * gap
    second = 3 * rise - 2 * start - end
    third = start + end - 2 * rise
    # f′(u) = start + 2 second u + 3 third u² is 0 at −start/divisor. A divisor of 0 means a cubic
    # that does not fall, with start = 0.
    divisor = second + np.sqrt(second**2 - 3 * third * start)
    u = -start / (divisor or 1)
    gain = -u * (start + u * (second + u * third))
    if gain < GAIN:
        return np.nan
    margin = 0.3 if abs(gap) > WIDE else 0.1  # for a wide gap the cubic may be far off
    return gap * np.clip(u, margin, 1 - margin)


def _middle_of_gap(f: Curve) -> float:
    """Return the middle of the widest gap that may hide a minimum, NaN if there is none.

    A gap may hide a minimum if it is wider than WIDE, and f is below LOW at one of its ends.
    """
    is_low = np.minimum(f.values[:-1], f.values[1:]) < LOW
    gaps = np.diff(f.log_lams) * is_low
    widest = np.argmax(gaps)
    return f.log_lams[widest] + gaps[widest] / 2 if gaps[widest] > WIDE else np.nan


def _evaluate_at(problem: Problem, solution: Solution, log_lams: Float[Array, " k"]) -> Evaluation:
    """Evaluate the criterion for every search at its own λ.

    There is one search for all targets, or one for each target.
    """
    several = len(log_lams) > 1

    def value_and_errors(log_lams: Float[Array, " k"]) -> tuple[Any, Any]:
        lams = jnp.exp(log_lams)
        errors = problem.errors(solution, lams[None] if several else lams)[0]
        value = errors if several else jnp.mean(errors)[None]
        return problem.to_search(value), errors

    if not (problem.traceable and problem.criterion.smooth and solution.factor.exact):
        value, errors = value_and_errors(log_lams)
        return Evaluation(errors, value, jnp.full_like(value, jnp.nan))
    along = jnp.ones_like(log_lams)
    value, slope, errors = jax.jvp(value_and_errors, (log_lams,), (along,), has_aux=True)
    return Evaluation(errors, value, slope)


_evaluate_at_once = compiled(_evaluate_at)  # for problems whose rows are arrays in memory


def _words(factor: Factor, points: int, count: int) -> str:
    """Return in words how many λ were evaluated, and by how many factors."""
    if not factor.exact:
        return f"{points} iterations and one for the model"
    if factor.shares_work:
        return f"{points} values of λ, from one factorization"
    return f"{points * count} Cholesky factors and {count if count > 1 else 'one'} for the model"
