"""Kernel parameters and λ together, by the exact gradient of a validation error."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls._checks import as_floats, check_dense_size, check_lams, is_concrete
from jaxrls._criteria import gcv, log_marginal_likelihood, loo
from jaxrls._kernels import Kernel, Laplacian, On, Periodic, city_block_distances, pytree, squared_distances, static
from jaxrls._linalg import safe_sqrt
from jaxrls._losses import misclassification, squared_error
from jaxrls._model import Model, make_model
from jaxrls._objective import error_at
from jaxrls._path import lambda_grid
from jaxrls._point import factor_at
from jaxrls._precision import in_precision_of
from jaxrls._routes import factorize
from jaxrls._validation import TAKES_LOSS, check_data, evaluate, resolve_criterion

# Log-parameters may move this far from their start, a factor of e^16 ≈ 9·10⁶ either way: further, K is 0 or constant to rounding.
REACH = 16.0
PATIENCE = 3
SCREEN_ROWS = 500
SCREEN_FACTORS = 2.0 ** np.arange(-4, 5)


@pytree
class History:
    """What `tune` saw at every step, its best start first: S steps."""

    errors: Float[Array, " S"]
    gradient_norms: Float[Array, " S"]
    lams: Float[Array, " S"]
    kernels: Kernel  # every leaf with a leading axis S


@pytree
class Tuned:
    """The result of `tune`: the kernel and λ of the smallest error seen, a model fitted with them, and how it went.

    `error` is the criterion there (the evidence negated), never above `start_error`. `converged` says whether the gradient norm
    fell below `tol`, `reason` why the search stopped.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> tuned = rls.tune(rls.Gaussian(1.0), X, np.sin(6 * X[:, 0]), steps=5)
    >>> bool(tuned.error <= tuned.start_error)
    True
    """

    kernel: Kernel
    lam: Float[Array | np.ndarray, ""]
    error: Float[Array | np.ndarray, ""]
    start_error: Float[Array | np.ndarray, ""]
    model: Model
    history: History
    converged: bool = static()
    reason: str = static()

    def predict(self, X, *, block_size: int | None = None) -> Float[Array | np.ndarray, "m *t"]:
        """Predictions for the rows of X: see `Model.predict`."""
        return self.model.predict(X, block_size=block_size)


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


def _scale_widths(kernel, X, factor):
    return _map_widths(kernel, X, lambda part, _: part.width * factor)


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


def _search_kinds(kernel: Kernel) -> list[str]:
    """For every leaf in order how it is searched: by its logarithm, freely, or, at a limit such as offset 0, not at all."""
    kinds: list[str] = []
    for f in fields(kernel):  # type: ignore[arg-type]
        value = getattr(kernel, f.name)
        if isinstance(value, Kernel):
            kinds += _search_kinds(value)
        elif not f.metadata.get("static"):
            positive = f.name in kernel.positive
            kinds += ["free" if not positive else "log" if np.all(np.asarray(a) > 0) else "fixed" for a in jax.tree.leaves(value)]
    return kinds


@pytree
class _Space:
    """Where the search starts and what it may move: parameters θ ↔ kernel and λ."""

    kernel: Kernel
    log_lam: Float[Array, ""]
    floor: Float[Array, ""]  # λ stays above the precision of K
    kinds: tuple[str, ...] = static()

    def first(self):
        """θ at the start."""
        leaves = [jnp.log(a) if kind == "log" else a for a, kind in zip(jax.tree.leaves(self.kernel), self.kinds, strict=True)]
        return leaves, self.log_lam

    def unpack(self, params):
        """Kernel and λ at θ, held within REACH of the start."""
        leaves, log_lam = params
        origins, tree = jax.tree.flatten(self.kernel)
        values = []
        for value, origin, kind in zip(leaves, origins, self.kinds, strict=True):
            if kind == "log":
                value = jnp.exp(jnp.clip(value, jnp.log(origin) - REACH, jnp.log(origin) + REACH))
            values.append(origin if kind == "fixed" else value)
        lam = jnp.exp(jnp.clip(log_lam, self.log_lam - 2 * REACH, self.log_lam + 2 * REACH)) + self.floor
        return jax.tree.unflatten(tree, values), lam


@cache
def default_optimizer():
    """L-BFGS with a line search that meets the strong Wolfe conditions, in at most 12 evaluations a step.

    The same object every time, so that a second search does not compile again.
    """
    import optax  # here, as it takes a third of the package's import time, and only the search needs it

    return optax.lbfgs(memory_size=10, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=12, initial_guess_strategy="one"))


@in_precision_of("X")
def tune(
    kernel: Kernel,
    X,
    Y,
    *,
    lam=None,
    criterion: Callable = loo,
    loss: Callable = squared_error,
    optimizer=None,
    steps: int = 50,
    tol: float = 1e-3,
    start: str = "screen",
    starts: int = 1,
    key=None,
    weights=None,
    intercept: bool = True,
    groups=None,
    validation=None,
    progress: bool = False,
    block_size: int | None = None,
) -> Tuned:
    """Tune every kernel parameter and λ together, by the exact gradient of the leave-one-out error.

    Minimises log E(θ, λ) over the logarithms of λ and of all positive parameters (widths, scales, α, periods, offsets); the parameters of a
    `FeatureMap` or `FunctionKernel` are searched as they are. `Gaussian(jnp.ones(d))` tunes one width per column (automatic relevance),
    a sum of `aₖ * kₖ.on(columns)` the weights of several kernels (banded ridge).

    **Arguments**: data, `criterion`, `loss`, `weights`, `intercept`, `groups` and `validation` as in `fit`. `lam` where to start, by default the
    best of the spectrum's grid for the first kernel. `optimizer` any optax optimiser, by default L-BFGS. `steps` at most;
    `tol` stops where ‖∇ log E‖∞ is below it, or where three steps in a row gain less than tol² of log E. `start="screen"` first
    multiplies all widths by the best of nine factors from 1/16 to 16, judged on at most 500 rows; `"data"` sets them to the median
    distance; `"kernel"` leaves them. The given kernel itself stays in the contest. `starts` > 1 tries as many random multiples of
    the first parameters (needs `key`), vmapped, and keeps the best. `progress` shows a bar (needs tqdm).

    **Returns** a `Tuned`, never worse than its start. **Cost** a step is one or a few values with gradients of `objective`: one Cholesky
    factor and about three products each, in `starts` × six n×n arrays. **Raises** `ValueError` as `fit`, and for a criterion
    whose derivative is 0 everywhere. **Fails**: error surfaces have several minima: use `starts`. **Source**: Rasmussen and Williams
    2006, §5.4.2, with the exact squared LOO error in place of the predictive probability.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> tuned = rls.tune(rls.Gaussian(width=5.0), X, np.sin(6 * X[:, 0]), steps=20)
    >>> bool(tuned.error < tuned.start_error)
    True
    """
    kernel, X, Y, weights = check_data(kernel, X, Y, weights)
    criterion, options = resolve_criterion(criterion, loss, groups, validation)
    _check_options(X, steps, start, starts, key)
    if loss is misclassification:
        raise ValueError("misclassification has derivative 0 everywhere and cannot be tuned by gradient: tune with squared_error")
    kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, X.dtype), kernel)
    problem = (X, Y, weights, options)
    static_part = (criterion, loss, intercept, block_size)
    kernel, lam, floor, given_error = _first(kernel, problem, static_part, start, _first_lams(lam, X.dtype))
    space = _Space(kernel, jnp.log(jnp.maximum(lam - floor, 1e-2 * floor)), floor, tuple(_search_kinds(kernel)))
    params = _spread(space.first(), starts, key)
    with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
        return _search(params, space, problem, static_part, optimizer or default_optimizer(), steps, tol, progress, given_error)


def _check_options(X, steps, start, starts, key):
    if not is_concrete(X):
        raise ValueError("tune runs its own loop and cannot be called inside jax.jit or vmap: use loo_objective with an optimiser there")
    if steps < 1 or starts < 1:
        raise ValueError(f"steps and starts must be at least 1, and are {steps} and {starts}")
    if start not in ("screen", "kernel", "data"):
        raise ValueError(f"start must be 'screen', 'kernel' or 'data', and is {start!r}")
    if starts > 1 and key is None:
        raise ValueError("starts > 1 draws random starts: pass key=jax.random.key(0)")
    check_dense_size(X.shape[0], X.dtype)


def _first_lams(lam, dtype):
    """The λ given to start from, as a grid of one, or None."""
    if lam is None:
        return None
    lam = jnp.asarray(as_floats("lam", lam, dtype))
    if lam.shape != ():
        raise ValueError(f"lam must be one number, and has shape {lam.shape}")
    check_lams(lam, "lam")
    return lam[None]


def _first(kernel, problem, static_part, start, lams):
    """The best of the given kernel and the one that `start` suggests, its best λ, the precision of its K, and the given one's error."""
    X, Y, weights, _ = problem
    candidates = [kernel]
    if start == "data":
        candidates.append(start_from_data(kernel, X))
    elif start == "screen":
        factor = _screen(kernel, X, Y, weights, *static_part[1:])
        candidates += [_scale_widths(kernel, X, factor)] if factor != 1 else []
    ends = [_spectrum(candidate, problem, lams, *static_part) for candidate in candidates]
    best = int(np.nanargmin([float(error) for _, _, error in ends]))
    floor, lam, _ = ends[best]
    return candidates[best], lam, floor, ends[0][2] if best else None


