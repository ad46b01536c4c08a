"""One search: from the best of some guesses downhill, step by step, on one problem."""

from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.inference.fitted import History
from jaxrls.kernels.kernel import Kernel
from jaxrls.search.problem import Problem
from jaxrls.support.pictures import progress_bar
from jaxrls.support.pytrees import pytree, static

# A logarithm may move by so many of its units from the start, a factor of e^16 ≈ 9·10⁶ either way:
# further, K is 0 or constant to rounding.
REACH = 16.0
# Of log λ: errors change as much for λ times e³ as for a width times e.
LAM_UNIT = 3.0


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


def _units(kernel: Kernel) -> list[float | None]:
    """For every leaf in order the unit of its logarithm, or 0 where it is searched as it is, or
    None where it is not, as at a limit such as offset 0.
    """
    units: list[float | None] = []
    for f in fields(kernel):  # type: ignore[arg-type]
        value, positive = getattr(kernel, f.name), f.name in kernel.positive
        if isinstance(value, Kernel):
            units += _units(value)
        elif f.name in kernel.still:
            units += [None] * len(jax.tree.leaves(value))
        elif not f.metadata.get("static"):
            for leaf in jax.tree.leaves(value):
                above = bool(np.all(np.asarray(leaf) > 0))
                units.append((1.0 if above else None) if positive else 0.0)
    return units


@pytree
class Space:
    """Where the search starts and what it may move: parameters θ ↔ kernel and λ."""

    origin: tuple[Kernel, Any]  # λ less the floor
    floor: Any  # λ stays above the precision of K
    units: tuple[float | None, ...] = static()

    @classmethod
    def around(cls, kernel: Kernel, lam, floor) -> "Space":
        """The space whose origin is this kernel and this λ."""
        origin = kernel, np.asarray(np.maximum(lam - floor, 1e-2 * floor))
        return cls(origin, np.asarray(floor), (*_units(kernel), LAM_UNIT))

    def _each(self, fn, *leaves) -> list:
        return [fn(*each) for each in zip(self.units, *leaves, strict=True)]

    def first(self, key=None) -> list:
        """θ at the start, or moved from there at random, logarithms by a standard deviation of 1."""
        leaves = jax.tree.leaves(self.origin)
        start = self._each(lambda unit, a: np.log(a) / unit if unit else a, leaves)
        if key is None:
            return start
        keys = list(jax.random.split(key, len(start)))
        draw = lambda unit, a, k: a + jax.random.normal(k, np.shape(a), a.dtype) / (unit or 1)
        return self._each(draw, start, keys)

    def unpack(self, params: list) -> tuple[Kernel, Any]:
        """Kernel and λ at θ."""

        def value(unit, origin, at):
            if unit:
                middle = jnp.log(origin)
                at = jnp.clip(unit * at, middle - REACH * unit, middle + REACH * unit)
                return jnp.exp(at)
            return origin if unit is None else at

        leaves, tree = jax.tree.flatten(self.origin)
        kernel, above = jax.tree.unflatten(tree, self._each(value, leaves, params))
        return kernel, above + self.floor


class Way(NamedTuple):
    """How a search goes, and when it ends: after `steps`, where ‖∇ log E‖∞ is below `tol`, or where
    three steps in a row gain less than a twentieth of it; where the curvature is known from another
    search, at the first that gains less than half.
    """

    optimizer: Any
    steps: int
    tol: float
    progress: bool


class Point(NamedTuple):
    """Where a search is, with value and gradient there and the optimiser's state."""

    params: Any
    value: Any
    grad: Any
    state: Any = None

    @property
    def norm(self):
        """‖∇ log E‖∞, NaN where the search cannot go on."""
        *leaves, slope = self.grad
        return np.max([np.abs(g).max() for g in (*leaves, slope / LAM_UNIT) if np.size(g)])


class Found(NamedTuple):
    """The best of all that a search saw, with the history of its start.

    `problem` is the one that it went down on, and `learned` where it ended."""

    kernel: Kernel
    lam: np.ndarray
    history: History
    problem: Problem
    learned: Point


def descend(
    problem: Problem, guesses: list, way: Way, starts=1, key=None, *, given=None, learned=None
) -> Found:
    """A search from the best of the guesses, and from `starts` random multiples of it.

    The first guess is what the search was given, or else `given`, which is begun from where no
    guess is better. What another search has `learned` that ended at the guess is the curvature to
    begin with."""
    with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
        looks = [_look(Space.around(*guess), problem) for guess in guesses]
        space, point = min(looks, key=lambda look: float(look[1].value))
        start = float(looks[0][1].value) if given is None else value_at(given, problem)
        # By more than rounding, as the value of `given` comes from another program.
        if start < float(point.value) - jnp.finfo(problem.rows.dtype).eps ** 0.5:
            (space, point), learned = _look(Space.around(*given), problem), None
        start = max(start, float(point.value))
        walks = [_walk(point, space, problem, way, learned)]
        for each in list(jax.random.split(key, starts))[1:] if starts > 1 else ():
            walks.append(_walk(_look(space, problem, each)[1], space, problem, way))
        best = min(walks, key=lambda walk: min(float(point.value) for point in walk))
        return _found(best, space, problem, way, start)


