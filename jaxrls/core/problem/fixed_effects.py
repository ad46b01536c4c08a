"""Fixed effects: columns b(x) whose coefficients β have no penalty, f(x) + b(x)·β.

A factor uses them only through H, √v B = H T with HᵀH = I. An intercept is the column of ones.

Theory: `docs/theory.md`, "One matrix".
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.linalg import matmul, triangular_inverse
from jaxrls.core.problem.folds import Folds, named
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support import (
    as_array,
    as_floats,
    as_labels,
    by_names,
    check_finite,
    column_names,
    is_concrete,
    on_device,
    pytree,
    static,
    value_of,
)

Columns = Float[Array, "n p"]  # over rows of a block, or all
Coefficients = Float[Array, "q *t"]  # of the fixed effects
Vector = Float[Array, " n"]


@pytree
class FixedEffects:
    """q columns B over n rows without penalty: none, a constant, further columns, or both. T⁻¹ is
    upper triangular. `FixedLevels` has one column for each group.

    Methods take `rows` of a block, so that streamed and sharded rows are never needed all at once.
    """

    rows: Any  # the columns (n, p) without the constant, or None
    back: Float[Array, "q q"]  # T⁻¹
    intercept: bool = static(default=False)
    names: tuple = static(default=())  # of further columns, where they have such

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
    def columns(cls, B: Columns, weights: Weights, intercept: bool) -> "FixedEffects":
        """Fixed effects from columns, checked to be independent. T comes from two Cholesky factors,
        which need only sums over rows.
        """
        back = jnp.eye(B.shape[1] + intercept, dtype=B.dtype)
        scaled = weights.scale(cls(B, back, intercept).dense(B, weights.n))
        length = jnp.linalg.norm(scaled, axis=0)
        back = back / jnp.where(length > 0, length, 1)
        for step in range(2):
            H = matmul(scaled, back)
            gram = matmul(H.T, H)
            if step == 0 and is_concrete(gram):
                _check_independent(gram, intercept)
            back = matmul(back, triangular_inverse(jnp.linalg.cholesky(gram)).T)
        return cls(B, back, intercept)

    @property
    def count(self) -> int:
        """The number q of columns."""
        return self.back.shape[0]

    @property
    def dtype(self) -> Any:
        """The dtype of T."""
        return self.back.dtype

    @property
    def rank(self) -> Any:
        """The dimensions that B spans over the rows of positive weight."""
        return self.count

    @property
    def titles(self) -> tuple:
        """What each coefficient belongs to: "intercept", a column, or a level."""
        free = self.count - self.intercept
        return ("intercept",) * self.intercept + (self.names or _numbered(free))

    @property
    def one(self) -> Float[Array, " q"] | None:
        """The coordinates of a constant in the columns; None where they do not contain it."""
        return on_device(np.eye(1, self.count, dtype=self.dtype)[0]) if self.intercept else None

    # B, and products with it ----------------------------------------------------------------------

    def dense(self, rows: Any, m: int) -> Columns:
        """B of m rows."""
        ones = jnp.ones((m, int(self.intercept)), self.dtype)
        return ones if rows is None else jnp.concatenate([ones, rows], axis=1)

    def basis_of(self, b: Columns) -> Columns:
        """b T⁻¹ of rows of B."""
        return matmul(b, self.back)

    def basis(self, rows: Any, m: int) -> Columns:
        """B T⁻¹ of m rows: √v times it is H. Known for rows of weight 0 too."""
        return self.basis_of(self.dense(rows, m))

    def fitted(self, rows: Any, A: Coefficients) -> Float[Array, "#n *t"]:
        """B A of a block of rows, one row where it is the same for all."""
        constant = A[: int(self.intercept)].sum(axis=0, keepdims=True)
        return constant if rows is None else constant + matmul(rows, A[int(self.intercept) :])

    def sums(self, rows: Any, v: Vector, A: Columns) -> Coefficients:
        """Bᵀ diag(v) A, summed over a block of rows."""
        return matmul(self.dense(rows, len(v)).T * v, A)

    def gram(self, rows: Any, v: Vector) -> Coefficients:
        """Bᵀ diag(v) B of a block of rows; for levels its diagonal, as all other entries are 0."""
        return self.sums(rows, v, self.dense(rows, len(v)))

    def solve(self, A: Coefficients) -> Coefficients:
        """(Bᵀ V B)⁻¹ A."""
        return matmul(self.back, matmul(self.back.T, A))

    def from_gram(self, gram: Coefficients) -> "FixedEffects":
        """The same columns over other rows, whose Bᵀ V B is given."""
        if not self.count:
            return self
        return replace(self.lean(), back=triangular_inverse(jnp.linalg.cholesky(gram)).T)

    @property
    def log_volume(self) -> Any:
        """log |Bᵀ V B|, without levels of weight 0."""
        back = jnp.diagonal(self.back) if self.back.ndim == 2 else self.back
        return -2 * jnp.sum(jnp.log(jnp.where(back > 0, back, 1)))

    def leverage(self, rows: Any, v: Vector) -> Vector:
        """The diagonal of H Hᵀ for a block of rows."""
        return v * jnp.sum(self.basis(rows, len(v)) ** 2, axis=1)

    def fit(self, weights: Weights, A: Columns) -> Coefficients:
        """(Bᵀ V B)⁻¹ Bᵀ V A, with one step of refinement: the rounding of a single solve grows with
        A.
        """
        v = weights.array
        first = self.solve(self.sums(self.rows, v, A))
        return first + self.solve(self.sums(self.rows, v, A - self.fitted(self.rows, first)))

    def residual(self, weights: Weights, A: Columns) -> Columns:
        """A minus its fit by B."""
        return A - self.fitted(self.rows, self.fit(weights, A))

    def centre_both(self, weights: Weights, K: Float[Array, "n n"]) -> tuple[Any, Any, Any]:
        """(I − BΠ) K (I − BΠ)ᵀ with Π = (BᵀVB)⁻¹BᵀV, ΠK, and how much of √v K √v is taken off.

        With weights it is done twice, as a heavy row multiplies what the first time rounds off.
        """
        if not self.count:
            return K, K[:0], jnp.zeros((), K.dtype)
        others = weights.total - jnp.max(weights.array)
        taken: Any = 0
        off: Any = 0
        for _ in range(1 if weights.values is None else 2):
            across = self.fit(weights, K)
            both = self.fit(weights, across.T)
            half = self.fitted(self.rows, across - self.fitted(self.rows, both.T).T / 2)
            K, taken, off = K - half - half.T, taken + across, off + jnp.linalg.norm(both) * others
        return K, taken, off

    def project(self, weights: Weights, U: Columns) -> Columns:
        """(I − H Hᵀ) U."""
        if not self.count:
            return U
        across = self.solve(self.sums(self.rows, weights.root, U))
        return U - weights.root[:, None] * self.fitted(self.rows, across)

    # rows of B, and coefficients ------------------------------------------------------------------

    def rows_at(self, indices: Int[Array, " b"]) -> Any:
        """The `rows` argument of methods for some of the rows."""
        return None if self.rows is None else self.rows[indices]

    def lean(self) -> "FixedEffects":
        """The same without the data of its rows, as models keep it."""
        return self if self.rows is None else replace(self, rows=self.rows[:0])

    def new_rows(self, given: Any, m: int, dtype: Any) -> Any:
        """The `rows` argument of methods for m new rows, from the caller's columns or labels for
        them, checked.
        """
        if self.rows is None:
            if given is not None:
                raise ValueError(
                    "fixed_effects= was given, and the model was fitted without: leave it out"
                )
            return None
        return _new_columns(given, self.names, m, self.rows.shape[1], dtype)

    def split(self, beta: Float[Array, "*L q t"]) -> tuple[Any, Any]:
        """Intercept (…, t), 0 where there is none, and the other coefficients, or None."""
        constant, free = jnp.split(beta, [int(self.intercept)], axis=-2)
        return constant.sum(axis=-2), None if self.rows is None else free

    def joined(self, intercept, free) -> Coefficients:
        """β from intercept and other coefficients: the inverse of `split`."""
        constant = intercept[None][: int(self.intercept)]
        return constant if free is None else jnp.concatenate([constant, free])

    # rows that leave ------------------------------------------------------------------------------

    def check_rest(self, weights: Weights, folds: Folds | None) -> None:
        """Raise where the columns become dependent without a row, or fold, if values are known."""
        if not self.count or not is_concrete(self, weights, folds):
            return
        if self.rows is weights.values is folds is None and weights.n > 1:
            return  # any other row does for a constant
        with jax.ensure_compile_time_eval():
            rest = self.has_rest(weights, folds)
            if not value_of(lambda xp, rest: xp.all(rest), rest):
                raise ValueError(self._no_rest(named(folds, int(jnp.argmin(rest)))))

    def _no_rest(self, rows: str) -> str:
        if self.rows is None:
            return (
                f"{rows} holds all of the weight: without it no row is left to fit an intercept "
                "to: give others weight, or take intercept=False"
            )
        return (
            f"without {rows} the columns of fixed_effects are linearly dependent: drop these rows, "
            "or a column, or take criterion=log_marginal_likelihood, which leaves none out"
        )

    def has_rest(self, weights: Weights, folds: Folds | None) -> Any:
        """Whether B keeps its rank without each row, (n,), or each fold, (k,)."""
        if self.rows is None:  # a constant does while any row of positive weight stays
            v = weights.values
            used = np.ones(weights.n, int) if v is None else weights.used.astype(int)
            if folds is None:
                return used.sum() > used
            return used.sum() > folds.sums_of_left_out(on_device(used))
        least = 4 * weights.n**0.5 * float(jnp.finfo(weights.dtype).eps)
        if folds is None:
            return 1 - self.leverage(self.rows, weights.array) > least
        H = weights.scale(self.basis(self.rows, weights.n))

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

    rows: Int[Array, " n"]  # the number of each row's level
    back: Any = None  # (q,), 1/√Σv of each level, 0 where it has no weight; None before these

    @property
    def count(self):
        """The number of levels."""
        return len(self.names)

    @property
    def rank(self):
        """The number of levels that have weight."""
        return jnp.sum(self.back > 0).astype(self.dtype)

    @property
    def one(self):
        """A coefficient of 1 for every level."""
        return jnp.ones_like(self.back)

    def dense(self, rows, m):
        """Indicator columns; 0 for rows of no level."""
        return jax.nn.one_hot(rows, self.count, dtype=self.dtype)

    def basis_of(self, b):
        """b/√Σv."""
        return b * self.back

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
        return self.back[:, None] ** 2 * A

    def from_gram(self, gram):
        """The same levels over other rows, whose sums of weights are given."""
        back = jnp.where(gram > 0, jax.lax.rsqrt(jnp.where(gram > 0, gram, 1)), 0)
        return replace(self.lean(), back=back)

    def leverage(self, rows, v):
        """v over the total weight of the row's level."""
        return v * self.back[rows] ** 2

    def new_rows(self, given, m, dtype):
        """The numbers of the new rows' levels."""
        if given is None:  # of no level: scores, up to a constant for each group
            return jnp.full(m, self.count, jnp.int32)
        weighs = np.asarray(self.back) if is_concrete(self.back) else np.ones(self.count)
        known = {name: at for at, name in enumerate(self.names) if weighs[at]}
        return _numbers_of(given, known, m)

    def has_rest(self, weights, folds):
        """Whether each row has another in its level; a level that lies within a fold leaves with
        it.
        """
        if folds is None:
            return super().has_rest(weights, None)
        return jnp.ones(len(folds.inside), bool)

    def _no_rest(self, rows):
        return (
            f"{rows} is the only one of its level in fixed_effects: leave it out of X, or choose λ "
            "by folds of whole levels"
        )


