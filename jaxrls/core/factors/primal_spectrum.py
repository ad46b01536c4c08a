"""The spectrum of explicit features by the eigendecomposition of their moments, or, where rows are
fewer, of K = ΦΦᵀ.

Theory: `docs/theory.md`, "Dual and primal".
"""

from dataclasses import replace
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.factors.expansion import Expansion, Primal
from jaxrls.core.factors.other_folds import PrimalForm
from jaxrls.core.factors.solution import NEAR, Report, Solution, times
from jaxrls.core.factors.spectrum import (
    DualSpectrum,
    Spectrum,
    centred_rounding,
    factor_symmetric,
)
from jaxrls.core.kernels import Linear, Standardized
from jaxrls.core.leave_out import LowRank
from jaxrls.core.linalg import clip, eigh, eigh_rounding, matmul, transposed_matmul
from jaxrls.core.problem import Data, DataBlock, Labels, Moments, Rows, gram, moments, near_fit
from jaxrls.core.support import pytree


@pytree
class PrimalSpectrum(Spectrum):
    """A spectrum of moments of features: U is made from rows of features, block by block.

    Args:
        data: rows of features, weights and fixed effects.
        s: eigenvalues (r,).
        across: (q, r), coefficients of the fit of each direction by the fixed effects.
        expansion: what coefficients multiply.
        report: how the factor was made, and its floor.
        rotation: (p, r), with U = √v (features − B origin) rotation.
        origin: (q, p), what the fixed effects fit of features.
        directions: (c, r), the coefficients of each direction.
        sums: centred `Moments`, where the rows are not kept.
    """

    data: Data
    s: Float[Array, " r"]
    across: Float[Array, "q r"]
    expansion: Expansion
    report: Report
    rotation: Float[Array, "p r"]
    origin: Float[Array, "q p"]
    directions: Float[Array, "c r"]
    sums: Moments | None = None

    def centred(self, block: DataBlock) -> Float[Array, "b p"]:
        """√v (features − B origin) of a block of rows."""
        features = block.x - self.fixed.fitted(block.b, self.origin)
        return block.weights.scale(features)

    def left(self, block):
        """The centred features, rotated."""
        return matmul(self.centred(block), self.rotation)

    def project(self, labels):
        """z = Uᵀ√v y."""
        cross = lambda block, y: transposed_matmul(self.centred(block), y)
        return matmul(self.rotation.T, self.data.sum(cross, labels.scaled))

    def solve_moments(self, labels: Labels, sums: Moments) -> Solution:
        """`solve_labels` where the moments of features with labels were summed along with the
        others.
        """
        return Solution(self, labels, matmul(self.rotation.T, sums.centred(self.fixed).cross))

    def residual_norm(self, solution, lams):
        """Where rows are not kept, a quadratic form of the moments: a difference, accurate relative
        to the squares of labels.
        """
        if self.sums is None:
            return super().residual_norm(solution, lams)
        kept = (1 - self.residual_share(lams)) * solution.state[:, None]
        coef = times(self.rotation, kept)
        both = 2 * self.sums.cross[:, None] - times(self.sums.second, coef)
        return jnp.maximum(self.sums.square - jnp.sum(coef * both, axis=0), 0)

    def unseen(self, solution, lams):
        """From the features, by one reading for all λ."""
        kept = (1 - self.residual_share(lams)) * solution.state[:, None]
        f = self.data.map(lambda block: times(self.left(block._replace(v=None)), kept))
        return solution.labels.Y - solution.labels.mean - jnp.moveaxis(f, 1, 0)

    def primal_form(self):
        """φ = (features − B origin) V; a spectrum of each fold's other rows serves every λ."""

        def solve(second, cross, lams):
            s, V = eigh(second)
            z = matmul(V.T, cross)[:, None] / (jnp.maximum(s, 0)[:, None, None] + lams)
            return times(V, z)

        turn = self.rotation * jnp.sqrt(self.s)
        return PrimalForm(self.data, Linear(), turn, self.origin, solve)

    def view(self, solution, lam):
        """I − HHᵀ − U diag(sD) Uᵀ."""
        root = jnp.sqrt(self.s / (self.s + lam))
        u = self.data.map(lambda block: self.left(block._replace(v=None)) * root)
        q = root[:, None] * solution.state
        return LowRank.of_rows(u, q, solution.labels, self.weights, self.fixed)


# how spectra are made -----------------------------------------------------------------------------


