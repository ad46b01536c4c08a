"""One search: from the best of some guesses downhill, step by step, on one problem."""

from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.kernels.kernel import Kernel
from jaxrls.models.fitted import History
from jaxrls.search.problem import Problem
from jaxrls.search.space import LAM_UNIT, Space, spread
from jaxrls.support.progress import progress_bar


@cache
def default_optimizer():
    """L-BFGS with a line search that meets the strong Wolfe conditions, in at most 12 evaluations a
    step.

    The same object every time, so that a second search does not compile again.
    """
    import optax  # here, as it takes a third of the package's import time, and only the search needs it

    return optax.lbfgs(
        memory_size=10,
        linesearch=optax.scale_by_zoom_linesearch(
            max_linesearch_steps=12, initial_guess_strategy="one"
        ),
    )


class Way(NamedTuple):
    """How a search goes, and when it ends: after `steps`, where ‖∇ log E‖∞ is below `tol`, or where
    `patience` steps in a row gain less than `least` of it.
    """

    optimizer: Any
    steps: int
    tol: float
    progress: bool
    patience: int = 3
    least: float = 0.05

    def again(self) -> "Way":
        """How another search goes on from there: where the optimiser is ours, and so knows the
        curvature, to the first step that gains little.
        """
        return (
            self._replace(patience=1, least=0.5) if self.optimizer is default_optimizer() else self
        )


class Found(NamedTuple):
    """The best of all that a search saw, with the history of its start.

    `problem` is the one that it went down on, and `learned` where it ended, with the optimiser's
    state and the gradient there."""

    kernel: Kernel
    lam: np.ndarray
    history: History
    problem: Problem
    learned: Any


def descend(
    problem: Problem,
    guesses: list,
    way: Way,
    starts: int = 1,
    key=None,
    *,
    given=None,
    learned=None,
) -> Found:
    """A search from the best of the guesses, and from `starts` random multiples of it.

    The first guess is what the search was given, or else `given`, which is begun from where no
    guess is better. What another search has `learned` that ended at the guess is the curvature to
    begin with."""
    with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
        looks = [_look_at(Space.around(*guess), problem) for guess in guesses]
        start = looks[0].value if given is None else value_at(given, problem)
        best = min(looks, key=lambda look: look.value)
        if (
            start < best.value - jnp.finfo(problem.rows.dtype).eps ** 0.5
        ):  # by more than rounding, as it comes from another program
            best, learned = _look_at(Space.around(*given), problem), None
        start = max(start, best.value)
        if starts > 1:
            best = _look_at(best.space, problem, starts, key)
        first = best.params, _state(best, way.optimizer, learned), *best.seen
        return _best(_walk(first, best.space, problem, way), best.space, problem, way, start)


class _Look(NamedTuple):
    """What is seen at the parameters of every start, and the value of the first."""

    value: float
    space: Space
    params: Any
    seen: Any


def _look_at(space: Space, problem: Problem, starts: int = 1, key=None) -> _Look:
    """That at the origin of a space, and at random multiples of it."""
    params = spread(space.first(), starts, key)
    seen = _value_and_grad(params, space, problem)
    return _Look(float(seen[0][0]), space, params, seen)


def _state(look: _Look, optimizer, learned):
    """The optimiser's at the start: of our own with what was learned."""
    if learned is not None and optimizer is default_optimizer():
        return _carried(learned, look.params, look.seen[1])
    return _begin(look.params, optimizer=optimizer)


def value_at(guess, problem: Problem) -> float:
    """The value alone, in less than half of the time of that with its gradient."""
    space = Space.around(*guess)
    with jax.numpy_dtype_promotion(
        "standard"
    ):  # as in a search, or the program would be compiled twice
        return float(_value_alone(space.first(), space, problem))


@jax.jit
def _value_alone(params, space: Space, problem: Problem):
    return _value(problem, *space.unpack(params))


def _carried(learned, params, grad):
    """The state of L-BFGS as if its last step had ended here: that step, and by how much the
    gradient changed along it, stay.
    """
    import optax

    there, state, gradient = learned

    def moved(name, now, then):
        return jax.tree.map(
            lambda old, new, last: jnp.asarray(old + (new - last), old.dtype),
            optax.tree_utils.tree_get(state, name),
            now,
            then,
        )

    return optax.tree_utils.tree_set(
        state, params=moved("params", params, there), updates=moved("updates", grad, gradient)
    )


def _value(problem: Problem, kernel: Kernel, lam):
    """What the search minimises, huge where it is not finite."""
    error = problem.criterion.to_search(replace(problem, kernel=kernel).error(lam), len(problem.Y))
    return jnp.where(jnp.isfinite(error), error, jnp.asarray(_huge(problem), error.dtype))


