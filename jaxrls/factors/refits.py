"""Groups left out by fits to the rest that read every row where it lies: rows of the group weigh nothing in the sums that a fit is made of.

A row of weight 0 was never there, so that a fit with the weights of a group at 0 is the fit without it, and what its rows are held to is y − f. No row is
brought to another: of rows on several devices sums alone go between them, for each group those that a fit takes. That is two readings of all rows a group,
where the closed form solves systems of as many equations as a group has rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.contract import over_lams, times
from jaxrls.factors.cost import weighing_is_cheaper
from jaxrls.factors.groups import Folds
from jaxrls.factors.outcome import Coefficients
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.inner import Linear
from jaxrls.linalg.products import matmul
from jaxrls.rows.moments import moments, near_mean
from jaxrls.rows.rows import Rows


class Refits(NamedTuple):
    """A solution, its rows, what coefficients multiply of a block of them, and `without(weights, gone)`.

    That is a function of λ that gives the `Coefficients` of a fit with other weights, in which landmarks go where `gone` (m,) is 1; None where none leave.
    """

    solution: Any
    rows: Rows
    design: Callable
    without: Callable
    indices: Any  # of landmarks that leave with their row
    hints: dict

    def cheaper(self, groups: Folds, count: int, r: int, cubes: int) -> bool:
        """Than the closed form, at so many λ, for rows that lie in parts; by shapes."""
        n, b, columns = self.rows.shape[0], groups.inside.shape[1], (count, self.solution.labels.Y.shape[1])
        return self.rows.parts > 1 and weighing_is_cheaper(n // self.rows.parts, b, r, columns, cubes)

    def each(self, groups: Folds, lams) -> Callable:
        """The coefficients without a group, by its number."""
        v = self.solution.factor.weights
        brought = None if self.indices is None else groups.numbers[self.indices]

        def without(k) -> Coefficients:
            rest = Weights(jnp.where(groups.numbers == k, 0, v.array), v.n, v.dtype)
            return self.without(rest, None if brought is None else (brought == k).astype(v.dtype))(lams)

        return without

    def left_out(self, fn: Callable, lams, groups: Folds) -> Any:
        """`Solution.groups_left_out`."""
        without, labels, weights = self.each(groups, lams), self.solution.labels.Y, self.solution.factor.weights

        def of_group(k):
            found = without(k)

            def block(x, v, y, numbers):
                A, held = self.design(x), jnp.where(numbers == k, weights.block(v, x.shape[0]).array, 0)
                at = lambda found: jax.vmap(fn, in_axes=(1, None, None))(errors(A, y, *found), y, held)  # noqa: E731
                return over_lams(at, found, y.shape[1])

            return self.rows.sum(block, weights.values, labels, groups.numbers, **self.hints)

        each = jax.lax.map(jax.checkpoint(of_group), jnp.arange(len(groups.inside)))
        return jax.tree.map(lambda a: jnp.sum(a, axis=0), each)

    def residuals(self, lams, groups: Folds) -> Float[Array, "L n t"]:
        """`Solution.residuals`."""
        without, Y = self.each(groups, lams), self.solution.labels.Y

        def of_group(e, k):
            found = without(k)

            def block(x, y, numbers, e):
                return jnp.where((numbers == k)[:, None, None], errors(self.design(x), y, *found), e)

            return self.rows.map(block, Y, groups.numbers, e, **self.hints), None

        start = jnp.broadcast_to(jnp.zeros_like(Y)[:, None], (len(Y), len(lams), Y.shape[1]))
        return jnp.moveaxis(jax.lax.scan(jax.checkpoint(of_group), start, jnp.arange(len(groups.inside)))[0], 1, 0)


def errors(
    A: Float[Array, "b p"], y: Float[Array, "b t"], coef: Float[Array, "L p t"], intercept: Float[Array, "L t"]
) -> Float[Array, "b L t"]:
    """y − f of a block."""
    return y[:, None] - times(A, jnp.moveaxis(coef, 0, 1)) - intercept


def spectral_refits(solution, groups: Folds, count: int, decompose: Callable) -> Refits | None:
    """Those of a `Spectrum` of moments, in its own features ψ = U√s/√v, where they are the way; `decompose` makes another of such moments."""
    f, indices = solution.factor, None if solution.factor.leaving is None else solution.factor.leaving.indices

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

    made = Refits(solution, f.rows, lambda rows: rows - f.centre, without, indices, {"block_size": f.whole})
    return made if made.cheaper(groups, count, len(f.s), 12) else None
