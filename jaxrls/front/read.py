"""From what a caller gives to a `Problem` of arrays: text for kernels, criteria and widths, names
of columns, dtypes, labels far from 0, standardization, and the checks of all of them.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria import as_criterion, loo
from jaxrls.core.data import (
    DenseRows,
    FixedEffects,
    Rows,
    Weights,
    as_fixed_effects,
    as_rows,
    compiled,
)
from jaxrls.core.factors import Solver, named_solver
from jaxrls.core.fit import Problem
from jaxrls.core.kernels import NAMED, Kernel, Standardized, check_kernel, columns_by_number
from jaxrls.core.linalg import matmul, safe_sqrt
from jaxrls.core.support import (
    as_floats,
    by_names,
    check_labels,
    check_ratio,
    check_scale,
    check_targets,
    column_names,
    is_concrete,
    on_device,
    warn,
)
from jaxrls.front.widths import from_median

# The share of the standard deviation of labels that rounding may take; and labels whose squares
# stay within float32.
ROUNDED_SHARE = 1e-5
SMALLEST_SPREAD = 1e-9
LARGEST_LABEL = 1e18


def read_problem(
    kernel: Any,
    X: Any,
    Y: Any = None,
    *,
    criterion: Any = loo,
    groups: Any = None,
    weights: Any = None,
    intercept: bool = True,
    fixed_effects: Any = None,
    standardize: bool = False,
    landmarks: Any = None,
    solver: Solver | None = None,
    block_size: int | None = None,
    estimates: bool = True,
) -> Problem:
    """Read the arguments of `fit` into a `Problem`, checking shapes, and values where they are
    known; call its `prepare` before it is factored.

    Parameters of the kernel take the dtype of the rows, so that a given width and a tuned one
    share a compiled program.

    Args:
        kernel, X, Y: as in `fit`.
        criterion, groups, weights, intercept, fixed_effects, standardize, landmarks, solver: as in
            `fit`.
        block_size: rows at a time.
        estimates: whether a criterion of the prior's variance estimates it, unless it was given;
            otherwise it takes it for 1, as on a factor.

    Returns:
        A `Problem`.

    Raises:
        ValueError: as `fit`.

    **Cost** O(n d). **Source**: none; it computes nothing but moments of columns where
    `standardize` asks for them.

    >>> from jaxrls import extend
    >>> import numpy as np, jaxrls as rls
    >>> extend.read_problem("linear", np.eye(3), [0.0, 1.0, 2.0]).kernel
    Linear()
    """
    kernel = NAMED.get(kernel, kernel) if isinstance(kernel, str) else kernel
    check_kernel(kernel)
    names = column_names(X)
    kernel = columns_by_number(kernel, names)
    landmarks = by_names("landmarks", landmarks, names)
    solver = named_solver(solver, landmarks)
    rows = as_rows(kernel, X)
    weights = Weights.of_rows(weights, rows)
    check_ratio(weights.values)
    criterion = as_criterion(criterion, groups)
    rows = without_gaps(rows, weights)
    fixed = as_fixed_effects(fixed_effects, intercept, weights, rows.column)
    Y = rows.labels if Y is None else Y
    removable = fixed.intercept and criterion.ignores_offset
    offset = far_from_zero(Y, weights, fixed, removable)
    Y = labels_without_gaps(read_labels(Y, rows, offset), weights)
    if standardize:
        kernel = standardized(kernel, rows, weights)
    kernel = from_median(kernel, rows, weights)
    rows.check(kernel)
    criterion = criterion.match_columns(names, offset).bind(Y, rows)
    criterion = criterion.with_estimates() if estimates else criterion
    criterion.check(kernel)
    criterion.check_rank(fixed, weights)
    criterion.check_rows(Y, weights)
    kernel = in_dtype(kernel, rows.dtype)
    return Problem(kernel, rows, weights, fixed, Y, criterion, block_size, solver, offset)


def without_gaps(rows: Rows, weights: Weights) -> Rows:
    """Rows in a program, where those of weight 0 may be padding that holds NaN: the heaviest row in
    place of these. Values that are known are checked instead.
    """
    if type(rows) is not DenseRows or not _may_have_gaps(rows, weights):
        return rows
    X = rows.X
    known = weights.used | jnp.isfinite(X).all(axis=1)
    is_heaviest = jnp.arange(weights.n) == jnp.argmax(weights.array)
    heaviest = jnp.where(is_heaviest[:, None], jax.lax.stop_gradient(X), 0).sum(axis=0)
    return replace(rows, X=jnp.where(known[:, None], X, heaviest))


def labels_without_gaps(Y: Float[Array, "n *t"], weights: Weights) -> Float[Array, "n *t"]:
    """Labels in a program, 0 for those that are not finite and have no weight."""
    if Y.shape[0] != weights.n or not _may_have_gaps(Y, weights):
        return Y
    used = weights.used.reshape(-1, *[1] * (Y.ndim - 1))
    return jnp.where(used | jnp.isfinite(Y), Y, 0)


def _may_have_gaps(values: Any, weights: Weights) -> bool:
    """Whether values are not known, and there are weights."""
    return weights.values is not None and not is_concrete(values, weights)


def in_dtype(kernel: Kernel, dtype: Any) -> Kernel:
    """The kernel with its real parameters in this dtype."""

    def cast(leaf: Any) -> Any:
        real = isinstance(leaf, int) or jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        if not real:
            return leaf
        known = not isinstance(leaf, jax.Array)
        return on_device(np.asarray(leaf, dtype)) if known else jnp.asarray(leaf, dtype)

    return jax.tree.map(cast, kernel)


def _known_float64(Y: Any, weights: Weights) -> np.ndarray | None:
    """Labels of float64 in the right number, where their values are known."""
    if Y is None or not is_concrete(Y, weights):
        return None
    Y = np.asarray(as_floats("Y", Y))
    right = Y.dtype == np.float64 and Y.shape[:1] == (weights.n,) and Y.size
    return Y if right else None


def far_from_zero(
    Y: Any, weights: Weights, fixed: FixedEffects | None = None, removable: bool = False
) -> np.ndarray | None:
    """The mean of float64 labels, rounded to float32, where the rows are in float32 and rounding
    labels so would lose more than `ROUNDED_SHARE` of what the fixed effects leave of them: 0 for
    other targets, and None where there is none. Warns of what is lost where the mean is not
    `removable`, or does not help.
    """
    Y = None if weights.dtype == np.float64 else _known_float64(Y, weights)
    if Y is None or not np.abs(Y).max() <= LARGEST_LABEL:  # NaN is refused later
        return None
    v = None if weights.values is None else np.asarray(weights.values, np.float64)
    mean = np.average(Y, axis=0, weights=v)
    columns = fixed if fixed and fixed.values is not None else None
    left = Y - mean if columns is None else _without_effects(Y, weights, columns)
    spread = np.sqrt(np.average(left**2, axis=0, weights=v))
    # Labels that are the same to rounding have nothing to lose.
    exact = np.finfo(np.float64).eps * np.abs(Y).max(axis=0)
    varies = (spread > 100 * exact) & (spread > SMALLEST_SPREAD)
    far = varies & (np.finfo(np.float32).eps * np.abs(mean) > ROUNDED_SHARE * spread)
    offset = np.where(far & removable, mean.astype(np.float32), 0).astype(np.float64)
    rounding = _rounding_in_float32((Y if v is None else Y[v > 0]) - offset)
    may_lose = varies & (far | (columns is not None))
    loses = may_lose & (rounding > ROUNDED_SHARE * spread)
    if loses.any():
        _warn_of_rounding(np.max(rounding), np.min(spread), columns is not None)
    return offset if offset.any() else None


def _rounding_in_float32(Y: np.ndarray) -> np.ndarray:
    """The most that float32 rounds off each target."""
    return np.abs(Y.astype(np.float32) - Y).max(axis=0)


def warn_of_far_labels(Y: Any, weights: Weights) -> None:
    """Warn of labels far from 0 whose mean cannot be taken off."""
    far_from_zero(Y, weights)


def _warn_of_rounding(
    rounding: float | np.floating, spread: float | np.floating, has_columns: bool
) -> None:
    beyond = " beyond the fixed effects" if has_columns else ""
    remedy = "their fit" if has_columns else "the mean of Y"
    warn(
        f"float32, the dtype of X, rounds labels by up to {rounding:.2g}, and they vary by "
        f"{spread:.2g}{beyond}: give X in float64, or take {remedy} off first"
    )


def _without_effects(Y: np.ndarray, weights: Weights, fixed: FixedEffects) -> np.ndarray:
    """What fixed effects leave of labels, in float64 by refinement."""
    left = Y.reshape(len(Y), -1)
    for _ in range(3):
        beta = fixed.fit(weights, jnp.asarray(left, weights.dtype))
        left = left - np.asarray(fixed.fitted(fixed.values, beta), np.float64)
    return left.reshape(Y.shape)


def read_labels(Y: Any, rows: Rows, offset: np.ndarray | None = None) -> Float[Array, "n *t"]:
    """Labels, less an offset, checked."""
    Y = Y if offset is None else np.asarray(Y, np.float64) - offset
    if Y is None:
        raise ValueError(
            f"Y must be labels, one for each of the {rows.shape[0]} rows of X, which brings "
            "none of its own"
        )
    Y = as_floats("Y", Y)
    check_scale("Y", Y, rows.dtype)  # before they are rounded to 0
    Y = rows.column(as_floats("Y", Y, rows.dtype))
    check_targets("Y", Y, rows.shape[0])
    check_labels("Y", Y)
    return Y


def standardized(kernel: Kernel, rows: Rows, weights: Weights) -> Standardized:
    """The kernel of the standardized columns: minus their mean, and divided by their standard
    deviation, or by 1 for columns that are constant to rounding.
    """
    if not kernel.evaluable or not rows.is_dense:
        what = "sparse rows, which would be dense" if kernel.evaluable else "a kernel matrix"
        raise ValueError(f"standardize= is for columns of X, and X holds {what}: leave it out")
    return Standardized(kernel, *_moments(rows, weights))


@compiled
def _moments(rows: Rows, weights: Weights) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Mean and standard deviation of every column, from differences to one row, which are exactly 0
    in a constant column.
    """
    v = weights.array
    if weights.values is None:
        near = rows.few_rows(1)[0]
    else:
        heaviest = jax.nn.one_hot(jnp.argmax(v), len(v), dtype=v.dtype)
        near = rows.sum(lambda x, is_heaviest: matmul(is_heaviest, x), heaviest)
    sums = rows.sum(lambda x, v: matmul(v, jnp.stack([x - near, jnp.abs(x - near)])), v)
    mean, size = sums / weights.total
    size = jnp.where(size > 0, size, 1)  # the unit of squares, which may underflow in that of X
    squares = rows.sum(lambda x, v: matmul(v, ((x - near - mean) / size) ** 2), v)
    centre = near + mean
    scale = size * safe_sqrt(squares / weights.total)
    constant = scale <= jnp.finfo(v.dtype).eps * jnp.abs(centre)
    return centre, jnp.where(constant, 1, scale)