@pytree
class Joint(FixedEffects):
    """Levels and further columns side by side: indicators of every level of the first grouping, and
    of all but the first level of any other, as those of one grouping sum to a constant.
    """

    parts: tuple = static(default=())  # of each its labels, or None, and the names of its columns

    @classmethod
    def of(cls, given, weights: Weights, place: Any) -> "Joint":
        """Of levels and columns as the caller gives them."""
        parts: list[tuple] = []
        for part in given:
            if isinstance(part, FixedLevels):
                again = any(labels is not None for labels, _ in parts)
                parts.append((part.names, part.names[int(again) :]))
            else:
                width = np.shape(part)[-1] if np.ndim(part) == 2 else 1
                parts.append((None, _names_of(part) or _numbered(width)))
        B = place(_side_by_side(given, parts, weights.n, weights.dtype))
        _check_width(B, weights.n, False)
        names = tuple(name for _, names in parts for name in names)
        joint = FixedEffects.columns(B, weights, False)
        return cls(B, joint.back, False, names, tuple(parts))

    @property
    def one(self):
        """1 for every level of the first grouping."""
        grouping = [labels is not None for labels, _ in self.parts]
        first = [at == grouping.index(True) for at in range(len(grouping))]
        return jnp.repeat(
            jnp.asarray(first, self.dtype), np.array([len(names) for _, names in self.parts])
        )

    def new_rows(self, given, m, dtype):
        """The columns of the new rows, from levels or their labels and from columns."""
        count = len(self.parts)
        if not isinstance(given, list | tuple) or len(given) != count:
            found = f"has {len(given)}" if hasattr(given, "__len__") else f"is {given!r}"
            raise ValueError(
                f"fixed_effects must be a list of the {count} parts of the fit, levels and columns "
                f"in the same order, and {found}"
            )
        return _side_by_side(given, self.parts, m, dtype)


