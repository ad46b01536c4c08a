"""Held-out residuals of large folds, each predicted by a fit to the other rows, for all λ at once,
in place of a solve with R_SS for each λ. The residuals are the same.

Where folds have more rows than there are features, one reading of the rows for each fold gives the
moments of the others, from which nothing is subtracted. One more reading gives the residuals. Of K
it gains where there are many λ and few folds: 2.4 to 4.8 products of a fold's size a fit, against
one for each λ.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.data import Data, DataBlock, Folds, Labels, Moments, moments
from jaxrls.core.factors.lams import OfFolds, PerLam, matmul_lams, over_lams
from jaxrls.core.leave_out import orthonormal
from jaxrls.core.linalg import eigh, eigh_rounding, matmul, whitened
from jaxrls.core.support import platform


class PrimalForm(NamedTuple):
    """A factor in terms of features φ of its rows, with the penalty λ‖w‖²/2: φ = (map(x) − B
    origin) turn. Row k of `planes` gives βₖ, of a landmark that leaves with its row, from w.
    """

    data: Data
    map: Any  # has `features(x)`
    turn: Float[Array, "p r"]
    origin: Float[Array, "q p"]
    # Of a second moment S and C: (S + λI)⁻¹ C of every λ for all targets, (r, L, t).
    solve: Callable
    planes: Any = None
    indices: Any = None  # the rows of these landmarks


def sweep_primal_refits(
    form: PrimalForm, solution: Any, fn: OfFolds, lams: PerLam, folds: Folds, stack: bool
) -> Any:
    """`Factor.sweep_folds`: readings for the moments, and one with all λ by one product for each
    fold. Cost: k n r², k eigendecompositions of r×r, or as many Cholesky factors for each λ where
    derivatives are asked for.
    """
    data = form.data
    labels = solution.labels
    L = len(lams)
    t = labels.Y.shape[1]
    fits = primal_refits(form, labels, folds, lams)

    def of_block(block: DataBlock, Y: Float[Array, "b t"], fold_of_row: Int[Array, " b"]) -> Any:
        phi = form.map.features(block.x)

        def put(e: Float[Array, "b L t"], fit: PrimalFits) -> tuple[Float[Array, "b L t"], None]:
            predicted = matmul(phi, fit.w) + data.fixed.fitted(block.b, fit.beta)
            left_out = Y[:, None] - predicted.reshape(len(Y), L, t)
            return jnp.where((fold_of_row == fit.number)[:, None, None], left_out, e), None

        e, _ = jax.lax.scan(put, jnp.zeros((len(Y), L, t), Y.dtype), fits)
        counted = fold_of_row < len(folds.inside)  # as `Folds.weights_of_predicted`, of a block
        return fn(e, Y, jnp.where(counted, block.weights.array, 0))

    read = data.map if stack else data.sum
    return read(of_block, labels.Y, folds.fold_of_row, temporaries=2 * L * t)


class PrimalFits(NamedTuple):
    """Fits without each fold, of all λ and targets."""

    number: Any  # of the fold, (k,)
    w: Any  # (k, p, L t)
    beta: Any  # (k, q, L t)


def primal_refits(form: PrimalForm, labels: Labels, folds: Folds, lams: PerLam) -> PrimalFits:
    """From the moments of the rows that each fold does not leave out."""
    of_others = jax.checkpoint(lambda number: moments_of_others(form, labels, folds, number))

    def without(number: Int[Array, ""]) -> PrimalFits:
        sums = of_others(number)
        turn = form.turn
        sums = sums.centred(form.data.fixed.from_gram(sums.gram))
        if form.planes is not None:  # its landmarks' directions are taken out
            inside = folds.holds(number)[form.indices][:, None]
            Q = orthonormal(jnp.where(inside, form.planes, 0))
            turn = turn - matmul(matmul(turn, Q.T), Q)
        second = matmul(turn.T, matmul(sums.second, turn))
        cross = matmul(turn.T, sums.cross)
        w = matmul(turn, form.solve(second, cross, lams).reshape(turn.shape[1], -1))
        beta = jnp.tile(sums.label_origin, (1, len(lams))) - matmul(sums.origin, w)
        return PrimalFits(number, w, beta)

    return jax.lax.map(without, folds.fold_numbers)


def moments_of_others(
    form: PrimalForm, labels: Labels, folds: Folds, number: Int[Array, ""]
) -> Moments:
    """The moments of all rows that a fold does not leave out."""
    data = form.data
    v = jnp.where(folds.holds(number), 0, data.weights.array)
    others = replace(data, weights=data.weights.block(v, len(v)))
    return moments(others, form.map, labels.Y, origin=form.origin, label_origin=labels.beta)


# folds of K --------------------------------------------------------------------------------------

# A fit to c rows, for all λ at once, takes as long as this many products of c rows by c columns, as
# R_SS takes one at every λ: measured on a CPU between 2.4 and 4.8 at 700 and 1400 rows.
PRODUCTS_OF_FIT = 4


def most_training_rows(folds: Folds) -> int:
    """How many rows there are outside of a fold, at most."""
    k, b = folds.inside.shape
    return folds.most_trained or min((k - 1) * b, folds.n)


def pays_to_refit(folds: Folds, lams: int) -> bool:
    """Whether fits to the other rows cost less than R_SS at every λ."""
    product = lams * folds.inside.shape[1] ** 2 * folds.n
    return PRODUCTS_OF_FIT * most_training_rows(folds) ** 3 < product and platform() == "cpu"


def sweep_dual_refits(
    factor: Any, solution: Any, fn: OfFolds, lams: PerLam, folds: Folds, stack: bool
) -> Any:
    """`Factor.sweep_folds` of a spectrum of K whose U is square, with rows of weight 0 as they are
    predicted.
    """
    labels = solution.labels
    weights = factor.weights
    unit = factor.weights.root_or_one[:, None]
    fits = dual_refits(factor, labels, folds)

    def of_lams(lams: PerLam) -> Any:
        def left_out(fit: DualFits) -> Float[Array, "b L t"]:
            shrunk = fit.z[:, None] / (fit.s[:, None, None] + lams)
            return fit.start[:, None] - matmul_lams(fit.cross, shrunk)

        e = folds.as_rows(jax.lax.map(left_out, fits)) / unit[:, None]
        return fn(e, labels.Y, folds.weights_of_predicted(weights).array)

    return of_lams(lams) if stack else over_lams(of_lams, lams, labels.Y.shape[1])


class DualFits(NamedTuple):
    """Fits to the other rows, which leave start − cross·(z/(s + λ)) of those of each fold."""

    s: Any  # (k, c)
    z: Any  # (k, c, t)
    cross: Any  # (k, b, c)
    start: Any  # (k, b, t)


def dual_refits(factor: Any, labels: Any, folds: Folds) -> DualFits:
    """The fit to the other rows of every fold, from K̃, H and ỹ of all rows, where √v stands as 1
    for rows of weight 0, and one row more, of 0: where a fold leaves fewer other rows than the
    smallest fold does, that row stands for the missing ones.
    """
    weights = factor.weights
    unit = weights.root_or_one[:, None]
    with_zero_row = lambda A: jnp.pad(A, ((0, 1), (0, 0)))
    K = matmul(with_zero_row(_rows_of_matrix(factor)), with_zero_row(factor.left_vectors()).T)
    H = with_zero_row(factor.fixed_basis * unit)
    Y = with_zero_row((labels.Y - labels.mean) * unit)
    drops_rounding = factor.present is not None

    def without(fold: tuple[Int[Array, ""], Int[Array, " b"]]) -> DualFits:
        number, inside = fold
        stays = weights.used & ~folds.holds(number)
        most = most_training_rows(folds)
        others = jnp.flatnonzero(stays, size=most, fill_value=factor.n).astype(inside.dtype)
        of_fold = RowsOfFold(K[inside][:, others], H[inside], Y[inside])
        of_others = RowsOfFold(K[others][:, others], H[others], Y[others])
        return fit_to_others(of_fold, of_others, drops_rounding)

    return jax.lax.map(without, (folds.fold_numbers, folds.inside))


def _rows_of_matrix(factor: Any) -> Float[Array, "n r"]:
    """A with AUᵀ = K̃ for the rows of the fit, U diag(s); for rows of weight 0, which are queries,
    their kernel values with the others.
    """
    A = factor.left_vectors() * factor.s
    if factor.weights.values is None:
        return A
    return jnp.where(factor.weights.used[:, None], A, factor.query_map())


class RowsOfFold(NamedTuple):
    """What a fit without a fold takes of its rows, or of the c others."""

    K: Float[Array, "b c"]  # K̃ with the others
    H: Float[Array, "b q"]
    Y: Float[Array, "b t"]  # ỹ


def fit_to_others(of_fold: RowsOfFold, of_others: RowsOfFold, drops_rounding: bool) -> DualFits:
    """The fit to the other rows of one fold. What H has in the fold only is not fitted, and with
    `drops_rounding`, as where K has a low rank, neither is what is rounding among the others.

    With LLᵀ = HᵀH of the others, Q = HL⁻ᵀ is an orthonormal basis of H, and B = HL⁻ᵀ the same
    combinations on the fold. The effects that fit A to the others are QQᵀA there, and BQᵀA on the
    fold. V is orthogonal to Q, so that K of the fold with the others needs no centring on the
    right.
    """
    K, H, Y = of_others
    Q, inverse_L = whitened(H, H)
    B = matmul(of_fold.H, inverse_L.T)
    without_effects = lambda A: A - matmul(Q, matmul(Q.T, A))
    on_fold = lambda A_fold, A: A_fold - matmul(B, matmul(Q.T, A))
    s, V = eigh(without_effects(without_effects(K).T))
    V = without_effects(V)
    if drops_rounding:
        V = jnp.where(s > eigh_rounding(len(s), s), V, 0)
    return DualFits(
        s=jnp.maximum(s, 0),
        z=matmul(V.T, without_effects(Y)),
        cross=matmul(on_fold(of_fold.K, K), V),
        start=on_fold(of_fold.Y, Y),
    )
