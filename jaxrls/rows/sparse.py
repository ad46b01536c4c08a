"""Sparse matrices, stored so that one block of rows at a time becomes dense and the whole never
does; and what kernels need of a block in as many operations as there are stored entries for each
row that it meets.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.kernels import (
    Block,
    as_dense,
    gaps,
    inner_products,
    near_product,
    squared_distances,
    squared_gap,
    squared_lengths,
    times,
)
from jaxrls.core.linalg import REDUCTIONS, split
from jaxrls.core.problem import KINDS_OF_ROWS, Rows
from jaxrls.core.support import (
    as_floats,
    check_inputs,
    check_matrix,
    check_row_numbers,
    is_concrete,
    pytree,
    static,
)

# As `NEAR` of dense rows. Elsewhere sparse rows become dense, which costs more than the digits.
SPARSE_NEAR = 64.0


@pytree
class SparseBlock(Block):
    """Rows as short runs of stored entries: `values` and `columns` (s, w), run i of row `row[i]`;
    runs are filled up with zeros.

    >>> import jax.numpy as jnp
    >>> block = SparseBlock(jnp.array([[2.0, 3.0]]), jnp.array([[0, 2]]), jnp.array([1]), (2, 3))
    >>> block.dense().tolist()
    [[0.0, 0.0, 0.0], [2.0, 0.0, 3.0]]
    """

    values: Float[Array | np.ndarray, "*blocks s w"]
    columns: Int[Array | np.ndarray, "*blocks s w"]
    row: Int[Array | np.ndarray, "*blocks s"]
    shape: tuple[int, int] = static()

    def __getitem__(self, key) -> "SparseBlock":
        """All rows, of some columns, each named once: X[:, columns]."""
        _, named = key
        named = np.asarray(named) % self.shape[1]
        if len(np.unique(named)) < len(named):
            raise ValueError(
                f"columns of a sparse X must be named once each, and are {named.tolist()}"
            )
        place = np.full(self.shape[1], -1, np.int32)
        place[named] = np.arange(len(named))
        columns = jnp.asarray(place)[self.columns]
        values = jnp.where(columns < 0, 0, self.values)
        return SparseBlock(values, jnp.maximum(columns, 0), self.row, (self.shape[0], len(named)))

    def times(self, scale: Float[Array, " d"]) -> "SparseBlock":
        """Every column multiplied by a number."""
        return replace(self, values=self.values * scale[self.columns])

    def dense(self) -> Float[Array, "b d"]:
        """The same rows in one array."""
        rows = jnp.zeros(self.shape, self.dtype)
        return rows.at[self.row[:, None], self.columns].add(self.values)

    def by_row(self, runs: Float[Array, "s *m"]) -> Float[Array, "b *m"]:
        """Sums over the runs of every row."""
        return jnp.zeros((self.shape[0], *runs.shape[1:]), self.dtype).at[self.row].add(runs)


@squared_lengths.register(SparseBlock)
def _squared_lengths(X: SparseBlock) -> Float[Array, " b"]:
    """‖x‖², each entry being stored once."""
    return X.by_row(jnp.sum(X.values**2, axis=1))


@inner_products.register(SparseBlock)
def _inner_products(X: SparseBlock, Z: Any) -> Float[Array, "b m"]:
    """⟨x, z⟩, O(stored entries · m)."""
    return _over_entries(lambda x, z, column: x * z, X, Z)


@times.register(SparseBlock)
def _times(X: SparseBlock, w: Float[Array, "d t"]) -> Float[Array, "b t"]:
    """X w, some columns at a time, so that the transposed product too holds little besides its
    result.
    """
    of_column = lambda column: X.by_row(jnp.sum(X.values * column[X.columns], axis=1))
    return jax.lax.map(of_column, w.T, batch_size=8).T


@squared_distances.register(SparseBlock)
def _squared_distances(X: SparseBlock, Z: Any, inverse: Float[Array, " d"]):
    """Of sparse Z from differences. Rows are not centred, which would make them dense: of dense Z
    errors are at most 12 (2 + √d) eps (16 + r²). **Cost** O(stored entries · m), and that of dense
    rows where Z is, and both lie farther than 8 widths from 0.
    """
    if isinstance(Z, SparseBlock):
        return _gaps(X, Z, inverse, squared_gap)
    return near_product(X.times(inverse), Z * inverse, SPARSE_NEAR, _of_dense, (X, Z, inverse))


def _of_dense(_, rows):
    X, Z, inverse = rows
    return squared_distances(X.dense(), Z, inverse)


@gaps.register(SparseBlock)
def _gaps(X: SparseBlock, Z: Any, inverse: Float[Array, " d"], gap: Callable):
    """The gaps at all entries of x, and at those of z where x has none: sums without cancellation,
    O(stored entries · (b + m)).
    """
    if not isinstance(Z, SparseBlock):
        return gaps(X.dense(), Z, inverse, gap)
    at = lambda x, z, column: jnp.where(x != 0, gap(x, z, inverse[column]), 0)
    rest = lambda z, x, column: jnp.where((z != 0) & (x == 0), gap(x, z, inverse[column]), 0)
    return _over_entries(at, X, Z) + _over_entries(rest, Z, X).T


def _over_entries(term: Callable, X: SparseBlock, Z: Any) -> Float[Array, "b m"]:
    """Σ `term(x, z, column)` over the entries x of each row of X, with those z of each row of Z in
    the same column: one entry of every run at a time, so that what is gathered is as large as the
    result.
    """
    table, place = _by_column(Z, X.columns)

    @jax.checkpoint
    def add(total, entry):
        value, column, place = entry
        return total + term(value[:, None], table[place], column[:, None]), None

    runs = jnp.zeros((len(X.row), Z.shape[0]), X.dtype)
    return X.by_row(jax.lax.scan(add, runs, (X.values.T, X.columns.T, place.T))[0])


def _by_column(Z: Any, wanted: Any) -> tuple[Array, Array]:
    """Columns of Z as the lines of a table (c, m), and the line of each of those that are wanted:
    of sparse Z the columns of which something is stored, and a line of zeros for all others.
    """
    if not isinstance(Z, SparseBlock) or Z.shape[1] <= Z.columns.size:
        return as_dense(Z).T, wanted
    count = Z.columns.size
    lines = jnp.full(Z.shape[1], count, jnp.int32)
    lines = lines.at[Z.columns.ravel()].set(jnp.arange(count, dtype=jnp.int32))  # one of equals
    table = jnp.zeros((count + 1, len(Z)), Z.dtype)
    return table.at[lines[Z.columns], Z.row[:, None]].add(Z.values), lines[wanted]


# Numbers in one dense block: small enough for a CPU's cache, but with enough rows for a fast matrix
# product, up to MOST_NUMBERS; in pairs of sparse blocks nothing is dense, and rows are as many.
BLOCK_NUMBERS, MOST_NUMBERS, FEWEST_ROWS = 2**20, 2**24, 128
LONGEST_RUN = 64  # entries of a run are taken one after another


@pytree
class SparseRows(Rows):
    """A sparse matrix (n, d) as blocks of `block` rows, padded to the same number of runs of
    entries, and a ragged last block.

    Each block is used as it is stored, or made dense; the whole matrix never is.
    """

    traceable: ClassVar[bool] = True
    is_dense: ClassVar[bool] = False
    lies = "is sparse"
    whole: SparseBlock  # of k blocks, at least one: values and columns (k, s, w), row (k, s)
    rest: SparseBlock | None  # the last block, if it is smaller
    shape: tuple[int, int] = static()
    block: int = static()

    @classmethod
    def takes(cls, X) -> bool:
        """Whether X is a SciPy sparse matrix or array, or a JAX BCOO."""
        return hasattr(X, "tocsr") or type(X).__name__ in ("BCOO", "BCSR")

    @classmethod
    def read(cls, name: str, X, dtype=None) -> "SparseRows":
        """The rows of such a matrix, on the host, O(nnz)."""
        from scipy.sparse import csr_array  # here, as its import takes time

        entries, *places = _coordinates(X)
        check_matrix(name, X)
        n, d = X.shape
        entries = as_floats(name, entries, dtype)
        check_inputs(f"{name}.data", entries, places[1])
        by_row = csr_array((entries, tuple(places)), shape=(n, d))  # without duplicates
        block = max(1, min(n, max(BLOCK_NUMBERS // d, min(FEWEST_ROWS, MOST_NUMBERS // d))))
        (k, ragged), blocks = divmod(n, block), _in_runs(by_row, block)
        whole = jax.tree.map(lambda a: jnp.asarray(a[:k]), blocks)
        last = jax.tree.map(lambda a: jnp.asarray(a[-1]), blocks)
        rest = replace(last, shape=(ragged, d)) if ragged else None
        return cls(whole, rest, (n, d), block)

    @property
    def dtype(self):
        """The dtype of the entries."""
        return self.whole.dtype

    @property
    def points(self):
        """All rows, as they are stored."""
        return self

    def check(self, kernel, name="X", *, training=True):
        """Raise for unsuitable parameters, and for a sample of the rows, outside of the kernel's
        domain; entries were checked when they came.
        """
        kernel.check(self.some(max(1, BLOCK_NUMBERS // self.shape[1])))

    def over(self, kind, fn, columns, **hints):
        """As `Rows.over`, in one compiled loop over its own blocks, which are `SparseBlock`s."""
        whole, rest = split((jnp.arange(self.shape[0]), *columns), self.block)
        of_block = lambda parts: fn(parts[0], *parts[1][1:])
        over_blocks, _ = REDUCTIONS[kind]
        return over_blocks(of_block, (self.whole, whole), rest and (self.rest, rest))

    def as_one_block(self) -> SparseBlock:
        """All rows."""
        first = self.block * np.arange(len(self.whole.row), dtype=np.int32)
        parts: Any = self.whole.values, self.whole.columns, self.whole.row + first[:, None]
        parts = [a.reshape(-1, *a.shape[2:]) for a in parts]
        if self.rest is not None:
            moved = self.rest.row + len(first) * self.block
            rest = self.rest.values, self.rest.columns, moved
            parts = [jnp.concatenate(pair) for pair in zip(parts, rest, strict=True)]
        values, columns, row = parts
        return SparseBlock(values, columns, row, self.shape)

    def for_pairs(self, kernel):
        """Where they stay sparse, blocks of FEWEST_ROWS, or so many that a block in the columns of
        another has about BLOCK_NUMBERS.
        """
        (k, s, w), (n, d) = self.whole.values.shape, self.shape
        rows = min(FEWEST_ROWS, math.isqrt(2 * BLOCK_NUMBERS * self.block // (s * w)))
        joined = max(1, min(k, rows // self.block))
        if joined == 1 or not kernel.takes_blocks():
            return self
        count, size, every = k // joined, joined * self.block, self.as_one_block()
        runs, left = count * joined * s, n - count * size
        cut = lambda a: a[:runs].reshape(count, joined * s, *a.shape[1:])
        every = replace(every, row=every.row % size)
        whole = replace(jax.tree.map(cut, every), shape=(size, d))
        last = replace(jax.tree.map(lambda a: a[runs:], every), shape=(left, d))
        return SparseRows(whole, last if left else None, self.shape, size)

    def from_origin(self, kernel):
        """As `Rows.from_origin`: the mean of each column of which every row stores something, 0 in
        the others, so that nothing is filled in.
        """
        if not kernel.is_linear():
            return self, None
        every = self.as_one_block()
        sums = lambda values: jnp.zeros(self.shape[1], self.dtype).at[every.columns].add(values)
        stored = sums((every.values != 0).astype(self.dtype)) == self.shape[0]
        origin = jnp.where(stored, sums(every.values) / self.shape[0], 0)
        minus = lambda block: replace(
            block, values=jnp.where(block.values != 0, block.values - origin[block.columns], 0)
        )
        rest = None if self.rest is None else minus(self.rest)
        about = replace(self, whole=minus(self.whole), rest=rest)
        return about, about.map(lambda x: kernel(x, origin[None])[:, 0])

    def some(self, num):
        """The first rows."""
        first, num = jax.tree.map(lambda a: a[0], self.whole), min(num, self.block)
        values = jnp.where(first.row[:, None] < num, first.values, 0)
        few = SparseBlock(values, first.columns, first.row % num, (num, self.shape[1]))
        return few.dense()

    def distinct(self, indices):
        """As `Rows.distinct`, sparse."""
        from scipy.sparse import csr_array

        every = jax.tree.map(np.asarray, self.as_one_block())
        row = np.broadcast_to(every.row[:, None], every.values.shape)
        entries = every.values.ravel(), (row.ravel(), every.columns.ravel())
        by_row = csr_array(entries, shape=self.shape)[indices]
        by_row.eliminate_zeros()
        by_row.sort_indices()
        content = {}
        for number, (a, b) in enumerate(pairwise(by_row.indptr)):
            content[by_row.indices[a:b].tobytes(), by_row.data[a:b].tobytes()] = number
        by_row = by_row[sorted(content.values())]
        block = _in_runs(by_row, by_row.shape[0])
        return jax.tree.map(lambda a: jnp.asarray(a[0]), block)

    def take(self, indices):
        """The rows of these numbers, 0 to n − 1, dense."""
        n, d = self.shape
        check_row_numbers(indices, n)
        count = len(indices)
        firsts = jnp.arange(0, n, self.block, dtype=jnp.int32)  # of every block
        place = jnp.full(n, count).at[indices].set(jnp.arange(count))
        rows = jnp.zeros((count + 1, d), self.dtype)  # the last one of all that are not taken
        for part, first in ((self.whole, firsts[: n // self.block, None]), (self.rest, firsts[-1])):
            if part is not None:
                rows = rows.at[place[first + part.row][..., None], part.columns].add(part.values)
        return rows[place[indices]]  # a row that is named twice is read once

    def candidates(self):
        """All rows, sparse."""
        return None, self


KINDS_OF_ROWS.append(SparseRows)


def _in_runs(X, block: int) -> SparseBlock:
    """Blocks of as many rows of a CSR matrix, stacked: values and columns (k, s, w), row (k, s).

    A run is as long as a row's mean number of entries, up to LONGEST_RUN, so that at most half of
    what is stored is padding.
    """
    (n, d), counts = X.shape, np.diff(X.indptr)
    width = max(1, min(LONGEST_RUN, -(-X.nnz // n)))
    # Numbered over all rows, `runs` has the first of each row, `begins` of each block.
    runs = np.cumsum(np.append(0, -(-counts // width)))
    begins = runs[np.arange(0, n + block, block).clip(max=n)]
    row = np.repeat(np.arange(n), counts)
    run, within = np.divmod(np.arange(X.nnz) - X.indptr[row], width)
    place = row // block, runs[row] - begins[row // block] + run, within
    shape = len(begins) - 1, max(1, np.diff(begins).max()), width
    values, columns = np.zeros(shape, X.dtype), np.zeros(shape, np.int32)
    rows = np.zeros(shape[:2], np.int32)
    values[place], columns[place], rows[place[:2]] = X.data, X.indices, row % block
    return SparseBlock(values, columns, rows, (block, d))


def _coordinates(X):
    """Entries with their rows and columns, as they are stored."""
    if not is_concrete(X):
        raise ValueError("a sparse X must be given outside jax.jit: its blocks are cut on the host")
    if hasattr(X, "tocsr"):
        X = X.tocoo()
        return X.data, X.row, X.col
    if type(X).__name__ == "BCSR":
        X = X.to_bcoo()
    if X.n_batch or X.n_dense:
        raise ValueError(
            "a BCOO matrix X must have no batch and no dense dimensions: convert it by "
            "bcoo_update_layout(X, n_batch=0, n_dense=0)"
        )
    indices, data = np.asarray(X.indices), np.asarray(X.data)
    stored = (indices < np.array(X.shape)).all(axis=1)  # BCOO pads with indices out of bounds
    return data[stored], *indices[stored].T
