"""The slope of an error of rows left out on landmarks, in closed form: as many products with the
rows as the value takes, and one reading of them.

With C = k(X, points), D = C − mean, S = Dᵀ diag(v) D + λK and M = S⁻¹ = RRᵀ, a row's error is a
function of rᵢ = Dᵢβ and sᵢ = DᵢMDᵢᵀ, which are uᵢq and |uᵢ|² of u = DR. With g and a its
derivatives in those, z = Uᵀg and w = Uᵀ diag(a) U, the cotangents are

    of S:  R t Rᵀ,  t = −w − ½(zqᵀ + qzᵀ),        of Dᵢ:  R (2aᵢuᵢ + qgᵢ + vᵢ(2tuᵢ + z(yᵢ − ȳ))),
    of K:  λ R t Rᵀ,

and what landmarks that leave with their row add to t, z and the mean's. No derivative of a Cholesky
factor is taken, nor of L⁻ᵀ, for which the rows would be multiplied twice more. The formula is
differentiated in its turn for derivatives of higher order."""

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
from jaxrls.support.pytrees import pytree


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
        value, slopes = left_out_slopes(made(kernel, points, rest), total, lam)
        change = jnp.zeros_like(value)
        if not _still(tangents[2]):
            change = change + slopes.of_lam() * tangents[2]
        if not all(map(_still, jax.tree.leaves(tangents[:2]))):
            change = change + slopes.along(
                total, primals[:2], jax.tree.map(_change, primals[:2], tangents[:2])
            )
        leaves, tree = jax.tree.flatten(rest)
        changes = jax.tree.leaves(tangents[3])
        moving = [i for i, d in enumerate(changes) if not _still(d)]

        def of(moved):
            put = dict(zip(moving, moved, strict=True))
            return plain(
                kernel,
                points,
                lam,
                jax.tree.unflatten(tree, [put.get(i, leaf) for i, leaf in enumerate(leaves)]),
            )

        if moving:
            change = (
                change
                + jax.jvp(of, ([leaves[i] for i in moving],), ([changes[i] for i in moving],))[1]
            )
        return value, change

    return error(kernel, points, lam, jax.tree.map(_known, rest))


def _known(leaf):
    return jnp.asarray(leaf)


def _still(change) -> bool:
    """Whether nothing that is being differentiated reaches an argument."""
    return isinstance(change, jax.custom_derivatives.SymbolicZero)


def _change(primal, change):
    """A change as an array, of zeros where there is none."""
    if not _still(change):
        return change
    return (
        jnp.zeros_like(primal)
        if jnp.issubdtype(primal.dtype, jnp.inexact)
        else np.zeros(primal.shape, jax.dtypes.float0)
    )


@pytree
class Slopes:
    """The cotangents, as functions of a row."""

    solution: Solution
    seen: Seen
    inner: Float[Array, "r r"]  # t
    cross: Float[Array, "r t"]  # z
    constant: Float[Array, " r"]  # that of the mean, for a unit of weight
    corner: Float[Array, "m m"]  # that of k(points, points) in the rows of landmarks that leave

    def of_lam(self) -> Float[Array, ""]:
        """tr(R t Rᵀ K)."""
        return jnp.sum(self.inner * matmul(self.seen.shrink, self.seen.shrink.T))

    def along(self, total: Callable, at, change) -> Float[Array, ""]:
        """Along a change of the kernel and the points."""
        solution, seen = self.solution, self.seen
        f: Any = solution.factor
        labels, R = solution.labels, seen.R
        moved = lambda fn: jax.jvp(fn, at, change)

        def block(x, v, counted, y, Y):
            psi, dpsi = moved(lambda kernel, points: kernel(x, points))
            u = tall_matmul(psi, seen.R) - f.fixed.fitted(None, seen.middle)
            _, (g, a) = _of_rows(
                solution,
                total,
                matmul(u, seen.q),
                jnp.sum(u * u, axis=1),
                (v, counted, y, Y),
            )
            by_sums = (
                2 * matmul(u, self.inner) + matmul(Y - labels.mean, self.cross.T) + self.constant
            )
            by_sums = by_sums if v is None else v[:, None] * by_sums
            return jnp.sum(matmul(2 * a[:, None] * u + matmul(g, seen.q.T) + by_sums, R.T) * dpsi)

        by_rows = f.rows.sum(block, *_columns(solution), **f.hints)
        i = jnp.arange(R.shape[0])
        ridge = jnp.zeros_like(seen.lam) if f.ridge is None else f.ridge
        dK = moved(lambda kernel, points: gram(kernel, points))[1].at[i, i].multiply(1 + ridge)
        penalty = seen.lam * matmul(matmul(R, self.inner), R.T) * dK
        return by_rows + jnp.sum(
            penalty + self.corner * moved(lambda kernel, points: kernel(points, points))[1]
        )


