"""Reads the argument `fixed_effects=` of a user, for the rows of a fit and for new rows.

The argument is columns, `levels` of a grouping, or a list of both. The columns of a list are put
side by side.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.support import (
    as_floats,
    as_labels,
    by_names,
    check_finite,
    column_names,
    pytree,
    require_values,
    static,
    with_index,
)

Columns = Float[Array, "n p"]  # for a block of rows, or for all rows


class GivenColumns(NamedTuple):
    """The columns C that a user gave, as the sum of two arrays in the dtype of the fit.

    So columns in float64 keep their digits in a fit in float32.
    """

    rounded: Any  # (n, p), C, rounded to the dtype of the fit; on the host or on devices
    rest: Any  # (n, p), C − rounded
    eps: Any  # (1, p), the eps of the dtype in which each column was given

    @classmethod
    def of(
        cls, values: Float[Array | np.ndarray, "..."], dtype: Any, place: Callable = lambda a: a
    ) -> "GivenColumns":
        """Make the columns from floating-point numbers.

        The function `place` puts the arrays on the devices of the rows. By default they stay where
        they are.
        """
        rounded = values.astype(dtype)
        rest = (values - rounded.astype(values.dtype)).astype(dtype)
        eps = np.full((1, *values.shape[1:]), jnp.finfo(values.dtype).eps, dtype)
        return cls(place(rounded), place(rest), eps)

    def about(self, centre: Any) -> Any:
        """Return the columns minus a centre, the sum of the two rows of an array (2, p)."""
        return (self.rounded - centre[0]) + (self.rest - centre[1])


@pytree
class Grouping:
    """A partition of rows into groups, as `levels` makes it. A group is named by its level."""

    rows: Int[Array, " n"]  # for each row the number of its level in `names`
    names: tuple = static()  # all levels, sorted
    index: ClassVar[Any] = None  # the pandas index of the labels; see `with_index`
    made_of: ClassVar[str] = "labels"  # the argument of `levels`, for messages


def levels(labels: Any) -> Grouping:
    """Make an intercept without penalty for every group of rows, to pass as `fixed_effects=`.

    The model is f(x) + β_g for a row x of group g. If the groups are queries,
    `criterion=PairsOut(within=…)` turns the fit into RankRLS.

    Args:
        labels: (n,) group labels of any kind: numbers, strings.

    Returns:
        The groups, as an argument `fixed_effects=` of `fit` and `factorize`.

    Raises:
        ValueError: for a missing label, for dates, and inside `jax.jit`, because labels have no
            values there.

    **Cost** O(n log n). **Source**: the fixed-effects ("within") estimator, Wooldridge 2010, §10.5.

    >>> levels(["a", "b", "a"]).names
    ('a', 'b')
    """
    require_values(
        "labels has no values inside jax.jit: call jaxrls.levels(labels) outside", labels
    )
    given = labels
    labels = as_labels("labels", given)
    if labels.dtype.kind in "mM":
        raise ValueError("labels must be numbers or text, and holds dates: give labels.astype(str)")
    names, rows = np.unique(labels, return_inverse=True)
    with jax.ensure_compile_time_eval():
        grouping = Grouping(jnp.asarray(rows.astype(np.int32)), tuple(names.tolist()))
    return with_index(grouping, given)


@pytree
class ColumnsTerm:
    """Columns as one part of the argument `fixed_effects=`, without their rows."""

    names: tuple = static()
    sum_to_one: ClassVar[bool] = False

    def columns(self, given: Any, m: int, dtype: Any) -> GivenColumns:
        """Return the columns of m rows that a user gives, checked.

        The columns of a data frame are selected by `names`.
        """
        width = len(self.names)
        names = self.names
        if names == _numbered(width):  # they may be numbers in a frame, or have no names
            found = {*column_names(given)}
            known = (names, tuple(range(width)))
            names = next((names for names in known if found.issuperset(names)), ())
        given = by_names("fixed_effects", given, names)
        B = None if given is None else as_floats("fixed_effects", given)
        if B is None or B.shape != (m, width):
            shape = "is None" if B is None else f"has shape {B.shape}"
            raise ValueError(
                f"fixed_effects must be the columns ({m}, {width}) of the new rows, and {shape}"
            )
        columns = GivenColumns.of(B, dtype)
        check_finite("fixed_effects", columns.rounded)
        return columns


@pytree
class LevelsTerm:
    """A grouping as one part of the argument `fixed_effects=`, without its rows.

    The indicators of all levels sum to 1. So a grouping that is `further`, that is, not the first,
    has no column for its first level.
    """

    levels: tuple = static()
    further: bool = static(default=False)

    @property
    def names(self) -> tuple:
        """The levels that have a column."""
        return self.levels[int(self.further) :]

    @property
    def sum_to_one(self) -> bool:
        """Whether the columns sum to 1 in every row, as those of all levels do."""
        return not self.further

    def columns(self, given: Any, m: int, dtype: Any) -> GivenColumns:
        """Return the indicators of m rows, from what a user gives for them."""
        known = {level: number for number, level in enumerate(self.levels)}
        own = np.arange(int(self.further), len(known))
        indicators = numbers_of(given, known, m)[:, None] == own
        return GivenColumns.of(indicators.astype(dtype), dtype)


EffectsTerm = ColumnsTerm | LevelsTerm


def terms_given(given: list | tuple) -> tuple[EffectsTerm, ...]:
    """Return the term of each part of a list of columns and groupings."""
    terms: list[EffectsTerm] = []
    for part in given:
        if isinstance(part, Grouping):
            terms.append(LevelsTerm(part.names, further=has_levels(terms)))
        else:
            names = column_names(part)
            shape = np.shape(part)
            width = shape[-1] if shape[1:] else 1
            are_numbers = names in ((), tuple(range(width)))
            terms.append(ColumnsTerm(_numbered(width) if are_numbers else names))
    return tuple(terms)


def has_levels(terms: Iterable[EffectsTerm]) -> bool:
    """Whether a grouping is among the terms."""
    return any(isinstance(term, LevelsTerm) for term in terms)


def columns_given(given: Any, terms: tuple[EffectsTerm, ...], m: int, dtype: Any) -> GivenColumns:
    """Return the columns of m rows, side by side, from what a user gives for them.

    `given` is a list with one part for each term. Without groupings it is the columns themselves.
    """
    if not has_levels(terms):
        return terms[0].columns(given, m, dtype)
    if not isinstance(given, list | tuple) or len(given) != len(terms):
        what = f"has {len(given)}" if hasattr(given, "__len__") else f"is {given!r}"
        raise ValueError(
            f"fixed_effects must be a list of the {len(terms)} parts of the fit, levels and "
            f"columns in the same order, and {what}"
        )
    pairs = zip(terms, given, strict=True)
    columns = [term.columns(values, m, dtype) for term, values in pairs]
    on_host = all(isinstance(side, np.ndarray) for side in jax.tree.leaves(columns))
    xp: Any = np if on_host else jnp
    return GivenColumns(*(xp.concatenate(side, axis=1) for side in zip(*columns, strict=True)))


def numbers_of(given: Any, known: dict, m: int) -> Int[np.ndarray, " m"]:
    """Return the number of each row's level, from a `Grouping` or from labels.

    `known` maps the levels of the fit to their numbers.
    """
    if isinstance(given, Grouping):
        given = np.asarray(given.names, dtype=object)[np.asarray(given.rows)]
    labels = as_labels("fixed_effects", given)
    check_levels(labels, m)
    try:
        return np.array([known[label] for label in labels.tolist()], np.int32)
    except KeyError as error:
        raise ValueError(
            f"fixed_effects has the level {error}, which no fitted row that counts has: leave it "
            "out"
        ) from None


def check_levels(levels: Array | np.ndarray, n: int) -> None:
    """Raise `ValueError` unless there is one level for each of n rows."""
    if len(levels) != n:
        raise ValueError(
            f"fixed_effects must have a level for each of {n} rows, and has {len(levels)}"
        )


def _numbered(count: int) -> tuple:
    """Return the names x0, x1, … for columns without names."""
    return tuple(f"x{j}" for j in range(count))
