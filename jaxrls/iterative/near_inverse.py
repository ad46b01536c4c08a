"""Approximate the inverse of K̃ + λI, as a preconditioner and for leverages.

The approximation M takes K̂ on landmarks. Within blocks of rows that are near each other, it adds
K̃ − K̂ exactly:

    M = BBᵀ + D,   BBᵀ = K̂,   D = λI + blocks of K̃ − K̂,
    M⁻¹ = D⁻¹ − WWᵀ,   W = D⁻¹B L⁻ᵀ,   LLᵀ = I + BᵀD⁻¹B.

Landmarks cover the large directions of K, and blocks the near neighbours of each row. So M is right
at both ends of the spectrum. It is known as the partially independent training conditional.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.data import DenseRows, gram
from jaxrls.core.factors import Features
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import (
    Number,
    Square,
    inverse,
    matmul,
    transposed_matmul,
    triangular_inverse,
    whitened,
)
from jaxrls.core.support import pytree
from jaxrls.landmarks.dictionary import cholesky_with_jitter

SMALLEST = 16  # a block of at most this many rows is never halved


@pytree
class ApproximateInverse:
    """M⁻¹ at one λ, with the fixed effects projected out as in generalised least squares."""

    inverse_D: Float[Array, "g b b"]  # block by block
    W: Float[Array, "g b r"]
    blocks: "Blocks"
    diagonal: Float[Array, " n"]
    projection: Float[Array, "n q"]  # M⁻¹HS^(-1/2), S = HᵀM⁻¹H

    def __call__(self, V: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """Compute M⁻¹V in the dtype of M.

        Conjugate gradients do not need an exact direction.
        """
        narrow = V.astype(self.W.dtype)
        along_effects = matmul(self.projection, transposed_matmul(self.projection, narrow))
        whole = inverse_times(self.inverse_D, self.W, self.blocks, narrow)
        return (whole - along_effects).astype(V.dtype)


def inverse_times(
    inverse_D: Float[Array, "g b b"],
    W: Float[Array, "g b r"],
    blocks: "Blocks",
    V: Float[Array, "n k"],
) -> Float[Array, "n k"]:
    """Compute M⁻¹V = D⁻¹V − WWᵀV, without fixed effects."""
    V = filled(V, blocks.order)
    flat = W.reshape(-1, W.shape[2])
    across = matmul(flat, transposed_matmul(flat, V.reshape(len(flat), V.shape[2])))
    return blocks.to_rows(matmul(inverse_D, V) - across.reshape(V.shape))


@pytree
class Blocks:
    """The rows in blocks of equal size, with near rows together. Numbers ≥ n are empty places."""

    order: Int[Array, "g b"]
    place: Int[Array, " n"]  # the place of each row in the flat `order`

    @classmethod
    def of_near(cls, B: Float[Array, "n r"], size: int) -> "Blocks":
        """Halve the rows until a block has at most `size` of them.

        Each time, two rows that are far from each other define a line, and rows are split at the
        median along it. Cosines of features measure how near rows are.
        """
        n = len(B)
        halvings = max(0, math.ceil(math.log2(n / size)))
        count = 2**halvings
        unit = jnp.linalg.norm(B, axis=1, keepdims=True)
        unit = jnp.where(unit > 0, unit, 1)
        order = jnp.arange(count * -(-n // count))[None]
        for _ in range(halvings):
            order = _halved(B, unit, order)
        return cls(order, jnp.argsort(order.ravel())[:n])

    def to_rows(self, A: Float[Array, "g b *k"]) -> Float[Array, "n *k"]:
        """Put values by block, (g, b, …), back into the order of the rows.

        It undoes `filled`.
        """
        return A.reshape(self.order.size, *A.shape[2:])[self.place]


def filled(A: Any, rows: Int[Array, "*g b"]) -> Any:
    """Return the rows of A (n, …) with these numbers, of one block or by block.

    Empty places get 0.
    """
    return jax.tree.map(lambda a: a.at[rows].get(mode="fill", fill_value=0), A)


def _halved(
    B: Float[Array, "n r"], unit: Float[Array, "n 1"], order: Int[Array, "g b"]
) -> Int[Array, "2*g _"]:
    """Return twice as many blocks, split along the line between two rows far from each other.

    Empty places come last.
    """
    block = jnp.arange(len(order))
    empty = order >= len(B)

    def cosines(rows: Int[Array, " g"]) -> Float[Array, "g b"]:
        along = matmul(B, (B[rows] / unit[rows]).T) / unit
        return jnp.where(empty, jnp.inf, along[order, block[:, None]])

    farthest = lambda rows: order[block, jnp.argmin(cosines(rows), axis=1)]
    end = farthest(order[:, 0])
    between = cosines(end) - jnp.where(empty, 0, cosines(farthest(end)))
    order = jnp.take_along_axis(order, jnp.argsort(between, axis=1), axis=1)
    return order.reshape(2 * len(order), -1)


@pytree
class Near:
    """The parts of M that do not depend on λ."""

    kernel: Kernel
    X: Any  # (n, d)
    root_weights: Float[Array, " n"]  # √v
    H: Float[Array, "n q"]
    B: Float[Array, "n r"]  # √v φ on landmarks, BBᵀ = K̂
    blocks: Blocks

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        X: Float[Array, "n d"],
        root_weights: Float[Array, " n"],
        H: Float[Array, "n q"],
        points: Float[Array, "m d"],
    ) -> "Near":
        """Make the parts, with at most as many rows in a block as landmarks, or SMALLEST."""
        L, _ = cholesky_with_jitter(gram(kernel, points))
        on_landmarks = Features(kernel, points, triangular_inverse(L).T)
        scaled = lambda x, root_weights: root_weights[:, None] * on_landmarks.features(x)
        B = DenseRows(X).map(scaled, root_weights, temporaries=len(points))
        return cls(kernel, X, root_weights, H, B, Blocks.of_near(B, max(len(points), SMALLEST)))

    def inverse(self, lam: Number) -> ApproximateInverse:
        """Compute M⁻¹ at λ. **Cost** some 8 n r² flops."""
        lam = lam.astype(self.B.dtype)
        dtype = self.B.dtype
        blocks = self.blocks

        def of_block(S: Square, rows: Int[Array, " b"]) -> tuple[Square, tuple]:
            inverse_D, times_B = self.inverse_of_block(lam, rows)
            return S + matmul(filled(self.B, rows).T, times_B), (inverse_D, times_B)

        identity = jnp.eye(self.B.shape[1], dtype=dtype)
        S, (inverse_D, times_B) = jax.lax.scan(of_block, identity, blocks.order)
        root = triangular_inverse(jnp.linalg.cholesky((S + S.T) / 2))
        # Compute W block by block, in place: D⁻¹B is as large as all that was kept before.
        in_place = lambda i, W: W.at[i].set(matmul(W[i], root.T))
        W = jax.lax.fori_loop(0, len(inverse_D), in_place, times_B)
        own = jnp.diagonal(inverse_D, axis1=1, axis2=2)
        diagonal = blocks.to_rows(own - jnp.sum(W**2, axis=2))
        times_H = inverse_times(inverse_D, W, blocks, self.H.astype(dtype)).astype(self.H.dtype)
        projection, _ = whitened(times_H, self.H)
        return ApproximateInverse(
            inverse_D=inverse_D,
            W=W,
            blocks=blocks,
            diagonal=diagonal - jnp.sum(projection**2, axis=1),
            projection=projection,
        )

    def inverse_of_block(
        self, lam: Number, rows: Int[Array, " b"]
    ) -> tuple[Float[Array, "b b"], Float[Array, "b r"]]:
        """Return D⁻¹ of one block, and D⁻¹B."""
        X, B, root = (filled(a, rows) for a in (self.X, self.B, self.root_weights))
        rest = root[:, None] * self.kernel(X, X) * root - matmul(B, B.T)
        inverse_D = inverse(rest + lam * jnp.eye(len(X), dtype=B.dtype))
        # For nearly dependent landmarks, rounding may put K̂ above K. Then take only the diagonal
        # of the block.
        alone = jnp.diag(1 / (lam + jnp.maximum(jnp.diagonal(rest), 0)))
        inverse_D = jnp.where(jnp.isfinite(inverse_D).all(), inverse_D, alone)
        return inverse_D, matmul(inverse_D, B)
