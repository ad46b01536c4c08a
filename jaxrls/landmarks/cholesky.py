"""The subset of regressors by a Cholesky factor for each λ, differentiable in everything, in the
landmarks too: ψ = k(x, points), φ = L⁻¹ψ with K_RR = LLᵀ.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.data import Data, Labels, Moments
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
    """Landmarks as features, factored at each λ; row k of `row_map` is A⁻¹L⁻¹eₖ of landmark k."""

    indices: Any = None  # (m,), of the landmarks that leave with their row

    @property
    def planes(self):
        """L⁻ᵀ."""
        return self.map.whitener

    def landmarks_left_out(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """At one λ after the other."""
        of_lam = lambda lam, target: self.left_out_by(target, self.maps_at(lam, target.state))
        return solution.at_each(lams, of_lam)

    def left_out_by(
        self, solution: Solution, maps: CoordinateMaps, corner: Float[Array, "m m"] | None = None
    ) -> tuple[Any, Any]:
        """At one λ, with k(points, points) as `corner` where it is known."""
        b = self.fixed.values_at(self.indices)
        v = self.weights.array[self.indices]
        corner = self.map.design(self.map.points) if corner is None else corner
        u = self.coordinates(corner, b, maps)
        W = unit_rows(maps)
        remaining = 1 - v * jnp.sum(u * u, axis=1) - self.fixed.leverage(b, v)
        d, rho = (jnp.sum(W * a, axis=1, keepdims=True) for a in (W, u))
        alpha = matmul(W, maps.of_labels)
        fitted = matmul(u, maps.of_labels)
        return self.left_out_at(solution, d, rho, alpha, fitted, remaining[:, None])

    def constraints(self, solution: Solution, lam: Number) -> tuple[Any, Any]:
        """In the coordinates u."""
        maps = self.maps_at(lam, solution.state)
        return unit_rows(maps), maps.of_labels


def unit_rows(maps: CoordinateMaps) -> Float[Array, "m m"]:
    """The constraints βₖ = 0: `row_map` in units of each row's largest entry, as constraints have
    no scale, and derivatives square theirs again.
    """
    row_map = maps.row_map
    return row_map / jax.lax.stop_gradient(jnp.max(jnp.abs(row_map), axis=1, keepdims=True))


def cholesky_on_landmarks(
    dictionary: Dictionary,
    data: Data,
    sums: Moments,
    labels: Labels,
    indices: Int[Array, " m"] | None,
    block_size: int | None,
) -> Solution:
    """The solution from moments of Φ."""
    removed = sums.removed(data.fixed)
    sums = sums.centred(data.fixed)
    report = landmarks_report(*jax.lax.stop_gradient((dictionary, sums, removed)))
    factor = CholeskyLandmarks(
        data=data,
        map=dictionary,
        second=sums.second,
        origin=sums.origin,
        expansion=AtPoints(dictionary.points),
        report=replace(report, trace_residual=sums.trace, jitter=dictionary.jitter),
        block_size=block_size,
        indices=indices,
    )
    return Solution(factor, labels, sums.cross)


def landmarks_report(dictionary: Dictionary, sums: Moments, removed: Number) -> Report:
    """The floor, and whether the moments stand above it."""
    floor = landmarks_rounding(dictionary, sums.second, sums.trace)
    report = Report("cholesky", floor, jnp.zeros_like(floor))
    largest = jnp.linalg.norm(sums.second)
    return report.with_information_of(sums, removed, largest, ABOVE_ROUNDING * floor)


def landmarks_rounding(
    dictionary: Dictionary, second: Float[Array, "m m"], trace: Number
) -> Float[Array, ""]:
    """The floor from the moments, and from the rounding of k(x, landmarks), which L⁻ᵀ amplifies."""
    largest = jnp.linalg.norm(second)[None]
    m = len(second)
    diag = dictionary.kernel.diag(dictionary.points)
    amplified = jnp.linalg.norm(jnp.sqrt(diag)[:, None] * dictionary.whitener)
    moved = amplified * jnp.sqrt(jnp.trace(second) + trace)
    by_kernel = 6 * rounding(1 / m, jnp.sqrt(largest)) * moved
    return jnp.maximum(2 * rounding(m, largest), by_kernel)
