"""The subset of regressors by one eigendecomposition, for every λ: f(x) = Σₖ k(x, pointsₖ) βₖ over
m landmarks, fitted on all n rows.

    minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ,   K_RR = LLᵀ,   Φ = K_TR L⁻ᵀ,   β = L⁻ᵀw.

Φ are explicit features, and their moments give a `Spectrum`. Computing Φ would add a third product
with all rows to ΦᵀΦ and U; L⁻¹(K_RT K_TR)L⁻ᵀ avoids it, but loses digits by the condition number of
K_RR. Here every fourth landmark comes first,

    L = [L₁ 0; M L₂],   B = [K₁L₁⁻ᵀ, K₂ − K₁L₁⁻ᵀMᵀ],   Φ = B diag(I, L₂⁻ᵀ),

so that B costs a quarter of a product, and the large directions of K_RR are projected out of it.
Where the smallest pivot of L₂ would cost half of the digits, B is Φ: half a product more in each
pass."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.core.factors.contract import Report, Solution
from jaxrls.core.factors.expansion import AtPoints
from jaxrls.core.factors.spectrum import DictionaryRows, Spectrum
from jaxrls.core.kernels.inner import Linear
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.linalg.decompositions import eigh, eigh_rounding, ridged_cholesky
from jaxrls.core.linalg.inverses import triangular_inverse
from jaxrls.core.linalg.products import matmul
from jaxrls.core.problem.fixed_effects import FixedEffects
from jaxrls.core.problem.gram import gram
from jaxrls.core.problem.labels import Labels
from jaxrls.core.problem.moments import Moments, moments, near_fit
from jaxrls.core.problem.rows import Rows
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.checks import memory_bytes
from jaxrls.core.support.pytrees import pytree
from jaxrls.landmarks.points import Landmarks, hidden_trace
from jaxrls.rows.summed import Summed

# Of the rounding of features along a direction: how far above it eigenvalues have to be, for what
# is left out to be right to 5 %, see test_floor.py.
NOISES = 16


@pytree
class Dictionary:
    """Landmarks as features: maps rows of X to rows of B, the kernel with the landmarks after the
    large directions of K_RR are projected out; Φ = B diag(I, tail).
    """

    kernel: Kernel
    points: Any  # (m, d), in the order of `lead_order`
    lead: Float[Array, "q q"]  # L₁⁻ᵀ
    across: Float[Array, "q p"]  # Mᵀ
    rest: Float[Array, "p p"]  # L₂⁻ᵀ
    is_whole: Bool[Array, ""]  # whether B is Φ
    ridge: Float[Array, ""]

    @classmethod
    def of(cls, kernel: Kernel, points: Any) -> "Dictionary":
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
        first = matmul(K[:, :q], self.lead)
        left = K[:, q:] - matmul(first, self.across)
        whole = lambda A: matmul(A, self.rest)
        left = jax.lax.cond(self.is_whole, whole, lambda A: A, left)
        return jnp.concatenate([first, left], axis=1)

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

    def spectrum(
        self,
        rows: Rows,
        sums: Moments,
        weights: Weights,
        fixed: FixedEffects,
        before=0.0,
        dictionary=None,
    ) -> Spectrum:
        """The spectrum of moments of B; `rows` are B of the rows, `dictionary` the landmarks that
        leave with their row: their numbers and their rows of B.

        Where `before` is larger than the diagonal of the moments, rounding is taken to be that of
        sums of this size.
        """
        tail, q, sums = self.tail, self.lead.shape[0], sums.centred(fixed)
        given, origin = np.argsort(lead_order(len(self.points))), sums.origin
        s, V = eigh(tailed(tailed(sums.second, tail).T, tail))
        # Directions that rounding hides stay, as if they were at its level: rows of weight 0 may
        # lie far along them. They count for nothing in sums. A direction's level is that of the
        # entries of BᵀB that it adds up: far above the others' where landmarks nearly depend.
        noise = weights.total * matmul(self.rounding() ** 2, V**2)
        rest = matmul(self.rest, V[q:])
        W = jnp.concatenate([matmul(self.lead, V[:q] - matmul(self.across, rest)), rest])[given]
        V = jnp.concatenate([V[:q], matmul(tail, V[q:])])  # ΦV = B V from here on
        least = eigh_rounding(len(s), s)
        diagonal = jnp.maximum(jnp.diagonal(sums.second), before)
        level = jax.vmap(partial(eigh_rounding, len(s), s))(matmul(diagonal, V**2))
        level = jnp.maximum(level, jnp.finfo(s.dtype).tiny)
        hidden, s = s < level, jnp.maximum(s, level)
        # Eigenvalues of K̂ that the ridge makes smaller.
        damped = self.ridge * jnp.max(self.kernel.diag(self.points)) * weights.total / len(s)
        unsure = jnp.max(jnp.where(hidden, level, jnp.minimum(s, NOISES * noise)))
        floor = jnp.maximum(2 * (2 * jnp.mean(level) - least + damped), unsure)
        root = jnp.sqrt(s)
        if dictionary is not None:
            indices, corner = dictionary
            own = corner[given] - fixed.fitted(fixed.rows_at(indices), origin)
            dictionary = DictionaryRows(indices, W, matmul(own, V / root))
        report = Report("subset", floor, jnp.zeros_like(floor), sums.trace, self.ridge)
        across, expansion = matmul(origin, V * root), AtPoints(self.points[given])
        made = rows, s, across, weights, fixed, expansion, report
        return Spectrum(
            *made,
            rotation=V / root,
            origin=origin,
            basis=W * root,
            dictionary=dictionary,
            hidden=hidden,
        )


def solve_subset(
    kernel: Kernel,
    rows: Rows,
    chosen: Landmarks,
    labels: Labels,
    weights: Weights,
    fixed: FixedEffects,
    *,
    block_size: int | None = None,
) -> Solution:
    """The solution on landmarks, from one reading of the rows. A trace that the landmarks hold must
    be of these rows and weights.
    """
    made, kept, trace = Dictionary.of(kernel, chosen.points), None, chosen.trace_residual
    corner = made.features(made.points)
    m = len(corner)
    if rows.traceable and keeps_rows(rows.shape[0] // rows.parts, m, corner.dtype.itemsize):
        kept = rows.map(made.features, temporaries=m, block_size=block_size)
    features = rows.through(made) if kept is None else rows.like(kept)
    if fixed.count == 1 and fixed.rows is None and (kept is None or weights.values is None):
        origin: Any = jnp.mean(corner, axis=0)[None]
    else:
        origin = near_fit(features, Linear(), fixed, weights.values)
    left = made.left_over if trace is None else None
    data = rows, made, fixed, labels.Y, weights.values
    sums = moments(
        *data,
        kept=kept,
        left_over=left,
        origin=origin,
        label_origin=labels.start,
        block_size=block_size,
    )
    if trace is not None:
        sums = replace(sums, trace=jnp.asarray(trace, rows.dtype))
    dictionary = None if chosen.indices is None else (chosen.indices, corner)
    factor = made.spectrum(features, sums, weights, fixed, dictionary=dictionary)
    solution = factor.solve_moments(labels, sums)
    return replace(solution, summed=Summed.of_fit(made, sums, fixed))


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
