"""Labels of a weighted problem with fixed effects."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.problem.fixed_effects import FixedEffects
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support import as_array, check_labels, check_targets, pytree, static


@pytree
class Labels:
    """Labels Y with their fit by the fixed effects alone; `flat` says that they came as (n,)."""

    Y: Float[Array, "n t"]
    start: Float[Array, "q t"]  # what the fixed effects alone fit
    mean: Float[Array, "#n t"]  # B start
    scaled: Float[Array, "n t"]  # √v (Y − mean)
    flat: bool = static()

    @classmethod
    def of(cls, Y: Any, weights: Weights, fixed: FixedEffects) -> "Labels":
        """Labels (n,) or (n, t), checked, minus their fit by the fixed effects."""
        Y = as_array("Y", Y, weights.dtype)
        check_targets("Y", Y, weights.n)
        check_labels("Y", Y)
        return cls.columns(Y.reshape(weights.n, -1), weights, fixed, Y.ndim == 1)

    @classmethod
    def none(cls, weights: Weights, fixed: FixedEffects) -> "Labels":
        """No labels at all."""
        return cls.columns(jnp.zeros((weights.n, 0), weights.dtype), weights, fixed, False)

    @classmethod
    def columns(cls, Y, weights: Weights, fixed: FixedEffects, flat: bool) -> "Labels":
        """Labels (n, t), not checked; fitted twice, as the first time rounds in their units."""
        first = fixed.fit(weights, Y)
        about = Y - fixed.fitted(fixed.rows, first)
        more = fixed.fit(weights, about)
        start = first + more
        scaled = weights.scale(about - fixed.fitted(fixed.rows, more))
        return cls(Y, start, fixed.fitted(fixed.rows, start), scaled, flat)

    @property
    def given(self) -> Float[Array, "n *t"]:
        """Y in the shape in which it was given."""
        return self.Y[:, 0] if self.flat else self.Y

    def drop_axis(self, A):
        """A result (…, t), without its last axis where Y was given as (n,)."""
        return A[..., 0] if self.flat else A
