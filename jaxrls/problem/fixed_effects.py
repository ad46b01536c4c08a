"""Fixed effects: columns b(x) whose coefficients β nothing penalises, f(x) + b(x)·β.

√v B = H T with HᵀH = I is all that a factor sees of them. An intercept is the column of ones.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.linalg.products import matmul
from jaxrls.problem.folds import Folds, named
from jaxrls.problem.weights import Weights
from jaxrls.support.checks import as_array, as_floats, as_labels, check_finite, is_concrete
from jaxrls.support.pytrees import pytree, static


class FixedEffects(ABC):
    """q columns B over n rows. `rows` is what a block of rows needs to know of itself, or None.

    Methods take `rows` of a block, so that blocks of streamed and sharded rows never need all.
    """

    rows: Any
    count: Any  # q
    dtype: Any

    @abstractmethod
    def fitted(self, rows: Any, A: Float[Array, "q p"]) -> Float[Array, "#b p"]:
        """B A of a block of rows."""

    @abstractmethod
    def sums(self, rows: Any, v: Float[Array, " b"], A: Float[Array, "b p"]) -> Float[Array, "q p"]:
        """Bᵀ diag(v) A, summed over a block of rows."""

    @abstractmethod
    def gram(self, rows: Any, v: Float[Array, " b"]) -> Float[Array, "q *q"]:
        """Bᵀ diag(v) B of a block, as far as it is not 0 by itself."""

    @abstractmethod
    def solve(self, A: Float[Array, "q p"]) -> Float[Array, "q p"]:
        """(Bᵀ V B)⁻¹ A."""

    @abstractmethod
    def basis_of(self, A: Float[Array, "n q"]) -> Float[Array, "n q"]:
        """A T⁻¹."""

    def basis(self, rows: Any, n: int) -> Float[Array, "n q"]:
        """B T⁻¹ of n rows: √v times it is H. Known for rows of weight 0 too."""
        return self.basis_of(self.dense(rows, n, self.dtype))

    def rows_at(self, indices: Int[Array, " b"]) -> Any:
        """`rows` of some of the rows."""
        return None if self.rows is None else self.rows[indices]

    def lean(self) -> "FixedEffects":
        """The same without their rows, for models."""
        return self if self.rows is None else replace(self, rows=self.rows[:0])  # type: ignore[type-var]

    def joined(self, intercept, free) -> Float[Array, "q t"]:
        """β of what `apart` took apart."""
        return intercept[None][: self.count] if free is None else free

    @abstractmethod
    def new_rows(self, given: Any, m: int, dtype: Any) -> Any:
        """`rows` of m new rows from what a caller gives for them, checked."""

    def dense(self, rows: Any, m: int, dtype: Any) -> Float[Array, "m q"]:
        """B of m rows."""
        return jnp.broadcast_to(
            self.fitted(rows, jnp.eye(self.count, dtype=dtype)), (m, self.count)
        )

    @abstractmethod
    def from_gram(self, gram: Float[Array, "q *q"]) -> "FixedEffects":
        """The same columns over other rows, whose Bᵀ V B is given."""

    @property
    @abstractmethod
    def log_volume(self) -> Any:
        """log |Bᵀ V B|."""

    @property
    def one(self) -> Float[Array, " q"] | None:
        """The coordinates of a constant in the columns, None where it is not among them."""
        return None

    @property
    def rank(self) -> Any:
        """The dimensions that B spans over the rows of positive weight."""
        return self.count

    def apart(self, beta: Float[Array, "*L q t"]) -> tuple[Any, Any]:
        """Intercept (…, t), 0 where there is none, and the other coefficients, or None."""
        return beta.sum(axis=-2), None

    def rest(self, rows: Any, free: Float[Array, "p *t"]) -> Any:
        """What all but the intercept add at some rows."""
        return 0

    def levels_of_two(self, weights: Weights) -> Any:
        """H of levels of two rows of positive weight, which leave with a pair; None if no levels."""
        return None

    def leverage(self, rows: Any, v: Float[Array, " b"]) -> Float[Array, " b"]:
        """The diagonal of H Hᵀ for a block of rows."""
        return v * jnp.sum(self.basis(rows, len(v)) ** 2, axis=1)

    def fit(self, weights: Weights, A: Float[Array, "n p"]) -> Float[Array, "q p"]:
        """(Bᵀ V B)⁻¹ Bᵀ V A, refined once: rounding of the first solve grows with what is fitted."""
        v = weights.array
        first = self.solve(self.sums(self.rows, v, A))
        return first + self.solve(self.sums(self.rows, v, A - self.fitted(self.rows, first)))

    def residual(self, weights: Weights, A: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """A less what B fits of it."""
        return A - self.fitted(self.rows, self.fit(weights, A)) if self.count else A

    def centre_both(self, weights: Weights, K: Float[Array, "n n"]) -> tuple[Any, Any, Any]:
        """(I − BΠ) K (I − BΠ)ᵀ with Π = (BᵀVB)⁻¹BᵀV, ΠK, and how much of √v K √v is taken off.

        About the heaviest row first, where a constant is among the columns: its entries become
        exact zeros, whose rounding its weight would multiply.
        """
        if not self.count:
            return K, K[:0], jnp.zeros((), K.dtype)
        part, others = jnp.zeros((1, weights.n), K.dtype), weights.total
        if weights.values is not None and self.one is not None:
            heaviest = jnp.argmax(weights.values)
            part = K[heaviest][None] - K[heaviest, heaviest] / 2
            K, others = K - part - part.T, others - weights.values[heaviest]
        across = self.fit(weights, K)
        both = self.fit(weights, across.T)
        half = self.fitted(self.rows, across - self.fitted(self.rows, both.T).T / 2)
        off = jnp.linalg.norm(both) * weights.total
        if self.one is not None:
            one, fit = self.one[:, None], self.fit(weights, part.T)
            across, off = across + one * part, off + 2 * jnp.linalg.norm(one * fit.T) * others
        return K - half - half.T, across, off

    def project(self, weights: Weights, U: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """(I − H Hᵀ) U."""
        if not self.count:
            return U
        root = weights.root
        across = self.solve(self.sums(self.rows, root, U))
        return U - root[:, None] * self.fitted(self.rows, across)

    def check_rest(self, weights: Weights, folds: Folds | None) -> None:
        """Raise where a row, or a fold, leaves the columns dependent, if values are known."""
        if not self.count or not is_concrete(self, weights, folds):
            return
        with jax.ensure_compile_time_eval():
            rest = self.has_rest(weights, folds)
            if not bool(jnp.all(rest)):
                raise ValueError(self.no_rest(named(folds, int(jnp.argmin(rest)))))

    def no_rest(self, rows: str) -> str:
        """Why there is no fit without some rows."""
        return (
            f"without {rows} the columns of fixed_effects are linearly dependent: drop these rows, "
            "or a column, or choose λ by criterion=log_marginal_likelihood, which leaves none out"
        )

    def has_rest(self, weights: Weights, folds: Folds | None) -> Any:
        """Whether B keeps its dimensions without each row, (n,), or each fold, (k,)."""
        least = 4 * weights.n**0.5 * float(jnp.finfo(weights.dtype).eps)
        H = weights.scale(self.basis(self.rows, weights.n))
        if folds is None:
            return 1 - jnp.sum(H * H, axis=1) > least

        def remaining(fold):
            inside = H[fold[0]] * fold[1][:, None].astype(H.dtype)
            block = jnp.eye(self.count, dtype=H.dtype) - matmul(inside.T, inside)
            return jnp.linalg.eigvalsh(block)[0]

        return jax.lax.map(remaining, (folds.inside, folds.inside_mask)) > least


@pytree
class NoEffects(FixedEffects):
    """No column."""

    dtype: Any = static()
    rows = None
    count = 0
    log_volume = 0.0

    def fitted(self, rows, A):
        """0."""
        return jnp.zeros((1, *A.shape[1:]), A.dtype)

    def sums(self, rows, v, A):
        """No sum."""
        return A[:0]

    def gram(self, rows, v):
        """No sum."""
        return v[:0]

    def solve(self, A):
        """Nothing."""
        return A

    def basis_of(self, A):
        """No column."""
        return A

    def new_rows(self, given, m, dtype):
        """None."""
        return _none_given(given)

    def from_gram(self, gram):
        """Itself."""
        return self

    def leverage(self, rows, v):
        """0."""
        return jnp.zeros_like(v)


@pytree
class Intercept(FixedEffects):
    """The column of ones: H = √v/√Σv."""

    total: Float[Array, ""]
    rows = None
    count = 1

    def fitted(self, rows, A):
        """A, the same for every row."""
        return A

    def sums(self, rows, v, A):
        """Σ v a."""
        return matmul(v[None], A)

    def gram(self, rows, v):
        """Σ v."""
        return jnp.sum(v)[None]

    def solve(self, A):
        """A/Σv."""
        return A / self.total

    def basis_of(self, A):
        """A/√Σv."""
        return A / jnp.sqrt(self.total)

    @property
    def dtype(self):
        """That of the sum."""
        return self.total.dtype

    def new_rows(self, given, m, dtype):
        """None."""
        return _none_given(given)

    def from_gram(self, gram):
        """Of another Σv."""
        return Intercept(gram[0])

    @property
    def log_volume(self):
        """log Σv."""
        return jnp.log(self.total)

    @property
    def one(self):
        """The column itself."""
        return jnp.ones(1, self.total.dtype)

    def leverage(self, rows, v):
        """v/Σv."""
        return v / self.total

    def has_rest(self, weights, folds):
        """Whether a row of positive weight stays."""
        used = weights.used.astype(int)
        return jnp.sum(used) > (used if folds is None else folds.sums(used))

    def no_rest(self, rows):
        """Why there is no fit without some rows."""
        return (
            f"{rows} holds all of the weight: without it no row is left to fit an intercept to; "
            "give other rows weight, or take intercept=False"
        )


@pytree
class Columns(FixedEffects):
    """Columns (n, q) as they are given, with a column of ones before them for an intercept."""

    rows: Float[Array, "n q"]
    back: Float[Array, "q q"]  # T⁻¹
    intercept: bool = static(default=False)

    @classmethod
    def of(cls, B: Float[Array, "n q"], weights: Weights, intercept: bool) -> "Columns":
        """Checked to be independent. T by two Cholesky factors, which take sums over rows alone."""
        B = jnp.concatenate([jnp.ones((weights.n, int(intercept)), B.dtype), B], axis=1)
        length = jnp.linalg.norm(weights.scale(B), axis=0)
        back = jnp.diag(1 / jnp.where(length > 0, length, 1))
        sums = matmul(weights.scale(matmul(B, back)).T, weights.scale(matmul(B, back)))
        _check_independent(sums, intercept)
        for _ in range(2):
            H = weights.scale(matmul(B, back))
            L = jnp.linalg.cholesky(matmul(H.T, H))
            back = jax.lax.linalg.triangular_solve(
                L, back, left_side=False, lower=True, transpose_a=True
            )
        return cls(B, back, intercept)

    @property
    def count(self):
        """Columns, the constant among them."""
        return self.rows.shape[1]

    @property
    def one(self):
        """The first column, where there is an intercept."""
        return jnp.eye(self.count, dtype=self.back.dtype)[0] if self.intercept else None

    def fitted(self, rows, A):
        """B A."""
        return matmul(rows, A)

    def sums(self, rows, v, A):
        """Bᵀ diag(v) A."""
        return matmul(rows.T, v[:, None] * A)

    def gram(self, rows, v):
        """Bᵀ diag(v) B."""
        return self.sums(rows, v, rows)

    def solve(self, A):
        """T⁻¹ T⁻ᵀ A."""
        return matmul(self.back, matmul(self.back.T, A))

    def basis_of(self, A):
        """A T⁻¹."""
        return matmul(A, self.back)

    @property
    def dtype(self):
        """That of the columns."""
        return self.back.dtype

    def new_rows(self, given, m, dtype):
        """The columns, with that of ones."""
        width = self.count - int(self.intercept)
        if given is None:
            raise ValueError(
                f"fixed_effects must be the columns ({m}, {width}) of the new rows, and is None"
            )
        B = as_array("fixed_effects", given, dtype)
        if B.shape != (m, width):
            raise ValueError(
                f"fixed_effects must have shape ({m}, {width}), one row for each of X, and has shape {B.shape}"
            )
        check_finite("fixed_effects", B)
        return jnp.concatenate([jnp.ones((m, int(self.intercept)), B.dtype), B], axis=1)

    def apart(self, beta):
        """The first is the intercept, if there is one; the others always."""
        first = int(self.intercept)
        intercept = beta[..., 0, :] if first else jnp.zeros_like(beta[..., 0, :])
        return intercept, beta[..., first:, :]

    def joined(self, intercept, free):
        """The intercept first."""
        return jnp.concatenate([intercept[None][: int(self.intercept)], free])

    def rest(self, rows, free):
        """Those columns times their coefficients."""
        return matmul(rows[:, int(self.intercept) :], free)

    def from_gram(self, gram):
        """By a Cholesky factor of BᵀVB."""
        L = jnp.linalg.cholesky(gram)
        eye = jnp.eye(len(L), dtype=L.dtype)
        back = jax.lax.linalg.triangular_solve(L, eye, left_side=True, lower=True).T
        return Columns(self.rows[:0], back, self.intercept)

    @property
    def log_volume(self):
        """log |BᵀVB|."""
        return -2 * jnp.linalg.slogdet(self.back)[1]


@pytree
class Levels(FixedEffects):
    """An intercept for each group of rows: one column for each level, 1 for its rows."""

    rows: Int[Array, " n"]
    mass: Float[Array, " q"]  # Σ v of each level
    names: tuple = static(default=())

    @classmethod
    def of(cls, rows, names: tuple, weights: Weights) -> "Levels":
        """Of the number of each row's level."""
        mass = jax.ops.segment_sum(weights.array, rows, len(names))
        return cls(rows, mass, names)

    @property
    def count(self):
        """Levels."""
        return len(self.names)

    @property
    def rank(self):
        """Levels that have weight."""
        return jnp.sum(self.mass > 0).astype(self.mass.dtype)

    @property
    def _inverse(self):
        return jnp.where(self.mass > 0, 1 / jnp.where(self.mass > 0, self.mass, 1), 0)

    def fitted(self, rows, A):
        """The row of A of each row's level."""
        return A.at[rows].get(mode="fill", fill_value=0)

    def sums(self, rows, v, A):
        """Sums within levels."""
        return jax.ops.segment_sum(v[:, None] * A, rows, self.count)

    def gram(self, rows, v):
        """Σ v within levels."""
        return jax.ops.segment_sum(v, rows, self.count)

    def solve(self, A):
        """Means of sums."""
        return self._inverse[:, None] * A

    def basis_of(self, A):
        """A/√mass."""
        return A * jnp.sqrt(self._inverse)

    @property
    def dtype(self):
        """That of the masses."""
        return self.mass.dtype

    def new_rows(self, given, m, dtype):
        """The numbers of their levels."""
        if given is None:  # of no level: scores, up to a constant for each group
            return jnp.full(m, self.count, jnp.int32)
        if isinstance(given, LevelLabels):
            given = np.asarray(given.names, dtype=object)[np.asarray(given.rows)]
        labels = as_labels("fixed_effects", given)
        if len(labels) != m:
            raise ValueError(
                f"fixed_effects must have a level for each of {m} rows, and has {len(labels)}"
            )
        known = {name: number for number, name in enumerate(self.names)}
        missing = [label for label in labels.tolist() if label not in known]
        if missing:
            raise ValueError(
                f"fixed_effects has the level {missing[0]!r}, which no fitted row has: leave such rows out"
            )
        return jnp.asarray([known[label] for label in labels.tolist()], jnp.int32)

    def apart(self, beta):
        """No intercept of its own: the levels."""
        return jnp.zeros_like(beta[..., 0, :]), beta

    def rest(self, rows, free):
        """That of each row's level."""
        return free.at[rows].get(mode="fill", fill_value=0)

    def levels_of_two(self, weights):
        """From the numbers of rows."""
        count = jax.ops.segment_sum(weights.used.astype(weights.dtype), self.rows, self.count)
        return weights.scale(self.basis(self.rows, weights.n)) * (count == 2).astype(weights.dtype)

    def from_gram(self, gram):
        """Of other masses."""
        return Levels(self.rows[:0], gram, self.names)

    @property
    def log_volume(self):
        """Σ log mass."""
        return jnp.sum(jnp.log(jnp.where(self.mass > 0, self.mass, 1)))

    @property
    def one(self):
        """The sum of all levels."""
        return jnp.ones_like(self.mass)

    def leverage(self, rows, v):
        """v over the mass of the level."""
        return v * self._inverse[rows]

    def has_rest(self, weights, folds):
        """Whether each row of positive weight has another in its level; folds take levels along."""
        if folds is not None:
            return jnp.ones(len(folds.inside), bool)
        used = weights.used
        count = jax.ops.segment_sum(used.astype(weights.dtype), self.rows, self.count)
        return ~used | (count[self.rows] > 1)

    def no_rest(self, rows):
        """Why there is no fit without some rows."""
        return (
            f"{rows} is the only one of its level in fixed_effects, which nothing else tells: leave "
            "it out of X, or choose λ by folds of whole levels"
        )


