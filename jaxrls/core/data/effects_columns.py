"""Columns that a user gives as fixed effects, as the class `FixedColumns`.

B does not contain the columns C themselves, but `Combinations` (C − 1m) S of them, after a constant
if there is one. They are orthonormal over the rows of the fit.
"""

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data.combinations import Combinations
from jaxrls.core.data.effects_given import Columns, columns_given
from jaxrls.core.data.fixed_effects import FixedEffects, PerEffect, Vector
from jaxrls.core.data.folds import Folds
from jaxrls.core.data.weights import Weights
from jaxrls.core.linalg import matmul, triangular_inverse
from jaxrls.core.support import on_device, pytree, static


@pytree
class FixedColumns(FixedEffects):
    """Combinations of given columns C, after a column of ones if there is an intercept.

    The indicators of levels are columns too, if other columns or groupings are given with them.
    """

    combinations: Combinations  # m and S; `values` are (C − 1m) S, of shape (n, p)
    intercept: bool = static()

    are_given: ClassVar[bool] = True
    rank_message: ClassVar[str] = (
        "without {} the columns of fixed_effects are linearly dependent: drop these rows, or a "
        "column, or take criterion=log_marginal_likelihood, which leaves none out"
    )

    @property
    def titles(self) -> tuple:
        """The name "intercept", if there is one, and those of the columns and levels."""
        return ("intercept", *super().titles) if self.intercept else super().titles

    @property
    def log_volume(self) -> Any:
        return super().log_volume - self.combinations.log_volume

    # the constant ---------------------------------------------------------------------------------

    @property
    def has_intercept(self) -> bool:
        return self.intercept

    @property
    def has_constant(self) -> bool:
        return self.intercept or any(term.sum_to_one for term in self.terms)

    @property
    def _constant_as_given(self) -> Float[Array, " q"]:
        """The coefficients with which the columns as given sum to 1, if they have a constant."""
        of_terms = [term.sum_to_one for term in self.terms for _ in term.names]
        constant = [True, *of_terms] if self.intercept else of_terms
        return on_device(np.array(constant, self.dtype))

    @property
    def constant_coef(self) -> Float[Array, " q"]:
        """The coefficients a with which the columns of B sum to 1, B a = 1, if they can.

        An intercept is itself a column of B. Levels are in the columns (C − 1m) S, and their m is
        0: if C e = 1, then a = S⁻¹e.
        """
        given = self._constant_as_given
        if self.intercept:
            return given
        return jax.scipy.linalg.solve_triangular(self.combinations.scale, given)

    # of a block of rows, by its part of `values` --------------------------------------------------

    def dense(self, values: Any, m: int) -> Columns:
        """Return the column of ones, if there is one, and the combinations, (m, q)."""
        ones = jnp.ones((m, int(self.intercept)), self.dtype)
        return jnp.concatenate([ones, values], axis=1)

    def basis_of(self, b: Columns) -> Columns:
        return matmul(b, self.inverse_T)

    def fitted(self, values: Any, A: PerEffect) -> Float[Array, "#n *t"]:
        constant, others = self._parts(A)
        return constant.sum(axis=0, keepdims=True) + self.varying(values, others)

    def varying(self, values: Any, others: PerEffect) -> Float[Array, "#n *t"]:
        return matmul(values, others)

    def sums(self, values: Any, v: Vector, A: Columns) -> PerEffect:
        return matmul(self.dense(values, len(v)).T * v, A)

    def gram(self, values: Any, v: Vector) -> PerEffect:
        return self.sums(values, v, self.dense(values, len(v)))

    def leverage(self, values: Any, v: Vector) -> Vector:
        return v * jnp.sum(self.basis(values, len(v)) ** 2, axis=1)

    # of all rows of the fit, and of others --------------------------------------------------------

    def solve(self, A: PerEffect) -> PerEffect:
        """Return T⁻¹ T⁻ᵀ A."""
        return matmul(self.inverse_T, matmul(self.inverse_T.T, A))

    def from_gram(self, gram: PerEffect) -> FixedEffects:
        """Return the same columns over other rows, given Bᵀ V B of these rows, which is TᵀT."""
        inverse_T = triangular_inverse(jnp.linalg.cholesky(gram)).T
        return replace(self.without_values(), inverse_T=inverse_T)

    def new_values(self, given: Any, m: int, dtype: Any) -> Any:
        """Return the combinations of m new rows, from the columns that a user gives for them."""
        return self.combinations.of_new(columns_given(given, self.terms, m, dtype))

    def as_given(self, beta: Float[Array, "*L q t"]) -> Float[Array, "*L q t"]:
        """Return the coefficients of the columns C as given, from the coefficients of B.

        Let β₀ be the coefficient of the constant, and β₁ those of the other columns of B. Then

            1β₀ + (C − 1m) S β₁ = 1(β₀ − m S β₁) + C S β₁.

        So the columns C have S β₁, and the constant has β₀ − m S β₁. If levels take the place of
        the constant, m S β₁ is subtracted from the coefficient of every level.
        """
        constant, others = self._parts(beta)
        free = matmul(self.combinations.scale, others)
        beta = jnp.concatenate([constant, free], axis=-2)
        if not self.has_constant:
            return beta
        for mean in self.combinations.centre:
            beta = beta - self._constant_as_given[:, None] * matmul(mean[None], free)
        return beta

    def split(self, beta: Float[Array, "*L q t"]) -> tuple[Any, Any]:
        """Return the coefficient of the constant, 0 if there is none, and those of the others."""
        constant, others = self._parts(beta)
        return constant.sum(axis=-2), others

    def _parts(self, beta: Float[Array, "*L q t"]) -> list[Float[Array, "*L _ t"]]:
        """Return the coefficient of the constant, with an axis of length 1 or 0, and the others."""
        return jnp.split(beta, [int(self.intercept)], axis=-2)

    # rows that are left out -----------------------------------------------------------------------

    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        if folds is None:
            return self._keeps_rank_without_rows(weights)
        H = weights.scale(self.basis(self.values, weights.n))

        # Folds are taken one at a time. So memory holds the rows of one fold, and not n q² numbers.
        def remaining(
            fold: tuple[Int[Array, " b"], Float[Array, " b"]],
        ) -> Float[Array, ""]:
            """Return the smallest eigenvalue of HᵀH over the rows outside of the fold."""
            inside = H[fold[0]] * fold[1][:, None].astype(H.dtype)
            block = jnp.eye(self.count, dtype=H.dtype) - matmul(inside.T, inside)
            return jnp.linalg.eigvalsh(block)[0]

        least = self._least_remaining(weights)
        return jax.lax.map(remaining, (folds.left_out, folds.left_out_mask)) > least
