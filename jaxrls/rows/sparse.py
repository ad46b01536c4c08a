"""Sparse design matrices, held so that their row blocks become dense one at a time and the whole never does."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.kernels.kernel import Kernel
from jaxrls.rows.blocks import map_blocks, split, sum_blocks
from jaxrls.rows.rows import DenseRows, GramRows, Rows
from jaxrls.rows.sharded import ShardedRows
from jaxrls.support.checks import as_array, as_floats, check_matrix, is_concrete
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


# Numbers in one dense block: it should stay in cache on CPUs and still be a matrix worth multiplying.
BLOCK_NUMBERS = 2**20


@pytree
class SparseRows(Rows):
    """A sparse matrix (n, d) as blocks of `block` rows of coordinates, padded to equally many, and a ragged last block.

    Each block becomes dense when it is read, so that the whole never does.
    """

    whole: Any  # values, row numbers in the block and columns, each (k, z)
    rest: Any  # the same of the last block, each (z,), or None
    size: tuple[int, int] = static()
    block: int = static()

    @property
    def shape(self):
        """(n, d)."""
        return self.size

    @property
    def dtype(self):
        """The dtype of the entries."""
        return self.whole[0].dtype

    def astype(self, dtype) -> "SparseRows":
        """The same matrix in another dtype."""
        cast = lambda part: None if part is None else (part[0].astype(dtype), *part[1:])  # noqa: E731
        return SparseRows(cast(self.whole), cast(self.rest), self.size, self.block)

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.sum`, in one compiled loop over its own blocks."""
        del temporaries, block_size
        return sum_blocks(self._on_dense(fn), *self._blocks(columns))

    def map(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.map`, in one compiled loop over its own blocks."""
        del temporaries, block_size
        return map_blocks(self._on_dense(fn), *self._blocks(columns))

    def some(self, num):
        """The first rows."""
        return self._dense(jax.tree.map(lambda a: a[0], self.whole), self.block)[:num]

    def dense(self):
        """Refused: the rows are sparse for a reason."""
        raise ValueError("this needs a dense X: pass X.toarray(), leave route= out, or give landmarks as points")

    def _blocks(self, columns):
        whole, rest = split((jnp.arange(self.size[0]), *columns), self.block)
        return (None if whole is None else (self.whole, whole)), (None if rest is None else (self.rest, rest))

    def _on_dense(self, fn):
        def on_block(parts):
            coordinates, (numbers, *columns) = parts
            return fn(self._dense(coordinates, numbers.shape[0]), *columns)

        return on_block

    def _dense(self, coordinates, rows):
        data, row, column = coordinates
        return jnp.zeros((rows, self.size[1]), data.dtype).at[row, column].add(data)


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
        raise ValueError(f"{name} is empty, with shape {X.shape}: give at least one row and one column")
    if not np.isfinite(data).all():
        raise ValueError(
            f"{name} holds {int((~np.isfinite(data)).sum())} stored values that are NaN or infinite: drop those rows or fill them in first"
        )
    order = np.argsort(row, kind="stable")
    data, row, column = data[order], row[order], column[order]
    block = max(1, min(n, BLOCK_NUMBERS // d))
    starts = np.searchsorted(row, np.arange(0, n + block, block).clip(max=n))
    k = n // block
    width = max(1, int(np.diff(starts)[:k].max(initial=0)))
    whole = tuple(np.zeros((k, width), a.dtype) for a in (data, row, column))
    for i in range(k):
        inside = slice(starts[i], starts[i + 1])
        for target, source in zip(whole, (data, row - i * block, column), strict=True):
            target[i, : inside.stop - inside.start] = source[inside]
    rest = None
    if k * block < n:
        rest = tuple(jnp.asarray(a[starts[k] :]) for a in (data, row - k * block, column))
    return SparseRows(tuple(jnp.asarray(a) for a in whole), rest, (n, d), block)


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


def as_rows(kernel: Kernel, X, name: str = "X", devices: int = 1) -> Rows:
    """X at the door: an array of inputs, on one device or on many, or of kernel values where the kernel is a matrix; a sparse matrix; a source of rows.

    `devices` over which an array may lie where that cannot be seen, inside of `jax.jit` without a mesh that is set.
    """
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
