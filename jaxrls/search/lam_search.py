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
from jaxrls.search.grid import lambda_range
from jaxrls.search.line import lowest, valleys
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
    count = problem.Y.shape[1] if per_target and problem.Y.ndim == 2 else 1
    return _follow([lowest(low, high) for _ in range(count)], problem, solution, per_target)


def search_below(problem: Problem, solution: Solution, lams, errors) -> Found:
    """The λ of the smallest error below a grid, the lowest λ of which are given, ascending, with
    the errors there; the grid's are not in the table.
    """
    low, places = (
        float(np.log(lambda_range(solution.factor)[0])),
        np.log(np.asarray(lams, np.float64)).tolist(),
    )
    own = problem.criterion.to_search(
        jnp.mean(errors.reshape(len(places), -1), axis=1), len(problem.Y)
    )
    known = {place: (float(value), np.nan) for place, value in zip(places, own, strict=True)}
    return _follow([lowest(low, places[-1], known)], problem, solution, False)


def _follow(paths, problem: Problem, solution: Solution, per_target: bool) -> Found:
    """What all searches look at, side by side until the last ends."""
    probe = _probe if problem.traceable else partial(_look, slopes=False)
    places, seen, looked = np.array([next(path) for path in paths]), [None] * len(paths), []
    while None in seen:
        lams, errors, *found = jax.device_get(
            probe(problem, solution, jnp.asarray(places, solution.factor.dtype))
        )
        looked.append((lams, errors))
        for j, (path, value, slope) in enumerate(zip(paths, *found, strict=True)):
            try:
                places[j] = (
                    places[j] if seen[j] is not None else path.send((float(value), float(slope)))
                )
            except StopIteration as end:
                seen[j] = end.value
    lams, errors = (np.stack(part) for part in zip(*looked, strict=True))
    return _chosen(lams, errors, per_target, _words(solution, len(looked), seen))


@jax.jit
def _probe(problem, solution, log_lams):
    return _look(
        problem, solution, log_lams, slopes=problem.criterion.smooth and solution.factor.exact
    )


def _look(problem: Problem, solution: Solution, log_lams, *, slopes: bool):
    """λ, the errors there, and each search's own value and slope, NaN where there is none."""

    def value(log_lams):
        errors = problem.errors(
            solution, jnp.exp(log_lams)[None] if len(log_lams) > 1 else jnp.exp(log_lams)
        )[0]
        own = errors if errors.shape == log_lams.shape else jnp.mean(errors)[None]
        return problem.criterion.to_search(own, len(problem.Y)), errors

    if slopes:
        own, slope, errors = jax.jvp(value, (log_lams,), (jnp.ones_like(log_lams),), has_aux=True)
    else:
        own, errors = value(log_lams)
        slope = jnp.full_like(own, jnp.nan)
    return jnp.exp(log_lams), errors, own, slope


def _chosen(lams, errors, per_target, words) -> Found:
    """The table of all that was seen, ascending, without λ at which the factor broke down unless it
    did at all; and its smallest error.
    """
    own = errors if errors.ndim == 1 or per_target else errors.mean(axis=1)
    defined = np.isfinite(own) if own.ndim == 1 else np.isfinite(own).all(axis=1)
    keep = np.flatnonzero(defined) if defined.any() else np.arange(len(own))
    lams, errors, own = lams[keep], errors[keep], own[keep]
    if own.ndim == 1:
        lams = lams[:, 0]
    best = np.argmin(own, axis=0)
    lam, error = (
        (lams[best], own[best])
        if own.ndim == 1
        else (np.diagonal(part[best]).copy() for part in (lams, own))
    )
    order = np.argsort(lams, axis=0)
    errors = errors[order] if lams.ndim == 1 else np.take_along_axis(errors, order, axis=0)
    return Found(
        jnp.asarray(np.take_along_axis(lams, order, axis=0)),
        jnp.asarray(errors),
        jnp.asarray(lam),
        jnp.asarray(error),
        words,
    )


def _words(solution: Solution, count: int, seen) -> str:
    """How many λ it took, and where there is no telling which of two valleys is the deeper."""
    made = f"{count} values of λ, from one factorization"
    if not solution.factor.exact:
        made = f"{count} iterations and one for the model"
    elif not solution.factor.shares_work:
        made = f"{count * len(seen)} Cholesky factor{'s' * (count * len(seen) > 1)} and {'one' if len(seen) == 1 else len(seen)} for the model"
    if len(seen) > 1:
        many = sum(len(valleys(one)) > 1 for one in seen)
        return made + (
            f"; {many} of {len(seen)} targets have two λ or more that are as good, within 1 %"
            if many
            else ""
        )
    equal = [f"{np.exp(at):.3g}" for at in valleys(seen[0])]
    return made + (f"; λ = {' and '.join(equal)} are as good, within 1 %" if len(equal) > 1 else "")
