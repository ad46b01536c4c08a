"""The spectrum of explicit features, by the eigendecomposition of their moments.

If there are fewer rows than features, K = ΦΦᵀ is decomposed instead.

Theory: `docs/theory.md`, "Dual and primal".
"""

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import (
    CentredMoments,
    Data,
    DataBlock,
    Labels,
    Moments,
    Rows,
    coef_near_fit,
    moments,
)
from jaxrls.core.factors.expansion import KernelMatrix, Primal, products_about_origin
from jaxrls.core.factors.floor import Report, centred_rounding, roundings_of_moments
from jaxrls.core.factors.lams import PerLam, PerRow, PerTarget, matmul_lams
from jaxrls.core.factors.refits import PrimalForm
from jaxrls.core.factors.solution import Solution
from jaxrls.core.factors.spectrum import GramSpectrum, LeftBlock, Spectrum, factor_symmetric
from jaxrls.core.kernels import IDENTITY, Kernel
from jaxrls.core.leave_out import LowRankView
from jaxrls.core.linalg import (
    Number,
    Reduction,
    clip_negative,
    eigh,
    eigh_rounding,
    matmul,
    transposed_matmul,
)
from jaxrls.core.support import pytree


@pytree
class PrimalSpectrum(Spectrum):
    """A spectrum of moments of features. U is made from the rows, block by block.

    Args:
        rotation: (p, r), with U = √v (features − B fixed_fit) rotation.
        fixed_fit: (q, p), coefficients of the fit of the features by the fixed effects.
        directions: (c, r), the coefficients of each direction.
        sums: the moments, if the rows are not kept; else None.
    """

    rotation: Float[Array, "p r"]
    fixed_fit: Float[Array, "q p"]
    directions: Float[Array, "c r"]
    sums: CentredMoments | None = None

    def centred(self, x: Float[Array, "b p"], b: Any) -> Float[Array, "b p"]:
        """Return features − B fixed_fit of a block of rows."""
        return x - self.fixed.fitted(b, self.fixed_fit)

    def coordinates(self, x: Float[Array, "b p"], b: Any) -> Float[Array, "b r"]:
        """Return the rows of U/√v of a block: its centred features, rotated."""
        return matmul(self.centred(x, b), self.rotation)

    def coordinates_of_block(self, block: DataBlock) -> Float[Array, "b r"]:
        """Return the rows of U/√v of a block."""
        return self.coordinates(block.x, block.b)

    def read_left(self, reduction: Reduction, fn: Callable, added: Any = None) -> Any:
        """Make the rows of U block by block: coordinates times √v."""

        def of_block(block: DataBlock) -> Any:
            U = block.weights.scale(self.coordinates_of_block(block))
            return fn(LeftBlock(U, block.weights, block.b, block.added))

        return self.data.over(reduction, of_block, added)

    def state_of(self, labels: Labels) -> Float[Array, "r t"]:
        """Compute z = Uᵀ√v y."""

        def cross(block: DataBlock) -> Float[Array, "p t"]:
            y = block.weights.scale(block.added)
            return transposed_matmul(self.centred(block.x, block.b), y)

        return matmul(self.rotation.T, self.data.sum(cross, labels.scaled))

    def solve_moments(self, labels: Labels, sums: CentredMoments) -> Solution:
        """Return the solution from moments of features with labels, without reading the rows."""
        return Solution(self, labels, matmul(self.rotation.T, sums.cross))

    def residual_norm(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute Σ vᵢ (yᵢ − f(xᵢ))².

        If rows are not kept, it is a quadratic form of the moments. This is a difference, and its
        rounding is relative to the squares of labels.
        """
        if self.sums is None:
            return super().residual_norm(solution, lams)
        coef = matmul_lams(self.rotation, self.fitted_part(solution, lams))
        both = 2 * self.sums.cross[:, None] - matmul_lams(self.sums.second, coef)
        return jnp.maximum(self.sums.square - jnp.sum(coef * both, axis=0), 0)

    def fitted_part(self, solution: Solution, lams: PerLam) -> Float[Array, "r L t"]:
        """Return z s/(s + λ), the part of z that the fit takes."""
        return (1 - self.residual_share(lams)) * solution.state[:, None]

    def query_residuals(self, solution: Solution, lams: PerLam) -> PerRow:
        """Compute y − f of all rows as if they were new, in one pass for all λ."""
        kept = self.fitted_part(solution, lams)
        f = self.data.map(lambda block: matmul_lams(self.coordinates_of_block(block), kept))
        return (solution.labels.Y - solution.labels.by_effects)[:, None] - f

    def primal_form(self):
        """Return the factor in terms of φ = (features − B fixed_fit) V.

        A fit to the other rows of a fold takes their spectrum, which serves every λ.
        """

        def solve(
            second: Float[Array, "r r"], cross: Float[Array, "r t"], lams: PerLam
        ) -> Float[Array, "r L t"]:
            s, V = eigh(second)
            # Columns may be dependent without the fold. Then some directions are only rounding.
            z = jnp.where((s > eigh_rounding(len(s), jnp.max(s)))[:, None], matmul(V.T, cross), 0)
            z = z[:, None] / (jnp.maximum(s, 0)[:, None, None] + lams)
            return matmul_lams(V, z)

        rotation = self.rotation * jnp.sqrt(self.s)  # V
        return PrimalForm(self.data, IDENTITY, rotation, self.fixed_fit, solve)

    def view(self, solution: Solution, lam: Number) -> LowRankView:
        """Return R = I − HHᵀ − U diag(sD) Uᵀ with D = 1/(s + λ), and r."""
        root = jnp.sqrt(self.s / (self.s + lam))
        u = self.data.map(lambda block: self.coordinates_of_block(block) * root)
        label_coordinates = root[:, None] * solution.state
        return LowRankView.from_features(
            u, label_coordinates, solution.labels, self.weights, self.fixed
        )


@pytree
class OuterSpectrum(GramSpectrum):
    """A spectrum of K = ΦΦᵀ of explicit features, whose coefficients are weights of the features.

    Args:
        feature_directions: (c, n), the coefficients of each direction.
        fixed_fit: (q, c), coefficients of the fit of the features by the fixed effects.
    """

    is_dual: ClassVar[bool] = False
    feature_directions: Float[Array, "c n"]
    fixed_fit: Float[Array, "q c"]

    @property
    def directions(self):
        """The coefficients of each direction."""
        return self.feature_directions


# how spectra are made -----------------------------------------------------------------------------


def solve_covariance(kernel: Kernel, data: Data, labels: Labels) -> Solution:
    """Return the solution on explicit features by the spectrum of ΦᵀΦ, or of ΦΦᵀ if n ≤ r.

    Directions whose s may be rounding alone count as absent: `floor.py` has the threshold. Cost:
    one product, O(n r²), and O(r³).

    Source: Rifkin (lecture), "direct approach".
    """
    features = data.rows.feature_rows(kernel)
    if features.shape[0] <= features.shape[1]:
        return _factor_outer(kernel, data, features).solve_labels(labels)
    of_features = replace(data, rows=features)
    sums = feature_moments(of_features, labels).centred(data.fixed)
    return spectrum_of(kernel, of_features, sums).solve_moments(labels, sums)


def feature_moments(data: Data, labels: Labels) -> Moments:
    """Return the moments of rows of explicit features.

    They are taken about a point near the fit of the features by the fixed effects.
    """
    near_fit = coef_near_fit(data, IDENTITY)
    return moments(data, IDENTITY, labels.Y, origin=near_fit, label_origin=labels.beta)


@singledispatch
def spectrum_of(
    features: Any, data: Data, sums: CentredMoments, earlier_sums: Any = 0.0
) -> PrimalSpectrum:
    """Return the spectrum from moments of rows of features.

    Only the type of `features` is read here, and it selects the function: this one is for explicit
    features, such as those of a kernel, and landmarks register their own. `earlier_sums` are for
    moments that are differences of larger sums. If they are larger than what centring removed,
    rounding is taken to be that of sums of this size.
    """
    largest_earlier = jnp.max(jnp.asarray(earlier_sums, data.rows.dtype))
    sums = replace(sums, removed=jnp.maximum(sums.removed, largest_earlier))
    s, V = eigh(sums.second)
    s, below = clip_negative(s, sums.removed)
    largest = jnp.max(s)
    rounding = eigh_rounding(len(s), jnp.maximum(largest, sums.removed))
    floor = roundings_of_moments(sums) * rounding
    report = Report("covariance", floor, below).with_information_from_moments(sums, largest)
    is_present = s > jnp.maximum(rounding, centred_rounding(sums.square_before) ** 2)
    s = report.where_informative(jnp.where(is_present, s, 0))
    kept = s > 0
    directions = V * jnp.sqrt(s)
    return PrimalSpectrum(
        data=data,
        s=s,
        fixed_directions=matmul(sums.fixed_fit, directions),
        expansion=Primal(),
        report=report,
        rotation=jnp.where(kept, V / jnp.sqrt(jnp.where(kept, s, 1)), 0),
        fixed_fit=sums.fixed_fit,
        directions=directions,
    )


def _factor_outer(kernel: Kernel, data: Data, features: Rows) -> OuterSpectrum:
    """Return the spectrum by K = ΦΦᵀ in place of ΦᵀΦ.

    Its dual coefficients are turned into weights of features, w = Φᵀ√v U (D ∘ z).
    """
    K, origin, lift = products_about_origin(features, data.fixed)
    matrix = KernelMatrix(K, data, Primal(), lift, kernel)
    dual = factor_symmetric(matrix, semidefinite=True)
    fixed = data.fixed

    def of_block(block: DataBlock) -> tuple[Float[Array, "p r"], Float[Array, "q p"]]:
        by_effects = fixed.sums(block.b, block.weights.array, block.x)
        return transposed_matmul(block.x - origin, block.added), by_effects

    directions, sums = Data(features, data.weights, fixed).sum(of_block, dual.directions)
    floor = jnp.maximum(dual.report.floor, eigh_rounding(max(features.shape), jnp.max(dual.s)))
    report = replace(dual.report, route="covariance", floor=floor)
    return OuterSpectrum(
        data=dual.data,
        s=dual.s,
        fixed_directions=dual.fixed_directions,
        expansion=dual.expansion,
        report=report,
        kernel=dual.kernel,
        U=dual.U,
        present=dual.present,
        feature_directions=directions,
        fixed_fit=fixed.solve(sums),
    )
