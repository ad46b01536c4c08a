"""Makes the fixed effects of a fit: those that a user asks for, no effects, or an intercept.

Begin with the function `as_fixed_effects`, which chooses the class.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data.combinations import Independence, check_independent, orthonormal
from jaxrls.core.data.compiled import compiled
from jaxrls.core.data.effects_columns import FixedColumns
from jaxrls.core.data.effects_given import (
    ColumnsTerm,
    EffectsTerm,
    GivenColumns,
    Grouping,
    LevelsTerm,
    check_levels,
    columns_given,
    has_levels,
    terms_given,
)
from jaxrls.core.data.effects_intercept import Intercept
from jaxrls.core.data.effects_levels import FixedLevels
from jaxrls.core.data.effects_none import NoEffects
from jaxrls.core.data.fixed_effects import FixedEffects
from jaxrls.core.data.weights import Weights
from jaxrls.core.support import as_floats, check_finite, numpy_or_jax, on_device


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
        return intercept_over(weights.total) if intercept else no_effects(weights.dtype)
    if isinstance(given, Grouping):
        numbers = place(given.rows)
        check_levels(numbers, n)
        return _levels_over(given.names, numbers, weights)
    if isinstance(given, list | tuple) and any(isinstance(part, Grouping) for part in given):
        terms = terms_given(given)
        C = columns_given(given, terms, n, weights.dtype)
        C = C._replace(rounded=place(C.rounded), rest=place(C.rest))
        return _columns_over(C, weights, False, terms)
    C = GivenColumns.of(as_floats("fixed_effects", given), weights.dtype, place)
    shape = C.rounded.shape
    if len(shape) != 2 or shape[0] != n or not shape[1] + intercept:
        hint = ": use fixed_effects[:, None] for a single column" if shape == (n,) else ""
        raise ValueError(
            f"fixed_effects must be levels(labels) or columns ({n}, q), one row for each of X, or "
            f"a list of both, and has shape {shape}{hint}"
        )
    check_finite("fixed_effects", C.rounded)
    return _columns_over(C, weights, intercept, terms_given([given]))


def no_effects(dtype: Any) -> FixedEffects:
    """Make fixed effects without any column."""
    return NoEffects(None, on_device(np.zeros((0, 0), dtype)), ())


def intercept_over(total: Float[Array, ""]) -> FixedEffects:
    """Make an intercept over rows whose weights sum to `total`, Σv."""
    xp = numpy_or_jax(total)
    return Intercept(None, on_device(xp.reshape(1 / xp.sqrt(total), (1, 1))), ())


def _levels_over(names: tuple, numbers: Int[Array, " n"], weights: Weights) -> FixedEffects:
    """Make the levels of these names, from the number of each row's level."""
    start = jnp.zeros(len(names), weights.dtype)
    return FixedLevels(numbers, start, (LevelsTerm(names),)).over(numbers, weights)


def _columns_over(
    C: GivenColumns, weights: Weights, intercept: bool, terms: tuple[EffectsTerm, ...]
) -> FixedEffects:
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


@compiled
def _of_combinations(
    C: GivenColumns, weights: Weights, moves: Bool[Array, " p"], *, intercept: bool
) -> tuple[FixedEffects, Independence]:
    """Make fixed effects of orthonormal combinations of columns, and the numbers for their check.

    `moves` marks the columns that are centred.
    """
    combinations, independence = orthonormal(C, weights, moves)
    values = combinations.of(C)
    start = jnp.eye(len(moves) + intercept, dtype=weights.dtype)
    columns = FixedColumns(None, start, (), combinations, intercept)
    return columns.over(values, weights), independence
