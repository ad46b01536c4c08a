"""Sparse design matrices, held so that their row blocks become dense one at a time and the whole
never does.
"""

from dataclasses import replace
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.sparse import SparseBlock
from jaxrls.rows.blocks import map_blocks, split, sum_blocks
from jaxrls.rows.gram import gram
from jaxrls.rows.rows import DenseRows, GramRows, Rows
from jaxrls.rows.sharded import ShardedRows
from jaxrls.support.checks import (
    as_array,
    as_floats,
    check_matrix,
    check_row_numbers,
    check_squares,
    is_concrete,
)
from jaxrls.support.meshes import parts_of
from jaxrls.support.pytrees import pytree, static


@runtime_checkable
class SparseMatrix(Protocol):
    """What SciPy's sparse matrices and arrays and JAX's BCOO and BCSR have in common."""

    @property
    def shape(self):
        """(n, d)."""

    @property
    def ndim(self):
        """2."""

    @property
    def dtype(self):
        """That of the entries."""

    def todense(self):
        """The same matrix, dense."""


# Numbers in one dense block: it should stay in cache on CPUs and still be a matrix worth
# multiplying, which few rows are not, up to MOST_NUMBERS.
BLOCK_NUMBERS, MOST_NUMBERS, FEWEST_ROWS = 2**20, 2**24, 128


