"""Held-out residuals of folds that have more rows than there are features, each predicted by a fit
to the moments of the other folds.

One reading of the rows gives the moments of every fold. Those of all folds but one are added up,
not subtracted, so that nothing cancels. One more reading gives the residuals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.leave_out import orthonormal
from jaxrls.core.linalg import matmul
from jaxrls.core.problem import Data, Folds, Moments, moments


class PrimalForm(NamedTuple):
    """A factor in terms of features φ of its rows, with the penalty λ‖w‖²/2: φ = (features(x) − B
    origin) turn. Row k of `planes` gives βₖ, of a landmark that leaves with its row, from w.
    """

    data: Data
    features: Any  # has `features(x)`
    turn: Float[Array, "p r"]
    origin: Float[Array, "q p"]
    solve: (
        Callable  # of a second moment S and C: (S + λI)⁻¹ C of every λ for all targets, (r, L, t)
    )
    planes: Any = None
    indices: Any = None  # the rows of these landmarks


def sweep_other_folds(
    form: PrimalForm, solution: Any, fn: Callable, lams: Float[Array, "L k"], folds: Folds, stack
) -> Any:
    """`Factor.sweep_folds`: one reading for the moments, and one with all λ by one product for each
    fold. Cost: k n r², k eigendecompositions of r×r, or as many Cholesky factors for each λ where
    derivatives are asked for.
    """
    data, labels, numbers = form.data, solution.labels, folds.numbers
    L, t = len(lams), labels.Y.shape[1]
    fits = fits_to_other_folds(form, labels, folds, lams)

    def of_block(block, Y, fold_of_row):
        phi = form.features.features(block.x)

        def put(e, fit):
            number, w, beta = fit
            predicted = matmul(phi, w) + data.fixed.fitted(block.b, beta)
            left_out = Y[:, None] - predicted.reshape(len(Y), L, t)
            return jnp.where((fold_of_row == number)[:, None, None], left_out, e), None

        e, _ = jax.lax.scan(put, jnp.zeros((len(Y), L, t), Y.dtype), fits)
        return fn(e, Y, data.weights.block(block.v, len(Y)).array)

    read = data.map if stack else data.sum
    return read(of_block, labels.Y, numbers, temporaries=2 * L * t)


def fits_to_other_folds(form: PrimalForm, labels, folds: Folds, lams) -> tuple[Any, Any, Any]:
    """The number of every fold, and w (p, L t) and β (q, L t) without it, of all λ and targets."""
    fixed, numbers, L = form.data.fixed, folds.numbers, len(lams)
    every_fold = jnp.arange(len(folds.inside), dtype=numbers.dtype)

    def without(parts):
        number, sums = parts
        sums = replace(sums, origin=form.origin, label_origin=labels.start)
        sums, turn = sums.centred(fixed.from_gram(sums.gram)), form.turn
        if form.planes is not None:  # its landmarks' directions are taken out
            inside = (numbers[form.indices] == number)[:, None]
            Q = orthonormal(jnp.where(inside, form.planes, 0))
            turn = turn - matmul(matmul(turn, Q.T), Q)
        second, cross = matmul(turn.T, matmul(sums.second, turn)), matmul(turn.T, sums.cross)
        w = matmul(turn, form.solve(second, cross, lams).reshape(turn.shape[1], -1))
        return w, jnp.tile(sums.label_origin, (1, L)) - matmul(sums.origin, w)

    others = moments_of_others(form, labels, folds)
    return every_fold, *jax.lax.map(without, (every_fold, others))


def moments_of_others(form: PrimalForm, labels, folds: Folds) -> Moments:
    """The moments of all rows outside of each fold, added up from those of the other folds, so that
    nothing cancels.
    """
    data, count = form.data, len(folds.inside)

    def of_fold(number):
        v = jnp.where(folds.numbers == number, data.weights.array, 0)
        inside = replace(data, weights=data.weights.block(v, len(v)))
        origins = {"origin": form.origin, "label_origin": labels.start}
        return moments(inside, form.features, labels.Y, **origins)

    of_folds = jax.lax.map(jax.checkpoint(of_fold), jnp.arange(count, dtype=folds.numbers.dtype))
    other = 1 - jnp.eye(count, dtype=data.rows.dtype)
    add = lambda a: matmul(other, a.reshape(count, -1)).reshape(a.shape)
    return jax.tree.map(add, of_folds)
