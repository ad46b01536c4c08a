"""Rows that are left out in pairs: the algebra of 2×2 blocks, entry by entry, and its sums over millions of pairs.

With R = I − H and r = √v (y − f), the scaled held-out residuals of rows i and j that are left out together are

    (eᵢ, eⱼ) = [Rᵢᵢ Rᵢⱼ; Rᵢⱼ Rⱼⱼ]⁻¹ (rᵢ, rⱼ),

with the terms of landmarks that leave with their rows added to both: ρd⁻¹ρᵀ and ρd⁻¹α, as in `hat`, where d is at most 2×2 too. Blocks of rows of R
are made by a product at one λ after another and summed at once, so that no more than a block of them is ever there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.linalg.products import matmul, panels
from jaxrls.rows.blocks import default_block_size, sum_rows, wide_block_size
from jaxrls.support.checks import check_row_numbers, is_concrete
from jaxrls.support.pytrees import pytree, static


@pytree
class Pairs:
    """Which pairs of rows: every one of some rows with every one of others, or as they are listed, row by row of `first` and `second`.

    >>> Pairs.of([[0, 2], [1, 2]], 3).second.tolist()
    [2, 2]
    """

    first: Int[Array, " a"]
    second: Int[Array, " b"]
    listed: bool = static()

    @classmethod
    def of(cls, pairs, n: int | None = None) -> "Pairs":
        """Of row numbers (p, 2), of n rows where these are known, checked where their values are."""
        if isinstance(pairs, Pairs):
            return pairs
        pairs = jnp.asarray(pairs if isinstance(pairs, jax.Array) else np.asarray(pairs))
        if pairs.ndim != 2 or pairs.shape[1] != 2 or 0 in pairs.shape:
            raise ValueError(f"pairs must have shape (p, 2), two row numbers each, and has shape {pairs.shape}")
        if n is not None:
            check_row_numbers(pairs.reshape(-1), n)
        if is_concrete(pairs) and (same := np.flatnonzero(np.asarray(pairs[:, 0] == pairs[:, 1]))).size:
            raise ValueError(f"pairs must be of two different rows each, and pair {same[0]} is row {pairs[same[0], 0]} twice")
        return cls(pairs[:, 0], pairs[:, 1], True)

    @classmethod
    def between(cls, first, second) -> "Pairs":
        """Every one of some rows with every one of others."""
        return cls(jnp.asarray(first), jnp.asarray(second), False)


class Held(NamedTuple):
    """One row of pairs that are left out: held-out residuals, labels, weights and what else belongs to rows, which broadcast with the other's."""

    residual: Any
    label: Any
    weight: Any
    own: tuple


@pytree
class Products:
    """The entries of R beside its diagonal as products of rows, less those of `direction`, in which a constant fits, where there is one."""

    left: Float[Array, "n r"]
    right: Float[Array, "n r"]
    direction: Float[Array, " n"] | None

    def entries(self, i, j, listed: bool):
        """Of rows i with rows j."""
        left, right = self.left[i], self.right[j]
        R = jnp.sum(left * right, axis=1) if listed else matmul(left, right.T)
        return R if self.direction is None else R - _outer(self.direction, i, j, listed)


@pytree
class Entries:
    """The entries of R as they are."""

    matrix: Float[Array, "n n"]

    def entries(self, i, j, listed: bool):
        """Of rows i with rows j."""
        return _between(self.matrix, i, j, listed)


@pytree
class LeavingPairs:
    """The terms of landmarks that leave with their rows, at one λ, in units in which each dₖₖ is 1; number m stands for no landmark, and is 0.

    d is of cosines c, and its determinant 1 − c² is known as a sine, as landmarks may nearly depend.
    """

    slot: Int[Array, " n"]
    rho: Float[Array, "n m1"]
    cosines: Float[Array, "m1 m1"]
    sines: Float[Array, "m1 m1"]  # their squares
    alpha: Float[Array, "t m1"]

    def added(self, i, j, listed: bool):
        """What comes to Rᵢᵢ, Rᵢⱼ, Rⱼⱼ, rᵢ and rⱼ: of the landmark of j, and of what that of i has beside it."""
        k, m = self.slot[i], self.slot[j]
        own = jnp.take_along_axis(self.rho, self.slot[:, None], axis=1)[:, 0]
        ik, jm = _facing(own[i], own[j], listed)
        im, jk = _between(self.rho, i, m, listed), _between(self.rho.T, k, j, listed)
        alpha_k, alpha_m = _facing(self.alpha[:, k], self.alpha[:, m], listed)
        c, square = _between(self.cosines, k, m, listed), _between(self.sines, k, m, listed)
        one, other, alpha = ik - c * im, jk - c * jm, (alpha_k - c * alpha_m) / square
        block = im * im + one * one / square, im * jm + one * other / square, jm * jm + other * other / square
        return (*block, im * alpha_m + one * alpha, jm * alpha_m + other * alpha)


