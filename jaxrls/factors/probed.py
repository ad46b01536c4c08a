"""Leverages of rows from few random vectors, for leave-one-out by products alone.

Let R be the diagonal of λP̃, and g a vector of random signs. g ∘ λP̃g is R on average, and so noisy
that one cannot divide by it. So R is taken to be aρ, with ρ the diagonal of an approximation of λP̃
and a ratio a for each of a few groups of rows with similar ρ, the mean over its rows and all
vectors. What this misses is not noise: with δ the relative deviation of R from aρ, squared
residuals are (1 + mean δ²)³/(1 + mean δ)² times too small where δ is log-normal; means are over
rows by their share of the loss. Products of two vectors tell δ² without bias."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.linalg.products import matmul

GROUPS, FEWEST = 8, 64  # groups of similar rows, and how many rows one has at least
LEAST = 0.01  # a ratio, where noise would make it smaller or negative


def calibrated(
    probes: Float[Array, "n p"],
    near: Float[Array, " n"],
    dual: Float[Array, "n t"],
    used: Bool[Array, " n"],
) -> tuple[Float[Array, "p+1 n"], Float[Array, "p+1 t"]]:
    """R, and by how much dual/R is too small; of all vectors, then without each of them.

    Args:
        probes: λg ∘ P̃g of every vector.
        near: ρ.
        dual: λc̃.
        used: rows of positive weight.
    """
    (n, p), dtype = probes.shape, probes.dtype
    groups = max(1, min(GROUPS, n // FEWEST))
    group = jnp.argsort(jnp.argsort(near)) * groups // n
    of_used = lambda a: jnp.where(used.reshape(n, *(1,) * (a.ndim - 1)), a, 0)
    by_group = lambda a: jax.ops.segment_sum(of_used(a), group, groups)
    count = jnp.maximum(by_group(jnp.ones(n, dtype)), 1)
    length = jnp.maximum(by_group(near), jnp.finfo(dtype).tiny)

    def estimate(kept):
        total = jnp.sum(kept)
        ratio = by_group(matmul(probes, kept) / total) / length
        R = jnp.where(used, jnp.minimum(near * jnp.maximum(ratio, LEAST)[group], 1), 1)
        deviations = of_used(probes / R[:, None] - 1) * kept
        sums = jnp.sum(deviations, axis=1)
        squares = (sums**2 - jnp.sum(deviations**2, axis=1)) / (total * (total - 1))
        loss = of_used(dual / R[:, None]) ** 2
        loss = loss / jnp.maximum(jnp.sum(loss, axis=0), jnp.finfo(dtype).tiny)
        second = matmul(by_group(squares) / count, by_group(loss))
        first = matmul(sums, loss) / total
        return R, (1 + jnp.maximum(second, 0)) ** 1.5 / (1 + jnp.maximum(first, -0.5))

    left_out = 1 - jnp.eye(p, dtype=dtype)
    return jax.lax.map(estimate, jnp.concatenate([jnp.ones_like(left_out[:1]), left_out]))
