"""Functions that set the widths of a kernel from the data, by the median distance between rows.

Begin with `median_distance` and `start_from_data`.
"""

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
    known_values,
    public_call,
    to_host,
)

MEDIAN_ROWS = 1000
# The order of the norm that each `Kernel.metric` stands for.
ORDERS = {"euclidean": 2, "cityblock": 1}


@public_call(data="X")
def median_distance(X: Any, *, order: int = 2, rows: int = MEDIAN_ROWS) -> Float[Array, ""]:
    """Compute the median distance between distinct rows of X, the usual first width of a kernel.

    The median is over all pairs of at most `rows` rows. These are spread evenly through X, or
    through the sample of a stream.

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
    """Return a unit u such that (x/u)² does not underflow for numbers x of this size.

    Let tiny be the smallest normal number of the dtype, and eps its precision. If x > √tiny/eps,
    then u = 1 is enough: even (eps x)², the square of a rounding error, is above tiny. For smaller
    x the unit is the geometric mean of √tiny/eps and tiny.
    """
    limits = jnp.finfo(largest.dtype)
    enough = float(limits.tiny) ** 0.5 / float(limits.eps)
    small = enough**0.5 * float(limits.tiny) ** 0.5
    return jnp.where(largest < enough, small, 1).astype(largest.dtype)


def _largest(few: Any) -> Float[Array, ""]:
    """Return the largest absolute difference of an entry from the first row.

    For a `Block`, such as one of sparse rows, return the largest absolute value that is stored.
    """
    if not isinstance(few, Block):
        return jnp.max(jnp.abs(few - few[0]))
    return jnp.max(jnp.abs(few.values))


@public_call(data="X")
def start_from_data(kernel: Kernel, X: Any) -> Kernel:
    """Set every length scale of a kernel to the median distance between rows.

    `Kernel.length_scales` names the length scales. The distance is computed in the columns that the
    part of the kernel uses. If a length scale has a value for each column, each value is the
    standard deviation of its column times the median distance between standardised rows.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d), or `Rows`; if X is a stream, its sample is used.

    Returns:
        The same kernel with the new length scales.

    Raises:
        ValueError: for a kernel with an unknown `metric`, and as `median_distance`.

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
        size = jnp.where(size > 0, size, 1)  # in units of X, squares may underflow
        spread = size * jnp.std(about / size, axis=0)
        spread = jnp.where(spread > 0, spread, 1)
        return spread * median_distance(about / spread, order=order)

    few = X.candidates().rows if isinstance(X, Rows) else X
    few = few.few_rows(MEDIAN_ROWS) if isinstance(few, Rows) else few
    return kernel.map_length_scales(from_columns, few)


def from_data(kernel: Kernel, rows: Rows, weights: Weights) -> Kernel:
    """Return `start_from_data` of at most MEDIAN_ROWS rows, spread over rows of positive weight.

    Equal rows count once, and so does a row of any positive weight: a row of weight 2 stands for
    two equal rows. Inside of `jax.jit`, where values are not known, every row counts.
    """
    candidates = rows.candidates()
    few = candidates.rows
    if not isinstance(few, Rows):
        few = DenseRows(to_host(few))  # NumPy compiles nothing
    v = known_values(weights.values if candidates.are_all else weights.take(candidates.numbers))
    used = np.arange(few.shape[0]) if v is None else np.flatnonzero(v)
    used = used[np.linspace(0, len(used) - 1, min(len(used), MEDIAN_ROWS)).astype(int)]
    return _from_data(kernel, few.distinct(used))


_from_data = compiled(start_from_data)


def from_median(kernel: Kernel, rows: Rows, weights: Weights) -> Kernel:
    """Return the kernel with every width "median" replaced by its value from `from_data`.

    A width may also be a list of "median", one for each column. Other parameters stay as they are.
    """
    parameters = jax.tree.leaves(kernel, is_leaf=_is_median)
    if not any(map(_is_median, parameters)):
        return kernel
    # Widths to compute are NaN for now, in the shape that they will have.
    unknown = lambda width: np.full(np.shape(width), np.nan) if _is_median(width) else width
    start = with_widths(kernel, rows, unknown)
    check_real("a kernel's parameter", jax.tree.leaves(start))
    medians = from_data(start, rows, weights)
    chosen = lambda given, median: median if _is_median(given) else given
    return jax.tree.map(chosen, kernel, medians, is_leaf=_is_listed)


def _is_listed(parameter: Any) -> bool:
    """Whether a parameter is a string, a list or a tuple."""
    return isinstance(parameter, str | list | tuple)


def _is_median(parameter: Any) -> bool:
    """Whether a parameter is "median", or a list of nothing but "median"."""
    if not _is_listed(parameter):
        return False
    return {*map(str, jax.tree.leaves(parameter))} == {"median"}


def with_widths(kernel: Kernel, rows: Rows, change: Callable) -> Kernel:
    """Return the kernel with every width replaced by `change(width)`."""
    changed = lambda part, name, _: change(getattr(part, name))
    return kernel.map_length_scales(changed, np.zeros((1, rows.shape[1])))


def width_sizes(kernel: Kernel, rows: Rows) -> list[int]:
    """Return for every width of the kernel how many numbers it has: 1, or one for each column."""
    sizes: list[int] = []

    def counted(width: Any) -> Any:
        sizes.append(np.size(width))
        return width

    with_widths(kernel, rows, counted)
    return sizes
