"""Fixed effects: columns b(x) whose coefficients β have no penalty, f(x) + b(x)·β.

A factor uses them only through H, √v B = H T with HᵀH = I. An intercept is the column of ones.
Columns may be far from 0 and nearly dependent. So B holds combinations of them, (C − 1m) S beside a
constant, which are orthonormal over the rows of the fit; coefficients of C itself are for users.

Theory: `docs/theory.md`, "One matrix".
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data.compiled import compiled
from jaxrls.core.data.effects_given import (
    Columns,
    EffectsTerm,
    GivenColumns,
    Grouping,
    check_levels,
    columns_given,
    numbers_of,
    terms_given,
)
from jaxrls.core.data.folds import Folds, words_for_fold
from jaxrls.core.data.weights import Weights
from jaxrls.core.linalg import diagonal_of, matmul, triangular_inverse
from jaxrls.core.support import (
    as_floats,
    check_finite,
    is_concrete,
    on_device,
    pytree,
    static,
    value_of,
    where_known,
)

Coefficients = Float[Array, "q *t"]  # of the fixed effects
Vector = Float[Array, " n"]


class Centred(NamedTuple):
    """K minus its fit by fixed effects on both sides, ΠK, and how much of √v K √v was removed."""

    K: Any
    fit: Any
    removed: Any


@pytree
class FixedEffects:
    """q columns B over n rows without penalty: none, a constant, further columns, or both. T⁻¹ is
    upper triangular. `Intercept` has a constant alone, `FixedLevels` one column for each group.

    Methods take `values` of a block, so that streamed and sharded rows are never needed all at
    once.
    """

    values: Any  # the columns (n, p) of B without the constant, (C − 1m) S, or None
    inverse_T: Float[Array, "q q"]  # T⁻¹
    intercept: bool = static(default=False)
    terms: tuple[EffectsTerm, ...] = ()  # what further columns are
    centre: Any = None  # m, as the sum of two rows (2, p); None where C is B
    scale: Any = None  # S, (p, p), upper triangular

    @classmethod
    def none(cls, dtype: Any) -> "FixedEffects":
        """No fixed effects."""
        return cls(None, on_device(np.zeros((0, 0), dtype)))

    @classmethod
    def constant(cls, total: Float[Array, ""]) -> "FixedEffects":
        """An intercept, over rows of Σv = `total`: H = √v/√Σv."""
        xp: Any = np if is_concrete(total) else jnp  # NumPy compiles nothing
        return Intercept(None, on_device(xp.reshape(1 / xp.sqrt(total), (1, 1))))

    @classmethod
    def from_columns(
        cls, C: GivenColumns, weights: Weights, intercept: bool, terms: tuple[EffectsTerm, ...]
    ) -> "FixedEffects":
        """Fixed effects from columns, checked to be independent."""
        n, p = C.rounded.shape
        if p + intercept > n:
            raise ValueError(
                f"fixed_effects has shape {(n, p)}, and {n} rows take at most "
                f"{n - intercept} independent columns: drop some"
            )
        constant = intercept or any(term.levels for term in terms)
        moves = [constant and term.levels is None for term in terms for _ in term.names]
        moved = on_device(np.array(moves, bool))
        fixed, independence = _about_means(C, weights, moved, intercept=intercept)
        _check_independent(independence, intercept)
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
        """The dimensions that B spans over the rows of positive weight."""
        return self.count

    @property
    def titles(self) -> tuple:
        """What each coefficient belongs to: "intercept", a column, or a level."""
        return ("intercept",) * self.intercept + sum((term.names for term in self.terms), ())

    @property
    def only_intercept(self) -> bool:
        """Whether there is an intercept and nothing else."""
        return self.intercept and self.values is None

    @property
    def constant_coef(self) -> Float[Array, " q"] | None:
        """The coordinates of a constant in the columns; None where they do not contain it."""
        coordinates = [True] if self.intercept else []  # or the sum of all levels of a grouping
        coordinates += [term.levels == term.names for term in self.terms for _ in term.names]
        return on_device(np.array(coordinates, self.dtype)) if any(coordinates) else None

    # B, and products with it ----------------------------------------------------------------------

    def combine(self, C: GivenColumns) -> Columns:
        """The `values` of rows from their columns as given, (C − 1m) S."""
        return matmul(C.about(self.centre), self.scale)

    def dense(self, values: Any, m: int) -> Columns:
        """B of m rows."""
        ones = jnp.ones((m, int(self.intercept)), self.dtype)
        return ones if values is None else jnp.concatenate([ones, values], axis=1)

    def basis_of(self, b: Columns) -> Columns:
        """b T⁻¹ of rows of B."""
        return matmul(b, self.inverse_T)

    def basis(self, values: Any, m: int) -> Columns:
        """B T⁻¹ of m rows: √v times it is H. Known for rows of weight 0 too."""
        return self.basis_of(self.dense(values, m))

    def fitted(self, values: Any, A: Coefficients) -> Float[Array, "#n *t"]:
        """B A of a block of rows, one row where it is the same for all."""
        constant = A[: int(self.intercept)].sum(axis=0, keepdims=True)
        return constant if values is None else constant + matmul(values, A[int(self.intercept) :])

    def sums(self, values: Any, v: Vector, A: Columns) -> Coefficients:
        """Bᵀ diag(v) A, summed over a block of rows."""
        return matmul(self.dense(values, len(v)).T * v, A)

    def gram(self, values: Any, v: Vector) -> Coefficients:
        """Bᵀ diag(v) B of a block of rows; for levels its diagonal, as all other entries are 0."""
        return self.sums(values, v, self.dense(values, len(v)))

    def solve(self, A: Coefficients) -> Coefficients:
        """(Bᵀ V B)⁻¹ A."""
        return matmul(self.inverse_T, matmul(self.inverse_T.T, A))

    def from_gram(self, gram: Coefficients) -> "FixedEffects":
        """The same columns over other rows, whose Bᵀ V B is given."""
        if not self.count:
            return self
        return replace(
            self.without_values(), inverse_T=triangular_inverse(jnp.linalg.cholesky(gram)).T
        )

    @property
    def log_volume(self) -> Any:
        """log |Bᵀ V B| of the columns as given."""
        of_combined = -2 * jnp.sum(jnp.log(diagonal_of(self.inverse_T)))
        if self.scale is None:
            return of_combined
        return of_combined - 2 * jnp.sum(jnp.log(diagonal_of(self.scale)))

    def leverage(self, values: Any, v: Vector) -> Vector:
        """The diagonal of H Hᵀ for a block of rows."""
        return v * jnp.sum(self.basis(values, len(v)) ** 2, axis=1)

    def fit(self, weights: Weights, A: Columns) -> Coefficients:
        """(Bᵀ V B)⁻¹ Bᵀ V A, with one step of refinement: the rounding of a single solve grows with
        A.
        """
        v = weights.array
        first = self.solve(self.sums(self.values, v, A))
        return first + self.solve(self.sums(self.values, v, A - self.fitted(self.values, first)))

    def residual(self, weights: Weights, A: Columns) -> Columns:
        """A minus its fit by B."""
        return A - self.fitted(self.values, self.fit(weights, A))

    def centre_both(self, weights: Weights, K: Float[Array, "n n"]) -> Centred:
        """(I − BΠ) K (I − BΠ)ᵀ with Π = (BᵀVB)⁻¹BᵀV.

        With weights it is done twice, as a heavy row multiplies what the first time rounds off.
        """
        if not self.count:
            return Centred(K, K[:0], jnp.zeros((), K.dtype))
        once = self._centre_once(weights, K)
        if weights.values is None or weights.padded:
            return once
        again = self._centre_once(weights, once.K)
        return Centred(again.K, once.fit + again.fit, once.removed + again.removed)

    def _centre_once(self, weights: Weights, K: Float[Array, "n n"]) -> Centred:
        """With F = ΠK and G = ΠKΠᵀ, (I − BΠ) K (I − BΠ)ᵀ = K − BF − (BF)ᵀ + BGBᵀ. Half of the last
        term goes to each of the others, so that the result is symmetric to the last digit: it is
        K − A − Aᵀ with A = B(F − GBᵀ/2).
        """
        F = self.fit(weights, K)
        G = self.fit(weights, F.T)
        of_G = self.fitted(self.values, G.T).T  # GBᵀ
        A = self.fitted(self.values, F - of_G / 2)
        removed = jnp.linalg.norm(G) * (weights.total - weights.largest)
        return Centred(K - A - A.T, F, removed)

    def project(self, weights: Weights, U: Columns) -> Columns:
        """(I − H Hᵀ) U."""
        if not self.count:
            return U
        coef = self.solve(self.sums(self.values, weights.root, U))
        return U - weights.scale(self.fitted(self.values, coef))

    # rows of B, and coefficients ------------------------------------------------------------------

    def values_at(self, indices: Int[Array, " b"]) -> Any:
        """The `values` argument of methods for some of the rows."""
        return None if self.values is None else self.values[indices]

    def without_values(self) -> "FixedEffects":
        """The same without the data of its rows, as models keep it."""
        return self if self.values is None else replace(self, values=self.values[:0])

    def new_values(self, given: Any, m: int, dtype: Any) -> Any:
        """The `values` argument of methods for m new rows, from the caller's columns or labels for
        them, checked.
        """
        if self.terms:
            return self.combine(columns_given(given, self.terms, m, dtype))
        if given is not None:
            raise ValueError(
                "fixed_effects= was given, and the model was fitted without: leave it out"
            )
        return None

    def as_given(self, beta: Float[Array, "*L q t"]) -> Float[Array, "*L q t"]:
        """The coefficients of the columns as given, Sβ, and those of the constant less mSβ."""
        if self.scale is None:
            return beta
        constant, free = jnp.split(beta, [int(self.intercept)], axis=-2)
        free = matmul(self.scale, free)
        beta = jnp.concatenate([constant, free], axis=-2)
        if self.constant_coef is None:
            return beta
        for mean in self.centre:
            beta = beta - self.constant_coef[:, None] * matmul(mean[None], free)
        return beta

    def split(self, beta: Float[Array, "*L q t"]) -> tuple[Any, Any]:
        """Intercept (…, t), 0 where there is none, and the other coefficients, or None, of the
        columns as given.
        """
        constant, free = jnp.split(self.as_given(beta), [int(self.intercept)], axis=-2)
        return constant.sum(axis=-2), None if self.values is None else free

    # rows that leave ------------------------------------------------------------------------------

    @where_known
    def check_rank(self, weights: Weights, folds: Folds | None) -> None:
        """Raise where the columns become dependent without a row, or fold."""
        if self.keeps_any_rank(weights, folds):
            return
        with jax.ensure_compile_time_eval():
            kept = self.keeps_rank(weights, folds)
            if not value_of(lambda xp, kept: xp.all(kept), kept):
                raise ValueError(self._rank_message(words_for_fold(folds, int(jnp.argmin(kept)))))

    def _rank_message(self, rows: str) -> str:
        if self.values is None:
            return (
                f"{rows} holds all of the weight: without it no row is left to fit an intercept "
                "to: give others weight, or take intercept=False"
            )
        return (
            f"without {rows} the columns of fixed_effects are linearly dependent: drop these rows, "
            "or a column, or take criterion=log_marginal_likelihood, which leaves none out"
        )

    def keeps_any_rank(self, weights: Weights, folds: Folds | None) -> bool:
        """Whether B keeps its rank without any row, or fold, as shapes alone tell: any other row
        does for a constant, and there are at least two groups.
        """
        of_groups = folds is None or folds.are_groups
        constant = self.values is None and weights.values is None and weights.n > 1
        return not self.count or constant and of_groups

    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        """Whether B keeps its rank without each row, (n,), or each fold, (k,)."""
        if self.values is None:  # a constant does while any row of positive weight stays
            all_count = weights.values is None
            used = np.ones(weights.n, int) if all_count else weights.used.astype(int)
            left_out = used if folds is None else folds.sums_of_left_out(on_device(used))
            return used.sum() > left_out
        least = 4 * weights.n**0.5 * float(jnp.finfo(weights.dtype).eps)
        if folds is None:
            return 1 - self.leverage(self.values, weights.array) > least
        H = weights.scale(self.basis(self.values, weights.n))

        def remaining(
            fold: tuple[Int[Array, " b"], Float[Array, " b"]],
        ) -> Float[Array, ""]:  # one at a time: memory of a fold's rows, and not of n q² numbers
            inside = H[fold[0]] * fold[1][:, None].astype(H.dtype)
            block = jnp.eye(self.count, dtype=H.dtype) - matmul(inside.T, inside)
            return jnp.linalg.eigvalsh(block)[0]

        return jax.lax.map(remaining, (folds.inside, folds.inside_mask)) > least


@pytree
class Intercept(FixedEffects):
    """A constant alone: sums over rows in place of products with a column of ones."""

    intercept: bool = static(default=True)

    def basis_of(self, b: Columns) -> Columns:
        """b/√Σv."""
        return b * self.inverse_T

    def basis(self, values: Any, m: int) -> Columns:
        """1/√Σv of every row."""
        return jnp.broadcast_to(self.inverse_T, (m, 1))

    def fitted(self, values: Any, A: Coefficients) -> Float[Array, "#n *t"]:
        """The same for all rows."""
        return A

    def sums(self, values: Any, v: Vector, A: Columns) -> Coefficients:
        """Σ v A."""
        return matmul(v, A)[None]

    def gram(self, values: Any, v: Vector) -> Coefficients:
        """Σ v."""
        return jnp.sum(v).reshape(1, 1)

    def solve(self, A: Coefficients) -> Coefficients:
        """Means of sums."""
        return self.inverse_T**2 * A

    def fit(self, weights: Weights, A: Columns) -> Coefficients:
        """The mean, and that of what it leaves, which is rounded less."""
        mean = weights.mean(A)[None]
        return mean + weights.mean(A - mean)[None]

    def from_gram(self, gram: Coefficients) -> "FixedEffects":
        """Over other rows, whose Σv is given."""
        return replace(self, inverse_T=1 / jnp.sqrt(gram))

    def leverage(self, values: Any, v: Vector) -> Vector:
        """v/Σv."""
        return v * self.inverse_T[0, 0] ** 2


@pytree
class FixedLevels(FixedEffects):
    """An intercept for each group of rows: one column for each level, 1 for its rows, so that T is
    diagonal and B is never formed.
    """

    values: Int[Array, " n"]  # the number of each row's level
    inverse_T: Any  # (q,), 1/√Σv of each level, 0 where it has no weight

    @classmethod
    def of(cls, names: tuple, numbers: Int[Array, " n"], weights: Weights) -> "FixedEffects":
        """Levels of these names, from the number of each row's level."""
        start = jnp.zeros(len(names), weights.dtype)
        levels = cls(numbers, start, terms=(EffectsTerm(names, names),))
        return replace(levels.from_gram(levels.gram(numbers, weights.array)), values=numbers)

    @property
    def rank(self):
        """The number of levels that have weight."""
        return jnp.sum(self.inverse_T > 0).astype(self.dtype)

    @property
    def log_volume(self):
        """Of levels that have weight."""
        return -2 * jnp.sum(jnp.log(jnp.where(self.inverse_T > 0, self.inverse_T, 1)))

    @property
    def constant_coef(self):
        """A coefficient of 1 for every level."""
        return jnp.ones_like(self.inverse_T)

    def dense(self, values: Any, m: int) -> Columns:
        """Indicator columns; 0 for rows of no level."""
        return jax.nn.one_hot(values, self.count, dtype=self.dtype)

    def basis_of(self, b: Columns) -> Columns:
        """b/√Σv."""
        return b * self.inverse_T

    def fitted(self, values: Any, A: Coefficients) -> Float[Array, "#n *t"]:
        """The row of A of each row's level."""
        return A.at[values].get(mode="fill", fill_value=0)

    def sums(self, values: Any, v: Vector, A: Columns) -> Coefficients:
        """Sums within levels."""
        return jax.ops.segment_sum(v[:, None] * A, values, self.count)

    def gram(self, values: Any, v: Vector) -> Coefficients:
        """Σ v within levels."""
        return jax.ops.segment_sum(v, values, self.count)

    def solve(self, A: Coefficients) -> Coefficients:
        """Means of sums."""
        return self.inverse_T[:, None] ** 2 * A

    def from_gram(self, gram: Coefficients) -> "FixedEffects":
        """The same levels over other rows, whose sums of weights are given."""
        inverse_T = jnp.where(gram > 0, jax.lax.rsqrt(jnp.where(gram > 0, gram, 1)), 0)
        return replace(self.without_values(), inverse_T=inverse_T)

    def leverage(self, values: Any, v: Vector) -> Vector:
        """v over the total weight of the row's level."""
        return v * self.inverse_T[values] ** 2

    def new_values(self, given: Any, m: int, dtype: Any) -> Any:
        """The numbers of the new rows' levels."""
        if given is None:  # of no level: scores, up to a constant for each group
            return jnp.full(m, self.count, jnp.int32)
        weighs = np.asarray(self.inverse_T) if is_concrete(self.inverse_T) else np.ones(self.count)
        known = {level: number for number, level in enumerate(self.titles) if weighs[number]}
        return numbers_of(given, known, m)

    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        """Whether each row has another in its level; a level that lies within a fold leaves with
        it.
        """
        if folds is None:
            return super().keeps_rank(weights, None)
        return jnp.ones(len(folds.inside), bool)

    def _rank_message(self, rows: str) -> str:
        return (
            f"{rows} is the only one of its level in fixed_effects: leave it out of X, or choose λ "
            "by folds of whole levels"
        )


