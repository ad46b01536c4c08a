"""Folds larger than the number of features: each fit to the others from sums of their moments.

Moments of every fold come from one reading of the rows, and those of all but one are added up, not
subtracted; what is left out comes from one reading more. Nothing but sums goes between devices.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.leave_out.constraints import orthonormal
from jaxrls.linalg.decompositions import eigh
from jaxrls.linalg.products import matmul
from jaxrls.problem.folds import Folds
from jaxrls.problem.weights import Weights
from jaxrls.rows.moments import moments
from jaxrls.rows.rows import Rows


class PrimalForm(NamedTuple):
    """A factor as features φ of its rows in which the penalty is λ‖w‖²/2: φ = (made(x) − B origin)
    turn. Row k of `planes` is βₖ as a function of w.
    """

    rows: Rows
    made: Any  # has `features(x)`
    turn: Float[Array, "p r"]
    origin: Float[Array, "q p"]
    indices: Any
    planes: Any
    smooth: bool  # whether to differentiate: by Cholesky factors for each λ


class OtherFolds(NamedTuple):
    """w (k, L, r, t) and β (k, L, q, t) without each fold."""

    form: PrimalForm
    solution: Any
    folds: Folds
    w: Float[Array, "k L p t"]
    beta: Float[Array, "k L q t"]

    @classmethod
    def of(
        cls, form: PrimalForm, solution, folds: Folds, lams: Float[Array, "L k"]
    ) -> "OtherFolds":
        """All fits. Cost: k n r², k eigendecompositions of r×r, or as many Cholesky factors for
        each λ where derivatives are asked for.
        """
        f, labels, numbers = solution.factor, solution.labels, folds.numbers
        fixed, turn = f.fixed, form.turn
        each_fold = jnp.arange(len(folds.inside), dtype=numbers.dtype)

        def of_fold(k):
            v = jnp.where(numbers == k, f.weights.array, 0)
            nothing = lambda x, phi: jnp.zeros(x.shape[0], f.dtype)
            options: dict = {"origin": form.origin, "label_origin": labels.start}
            return moments(form.rows, form.made, fixed, labels.Y, v, left_over=nothing, **options)

        each = jax.lax.map(jax.checkpoint(of_fold), each_fold)
        others = jax.tree.map(_others, each)
        brought = None if form.indices is None else numbers[form.indices]

        def without(args):
            sums, k = args
            sums = replace(sums, origin=form.origin, label_origin=labels.start)
            sums = sums.centred(fixed.from_gram(sums.gram))
            second, cross = matmul(turn.T, matmul(sums.second, turn)), matmul(turn.T, sums.cross)
            P = jnp.eye(len(second), dtype=second.dtype)
            if brought is not None:
                Q = orthonormal(form.planes, (brought == k).astype(second.dtype))
                P = P - matmul(Q.T, Q)
                second, cross = matmul(P, matmul(second, P)), matmul(P, cross)
            w = _solved(second, cross, lams, form.smooth)
            w = jax.vmap(lambda w: matmul(P, w))(w)
            w = jax.vmap(lambda w: matmul(turn, w))(w)
            beta = sums.label_origin - jax.vmap(lambda w: matmul(sums.origin, w))(w)
            return w, beta

        return cls(form, solution, folds, *jax.lax.map(without, (others, each_fold)))

    def sweep(self, fn: Callable, stack: bool) -> Any:
        """`Factor.sweep_folds`, from one reading of the rows, all λ by one product for each fold."""
        f, labels, rows = self.solution.factor, self.solution.labels, self.form.rows
        count, L, _, t = self.w.shape
        flat = lambda A: jnp.moveaxis(A, 1, 2).reshape(count, A.shape[2], L * t)
        w, beta = flat(self.w), flat(self.beta)

        def block(x, v, b, Y, own):
            phi = self.form.made.features(x)

            def of_fold(e, fold):
                k, w, beta = fold
                fitted = matmul(phi, w) + f.fixed.fitted(b, beta)
                found = Y[:, None] - fitted.reshape(len(Y), L, t)
                return jnp.where((own == k)[:, None, None], found, e), None

            e = jnp.zeros((len(Y), L, t), Y.dtype)
            e, _ = jax.lax.scan(of_fold, e, (jnp.arange(count, dtype=jnp.int32), w, beta))
            return fn(e, Y, Weights(v, len(Y), f.dtype).array)

        rows = self.form.rows
        columns = f.weights.values, f.fixed.rows, labels.Y, self.folds.numbers
        return (rows.map if stack else rows.sum)(block, *columns, temporaries=2 * w.shape[1])


def _others(each: Float[Array, "k *r"]):
    """Sums over all folds but one: of those before it and those behind."""
    none = jnp.zeros_like(each[:1])
    before = jnp.concatenate([none, jnp.cumsum(each, axis=0)[:-1]])
    behind = jnp.concatenate([jnp.cumsum(each[::-1], axis=0)[::-1][1:], none])
    return before + behind


def _solved(second, cross, lams: Float[Array, "L k"], smooth: bool) -> Float[Array, "L r t"]:
    """(S + λI)⁻¹ C at every λ, or at one for each target."""
    if not smooth:
        s, V = eigh(second)
        z = matmul(V.T, cross)
        solved = z / (jnp.maximum(s, 0)[:, None] + lams[:, None])
        return jax.vmap(lambda z: matmul(V, z))(solved)
    eye = jnp.eye(len(second), dtype=second.dtype)

    def at(lam, cross):
        return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(second + lam * eye), True), cross)

    def each(lam):
        if lam.shape[0] == 1:
            return at(lam[0], cross)
        return jax.lax.map(lambda args: at(*args), (lam, cross.T)).T

    return jax.lax.map(each, lams)
