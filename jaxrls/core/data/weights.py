"""Sample weights v, as the class `Weights`. Without weights, v = 1."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data.rows import Rows
from jaxrls.core.linalg import matmul, safe_sqrt
from jaxrls.core.support import as_array, as_floats, check_weights, on_device, pytree, static


@pytree
class Weights:
    """Sample weights, one for every row.

    The weighted problem has rows √v x and labels √v y. A row with an integer weight counts like
    that many equal rows. A row of weight 0 takes no part in the fit. A weight of at most eps times
    the largest weight counts as 0.

    Args:
        values: weights (n,); None if all are 1.
        n: the number of rows.
        dtype: the dtype of the data.
        padded: whether rows of weight 0 were added as padding to rows of weight 1. If so, nobody
            needs results for rows of weight 0, and all weights are 0 or 1.

    >>> import jax.numpy as jnp
    >>> weights = Weights.of([4.0, 0.0], 2, jnp.float32)
    >>> ones = jnp.ones((2, 1), jnp.float32)
    >>> float(weights.total), float(weights.count), weights.scale(ones).tolist()
    (4.0, 1.0, [[2.0], [0.0]])
    """

    values: Float[Array, " n"] | None
    n: int = static()
    dtype: Any = static()
    padded: bool = static(default=False)

    @classmethod
    def of(cls, values: Any, n: int, dtype: Any) -> "Weights":
        """Check weights, and make them in the dtype of the data; None stands for ones."""
        if isinstance(values, Weights):
            return values
        if values is not None:
            values = as_array("weights", values, dtype)
            check_weights(values, n)
            least = float(jnp.finfo(dtype).eps) * jnp.max(jax.lax.stop_gradient(values))
            values = jnp.where(values > least, values, 0)  # the derivative is 0 where this is 0
        return cls(values, n, jnp.dtype(dtype))

    @classmethod
    def of_rows(cls, values: Any, rows: Rows) -> "Weights":
        """Make the given weights, or if `values` is None those that come with the rows."""
        values = rows.row_weights if values is None else values
        if not isinstance(values, Weights | None):
            values = rows.column(as_floats("weights", values, rows.dtype))
        return cls.of(values, rows.shape[0], rows.dtype)

    def block(self, values: Float[Array, " n"] | None, n: int) -> "Weights":
        """Make weights of a block of n rows."""
        return Weights(values, n, self.dtype, self.padded)

    @property
    def array(self) -> Float[Array, " n"]:
        """v as an array, also if all weights are 1."""
        return jnp.ones(self.n, self.dtype) if self.values is None else self.values

    @property
    def are_equal(self) -> bool:
        """Whether all weights are 1, but for padding, whose weight is 0."""
        return self.values is None or self.padded

    @property
    def root(self) -> Float[Array, " n"]:
        """√v."""
        return self.array if self.are_equal else safe_sqrt(self.values)  # √v = v for 0 and 1

    @property
    def root_or_one(self) -> Float[Array, " n"]:
        """√v, but 1 for rows of weight 0, which are treated as query rows."""
        return self.root if self.values is None else jnp.where(self.used, self.root, 1)

    @property
    def used(self):
        """For each row, whether v > 0."""
        return jnp.ones(self.n, bool) if self.values is None else self.values > 0

    @property
    def count(self) -> Float[Array, ""]:
        """The number of rows of positive weight."""
        if self.values is None:
            return on_device(np.asarray(self.n, self.dtype))
        return jnp.sum(self.used).astype(self.dtype)

    @property
    def total(self) -> Float[Array, ""]:
        """Σᵢ vᵢ."""
        return self.count if self.values is None else jnp.sum(self.array)

    @property
    def largest(self) -> Any:
        """The largest weight."""
        return 1 if self.are_equal else jnp.max(self.array)

    @property
    def log_product(self) -> Float[Array, ""]:
        """Σ log v over the rows of positive weight."""
        if self.values is None:
            return on_device(np.zeros((), self.dtype))
        return jnp.sum(jnp.log(jnp.where(self.used, self.values, 1)))

    def sum(self, A: Float[Array, "n *t"]) -> Float[Array, "*t"]:
        """Return Σ v A, a sum over rows."""
        return jnp.sum(A, axis=0) if self.values is None else matmul(self.values, A)

    def mean(self, A: Float[Array, "n *t"]) -> Float[Array, "*t"]:
        """Return Σ v A / Σ v."""
        return self.sum(A) / self.total

    def times(self, A: Float[Array, "#n *t"]) -> Float[Array, "#n *t"]:
        """Return v A, row by row."""
        return A if self.values is None else _along_columns(self.values, A) * A

    def scale(self, A: Float[Array, "#n *t"]) -> Float[Array, "#n *t"]:
        """Return √v A, row by row."""
        return A if self.values is None else A * _along_columns(self.root, A)

    def unscale(self, A: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """Return A/√v, row by row.

        Rows of weight 0 get 0, so that derivatives are finite.
        """
        if self.values is None:
            return A
        used = _along_columns(self.used, A)
        return jnp.where(used, A / jnp.where(used, _along_columns(self.root, A), 1), 0)

    def scale_both(self, K: Float[Array, "n n"]) -> Float[Array, "n n"]:
        """Return K̃ = √v K √v of a square matrix K."""
        return K if self.values is None else self.root[:, None] * K * self.root[None, :]

    def take(self, indices: Int[Array | np.ndarray, " b"]) -> Any:
        """Return the weights of the rows of these numbers as an array; None if all are 1."""
        return None if self.values is None else self.values[indices]

    def without(self, indices: Int[Array, " b"]) -> "Weights":
        """Return the same weights, but 0 for the rows of these numbers."""
        return Weights(self.array.at[indices].set(0), self.n, self.dtype)


@pytree
class SummedWeights(Weights):
    """Weights of rows that are not kept. Only sums over all rows are known."""

    sums: Any = None  # (total, count, log_product)

    @property
    def total(self):
        """Σᵢ vᵢ."""
        return self.sums[0]

    @property
    def count(self):
        """The number of rows of positive weight."""
        return self.sums[1]

    @property
    def log_product(self):
        """Σ log v over the rows of positive weight."""
        return self.sums[2]


def _along_columns(
    column: Float[Array, " n"] | Bool[Array, " n"], A: Float[Array, "#n *t"]
) -> Array:
    """Return a vector over the rows of A, with further axes of length 1, to multiply rows."""
    return column.reshape(-1, *[1] * (A.ndim - 1))
