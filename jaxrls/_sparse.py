"""Sparse design matrices, held so that their row blocks become dense one at a time and the whole never does."""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls._checks import is_concrete


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


@jax.tree_util.register_pytree_node_class
class SparseRows:
    """A sparse matrix (n, d) as blocks of `block` rows of coordinates, padded to equally many, and a ragged last block.

    `sum_rows` and `map_rows` take it wherever they take a dense matrix, and hand `fn` dense blocks.
    """

    ndim = 2

    def __init__(self, whole, rest, shape: tuple[int, int], block: int):
        self.whole: tuple[Float[Array, "k z"], Int[Array, "k z"], Int[Array, "k z"]] = whole
        self.rest: tuple[Float[Array, " z"], Int[Array, " z"], Int[Array, " z"]] | None = rest
        self.shape, self.block = shape, block

    def tree_flatten(self):
        """Children and the static rest, for JAX."""
        return (self.whole, self.rest), (self.shape, self.block)

    @classmethod
    def tree_unflatten(cls, static, children):
        """The inverse of `tree_flatten`."""
        return cls(*children, *static)

    @property
    def dtype(self):
        """The dtype of the entries."""
        return self.whole[0].dtype

    def astype(self, dtype) -> "SparseRows":
        """The same matrix in another dtype."""
        cast = lambda part: None if part is None else (part[0].astype(dtype), *part[1:])  # noqa: E731
        return SparseRows(cast(self.whole), cast(self.rest), self.shape, self.block)

    def dense_block(self, coordinates, rows: int) -> Float[Array, "b d"]:
        """One block of rows as a dense matrix, from its coordinates."""
        data, row, column = coordinates
        return jnp.zeros((rows, self.shape[1]), data.dtype).at[row, column].add(data)


def is_sparse(X) -> bool:
    """Whether X is a SciPy sparse matrix or array, a JAX BCOO, or already `SparseRows`."""
    return isinstance(X, SparseRows) or hasattr(X, "tocsr") or type(X).__name__ in ("BCOO", "BCSR")


def sparse_rows(X, dtype=None) -> SparseRows:
    """A SciPy sparse or JAX BCOO matrix as `SparseRows`, on the host, O(nnz)."""
    if isinstance(X, SparseRows):
        return X if dtype is None else X.astype(dtype)
    data, row, column = _coordinates(X)
    if dtype is None:
        dtype = data.dtype if data.dtype.kind == "f" else np.dtype(np.float64)
    (n, d), data = X.shape, data.astype(dtype)
    if n == 0 or d == 0:
        raise ValueError(f"X is empty, with shape {X.shape}: give at least one row and one column")
    if not np.isfinite(data).all():
        raise ValueError(
            f"X holds {int((~np.isfinite(data)).sum())} stored values that are NaN or infinite: drop those rows or fill them in first"
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
