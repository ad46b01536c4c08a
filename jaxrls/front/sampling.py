"""The problem on some of its rows, and on a few more rows of weight 0."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import (
    DenseRows,
    FixedEffects,
    Labels,
    Weights,
    common_size,
    pad_rows,
)
from jaxrls.core.factors import Cholesky, Spectral, choose_route
from jaxrls.core.fit import Problem
from jaxrls.core.support import on_device


class Sample(NamedTuple):
    """The problem on some of the rows, and their numbers in X, (k,)."""

    problem: Problem
    numbers: np.ndarray


def sample_of(problem: Problem, count: int) -> Sample:
    """The problem on a sample of the rows. An intercept takes the place of other fixed effects, and
    labels are minus what those fit.

    Args:
        problem: the problem on all rows.
        count: how many rows to draw, at random with probabilities proportional to their weights;
            the same rows every time. With weights a row may be drawn several times, and counts as
            often; the mean weight of what is drawn is kept.
    """
    numbers, X = problem.rows.candidates()
    numbers = np.arange(len(X)) if numbers is None else np.asarray(numbers)
    v = problem.weights.values
    of_candidates = np.ones(len(X)) if v is None else np.asarray(v, np.float64)[numbers]
    places, drawn_weights = _draw(of_candidates, count, often=v is not None)
    X = on_device(np.asarray(X)[places])
    Y = on_device(np.asarray(_without_effects(problem))[numbers[places]])
    weights = Weights.of(None if v is None else drawn_weights, len(places), X.dtype)
    has_constant = problem.fixed.count > 0
    fixed = FixedEffects.constant(weights.total) if has_constant else problem.fixed
    some = replace(problem, rows=DenseRows(X), weights=weights, fixed=fixed, Y=Y)
    return Sample(some, numbers[places])


def _without_effects(problem: Problem) -> Float[Array, "n *t"]:
    """The labels, less what fixed effects beyond an intercept fit."""
    if problem.fixed.values is None:
        return problem.Y
    labels = Labels.of(problem.Y, problem.weights, problem.fixed)
    return labels.drop_axis(labels.Y - labels.mean)


def _draw(weights: np.ndarray, count: int, often: bool) -> tuple[np.ndarray, np.ndarray]:
    """At most so many places, drawn in proportion to their weights, and the weights for them; a
    place may be drawn `often`, and counts as often.
    """
    places = np.flatnonzero(weights)
    weights = weights[places]
    if count >= len(places):
        return places, weights
    chances = weights / weights.sum() if often else None
    drawn = np.random.default_rng(0).choice(places, count, replace=often, p=chances)
    places, times = np.unique(drawn, return_counts=True)
    return places, times * weights.mean()


def padded(problem: Problem) -> Problem:
    """The problem with rows of weight 0 at the end, up to one of a few numbers of rows, so that
    programs compiled for these serve others. It is unchanged if there are many rows, if they are
    committed to a device, or if the criterion or the fixed effects hold data of each row.
    """
    n, _ = problem.rows.shape
    missing = common_size(n) - n
    if not missing or not _can_be_padded(problem, missing):
        return problem
    dtype = problem.rows.dtype
    given = problem.weights.values
    v = np.ones(n, dtype) if given is None else np.asarray(given)
    more = _more(v, missing, "constant")
    weights = Weights(more, n + missing, dtype, padded=given is None)
    rows = DenseRows(_more(problem.rows.dense(), missing, "edge"))
    return replace(problem, rows=rows, weights=weights, Y=_more(problem.Y, missing, "edge"))


def _more(values: Any, missing: int, mode: str) -> Array:
    """An array with further rows: 0, or with the mode "edge" copies of the last one."""
    return on_device(pad_rows(np.asarray(values), missing, mode))


def _can_be_padded(problem: Problem, missing: int) -> bool:
    """Whether further rows of weight 0 change nothing but the shape."""
    usual_solver = isinstance(problem.solver, Spectral | Cholesky | None)
    of_each_row = problem.fixed.values is not None or not problem.criterion.fits_samples
    if not usual_solver or of_each_row or type(problem.rows) is not DenseRows:
        return False
    if problem.rows.dense().committed:
        return False
    n, d = problem.rows.shape
    routes = {
        choose_route(problem.kernel, (rows, d), problem.rows.dtype) for rows in (n, n + missing)
    }
    return len(routes) == 1
