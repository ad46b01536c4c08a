"""Fixed effects as a caller gives them, for the rows of a fit and for new ones: columns, `levels`
of a grouping, or a list of both, whose columns stand side by side.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    on_device,
    pytree,
    require_values,
    static,
)

Columns = Float[Array, "n p"]  # over rows of a block, or all


class GivenColumns(NamedTuple):
    """Columns as they were given, as the sum of two arrays in the dtype of a fit: so float64 keeps
    its digits beside rows in float32.
    """

    rounded: Columns
    rest: Columns  # what rounding took
    eps: Any  # (1, p), of the dtypes in which they were given

    @classmethod
    def of(
        cls, values: Float[Array | np.ndarray, "..."], dtype: Any, place: Callable = on_device
    ) -> "GivenColumns":
        """From floating-point numbers, which `place` puts where the rows lie."""
        rounded = values.astype(dtype)
        rest = (values - rounded.astype(values.dtype)).astype(dtype)
        eps = np.full((1, *values.shape[1:]), jnp.finfo(values.dtype).eps, dtype)
        return cls(place(rounded), place(rest), eps)

    def about(self, centre: Any) -> Columns:
        """The columns less a centre (2, p), the sum of two rows likewise."""
        return (self.rounded - centre[0]) + (self.rest - centre[1])


@pytree
class Grouping:
    """The level of every row, by its number among the names of all levels: what `levels` makes."""

    rows: Int[Array, " n"]
    names: tuple = static()


def levels(labels: Any) -> Grouping:
    """An intercept without penalty for every group of rows, to pass as `fixed_effects=`.

    f(x) + β_g for a row of group g. With `criterion=PairsOut(within=…)` and groups of queries it is
    RankRLS.

    Args:
        labels: (n,) group labels of any kind: numbers, strings.

    Returns:
        What `fixed_effects=` of `fit` and `factorize` takes.

    Raises:
        ValueError: inside `jax.jit`, where labels have no values, where one is missing, and for
            dates.

    **Cost** O(n log n). **Source**: the fixed-effects ("within") estimator, Wooldridge 2010, §10.5.

    >>> levels(["a", "b", "a"]).names
    ('a', 'b')
    """
    require_values(
        "labels has no values inside jax.jit: call jaxrls.levels(labels) outside", labels
    )
    labels = as_labels("labels", labels)
    if labels.dtype.kind in "mM":
        raise ValueError("labels must be numbers or text, and holds dates: give labels.astype(str)")
    names, rows = np.unique(labels, return_inverse=True)
    with jax.ensure_compile_time_eval():
        return Grouping(jnp.asarray(rows.astype(np.int32)), tuple(names.tolist()))


@pytree
class EffectsTerm:
    """What is known of a part of fixed effects without its rows: the names of its columns, and of a
    grouping all of its levels, of which those without a column of their own come first.
    """

    names: tuple = static()
    levels: tuple | None = static(default=None)

    def columns(self, given: Any, m: int, dtype: Any) -> GivenColumns:
        """Its columns of m rows."""
        if self.levels is None:
            return _columns_of(given, self.names, m, dtype)
        known = {level: number for number, level in enumerate(self.levels)}
        indicators = jax.nn.one_hot(numbers_of(given, known, m), len(known), dtype=dtype)
        return GivenColumns.of(indicators[:, len(known) - len(self.names) :], dtype)


def terms_given(given: list | tuple) -> tuple[EffectsTerm, ...]:
    """The terms of a list of columns and levels: indicators of every level of the first grouping,
    and of all but the first level of any other, as those of one grouping sum to a constant.
    """
    terms: list[EffectsTerm] = []
    for part in given:
        if isinstance(part, Grouping):
            is_further = any(term.levels for term in terms)
            terms.append(EffectsTerm(part.names[int(is_further) :], part.names))
        else:
            names = column_names(part)
            shape = np.shape(part)
            are_text = names and all(isinstance(name, str) for name in names)
            unnamed = _numbered(shape[-1] if shape[1:] else 1)
            terms.append(EffectsTerm(names if are_text else unnamed))
    return tuple(terms)


def columns_given(given: Any, terms: tuple[EffectsTerm, ...], m: int, dtype: Any) -> GivenColumns:
    """The columns of m rows, side by side, from a list of the same terms; columns alone are no
    list.
    """
    if not any(term.levels for term in terms):
        return terms[0].columns(given, m, dtype)
    if not isinstance(given, list | tuple) or len(given) != len(terms):
        what = f"has {len(given)}" if hasattr(given, "__len__") else f"is {given!r}"
        raise ValueError(
            f"fixed_effects must be a list of the {len(terms)} parts of the fit, levels and "
            f"columns in the same order, and {what}"
        )
    pairs = zip(terms, given, strict=True)
    columns = [term.columns(values, m, dtype) for term, values in pairs]
    return GivenColumns(*(jnp.concatenate(side, axis=1) for side in zip(*columns, strict=True)))


def numbers_of(given: Any, known: dict, m: int) -> Int[Array, " m"]:
    """The number of each row's level among those `known`, from `levels` or labels."""
    if isinstance(given, Grouping):
        given = np.asarray(given.names, dtype=object)[np.asarray(given.rows)]
    labels = as_labels("fixed_effects", given)
    check_levels(labels, m)
    try:
        return jnp.asarray([known[label] for label in labels.tolist()], jnp.int32)
    except KeyError as error:
        raise ValueError(
            f"fixed_effects has the level {error}, which no fitted row that counts has: leave it "
            "out"
        ) from None


def check_levels(levels: Array | np.ndarray, n: int) -> None:
    """Raise unless there is one for each row."""
    if len(levels) != n:
        raise ValueError(
            f"fixed_effects must have a level for each of {n} rows, and has {len(levels)}"
        )


def _columns_of(given: Any, names: tuple, m: int, dtype: Any) -> GivenColumns:
    """Columns (m, q) as given, those of a data frame by the names that were fitted."""
    width = len(names)
    given = by_names("fixed_effects", given, names if names != _numbered(width) else ())
    B = None if given is None else as_floats("fixed_effects", given)
    if B is None or B.shape != (m, width):
        shape = "is None" if B is None else f"has shape {B.shape}"
        raise ValueError(
            f"fixed_effects must be the columns ({m}, {width}) of the new rows, and {shape}"
        )
    columns = GivenColumns.of(B, dtype)
    check_finite("fixed_effects", columns.rounded)
    return columns


def _numbered(count: int) -> tuple:
    """Names of columns that have none."""
    return tuple(f"x{j}" for j in range(count))
