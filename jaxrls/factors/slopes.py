"""The slope of an error of rows left out on landmarks, in closed form: as many products with the
rows as the value takes, and one reading of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.factors.cholesky_features import Seen
from jaxrls.factors.contract import Solution
from jaxrls.kernels.kernel import Kernel
from jaxrls.leave_out.view import without_landmarks
from jaxrls.linalg.products import (
    from_panels,
    gram_panels,
    matmul,
    tall_matmul,
    transposed_matmul,
)
from jaxrls.rows.gram import gram


def left_out_sum(
    made: Callable,
    total: Callable,
    kernel: Kernel,
    points: Float[Array, "m d"],
    lam: Float[Array, ""],
    rest: Any,
):
    """Σ over targets of `total` of what a solution leaves out at one λ, `made(kernel, points,
    rest)` on landmarks: slopes in closed form but in `rest`.
    """

    def plain(kernel, points, lam, rest):
        return jnp.sum(made(kernel, points, rest).left_out(total, lam[None], None))

    error = jax.custom_jvp(plain)

    @partial(error.defjvp, symbolic_zeros=True)
    def rule(primals, tangents):
        kernel, points, lam, rest = primals
        value, of_lam, along = left_out_slopes(made(kernel, points, rest), total, lam)
        change = jnp.zeros_like(value)
        if _moves(tangents[2]):
            change = change + of_lam * tangents[2]
        if _moves(tangents[:2]):
            change = change + along(primals[:2], _changes(primals[:2], tangents[:2]))
        if _moves(tangents[3]):
            of_rest = partial(plain, kernel, points, lam)
            change = change + jax.jvp(of_rest, (rest,), (_changes(rest, tangents[3]),))[1]
        return value, change

    return error(kernel, points, lam, jax.tree.map(jnp.asarray, rest))


def _still(change) -> bool:
    """Whether nothing that is being differentiated reaches an argument."""
    return isinstance(change, jax.custom_derivatives.SymbolicZero)


def _moves(changes) -> bool:
    return not all(map(_still, jax.tree.leaves(changes)))


def _changes(primals, changes):
    """Changes as arrays, of zeros where there are none."""

    def filled(primal, change):
        if not _still(change):
            return change
        if jnp.issubdtype(primal.dtype, jnp.inexact):
            return jnp.zeros_like(primal)
        return np.zeros(primal.shape, jax.dtypes.float0)

    return jax.tree.map(filled, primals, changes)


def left_out_slopes(solution: Solution, total: Callable, lam) -> tuple[Any, Any, Callable]:
    """The sum at λ, from one reading of the rows after that of the moments, its slope in λ, and, by
    one more reading, along a change of the kernel and the points.

    With C = k(X, points), D = C − mean, S = Dᵀ diag(v) D + λK and M = S⁻¹ = RRᵀ, a row's error is a
    function of rᵢ = Dᵢβ and sᵢ = DᵢMDᵢᵀ, which are uᵢq and |uᵢ|² of u = DR. With g and a its
    derivatives in those, z = Uᵀg and w = Uᵀ diag(a) U, the cotangents are

        of S:  R t Rᵀ,  t = −w − ½(zqᵀ + qzᵀ),     of Dᵢ:  R (2aᵢuᵢ + qgᵢ + vᵢ(2tuᵢ + z(yᵢ − ȳ))),
        of K:  λ R t Rᵀ,

    and what landmarks that leave with their row add to t, z and the mean's. No derivative of a
    Cholesky factor is taken, nor of L⁻ᵀ, for which the rows would be multiplied twice more. The
    formula is differentiated in its turn for derivatives of higher order.
    """
    f: Any = solution.factor
    seen, labels = f.at(lam, solution.state), solution.labels
    counted = f.weights if f.indices is None else f.weights.without(f.indices)
    columns = f.weights.values, counted.values, labels.scaled, labels.Y
    R, q, middle = seen.R, seen.q, seen.middle

    def of_rows(u, v, counted, y, Y):
        """The sum over a block of rows, and its derivatives in r and s."""
        weights, counted = f.weights.block(v, len(u)), f.weights.block(counted, len(u))
        fitted = f.fixed.leverage(None, weights.array)

        def error(r, s):
            remaining = jnp.where(counted.used, 1 - weights.array * s - fitted, 1)
            e = weights.unscale((y - weights.scale(r)) / remaining[:, None])
            return jnp.sum(total(jnp.where(counted.used[:, None], e, 0), Y, counted.array))

        return jax.value_and_grad(error, (0, 1))(matmul(u, q), jnp.sum(u * u, axis=1))

    def block(x, *columns):
        u = f.seen(x, None, seen)
        value, (g, a) = of_rows(u, *columns)
        sums = transposed_matmul(u, g), matmul(a, u), jnp.sum(g, axis=0)
        return value, gram_panels(a[:, None] * u, u), *sums

    value, panels, z, by_a, g = f.rows.sum(block, *columns, **f.hints)
    spent = matmul(z, q.T)
    t, mean = -from_panels(panels) - (spent + spent.T) / 2, -(2 * by_a + matmul(q, g))
    corner = jnp.zeros_like(t)  # the cotangent of k(points, points) in the rows of landmarks
    if f.indices is not None:
        nothing = jnp.zeros_like(t), jnp.zeros_like(z), jnp.zeros_like(mean)
        of_landmarks = partial(_of_landmarks, solution, seen, total)
        own, pull = jax.vjp(of_landmarks, *nothing, f.map.raw(f.map.points))
        by_t, by_z, by_mean, corner = pull(jnp.ones_like(own))
        value, t = value + own, t + (by_t + by_t.T) / 2
        z, mean = z + by_z, mean + by_mean
    constant = mean / f.weights.total * int(f.intercept)

    def along(at, change):
        moved = lambda fn: jax.jvp(fn, at, change)

        def block(x, v, counted, y, Y):
            psi, dpsi = moved(lambda kernel, points: kernel(x, points))
            u = tall_matmul(psi, R) - f.fixed.fitted(None, middle)
            _, (g, a) = of_rows(u, v, counted, y, Y)
            by_sums = 2 * matmul(u, t) + matmul(Y - labels.mean, z.T) + constant
            by_sums = by_sums if v is None else v[:, None] * by_sums
            return jnp.sum(matmul(2 * a[:, None] * u + matmul(g, q.T) + by_sums, R.T) * dpsi)

        i, ridge = jnp.arange(len(R)), jnp.zeros_like(lam) if f.ridge is None else f.ridge
        dK = moved(lambda kernel, points: gram(kernel, points))[1].at[i, i].multiply(1 + ridge)
        penalty = lam * matmul(matmul(R, t), R.T) * dK
        corners = corner * moved(lambda kernel, points: kernel(points, points))[1]
        return f.rows.sum(block, *columns, **f.hints) + jnp.sum(penalty + corners)

    return value, jnp.sum(t * matmul(seen.shrink, seen.shrink.T)), along


def _of_landmarks(solution: Solution, seen: Seen, total: Callable, step, cross, mean, corner):
    """The sum over rows that are landmarks, where S, Dᵀ diag(v) y, the mean and k(points, points)
    change, the first three in the coordinates of u.
    """
    f: Any = solution.factor
    A = jnp.linalg.cholesky(jnp.eye(len(step), dtype=step.dtype) + step)
    solve = partial(jax.lax.linalg.triangular_solve, A, left_side=True, lower=True)
    middle = solve((seen.middle + mean).T).T
    moved = seen._replace(R=solve(seen.R.T).T, q=solve(seen.q + cross), middle=middle)
    Y, v = solution.labels.Y[f.indices], f.weights.array[f.indices]
    *products, fitted, remaining = f.landmarks(moved, corner)
    residual = (solution.labels.Y - solution.labels.mean)[f.indices] - fitted
    e, _ = without_landmarks(*products, residual, remaining, v[:, None])
    return jnp.sum(total(e, Y, v))
