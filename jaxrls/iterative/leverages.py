"""Estimate leverages from probes, and correct held-out residuals for the error of the estimate.

Let R be the diagonal of I − H, and g a vector of random signs. On average g ∘ (I − H)g is R, but
its noise is too large to divide by it. So R is estimated as aρ, where ρ is the diagonal of an
approximation. The ratio a is one number for each of a few groups of rows with similar ρ. It is the
mean ratio over the rows of the group and all vectors.

What this estimate misses is not noise. Let δ be the relative deviation of R from aρ. If δ is
log-normal, squared residuals are too small by the factor (1 + mean δ²)³/(1 + mean δ)². Means are
over rows, by their share of the loss. Products of two vectors estimate δ² without bias.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.core.linalg import matmul

# The largest number of groups of similar rows, and the smallest number of rows in a group.
GROUPS = 8
FEWEST = 64
LEAST = 0.01  # the least ratio a; noise may make it smaller or negative


class Leverages(NamedTuple):
    """The diagonal of R, and the factor by which residuals/R are too small."""

    R: Float[Array, "*p n"]
    growth: Float[Array, "*p t"]


class LeveragesByProbes(NamedTuple):
    """The estimate from all probes, and those without each of the p probes, which have its axis.

    With as many probes as rows the first is exact, and there are none of the others.
    """

    all: Leverages
    without_each: Leverages


def leverages_from_probes(
    probes: Float[Array, "n p"],
    approximation: Float[Array, " n"],
    residuals: Float[Array, "n t"],
    used: Bool[Array, " n"],
) -> LeveragesByProbes:
    """Estimate R from `probes` (n, p), each column of which is R on average.

    `approximation` (n,) is ρ. `residuals` (n, t) are those of the fit, and `used` marks rows of
    positive weight.
    """
    n, p = probes.shape
    if p == n:
        R = jnp.where(used, jnp.mean(probes, axis=1), 1)
        exact = Leverages(R, jnp.ones(residuals.shape[1], R.dtype))
        return LeveragesByProbes(exact, jax.tree.map(lambda a: a[None][:0], exact))
    member = memberships(approximation, used)

    def of_some(kept: Float[Array, " p"]) -> Leverages:
        R = calibrated(member, approximation, matmul(probes, kept) / jnp.sum(kept))
        deviations = (probes / R[:, None] - 1) * kept
        return Leverages(R, growth(member, deviations, residuals / R[:, None], kept))

    without = 1 - jnp.eye(p, dtype=approximation.dtype)
    every = jnp.ones_like(without[:1])
    estimates = jax.lax.map(of_some, jnp.concatenate([every, without]))
    part = lambda i: jax.tree.map(lambda a: a[i], estimates)
    return LeveragesByProbes(part(0), part(slice(1, None)))


def memberships(approximation: Float[Array, " n"], used: Bool[Array, " n"]) -> Float[Array, "n g"]:
    """Return 1 for the group of each used row, else 0.

    Rows are grouped by their ρ, equally many in each group.
    """
    n = len(approximation)
    count = max(1, min(GROUPS, n // FEWEST))
    group = jnp.argsort(jnp.argsort(approximation)) * count // n
    return jnp.where(used[:, None], jax.nn.one_hot(group, count, dtype=approximation.dtype), 0)


def calibrated(
    member: Float[Array, "n g"], approximation: Float[Array, " n"], means: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Compute aρ from the means over vectors; 1 for rows that are not used."""
    length = jnp.maximum(matmul(member.T, approximation), jnp.finfo(approximation.dtype).tiny)
    ratio = jnp.maximum(matmul(member.T, means) / length, LEAST)
    return jnp.minimum(approximation * matmul(member, ratio), 1) + 1 - jnp.sum(member, axis=1)


def growth(
    member: Float[Array, "n g"],
    deviations: Float[Array, "n p"],
    left_out: Float[Array, "n t"],
    kept: Float[Array, " p"],
) -> Float[Array, " t"]:
    """Compute the factor by which held-out residuals (n, t) are too small.

    It follows from the deviations δ of every row and vector.
    """
    total = jnp.sum(kept)
    sums = jnp.sum(deviations, axis=1)
    squares = (sums**2 - jnp.sum(deviations**2, axis=1)) / (total * (total - 1))
    loss = left_out**2 * jnp.sum(member, axis=1, keepdims=True)
    share = loss / jnp.maximum(jnp.sum(loss, axis=0), jnp.finfo(loss.dtype).tiny)
    count = jnp.maximum(jnp.sum(member, axis=0), 1)
    second = matmul(matmul(member.T, squares) / count, matmul(member.T, share))
    first = matmul(sums, share) / total
    return (1 + jnp.maximum(second, 0)) ** 1.5 / (1 + jnp.maximum(first, -0.5))
