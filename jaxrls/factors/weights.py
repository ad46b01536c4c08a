"""Sample weights v, of which weights 1 are a case, and labels as a weighted problem sees them."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.linalg.products import matmul, safe_sqrt
from jaxrls.rows.rows import Rows
from jaxrls.support.checks import as_array, as_floats, check_finite, check_targets, check_weights
from jaxrls.support.pytrees import pytree, static


@pytree
class Weights:
    """One weight for every row; `values` is None where all are 1.

    The weighted problem has rows √v x and labels √v y. An integer weight is that many equal rows, weight 0 a row that was never there.

    >>> import jax.numpy as jnp
    >>> weights = Weights.of([4.0, 0.0], 2, jnp.float32)
    >>> float(weights.total), float(weights.count), weights.scale(jnp.ones((2, 1), jnp.float32)).tolist()
    (4.0, 1.0, [[2.0], [0.0]])
    """

    values: Float[Array, " n"] | None
    n: int = static()
    dtype: Any = static()

    @classmethod
    def of(cls, values, n: int, dtype) -> "Weights":
        """Weights in the dtype of the data, checked; None stands for ones."""
        if isinstance(values, Weights):
            return values
        if values is not None:
            values = as_array("weights", values, dtype)
            check_weights(values, n)
            values = jnp.where(values > 0, values, 0)  # whose derivative at 0 is 0
        return cls(values, n, jnp.dtype(dtype))

    @classmethod
    def of_rows(cls, values, rows: Rows) -> "Weights":
        """Weights as given, or those that the rows bring."""
        values = rows.row_weights if values is None else values
        if not isinstance(values, Weights | None):
            values = rows.column(as_floats("weights", values, rows.dtype))
        return cls.of(values, rows.shape[0], rows.dtype)

    def block(self, values, n: int) -> "Weights":
        """Those of n of the rows."""
        return Weights(values, n, self.dtype)

    @property
    def array(self) -> Float[Array, " n"]:
        """v as an array."""
        return jnp.ones(self.n, self.dtype) if self.values is None else self.values

    @property
    def root(self) -> Float[Array, " n"]:
        """√v."""
        return jnp.ones(self.n, self.dtype) if self.values is None else safe_sqrt(self.values)

    @property
    def inverse_root(self) -> Float[Array, " n"] | None:
        """1/√v, 0 for rows of weight 0, and None where all are 1."""
        return None if self.values is None else self.unscale(jnp.ones(self.n, self.dtype))

    @property
    def used(self):
        """Where v > 0."""
        return jnp.ones(self.n, bool) if self.values is None else self.values > 0

    @property
    def count(self) -> Float[Array, ""]:
        """The number of rows of positive weight."""
        return jnp.asarray(self.n, self.dtype) if self.values is None else jnp.sum(self.values > 0).astype(self.dtype)

    @property
    def total(self) -> Float[Array, ""]:
        """Σᵢ vᵢ."""
        return jnp.asarray(self.n, self.dtype) if self.values is None else jnp.sum(self.values)

    @property
    def log_product(self) -> Float[Array, ""]:
        """Σ log v over the rows of positive weight."""
        return jnp.zeros((), self.dtype) if self.values is None else jnp.sum(jnp.log(jnp.where(self.used, self.values, 1)))

    @property
    def heaviest(self) -> Bool[Array, " n"]:
        """Where v is largest, for the first row of which that is so: by sums over rows, so that rows on several devices stay there."""
        numbers = jnp.arange(self.n)
        return numbers == jnp.min(jnp.where(self.array == jnp.max(self.array), numbers, self.n))

    @property
    def direction(self) -> Float[Array, " n"]:
        """h = √v/‖√v‖, the constant function in the weighted problem."""
        return self.root / jnp.sqrt(self.total)

    def sum(self, A):
        """Σᵢ vᵢ aᵢ over the rows of a vector or a matrix."""
        return jnp.sum(A, axis=0) if self.values is None else matmul(self.values, A)

    def mean(self, A):
        """Σᵢ vᵢ aᵢ / Σᵢ vᵢ."""
        return jnp.mean(A, axis=0) if self.values is None else self.sum(A) / self.total

    def scale(self, A):
        """√v A, row by row."""
        return A if self.values is None else A * _beside(self.root, A)

    def unscale(self, A):
        """A/√v, row by row, and 0 for rows of weight 0, where derivatives stay finite."""
        if self.values is None:
            return A
        used = _beside(self.used, A)
        return jnp.where(used, A / jnp.where(used, _beside(self.root, A), 1), 0)

    def scale_both(self, K):
        """√v K √v of a square matrix."""
        return K if self.values is None else self.root[:, None] * K * self.root[None, :]

    def centre_both(self, K):
        """(I − 1vᵀ/Σv) K (I − v1ᵀ/Σv) with its parts: the mean of K's rows but for a constant, and how much of √v K √v goes, whose rounding stays.

        First about the heaviest row, whose entries so become exact zeros: else its weight would multiply their rounding.
        """
        part, corner = jnp.zeros(self.n, self.dtype), jnp.zeros((), self.dtype)
        if self.values is not None:
            heaviest = jnp.argmax(self.values)
            part, corner = K[heaviest], K[heaviest, heaviest]
            K = (K - part[:, None]) - (part - corner)[None, :]
        mean = self.mean(K)
        level = self.mean(mean)
        half = mean - 0.5 * level
        spread = self.total if self.values is None else self.total * (1 - jnp.sum(self.direction**4))
        taken = spread * jnp.abs(level + 2 * self.mean(part) - corner)
        return K - half[:, None] - half[None, :], mean + part, taken

    def some(self, indices) -> Any:
        """Those of some rows, None where all are 1."""
        return None if self.values is None else self.values[indices]

    def without(self, indices) -> "Weights":
        """The same with weight 0 for these rows."""
        return Weights(self.array.at[indices].set(0), self.n, self.dtype)


@pytree
class SummedWeights(Weights):
    """The weights of some of the rows, or of rows that are gone, and what those of all sum to."""

    sums: tuple[Any, Any, Any]

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
        """Σ log v over those."""
        return self.sums[2]


def _beside(column, A):
    """A vector over the rows of A, shaped to multiply them."""
    return column.reshape(-1, *[1] * (A.ndim - 1))


@pytree
class Labels:
    """Labels of one weighted problem; `flat` where they came as (n,)."""

    Y: Float[Array, "n t"]
    mean: Float[Array, "*n t"]  # weighted mean with an intercept, else 0; of every row what columns without penalty fit of it
    scaled: Float[Array, "n t"]  # √v (Y − mean)
    flat: bool = static()
    start: Float[Array, "q t"] | None = None  # coordinates of such a mean

    @classmethod
    def of(cls, Y, weights: Weights, intercept: bool) -> "Labels":
        """Labels (n,) or (n, t), centred by their weighted mean where an intercept is fitted."""
        Y = as_array("Y", Y, weights.dtype)
        check_targets("Y", Y, weights.n)
        check_finite("Y", Y)
        return cls.columns(Y.reshape(weights.n, -1), weights, intercept, Y.ndim == 1)

    @classmethod
    def none(cls, weights: Weights) -> "Labels":
        """No labels at all."""
        return cls.columns(jnp.zeros((weights.n, 0), weights.dtype), weights, False, False)

    @classmethod
    def columns(cls, Y, weights, intercept, flat):
        """Labels (n, t) as they are."""
        origin = jnp.zeros(Y.shape[1], weights.dtype)
        if not intercept:
            return cls(Y, origin, weights.scale(Y), flat)
        if weights.values is not None:
            origin = jnp.sum(jnp.where(weights.heaviest[:, None], Y, 0), axis=0)  # see `Weights.centre_both`
        mean = weights.mean(Y - origin)
        return cls(Y, origin + mean, weights.scale(Y - origin - mean), flat)

    @property
    def given(self) -> Float[Array, "n *t"]:
        """Y in the shape that it came in."""
        return self.Y[:, 0] if self.flat else self.Y

    def drop_axis(self, A):
        """A result (…, t) without its last axis where Y came without it."""
        return A[..., 0] if self.flat else A
