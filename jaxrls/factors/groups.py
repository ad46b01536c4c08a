"""Rows that are left out together: group labels as row numbers of fixed shape."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.factors.weights import Weights
from jaxrls.support.checks import as_labels, is_concrete
from jaxrls.support.meshes import seen
from jaxrls.support.pytrees import pytree, static
from jaxrls.support.target import platform

# Of left vectors of whole groups, at each of the λ that are handled together.
NUMBERS_AT_ONCE = 2**17
# On CPUs a batch of LAPACK calls with more operations is handed to the pool of threads, by one of those threads, which waits for it: as many batches at
# a time as there are cores wait for each other for ever. Smaller ones, and single calls, are done where they are. For a group
# of b rows jaxlib counts at most b² max(b, t).
OPERATIONS_IN_PLACE = 199_999


@pytree
class Folds:
    """Row numbers by fold, padded to the largest: what leaving groups out needs of group labels, with shapes that `jax.jit` can know.

    `inside` are the rows of each group, its mask 1 where a number counts and 0 where it pads, and `numbers` the group of each row; `outside` those of all
    others, made when asked for.

    >>> import jaxrls as rls
    >>> rls.folds(["a", "b", "a"]).inside_mask.tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """

    inside: Int[Array, "k b"]
    inside_mask: Float[Array, "k b"]
    numbers: Int[Array, " n"]
    rows: int = static()
    smallest: int = static()
    parts: int = static(default=1)  # see `in_parts`

    @property
    def most_outside(self) -> int:
        """How many rows the smallest group leaves."""
        return self.rows - self.smallest

    def others(self, inside, mask):
        """The rows outside of one group, and their mask: padded by rows of its own."""
        member = jnp.zeros(self.rows, mask.dtype).at[inside].max(mask)
        rows = jnp.argsort(member, stable=True)[: self.most_outside]
        return rows, 1 - member[rows]

    def in_parts(self, parts: int) -> "Folds":
        """The same groups in the order of equal parts of the rows, as many for each part, where each lies in one; else as they are.

        Parts with fewer groups than others have groups of no rows at their end.
        """
        inside, mask, numbers = map(np.asarray, (self.inside, self.inside_mask, self.numbers))
        size = max(1, self.rows // parts)
        place = inside[:, 0] // size
        if self.rows % parts or (inside // size != place[:, None]).any():
            return self
        counts, order = np.bincount(place, minlength=parts), np.argsort(place, kind="stable")
        first = np.arange(parts) * counts.max() - np.cumsum(counts) + counts  # by how many places the groups of each part move
        new = np.empty_like(order)
        new[order] = np.arange(len(order)) + first[place[order]]
        rows = np.repeat(np.arange(parts, dtype=inside.dtype) * size, counts.max())[:, None].repeat(inside.shape[1], axis=1)
        used = np.zeros(rows.shape, mask.dtype)
        rows[new], used[new] = inside, mask
        return _folds(rows, used, new[numbers], self.rows, self.smallest, parts)

    @property
    def outside(self) -> Int[Array, "k a"]:
        """`others` of every group."""
        return jax.vmap(self.others)(self.inside, self.inside_mask)[0]

    @property
    def outside_mask(self) -> Float[Array, "k a"]:
        """Their masks."""
        return jax.vmap(self.others)(self.inside, self.inside_mask)[1]


def folds(groups) -> Folds:
    """Read group labels into `Folds`: on the host, before `jax.jit`.

    **Arguments**: `groups` (n,), any labels; rows of equal label are left out together. **Raises** `ValueError` unless there are
    at least two groups, none missing, or inside `jax.jit`. **Cost** O(n log n). **Source**: as `kfold`.

    >>> folds([0, 1, 0]).inside.tolist()
    [[0, 2], [1, 1]]
    """
    if not is_concrete(groups):
        raise ValueError("groups has no values inside jax.jit: call jaxrls.folds(groups) outside, and pass its result")
    groups = as_labels("groups", groups)
    labels, member = np.unique(groups, return_inverse=True)
    if len(labels) < 2:
        raise ValueError(f"groups holds one label only, {labels.tolist()[0]!r}: leaving it out would leave nothing to fit")
    inside = np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])
    return _folds(*_pad(inside), member, groups.size, min(map(len, inside)))


def _folds(inside, mask, numbers, *sizes) -> Folds:
    """From NumPy arrays."""
    with jax.ensure_compile_time_eval():  # known inside of jax.jit too
        return Folds(jnp.asarray(inside), jnp.asarray(mask), jnp.asarray(numbers.astype(np.int32)), *sizes)


def _pad(lists) -> tuple[np.ndarray, np.ndarray]:
    width = max(map(len, lists))
    index = np.stack([np.pad(rows, (0, width - len(rows)), mode="edge") for rows in lists])
    return index.astype(np.int32), np.stack([np.arange(width) < len(rows) for rows in lists]).astype(np.float32)


# what is left ----------------------------------------------------------------------------------------------------------------


def has_rest(weights: Weights, groups: Folds | None) -> Bool[Array, " k"]:
    """Whether any weight is left with each group out, or each row: without, an intercept cannot be fitted."""
    return _has_rest(jnp, weights.array > 0, groups)


def _has_rest(xp: Any, used, groups):
    """Of JAX or NumPy arrays: of groups by the first and the last that has weight, which rows on several devices tell in two numbers."""
    if groups is None:
        return (used.sum() > 1) | (used.sum() > 0) & ~used
    count = len(groups.inside)
    first, last = xp.where(used, groups.numbers, count).min(), xp.where(used, groups.numbers, -1).max()
    return (first < last) | (first < count) & (xp.arange(count, dtype=first.dtype) != first)


def check_rest(weights: Weights, groups: Folds | None) -> None:
    """Raise where leaving a group out, or a row, leaves no weight to fit an intercept to (where values are known)."""
    if not is_concrete(weights, groups) or weights.values is None and (groups is not None or weights.n > 1):
        return
    if groups is None and weights.values is not None and seen(lambda xp, v: xp.count_nonzero(v > 0), weights.values) > 1:
        return
    values = np.ones(weights.n) if weights.values is None else weights.values
    host = jax.tree.map(np.asarray, groups)  # also where jit sees these values from outside
    empty = np.flatnonzero(~seen(lambda xp, v: _has_rest(xp, v > 0, host), values))
    if empty.size:
        raise ValueError(
            f"{named(host, int(empty[0]))} holds all of the weight: with it left out no row of positive weight remains to fit an intercept to; "
            "give other rows weight, or take intercept=False"
        )


def named(groups: Folds | None, i: int) -> str:
    """A row, or a group by its first rows, in words."""
    if groups is None:
        return f"row {i}"
    rows = groups.inside[i][groups.inside_mask[i] > 0]
    return f"the group of row{'s' * (len(rows) > 1)} " + ", ".join(map(str, rows[:5])) + ", …" * (len(rows) > 5)


def check_pairs_rest(weights: Weights) -> None:
    """Raise where a pair of rows holds all of the weight (where values are known)."""
    if not is_concrete(weights):
        return
    used = weights.n if weights.values is None else int(seen(lambda xp, v: xp.count_nonzero(v > 0), weights.values))
    if used < 3:
        raise ValueError(
            f"X has {used} row{'s' * (used != 1)} of positive weight: leaving two out with an intercept takes three, or intercept=False"
        )


def groups_together(b: int, r: int, t: int, lams: int = 1) -> int:
    """How many groups of b rows, seen through r columns, are handled at once, at so many λ."""
    most = max(1, NUMBERS_AT_ONCE // (b * r))
    return most if platform() != "cpu" else max(1, min(most, OPERATIONS_IN_PLACE // (lams * b * b * max(b, t))))


def over_groups(group: Callable, inside, mask, most: int):
    """`group(rows, mask)` of every group, `most` at once."""
    if most >= inside.shape[0]:
        return jax.vmap(group)(inside, mask)
    return jax.lax.map(lambda fold: group(*fold), (inside, mask), batch_size=most)
