"""An intercept as the only fixed effect, as the class `Intercept`."""

from dataclasses import replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data.effects_given import Columns
from jaxrls.core.data.fixed_effects import FixedEffects, PerEffect, Vector
from jaxrls.core.data.folds import Folds
from jaxrls.core.data.weights import Weights
from jaxrls.core.linalg import matmul
from jaxrls.core.support import on_device, pytree


@pytree
class Intercept(FixedEffects):
    """A column of ones and no other, whose H is √v/√Σv.

    Sums over rows replace products with a column of ones. T⁻¹ is 1/√Σv, of shape (1, 1).
    """

    rank_message: ClassVar[str] = (
        "{} holds all of the weight: without it no row is left to fit an intercept to: give others "
        "weight, or take intercept=False"
    )

    @property
    def titles(self) -> tuple:
        return ("intercept",)

    @property
    def has_intercept(self) -> bool:
        return True

    def dense(self, values: Any, m: int) -> Columns:
        """Return ones, of shape (m, 1)."""
        return jnp.ones((m, 1), self.dtype)

    def basis_of(self, b: Columns) -> Columns:
        """Return b/√Σv."""
        return b * self.inverse_T

    def basis(self, values: Any, m: int) -> Columns:
        """Return 1/√Σv for each of m rows."""
        return jnp.broadcast_to(self.inverse_T, (m, 1))

    def fitted(self, values: Any, A: PerEffect) -> Float[Array, "#n *t"]:
        """Return A, of one row, because the fit is the same for all rows."""
        return A

    def sums(self, values: Any, v: Vector, A: Columns) -> PerEffect:
        """Return Σ v A."""
        return matmul(v, A)[None]

    def gram(self, values: Any, v: Vector) -> PerEffect:
        """Return Σ v, of shape (1, 1)."""
        return jnp.sum(v).reshape(1, 1)

    def leverage(self, values: Any, v: Vector) -> Vector:
        """Return v/Σv."""
        return v * jnp.squeeze(self.inverse_T) ** 2

    def solve(self, A: PerEffect) -> PerEffect:
        """Return the weighted means A/Σv, from weighted sums A over the rows."""
        return self.inverse_T**2 * A

    def fit(self, weights: Weights, A: Columns) -> PerEffect:
        """Return the mean of A, to which the mean of A minus this mean is added.

        The second mean corrects the rounding error of the first.
        """
        mean = weights.mean(A)[None]
        return mean + weights.mean(A - mean)[None]

    def from_gram(self, gram: PerEffect) -> "Intercept":
        """Return the intercept over other rows, given their Σv."""
        return replace(self, inverse_T=1 / jnp.sqrt(gram))

    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        """Return whether a row of positive weight remains without each row, or without each fold.

        The result is None if shapes alone show that one does. This is so if all rows have weight 1,
        unless the folds are splits. One of two rows, or of two groups, always remains.
        """
        all_count = weights.values is None
        if all_count and weights.n > 1 and (folds is None or folds.are_groups):
            return None
        used = np.ones(weights.n, int) if all_count else weights.used.astype(int)
        left_out = used if folds is None else folds.sums_of_left_out(on_device(used))
        return used.sum() > left_out
