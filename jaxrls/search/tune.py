"""Kernel parameters and λ together, by the exact gradient of a validation error."""

import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.left_out import loo
from jaxrls.criteria.losses import squared_error
from jaxrls.factors.certificate import certificate_words
from jaxrls.factors.outcome import Coefficients
from jaxrls.kernels.kernel import Kernel
from jaxrls.models.fitted import History, K, Tuned
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.estimate import of_problem
from jaxrls.search.problem import Problem, resolve_landmarks
from jaxrls.search.start import first_guess
from jaxrls.support.checks import as_array, check_lams, check_whole, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.precision import in_precision_of
from jaxrls.support.progress import progress_bar
from jaxrls.support.pytrees import pytree, static

# Log-parameters may move this far from their start, a factor of e^16 ≈ 9·10⁶ either way: further, K is 0 or constant to rounding.
REACH = 16.0
PATIENCE = 3
# log λ is searched in units of 3: errors change as much for λ times e³ as for a width times e.
LAM_UNIT = 3.0


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
    model = problem.model(solution, Coefficients(*(drop(part[0]) for part in solution.coefficients(at))))
    residuals = drop(solution.residuals(at, problem.criterion.groups)[0])
    said = {"floor": report.floor, "indefinite": report.indefinite, "trace_residual": report.trace_residual}
    return model, {"loo_residuals": residuals, "dof": solution.dof(at)[0, 0], **said}


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
    log_lam: Float[Array | np.ndarray, ""]
    floor: Float[Array | np.ndarray, ""]  # λ stays above the precision of K
    kinds: tuple[str, ...] = static()

    @classmethod
    def around(cls, kernel: Kernel, lam, floor):
        """The space whose origin is this kernel and this λ."""
        log_lam = np.asarray(np.log(np.maximum(lam - floor, 1e-2 * floor)))
        return cls(kernel, log_lam, np.asarray(floor), tuple(_search_kinds(kernel)))

    def first(self):
        """θ at the start."""
        leaves = [np.log(a) if kind == "log" else a for a, kind in zip(jax.tree.leaves(self.kernel), self.kinds, strict=True)]
        return leaves, self.log_lam / LAM_UNIT

    def unpack(self, params):
        """Kernel and λ at θ, held within REACH of the start."""
        leaves, log_lam = params
        origins, tree = jax.tree.flatten(self.kernel)
        values = []
        for value, origin, kind in zip(leaves, origins, self.kinds, strict=True):
            if kind == "log":
                value = jnp.exp(jnp.clip(value, jnp.log(origin) - REACH, jnp.log(origin) + REACH))
            values.append(origin if kind == "fixed" else value)
        lam = jnp.exp(jnp.clip(LAM_UNIT * log_lam, self.log_lam - 2 * REACH, self.log_lam + 2 * REACH)) + self.floor
        return jax.tree.unflatten(tree, values), lam


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
) -> Tuned[K]:
    """Tune every kernel parameter and λ together, by the exact gradient of the leave-one-out error.

    Minimises log E(θ, λ) over the logarithms of λ and of all positive parameters (widths, scales, α, periods, offsets); the parameters of a
    `FeatureMap` or `FunctionKernel` are searched as they are. `Gaussian(jnp.ones(d))` tunes one width per column (automatic relevance),
    a sum of `aₖ * kₖ.on(columns)` the weights of several kernels (banded ridge).

    **Arguments**: data, `criterion`, `loss`, `weights`, `intercept`, `groups` and `validation` as in `fit`. `lam` where to start, by default the
    best of a grid for the first kernel. `optimizer` any optax optimiser, by default L-BFGS. `steps` at most;
    `tol` stops where ‖∇ log E‖∞ is below it, or where three steps in a row gain less than a twentieth of it. `start="screen"` first
    multiplies all widths by the best of seven factors from 1/16 to 16, judged on at most 300 rows and, for a single width without
    landmarks, goes on from there in smaller steps judged on 1200; `"data"` sets them to the median
    distance; `"kernel"` leaves them. The given kernel itself stays in the contest. `starts` > 1 tries as many random multiples of
    the first parameters (needs `key`), one after another, and keeps the best. `landmarks` for more rows than K can be factored for: a number of
    them, chosen with the first kernel, or row numbers, or points; they stay. `progress` shows a bar (needs tqdm).

    **Returns** a `Tuned`, never worse than its start. **Cost** a step is one or a few values with gradients of `objective`: one Cholesky
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
        raise ValueError("tune needs a dense X: pass X.toarray(), or fit(Linear(), X), which has no parameter but λ")
    named = {"criterion": criterion, "loss": loss, "groups": groups, "validation": validation}
    problem, unit = Problem.of(kernel, X, Y, weights=weights, intercept=intercept, block_size=block_size, **named).check().in_units()
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
    guesses = first_guess(replace(problem, kernel=kernel), start, _first_lams(lam, dtype), loss, landmarks is None)
    chosen = resolve_landmarks(guesses[-1][0], problem.rows, landmarks, problem.weights, progress)
    problem = replace(problem, kernel=kernel, landmarks=chosen)
    if lam is not None and float(guesses[0][1]) < float(guesses[0][2]):
        warnings.warn(
            f"lam={float(guesses[0][1]):.3g} is below the precision of the kernel matrix, {float(guesses[0][2]):.3g}: the search starts above it",
            UserWarning,
            stacklevel=4,
        )
    spaces = [_Space.around(*guess) for guess in guesses]
    with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
        looks = [_value_and_grad(_spread(space.first(), 1, None), space, problem) for space in spaces]
        best = int(np.argmin([float(value[0]) for value, _ in looks]))
        space, first = spaces[best], looks[best]
        params = _spread(space.first(), starts, key)
        if starts > 1:
            first = _value_and_grad(params, space, problem)
        seen, stopped = _search((params, first), space, problem, optimizer or default_optimizer(), steps, tol, progress)
        return _finish(seen, stopped, space, problem, unit, (tol, steps, float(looks[0][0][0])))


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


def _spread(first, starts, key):
    """`starts` copies of the parameters, all but the first moved at random, logarithms by a standard deviation of 1."""
    if starts == 1:
        return jax.tree.map(lambda a: np.asarray(a)[None], first)
    leaves, tree = jax.tree.flatten(first)
    keys = jax.random.split(key, len(leaves))
    moves = [jax.random.normal(k, (starts, *np.shape(a)), a.dtype).at[0].set(0) for k, a in zip(keys, leaves, strict=True)]
    moves[-1] = moves[-1] / LAM_UNIT
    return jax.tree.unflatten(tree, [a + m for a, m in zip(leaves, moves, strict=True)])


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


def _search(first, space, problem, optimizer, steps, tol, progress):
    """What was seen at every step, and for every start whether it stopped for want of progress; `first` is where, with value and gradient."""
    params, (value, grad) = first
    carry = params, _begin(params, optimizer=optimizer), value, grad
    seen = [_look(carry)]
    still = np.zeros(len(seen[0][1]), int)
    active = seen[0][2] > tol
    with progress_bar(progress, steps, "tune", "step") as reached:
        for step in range(steps):
            if not active.any():
                break
            carry = _step(carry, space, problem, jnp.asarray(active), optimizer)
            seen.append(_look(carry))
            gain = seen[-2][1] - seen[-1][1]
            still = np.where(np.abs(gain) <= 0.05 * tol, still + 1, 0)
            active = active & (seen[-1][2] > tol) & (still < PATIENCE)
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


def _finish(seen, stopped, space, problem, unit, asked):
    """The best of all that was seen, with the history of its start, in the units of the labels."""
    tol, steps, given_value = asked
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
    reason = _reason(converged, stopped[run], len(seen) - 1, steps)
    model, found = _result(replace(problem, kernel=kernel), lam)
    model = replace(model, coef=model.coef * unit, intercept=model.intercept * unit)
    found["loo_residuals"] = found["loo_residuals"] * unit
    words = "" if found["trace_residual"] is None else certificate_words(float(found["trace_residual"]), len(problem.landmarks.points), 0.1)
    return Tuned(
        kernel=kernel,
        lam=lam,
        error=jnp.asarray(errors[step]),
        start_error=jnp.asarray(start_error),
        model=model,
        history=History(jnp.asarray(errors), jnp.asarray(norms), lams, kernels),
        converged=converged,
        reason=reason,
        route="cholesky",
        criterion=problem.criterion.name,
        certificate=words,
        **found,
    )
