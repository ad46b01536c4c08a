"""The primal problem at one λ after another by Cholesky, on explicit features or on landmarks,
differentiable in everything, the landmarks included.

With ψ of a row (for landmarks k(x, points), K_RR = LLᵀ and φ = L⁻¹ψ; else φ = ψ), ΦᵀΦ + λI = AAᵀ for
weighted Φ less its fit by the fixed effects, and R = L⁻ᵀA⁻ᵀ: a row is seen as u = (ψ − b·fit)R, its
M of the one matrix, and labels as q = A⁻¹Φᵀ√v y. Coefficients are Rq, ŷ = u·q, leverage v|u|².
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.factors.contract import Factor, Report, Solution
from jaxrls.factors.expansion import Expansion, OnLandmarks, Primal
from jaxrls.factors.feature_maps import Explicit, OfLandmarks
from jaxrls.factors.landmark_spectrum import left_over, lengths
from jaxrls.factors.other_folds import PrimalForm
from jaxrls.factors.spread import PrimalSpread
from jaxrls.kernels.kernel import Kernel
from jaxrls.leave_out.view import LowRank
from jaxrls.leave_out.without import Planes
from jaxrls.linalg.decompositions import ridged_cholesky, rounding
from jaxrls.linalg.inverses import triangular_inverse
from jaxrls.linalg.products import matmul, power_of_two, safe_sqrt, tall_matmul
from jaxrls.problem.fixed_effects import FixedEffects
from jaxrls.problem.labels import Labels
from jaxrls.problem.landmarks import Landmarks
from jaxrls.problem.weights import Weights
from jaxrls.rows.gram import gram
from jaxrls.rows.moments import moments, near_fit
from jaxrls.rows.rows import Rows
from jaxrls.support.pytrees import pytree, static


@pytree
class CholeskyFeatures(Factor):
    """ΦᵀΦ + λI = AAᵀ for each λ, from moments: O(n r²) for those, in row blocks.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.arange(6.0).reshape(3, 2), solver=rls.Cholesky())
    >>> factor.solve([0.0, 1.0, 2.0]).coefficients(jnp.array([0.1])).coef.shape
    (1, 2, 1)
    """

    rows: Rows
    map: Any  # OfLandmarks or Explicit
    second: Float[Array, "r r"]  # Φᵀ Φ, weighted, less the fit by the fixed effects
    origin: Float[Array, "q r"]  # that fit of φ
    left_over: Float[Array, ""] | None  # tr √v(K − K̂)√v on landmarks
    ridge: Float[Array, ""] | None
    weights: Weights
    fixed: FixedEffects
    expansion: Expansion
    indices: Int[Array, " m"] | None  # of the landmarks that leave with their row
    block_size: int | None = static()

    @property
    def report(self):
        """The floor by the norm of ΦᵀΦ, which bounds s_max, and by what L⁻ᵀ makes of the rounding
        of k(x, landmarks).
        """
        second, r = jax.lax.stop_gradient(self.second), self.second.shape[0]
        unit = power_of_two(jnp.max(jnp.abs(second)))  # in which squares stay in range
        largest = unit * jnp.linalg.norm(second / unit)[None]
        floor = 2 * rounding(r, largest)
        if self.left_over is not None:
            moved = jnp.sqrt(jnp.trace(second) + jax.lax.stop_gradient(self.left_over))
            moved = moved * jax.lax.stop_gradient(self.map).amplified
            floor = jnp.maximum(floor, 6 * rounding(1 / r, jnp.sqrt(largest)) * moved)
        return Report("cholesky", floor, jnp.zeros((), self.dtype), self.left_over, self.ridge)

    @property
    def training(self):
        """Kernel and rows."""
        return self.map.kernel, self.rows

    @property
    def parts(self):
        """Those of the rows."""
        return self.rows.parts

    @property
    def hints(self) -> dict:
        """How blocks of rows are cut."""
        return {"temporaries": self.second.shape[0], "block_size": self.block_size}

    def trace(self):
        """tr ΦᵀΦ."""
        return jnp.trace(self.second)

    def project(self, labels):
        """Φᵀ√v y, O(n r t)."""

        def block(x, v, b, y):
            phi = self.map.features(x) - self.fixed.fitted(b, self.origin)
            return matmul(phi.T, y if v is None else safe_sqrt(v)[:, None] * y)

        columns = self.weights.values, self.fixed.rows, labels.scaled
        return self.rows.sum(block, *columns, **self.hints)

    def at(self, lam, state) -> "Seen":
        """How rows and labels are seen at one λ."""
        r = self.second.shape[0]
        A = jnp.linalg.cholesky(self.second + lam * jnp.eye(r, dtype=self.dtype))
        shrink = triangular_inverse(A)
        R = shrink.T if self.map.back is None else matmul(shrink, self.map.back.T).T
        return Seen(R, matmul(self.origin, shrink.T), matmul(shrink, state), shrink, lam)

    def _at_all(self, solution, lams) -> "Seen":
        """The same one λ after the other, and where each target has its own, one target after the
        other, (L k, …): made once, before the rows are read.
        """
        (L, k), (r, t) = lams.shape, solution.state.shape
        each = jnp.moveaxis(solution.state.reshape(r, k, t // k), 1, 0)
        columns = lams.reshape(L * k), jnp.tile(each, (L, 1, 1))
        return jax.lax.map(lambda args: self.at(*args), columns)

    def _of_each(self, fn, seen, lams):
        """`fn(seen)` of all of them, (…, t/k) each, as (L, …, t)."""

        def joined(a):
            a = jnp.moveaxis(a.reshape(*lams.shape, *a.shape[1:]), 1, -2)
            return a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1])

        return jax.tree.map(joined, jax.lax.map(fn, seen))

    def coefficients(self, solution, lams):
        """Rq, and β = start − fit·w."""

        def at(lam, one):
            seen = self.at(lam, one.state)
            return matmul(seen.R, seen.q), one.labels.start - matmul(seen.middle, seen.q)

        return solution.at_each(lams, at)

    def data_fit(self, solution, lams):
        """(‖√v (y − ŷ)‖² + λ‖w‖²)/λ with w = A⁻ᵀq."""

        def length(lam, one):
            seen = self.at(lam, one.state)
            return jnp.sum(matmul(seen.shrink.T, seen.q) ** 2, axis=0)

        return self.residual_norm(solution, lams) / lams + solution.at_each(lams, length)

    def logdet(self, solution, lams):
        """log |ΦᵀΦ + λI|, and log λ outside."""
        missing = self.residual_dimensions() - self.second.shape[0]

        def at(lam, one):
            inside = -2 * jnp.sum(jnp.log(jnp.diagonal(self.at(lam, one.state).shrink)))
            return (inside + missing * jnp.log(lam))[None]

        return solution.at_each(lams, at)

    def residual_dof(self, solution, lams):
        """n − r + λ tr (ΦᵀΦ + λI)⁻¹."""
        missing = self.residual_dimensions() - self.second.shape[0]
        of = lambda lam, one: (missing + lam * jnp.sum(self.at(lam, one.state).shrink ** 2))[None]
        return solution.at_each(lams, of)

    def seen(self, x, b, seen: "Seen") -> Float[Array, "n r"]:
        """u of a block of rows."""
        return tall_matmul(self.map.raw(x), seen.R) - self.fixed.fitted(b, seen.middle)

    def sweep(self, solution, lams, fn, *columns, stack=False):
        """One pass over the rows with all λ inside: O(n r² L)."""
        seen = self._at_all(solution, lams)

        def block(x, v, b, y, *columns):
            psi = self.map.raw(x)
            counted = jnp.ones_like(psi[:, 0]) if v is None else v
            h = self.fixed.leverage(b, counted)

            def at(seen):
                u = tall_matmul(psi, seen.R) - self.fixed.fitted(b, seen.middle)
                return matmul(u, seen.q), (1 - counted * jnp.sum(u * u, axis=1) - h)[:, None]

            f, R = (jnp.moveaxis(part, 0, 1) for part in self._of_each(at, seen, lams))
            f = f if v is None else safe_sqrt(v)[:, None, None] * f
            return fn(y[:, None] - f, R, v, *columns)

        read = self.rows.map if stack else self.rows.sum
        columns = self.weights.values, self.fixed.rows, solution.labels.scaled, *columns
        return read(block, *columns, **self.hints)

    def landmarks_out(self, solution, lams):
        """At one λ after the other."""
        if self.indices is None:
            return None
        seen, base = self._at_all(solution, lams), self.base_of_landmarks(solution)
        found = self._of_each(self.landmarks, seen, lams)
        d, rho, alpha, f, remaining = (jnp.moveaxis(part, 0, 1) for part in found)
        v = self.weights.array[self.indices][:, None, None]
        return self.indices, d, rho, alpha, base[:, None] - f, remaining, v

    def base_of_landmarks(self, solution) -> Float[Array, "m t"]:
        """Labels of landmarks less what fixed effects alone fit."""
        labels = solution.labels
        return (labels.Y - labels.mean)[jnp.asarray(self.indices)]

    def landmarks(self, seen: "Seen", corner=None):
        """d, ρ, α, u·q and R of landmarks, from k(points, points) where that is known."""
        indices = jnp.asarray(self.indices)
        b, v = self.fixed.rows_at(indices), self.weights.array[indices]
        corner = self.map.raw(self.map.points) if corner is None else corner
        u, W = tall_matmul(corner, seen.R) - self.fixed.fitted(b, seen.middle), seen.planes
        remaining = 1 - v * jnp.sum(u * u, axis=1) - self.fixed.leverage(b, v)
        d, rho = jnp.sum(W * W, axis=1), jnp.sum(W * u, axis=1)
        return d[:, None], rho[:, None], matmul(W, seen.q), matmul(u, seen.q), remaining[:, None]

    def spread(self, lam):
        """u uᵀ λ."""
        seen, root = self.at(lam, self.second[:, :0]), jnp.sqrt(lam)
        of = self.expansion, self.fixed.lean(), root * seen.R, root * seen.middle, lam
        return PrimalSpread(*of, self.map.back)

    def planes(self, lam):
        """The coefficients that leave, in the coordinates of the posterior."""
        if self.indices is None:
            return None
        spread = self.spread(lam)
        return Planes(jnp.asarray(self.indices), jnp.concatenate([spread.half, -spread.middle]))

    def primal_form(self):
        """φ = L⁻¹ψ, less its fit by the fixed effects."""
        turn = jnp.eye(self.second.shape[0], dtype=self.dtype)
        indices = None if self.indices is None else jnp.asarray(self.indices)
        return PrimalForm(self.rows, self.map, turn, self.origin, indices, self.map.back, True)

    def view(self, solution, lam):
        """I − HHᵀ − UUᵀ with U = √v u."""
        seen = self.at(lam, solution.state)
        u = self.rows.map(lambda x, b: self.seen(x, b, seen), self.fixed.rows, **self.hints)
        of = u, seen.q, solution.labels, self.weights, self.fixed
        return LowRank.of_rows(*of, seen.planes, self.indices)


@pytree
class Seen:
    """How rows and labels are seen at one λ."""

    R: Float[Array, "r r"]
    middle: Float[Array, "q r"]  # u of what the fixed effects fit
    q: Float[Array, "r t"]
    shrink: Float[Array, "r r"]  # A⁻¹
    lam: Float[Array, ""]

    @property
    def planes(self) -> Float[Array, "r r"]:
        """A⁻¹L⁻¹eₖ for every landmark, of length about 1."""
        return self.R / jax.lax.stop_gradient(lengths(self.R))


def solve_cholesky(
    kernel: Kernel,
    rows: Rows,
    chosen: Landmarks | None,
    labels: Labels,
    weights: Weights,
    fixed: FixedEffects,
    block_size: int | None = None,
) -> Solution:
    """The solution on explicit features, or on landmarks, from one reading of the rows."""
    made, expansion, ridge = map_of(kernel, chosen)
    if chosen is None or not (fixed.count == 1 and fixed.rows is None):
        origin = near_fit(rows, made, fixed, weights.values)
        origin = None if origin is None else jax.lax.stop_gradient(origin)
    else:
        origin = jnp.mean(made.features(chosen.points), axis=0)[None]
    part = None if chosen is None else partial(left_over, kernel)
    options: dict = {"left_over": part, "block_size": block_size, "origin": origin}
    sums = moments(
        rows, made, fixed, labels.Y, weights.values, label_origin=labels.start, **options
    ).centred(fixed)
    factor = CholeskyFeatures(
        rows=rows,
        map=made,
        second=sums.second,
        origin=sums.origin,
        left_over=None if chosen is None else sums.trace,
        ridge=ridge,
        weights=weights,
        fixed=fixed,
        expansion=expansion,
        indices=None if chosen is None else chosen.indices,
        block_size=block_size,
    )
    return Solution(factor, labels, sums.cross)


def map_of(kernel: Kernel, chosen: Landmarks | None) -> tuple[Any, Expansion, Any]:
    """What is made of a row, what its coefficients multiply, and the ridge of the landmarks'
    Cholesky factor.
    """
    if chosen is None:
        return Explicit(kernel), Primal(), None
    L, ridge = ridged_cholesky(gram(kernel, chosen.points))
    made = OfLandmarks(kernel, chosen.points, triangular_inverse(L).T)
    return made, OnLandmarks(chosen.points), ridge
