"""Held-out residuals of large folds, by one fit to the other rows of each fold.

The residuals equal those from a solve with R_SS. A fit serves all λ at once, while R_SS needs a
solve for each λ. `sweep_primal_refits` is for factors of features and `sweep_dual_refits` for
spectra of K.

The primal way pays if folds have more rows than there are features. One pass over the rows for each
fold gives the moments of the other rows, and nothing is subtracted from them. One more pass gives
the residuals.

The dual way pays with many λ and few folds. A fit to c rows takes as long as 2.4 to 4.8 products of
c × c matrices. R_SS takes one product for each λ.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.data import Data, DataBlock, Folds, Labels, Moments, moments
from jaxrls.core.factors.lams import PerLam, matmul_lams, over_lams
from jaxrls.core.factors.residuals import HeldOut
from jaxrls.core.leave_out import orthonormal
from jaxrls.core.linalg import Reduction, eigh, eigh_rounding, matmul, whitened
from jaxrls.core.support import platform


class PrimalForm(NamedTuple):
    """A factor in terms of features φ of its rows, with the penalty λ‖w‖²/2.

    The features are φ = (ψ(x) − B fixed_fit) rotation, and `feature_map` gives ψ. If landmarks are
    held out with their row, row k of `planes` gives βₖ as planesₖ·w.
    """

    data: Data
    feature_map: Any  # ψ(x) = `feature_map.features(x)`
    rotation: Float[Array, "p r"]
    fixed_fit: Float[Array, "q p"]  # coefficients of the fit of ψ by the fixed effects
    # `solve(S, C, lams)` returns (S + λI)⁻¹ C for every λ and all targets, (r, L, t).
    solve: Callable
    planes: Any = None  # None if no landmarks are held out
    indices: Any = None  # row numbers of these landmarks


def sweep_primal_refits(
    reduction: Reduction,
    form: PrimalForm,
    solution: Any,
    lams: PerLam,
    fn: Callable,
    folds: Folds,
) -> Any:
    """Compute `Factor.sweep_folds` by fits on features.

    One pass over the rows for each fold makes moments, and one more pass makes the residuals for
    all λ. Cost: k n r², and k eigendecompositions of r×r matrices. If derivatives are needed,
    Cholesky factors for each λ take the place of the eigendecompositions.
    """
    data = form.data
    labels = solution.labels
    L = len(lams)
    t = labels.Y.shape[1]
    fits = primal_refits(form, labels, folds, lams)

    def of_block(block: DataBlock) -> Any:
        known: LabelsByFold = block.added
        Y = known.Y
        phi = form.feature_map.features(block.x)

        def fill_in_fold(
            e: Float[Array, "b L t"], fit: PrimalFits
        ) -> tuple[Float[Array, "b L t"], None]:
            predicted = matmul(phi, fit.w) + data.fixed.fitted(block.b, fit.beta)
            left_out = Y[:, None] - predicted.reshape(len(Y), L, t)
            return jnp.where((known.predicted_by == fit.number)[:, None, None], left_out, e), None

        e, _ = jax.lax.scan(fill_in_fold, jnp.zeros((len(Y), L, t), Y.dtype), fits)
        is_predicted = known.predicted_by < len(folds.left_out)
        v = jnp.where(is_predicted, block.weights.array, 0)
        return HeldOut(e, None, Y, v).at_each_lam(reduction, fn)

    known = LabelsByFold(labels.Y, folds.predicted_by)
    return data.over(reduction, of_block, known, temporaries=2 * L * t)


class LabelsByFold(NamedTuple):
    """The labels of rows, and the number of the fold that predicts each row."""

    Y: Float[Array, "b t"]
    predicted_by: Int[Array, " b"]


class PrimalFits(NamedTuple):
    """The fits without each fold, for all λ and targets."""

    number: Any  # (k,), the number of the fold
    w: Any  # (k, p, L t)
    beta: Any  # (k, q, L t)


def primal_refits(form: PrimalForm, labels: Labels, folds: Folds, lams: PerLam) -> PrimalFits:
    """Fit the rows that each fold keeps, from their moments."""
    of_others = jax.checkpoint(lambda number: moments_of_others(form, labels, folds, number))

    def without(number: Int[Array, ""]) -> PrimalFits:
        sums_of_others = of_others(number)
        rotation = form.rotation
        sums = sums_of_others.centred(form.data.fixed.from_gram(sums_of_others.gram))
        if form.planes is not None:  # take out the directions of the fold's landmarks
            inside = folds.holds(number)[form.indices][:, None]
            Q = orthonormal(jnp.where(inside, form.planes, 0))
            rotation = rotation - matmul(matmul(rotation, Q.T), Q)
        second = matmul(rotation.T, matmul(sums.second, rotation))
        cross = matmul(rotation.T, sums.cross)
        w = matmul(rotation, form.solve(second, cross, lams).reshape(rotation.shape[1], -1))
        beta = jnp.tile(sums.label_fit, (1, len(lams))) - matmul(sums.fixed_fit, w)
        return PrimalFits(number, w, beta)

    return jax.lax.map(without, folds.fold_numbers)


def moments_of_others(
    form: PrimalForm, labels: Labels, folds: Folds, number: Int[Array, ""]
) -> Moments:
    """Return the moments of all rows that a fold does not leave out."""
    data = form.data
    v = jnp.where(folds.holds(number), 0, data.weights.array)
    others = replace(data, weights=data.weights.block(v, len(v)))
    return moments(
        others, form.feature_map, labels.Y, origin=form.fixed_fit, label_origin=labels.beta
    )


# folds of K --------------------------------------------------------------------------------------

# A fit to c rows, for all λ at once, takes as long as this many products of c × c matrices. It was
# 2.4 to 4.8 at 700 and 1400 rows on a CPU. R_SS of b rows takes a product, b² n, at every λ.
PRODUCTS_OF_FIT = 4


def most_training_rows(folds: Folds) -> int:
    """Return how many rows outside of a fold there are at most."""
    k, b = folds.left_out.shape
    return folds.most_trained or min((k - 1) * b, folds.n)


def pays_to_refit(folds: Folds, lams: int) -> bool:
    """Whether fits to the other rows cost less than R_SS at every λ."""
    product = lams * folds.width**2 * folds.n
    return PRODUCTS_OF_FIT * most_training_rows(folds) ** 3 < product and platform() == "cpu"


def sweep_dual_refits(
    reduction: Reduction, factor: Any, solution: Any, lams: PerLam, fn: Callable, folds: Folds
) -> Any:
    """Compute `Factor.sweep_folds` for a square U of K.

    Rows of weight 0 are queries.
    """
    labels = solution.labels
    v = folds.weights_of_predicted(factor.weights).array
    unit = factor.weights.root_or_one[:, None]
    fits = dual_refits(factor, labels, folds)

    def of_lams(lams: PerLam) -> Any:
        def left_out(fit: DualFits) -> Float[Array, "b L t"]:
            shrunk = fit.z[:, None] / (fit.s[:, None, None] + lams)
            return fit.start[:, None] - matmul_lams(fit.cross, shrunk)

        e = folds.in_row_order(jax.lax.map(left_out, fits)) / unit[:, None]
        return HeldOut(e, None, labels.Y, v).at_each_lam(reduction, fn)

    return over_lams(reduction, of_lams, lams, labels.Y.shape[1])


class DualFits(NamedTuple):
    """The fits to the other rows of each fold.

    The held-out residuals e of a fold are √v e = start − cross·(z/(s + λ)). Queries have √v = 1.
    The matrix K is the centred one that `dual_refits` rebuilds. All fields are minus their fit by
    the fixed effects of the other rows.
    """

    s: Any  # (k, c), eigenvalues of K of the other rows
    z: Any  # (k, c, t), their labels along the eigenvectors
    cross: Any  # (k, b, c), K of the fold with the other rows, along the eigenvectors
    start: Any  # (k, b, t), ỹ of the fold minus the fit of the fixed effects


def dual_refits(factor: Any, labels: Any, folds: Folds) -> DualFits:
    """Fit the other rows of every fold, from K, H and ỹ of all rows.

    K is rebuilt as U diag(s) Uᵀ. It is not K̃ of `factor.py`, but K̃ with the fixed effects of all
    rows projected out. Every fit to other rows projects out the fixed effects of those rows anyway.

    In these matrices √v is 1 for rows of weight 0. One row of zeros is added. The other rows of
    each fold are padded with it, so that all folds have the same number of other rows.
    """
    weights = factor.weights
    unit = weights.root_or_one[:, None]
    with_zero_row = lambda A: jnp.pad(A, ((0, 1), (0, 0)))
    K = matmul(with_zero_row(_left_factor(factor)), with_zero_row(factor.U).T)
    H = with_zero_row(factor.fixed_basis * unit)
    Y = with_zero_row((labels.Y - labels.by_effects) * unit)

    def without(fold: tuple[Int[Array, ""], Int[Array, " b"]]) -> DualFits:
        number, inside = fold
        stays = weights.used & ~folds.holds(number)
        most = most_training_rows(folds)
        others = jnp.flatnonzero(stays, size=most, fill_value=factor.n).astype(inside.dtype)
        of_fold = RowsOfFold(K[inside][:, others], H[inside], Y[inside])
        of_others = RowsOfFold(K[others][:, others], H[others], Y[others])
        return fit_to_others(of_fold, of_others, factor.drops_rounding)

    return jax.lax.map(without, (folds.fold_numbers, folds.left_out))


def _left_factor(factor: Any) -> Float[Array, "n r"]:
    """Return A with AUᵀ = K, the matrix that `dual_refits` rebuilds: U diag(s) for rows of the fit.

    For rows of weight 0, which are queries, A is G of `query_map`: GUᵀ are their centred kernel
    values with the rows of the fit.
    """
    A = factor.U * factor.s
    if factor.weights.values is None:
        return A
    return jnp.where(factor.weights.used[:, None], A, factor.query_map())


class RowsOfFold(NamedTuple):
    """K, H and ỹ of `dual_refits`, for the rows of a fold or for the c other rows."""

    K: Float[Array, "b c"]  # K of these rows with the c other rows
    H: Float[Array, "b q"]
    Y: Float[Array, "b t"]  # ỹ


def fit_to_others(of_fold: RowsOfFold, of_others: RowsOfFold, drops_rounding: bool) -> DualFits:
    """Fit the other rows of one fold.

    A fixed effect whose H is 0 outside of the fold is not fitted. With `drops_rounding`, directions
    that are only rounding among the other rows are dropped.

    H is that of the other rows here:

        LLᵀ = HᵀH
        Q = HL⁻ᵀ, an orthonormal basis of H
        B = H_fold L⁻ᵀ, the same combinations of columns on the fold
        QQᵀA, the fit of A by the effects
        BQᵀA, this fit on the fold

    The eigenvectors V are orthogonal to Q. So K of the fold with the other rows needs no centring
    on the right.
    """
    K, H, Y = of_others
    Q, inverse_L = whitened(H, H)
    B = matmul(of_fold.H, inverse_L.T)
    without_effects = lambda A: A - matmul(Q, matmul(Q.T, A))
    on_fold = lambda A_fold, A: A_fold - matmul(B, matmul(Q.T, A))
    s, V = eigh(without_effects(without_effects(K).T))
    V = without_effects(V)
    if drops_rounding:
        V = jnp.where(s > eigh_rounding(len(s), jnp.max(s)), V, 0)
    return DualFits(
        s=jnp.maximum(s, 0),
        z=matmul(V.T, without_effects(Y)),
        cross=matmul(on_fold(of_fold.K, K), V),
        start=on_fold(of_fold.Y, Y),
    )