@partial(jax.jit, static_argnums=(3, 4, 5, 6))
def _spectrum(kernel, problem, lams, criterion, loss, intercept, block_size):
    """The precision of K, the best λ of the grid, and its error."""
    X, Y, weights, options = problem
    factor = factorize(kernel, X, weights=weights, intercept=intercept, block_size=block_size)
    lams = lambda_grid(factor, 50) if lams is None else lams
    errors = evaluate(criterion, loss, factor, kernel, X, Y, lams, options)
    errors = errors if errors.ndim == 1 else jnp.mean(errors, axis=1)
    best = jnp.argmin(errors)
    return factor.precision_floor(), lams[best], errors[best]


def _screen(kernel, X, Y, weights, loss, intercept, block_size):
    """The common factor on all widths with the smallest leave-one-out error on a sample of the rows, at each factor's best λ."""
    widths: list = []
    _map_widths(kernel, X, lambda part, _: widths.append(part.width) or part.width)
    if not widths:
        return 1.0
    n = X.shape[0]
    some = np.sort(np.random.default_rng(0).choice(n, min(n, SCREEN_ROWS), replace=False))
    problem = (X[some], Y[some], None if weights is None else weights[some], {})
    return float(SCREEN_FACTORS[int(np.argmin(_screen_errors(kernel, problem, loss, intercept, block_size)))])


