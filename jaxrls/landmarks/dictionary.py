"""Landmarks as explicit features φ(x), whose moments give spectra and Cholesky factors:

minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ,   K_RR = LLᵀ,   Φ = K_TR L⁻ᵀ,   β = L⁻ᵀw.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.factors import Features
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import triangular_inverse
from jaxrls.core.problem import FixedEffects, gram
from jaxrls.core.support import memory_bytes, pytree
from jaxrls.landmarks.points import hidden_trace
from jaxrls.landmarks.ridged import ridged_cholesky


@pytree
class Dictionary(Features):
    """Landmarks as features: φ = ψL⁻ᵀ with ψ(x) = k(x, points)."""

    ridge: Any = None  # jitter that K_RR needed, relative to its diagonal

    @classmethod
    def of(cls, kernel: Kernel, points: Any) -> "Dictionary":
        """From the Cholesky factor of K_RR."""
        L, ridge = ridged_cholesky(gram(kernel, points))
        return cls(kernel, points, triangular_inverse(L).T, ridge)

    def left_over(self, x, phi) -> Float[Array, " n"]:
        """k(x, x) − |φ(x)|² of every row, what landmarks do not explain, and how much of it
        rounding may hide. Summed over rows it does not cancel, as a difference of two sums would.
        """
        diag = self.kernel.diag(x)
        return jnp.maximum(diag - jnp.sum(phi**2, axis=1), 0) + hidden_trace(phi.shape[1], diag)


def is_constant(fixed: FixedEffects) -> bool:
    """Whether an intercept is the only fixed effect, whose fit of φ is near the mean of φ over the
    landmarks.
    """
    return fixed.count == 1 and fixed.rows is None


def keeps_rows(n: int, m: int, itemsize: int) -> bool:
    """Whether n × m numbers fit into a quarter of the device's memory."""
    limit = memory_bytes()
    return limit is None or n * m * itemsize <= limit / 4
