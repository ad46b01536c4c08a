"""Functions that compute R² of predictions."""

from functools import partial
from typing import Any

import numpy as np

from jaxrls.core.fit import Numbers, r_squared
from jaxrls.core.support import as_floats, check_finite, check_weights


def as_predicted(predictions: Numbers, Y: Any) -> Any:
    """Return labels Y in the dtype and shape of the predictions, and check them.

    For predictions (m, 1), labels may also have shape (m,).
    """
    Y = as_floats("Y", Y, predictions.dtype)
    Y = Y[:, None] if predictions.shape == (*Y.shape, 1) else Y
    if Y.shape != predictions.shape:
        raise ValueError(
            f"Y must have shape {predictions.shape}, as the predictions, and has shape {Y.shape}"
        )
    check_finite("Y", Y)
    return Y


def r_squared_of(
    predictions: Numbers, Y: Any, weights: Any, per_target: bool = False
) -> np.floating | np.ndarray:
    """Return R² of predictions of labels Y, averaged over targets unless `per_target`.

    See `Fit.score`.
    """
    predictions = np.asarray(predictions, float)
    Y = np.asarray(as_predicted(predictions, Y))
    if weights is not None:
        weights = as_floats("weights", weights)
        check_weights(weights, len(Y))
    mean = partial(np.average, axis=0, weights=weights)
    heaviest = 0 if weights is None else np.argmax(weights)
    values = r_squared(mean((Y - predictions) ** 2), Y - Y[heaviest], mean, np)
    return values if per_target else np.mean(values)