@partial(jax.jit, static_argnums=(2, 3, 4))
def _screen_errors(kernel, problem, loss, intercept, block_size):
    def at(factor):
        error = _spectrum(_scale_widths(kernel, problem[0], factor), problem, None, loo, loss, intercept, block_size)[2]
        return jnp.where(jnp.isfinite(error), error, jnp.inf)

    return jax.lax.map(at, jnp.asarray(SCREEN_FACTORS, problem[0].dtype))


def _spread(first, starts, key):
    """`starts` copies of the parameters, all but the first moved at random, logarithms by a standard deviation of 1."""
    leaves, tree = jax.tree.flatten(first)
    if starts == 1:
        return jax.tree.map(lambda a: a[None], first)
    keys = jax.random.split(key, len(leaves))
    moves = [jax.random.normal(k, (starts, *a.shape), a.dtype).at[0].set(0) for k, a in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, [a + m for a, m in zip(leaves, moves, strict=True)])


def _to_value(error, criterion, n):
    """What is minimised: the logarithm of an error that cannot be negative, the evidence per row, anything else as it is."""
    if criterion in (*TAKES_LOSS, gcv):
        return jnp.log(error)
    return error / n if criterion is log_marginal_likelihood else error


def _to_error(value, criterion, n):
    """The inverse of `_to_value`."""
    if criterion in (*TAKES_LOSS, gcv):
        return np.exp(value)
    return value * n if criterion is log_marginal_likelihood else value


def _value(params, space, problem, criterion, loss, intercept, block_size):
    X, Y, weights, options = problem
    kernel, lam = space.unpack(params)
    error = error_at(kernel, X, Y, lam, weights, options, criterion, loss, intercept, block_size)
    value = _to_value(error, criterion, X.shape[0])
    return jnp.where(jnp.isfinite(value), value, jnp.asarray(jnp.finfo(X.dtype).max ** 0.25, X.dtype))


@partial(jax.jit, static_argnums=(3, 4))
def _begin(params, space, problem, static_part, optimizer):
    """Optimiser state, value and gradient of every start."""

    def one(params):
        value, grad = jax.value_and_grad(lambda p: _value(p, space, problem, *static_part))(params)
        return params, optimizer.init(params), value, grad

    # Strong types, as a step returns them: a weak one would compile the step twice.
    return jax.tree.map(lambda a: jax.lax.convert_element_type(a, a.dtype), _over_starts(one, params))