@pytree
class LevelLabels:
    """Group labels that `levels` read: the number of each row's level, and the levels' names."""

    rows: Int[Array, " n"]
    names: tuple = static(default=())


def levels(labels) -> LevelLabels:
    """An unpenalised intercept for every group of rows, for `fixed_effects=`.

    f(x) + β_g for a row of group g. RankRLS for queries is this with `criterion=PairsOut(within=…)`.

    Args:
        labels: (n,) group labels of any kind: numbers, strings.

    Returns:
        What `fixed_effects=` of `fit` and `factorize` takes.

    Raises:
        ValueError: inside `jax.jit`, where labels have no values, or where one is missing.

    Cost: O(n log n). Source: the fixed-effects ("within") estimator, Wooldridge 2010, §10.5.

    >>> levels(["a", "b", "a"]).names
    ('a', 'b')
    """
    if not is_concrete(labels):
        raise ValueError("labels has no values inside jax.jit: call jaxrls.levels(labels) outside")
    names, rows = np.unique(as_labels("labels", labels), return_inverse=True)
    with jax.ensure_compile_time_eval():
        return LevelLabels(jnp.asarray(rows.astype(np.int32)), tuple(names.tolist()))


def as_fixed_effects(
    given: Any, intercept: bool, weights: Weights, rows: Any = None
) -> FixedEffects:
    """Fixed effects of n rows from what a caller gives: None, columns (n, q), or `levels(labels)`.

    Levels sum to a constant, so that an intercept is among them already.
    """
    if isinstance(given, FixedEffects):
        return given
    if given is None:
        return Intercept(weights.total) if intercept else NoEffects(weights.dtype)
    n, place = weights.n, jnp.asarray if rows is None else rows.column
    if isinstance(given, LevelLabels):
        numbers = place(given.rows)
        if numbers.shape != (n,):
            raise ValueError(
                f"fixed_effects must have a level for each of {n} rows, and has {len(numbers)}"
            )
        return Levels.of(numbers, given.names, weights)
    B = place(as_floats("fixed_effects", given, weights.dtype))
    if B.ndim != 2 or B.shape[0] != n or not B.shape[1] + intercept:
        hint = ": use fixed_effects[:, None] for a single column" if B.shape == (n,) else ""
        raise ValueError(
            f"fixed_effects must be levels(labels) or columns ({n}, q), one row for each of X, and "
            f"has shape {B.shape}{hint}"
        )
    check_finite("fixed_effects", B)
    if B.shape[1] + intercept > n:
        raise ValueError(_dependent(B.shape[1] + intercept, intercept))
    return Columns.of(B, weights, intercept)


def _none_given(given: Any) -> None:
    if given is not None:
        raise ValueError("fixed_effects= was given, and the model was fitted without: leave it out")


def _check_independent(gram, intercept: bool) -> None:
    """Raise for columns of which one is a sum of the others, where values are known."""
    if is_concrete(gram):
        s = np.linalg.eigvalsh(np.asarray(gram, np.float64))
        if s[0] <= 64 * len(s) * float(jnp.finfo(gram.dtype).eps) * s[-1]:
            raise ValueError(_dependent(len(s), intercept))


def _dependent(q: int, intercept: bool) -> str:
    constant = ", the constant of intercept=True among them," * intercept
    return (
        f"the {q} columns of fixed_effects{constant} are linearly dependent over the rows of "
        "positive weight: drop a column, or give levels(labels) for an indicator of each group"
    )
