"""Landmarks that leave with their rows: constraints βₖ = 0, as directions that are taken out."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.linalg.products import matmul


def slots(indices: Int[Array, " m"], n: int) -> Int[Array, " n"]:
    """For each of n rows the number of its landmark, m where it is none."""
    m = indices.shape[0]
    return jnp.full(n, m).at[indices].set(jnp.arange(m))


def slots_of(constraints, rows: Int[Array, " b"], mask: Float[Array, " b"]):
    """For some rows the number of a landmark, and its mask: 0 where the row is none."""
    slot, m = constraints.slots[rows], constraints.planes.shape[0]
    return jnp.minimum(slot, m - 1), jnp.where(slot < m, mask, 0)


def _root(d: Float[Array, "b b"], inside: Float[Array, " b"]) -> Float[Array, "b b"]:
    """L of LLᵀ = d + diag(1 − inside); rows may nearly be one."""
    jitter = len(d) * float(jnp.finfo(d.dtype).eps)
    return jnp.linalg.cholesky(
        d * (1 + jitter * jnp.eye(len(d), dtype=d.dtype)) + jnp.diag(1 - inside)
    )


def _under(L, A):
    return jax.lax.linalg.triangular_solve(L, A, left_side=True, lower=True)


def orthonormal(W: Float[Array, "b r"], inside: Float[Array, " b"]) -> Float[Array, "b r"]:
    """Orthonormal rows that span what those of W inside do, and 0 for the others.

    By two Cholesky factors: the products of nearly equal rows lose their difference, which L⁻¹W of
    the first factor has again. Derivatives take that one as constant: the span alone counts.
    Source: Yamamoto, Nakatsukasa, Yanagisawa and Fukaya 2015 (CholeskyQR2).
    """
    squares = jnp.sum(W * W, axis=1)
    inside = jnp.where(squares > 0, inside, 0)
    unit = jax.lax.stop_gradient(jnp.where(squares > 0, jax.lax.rsqrt(squares), 0))
    W = W * (unit * inside)[:, None]
    W = _under(jax.lax.stop_gradient(_root(matmul(W, W.T), inside)), W)
    return _under(_root(matmul(W, W.T), inside), W)


def angles(W: Float[Array, "m r"]) -> tuple[Float[Array, "m m"], Float[Array, "m m"]]:
    """Cosines between rows of length 1, and squares of sines, 1 for a row with itself: by
    differences of rows where any are nearly parallel.
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


def without_landmarks(d, rho, alpha, residual, remaining, v):
    """Held-out residuals of rows that are landmarks, and 1 − leverage without them.

    d, ρ and α are the products of a constraint with itself, with its row and with the labels, all
    in the same coordinates of M, `residual` y − f and `remaining` Rᵢᵢ with the landmark in:
    e = (d (y − f) + ρα)/(dRᵢᵢ + vρ²).
    """
    remaining = d * remaining + v * rho * rho
    return (d * residual + rho * alpha) / remaining, remaining / d
