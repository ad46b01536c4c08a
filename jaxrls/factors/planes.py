"""Landmarks that leave with their rows: which rows bring one, and the Cholesky factor by which coefficients of several are held at 0."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.linalg.products import matmul


def slots(indices: Int[Array, " m"], n: int) -> Int[Array, " n"]:
    """For each of n rows the number of its landmark, m where it is none."""
    m = indices.shape[0]
    return jnp.full(n, m).at[indices].set(jnp.arange(m))


def leaving(
    indices: Int[Array, " m"], n: int, rows: Int[Array, " b"], mask: Float[Array, " b"]
) -> tuple[Int[Array, " b"], Float[Array, " b"]]:
    """For some of n rows the number of a landmark, and its mask: 0 where the row is none."""
    slot = slots(indices, n)[rows]
    return jnp.minimum(slot, len(indices) - 1), jnp.where(slot < len(indices), mask, 0)


def plane_root(d: Float[Array, "b b"], inside: Float[Array, " b"]) -> Float[Array, "b b"]:
    """L of LLᵀ = d, the products of the planes with each other, those of rows that are not `inside` 0; landmarks may nearly be one."""
    d = d + jnp.diag(1 - inside)
    return jnp.linalg.cholesky(d * (1 + jnp.eye(len(d), dtype=d.dtype) * len(d) * jnp.finfo(d.dtype).eps))


def moved(q: Float[Array, "r t"], W: Float[Array, "m r"], inside: Float[Array, " m"]) -> Float[Array, "r t"]:
    """q on the planes Wq = 0 of those that are `inside`, as near as it goes."""
    W = W * inside[:, None]
    root = plane_root(matmul(W, W.T), inside)
    return q - matmul(W.T, jax.scipy.linalg.cho_solve((root, True), matmul(W, q)))
