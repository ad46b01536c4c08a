"""Where a search starts: widths from the data, the best of a few multiples of them, and λ, judged on a sample of the rows."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls._criteria import loo
from jaxrls._kernels import Kernel, Laplacian, On, Periodic, Precomputed, city_block_distances, squared_distances
from jaxrls._linalg import safe_sqrt
from jaxrls._path import lambda_grid
from jaxrls._routes import factorize

SCREEN_ROWS = 500
SCREEN_FACTORS = sorted((2.0**i for i in range(-4, 5)), key=lambda factor: factor != 1)  # 1 first


def median_distance(X: Float[Array, "n d"], *, order: int = 2, rows: int = 1000) -> Float[Array, ""]:
    """The median distance between distinct rows of X: the customary first width of a stationary kernel.

    Over all pairs of at most `rows` rows spread evenly through X, Euclidean, or city-block with `order=1`. **Shapes**: X (n, d); a
    scalar in the units of X, 1 where all rows are equal. **Cost** O(rows² d). **Raises** nothing. **Source**: Caputo, Sim, Furesjö and
    Smola 2002.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> float(rls.median_distance(jnp.array([[0.0], [0.0], [2.0]])))
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


def first_guess(kernel: Kernel, X, Y, weights, start: str, lams, loss, intercept: bool):
    """(kernel, best λ, precision of K on all rows) for the given kernel, and for the one that `start` suggests where that is another.

    Judged by the leave-one-out error of a sample of the rows, whatever the search minimises, so that no n×n matrix is factored for its spectrum.
    """
    n = X.shape[0]
    used = np.arange(n) if weights is None else np.flatnonzero(np.asarray(weights) > 0)
    some = np.sort(np.random.default_rng(0).choice(used, min(len(used), SCREEN_ROWS), replace=False))
    if any(isinstance(part, Precomputed) for part in jax.tree.leaves(kernel, is_leaf=lambda part: isinstance(part, Precomputed))):
        some = np.arange(n)  # the columns of a kernel matrix are its rows
    kernels, best_lams, floors, errors = jax.device_get(_screen(kernel, X, Y, weights, some, lams, start, loss, intercept))
    floors = floors * (n / len(some)) ** 2  # s_max grows as the number of rows does, and so does the rounding of K relative to it
    best = int(np.argmin(np.where(np.isfinite(errors), errors, np.inf)))
    return [(jax.tree.map(lambda a: a[i], kernels), best_lams[i], floors[i]) for i in sorted({0, best})]  # noqa: B023


@partial(jax.jit, static_argnums=(6, 7, 8))
def _screen(kernel, X, Y, weights, some, lams, start, loss, intercept):
    """The kernels to choose the start from, the given one first; each one's best λ of the grid, precision of K, and leave-one-out error."""
    kernels, count = _candidates(kernel, X, start)
    X, Y, weights = X[some], Y[some], None if weights is None else weights[some]

    def at(candidate):
        kernel, _ = candidate  # counted, as a kernel may have no parameter to map over
        factor = factorize(kernel, X, weights=weights, intercept=intercept)
        grid = lambda_grid(factor, 50) if lams is None else lams
        errors = loo(factor, Y, grid, loss=loss)
        errors = errors if errors.ndim == 1 else jnp.mean(errors, axis=1)
        best = jnp.argmin(errors)
        return grid[best], factor.precision_floor(), errors[best]

    return kernels, *jax.lax.map(at, (kernels, jnp.arange(count)))


def _candidates(kernel, X, start):
    """Kernels stacked along a new first axis, the given one first, and their number."""
    if start == "data":
        return jax.tree.map(lambda a, b: jnp.stack([a, b]), kernel, start_from_data(kernel, X)), 2
    widths: list = []
    _map_widths(kernel, X, lambda part, _: (widths.append(part.width), part.width)[1])
    factors = jnp.asarray(SCREEN_FACTORS if start == "screen" and widths else SCREEN_FACTORS[:1], X.dtype)
    return jax.vmap(lambda factor: _map_widths(kernel, X, lambda part, _: part.width * factor))(factors), len(factors)