def value_at(guess, problem: Problem) -> float:
    """The value alone, in less than half of the time of that with its gradient."""
    space = Space.around(*guess)
    with jax.numpy_dtype_promotion("standard"):  # as in a search, not to be compiled twice
        return float(jax.jit(_value)(space.first(), space, problem))


def _look(space: Space, problem: Problem, key=None) -> tuple[Space, Point]:
    """What is seen at the origin, or at a random multiple of it."""
    params = space.first(key)
    return space, Point(params, *_value_and_grad(params, space, problem))


def _value(params, space: Space, problem: Problem):
    """What the search minimises, huge where it is not finite."""
    kernel, lam = space.unpack(params)
    error = problem.criterion.to_search(replace(problem, kernel=kernel).error(lam), len(problem.Y))
    return jnp.where(jnp.isfinite(error), error, jnp.asarray(_huge(problem), error.dtype))


def _huge(problem: Problem) -> float:
    """The value of a failure: large, and far enough from overflow for a line search to calculate
    with.
    """
    return float(jnp.finfo(problem.rows.dtype).max) ** 0.25


_value_and_grad = jax.jit(jax.value_and_grad(_value))
_unpack = jax.jit(lambda params, space: space.unpack(params))


def _carried(learned: Point, point: Point):
    """The state of L-BFGS as if its last step had ended at a point: that step, and by how much the
    gradient changed along it, stay.
    """
    import optax

    def moved(name, now, then):
        old = optax.tree_utils.tree_get(learned.state, name)
        return [jnp.asarray(a + (b - c), a.dtype) for a, b, c in zip(old, now, then, strict=True)]

    params = moved("params", point.params, learned.params)
    updates = moved("updates", point.grad, learned.grad)
    return optax.tree_utils.tree_set(learned.state, params=params, updates=updates)


@partial(jax.jit, static_argnames="optimizer")
def _init(params, *, optimizer):
    """The optimiser's state, strongly typed as a step returns it: a weak type would compile the
    step twice.
    """
    return jax.tree.map(lambda a: jax.lax.convert_element_type(a, a.dtype), optimizer.init(params))


@partial(jax.jit, static_argnames="optimizer")
def _step(point: Point, space: Space, problem: Problem, *, optimizer) -> Point:
    """Parameters and state after one step, with the value and gradient there, which a line search
    leaves in its state, or None from an optimiser that does not look ahead.
    """
    import optax

    updates, state = optax.with_extra_args_support(optimizer).update(
        point.grad,
        point.state,
        point.params,
        value=point.value,
        grad=point.grad,
        value_fn=lambda params: _value(params, space, problem),
    )
    value, grad = (optax.tree_utils.tree_get(state, name) for name in ("value", "grad"))
    return Point(optax.apply_updates(point.params, updates), value, grad, state)


def _walk(point: Point, space: Space, problem: Problem, way: Way, learned=None) -> list[Point]:
    """All points from there downhill."""
    patience, least = 3, 0.05
    if learned is not None and way.optimizer is default_optimizer():
        point, patience, least = point._replace(state=_carried(learned, point)), 1, 0.5
    else:
        point = point._replace(state=_init(point.params, optimizer=way.optimizer))
    seen, still = [point], 0
    with progress_bar(way.progress, way.steps, "tune", "step") as reached:
        while len(seen) <= way.steps and seen[-1].norm > way.tol and still < patience:
            point = _step(seen[-1], space, problem, optimizer=way.optimizer)
            if point.value is None or point.grad is None:
                value, grad = _value_and_grad(point.params, space, problem)
                point = point._replace(value=value, grad=grad)
            gain = float(seen[-1].value) - float(point.value)
            still = still + 1 if abs(gain) <= least * way.tol else 0
            seen[-1] = seen[-1]._replace(state=None)  # which holds ten gradients
            seen.append(point)
            reached(len(seen) - 1)
    return seen


def _found(seen: list[Point], space: Space, problem: Problem, way: Way, start: float) -> Found:
    """The best of all that was seen."""
    values, norms = (np.array([getattr(p, name) for p in seen]) for name in ("value", "norm"))
    if not (values < _huge(problem)).any():
        raise ValueError(
            "the error is not finite at the start: use a larger lam, a smaller width, or float64"
        )
    step, used = int(np.argmin(values)), len(seen) - 1
    points = [jax.device_get(_unpack(point.params, space)) for point in seen]
    kernel, lam = jax.tree.map(jnp.asarray, points[step])
    kernels, lams = jax.tree.map(lambda *a: jnp.asarray(np.stack(a)), *points)
    # There, or where it went on to in search of less.
    near = values[step:] <= values[step] + 0.05 * way.tol
    converged = bool((near & (norms[step:] <= way.tol)).any())
    if converged:
        reason = "gradient norm below tol"
    elif norms[-1] > way.tol:
        reason = f"all {used} steps used" if used == way.steps else "no further progress"
    else:
        reason = "the search left for where the gradient vanishes or is not finite"
    errors = problem.criterion.from_search(values, len(problem.Y))
    first = problem.criterion.from_search(values.dtype.type(start), len(problem.Y))
    ended = jnp.asarray(first), converged, reason
    history = History(jnp.asarray(errors), jnp.asarray(norms), lams, kernels, *ended)
    return Found(kernel, lam, history, problem, seen[-1])
