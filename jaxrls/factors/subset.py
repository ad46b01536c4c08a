"""The subset of regressors: f(x) = Σₖ k(x, pointsₖ) βₖ over m landmarks, fitted on all n rows, with both exact leave-one-outs.

    minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ,    K_RR = LLᵀ,    Φ = K_TR L⁻ᵀ,    β = L⁻ᵀw:

explicit features, of which a `Spectrum` knows everything. Two of its products with n rows cannot be avoided, ΦᵀΦ and U = ΦV/σ. Making
Φ first would be a third; L⁻¹(K_RT K_TR)L⁻ᵀ avoids it, but loses what K_RR's condition number costs. Here every fourth landmark leads,

    L = [L₁ 0; M L₂],    B = [K₁L₁⁻ᵀ, K₂ − K₁L₁⁻ᵀMᵀ],    Φ = B diag(I, L₂⁻ᵀ),

so that B costs a quarter of a product and has the large directions of K_RR taken out, and ΦᵀΦ = diag(I, L₂⁻¹) BᵀB diag(I, L₂⁻ᵀ) loses no more digits
than the smallest pivot of L₂ costs. Where that would be half of them, as of landmarks that are nearly one, B is Φ: half a product more in each pass, but for
that which sums what landmarks leave of k(x, x), for which Φ is made anyhow.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.factors.contract import Report
from jaxrls.factors.cost import Sizes, keeps_rows
from jaxrls.factors.expansion import OnLandmarks
from jaxrls.factors.free import Free
from jaxrls.factors.hat import Leaving
from jaxrls.factors.landmarks import Landmarks, as_landmarks, hidden_trace, on_landmarks, without_trace
from jaxrls.factors.spectrum import SpectralSolution, Spectrum
from jaxrls.factors.summed import Summed
from jaxrls.factors.unpenalized import FreedSpectrum, check_free, freed
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.inner import Linear
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.decompositions import eigh_rounding, spectrum_of
from jaxrls.linalg.inverses import triangular_inverse
from jaxrls.linalg.products import matmul, power_of_two
from jaxrls.linalg.ridge import ridged_cholesky
from jaxrls.rows.gram import gram
from jaxrls.rows.moments import Moments, moments
from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.rows.sparse import rows_to_fit
from jaxrls.support.checks import Listed
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pytrees import pytree

# Of the rounding of features along a direction: how far above it eigenvalues have to be, for what is left out to be right to 5 %, see test_floor.py.
NOISES = 16


@pytree
class Lift:
    """Rows of X to rows of B: the kernel with the landmarks, the large directions of K_RR taken out."""

    kernel: Kernel
    points: Float[Array, "m d"]  # those that lead first
    lead: Float[Array, "q q"]  # L₁⁻ᵀ
    across: Float[Array, "q p"]  # Mᵀ
    unit: Float[Array, ""]  # a power of two near √k(x, x), which brings the rest of B to the size of its first columns
    rest: Float[Array, "p p"]  # L₂⁻ᵀ in this unit
    is_whole: Bool[Array, ""]  # whether B is Φ
    reads_stored = True

    @property
    def tail(self) -> Float[Array, "p p"]:
        """What is left to make Φ of B, diag(I, tail)."""
        return jnp.where(self.is_whole, jnp.eye(len(self.rest), dtype=self.rest.dtype), self.rest)

    def features(self, X: Any) -> Float[Array, "n m"]:
        """B, a row for each row of X."""
        K, q = self.kernel(X, self.points), self.lead.shape[0]
        first = matmul(K[:, :q], self.lead)
        left = (K[:, q:] - matmul(first, self.across)) / self.unit
        return jnp.concatenate([first, jax.lax.cond(self.is_whole, lambda A: matmul(A, self.rest), lambda A: A, left)], axis=1)

    def diag(self, X: Any) -> Float[Array, " n"]:
        """k(x, x)."""
        return self.kernel.diag(X)


@on_any_mesh
def factor_subset(
    kernel: Kernel,
    X: Float[Array, "n d"] | Rows | Listed,
    landmarks: Landmarks | Int[Array, " m"] | Float[Array, "m d"] | Listed,
    *,
    weights: Float[Array, " n"] | Listed | None = None,
    intercept: bool = True,
    drop: bool = True,
    keep: bool | None = None,
    block_size: int | None = None,
    unpenalized: Float[Array, "n q"] | Listed | None = None,
) -> Spectrum:
    """Factor the subset of regressors on given landmarks: K̂ = K_TR K_RR⁻¹ K_RT in place of K, in O(n m²).

    minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ. Every criterion takes the result. Leave-one-out is exact in both its meanings:
    with `drop` a landmark that is a row of X leaves the dictionary when its row is left out,
    e = (d(y − ŷ) + ρα)/(d(1 − h) + vρ²), so that no held-out prediction has seen its row in any way; without it the dictionary stays
    fixed, e = (y − ŷ)/(1 − h), which misjudges the test error, mostly upwards, where m is not small beside n. k-fold and group-out follow the same rule.
    Points that are not rows of X always stay. With m = n both are those of kernel RLS.

    **Arguments**: `landmarks` from `jaxrls.landmarks`, or row numbers of X (m,), or points (m, d). `keep` holds n×m numbers, the default
    where all that goes with them fits into half of memory; False recomputes row blocks from X in every pass: O(m² + block) memory, and the kernel
    and a quarter of a product more in each. `block_size` rows at a time while the sums are made. `unpenalized` as in `factorize`: keeps n×m numbers.
    **Shapes**: weights (n,) ≥ 0.
    **Cost** 2¼ products of n m² multiply-adds, LOO included, 1⅞ from m = 512 on, half of one more in a pass that sums no trace where K_RR has a
    pivot below √eps, O(m³) and n m kernel values. **Raises** `ValueError` for landmarks, values or shapes that do not fit, or a precomputed kernel.
    **Fails**: a pivot of K_RR's Cholesky factor below 2√m·eps of its diagonal makes a ridge of that size, relative to the diagonal, and four times
    larger until the factor exists; `report.ridge` says which. Squares the condition number of Φ as `factor_covariance`.
    **Source**: Quiñonero-Candela and Rasmussen 2005, §4; Rifkin (lecture), "Subset of Regressors".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.arange(5.0)[:, None]
    >>> factor = rls.factor_subset(rls.Gaussian(2.0), X, jnp.array([0, 2, 4]))
    >>> factor.route, factor.s.shape, float(factor.report.ridge)
    ('subset', (3,), 0.0)
    """
    kernel, rows = on_landmarks(kernel, rows_to_fit(kernel, X))
    v = Weights.of_rows(weights, rows)
    chosen = without_trace(as_landmarks(rows, landmarks))
    if unpenalized is not None:
        check_free(rows, "subset", False)
        return free_subset(kernel, rows, chosen, v, Free.of(unpenalized, v, intercept), drop=drop, block_size=block_size)
    return solve_subset(kernel, rows, chosen, Labels.none(v), v, intercept, drop=drop, keep=keep, block_size=block_size).factor


def solve_subset(
    kernel: Kernel,
    rows: Rows,
    chosen: Landmarks,
    labels: Labels,
    weights: Weights,
    intercept: bool,
    *,
    drop=True,
    keep=None,
    block_size=None,
    keep_moments=False,
) -> SpectralSolution:
    """The solution on landmarks, from one reading of the rows; a trace that they carry must be of these rows and weights."""
    chosen = without_trace(chosen) if keep_moments else chosen  # other rows will add to it
    dictionary = Dictionary.of(kernel, chosen.points)
    lift, kept = dictionary.lift, None
    corner = lift.features(lift.points)
    origin = jnp.mean(corner, axis=0) if intercept else jnp.zeros_like(corner[0])
    sizes = Sizes(
        rows.shape[0] // rows.parts,
        rows.shape[1],
        len(corner),
        corner.dtype.itemsize,
        t=labels.Y.shape[1],
        weighted=weights.values is not None,
    )
    if rows.traceable and keeps_rows(sizes) if keep is None else keep:
        kept = rows.stored.map(lift.features, temporaries=origin.shape[0], block_size=block_size)
        if intercept and weights.values is not None:
            origin = weights.mean(kept)
    options: dict = {"kept": kept, "block_size": block_size, "traced": chosen.trace_residual is None}
    sums = dictionary.moments(rows, labels.Y, weights.values, origin=origin, label_origin=labels.mean, **options)
    if chosen.trace_residual is not None:
        sums = replace(sums, trace=jnp.asarray(chosen.trace_residual, rows.dtype))
    of_lift = rows.through(lift) if kept is None else rows.like(kept)
    leaving = (chosen.indices, corner) if drop and chosen.indices is not None else None
    solution = dictionary.spectrum(of_lift, sums, weights, intercept, leaving).solve_moments(labels, sums)
    return replace(solution, summed=Summed.of_fit(dictionary, sums, intercept)) if keep_moments else solution


def free_subset(
    kernel: Kernel, rows: Rows, chosen: Landmarks, weights: Weights, free: Free, *, drop: bool = True, block_size: int | None = None
) -> FreedSpectrum:
    """The factor on landmarks with columns that have no penalty, which are taken out of B as it is kept."""
    dictionary = Dictionary.of(kernel, chosen.points)
    lift, m = dictionary.lift, len(chosen.points)
    hints: dict = {"temporaries": m, "block_size": block_size}
    B = rows.stored.map(lift.features, **hints)
    across, centred = free.along(B), free.rest(B)
    sums = moments(DenseRows(centred), Linear(), weights=weights.values, origin=jnp.zeros_like(B[0]), block_size=block_size)
    trace = chosen.trace_residual
    if trace is None:
        trace = weights.sum(rows.stored.map(dictionary.left_over, B, **hints))
    leaving = (chosen.indices, centred[chosen.indices][lead_order(m)]) if drop and chosen.indices is not None else None
    found = dictionary.spectrum(DenseRows(centred), replace(sums, trace=jnp.asarray(trace, rows.dtype)), weights, False, leaving)
    return freed(found, free, matmul(across, found.rotation * found.s))  # type: ignore[operator]


@pytree
class Dictionary:
    """Landmarks as features: B of a row of X by the lift, and Φ = B diag(I, tail)."""

    lift: Lift
    ridge: Float[Array, ""]

    @classmethod
    def of(cls, kernel: Kernel, points: Float[Array, "m d"]) -> "Dictionary":
        """By the Cholesky factor of K_RR."""
        q = -(-points.shape[0] // 4)
        points = points[lead_order(points.shape[0])]
        L, ridge = ridged_cholesky(gram(kernel, points))
        unit = power_of_two(jnp.max(jnp.diagonal(L)))
        lead, rest = (triangular_inverse(part).T for part in (L[:q, :q], L[q:, q:] / unit))
        is_whole = jnp.max(jnp.diagonal(rest) ** 2, initial=0) > jnp.finfo(rest.dtype).eps ** -0.5
        return cls(Lift(kernel, points, lead, L[q:, :q].T, unit, rest, is_whole), ridge)

    @property
    def kernel(self) -> Kernel:
        """That of the lift."""
        return self.lift.kernel

    def check_width(self, d: int, r: int) -> None:
        """Raise unless rows have the columns that landmarks have."""
        del r
        if d != self.lift.points.shape[1]:
            raise ValueError(f"X must have {self.lift.points.shape[1]} columns, as the landmarks do, and has {d}")

    def rounding(self) -> Float[Array, " r"]:
        """How far B of a row may be off: what L⁻¹ makes of the rounding of the kernel, which depends on how rows are cut into blocks."""
        lift = self.lift
        lead = jnp.linalg.norm(lift.lead, axis=0)
        rest = (1 + jnp.sqrt(matmul(lead**2, lift.across**2))) / lift.unit
        rest = jnp.where(lift.is_whole, jnp.sqrt(matmul(rest**2, lift.rest**2)), rest)
        return float(jnp.finfo(lead.dtype).eps) * jnp.max(self.kernel.diag(lift.points)) * jnp.concatenate([lead, rest])

    def moments(self, rows: Rows, Y, v, *, traced: bool = True, **options) -> Moments:
        """The moments of B; their trace, where it is asked for, sums what landmarks leave over."""
        return moments(rows, self.lift, Y, v, left_over=self.left_over if traced else None, **options)

    def left_over(self, x, b) -> Float[Array, " n"]:
        """What landmarks leave of k(x, x), from B of the same rows."""
        whole, rest = self.lift.is_whole, self.lift.rest
        return left_over(self.kernel, x, jax.lax.cond(whole, lambda b: b, lambda b: tailed(b, rest), b))

    def spectrum(self, rows: Rows, sums: Moments, weights: Weights, intercept: bool, leaving=None, before=0.0) -> Spectrum:
        """That of moments of B; rows are B again. `leaving` are the numbers of landmarks that leave with their row, and their rows of B.

        Rounding is that of sums whose diagonal was `before`, where that is larger.
        """
        lift, tail, sums = self.lift, self.lift.tail, sums.centred(intercept)
        given, middle = np.argsort(lead_order(lift.points.shape[0])), sums.origin
        s, V, _, below = spectrum_of(tailed(tailed(sums.second, tail).T, tail))
        # Directions that rounding hides stay, as if they were at its level: rows of weight 0 may lie far along them. They count for nothing in sums.
        # A direction's level is that of the entries of BᵀB that it adds up: far above the others' where landmarks nearly depend.
        q = lift.lead.shape[0]
        noise = weights.total * matmul(tailed(self.rounding()[None] ** 2, tail**2)[0], V**2)
        rest = matmul(lift.rest, V[q:]) / lift.unit
        W = jnp.concatenate([matmul(lift.lead, V[:q] - matmul(lift.across, rest)), rest])[given]  # L⁻ᵀV, as given
        V = jnp.concatenate([V[:q], matmul(tail, V[q:])])  # ΦV = B V from here on
        least = eigh_rounding(len(s), s)
        level = jax.vmap(partial(eigh_rounding, len(s), s))(matmul(jnp.maximum(jnp.diagonal(sums.second), before), V**2))
        level = jnp.maximum(level, jnp.finfo(s.dtype).tiny)
        hidden, s = s < level, jnp.maximum(s, level)
        # Eigenvalues of K̂ that the ridge makes smaller.
        damped = self.ridge * jnp.max(self.kernel.diag(lift.points)) * weights.total / len(s)
        unsure = jnp.max(jnp.where(hidden, level, jnp.minimum(s, NOISES * noise)))
        floor = jnp.maximum(2 * (2 * jnp.mean(level) - least + damped), unsure)
        rotation = V / jnp.sqrt(s)
        if leaving is not None:
            indices, corner = leaving
            leaving = Leaving(indices, W / lengths(W), matmul(corner[given] - middle, rotation))
        return Spectrum(
            rows=rows,
            s=s,
            rotation=rotation,
            middle=middle if intercept else None,
            basis=W * jnp.sqrt(s),
            shift=matmul(middle, V * jnp.sqrt(s)) if intercept else jnp.zeros_like(s),
            solved=None,
            design=None,
            leaving=leaving,
            weights=weights,
            expansion=OnLandmarks(lift.points[given]),
            said=Report("subset", floor, jnp.zeros_like(below), sums.trace, self.ridge),
            intercept=intercept,
            complete=False,
            hidden=hidden,
        )


def left_over(kernel, x, phi):
    """k(x, x) − |φ(x)|² of every row, and what rounding may hide of it: summed over rows it does not cancel as a difference of two sums would."""
    diag = kernel.diag(x)
    return jnp.maximum(diag - jnp.sum(phi**2, axis=1), 0) + hidden_trace(phi.shape[1], diag)


def lengths(A: Float[Array, "m r"]) -> Float[Array, "m 1"]:
    """The lengths of rows, whose squares may overflow."""
    largest = jnp.max(jnp.abs(A), axis=1, keepdims=True)
    return largest * jnp.linalg.norm(A / largest, axis=1, keepdims=True)


def tailed(A, tail):
    """A diag(I, L₂⁻ᵀ)."""
    q = A.shape[1] - tail.shape[0]
    return jnp.concatenate([A[:, :q], matmul(A[:, q:], tail)], axis=1)


def lead_order(m: int) -> np.ndarray:
    """The order in which landmarks lead: every fourth first, a coarse grid of them, however they are sorted."""
    return np.argsort(np.arange(m) % 4, kind="stable")
