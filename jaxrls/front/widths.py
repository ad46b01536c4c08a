"""Widths of kernels from the data: the median distance between rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import DenseRows, Rows, Weights, compiled
from jaxrls.core.kernels import (
    Block,
    Kernel,
    as_dense,
    city_block_distances,
    squared_distances,
)
from jaxrls.core.linalg import safe_sqrt
from jaxrls.core.support import (
    as_array,
    check_inputs,
    check_matrix,
    check_real,
    is_concrete,
    public_call,
)

MEDIAN_ROWS = 1000
# The norm of every `Kernel.metric`.
ORDERS = {"euclidean": 2, "cityblock": 1}


@public_call(data="X")
def median_distance(X: Any, *, order: int = 2, rows: int = MEDIAN_ROWS) -> Float[Array, ""]:
    """Compute the median distance between distinct rows of X, the customary first width of a
    kernel.

    Takes all pairs of at most `rows` rows, spread evenly through X, or through the sample of a
    stream.

    Args:
        X: rows (n, d), or `Rows`.
        order: 2 for the Euclidean distance, 1 for city-block.
        rows: how many rows to use at most.

    Returns:
        A scalar in the units of X; 1 where all rows are equal.

    Raises:
        ValueError: for values that are not finite.

    **Cost** O(rows² d). **Source**: Caputo, Sim, Furesjö and Smola 2002.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> round(float(rls.extend.median_distance(jnp.array([[0.0], [0.0], [2.0]]))), 3)
    2.0
    """
    if order not in ORDERS.values():
        raise ValueError(f"order must be 1, city-block, or 2, Euclidean, and is {order!r}")
    if not isinstance(X, Rows | Block):
        X = as_array("X", X)
        check_matrix("X", X)
        X = DenseRows(X)
    few: Any = X if isinstance(X, Block) else X.few_rows(rows)
    check_inputs("X", few)
    between = city_block_distances if order == 1 else squared_distances
    unit = unit_of_squares(_largest(few))
    distances = between(few, few, jnp.full(few.shape[1], 1 / unit))
    distances = distances if order == 1 else safe_sqrt(distances)
    pairs = jnp.tri(few.shape[0], k=-1, dtype=bool) & (distances > 0)
    median = jnp.nanmedian(jnp.where(pairs, distances, jnp.nan))
    return jnp.where(jnp.isfinite(median), median * unit, 1.0)


def unit_of_squares(largest: Float[Array, ""]) -> Float[Array, ""]:
    """1, or where squares of numbers of this size would underflow, a unit in which they do not:
    below √tiny/eps, where even differences of rounding have squares, half way down to the smallest
    number, counted in digits.
    """
    limits = jnp.finfo(largest.dtype)
    enough = float(limits.tiny) ** 0.5 / float(limits.eps)
    small = enough**0.5 * float(limits.tiny) ** 0.5
    return jnp.where(largest < enough, small, 1).astype(largest.dtype)


def _largest(few: Any) -> Float[Array, ""]:
    """The largest difference of a number from the first row's, or the largest stored number."""
    if not isinstance(few, Block):
        return jnp.max(jnp.abs(few - few[0]))
    return jnp.max(jnp.abs(few.values))


@public_call(data="X")
def start_from_data(kernel: Kernel, X: Any) -> Kernel:
    """Set every length scale of a kernel (`Kernel.length_scales`) to the median distance between
    rows.

    The distance is over the columns that this part of the kernel uses. One width per column is set
    to the column's standard deviation times the median distance of the standardised columns.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d), or `Rows`; of a stream its sample is used.

    Returns:
        The same kernel with the new length scales.

    Raises:
        ValueError: for a kernel whose `metric` is not known, and as `median_distance`.

    **Cost** as `median_distance`. **Source**: as `median_distance`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> float(rls.extend.start_from_data(rls.Gaussian(1.0), jnp.array([[0.0], [2.0]])).width)
    2.0
    """

    def from_columns(part: Kernel, name: str, columns: Any) -> Any:
        if part.metric not in ORDERS:
            raise ValueError(
                f"{type(part).__name__}.metric must be one of {', '.join(map(repr, ORDERS))}, and "
                f"is {part.metric!r}"
            )
        order = ORDERS[part.metric]
        width = getattr(part, name)
        if not isinstance(width, list | tuple) and np.ndim(width) == 0:
            return median_distance(columns, order=order)
        columns = as_dense(columns)
        about = columns - columns[0]  # exactly 0 in a constant column
        size = jnp.max(jnp.abs(about), axis=0)
        size = jnp.where(size > 0, size, 1)  # the unit of squares, which may underflow in that of X
        spread = size * jnp.std(about / size, axis=0)
        spread = jnp.where(spread > 0, spread, 1)
        return spread * median_distance(about / spread, order=order)

    few = X.candidates()[1] if isinstance(X, Rows) else X
    few = few.few_rows(MEDIAN_ROWS) if isinstance(few, Rows) else few
    return kernel.map_length_scales(from_columns, few)


def from_data(kernel: Kernel, rows: Rows, weights: Weights) -> Kernel:
    """`start_from_data` of rows spread evenly over those of positive weight, each of which counts
    once: one of weight 2 is two equal rows. Of weights and rows without values yet all count.
    """
    drawn, few = rows.candidates()
    if not isinstance(few, Rows):
        values: Any = np.asarray(few) if is_concrete(few) else few
        few = DenseRows(values)
    v = weights.values if drawn is None else weights.take(drawn)
    used = np.arange(few.shape[0]) if v is None or not is_concrete(v) else np.flatnonzero(v)
    used = used[np.linspace(0, len(used) - 1, min(len(used), MEDIAN_ROWS)).astype(int)]
    return _from_data(kernel, few.distinct(used) if is_concrete(few) else few.take(used))


_from_data = compiled(start_from_data)


def from_median(kernel: Kernel, rows: Rows, weights: Weights) -> Kernel:
    """The kernel with every width "median", or a list of it for the columns, set by `from_data`;
    other parameters stay as they are.
    """
    parameters = jax.tree.leaves(kernel, is_leaf=_is_median)
    if not any(map(_is_median, parameters)):
        return kernel
    # Widths that are not known yet are NaN, of the shape that they will have.
    unknown = lambda width: np.full(np.shape(width), np.nan) if _is_median(width) else width
    start = with_widths(kernel, rows, unknown)
    check_real("a kernel's parameter", jax.tree.leaves(start))
    medians = from_data(start, rows, weights)
    chosen = lambda given, median: median if _is_median(given) else given
    return jax.tree.map(chosen, kernel, medians, is_leaf=_is_listed)


def _is_listed(parameter: Any) -> bool:
    """Whether a parameter is text, or a list."""
    return isinstance(parameter, str | list | tuple)


def _is_median(parameter: Any) -> bool:
    """Whether a parameter is "median", or a list of nothing else."""
    if not _is_listed(parameter):
        return False
    return {*map(str, jax.tree.leaves(parameter))} == {"median"}


def with_widths(kernel: Kernel, rows: Rows, change: Callable) -> Kernel:
    """The kernel with every width changed."""
    changed = lambda part, name, _: change(getattr(part, name))
    return kernel.map_length_scales(changed, np.zeros((1, rows.shape[1])))


def width_sizes(kernel: Kernel, rows: Rows) -> list[int]:
    """How many numbers each of its widths has: 1, or one for every column."""
    sizes: list[int] = []

    def counted(width: Any) -> Any:
        sizes.append(np.size(width))
        return width

    with_widths(kernel, rows, counted)
    return sizes
