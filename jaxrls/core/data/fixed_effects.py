"""Fixed effects: columns of the model whose coefficients β have no penalty.

The model is f(x) + b(x)·β. The rows b(x) form the matrix B. An intercept is a column of ones.
Factors use B only through the matrix H, with √v B = H T and HᵀH = I.

The columns C that a user gives may be far from 0 and nearly dependent. So B does not contain C
itself. B contains a constant, if there is one, and `Combinations` (C − 1m) S. They are
orthonormal over the rows of the fit. Users get the coefficients of C, from `FixedEffects.as_given`.

Begin with the class `FixedEffects`. Theory: `docs/theory.md`, "One matrix".
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data.combinations import (
    Combinations,
    Independence,
    check_independent,
    orthonormal,
)
from jaxrls.core.data.compiled import compiled
from jaxrls.core.data.effects_given import (
    Columns,
    ColumnsTerm,
    EffectsTerm,
    GivenColumns,
    Grouping,
    LevelsTerm,
    check_levels,
    columns_given,
    has_levels,
    numbers_of,
    terms_given,
)
from jaxrls.core.data.folds import Folds, words_for_fold
from jaxrls.core.data.weights import Weights
from jaxrls.core.linalg import diagonal_of, matmul, safe_sqrt, triangular_inverse
from jaxrls.core.support import (
    as_floats,
    check_finite,
    is_symbolic,
    known_values,
    numpy_or_jax,
    on_device,
    pytree,
    static,
    value_of,
    where_known,
)

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
class FixedEffects:
    """The q columns B of the fixed effects over n rows, with T⁻¹ of √v B = H T.

    B has no column, a constant, combinations of given columns, or a constant and combinations.
    `as_fixed_effects` makes the instance for the argument of a user. The subclass `Intercept` has
    only a constant. The subclass `FixedLevels` has one column for each group.

    The methods for a block of rows take `values`: the part of the block in the field of this name.
    So rows that are streamed or distributed over devices are never needed all at once. The methods
    for all rows of the fit read the field itself.
    """

    values: Any  # (n, p), the columns (C − 1m) S of B; None if B has no column but the constant
    inverse_T: Float[Array, "q q"]  # T⁻¹, upper triangular
    intercept: bool = static(default=False)  # whether B has a column of ones
    terms: tuple[EffectsTerm, ...] = ()  # the names of the columns C, for each part as given
    combinations: Combinations | None = None  # m and S; None if B has no combinations

    @classmethod
    def none(cls, dtype: Any) -> "FixedEffects":
        """Make fixed effects without any column."""
        return cls(None, on_device(np.zeros((0, 0), dtype)))

    @classmethod
    def constant(cls, total: Float[Array, ""]) -> "FixedEffects":
        """Make an intercept over rows whose weights sum to `total`, Σv. Its H is √v/√Σv."""
        xp = numpy_or_jax(total)
        return Intercept(None, on_device(xp.reshape(1 / xp.sqrt(total), (1, 1))))

    @classmethod
    def from_columns(
        cls, C: GivenColumns, weights: Weights, intercept: bool, terms: tuple[EffectsTerm, ...]
    ) -> "FixedEffects":
        """Make fixed effects from columns C, and check that the columns are independent."""
        n, p = C.rounded.shape
        if p + intercept > n:
            raise ValueError(
                f"fixed_effects has shape {(n, p)}, and {n} rows take at most "
                f"{n - intercept} independent columns: drop some"
            )
        # Indicators of levels are not centred. Other columns are, if B contains a constant.
        constant = intercept or has_levels(terms)
        moves = [constant and isinstance(term, ColumnsTerm) for term in terms for _ in term.names]
        moved = on_device(np.array(moves, bool))
        fixed, independence = _of_combinations(C, weights, moved, intercept=intercept)
        check_independent(independence, intercept)
        return replace(fixed, terms=terms)

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
        return ("intercept",) * self.intercept + sum((term.names for term in self.terms), ())

    # the constant ---------------------------------------------------------------------------------

    @property
    def only_intercept(self) -> bool:
        """Whether there is an intercept and nothing else."""
        return self.intercept and self.values is None

    @property
    def has_constant(self) -> bool:
        """Whether the columns contain an intercept, or all levels of a grouping."""
        return self.intercept or any(term.sum_to_one for term in self.terms)

    @property
    def constant_as_given(self) -> Float[Array, " q"]:
        """The coefficients with which the columns as given sum to 1, if they have a constant."""
        of_terms = [term.sum_to_one for term in self.terms for _ in term.names]
        return on_device(np.array([True] * self.intercept + of_terms, self.dtype))

    @property
    def constant_coef(self) -> Float[Array, " q"]:
        """The coefficients a with which the columns of B sum to 1, B a = 1, if they can.

        An intercept is itself a column of B. Levels are in the columns (C − 1m) S, and their m is
        0: if C e = 1, then a = S⁻¹e.
        """
        given = self.constant_as_given
        if self.intercept or self.combinations is None:
            return given
        return jax.scipy.linalg.solve_triangular(self.combinations.scale, given)

    # of a block of rows, by its part of `values` --------------------------------------------------

    def dense(self, values: Any, m: int) -> Columns:
        """Return B of m rows, of shape (m, q)."""
        ones = jnp.ones((m, int(self.intercept)), self.dtype)
        return ones if values is None else jnp.concatenate([ones, values], axis=1)

    def basis_of(self, b: Columns) -> Columns:
        """Return b T⁻¹, where b are rows of B."""
        return matmul(b, self.inverse_T)

    def basis(self, values: Any, m: int) -> Columns:
        """Return B T⁻¹ of m rows.

        H is √v B T⁻¹. Rows of weight 0 are 0 in H, but not in B T⁻¹.
        """
        return self.basis_of(self.dense(values, m))

    def fitted(self, values: Any, A: PerEffect) -> Float[Array, "#n *t"]:
        """Return B A for a block of rows, or a single row if all rows of B A are equal."""
        constant, others = self._parts(A)
        constant = constant.sum(axis=0, keepdims=True)
        return constant if values is None else constant + self.varying(values, others)

    def varying(self, values: Any, others: PerEffect) -> Float[Array, "n *t"]:
        """Return B A for a block of rows without the constant, given the other rows of A."""
        return matmul(values, others)

    def sums(self, values: Any, v: Vector, A: Columns) -> PerEffect:
        """Return Bᵀ diag(v) A, a sum over a block of rows."""
        return matmul(self.dense(values, len(v)).T * v, A)

    def gram(self, values: Any, v: Vector) -> PerEffect:
        """Return Bᵀ diag(v) B of a block of rows, of shape (q, q).

        `FixedLevels` returns only the diagonal, of shape (q,), because all other entries are 0.
        """
        return self.sums(values, v, self.dense(values, len(v)))

    def leverage(self, values: Any, v: Vector) -> Vector:
        """Return the diagonal of H Hᵀ for a block of rows."""
        return v * jnp.sum(self.basis(values, len(v)) ** 2, axis=1)

    # of all rows of the fit -----------------------------------------------------------------------

    def solve(self, A: PerEffect) -> PerEffect:
        """Return (Bᵀ V B)⁻¹ A."""
        return matmul(self.inverse_T, matmul(self.inverse_T.T, A))

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

    def centre_both(self, weights: Weights, K: Float[Array, "n n"]) -> Centred:
        """Project B out of both sides of K: (I − BΠ) K (I − BΠ)ᵀ with Π = (BᵀVB)⁻¹BᵀV.

        With weights the projection is repeated. Otherwise the weight of a heavy row would multiply
        the rounding errors of the first projection.
        """
        if not self.count:
            return Centred(K, K[:0], jnp.zeros((), K.dtype))
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

    def project(self, weights: Weights, U: Columns) -> Columns:
        """Return (I − H Hᵀ) U."""
        if not self.count:
            return U
        coef = self.solve(self.sums(self.values, weights.root, U))
        return U - weights.scale(self.fitted(self.values, coef))

    def values_at(self, indices: Int[Array, " b"]) -> Any:
        """Return the `values` of the rows of these numbers; None if `values` is None."""
        return None if self.values is None else self.values[indices]

    @property
    def log_volume(self) -> Any:
        """log |Cᵀ V C|, where C has the constant, if there is one, and the columns as given."""
        of_combined = -2 * jnp.sum(jnp.log(diagonal_of(self.inverse_T)))
        return (
            of_combined if self.combinations is None else of_combined - self.combinations.log_volume
        )

    # other rows, and coefficients -----------------------------------------------------------------

    def from_gram(self, gram: PerEffect) -> "FixedEffects":
        """Return the same columns over other rows, without `values`, given Bᵀ V B of these rows."""
        if not self.count:
            return self
        return replace(
            self.without_values(), inverse_T=triangular_inverse(jnp.linalg.cholesky(gram)).T
        )

    def without_values(self) -> "FixedEffects":
        """Return the same fixed effects without the data of their rows, as models keep them."""
        return self if self.values is None else replace(self, values=self.values[:0])

    def new_values(self, given: Any, m: int, dtype: Any) -> Any:
        """Return the `values` of m new rows, from the columns or levels that a user gives for them.

        The result is None if the fit had at most an intercept.

        Raises:
            ValueError: for columns or levels of other shapes or names than those of the fit, and
                for any if the fit had none.
        """
        if self.combinations is not None:
            return self.combinations.of_new(columns_given(given, self.terms, m, dtype))
        if given is not None:
            raise ValueError(
                "fixed_effects= was given, and the model was fitted without: leave it out"
            )
        return None

    def as_given(self, beta: Float[Array, "*L q t"]) -> Float[Array, "*L q t"]:
        """Return the coefficients of the columns C as given, from the coefficients of B.

        Let β₀ be the coefficient of the constant, and β₁ those of the other columns of B. Then

            1β₀ + (C − 1m) S β₁ = 1(β₀ − m S β₁) + C S β₁.

        So the columns C have S β₁, and the constant has β₀ − m S β₁. If levels take the place of
        the constant, m S β₁ is subtracted from the coefficient of every level.
        """
        if self.combinations is None:
            return beta
        constant, others = self._parts(beta)
        free = matmul(self.combinations.scale, others)
        beta = jnp.concatenate([constant, free], axis=-2)
        if not self.has_constant:
            return beta
        for mean in self.combinations.centre:
            beta = beta - self.constant_as_given[:, None] * matmul(mean[None], free)
        return beta

    def split(self, beta: Float[Array, "*L q t"]) -> tuple[Any, Any]:
        """Return the coefficient of the constant and those of the other columns.

        The columns are those of B, or those as given if `beta` comes from `as_given`. The constant
        has shape (…, t), and is 0 if there is none. The others have shape (…, p, t). They are None
        if there are no other columns.
        """
        constant, others = self._parts(beta)
        return constant.sum(axis=-2), None if self.values is None else others

    def _parts(self, beta: Float[Array, "*L q t"]) -> list[Float[Array, "*L _ t"]]:
        """Return the coefficient of the constant, with an axis of length 1 or 0, and the others."""
        return jnp.split(beta, [int(self.intercept)], axis=-2)

    # rows that are left out -----------------------------------------------------------------------

    @where_known
    def check_rank(self, weights: Weights, folds: Folds | None) -> bool | None:
        """Raise `ValueError` if the columns are linearly dependent without some row, or fold.

        The result is True, or None inside of `jax.jit`, where this cannot be checked.
        """
        with jax.ensure_compile_time_eval():
            kept = self.keeps_rank(weights, folds)
            if kept is not None and not value_of(lambda xp, kept: xp.all(kept), kept):
                raise ValueError(self._rank_message(words_for_fold(folds, int(jnp.argmin(kept)))))
        return True

    def _rank_message(self, rows: str) -> str:
        """Return the error message for rows, in words, without which B loses rank."""
        if self.values is None:
            return (
                f"{rows} holds all of the weight: without it no row is left to fit an intercept "
                "to: give others weight, or take intercept=False"
            )
        return (
            f"without {rows} the columns of fixed_effects are linearly dependent: drop these rows, "
            "or a column, or take criterion=log_marginal_likelihood, which leaves none out"
        )

    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        """Return whether B keeps its rank without each row, (n,), or without each fold, (k,).

        The result is None if shapes alone show that B keeps its rank. This is so if B has no
        column. It is also so if B is a constant and all rows have weight 1, unless the folds are
        splits. One of two rows, or of two groups, always remains.
        """
        of_groups = folds is None or folds.are_groups
        constant = self.values is None and weights.values is None and weights.n > 1
        if not self.count or constant and of_groups:
            return None
        if self.values is None:  # a constant keeps its rank if a row of positive weight remains
            all_count = weights.values is None
            used = np.ones(weights.n, int) if all_count else weights.used.astype(int)
            left_out = used if folds is None else folds.sums_of_left_out(on_device(used))
            return used.sum() > left_out
        least = 4 * weights.n**0.5 * float(jnp.finfo(weights.dtype).eps)
        if folds is None:
            return 1 - self.leverage(self.values, weights.array) > least
        H = weights.scale(self.basis(self.values, weights.n))

        # Folds are taken one at a time. So memory holds the rows of one fold, and not n q² numbers.
        def remaining(
            fold: tuple[Int[Array, " b"], Float[Array, " b"]],
        ) -> Float[Array, ""]:
            """Return the smallest eigenvalue of HᵀH over the rows outside of the fold."""
            inside = H[fold[0]] * fold[1][:, None].astype(H.dtype)
            block = jnp.eye(self.count, dtype=H.dtype) - matmul(inside.T, inside)
            return jnp.linalg.eigvalsh(block)[0]

        return jax.lax.map(remaining, (folds.left_out, folds.left_out_mask)) > least


@pytree
class Intercept(FixedEffects):
    """An intercept and no other column. Sums over rows replace products with a column of ones."""

    intercept: bool = static(default=True)

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

    def solve(self, A: PerEffect) -> PerEffect:
        """Return the weighted means A/Σv, from weighted sums A over the rows."""
        return self.inverse_T**2 * A

    def fit(self, weights: Weights, A: Columns) -> PerEffect:
        """Return the mean of A, to which the mean of A minus this mean is added.

        The second mean corrects the rounding error of the first.
        """
        mean = weights.mean(A)[None]
        return mean + weights.mean(A - mean)[None]

    def from_gram(self, gram: PerEffect) -> "FixedEffects":
        """Return the intercept over other rows, given their Σv."""
        return replace(self, inverse_T=1 / jnp.sqrt(gram))

    def leverage(self, values: Any, v: Vector) -> Vector:
        """Return v/Σv."""
        return v * jnp.squeeze(self.inverse_T) ** 2


@pytree
class FixedLevels(FixedEffects):
    """An intercept for each group of rows.

    B has one column for each level. It is 1 in the rows of this level, and 0 in all others. So T is
    diagonal, and B is never formed.
    """

    values: Int[Array, " n"]  # the number of each row's level
    inverse_T: Any  # (q,), 1/√Σv over the rows of each level; 0 for a level without weight

    @classmethod
    def of(cls, names: tuple, numbers: Int[Array, " n"], weights: Weights) -> "FixedEffects":
        """Make the levels of these names, from the number of each row's level."""
        start = jnp.zeros(len(names), weights.dtype)
        levels = cls(numbers, start, terms=(LevelsTerm(names),))
        return replace(levels.from_gram(levels.gram(numbers, weights.array)), values=numbers)

    @property
    def rank(self):
        """The number of levels that have weight."""
        return jnp.sum(self.inverse_T > 0).astype(self.dtype)

    @property
    def log_volume(self):
        """log |Bᵀ V B| of the levels that have weight."""
        return -2 * jnp.sum(jnp.log(jnp.where(self.inverse_T > 0, self.inverse_T, 1)))

    def dense(self, values: Any, m: int) -> Columns:
        """Return the indicator columns (m, q). Rows of no level are 0."""
        return jax.nn.one_hot(values, self.count, dtype=self.dtype)

    def basis_of(self, b: Columns) -> Columns:
        """Return b/√Σv, where each column is divided by the √Σv of its level."""
        return b * self.inverse_T

    def fitted(self, values: Any, A: PerEffect) -> Float[Array, "#n *t"]:
        """Return B A, which has no constant."""
        return self.varying(values, A)

    def varying(self, values: Any, others: PerEffect) -> Float[Array, "n *t"]:
        """Return B A: the row of A for each row's level, and 0 for rows of no level."""
        return others.at[values].get(mode="fill", fill_value=0)

    def sums(self, values: Any, v: Vector, A: Columns) -> PerEffect:
        """Return Σ v A over the rows of each level."""
        return jax.ops.segment_sum(v[:, None] * A, values, self.count)

    def gram(self, values: Any, v: Vector) -> PerEffect:
        """Return Σ v over the rows of each level, of shape (q,)."""
        return jax.ops.segment_sum(v, values, self.count)

    def solve(self, A: PerEffect) -> PerEffect:
        """Return the weighted means A/Σv of levels, from weighted sums A over their rows."""
        return self.inverse_T[:, None] ** 2 * A

    def from_gram(self, gram: PerEffect) -> "FixedEffects":
        """Return the same levels over other rows, given Σv over the rows of each level."""
        inverse_T = jnp.where(gram > 0, jax.lax.rsqrt(jnp.where(gram > 0, gram, 1)), 0)
        return replace(self.without_values(), inverse_T=inverse_T)

    def leverage(self, values: Any, v: Vector) -> Vector:
        """Return each row's v divided by the total weight of its level."""
        return v * self.inverse_T[values] ** 2

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

    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        """Return whether each row has another row in its level, (n,), or None for folds.

        If all rows of a level are in one fold, the level is left out together with the fold.
        """
        return super().keeps_rank(weights, None) if folds is None else None

    def _rank_message(self, rows: str) -> str:
        """Return the error message for a row, in words, that is the only one of its level."""
        return (
            f"{rows} is the only one of its level in fixed_effects: leave it out of X, or choose λ "
            "by folds of whole levels"
        )


