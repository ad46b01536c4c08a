"""What rows are seen through: ψ(x), and the features φ = ψ·back that the penalty measures."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import tall_matmul
from jaxrls.support.pytrees import pytree


@pytree
class OfLandmarks:
    """ψ(x) = k(x, points), and φ = ψ `back`."""

    kernel: Kernel
    points: Float[Array, "m d"]
    back: Float[Array, "m m"]

    def raw(self, X):
        """ψ."""
        return self.kernel(X, self.points)

    def features(self, X):
        """φ."""
        return tall_matmul(self.raw(X), self.back)

    def diag(self, X):
        """k(x, x)."""
        return self.kernel.diag(X)

    @property
    def amplified(self) -> Float[Array, ""]:
        """‖√D back‖, D the diagonal of K_RR: by how much rounding of ψ, relative to √(k(x, x)
        k(point, point)), moves φ, relative to √k(x, x).
        """
        return jnp.linalg.norm(jnp.sqrt(self.kernel.diag(self.points))[:, None] * self.back)


@pytree
class Explicit:
    """ψ = φ, the kernel's explicit features."""

    kernel: Kernel

    def raw(self, X):
        """ψ."""
        return self.kernel.features(X)

    features = raw

    def diag(self, X):
        """k(x, x)."""
        return self.kernel.diag(X)

    @property
    def back(self):
        """From φ to ψ: nothing to do."""
        return None
