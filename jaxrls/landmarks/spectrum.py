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
from jaxrls.core.problem import Data, DataBlock, Labels, Moments, Rows, moments, near_fit
from jaxrls.core.support import pytree
from jaxrls.landmarks.dictionary import Dictionary, is_constant, keeps_rows
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


class Levels(NamedTuple):
    """How large rounding is along the eigenvectors of moments of Φ: what it does to eigenvalues s
    by sums over rows, by features, and to all of them by the landmarks' jitter.
    """

    sums: Float[Array, " r"]
    features: Float[Array, " r"]
    ridge: Float[Array, ""]

    @classmethod
    def of(cls, dictionary: Dictionary, diagonal, s, V, total) -> "Levels":
        """Of moments with this `diagonal`, over rows of weight `total`. A direction adds up entries
        of the moments, each as exact as its row and column; and features are the kernel, exact to
        eps, times L⁻ᵀ.
        """
        eps, largest = jnp.finfo(s.dtype).eps, jnp.max(dictionary.kernel.diag(dictionary.points))
        sums = jax.vmap(partial(eigh_rounding, len(s), s))(matmul(diagonal, V**2))
        amplified = jnp.sum(dictionary.back**2, axis=0)
        return cls(
            sums=jnp.maximum(sums, jnp.finfo(s.dtype).tiny),
            features=total * matmul((eps * largest) ** 2 * amplified, V**2),
            ridge=dictionary.ridge * largest * total / len(s),
        )

    def floor(self, s) -> Float[Array, ""]:
        """The λ below which rounding dominates: by the mean direction, whose sums are taken twice,
        or by the noisiest that the fit keeps.
        """
        mean = 2 * jnp.mean(self.sums) - eigh_rounding(len(s), s) + self.ridge
        noise = jnp.minimum(s, NOISES * self.features)
        noisiest = jnp.max(jnp.where(s <= self.sums, self.sums, noise))
        return jnp.maximum(2 * mean, noisiest)


@spectrum_of.register
def spectrum_on_landmarks(
    dictionary: Dictionary,
    data: Data,
    sums: Moments,
    before=0.0,
    corner: Float[Array, "m m"] | None = None,
    indices=None,
) -> LandmarkSpectrum:
    """The spectrum of moments of Φ; rows of `data` are φ of the rows, `corner` φ of the landmarks,
    which leave with the rows of these `indices`, or None. Where `before` is larger than the
    diagonal of the moments, rounding is taken to be that of sums of this size.

    Directions that rounding hides stay, as if they were at its level: rows of weight 0 may lie far
    along them. They count for nothing in sums.
    """
    sums, fixed = sums.centred(data.fixed), data.fixed
    s, V = eigh(sums.second)
    diagonal = jnp.maximum(jnp.diagonal(sums.second), before)
    levels = Levels.of(dictionary, diagonal, s, V, data.weights.total)
    hidden, s = s < levels.sums, jnp.maximum(s, levels.sums)
    floor, root, planes = levels.floor(s), jnp.sqrt(s), matmul(dictionary.back, V)
    held = None
    if indices is not None and corner is not None:
        of_landmarks = corner - fixed.fitted(fixed.rows_at(indices), sums.origin)
        held = LandmarkConstraints(indices, planes, matmul(of_landmarks, V / root))
    return LandmarkSpectrum(
        data=data,
        s=s,
        across=matmul(sums.origin, V * root),
        expansion=AtPoints(dictionary.points),
        report=Report("subset", floor, jnp.zeros_like(floor), sums.trace, dictionary.ridge),
        rotation=V / root,
        origin=sums.origin,
        directions=planes * root,
        hidden=hidden,
        held=held,
    )


def kept_features(dictionary: Dictionary, rows: Rows, block_size: int | None) -> Any:
    """φ of all rows, (n, m), None where memory would not hold it."""
    m, itemsize = len(dictionary.points), jnp.dtype(rows.dtype).itemsize
    if not rows.traceable or not keeps_rows(rows.shape[0] // rows.parts, m, itemsize):
        return None
    return rows.map(dictionary.features, temporaries=m, block_size=block_size)


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
    dictionary, rows = Dictionary.of(kernel, chosen.points), data.rows
    corner, trace = dictionary.features(dictionary.points), chosen.trace_residual
    kept = kept_features(dictionary, rows, block_size)
    features = rows.through(dictionary) if kept is None else rows.like(kept)
    of_features = replace(data, rows=features)
    if is_constant(data.fixed) and (kept is None or data.weights.values is None):
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
    options: dict = {"corner": corner, "indices": chosen.indices}
    factor = spectrum_on_landmarks(dictionary, of_features, sums, **options)
    solution = factor.solve_moments(labels, sums)
    return replace(solution, summed=(dictionary, sums))
