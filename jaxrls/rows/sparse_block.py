"""A block of sparse rows, and its products with dense rows, in as many operations as there are
stored entries for each of those.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.linalg.products import matmul
from jaxrls.core.support.pytrees import pytree, static


@pytree
class SparseBlock:
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
    ndim = 2

    @property
    def dtype(self):
        """That of the entries."""
        return self.values.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def astype(self, dtype) -> "SparseBlock":
        """The same rows in another dtype."""
        return replace(self, values=self.values.astype(dtype))

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

    def _by_row(self, runs: Float[Array, "s *m"]) -> Float[Array, "b *m"]:
        """Sums over the runs of every row."""
        return jnp.zeros((self.shape[0], *runs.shape[1:]), self.dtype).at[self.row].add(runs)

    def squared_lengths(self) -> Float[Array, " b"]:
        """‖x‖², each entry being stored once."""
        return self._by_row(jnp.sum(self.values**2, axis=1))

    def inner(self, Z: Float[Array, "m d"]) -> Float[Array, "b m"]:
        """⟨x, z⟩, O(stored entries · m): one entry of every run at a time, so that what is gathered
        is as large as the result.
        """
        across = Z.T

        @jax.checkpoint
        def add(total, entry):
            value, column = entry
            return total + value[:, None] * across[column], None

        runs = jnp.zeros((len(self.row), Z.shape[0]), self.dtype)
        return self._by_row(jax.lax.scan(add, runs, (self.values.T, self.columns.T))[0])


def inner_products(X: Any, Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """⟨x, z⟩ of rows, X dense or sparse."""
    return X.inner(Z) if isinstance(X, SparseBlock) else matmul(X, Z.T)


def squared_lengths(X: Any) -> Float[Array, " n"]:
    """⟨x, x⟩ of rows, dense or sparse."""
    return X.squared_lengths() if isinstance(X, SparseBlock) else jnp.sum(X * X, axis=1)


def made_dense(X: Any) -> Any:
    """Rows in one array."""
    return X.dense() if isinstance(X, SparseBlock) else X
