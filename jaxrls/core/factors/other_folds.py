"""Held-out residuals of large folds, each predicted by a fit to the other folds: to their moments
where folds have more rows than there are features, else to their part of K.

One reading of the rows gives the moments of every fold. Those of all folds but one are added up,
not subtracted, so that nothing cancels. One more reading gives the residuals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.leave_out.view import orthonormal
from jaxrls.core.linalg.decompositions import eigh
from jaxrls.core.linalg.inverses import whitened
from jaxrls.core.linalg.products import matmul
from jaxrls.core.problem.folds import Folds
from jaxrls.core.problem.moments import moments
from jaxrls.core.problem.rows import Rows
from jaxrls.core.problem.weights import Weights


class PrimalForm(NamedTuple):
    """A factor in terms of features φ of its rows, with the penalty λ‖w‖²/2: φ = (made(x) − B
    origin) turn. Row k of `planes` gives βₖ, of a landmark that leaves with its row, from w.
    """

    rows: Rows
    made: Any  # has `features(x)`
    turn: Float[Array, "p r"]
    origin: Float[Array, "q p"]
    planes: Any
    solve: (
        Callable  # of a second moment S and C: (S + λI)⁻¹ C of every λ for all targets, (r, L, t)
    )


def sweep_other_folds(
    form: PrimalForm, solution: Any, fn: Callable, lams: Float[Array, "L k"], folds: Folds, stack
) -> Any:
    """`Factor.sweep_folds`: one reading for the moments, and one with all λ by one product for each
    fold. Cost: k n r², k eigendecompositions of r×r, or as many Cholesky factors for each λ where
    derivatives are asked for.
    """
    f, labels, numbers = solution.factor, solution.labels, folds.numbers
    each = jnp.arange(len(folds.inside), dtype=numbers.dtype)
    L, t = len(lams), labels.Y.shape[1]

    def of_fold(k):
        v = jnp.where(numbers == k, f.weights.array, 0)
        return moments(
            form.rows,
            form.made,
            f.fixed,
            labels.Y,
            v,
            origin=form.origin,
            label_origin=labels.start,
        )

    other = 1 - jnp.eye(len(each), dtype=f.dtype)
    add = lambda a: matmul(other, a.reshape(len(each), -1)).reshape(a.shape)
    others = jax.tree.map(add, jax.lax.map(jax.checkpoint(of_fold), each))

    def without(args):
        """w and β without a fold, of all λ and targets as columns."""
        sums, k = args
        sums = replace(sums, origin=form.origin, label_origin=labels.start)
        sums, turn = sums.centred(f.fixed.from_gram(sums.gram)), form.turn
        if form.planes is not None:  # its landmarks' directions are taken out
            Q = orthonormal(jnp.where((numbers[f.indices] == k)[:, None], form.planes, 0))
            turn = turn - matmul(matmul(turn, Q.T), Q)
        second, cross = matmul(turn.T, matmul(sums.second, turn)), matmul(turn.T, sums.cross)
        w = matmul(turn, form.solve(second, cross, lams).reshape(-1, L * t))
        return w, jnp.tile(sums.label_origin, (1, L)) - matmul(sums.origin, w)

    fits = each, *jax.lax.map(without, (others, each))

    def block(x, v, b, Y, own):
        phi = form.made.features(x)

        def put(e, fold):
            k, w, beta = fold
            found = Y[:, None] - (matmul(phi, w) + f.fixed.fitted(b, beta)).reshape(len(Y), L, t)
            return jnp.where((own == k)[:, None, None], found, e), None

        e, _ = jax.lax.scan(put, jnp.zeros((len(Y), L, t), Y.dtype), fits)
        return fn(e, Y, Weights(v, len(Y), f.dtype).array)

    read = form.rows.map if stack else form.rows.sum
    columns = f.weights.values, f.fixed.rows, labels.Y, numbers
    return read(block, *columns, temporaries=2 * L * t)


def fit_to_others(K, H, Y, S, C):
    """s, z, across and start of a fit to rows C, which leaves start − across (z/(s + λ)) of rows
    S. What H has in S only is not fitted.
    """
    rows, b = jnp.concatenate([S, C]), len(S)
    K, H, Y = K[rows][:, C], H[rows], Y[rows]
    Q, root = whitened(H[b:], H[b:])
    fitted = lambda H, A: matmul(H, matmul(Q.T, A))
    H = matmul(H, root.T)
    K, Y = K - fitted(H, K[b:]), Y - fitted(H, Y[b:])
    s, V = eigh(K[b:].T - fitted(Q, K[b:].T))
    V = V - fitted(Q, V)
    return jnp.maximum(s, 0), matmul(V.T, Y[b:]), matmul(K[:b], V), Y[:b]
