"""Greedy forward selection by exact leave-one-out: one feature after the other, each the one with
which the error of rows left out is smallest.

With h = √v/‖√v‖ and the features x chosen so far, Q = λ(Σ xxᵀ + λI)⁻¹ on the complement of h (of
nothing without an intercept) holds all that is asked for: r = Q√v y, q = diag Q = 1 − leverage, and
e = r/(q√v). It begins as C = I − hhᵀ, and loses aaᵀ/(λ + xᵀa), a = Qx, with each x that joins.

Candidate j is column j of B, over √Eⱼⱼ: what is left of C√v K_TC and of K_CC when the features
chosen are taken off, as in a pivoted Cholesky factorization. Columns of X are candidates whose Gram
matrix is the identity, so that none takes from another. With A = QB all candidates are tried at
once, and the one that joins is taken off all others,

    r − Aⱼ(Bⱼᵀr)ρ,   q − Aⱼ∘Aⱼρ,   ρ = 1/(λEⱼⱼ + BⱼᵀAⱼ);    A − ρAⱼ(BᵀAⱼ + λE:ⱼ)ᵀ,   B − BⱼE:ⱼᵀ/Eⱼⱼ:

O(n p (t + 1)) for each feature. No 1/λ is formed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.linalg.products import matmul
from jaxrls.problem.labels import Labels
from jaxrls.problem.weights import Weights
from jaxrls.rows.blocks import default_block_size, sum_rows
from jaxrls.support.checks import is_concrete
from jaxrls.support.pytrees import pytree

# Of the largest Eⱼⱼ that is left, what a candidate must have. Each that joins multiplies rounding
# by up to √(max E/Eⱼⱼ), and labels alone would have neighbours chosen, whose difference is a
# derivative: a tenth keeps leave-one-out errors of smooth kernels right to 2 % in float32, a
# hundredth to 30 %.
INDEPENDENT = 0.1
# Times what rounding makes of num updates, √num·eps: what is smaller, beside what it began as, is
# not known to a few per cent, and counts as nothing.
CERTAIN = 40


@pytree
class Candidates:
    """p features of n rows to choose from: √v times each, centred, how long they were before they
    were centred, and diag K_CC.
    """

    features: Float[Array, "n p"]
    lengths: Float[Array, " p"]
    diag: Float[Array, " p"]

    @classmethod
    def of(
        cls, features: Float[Array, "n p"], diag, weights: Weights, intercept: bool
    ) -> "Candidates":
        """Features as they come: their mean is taken off twice, as rounding of the first grows with
        the offset.
        """
        lengths = jnp.linalg.norm(weights.scale(features), axis=0)
        for _ in range(2 * int(intercept)):
            features = features - weights.mean(features)
        return cls(weights.scale(features), lengths, diag)


@pytree
class _State:
    """B and A = QB, diag E, the features at the candidates, who was chosen, r and q."""

    B: Float[Array, "n p"]
    A: Float[Array, "n p"]
    diag: Float[Array, " p"]
    basis: Any  # (num, p), or None where candidates are orthogonal
    chosen: Bool[Array, " p"]
    residuals: Float[Array, "n t"]
    remaining: Float[Array, " n"]


class _Trial(NamedTuple):
    """Of every candidate whether it is independent of those chosen, ρ, and Bᵀrρ."""

    alive: Any
    share: Any
    moves: Any


@pytree
class Chosen:
    """Which candidates, in the order of choice, the error after each, (num, t), and before the
    first, (t,); how many are more than filling.
    """

    indices: Int[Array, " num"]
    errors: Float[Array, "num t"]
    before: Float[Array, " t"]
    count: Int[Array, ""]

    def cut(self) -> "Chosen":
        """Without the filling, where it is known how many there are."""
        if not is_concrete(self.count):
            return self
        return replace(
            self, indices=self.indices[: int(self.count)], errors=self.errors[: int(self.count)]
        )


def choose(
    candidates: Candidates,
    labels: Labels,
    weights: Weights,
    lam,
    *,
    intercept: bool,
    total: Callable,
    num: int,
    column: Callable | None = None,
) -> Chosen:
    """`num` of the candidates, one after the other; `column(j)` is column j of K_CC, the identity
    where it is None.

    `total(residuals, labels, weights)` is summed over rows, and averaged over targets where one is
    chosen. A candidate that those before it span, up to rounding, changes nothing, and fills up
    where there are no others. Errors that rounding cannot tell apart are equal: of these the first
    is taken."""
    n, p = candidates.features.shape
    dtype, eps = candidates.features.dtype, float(jnp.finfo(candidates.features.dtype).eps)
    floor, tie, size = (
        CERTAIN * num**0.5 * eps,
        4 * n**0.5 * eps,
        default_block_size(n, 4 * p * labels.Y.shape[1] * dtype.itemsize),
    )

    def errors(state: _State, A, share, moves) -> Float[Array, "p t"]:
        """With each of the columns of A beside those chosen: infinite where rounding has taken 1 −
        leverage. Blocks of rows, which add.
        """

        def block(part):
            A, r, q, v, Y = part
            some = weights.block(v, len(q))
            remaining = q[:, None] - A * A * share
            e = some.unscale((r[:, :, None] - A[:, None, :] * moves.T) / remaining[:, None, :])
            lost = jnp.sum((remaining <= floor) & some.used[:, None], axis=0)
            return jax.vmap(total, in_axes=(2, None, None))(e, Y, some.array), lost

        found, lost = sum_rows(
            block, (A, state.residuals, state.remaining, weights.values, labels.Y), size
        )
        return jnp.where((lost == 0)[:, None] & jnp.isfinite(found), found / weights.total, jnp.inf)

    def step(state: _State, slot):
        inner = jnp.sum(state.B * state.A, axis=0)
        enough = jnp.maximum(floor * candidates.diag, INDEPENDENT * jnp.max(state.diag))
        alive = (state.diag > enough) & (
            inner > floor * jnp.linalg.norm(state.B, axis=0) * candidates.lengths
        )
        share = jnp.where(alive, 1 / jnp.where(alive, lam * state.diag + inner, 1), 0)
        trial = _Trial(alive, share, matmul(state.B.T, state.residuals) * share[:, None])
        tried = errors(state, state.A, share, trial.moves)
        able = ~state.chosen & (alive | ~jnp.any(alive & ~state.chosen))
        mean = jnp.where(able, jnp.mean(tried, axis=1), jnp.inf)
        least = jnp.min(mean)
        j = jnp.argmax((mean <= least + tie * jnp.abs(least)) & able)
        return _join(state, j, slot, trial, lam, column), (j, tried[j], alive[j])

    start = _start(
        candidates,
        labels,
        weights,
        intercept,
        None if column is None else jnp.zeros((num, p), dtype),
    )
    before = errors(
        start, jnp.zeros((n, 1), dtype), jnp.zeros(1, dtype), jnp.zeros_like(labels.Y[:1])
    )[0]
    _, (indices, found, real) = jax.lax.scan(step, start, jnp.arange(num))
    return Chosen(indices.astype(jnp.int32), found, before, jnp.sum(real.astype(jnp.int32)))


def _start(candidates, labels, weights, intercept, basis) -> _State:
    remaining = 1 - weights.direction**2 if intercept else jnp.ones(weights.n, weights.dtype)
    B, chosen = candidates.features, jnp.zeros(len(candidates.diag), bool)
    return _State(B, B, candidates.diag, basis, chosen, labels.scaled, remaining)


def _join(state: _State, j, slot, trial, lam, column) -> _State:
    """The state with candidate j among the features."""
    (alive, share, moves), a, basis, B = trial, state.A[:, j], state.basis, state.B
    own = jnp.where(alive[j], state.diag[j], 0)
    if column is None:
        across = jnp.zeros_like(state.diag).at[j].set(own)
        diag = state.diag
    else:
        inverse = jnp.where(alive[j], 1 / jnp.where(alive[j], own, 1), 0)
        across = column(j) - matmul(basis[:, j], basis)
        basis = basis.at[slot].set(across * jnp.sqrt(inverse))
        B = B - B[:, j, None] * (across * inverse)
        diag = jnp.maximum(state.diag - across**2 * inverse, 0).at[j].set(0)
    A = state.A - a[:, None] * (share[j] * (matmul(a, state.B) + lam * across))
    left = state.residuals - a[:, None] * moves[j], state.remaining - a * a * share[j]
    return _State(B, A, diag, basis, state.chosen.at[j].set(True), *left)
