"""The posterior covariance of f at new rows, fixed effects included: −λR of the one matrix, at one λ,
in units in which the kernel is the prior's covariance.

With f ~ N(0, k), labels of noise λ/v and a flat prior on the fixed effects, whose columns at a new
row are b and h = T⁻ᵀb,

    dual      cov = k̃(x, x') − u uᵀ' + λ h·h',    k̃ = k less what the fixed effects fit of it,
    primal    cov = u uᵀ' + λ h·h',               u = √λ A⁻¹ψ.

The primal form, a sum of squares, loses no digit. On landmarks f is what they span, and what they
leave over of the prior, k − k̂, is added where it is asked for: the rows tell nothing of it.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.expansion import Expansion, OnLandmarks
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.inverses import triangular_inverse
from jaxrls.linalg.products import matmul
from jaxrls.problem.fixed_effects import FixedEffects
from jaxrls.rows.gram import gram
from jaxrls.support.pytrees import pytree


@pytree
class NewRows:
    """What the covariance of any row with some rows takes of these."""

    rows: Any
    u: Float[Array, "k r"]
    h: Float[Array, "k q"]
    own: Any  # their own part of k̃


class Spread(ABC):
    """The posterior covariance at one λ: of rows with each other, or the variance of each.

    New rows are seen as u = design·half − b·middle; `effects` of methods is what fixed effects need
    to know of them, None for an intercept.
    """

    expansion: Expansion
    fixed: FixedEffects  # without their rows
    half: Float[Array, "c r"]
    middle: Float[Array, "q r"]
    lam: Float[Array, ""]

    def seen(self, kernel: Kernel, X, effects: Any = None) -> NewRows:
        """What `between` takes of rows: O(m c r), once for all others."""
        design = self.expansion.design(kernel, X)
        b = self.fixed.dense(effects, len(design))
        u = matmul(design, self.half) - matmul(b, self.middle)
        return NewRows(X, u, self.fixed.basis_of(b), self.own(kernel, X, design, b))

    def own(self, kernel: Kernel, X, design, b) -> Any:
        """Their own part of k̃."""
        return None

    @abstractmethod
    def variance(
        self, kernel: Kernel, X, effects: Any = None, corrected: bool = True
    ) -> Float[Array, " m"]:
        """Of every row; on landmarks with what they leave over of k(x, x), or without."""

    @abstractmethod
    def between(self, kernel: Kernel, one: NewRows, other: NewRows) -> Float[Array, "m k"]:
        """Of rows with others; without what landmarks leave over."""

    def covariance(self, kernel: Kernel, X, effects: Any = None, corrected: bool = True) -> Any:
        """Of all rows with each other."""
        rows = self.seen(kernel, X, effects)
        return self.between(kernel, rows, rows)

    def constant(self, one: NewRows, other: NewRows):
        """λ h·h'."""
        return self.lam * matmul(one.h, other.h.T)


@pytree
class PrimalSpread(Spread):
    """uuᵀ + λhhᵀ, and on landmarks k − φφᵀ with φ = design · whiten."""

    expansion: Expansion
    fixed: FixedEffects
    half: Float[Array, "c r"]
    middle: Float[Array, "q r"]
    lam: Float[Array, ""]
    whiten: Float[Array, "c c"] | None = None

    def variance(self, kernel, X, effects=None, corrected=True):
        """Σ u²."""
        rows = self.seen(kernel, X, effects)
        found = jnp.sum(rows.u**2, axis=1) + self.lam * jnp.sum(rows.h**2, axis=1)
        if self.whiten is None or not corrected:
            return found
        phi = matmul(self.expansion.design(kernel, X), self.whiten)
        return found + jnp.maximum(kernel.diag(X) - jnp.sum(phi**2, axis=1), 0)

    def between(self, kernel, one, other):
        """uuᵀ."""
        return matmul(one.u, other.u.T) + self.constant(one, other)

    def covariance(self, kernel, X, effects=None, corrected=True):
        """uuᵀ."""
        found = super().covariance(kernel, X, effects)
        if self.whiten is None or not corrected:
            return found
        phi = matmul(self.expansion.design(kernel, X), self.whiten)
        return found + gram(kernel, X) - matmul(phi, phi.T)


