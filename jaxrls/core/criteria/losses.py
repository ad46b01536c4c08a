"""Losses: functions of held-out residuals and labels, both (n, t), that return (n, t).

Criteria such as `LeaveOneOut` average a loss over held-out rows.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


def squared_error(residual: Float[Array, "n t"], label: Float[Array, "n t"]) -> Float[Array, "n t"]:
    """Return the squared error e², the loss that the method itself minimises.

    Args:
        residual: held-out residuals e = y − f, (n, t).
        label: labels y, (n, t).

    Returns:
        The loss of every entry, (n, t), in squared units of Y.

    **Cost** O(n t). **Raises** nothing. **Fails**: squares of float32 numbers are 0 below 1e-19,
    and infinite above 1e19. **Source**: Rifkin (lecture), "Leave-One-Out CV".

    >>> import jax.numpy as jnp
    >>> squared_error(jnp.array([[2.0]]), jnp.array([[1.0]])).tolist()
    [[4.0]]
    """
    return residual * residual


def absolute_error(
    residual: Float[Array, "n t"], label: Float[Array, "n t"]
) -> Float[Array, "n t"]:
    """Return the absolute error |e|, which outliers affect less than the squared error.

    Its derivative at e = 0 is taken as 0.

    Args:
        residual: held-out residuals e = y − f, (n, t).
        label: labels y, (n, t).

    Returns:
        The loss of every entry, (n, t), in units of Y.

    **Cost** O(n t). **Raises** nothing. **Source**: Hastie, Tibshirani and Friedman 2009, §10.6.

    >>> import jax.numpy as jnp
    >>> absolute_error(jnp.array([[-2.0]]), jnp.array([[1.0]])).tolist()
    [[2.0]]
    """
    return jnp.abs(residual)


def zero_one_loss(residual: Float[Array, "n t"], label: Float[Array, "n t"]) -> Float[Array, "n t"]:
    """Return the classification error: 1 where the held-out prediction has the wrong class, else 0.

    The held-out prediction is f = y − e. With one column of ±1 codes it is wrong where sign(f) ≠ y.
    With several columns, one per class, the column of the largest f is the predicted class. All
    columns of a row then hold the same 0 or 1, so that their average is the error rate.

    The loss is piecewise constant, and its derivative is 0 everywhere. It can choose λ from a grid,
    but it cannot guide a search by gradients.

    Args:
        residual: held-out residuals e = y − f, (n, t).
        label: labels y, codes of classes, (n, t).

    Returns:
        0 or 1 for every entry, (n, t).

    **Cost** O(n t). **Raises** nothing. **Source**: Rifkin 2002, ch. 3.

    >>> import jax.numpy as jnp
    >>> zero_one_loss(jnp.array([[0.5], [2.0]]), jnp.array([[1.0], [1.0]])).tolist()
    [[0.0], [1.0]]
    """
    prediction = label - residual
    if label.shape[1] == 1:
        return ((prediction > 0) != (label > 0)).astype(label.dtype)
    wrong = jnp.argmax(prediction, axis=1) != jnp.argmax(label, axis=1)
    return jnp.broadcast_to(wrong[:, None], label.shape).astype(label.dtype)


# Losses that depend on residuals alone, and not on labels.
OF_RESIDUALS: set[Callable] = {squared_error, absolute_error}
# Losses whose derivative is 0 everywhere. A room adds its own such losses.
PIECEWISE_CONSTANT: set[Callable] = {zero_one_loss}


def check_loss(loss: Any) -> None:
    """Raise if `loss` is not a function."""
    if not callable(loss):
        raise ValueError(
            f"loss must be a function, such as jaxrls.extend.absolute_error, and is {loss!r}"
        )
