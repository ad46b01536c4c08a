"""Expansions: what the coefficients of a factor multiply, f(x) = design(x) · coefficients.

The design is kernel functions at all rows or at landmarks (`AtPoints`), or explicit features
(`Primal`). `Features` are the features φ whose weights the penalty measures. `kernel_matrix` makes
K of all rows, with the expansion of its coefficients.

K of rows far from 0 is made about an origin o, a point near their features, to keep digits:

    Kᵢⱼ = ⟨φᵢ − o, φⱼ − o⟩

The expansion takes features of new rows as they are. This adds a constant to each column of K, the
lift:

    ⟨φ(x), φⱼ − o⟩ = ⟨φ(x) − o, φⱼ − o⟩ + liftⱼ,  liftⱼ = ⟨o, φⱼ − o⟩

So values of the expansion at the rows are Kc and a constant, Σⱼ liftⱼ cⱼ, which β subtracts.

Theory: `docs/theory.md`, "Dual and primal".
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Data, FixedEffects, Rows, gram
from jaxrls.core.kernels import Kernel, Linear, Standardized
from jaxrls.core.linalg import Square, matmul, tall_matmul
from jaxrls.core.support import pytree


def stays_dual(n: int, d: int, r: int, t: int) -> bool:
    """Whether dual coefficients take fewer numbers than the weights of features.

    The weights of r features for t targets are r t numbers. In dual form, n rows (n, d) and their
    coefficients (n, t) are n (d + t) numbers.
    """
    return r * t > n * (d + t)


class Expansion(ABC):
    """The form of the fitted function, f(x) = design(x) · coefficients."""

    points: Any = None  # the rows or landmarks of the coefficients; None for explicit features
    origin: Any = None  # o; None if it is 0

    @abstractmethod
    def design(self, kernel: Kernel, X: Any) -> Float[Array, "m c"]:
        """Return what multiplies the coefficients, for a block of new rows."""

    @abstractmethod
    def compact(self, kernel: Kernel, coef: Float[Array, "c *t"]) -> tuple[Any, Any]:
        """Return the points and coefficients of the smallest equal model.

        Points are None if the coefficients are those of explicit features.
        """


@pytree
class AtPoints(Expansion):
    """The expansion Σᵢ k(x, pointsᵢ) cᵢ over all rows, or over landmarks.

    With explicit features and a constant without penalty, Σᵢ cᵢ = 0. Then Σᵢ ⟨φ(x), φ(xᵢ) − origin⟩
    cᵢ is the same sum for any `origin`, and an origin near the features reduces rounding.
    """

    points: Any  # (n, d), or sparse rows
    origin: Float[Array, " r"] | None = None
    about_origin: Any = None  # sparse points minus an origin, from which `compact` makes w

    def design(self, kernel: Kernel, X: Any) -> Float[Array, "m c"]:
        """Return k(x, xᵢ), or ⟨φ(x), φ(xᵢ) − origin⟩ if there is an origin."""
        if self.origin is None:
            return gram(kernel, X, self.points)
        return matmul(kernel.features(X), (kernel.features(self.points) - self.origin).T)

    def compact(self, kernel: Kernel, coef: Float[Array, "c *t"]) -> tuple[Any, Any]:
        """Return (None, w) with w = Φᵀc if the kernel has explicit features and w takes few
        numbers.

        Otherwise, or if w takes more numbers than points and c together, return the points and c.
        Points of a linear kernel that are far from 0 are returned about an origin.
        """
        points = self.points if self.about_origin is None else self.about_origin
        count = kernel.num_features(points.shape[1], points.dtype)
        flat = coef.reshape(len(coef), -1)
        if count is None or stays_dual(len(flat), points.shape[1], count, flat.shape[1]):
            # Any origin gives the same sum where Σᵢ cᵢ = 0; this one rounds least.
            far = self.origin is not None and kernel.is_linear()
            return points - jnp.mean(points, axis=0) if far else points, coef
        if isinstance(points, Rows):
            start = jnp.zeros((count, flat.shape[1]), flat.dtype)
            back = jax.vjp(partial(kernel.times, points.as_one_block()), start)[1]
            return None, back(flat)[0].reshape(count, *coef.shape[1:])
        phi = kernel.features(points)
        return None, matmul((phi if self.origin is None else phi - self.origin).T, coef)


@pytree
class Primal(Expansion):
    """The expansion ⟨φ(x), w⟩ on explicit features.

    For a precomputed kernel matrix, φ(x) is the row of x in the matrix.
    """

    def design(self, kernel: Kernel, X: Any) -> Float[Array, "m c"]:
        """Return φ(x)."""
        return kernel.features(X)

    def compact(self, kernel: Kernel, coef: Float[Array, "c *t"]) -> tuple[Any, Any]:
        """Return (None, w), with w as it is."""
        return None, coef


@pytree
class Features:
    """Features of rows: ψ(x), which coefficients multiply, and φ = ψ·whitener.

    The penalty measures the weights of φ. On landmarks ψ = k(x, points). With explicit features φ =
    ψ, and points and whitener are None.
    """

    kernel: Kernel
    points: Any = None  # (m, d)
    whitener: Any = None  # (m, m)

    def design(self, X: Any) -> Float[Array, "n r"]:
        """Return ψ of rows."""
        return self.kernel.features(X) if self.points is None else self.kernel(X, self.points)

    def features(self, X: Any) -> Float[Array, "n r"]:
        """Return φ of rows."""
        return (
            self.design(X) if self.whitener is None else tall_matmul(self.design(X), self.whitener)
        )


# K of all rows ------------------------------------------------------------------------------------


class KernelMatrix(NamedTuple):
    """K of all rows, and the expansion that its coefficients belong to.

    The kernel of this expansion is K + 1·liftᵀ. `lift` is None if it is K itself.
    """

    K: Square
    data: Data
    expansion: Expansion
    lift: Float[Array, " n"] | None
    kernel: Kernel


def kernel_matrix(kernel: Kernel, data: Data, block_size: int | None) -> KernelMatrix:
    """Return K of all rows, about an origin where that reduces rounding.

    If a constant is fitted, only differences of features matter. So features far from 0 are taken
    about an origin near their mean.
    """
    rows = data.rows
    has_constant = data.fixed.has_constant
    has_features = rows.num_features(kernel) is not None
    if has_features and not rows.has_pairs:
        rows.dense()  # raises: coefficients of features need all rows at once
    if has_features and has_constant and rows.in_memory:
        return _of_features_about_origin(kernel, data)
    if has_constant and not rows.is_dense:
        return _of_sparse_about_origin(kernel, data)
    # For a matrix that the caller gave, the design is its rows k(new, training), as in `Primal`.
    expansion = AtPoints(rows.points) if kernel.evaluable else Primal()
    K = gram(kernel, rows, block_size=block_size)
    return KernelMatrix(K, data, expansion, None, kernel)


def _of_features_about_origin(kernel: Kernel, data: Data) -> KernelMatrix:
    """Return K = (Φ − 1o)(Φ − 1o)ᵀ of explicit features, with o near their mean."""
    rows = data.rows
    K, origin, lift = products_about_origin(rows.feature_rows(kernel), data.fixed)
    return KernelMatrix(K, data, AtPoints(rows.points, origin), lift, kernel)


def _of_sparse_about_origin(kernel: Kernel, data: Data) -> KernelMatrix:
    """Return K of sparse rows, whose zeros stay unstored, about an origin if features are
    linear.
    """
    rows = data.rows
    about_origin, lift = rows.from_origin(kernel)
    expansion = AtPoints(rows.points, about_origin=about_origin)
    return KernelMatrix(gram(kernel, about_origin), data, expansion, lift, kernel)


class ProductsAboutOrigin(NamedTuple):
    """K of features minus an origin, and the lift; 0 and None if features stay as they are."""

    K: Square
    origin: Any
    lift: Float[Array, " n"] | None


def products_about_origin(features: Rows, fixed: FixedEffects) -> ProductsAboutOrigin:
    """Return ΦΦᵀ of features, about an origin near their mean if a constant is fitted.

    With a constant only differences of features matter. For features far from 0, K about their mean
    keeps digits that K about 0 would lose to rounding.
    """
    if not fixed.has_constant:
        return ProductsAboutOrigin(gram(Linear(), features, features), 0.0, None)
    origin = jax.lax.stop_gradient(jnp.mean(features.few_rows(512), axis=0))
    about = Standardized(Linear(), origin, jnp.ones_like(origin))
    lift = features.map(lambda phi: matmul(phi - origin, origin))
    return ProductsAboutOrigin(gram(about, features, features), origin, lift)
