"""What coefficients multiply: kernel functions at all rows, explicit features, or kernel functions
at landmarks.
"""

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Array, Float

from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import matmul
from jaxrls.rows.gram import gram
from jaxrls.support.pytrees import pytree


class Expansion(ABC):
    """f(x) = design(x) · coefficients."""

    points: Any = None  # the rows or landmarks of the coefficients, None for explicit features

    @abstractmethod
    def design(self, kernel: Kernel, X: Any) -> Float[Array, "m c"]:
        """What multiplies the coefficients for new rows, those of a block."""

    @abstractmethod
    def compact(self, kernel: Kernel, coef: Float[Array, "c *t"]) -> tuple[Any, Any]:
        """Points and coefficients of the smallest model: points None where the coefficients are on
        explicit features.
        """


@pytree
class Dual(Expansion):
    """Σᵢ k(x, xᵢ) cᵢ over all rows; `points` is None where only K is known.

    Where a constant without penalty makes Σᵢ cᵢ = 0 and there are explicit features, from their
    `origin`: Σᵢ ⟨φ(x), φ(xᵢ) − origin⟩ cᵢ, the same with less rounding.
    """

    points: Any  # (n, d), or sparse rows
    origin: Float[Array, " r"] | None = None

    def design(self, kernel, X):
        """k(x, xᵢ)."""
        if self.points is None:
            raise ValueError(
                "a factor made from K knows no rows: pass the matrix k(new, training) as design to "
                "jaxrls.holdout"
            )
        if self.origin is None:
            return gram(kernel, X, self.points)
        return matmul(kernel.features(X), (kernel.features(self.points) - self.origin).T)

    def compact(self, kernel, coef):
        """w = Φᵀc where the kernel has explicit features."""
        points = self.points
        if points is None or kernel.num_features(points.shape[1], points.dtype) is None:
            return points, coef
        phi = kernel.features(points)
        return None, matmul((phi if self.origin is None else phi - self.origin).T, coef)


@pytree
class Primal(Expansion):
    """⟨φ(x), w⟩ on explicit features; for a precomputed kernel matrix, its rows."""

    def design(self, kernel, X):
        """φ(x)."""
        return kernel.features(X)

    def compact(self, kernel, coef):
        """w as it is."""
        return None, coef


@pytree
class OnLandmarks(Expansion):
    """Σₖ k(x, pointsₖ) βₖ over landmarks."""

    points: Float[Array, "m d"]

    def design(self, kernel, X):
        """k(x, pointsₖ)."""
        return gram(kernel, X, self.points)

    def compact(self, kernel, coef):
        """w = Φᵀβ where the kernel has explicit features."""
        return Dual(self.points).compact(kernel, coef)
