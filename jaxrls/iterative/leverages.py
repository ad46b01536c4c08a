"""Leverages from probes, and what their noise does to held-out residuals.

Let R be the diagonal of I − H, and g a vector of random signs. g ∘ (I − H)g is R on average, and so
noisy that one cannot divide by it. So R is taken to be aρ, with ρ the diagonal of an approximation
and a ratio a for each of a few groups of rows with similar ρ, the mean over its rows and all
vectors. What this misses is not noise: with δ the relative deviation of R from aρ, squared
residuals are (1 + mean δ²)³/(1 + mean δ)² times too small where δ is log-normal; means are over
rows by their share of the loss. Products of two vectors tell δ² without bias.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.linalg import matmul

# groups of similar rows at most, and how many rows one has at least
GROUPS = 8
FEWEST = 64
LEAST = 0.01  # a ratio, where noise would make it smaller or negative


class Leverages(NamedTuple):
    """The diagonal of R, and by how much residuals/R are too small; of all probes, then without
    each of them.
    """

    R: Float[Array, "p+1 n"]
    growth: Float[Array, "p+1 t"]


def leverages_from_probes(probes, near, residuals, used) -> Leverages:
    """R from `probes` (n, p), each R on average, and from what is `near` it (n,); exact where there
    are as many probes as rows. Residuals (n, t) are those of the fit, and `used` are rows of
    positive weight.
    """
    n, p = probes.shape
    if p == n:
        R = jnp.where(used, jnp.mean(probes, axis=1), 1)
        return Leverages(R[None], jnp.ones((1, residuals.shape[1]), R.dtype))
    member = memberships(near, used)

    def of_some(kept):
        R = calibrated(member, near, matmul(probes, kept) / jnp.sum(kept))
        return R, growth(member, (probes / R[:, None] - 1) * kept, residuals / R[:, None], kept)

    without = 1 - jnp.eye(p, dtype=near.dtype)
    every = jnp.ones_like(without[:1])
    return Leverages(*jax.lax.map(of_some, jnp.concatenate([every, without])))


def memberships(near, used) -> Float[Array, "n g"]:
    """1 for the group of a row that is used: equally many rows in each group, by their ρ."""
    n = len(near)
    count = max(1, min(GROUPS, n // FEWEST))
    group = jnp.argsort(jnp.argsort(near)) * count // n
    return jnp.where(used[:, None], jax.nn.one_hot(group, count, dtype=near.dtype), 0)


def calibrated(member, near, means) -> Float[Array, " n"]:
    """aρ from means over vectors; 1 for rows that are not used."""
    length = jnp.maximum(matmul(member.T, near), jnp.finfo(near.dtype).tiny)
    ratio = jnp.maximum(matmul(member.T, means) / length, LEAST)
    return jnp.minimum(near * matmul(member, ratio), 1) + 1 - jnp.sum(member, axis=1)


def growth(member, deviations, left_out, kept) -> Float[Array, " t"]:
    """By how much held-out residuals (n, t) are too small, from δ of every row and vector."""
    total = jnp.sum(kept)
    sums = jnp.sum(deviations, axis=1)
    squares = (sums**2 - jnp.sum(deviations**2, axis=1)) / (total * (total - 1))
    loss = left_out**2 * jnp.sum(member, axis=1, keepdims=True)
    share = loss / jnp.maximum(jnp.sum(loss, axis=0), jnp.finfo(loss.dtype).tiny)
    count = jnp.maximum(jnp.sum(member, axis=0), 1)
    second = matmul(matmul(member.T, squares) / count, matmul(member.T, share))
    first = matmul(sums, share) / total
    return (1 + jnp.maximum(second, 0)) ** 1.5 / (1 + jnp.maximum(first, -0.5))
