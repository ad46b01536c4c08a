"""Groups left out by fits to the rest: of a copy of the rest, or from sums over all rows in which those of the group weigh nothing.

A row of weight 0 was never there, so that a fit with the weights of a group at 0 is the fit without it, and what its rows are held to is y − f. No row is
brought to another: of rows on several devices sums alone go between them, for each group those that a fit takes. That is two or three readings of all rows a
group, where the closed form solves systems of as many equations as a group has rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.contract import over_lams, times
from jaxrls.factors.groups import Folds
from jaxrls.factors.outcome import Coefficients
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.inner import Linear
from jaxrls.linalg.products import matmul
from jaxrls.rows.moments import moments, near_mean
from jaxrls.rows.rows import DenseRows, Rows


class Refits(NamedTuple):
    """A solution, the groups, its rows, what coefficients multiply of a block of them, and `without(weights, gone)`.

    That is a function of λ that gives the `Coefficients` of a fit with other weights, in which landmarks go where `gone` (m,) is 1; None where none leave.
    """

    solution: Any
    groups: Folds
    rows: Rows
    design: Callable
    without: Callable
    indices: Any  # of landmarks that leave with their row
    hints: dict

    @property
    def every(self) -> Any:
        """The numbers of all groups."""
        return jnp.arange(len(self.groups.inside), dtype=self.groups.numbers.dtype)

    def each(self, lams) -> Callable:
        """The coefficients without a group, by its number."""
        v, numbers = self.solution.factor.weights, self.groups.numbers
        brought = None if self.indices is None else numbers[self.indices]

        def without(k) -> Coefficients:
            rest = Weights(jnp.where(numbers == k, 0, v.array), v.n, v.dtype)
            return self.without(rest, None if brought is None else (brought == k).astype(v.dtype))(lams)

        return without

    def left_out(self, fn: Callable, lams) -> Any:
        """`Solution.groups_left_out`."""
        without, labels, weights = self.each(lams), self.solution.labels.Y, self.solution.factor.weights

        def of_group(k):
            found = without(k)

            def block(x, v, y, numbers):
                A, held = self.design(x), jnp.where(numbers == k, weights.block(v, x.shape[0]).array, 0)
                at = lambda found: jax.vmap(fn, in_axes=(1, None, None))(errors(A, y, *found), y, held)  # noqa: E731
                return over_lams(at, found, y.shape[1])

            return self.rows.sum(block, weights.values, labels, self.groups.numbers, **self.hints)

        each = jax.lax.map(jax.checkpoint(of_group), self.every)
        return jax.tree.map(lambda a: jnp.sum(a, axis=0), each)

    def residuals(self, lams) -> Float[Array, "L n t"]:
        """`Solution.residuals`."""
        without, Y = self.each(lams), self.solution.labels.Y

        def of_group(e, k):
            found = without(k)

            def block(x, y, numbers, e):
                return jnp.where((numbers == k)[:, None, None], errors(self.design(x), y, *found), e)

            return self.rows.map(block, Y, self.groups.numbers, e, **self.hints), None

        start = jnp.broadcast_to(jnp.zeros_like(Y)[:, None], (len(Y), len(lams), Y.shape[1]))
        return jnp.moveaxis(jax.lax.scan(jax.checkpoint(of_group), start, self.every)[0], 1, 0)


def errors(
    A: Float[Array, "b p"], y: Float[Array, "b t"], coef: Float[Array, "L p t"], intercept: Float[Array, "L t"]
) -> Float[Array, "b L t"]:
    """y − f of a block."""
    return y[:, None] - times(A, jnp.moveaxis(coef, 0, 1)) - intercept


def spectral_refits(solution, groups: Folds, decompose: Callable) -> Refits:
    """Those of a `Spectrum` of moments, in its own features ψ = U√s/√v; `decompose` makes another of such moments."""
    f = solution.factor

    def without(rest: Weights, gone):
        turn = f.rotation * jnp.sqrt(f.s)
        turn = turn if gone is None else f.leaving.taken_out(turn, gone)
        labels = Labels.columns(solution.labels.Y, rest, f.intercept, False)
        origin = near_mean(f.rows, Linear(), rest.values) if f.intercept else f.centre
        sums = moments(f.rows, Linear(), labels.Y, rest.values, origin=origin, label_origin=labels.mean).turned(turn, f.centre)
        found = decompose(f.rows, sums, rest, f.intercept).solve_moments(labels, sums)

        def at(lams):
            coef, intercept = found.coefficients(lams)
            return Coefficients(matmul(turn, coef), intercept)

        return at

    indices = None if f.leaving is None else f.leaving.indices
    return Refits(solution, groups, f.rows, lambda rows: rows - f.centre, without, indices, {"block_size": f.whole})


class Rests(NamedTuple):
    """A `Spectrum` with labels, the groups, and what solves a copy of the rest: `of_kernel` of K = ψψᵀ, where it is dual, or `of_features` of ψ = U√s/√v."""

    solution: Any
    groups: Folds
    of_kernel: Callable
    of_features: Callable

    def each(self, reach: Float[Array, "n r"]) -> Callable:
        """A function of one group, its rows and their mask, that gives one of λ: residuals (L, b, t), of rows whose U/√v is known."""
        f, Y, weights = self.solution.factor, self.solution.labels.Y, self.solution.factor.weights.array
        # The barrier keeps the compiler from multiplying the matrices of a factor that a program holds as constants, which would take it minutes.
        features = jax.lax.optimization_barrier(reach * jnp.sqrt(f.s))
        K = matmul(features, features.T) if f.basis is None else None

        def without(fold):
            (inside, mask), (outside, outside_mask) = fold, self.groups.others(*fold)
            rest = Weights(weights[outside] * outside_mask.astype(f.dtype), outside.shape[0], f.dtype)
            known = Labels.columns(Y[outside], rest, f.intercept, False)
            if K is None:
                left = f.leaving.taken_out(features, f.leaving.among(inside, mask, f.n)) if f.leaving else features
                design, seen = left[inside], self.of_features(DenseRows(left[outside]), known, rest, f.intercept)
            else:
                design, part = K[inside][:, outside], K[outside][:, outside]
                seen = self.of_kernel(part, rest, f.intercept, f.expansion, "gram", semidefinite=True).solve_labels(known)

            def at(lams):
                coef, intercept = seen.coefficients(lams)
                return Y[inside][None] - matmul(design, coef) - intercept[:, None, :]

            return at

        return without

    def left_out(self, fn: Callable, lams) -> Any:
        """`Solution.groups_left_out`."""
        f, Y, weights = self.solution.factor, self.solution.labels.Y, self.solution.factor.weights.array
        without = self.each(f.weights.unscale(f.left_vectors()))  # of rows of weight 0, which count for nothing here, it is not known

        def of_group(fold):
            at, inside, held = without(fold), fold[0], weights[fold[0]] * fold[1].astype(weights.dtype)
            return over_lams(lambda lams: jax.vmap(fn, in_axes=(0, None, None))(at(lams), Y[inside], held), lams, Y.shape[1])

        each = jax.lax.map(of_group, (self.groups.inside, self.groups.inside_mask))
        return jax.tree.map(lambda a: jnp.sum(a, axis=0), each)

    def residuals(self, lams) -> Float[Array, "L n t"]:
        """`Solution.residuals`."""
        f, Y, (inside, mask) = self.solution.factor, self.solution.labels.Y, (self.groups.inside, self.groups.inside_mask)
        without = self.each(f.left_vectors() if f.weights.values is None else f.reach())
        e = jax.lax.map(lambda fold: without(fold)(lams), (inside, mask))
        held = jnp.moveaxis(e, 0, 1).reshape(len(lams), -1, Y.shape[1]) * mask.reshape(-1, 1).astype(Y.dtype)
        return jnp.zeros((len(lams), *Y.shape), Y.dtype).at[:, inside.reshape(-1)].add(held)
