"""Sparse matrices, stored so that one block of rows at a time becomes dense and the whole never
does.
"""

from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.linalg.blocks import KINDS, split
from jaxrls.core.problem.rows import DenseRows, GramRows, Rows
from jaxrls.core.support.checks import (
    as_array,
    as_floats,
    check_inputs,
    check_matrix,
    check_row_numbers,
    is_concrete,
)
from jaxrls.core.support.door import parts_of
from jaxrls.core.support.pytrees import pytree, static
from jaxrls.rows.sharded import ShardedRows
from jaxrls.rows.sparse_block import SparseBlock

# Numbers in one dense block: small enough for a CPU's cache, but with enough rows for a fast matrix
# product, up to MOST_NUMBERS.
BLOCK_NUMBERS, MOST_NUMBERS, FEWEST_ROWS = 2**20, 2**24, 128


@pytree
class SparseRows(Rows):
    """A sparse matrix (n, d) as blocks of `block` rows, padded to the same number of runs of
    entries, and a ragged last block.

    Each block is used as it is stored, or made dense; the whole matrix never is.
    """

    traceable: ClassVar[bool] = True
    lies = "is sparse"
    whole: SparseBlock | None  # of k blocks: values and columns (k, s, w), row (k, s)
    rest: SparseBlock | None  # the last block, or None
    shape: tuple[int, int] = static()
    block: int = static()

    @property
    def dtype(self):
        """The dtype of the entries."""
        return (self.whole or self.rest).dtype  # type: ignore[union-attr]

    @property
    def points(self):
        """All rows, as they are stored."""
        return self

    def astype(self, dtype) -> "SparseRows":
        """The same matrix in another dtype."""
        whole, rest = (part and part.astype(dtype) for part in (self.whole, self.rest))
        return replace(self, whole=whole, rest=rest)

    def check(self, kernel, name="X", *, training=True):
        """Raise for unsuitable parameters, and for a sample of the rows, outside of the kernel's
        domain; entries were checked when they came.
        """
        kernel.check(self.some(self.block))

    def over(self, kind, fn, columns, **hints):
        """As `Rows.over`, in one compiled loop over its own blocks, which are `SparseBlock`s."""
        whole, rest = split((jnp.arange(self.shape[0]), *columns), self.block)
        each = lambda parts: fn(parts[0], *parts[1][1:])
        return KINDS[kind][0](each, whole and (self.whole, whole), rest and (self.rest, rest))

    def some(self, num):
        """The first rows."""
        first = self.rest if self.whole is None else jax.tree.map(lambda a: a[0], self.whole)
        return first.dense()[:num]  # type: ignore[union-attr]

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


def is_sparse(X) -> bool:
    """Whether X is a SciPy sparse matrix or array, a JAX BCOO, or already `SparseRows`."""
    return isinstance(X, SparseRows) or hasattr(X, "tocsr") or type(X).__name__ in ("BCOO", "BCSR")


def sparse_rows(X, dtype=None, name: str = "X") -> SparseRows:
    """A SciPy sparse or JAX BCOO matrix as `SparseRows`, on the host, O(nnz)."""
    if isinstance(X, SparseRows):
        return X if dtype is None else X.astype(dtype)
    from scipy.sparse import csr_array  # here, as its import takes time

    data, *places = _coordinates(X)
    check_matrix(name, X)
    n, d = X.shape
    data = as_floats(name, data, dtype)
    check_inputs(f"{name}.data", data, places[1])
    X = csr_array((data, tuple(places)), shape=(n, d))  # entries by row, without duplicates
    block = max(1, min(n, max(BLOCK_NUMBERS // d, min(FEWEST_ROWS, MOST_NUMBERS // d))))
    # A run is as long as a row's mean number of entries, so that at most half of what is stored is
    # padding. Numbered over all rows, `runs` has the first of each row, `begins` of each block.
    width, counts = max(1, -(-X.nnz // n)), np.diff(X.indptr)
    runs = np.cumsum(np.append(0, -(-counts // width)))
    begins = runs[np.arange(0, n + block, block).clip(max=n)]
    row = np.repeat(np.arange(n), counts)
    run, within = np.divmod(np.arange(X.nnz) - X.indptr[row], width)
    at = row // block, runs[row] - begins[row // block] + run, within
    shape = len(begins) - 1, max(1, np.diff(begins).max()), width
    values, columns = np.zeros(shape, data.dtype), np.zeros(shape, np.int32)
    rows = np.zeros(shape[:2], np.int32)
    values[at], columns[at], rows[at[:2]] = X.data, X.indices, row % block

    def blocks(which, count):
        parts = [jnp.asarray(part[which]) for part in (values, columns, rows)]
        return SparseBlock(parts[0], parts[1], parts[2], (count, d))

    k, ragged = divmod(n, block)
    whole, rest = blocks(slice(k), block) if k else None, blocks(k, ragged) if ragged else None
    return SparseRows(whole, rest, (n, d), block)


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


def as_rows(kernel: Kernel, X, name: str = "X", *, dtype=None, devices: int = 1) -> Rows:
    """X as `Rows`, from any of these: an array of inputs, on one device or on many, or of kernel
    values if the kernel is a matrix; a sparse matrix; or a source of rows, unchanged. `dtype`, such
    as that of a model, if it must be another.

    `devices` over which an array may lie where that is not known, inside of `jax.jit` without a
    mesh that is set.
    """
    if is_sparse(X):
        return sparse_rows(X, dtype, name)
    if isinstance(X, Rows):
        return X
    X = as_array(name, X, dtype)
    check_matrix(name, X)
    parts = parts_of(X, devices)
    if parts > 1 and is_concrete(X):
        return ShardedRows.of(X)
    return DenseRows(X, parts) if kernel.evaluable else GramRows(X)
