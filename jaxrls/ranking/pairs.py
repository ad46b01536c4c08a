"""Held-out residuals of pairs of rows: for each pair a solve with a 2×2 block of R, and sums over
millions of pairs.

Blocks of rows of R are computed at one λ after another and summed at once, so that only one block
is in memory at a time. A landmark that is held out with its row adds a rank-one term ρρᵀ/δ to the
2×2 block; if both rows are landmarks, c is the cosine of the angle between their directions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.leave_out.view import Constraints, View
from jaxrls.core.linalg.blocks import default_block_size, sum_rows, wide_block_size
from jaxrls.core.linalg.products import matmul, panels
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.checks import is_concrete
from jaxrls.core.support.pytrees import pytree, static


@pytree
class Pairs:
    """Pairs of rows: as they are listed, row by row of `first` and `second`, or every row of
    `first` with every row of `second`.

    >>> Pairs.of([[0, 2], [1, 2]]).second.tolist()
    [2, 2]
    """

    first: Int[Array, " a"]
    second: Int[Array, " b"]
    listed: bool = static()

    @classmethod
    def of(cls, pairs) -> "Pairs":
        """Pairs from row numbers (p, 2), checked where values are known."""
        if isinstance(pairs, Pairs):
            return pairs
        pairs = pairs if isinstance(pairs, jax.Array) else np.asarray(pairs)
        whole = np.issubdtype(pairs.dtype, np.integer)
        if not whole or pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
            raise ValueError(
                "pairs must have shape (p, 2), two row numbers each, and have shape "
                f"{pairs.shape} and dtype {pairs.dtype}"
            )
        pairs = jnp.asarray(pairs)
        if is_concrete(pairs):
            same = np.flatnonzero(np.asarray(pairs[:, 0] == pairs[:, 1]))
            if same.size:
                raise ValueError(
                    f"pairs must be of two different rows each, and pair {same[0]} is row "
                    f"{pairs[same[0], 0]} twice"
                )
        return cls(pairs[:, 0], pairs[:, 1], True)

    @classmethod
    def between(cls, first, second) -> "Pairs":
        """Every row of `first` with every row of `second`."""
        return cls(jnp.asarray(first), jnp.asarray(second), False)


class Held(NamedTuple):
    """One of the two rows of held-out pairs: residuals, labels, weights and further arrays, shaped
    to broadcast with those of the other row.
    """

    residual: Any
    label: Any
    weight: Any
    own: tuple


@pytree
class PairConstraints:
    """`Constraints` scaled to δ = 1; index m stands for no landmark, and its entries are 0."""

    slot: Int[Array, " n"]
    rho: Float[Array, "n m1"]
    cosines: Float[Array, "m1 m1"]
    sines: Float[Array, "m1 m1"]  # their squares
    alpha: Float[Array, "t m1"]

    @classmethod
    def of(cls, found: Constraints) -> "PairConstraints":
        """Of all landmarks."""
        planes = found.planes / jnp.linalg.norm(found.planes, axis=1, keepdims=True)
        cosines, sines = angles(planes)
        last = lambda A: jnp.pad(A, ((0, 0), (0, 1)))
        both = lambda A, value: jnp.pad(A, ((0, 1), (0, 1)), constant_values=value)
        rho, alpha = matmul(found.rows, planes.T), matmul(planes, found.labels).T
        return cls(found.slots, last(rho), both(cosines, 0), both(sines, 1), last(alpha))

    def added(self, i, j):
        """What the landmarks of i and j add to Rᵢᵢ, Rᵢⱼ, Rⱼⱼ, rᵢ and rⱼ: first that of j, then the
        part of that of i orthogonal to it.
        """
        k, m = self.slot[i], self.slot[j]
        block = lambda A, i, j: A[i[:, None], j[None, :]]
        ik, jm = self.rho[i, k][:, None], self.rho[j, m][None, :]
        im, jk = block(self.rho, i, m), block(self.rho.T, k, j)
        alpha_k, alpha_m = self.alpha[:, k][..., :, None], self.alpha[:, m][..., None, :]
        c, square = block(self.cosines, k, m), block(self.sines, k, m)
        one, other, alpha = ik - c * im, jk - c * jm, (alpha_k - c * alpha_m) / square
        entries = (
            im * im + one * one / square,
            im * jm + one * other / square,
            jm * jm + other * other / square,
        )
        return (*entries, im * alpha_m + one * alpha, jm * alpha_m + other * alpha)


def sum_pairs(
    fn: Callable, view: View, pairs: Pairs | None, Y, weights: Weights, own: tuple, levels: Any
) -> Any:
    """Σ over pairs of `fn(one, other)`, both `Held`; for `pairs` None over all pairs, each once.
    `fn` must give 0 where a weight is 0.

    `levels` are H (n, q) of the levels that have just two rows and leave with that pair, or None.
    """
    landmarks = None if view.constraints is None else PairConstraints.of(view.constraints)
    inverse_root = weights.unscale(jnp.ones_like(weights.array))
    system = view, landmarks, (Y.T, weights.array, *own), inverse_root, levels
    if pairs is None:
        parts = [
            _rectangle(fn, system, np.arange(*ends), jnp.arange(ends[1]), True)
            for ends in panels(len(Y))
        ]
        return jax.tree.map(lambda *parts: sum(parts), *parts)
    if not pairs.listed:
        return _rectangle(fn, system, pairs.first, pairs.second, False)
    row_bytes = view.width * view.residuals.dtype.itemsize
    size = default_block_size(pairs.first.shape[0], 2 * row_bytes)

    def run(pairs):  # each a rectangle of its own
        each = jax.vmap(lambda i, j: _summed(fn, system, i[None], j[None], False))(*pairs)
        return jax.tree.map(lambda a: jnp.sum(a, axis=0), each)

    return sum_rows(run, (pairs.first, pairs.second), size)


def _rectangle(fn, system, first, second, below: bool):
    """The sum over every row of `first` with every row of `second`, none with itself, in blocks of
    `first`; with `below` only pairs below the diagonal.
    """

    def block(i):
        return _summed(fn, system, i, second, below)

    width = second.shape[0] * system[0].residuals.dtype.itemsize
    return sum_rows(block, jnp.asarray(first), wide_block_size(first.shape[0], width))


def _left_out(system, i, j, mask):
    """Held-out residuals (t, a, b) of rows i and of rows j, finite also where `mask` excludes a
    pair.
    """
    view, landmarks, _, inverse_root, levels = system
    cross = view.entries(i, j)
    one, other = _facing(view.diagonal, i, j)
    r, q = _facing(view.residuals.T, i, j)
    if levels is not None:
        both = matmul(levels[i], levels[j].T)
        own, others = _facing(jnp.sum(levels**2, axis=1), i, j)
        one, other = one + jnp.where(both > 0, own, 0), other + jnp.where(both > 0, others, 0)
        cross = cross + both
    if landmarks is not None:
        more = landmarks.added(i, j)
        one, cross, other = one + more[0], cross + more[1], other + more[2]
        r, q = r + more[3], q + more[4]
    determinant = one * other - cross * cross
    inverse = 1 / jnp.where(mask, determinant, 1)
    own, others = _facing(inverse_root, i, j)
    return own * (other * r - cross * q) * inverse, others * (one * q - cross * r) * inverse


def _summed(fn, system, i, j, below: bool):
    """The sum over a rectangle of pairs, none of a row with itself; with `below` only those below
    the diagonal.
    """
    mask = (jnp.greater if below else jnp.not_equal)(i[:, None], j[None, :])
    e, f = _left_out(system, i, j, mask)
    one, other = zip(*(_facing(values, i, j) for values in system[2]), strict=True)

    def total(values):
        values = jnp.broadcast_to(values, e.shape)
        return jnp.sum(jnp.where(mask, values, 0), axis=(1, 2))

    held = (Held(e, a[0], a[1], a[2:]) for e, a in ((e, one), (f, other)))
    return jax.tree.map(total, fn(*held))


def _facing(values, i, j):
    """Data of rows i and of rows j, shaped to broadcast to a block of pairs."""
    return values[..., i][..., :, None], values[..., j][..., None, :]


def angles(W: Float[Array, "m r"]) -> tuple[Float[Array, "m m"], Float[Array, "m m"]]:
    """Cosines between rows of length 1, and squared sines, 1 for a row with itself; from
    differences of rows where any two are nearly parallel.
    """
    cosines, itself = matmul(W, W.T), jnp.eye(len(W), dtype=bool)
    eps = float(jnp.finfo(W.dtype).eps)

    def by_differences(cosines):
        def of_row(args):
            w, sign = args
            return jnp.sum((W - sign[:, None] * w) ** 2, axis=1)

        square = jax.lax.map(of_row, (W, jnp.where(cosines < 0, -1.0, 1.0).astype(W.dtype)))
        return square * (1 - square / 4)

    near = jnp.any(~itself & (cosines**2 > 1 - eps**0.5))
    sines = jax.lax.cond(near, by_differences, lambda cosines: 1 - cosines**2, cosines)
    return cosines, jnp.where(itself, 1, jnp.maximum(sines, eps**2))
