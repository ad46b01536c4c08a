"""Sets of labels that hold the true one as often as is asked for: how odd each label would be among
the rows, by scores of rows left out.

A row is the odder the lower the score of its own label is by a fit without it. The p-value of a
label for a new row is the share of the rows, the new one among them, that are at least as odd, and
a set of level 1 − α holds the labels of p > α."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.factors.spread import NewRows, Spread
from jaxrls.inference.fitted import Fit
from jaxrls.inference.model import Model
from jaxrls.inference.posterior import at_rows
from jaxrls.problem.weights import Weights
from jaxrls.rows.compiled import compiled
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import as_rows
from jaxrls.support.checks import (
    Listed,
    as_array,
    check_finite,
    check_matrix,
    check_shares,
    check_targets,
    is_concrete,
    value_of,
)
from jaxrls.support.door import door
from jaxrls.support.pytrees import pytree


@door("left_out")
def label_p_values(
    left_out: Float[Array, "n *T"] | Listed,
    codes: Float[Array, "n *T"] | Listed,
    scores: Float[Array, "m *T"] | Listed,
    weights: Float[Array, " n"] | Listed | None = None,
) -> Float[Array | np.ndarray, "m _"]:
    """The p-value of every label for new rows, by the jackknife: scores of rows left out beside
    those of new rows by the fit to all.

    p = (1 + Σ vᵢ [s₋ᵢ(own label) ≤ s(label)]) / (1 + Σ vᵢ): the share of rows whose own label
    scores no higher without them.

    **Arguments**: `left_out` scores such as `Y − fit.loo_residuals`, of rows or of groups left out,
    `codes` ±1 as of `encode`, `scores` of new rows. **Shapes**: (n,), (n,) and (m,), or a column of
    each, for two classes, or (n, T), (n, T) and (m, T), give (m, 2) or (m, T); weights (n,).
    **Cost** O((n + m T) log n). **Raises** `ValueError` for shapes that do not fit, for NaN or
    infinity, and for codes that are not ±1 with one +1 a row. **Fails**: there is no guarantee for
    any number of rows, as the fit to all and those without a row differ; where the fit is stable,
    which a large λ makes it, sets of p > α hold the true label in a share of 1 − α as n grows.
    `conformal_labels` has the guarantee. **Source**: Barber, Candès, Ramdas and Tibshirani 2021, §1
    and §5; Steinberger and Leeb 2023.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> left_out, codes = jnp.array([-1.0, -0.5, 0.5, 1.0]), jnp.array([-1.0, -1.0, 1.0, 1.0])
    >>> (5 * rls.label_p_values(left_out, codes, jnp.array([-2.0, 0.7]))).round().tolist()  # of the labels −1 and +1
    [[5.0, 1.0], [1.0, 3.0]]
    """
    left_out = as_array("left_out", left_out)
    codes = as_array("codes", codes, left_out.dtype)
    scores = as_array("scores", scores, left_out.dtype)
    check_targets("left_out", left_out)
    check_targets("scores", scores)
    for name, value, wanted in (
        ("codes", codes, left_out.shape),
        ("scores", scores, (len(scores), *left_out.shape[1:])),
    ):
        if value.shape != wanted:
            raise ValueError(
                f"{name} must have shape {wanted}, as left_out has shape {left_out.shape}, and has shape {value.shape}"
            )
    check_finite("left_out", left_out)
    check_finite("scores", scores)
    _check_codes(codes)
    v = Weights.of(weights, len(left_out), left_out.dtype).array
    own = _of_own_label(left_out, codes)
    order = jnp.argsort(own)
    above = jnp.concatenate([jnp.zeros(1, v.dtype), jnp.cumsum(v[order])])
    return (1 + above[jnp.searchsorted(own[order], _each(scores), side="right")]) / (1 + above[-1])


@pytree
class ConformalLabels:
    """What p-values of labels take that hold for any number of rows: see `conformal_labels`, which
    makes it.

    >>> import numpy as np, jaxrls as rls
    >>> X, codes = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([-1.0, -1.0, 1.0, 1.0])
    >>> fit = rls.fit(rls.Linear(), X, codes, lams=[0.5])
    >>> rls.conformal_labels(fit, X, codes).p_values([[1.5]]).tolist()
    [[0.2, 0.6]]
    """

    model: Model
    spread: Spread
    lam: Float[Array | np.ndarray, ""]
    rows: NewRows  # what covariances with them take, made once
    own: Int[Array | np.ndarray, " n"]  # the number of each row's label
    residuals: Float[Array | np.ndarray, " n"]  # of its code, 1, by the fit to all rows
    variance: Float[Array | np.ndarray, " n"]
    weights: Float[Array | np.ndarray, " n"]
    label_weights: Float[Array | np.ndarray, " T"]

    @door("self.model.coef")
    def p_values(self, X, *, block_size: int | None = None) -> Any:
        """The p-value of every label for the rows of X (m, d), dense or a source of `Rows`: (m, T),
        T = 2 for a single column of codes.

        **Cost** O(n (r + d)) a row, as products of matrices, and O(n T), in blocks of rows.
        **Raises** as `Model.predict`."""

        def found(rows):
            scores = _each(jnp.asarray(self.model.predict(rows)))
            return _p_values(self, rows, scores, block_size=block_size)

        return at_rows(self.model, X, found)


@door("fit.model.coef")
def conformal_labels(fit: Fit, X, codes, weights=None, label_weights=None) -> ConformalLabels:
    """p-values of labels by full conformal prediction with rows left out, exact in closed form: a
    new row of each label in turn is taken in.

    For the label y of x the fit to all rows and (x, y) is that to all with, at row i, f(xᵢ) + gᵢ
    (code − f(x)), gᵢ = c(xᵢ, x)/(c(x, x) + λ), where c is the posterior covariance of f + b;
    without row i its residual is divided by 1 − vᵢ (c(xᵢ, xᵢ) − gᵢ c(xᵢ, x))/λ. No row is fitted
    again.

    **Guarantee**: for exchangeable rows, and a kernel, λ and landmarks that were not chosen by
    them, sets of p > α hold the true label with probability 1 − α or more, whatever n and the
    distribution are: over draws of all rows, not for each x. A λ that was chosen by the same rows,
    one number of all, is outside of it, and so are rows of weights that differ. **Arguments**:
    `fit` with its solution kept, its X (n, d), dense, `codes` ±1 (n,) or (n, T) as of `encode`,
    and `weights`, without those of labels: `label_weights` (T,) ≥ 0 multiply them, and are what a
    new row of each label weighs. **Cost** O(n² r) once, and n·r numbers that are kept. **Raises**
    `ValueError` where no solution was kept, for shapes that do not fit, for codes that are not ±1
    with one +1 a row, and for weights that are negative or not finite. **Source**: Vovk, Gammerman
    and Shafer 2005, ch. 2, with the deleted residuals of their ridge regression confidence machine.

    >>> import numpy as np, jaxrls as rls
    >>> X, codes = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([-1.0, -1.0, 1.0, 1.0])
    >>> fit = rls.fit(rls.Linear(), X, codes, lams=[0.5])
    >>> (rls.conformal_labels(fit, X, codes).p_values([[1.5], [-3.0]]) > 0.25).tolist()
    [[False, True], [True, False]]
    """
    sure = fit.of_kept("sure")
    model, dtype = fit.model, fit.model.coef.dtype

    points, given = as_array("X", X, dtype), as_array("codes", codes, dtype)
    check_matrix("X", points)
    n = len(points)
    if given.shape != (n, *model.coef.shape[1:]):
        raise ValueError(
            f"codes must be those that were fitted, {(n, *model.coef.shape[1:])}, and have "
            f"shape {given.shape}"
        )
    _check_codes(given)
    v = Weights.of(weights, n, dtype).array
    each = _each(given)
    u = jnp.ones_like(each[0]) if label_weights is None else label_weights
    u = as_array("label_weights", u, dtype)
    if u.shape != each[0].shape:
        raise ValueError(
            f"label_weights must have shape {each[0].shape}, one for each label, and has shape "
            f"{u.shape}"
        )
    check_shares("label_weights", u, "label")
    residuals = 1 - _of_own_label(jnp.asarray(model.predict(points)), given)
    variance = _variances(sure.spread, model, as_rows(model.kernel, points, dtype=dtype))
    beside, own = _beside(sure.spread, model, points), jnp.argmax(each, axis=1)
    return ConformalLabels(model, sure.spread, sure.lam, beside, own, residuals, variance, v, u)


def _check_codes(codes) -> None:
    """Raise unless, where values are known, codes are ±1, and of several columns one is +1 in each
    row.
    """
    check_finite("codes", codes)
    if not is_concrete(codes):
        return

    def wrong(xp, codes):
        columns = codes.reshape(len(codes), -1)
        return (xp.abs(columns) != 1).any(axis=1) | (
            ((columns > 0).sum(axis=1) != 1) & (columns.shape[1] > 1)
        )

    found = value_of(wrong, codes)
    if found.any():
        row = int(found.argmax())
        held = value_of(lambda xp, codes: codes[row].reshape(-1), codes).tolist()
        raise ValueError(
            f"codes must be ±1, of several columns with one +1 a row, and row {row} holds {held}: use encode(labels)"
        )


def _each(scores):
    """A column for each label: of two, for whom one is given, −s and s."""
    return (
        scores
        if scores.ndim == 2 and scores.shape[1] > 1
        else jnp.concatenate([-scores.reshape(-1, 1), scores.reshape(-1, 1)], axis=1)
    )


def _of_own_label(scores, codes):
    """The score of the label that each row has."""
    return jnp.take_along_axis(_each(scores), jnp.argmax(_each(codes), axis=1)[:, None], axis=1)[
        :, 0
    ]


@compiled
def _variances(spread: Spread, model: Model, rows: Rows):
    return rows.map(
        lambda x: spread.variance(model.kernel, x, corrected=False),
        temporaries=2 * spread.half.shape[1],
    )


@jax.jit
def _beside(spread: Spread, model: Model, points):
    return spread.seen(model.kernel, points)


@compiled
def _p_values(labels: ConformalLabels, rows: Rows, scores, *, block_size: int | None):
    labels = jax.tree.map(jnp.asarray, labels)
    kernel, spread = labels.model.kernel, labels.spread
    v, least = labels.weights, jnp.finfo(labels.residuals.dtype).eps
    tie = (
        float(least) ** 0.75
    )  # two formulas: a row that is like the new one is as odd but for rounding

    def block(x, scores):
        c = spread.between(kernel, spread.seen(kernel, x), labels.rows)
        variance = spread.variance(kernel, x, corrected=False)
        at_own = scores[:, labels.own]

        def of_label(label):
            g = c / (variance + labels.lam / labels.label_weights[label])[:, None]
            rest = 1 - v / labels.lam * labels.label_weights[labels.own] * (labels.variance - g * c)
            error = (
                labels.residuals - g * (jnp.where(labels.own == label, 1, -1) - at_own)
            ) / jnp.maximum(rest, least)
            new = 1 - jnp.take(scores, label, axis=1)[:, None]
            as_odd = error >= new - tie * (1 + jnp.abs(new))
            return (1 + jnp.sum(jnp.where(as_odd, v, 0), axis=1)) / (1 + jnp.sum(v))

        return jax.lax.map(of_label, jnp.arange(scores.shape[1])).T

    return rows.map(block, scores, temporaries=6 * len(v), block_size=block_size)