def as_fixed_effects(
    given: Any, intercept: bool, weights: Weights, place: Callable = on_device
) -> FixedEffects:
    """Make the fixed effects of n rows from the argument of a user.

    Args:
        given: None, columns (n, q), `levels(labels)`, or a list of columns and levels.
        intercept: whether to add an intercept to columns. Levels need none, because their
            indicators sum to a constant.
        weights: the weights of the n rows.
        place: a function that puts an array on the devices of the rows.
    """
    n = weights.n
    if given is None:
        return (
            FixedEffects.constant(weights.total) if intercept else FixedEffects.none(weights.dtype)
        )
    if isinstance(given, Grouping):
        numbers = place(given.rows)
        check_levels(numbers, n)
        return FixedLevels.of(given.names, numbers, weights)
    if isinstance(given, list | tuple) and any(isinstance(part, Grouping) for part in given):
        terms = terms_given(given)
        C = columns_given(given, terms, n, weights.dtype)
        C = C._replace(rounded=place(C.rounded), rest=place(C.rest))
        return FixedEffects.from_columns(C, weights, False, terms)
    C = GivenColumns.of(as_floats("fixed_effects", given), weights.dtype, place)
    shape = C.rounded.shape
    if len(shape) != 2 or shape[0] != n or not shape[1] + intercept:
        hint = ": use fixed_effects[:, None] for a single column" if shape == (n,) else ""
        raise ValueError(
            f"fixed_effects must be levels(labels) or columns ({n}, q), one row for each of X, or "
            f"a list of both, and has shape {shape}{hint}"
        )
    check_finite("fixed_effects", C.rounded)
    return FixedEffects.from_columns(C, weights, intercept, terms_given([given]))


@compiled
def _of_combinations(
    C: GivenColumns, weights: Weights, moves: Bool[Array, " p"], *, intercept: bool
) -> tuple[FixedEffects, Independence]:
    """Make fixed effects of orthonormal combinations of columns, and the numbers for their check.

    `moves` marks the columns that are centred.
    """
    combinations, independence = orthonormal(C, weights, moves)
    unfitted = FixedEffects(
        values=None,
        inverse_T=jnp.eye(len(moves) + intercept, dtype=weights.dtype),
        intercept=intercept,
        combinations=combinations,
    )
    values = combinations.of(C)
    fixed = unfitted.from_gram(unfitted.gram(values, weights.array))
    return replace(fixed, values=values), independence
