"""Effects of a column with standard errors: how much the fitted function changes as it moves.

An effect is an average over rows of a derivative or a difference, and so a linear functional L of
f. Its posterior has the mean L f. Its variance is L applied twice to the posterior covariance,
which is done on the coordinates of `spread.py`. Fixed effects do not move with the column, and drop
out.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data import DenseRows, Rows, Weights, compiled
from jaxrls.core.fit import Numbers
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number, matmul
from jaxrls.core.support import public_call, pytree, require_values
from jaxrls.front import Fit, Model
from jaxrls.uncertainty.posterior import (
    GaussianProcess,
    deviation,
    process_for_rows,
    warn_of_groups,
)
from jaxrls.uncertainty.spread import NewRows, Spread

ROWS_AT_ONCE = 2**20  # the number of pairs of rows whose prior covariance is computed at once


@pytree
class Effect:
    """The average effect of a column, as `Fit.effect` returns it.

    Args:
        mean: () or (t,). It is in units of the label for each unit of the column, or in units of
            the label if the column has two values.
        std: its standard error, of the same shape.

    >>> import jax.numpy as jnp
    >>> from jaxrls.diagnostics import Effect
    >>> float(Effect(jnp.array(2.0), jnp.array(0.5)).std)
    0.5
    """

    mean: Float[Numbers, "*t"]
    std: Float[Numbers, "*t"]


def effect(fit: Fit, X: Any, column: Any, values: Any, weights: Any, scale: Any) -> Effect:
    """Compute `Fit.effect`."""
    X, column = rows_and_column(fit, X, column)
    ends: Any = _two_values(fit, X, column) if values is None else _checked(values)
    change: Derivative | Difference
    if ends is None:
        _check_smooth(fit.kernel, X, column)
        change = Derivative(column)
    else:
        before, after = ends.astype(X.dtype)
        change = Difference(column, before, after)
    process = process_for_rows(fit)
    mean, variance = _posterior_of(process, fit.model.unnamed, X, change, _shares(weights, X))
    return Effect(mean, deviation(variance, process.amplitude(scale)))


@public_call(fitted="fit.model.coef")
def partial_effects(fit: Fit, X: Any, column: Any, values: Any, scale: Any = "evidence") -> Effect:
    """Return how much f changes on average over rows if all rows take one of `values`, (g,).

    The change is measured from f at the rows as they are. Mean and standard errors have the shape
    (g,) or (g, t).
    """
    X, column = rows_and_column(fit, X, column)
    values = jnp.asarray(values, fit.model.coef.dtype)
    process = process_for_rows(fit)
    model = fit.model.unnamed
    mean, variance = _posteriors_of(process, model, X, column, values, _shares(None, X))
    return Effect(mean, deviation(variance, process.amplitude(scale)))


@public_call(fitted="fit.model.coef")
def rows_and_column(fit: Fit, X: Any, column: Any) -> tuple[jax.Array, int]:
    """Return the rows as an array, in the column order of the fit, and the index of the column."""
    warn_of_groups(fit)
    require_values(
        "effect needs the values of X, to see whether a column has two: call it outside of jax.jit",
        X,
    )
    rows = replace(fit.model, effects=None).read(X)[0]
    model = fit.model
    if not (model.kernel.evaluable and rows.is_dense) or isinstance(model.points, Rows):
        what = "sparse rows" if model.kernel.evaluable else "a kernel matrix"
        raise ValueError(f"effect changes a column of dense X, and found {what}: fit dense rows")
    X = rows.dense()
    return X, column_number(column, fit.model.names, X.shape[1])


def column_number(column: Any, names: tuple, count: int) -> int:
    """Return the index of a column that is given by its index or by its name in the fit."""
    if isinstance(column, str | float | tuple) and column in names:
        return names.index(column)
    whole = isinstance(column, int | np.integer) and not isinstance(column, bool)
    if not whole or not -count <= column < count:
        named = f"names {', '.join(map(repr, names[:5]))}" if names else "no names"
        raise ValueError(
            f"column must be a name or an index of a column of X, of the {count} that were fitted, "
            f"with {named}, and is {column!r}"
        )
    return int(column) % count


def _two_values(fit: Fit, X: Float[Numbers, "m d"], column: int) -> np.ndarray | None:
    """Return the two values of a column, or None if it has more.

    Values are counted in X and in the rows that the model keeps, or else the fit.
    """
    parts = [X]
    fitted = fit.model.points
    problem = fit.kept.problem
    if fitted is None and problem is not None and problem.rows.in_memory:
        fitted = problem.rows.points
    if isinstance(fitted, jax.Array | np.ndarray) and np.shape(fitted)[1:] == X.shape[1:]:
        parts.append(fitted)
    values = np.unique(np.concatenate([np.asarray(part[:, column]) for part in parts]))
    if len(values) == 1 and len(X) > 1:
        raise ValueError(
            f"all rows have {values[0]:g} in column {column}: give the values= to compare, or rows "
            "in which the column varies"
        )
    if len(values) != 2:
        return None
    is_indicator = set(values.tolist()) == {0, 1}
    if len(parts) == 1 and not is_indicator:
        raise ValueError(
            f"column {column} has the values {values[0]:g} and {values[1]:g} in X, and the fit "
            "keeps no dense rows that show whether it has others: give values=(a, b) to compare, "
            "or more rows"
        )
    return values


def _checked(values: Any) -> np.ndarray:
    """Return the two values that the caller gave, as an array."""
    ends = np.asarray(values, float)
    if ends.shape != (2,) or not np.isfinite(ends).all():
        raise ValueError(f"values must be two numbers to compare, and is {values!r}")
    return ends


def _shares(weights: Any, X: Float[Numbers, "m d"]) -> Float[Array, " m"]:
    """Return the share of each row in an average, (m,). Shares sum to 1."""
    if weights is None:
        return jnp.full(len(X), 1 / len(X), X.dtype)
    array = Weights.of(weights, len(X), X.dtype).array
    return array / jnp.sum(array)


def _check_smooth(kernel: Kernel, X: Float[Numbers, "m d"], column: int) -> None:
    """Raise if the functions of a kernel have no derivative in the column.

    For a kernel with derivatives, k(x, x) + k(z, z) − 2 k(x, z) falls as the square of the step
    from x to z, if the step is small. Without derivatives it falls as the step itself or not at
    all.
    """
    wide = lambda leaf: np.asarray(leaf, np.promote_types(np.asarray(leaf).dtype, np.float64))
    with jax.enable_x64(True):
        kernel = jax.tree.map(wide, kernel)
        x = jnp.asarray(np.asarray(X[:8], np.float64))
        step = 1e-3 * float(np.ptp(np.asarray(X[:, column])) or 1)
        far, near = (float(_difference_along(kernel, x, column, h)) for h in (step, step / 4))
    if 1e-10 < far < 8 * near:
        raise ValueError(
            f"functions of {type(kernel).__name__} have no derivative in column {column}: take a "
            "smoother kernel, such as Gaussian or Matern(1.5, …), or a column of two values"
        )


@compiled
def _difference_along(
    kernel: Kernel, x: Float[Array, "b d"], column: Int[Array, ""] | int, step: Number | float
) -> Number:
    """Return Σ k(x, x) + k(z, z) − 2 k(x, z) divided by Σ k(x, x).

    z is a step along the column from x.
    """
    z = x.at[:, column].add(step)
    both = jax.vmap(lambda x, z: kernel(x[None], z[None])[0, 0])(x, z)
    diag = kernel.diag(x)
    return jnp.sum(diag + kernel.diag(z) - 2 * both) / jnp.sum(diag)


# linear functionals of the posterior
# --------------------------------------------------------------------------------------------------


class Derivative(NamedTuple):
    """The derivative as the column of all rows moves."""

    column: Int[Array, ""] | int

    def of(self, fn: Callable, X: Float[Array, "m d"]) -> Any:
        """Return the derivative of `fn(X)`."""
        return jax.jvp(fn, (X,), (jnp.zeros_like(X).at[:, self.column].set(1),))[1]


class Difference(NamedTuple):
    """The difference between two values of the column in all rows."""

    column: Int[Array, ""] | int
    before: Any  # None for the column as it is
    after: Any

    def of(self, fn: Callable, X: Float[Array, "m d"]) -> Any:
        """Return `fn(X)` with the column at `after`, minus `fn(X)` with it at `before`."""
        start = X if self.before is None else X.at[:, self.column].set(self.before)
        return jax.tree.map(jnp.subtract, fn(X.at[:, self.column].set(self.after)), fn(start))


@compiled
def _posterior_of(
    process: GaussianProcess,
    model: Model,
    X: Float[Array, "m d"],
    change: Derivative | Difference,
    shares: Float[Array, " m"],
) -> tuple[Float[Array, "*t"], Number]:
    """Return mean and variance of L f, the average over rows with these shares of a change of f.

    The posterior covariance of f is c(x, x') = added·added' + k(x, x') − taken·J taken', see
    `NewRows`. With L that acts on x, and L' that acts on x',

        var = L L' c = |L added|² + L L' k − L taken · J L' taken'.

    The coordinates are averaged before they are changed. For k, L' is applied first for each row x,
    and then L. The variance is in units of the kernel, where τ = 1.
    """
    spread = process.spread
    kernel = model.kernel
    m = len(X)

    def averages(X: Float[Array, "m d"]) -> list:
        """Return the averages of f and of the coordinates over rows, block by block."""

        def of_block(x: Float[Array, "b d"], shares: Float[Array, " b"]) -> list:
            rows = _coordinates(spread, kernel, x)
            parts = _values(model, x), rows.added, rows.taken
            return [matmul(shares, part) for part in parts]

        return DenseRows(X).sum(of_block, shares, temporaries=2 * len(model.coef))

    def changed_by_rows(x: Float[Array, "1 d"]) -> Number:
        """Return L' k(x, ·) at one row x."""
        return change.of(lambda X: _prior(spread, kernel, x, X, shares), X)

    def changed_by_both(x: Float[Array, " d"]) -> Number:
        """Return the change of L' k(x, ·) as x changes too."""
        return change.of(changed_by_rows, x[None])

    mean, added, taken = change.of(averages, X)
    at_once = max(1, min(m, ROWS_AT_ONCE // m))
    prior = jnp.sum(shares * jax.lax.map(changed_by_both, X, batch_size=at_once))
    known = jnp.sum(spread.signed(taken[None])[0] * taken)
    return mean, jnp.sum(added**2) + prior - known


def _coordinates(spread: Spread, kernel: Kernel, X: Float[Array, "m d"]) -> NewRows:
    """Return the coordinates of new rows without fixed effects."""
    design = spread.expansion.design(kernel, X)
    nothing = jnp.zeros((len(X), spread.fixed.count), design.dtype)
    return spread.coordinates(X, design, nothing)


def _prior(
    spread: Spread,
    kernel: Kernel,
    x: Float[Array, "1 d"],
    X: Float[Array, "m d"],
    shares: Float[Array, " m"],
) -> Number:
    """Return the average of the prior covariances of a row with all rows."""
    a, b = (_coordinates(spread, kernel, rows).prior_points for rows in (x, X))
    return jnp.zeros((), X.dtype) if a is None else jnp.sum(spread.prior(kernel)(a, b) * shares)


@compiled
def _posteriors_of(
    process: GaussianProcess,
    model: Model,
    X: Float[Array, "m d"],
    column: Int[Array, ""] | int,
    values: Float[Array, " n"],
    shares: Float[Array, " m"],
) -> tuple[Float[Array, "n *t"], Float[Array, " n"]]:
    """Return mean and variance as `_posterior_of` does, for each value that all rows take."""

    def of_value(value: Number) -> tuple[Float[Array, "*t"], Number]:
        change = Difference(column, before=None, after=value)
        return _posterior_of(process, model, X, change, shares)

    return jax.lax.map(of_value, values)


def _values(model: Model, X: Float[Array, "m d"]) -> Any:
    """Return f at X without fixed effects, (m,) or (m, t)."""
    kernel = model.kernel
    points = model.points
    design = kernel.features(X) if points is None else kernel(X, points)
    return matmul(design, model.coef)
