"""A block of sparse rows, and what kernels need of it in as many operations as there are stored
entries for each row that it meets.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.kernels import (
    Block,
    inner_products,
    near_product,
    squared_distances,
    squared_lengths,
)
from jaxrls.core.support import pytree, static

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
def _inner_products(X: SparseBlock, Z: Float[Array, "m d"]) -> Float[Array, "b m"]:
    """⟨x, z⟩, O(stored entries · m): one entry of every run at a time, so that what is gathered is
    as large as the result.
    """
    across = Z.T

    @jax.checkpoint
    def add(total, entry):
        value, column = entry
        return total + value[:, None] * across[column], None

    runs = jnp.zeros((len(X.row), Z.shape[0]), X.dtype)
    return X.by_row(jax.lax.scan(add, runs, (X.values.T, X.columns.T))[0])


@squared_distances.register(SparseBlock)
def _squared_distances(X: SparseBlock, Z: Float[Array, "m d"], inverse: Float[Array, " d"]):
    """Of rows that are not centred, which would make them dense: errors are at most 12 (2 + √d) eps
    (16 + r²). **Cost** O(stored entries · m), and that of dense rows where both lie farther than 8
    widths from 0.
    """
    return near_product(X.times(inverse), Z * inverse, SPARSE_NEAR, _of_dense, (X, Z, inverse))


def _of_dense(_, rows):
    X, Z, inverse = rows
    return squared_distances(X.dense(), Z, inverse)
