"""Landmarks as explicit features φ(x), whose moments give spectra and Cholesky factors:

minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ,   K_RR = LLᵀ,   Φ = K_TR L⁻ᵀ,   β = L⁻ᵀw.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.core.data import Rows
from jaxrls.core.factors import Features
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number, Square, diagonal_of, matmul, triangular_inverse
from jaxrls.core.support import memory_bytes, pytree

LARGEST_JITTER = 0.1


@pytree
class Dictionary(Features):
    """Landmarks as features: φ = ψL⁻ᵀ with ψ(x) = k(x, points)."""

    jitter: Any = None  # jitter that K_RR needed, relative to its diagonal

    @classmethod
    def of(cls, kernel: Kernel, points: Any, K: Square) -> "Dictionary":
        """From the Cholesky factor of K = K_RR."""
        L, jitter = cholesky_with_jitter(K)
        return cls(kernel, points, triangular_inverse(L).T, jitter)

    def left_over(self, x: Any, phi: Float[Array, "n m"]) -> Float[Array, " n"]:
        """k(x, x) − |φ(x)|² of every row, what landmarks do not explain, and how much of it
        rounding may hide. Summed over rows it does not cancel, as a difference of two sums would.
        """
        diag = self.kernel.diag(x)
        return jnp.maximum(diag - jnp.sum(phi**2, axis=1), 0) + hidden_trace(phi.shape[1], diag)


def hidden_trace(m: int, trace: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """√m·eps·tr K: the largest tr(K − K̂) that rounding may hide, where every row's part is at
    least 0 and φ(x) is m numbers.
    """
    return m**0.5 * float(jnp.finfo(trace.dtype).eps) * trace


def jitter_effect(
    planes: Float[Array, "m r"],
    diag: Float[Array, " m"],
    jitter: Number,
    coef: Float[Array, "m t"],
    lams: Float[Array, " k"],
    left: Float[Array, " t"],
) -> Number:
    """How far the jitter of the landmarks moves the fit, at most: √(5λ/4)·ρ‖L⁻¹Dβ‖/‖√v e‖, the
    largest of all targets, as a share of the residuals e. It holds where K_RR ≥ ¼ρD.

    With K_RR + ρD = LLᵀ, D the diagonal, and N = ρL⁻¹DL⁻ᵀ, the fit without it has penalty λwᵀ(I −
    N)w: w is longer by (ΦᵀΦ + λ(I − N))⁻¹λNw, and √v f by a vector whose squared length is at most
    λ/4 wᵀN(I − N)⁻¹Nw, where N ≤ ⅘I at most 5λ/4 ‖Nw‖². Along other directions the landmarks are
    equal to rounding, and their differences carry no information. Rounding of K_RR, of norm
    ½√m·eps, acts like a jitter of that size. `planes` are L⁻ᵀ, in any orthonormal coordinates, and
    `diag` is D.
    """
    m = len(diag)
    jitter = jnp.maximum(jitter, 0.5 * m**0.5 * float(jnp.finfo(diag.dtype).eps))
    moved = diag[:, None] * (jnp.sqrt(lams) * coef)  # in this order nothing leaves the range
    moved = jitter * matmul(planes.T, moved)
    squares = 1.25 * jnp.sum(moved * moved, axis=0)
    return jnp.max(jnp.sqrt(squares) / jnp.where(left > 0, left, 1), initial=0)


def keeps_rows(n: int, m: int, itemsize: int) -> bool:
    """Whether n × m numbers fit into a quarter of the device's memory."""
    limit = memory_bytes()
    return limit is None or n * m * itemsize <= limit / 4


def kept_features(dictionary: Dictionary, rows: Rows, block_size: int | None) -> Any:
    """φ of all rows, (n, m), None where memory would not hold it."""
    m = len(dictionary.points)
    itemsize = jnp.dtype(rows.dtype).itemsize
    if not rows.traceable or not keeps_rows(rows.shape[0] // rows.shards, m, itemsize):
        return None
    return rows.map(dictionary.features, temporaries=m, block_size=block_size)


def cholesky_with_jitter(K: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Float[Array, ""]]:
    """L with LLᵀ = K + jitter·diag K, and the jitter: the first of 0, f, 4f, 16f … whose pivots are
    all above f/2, with f = 2√m·eps.

    A floor relative to each diagonal entry does not depend on the kernel's scale, and leaves a K
    that needs no help exactly alone. The jitter counts as a constant in derivatives.
    """
    given = diagonal_of(K)
    # k(x, x) = 0 is a landmark that does nothing: a column of 0
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