@pytree
class PairSystem:
    """R and r at one λ: all that leaving pairs of rows out takes. `unscale` is 1/√v, 0 for rows of weight 0, or None where all are 1."""

    of: Products | Entries
    diagonal: Float[Array, " n"]
    residuals: Float[Array, "t n"]
    unscale: Float[Array, " n"] | None
    leaving: LeavingPairs | None = None
    directions: Float[Array, " n"] | None = None

    def left_out(self, i, j, listed: bool, mask):
        """Held-out residuals (t, a, b) of rows i and j, or (t, p) of pairs that are listed, finite where `mask` says that there is no pair."""
        beside = self.of.entries(i, j, listed)
        one, other = _facing(self.diagonal[i], self.diagonal[j], listed)
        r, q = _facing(self.residuals[:, i], self.residuals[:, j], listed)
        if self.directions is not None:
            own, others = _facing(self.directions[i], self.directions[j], listed)
            one, beside, other = one - own * own, beside - own * others, other - others * others
        if self.leaving is not None:
            more = self.leaving.added(i, j, listed)
            one, beside, other, r, q = one + more[0], beside + more[1], other + more[2], r + more[3], q + more[4]
        determinant = one * other - beside * beside
        inverse = 1 / (determinant if mask is None else jnp.where(mask, determinant, 1))
        e, f = (other * r - beside * q) * inverse, (one * q - beside * r) * inverse
        if self.unscale is None:
            return e, f
        own, others = _facing(self.unscale[i], self.unscale[j], listed)
        return own * e, others * f


class OfRows(NamedTuple):
    """What pairs are summed over beside a system: labels (t, n), weights (n,) or None, and what else belongs to rows."""

    labels: Any
    weights: Any
    own: tuple


def sum_pairs(fn: Callable, system: PairSystem, pairs: Pairs | None, of_rows: OfRows):
    """Σ over pairs of `fn(one, other)`, both `Held`; of all pairs, each once, where none are named."""
    if pairs is None:
        parts = [_rectangle(fn, system, np.arange(*ends), slice(0, ends[1]), of_rows, True) for ends in panels(of_rows.labels.shape[1])]
        return jax.tree.map(lambda *parts: sum(parts), *parts)
    if pairs.listed:
        return _list(fn, system, pairs, of_rows)
    return _rectangle(fn, system, pairs.first, pairs.second, of_rows, False)


def _rectangle(fn, system, first, second, of_rows, below: bool):
    """Some rows with others, none with itself, in blocks of the first ones; `below` the diagonal only."""
    count = second.stop if below else second.shape[0]
    numbers = np.arange(count) if below else second

    def block(i):
        mask = (jnp.greater if below else jnp.not_equal)(i[:, None], numbers[None, :])
        return _summed(fn, system, i, second, False, mask, of_rows)

    width = count * of_rows.labels.dtype.itemsize
    return sum_rows(block, jnp.asarray(first), wide_block_size(first.shape[0], width))


def _list(fn, system, pairs, of_rows):
    """Pairs as they are listed, in blocks, as each takes two rows of what R is made of."""
    r = system.of.left.shape[1] if isinstance(system.of, Products) else 1
    size = default_block_size(pairs.first.shape[0], 2 * r * of_rows.labels.dtype.itemsize)
    return sum_rows(lambda pair: _summed(fn, system, pair[0], pair[1], True, None, of_rows), (pairs.first, pairs.second), size)


def _summed(fn, system, i, j, listed, mask, of_rows: OfRows):
    residuals = system.left_out(i, j, listed, mask)
    labels = _facing(of_rows.labels[:, i], of_rows.labels[:, j], listed)
    ones = jnp.ones((), of_rows.labels.dtype)
    weights = (ones, ones) if of_rows.weights is None else _facing(of_rows.weights[i], of_rows.weights[j], listed)
    own = [_facing(values[i], values[j], listed) for values in of_rows.own]
    one, other = (Held(residuals[k], labels[k], weights[k], tuple(values[k] for values in own)) for k in range(2))

    def total(values):
        values = jnp.broadcast_to(values, residuals[0].shape)
        return jnp.sum(values if mask is None else jnp.where(mask, values, 0), axis=tuple(range(1, values.ndim)))

    return jax.tree.map(total, fn(one, other))


def _between(A, i, j, listed: bool):
    """Entries of a matrix: of all of i with all of j, or pair by pair."""
    return A[i, j] if listed else A[i][:, j]


def _facing(one, other, listed: bool):
    """What belongs to rows i and to rows j, so that they broadcast to a block of pairs."""
    return (one, other) if listed else (one[..., :, None], other[..., None, :])


def _outer(values, i, j, listed: bool):
    one, other = _facing(values[i], values[j], listed)
    return one * other
