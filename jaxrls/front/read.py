"""`read_problem` turns the arguments of `fit`, `tune` and `objective` into a `Problem` of arrays.

It resolves names of kernels, criteria and columns, converts dtypes, standardizes columns, shifts
labels that are far from 0, and checks everything. Begin with `read_problem`; the other functions
are its steps.
"""

from dataclasses import replace
from typing import Any, NamedTuple

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
    as_training_rows,
    compiled,
    pad_rows,
)
from jaxrls.core.factors import Solver, named_solver
from jaxrls.core.fit import Problem
from jaxrls.core.kernels import (
    NAMED,
    Kernel,
    OfFunction,
    Standardized,
    check_kernel,
    columns_by_number,
)
from jaxrls.core.linalg import matmul, safe_sqrt
from jaxrls.core.support import (
    as_floats,
    as_readable,
    by_names,
    check_labels,
    check_ratio,
    check_scale,
    check_targets,
    column_names,
    is_concrete,
    on_device,
    target_names,
    warn,
    where_known,
    within_program,
)
from jaxrls.front.levels import check_levels_fit_dtype
from jaxrls.front.widths import from_median

# Labels may lose this share of their standard deviation when they are rounded to float32.
ROUNDED_SHARE = 1e-5
# The squares of labels between these sizes stay within the range of float32.
SMALLEST_SPREAD = 1e-9
LARGEST_LABEL = 1e18
# A function of the caller is called with this many rows, and with each of them alone. Values may
# differ then by this share of the largest, as rounding may.
FEW = 3
LARGEST_GAP = 1e-2


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
    """Read the arguments of `fit` into a `Problem`, and check their shapes and values.

    Values are checked only if they are known, that is, outside of `jax.jit`. Call the method
    `prepare` of the result before you factor it. Parameters of the kernel take the dtype of the
    rows, so that a given width and a tuned width share a compiled program.

    Args:
        kernel, X, Y: as in `fit`.
        criterion, groups, weights, intercept, fixed_effects, standardize, landmarks, solver: as in
            `fit`.
        block_size: rows at a time.
        estimates: whether a likelihood criterion estimates the variance τ² of the prior, unless τ²
            was given. If False, it takes τ² = 1, as a criterion that is called on a factor does.

    Returns:
        A `Problem`.

    Raises:
        ValueError: as `fit`.

    **Cost** O(n d). **Source**: none; it computes only the median distance between rows, for
    widths "median", and the moments of columns, for `standardize`.

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
    rows = as_training_rows(kernel, X)
    weights = Weights.of_rows(weights, rows)
    check_ratio(weights.values)
    criterion = as_criterion(criterion, groups)
    rows = without_gaps(rows, weights)
    fixed = as_fixed_effects(fixed_effects, intercept, weights, rows.column)
    targets = target_names(rows, Y)
    Y = rows.labels if Y is None else Y
    # After the fixed effects: an offset may be subtracted only if there is an intercept, and labels
    # are judged by their spread beyond the fixed effects.
    removable = fixed.has_intercept and criterion.ignores_offset
    offset = None
    rounded = labels_to_round(Y, weights, fixed, rows.count)
    if rounded is not None:
        offset = label_offset(rounded) if removable else None
        warn_of_rounding(rounded, offset)
    Y = labels_without_gaps(read_labels(Y, rows, offset), weights)
    if standardize:
        kernel = standardized(kernel, rows, weights)
    # After `standardized`: widths are then medians of distances between standardized rows.
    kernel = from_median(kernel, rows, weights)
    rows.check(kernel)
    # `bind` turns data of the criterion into arrays, which its methods below may read.
    criterion = criterion.match_columns(names, targets, offset).bind(Y, rows)
    if estimates:
        criterion = criterion.with_best_scale()
    criterion.check(kernel)
    criterion.check_rank(fixed, weights)
    criterion.check_rows(Y, weights)
    kernel = in_dtype(kernel, rows.dtype)
    check_of_one_row(kernel, rows)
    fitted = getattr(rows, "X", None)
    check_levels_fit_dtype(kernel, fitted, landmarks, "landmarks")
    if criterion.has_own_rows:
        check_levels_fit_dtype(kernel, fitted, criterion.X, "X of holdout")
    return Problem(kernel, rows, weights, fixed, Y, criterion, block_size, solver, offset)


def check_of_one_row(kernel: Kernel, rows: Rows) -> None:
    """Raise if a function in the kernel has another value for a row alone than for it among others.

    Such a function subtracts the mean of the rows that it is given, for example. But these are the
    rows of a block, or a few rows to predict.
    """
    is_function = lambda part: isinstance(part, OfFunction)
    parts = jax.tree.leaves(kernel, is_leaf=is_function)
    function = next(filter(is_function, parts), None)
    if function is None or rows.shape[0] == 1 or within_program(kernel, rows):
        return
    X = as_readable(getattr(rows, "X", None))
    places = np.linspace(0, rows.count - 1, FEW).astype(int)  # by NumPy, not by a program
    few = X[places] if isinstance(X, np.ndarray) else rows.few_rows(FEW)
    among, alone = map(np.asarray, _among_and_alone(kernel, few))
    if not np.isfinite(among).all():
        return  # of which another message is made
    gap = np.abs(np.diagonal(among) - alone).max()
    if not gap <= LARGEST_GAP * np.abs(among).max():
        name = f"{type(function).__name__}.fn"
        raise ValueError(
            f"{name} has another value for a row alone than for it among other rows: compute means "
            "and the like before, and let each row of the result depend on the same row of X only"
        )


@compiled
def _among_and_alone(
    kernel: Kernel, X: Float[Array, "m d"]
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """Return the kernel values of some rows, and those of each of them alone."""
    return kernel(X, X), jax.lax.map(lambda x: kernel(x[None], x[None])[0, 0], X)


def without_gaps(rows: Rows, weights: Weights) -> Rows:
    """Return the rows with the heaviest row in place of padding that is not finite.

    Inside of `jax.jit` a row of weight 0 may be padding that holds NaN. Only such rows are
    replaced. Outside of `jax.jit` the rows are returned as they are, and checked later.
    """
    if type(rows) is not DenseRows or not _may_have_gaps(rows, weights):
        return rows
    X = rows.X
    known = weights.used | jnp.isfinite(X).all(axis=1)
    is_heaviest = jnp.arange(weights.n) == jnp.argmax(weights.array)
    heaviest = jnp.where(is_heaviest[:, None], jax.lax.stop_gradient(X), 0).sum(axis=0)
    return replace(rows, X=jnp.where(known[:, None], X, heaviest))


def labels_without_gaps(Y: Float[Array, "n *t"], weights: Weights) -> Float[Array, "n *t"]:
    """Return the labels, with 0 for labels of weight 0 that are not finite, inside of `jax.jit`."""
    if Y.shape[0] != weights.n or not _may_have_gaps(Y, weights):
        return Y
    used = weights.used.reshape(-1, *[1] * (Y.ndim - 1))
    return jnp.where(used | jnp.isfinite(Y), Y, 0)


def _may_have_gaps(values: Any, weights: Weights) -> bool:
    """Whether there are weights, and an array has no values yet, as inside of `jax.jit`."""
    return weights.values is not None and not is_concrete(values, weights)


def in_dtype(kernel: Kernel, dtype: Any) -> Kernel:
    """Return the kernel with its real parameters in this dtype."""

    def cast(leaf: Any) -> Any:
        real = isinstance(leaf, int) or jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        if not real:
            return leaf
        known = not isinstance(leaf, jax.Array)
        return on_device(np.asarray(leaf, dtype)) if known else jnp.asarray(leaf, dtype)

    return jax.tree.map(cast, kernel)


@where_known
def _known_float64(Y: Any, weights: Weights, count: int) -> np.ndarray | None:
    """Return the labels as a float64 array, or None if they cannot be checked for rounding.

    None is returned for labels that are missing, that have another dtype or number, or that have no
    values yet. The first `count` rows are not padding. If only they have labels, those of padding,
    whose weight is 0, are 0.
    """
    if Y is None:
        return None
    Y = np.asarray(as_floats("Y", Y))
    if Y.dtype != np.float64 or Y.shape[:1] not in ((weights.n,), (count,)) or not Y.size:
        return None
    return pad_rows(Y, weights.n - len(Y)) if len(Y) < weights.n else Y


class LabelsToRound(NamedTuple):
    """Labels in float64 that a fit rounds to float32, and numbers of each target, (t,) or ()."""

    values: np.ndarray  # the labels of positive weight
    mean: np.ndarray
    spread: np.ndarray  # the standard deviation, beyond columns and levels if there are any
    varies: np.ndarray  # whether the labels differ by more than rounding
    beyond_columns: bool

    @property
    def far(self) -> np.ndarray:
        """Whether rounding the mean to float32 loses more than `ROUNDED_SHARE` of the spread."""
        rounding = np.finfo(np.float32).eps * np.abs(self.mean)
        return self.varies & (rounding > ROUNDED_SHARE * self.spread)


def labels_to_round(
    Y: Any, weights: Weights, fixed: FixedEffects | None = None, count: int | None = None
) -> LabelsToRound | None:
    """Return the labels with their spread, if they are in float64 and the rows in float32.

    None if they are not, or if they cannot be checked for rounding. `count` is the number of rows
    without padding, None if there is no padding.
    """
    count = weights.n if count is None else count
    Y = None if weights.dtype == np.float64 else _known_float64(Y, weights, count)
    if Y is None:
        return None
    v = None if weights.values is None else np.asarray(weights.values, np.float64)
    values = Y if v is None else Y[v > 0]
    if not np.abs(Y).max() < np.inf or not np.abs(values).max(initial=0) <= LARGEST_LABEL:
        return None  # NaN is refused later
    mean = np.average(Y, axis=0, weights=v)
    columns = fixed if fixed and fixed.are_given else None
    left = Y - mean if columns is None else _without_effects(Y, weights, columns)
    spread = np.sqrt(np.average(left**2, axis=0, weights=v))
    # Labels that differ by rounding alone hold nothing that rounding could lose.
    exact = np.finfo(np.float64).eps * np.abs(values).max(axis=0, initial=0)
    varies = (spread > 100 * exact) & (spread > SMALLEST_SPREAD)
    return LabelsToRound(values, mean, spread, varies, beyond_columns=columns is not None)


def label_offset(labels: LabelsToRound) -> np.ndarray | None:
    """Return what to subtract from labels before they are rounded to float32.

    For a target that is far from 0 it is the mean, rounded to float32. For other targets it is 0.
    None if no target has an offset. The offset may be subtracted only if an intercept is fitted,
    and the criterion stays the same when a constant is added to all labels.
    """
    offset = np.where(labels.far, labels.mean.astype(np.float32), 0).astype(np.float64)
    return offset if offset.any() else None


def warn_of_rounding(labels: LabelsToRound, offset: np.ndarray | None) -> None:
    """Warn if labels minus the offset lose too much when they are rounded to float32."""
    shifted = labels.values if offset is None else labels.values - offset
    rounding = np.abs(shifted.astype(np.float32) - shifted).max(axis=0)
    may_lose = labels.far | (labels.varies & labels.beyond_columns)
    if not (may_lose & (rounding > ROUNDED_SHARE * labels.spread)).any():
        return
    beyond = " beyond the fixed effects" if labels.beyond_columns else ""
    remedy = "their fit" if labels.beyond_columns else "the mean of Y"
    warn(
        f"float32, the dtype of X, rounds labels by up to {np.max(rounding):.2g}, and they vary by "
        f"{np.min(labels.spread):.2g}{beyond}: give X in float64, or take {remedy} off first"
    )


def warn_of_far_labels(Y: Any, weights: Weights) -> None:
    """Warn if rounding labels to float32 loses too much, for callers that subtract no mean."""
    labels = labels_to_round(Y, weights)
    if labels is not None:
        warn_of_rounding(labels, None)


def _without_effects(Y: np.ndarray, weights: Weights, fixed: FixedEffects) -> np.ndarray:
    """Return the labels minus their fit by the fixed effects, in float64.

    The fit is computed in the dtype of the weights and applied three times, each time to what is
    left of the labels. This is iterative refinement.
    """
    left = Y.reshape(len(Y), -1)
    for _ in range(3):
        beta = fixed.fit(weights, jnp.asarray(left, weights.dtype))
        left = left - np.asarray(fixed.fitted(fixed.values, beta), np.float64)
    return left.reshape(Y.shape)


def read_labels(Y: Any, rows: Rows, offset: np.ndarray | None = None) -> Float[Array, "n *t"]:
    """Return the labels minus the offset, if any, in the dtype of the rows, and check them."""
    if Y is None:
        raise ValueError(
            f"Y must be labels, one for each of the {rows.shape[0]} rows of X, which brings "
            "none of its own"
        )
    Y = Y if offset is None else np.asarray(Y, np.float64) - offset
    Y = as_floats("Y", Y)
    check_scale("Y", Y, rows.dtype)  # before they are rounded to 0
    Y = rows.column(as_floats("Y", Y, rows.dtype))
    check_targets("Y", Y, rows.shape[0])
    check_labels("Y", Y)
    return Y


def standardized(kernel: Kernel, rows: Rows, weights: Weights) -> Standardized:
    """Return the kernel that standardizes columns before it evaluates the given kernel.

    Each column is centred and divided by its standard deviation. A column that is constant to
    rounding is divided by 1.
    """
    if not kernel.evaluable or not rows.is_dense:
        what = "sparse rows, which would be dense" if kernel.evaluable else "a kernel matrix"
        raise ValueError(f"standardize= is for columns of X, and X holds {what}: leave it out")
    return Standardized(kernel, *_centre_and_scale(rows, weights))


@compiled
def _centre_and_scale(
    rows: Rows, weights: Weights
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return the mean and the scale of every column; the scale of a constant column is 1.

    The scale is the standard deviation. Both are computed from differences to one row, which are
    exactly 0 in a constant column.
    """
    v = weights.array
    if weights.values is None:
        near = rows.few_rows(1)[0]
    else:
        heaviest = jax.nn.one_hot(jnp.argmax(v), len(v), dtype=v.dtype)
        near = rows.sum(lambda x, is_heaviest: matmul(is_heaviest, x), heaviest)
    sums = rows.sum(lambda x, v: matmul(v, jnp.stack([x - near, jnp.abs(x - near)])), v)
    mean, size = sums / weights.total
    size = jnp.where(size > 0, size, 1)  # in units of X, squares may underflow
    squares = rows.sum(lambda x, v: matmul(v, ((x - near - mean) / size) ** 2), v)
    centre = near + mean
    scale = size * safe_sqrt(squares / weights.total)
    constant = scale <= jnp.finfo(v.dtype).eps * jnp.abs(centre)
    return centre, jnp.where(constant, 1, scale)
