"""Groups left out of rows that lie in parts, on different devices: what U and its like need of a group is one closed form, in which the group's rows meet.

Few large groups are left out by fits to the rest, from sums over all rows: see `refits`. Else some of the rows are a problem by themselves, which has all that
was summed over the others: where each group lies in one part, those are the rows of a part, and nothing goes between parts but the sums at the end. Groups
whose rows lie anywhere meet a few at a time, on every device: a chunk of rows is a sum over parts, in which all but one add 0.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.cost import weighing_is_cheaper
from jaxrls.factors.groups import Folds
from jaxrls.factors.refits import Refits, spectral_refits
from jaxrls.factors.weights import SummedWeights, Weights
from jaxrls.rows.rows import DenseRows

# Rows of groups that meet at once where they lie anywhere.
ROWS_AT_ONCE = 8192


def apart(solution, groups: Folds, lams, refits: Refits, on_some: Callable, sizes: tuple[int, int]) -> "Refits | Parted | Scattered":
    """The way that the shapes make cheapest: for λ as columns, and for `sizes`, columns of features and r³ of a refit.

    `on_some(rows, weights, labels, indices)` is the same solution of some of the rows, with what was summed over all, and which of them are landmarks.
    """
    n, (_, b), parts, (r, cubes) = groups.rows, groups.inside.shape, solution.factor.parts, sizes
    if weighing_is_cheaper(n // parts, b, r, (lams.size, len(lams) * solution.labels.Y.shape[1]), cubes):
        return refits
    return (Parted if groups.parts == parts else Scattered)(solution, groups, on_some, refits.indices)


def spectral_apart(solution, groups: Folds, lams, decompose: Callable):
    """`apart` of a `Spectrum` of moments; `decompose` makes another of such moments."""

    def on_some(rows, weights, labels, indices):
        leaving = None if indices is None else replace(solution.factor.leaving, indices=indices)
        factor = replace(solution.factor, rows=rows, weights=weights, leaving=leaving)
        return replace(solution, factor=factor, labels=labels, base=labels.scaled)

    return apart(solution, groups, lams, spectral_refits(solution, groups, decompose), on_some, (len(solution.factor.s), 12))


class Parted(NamedTuple):
    """Groups each of which lies in one part."""

    solution: Any
    groups: Folds
    on_some: Callable
    indices: Any  # of landmarks that leave with their row

    def each(self, run: Callable) -> Any:
        """`run(solution, groups)` of the rows of each part, stacked."""
        (f, labels), groups, own = (self.solution.factor, self.solution.labels), self.groups, None
        size, among = f.n // f.parts, _whole(f.weights)

        def part(rows, some):
            (v, Y, scaled), (inside, mask, numbers), own = some
            solution = self.on_some(rows, among(v, size), replace(labels, Y=Y, scaled=scaled), own)
            return run(solution, Folds(inside % size, mask, numbers, size, 0))

        if self.indices is not None:
            here, local = _within(self.indices, _firsts(f, self.indices)[:, None], size)
            own = jnp.where(here, local, size).reshape(-1)
        columns = f.weights.values, labels.Y, labels.scaled
        return f.rows.in_parts(part, (columns, (groups.inside, groups.inside_mask, groups.numbers), own))

    def left_out(self, fn: Callable, lams) -> Any:
        """`Solution.groups_left_out`."""
        return _summed(self.each(lambda solution, groups: solution.left_out_together(fn, lams, groups)))

    def residuals(self, lams) -> Float[Array, "L n t"]:
        """`Solution.residuals`."""
        e = jnp.moveaxis(self.each(lambda solution, groups: solution.residuals_together(lams, groups)), 0, 1)
        return e.reshape(e.shape[0], -1, e.shape[3])


class Scattered(NamedTuple):
    """Groups whose rows lie anywhere."""

    solution: Any
    groups: Folds
    on_some: Callable
    indices: Any  # of landmarks that leave with their row

    @property
    def chunks(self) -> tuple[Array, Array]:
        """Row numbers and masks (chunks, groups, b), padded by groups of no rows."""
        groups, (k, b) = self.groups, self.groups.inside.shape
        together = max(1, min(k, min(ROWS_AT_ONCE, groups.rows // self.solution.factor.parts) // b))
        fill = lambda a: jnp.pad(a, ((0, -k % together), (0, 0))).reshape(-1, together, b)  # noqa: E731
        return fill(groups.inside), fill(groups.inside_mask)

    def met(self, chunk) -> tuple[Any, Folds]:
        """The solution of a chunk's rows, and its groups."""
        f, labels, (inside, mask) = self.solution.factor, self.solution.labels, chunk
        numbers, used = inside.reshape(-1), mask.reshape(-1) > 0

        def part(rows, some):
            first, columns = some
            here, local = _within(numbers, first[0], rows.shape[0])
            pick = lambda a: jnp.where(here.reshape(-1, *[1] * (a.ndim - 1)), a, 0)  # noqa: E731
            return pick(rows.take(local)), jax.tree.map(lambda a: pick(a[local]), columns)

        firsts = _firsts(f, numbers)
        x, (v, Y, scaled) = _summed(f.rows.in_parts(part, (firsts, (f.weights.values, labels.Y, labels.scaled))))
        own, size = None, len(numbers)
        if self.indices is not None:
            found = (numbers[:, None] == self.indices.astype(numbers.dtype)) & used[:, None]
            own = jnp.where(jnp.any(found, axis=0), jnp.argmax(found, axis=0), size)
        some = self.on_some(DenseRows(x), _whole(f.weights)(v, size), replace(labels, Y=Y, scaled=scaled), own)
        each = jnp.arange(size).reshape(inside.shape)
        return some, Folds(each, mask, (each // inside.shape[1]).reshape(-1), size, 0)

    def left_out(self, fn: Callable, lams) -> Any:
        """`Solution.groups_left_out`."""

        def of_chunk(chunk):
            solution, groups = self.met(chunk)
            return solution.left_out_together(fn, lams, groups)

        return _summed(jax.lax.map(jax.checkpoint(of_chunk), self.chunks))

    def residuals(self, lams) -> Float[Array, "L n t"]:
        """`Solution.residuals`."""
        f, Y = self.solution.factor, self.solution.labels.Y
        firsts = _firsts(f, self.groups.inside)

        def of_chunk(e, chunk):
            solution, groups = self.met(chunk)
            found = jnp.moveaxis(solution.residuals_together(lams, groups), 0, 1)
            numbers, used = chunk[0].reshape(-1), chunk[1].reshape(-1) > 0

            def part(rows, some):
                first, e = some
                here, local = _within(numbers, first[0], rows.shape[0])
                return e.at[jnp.where(here & used, local, rows.shape[0])].set(found, mode="drop")

            return f.rows.in_parts(part, (firsts, e)).reshape(e.shape), None

        start = jnp.broadcast_to(jnp.zeros_like(Y)[:, None], (len(Y), len(lams), Y.shape[1]))
        return jnp.moveaxis(jax.lax.scan(jax.checkpoint(of_chunk), start, self.chunks)[0], 1, 0)


def _firsts(factor, numbers) -> Any:
    """The number of the first row of every part."""
    return jnp.arange(factor.parts, dtype=numbers.dtype) * (factor.n // factor.parts)


def _within(numbers, first, size: int) -> tuple[Any, Any]:
    """Which of row numbers are in a part of so many rows from `first`, and where there."""
    local = numbers - first
    return (local >= 0) & (local < size), jnp.clip(local, 0, size - 1)


def _whole(weights: Weights) -> Callable:
    """Weights of some rows among these, whose sums are made here: inside of a part they would take all rows there."""
    sums = weights.total, weights.count, weights.log_product
    return lambda v, n: SummedWeights(v, n, weights.dtype, sums)


def _summed(stacked):
    """Over the first axis."""
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), stacked)
