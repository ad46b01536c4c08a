"""Landmarks that leave with their rows: which rows bring one, and the Cholesky factor by which coefficients of several are held at 0."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

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


def told_apart(together: Bool[Array, "m m"], W: Float[Array, "m r"], *beside: Float[Array, "m t"]) -> list[Float[Array, "m _"]]:
    """Rows that span what those of W do which leave `together`, nearly orthonormal ones, and what stands beside W, made into theirs.

    Landmarks that are nearly one have planes (a ± b)w = 0 with b the longer by 1/√ε, whose products with each other lose a. L⁻¹W of their Cholesky
    factor L has it again, to the precision of W. Derivatives take L as a constant: nothing may depend on which rows of a span these are.
    **Source**: Yamamoto, Nakatsukasa, Yanagisawa and Fukaya 2015, the first half of CholeskyQR2.
    """
    squares = jnp.sum(W * W, axis=1)[:, None]
    unit = jax.lax.stop_gradient(jnp.where(squares > 0, jax.lax.rsqrt(squares), 0))
    W = W * unit
    d = jnp.where(together, matmul(W, W.T), 0)
    root = jax.lax.stop_gradient(plane_root(d, (squares > 0)[:, 0].astype(d.dtype)))
    return [jax.lax.linalg.triangular_solve(root, A, left_side=True, lower=True) for A in (W, *(unit * A for A in beside))]


def angles(W: Float[Array, "m r"]) -> tuple[Float[Array, "m m"], Float[Array, "m m"]]:
    """Cosines between rows of length 1, and squares of sines, 1 for a row with itself: by differences of rows where any are nearly parallel."""
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


def moved(q: Float[Array, "r t"], W: Float[Array, "m r"], inside: Float[Array, " m"]) -> Float[Array, "r t"]:
    """q on the planes Wq = 0 of those that are `inside`, as near as it goes."""
    (W,) = told_apart(jnp.ones((len(W), len(W)), bool), W * inside[:, None])
    root = plane_root(matmul(W, W.T), inside)
    return q - matmul(W.T, jax.scipy.linalg.cho_solve((root, True), matmul(W, q)))
