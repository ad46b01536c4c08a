"""Fixed effects: columns of the model whose coefficients β have no penalty.

The model is f(x) + b(x)·β. The rows b(x) form the matrix B. An intercept is a column of ones.
Factors use B only through the matrix H, with √v B = H T and HᵀH = I.

Begin with the class `FixedEffects`, which says what can be asked of B. It has a subclass for each
kind of B, in a module of its own:

* `NoEffects` has no column.
* `Intercept` has a column of ones, and no other.
* `FixedLevels` has a column for each group of rows.
* `FixedColumns` has combinations of the columns that a user gives, with or without a column of
  ones.

`effects_made.py` makes them. Theory: `docs/theory.md`, "One matrix".
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data.effects_given import Columns, EffectsTerm
from jaxrls.core.data.folds import Folds, words_for_fold
from jaxrls.core.data.weights import Weights
from jaxrls.core.linalg import diagonal_of, safe_sqrt
from jaxrls.core.support import on_device, pytree, value_of, where_known

PerEffect = Float[Array, "q *t"]  # a row for each column of B
Vector = Float[Array, " n"]


class Centred(NamedTuple):
    """K with the fixed effects projected out of both sides, as `FixedEffects.centre_both` makes it.

    With Π = (BᵀVB)⁻¹BᵀV:

    * `K` is (I − BΠ) K (I − BΠ)ᵀ, of shape (n, n).
    * `coef` is ΠK, of shape (q, n): the coefficients of the fit of K's columns by B.
    * `removed` is a number, the size of what was subtracted from √v K √v. Rounding errors in
      proportion to it remain in `K`.

    `removed` is ‖HᵀK̃H‖ (1 − v_max/Σv), how much K̃ = √v K √v had along the fixed effects. The
    heaviest row does not count. A fit to a row of nearly all of the weight is nearly its own value,
    and the repeated projection corrects it.
    """

    K: Any
    coef: Any
    removed: Any


@pytree
class FixedEffects(ABC):
    """The q columns B of the fixed effects over n rows, with T⁻¹ of √v B = H T.

    The methods for a block of rows take `values`: the part of the block in the field of this name.
    So rows that are streamed or distributed over devices are never needed all at once. The methods
    for all rows of the fit read the field itself.

    The columns C that a user gives may differ from those of B. Their coefficients come from
    `as_given`.
    """

    values: Any  # each row's level, or its combinations of columns; None if a user gave neither
    inverse_T: Any  # T⁻¹, upper triangular, (q, q); its diagonal, (q,), of levels
    terms: tuple[EffectsTerm, ...]  # the names of columns and levels, for each part as given

    are_given: ClassVar[bool] = False  # whether a user gave columns or levels
    rank_message: ClassVar[str]  # the error message for rows {} without which B loses rank

    @property
    def count(self) -> int:
        """The number q of columns."""
        return self.inverse_T.shape[0]

    @property
    def dtype(self) -> Any:
        """The dtype of T."""
        return self.inverse_T.dtype

    @property
    def rank(self) -> Any:
        """The number of dimensions that B spans over the rows of positive weight."""
        return self.count

    @property
    def titles(self) -> tuple:
        """The name of each coefficient: "intercept", the name of a column, or a level."""
        return sum((term.names for term in self.terms), ())

    @property
    def log_volume(self) -> Any:
        """log |Cᵀ V C|, where C has the constant, if there is one, and the columns as given."""
        return -2 * jnp.sum(jnp.log(diagonal_of(self.inverse_T)))

    # the constant ---------------------------------------------------------------------------------

    @property
    def has_intercept(self) -> bool:
        """Whether B has a column of ones."""
        return False

    @property
    def has_constant(self) -> bool:
        """Whether the columns contain an intercept, or all levels of a grouping."""
        return self.has_intercept

    @property
    def only_intercept(self) -> bool:
        """Whether there is an intercept and nothing else."""
        return self.has_intercept and not self.are_given

    @property
    def constant_coef(self) -> Float[Array, " q"]:
        """The coefficients a with which the columns of B sum to 1, B a = 1, if they can."""
        return on_device(np.ones(self.count, self.dtype))

    # of a block of rows, by its part of `values` --------------------------------------------------

    @abstractmethod
    def dense(self, values: Any, m: int) -> Columns:
        """Return B of m rows, of shape (m, q)."""

    @abstractmethod
    def basis_of(self, b: Columns) -> Columns:
        """Return b T⁻¹, where b are rows of B."""

    def basis(self, values: Any, m: int) -> Columns:
        """Return B T⁻¹ of m rows.

        H is √v B T⁻¹. Rows of weight 0 are 0 in H, but not in B T⁻¹.
        """
        return self.basis_of(self.dense(values, m))

    @abstractmethod
    def fitted(self, values: Any, A: PerEffect) -> Float[Array, "#n *t"]:
        """Return B A for a block of rows, or a single row if all rows of B A are equal."""

    def varying(self, values: Any, others: PerEffect) -> Float[Array, "#n *t"]:
        """Return B A for a block of rows without the constant, given the other rows of A."""
        return jnp.zeros((1, *others.shape[1:]), others.dtype)

    @abstractmethod
    def sums(self, values: Any, v: Vector, A: Columns) -> PerEffect:
        """Return Bᵀ diag(v) A, a sum over a block of rows."""

    @abstractmethod
    def gram(self, values: Any, v: Vector) -> PerEffect:
        """Return Bᵀ diag(v) B of a block of rows, of shape (q, q).

        `FixedLevels` returns only the diagonal, of shape (q,), because all other entries are 0.
        """

    @abstractmethod
    def leverage(self, values: Any, v: Vector) -> Vector:
        """Return the diagonal of H Hᵀ for a block of rows."""

    # of all rows of the fit -----------------------------------------------------------------------

    @abstractmethod
    def solve(self, A: PerEffect) -> PerEffect:
        """Return (Bᵀ V B)⁻¹ A."""

    def fit(self, weights: Weights, A: Columns) -> PerEffect:
        """Return the coefficients of the fit of A by B, (Bᵀ V B)⁻¹ Bᵀ V A.

        A second solve fits what the first one leaves, because the rounding errors of a single
        solve grow with A.
        """
        v = weights.array
        first = self.solve(self.sums(self.values, v, A))
        return first + self.solve(self.sums(self.values, v, A - self.fitted(self.values, first)))

    def residual(self, weights: Weights, A: Columns) -> Columns:
        """Return A minus its fit by B."""
        return A - self.fitted(self.values, self.fit(weights, A))

    def project(self, weights: Weights, U: Columns) -> Columns:
        """Return (I − H Hᵀ) U."""
        coef = self.solve(self.sums(self.values, weights.root, U))
        return U - weights.scale(self.fitted(self.values, coef))

    def centre_both(self, weights: Weights, K: Float[Array, "n n"]) -> Centred:
        """Project B out of both sides of K: (I − BΠ) K (I − BΠ)ᵀ with Π = (BᵀVB)⁻¹BᵀV.

        With weights the projection is repeated. Otherwise the weight of a heavy row would multiply
        the rounding errors of the first projection.
        """
        once = self._centre_once(weights, K)
        if weights.are_equal:
            return once
        again = self._centre_once(weights, once.K)
        return Centred(again.K, once.coef + again.coef, once.removed + again.removed)

    def _centre_once(self, weights: Weights, K: Float[Array, "n n"]) -> Centred:
        """Project B out of both sides of K, without the repetition.

        With F = ΠK and G = ΠKΠᵀ,

            (I − BΠ) K (I − BΠ)ᵀ = K − BF − (BF)ᵀ + BGBᵀ = K − A − Aᵀ,  A = B(F − GBᵀ/2).

        The last form has half of BGBᵀ in A and half in Aᵀ. So the result is symmetric to the last
        digit.
        """
        F = self.fit(weights, K)
        G = self.fit(weights, F.T)
        of_G = self.fitted(self.values, G.T).T  # GBᵀ
        A = self.fitted(self.values, F - of_G / 2)
        # With M = BᵀVB = TᵀT, HᵀK̃H = TGTᵀ, and its squared norm is the trace of (MG)(MG).
        MG = self.sums(self.values, weights.array, F.T)
        along_effects = safe_sqrt(jnp.sum(MG * MG.T))
        removed = along_effects * (1 - weights.largest / weights.total)
        return Centred(K - A - A.T, F, removed)

    # other rows, and coefficients -----------------------------------------------------------------

    @abstractmethod
    def from_gram(self, gram: PerEffect) -> "FixedEffects":
        """Return the same columns over other rows, without `values`, given Bᵀ V B of these rows."""

    def over(self, values: Any, weights: Weights) -> "FixedEffects":
        """Return the same columns over other rows, given their `values` and weights."""
        return replace(self.from_gram(self.gram(values, weights.array)), values=values)

    def values_at(self, indices: Int[Array, " b"]) -> Any:
        """Return the `values` of the rows of these numbers; None if `values` is None."""
        return jax.tree.map(lambda of_rows: of_rows[indices], self.values)

    def without_values(self) -> "FixedEffects":
        """Return the same fixed effects without the data of their rows, as models keep them."""
        return replace(self, values=jax.tree.map(lambda of_rows: of_rows[:0], self.values))

    def new_values(self, given: Any, m: int, dtype: Any) -> Any:
        """Return the `values` of m new rows, from the columns or levels that a user gives for them.

        The result is None if the fit had at most an intercept.

        Raises:
            ValueError: for columns or levels of other shapes or names than those of the fit, and
                for any if the fit had none.
        """
        if given is not None:
            raise ValueError(
                "fixed_effects= was given, and the model was fitted without: leave it out"
            )
        return None

    def as_given(self, beta: Float[Array, "*L q t"]) -> Float[Array, "*L q t"]:
        """Return the coefficients of the columns as given, from the coefficients of B."""
        return beta

    def split(self, beta: Float[Array, "*L q t"]) -> tuple[Any, Any]:
        """Return the coefficient of the constant and those of the other columns.

        The columns are those of B, or those as given if `beta` comes from `as_given`. The constant
        has shape (…, t), and is 0 if there is none. The others have shape (…, p, t). They are None
        if a user gave none.
        """
        return beta.sum(axis=-2), None

    # rows that are left out -----------------------------------------------------------------------

    @where_known
    def check_rank(self, weights: Weights, folds: Folds | None) -> bool | None:
        """Raise `ValueError` if the columns are linearly dependent without some row, or fold.

        The result is True, or None inside of `jax.jit`, where this cannot be checked.
        """
        with jax.ensure_compile_time_eval():
            kept = self.keeps_rank(weights, folds)
            if kept is not None and not value_of(lambda xp, kept: xp.all(kept), kept):
                rows = words_for_fold(folds, int(jnp.argmin(kept)))
                raise ValueError(self.rank_message.format(rows))
        return True

    @abstractmethod
    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        """Return whether B keeps its rank without each row, (n,), or without each fold, (k,).

        The result is None where nothing is to be checked.
        """

    def _keeps_rank_without_rows(self, weights: Weights) -> Bool[Array, " n"]:
        """Return whether B keeps its rank without each row, from the leverage of the row."""
        return 1 - self.leverage(self.values, weights.array) > self._least_remaining(weights)

    def _least_remaining(self, weights: Weights) -> float:
        """Return how much of HᵀH, which is I, must remain to be more than rounding."""
        return 4 * weights.n**0.5 * float(jnp.finfo(weights.dtype).eps)

    def whole_levels_left_out(self, weights: Weights, folds: Folds | None) -> Any:
        """Return for each row whether its fold leaves out the whole level of it, (n,).

        The held-out residuals of such a level lack its constant. The result is None if there is no
        such row.
        """
        return None