@pytree
class SparseRows(Rows):
    """A sparse matrix (n, d) as blocks of `block` rows, padded to equally many runs of entries, and
    a ragged last block.

    Each block becomes dense when it is read, so that the whole never does; kernels of products and
    distances read it as it is stored."""

    whole: SparseBlock | None  # of k blocks: values and columns (k, s, w), row (k, s)
    rest: SparseBlock | None  # the last block, or None
    size: tuple[int, int] = static()
    block: int = static()
    as_stored: bool = static(default=False)

    @property
    def shape(self):
        """(n, d)."""
        return self.size

    @property
    def dtype(self):
        """The dtype of the entries."""
        return (self.whole or self.rest).dtype  # type: ignore[union-attr]

    @property
    def points(self):
        """All rows, as they are stored."""
        return self.stored

    @property
    def stored(self):
        """The same rows, whose blocks are given on sparse."""
        return replace(self, as_stored=True)

    def astype(self, dtype) -> "SparseRows":
        """The same matrix in another dtype."""
        whole, rest = (
            None if part is None else part.astype(dtype) for part in (self.whole, self.rest)
        )
        return replace(self, whole=whole, rest=rest)

    def check(self, kernel, name="X", *, training=True):
        """Raise for parameters that do not suit, and for some of the rows, outside of the kernel's
        domain; entries were looked at when they came.
        """
        del name, training
        kernel.check(self.some(self.block))

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.sum`, in one compiled loop over its own blocks."""
        del temporaries, block_size
        return sum_blocks(self._on_blocks(fn), *self._blocks(columns))

    def map(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.map`, in one compiled loop over its own blocks."""
        del temporaries, block_size
        return map_blocks(self._on_blocks(fn), *self._blocks(columns))

    def some(self, num):
        """The first rows."""
        first = self.rest if self.whole is None else jax.tree.map(lambda a: a[0], self.whole)
        return first.dense()[:num]  # type: ignore[union-attr]

    def take(self, indices):
        """The rows of these numbers, 0 to n − 1, dense."""
        check_row_numbers(indices, self.size[0])
        place = (
            jnp.full(self.size[0], len(indices), jnp.int32)
            .at[indices]
            .set(jnp.arange(len(indices), dtype=jnp.int32))
        )

        rows, start = (
            jnp.zeros((len(indices) + 1, self.size[1]), self.dtype),
            0,
        )  # one more, for those that are not taken
        for part in (self.whole, self.rest):
            if part is not None:
                blocks = part.row.reshape(-1, part.row.shape[-1])
                number = (
                    blocks
                    + (start + self.block * jnp.arange(len(blocks), dtype=jnp.int32))[:, None]
                )
                rows = rows.at[place[number.reshape(part.row.shape)][..., None], part.columns].add(
                    part.values
                )
                start += self.block * len(blocks)
        return rows[place[indices]]  # a row that is named twice is read once

    def candidates(self):
        """All rows, sparse."""
        return None, self

    def dense(self):
        """Refused: the rows are sparse for a reason."""
        raise ValueError(
            "this needs a dense X: pass X.toarray(), leave route= out, or give landmarks as points"
        )

    def kernel_matrix(self, kernel, block_size=None):
        """K, the diagonal exact, from blocks of sparse rows with blocks of dense ones."""
        del block_size
        if not kernel.evaluable or kernel.num_features(self.size[1], self.dtype) is not None:
            raise ValueError(
                f"K of all pairs needs rows in memory where the kernel is {type(kernel).__name__}: leave route= out, or pass X.toarray()"
            )
        K = gram(kernel, self, self.stored)
        each = jnp.arange(self.size[0])
        return K.at[each, each].set(self.stored.map(kernel.diag))

    def _blocks(self, columns):
        whole, rest = split((jnp.arange(self.size[0]), *columns), self.block)
        return (None if whole is None else (self.whole, whole)), (
            None if rest is None else (self.rest, rest)
        )

    def _on_blocks(self, fn):
        def on_block(parts):
            block, (_, *columns) = parts
            return fn(block if self.as_stored else block.dense(), *columns)

        return on_block


def is_sparse(X) -> bool:
    """Whether X is a SciPy sparse matrix or array, a JAX BCOO, or already `SparseRows`."""
    return isinstance(X, SparseRows) or hasattr(X, "tocsr") or type(X).__name__ in ("BCOO", "BCSR")


def sparse_rows(X, dtype=None, name: str = "X") -> SparseRows:
    """A SciPy sparse or JAX BCOO matrix as `SparseRows`, on the host, O(nnz)."""
    if isinstance(X, SparseRows):
        return X if dtype is None else X.astype(dtype)
    data, row, column = _coordinates(X)
    (n, d), data = X.shape, as_floats(name, data, dtype)
    if n == 0 or d == 0:
        raise ValueError(
            f"{name} is empty, with shape {X.shape}: give at least one row and one column"
        )
    if not np.isfinite(data).all():
        raise ValueError(
            f"{name} holds {int((~np.isfinite(data)).sum())} stored values that are NaN or infinite: drop those rows or fill them in first"
        )
    check_squares(name, data, column)
    block = max(1, min(n, max(BLOCK_NUMBERS // d, min(FEWEST_ROWS, MOST_NUMBERS // d))))
    data, row, column = _once_each(data, row, column)
    width = max(
        1, -(-len(data) // n)
    )  # of a run: as a row has in the mean, so that at most half of what is stored is filling
    starts = np.searchsorted(row, np.arange(0, n + block, block).clip(max=n))
    cut = [
        _runs(data[a:b], row[a:b] - i * block, column[a:b], width)
        for i, (a, b) in enumerate(zip(starts, starts[1:], strict=False))
    ]
    k = n // block
    most = max((len(values) for values, _, _ in cut[:k]), default=0)
    whole = [
        np.stack([np.pad(a, [(0, most - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in parts])
        for parts in zip(*cut[:k], strict=True)
    ]
    blocks = _block(whole, (block, d)) if k else None
    rest = _block(cut[k], (n - k * block, d)) if k * block < n else None
    return SparseRows(blocks, rest, (n, d), block)


def _block(parts, shape) -> SparseBlock:
    values, columns, row = map(jnp.asarray, parts)
    return SparseBlock(values, columns, row, shape)


def _once_each(data, row, column):
    """Entries by row and column, those stored more than once added up."""
    order = np.lexsort((column, row))
    data, row, column = data[order], row[order], column[order]
    first = np.flatnonzero(np.diff(row, prepend=-1) | np.diff(column, prepend=-1))
    return np.add.reduceat(data, first) if len(first) else data, row[first], column[first]


def _runs(data, row, column, width: int):
    """Entries as runs of `width` of the same row: values, columns and row, at least one."""
    begins = np.searchsorted(row, row)  # where the row of each entry begins
    within = np.arange(len(row)) - begins
    starts = np.flatnonzero(within % width == 0)
    run = np.searchsorted(starts, np.arange(len(row)), side="right") - 1
    values, columns = (
        np.zeros((max(1, len(starts)), width), data.dtype),
        np.zeros((max(1, len(starts)), width), np.int32),
    )
    values[run, within % width], columns[run, within % width] = data, column
    return values, columns, row[starts].astype(np.int32) if len(starts) else np.zeros(1, np.int32)


def _coordinates(X):
    if not is_concrete(X):
        raise ValueError("a sparse X must be given outside jax.jit: its blocks are cut on the host")
    if hasattr(X, "tocsr"):
        X = X.tocoo()
        return X.data, X.row.astype(np.int32), X.col.astype(np.int32)
    if type(X).__name__ == "BCSR":
        X = X.to_bcoo()
    if X.n_batch or X.n_dense:
        raise ValueError("a BCOO matrix X must have no batch and no dense dimensions")
    indices, data = np.asarray(X.indices), np.asarray(X.data)
    stored = (indices < np.array(X.shape)).all(axis=1)  # BCOO pads with indices out of bounds
    return data[stored], indices[stored, 0].astype(np.int32), indices[stored, 1].astype(np.int32)


def as_rows_in(dtype, kernel: Kernel, X, devices: int = 1) -> Rows:
    """The same in a dtype, that of a model; a source of rows as it is."""
    if is_sparse(X):
        X = sparse_rows(X, dtype)
    elif not isinstance(X, Rows):
        X = as_array("X", X, dtype)
    return as_rows(kernel, X, devices=devices)


def rows_to_fit(kernel: Kernel, X, name: str = "X") -> Rows:
    """X at the door, whose values a factor can be made of."""
    rows = as_rows(kernel, X, name)
    rows.check(kernel, name)
    return rows


def as_rows(kernel: Kernel, X, name: str = "X", devices: int = 1) -> Rows:
    """X at the door: an array of inputs, on one device or on many, or of kernel values where the
    kernel is a matrix; a sparse matrix; a source of rows.

    `devices` over which an array may lie where that cannot be seen, inside of `jax.jit` without a
    mesh that is set."""
    if isinstance(X, Rows):
        return X
    if is_sparse(X):
        return sparse_rows(X, name=name)
    X = as_array(name, X)
    check_matrix(name, X)
    parts = parts_of(X, devices)
    if parts > 1 and is_concrete(X):
        return ShardedRows.of(X)
    return DenseRows(X, parts) if kernel.evaluable else GramRows(X)