def solve_covariance(kernel, data: Data, labels: Labels) -> Solution:
    """The solution on explicit features by the eigendecomposition of ΦᵀΦ, or where n ≤ r of ΦΦᵀ.

    Directions with s below √r·eps·s_max count as absent. Cost: one product, O(n r²), and O(r³).
    Source: Rifkin (lecture), "direct approach".
    """
    features = data.rows.features(kernel)
    if features.shape[0] <= features.shape[1]:
        return _factor_outer(kernel, data, features).solve_labels(labels)
    of_features = replace(data, rows=features)
    sums = feature_moments(of_features, labels)
    return spectrum_of(kernel, of_features, sums).solve_moments(labels, sums)


def feature_moments(data: Data, labels: Labels) -> Moments:
    """Moments of rows of explicit features, about a point near the fixed effects' fit of them."""
    origins: dict = {"origin": near_fit(data, Linear()), "label_origin": labels.start}
    return moments(data, Linear(), labels.Y, **origins)


def moments_roundings(sums: Moments, r: int) -> Any:
    """How many times the rounding of their moments r features need for what is left out to be right
    to 5 %: more where rows are few, and the others, without some, may interpolate.
    """
    return jnp.where(sums.count < 8 * r, 16, 2).astype(sums.second.dtype)


def information(sums: Moments, taken, largest, least: Any = 0) -> tuple[Any, Any, Any]:
    """What `Report.asked` wants to know of centred moments of which so much was `taken` off: their
    largest eigenvalue, the least that is told from rounding, and tr K before.
    """
    whole, rounding = sums.whole, NEAR * eigh_rounding(len(sums.second), taken[None])
    least = jnp.maximum(jnp.maximum(least, rounding), centred_rounding(whole) ** 2)
    return largest, least, whole


@singledispatch
def spectrum_of(features: Any, data: Data, sums: Moments, before: Any = 0.0) -> PrimalSpectrum:
    """The spectrum from moments of rows of explicit features; for landmarks another function. Where
    `before` is larger than the diagonal of the moments, rounding is taken to be that of sums of
    this size.
    """
    largest = jnp.max(jnp.asarray(before, data.rows.dtype))
    constant = jnp.maximum(sums.taken(data.fixed), largest)
    sums = sums.centred(data.fixed)
    s, V = eigh(sums.second)
    s, below = clip(s, constant)
    floor = moments_roundings(sums, len(s)) * eigh_rounding(len(s), s, constant)
    report = Report("covariance", floor, below).asked(*information(sums, constant, jnp.max(s)))
    s = report.informed(jnp.where(s > eigh_rounding(len(s), s), s, 0))
    kept = s > 0
    directions = V * jnp.sqrt(s)
    return PrimalSpectrum(
        data=data,
        s=s,
        across=matmul(sums.origin, directions),
        expansion=Primal(),
        report=report,
        rotation=jnp.where(kept, V / jnp.sqrt(jnp.where(kept, s, 1)), 0),
        origin=sums.origin,
        directions=directions,
    )


def products(features: Rows, fixed) -> tuple[Any, Any, Any]:
    """K = ΦΦᵀ of features about an origin, that origin, and what to add to every row of K to get
    the kernel of new rows with these.

    With an intercept only distances matter: for features far from 0, K about their mean keeps
    digits that K would lose to rounding.
    """
    if fixed.one is None:
        return gram(Linear(), features, features), 0.0, None
    origin = jax.lax.stop_gradient(jnp.mean(features.some(512), axis=0))
    about = Standardized(Linear(), origin, jnp.ones_like(origin))
    lift = features.map(lambda phi: matmul(phi - origin, origin))
    return gram(about, features, features), origin, lift


def _factor_outer(kernel, data: Data, features: Rows) -> DualSpectrum:
    """By K = ΦΦᵀ in place of ΦᵀΦ, its dual coefficients turned into w = Φᵀ√v U (D ∘ z)."""
    K, origin, lift = products(features, data.fixed)
    weighted = replace(data.weights, values=data.weights.array)
    fit = near_fit(Data(features, weighted, data.fixed), Linear())
    fit = jnp.zeros((0, features.shape[1]), features.dtype) if fit is None else fit
    training = kernel, data.rows
    dual = factor_symmetric(K, data, Primal(), lift, training=training, semidefinite=True)
    turn = lambda phi, scaled: transposed_matmul(phi - origin, scaled)
    basis = features.sum(turn, dual.directions)
    floor = jnp.maximum(dual.report.floor, eigh_rounding(max(features.shape), dual.s))
    report = replace(dual.report, route="covariance", floor=floor)
    return replace(dual, basis=basis, origin=fit, report=report)
