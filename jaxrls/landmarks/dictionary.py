"""Landmarks as features: k(x, points) after the large directions of K_RR are projected out.

    minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ,   K_RR = LLᵀ,   Φ = K_TR L⁻ᵀ,   β = L⁻ᵀw.

Φ are explicit features, and their moments give a spectrum. Computing Φ would add a third product
with all rows to ΦᵀΦ and U; L⁻¹(K_RT K_TR)L⁻ᵀ avoids it, but loses digits by the condition number of
K_RR. Here every fourth landmark comes first,

    L = [L₁ 0; M L₂],   B = [K₁L₁⁻ᵀ, K₂ − K₁L₁⁻ᵀMᵀ],   Φ = B diag(I, L₂⁻ᵀ),

so that B costs a quarter of a product, and the large directions of K_RR are projected out of it.
Where the smallest pivot of L₂ would cost half of the digits, B is Φ: half a product more in each
pass."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import matmul, triangular_inverse
from jaxrls.core.problem import gram
from jaxrls.core.support import memory_bytes, pytree
from jaxrls.landmarks.points import hidden_trace
from jaxrls.landmarks.ridged import ridged_cholesky


@pytree
class Dictionary:
    """Landmarks as features: maps rows of X to rows of B, the kernel with the landmarks after the
    large directions of K_RR are projected out; Φ = B diag(I, tail).
    """

    kernel: Kernel
    points: Float[Array, "m d"]  # in the order of `lead_order`
    lead: Float[Array, "q q"]  # L₁⁻ᵀ
    across: Float[Array, "q p"]  # Mᵀ
    rest: Float[Array, "p p"]  # L₂⁻ᵀ
    is_whole: Bool[Array, ""]  # whether B is Φ
    ridge: Float[Array, ""]

    @classmethod
    def of(cls, kernel: Kernel, points: Float[Array, "m d"]) -> "Dictionary":
        """From the Cholesky factor of K_RR."""
        q = -(-points.shape[0] // 4)
        points = points[lead_order(points.shape[0])]
        L, ridge = ridged_cholesky(gram(kernel, points))
        lead, rest = (triangular_inverse(part).T for part in (L[:q, :q], L[q:, q:]))
        scale = jnp.max(jnp.diagonal(L), initial=0) ** 2
        pivots = jnp.max(jnp.diagonal(rest) ** 2, initial=0) * scale
        is_whole = pivots > jnp.finfo(rest.dtype).eps ** -0.5
        return cls(kernel, points, lead, L[q:, :q].T, rest, is_whole, ridge)

    @property
    def tail(self) -> Float[Array, "p p"]:
        """L₂⁻ᵀ, which turns B into Φ, or I where B is Φ."""
        return jnp.where(self.is_whole, jnp.eye(len(self.rest), dtype=self.rest.dtype), self.rest)

    def features(self, X: Any) -> Float[Array, "n m"]:
        """B, a row for each row of X."""
        K, q = self.kernel(X, self.points), self.lead.shape[0]
        lead = matmul(K[:, :q], self.lead)
        rest = K[:, q:] - matmul(lead, self.across)
        whole = lambda A: matmul(A, self.rest)
        rest = jax.lax.cond(self.is_whole, whole, lambda A: A, rest)
        return jnp.concatenate([lead, rest], axis=1)

    def left_over(self, x, b) -> Float[Array, " n"]:
        """k(x, x) − |φ(x)|², what landmarks do not explain, from B of the same rows."""
        phi = jax.lax.cond(self.is_whole, lambda b: b, lambda b: tailed(b, self.rest), b)
        return left_over(self.kernel, x, phi)

    def rounding(self) -> Float[Array, " r"]:
        """How large the rounding of Φ may be: that of the kernel, which depends on how rows are cut
        into blocks, amplified by L⁻¹.
        """
        lead = jnp.linalg.norm(self.lead, axis=0)
        rest = 1 + jnp.sqrt(matmul(lead**2, self.across**2))
        rest = jnp.sqrt(matmul(rest**2, self.rest**2))
        eps = float(jnp.finfo(lead.dtype).eps)
        return eps * jnp.max(self.kernel.diag(self.points)) * jnp.concatenate([lead, rest])

    def coefficients(self, V: Float[Array, "m r"]) -> Float[Array, "m r"]:
        """β of directions V of Φ, in the order in which landmarks were given: diag(L⁻ᵀ)V."""
        q = self.lead.shape[0]
        rest = matmul(self.rest, V[q:])
        lead = matmul(self.lead, V[:q] - matmul(self.across, rest))
        return jnp.concatenate([lead, rest])[self.given_order]

    @property
    def given_order(self) -> np.ndarray:
        """Where each landmark, as it was given, lies among `points`."""
        return np.argsort(lead_order(len(self.points)))


def keeps_rows(n: int, m: int, itemsize: int) -> bool:
    """Whether n × m numbers fit into a quarter of the device's memory."""
    limit = memory_bytes()
    return limit is None or n * m * itemsize <= limit / 4


def left_over(kernel, x, phi):
    """k(x, x) − |φ(x)|² of every row, and how much of it rounding may hide. Summed over rows it
    does not cancel, as a difference of two sums would.
    """
    diag = kernel.diag(x)
    return jnp.maximum(diag - jnp.sum(phi**2, axis=1), 0) + hidden_trace(phi.shape[1], diag)


def tailed(A, tail):
    """A diag(I, L₂⁻ᵀ)."""
    q = A.shape[1] - tail.shape[0]
    return jnp.concatenate([A[:, :q], matmul(A[:, q:], tail)], axis=1)


def lead_order(m: int) -> np.ndarray:
    """The order in which landmarks are taken: every fourth first, a coarse grid of them however
    they are sorted.
    """
    return np.argsort(np.arange(m) % 4, kind="stable")
