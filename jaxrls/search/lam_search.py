"""The best λ of a solution without a grid: value and slope of its criterion at about ten λ, each
where the last ones point to.

Where every λ takes a Cholesky factor of its own that is all it takes, beside one more for the
model. Of a spectrum it is a finer answer than a grid's."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.factors.contract import Solution
from jaxrls.search.grid import choose_lam, lambda_range
from jaxrls.search.line import COARSE, MOST, next_place, valleys
from jaxrls.search.problem import Problem


class Found(NamedTuple):
    """All λ that were looked at, ascending, the errors there, and the best λ with its error; one of
    each per target where those are chosen so.
    """

    lams: jax.Array
    errors: jax.Array
    lam: jax.Array
    error: jax.Array
    words: str


def search(problem: Problem, solution: Solution, per_target: bool) -> Found:
    """The λ of the smallest error, shared by all targets or one for each, which are searched side
    by side.
    """
    low, high = (float(np.log(end)) for end in lambda_range(solution.factor))
    seen: list[dict] = [{}]
    if per_target and problem.Y.ndim == 2:
        seen = [{} for _ in range(problem.Y.shape[1])]
    first = [low + (high - low) * share for share in COARSE]
    return _follow(problem, solution, seen, low, high, first, MOST)


def search_below(problem: Problem, solution: Solution, lams, errors) -> Found:
    """The λ of the smallest error below a grid, the lowest λ of which are given, ascending, with
    the errors there; the grid's are not in the table.
    """
    places = np.log(np.asarray(lams, np.float64)).tolist()
    low = float(np.log(lambda_range(solution.factor)[0]))
    errors = jnp.mean(errors.reshape(len(places), -1), axis=1)
    values = np.asarray(problem.criterion.to_search(errors, len(problem.Y)))
    known = {place: (value, np.nan) for place, value in zip(places, values, strict=True)}
    return _follow(problem, solution, [known], low, places[-1], [low], MOST - len(COARSE))


def _follow(
    problem: Problem, solution: Solution, seen: list[dict], low, high, first, most
) -> Found:
    """All searches side by side until the last ends: at the `first` places, and at `most` in all."""
    probe = _probe if problem.traceable else partial(_look, slopes=False)
    at, looked, dtype = [], [], solution.factor.dtype
    for look in range(most):
        if look < len(first):
            at = [first[look]] * len(seen)
        else:
            wanted = [next_place(one, low, high, most - look) for one in seen]
            if all(place is None for place in wanted):
                break
            at = [old if new is None else new for old, new in zip(at, wanted, strict=True)]
        found = jax.device_get(probe(problem, solution, jnp.asarray(at, dtype)))
        looked.append(found[:2])
        for one, place, value, slope in zip(seen, at, *found[2:], strict=True):
            one[place] = float(value), float(slope)
    lams, errors = (np.stack(part) for part in zip(*looked, strict=True))
    return _chosen(lams, errors, _words(solution, len(looked), seen))


@jax.jit
def _probe(problem, solution, log_lams):
    slopes = problem.criterion.smooth and solution.factor.exact
    return _look(problem, solution, log_lams, slopes=slopes)


def _look(problem: Problem, solution: Solution, log_lams, *, slopes: bool):
    """λ, the errors there, and each search's own value and slope, NaN where there is none."""
    lams = jnp.exp(log_lams)

    def value(log_lams):
        at = jnp.exp(log_lams)
        errors = problem.errors(solution, at if len(at) == 1 else at[None])[0]
        own = errors if errors.shape == at.shape else jnp.mean(errors)[None]
        return problem.criterion.to_search(own, len(problem.Y)), errors

    if slopes:
        own, slope, errors = jax.jvp(value, (log_lams,), (jnp.ones_like(log_lams),), has_aux=True)
        return lams, errors, own, slope
    own, errors = value(log_lams)
    return lams, errors, own, jnp.full_like(own, jnp.nan)


def _chosen(lams, errors, words: str) -> Found:
    """The table of all that was seen, ascending, without λ at which the factor broke down unless it
    did at all; and its smallest error.
    """
    each = lams.shape[1:] == errors.shape[1:]  # a λ for each target, or for the only one
    own = errors if each else errors.reshape(len(errors), -1).mean(axis=1, keepdims=True)
    defined = np.isfinite(own).all(axis=1)
    keep = defined if defined.any() else ~defined
    order = np.argsort(lams[keep], axis=0)
    lams = np.take_along_axis(lams[keep], order, axis=0)
    lams = lams if each else lams[:, 0]
    errors = np.take_along_axis(errors[keep], order, axis=0) if each else errors[keep][order[:, 0]]
    lams, errors = jnp.asarray(lams), jnp.asarray(errors)
    lam, error = choose_lam(lams, errors, per_target=each)
    return Found(lams, errors, lam, error, words)


def _words(solution: Solution, count: int, seen: list[dict]) -> str:
    """How many λ it took, and where there is no telling which of two valleys is the deeper."""
    if not solution.factor.exact:
        made = f"{count} iterations and one for the model"
    elif solution.factor.shares_work:
        made = f"{count} values of λ, from one factorization"
    else:
        factors, last = count * len(seen), len(seen) if len(seen) > 1 else "one"
        made = f"{factors} Cholesky factor{'s' * (factors > 1)} and {last} for the model"
    equal = [f"{np.exp(place):.3g}" for place in valleys(seen[0])]
    if len(seen) > 1 or len(equal) == 1:
        return made
    return f"{made}; λ = {' and '.join(equal)} are as good, within 1 %"
