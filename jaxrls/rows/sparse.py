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

from jaxrls.core.data import KINDS_OF_ROWS, Rows, pad_rows
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
from jaxrls.core.support import (
    as_floats,
    check_inputs,
    check_matrix,
    check_row_numbers,
    pytree,
    require_values,
    static,
)

# As `NEAR` of dense rows. Beyond it the gaps of all entries are taken, or rows become dense, which
# costs more than the digits.
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
    """Rows are not centred, which would make them dense. **Cost** O(stored entries · m); of rows
    that both lie far from 0 twice that, by gaps of entries, and of dense Z that of dense rows.
    Errors are at most 12 (2 + √d) eps (16 + r²), r² the bound of `near_product`.
    """
    sparse = isinstance(Z, SparseBlock)
    z, far = (Z.times(inverse), _by_gaps) if sparse else (Z * inverse, _of_dense)
    return near_product(X.times(inverse), z, SPARSE_NEAR, far, (X, Z, inverse))


def _by_gaps(_, rows):
    X, Z, inverse = rows
    return gaps(X, Z, inverse, squared_gap)


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
    of_x = lambda x, z, column: jnp.where(x != 0, gap(x, z, inverse[column]), 0)
    of_z = lambda z, x, column: jnp.where((z != 0) & (x == 0), gap(x, z, inverse[column]), 0)
    return _over_entries(of_x, X, Z) + _over_entries(of_z, Z, X).T


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
BLOCK_NUMBERS = 2**20
MOST_NUMBERS = 2**24
FEWEST_ROWS = 128
LONGEST_RUN = 64  # entries of a run are taken one after another