@pytree
class DualSpread(Spread):
    """k̃ − uuᵀ + λhhᵀ: k̃ from the kernel, or where features are explicit from ψ = φ − b·origin."""

    expansion: Expansion
    fixed: FixedEffects
    half: Float[Array, "c r"]
    middle: Float[Array, "q r"]
    lam: Float[Array, ""]
    share: Float[Array, "n q"] | None  # V B (BᵀVB)⁻¹, so that design·share is what B fits of k
    both: Float[Array, "q q"] | None  # what it fits of that
    origin: Float[Array, "q p"] | None = None

    @property
    def explicit(self) -> bool:
        """Whether k̃ is made of features, which are far from 0 or all there is."""
        return self.origin is not None or getattr(self.expansion, "origin", None) is not None

    def _origin(self, kernel):
        """What the fixed effects fit of features."""
        if self.origin is not None:
            return self.origin
        return matmul(self.share.T, kernel.features(self.expansion.points))  # type: ignore[union-attr]

    def own(self, kernel, X, design, b):
        """ψ, or what fixed effects fit of k(·, x), with b."""
        if self.explicit:
            return kernel.features(X) - matmul(b, self._origin(kernel))
        return matmul(design, self.share), b

    def variance(self, kernel, X, effects=None, corrected=True):
        """k̃(x, x) − |u|²."""
        rows = self.seen(kernel, X, effects)
        if self.explicit:
            prior = jnp.sum(rows.own**2, axis=1)
        else:
            fit, b = rows.own
            prior = kernel.diag(X) - 2 * jnp.sum(fit * b, axis=1)
            prior = prior + jnp.sum(matmul(b, self.both) * b, axis=1)
        spent = jnp.maximum(prior - jnp.sum(rows.u**2, axis=1), 0)
        return spent + self.lam * jnp.sum(rows.h**2, axis=1)

    def between(self, kernel, one, other):
        """k̃ − uuᵀ."""
        if self.explicit:
            prior = matmul(one.own, other.own.T)
        else:
            (fit, b), (fits, c) = one.own, other.own
            prior = gram(kernel, one.rows, None if one is other else other.rows)
            prior = prior - matmul(b, fits.T) - matmul(fit, c.T)
            prior = prior + matmul(matmul(b, self.both), c.T)
        return prior - matmul(one.u, other.u.T) + self.constant(one, other)


def spectral_spread(f: Any, lam: Float[Array, ""]) -> Spread:
    """That of a `Spectrum`: dual, on landmarks, or on features, by the Cholesky factor of their r×r
    covariance, or of few rows by the basis.
    """
    fixed, kept = f.fixed.lean(), 1 / jnp.sqrt(f.s + lam)
    if f.solved is not None:
        kept = kept * f.solved
    if f.basis is None:
        share, both = prior_of(f, f.training_gram())
        half = f.dual_basis() * kept
        return DualSpread(f.expansion, fixed, half, f.across * kept, lam, share, both)
    if isinstance(f.expansion, OnLandmarks):
        scale = jnp.sqrt(lam / (f.seen + lam)) / jnp.sqrt(
            f.s
        )  # of what is hidden the prior is left
        whiten = f.basis / jnp.sqrt(f.s)
        return PrimalSpread(f.expansion, fixed, f.basis * scale, f.across * scale, lam, whiten)
    c, r = f.basis.shape
    if c > r:
        half = f.basis * kept, f.across * kept
        return DualSpread(f.expansion, fixed, *half, lam, None, None, f.origin)
    return features_spread(f, matmul(f.basis, f.basis.T), f.origin, lam)


def features_spread(f: Any, second, origin, lam, whiten=None) -> Spread:
    """That of features whose second moments, less the fit by the fixed effects, are given, φ =
    design · `whiten`.
    """
    A = jnp.linalg.cholesky(second + lam * jnp.eye(second.shape[0], dtype=second.dtype))
    half = jnp.sqrt(lam) * triangular_inverse(A).T
    middle = matmul(origin, half)
    half = half if whiten is None else matmul(whiten, half)
    return PrimalSpread(f.expansion, f.fixed.lean(), half, middle, lam, whiten)


def prior_of(f: Any, K) -> tuple[Any, Any]:
    """What the fixed effects fit of rows of K: as a product, and of that."""
    inverse = f.fixed.solve(jnp.eye(f.fixed.count, dtype=f.dtype))
    B = f.fixed.fitted(f.fixed.rows, inverse)
    share = f.weights.array[:, None] * jnp.broadcast_to(B, (f.n, f.fixed.count))
    return share, matmul(share.T, matmul(K, share))


def matrix_spread(f: Any, lam: Float[Array, ""]) -> Spread:
    """That of all of K, by its Cholesky factor."""
    share, both = prior_of(f, f.K)
    K, across, _ = f.fixed.centre_both(f.weights, f.K)
    if f.lift is not None:
        across = across + f.fixed.one[:, None] * f.lift
    L = jnp.linalg.cholesky(f.weights.scale_both(K) + lam * jnp.eye(f.n, dtype=f.dtype))
    half = f.weights.scale(f.fixed.project(f.weights, triangular_inverse(L).T))
    return DualSpread(f.expansion, f.fixed.lean(), half, matmul(across, half), lam, share, both)
