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
    to know of them, None for an intercept. On landmarks it comes with what they leave over of
    k(x, x) where it is `corrected`.
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

    def variance(self, kernel: Kernel, X, effects: Any = None, corrected: bool = True):
        """Of every row, (m,)."""
        rows = self.seen(kernel, X, effects)
        return self.between(kernel, rows, None, corrected)

    def covariance(self, kernel: Kernel, X, effects: Any = None, corrected: bool = True):
        """Of all rows with each other, (m, m)."""
        rows = self.seen(kernel, X, effects)
        return self.between(kernel, rows, rows, corrected)

    def between(self, kernel: Kernel, one: NewRows, other: NewRows | None, corrected=False):
        """Of rows with others, (m, k), or each with itself, (m,), where these are None."""
        meet = _squares if other is None else lambda A, B: matmul(A, B.T)
        other = other or one
        k = _prior(kernel, one, other, meet)
        found = self.told(k, one, other, meet, corrected)
        return found + self.lam * meet(one.h, other.h)

    @abstractmethod
    def own(self, kernel: Kernel, X, design, b) -> Any:
        """Their own part of k̃."""

    @abstractmethod
    def told(self, k: Any, one: NewRows, other: NewRows, meet: Any, corrected: bool) -> Any:
        """All but λ h·h', of k() = k(x, x') and inner products by `meet`."""


def _squares(A, B):
    return jnp.sum(A * B, axis=1)


def _prior(kernel: Kernel, one: NewRows, other: NewRows, meet) -> Any:
    """k(x, x'), where it is asked for, and how to leave no variance below 0 by rounding."""
    if meet is _squares:
        return lambda less: jnp.maximum(kernel.diag(one.rows) - less, 0)
    return lambda less: gram(kernel, one.rows, None if one is other else other.rows) - less


@pytree
class PrimalSpread(Spread):
    """uuᵀ, and on landmarks k − φφᵀ with φ = design · whiten."""

    expansion: Expansion
    fixed: FixedEffects
    half: Float[Array, "c r"]
    middle: Float[Array, "q r"]
    lam: Float[Array, ""]
    whiten: Float[Array, "c c"] | None = None

    def own(self, kernel, X, design, b):
        """φ."""
        return None if self.whiten is None else matmul(design, self.whiten)

    def told(self, k, one, other, meet, corrected):
        """A sum of squares, with what landmarks leave over."""
        found = meet(one.u, other.u)
        if self.whiten is None or not corrected:
            return found
        return found + k(meet(one.own, other.own))


@pytree
class DualSpread(Spread):
    """k̃ − uuᵀ: k̃ from the kernel, or where features are explicit from ψ = φ − b·origin."""

    expansion: Expansion
    fixed: FixedEffects
    half: Float[Array, "c r"]
    middle: Float[Array, "q r"]
    lam: Float[Array, ""]
    share: Float[Array, "n q"] | None  # V B (BᵀVB)⁻¹, so that design·share is what B fits of k
    both: Float[Array, "q q"] | None  # what it fits of that
    origin: Float[Array, "q p"] | None = None  # what the fixed effects fit of features

    def own(self, kernel, X, design, b):
        """ψ, or what fixed effects fit of k(·, x), with b."""
        origin = self.origin
        if origin is None and getattr(self.expansion, "origin", None) is not None:
            origin = matmul(self.share.T, kernel.features(self.expansion.points))  # type: ignore[union-attr]
        if origin is not None:  # features are far from 0, or all there is
            return kernel.features(X) - matmul(b, origin), None
        return matmul(design, self.share), b

    def told(self, k, one, other, meet, corrected):
        """k̃ less what labels tell."""
        (fit, b), (fits, c) = one.own, other.own
        spent = meet(one.u, other.u)
        if b is None:
            left = meet(fit, fits) - spent
            return jnp.maximum(left, 0) if meet is _squares else left
        return k(meet(b, fits) + meet(fit, c) - meet(matmul(b, self.both), c) + spent)


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
    second = matmul(f.basis, f.basis.T)  # of features, less their fit by the fixed effects
    A = jnp.linalg.cholesky(second + lam * jnp.eye(c, dtype=f.dtype))
    half = jnp.sqrt(lam) * triangular_inverse(A).T
    return PrimalSpread(f.expansion, fixed, half, matmul(f.origin, half), lam)


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