def as_fixed_effects(
    given: Any, intercept: bool, weights: Weights, place: Callable = on_device
) -> FixedEffects:
    """Fixed effects of n rows from the caller's argument: None, columns (n, q), `levels(labels)`,
    or a list of these; `place` puts columns where the rows lie.

    Levels sum to a constant, so that they contain an intercept already.
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


# independent columns
# --------------------------------------------------------------------------------------------------


class Independence(NamedTuple):
    """What tells whether columns are linearly independent."""

    gram: Float[Array, "p p"]  # with eigenvalues σ²/(σ² + shift)
    rounding: Float[Array, " p"]  # of each column as given, relative to its spread


def _shift(p: int, dtype: Any) -> float:
    """Singular values of p columns of length 1 that are above it are above rounding."""
    return 64 * p * float(jnp.finfo(dtype).eps)


@compiled
def _about_means(
    C: GivenColumns, weights: Weights, moves: Bool[Array, " p"], *, intercept: bool
) -> tuple[FixedEffects, Independence]:
    """Fixed effects whose columns are orthonormal combinations (C − 1m) S of those given, about the
    means m of the columns that a constant `moves`.

    The function that is fitted does not depend on m and S, which are constants to derivatives.
    """
    constant_C, constant_weights = jax.lax.stop_gradient((C, weights))
    centre = _mean_in_two(constant_C, constant_weights, moves)
    about = constant_weights.scale(constant_C.about(centre))
    scale, gram = _orthonormalizing(about)
    unfitted = FixedEffects(
        values=None,
        inverse_T=jnp.eye(len(moves) + intercept, dtype=scale.dtype),
        intercept=intercept,
        centre=centre,
        scale=scale,
    )
    values = unfitted.combine(C)
    fixed = unfitted.from_gram(unfitted.gram(values, weights.array))
    lengths_as_given = jnp.linalg.norm(constant_weights.scale(constant_C.rounded), axis=0)
    rounding = C.eps[0] * lengths_as_given / jnp.linalg.norm(about, axis=0)
    return replace(fixed, values=values), Independence(gram, rounding)


def _mean_in_two(
    C: GivenColumns, weights: Weights, moves: Bool[Array, " p"]
) -> Float[Array, "2 p"]:
    """Means of columns as a sum of two numbers, of which the second is that of what the first one
    leaves; 0 of columns that no constant `moves`.
    """
    mean = lambda A: jnp.where(moves, matmul(weights.array, A) / weights.total, 0)
    first = mean(C.rounded)
    nothing = jnp.zeros_like(first)
    second = mean(C.about(jnp.stack([first, nothing])))
    return jnp.stack([first, second])


def _orthonormalizing(A: Columns) -> tuple[Float[Array, "p p"], Float[Array, "p p"]]:
    """An upper triangular S that makes the columns of AS orthonormal, by Cholesky factors, which
    need only sums over rows; and the Gram matrix of the columns after the first of three rounds.

    A Gram matrix has the squares of singular values σ, of which half the digits are rounding. Where
    A has columns of length 1, AᵀA + sI = RᵀR leaves singular values σ/√(σ² + s) in AR⁻¹: far enough
    above rounding for two rounds without a shift s, where σ > s. Their squares tell σ to s.
    Source: Fukaya, Kannan, Nakatsukasa, Yamamoto and Yanagisawa 2020 (shifted CholeskyQR).
    """
    lengths = jnp.linalg.norm(A, axis=0)
    S = jnp.diag(1 / jnp.where(lengths > 0, lengths, 1))
    S, _ = _one_round(A, S, _shift(A.shape[1], A.dtype))
    S, gram = _one_round(A, S)
    S, _ = _one_round(A, S)
    return S, gram


def _one_round(
    A: Columns, S: Float[Array, "p p"], shift: float = 0.0
) -> tuple[Float[Array, "p p"], Float[Array, "p p"]]:
    """SR⁻¹ with (AS)ᵀAS + shift·I = RᵀR, and that matrix."""
    columns = matmul(A, S)
    gram = matmul(columns.T, columns) + shift * jnp.eye(len(S), dtype=S.dtype)
    return matmul(S, triangular_inverse(jnp.linalg.cholesky(gram)).T), gram


@where_known
def _check_independent(independence: Independence, intercept: bool) -> None:
    """Raise for columns that are linearly dependent, up to their rounding."""
    columns = jax.device_get(independence)
    p = len(columns.gram)
    if not p:
        return
    shift = _shift(p, columns.gram.dtype)
    squares = np.linalg.eigvalsh(np.asarray(columns.gram, np.float64))[0]
    smallest = np.sqrt(max(squares, 0) / max(1 - squares, shift) * shift)
    # Of length 0 the rounding is infinite, or NaN where the column as given is 0.
    if not smallest > max(shift, 4 * np.max(columns.rounding)):
        constant = ", the constant of intercept=True among them," if intercept else ""
        raise ValueError(
            f"the {p + intercept} columns of fixed_effects{constant} are linearly dependent over "
            "the rows of positive weight: drop a column, or give levels(labels) for an indicator "
            "of each group"
        )
