"""How sure a fit is: the posterior covariance of f + b at new rows, at one λ, in units in which the kernel is the prior's covariance.

With f ~ N(0, k), labels of noise λ/v and a flat prior on the intercept b, the weighted mean of labels tells b + f(m), m the mean of the rows, to λ/Σv, and
the rest tells f − f(m), whose covariance is that of the kernel centred about m, k_c:

    dual      cov = k_c(x, x') − k_c(x, X) √v (C√v K √vC + λI)⁻¹ √v k_c(X, x') + λ/Σv,
    primal    cov = λ φ_c(x)ᵀ (Φ_cᵀΦ_c + λI)⁻¹ φ_c(x') + λ/Σv,

without the last term, and nothing centred, where there is no intercept. The primal form, a sum of squares, loses no digit, however many rows there
are. On landmarks f is what they span, and what they leave over of the prior, k − k̂, is added where it is asked for: the rows tell nothing of it.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.expansion import Expansion
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.inverses import triangular_inverse
from jaxrls.linalg.products import matmul
from jaxrls.rows.gram import gram
from jaxrls.support.pytrees import pytree


@pytree
class Beside:
    """What the covariance of any row with some rows takes of these: their u, and their own part of k_c, a mean with all rows or features."""

    rows: Float[Array, "k d"]
    u: Float[Array, "k r"]
    own: Any


class Spread(ABC):
    """The posterior covariance of f + b at one λ: of rows with each other, or the variance of each.

    New rows are seen as u = design · half − middle, and `constant` is what an intercept adds.
    """

    expansion: Expansion
    half: Float[Array, "q r"]
    middle: Float[Array, " r"]
    constant: Float[Array, ""]

    def seen(self, design: Float[Array, "m q"]) -> Float[Array, "m r"]:
        """u of new rows."""
        return matmul(design, self.half) - self.middle

    @abstractmethod
    def variance(self, kernel: Kernel, X: Any, corrected: bool = True) -> Float[Array, " m"]:
        """Of every row; on landmarks with what they leave over of k(x, x), or without."""

    @abstractmethod
    def covariance(self, kernel: Kernel, X: Float[Array, "m d"], corrected: bool = True) -> Float[Array, "m m"]:
        """Of all rows with each other."""

    @abstractmethod
    def beside(self, kernel: Kernel, Z: Float[Array, "k d"]) -> Beside:
        """What `between` takes of rows: O(k q r), once for all others."""

    @abstractmethod
    def between(self, kernel: Kernel, X: Float[Array, "m d"], others: Beside) -> Float[Array, "m k"]:
        """Of rows with others; without what landmarks leave over."""


@pytree
class PrimalSpread(Spread):
    """uuᵀ + constant, and on landmarks k − φφᵀ with φ = design · whiten."""

    expansion: Expansion
    half: Float[Array, "q r"]
    middle: Float[Array, " r"]
    constant: Float[Array, ""]
    whiten: Float[Array, "q q"] | None = None

    def variance(self, kernel, X, corrected=True):
        """Σ u²."""
        design = self.expansion.design(kernel, X)
        found = jnp.sum(self.seen(design) ** 2, axis=1) + self.constant
        if self.whiten is None or not corrected:
            return found
        return found + jnp.maximum(kernel.diag(X) - jnp.sum(matmul(design, self.whiten) ** 2, axis=1), 0)

    def covariance(self, kernel, X, corrected=True):
        """uuᵀ."""
        design = self.expansion.design(kernel, X)
        u = self.seen(design)
        found = matmul(u, u.T) + self.constant
        if self.whiten is None or not corrected:
            return found
        phi = matmul(design, self.whiten)
        return found + gram(kernel, X) - matmul(phi, phi.T)

    def beside(self, kernel, Z):
        """u."""
        return Beside(Z, self.seen(self.expansion.design(kernel, Z)), None)

    def between(self, kernel, X, others):
        """uuᵀ."""
        return matmul(self.seen(self.expansion.design(kernel, X)), others.u.T) + self.constant


@pytree
class DualSpread(Spread):
    """k_c − uuᵀ + constant."""

    expansion: Expansion
    half: Float[Array, "q r"]
    middle: Float[Array, " r"]
    constant: Float[Array, ""]
    share: Float[Array, " n"] | None  # v/Σv, None without an intercept
    at_mean: Float[Array, ""] | None  # k(m, m)
    centre: Any = None  # φ of m, where there are explicit features in place of rows

    def _own(self, kernel, X, design):
        """What k_c takes of rows by themselves: φ_c of explicit features, or of k(·, m), or nothing where none is centred."""
        centre = self.expansion.centre(kernel, self.share) if self.centre is None and self.share is not None else self.centre
        if centre is not None:
            return kernel.features(X) - centre
        return None if self.share is None else matmul(design, self.share)

    def variance(self, kernel, X, corrected=True):
        """k_c(x, x) − |u|²."""
        design = self.expansion.design(kernel, X)
        own = self._own(kernel, X, design)
        if own is None:
            prior = kernel.diag(X)
        elif own.ndim == 2:
            prior = jnp.sum(own**2, axis=1)
        else:
            prior = kernel.diag(X) - 2 * own + self.at_mean
        return jnp.maximum(prior - jnp.sum(self.seen(design) ** 2, axis=1), 0) + self.constant

    def _between(self, kernel, X: Beside, Z: Beside):
        """k_c − uuᵀ."""
        if X.own is not None and X.own.ndim == 2:
            prior = matmul(X.own, Z.own.T)
        else:
            prior = gram(kernel, X.rows, None if Z is X else Z.rows)
            prior = prior if X.own is None else prior - X.own[:, None] - Z.own[None, :] + self.at_mean
        return prior - matmul(X.u, Z.u.T) + self.constant

    def covariance(self, kernel, X, corrected=True):
        """k_c − uuᵀ."""
        rows = self.beside(kernel, X)
        return self._between(kernel, rows, rows)

    def beside(self, kernel, Z):
        """u, and φ_c or k(·, m)."""
        design = self.expansion.design(kernel, Z)
        return Beside(Z, self.seen(design), self._own(kernel, Z, design))

    def between(self, kernel, X, others):
        """k_c − uuᵀ."""
        return self._between(kernel, self.beside(kernel, X), others)


def spectral_spread(f: Any, lam: Float[Array, ""]) -> Spread:
    """That of a `Spectrum`: dual, on landmarks, or on features, by the Cholesky factor of their r×r covariance, or of few rows by the basis."""
    constant, kept = lam / f.weights.total * int(f.intercept), 1 / jnp.sqrt(f.seen + lam)
    if f.basis is None:
        v = f.weights.array
        share = v / f.weights.total if f.intercept else None
        half = f.dual_basis()
        return DualSpread(f.expansion, half * kept, f.shift * kept, constant, share, f.level)
    if f.expansion.points is not None:
        whiten, scale = f.basis / jnp.sqrt(f.s), jnp.sqrt(lam) * kept
        return PrimalSpread(f.expansion, whiten * scale, f.shift / jnp.sqrt(f.s) * scale, constant, whiten)
    q, r = f.basis.shape
    centre = jnp.zeros(q, f.dtype) if f.middle is None else f.middle
    if q > r:
        return DualSpread(f.expansion, f.basis * kept, f.shift * kept, constant, None, None, centre)
    return features_spread(f.expansion, matmul(f.basis, f.basis.T), centre, lam, constant)


def features_spread(expansion: Expansion, second, centre, lam, constant, back=None) -> Spread:
    """That of features whose centred second moments are given, φ = design · `back`."""
    A = jnp.linalg.cholesky(second + lam * jnp.eye(second.shape[0], dtype=second.dtype))
    half = jnp.sqrt(lam) * triangular_inverse(A).T
    return PrimalSpread(expansion, half if back is None else matmul(back, half), matmul(centre, half), constant, back)


def matrix_spread(f: Any, lam: Float[Array, ""]) -> Spread:
    """That of all of K, by its Cholesky factor."""
    K, mean, weights, h = f.K, jnp.zeros(f.n, f.dtype), f.weights, f.weights.direction
    share = at_mean = None
    if f.intercept:
        share = weights.array / weights.total
        at_mean = matmul(share, matmul(K, share))
        K, mean, _ = weights.centre_both(K)
        mean = mean if f.lift is None else mean + f.lift
    L = jnp.linalg.cholesky(weights.scale_both(K) + lam * jnp.eye(f.n, dtype=f.dtype))
    half = triangular_inverse(L).T
    if f.intercept:
        half = half - h[:, None] * matmul(h, half)[None, :]
    half = weights.scale(half)
    return DualSpread(f.expansion, half, matmul(mean, half), lam / weights.total * int(f.intercept), share, at_mean)
