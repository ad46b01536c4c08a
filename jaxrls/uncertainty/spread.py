"""The posterior covariance at new rows and one λ, for f ~ N(0, k), labels of noise λ/v and a flat
prior on the fixed effects. It is −λR over queries, with R of `leave_out.view`.

`DualSpread` computes it from kernel values, as a difference; `PrimalSpread` from features, as a sum
of squares, which does not cancel."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.factors.expansion import Expansion
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.linalg.products import matmul
from jaxrls.core.problem.fixed_effects import FixedEffects
from jaxrls.core.problem.gram import gram
from jaxrls.core.support.pytrees import pytree


@pytree
class NewRows:
    """What the covariance of some new rows with any others needs of them."""

    rows: Any
    u: Float[Array, "k r"]
    h: Float[Array, "k q"]
    own: Any  # their own part of k̃


@pytree
class Spread(ABC):
    """The posterior covariance of f at one λ: of rows with each other, or the variance of each.

    New rows have u = design·half − b·middle, and h = T⁻ᵀb of their columns b. `effects` of methods
    are the fixed effects' data of new rows, None for an intercept. On landmarks, with `corrected`,
    it includes what they leave of k(x, x).
    """

    expansion: Expansion
    fixed: FixedEffects  # without their rows
    half: Float[Array, "c r"]
    middle: Float[Array, "q r"]
    lam: Float[Array, ""]

    def coordinates(self, kernel: Kernel, X, effects: Any = None) -> NewRows:
        """What `between` needs of rows: O(m c r), computed once for all others."""
        design = self.expansion.design(kernel, X)
        b = self.fixed.dense(effects, len(design))
        u = matmul(design, self.half) - matmul(b, self.middle)
        own = self.own(lambda: kernel.features(X), design, b)
        return NewRows(X, u, self.fixed.basis_of(b), own)

    def variance(self, kernel: Kernel, X, effects: Any = None, corrected: bool = True, diag=None):
        """Of every row, (m,); `diag` is k(x, x), where the kernel does not know it."""
        return self.between(kernel, self.coordinates(kernel, X, effects), None, corrected, diag)

    def covariance(self, kernel: Kernel, X, effects: Any = None, corrected: bool = True):
        """Of all rows with each other, (m, m)."""
        rows = self.coordinates(kernel, X, effects)
        return self.between(kernel, rows, rows, corrected)

    def of_fixed_effects(self) -> Float[Array, "q q"]:
        """Of the coefficients β: of rows without any part in f, with a 1 in one column of b;
        infinite for levels without weight, of which nothing is known.
        """
        b = jnp.eye(self.fixed.count, dtype=self.middle.dtype)
        design, none = jnp.zeros((len(b), len(self.half)), b.dtype), lambda: 0
        h = self.fixed.basis_of(b)
        rows = NewRows(None, -self.middle, h, self.own(none, design, b))
        found, left = self.parts(none, rows, rows, lambda A, B: matmul(A, B.T), False)
        known = found + left + self.lam * matmul(h, h.T)
        return jnp.where(jnp.diag(jnp.all(h == 0, axis=1)), jnp.inf, known)

    def between(
        self, kernel: Kernel, one: NewRows, other: NewRows | None, corrected=False, diag=None
    ):
        """The covariance of rows with others, (m, k), or where `other` is None the variance of
        each, (m,).
        """

        def meet(A, B):
            return jnp.sum(A * B, axis=1) if other is None else matmul(A, B.T)

        def prior():
            if other is None:
                return kernel.diag(one.rows) if diag is None else diag
            return gram(kernel, one.rows, None if one is other else other.rows)

        some = other or one
        found, left = self.parts(prior, one, some, meet, corrected)
        left = jnp.maximum(left, 0) if other is None else left  # not below 0 by rounding
        return found + left + self.lam * meet(one.h, some.h)

    @abstractmethod
    def own(self, features: Callable, design, b) -> Any:
        """The rows' own part of k̃; `features()` are φ, where these are explicit."""

    @abstractmethod
    def parts(self, prior, one: NewRows, other: NewRows, meet, corrected: bool) -> tuple[Any, Any]:
        """All but λ h·h', from prior() = k(x, x') and inner products by `meet`: a sum of squares,
        and a difference or None.
        """


@pytree
class PrimalSpread(Spread):
    """uuᵀ with u = √λ A⁻¹ψ, and on landmarks k − φφᵀ with φ = design · whiten."""

    whiten: Float[Array, "c c"] | None = None

    def own(self, features, design, b):
        """φ."""
        return None if self.whiten is None else matmul(design, self.whiten)

    def parts(self, prior, one, other, meet, corrected):
        """A sum of squares, and what landmarks leave of k."""
        beyond = corrected and self.whiten is not None
        return meet(one.u, other.u), prior() - meet(one.own, other.own) if beyond else 0


@pytree
class DualSpread(Spread):
    """k̃ − uuᵀ, with k̃ the kernel after the fixed effects are projected out: from k, or with
    explicit features from ψ = φ − b·origin.
    """

    share: Float[Array, "n q"] | None = None  # VB(BᵀVB)⁻¹: design·share is what B fits of k
    both: Float[Array, "q q"] | None = None  # what it fits of that
    origin: Float[Array, "q p"] | None = None  # what the fixed effects fit of features

    @classmethod
    def of_matrix(cls, f: Any, lam, half, middle, K) -> "DualSpread":
        """From a factor of K of all rows."""
        B = f.fixed.fitted(f.fixed.rows, f.fixed.solve(jnp.eye(f.fixed.count, dtype=f.dtype)))
        share = f.weights.array[:, None] * jnp.broadcast_to(B, (f.n, f.fixed.count))
        of = f.expansion, f.fixed.lean(), half, middle, lam
        if f.expansion.origin is None:
            return cls(*of, share, matmul(share.T, matmul(K, share)))
        return cls(*of, origin=matmul(share.T, f.training[0].features(f.expansion.points)))

    def own(self, features, design, b):
        """ψ; or the fixed effects' fit of k(·, x), with b."""
        if self.origin is None:
            return matmul(design, self.share), b
        return features() - matmul(b, self.origin), None

    def parts(self, prior, one, other, meet, corrected):
        """The prior k̃, minus what the labels explain."""
        (fit, b), (fits, c), spent = one.own, other.own, meet(one.u, other.u)
        if b is None:
            return 0, meet(fit, fits) - spent
        return 0, prior() - (meet(b, fits) + meet(fit, c) - meet(matmul(b, self.both), c) + spent)
