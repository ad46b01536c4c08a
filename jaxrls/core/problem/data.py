"""What a fit is made of besides kernel and labels: rows, their weights and their fixed effects,
read together in blocks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.problem.fixed_effects import FixedEffects
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support import pytree


class DataBlock(NamedTuple):
    """A block of rows x, their weights v, None where all are 1, and what the fixed effects know of
    them, b.
    """

    x: Any
    v: Any
    b: Any

    @property
    def weights(self) -> Float[Array, " b"]:
        """v as an array."""
        return jnp.ones(self.x.shape[0], self.x.dtype) if self.v is None else self.v


@pytree
class Data:
    """n rows with weights and fixed effects.

    >>> import jax.numpy as jnp
    >>> from jaxrls.core.problem.rows import DenseRows
    >>> rows = DenseRows(jnp.ones((3, 2)))
    >>> weights = Weights.of(None, 3, rows.dtype)
    >>> data = Data(rows, weights, FixedEffects.none(rows.dtype))
    >>> float(data.sum(lambda block, y: jnp.sum(block.x[:, 0] * y), jnp.arange(3.0)))
    3.0
    """

    rows: Any  # `Rows`
    weights: Weights
    fixed: FixedEffects

    def sum(self, fn: Callable, *columns, **hints) -> Any:
        """Σ `fn(block, *parts)` over blocks of rows, as `Rows.sum`."""
        return self.rows.sum(_with_block(fn), *self._columns, *columns, **hints)

    def map(self, fn: Callable, *columns, **hints) -> Any:
        """`fn(block, *parts)` of all blocks of rows, stacked as `Rows.map` does."""
        return self.rows.map(_with_block(fn), *self._columns, *columns, **hints)

    @property
    def _columns(self) -> tuple[Any, Any]:
        return self.weights.values, self.fixed.rows


def _with_block(fn: Callable) -> Callable:
    return lambda x, v, b, *parts: fn(DataBlock(x, v, b), *parts)
