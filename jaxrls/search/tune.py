"""Kernel parameters and λ together, by the exact gradient of a validation error."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.left_out import loo
from jaxrls.criteria.losses import squared_error
from jaxrls.factors.certificate import certificate_words
from jaxrls.kernels.kernel import Kernel
from jaxrls.models.fitted import History, K, Stage, Tuned
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.estimate import of_problem
from jaxrls.search.few import few_rows
from jaxrls.search.problem import Problem, resolve_landmarks
from jaxrls.search.space import LAM_UNIT, Space, spread
from jaxrls.search.start import first_guess
from jaxrls.support.checks import as_array, check_lams, check_whole, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.precision import in_precision_of
from jaxrls.support.progress import progress_bar

PATIENCE = 3


def _value(problem: Problem, kernel: Kernel, lam):
    """What the search minimises, huge where it is not finite."""
    error = problem.criterion.to_search(replace(problem, kernel=kernel).error(lam), len(problem.Y))
    return jnp.where(jnp.isfinite(error), error, jnp.asarray(_huge(problem), error.dtype))


def _huge(problem: Problem) -> float:
    """The value of a failure: large, and far enough from overflow for a line search to calculate with."""
    return float(jnp.finfo(problem.rows.dtype).max) ** 0.25


@jax.jit
def _result(problem: Problem, lam):
    """The model at one λ, and what belongs to it."""
    solution, at = problem.solution("cholesky"), lam.reshape(1, 1)
    drop, report = solution.labels.drop_axis, solution.factor.report
    model = problem.model(solution, jax.tree.map(lambda part: drop(part[0]), solution.coefficients(at)))
    residuals = drop(solution.residuals(at, problem.criterion.groups)[0])
    said = {"floor": report.floor, "indefinite": report.indefinite, "trace_residual": report.trace_residual}
    return model, {"loo_residuals": residuals, "dof": solution.dof(at)[0, 0], **said}


@cache
def default_optimizer():
    """L-BFGS with a line search that meets the strong Wolfe conditions, in at most 12 evaluations a step.

    The same object every time, so that a second search does not compile again.
    """
    import optax  # here, as it takes a third of the package's import time, and only the search needs it

    return optax.lbfgs(memory_size=10, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=12, initial_guess_strategy="one"))


@on_any_mesh
@in_precision_of("X")
def tune(
    kernel: K,
    X,
    Y=None,
    *,
    lam=None,
    criterion: Callable | Criterion = loo,
    loss: Callable = squared_error,
    optimizer=None,
    steps: int = 50,
    tol: float = 2e-3,
    start: str = "screen",
    starts: int = 1,
    key=None,
    weights=None,
    intercept: bool = True,
    groups=None,
    validation=None,
    landmarks=None,
    progress: bool = False,
    block_size: int | None = None,
    grow: bool | None = None,
    unpenalized=None,
) -> Tuned[K]:
    """Tune every kernel parameter and λ together, by the exact gradient of the leave-one-out error.

    Minimises log E(θ, λ) over the logarithms of λ and of all positive parameters (widths, scales, α, periods, offsets); the parameters of a
    `FeatureMap` or `FunctionKernel` are searched as they are. `Gaussian(jnp.ones(d))` tunes one width per column (automatic relevance),
    a sum of `aₖ * kₖ.on(columns)` the weights of several kernels (banded ridge).

    **Arguments**: data, `criterion`, `loss`, `weights`, `intercept`, `groups`, `validation` and `unpenalized` as in `fit`. `lam` where to start, by default the
    best of a grid for the first kernel. `optimizer` any optax optimiser, by default L-BFGS. `steps` at most;
    `tol` stops where ‖∇ log E‖∞ is below it, or where three steps in a row gain less than a twentieth of it. `start="screen"` first
    multiplies all widths by the best of seven factors from 1/16 to 16, judged on at most 300 rows and, for a single width without
    landmarks, goes on from there in smaller steps judged on 1200; `"data"` sets them to the median
    distance; `"kernel"` leaves them. The given kernel itself stays in the contest. `starts` > 1 tries as many random multiples of
    the first parameters (needs `key`), one after another, and keeps the best. `landmarks` for more rows than K can be factored for: a number of
    them, chosen with the best kernel known at the start, or row numbers, or points; they stay. `grow` first searches on a sample of the rows and as many
    landmarks chosen from it, then on all from there, with new landmarks where their number was given: the default where a step on all is dear, of
    criteria that are means over rows left out one by one, or do without them. `progress` shows a bar (needs tqdm).

    **Returns** a `Tuned`, never worse than its start; its history is that of all rows, and `stages` tell what went before.
    **Cost** a step is one or a few values with gradients of `objective`: one Cholesky
    factor and about three products each, for every start, in four n×n arrays; O(n m²) on m landmarks. **Raises** `ValueError` as `fit`, and for a criterion
    whose derivative is 0 everywhere. **Fails**: error surfaces have several minima: use `starts`. **Source**: Rasmussen and Williams
    2006, §5.4.2, with the exact squared LOO error in place of the predictive probability.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> tuned = rls.tune(rls.Gaussian(width=5.0), X, np.sin(6 * X[:, 0]), steps=20)
    >>> bool(tuned.error < tuned.start_error)
    True
    """
    if is_sparse(X):
        raise ValueError("tune needs a dense X: pass X.toarray(), or fit(kernel, X), which takes sparse rows with given parameters")
    named: dict = {"criterion": criterion, "loss": loss, "groups": groups, "validation": validation}
    named |= {"weights": weights, "intercept": intercept, "block_size": block_size, "unpenalized": unpenalized}
    problem, unit = Problem.of(kernel, X, Y, **named).check().in_units()
    if not problem.traceable:
        raise ValueError(
            "tune needs X, and rows held out, in memory: take some of them, such as the sample of a stream, rows.candidates()[1]"
        )
    if not problem.criterion.smooth:
        raise ValueError(
            f"{getattr(problem.criterion, 'loss', loss).__name__} has derivative 0 everywhere and cannot be tuned by gradient: tune with squared_error"
        )
    _check_options(problem, optimizer, steps, start, starts, key, landmarks)
    dtype = problem.rows.dtype
    kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), kernel)
    problem = replace(problem, kernel=kernel)
    guesses = first_guess(problem.without_free(), start, _first_lams(lam, dtype), loss, landmarks is None)
    if lam is not None and float(guesses[0][1]) < float(guesses[0][2]):
        warnings.warn(
            f"lam={float(guesses[0][1]):.3g} is below the precision of the kernel matrix, {float(guesses[0][2]):.3g}: the search starts above it",
            UserWarning,
            stacklevel=4,
        )
    way, tries = _Way(optimizer or default_optimizer(), steps, tol, progress), (starts, key)
    stages: tuple[Stage, ...] = ()
    few = few_rows(problem, landmarks, grow)
    if few is not None:
        found = _search_from(few.with_landmarks(guesses[-1][0], progress), guesses, unit, way, *tries)
        stages, tries = (Stage(*few.sizes, found.history, found.reason),), (1, None)
        there = first_guess(replace(problem, kernel=found.kernel), "kernel", found.lam[None], loss, False)
        guesses = [guesses[0], *there]
    chosen = resolve_landmarks(guesses[-1][0], problem.rows, landmarks, problem.weights, progress)
    problem = replace(problem, landmarks=chosen)
    return _tuned(problem, _search_from(problem, guesses, unit, way, *tries), unit, stages)


class _Way(NamedTuple):
    """How a search goes, and when it ends."""

    optimizer: Any
    steps: int
    tol: float
    progress: bool


class _Found(NamedTuple):
    """The best of all that a search saw, with the history of its start, errors in the units of the labels."""

    kernel: Kernel
    lam: np.ndarray
    error: np.ndarray
    start_error: np.ndarray
    history: History
    converged: bool
    reason: str


def _check_options(problem, optimizer, steps, start, starts, key, landmarks):
    if not is_concrete(problem):
        raise ValueError("tune runs its own loop and cannot be called inside jax.jit or vmap: use loo_objective with an optimiser there")
    check_whole("steps", steps)
    check_whole("starts", starts)
    if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(f"optimizer must be one of optax's, such as optax.adam(0.1), and is {optimizer!r}")
    if start not in ("screen", "kernel", "data"):
        raise ValueError(f"start must be 'screen', 'kernel' or 'data', and is {start!r}")
    if starts > 1 and key is None:
        raise ValueError("starts > 1 draws random starts: pass key=jax.random.key(0)")
    if key is not None and not isinstance(key, jax.Array):
        raise ValueError(f"key must be a JAX random key such as jax.random.key(0), and is {key!r}")
    if landmarks is None:
        of_problem(problem, call="gradient").check()


def _first_lams(lam, dtype):
    """The λ given to start from, as a grid of one, or None."""
    if lam is None:
        return None
    lam = as_array("lam", lam, dtype)
    if lam.shape != ():
        raise ValueError(f"lam must be one number, and has shape {lam.shape}")
    check_lams(lam, "lam")
    return lam[None]


@jax.jit
def _value_and_grad(params, space, problem):
    """Value and gradient of every start."""
    return _over_starts(jax.value_and_grad(lambda p: _value(problem, *space.unpack(p))), params)


@jax.jit
def _unpack(params, space):
    """Kernel and λ of one start: one program, however many steps there were."""
    return space.unpack(params)


@partial(jax.jit, static_argnames="optimizer")
def _begin(params, *, optimizer):
    """The optimiser's state for every start, strongly typed as a step returns it: a weak type would compile the step twice."""
    return jax.tree.map(lambda a: jax.lax.convert_element_type(a, a.dtype), _over_starts(optimizer.init, params))