def _side_by_side(given, parts, m: int, dtype) -> Columns:
    """Indicators and columns of m rows, one next to the other."""
    blocks = []
    for part, (labels, names) in zip(given, parts, strict=True):
        if labels is None:
            blocks.append(_new_columns(part, names, m, len(names), dtype))
        else:
            numbers = _numbers_of(part, {name: at for at, name in enumerate(labels)}, m)
            known = jax.nn.one_hot(numbers, len(labels), dtype=dtype)
            blocks.append(known[:, len(labels) - len(names) :])
    return jnp.concatenate(blocks, axis=1)


def _new_columns(given, names, m: int, width: int, dtype) -> Columns:
    """Columns (m, width) as given, those of a data frame by the names that were fitted."""
    given = by_names("fixed_effects", given, names if names != _numbered(width) else ())
    B = None if given is None else as_array("fixed_effects", given, dtype)
    if B is None or B.shape != (m, width):
        shape = "is None" if B is None else f"has shape {B.shape}"
        raise ValueError(
            f"fixed_effects must be the columns ({m}, {width}) of the new rows, and {shape}"
        )
    check_finite("fixed_effects", B)
    return B


def _numbers_of(given, known: dict, m: int) -> Any:
    """The number of each row's level, from `FixedLevels` or labels."""
    if isinstance(given, FixedLevels):
        given = np.asarray(given.names, dtype=object)[np.asarray(given.rows)]
    labels = as_labels("fixed_effects", given)
    _check_levels(labels, m)
    try:
        return jnp.asarray([known[label] for label in labels.tolist()], jnp.int32)
    except KeyError as error:
        raise ValueError(
            f"fixed_effects has the level {error}, which no fitted row that counts has: leave it "
            "out"
        ) from None


