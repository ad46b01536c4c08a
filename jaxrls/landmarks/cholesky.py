"""The subset of regressors by a Cholesky factor for each λ, differentiable in everything, in the
landmarks too: ψ = k(x, points), φ = L⁻¹ψ with K_RR = LLᵀ.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.factors import (
    AtPoints,
    CholeskyFeatures,
    Report,
    Shrunk,
    Solution,
    moments_rounding,
    of_each,
)
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import matmul, rounding
from jaxrls.core.problem import Data, Labels, moments, near_fit
from jaxrls.core.support import pytree
from jaxrls.landmarks.dictionary import Dictionary, is_constant
from jaxrls.landmarks.held_out import LandmarkRows, OnLandmarks
from jaxrls.landmarks.points import Landmarks


@pytree
class CholeskyLandmarks(OnLandmarks, CholeskyFeatures):
    """Landmarks as features, factored at each λ; row k of `Shrunk.R` is A⁻¹L⁻¹eₖ of landmark k."""

    indices: Any = None  # (m,), of the landmarks that leave with their row

    def landmark_rows(self, solution, lams):
        """At one λ after the other."""
        of_lam = lambda shrunk: self.landmark_rows_at(shrunk)
        return of_each(of_lam, self.shrunk_at_all(solution, lams), lams)

    def landmark_rows_at(self, shrunk: Shrunk, corner=None) -> LandmarkRows:
        """Of one λ, (m, …), with k(points, points) as `corner` where it is known."""
        b, v = self.fixed.rows_at(self.indices), self.weights.array[self.indices]
        corner = self.map.raw(self.map.points) if corner is None else corner
        u, W = self.coordinates(corner, b, shrunk), planes(shrunk)
        remaining = 1 - v * jnp.sum(u * u, axis=1) - self.fixed.leverage(b, v)
        d, rho = jnp.sum(W * W, axis=1), jnp.sum(W * u, axis=1)
        alpha, fitted = matmul(W, shrunk.q), matmul(u, shrunk.q)
        return LandmarkRows(d[:, None], rho[:, None], alpha, fitted, remaining[:, None])

    def primal_form(self):
        """With the landmarks that leave."""
        form = super().primal_form()
        if self.indices is None:
            return form
        return form._replace(planes=self.map.back, indices=self.indices)

    def view(self, solution, lam):
        """With the landmarks that leave."""
        view = super().view(solution, lam)
        if self.indices is None:
            return view
        shrunk = self.shrunk(lam, solution.state)
        return self.constrained(view, planes(shrunk), shrunk.q)


def planes(shrunk: Shrunk) -> Float[Array, "m m"]:
    """The constraints βₖ = 0: R in units of each row's largest entry, as constraints have no scale,
    and derivatives square theirs again.
    """
    return shrunk.R / jax.lax.stop_gradient(jnp.max(jnp.abs(shrunk.R), axis=1, keepdims=True))


def solve_cholesky_landmarks(
    kernel: Kernel,
    data: Data,
    chosen: Landmarks,
    labels: Labels,
    block_size: int | None = None,
) -> Solution:
    """The solution on landmarks, from one reading of the rows."""
    dictionary = Dictionary.of(kernel, chosen.points)
    if is_constant(data.fixed):
        origin: Any = jnp.mean(dictionary.features(chosen.points), axis=0)[None]
    else:
        origin = jax.lax.stop_gradient(near_fit(data, dictionary))
    sums = moments(
        data,
        dictionary,
        labels.Y,
        left_over=dictionary.left_over,
        block_size=block_size,
        origin=origin,
        label_origin=labels.start,
    ).centred(data.fixed)
    floor = landmarks_rounding(*jax.lax.stop_gradient((dictionary, sums.second, sums.trace)))
    factor = CholeskyLandmarks(
        data=data,
        map=dictionary,
        second=sums.second,
        origin=sums.origin,
        expansion=AtPoints(chosen.points),
        report=Report("cholesky", floor, jnp.zeros_like(floor), sums.trace, dictionary.ridge),
        block_size=block_size,
        indices=None if chosen.indices is None else jnp.asarray(chosen.indices),
    )
    return Solution(factor, labels, sums.cross)


def landmarks_rounding(dictionary: Dictionary, second, trace) -> Float[Array, ""]:
    """The floor from the moments, and from the rounding of k(x, landmarks), which L⁻ᵀ amplifies."""
    largest, m = jnp.linalg.norm(second)[None], len(second)
    diag = dictionary.kernel.diag(dictionary.points)
    amplified = jnp.linalg.norm(jnp.sqrt(diag)[:, None] * dictionary.back)
    moved = amplified * jnp.sqrt(jnp.trace(second) + trace)
    by_kernel = 6 * rounding(1 / m, jnp.sqrt(largest)) * moved
    return jnp.maximum(moments_rounding(second), by_kernel)
