"""Where a search starts: widths from the data, the best of a few multiples of them, and λ, judged
on a sample of the rows.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.criteria.holding_out import HoldOut
from jaxrls.criteria.left_out import LeaveOneOut, loo
from jaxrls.factors.solvers import factorize
from jaxrls.kernels.distances import city_block_distances, squared_distances
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import safe_sqrt
from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.search.grid import lambda_grid
from jaxrls.search.problem import Problem
from jaxrls.support.checks import check_inputs
from jaxrls.support.meshes import on_any_mesh

SCREEN_ROWS = 300
SCREEN_FACTORS = [1 / 16, 1 / 4, 1 / 2, 2.0, 4.0, 16.0]
SCREEN_LAMS = 30
# The widths near the best of these are judged on more rows, at steps of 2^0.75.
NEAR_ROWS = 1200
NEAR_STEP = 0.75 * np.log(2.0)
MEDIAN_ROWS = 1000
# The norm of every `Kernel.metric`.
ORDERS = {"euclidean": 2, "cityblock": 1}


@on_any_mesh
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
    each = jnp.ones(some.shape[1], some.dtype)
    distances = (
        city_block_distances(some, some, each)
        if order == 1
        else safe_sqrt(squared_distances(some, some, each))
    )
    distances = jnp.where(
        jnp.tri(some.shape[0], k=-1, dtype=bool) & (distances > 0), distances, jnp.nan
    )
    median = jnp.nanmedian(distances)
    return jnp.where(jnp.isfinite(median), median, 1.0)


@on_any_mesh
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
                f"{type(part).__name__}.metric must be one of {', '.join(map(repr, ORDERS))}, and is {part.metric!r}"
            )
        order = ORDERS[part.metric]
        if np.ndim(getattr(part, name)) == 0:
            return median_distance(seen, order=order)
        spread = jnp.std(seen, axis=0)
        spread = jnp.where(spread > 0, spread, 1)
        return spread * median_distance(seen / spread, order=order)

    some = X.candidates()[1] if isinstance(X, Rows) else X
    return kernel.map_length_scales(
        width, some.some(MEDIAN_ROWS) if isinstance(some, Rows) else some
    )


def first_guess(problem: Problem, start: str, lams, near: bool):
    """(kernel, best λ, precision of K on all rows) for the given kernel, and for the one that
    `start` suggests where that is another.

    Judged by the leave-one-out error, whatever the search minimises, of a sample of the rows, so
    that no large matrix is factored for its spectrum; with `near` a width around the best then on a
    larger one: errors have several minima, some of which few rows do not show."""
    kernel, (X, Y, weights), intercept = problem.kernel, problem.sample(), problem.intercept
    own = isinstance(problem.criterion, LeaveOneOut | HoldOut)
    measured = LeaveOneOut(problem.criterion.loss) if own else loo  # type: ignore[attr-defined]
    n = problem.rows.shape[0]
    used = np.arange(len(X)) if weights is None else np.flatnonzero(np.asarray(weights) > 0)
    drawn = np.random.default_rng(0).permutation(used)
    some, more = (sample(drawn, weights, most) for most in (SCREEN_ROWS, NEAR_ROWS))
    if not kernel.evaluable:
        some = more = np.arange(len(X)), weights  # the columns of a kernel matrix are its rows

    def judge(kernels, part):
        """(error, kernel, best λ, precision of K on all rows) of every kernel."""
        rows, counted = part
        data = (
            *jax.tree.map(lambda a: np.asarray(a)[rows], (X, Y)),
            counted,
        )  # on the host: no program to compile for it
        results = jax.device_get(
            [_judge(kernel, *data, lams, measured, intercept=intercept) for kernel in kernels]
        )
        growth = (
            (n / len(rows)) ** 1.5
        )  # s_max grows as the number of rows does, and the rounding of K relative to it as its root
        return [
            (e if np.isfinite(e) else np.inf, k, lam, growth * floor)
            for k, (e, lam, floor) in zip(kernels, results, strict=True)
        ]

    def multiple(kernel, factor):
        return kernel.map_length_scales(
            lambda part, name, _: (np.asarray(getattr(part, name)) * factor).astype(X.dtype), X
        )

    widths = _widths(kernel, X)
    screened = start == "screen" and bool(widths)
    others = []
    if screened:
        others = [multiple(kernel, factor) for factor in SCREEN_FACTORS]
    elif start == "data":
        others = [_data_start(kernel, np.asarray(X)[used])]
    given, *seen = judge([kernel, *others], some)
    best = min([given, *seen], key=lambda judged: judged[0])
    if (
        screened and near and sum(np.size(width) for width in widths) == 1
    ):  # of several widths each moves by itself afterwards
        centre = best[1]
        best = _descend(lambda log_factor: judge([multiple(centre, np.exp(log_factor))], more)[0])
    return [given[1:]] if best is given else [given[1:], best[1:]]


def sample(drawn, weights, most: int):
    """At most `most` of the rows `drawn`, an order by chance, in proportion to their weights; and
    the weights that they count with.

    Priority sampling: the rows of largest w/u, where u in (0, 1) is a row's place in the order,
    count max(w, τ), τ the largest w/u left out. Their sums are then those of all rows in the mean;
    with w itself heavy rows would count twice, by their number and by w. The mean weight stays, as
    λ goes by it, and equal weights draw the rows that none draw. Source: Duffield, Lund and Thorup
    2007."""
    if weights is None or len(drawn) <= most:
        rows = np.sort(drawn[:most])
        return rows, None if weights is None else np.asarray(weights)[rows]
    w = np.asarray(weights, np.float64)[drawn]
    priority = w * len(w) / (np.arange(len(w)) + 0.5)
    chosen = np.argsort(-priority, kind="stable")
    kept = chosen[:most][np.argsort(drawn[chosen[:most]])]
    counted = np.maximum(w[kept], priority[chosen[most]])
    return drawn[kept], (counted * (w.mean() / counted.mean())).astype(weights.dtype)


def _descend(judge: Callable):
    """The best seen on a way down from 0: at whole steps, at half steps around the best, and in the
    vertex of the parabola there.

    The whole steps go towards smaller widths, as more rows resolve finer detail than the sample
    showed: two, to look beyond a ridge."""
    seen = {i: judge(i * NEAR_STEP) for i in (0.0, -1.0, -2.0)}

    def lowest():
        return min(seen, key=lambda i: seen[i][0])

    def look(i):
        if i not in seen:
            seen[i] = judge(i * NEAR_STEP)

    for _ in range(3):
        best = lowest()
        look(best - 0.5)
        look(best + 0.5)
        if best == lowest():
            break
    best = lowest()
    around = [seen.get(i, (np.inf,))[0] for i in (best - 0.5, best, best + 0.5)]
    if min(around) > 0 and max(around) < np.inf:
        look(best + 0.5 * _vertex(*np.log(around)))
    return seen[lowest()]


def _vertex(left, middle, right):
    """Where the parabola through three values, the middle one the least, is lowest: between −½ and
    ½ of their distance.
    """
    tiny = float(np.finfo(np.float32).tiny)  # three equal values: 0, not 0/0
    return 0.5 * (left - right) / (left - 2 * middle + right + tiny)


_data_start = jax.jit(start_from_data)


def _widths(kernel, X) -> list:
    """All length scales in the kernel."""
    widths: list = []

    def note(part, name, _):
        widths.append(getattr(part, name))
        return widths[-1]

    kernel.map_length_scales(note, X)
    return widths


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
    neighbours.
    """
    i = jnp.clip(best, 1, max(len(grid) - 2, 1)) + jnp.arange(-1, 2)
    if len(grid) < 3:
        return grid[best]
    step = _vertex(*jnp.log(jnp.maximum(errors[i], jnp.finfo(errors.dtype).tiny)))
    return grid[best] * (grid[i[2]] / grid[i[1]]) ** jnp.where(
        (i[1] == best) & jnp.isfinite(step), jnp.clip(step, -0.5, 0.5), 0
    )