@partial(jax.jit, static_argnums=(4, 5))
def _step(carry, space, problem, active, static_part, optimizer):
    """One step of every start that is still active: new parameters, optimiser state, value and gradient."""

    def fn(p):
        return _value(p, space, problem, *static_part)

    def one(carry):
        import optax

        params, state, value, grad = carry
        updates, state = optax.with_extra_args_support(optimizer).update(grad, state, params, value=value, grad=grad, value_fn=fn)
        params = optax.apply_updates(params, updates)
        # A line search leaves the value and gradient of the point it chose in its state.
        value, grad = optax.tree_utils.tree_get(state, "value"), optax.tree_utils.tree_get(state, "grad")
        if value is None or grad is None:
            value, grad = jax.value_and_grad(fn)(params)
        return params, state, value, grad

    new = _over_starts(one, carry)
    return jax.tree.map(lambda a, b: jnp.where(active.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, carry)


def _over_starts(fn, tree):
    """vmap over the leading axis, or a plain call where there is one start, which leaves plain matrix products."""
    if jax.tree.leaves(tree)[0].shape[0] > 1:
        return jax.vmap(fn)(tree)
    return jax.tree.map(lambda a: jnp.asarray(a)[None], fn(jax.tree.map(lambda a: a[0], tree)))


def _search(params, space, problem, static_part, optimizer, steps, tol, progress, given_error):
    carry = _begin(params, space, problem, static_part, optimizer)
    seen = [_look(carry)]
    still = np.zeros(len(seen[0][1]), int)
    active = seen[0][2] > tol
    for _ in _bar(steps, progress):
        if not active.any():
            break
        carry = _step(carry, space, problem, jnp.asarray(active), static_part, optimizer)
        seen.append(_look(carry))
        gain = seen[-2][1] - seen[-1][1]
        still = np.where(np.abs(gain) <= tol**2, still + 1, 0)
        active = active & (seen[-1][2] > tol) & (still < PATIENCE)
    return _finish(seen, space, problem, static_part, tol, still, steps, given_error)


def _look(carry):
    """Parameters, values and gradient norms of all starts, on the host."""
    params, _, value, grad = carry
    norms = np.max([np.abs(np.asarray(g)).reshape(len(g), -1).max(axis=1) for g in jax.tree.leaves(grad) if g.size], axis=0)
    return jax.tree.map(np.asarray, params), np.asarray(value), norms


def _bar(steps, progress):
    if not progress:
        return range(steps)
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install 'jaxrls[plot]'") from None
    return tqdm(range(steps), desc="tune", unit="step")


def _finish(seen, space, problem, static_part, tol, still, steps, given_error):
    values = np.stack([value for _, value, _ in seen])
    if not np.isfinite(values[0, 0]) or not (values < np.finfo(values.dtype).max ** 0.25).any():
        raise ValueError("the error is not finite at the start: use a larger lam, a smaller width, or float64")
    step, run = np.unravel_index(np.argmin(values), values.shape)
    unpack = jax.jit(space.unpack)
    visited = [unpack(jax.tree.map(lambda a: a[run], params)) for params, _, _ in seen]
    kernel, lam = visited[step]
    norms = np.array([norm[run] for _, _, norm in seen])
    errors = _to_error(values[:, run], static_part[0], problem[0].shape[0])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[k for k, _ in visited])
    history = History(jnp.asarray(errors), jnp.asarray(norms), jnp.stack([x for _, x in visited]), stacked)
    converged = bool(norms[step] <= tol)
    reason = "gradient norm below tol" if converged else "no further progress" if still[run] >= PATIENCE else f"all {steps} steps used"
    start_error = jnp.asarray(errors[0]) if given_error is None else given_error
    model = _final_model(kernel, lam, problem, static_part[2], static_part[3])
    return Tuned(kernel, lam, jnp.asarray(errors[step]), start_error, model, history, converged, reason)


@partial(jax.jit, static_argnums=(3, 4))
def _final_model(kernel, lam, problem, intercept, block_size):
    X, Y, weights, _ = problem
    point = factor_at(kernel, X, lam, weights=weights, intercept=intercept, block_size=block_size)
    target = point.project(Y)
    coef, constant = point.coef(target, lam), point.intercept(target, lam)
    if Y.ndim == 1:
        coef, constant = coef[:, 0], constant[0]
    return make_model(kernel, X, coef, constant, point.route)
