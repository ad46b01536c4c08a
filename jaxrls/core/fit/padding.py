"""Few rows, padded up to one of a few sizes, so that programs compiled for these serve other
numbers of rows: problems before they are solved, models before they predict; results are cut again.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxrls.core.factors import Cholesky, Spectral, choose_route
from jaxrls.core.problem import Data, DenseRows, Weights, common_size, first, padded
from jaxrls.core.support import is_concrete, on_device

PADDED = 1024  # up to so many new rows in NumPy, their number is padded to a power of two


def fit_in_common_size(fit: Callable, problem: Any) -> Any:
    """`fit(problem)` of the padded problem, without the added rows."""
    larger = padded_problem(problem)
    return fit(larger) if larger is problem else without_padding(fit(larger), len(problem.Y))


def padded_problem(problem):
    """The problem with rows of weight 0 at the end. It is unchanged if there are many rows, if they
    are committed to a device, or if the criterion or the fixed effects hold data of each row.
    """
    rows, (n, d) = problem.rows, problem.rows.shape
    missing = common_size(n) - n
    if not missing or not _can_be_padded(problem):
        return problem
    if (
        len({choose_route(problem.kernel, (count, d), rows.dtype) for count in (n, n + missing)})
        > 1
    ):
        return problem
    more = lambda values, mode="edge": on_device(padded(np.asarray(values), missing, mode))
    v = problem.weights.values
    v = np.ones(n, rows.dtype) if v is None else v
    weights = Weights(more(v, "constant"), n + missing, rows.dtype)
    data = Data(DenseRows(more(rows.dense())), weights, problem.fixed)
    return replace(problem, data=data, Y=more(problem.Y))


def _can_be_padded(problem):
    """Whether rows of weight 0 change nothing, and the arrays are free to move."""
    usual = isinstance(problem.solver, Spectral | Cholesky | None) and problem.fixed.rows is None
    dense = usual and problem.criterion.of_some_rows and type(problem.rows) is DenseRows
    return dense and is_concrete(problem) and not problem.rows.dense().committed


def without_padding(fit, n):
    """The fit of the first n rows."""
    model, residuals = fit.model, fit.loo_residuals
    if residuals is None or len(residuals) == n or not is_concrete(fit):
        return fit
    if model.points is not None:
        model = replace(model, points=first(model.points, n), coef=first(model.coef, n))
    return replace(fit, model=model, loo_residuals=first(residuals, n))


def predict_in_common_size(predict: Callable, model: Any, X) -> Any:
    """`predict(model, X)` with the last of few rows repeated, and with further points of
    coefficient 0.
    """
    if not (isinstance(X, np.ndarray) and X.ndim == 2 and len(X) and is_concrete(model)):
        return predict(model, X)
    m = len(X)
    size = 2 ** (m - 1).bit_length() if m <= PADDED else m
    if isinstance(model.points, jax.Array | np.ndarray):
        points, coef = map(np.asarray, (model.points, model.coef))
        if missing := common_size(len(points)) - len(points):
            points, coef = padded(points, missing, "edge"), padded(coef, missing)
            model = replace(model, points=points, coef=coef)
    predictions = predict(model, X if size == m else X[np.minimum(np.arange(size), m - 1)])
    return predictions if size == m else first(predictions, m)
