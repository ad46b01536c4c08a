"""Folds: rows that are left out together, as row numbers in arrays of fixed shape.

Folds come from group labels or from splits (train, test). A group predicts the rows that it leaves
out, and each row is in one group. A split may leave out more rows than it predicts. Begin with
`folds` and the class `Folds`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data.weights import Weights
from jaxrls.core.support import (
    as_labels,
    check_row_numbers,
    on_device,
    pytree,
    require_values,
    static,
    with_index,
)


@pytree
class Folds:
    """The rows that each of k folds leaves out together, as `folds` makes them.

    Args:
        left_out: (k, b), the numbers of the rows that each fold leaves out, padded to the b rows of
            the largest fold.
        left_out_mask: (k, b), 1 for a row that the fold leaves out, 0 for padding.
        predicted_by: (n,), the number of the fold that predicts each row; k for a row that no fold
            predicts.
        most_trained: the number of training rows of the largest split; None for groups.

    >>> import jaxrls as rls
    >>> rls.folds(["a", "b", "a"]).left_out_mask.tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """

    left_out: Int[Array, "k b"]
    left_out_mask: Float[Array, "k b"]
    predicted_by: Int[Array, " n"]
    most_trained: int | None = static(default=None)
    index: ClassVar[Any] = None  # the pandas index of the labels; see `with_index`

    @property
    def are_groups(self) -> bool:
        """Whether the folds are groups, which predict exactly the rows that they leave out."""
        return self.most_trained is None

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.predicted_by.shape[0]

    @property
    def width(self) -> int:
        """The number b of rows of the largest fold."""
        return self.left_out.shape[1]

    @property
    def fold_numbers(self) -> Int[Array, " k"]:
        """The numbers of the folds, 0 to k − 1."""
        return jnp.arange(len(self.left_out), dtype=self.predicted_by.dtype)

    @property
    def predicted(self) -> Bool[Array, " n"]:
        """For each row, whether some fold predicts it."""
        return self.predicted_by < len(self.left_out)

    def holds(self, number: Int[Array, ""] | int) -> Bool[Array, " n"]:
        """Return for each row whether the fold of this number leaves the row out."""
        if self.are_groups:
            return self.predicted_by == number
        return jnp.zeros(self.n, bool).at[self.left_out[number]].set(True)

    def weights_of_predicted(self, weights: Weights) -> Weights:
        """Return the weights for means over predictions, 0 for rows that no fold predicts."""
        if self.are_groups:
            return weights
        return weights.block(jnp.where(self.predicted, weights.array, 0), weights.n)

    def sums(self, A: Float[Array, "n *t"] | Int[Array, " n"]) -> Any:
        """Return the sum of A over the rows that each fold predicts, (k, …)."""
        return jax.ops.segment_sum(A, self.predicted_by, len(self.left_out))

    def sums_of_left_out(self, A: Int[Array, " n"]) -> Int[Array, " k"]:
        """Return the sum of A over the rows that each fold leaves out.

        For groups this is `sums`, which does not move rows between devices.
        """
        if self.are_groups:
            return self.sums(A)
        return jnp.sum(jnp.where(self.left_out_mask > 0, A[self.left_out], 0), axis=1)

    def in_row_order(self, A: Float[Array, "k b *t"] | Bool[Array, "k b"]) -> Any:
        """Return results of folds in the order of the rows, (n, …).

        A[i, j] is the result for row `left_out[i, j]`. Each row gets the result of the fold that
        predicts it, and 0 if no fold does.
        """
        predicted = self.left_out_mask > 0
        if not self.are_groups:
            predicted &= self.predicted_by[self.left_out] == self.fold_numbers[:, None]
        rows = jnp.where(predicted, self.left_out, self.n)
        return jnp.zeros((self.n, *A.shape[2:]), A.dtype).at[rows].set(A, mode="drop")


def folds(groups: Any) -> Folds:
    """Turn group labels, or splits, into `Folds`, outside of `jax.jit`.

    `Folds` can then be passed into `jax.jit`.

    Args:
        groups: (n,) labels of any kind; rows of equal label are left out together. Or splits, pairs
            of row numbers (train, test), as scikit-learn's splitters give them. Each test row is
            predicted by the fit to the training rows of its split alone. Rows in neither part are
            left out too. `Folds` are returned as they are.

    Returns:
        The `Folds`, which `kfold` and `fit(groups=…)` take in place of the labels.

    Raises:
        ValueError: for fewer than two groups, for a missing label, and inside `jax.jit`. For
            splits, if a row is in both parts, in several test parts, or twice in one part.

    **Cost** O(n log n). **Source**: as `kfold`.

    >>> folds([0, 1, 0]).left_out.tolist()
    [[0, 2], [1, 1]]
    >>> folds([([2, 3], [0]), ([0], [2, 3])]).left_out.tolist()  # row 1 too, and padding
    [[0, 1, 1], [1, 2, 3]]
    """
    if isinstance(groups, Folds):
        return groups
    require_values(
        "groups has no values inside jax.jit: call jaxrls.folds(groups) outside, and pass its "
        "result",
        groups,
    )
    if isinstance(groups, int):
        raise ValueError(
            f"groups must be labels (n,), one per row of X, and is {groups}: for so many folds "
            f"give np.random.default_rng(0).permutation(n) % {groups}"
        )
    if isinstance(groups, Iterator) or isinstance(groups, list | tuple) and _is_split(*groups[:1]):
        return of_splits(groups)
    labels, member = np.unique(as_labels("groups", groups), return_inverse=True)
    if len(labels) < 2:
        raise ValueError(
            f"groups holds one label only, {labels.tolist()[0]!r}: leaving it out would leave "
            "nothing to fit"
        )
    left_out = np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])
    return with_index(_in_arrays(left_out, member), groups)


def _in_arrays(
    left_out: list[np.ndarray], predicted_by: np.ndarray, most_trained: int | None = None
) -> Folds:
    """Make `Folds` from the rows that each fold leaves out and the fold that predicts each row."""
    width = max(map(len, left_out))
    rows = np.stack([np.pad(rows, (0, width - len(rows)), mode="edge") for rows in left_out])
    mask = np.stack([np.arange(width) < len(rows) for rows in left_out])
    with jax.ensure_compile_time_eval():  # so that they have values inside of `jax.jit` too
        return Folds(
            on_device(rows.astype(np.int32)),
            on_device(mask.astype(np.float32)),
            on_device(predicted_by.astype(np.int32)),
            most_trained,
        )


# splits -------------------------------------------------------------------------------------------


def _is_split(pair: Any = None) -> bool:
    """Whether `pair` is a pair of arrays, which no label is."""
    return isinstance(pair, list | tuple) and len(pair) == 2 and all(map(np.ndim, pair))


def of_splits(splits: Any, n: int | None = None) -> Folds:
    """Make `Folds` of splits (train, test).

    n is the number of rows. By default the largest row number is that of the last row.
    """
    pairs = [tuple(map(_as_numbers, split)) if _is_split(split) else split for split in splits]
    _check_splits(pairs)
    rows = np.concatenate([part for pair in pairs for part in pair])
    n = 1 + int(rows.max()) if n is None else n
    check_row_numbers(rows, n)
    predicted_by = np.full(n, len(pairs))
    for number, (_, test) in enumerate(pairs):
        predicted_by[test] = number
    if predicted_by.max() < len(pairs) and all(len(a) + len(b) == n for a, b in pairs):
        return folds(predicted_by)  # groups: each split trains on all other rows
    left_out = [np.setdiff1d(np.arange(n), train) for train, _ in pairs]
    return _in_arrays(left_out, predicted_by, max(len(train) for train, _ in pairs))


def _as_numbers(rows: Any) -> np.ndarray:
    """Return row numbers as an array, from row numbers or from a mask."""
    rows = np.asarray(rows)
    if rows.dtype == bool:
        return np.flatnonzero(rows)
    return rows if rows.size else rows.astype(int)


def _check_splits(pairs: list) -> None:
    """Raise `ValueError` for splits that cannot be used.

    Each split needs a training part and a test part, and names a row at most once. No row is in two
    test parts.
    """
    if not pairs:
        raise ValueError("splits has none: give one pair (train, test) of row numbers or more")
    for number, pair in enumerate(pairs):
        are_numbers = _is_split(pair) and all(p.ndim == 1 and p.dtype.kind in "iu" for p in pair)
        if not are_numbers:
            raise ValueError(
                f"splits must be pairs (train, test) of row numbers, and split {number} is none: "
                "give labels (n,), or list(cv.split(X))"
            )
        train, test = pair
        if not (len(train) and len(test)):
            empty = "test" if len(train) else "training"
            raise ValueError(f"split {number} has no {empty} rows: leave it out")
        rows, times = np.unique(np.concatenate(pair), return_counts=True)
        if times.max() > 1:
            raise ValueError(
                f"split {number} names row {rows[times.argmax()]} more than once: no row can be in "
                "both parts, or twice in one; weights= lets a row count several times"
            )
    rows, times = np.unique(np.concatenate([test for _, test in pairs]), return_counts=True)
    if times.max() > 1:
        raise ValueError(
            f"row {rows[times.argmax()]} is in the test part of {times.max()} splits, and a row is "
            "predicted once: give splits whose test parts have no row in common, or fit each "
            "repetition by itself"
        )


def check_groups(folds: Folds, what: str) -> Folds:
    """Return the folds, or raise `ValueError` if they are splits.

    `what` begins the error message: it names what needs groups.
    """
    if not folds.are_groups:
        raise ValueError(
            f"{what} groups of rows, or single rows, that are predicted by all others, and was "
            "given splits with fewer training rows: give labels (n,) as groups="
        )
    return folds


def as_folds(groups: Any, n: int, count: int | None = None) -> Folds:
    """Return `Folds` of n rows from labels or `Folds`.

    They may be for the first `count` rows only. The other rows are then padding of weight 0. They
    join the group of row `count` − 1, or no split predicts them.
    """
    result = folds(groups)
    if result.n == count and result.n < n:
        result = _with_padding(result, n)
    if result.n != n:
        wanted = n if count is None else count
        raise ValueError(
            f"groups must have {wanted} labels, one per row of X, and has {result.n}"
            if result.are_groups
            else f"splits name rows up to {result.n - 1}, and X has {wanted} rows: give splits of "
            "these rows, the last one in some part"
        )
    return replace(result)  # without the index, which was compared with that of X before


def _with_padding(given: Folds, n: int) -> Folds:
    """Return folds of n rows, where the rows that the given folds lack are padding."""
    require_values(
        f"groups has no values inside jax.jit, and lacks the padding of X, which has {n} rows with "
        "it: pad the labels before jaxrls.folds, or call outside",
        given,
    )
    missing = n - given.n
    if given.are_groups:
        return folds(np.pad(np.asarray(given.predicted_by), (0, missing), "edge"))
    no_fold = len(given.left_out)
    predicted_by = jnp.pad(given.predicted_by, (0, missing), constant_values=no_fold)
    return replace(given, predicted_by=predicted_by)


def words_for_fold(folds: Folds | None, i: int) -> str:
    """Return the name of row i, or of fold i by its first rows, for messages."""
    if folds is None:
        return f"row {i}"
    rows = np.flatnonzero(np.asarray(folds.holds(i)))
    first = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
    return f"the group of row{'s' if len(rows) > 1 else ''} {first}"
