"""Solve the subset of regressors by a Cholesky factor for each λ.

The solution is differentiable in everything, also in the landmarks. Notation: ψ = k(x, points) and
φ = L⁻¹ψ with K_RR = LLᵀ.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.data import CentredMoments, Data, Labels
from jaxrls.core.factors import (
    ABOVE_ROUNDING,
    AtPoints,
    CholeskyFeatures,
    CoordinateMaps,
    PerLam,
    Report,
    Solution,
)
from jaxrls.core.linalg import Number, matmul, rounding
from jaxrls.core.support import pytree
from jaxrls.landmarks.dictionary import Dictionary
from jaxrls.landmarks.held_out import OnLandmarks


@pytree
class CholeskyLandmarks(OnLandmarks, CholeskyFeatures):
    """A factor on landmarks, decomposed anew at each λ.

    Row k of `row_map` is A⁻¹L⁻¹eₖ, for landmark k.
    """

    indices: Any = None  # (m,), row numbers of landmarks left out with their row, or None

    @property
    def planes(self):
        """L⁻ᵀ, so that βₖ = planesₖ·w."""
        return self.feature_map.whitener

    def landmarks_left_out(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """Return held-out residuals and 1 − leverage of the landmarks, for one λ after another."""
        of_lam = lambda lam, target: self.left_out_by(target, self.maps_at(lam, target.state))
        e, remaining = solution.at_each(lams, of_lam)
        return jnp.moveaxis(e, 0, 1), jnp.moveaxis(remaining, 0, 1)

    def left_out_by(
        self, solution: Solution, maps: CoordinateMaps, corner: Float[Array, "m m"] | None = None
    ) -> tuple[Any, Any]:
        """Compute `landmarks_left_out` at one λ, from the coordinate maps at this λ.

        `corner` is k(points, points), or None if it is not known yet.
        """
        b = self.fixed.values_at(self.indices)
        v = self.weights.array[self.indices]
        corner = self.feature_map.design(self.feature_map.points) if corner is None else corner
        u = self.coordinates(corner, b, maps)
        W = unit_rows(maps)
        remaining = 1 - v * jnp.sum(u * u, axis=1) - self.fixed.leverage(b, v)
        d, rho = (jnp.sum(W * a, axis=1, keepdims=True) for a in (W, u))
        alpha = matmul(W, maps.of_labels)
        missed = self.about_landmarks(solution) - matmul(u, maps.of_labels)
        return self.left_out_at(d, rho, alpha, missed, remaining[:, None])

    def constraints(self, solution: Solution, lam: Number) -> tuple[Any, Any]:
        """Return the constraints βₖ = 0 and Mᵀỹ, both in the coordinates u."""
        maps = self.maps_at(lam, solution.state)
        return unit_rows(maps), maps.of_labels


def unit_rows(maps: CoordinateMaps) -> Float[Array, "m m"]:
    """Return the constraints βₖ = 0: the rows of `row_map`, each divided by its largest entry.

    A constraint has no scale. Derivatives square the rows again, so their size must stay in range.
    """
    row_map = maps.row_map
    return row_map / jax.lax.stop_gradient(jnp.max(jnp.abs(row_map), axis=1, keepdims=True))


def cholesky_on_landmarks(
    dictionary: Dictionary,
    data: Data,
    sums: CentredMoments,
    labels: Labels,
    indices: Int[Array, " m"] | None,
    block_size: int | None,
) -> Solution:
    """Make the solution from the moments of Φ."""
    report = landmarks_report(*jax.lax.stop_gradient((dictionary, sums)))
    factor = CholeskyLandmarks(
        data=data,
        feature_map=dictionary,
        second=sums.second,
        fixed_fit=sums.fixed_fit,
        expansion=AtPoints(dictionary.points),
        report=replace(report, trace_residual=sums.trace, jitter=dictionary.jitter),
        block_size=block_size,
        indices=indices,
    )
    return Solution(factor, labels, sums.cross)


def landmarks_report(dictionary: Dictionary, sums: CentredMoments) -> Report:
    """Make the `Report`: the floor, and whether the moments stand above rounding."""
    floor = landmarks_rounding(dictionary, sums.second, sums.trace)
    report = Report("cholesky", floor, jnp.zeros_like(floor))
    largest = jnp.linalg.norm(sums.second)
    return report.with_information_from_moments(sums, largest, ABOVE_ROUNDING * floor)


def landmarks_rounding(
    dictionary: Dictionary, second: Float[Array, "m m"], trace: Number
) -> Float[Array, ""]:
    """Compute the floor of λ on landmarks, the larger of two rounding errors.

    One is twice the rounding of the moments. The other is 6 times the rounding of k(x, landmarks),
    which L⁻ᵀ amplifies.
    """
    largest = jnp.linalg.norm(second)
    m = len(second)
    diag = dictionary.kernel.diag(dictionary.points)
    amplified = jnp.linalg.norm(jnp.sqrt(diag)[:, None] * dictionary.whitener)
    moved = amplified * jnp.sqrt(jnp.trace(second) + trace)
    by_kernel = 6 * rounding(1 / m, jnp.sqrt(largest)) * moved
    return jnp.maximum(2 * rounding(m, largest), by_kernel)
