"""Levels as fixed effects, an intercept for each group of rows, as the class `FixedLevels`."""

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data.effects_given import Columns, numbers_of
from jaxrls.core.data.fixed_effects import FixedEffects, PerEffect, Vector
from jaxrls.core.data.folds import Folds
from jaxrls.core.data.weights import Weights
from jaxrls.core.support import is_symbolic, known_values, on_device, pytree


@pytree
class FixedLevels(FixedEffects):
    """An intercept for each group of rows.

    B has one column for each level. It is 1 in the rows of this level, and 0 in all others. So T is
    diagonal, and B is never formed.
    """

    values: Int[Array, " n"]  # the number of each row's level
    inverse_T: Any  # (q,), 1/√Σv over the rows of each level; 0 for a level without weight

    are_given: ClassVar[bool] = True
    rank_message: ClassVar[str] = (
        "{} is the only one of its level in fixed_effects: leave it out of X, or choose λ by folds "
        "of whole levels"
    )

    @property
    def rank(self) -> Any:
        """The number of levels that have weight."""
        return jnp.sum(self.inverse_T > 0).astype(self.dtype)

    @property
    def log_volume(self) -> Any:
        """log |Bᵀ V B| of the levels that have weight."""
        return -2 * jnp.sum(jnp.log(jnp.where(self.inverse_T > 0, self.inverse_T, 1)))

    @property
    def has_constant(self) -> bool:
        """True: the columns sum to 1."""
        return True

    def dense(self, values: Any, m: int) -> Columns:
        """Return the indicator columns (m, q). Rows of no level are 0."""
        return jax.nn.one_hot(values, self.count, dtype=self.dtype)

    def basis_of(self, b: Columns) -> Columns:
        """Return b/√Σv, where each column is divided by the √Σv of its level."""
        return b * self.inverse_T

    def fitted(self, values: Any, A: PerEffect) -> Float[Array, "#n *t"]:
        """Return B A, all of which is varying."""
        return self.varying(values, A)

    def varying(self, values: Any, others: PerEffect) -> Float[Array, "#n *t"]:
        """Return B A: the row of A for each row's level, and 0 for rows of no level."""
        return others.at[values].get(mode="fill", fill_value=0)

    def sums(self, values: Any, v: Vector, A: Columns) -> PerEffect:
        """Return Σ v A over the rows of each level."""
        return jax.ops.segment_sum(v[:, None] * A, values, self.count)

    def gram(self, values: Any, v: Vector) -> PerEffect:
        """Return Σ v over the rows of each level, of shape (q,)."""
        return jax.ops.segment_sum(v, values, self.count)

    def leverage(self, values: Any, v: Vector) -> Vector:
        """Return each row's v divided by the total weight of its level."""
        return v * self.inverse_T[values] ** 2

    def solve(self, A: PerEffect) -> PerEffect:
        """Return the weighted means A/Σv of levels, from weighted sums A over their rows."""
        return self.inverse_T[:, None] ** 2 * A

    def from_gram(self, gram: PerEffect) -> FixedEffects:
        """Return the same levels over other rows, given Σv over the rows of each level."""
        inverse_T = jnp.where(gram > 0, jax.lax.rsqrt(jnp.where(gram > 0, gram, 1)), 0)
        return replace(self.without_values(), inverse_T=inverse_T)

    def new_values(self, given: Any, m: int, dtype: Any) -> Any:
        """Return the level numbers of m new rows, from the levels that a user gives for them.

        Without levels every row gets the number q, which is no level. Its prediction is f(x) alone,
        a score that lacks the constant of a group.
        """
        if given is None:
            xp: Any = jnp if is_symbolic(m) else np  # NumPy compiles nothing
            return on_device(xp.full(m, self.count, np.int32))
        inverse_T = known_values(self.inverse_T)
        counts = np.ones(self.count) if inverse_T is None else inverse_T
        known = {level: number for number, level in enumerate(self.titles) if counts[number]}
        return on_device(numbers_of(given, known, m))

    def split(self, beta: Float[Array, "*L q t"]) -> tuple[Any, Any]:
        """Return 0, because B has no column of ones, and the coefficients of all levels."""
        return jnp.zeros((*beta.shape[:-2], beta.shape[-1]), beta.dtype), beta

    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        """Return whether each row has another row in its level, (n,), or None for folds.

        If all rows of a level are in one fold, the level is left out together with the fold.
        """
        return self._keeps_rank_without_rows(weights) if folds is None else None

    def whole_levels_left_out(self, weights: Weights, folds: Folds | None) -> Any:
        """Return for each row whether its fold leaves out the whole level of it, (n,).

        Rows of weight 0 do not count. The result is None without folds.
        """
        if folds is None:
            return None
        levels = jnp.where(weights.used, self.values, self.count)
        members = jnp.bincount(levels, length=self.count + 1)

        def of_fold(fold: tuple[Int[Array, " b"], Float[Array, " b"]]) -> Bool[Array, " b"]:
            rows, mask = fold
            counts = (mask > 0).astype(members.dtype)
            inside = jax.ops.segment_sum(counts, levels[rows], self.count + 1)
            return (inside == members)[levels[rows]]

        whole = jax.lax.map(of_fold, (folds.left_out, folds.left_out_mask))
        return folds.in_row_order(whole) & weights.used
