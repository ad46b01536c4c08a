"""Residuals of a block of rows, and held-out residuals, as functions of them are given them.

`Factor.sweep` passes `Residuals` to a function. A score takes rows that are held out, as `HeldOut`.
Both have all λ. `score_by` makes a score of a function of one λ, such as a criterion's `summand`.

Theory: `docs/theory.md`, "One matrix".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Weights


class RowLabels(NamedTuple):
    """What a sweep reads of b rows besides their `DataBlock`."""

    Y: Float[Array, "b t"]  # the labels
    scaled: Float[Array, "b t"]  # √v (y − mean)
    counted: Float[Array, " b"] | None  # the weights with which held-out rows count; None for 1


class HeldOut(NamedTuple):
    """A block of b rows that are held out, for all λ: what a score is given."""

    e: Float[Array, "b L t"]  # held-out residuals
    remaining: Any  # 1 − leverage, (b, L, k), of single rows that are held out exactly; else None
    labels: Float[Array, "b t"]
    weights: Weights


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
        return HeldOut(e, remaining, self.labels.Y, counted)


# A function of rows that are held out, such as a sum over them. Its results have an axis of λ, the
# first one of sums.
Score = Callable[[HeldOut], Any]
# `summand(e, labels, v)` of held-out residuals e at one λ, which sums over a block of rows.
Summand = Callable[[Float[Array, "b t"], Float[Array, "b t"], Any], Any]
# `summand(e, 1 − leverage, labels, v)` of held-out residuals e at one λ.
SummandWithRemaining = Callable[
    [Float[Array, "b t"], Float[Array, "b k"], Float[Array, "b t"], Any], Any
]


def score_by(summand: Summand) -> Score:
    """Return the score that sums by `summand` at every λ."""
    return score_with_remaining(lambda e, _, labels, v: summand(e, labels, v))


def score_with_remaining(summand: SummandWithRemaining) -> Score:
    """Return the score that sums by `summand`, which takes 1 − leverage too, at every λ."""
    at_all_lams = jax.vmap(summand, in_axes=(1, 1, None, None))
    return lambda held: at_all_lams(held.e, held.remaining, held.labels, held.weights.array)