def left_out_slopes(solution: Solution, total: Callable, lam) -> tuple[Float[Array, ""], Slopes]:
    """The sum and its slopes, from one reading of the rows after that of the moments."""
    f: Any = solution.factor
    seen = f.at(lam, solution.state)
    (r, t), dtype = seen.q.shape, f.dtype

    def block(x, v, counted, y, Y):
        u = f.seen(x, None, seen)
        value, (g, a) = _of_rows(
            solution, total, matmul(u, seen.q), jnp.sum(u * u, axis=1), (v, counted, y, Y)
        )
        return (
            value,
            gram_panels(a[:, None] * u, u),
            transposed_matmul(u, g),
            matmul(a, u),
            jnp.sum(g, axis=0),
        )

    value, panels, z, along, g = f.rows.sum(block, *_columns(solution), **f.hints)
    spent = matmul(z, seen.q.T)
    inner, mean, corner = (
        -from_panels(panels) - (spent + spent.T) / 2,
        -(2 * along + matmul(seen.q, g)),
        jnp.zeros((r, r), dtype),
    )
    if f.indices is not None:
        start = (
            jnp.zeros((r, r), dtype),
            jnp.zeros((r, t), dtype),
            jnp.zeros(r, dtype),
            f.map.raw(f.map.points),
        )
        own, pull = jax.vjp(partial(_of_landmarks, solution, seen, total), *start)
        by_inner, by_cross, by_mean, corner = pull(jnp.ones_like(own))
        value, inner, z, mean = (
            value + own,
            inner + (by_inner + by_inner.T) / 2,
            z + by_cross,
            mean + by_mean,
        )
    return value, Slopes(
        solution, seen, inner, z, mean / f.weights.total * int(f.intercept), corner
    )


def _columns(solution: Solution):
    """What the sums over rows read beside X."""
    f: Any = solution.factor
    counted = f.weights if f.indices is None else f.weights.without(f.indices)
    return f.weights.values, counted.values, solution.labels.scaled, solution.labels.Y


def _of_rows(solution: Solution, total: Callable, r, s, columns):
    """The sum over a block of rows, and its derivatives in r and s."""
    f: Any = solution.factor
    v, counted, y, Y = columns
    weights, counted = f.weights.block(v, len(s)), f.weights.block(counted, len(s))
    fitted = f.fixed.leverage(None, weights.array)

    def error(r, s):
        remaining = jnp.where(counted.used, 1 - weights.array * s - fitted, 1)
        e = weights.unscale((y - weights.scale(r)) / remaining[:, None])
        return jnp.sum(total(jnp.where(counted.used[:, None], e, 0), Y, counted.array))

    return jax.value_and_grad(error, (0, 1))(r, s)


def _of_landmarks(solution: Solution, seen: Seen, total: Callable, step, cross, mean, corner):
    """The sum over rows that are landmarks, where S, Dᵀ diag(v) y, the mean and k(points, points)
    change, the first three in the coordinates of u.
    """
    f: Any = solution.factor
    Y = solution.labels.Y[f.indices]
    A = jnp.linalg.cholesky(jnp.eye(len(step), dtype=step.dtype) + step)
    solve = partial(jax.lax.linalg.triangular_solve, A, left_side=True, lower=True)
    middle = jax.vmap(lambda middle: solve((middle + mean)[:, None])[:, 0])(seen.middle)
    moved = seen._replace(R=solve(seen.R.T).T, q=solve(seen.q + cross), middle=middle)
    v = f.weights.array[f.indices]
    d, rho, alpha, fitted, remaining = f.landmarks(moved, corner)
    residual = (solution.labels.Y - solution.labels.mean)[f.indices] - fitted
    e, _ = without_landmarks(d, rho, alpha, residual, remaining, v[:, None])
    return jnp.sum(total(e, Y, v))
