"""Folds: rows that are left out together, as row numbers in arrays of fixed shape."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.support import as_labels, is_concrete, pytree


@pytree
class Folds:
    """Rows that are left out together, by fold: what `folds` makes of group labels.

    Args:
        inside: row numbers (k, b) of each of k folds, padded to the b rows of the largest.
        inside_mask: (k, b), 1 for a row of the fold, 0 for padding.
        numbers: the fold of each row, (n,).

    >>> import jaxrls as rls
    >>> rls.folds(["a", "b", "a"]).inside_mask.tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """

    inside: Int[Array, "k b"]
    inside_mask: Float[Array, "k b"]  # 0 where a row number pads
    numbers: Int[Array, " n"]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.numbers.shape[0]

    def sums(self, A: Float[Array, "n *t"] | Int[Array, " n"]) -> Any:
        """Sums over the rows of each fold, (k, …)."""
        return jax.ops.segment_sum(A, self.numbers, len(self.inside))

    def as_rows(self, A: Float[Array, "k b *t"]) -> Float[Array, "n *t"]:
        """What is known of the rows of every fold, in the order of the rows."""
        rows = jnp.where(self.inside_mask > 0, self.inside, self.rows)  # without padding
        return jnp.zeros((self.rows, *A.shape[2:]), A.dtype).at[rows].set(A, mode="drop")


def folds(groups) -> Folds:
    """Turn group labels into `Folds`, which can be passed into `jax.jit`; call it outside.

    Args:
        groups: (n,) labels of any kind; rows of equal label are left out together. `Folds` are
            returned as they are.

    Returns:
        The `Folds`, which `kfold` and `fit(groups=…)` take in place of the labels.

    Raises:
        ValueError: unless there are at least two groups, none missing, or inside `jax.jit`.

    **Cost** O(n log n). **Source**: as `kfold`.

    >>> folds([0, 1, 0]).inside.tolist()
    [[0, 2], [1, 1]]
    """
    if isinstance(groups, Folds):
        return groups
    if not is_concrete(groups):
        raise ValueError(
            "groups has no values inside jax.jit: call jaxrls.folds(groups) outside, and pass its "
            "result"
        )
    if isinstance(groups, int):
        raise ValueError(
            f"groups must be labels (n,), one per row of X, and is {groups}: for so many folds "
            f"give np.random.default_rng(0).permutation(n) % {groups}"
        )
    groups = as_labels("groups", groups)
    labels, member = np.unique(groups, return_inverse=True)
    if len(labels) < 2:
        raise ValueError(
            f"groups holds one label only, {labels.tolist()[0]!r}: leaving it out would leave "
            "nothing to fit"
        )
    inside = np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])
    width = max(map(len, inside))
    numbers = np.stack([np.pad(rows, (0, width - len(rows)), mode="edge") for rows in inside])
    mask = np.stack([np.arange(width) < len(rows) for rows in inside])
    with jax.ensure_compile_time_eval():  # known inside of jax.jit too
        made = numbers.astype(np.int32), mask.astype(np.float32), member.astype(np.int32)
        return Folds(*map(jnp.asarray, made))


def as_folds(groups, n: int, count: int | None = None) -> Folds:
    """`Folds` of n rows from labels or `Folds`. Where they are for the first `count` rows, the
    others are padding of weight 0, put into the group of the last.
    """
    made = folds(groups)
    if made.rows == count and made.rows < n and is_concrete(made):
        made = folds(np.pad(np.asarray(made.numbers), (0, n - made.rows), "edge"))
    if made.rows != n:
        wanted = n if count is None else count
        raise ValueError(f"groups must have {wanted} labels, one per row of X, and has {made.rows}")
    return made


def named(groups: Folds | None, i: int) -> str:
    """A row, or a fold by its first rows, in words for messages."""
    if groups is None:
        return f"row {i}"
    rows = np.flatnonzero(np.asarray(groups.numbers) == i)
    first = ", ".join(map(str, rows[:5])) + ", …" * (len(rows) > 5)
    return f"the group of row{'s' * (len(rows) > 1)} {first}"
