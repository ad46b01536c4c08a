"""Where a search starts: widths from the data, the best of a few multiples of them, and λ, judged
on a sample of the rows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.criteria.standard import HoldOut, LeaveOneOut, loo
from jaxrls.factors.solvers import factorize
from jaxrls.kernels.distances import city_block_distances, squared_distances
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import safe_sqrt
from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.search.grid import lambda_grid
from jaxrls.support.checks import check_inputs
from jaxrls.support.door import door

SCREEN_ROWS = 300
SCREEN_FACTORS = [1 / 16, 1 / 4, 1 / 2, 2.0, 4.0, 16.0]
SCREEN_LAMS = 30
# The widths near the best of these are judged on more rows, at steps of 2^0.75.
NEAR_ROWS = 1200
NEAR_STEP = 0.75 * np.log(2.0)
MEDIAN_ROWS = 1000
# The norm of every `Kernel.metric`.
ORDERS = {"euclidean": 2, "cityblock": 1}


@door("X")
def median_distance(
    X: Float[Array, "n d"] | Rows, *, order: int = 2, rows: int = MEDIAN_ROWS
) -> Float[Array, ""]:
    """The median distance between distinct rows of X: the customary first width of a stationary
    kernel.

    Over all pairs of at most `rows` rows spread evenly through X, or through the sample of a
    stream, Euclidean, or city-block with `order=1`. **Shapes**: X (n, d), or `Rows`; a scalar in
    the units of X, 1 where all rows are equal. **Cost** O(rows² d). **Raises** `ValueError` for
    values that are not finite. **Source**: Caputo, Sim, Furesjö and Smola 2002.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> round(float(rls.median_distance(jnp.array([[0.0], [0.0], [2.0]]))), 3)
    2.0
    """
    some = (X if isinstance(X, Rows) else DenseRows(X)).some(rows)
    check_inputs("X", some)
    between = city_block_distances if order == 1 else squared_distances
    distances = between(some, some, jnp.ones(some.shape[1], some.dtype))
    distances = distances if order == 1 else safe_sqrt(distances)
    pairs = jnp.tri(some.shape[0], k=-1, dtype=bool) & (distances > 0)
    median = jnp.nanmedian(jnp.where(pairs, distances, jnp.nan))
    return jnp.where(jnp.isfinite(median), median, 1.0)


@door("X")
def start_from_data(kernel: Kernel, X: Float[Array, "n d"] | Rows) -> Kernel:
    """The same kernel with every length scale (`Kernel.length_scales`) set to the median distance
    between the rows it sees.

    With one width per column, to the column's standard deviation times the median distance of the
    standardised columns. **Shapes**: X (n, d), or `Rows`, of a stream its sample. **Cost** as
    `median_distance`. **Raises** `ValueError` for a kernel whose `metric` is not known, and as
    `median_distance`. **Source**: as there.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> float(rls.start_from_data(rls.Gaussian(1.0), jnp.array([[0.0], [2.0]])).width)
    2.0
    """

    def width(part, name, seen):
        if part.metric not in ORDERS:
            raise ValueError(
                f"{type(part).__name__}.metric must be one of {', '.join(map(repr, ORDERS))}, and "
                f"is {part.metric!r}"
            )
        order = ORDERS[part.metric]
        if np.ndim(getattr(part, name)) == 0:
            return median_distance(seen, order=order)
        spread = jnp.std(seen, axis=0)
        spread = jnp.where(spread > 0, spread, 1)
        return spread * median_distance(seen / spread, order=order)

    some = X.candidates()[1] if isinstance(X, Rows) else X
    some = some.some(MEDIAN_ROWS) if isinstance(some, Rows) else some
    return kernel.map_length_scales(width, some)


def first_guess(problem: Any, start: str, lams, near: bool):
    """(kernel, best λ, precision of K on all rows) for the given kernel, and for the one that
    `start` suggests where that is another.

    Judged by the leave-one-out error, whatever the search minimises, of a sample of the rows, so
    that no large matrix is factored for its spectrum; with `near` a width around the best then on a
    larger one: errors have several minima, some of which few rows do not show."""
    kernel, (X, Y, weights) = problem.kernel, problem.sample()
    own = isinstance(problem.criterion, LeaveOneOut | HoldOut)
    measured = LeaveOneOut(problem.criterion.loss) if own else loo

    def judged(kernel, most):
        """(error, kernel, best λ, precision of K on all rows) by a sample of so many."""
        rows, counted = np.arange(len(X)), weights
        if kernel.evaluable:  # the columns of a kernel matrix are its rows
            rows, counted = sample(len(X), weights, most)
        data = np.asarray(X)[rows], np.asarray(Y)[rows], counted  # no program to compile for it
        found = _judge(kernel, *data, lams, measured, intercept=problem.intercept)
        error, lam, floor = jax.device_get(found)
        # s_max grows as the number of rows does, and the rounding of K relative to it as its root.
        growth = (problem.rows.shape[0] / len(rows)) ** 1.5
        return error if np.isfinite(error) else np.inf, kernel, lam, growth * floor

    def multiple(kernel, factor):
        scaled = lambda part, name, _: (np.asarray(getattr(part, name)) * factor).astype(X.dtype)
        return kernel.map_length_scales(scaled, X)

    def noted(part, name, _):
        widths.append(getattr(part, name))
        return widths[-1]

    widths: list = []
    kernel.map_length_scales(noted, X)
    others = []
    if start == "data":
        used = slice(None) if weights is None else np.asarray(weights) > 0
        others = [_data_start(kernel, np.asarray(X)[used])]
    elif start == "screen" and widths:
        others = [multiple(kernel, factor) for factor in SCREEN_FACTORS]
    given, *seen = [judged(each, SCREEN_ROWS) for each in (kernel, *others)]
    best = min([given, *seen], key=lambda judged: judged[0])
    # Of several widths each moves by itself afterwards.
    if start == "screen" and near and sum(map(np.size, widths)) == 1:
        best = _nearby(lambda step: judged(multiple(best[1], np.exp(step * NEAR_STEP)), NEAR_ROWS))
    return [given[1:]] if best is given else [given[1:], best[1:]]


def sample(n: int, weights, most: int, seed: int = 0):
    """At most `most` of n rows by chance, in proportion to their weights; and the weights that they
    count with.

    Priority sampling: the rows of largest w/u, where u in (0, 1) is a row's place in an order by
    chance, count max(w, τ), τ the largest w/u left out. Their sums are then those of all rows in
    the mean; with w itself heavy rows would count twice, by their number and by w. The mean weight
    stays, as λ goes by it, and equal weights draw the rows that none draw. Source: Duffield, Lund
    and Thorup 2007."""
    used = np.arange(n) if weights is None else np.flatnonzero(np.asarray(weights) > 0)
    drawn = np.random.default_rng(seed).permutation(used)
    if weights is None or len(drawn) <= most:
        rows = np.sort(drawn[:most])
        return rows, None if weights is None else np.asarray(weights)[rows]
    w = np.asarray(weights, np.float64)[drawn]
    priority = w * len(w) / (np.arange(len(w)) + 0.5)
    chosen = np.argsort(-priority, kind="stable")
    kept = chosen[:most][np.argsort(drawn[chosen[:most]])]
    counted = np.maximum(w[kept], priority[chosen[most]])
    return drawn[kept], (counted * (w.mean() / counted.mean())).astype(weights.dtype)


def _nearby(judged: Callable):
    """The best seen on a way down from step 0: at whole steps, and at half steps around the best.

    The whole steps go towards smaller widths, as more rows resolve finer detail than the sample
    showed: two, to look beyond a ridge."""
    seen: dict = {}
    new = [0.0, -1.0, -2.0]
    while new and len(seen) < 9:
        seen |= {step: judged(step) for step in new}
        best = min(seen, key=lambda step: seen[step][0])
        new = [step for step in (best - 0.5, best + 0.5) if step not in seen]
    return seen[best]


_data_start = jax.jit(start_from_data)


@partial(jax.jit, static_argnames="intercept")
def _judge(kernel, X, Y, weights, lams, measured, *, intercept):
    """The leave-one-out error at the best λ of the grid, that λ, and the precision of K."""
    factor = factorize(kernel, X, weights=weights, intercept=intercept)
    grid = lambda_grid(factor, SCREEN_LAMS) if lams is None else lams
    errors = measured(factor, Y, grid)
    errors = errors if errors.ndim == 1 else jnp.mean(errors, axis=1)
    best = jnp.argmin(errors)
    return errors[best], _between(grid, errors, best), factor.precision_floor()


def _between(grid, errors, best):
    """λ of the vertex of the parabola through the logarithms of the smallest error and of its
    neighbours: as good a start as three times as many λ.
    """
    if len(grid) < 3:
        return grid[best]
    middle = jnp.clip(best, 1, len(grid) - 2)
    left, least, right = jnp.log(jnp.maximum(errors[middle + jnp.arange(-1, 2)], 1e-30))
    curvature = left - 2 * least + right
    step = 0.5 * (left - right) / jnp.where(curvature > 0, curvature, jnp.inf)
    step = jnp.where((middle == best) & jnp.isfinite(step), jnp.clip(step, -0.5, 0.5), 0)
    return grid[best] * (grid[middle + 1] / grid[middle]) ** step
