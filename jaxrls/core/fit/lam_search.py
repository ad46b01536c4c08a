"""The best λ of a solution without a grid: value and slope of its criterion at about ten λ, each of
them where the piecewise cubic through the earlier ones is smallest.

Where every λ needs a Cholesky factor, these and one for the model are the whole cost. With a
spectrum, the result is finer than that of a grid.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.factors import Solution
from jaxrls.core.fit.grid import choose_lam, lambda_range
from jaxrls.core.fit.problem import Problem
from jaxrls.core.problem import compiled

# First points, as shares of the line of log λ: closer where the best λ usually is.
COARSE = (0.1, 0.3, 0.44, 0.58, 0.72, 0.88)
MOST = 11  # points in all
GAIN = 1e-5  # the least promised decrease that is worth a point
WIDE = 1.5  # in a gap this wide no cubic is trusted near an end
LOW = 0.1  # and a gap with an end this low may hide a minimum


def search(problem: Problem, solution: Solution, per_target: bool) -> tuple[tuple, tuple, str]:
    """All λ that were evaluated, ascending, with their errors; the best λ with its error, or one
    for each target, searched in parallel; and a description of the search.
    """
    factor, each = solution.factor, per_target and problem.Y.ndim == 2
    low, high = (float(np.log(end)) for end in _ends(factor))
    look, count = _probe if problem.traceable else _look, problem.Y.shape[1] if each else 1
    errors, at = [], [low] * count
    visited: list[list] = [[] for _ in at]  # places, values and slopes
    for number in range(MOST):
        if number < len(COARSE):
            at = [low + (high - low) * COARSE[number]] * count
        else:
            wanted = [next_place(one, low, high) for one in visited]
            if wanted.count(None) == count:
                break
            at = [old if new is None else new for old, new in zip(at, wanted, strict=True)]
        error, *own = jax.device_get(look(problem, solution, jnp.asarray(at, factor.dtype)))
        errors.append(error)
        for one, *point in zip(visited, at, *own, strict=True):
            one.append(point)

    # All evaluations, ascending; without λ at which the factor broke down, unless it did at all λ.
    places, table = np.array(visited)[:, :, 0].T, np.stack(errors).reshape(len(errors), -1)
    defined = np.isfinite(table).all(axis=1)
    keep = defined if defined.any() else ~defined
    order = np.argsort(places[keep], axis=0)
    lams, table = (np.take_along_axis(part[keep], order, axis=0) for part in (places, table))
    lams = np.exp(lams if each else lams[:, 0])
    found = table.reshape(len(lams), *problem.Y.shape[1:])
    pair = jnp.asarray(lams, factor.dtype), jnp.asarray(found)
    return pair, choose_lam(*pair, per_target=each), _words(factor, len(errors), count)


_ends = compiled(lambda_range)


def next_place(visited: list, low: float, high: float) -> float | None:
    """The most promising place between `low` and `high`, or None where none is worth an evaluation;
    `visited` has places, each with value and slope.

    What is interpolated is log(1 + value − smallest): errors and evidence grow exponentially in log
    λ on one side, where this is a line. A slope that is NaN is estimated from the neighbours;
    beyond a value that is not finite nothing is evaluated.
    """
    _, first = np.unique([place for place, _, _ in visited], return_index=True)
    at, values, slopes = np.array(visited, np.float64)[first].T
    finite = np.isfinite(values)
    if finite.sum() < 2:
        return None
    x, values, slopes, cliffs = at[finite], values[finite], slopes[finite], at[~finite]
    best = len(x) - 1 - int(np.argmin(values[::-1]))  # the last of equals
    above = values - values[best]
    f = np.log1p(above)
    g = np.where(np.isfinite(slopes), slopes / (1 + above), np.gradient(f, x))
    for end, falls, limit in ((0, g[0] > 0, low), (len(x) - 1, g[-1] <= 0, high)):
        if best == end and falls:  # half way to a cliff, or to the end of the line
            beyond = cliffs[(cliffs < x[0]) if end == 0 else (cliffs > x[-1])]
            place = (x[end] + beyond[np.argmin(abs(beyond - x[end]))]) / 2 if len(beyond) else limit
            if abs(place - x[end]) > WIDE / 2:
                return float(place)

    gaps = np.diff(x)
    rise, a, b = np.diff(f), g[:-1] * gaps, g[1:] * gaps
    second, third = 3 * rise - 2 * a - b, a + b - 2 * rise
    with np.errstate(all="ignore"):
        t = -a / (second + np.sqrt(second**2 - 3 * third * a))  # slope 0, in units of the gap
    inside = (t > 0) & (t < 1)
    t = np.where(inside, t, 0.5)
    promises = np.where(inside, f[:-1] + t * (a + t * (second + t * third)), np.inf)
    j = int(np.argmin(promises))
    margin = 0.3 if gaps[j] > WIDE else 0.1
    if not promises[j] < -GAIN:
        hides = (gaps > WIDE) & (np.minimum(f[:-1], f[1:]) < LOW)
        if not hides.any():
            return None
        j, margin = int(np.argmax(np.where(hides, gaps, 0))), 0.5
    return float(x[j] + gaps[j] * np.clip(t[j], margin, 1 - margin))


def _look(problem: Problem, solution: Solution, log_lams, *, slopes: bool = False):
    """The errors at λ, and value and slope for each search, the slope NaN where there is none."""

    def value(log_lams):
        at = jnp.exp(log_lams)
        errors = problem.errors(solution, at if len(at) == 1 else at[None])[0]
        own = errors if errors.shape == at.shape else jnp.mean(errors)[None]
        return problem.criterion.to_search(own, len(problem.Y)), errors

    if slopes:
        own, slope, errors = jax.jvp(value, (log_lams,), (jnp.ones_like(log_lams),), has_aux=True)
        return errors, own, slope
    own, errors = value(log_lams)
    return errors, own, jnp.full_like(own, jnp.nan)


@compiled
def _probe(problem, solution, log_lams):
    slopes = problem.criterion.smooth and solution.factor.exact
    return _look(problem, solution, log_lams, slopes=slopes)


def _words(factor, looks: int, count: int) -> str:
    """How many λ were evaluated, in words."""
    if not factor.exact:
        return f"{looks} iterations and one for the model"
    if factor.shares_work:
        return f"{looks} values of λ, from one factorization"
    return f"{looks * count} Cholesky factors and {count if count > 1 else 'one'} for the model"
