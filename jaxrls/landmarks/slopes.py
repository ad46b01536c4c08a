"""Differentiate the held-out error on landmarks in closed form.

`jax.grad` of it costs two passes over the rows. Derivatives of every single step would cost three
passes, and twice as many products. The value and all derivatives are those of `plain_error`; tests
compare the two.

Let C = k(X, points), Ψ = C − mean, S = Ψᵀ diag(v) Ψ + λK_RR = FFᵀ. K_RR is k(points, points) with
jitter: its diagonal is multiplied by 1 + jitter, a constant. Here F = LA, with LLᵀ = K_RR and A as
for all factors on features φ = L⁻¹ψ: AAᵀ = Φᵀ diag(v) Φ + λI. A row has the coordinates uᵢ, row i
of U = ΨF⁻ᵀ, and the labels y − ȳ have the coordinates ℓ = Uᵀ diag(v) (y − ȳ). The error of a row is
a function of rᵢ = uᵢℓ, its fitted value, and of sᵢ = |uᵢ|². Its leverage is vᵢsᵢ plus the part of
the fixed effects, which depends on the weights alone. Let g and a be the derivatives of the error
in r and s. With z = Uᵀg, w = Uᵀ diag(a) U and T = −w − ½(zℓᵀ + ℓzᵀ), the cotangents are:

    of S:     F⁻ᵀ T F⁻¹
    of Ψᵢ:    F⁻ᵀ (2aᵢuᵢ + ℓgᵢ + vᵢ(2Tuᵢ + z(yᵢ − ȳ)))
    of K_RR:  λ F⁻ᵀ T F⁻¹

With an intercept the mean is subtracted from every row, so its cotangent is −Σᵢ F⁻ᵀ(2aᵢuᵢ + ℓgᵢ).
The other terms of Ψᵢ add up to 0, because Σ vᵢuᵢ = 0 and Σ vᵢ(yᵢ − ȳ) = 0. The mean is Σ vᵢCᵢ/Σ v.
So the cotangent of Cᵢ is that of Ψᵢ plus vᵢ/Σ v times that of the mean.

Rows that are landmarks have another error, because their landmark is held out with them. It is a
function of k(points, points), of S, of Ψᵀ diag(v) y and of the mean: `landmarks_error`, in the
coordinates u, in which S is I. JAX differentiates it, which is cheap. The derivatives in S,
Ψᵀ diag(v) y and the mean are added to T, z and the cotangent of the mean.

In the code F⁻ᵀ is `maps.row_map`, A⁻¹ is `maps.inverse_A` and ℓ is `maps.of_labels`. No Cholesky
factor of S or K_RR is differentiated, nor L⁻ᵀ. Derivatives of higher order differentiate these
formulas.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import DataBlock, Weights, gram
from jaxrls.core.factors import CoordinateMaps, HeldOut, RowLabels, Solution, Summand
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number, from_panels, gram_panels, matmul, transposed_matmul
from jaxrls.landmarks.cholesky import CholeskyLandmarks
from jaxrls.landmarks.dictionary import keeps_rows


def plain_error(
    solve: Callable, summand: Summand, kernel: Kernel, points: Any, lam: Number, rest: Any
) -> Float[Array, ""]:
    """Compute the sum over targets of `summand` of the held-out residuals at one λ.

    The residuals are those of the solution `solve(kernel, points, rest)` on landmarks.
    """
    return jnp.sum(solve(kernel, points, rest).sum_held_out(summand, lam[None], None))


def left_out_sum(
    solve: Callable,
    summand: Summand,
    kernel: Kernel,
    points: Any,
    lam: Float[Array, ""],
    rest: Any,
) -> Float[Array, ""]:
    """Compute `plain_error`, with derivatives in closed form except in `rest`."""
    error = jax.custom_jvp(partial(plain_error, solve, summand))

    @partial(error.defjvp, symbolic_zeros=True)
    def rule(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
        kernel, points, lam, rest = primals
        slopes = slopes_of(solve(kernel, points, rest), summand, lam)
        *moved, by_lam, by_rest = _changes(primals, tangents)
        change = slopes.of_lam * by_lam
        if _moves(tangents[:2]):
            change = change + slopes.along((kernel, points), tuple(moved))
        if _moves(tangents[3]):
            of_rest = partial(plain_error, solve, summand, kernel, points, lam)
            change = change + jax.jvp(of_rest, (rest,), (by_rest,))[1]
        return slopes.sums.value, change

    return error(kernel, points, *jax.tree.map(jnp.asarray, (lam, rest)))


def _is_constant(change: Any) -> bool:
    """Whether this is the tangent of an argument that no differentiated variable changes."""
    return isinstance(change, jax.custom_derivatives.SymbolicZero)


def _moves(changes: Any) -> bool:
    """Whether the differentiated variables change any argument, given the tangents."""
    return not all(map(_is_constant, jax.tree.leaves(changes)))


def _changes(primals: tuple, changes: tuple) -> tuple:
    """Return tangents as arrays, with zeros for constant arguments."""
    zero = jax.custom_derivatives.zero_from_primal
    filled = lambda primal, change: zero(primal) if _is_constant(change) else change
    return jax.tree.map(filled, primals, changes)


class RowErrors(NamedTuple):
    """The sum of the errors over a block of rows, with its derivatives g in r and a in s."""

    value: Float[Array, ""]
    g: Float[Array, "b t"]
    a: Float[Array, " b"]


class ErrorSums(NamedTuple):
    """The error and its cotangents in the coordinates u, as sums over rows."""

    value: Float[Array, ""]
    of_S: Float[Array, "m m"]  # T above
    z: Float[Array, "m t"]  # of Ψᵀ diag(v) y
    of_mean: Float[Array, " m"]  # of the mean of Ψ


class Slopes(NamedTuple):
    """The error at λ and its cotangents in the coordinates u, from one pass over the rows."""

    solution: Solution
    summand: Summand
    lam: Float[Array, ""]
    maps: CoordinateMaps
    u: Any  # of all rows, kept for the second pass if memory holds it, else None
    sums: ErrorSums
    of_mean: Float[Array, " m"]  # per unit of weight
    of_corner: Float[Array, "m m"]  # of k(points, points), for rows that are landmarks

    @property
    def of_lam(self) -> Float[Array, ""]:
        """The derivative in λ, tr K_RR F⁻ᵀ T F⁻¹ = tr T A⁻¹A⁻ᵀ."""
        inverse_A = self.maps.inverse_A
        return jnp.sum(self.sums.of_S * matmul(inverse_A, inverse_A.T))

    def of_kernel_rows(
        self, psi: Float[Array, "b m"], weights: Weights, part: "RowParts"
    ) -> Float[Array, "b m"]:
        """Compute the cotangents of rows k(x, points)."""
        factor = self.solution.factor
        of_labels = self.maps.of_labels
        u = factor.coordinates(psi, None, self.maps) if part.u is None else part.u
        errors = row_errors(factor, self.summand, of_labels, weights, part._replace(u=u))
        about = part.labels.Y - self.solution.labels.by_effects
        by_errors = 2 * errors.a[:, None] * u + matmul(errors.g, of_labels.T)
        by_sums = 2 * matmul(u, self.sums.of_S) + matmul(about, self.sums.z.T) + self.of_mean
        return matmul(by_errors + weights.times(by_sums), self.maps.row_map.T)

    def along(self, start: tuple, change: tuple) -> Float[Array, ""]:
        """Compute the derivative along a change of (kernel, points), by one more pass over rows."""
        factor = self.solution.factor
        row_map = self.maps.row_map
        moved = lambda fn: jax.jvp(fn, start, change)

        def of_block(block: DataBlock) -> Number:
            psi, psi_moved = moved(lambda kernel, points: kernel(block.x, points))
            return jnp.sum(self.of_kernel_rows(psi, block.weights, block.added) * psi_moved)

        parts = RowParts(self.u, factor.labels_of_rows(self.solution))
        of_rows = factor.data.sum(of_block, parts, **factor.hints)
        i = jnp.arange(len(row_map))
        jitter = factor.report.jitter
        K_moved = moved(gram)[1].at[i, i].multiply(1 + jitter)
        of_S = matmul(matmul(row_map, self.sums.of_S), row_map.T)
        of_penalty = jnp.sum(self.lam * of_S * K_moved)
        corner_moved = moved(lambda kernel, points: kernel(points, points))[1]
        return of_rows + of_penalty + jnp.sum(self.of_corner * corner_moved)


class RowParts(NamedTuple):
    """What the errors of a block of rows depend on besides its `DataBlock`."""

    u: Any  # coordinates, or None to compute them anew
    labels: RowLabels


def row_errors(
    factor: CholeskyLandmarks,
    summand: Summand,
    of_labels: Float[Array, "m t"],
    weights: Weights,
    part: RowParts,
) -> RowErrors:
    """Compute the errors of a block of rows from their coordinates u."""
    u = part.u
    labels = part.labels
    counted = factor.weights.block(labels.counted, len(u))
    h = factor.fixed.leverage(None, weights.array)

    def error(r: Float[Array, "b t"], s: Float[Array, " b"]) -> Number:
        remaining = jnp.where(counted.used, 1 - weights.array * s - h, 1)
        e = weights.unscale((labels.scaled - weights.scale(r)) / remaining[:, None])
        e = jnp.where(counted.used[:, None], e, 0)
        return jnp.sum(summand(HeldOut(e, None, labels.Y, counted.array)))

    value, (g, a) = jax.value_and_grad(error, (0, 1))(matmul(u, of_labels), jnp.sum(u * u, axis=1))
    return RowErrors(value, g, a)


def slopes_of(solution: Solution, summand: Summand, lam: Number) -> Slopes:
    """Compute the error and its cotangents, by one pass over the rows after that for moments."""
    factor: CholeskyLandmarks = solution.factor
    maps = factor.maps_at(lam, solution.state)
    u, sums = sums_of_rows(solution, maps, summand)
    of_corner = jnp.zeros_like(sums.of_S)
    if factor.indices is not None:
        unmoved = Moved(*jax.tree.map(jnp.zeros_like, (sums.of_S, sums.z, sums.of_mean)))
        corner = factor.feature_map.design(factor.feature_map.points)
        of_landmarks = partial(landmarks_error, solution, maps, summand)
        value, pull = jax.vjp(of_landmarks, unmoved, corner)
        of_moved, of_corner = pull(jnp.ones_like(value))
        sums = ErrorSums(
            value=sums.value + value,
            of_S=sums.of_S + (of_moved.S + of_moved.S.T) / 2,
            z=sums.z + of_moved.labels,
            of_mean=sums.of_mean + of_moved.mean,
        )
    of_mean = sums.of_mean / factor.weights.total * int(factor.intercept)
    return Slopes(
        solution=solution,
        summand=summand,
        lam=lam,
        maps=maps,
        u=u,
        sums=sums,
        of_mean=of_mean,
        of_corner=of_corner,
    )


def sums_of_rows(
    solution: Solution, maps: CoordinateMaps, summand: Summand
) -> tuple[Any, ErrorSums]:
    """Return u and the sums over the rows that are no landmarks.

    u is None if memory would not hold it.
    """
    factor = solution.factor
    of_labels = maps.of_labels
    rows = factor.data.rows
    itemsize = jnp.dtype(factor.dtype).itemsize
    coordinates = lambda block: factor.coordinates_of_block(block._replace(b=None), maps)
    keeps = keeps_rows(rows.shape[0] // rows.shards, len(of_labels), itemsize)
    u = factor.data.map(coordinates, **factor.hints) if keeps else None

    def of_block(block: DataBlock) -> tuple:
        part: RowParts = block.added
        u = coordinates(block) if part.u is None else part.u
        value, g, a = row_errors(factor, summand, of_labels, block.weights, part._replace(u=u))
        sums = transposed_matmul(u, g), matmul(a, u), jnp.sum(g, axis=0)
        return value, gram_panels(a[:, None] * u, u), *sums

    parts = RowParts(u, factor.labels_of_rows(solution))
    value, w, z, by_a, g = factor.data.sum(of_block, parts, **factor.hints)
    both = matmul(z, of_labels.T)
    T = -from_panels(w) - (both + both.T) / 2
    of_mean = -(2 * by_a + matmul(of_labels, g))
    return u, ErrorSums(value=value, of_S=T, z=z, of_mean=of_mean)


class Moved(NamedTuple):
    """Changes of S, of Ψᵀ diag(v) y and of the mean, in the coordinates u."""

    S: Float[Array, "m m"]
    labels: Float[Array, "m t"]
    mean: Float[Array, " m"]


def landmarks_error(
    solution: Solution,
    maps: CoordinateMaps,
    summand: Summand,
    moved: Moved,
    corner: Float[Array, "m m"],
) -> Float[Array, ""]:
    """Compute the sum of the errors over the rows that are landmarks.

    It is a function of `corner`, which is k(points, points), and of changes of the sums over rows.
    In the coordinates u, S is I plus its change.
    """
    factor: CholeskyLandmarks = solution.factor
    root = jnp.linalg.cholesky(jnp.eye(len(moved.S), dtype=corner.dtype) + moved.S)
    by_inverse = partial(jax.lax.linalg.triangular_solve, root, left_side=True, lower=True)
    maps = maps._replace(
        row_map=by_inverse(maps.row_map.T).T,
        of_labels=by_inverse(maps.of_labels + moved.labels),
        fixed_map=by_inverse((maps.fixed_map + moved.mean).T).T,
    )
    e, _ = factor.left_out_by(solution, maps, corner)
    Y = solution.labels.Y[factor.indices]
    v = factor.weights.array[factor.indices]
    return jnp.sum(summand(HeldOut(e, None, Y, v)))
