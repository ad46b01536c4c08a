"""Distances between all rows of two matrices."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.kernels.kernel import Gram, Rows
from jaxrls.linalg.products import matmul


def squared_distances(X: Rows, Z: Float[Array, "m d"]) -> Gram:
    """‖xᵢ − zⱼ‖² by one matrix product, O(n m d), 6 to 9 times faster than pair by pair.

    The mean of Z is taken off first, as a distance does not see it but ‖x‖² + ‖z‖² − 2⟨x, z⟩ does; what is within rounding of 0
    becomes 0, so that equal rows are at distance 0 exactly. Its derivatives stay those of the formula.
    """
    center = jax.lax.stop_gradient(jnp.mean(Z, axis=0))
    X, Z = X - center, Z - center
    lengths = jnp.sum(X * X, axis=1)[:, None] + jnp.sum(Z * Z, axis=1)[None, :]
    squared = lengths - 2 * matmul(X, Z.T)
    rounding = (4 + 2 * math.sqrt(X.shape[1])) * jnp.finfo(X.dtype).eps
    return squared - jax.lax.stop_gradient(jnp.where(squared <= rounding * lengths, squared, 0))


def city_block_distances(X: Rows, Z: Float[Array, "m d"]) -> Gram:
    """Σₖ |xᵢₖ − zⱼₖ|, no matrix product, so added up column by column: O(n m d) time at O(n m) memory."""

    @jax.checkpoint
    def add(total, columns):
        x, z = columns
        return total + jnp.abs(x[:, None] - z[None, :]), None

    return jax.lax.scan(add, jnp.zeros((X.shape[0], Z.shape[0]), X.dtype), (X.T, Z.T))[0]
