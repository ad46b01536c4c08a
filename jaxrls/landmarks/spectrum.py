"""The subset of regressors by one eigendecomposition, for every λ: f(x) = Σₖ k(x, pointsₖ) βₖ over
m landmarks, fitted on all n rows, from the moments of a `Dictionary`.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.data import Data, DataBlock, Moments
from jaxrls.core.factors import (
    ABOVE_ROUNDING,
    AtPoints,
    PerLam,
    PrimalSpectrum,
    Report,
    Solution,
    matmul_lams,
    spectrum_of,
)
from jaxrls.core.linalg import Number, diagonal_of, eigh, eigh_rounding, matmul
from jaxrls.core.support import pytree
from jaxrls.landmarks.dictionary import Dictionary
from jaxrls.landmarks.held_out import OnLandmarks

# Of the rounding of features along a direction: how far above it eigenvalues have to be, for what
# is left out to be right to 5 %, see test_floor.py.
NOISES = 16


@pytree
class LandmarkSpectrum(OnLandmarks, PrimalSpectrum):
    """The spectrum of moments on landmarks.

    Args:
        hidden: (r,), true where s is set to the level of rounding, as it may be 0.
        indices: (m,), row numbers of the landmarks that leave with their row, or None.
        held: (m, r), their rows of U/√v.
    """

    hidden: Any = None
    indices: Any = None
    held: Any = None

    def with_rows(
        self, indices: Int[Array, " m"] | None, corner: Float[Array, "m p"]
    ) -> "LandmarkSpectrum":
        """With landmarks that leave with the rows of these numbers; `corner` is φ of them."""
        if indices is None:
            return self
        block = DataBlock(corner, None, self.fixed.values_at(indices))
        return replace(self, indices=indices, held=self.left(block))

    @property
    def s_above_rounding(self):
        """s for sums over directions: 0 where it is only the level of rounding."""
        return jnp.where(self.hidden, 0, self.s)

    @property
    def planes(self):
        """βₖ = planesₖ·w/√s."""
        return self.directions / jnp.sqrt(self.s)

    def landmarks_left_out(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """For all λ by four products."""
        W = self.planes
        u = self.held
        z = solution.state[:, None]
        share = self.residual_share(lams)
        slope = jnp.sqrt((1 - share) * share)
        weights = self.weights.block(self.weights.take(self.indices), len(self.indices))
        U = weights.scale(u)
        block = DataBlock(None, weights.values, self.fixed.values_at(self.indices))
        outside = self.outside(U, block)[:, None]
        of_lams = lambda A, columns: jnp.moveaxis(matmul_lams(A, columns), 1, 0)
        return self.left_out_at(
            solution,
            d=of_lams(W * W, share),
            rho=of_lams(W * u, slope),
            alpha=of_lams(W, slope * z),
            fitted=of_lams(u, (1 - share) * z),
            remaining=outside + of_lams(U * U, share),
        )

    def constraints(self, solution: Solution, lam: Number) -> tuple[Any, Any]:
        """Scaled as U is."""
        kept = jnp.sqrt(self.s / (self.s + lam))[:, None] * solution.state
        return self.planes * jnp.sqrt(lam / (self.s + lam)), kept


def floor_on_landmarks(
    dictionary: Dictionary,
    s: Float[Array, " r"],
    V: Float[Array, "r r"],
    sums: Float[Array, " r"],
    total: Number,
) -> Float[Array, ""]:
    """The λ below which rounding dominates, of moments over rows of weight `total`, whose `sums`
    are rounded by so much: by the mean direction, whose sums are taken twice, or by the noisiest
    that the fit keeps. Features are the kernel, exact to eps, times L⁻ᵀ; the landmarks' jitter
    moves all eigenvalues.
    """
    eps = jnp.finfo(s.dtype).eps
    largest = jnp.max(dictionary.kernel.diag(dictionary.points))
    amplified = jnp.sum(dictionary.whitener**2, axis=0)
    features = total * matmul((eps * largest) ** 2 * amplified, V**2)
    jitter = dictionary.jitter * largest * total / len(s)
    mean = 2 * jnp.mean(sums) - eigh_rounding(len(s), s) + jitter
    noise = jnp.where(s <= sums, sums, jnp.minimum(s, NOISES * features))
    return jnp.maximum(2 * mean, jnp.max(noise))


@spectrum_of.register
def spectrum_on_landmarks(
    dictionary: Dictionary, data: Data, sums: Moments, earlier_sums: Any = 0.0
) -> LandmarkSpectrum:
    """The spectrum of moments of Φ; rows of `data` are φ of the rows. Where `earlier_sums`, of
    which these moments are a difference, were larger than their diagonal, rounding is taken to be
    that of sums of this size: a direction adds up entries of the moments, each as exact as its row
    and column.

    Directions that rounding hides stay, as if they were at its level: rows of weight 0 may lie far
    along them. They count for nothing in sums.
    """
    removed = sums.removed(data.fixed)
    sums = sums.centred(data.fixed)
    s, V = eigh(sums.second)
    diagonal = jnp.maximum(diagonal_of(sums.second), earlier_sums)
    level = jax.vmap(partial(eigh_rounding, len(s), s))(matmul(diagonal, V**2))
    level = jnp.maximum(level, jnp.finfo(s.dtype).tiny)
    hidden = s < level
    s = jnp.maximum(s, level)
    floor = floor_on_landmarks(dictionary, s, V, level, data.weights.total)
    root = jnp.sqrt(s)
    report = Report("subset", floor, jnp.zeros_like(floor), sums.trace, dictionary.jitter)
    largest = jnp.max(jnp.where(hidden, 0, s))
    least = ABOVE_ROUNDING * floor
    report = report.with_information_of(sums, removed, largest, least)
    return LandmarkSpectrum(
        data=data,
        s=s,
        fixed_directions=matmul(sums.origin, V * root),
        expansion=AtPoints(dictionary.points),
        report=report,
        rotation=report.where_informative(V / root),
        origin=sums.origin,
        directions=matmul(dictionary.whitener, V) * root,
        hidden=hidden,
    )