@partial(jax.jit, static_argnames="optimizer")
def _update(carry, space, problem, active, *, optimizer):
    """Parameters and optimiser state after one step of every start that is still active.

    Then the value and gradient there, which a line search leaves in its state, or None from an optimiser that does not look ahead.
    """
    import optax

    optimizer = optax.with_extra_args_support(optimizer)

    def one(carry):
        params, state, value, grad = carry
        look = {"value": value, "grad": grad, "value_fn": lambda p: _value(problem, *space.unpack(p))}
        updates, state = optimizer.update(grad, state, params, **look)
        ahead = optax.tree_utils.tree_get(state, "value"), optax.tree_utils.tree_get(state, "grad")
        return (optax.apply_updates(params, updates), state), None if ahead[0] is None or ahead[1] is None else ahead

    def if_active(new, old):
        return jax.tree.map(lambda a, b: jnp.where(active.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)

    moved, ahead = _over_starts(one, carry)
    return if_active(moved, carry[:2]), ahead and if_active(ahead, carry[2:])


def _step(carry, space, problem, active, optimizer):
    """One step: parameters, state, and value and gradient at the new parameters."""
    (params, state), ahead = _update(carry, space, problem, active, optimizer=optimizer)
    return params, state, *(ahead or _value_and_grad(params, space, problem))


def _over_starts(fn, tree):
    """`fn` of one after another, which holds the matrices of one; a plain call where there is one, which compiles faster."""
    if jax.tree.leaves(tree)[0].shape[0] > 1:
        return jax.lax.map(fn, tree)
    return jax.tree.map(lambda a: jnp.asarray(a)[None], fn(jax.tree.map(lambda a: a[0], tree)))


def _search_from(problem: Problem, guesses, unit, way: _Way, starts: int, key) -> _Found:
    """A search from the best of the guesses, and from `starts` random multiples of it."""
    spaces = [Space.around(*guess) for guess in guesses]
    with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
        looks = [_value_and_grad(spread(space.first(), 1, None), space, problem) for space in spaces]
        best = int(np.argmin([float(value[0]) for value, _ in looks]))
        space, first = spaces[best], looks[best]
        params = spread(space.first(), starts, key)
        if starts > 1:
            first = _value_and_grad(params, space, problem)
        seen, stopped = _search((params, first), space, problem, way)
        return _best(seen, stopped, space, problem, unit, way, float(looks[0][0][0]))


def _search(first, space, problem, way: _Way):
    """What was seen at every step, and for every start whether it stopped for want of progress; `first` is where, with value and gradient."""
    params, (value, grad) = first
    carry = params, _begin(params, optimizer=way.optimizer), value, grad
    seen = [_look(carry)]
    still = np.zeros(len(seen[0][1]), int)
    active = seen[0][2] > way.tol
    with progress_bar(way.progress, way.steps, "tune", "step") as reached:
        for step in range(way.steps):
            if not active.any():
                break
            carry = _step(carry, space, problem, jnp.asarray(active), way.optimizer)
            seen.append(_look(carry))
            gain = seen[-2][1] - seen[-1][1]
            still = np.where(np.abs(gain) <= 0.05 * way.tol, still + 1, 0)
            active = active & (seen[-1][2] > way.tol) & (still < PATIENCE)
            reached(step + 1)
    return seen, still >= PATIENCE


def _look(carry):
    """Parameters, values and gradient norms of all starts, on the host."""
    params, _, value, (leaves, slope) = carry
    slopes = [*(g for g in leaves if g.size), slope / LAM_UNIT]
    norms = np.max([np.abs(np.asarray(g)).reshape(len(g), -1).max(axis=1) for g in slopes], axis=0)
    return jax.tree.map(np.asarray, params), np.asarray(value), norms


def _reason(converged, stopped, used, steps):
    """Why the search ended, in words."""
    if converged:
        return "gradient norm below tol"
    if stopped:
        return "no further progress"
    return f"all {steps} steps used" if used == steps else "the search left for where the gradient vanishes or is not finite"


def _best(seen, stopped, space, problem, unit, way: _Way, given_value: float) -> _Found:
    """The best of all that was seen."""
    tol = way.tol
    values = np.stack([value for _, value, _ in seen])
    if not (values < _huge(problem)).any():
        raise ValueError("the error is not finite at the start: use a larger lam, a smaller width, or float64")
    step, run = np.unravel_index(np.argmin(values), values.shape)
    points = [jax.device_get(_unpack(jax.tree.map(lambda a: a[run], params), space)) for params, _, _ in seen]
    kernels, lams = jax.tree.map(lambda *a: jnp.asarray(np.stack(a)), *points)
    kernel, lam = jax.tree.map(jnp.asarray, points[step])
    norms = np.array([norm[run] for _, _, norm in seen])
    errors, start_error = (
        problem.out_of_units(problem.criterion.from_search(part, len(problem.Y)), unit)
        for part in (values[:, run], values.dtype.type(given_value))
    )
    near = values[step:, run] <= values[step, run] + 0.05 * tol  # there, or where it went on to in search of less
    converged = bool((near & (norms[step:] <= tol)).any())
    reason = _reason(converged, stopped[run], len(seen) - 1, way.steps)
    history = History(jnp.asarray(errors), jnp.asarray(norms), lams, kernels)
    return _Found(kernel, lam, errors[step], start_error, history, converged, reason)


def _tuned(problem: Problem, found: _Found, unit, stages) -> Tuned:
    """What is handed back, with a model at the best kernel and λ."""
    model, said = _result(replace(problem, kernel=found.kernel), found.lam)
    model = model.in_units(unit)
    said["loo_residuals"] = said["loo_residuals"] * unit
    trace, chosen = said["trace_residual"], problem.landmarks
    words = "" if trace is None or chosen is None else certificate_words(float(trace), len(chosen.points), 0.1)
    return Tuned(
        kernel=found.kernel,
        lam=found.lam,
        error=jnp.asarray(found.error),
        start_error=jnp.asarray(found.start_error),
        model=model,
        history=found.history,
        converged=found.converged,
        reason=found.reason,
        route="cholesky",
        criterion=problem.criterion.name,
        certificate=words,
        stages=stages,
        **said,
    )
