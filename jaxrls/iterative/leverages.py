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
    """The diagonal of R, and the factor by which residuals/R are too small.

    The first row is from all probes. Row 1 + j leaves out probe j.
    """

    R: Float[Array, "p+1 n"]
    growth: Float[Array, "p+1 t"]


def leverages_from_probes(
    probes: Float[Array, "n p"],
    near: Float[Array, " n"],
    residuals: Float[Array, "n t"],
    used: Bool[Array, " n"],
) -> Leverages:
    """Estimate R from `probes` (n, p), each column of which is R on average.

    `near` (n,) is an approximation of R. `residuals` (n, t) are those of the fit, and `used` marks
    rows of positive weight. The result is exact if there are as many probes as rows.
    """
    n, p = probes.shape
    if p == n:
        R = jnp.where(used, jnp.mean(probes, axis=1), 1)
        return Leverages(R[None], jnp.ones((1, residuals.shape[1]), R.dtype))
    member = memberships(near, used)

    def of_some(kept: Float[Array, " p"]) -> tuple[Float[Array, " n"], Float[Array, " t"]]:
        R = calibrated(member, near, matmul(probes, kept) / jnp.sum(kept))
        return R, growth(member, (probes / R[:, None] - 1) * kept, residuals / R[:, None], kept)

    without = 1 - jnp.eye(p, dtype=near.dtype)
    every = jnp.ones_like(without[:1])
    return Leverages(*jax.lax.map(of_some, jnp.concatenate([every, without])))


def memberships(near: Float[Array, " n"], used: Bool[Array, " n"]) -> Float[Array, "n g"]:
    """Return 1 for the group of each used row, else 0.

    Rows are grouped by their ρ, equally many in each group.
    """
    n = len(near)
    count = max(1, min(GROUPS, n // FEWEST))
    group = jnp.argsort(jnp.argsort(near)) * count // n
    return jnp.where(used[:, None], jax.nn.one_hot(group, count, dtype=near.dtype), 0)


def calibrated(
    member: Float[Array, "n g"], near: Float[Array, " n"], means: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Compute aρ from the means over vectors; 1 for rows that are not used."""
    length = jnp.maximum(matmul(member.T, near), jnp.finfo(near.dtype).tiny)
    ratio = jnp.maximum(matmul(member.T, means) / length, LEAST)
    return jnp.minimum(near * matmul(member, ratio), 1) + 1 - jnp.sum(member, axis=1)


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
