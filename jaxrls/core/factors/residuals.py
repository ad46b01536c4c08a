"""Residuals of a block of rows, and rows that are held out, as functions of them are given them.

`Factor.sweep` passes `Residuals` to a function, for all λ. A `Summand` takes rows that are held out
at one λ, as `HeldOut`.

Theory: `docs/theory.md`, "One matrix".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Weights
from jaxrls.core.linalg import Reduction


class RowLabels(NamedTuple):
    """The labels of b rows, and the weights with which they count when they are held out.

    A sweep reads them together with a `DataBlock` or a `LeftBlock`, or for all rows at once.
    """

    Y: Float[Array, "b t"]  # the labels
    scaled: Float[Array, "b t"]  # √v (y − mean)
    counted: Float[Array, " b"] | None  # the weights with which held-out rows count; None for 1


class HeldOut(NamedTuple):
    """A block of b rows that are held out, at one λ or, with an axis L, at several."""

    e: Float[Array, "b *L t"]  # held-out residuals
    remaining: Any  # 1 − leverage, (b, *L, k), of single rows that are held out exactly; else None
    labels: Float[Array, "b t"]
    weights: Float[Array, " b"]

    def at_each_lam(self, reduction: Reduction, fn: Callable) -> Any:
        """Apply `fn`, which takes these rows at one λ, at all of several λ.

        Results have an axis of λ: the first axis for `SUM`, and the second for `MAP`.
        """
        axes: Any = (1, 1, None, None)
        return jax.vmap(fn, (HeldOut(*axes),), reduction.lam_axis)(self)


# A sum over a block of rows that are held out at one λ. It is 0 for rows of weight 0.
Summand = Callable[[HeldOut], Any]


class Residuals(NamedTuple):
    """The residuals of a block of b rows, for all λ."""

    r: Float[Array, "b L t"]  # √v (y − f)
    diagonal: Float[Array, "b L k"]  # of R
    weights: Weights
    labels: RowLabels

    def held_out(self) -> HeldOut:
        """Return the same rows held out one by one, with e = r/(R√v).

        So that derivatives are finite, rows of weight 0 get a leverage of 0. They and the rows that
        do not count get e = 0.
        """
        remaining = self.diagonal
        if self.weights.values is not None:
            remaining = jnp.where(self.weights.used[:, None, None], remaining, 1)
        e = self.weights.unscale(self.r / remaining)
        counted = self.weights.block(self.labels.counted, len(e))
        if counted.values is not None:
            e = jnp.where(counted.used[:, None, None], e, 0)
        return HeldOut(e, remaining, self.labels.Y, counted.array)
