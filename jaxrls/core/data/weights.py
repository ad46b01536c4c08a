"""Sample weights v; no weights are the case v = 1."""

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

    The weighted problem has rows √v x and labels √v y. An integer weight is that many equal rows,
    weight 0 a row that takes no part in the fit; a weight below eps of the largest counts as 0.

    Args:
        values: weights (n,), None where all are 1.
        n: the number of rows.
        dtype: the dtype of the data.
        padded: whether all rows of weight 0 are padding, of which nothing is asked.

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
        """Weights in the dtype of the data, checked; None stands for ones."""
        if isinstance(values, Weights):
            return values
        if values is not None:
            values = as_array("weights", values, dtype)
            check_weights(values, n)
            least = float(jnp.finfo(dtype).eps) * jnp.max(jax.lax.stop_gradient(values))
            values = jnp.where(values > least, values, 0)  # whose derivative at 0 is 0
        return cls(values, n, jnp.dtype(dtype))

    @classmethod
    def of_rows(cls, values: Any, rows: Rows) -> "Weights":
        """Weights as given, or where they are None those that the rows have."""
        values = rows.row_weights if values is None else values
        if not isinstance(values, Weights | None):
            values = rows.column(as_floats("weights", values, rows.dtype))
        return cls.of(values, rows.shape[0], rows.dtype)

    def block(self, values: Float[Array, " n"] | None, n: int) -> "Weights":
        """Weights of a block of n rows."""
        return Weights(values, n, self.dtype, self.padded)

    @property
    def array(self) -> Float[Array, " n"]:
        """v as an array."""
        return jnp.ones(self.n, self.dtype) if self.values is None else self.values

    @property
    def root(self) -> Float[Array, " n"]:
        """√v."""
        only_ones = self.values is None or self.padded  # or 0, of padding
        return self.array if only_ones else safe_sqrt(self.values)

    @property
    def root_or_one(self) -> Float[Array, " n"]:
        """√v, and 1 for rows of weight 0, which are treated as queries."""
        return self.root if self.values is None else jnp.where(self.used, self.root, 1)

    @property
    def used(self):
        """Where v > 0."""
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
        return 1 if self.values is None or self.padded else jnp.max(self.values)

    @property
    def log_product(self) -> Float[Array, ""]:
        """Σ log v over the rows of positive weight."""
        if self.values is None:
            return on_device(np.zeros((), self.dtype))
        return jnp.sum(jnp.log(jnp.where(self.used, self.values, 1)))

    def sum(self, A: Float[Array, "n *t"]) -> Float[Array, "*t"]:
        """Σ v A."""
        return jnp.sum(A, axis=0) if self.values is None else matmul(self.values, A)

    def mean(self, A: Float[Array, "n *t"]) -> Float[Array, "*t"]:
        """Σ v A / Σ v."""
        return self.sum(A) / self.total

    def scale(self, A: Float[Array, "#n *t"]) -> Float[Array, "#n *t"]:
        """√v A, row by row."""
        return A if self.values is None else A * _along_columns(self.root, A)

    def unscale(self, A: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """A/√v, row by row, and 0 for rows of weight 0, so that derivatives stay finite."""
        if self.values is None:
            return A
        used = _along_columns(self.used, A)
        return jnp.where(used, A / jnp.where(used, _along_columns(self.root, A), 1), 0)

    def scale_both(self, K: Float[Array, "n n"]) -> Float[Array, "n n"]:
        """√v K √v of a square matrix."""
        return K if self.values is None else self.root[:, None] * K * self.root[None, :]

    def take(self, indices: Int[Array | np.ndarray, " b"]) -> Any:
        """Weights of some rows; None where all are 1."""
        return None if self.values is None else self.values[indices]

    def without(self, indices: Int[Array, " b"]) -> "Weights":
        """The same weights, but 0 for these rows."""
        return Weights(self.array.at[indices].set(0), self.n, self.dtype)


@pytree
class SummedWeights(Weights):
    """Weights of some of the rows, or of rows that are not kept, with the sums over all rows."""

    sums: Any = None

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
    """A vector over the rows of A, shaped to multiply them."""
    return column.reshape(-1, *[1] * (A.ndim - 1))
