"""Leverages of rows from few random vectors, for leave-one-out by products alone.

Let R be the diagonal of λP̃, and g a vector of random signs. g ∘ λP̃g is R on average, and so noisy
that one cannot divide by it. So R is taken to be aρᵇ, with ρ the diagonal of an approximation of
λP̃, and a and b fitted to the mean over vectors. What this misses is not noise: with δ the relative
deviation of R from aρᵇ, which products of two vectors tell without bias, squared residuals are
(1 + mean δ²)³/(1 + mean δ)² times too small where δ is log-normal; means are over rows by
their share of the loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.linalg.products import matmul

NEWTON_STEPS = 6
EXPONENTS = 0.2, 3.0
# Rows of similar ρ whose deviations are averaged together.
GROUPS, FEWEST = 16, 64


def calibrated(
    probes: Float[Array, "n p"],
    near: Float[Array, " n"],
    dual: Float[Array, "n t"],
    used: Bool[Array, " n"],
) -> tuple[Float[Array, "p+1 n"], Float[Array, "p+1 t"]]:
    """R = aρᵇ, and by how much dual/R is too small; of all vectors, then without each of them.

    Args:
        probes: λg ∘ P̃g of every vector.
        near: ρ.
        dual: λc̃.
        used: rows of positive weight.
    """

    def without(kept):
        return _calibrated(probes, near, dual, used, kept)

    left_out = 1 - jnp.eye(probes.shape[1], dtype=probes.dtype)
    return jax.lax.map(without, jnp.concatenate([jnp.ones_like(left_out[:1]), left_out]))


def _calibrated(probes, near, dual, used, kept):
    total = jnp.sum(kept)
    R = power_law(near, matmul(probes, kept) / total, used)
    deviations = jnp.where(used[:, None], probes / R[:, None] - 1, 0) * kept
    sums = jnp.sum(deviations, axis=1)
    squares = (sums**2 - jnp.sum(deviations**2, axis=1)) / (total * (total - 1))
    loss = jnp.where(used[:, None], (dual / R[:, None]) ** 2, 0)
    loss = loss / jnp.maximum(jnp.sum(loss, axis=0), jnp.finfo(R.dtype).tiny)
    groups = max(1, min(GROUPS, len(R) // FEWEST))
    group = jnp.argsort(jnp.argsort(near)) * groups // len(R)
    by_group = lambda a: jax.ops.segment_sum(a, group, groups)
    mean = by_group(squares) / jnp.maximum(by_group(used.astype(R.dtype)), 1)
    second = jnp.maximum(matmul(mean, by_group(loss)), 0)
    first = jnp.maximum(matmul(sums, loss) / total, -0.5)
    return R, (1 + second) ** 1.5 / (1 + first)


def power_law(near: Float[Array, " n"], mean: Float[Array, " n"], used) -> Float[Array, " n"]:
    """aρᵇ of the same sum as `mean`, with b by Newton's method on Σ (mean − aρᵇ) log ρ = 0."""
    count = jnp.sum(used)
    total = jnp.maximum(jnp.sum(jnp.where(used, mean, 0)), jnp.finfo(mean.dtype).eps)
    log = jnp.where(used, jnp.log(near), 0)
    log = jnp.where(used, log - jnp.sum(log) / count, 0)

    def scaled(b):
        law = jnp.where(used, jnp.exp(b * log), 0)
        return law * (total / jnp.sum(law))

    def step(_, b):
        law = scaled(b)
        centred = log - jnp.sum(law * log) / total
        slope = jnp.sum(law * centred**2)
        gap = jnp.sum(jnp.where(used, centred * (mean - law), 0))
        return jnp.clip(b + gap / jnp.where(slope > 0, slope, 1), *EXPONENTS)

    b = jax.lax.fori_loop(0, NEWTON_STEPS, step, jnp.ones((), near.dtype))
    return jnp.where(used, jnp.minimum(scaled(b), 1), 1)
