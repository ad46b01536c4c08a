"""Solve the subset of regressors for every λ by one eigendecomposition.

The fitted function is f(x) = Σₖ k(x, pointsₖ) βₖ over m landmarks, fitted to all n rows. The
eigendecomposition is that of the moments of a `Dictionary`.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.data import CentredMoments, Data
from jaxrls.core.factors import (
    ABOVE_ROUNDING,
    AtPoints,
    LeftBlock,
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

# How many times the rounding of features along a direction an eigenvalue must be. Then held-out
# results are right to 5 %, see test_floor.py.
NOISES = 16


@pytree
class LandmarkSpectrum(OnLandmarks, PrimalSpectrum):
    """The spectrum of moments on landmarks.

    Args:
        hidden: (r,), true where rounding may hide that s is 0. There s is set to the level of
            rounding.
        indices: (m,), row numbers of the landmarks that are left out with their rows, or None.
        held: (m, r), rows of U/√v for these landmarks.
    """

    hidden: Any = None
    indices: Any = None
    held: Any = None

    def with_rows(
        self, indices: Int[Array, " m"] | None, corner: Float[Array, "m p"]
    ) -> "LandmarkSpectrum":
        """Return the factor whose landmarks are left out with the rows of these numbers.

        `corner` is φ of the landmarks. With `indices=None` the landmarks stay.
        """
        if indices is None:
            return self
        held = self.coordinates(corner, self.fixed.values_at(indices))
        return replace(self, indices=indices, held=held)

    @property
    def s_above_rounding(self):
        """s for sums over directions: 0 where s is only the level of rounding."""
        return jnp.where(self.hidden, 0, self.s)

    @property
    def planes(self):
        """L⁻ᵀV, so that βₖ = planesₖ·w with the weights w of the features φV."""
        return self.directions / jnp.sqrt(self.s)

    def landmarks_left_out(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """Return held-out residuals and 1 − leverage of the landmarks.

        All λ take four products. With M of `leave_out.view`, and the sign of Mₖ turned,

            d = λ|Mₖ|²   ρ = √λ Mₖ·Mᵢ/√vᵢ   α = √λ Mₖ·Mᵀỹ

        for landmark k and its row i. The factor √λ of the constraint cancels in `left_out_at`.
        """
        W = self.planes
        u = self.held
        z = solution.state[:, None]
        residual_share = self.residual_share(lams)
        fitted_share = 1 - residual_share
        slope = jnp.sqrt(fitted_share * residual_share)
        weights = self.weights_of_landmarks
        U = weights.scale(u)
        of_landmarks = LeftBlock(U, weights, self.fixed.values_at(self.indices))
        outside = self.diagonal_outside(of_landmarks)[:, None, None]
        return self.left_out_at(
            d=matmul_lams(W * W, residual_share),
            rho=matmul_lams(W * u, slope),
            alpha=matmul_lams(W, slope * z),
            missed=self.about_landmarks(solution)[:, None] - matmul_lams(u, fitted_share * z),
            remaining=outside + matmul_lams(U * U, residual_share),
        )

    def constraints(self, solution: Solution, lam: Number) -> tuple[Any, Any]:
        """Return the constraints βₖ = 0 as √λA⁻¹L⁻¹eₖ, and Mᵀỹ, both in the coordinates of M."""
        kept = jnp.sqrt(self.s / (self.s + lam))[:, None] * solution.state
        return self.planes * jnp.sqrt(lam / (self.s + lam)), kept


def floor_on_landmarks(
    dictionary: Dictionary,
    s: Float[Array, " r"],
    V: Float[Array, "r r"],
    rounding_of_moments: Float[Array, " r"],
    total: Number,
) -> Float[Array, ""]:
    """Compute the floor: the λ below which rounding dominates the moments.

    `rounding_of_moments` (r,) is that along each direction, and `total` the weight of all rows. The
    features are the kernel, exact to eps, times L⁻ᵀ, which gives their rounding along each
    direction. The jitter of the landmarks moves all eigenvalues. The floor is the larger of two
    numbers:

    * Twice (2μ − e + j). Here μ is the mean of `rounding_of_moments`, e the rounding of the largest
      eigenvalue, and j what the jitter moves. No direction is rounded by less than e. So 2μ − e is
      e + 2(μ − e): what directions are rounded by beyond e counts twice.
    * The largest rounding of a direction that the fit keeps. For a hidden direction it is that of
      the moments. For others it is NOISES times the rounding of features, but at most s.
    """
    eps = jnp.finfo(s.dtype).eps
    largest = jnp.max(dictionary.kernel.diag(dictionary.points))
    amplified = jnp.sum(dictionary.whitener**2, axis=0)
    # The squared rounding of features along each direction, in units of eigenvalues.
    features = total * matmul((eps * largest) ** 2 * amplified, V**2)
    jitter = dictionary.jitter * largest * total / len(s)
    mean = 2 * jnp.mean(rounding_of_moments) - eigh_rounding(len(s), jnp.max(s)) + jitter
    of_kept = jnp.minimum(s, NOISES * features)
    noise = jnp.where(s <= rounding_of_moments, rounding_of_moments, of_kept)
    return jnp.maximum(2 * mean, jnp.max(noise))


@spectrum_of.register
def spectrum_on_landmarks(
    dictionary: Dictionary, data: Data, sums: CentredMoments, earlier_sums: Any = 0.0
) -> LandmarkSpectrum:
    """Make the spectrum of the moments of Φ. The rows of `data` are φ of the rows.

    If these moments are a difference of larger sums, `earlier_sums` is the size of those sums on
    the diagonal. Rounding is then taken to be that of the larger sums. A direction adds up entries
    of the moments, and each entry is as exact as its row and column.

    Directions that rounding hides are kept, with s at the level of rounding, because rows of weight
    0 may lie far along them. Sums over directions leave them out.
    """
    s, V = eigh(sums.second)
    diagonal = jnp.maximum(diagonal_of(sums.second), earlier_sums)
    level = eigh_rounding(len(s), jnp.maximum(jnp.max(s), matmul(diagonal, V**2)))
    level = jnp.maximum(level, jnp.finfo(s.dtype).tiny)
    hidden = s < level
    s = jnp.maximum(s, level)
    floor = floor_on_landmarks(dictionary, s, V, level, data.weights.total)
    root = jnp.sqrt(s)
    report = Report("subset", floor, jnp.zeros_like(floor), sums.trace, dictionary.jitter)
    largest = jnp.max(jnp.where(hidden, 0, s))
    least = ABOVE_ROUNDING * floor
    report = report.with_information_from_moments(sums, largest, least)
    return LandmarkSpectrum(
        data=data,
        s=s,
        fixed_directions=matmul(sums.fixed_fit, V * root),
        expansion=AtPoints(dictionary.points),
        report=report,
        rotation=report.where_informative(V / root),
        fixed_fit=sums.fixed_fit,
        directions=matmul(dictionary.whitener, V) * root,
        hidden=hidden,
    )
