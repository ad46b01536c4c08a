"""Search for the best λ of a factor by products, where every λ costs tens of products.

The walk begins at the best λ of some of the rows, and goes in steps. A step up begins its iteration
with 0, because few products suffice there. A step down begins with the columns at the best λ so
far. In float64, λ are compared by products in float32 where these are exact enough. The model then
iterates in float64 from the columns at the best λ.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.core.data import compiled, gram
from jaxrls.core.factors import Solution
from jaxrls.core.fit import Problem, lambda_range
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number
from jaxrls.front import Evaluations, evaluate_lams, lam_on_few
from jaxrls.iterative.by_products import ByProducts, sum_and_error
from jaxrls.iterative.conjugate import CONVERGED

STEP = np.log(3.0)
MOST = 6  # the largest number of λ
# Shares of the error that decide whether the walk goes on:
# * LAST: a step down that gains less is the last one, because the next λ takes more products than
#   all before.
# * GAIN: another λ is worth its products if it promises this gain, or one standard error.
# * FLAT: a step up that adds less may lie on a plateau, where the slope says nothing.
LAST = 0.3
GAIN = 0.1
FLAT = 0.02
# Products in float32 compare λ if the tolerance is at least NARROW_TOL, λ at least NARROW_FROM times
# their floor, and entries of K in float32 right to NARROW_ERROR, as they are unless rows lie far
# from 0. On 17,000 rows of kin40k, errors then differ by 1e-5 of themselves, and an iteration takes
# half of the time.
NARROW_TOL = 1e-3
NARROW_FROM = 2.0
NARROW_ERROR = 1e-5
NARROW_ROWS = 300  # so many rows show the error of entries of K


@evaluate_lams.register
def _(factor: ByProducts, problem: Problem, solution: Solution, count: int) -> Evaluations:
    """Search for one λ by the estimated leave-one-out error.

    Other criteria, one λ per target, and factors without probes are handled as for other factors.
    """
    criterion = problem.criterion
    by_loo = criterion.summand is not None
    if count != 1 or not by_loo or not factor.has_residuals:
        return evaluate_lams.dispatch(object)(factor, problem, solution, count)
    return _walk(problem, solution)


def _walk(problem: Problem, solution: Solution) -> Evaluations:
    """Evaluate one λ after another, until no further λ is worth its products."""
    factor = solution.factor
    low, high = map(float, np.log(jax.device_get(lambda_range(factor))))
    place = np.clip(np.log(lam_on_few(problem)), low, high)
    narrow = _with_narrow_products(problem, factor)
    places: list[float] = []
    errors: list[np.ndarray] = []
    best = np.inf
    at_best = np.inf
    least = 0.0
    zeros = at_best_columns = factor.zero_columns(solution)
    while len(places) < MOST and not np.isnan(place):
        # An iteration that begins with the columns at a smaller λ may stall before it comes any
        # nearer.
        begin = at_best_columns if place <= at_best else zeros
        found = _at(place, problem, solution, narrow, begin)
        places.append(float(place))
        errors.append(np.asarray(found.error))
        mean = float(np.mean(found.error))
        if mean < best:
            best = mean
            at_best = place
            at_best_columns = found.columns
            least = max(GAIN * mean, float(found.standard_error))
        place = next_step(np.array(places), np.mean(errors, axis=1), least, low, high)
    at_end = _from(solution, at_best_columns)
    return Evaluations(np.array(places)[:, None], np.stack(errors), at_end)


def _with_narrow_products(problem: Problem, factor: ByProducts) -> Solution | None:
    """Return the solution with products in float32, or None if λ are compared without them."""
    solver = factor.narrow_solver()
    if solver is None or solver.tol < NARROW_TOL:
        return None
    narrow = _solution(replace(problem, solver=solver))
    few = problem.rows.few_rows(NARROW_ROWS)
    error = _error_of_entries(problem.kernel, narrow.factor.near.kernel, few)
    return narrow if error <= NARROW_ERROR else None


_solution = compiled(Problem.solution)


@compiled
def _error_of_entries(kernel: Kernel, narrow: Kernel, X: Float[Array, "m d"]) -> Number:
    """Return how far entries of K in float32 are off, as a share of the largest entry.

    `narrow` is the kernel with parameters in float32.
    """
    K = gram(kernel, X)
    off = gram(narrow, X.astype(jnp.float32)).astype(K.dtype) - K
    return jnp.max(jnp.abs(off)) / jnp.max(jnp.abs(K))


class Evaluated(NamedTuple):
    """What one iteration at one λ gives."""

    error: Float[Array, " t"]  # estimated
    standard_error: Number  # of the mean of `error` over targets
    columns: Float[Array, "c k"]  # what was solved for, with which another iteration may begin
    converged: Bool[Array, ""]  # whether the iteration has, for all columns


def _at(
    place: float,
    problem: Problem,
    solution: Solution,
    narrow: Solution | None,
    begin: Float[Array, "c k"],
) -> Evaluated:
    """Return the results at log λ = `place`, from an iteration that begins with columns `begin`.

    Products are in float32, unless λ is near their floor, or the iteration does not converge by
    them.
    """
    log_lam = jnp.asarray(place, solution.factor.dtype)
    if narrow is not None and place >= np.log(NARROW_FROM * narrow.factor.precision_floor()):
        found = _evaluate_at(problem, _from(narrow, begin), log_lam)
        if found.converged:
            return found
    return _evaluate_at(problem, _from(solution, begin), log_lam)


def _from(solution: Solution, columns: Float[Array, "c k"]) -> Solution:
    """Return the solution whose next iteration begins with these columns."""
    return replace(solution, factor=replace(solution.factor, begin=columns))


@compiled
def _evaluate_at(problem: Problem, solution: Solution, log_lam: Number) -> Evaluated:
    """Return the results of one iteration at λ."""
    factor = solution.factor
    lams = jnp.exp(log_lam).reshape(1, 1)
    solved = factor.solved(solution, lams, factor.signs)
    summand: Any = problem.criterion.summand  # not None, as `evaluate_lams` asked
    total, spread = sum_and_error(solution, solved, summand, lams)
    return Evaluated(
        error=total[0] / factor.weights.total,
        standard_error=spread[0, 0] / factor.weights.total,
        columns=solved.columns[0],
        converged=jnp.all(solved.run.reason == CONVERGED),
    )


def next_step(
    places: Float[np.ndarray, " p"],
    errors: Float[np.ndarray, " p"],
    least: float,
    low: float,
    high: float,
) -> float:
    """Return the next place between `low` and `high`, or NaN if no place is worth it.

    The places are log λ, in the order in which they were tried. The walk follows these rules:

    * The first step goes up by STEP, or down if there is no room above.
    * If the best place is the first or the last on the line, a step goes outward from it.
    * If the best place lies between two others, the minimum of the parabola through these three is
      tried once.
    * The walk ends if the parabola or the slope promises a gain below `least`. It also ends if the
      last step down gained less than `least` or LAST.

    >>> import numpy as np
    >>> float(next_step(np.array([0.0]), np.array([2.0]), 0.01, -9.0, 9.0).round(3))
    1.099
    """
    last = places[-1]
    errors = np.where(np.isfinite(errors), errors, np.inf)
    order = np.argsort(places)
    x = places[order]
    f = errors[order]
    best = int(np.argmin(f))
    if len(x) == 1:
        down, up = (_inside(x[0] + step, x, low, high) for step in (-STEP, STEP))
        return down if np.isnan(up) else up
    if best in (0, len(x) - 1):
        went_down = last == x[0]
        if best == 0 and _ends(f, went_down, least):
            return np.nan
        return _inside(x[best] + (STEP if best else -STEP), x, low, high)
    three = slice(best - 1, best + 2)
    was_of_parabola = x[0] < last < x[-1]  # all other steps go outward
    if was_of_parabola or not np.isfinite(f[three]).all():
        return np.nan
    a, b, c = np.polyfit(x[three] - x[best], f[three], 2)
    promised = b * b / (4 * a) if a > 0 else 0.0
    return x[best] - b / (2 * a) if promised > least else np.nan


def _ends(f: Float[np.ndarray, " p"], went_down: bool | np.bool_, least: float) -> bool | np.bool_:
    """Whether no step down from the best place, with error f[0], is worth it.

    Errors are convex near the best place. So a step down gains at most the rise f[1] − f[0] above
    it.
    """
    rise = f[1] - f[0]
    return rise < max(least, LAST * f[0]) if went_down else FLAT * f[0] < rise < least


def _inside(place: float, x: Float[np.ndarray, " p"], low: float, high: float) -> float:
    """Return the place, clipped to the line, or NaN if it is near a place already tried."""
    place = np.clip(place, low, high)
    return np.nan if np.abs(x - place).min() < STEP / 2 else place