def _huge(problem: Problem) -> float:
    """The value of a failure: large, and far enough from overflow for a line search to calculate
    with.
    """
    return float(jnp.finfo(problem.rows.dtype).max) ** 0.25


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
    """The optimiser's state for every start, strongly typed as a step returns it: a weak type would
    compile the step twice.
    """
    return jax.tree.map(
        lambda a: jax.lax.convert_element_type(a, a.dtype), _over_starts(optimizer.init, params)
    )


@partial(jax.jit, static_argnames="optimizer")
def _update(carry, space, problem, active, *, optimizer):
    """Parameters and optimiser state after one step of every start that is still active.

    Then the value and gradient there, which a line search leaves in its state, or None from an
    optimiser that does not look ahead."""
    import optax

    optimizer = optax.with_extra_args_support(optimizer)

    def one(carry):
        params, state, value, grad = carry
        look = {
            "value": value,
            "grad": grad,
            "value_fn": lambda p: _value(problem, *space.unpack(p)),
        }
        updates, state = optimizer.update(grad, state, params, **look)
        ahead = optax.tree_utils.tree_get(state, "value"), optax.tree_utils.tree_get(state, "grad")
        return (optax.apply_updates(params, updates), state), None if ahead[0] is None or ahead[
            1
        ] is None else ahead

    def if_active(new, old):
        return jax.tree.map(
            lambda a, b: jnp.where(active.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old
        )

    moved, ahead = _over_starts(one, carry)
    return if_active(moved, carry[:2]), ahead and if_active(ahead, carry[2:])


def _step(carry, space, problem, active, optimizer):
    """One step: parameters, state, and value and gradient at the new parameters."""
    (params, state), ahead = _update(carry, space, problem, active, optimizer=optimizer)
    return params, state, *(ahead or _value_and_grad(params, space, problem))


def _over_starts(fn, tree):
    """`fn` of one after another, which holds the matrices of one; a plain call where there is one,
    which compiles faster.
    """
    if jax.tree.leaves(tree)[0].shape[0] > 1:
        return jax.lax.map(fn, tree)
    return jax.tree.map(lambda a: jnp.asarray(a)[None], fn(jax.tree.map(lambda a: a[0], tree)))


class _Walk(NamedTuple):
    """What was seen at every step, for every start whether it stopped for want of progress, and how
    it ended.
    """

    seen: list
    stopped: np.ndarray
    last: Any


def _walk(first, space, problem, way: Way) -> _Walk:
    """All steps; `first` is how it begins: parameters, state, value and gradient."""
    carry = first
    seen = [_noted(carry)]
    still = np.zeros(len(seen[0][1]), int)
    active = seen[0][2] > way.tol
    with progress_bar(way.progress, way.steps, "tune", "step") as reached:
        for step in range(way.steps):
            if not active.any():
                break
            carry = _step(carry, space, problem, jnp.asarray(active), way.optimizer)
            seen.append(_noted(carry))
            gain = seen[-2][1] - seen[-1][1]
            still = np.where(np.abs(gain) <= way.least * way.tol, still + 1, 0)
            active = active & (seen[-1][2] > way.tol) & (still < way.patience)
            reached(step + 1)
    return _Walk(seen, still >= way.patience, carry)


def _noted(carry):
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
    return (
        f"all {steps} steps used"
        if used == steps
        else "the search left for where the gradient vanishes or is not finite"
    )


def _best(walk: _Walk, space, problem, way: Way, start: float) -> Found:
    """The best of all that was seen."""
    tol, seen = way.tol, walk.seen
    values = np.stack([value for _, value, _ in seen])
    if not (values < _huge(problem)).any():
        raise ValueError(
            "the error is not finite at the start: use a larger lam, a smaller width, or float64"
        )
    step, run = np.unravel_index(np.argmin(values), values.shape)
    points = [
        jax.device_get(_unpack(jax.tree.map(lambda a: a[run], params), space))
        for params, _, _ in seen
    ]
    kernels, lams = jax.tree.map(lambda *a: jnp.asarray(np.stack(a)), *points)
    kernel, lam = jax.tree.map(jnp.asarray, points[step])
    norms = np.array([norm[run] for _, _, norm in seen])
    errors, start_error = (
        problem.criterion.from_search(part, len(problem.Y))
        for part in (values[:, run], values.dtype.type(start))
    )
    near = (
        values[step:, run] <= values[step, run] + 0.05 * tol
    )  # there, or where it went on to in search of less
    converged = bool((near & (norms[step:] <= tol)).any())
    reason = _reason(converged, walk.stopped[run], len(seen) - 1, way.steps)
    ended = jnp.asarray(start_error), converged, reason
    history = History(jnp.asarray(errors), jnp.asarray(norms), lams, kernels, *ended)
    there, state, _, gradient = jax.tree.map(lambda a: a[run : run + 1], walk.last)
    return Found(kernel, lam, history, problem, (there, state, gradient))
