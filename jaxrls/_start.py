"""Where a search starts: widths from the data, the best of a few multiples of them, and λ, judged on a sample of the rows."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls._criteria import loo
from jaxrls._kernel import Kernel, On
from jaxrls._kernels import Laplacian, Periodic, Precomputed, city_block_distances, squared_distances
from jaxrls._linalg import safe_sqrt
from jaxrls._path import lambda_grid
from jaxrls._routes import factorize

SCREEN_ROWS = 300
SCREEN_FACTORS = [1 / 16, 1 / 4, 1 / 2, 2.0, 4.0, 16.0]
SCREEN_LAMS = 30
# The widths near the best of these are judged on more rows, at steps of 2^0.75.
NEAR_ROWS = 1200
NEAR_STEP = 0.75 * np.log(2.0)


def median_distance(X: Float[Array, "n d"], *, order: int = 2, rows: int = 1000) -> Float[Array, ""]:
    """The median distance between distinct rows of X: the customary first width of a stationary kernel.

    Over all pairs of at most `rows` rows spread evenly through X, Euclidean, or city-block with `order=1`. **Shapes**: X (n, d); a
    scalar in the units of X, 1 where all rows are equal. **Cost** O(rows² d). **Raises** nothing. **Source**: Caputo, Sim, Furesjö and
    Smola 2002.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> round(float(rls.median_distance(jnp.array([[0.0], [0.0], [2.0]]))), 3)
    2.0
    """
    n = X.shape[0]
    some = X[np.unique(np.linspace(0, n - 1, min(n, rows)).astype(int))]
    distances = city_block_distances(some, some) if order == 1 else safe_sqrt(squared_distances(some, some))
    distances = jnp.where(jnp.tri(some.shape[0], k=-1, dtype=bool) & (distances > 0), distances, jnp.nan)
    median = jnp.nanmedian(distances)
    return jnp.where(jnp.isfinite(median), median, 1.0)


def _map_widths(kernel: Kernel, X, fn: Callable) -> Kernel:
    """The kernel with the width of every stationary part replaced by `fn(part, the columns of X that it sees)`."""
    if isinstance(kernel, On):
        return replace(kernel, kernel=_map_widths(kernel.kernel, kernel.take(X), fn))
    changes: dict = {
        f.name: _map_widths(value, X, fn)
        for f in fields(kernel)  # type: ignore[arg-type]
        if isinstance(value := getattr(kernel, f.name), Kernel)
    }
    if hasattr(kernel, "width") and not isinstance(kernel, Periodic):  # whose width has no unit
        changes["width"] = fn(kernel, X)
    return replace(kernel, **changes)  # type: ignore[type-var]


def start_from_data(kernel: Kernel, X: Float[Array, "n d"]) -> Kernel:
    """The same kernel with every width set to the median distance between the rows it sees.

    With one width per column, to the column's standard deviation times the median distance of the standardised columns.
    **Shapes**: X (n, d). **Cost** as `median_distance`. **Raises** nothing. **Source**: as `median_distance`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> float(rls.start_from_data(rls.Gaussian(1.0), jnp.array([[0.0], [2.0]])).width)
    2.0
    """

    def width(part, seen):
        order = 1 if isinstance(part, Laplacian) else 2
        if np.ndim(part.width) == 0:
            return median_distance(seen, order=order)
        spread = jnp.std(seen, axis=0)
        spread = jnp.where(spread > 0, spread, 1)
        return spread * median_distance(seen / spread, order=order)

    return _map_widths(kernel, X, width)


def first_guess(kernel: Kernel, X, Y, weights, start: str, lams, loss, intercept: bool, near: bool):
    """(kernel, best λ, precision of K on all rows) for the given kernel, and for the one that `start` suggests where that is another.

    Judged by the leave-one-out error, whatever the search minimises, of a sample of the rows, so that no large matrix is factored for its
    spectrum; with `near` a width around the best then on a larger one: errors have several minima, some of which few rows do not show.
    """
    n = X.shape[0]
    used = np.arange(n) if weights is None else np.flatnonzero(np.asarray(weights) > 0)
    drawn = np.random.default_rng(0).permutation(used)
    some, more = np.sort(drawn[:SCREEN_ROWS]), np.sort(drawn[:NEAR_ROWS])
    if any(isinstance(part, Precomputed) for part in jax.tree.leaves(kernel, is_leaf=lambda part: isinstance(part, Precomputed))):
        some = more = np.arange(n)  # the columns of a kernel matrix are its rows

    def judge(kernels, rows):
        """(error, kernel, best λ, precision of K on all rows) of every kernel."""
        part = jax.tree.map(lambda a: np.asarray(a)[rows], (X, Y, weights))  # on the host: no program to compile for it
        results = jax.device_get([_judge(kernel, *part, lams, loss, intercept) for kernel in kernels])
        growth = (n / len(rows)) ** 2  # s_max grows as the number of rows does, and so does the rounding of K relative to it
        return [(e if np.isfinite(e) else np.inf, k, lam, growth * floor) for k, (e, lam, floor) in zip(kernels, results, strict=True)]

    def multiple(kernel, factor):
        return _map_widths(kernel, X, lambda part, _: (np.asarray(part.width) * factor).astype(X.dtype))

    widths = _widths(kernel, X)
    screened = start == "screen" and bool(widths)
    others = []
    if screened:
        others = [multiple(kernel, factor) for factor in SCREEN_FACTORS]
    elif start == "data":
        others = [_data_start(kernel, np.asarray(X)[used])]
    given, *seen = judge([kernel, *others], some)
    best = min([given, *seen], key=lambda judged: judged[0])
    if screened and near and sum(np.size(width) for width in widths) == 1:  # of several widths each moves by itself afterwards
        centre = best[1]
        best = _descend(lambda log_factor: judge([multiple(centre, np.exp(log_factor))], more)[0])
    return [given[1:]] if best is given else [given[1:], best[1:]]


def _descend(judge: Callable):
    """The best seen on a way down from 0: at whole steps, at half steps around the best, and in the vertex of the parabola there.

    The whole steps go towards smaller widths, as more rows resolve finer detail than the sample showed: two, to look beyond a ridge.
    """
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
    """Where the parabola through three values, the middle one the least, is lowest: between −½ and ½ of their distance."""
    tiny = float(np.finfo(np.float32).tiny)  # three equal values: 0, not 0/0
    return 0.5 * (left - right) / (left - 2 * middle + right + tiny)


_data_start = jax.jit(start_from_data)


def _widths(kernel, X) -> list:
    """All widths in the kernel."""
    widths: list = []

    def note(part, _):
        widths.append(part.width)
        return part.width

    _map_widths(kernel, X, note)
    return widths


@partial(jax.jit, static_argnums=(5, 6))
def _judge(kernel, X, Y, weights, lams, loss, intercept):
    """The leave-one-out error at the best λ of the grid, that λ, and the precision of K."""
    factor = factorize(kernel, X, weights=weights, intercept=intercept)
    grid = lambda_grid(factor, SCREEN_LAMS) if lams is None else lams
    errors = loo(factor, Y, grid, loss=loss)
    errors = errors if errors.ndim == 1 else jnp.mean(errors, axis=1)
    best = jnp.argmin(errors)
    return errors[best], _between(grid, errors, best), factor.precision_floor()


def _between(grid, errors, best):
    """λ of the vertex of the parabola through the logarithms of the smallest error and of its neighbours."""
    i = jnp.clip(best, 1, max(len(grid) - 2, 1)) + jnp.arange(-1, 2)
    if len(grid) < 3:
        return grid[best]
    step = _vertex(*jnp.log(jnp.maximum(errors[i], jnp.finfo(errors.dtype).tiny)))
    return grid[best] * (grid[i[2]] / grid[i[1]]) ** jnp.where((i[1] == best) & jnp.isfinite(step), jnp.clip(step, -0.5, 0.5), 0)
