"""The mean loss of held-out residuals at the chosen λ, with its standard error.

`mean_losses` computes both from the residuals that `counted_residuals` returns.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import Folds, Weights


class MeanLoss(NamedTuple):
    """A mean loss over rows, or over groups, with its standard error."""

    mean: Float[Array, " t"]
    standard_error: Float[Array, " t"]


class CountedResiduals(NamedTuple):
    """Held-out residuals (n, t), and the weights by which they count in means over rows."""

    residuals: Float[Array, "n t"]
    weights: Weights


class MeanLosses(NamedTuple):
    """The mean loss of each target, and that by which λ was chosen.

    They are the same unless several targets share λ. Then `of_chosen` is (1,), the mean loss of
    their average.
    """

    of_targets: MeanLoss
    of_chosen: MeanLoss


def mean_losses(
    criterion: Any,
    Y: Float[Array, "n t"],
    counted: CountedResiduals,
    lam: Float[Array | np.ndarray, "*#t"],
) -> MeanLosses:
    """Return the mean losses of held-out residuals at λ, as a criterion measures them.

    Args:
        criterion: a criterion with `loss` and `groups`.
        Y: labels (n, t).
        counted: held-out residuals with their weights, from `counted_residuals`.
        lam: the λ of all targets (), or one for each target (t,).
    """
    losses = criterion.loss(counted.residuals, Y)
    of_targets = mean_loss(losses, counted.weights, criterion.groups)
    shared = mean_if_shared(losses, lam)
    if shared is losses:
        return MeanLosses(of_targets, of_targets)
    return MeanLosses(of_targets, mean_loss(shared, counted.weights, criterion.groups))


def mean_if_shared(
    values: Float[Array, "*n t"], lam: Float[Array | np.ndarray, "*#t"]
) -> Float[Array, "*n u"]:
    """Return values of all targets, or their mean over targets, (…, 1), if targets share λ."""
    if lam.ndim or values.shape[-1] == 1:
        return values
    return jnp.mean(values, axis=-1, keepdims=True)


def mean_loss(losses: Float[Array, "n t"], weights: Weights, folds: Folds | None) -> MeanLoss:
    """Return the mean loss over rows, or over groups, and its standard error.

    Let m_g be the loss of row g, or the mean loss of group g, and V_g the sum of its weights. Let m
    be the mean Σ V_g m_g / Σ V_g over the G rows or groups. The standard error of m is
    √(Σ V_g² (m_g − m)² · G/(G − 1)) / Σ V_g.
    """
    mean = weights.mean(losses)
    away = losses - mean
    if weights.values is not None:
        away = weights.values[:, None] * away
    count = weights.count
    if folds is not None:
        away = folds.sums(away)
        has_weight = folds.sums(weights.array[:, None]) > 0
        count = jnp.sum(has_weight).astype(losses.dtype)
    spread = jnp.sqrt(jnp.sum(away**2, axis=0) * count / jnp.maximum(count - 1, 1))
    return MeanLoss(mean, spread / weights.total)


def counted_residuals(
    residuals: Float[Array, "n t"], weights: Weights, folds: Folds | None
) -> CountedResiduals:
    """Return held-out residuals and weights for means over the rows that are predicted.

    Residuals are set to 0 for rows without weight. Rows that no split predicts have no weight here.

    Args:
        residuals: held-out residuals (n, t).
        weights: the weights of all rows.
        folds: the rows that are left out together; None for single rows.
    """
    weights = weights if folds is None else folds.weights_of_predicted(weights)
    if weights.values is not None:
        residuals = jnp.where(weights.used[:, None], residuals, 0)
    return CountedResiduals(residuals, weights)
