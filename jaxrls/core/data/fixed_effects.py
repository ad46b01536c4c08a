"""Fixed effects: columns b(x) whose coefficients β have no penalty, f(x) + b(x)·β.

A factor uses them only through H, √v B = H T with HᵀH = I. An intercept is the column of ones.

Theory: `docs/theory.md`, "One matrix".
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data.effects_given import (
    Columns,
    EffectsPart,
    Grouping,
    check_levels,
    columns_given,
    numbers_of,
    parts_given,
)
from jaxrls.core.data.folds import Folds, words_for_fold
from jaxrls.core.data.weights import Weights
from jaxrls.core.linalg import matmul, triangular_inverse
from jaxrls.core.support import (
    as_floats,
    check_finite,
    is_concrete,
    on_device,
    pytree,
    static,
    value_of,
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
    upper triangular. `FixedLevels` has one column for each group.

    Methods take `values` of a block, so that streamed and sharded rows are never needed all at
    once.
    """

    values: Any  # the columns (n, p) without the constant, or None
    inverse_T: Float[Array, "q q"]  # T⁻¹
    intercept: bool = static(default=False)
    parts: tuple[EffectsPart, ...] = ()  # what further columns are

    @classmethod
    def none(cls, dtype: Any) -> "FixedEffects":
        """No fixed effects."""
        return cls(None, jnp.zeros((0, 0), dtype))

    @classmethod
    def constant(cls, total: Float[Array, ""]) -> "FixedEffects":
        """An intercept, over rows of Σv = `total`: H = √v/√Σv."""
        xp: Any = np if is_concrete(total) else jnp  # NumPy compiles nothing
        return cls(None, on_device(xp.reshape(1 / xp.sqrt(total), (1, 1))), True)

    @classmethod
    def from_columns(
        cls, B: Columns, weights: Weights, intercept: bool, parts: tuple[EffectsPart, ...]
    ) -> "FixedEffects":
        """Fixed effects from columns, checked to be independent. T comes from two Cholesky factors,
        which need only sums over rows.
        """
        if B.shape[1] + intercept > weights.n:
            raise ValueError(
                f"fixed_effects has shape {B.shape}, and {weights.n} rows take at most "
                f"{weights.n - intercept} independent columns: drop some"
            )
        inverse_T = jnp.eye(B.shape[1] + intercept, dtype=B.dtype)
        scaled = weights.scale(cls(B, inverse_T, intercept).dense(B, weights.n))
        length = jnp.linalg.norm(scaled, axis=0)
        inverse_T = inverse_T / jnp.where(length > 0, length, 1)
        for step in range(2):
            H = matmul(scaled, inverse_T)
            gram = matmul(H.T, H)
            if step == 0 and is_concrete(gram):
                _check_independent(gram, intercept)
            inverse_T = matmul(inverse_T, triangular_inverse(jnp.linalg.cholesky(gram)).T)
        return cls(B, inverse_T, intercept, parts)

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
        return ("intercept",) * self.intercept + sum((part.names for part in self.parts), ())

    @property
    def only_intercept(self) -> bool:
        """Whether there is an intercept and nothing else."""
        return self.intercept and self.values is None

    @property
    def constant_coef(self) -> Float[Array, " q"] | None:
        """The coordinates of a constant in the columns; None where they do not contain it."""
        coordinates = [True] * self.intercept  # or the sum of all levels of a grouping
        coordinates += [part.levels == part.names for part in self.parts for _ in part.names]
        return on_device(np.array(coordinates, self.dtype)) if any(coordinates) else None

    # B, and products with it ----------------------------------------------------------------------

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
        """log |Bᵀ V B|, without levels of weight 0."""
        inverse_T = jnp.diagonal(self.inverse_T) if self.inverse_T.ndim == 2 else self.inverse_T
        return -2 * jnp.sum(jnp.log(jnp.where(inverse_T > 0, inverse_T, 1)))

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
        fits: Any = 0
        removed: Any = 0
        others = weights.total - jnp.max(weights.array)
        for _ in range(1 if weights.values is None else 2):
            fit = self.fit(weights, K)
            both = self.fit(weights, fit.T)
            half = self.fitted(self.values, fit - self.fitted(self.values, both.T).T / 2)
            K = K - half - half.T
            fits, removed = fits + fit, removed + jnp.linalg.norm(both) * others
        return Centred(K, fits, removed)

    def project(self, weights: Weights, U: Columns) -> Columns:
        """(I − H Hᵀ) U."""
        if not self.count:
            return U
        coef = self.solve(self.sums(self.values, weights.root, U))
        return U - weights.root[:, None] * self.fitted(self.values, coef)

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
        if self.parts:
            return columns_given(given, self.parts, m, dtype)
        if given is not None:
            raise ValueError(
                "fixed_effects= was given, and the model was fitted without: leave it out"
            )
        return None

    def split(self, beta: Float[Array, "*L q t"]) -> tuple[Any, Any]:
        """Intercept (…, t), 0 where there is none, and the other coefficients, or None."""
        constant, free = jnp.split(beta, [int(self.intercept)], axis=-2)
        return constant.sum(axis=-2), None if self.values is None else free

    def join(self, intercept, free) -> Coefficients:
        """β from intercept and other coefficients: the inverse of `split`."""
        constant = intercept[None][: int(self.intercept)]
        return constant if free is None else jnp.concatenate([constant, free])

    # rows that leave ------------------------------------------------------------------------------

    def check_rank(self, weights: Weights, folds: Folds | None) -> None:
        """Raise where the columns become dependent without a row, or fold, if values are known."""
        if not self.count or not is_concrete(self, weights, folds):
            return
        plain = self.values is None and weights.values is None and folds is None
        if plain and weights.n > 1:
            return  # any other row does for a constant
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

    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        """Whether B keeps its rank without each row, (n,), or each fold, (k,)."""
        if self.values is None:  # a constant does while any row of positive weight stays
            v = weights.values
            used = np.ones(weights.n, int) if v is None else weights.used.astype(int)
            return used.sum() > (used if folds is None else folds.sums_of_left_out(on_device(used)))
        least = 4 * weights.n**0.5 * float(jnp.finfo(weights.dtype).eps)
        if folds is None:
            return 1 - self.leverage(self.values, weights.array) > least
        H = weights.scale(self.basis(self.values, weights.n))

        def remaining(fold):  # one at a time: memory of a fold's rows, and not of n q² numbers
            inside = H[fold[0]] * fold[1][:, None].astype(H.dtype)
            block = jnp.eye(self.count, dtype=H.dtype) - matmul(inside.T, inside)
            return jnp.linalg.eigvalsh(block)[0]

        return jax.lax.map(remaining, (folds.inside, folds.inside_mask)) > least


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
        levels = cls(numbers, start, parts=(EffectsPart(names, names),))
        return replace(levels.from_gram(levels.gram(numbers, weights.array)), values=numbers)

    @property
    def rank(self):
        """The number of levels that have weight."""
        return jnp.sum(self.inverse_T > 0).astype(self.dtype)

    @property
    def constant_coef(self):
        """A coefficient of 1 for every level."""
        return jnp.ones_like(self.inverse_T)

    def dense(self, values, m):
        """Indicator columns; 0 for rows of no level."""
        return jax.nn.one_hot(values, self.count, dtype=self.dtype)

    def basis_of(self, b):
        """b/√Σv."""
        return b * self.inverse_T

    def fitted(self, values, A):
        """The row of A of each row's level."""
        return A.at[values].get(mode="fill", fill_value=0)

    def sums(self, values, v, A):
        """Sums within levels."""
        return jax.ops.segment_sum(v[:, None] * A, values, self.count)

    def gram(self, values, v):
        """Σ v within levels."""
        return jax.ops.segment_sum(v, values, self.count)

    def solve(self, A):
        """Means of sums."""
        return self.inverse_T[:, None] ** 2 * A

    def from_gram(self, gram):
        """The same levels over other rows, whose sums of weights are given."""
        inverse_T = jnp.where(gram > 0, jax.lax.rsqrt(jnp.where(gram > 0, gram, 1)), 0)
        return replace(self.without_values(), inverse_T=inverse_T)

    def leverage(self, values, v):
        """v over the total weight of the row's level."""
        return v * self.inverse_T[values] ** 2

    def new_values(self, given, m, dtype):
        """The numbers of the new rows' levels."""
        if given is None:  # of no level: scores, up to a constant for each group
            return jnp.full(m, self.count, jnp.int32)
        weighs = np.asarray(self.inverse_T) if is_concrete(self.inverse_T) else np.ones(self.count)
        known = {level: number for number, level in enumerate(self.titles) if weighs[number]}
        return numbers_of(given, known, m)

    def keeps_rank(self, weights, folds):
        """Whether each row has another in its level; a level that lies within a fold leaves with
        it.
        """
        if folds is None:
            return super().keeps_rank(weights, None)
        return jnp.ones(len(folds.inside), bool)

    def _rank_message(self, rows):
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
        parts = parts_given(given)
        B = place(columns_given(given, parts, n, weights.dtype))
        return FixedEffects.from_columns(B, weights, False, parts)
    B = place(as_floats("fixed_effects", given, weights.dtype))
    if B.ndim != 2 or B.shape[0] != n or not B.shape[1] + intercept:
        hint = ": use fixed_effects[:, None] for a single column" if B.shape == (n,) else ""
        raise ValueError(
            f"fixed_effects must be levels(labels) or columns ({n}, q), one row for each of X, or "
            f"a list of both, and has shape {B.shape}{hint}"
        )
    check_finite("fixed_effects", B)
    return FixedEffects.from_columns(B, weights, intercept, parts_given([given]))


def _check_independent(gram, intercept: bool) -> None:
    """Raise for columns that are linearly dependent."""
    s = np.linalg.eigvalsh(np.asarray(gram, np.float64))
    if s[0] <= 64 * len(s) * float(jnp.finfo(gram.dtype).eps) * s[-1]:
        constant = ", the constant of intercept=True among them," * intercept
        raise ValueError(
            f"the {len(s)} columns of fixed_effects{constant} are linearly dependent over the rows "
            "of positive weight: drop a column, or give levels(labels) for an indicator of each "
            "group"
        )
