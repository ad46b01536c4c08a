"""Landmarks as explicit features φ(x), whose moments give spectra and Cholesky factors:

minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ,   K_RR = LLᵀ,   Φ = K_TR L⁻ᵀ,   β = L⁻ᵀw.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Rows, gram
from jaxrls.core.factors import Features
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import triangular_inverse
from jaxrls.core.support import memory_bytes, pytree

LARGEST_JITTER = 0.1


@pytree
class Dictionary(Features):
    """Landmarks as features: φ = ψL⁻ᵀ with ψ(x) = k(x, points)."""

    jitter: Any = None  # jitter that K_RR needed, relative to its diagonal

    @classmethod
    def of(cls, kernel: Kernel, points: Any) -> "Dictionary":
        """From the Cholesky factor of K_RR."""
        L, jitter = cholesky_with_jitter(gram(kernel, points))
        return cls(kernel, points, triangular_inverse(L).T, jitter)

    def left_over(self, x, phi) -> Float[Array, " n"]:
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
    K: Float[Array, "m m"],
    jitter,
    coef: Float[Array, "m t"],
    lams: Float[Array, " k"],
    left: Float[Array, " t"],
):
    """How far the jitter of the landmarks moves the fit, at most: √(5λ/4)·ρ‖L⁻¹Dβ‖/‖√v e‖, the
    largest of all targets, as a share of the residuals e. It holds where K_RR ≥ ¼ρD.

    With K_RR + ρD = LLᵀ, D the diagonal, and N = ρL⁻¹DL⁻ᵀ, the fit without it has penalty λwᵀ(I −
    N)w: w is longer by (ΦᵀΦ + λ(I − N))⁻¹λNw, and √v f by a vector whose squared length is at most
    λ/4 wᵀN(I − N)⁻¹Nw, where N ≤ ⅘I at most 5λ/4 ‖Nw‖². Along other directions the landmarks are
    equal to rounding, and their differences carry no information. Rounding of K_RR, of norm
    ½√m·eps, acts like a jitter of that size.
    """
    i, diag = jnp.arange(len(K)), jnp.diagonal(K)
    jitter = jnp.maximum(jitter, 0.5 * len(K) ** 0.5 * float(jnp.finfo(K.dtype).eps))
    L, _ = cholesky_with_jitter(K.at[i, i].add(jitter * diag))
    moved = diag[:, None] * (jnp.sqrt(lams) * coef)  # in this order nothing leaves the range
    moved = jitter * jax.lax.linalg.triangular_solve(L, moved, left_side=True, lower=True)
    return jnp.max(
        1.25**0.5 * jnp.linalg.norm(moved, axis=0) / jnp.where(left > 0, left, 1), initial=0
    )


def keeps_rows(n: int, m: int, itemsize: int) -> bool:
    """Whether n × m numbers fit into a quarter of the device's memory."""
    limit = memory_bytes()
    return limit is None or n * m * itemsize <= limit / 4


def kept_features(dictionary: Dictionary, rows: Rows, block_size: int | None) -> Any:
    """φ of all rows, (n, m), None where memory would not hold it."""
    m, itemsize = len(dictionary.points), jnp.dtype(rows.dtype).itemsize
    if not rows.traceable or not keeps_rows(rows.shape[0] // rows.parts, m, itemsize):
        return None
    return rows.map(dictionary.features, temporaries=m, block_size=block_size)


def cholesky_with_jitter(K: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Float[Array, ""]]:
    """L with LLᵀ = K + jitter·diag K, and the jitter: the first of 0, f, 4f, 16f … whose pivots are
    all above f/2, with f = 2√m·eps.

    A floor relative to each diagonal entry does not depend on the kernel's scale, and leaves a K
    that needs no help exactly alone. The jitter counts as a constant in derivatives.
    """
    diag, i = jnp.diagonal(K), jnp.arange(K.shape[0])
    # k(x, x) = 0 is a landmark that does nothing: a column of 0
    diag = jnp.where(diag > 0, diag, jnp.max(diag))
    K = K.at[i, i].set(diag)
    floor = jnp.asarray(2 * K.shape[0] ** 0.5 * jnp.finfo(K.dtype).eps, K.dtype)
    factor = lambda K, diag, jitter: jnp.linalg.cholesky(K.at[i, i].add(jitter * diag))
    known = jax.lax.stop_gradient((K, diag))

    def failed(jitter):
        pivots = jnp.diagonal(factor(*known, jitter)) ** 2
        return ~jnp.all(pivots >= floor / 2 * known[1]) & (jitter < LARGEST_JITTER)

    enlarge = lambda jitter: jnp.maximum(4 * jitter, floor)
    jitter = jax.lax.while_loop(failed, enlarge, jnp.zeros_like(floor))
    return factor(K, diag, jitter), jitter
