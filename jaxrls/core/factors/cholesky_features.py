"""The primal problem, through moments of explicit features or of landmarks, by a Cholesky factor
for each λ. Differentiable in everything, in the landmarks too.

On landmarks a row has ψ = k(x, points) and φ = L⁻¹ψ with K_RR = LLᵀ; explicit features are φ = ψ.
For weighted Φ, minus its fit by the fixed effects, ΦᵀΦ + λI = AAᵀ and R = L⁻ᵀA⁻ᵀ. A row has the
coordinates u = (ψ − b·fit)R, its part of M in `leave_out.view`, and labels have q = A⁻¹Φᵀ√v y. Then
coefficients are Rq, ŷ = u·q, and the leverage v|u|²."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.factors.contract import AtLam, OneByOne, Report, Solution
from jaxrls.core.factors.expansion import AtPoints, Expansion, Features, Primal
from jaxrls.core.factors.other_folds import PrimalForm
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.leave_out.view import LowRank
from jaxrls.core.linalg.decompositions import ridged_cholesky, rounding
from jaxrls.core.linalg.inverses import triangular_inverse
from jaxrls.core.linalg.products import (
    from_panels,
    gram_panels,
    matmul,
    tall_matmul,
    transposed_matmul,
)
from jaxrls.core.problem.fixed_effects import FixedEffects
from jaxrls.core.problem.gram import gram
from jaxrls.core.problem.labels import Labels
from jaxrls.core.problem.moments import moments, near_fit
from jaxrls.core.problem.rows import Rows
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.pytrees import pytree, static
from jaxrls.landmarks.points import Landmarks
from jaxrls.landmarks.spectrum import keeps_rows, left_over
from jaxrls.uncertainty.spread import PrimalSpread


@pytree
class CholeskyFeatures(OneByOne):
    """ΦᵀΦ + λI = AAᵀ for each λ, from moments: O(n r²) for those, in row blocks.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.arange(6.0).reshape(3, 2), solver=rls.Cholesky())
    >>> factor.solve([0.0, 1.0, 2.0]).coefficients(jnp.array([0.1])).coef.shape
    (1, 2, 1)
    """

    rows: Rows
    map: Features
    second: Float[Array, "r r"]  # Φᵀ Φ, weighted, less the fit by the fixed effects
    origin: Float[Array, "q r"]  # that fit of φ
    weights: Weights
    fixed: FixedEffects
    expansion: Expansion
    report: Report
    block_size: int | None = static()
    indices: Any = None  # (m,), of the landmarks that leave with their row

    @property
    def training(self):
        """Kernel and rows."""
        return self.map.kernel, self.rows

    @property
    def parts(self):
        """The number of parts of the rows."""
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
            return matmul(phi.T, self.weights.block(v, len(y)).scale(y))

        columns = self.weights.values, self.fixed.rows, labels.scaled
        return self.rows.sum(block, *columns, **self.hints)

    def at(self, lam, state) -> "Shrunk":
        """The `Shrunk` coordinates at one λ."""
        A = jnp.linalg.cholesky(self.second + lam * jnp.eye(len(self.second), dtype=self.dtype))
        shrink = triangular_inverse(A)
        R = shrink.T if self.map.back is None else matmul(shrink, self.map.back.T).T
        return Shrunk(R, matmul(self.origin, shrink.T), matmul(shrink, state), shrink)

    def _at_all(self, solution, lams) -> "Shrunk":
        """The same at every λ, computed once, before the rows are read."""
        return jax.lax.map(lambda args: self.at(*args), with_columns(lams, solution.state))

    def at_lam(self, lam, one):
        """From moments: all results but those of single rows, with ‖w‖² of w = A⁻ᵀq in place of the
        fit.
        """
        shrunk, missing = self.at(lam, one.state), self.residual_dimensions() - len(self.second)
        logs = missing * jnp.log(lam) - 2 * jnp.sum(jnp.log(jnp.diagonal(shrunk.shrink)))
        dof = missing + lam * jnp.sum(shrunk.shrink**2)
        coef, beta = matmul(shrunk.R, shrunk.q), one.labels.start - matmul(shrunk.middle, shrunk.q)
        length = jnp.sum(matmul(shrunk.shrink.T, shrunk.q) ** 2, axis=0)
        return AtLam(coef, beta, None, None, length, logs[None], dof[None])

    def data_fit(self, solution, lams):
        """(‖√v (y − ŷ)‖² + λ‖w‖²)/λ."""
        return self.residual_norm(solution, lams) / lams + super().data_fit(solution, lams)

    def coordinates(self, psi, b, shrunk: "Shrunk") -> Float[Array, "n r"]:
        """u of a block of rows, from ψ."""
        return tall_matmul(psi, shrunk.R) - self.fixed.fitted(b, shrunk.middle)

    def sweep(self, solution, lams, fn, *columns, stack=False):
        """One pass over the rows for all λ: O(n r² L)."""
        shrunk = self._at_all(solution, lams)

        def block(x, v, b, y, *columns):
            psi, own = self.map.raw(x), self.weights.block(v, len(y))
            h = self.fixed.leverage(b, own.array)

            def at(shrunk):
                u = self.coordinates(psi, b, shrunk)
                return matmul(u, shrunk.q), (1 - own.array * jnp.sum(u * u, axis=1) - h)[:, None]

            f, R = of_each(at, shrunk, lams)
            return fn(y[:, None] - own.scale(f), R, v, *columns)

        read = self.rows.map if stack else self.rows.sum
        columns = self.weights.values, self.fixed.rows, solution.labels.scaled, *columns
        return read(block, *columns, **self.hints)

    def landmarks_out(self, solution, lams):
        """At one λ after the other."""
        return of_each(self.landmarks, self._at_all(solution, lams), lams)

    def landmarks(self, shrunk: "Shrunk", corner=None):
        """d, ρ, α, u·q and R of landmarks, with k(points, points) as `corner` where it is known."""
        b, v = self.fixed.rows_at(self.indices), self.weights.array[self.indices]
        corner = self.map.raw(self.map.points) if corner is None else corner
        u, W = self.coordinates(corner, b, shrunk), shrunk.planes
        remaining = 1 - v * jnp.sum(u * u, axis=1) - self.fixed.leverage(b, v)
        d, rho = jnp.sum(W * W, axis=1), jnp.sum(W * u, axis=1)
        return (
            d[:, None],
            rho[:, None],
            matmul(W, shrunk.q),
            matmul(u, shrunk.q),
            remaining[:, None],
        )

    def spread(self, lam):
        """u uᵀ λ."""
        shrunk, root = self.at(lam, self.second[:, :0]), jnp.sqrt(lam)
        of = self.expansion, self.fixed.lean(), root * shrunk.R, root * shrunk.middle, lam
        return PrimalSpread(*of, self.map.back)

    def primal_form(self):
        """φ = L⁻¹ψ, minus its fit by the fixed effects; by Cholesky factors for each λ, which have
        derivatives.
        """
        eye = jnp.eye(len(self.second), dtype=self.dtype)

        def solve(second, cross, lams):
            def at(args):
                lam, cross = args
                root = jnp.linalg.cholesky(second + lam * eye)
                return jax.scipy.linalg.cho_solve((root, True), cross)

            return of_each(at, with_columns(lams, cross), lams)

        planes = None if self.indices is None else self.map.back
        return PrimalForm(self.rows, self.map, eye, self.origin, planes, solve)

    def view(self, solution, lam):
        """I − HHᵀ − UUᵀ with U = √v u."""
        shrunk = self.at(lam, solution.state)
        u = self.rows.map(
            lambda x, b: self.coordinates(self.map.raw(x), b, shrunk), self.fixed.rows, **self.hints
        )
        of = u, shrunk.q, solution.labels, self.weights, self.fixed
        return LowRank.of_rows(*of, shrunk.planes, self.indices)


def with_columns(lams: Float[Array, "L k"], A: Float[Array, "r t"]) -> tuple[Any, Any]:
    """Each λ (L k,), with the columns of all targets, or where each has its own λ of that one, (L
    k, r, t/k).
    """
    (L, k), (r, t) = lams.shape, A.shape
    each = jnp.moveaxis(A.reshape(r, k, t // k), 1, 0)
    return lams.reshape(L * k), jnp.tile(each, (L, 1, 1))


def of_each(fn: Callable, each, lams: Float[Array, "L k"]) -> Any:
    """`fn` of one part after another of those (L k, …), (b, t/k) each, as (b, L, t)."""

    def joined(a):
        a = jnp.moveaxis(a, 0, 1)
        return a.reshape(len(a), len(lams), lams.shape[1] * a.shape[2])

    return jax.tree.map(joined, jax.lax.map(fn, each))


class Shrunk(NamedTuple):
    """The linear maps from rows and labels to coordinates u and q at one λ."""

    R: Float[Array, "r r"]  # row k is A⁻¹L⁻¹eₖ of landmark k
    middle: Float[Array, "q r"]  # u of what the fixed effects fit
    q: Float[Array, "r t"]
    shrink: Float[Array, "r r"]  # A⁻¹

    @property
    def planes(self) -> Float[Array, "r r"]:
        """R in units of each row's largest entry: constraints have no scale, and derivatives square
        theirs again.
        """
        return self.R / jax.lax.stop_gradient(jnp.max(jnp.abs(self.R), axis=1, keepdims=True))


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
    made, ridge, part, indices = Features(kernel), None, None, None
    expansion: Expansion = Primal()
    if chosen is not None:
        points, indices, part = chosen.points, chosen.indices, partial(left_over, kernel)
        L, ridge = ridged_cholesky(gram(kernel, points))
        made, expansion = Features(kernel, points, triangular_inverse(L).T), AtPoints(points)
    if chosen is not None and fixed.count == 1 and fixed.rows is None:
        origin: Any = jnp.mean(made.features(points), axis=0)[None]
    else:
        origin = jax.lax.stop_gradient(near_fit(rows, made, fixed, weights.values))
    sums = moments(
        rows,
        made,
        fixed,
        labels.Y,
        weights.values,
        left_over=part,
        block_size=block_size,
        origin=origin,
        label_origin=labels.start,
    ).centred(fixed)
    trace = None if chosen is None else sums.trace
    floor = rounding_floor(*jax.lax.stop_gradient((made, sums.second, trace)))
    factor = CholeskyFeatures(
        rows=rows,
        map=made,
        second=sums.second,
        origin=sums.origin,
        weights=weights,
        fixed=fixed,
        expansion=expansion,
        report=Report("cholesky", floor, jnp.zeros_like(floor), trace, ridge),
        block_size=block_size,
        indices=None if indices is None else jnp.asarray(indices),
    )
    return Solution(factor, labels, sums.cross)


def rounding_floor(made: Features, second, trace) -> Float[Array, ""]:
    """From the norm of ΦᵀΦ, which bounds s_max, and from the rounding of k(x, landmarks), which L⁻ᵀ
    amplifies.
    """
    largest, r = jnp.linalg.norm(second)[None], len(second)
    floor = 2 * rounding(r, largest)
    if trace is None:
        return floor
    own = made.kernel.diag(made.points)  # type: ignore[arg-type]
    amplified = jnp.linalg.norm(jnp.sqrt(own)[:, None] * made.back)
    moved = amplified * jnp.sqrt(jnp.trace(second) + trace)
    return jnp.maximum(floor, 6 * rounding(1 / r, jnp.sqrt(largest)) * moved)


# the slope of what is left out, in closed form ---------------------------------------------------


def left_out_sum(
    made: Callable,
    total: Callable,
    kernel: Kernel,
    points: Any,
    lam: Float[Array, ""],
    rest: Any,
):
    """Σ over targets of `total` of the held-out residuals at one λ, of the solution `made(kernel,
    points, rest)` on landmarks: with derivatives in closed form, except in `rest`.
    """

    def plain(kernel, points, lam, rest):
        return jnp.sum(made(kernel, points, rest).left_out(total, lam[None], None))

    error = jax.custom_jvp(plain)

    @partial(error.defjvp, symbolic_zeros=True)
    def rule(primals, tangents):
        *at, lam, rest = primals
        value, of_lam, along = left_out_slopes(made(*at, rest), total, lam)
        *moved, by_lam, by_rest = _changes(primals, tangents)
        change = of_lam * by_lam
        if _moves(tangents[:2]):
            change = change + along(at, moved)
        if _moves(tangents[3]):
            of_rest = partial(plain, *at, lam)  # type: ignore[call-arg]
            change = change + jax.jvp(of_rest, (rest,), (by_rest,))[1]
        return value, change

    return error(kernel, points, *jax.tree.map(jnp.asarray, (lam, rest)))


def _is_constant(change) -> bool:
    """Whether an argument does not depend on anything that is being differentiated."""
    return isinstance(change, jax.custom_derivatives.SymbolicZero)


def _moves(changes) -> bool:
    return not all(map(_is_constant, jax.tree.leaves(changes)))


def _changes(primals, changes):
    """Tangents as arrays, zeros where there are none."""
    zero = jax.custom_derivatives.zero_from_primal
    filled = lambda primal, change: zero(primal) if _is_constant(change) else change
    return jax.tree.map(filled, primals, changes)


def left_out_slopes(solution: Solution, total: Callable, lam) -> tuple[Any, Any, Callable]:
    """The sum at λ, its slope in λ, and a function for its slope along a change of the kernel and
    the points: one reading of the rows after that of the moments, and one more for the function.

    With C = k(X, points), D = C − mean, S = Dᵀ diag(v) D + λK and M = S⁻¹ = RRᵀ, a row's error is a
    function of rᵢ = Dᵢβ and sᵢ = DᵢMDᵢᵀ, which are uᵢq and |uᵢ|² of u = DR. With g and a its
    derivatives in those, z = Uᵀg and w = Uᵀ diag(a) U, the cotangents are

        of S:  R t Rᵀ,  t = −w − ½(zqᵀ + qzᵀ),     of Dᵢ:  R (2aᵢuᵢ + qgᵢ + vᵢ(2tuᵢ + z(yᵢ − ȳ))),
        of K:  λ R t Rᵀ,

    plus what landmarks that leave with their row add to t, z and the mean's. No derivative of a
    Cholesky factor is taken, nor of L⁻ᵀ, which would take two more products with the rows; u is
    kept between the readings where a quarter of the memory holds it. For derivatives of higher
    order the formula itself is differentiated.
    """
    f: Any = solution.factor
    shrunk, labels = f.at(lam, solution.state), solution.labels
    counted = f.weights if f.indices is None else f.weights.without(f.indices)
    R, q = shrunk.R, shrunk.q

    def of_rows(u, v, counted, y, Y):
        """The sum over a block of rows, and its derivatives in r and s."""
        weights, counted = f.weights.block(v, len(u)), f.weights.block(counted, len(u))
        fitted = f.fixed.leverage(None, weights.array)

        def error(r, s):
            remaining = jnp.where(counted.used, 1 - weights.array * s - fitted, 1)
            e = weights.unscale((y - weights.scale(r)) / remaining[:, None])
            return jnp.sum(total(jnp.where(counted.used[:, None], e, 0), Y, counted.array))

        return jax.value_and_grad(error, (0, 1))(matmul(u, q), jnp.sum(u * u, axis=1))

    coordinates = lambda x: f.coordinates(f.map.raw(x), None, shrunk)
    sizes = f.rows.shape[0] // f.rows.parts, len(R), jnp.dtype(f.dtype).itemsize
    u = f.rows.map(coordinates, **f.hints) if keeps_rows(*sizes) else None
    columns = u, f.weights.values, counted.values, labels.scaled, labels.Y

    def block(x, u, *columns):
        u = coordinates(x) if u is None else u
        value, (g, a) = of_rows(u, *columns)
        sums = transposed_matmul(u, g), matmul(a, u), jnp.sum(g, axis=0)
        return value, gram_panels(a[:, None] * u, u), *sums

    value, panels, z, by_a, g = f.rows.sum(block, *columns, **f.hints)
    spent = matmul(z, q.T)
    t, mean = -from_panels(panels) - (spent + spent.T) / 2, -(2 * by_a + matmul(q, g))
    corner = jnp.zeros_like(t)  # the cotangent of k(points, points) in the rows of landmarks
    if f.indices is not None:
        nothing = jnp.zeros_like(t), jnp.zeros_like(z), jnp.zeros_like(mean)
        of_landmarks = partial(_of_landmarks, solution, shrunk, total)
        own, pull = jax.vjp(of_landmarks, *nothing, f.map.raw(f.map.points))
        by_t, by_z, by_mean, corner = pull(jnp.ones_like(own))
        value, t = value + own, t + (by_t + by_t.T) / 2
        z, mean = z + by_z, mean + by_mean
    constant = mean / f.weights.total * int(f.intercept)

    def along(at, change):
        moved = lambda fn: jax.jvp(fn, at, change)

        def block(x, u, v, counted, y, Y):
            psi, dpsi = moved(lambda kernel, points: kernel(x, points))
            u = f.coordinates(psi, None, shrunk) if u is None else u
            _, (g, a) = of_rows(u, v, counted, y, Y)
            by_sums = 2 * matmul(u, t) + matmul(Y - labels.mean, z.T) + constant
            by_sums = by_sums if v is None else v[:, None] * by_sums
            return jnp.sum(matmul(2 * a[:, None] * u + matmul(g, q.T) + by_sums, R.T) * dpsi)

        i, ridge = jnp.arange(len(R)), f.report.ridge
        dK = moved(lambda kernel, points: gram(kernel, points))[1].at[i, i].multiply(1 + ridge)
        penalty = lam * matmul(matmul(R, t), R.T) * dK
        corners = corner * moved(lambda kernel, points: kernel(points, points))[1]
        return f.rows.sum(block, *columns, **f.hints) + jnp.sum(penalty + corners)

    return value, jnp.sum(t * matmul(shrunk.shrink, shrunk.shrink.T)), along


def _of_landmarks(solution: Solution, shrunk: Shrunk, total: Callable, step, cross, mean, corner):
    """The sum over rows that are landmarks, as a function of changes of S, Dᵀ diag(v) y, the mean
    and k(points, points), the first three in the coordinates of u.
    """
    f: Any = solution.factor
    A = jnp.linalg.cholesky(jnp.eye(len(step), dtype=step.dtype) + step)
    solve = partial(jax.lax.linalg.triangular_solve, A, left_side=True, lower=True)
    middle = solve((shrunk.middle + mean).T).T
    moved = shrunk._replace(R=solve(shrunk.R.T).T, q=solve(shrunk.q + cross), middle=middle)
    Y, v = solution.labels.Y[f.indices], f.weights.array[f.indices]
    found = jax.tree.map(lambda a: a[:, None], f.landmarks(moved, corner))
    e, _ = solution.without_landmarks(found)
    return jnp.sum(total(e[:, 0], Y, v))
