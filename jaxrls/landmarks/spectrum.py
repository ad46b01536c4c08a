"""The subset of regressors by one eigendecomposition, for every λ: f(x) = Σₖ k(x, pointsₖ) βₖ over
m landmarks, fitted on all n rows, from the moments of a `Dictionary`.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.factors import AtPoints, PrimalSpectrum, Report, Solution, spectrum_of, times
from jaxrls.core.kernels import Kernel, Linear
from jaxrls.core.linalg import eigh, eigh_rounding, matmul
from jaxrls.core.problem import Data, DataBlock, Labels, Moments, moments, near_fit
from jaxrls.core.support import pytree
from jaxrls.landmarks.dictionary import Dictionary, keeps_rows, tailed
from jaxrls.landmarks.held_out import LandmarkRows, OnLandmarks
from jaxrls.landmarks.points import Landmarks

# Of the rounding of features along a direction: how far above it eigenvalues have to be, for what
# is left out to be right to 5 %, see test_floor.py.
NOISES = 16


@pytree
class LandmarkConstraints:
    """Landmarks that are rows of X, and are left out with their row."""

    indices: Int[Array, " m"]
    planes: Float[Array, "m r"]  # βₖ = planesₖ·w/√s up to a factor: of any length, which cancels
    left: Float[Array, "m r"]  # their rows of U/√v


@pytree
class LandmarkSpectrum(OnLandmarks, PrimalSpectrum):
    """The spectrum of moments on landmarks.

    Args:
        hidden: (r,), true where s is set to the level of rounding, as it may be 0.
        held: landmarks that are rows and leave with them, or None.
    """

    hidden: Any = None
    held: LandmarkConstraints | None = None

    @property
    def indices(self):
        """Row numbers of the landmarks that leave with their row."""
        return None if self.held is None else self.held.indices

    @property
    def counted(self):
        """s for sums over directions: 0 where it is only the level of rounding."""
        return jnp.where(self.hidden, 0, self.s)

    def landmark_rows(self, solution, lams):
        """For all λ by four products."""
        W, u = self.held.planes, self.held.left  # type: ignore[union-attr]
        v, z = self.weights.array[self.indices], solution.state[:, None]
        residual_share = self.residual_share(lams)
        slope = jnp.sqrt((1 - residual_share) * residual_share)
        block = DataBlock(None, v, self.fixed.rows_at(self.indices))
        outside = self.outside(jnp.sqrt(v)[:, None] * u, block)
        return LandmarkRows(
            d=times(W * W, residual_share),
            rho=times(W * u, slope),
            alpha=times(W, slope * z),
            fitted=times(u, (1 - residual_share) * z),
            remaining=outside[:, None, None] + v[:, None, None] * times(u * u, residual_share),
        )

    def primal_form(self):
        """With the landmarks that leave."""
        form = super().primal_form()
        if self.held is None:
            return form
        return form._replace(planes=self.held.planes, indices=self.indices)

    def view(self, solution, lam):
        """With the landmarks that leave."""
        view = super().view(solution, lam)
        if self.held is None:
            return view
        planes = self.held.planes * jnp.sqrt(lam / (self.s + lam))
        q = jnp.sqrt(self.s / (self.s + lam))[:, None] * solution.state
        return self.constrained(view, planes, q)


class RoundingLevels(NamedTuple):
    """How far rounding reaches, direction by direction of the eigenvectors of moments of Φ."""

    sums: Float[Array, " r"]  # rounding of the entries of BᵀB that a direction adds up
    features: Float[Array, " r"]  # rounding of the kernel, amplified by L⁻¹, in the features
    eigenvalues: Float[Array, ""]  # rounding of the eigendecomposition
    ridge: Float[Array, ""]  # how much smaller the landmarks' jitter makes eigenvalues of K̂


def rounding_levels(dictionary: Dictionary, second, s, V, total, before) -> RoundingLevels:
    """The levels of rounding of eigenvalues s with eigenvectors V (in coordinates of Φ) of moments
    `second` of B, over rows of weight `total`.

    A direction's level of sums is that of the entries that it adds up: far above the others' where
    landmarks nearly depend. Where `before` is larger than the diagonal, rounding is taken to be
    that of sums of this size.
    """
    q = dictionary.lead.shape[0]
    in_B = jnp.concatenate([V[:q], matmul(dictionary.tail, V[q:])])  # ΦV = B in_B
    diagonal = jnp.maximum(jnp.diagonal(second), before)
    sums = jax.vmap(partial(eigh_rounding, len(s), s))(matmul(diagonal, in_B**2))
    largest = jnp.max(dictionary.kernel.diag(dictionary.points))
    return RoundingLevels(
        sums=jnp.maximum(sums, jnp.finfo(s.dtype).tiny),
        features=total * matmul(dictionary.rounding() ** 2, V**2),
        eigenvalues=eigh_rounding(len(s), s),
        ridge=dictionary.ridge * largest * total / len(s),
    )


@spectrum_of.register
def spectrum_on_landmarks(
    dictionary: Dictionary,
    data: Data,
    sums: Moments,
    before=0.0,
    corner: Float[Array, "m m"] | None = None,
    indices=None,
) -> LandmarkSpectrum:
    """The spectrum of moments of B; rows of `data` are B of the rows, `corner` B of the landmarks,
    which leave with the rows of these `indices`, or None.

    Directions that rounding hides stay, as if they were at its level: rows of weight 0 may lie far
    along them. They count for nothing in sums.
    """
    tail, q, sums = dictionary.tail, dictionary.lead.shape[0], sums.centred(data.fixed)
    s, V = eigh(tailed(tailed(sums.second, tail).T, tail))
    levels = rounding_levels(dictionary, sums.second, s, V, data.weights.total, before)
    hidden, s = s < levels.sums, jnp.maximum(s, levels.sums)
    noisy = jnp.max(jnp.where(hidden, levels.sums, jnp.minimum(s, NOISES * levels.features)))
    usual = 2 * (2 * jnp.mean(levels.sums) - levels.eigenvalues + levels.ridge)
    floor, root = jnp.maximum(usual, noisy), jnp.sqrt(s)
    W, in_B = dictionary.coefficients(V), jnp.concatenate([V[:q], matmul(tail, V[q:])])
    held = None
    if indices is not None:
        landmark_rows = corner[dictionary.given_order]  # type: ignore[index]
        landmark_rows = landmark_rows - data.fixed.fitted(data.fixed.rows_at(indices), sums.origin)
        held = LandmarkConstraints(indices, W, matmul(landmark_rows, in_B / root))
    return LandmarkSpectrum(
        data=data,
        s=s,
        across=matmul(sums.origin, in_B * root),
        expansion=AtPoints(dictionary.points[dictionary.given_order]),
        report=Report("subset", floor, jnp.zeros_like(floor), sums.trace, dictionary.ridge),
        rotation=in_B / root,
        origin=sums.origin,
        directions=W * root,
        hidden=hidden,
        held=held,
    )


def solve_subset(
    kernel: Kernel,
    data: Data,
    chosen: Landmarks,
    labels: Labels,
    *,
    block_size: int | None = None,
) -> Solution:
    """The solution on landmarks, from one reading of the rows. A trace that the landmarks hold must
    be of these rows and weights.
    """
    dictionary, rows, fixed = Dictionary.of(kernel, chosen.points), data.rows, data.fixed
    corner, kept = dictionary.features(dictionary.points), None
    m, trace = len(corner), chosen.trace_residual
    if rows.traceable and keeps_rows(rows.shape[0] // rows.parts, m, corner.dtype.itemsize):
        kept = rows.map(dictionary.features, temporaries=m, block_size=block_size)
    features = rows.through(dictionary) if kept is None else rows.like(kept)
    of_features = replace(data, rows=features)
    if fixed.count == 1 and fixed.rows is None and (kept is None or data.weights.values is None):
        origin: Any = jnp.mean(corner, axis=0)[None]
    else:
        origin = near_fit(of_features, Linear())
    sums = moments(
        data,
        dictionary,
        labels.Y,
        kept=kept,
        left_over=dictionary.left_over if trace is None else None,
        origin=origin,
        label_origin=labels.start,
        block_size=block_size,
    )
    if trace is not None:
        sums = replace(sums, trace=jnp.asarray(trace, rows.dtype))
    factor = spectrum_on_landmarks(
        dictionary, of_features, sums, corner=corner, indices=chosen.indices
    )
    solution = factor.solve_moments(labels, sums)
    return replace(solution, summed=(dictionary, sums))
