"""Sparse matrices as rows: one block at a time becomes dense, and the whole matrix never does.

`SparseBlock` holds some rows. The functions after it compute what kernels need of a block. For each
row that the block meets, they take as many operations as the block has stored entries. `SparseRows`
holds all rows in blocks.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data import KINDS_OF_ROWS, Candidates, Rows, pad_rows
from jaxrls.core.kernels import (
    Block,
    Kernel,
    as_dense,
    gaps,
    inner_products,
    near_product,
    squared_distances,
    squared_gap,
    squared_lengths,
    times,
)
from jaxrls.core.linalg import Reduction, split
from jaxrls.core.support import (
    as_floats,
    check_inputs,
    check_matrix,
    check_row_numbers,
    known_values,
    pytree,
    require_values,
    static,
)
from jaxrls.rows.host import check_domain, far_ends, takes

# The bound `near` of `near_product` for sparse rows. If rows of both arguments are longer than
# √SPARSE_NEAR, distances are sums over the gaps of all entries, or rows become dense. Both cost
# more time than for dense rows. The bound is therefore larger than NEAR, the bound for dense rows,
# and leaves fewer digits.
SPARSE_NEAR = 64.0


@pytree
class SparseBlock(Block):
    """Rows as short runs of stored entries, each run filled up with zeros.

    `values` and `columns` are (s, w): the w entries of each of s runs, and their columns. Run i
    belongs to row `row[i]`.

    >>> import jax.numpy as jnp
    >>> block = SparseBlock(jnp.array([[2.0, 3.0]]), jnp.array([[0, 2]]), jnp.array([1]), (2, 3))
    >>> block.dense().tolist()
    [[0.0, 0.0, 0.0], [2.0, 0.0, 3.0]]
    """

    values: Float[Array | np.ndarray, "*blocks s w"]
    columns: Int[Array | np.ndarray, "*blocks s w"]
    row: Int[Array | np.ndarray, "*blocks s"]
    shape: tuple[int, int] = static()

    def __getitem__(self, key: tuple) -> "SparseBlock":
        """Return all rows with only some columns, X[:, columns]. Raise if a column is
        named twice.
        """
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
        """Return the rows with every column multiplied by its number in `scale`."""
        return replace(self, values=self.values * scale[self.columns])

    def dense(self) -> Float[Array, "b d"]:
        """Return the same rows in one array."""
        rows = jnp.zeros(self.shape, self.dtype)
        return rows.at[self.row[:, None], self.columns].add(self.values)

    def by_row(self, runs: Float[Array, "s *m"]) -> Float[Array, "b *m"]:
        """Return, for every row, the sum over its runs."""
        return jnp.zeros((self.shape[0], *runs.shape[1:]), self.dtype).at[self.row].add(runs)


@squared_lengths.register(SparseBlock)
def _squared_lengths(X: SparseBlock) -> Float[Array, " b"]:
    """Return ‖x‖² of every row. Each entry is stored once."""
    return X.by_row(jnp.sum(X.values**2, axis=1))


@inner_products.register(SparseBlock)
def _inner_products(X: SparseBlock, Z: Any) -> Float[Array, "b m"]:
    """Return ⟨x, z⟩ of all pairs, O(stored entries · m)."""
    return _over_entries(lambda x, z, column: x * z, X, Z)


@times.register(SparseBlock)
def _times(X: SparseBlock, w: Float[Array, "d t"]) -> Float[Array, "b t"]:
    """Return X w, computed for some columns of w at a time.

    So the transposed product too holds little more than its result.
    """
    of_column = lambda column: X.by_row(jnp.sum(X.values * column[X.columns], axis=1))
    return jax.lax.map(of_column, w.T, batch_size=8).T


@squared_distances.register(SparseBlock)
def _squared_distances(X: SparseBlock, Z: Any, inverse: Float[Array, " d"]) -> Float[Array, "b m"]:
    """Return the squared distances r² = Σₖ ((xₖ − zₖ) inverseₖ)² of all pairs.

    Rows are not centred, which would make them dense. Errors are at most 12 (2 + √d) eps (16 + r²).

    **Cost** O(stored entries · m). If rows of both X and Z lie far from 0, the cost for sparse Z is
    twice that, by gaps of entries. For dense Z it is then the cost for dense rows.
    """
    sparse = isinstance(Z, SparseBlock)
    z, fallback = (Z.times(inverse), _by_gaps) if sparse else (Z * inverse, _of_dense)
    return near_product(X.times(inverse), z, SPARSE_NEAR, fallback, (X, Z, inverse))


def _by_gaps(_: Any, rows: tuple) -> Float[Array, "b m"]:
    """Return squared distances of sparse rows by the gaps of their entries, for rows far from 0."""
    X, Z, inverse = rows
    return gaps(X, Z, inverse, squared_gap)


def _of_dense(_: Any, rows: tuple) -> Float[Array, "b m"]:
    """Return squared distances of sparse rows to dense rows, for rows far from 0."""
    X, Z, inverse = rows
    return squared_distances(X.dense(), Z, inverse)


@gaps.register(SparseBlock)
def _gaps(
    X: SparseBlock, Z: Any, inverse: Float[Array, " d"], gap: Callable
) -> Float[Array, "b m"]:
    """Return Σₖ gap(xₖ, zₖ, inverseₖ) of all pairs, without cancellation.

    It adds the gaps at all entries of x, and the gaps at the entries of z where x has none.
    **Cost** O(stored entries · (b + m)).
    """
    if not isinstance(Z, SparseBlock):
        return gaps(X.dense(), Z, inverse, gap)
    of_x = lambda x, z, column: jnp.where(x != 0, gap(x, z, inverse[column]), 0)
    of_z = lambda z, x, column: jnp.where((z != 0) & (x == 0), gap(x, z, inverse[column]), 0)
    return _over_entries(of_x, X, Z) + _over_entries(of_z, Z, X).T


def _over_entries(term: Callable, X: SparseBlock, Z: Any) -> Float[Array, "b m"]:
    """Return Σ `term(x, z, column)` over the entries x of each row of X, for each row of Z.

    z is the entry of the row of Z in the same column. One entry of every run is taken at a time, so
    that what is gathered is as large as the result.
    """
    table, place = _by_column(Z, X.columns)

    @jax.checkpoint
    def add(total: Float[Array, "s m"], entry: tuple) -> tuple[Float[Array, "s m"], None]:
        value, column, place = entry
        return total + term(value[:, None], table[place], column[:, None]), None

    runs = jnp.zeros((len(X.row), Z.shape[0]), X.dtype)
    return X.by_row(jax.lax.scan(add, runs, (X.values.T, X.columns.T, place.T))[0])


def _by_column(Z: Any, wanted: Any) -> tuple[Array, Array]:
    """Return the columns of Z as the lines of a table (c, m), and the line of each wanted column.

    For sparse Z the table has the columns in which something is stored, and one line of zeros for
    all others.
    """
    if not isinstance(Z, SparseBlock) or Z.shape[1] <= Z.columns.size:
        return as_dense(Z).T, wanted
    count = Z.columns.size
    lines = jnp.full(Z.shape[1], count, jnp.int32)
    lines = lines.at[Z.columns.ravel()].set(jnp.arange(count, dtype=jnp.int32))  # one line a column
    table = jnp.zeros((count + 1, len(Z)), Z.dtype)
    return table.at[lines[Z.columns], Z.row[:, None]].add(Z.values), lines[wanted]


# A dense block has BLOCK_NUMBERS numbers, which fit into the cache of a CPU. For a fast matrix
# product it has at least FEWEST_ROWS rows, unless these are more than MOST_NUMBERS numbers. For
# pairs of blocks that stay sparse, blocks of up to FEWEST_ROWS rows are made.
BLOCK_NUMBERS = 2**20
MOST_NUMBERS = 2**24
FEWEST_ROWS = 128
LONGEST_RUN = 64  # the most entries of a run, which are taken one after another


@pytree
class SparseRows(Rows):
    """The rows of a sparse matrix (n, d), in blocks of `block` rows.

    The last block may have fewer rows. All blocks are padded to the same number of runs of entries.
    Each block is used as it is stored, or made dense. The whole matrix never becomes dense.
    """

    traceable: ClassVar[bool] = True
    is_dense: ClassVar[bool] = False
    lies = "is sparse"
    blocks: SparseBlock  # k ≥ 1 blocks, stacked: values and columns (k, s, w), row (k, s)
    shape: tuple[int, int] = static()
    block: int = static()

    @classmethod
    def takes(cls, X: Any) -> bool:
        """Whether X is a SciPy sparse matrix or array, or a JAX BCOO or BCSR."""
        return hasattr(X, "tocsr") or type(X).__name__ in ("BCOO", "BCSR")

    @classmethod
    def read(cls, name: str, X: Any, dtype: Any = None) -> "SparseRows":
        """Make `SparseRows` of a sparse matrix, on the host, O(nnz)."""
        from scipy.sparse import csr_array  # imported here, as it takes time

        entries, *places = _coordinates(X)
        check_matrix(name, X)
        n, d = X.shape
        entries = as_floats(name, entries, dtype)
        check_inputs(f"{name}.data", entries, places[1])
        by_row = csr_array((entries, tuple(places)), shape=(n, d))  # adds up duplicates
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

    def check(self, kernel: Kernel, name: str = "X", *, training: bool = True) -> None:
        """Raise for unsuitable parameters, or if rows lie outside of the kernel's domain.

        All rows are made dense for this, block by block, only if the kernel does not take the
        smallest and the largest entry in every column. Whether entries are finite was checked when
        the rows were made.
        """
        kernel.check(self.few_rows(max(1, BLOCK_NUMBERS // self.shape[1])))
        if takes(kernel, far_ends(self.shape[1], self.dtype)):
            return
        values = known_values(self.blocks.values)
        if values is not None:
            ends = np.array([[min(0, values.min())], [max(0, values.max())]], self.dtype)
            check_domain(kernel, np.broadcast_to(ends, (2, self.shape[1])), self._dense_blocks)

    def _dense_blocks(self) -> Iterator:
        """Yield all rows in dense blocks."""
        n, d = self.shape
        for number, first in enumerate(range(0, n, self.block)):
            block = jax.tree.map(lambda a: a[number], self.blocks)  # noqa: B023
            yield replace(block, shape=(min(self.block, n - first), d)).dense()

    def over(self, reduction: Reduction, fn: Callable, columns: Any, **hints) -> Any:
        """Compute `Rows.over` over the blocks as they are stored, each a `SparseBlock`.

        It is one compiled loop.
        """

        def of_block(arrays: tuple[Int[Array, " b"], Any]) -> Any:
            numbers, part = arrays
            number = numbers[0] // self.block
            block = jax.tree.map(lambda a: jnp.asarray(a)[number], self.blocks)
            return fn(replace(block, shape=(len(numbers), self.shape[1])), part)

        blocks = split((jnp.arange(self.shape[0]), columns), self.block)
        return reduction.over_blocks(of_block, *blocks)

    def as_one_block(self) -> SparseBlock:
        """Return all rows as one `SparseBlock`."""
        before = self.block * jnp.arange(len(self.blocks.row), dtype=jnp.int32)
        numbered = replace(self.blocks, row=self.blocks.row + before[:, None])
        every = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), numbered)
        return replace(every, shape=self.shape)

    def for_pairs(self, kernel: Kernel) -> "SparseRows":
        """Return the rows in longer blocks for pairs of blocks, if the kernel keeps rows sparse.

        A block has FEWEST_ROWS rows at most. It has fewer if its entries in the columns of another
        block would be more than about BLOCK_NUMBERS. The rows stay as they are if the kernel makes
        them dense, or if no blocks can be joined.
        """
        k, s, w = self.blocks.values.shape
        rows = min(FEWEST_ROWS, math.isqrt(2 * BLOCK_NUMBERS * self.block // (s * w)))
        count = -(-k // max(1, rows // self.block))  # the number of longer blocks
        in_one = -(-k // count)
        if in_one == 1 or not kernel.keeps_sparse():
            return self
        before = self.block * (jnp.arange(k, dtype=jnp.int32) % in_one)
        join = lambda a: pad_rows(a, -k % in_one).reshape(count, in_one * s, *a.shape[2:])
        blocks = jax.tree.map(join, replace(self.blocks, row=self.blocks.row + before[:, None]))
        size = in_one * self.block
        return SparseRows(replace(blocks, shape=(size, self.shape[1])), self.shape, size)

    def from_origin(self, kernel: Kernel) -> tuple[Rows, Any]:
        """Return the rows minus an origin and their `lift`, as `Rows.from_origin` defines it.

        If the kernel is not linear in X, these are the same rows and None. The origin is the mean
        of each column in which every row stores an entry, and 0 in the other columns, so that no
        zeros are filled in.
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

    def few_rows(self, num: int) -> Float[Array, "k d"]:
        """Return the first rows, at most `num`, dense."""
        first = jax.tree.map(lambda a: a[0], self.blocks)
        num = min(num, self.block)
        values = jnp.where(first.row[:, None] < num, first.values, 0)
        few = SparseBlock(values, first.columns, first.row % num, (num, self.shape[1]))
        return few.dense()

    def distinct(self, indices: np.ndarray) -> Any:
        """Return the rows with these numbers as a `SparseBlock`, with equal rows taken once.

        Inside of `jax.jit` they are dense, and equal rows are all returned.
        """
        from scipy.sparse import csr_array

        every = known_values(self.as_one_block())
        if every is None:
            return self.take(indices)
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

    def take(self, indices: Array | np.ndarray) -> Float[Array, "k d"]:
        """Return the rows with these numbers, 0 to n − 1, dense."""
        n = self.shape[0]
        count = len(indices)
        every = self.as_one_block()
        check_row_numbers(indices, n)
        place = jnp.full(n, count).at[indices].set(jnp.arange(count))
        rows = jnp.zeros((count + 1, self.shape[1]), self.dtype)  # last: rows not taken
        rows = rows.at[place[every.row][:, None], every.columns].add(every.values)
        return rows[place[indices]]  # a row that is named twice is read once

    def candidates(self) -> Candidates:
        """Return all rows, as they are."""
        return Candidates(None, self)


KINDS_OF_ROWS.append(SparseRows)


def _in_runs(X: Any, block: int) -> SparseBlock:
    """Return the rows of a CSR matrix in blocks of `block` rows, stacked.

    The result has values and columns (k, s, w), and row (k, s). A run is about as long as the mean
    number of entries of a row, up to LONGEST_RUN. So at most about half of what is stored is
    padding.
    """
    n, d = X.shape
    counts = np.diff(X.indptr)
    width = min(LONGEST_RUN, _common_count(-(-int(X.nnz) // n)))
    # With runs numbered over all rows, `runs` has the first run of each row, and `begins` the first
    # run of each block.
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
    """Return `count` rounded up to one of two numbers for each power of 2.

    Arrays of few different sizes compile few programs.
    """
    step = 2 ** max(0, (count - 1).bit_length() - 2)
    return max(1, -(-count // step) * step)


def _coordinates(X: Any) -> tuple:
    """Return the stored entries, their rows and their columns."""
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
