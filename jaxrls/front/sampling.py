"""Functions that change the rows of a `Problem`: `sample_of` draws some, `padded` adds a few.

A search is faster on a sample. The added rows have weight 0, so that compiled programs for a few
numbers of rows serve every number.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import (
    DenseRows,
    Labels,
    Weights,
    common_size,
    intercept_over,
    pad_rows,
)
from jaxrls.core.factors import Cholesky, Spectral
from jaxrls.core.fit import Problem
from jaxrls.core.support import on_device


class Sample(NamedTuple):
    """The problem on a sample of its rows, with the numbers of these rows in X, (k,)."""

    problem: Problem
    numbers: np.ndarray


def sample_of(problem: Problem, count: int) -> Sample:
    """Return the problem on a random sample of the rows, the same in every call.

    If there are fixed effects beyond an intercept, their fit is subtracted from the labels, and an
    intercept takes their place.

    Args:
        problem: the problem on all rows.
        count: how many rows to draw. If there are weights, a row is drawn with a probability
            proportional to its weight, and may be drawn several times. Each draw then counts with
            the mean weight of all rows of positive weight.
    """
    candidates = problem.rows.candidates()
    X = candidates.rows
    numbers = np.arange(len(X)) if candidates.are_all else np.asarray(candidates.numbers)
    v = problem.weights.values
    of_candidates = np.ones(len(X)) if v is None else np.asarray(v, np.float64)[numbers]
    places, drawn_weights = _draw(of_candidates, count, often=v is not None)
    X = on_device(np.asarray(X)[places])
    Y = on_device(np.asarray(_without_effects(problem))[numbers[places]])
    weights = Weights.of(None if v is None else drawn_weights, len(places), X.dtype)
    has_effects = problem.fixed.count > 0
    fixed = intercept_over(weights.total) if has_effects else problem.fixed
    some = replace(problem, rows=DenseRows(X), weights=weights, fixed=fixed, Y=Y)
    return Sample(some, numbers[places])


def _without_effects(problem: Problem) -> Float[Array, "n *t"]:
    """Return the labels minus their fit by the fixed effects, if these are more than an intercept.

    Otherwise return the labels as they are.
    """
    if not problem.fixed.are_given:
        return problem.Y
    labels = Labels.of(problem.Y, problem.weights, problem.fixed)
    return labels.drop_axis(labels.Y - labels.by_effects)


def _draw(weights: np.ndarray, count: int, often: bool) -> tuple[np.ndarray, np.ndarray]:
    """Draw at most `count` places of positive weight; return them, and their weights in the sample.

    With `often`, places are drawn in proportion to their weights, with replacement. A place is
    returned once, with a weight that counts how often it was drawn. Without `often`, places are
    drawn with equal chances and without replacement.
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
    """Return the problem with rows of weight 0 at its end, up to one of a few numbers of rows.

    A program that is compiled for this number of rows serves several problems. The problem is
    returned unchanged if

    * there are many rows, or they are committed to a device, or are no plain array;
    * the solver is neither `Spectral` nor `Cholesky`, or more rows would change its route;
    * the criterion or the fixed effects hold data of each row.
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
    """Return the array with `missing` more rows: of 0, or with mode "edge" copies of the last."""
    return on_device(pad_rows(np.asarray(values), missing, mode))


def _can_be_padded(problem: Problem, missing: int) -> bool:
    """Whether `missing` more rows of weight 0 change only the shape of a fit."""
    usual_solver = isinstance(problem.solver, Spectral | Cholesky)
    of_each_row = problem.fixed.are_given or not problem.criterion.fits_samples
    if not usual_solver or of_each_row or type(problem.rows) is not DenseRows:
        return False
    if problem.rows.dense().committed:
        return False
    shape = problem.call_shape()
    return problem.route == shape._replace(rows=shape.rows + missing).route