@pytree
class SparseRows(Rows):
    """A sparse matrix (n, d) as blocks of `block` rows, the last of which may have fewer, padded to
    the same number of runs of entries.

    Each block is used as it is stored, or made dense; the whole matrix never is.
    """

    traceable: ClassVar[bool] = True
    is_dense: ClassVar[bool] = False
    lies = "is sparse"
    blocks: SparseBlock  # of k blocks, at least one: values and columns (k, s, w), row (k, s)
    shape: tuple[int, int] = static()
    block: int = static()

    @classmethod
    def takes(cls, X) -> bool:
        """Whether X is a SciPy sparse matrix or array, or a JAX BCOO or BCSR."""
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
        return cls(jax.tree.map(jnp.asarray, _in_runs(by_row, block)), (n, d), block)

    @property
    def dtype(self):
        """The dtype of the entries."""
        return self.blocks.dtype

    @property
    def points(self):
        """All rows, as they are stored."""
        return self

    def check(self, kernel, name="X", *, training=True):
        """Raise for unsuitable parameters, and for a sample of the rows, outside of the kernel's
        domain; entries were checked when they came.
        """
        kernel.check(self.few_rows(max(1, BLOCK_NUMBERS // self.shape[1])))

    def over(self, kind, fn, columns, **hints):
        """As `Rows.over`, in one compiled loop over its own blocks, which are `SparseBlock`s."""

        def of_block(parts):
            numbers, *parts = parts
            number = numbers[0] // self.block
            block = jax.tree.map(lambda a: jnp.asarray(a)[number], self.blocks)
            return fn(replace(block, shape=(len(numbers), self.shape[1])), *parts)

        over_blocks, _ = REDUCTIONS[kind]
        return over_blocks(of_block, *split((jnp.arange(self.shape[0]), *columns), self.block))

    def as_one_block(self) -> SparseBlock:
        """All rows."""
        before = self.block * jnp.arange(len(self.blocks.row), dtype=jnp.int32)
        numbered = replace(self.blocks, row=self.blocks.row + before[:, None])
        every = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), numbered)
        return replace(every, shape=self.shape)

    def for_pairs(self, kernel):
        """Where they stay sparse, blocks of FEWEST_ROWS, or so many that a block in the columns of
        another has about BLOCK_NUMBERS.
        """
        k, s, w = self.blocks.values.shape
        rows = min(FEWEST_ROWS, math.isqrt(2 * BLOCK_NUMBERS * self.block // (s * w)))
        count = -(-k // max(1, rows // self.block))  # of longer blocks, about equal
        in_one = -(-k // count)
        if in_one == 1 or not kernel.keeps_sparse():
            return self
        before = self.block * (jnp.arange(k, dtype=jnp.int32) % in_one)
        join = lambda a: pad_rows(a, -k % in_one).reshape(count, in_one * s, *a.shape[2:])
        blocks = jax.tree.map(join, replace(self.blocks, row=self.blocks.row + before[:, None]))
        size = in_one * self.block
        return SparseRows(replace(blocks, shape=(size, self.shape[1])), self.shape, size)

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
        values = self.blocks.values
        columns = self.blocks.columns
        values = jnp.where(values != 0, values - origin[columns], 0)
        about = replace(self, blocks=replace(self.blocks, values=values))
        return about, about.map(lambda x: kernel(x, origin[None])[:, 0])

    def few_rows(self, num):
        """The first rows."""
        first = jax.tree.map(lambda a: a[0], self.blocks)
        num = min(num, self.block)
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
        parts = [slice(*ends) for ends in pairwise(by_row.indptr)]
        contents = [by_row.indices[part].tobytes() + by_row.data[part].tobytes() for part in parts]
        last = {content: number for number, content in enumerate(contents)}
        by_row = by_row[sorted(last.values())]
        blocks = _in_runs(by_row, by_row.shape[0])
        return jax.tree.map(lambda a: jnp.asarray(a[0]), blocks)

    def take(self, indices):
        """The rows of these numbers, 0 to n − 1, dense."""
        n = self.shape[0]
        count = len(indices)
        every = self.as_one_block()
        check_row_numbers(indices, n)
        place = jnp.full(n, count).at[indices].set(jnp.arange(count))
        rows = jnp.zeros((count + 1, self.shape[1]), self.dtype)  # the last of those not taken
        rows = rows.at[place[every.row][:, None], every.columns].add(every.values)
        return rows[place[indices]]  # a row that is named twice is read once

    def candidates(self):
        """All rows, sparse."""
        return None, self


KINDS_OF_ROWS.append(SparseRows)


def _in_runs(X, block: int) -> SparseBlock:
    """Blocks of as many rows of a CSR matrix, stacked: values and columns (k, s, w), row (k, s).

    A run is about as long as a row's mean number of entries, up to LONGEST_RUN, so that at most
    some half of what is stored is padding.
    """
    n, d = X.shape
    counts = np.diff(X.indptr)
    width = min(LONGEST_RUN, _common_count(-(-int(X.nnz) // n)))
    # Numbered over all rows, `runs` has the first of each row, `begins` of each block.
    runs = np.cumsum(np.append(0, -(-counts // width)))
    begins = runs[np.arange(0, n + block, block).clip(max=n)]
    row = np.repeat(np.arange(n), counts)
    run, within = np.divmod(np.arange(X.nnz) - X.indptr[row], width)
    place = row // block, runs[row] - begins[row // block] + run, within
    shape = len(begins) - 1, _common_count(int(np.diff(begins).max())), width
    values = np.zeros(shape, X.dtype)
    columns = np.zeros(shape, np.int32)
    rows = np.zeros(shape[:2], np.int32)
    values[place] = X.data
    columns[place] = X.indices
    rows[place[:2]] = row % block
    return SparseBlock(values, columns, rows, (block, d))


def _common_count(count: int) -> int:
    """So many, rounded up to one of two counts for each doubling, as every count compiles anew."""
    step = 2 ** max(0, (count - 1).bit_length() - 2)
    return max(1, -(-count // step) * step)


def _coordinates(X):
    """Entries with their rows and columns, as they are stored."""
    require_values("a sparse X must be given outside jax.jit: its blocks are cut on the host", X)
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
    indices = np.asarray(X.indices)
    data = np.asarray(X.data)
    stored = (indices < np.array(X.shape)).all(axis=1)  # BCOO pads with indices out of bounds
    return data[stored], *indices[stored].T
