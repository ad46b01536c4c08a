"""The best λ of a solution without a grid: value and slope of its criterion at about ten λ, each
where the piecewise cubic through the last ones is lowest.

Where every λ takes a Cholesky factor of its own that is all it takes, beside one more for the
model. Of a spectrum it is a finer answer than a grid's."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.factors.contract import Solution
from jaxrls.search.grid import choose_lam, lambda_range
from jaxrls.search.problem import Problem

# Points before any is chosen, as shares of the line of log λ: closer where λ mostly is.
COARSE = (0.1, 0.3, 0.44, 0.58, 0.72, 0.88)
MOST = 11  # points in all
GAIN = 1e-5  # the least promised decrease that is worth a point
WIDE = 1.5  # in a gap so wide no cubic is trusted near an end
LOW = 0.1  # and one with an end so low may hide a valley


def search(problem: Problem, solution: Solution, per_target: bool) -> tuple[tuple, tuple, str]:
    """All λ that were looked at, ascending, with their errors; the best λ with its error, one of
    each per target where those are chosen so, searched side by side; and what it took, in words.
    """
    low, high = (float(np.log(end)) for end in lambda_range(solution.factor))
    count = problem.Y.shape[1] if per_target and problem.Y.ndim == 2 else 1
    look, dtype = _probe if problem.traceable else _look, solution.factor.dtype
    looks: list[tuple] = []  # errors, places, and each search's values and slopes
    for number in range(MOST):
        if number < len(COARSE):
            at = np.full(count, low + (high - low) * COARSE[number])
        else:
            x, f, g = (np.stack(part, axis=1) for part in list(zip(*looks, strict=True))[1:])
            places = [next_place(x[j], f[j], g[j], low, high) for j in range(count)]
            if all(place is None for place in places):
                break
            at = np.array(
                [old if new is None else new for old, new in zip(at, places, strict=True)]
            )
        errors, *own = jax.device_get(look(problem, solution, jnp.asarray(at, dtype)))
        looks.append((errors, at, *own))
    errors, lams = (np.stack(part) for part in list(zip(*looks, strict=True))[:2])
    return *_table(errors, np.exp(lams).astype(dtype)), _words(solution.factor, len(looks), count)


def next_place(at, values, slopes, low: float, high: float) -> float | None:
    """The place between `low` and `high` that promises most, or None where none is worth a look.

    It is log(1 + value − smallest) that is interpolated: errors and evidence grow exponentially in
    log λ on one side, where that is a line. A slope that is NaN is taken from the neighbours; a
    value that is not finite is a cliff, beyond which nothing is looked at."""
    at, first = np.unique(at, return_index=True)
    values, slopes = values[first].astype(np.float64), slopes[first]
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
    """The errors at λ, and each search's own value and slope, NaN where there is none."""

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


@jax.jit
def _probe(problem, solution, log_lams):
    slopes = problem.criterion.smooth and solution.factor.exact
    return _look(problem, solution, log_lams, slopes=slopes)


def _table(errors, lams) -> tuple[tuple, tuple]:
    """All that was seen, ascending, without λ at which the factor broke down unless it did at all;
    and the λ of the smallest error with that.
    """
    each = lams.shape[1:] == errors.shape[1:]  # a λ for each target, or for the only one
    own = errors if each else errors.reshape(len(errors), -1).mean(axis=1, keepdims=True)
    defined = np.isfinite(own).all(axis=1)
    keep = defined if defined.any() else ~defined
    lams, errors = lams[keep], errors[keep]
    order = np.argsort(lams, axis=0)
    errors = np.take_along_axis(errors, order, axis=0) if each else errors[order[:, 0]]
    lams = np.take_along_axis(lams, order, axis=0)
    table = jnp.asarray(lams if each else lams[:, 0]), jnp.asarray(errors)
    return table, choose_lam(*table, per_target=each)


def _words(factor, looks: int, count: int) -> str:
    """How many λ it took."""
    if not factor.exact:
        return f"{looks} iterations and one for the model"
    if factor.shares_work:
        return f"{looks} values of λ, from one factorization"
    return f"{looks * count} Cholesky factors and {count if count > 1 else 'one'} for the model"
