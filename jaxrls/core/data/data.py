"""The data of a fit: rows with weights and fixed effects (`Data`), and labels (`Labels`).

`Data` passes rows, weights and fixed effects to a function together, block by block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data.fixed_effects import FixedEffects
from jaxrls.core.data.weights import Weights
from jaxrls.core.linalg import MAP, SUM, Reduction
from jaxrls.core.support import (
    as_array,
    as_floats,
    check_labels,
    check_scale,
    check_targets,
    pytree,
    static,
)


class DataBlock(NamedTuple):
    """A block of rows, and what belongs to them."""

    x: Any  # the rows
    weights: Weights
    b: Any  # their part of `FixedEffects.values`
    added: Any  # their part of what the caller added


@pytree
class Data:
    """n rows with weights and fixed effects.

    >>> import jax.numpy as jnp
    >>> from jaxrls.core.data import DenseRows, no_effects
    >>> rows = DenseRows(jnp.ones((3, 2)))
    >>> weights = Weights.of(None, 3, rows.dtype)
    >>> data = Data(rows, weights, no_effects(rows.dtype))
    >>> float(data.sum(lambda block: jnp.sum(block.x[:, 0] * block.added), jnp.arange(3.0)))
    3.0
    """

    rows: Any  # `Rows`
    weights: Weights
    fixed: FixedEffects

    def sum(self, fn: Callable, added: Any = None, **hints) -> Any:
        """Sum `fn(block)` over blocks of rows, each a `DataBlock`.

        Args:
            fn: a function of a block. It returns a pytree of arrays.
            added: what else `fn` reads of the rows, as `block.added`: an array (n, …), or a pytree
                of arrays.
            hints: those of `Rows.sum`.
        """
        return self.over(SUM, fn, added, **hints)

    def map(self, fn: Callable, added: Any = None, **hints) -> Any:
        """Stack `fn(block)` over blocks of rows, each a `DataBlock`.

        The arguments are those of `sum`. `fn` returns arrays with as many rows as the block.
        """
        return self.over(MAP, fn, added, **hints)

    def over(self, reduction: Reduction, fn: Callable, added: Any = None, **hints) -> Any:
        """Compute `sum(fn, added)` for `SUM`, or `map(fn, added)` for `MAP`."""

        def of_block(x: Any, columns: tuple) -> Any:
            v, b, added = columns
            return fn(DataBlock(x, self.weights.block(v, x.shape[0]), b, added))

        columns = self.weights.values, self.fixed.values, added
        return self.rows.over(reduction, of_block, columns, **hints)


@pytree
class Labels:
    """Labels Y with their fit by the fixed effects alone."""

    Y: Float[Array, "n t"]
    beta: Float[Array, "q t"]  # the coefficients of the fit of Y by the fixed effects alone
    by_effects: Float[Array, "#n t"]  # the fitted values of that fit, B beta
    scaled: Float[Array, "n t"]  # √v (Y − by_effects)
    flat: bool = static()  # whether Y was given as (n,), without an axis of targets

    @classmethod
    def of(cls, Y: Any, weights: Weights, fixed: FixedEffects) -> "Labels":
        """Check labels (n,) or (n, t), and fit them by the fixed effects."""
        Y = as_floats("Y", Y)
        check_scale("Y", Y, weights.dtype)  # before they are rounded to 0
        Y = as_array("Y", Y, weights.dtype)
        check_targets("Y", Y, weights.n)
        check_labels("Y", Y)
        return cls.unchecked(Y.reshape(weights.n, -1), weights, fixed, Y.ndim == 1)

    @classmethod
    def none(cls, weights: Weights, fixed: FixedEffects) -> "Labels":
        """Make labels without a target."""
        return cls.unchecked(jnp.zeros((weights.n, 0), weights.dtype), weights, fixed, False)

    @classmethod
    def unchecked(
        cls, Y: Float[Array, "n t"], weights: Weights, fixed: FixedEffects, flat: bool
    ) -> "Labels":
        """Fit labels (n, t) by the fixed effects, without checks.

        What the first fit leaves is fitted once more. The reason is that the rounding errors of the
        first fit grow with the labels, which may be far from 0. Those of the second fit grow only
        with what the first one left.
        """
        first = fixed.fit(weights, Y)
        about = Y - fixed.fitted(fixed.values, first)
        more = fixed.fit(weights, about)
        beta = first + more
        scaled = weights.scale(about - fixed.fitted(fixed.values, more))
        return cls(Y, beta, fixed.fitted(fixed.values, beta), scaled, flat)

    @property
    def given(self) -> Float[Array, "n *t"]:
        """Y in the shape in which it was given, (n,) or (n, t)."""
        return self.drop_axis(self.Y)

    def drop_axis(self, A: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return a result (…, t), without its last axis if Y was given as (n,)."""
        return A[..., 0] if self.flat else A