def _names_of(given) -> tuple:
    """The names of a data frame's columns, where all are text."""
    names = column_names(given)
    return names if all(isinstance(name, str) for name in names) else ()


def _numbered(count: int) -> tuple:
    """Names of columns that have none."""
    return tuple(f"x{j}" for j in range(count))


def levels(labels) -> FixedLevels:
    """An intercept without penalty for every group of rows, to pass as `fixed_effects=`.

    f(x) + β_g for a row of group g. With `criterion=PairsOut(within=…)` and groups of queries it is
    RankRLS.

    Args:
        labels: (n,) group labels of any kind: numbers, strings.

    Returns:
        What `fixed_effects=` of `fit` and `factorize` takes.

    Raises:
        ValueError: inside `jax.jit`, where labels have no values, or where one is missing.

    **Cost** O(n log n). **Source**: the fixed-effects ("within") estimator, Wooldridge 2010, §10.5.

    >>> levels(["a", "b", "a"]).names
    ('a', 'b')
    """
    if not is_concrete(labels):
        raise ValueError("labels has no values inside jax.jit: call jaxrls.levels(labels) outside")
    names, rows = np.unique(as_labels("labels", labels), return_inverse=True)
    with jax.ensure_compile_time_eval():
        return FixedLevels(jnp.asarray(rows.astype(np.int32)), names=tuple(names.tolist()))


def as_fixed_effects(
    given: Any, intercept: bool, weights: Weights, rows: Any = None
) -> FixedEffects:
    """Fixed effects of n rows from the caller's argument: None, columns (n, q), `levels(labels)`,
    or a list of these.

    Levels sum to a constant, so that they contain an intercept already.
    """
    if isinstance(given, FixedEffects) and given.back is not None:
        return given
    if given is None:
        if intercept:
            return FixedEffects.constant(weights.total)
        return FixedEffects.none(weights.dtype)
    n, place = weights.n, jnp.asarray if rows is None else rows.column
    if isinstance(given, FixedLevels):
        numbers = place(given.rows)
        _check_levels(numbers, n)
        return replace(given.from_gram(given.gram(numbers, weights.array)), rows=numbers)
    if isinstance(given, list | tuple) and any(isinstance(part, FixedLevels) for part in given):
        return Joint.of(given, weights, place)
    names, B = _names_of(given), place(as_floats("fixed_effects", given, weights.dtype))
    if B.ndim != 2 or B.shape[0] != n or not B.shape[1] + intercept:
        hint = ": use fixed_effects[:, None] for a single column" if B.shape == (n,) else ""
        raise ValueError(
            f"fixed_effects must be levels(labels) or columns ({n}, q), one row for each of X, or "
            f"a list of both, and has shape {B.shape}{hint}"
        )
    _check_width(B, n, intercept)
    check_finite("fixed_effects", B)
    return replace(FixedEffects.columns(B, weights, intercept), names=names)


def _check_width(B, n: int, intercept: bool) -> None:
    """Raise for more columns than rows."""
    if B.shape[1] + intercept > n:
        raise ValueError(
            f"fixed_effects has shape {B.shape}, and {n} rows take at most {n - intercept} "
            "independent columns: drop some"
        )


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


def _check_levels(levels, n: int) -> None:
    if len(levels) != n:
        raise ValueError(
            f"fixed_effects must have a level for each of {n} rows, and has {len(levels)}"
        )
