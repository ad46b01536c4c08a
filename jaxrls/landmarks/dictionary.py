"""Turn landmarks into explicit features φ(x), whose moments give spectra and Cholesky factors.

The problem on landmarks R, with K_RR = LLᵀ, Φ = K_TR L⁻ᵀ and β = L⁻ᵀw, is:

    minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.core.data import Rows
from jaxrls.core.factors import Factor, Features
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number, Square, diagonal_of, matmul, triangular_inverse
from jaxrls.core.support import memory_bytes, pytree

LARGEST_JITTER = 0.1


@pytree
class Dictionary(Features):
    """The features of landmarks: φ = ψL⁻ᵀ with ψ(x) = k(x, points)."""

    jitter: Any = None  # the jitter added to K_RR, relative to its diagonal

    @classmethod
    def of(cls, kernel: Kernel, points: Any, K: Square) -> "Dictionary":
        """Make the features from the Cholesky factor of K = K_RR."""
        L, jitter = cholesky_with_jitter(K)
        return cls(kernel, points, triangular_inverse(L).T, jitter)

    def left_over(self, x: Any, phi: Float[Array, "n m"]) -> Float[Array, " n"]:
        """Compute k(x, x) − |φ(x)|² for every row, the part that landmarks do not explain.

        The result includes what rounding may hide of this part. The sum over rows does not cancel,
        unlike a difference of two sums.
        """
        diag = self.kernel.diag(x)
        return jnp.maximum(diag - jnp.sum(phi**2, axis=1), 0) + hidden_trace(phi.shape[1], diag)


def hidden_trace(m: int, trace: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return √m·eps·tr K, the largest tr(K − K̂) that rounding may hide.

    The bound assumes that each row adds at least 0, and that φ(x) has m numbers.
    """
    return m**0.5 * float(jnp.finfo(trace.dtype).eps) * trace


class Jittered(Factor):
    """A factor on landmarks, whose kernel matrix may have jitter."""

    planes: Any  # (m, r), L⁻ᵀ in orthonormal coordinates: βₖ = planesₖ·w

    def jitter_effect(
        self,
        kernel: Kernel,
        lams: Float[Array, " k"],
        coef: Float[Array, "m t"],
        missed: Float[Array, " t"],
    ) -> Number:
        """Bound how far the landmarks' jitter moves the fitted values, as a share of the residuals.

        The bound is √(5λ/4)·ρ‖L⁻¹Dβ‖/‖√v e‖, the largest over all targets. It holds if
        K_RR ≥ ¼ρD. β are the coefficients `coef`, and `missed` is ‖√v e‖ for each target.

        Here D is the diagonal of K_RR, ρ the jitter, K_RR + ρD = LLᵀ and N = ρL⁻¹DL⁻ᵀ. The
        derivation:

        * Without jitter the penalty of the fit is λwᵀ(I − N)w.
        * So w grows by (ΦᵀΦ + λ(I − N))⁻¹λNw.
        * So √v f changes by a vector whose squared length is at most λ/4 wᵀN(I − N)⁻¹Nw.
        * If N ≤ ⅘I, this is at most 5λ/4 ‖Nw‖².

        In other directions the landmarks are equal to rounding, and their differences carry no
        information. Rounding of K_RR, of norm ½√m·eps, acts like a jitter of that size.
        """
        diag = kernel.diag(self.points)
        m = len(diag)
        rounding = 0.5 * m**0.5 * float(jnp.finfo(diag.dtype).eps)
        jitter = jnp.maximum(self.report.jitter, rounding)
        moved = diag[:, None] * (jnp.sqrt(lams) * coef)  # this order avoids overflow
        moved = jitter * matmul(self.planes.T, moved)
        squares = 1.25 * jnp.sum(moved * moved, axis=0)
        return jnp.max(jnp.sqrt(squares) / jnp.where(missed > 0, missed, 1), initial=0)


def keeps_rows(n: int, m: int, itemsize: int) -> bool:
    """Whether n × m numbers fit into a quarter of the device's memory."""
    limit = memory_bytes()
    return limit is None or n * m * itemsize <= limit / 4


def kept_features(dictionary: Dictionary, rows: Rows, block_size: int | None) -> Any:
    """Compute φ of all rows, (n, m); return None if memory would not hold it."""
    m = len(dictionary.points)
    itemsize = jnp.dtype(rows.dtype).itemsize
    if not rows.traceable or not keeps_rows(rows.shape[0] // rows.shards, m, itemsize):
        return None
    return rows.map(dictionary.features, temporaries=m, block_size=block_size)


def cholesky_with_jitter(K: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Float[Array, ""]]:
    """Return L with LLᵀ = K + jitter·diag K, and the jitter.

    The jitter is the first of 0, f, 4f, 16f, … for which all pivots are above f/2, with f =
    2√m·eps. Pivots are relative to the diagonal, so the jitter does not depend on the kernel's
    scale. A K that needs no jitter is not changed at all. Derivatives treat the jitter as a
    constant.
    """
    given = diagonal_of(K)
    # A landmark with k(x, x) = 0 does nothing: its column is 0. Give it a pivot above 0.
    diag = jnp.where(given > 0, given, jnp.max(given))
    eye = jnp.eye(len(K), dtype=K.dtype)
    K = K + eye * (diag - given)
    floor = jnp.asarray(2 * len(K) ** 0.5 * jnp.finfo(K.dtype).eps, K.dtype)
    known_K, known_diag = jax.lax.stop_gradient((K, diag))

    def failed(jitter: Number) -> Bool[Array, ""]:
        root = jax.lax.linalg.cholesky(known_K + eye * (jitter * known_diag))
        pivots = diagonal_of(root) ** 2
        return ~jnp.all(pivots >= floor / 2 * known_diag) & (jitter < LARGEST_JITTER)

    enlarge = lambda jitter: jnp.maximum(4 * jitter, floor)
    jitter = jax.lax.while_loop(failed, enlarge, jnp.zeros_like(floor))
    return jnp.linalg.cholesky(K + eye * (jitter * diag)), jitter
