"""One gradient search on one problem, from the best of several starting points."""

from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxrls.core.data import compiled
from jaxrls.core.fit import Problem
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import on_device, progress_bar, pytree, static
from jaxrls.front.history import History
from jaxrls.front.start import Guess
from jaxrls.front.vanished import vanished_scales, with_scales_raised

# A logarithm may move by so many of its units from the start, a factor of e^16 ≈ 9·10⁶ either way:
# further, K is 0 or constant to rounding.
REACH = 16.0
# Of log λ: errors change as much for λ times e³ as for a width times e.
LAM_UNIT = 3.0
# On so few rows likelihoods have several minima and plateaus: a search starts at every guess.
FEW_ROWS = 100


@cache
def default_optimizer() -> Any:
    """L-BFGS with a line search that meets the strong Wolfe conditions, in at most 12 evaluations a
    step.

    The same object every time, so that a second search does not compile again.
    """
    # Here, as it takes a third of the package's import time, and only the search needs it.
    import optax

    search = optax.scale_by_zoom_linesearch(max_linesearch_steps=12, initial_guess_strategy="one")
    return optax.lbfgs(memory_size=10, linesearch=search)


def _units(kernel: Kernel) -> list[float | None]:
    """For every leaf in order: the unit of its logarithm; 0 where it is searched without a
    logarithm; None where it stays fixed, such as an offset at its limit 0.
    """
    units: list[float | None] = []
    for f in fields(kernel):  # type: ignore[arg-type]
        value = getattr(kernel, f.name)
        positive = f.name in kernel.positive
        if isinstance(value, Kernel):
            units += _units(value)
        elif f.name in kernel.constants:
            units += [None] * len(jax.tree.leaves(value))
        elif not f.metadata.get("static"):
            for leaf in jax.tree.leaves(value):
                above = bool(np.all(np.asarray(leaf) > 0))
                units.append((1.0 if above else None) if positive else 0.0)
    return units


@pytree
class Space:
    """Where the search starts and what it can change: parameters θ ↔ kernel and λ."""

    guess: tuple[Kernel, Any]  # λ less the floor
    floor: Any  # λ stays above the precision of K, 0 where λ is held
    units: tuple[float | None, ...] = static()

    @classmethod
    def around(cls, guess: Guess, holds_lam: bool = False) -> "Space":
        """The space whose origin is the guess, and whose λ is all the same where it is held."""
        of_lam = None if holds_lam else LAM_UNIT
        units = *_units(guess.kernel), of_lam
        if holds_lam:
            return cls((guess.kernel, np.asarray(guess.lam)), np.zeros_like(guess.floor), units)
        above = np.maximum(guess.lam - guess.floor, 1e-2 * guess.floor)
        return cls((guess.kernel, np.asarray(above)), np.asarray(guess.floor), units)

    def first(self, key: Any = None) -> list:
        """θ at the start, or moved at random, logarithms by a standard deviation of 1."""
        params = []
        for i, (unit, leaf) in enumerate(zip(self.units, jax.tree.leaves(self.guess), strict=True)):
            param = np.log(leaf) / unit if unit else leaf
            if key is not None:
                draw = jax.random.normal(jax.random.fold_in(key, i), np.shape(param), param.dtype)
                param = param + draw / (unit or 1)
            params.append(param)
        return params

    def without(self, params: list, places: list[int]) -> list:
        """θ with the scales at these places as small as they may become."""
        first = self.first()
        changed = list(params)
        for place in places:
            changed[place] = first[place] - REACH
        return changed

    def unpack(self, params: list) -> tuple[Kernel, Any]:
        """Kernel and λ at θ."""
        leaves, tree = jax.tree.flatten(self.guess)
        values = []
        for unit, guess, param in zip(self.units, leaves, params, strict=True):
            if unit:
                middle = jnp.log(guess)
                most = REACH * unit
                param = jnp.exp(jnp.clip(unit * param, middle - most, middle + most))
            values.append(guess if unit is None else param)
        kernel, above = jax.tree.unflatten(tree, values)
        return kernel, above + self.floor


class SearchOptions(NamedTuple):
    """How a search proceeds and when it ends: after `steps`, where ‖∇ log E‖∞ is below `tol`, or
    where three steps in a row gain less than a twentieth of `tol`; if the curvature is known from
    another search, at the first step that gains less than half of it.
    """

    optimizer: Any
    steps: int
    tol: float
    starts: int  # how many searches, the others from random multiples of the first start
    key: Any
    progress: bool
    holds_lam: bool = False  # whether λ stays that of the guesses


class Point(NamedTuple):
    """A point of a search: parameters, kernel and λ, with value and gradient there and the
    optimiser's state.
    """

    params: Any
    at: tuple[Kernel, Any]
    value: Any
    grad: Any
    state: Any

    @property
    def norm(self) -> Any:
        """‖∇ log E‖∞, NaN where the search cannot go on."""
        *leaves, slope = map(np.asarray, self.grad)
        return np.max([np.abs(g).max() for g in (*leaves, slope / LAM_UNIT) if np.size(g)])


class Tuned(NamedTuple):
    """The best point of a search, with the history of the walk that found it.

    `problem` is the one it minimised, and `learned` its last point, for the curvature there.
    """

    kernel: Kernel
    lam: np.ndarray
    history: History
    problem: Problem
    learned: Point


class Walk(NamedTuple):
    """All points of a descent, from the first on, and the space that it moves in; `goes_on` where
    its first point has the curvature of an earlier search.
    """

    points: list[Point]
    space: Space
    goes_on: bool = False

    @property
    def lowest(self) -> Point:
        """The point of the smallest value."""
        return min(self.points, key=lambda point: float(point.value))


def descend(
    problem: Problem, guesses: list[Guess], way: SearchOptions, learned: Point | None = None
) -> Tuned:
    """A search from the best of the guesses, and from random multiples of it where the way has more
    starts.

    The first guess is what the search was given. `learned` is the end of an earlier search, whose
    curvature is used if the last guess, where it ended, is the best.
    """
    with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
        of_likelihood = problem.criterion.is_likelihood
        if of_likelihood:
            way = way._replace(tol=_tolerance_per_row(problem, way.tol))
        guessed = [_first_of_walk(_around(guess, way), problem, way) for guess in guesses]
        start_value = guessed[0].lowest.value
        number = int(np.argmin([float(walk.lowest.value) for walk in guessed]))
        ends_earlier_search = number == len(guessed) - 1  # the last guess is where one ended
        best = guessed.pop(number)
        if learned is not None and ends_earlier_search and way.optimizer is default_optimizer():
            best = _with_curvature(learned, best)
        starts = [best, *_random_starts(best.space, problem, way)]
        if of_likelihood and problem.weights.count <= FEW_ROWS:
            starts += guessed
        walks = [_walk(start, problem, way) for start in starts]
        walk = min(walks, key=lambda walk: float(walk.lowest.value))
        words = ""
        if of_likelihood:
            walk, vanished = _past_vanished_scales(walk, problem, way)
            if vanished:
                words = f"; {vanished} of the kernel's scales vanished, as if it were 0"
        found = _best_of(walk.points, problem, way, start_value)
        reason = found.history.reason + words
        return found._replace(history=replace(found.history, reason=reason))


def _around(guess: Guess, way: SearchOptions) -> Space:
    """The space around a guess that the way searches."""
    return Space.around(guess, way.holds_lam)


def _tolerance_per_row(problem: Problem, tol: float) -> float:
    """A tolerance in nats of all rows as one of the error per row, which is searched, but no less
    than rounding.
    """
    rounding = float(jnp.finfo(problem.rows.dtype).eps) ** 0.5
    return max(tol / float(problem.weights.count), rounding)


def _first_of_walk(
    space: Space, problem: Problem, way: SearchOptions, key: PRNGKeyArray | None = None
) -> Walk:
    """A walk of its first point alone: the origin of the space, or with a key a random one."""
    point = first_point(space.first(key), space, problem, optimizer=way.optimizer)
    return Walk([point], space)


def _random_starts(space: Space, problem: Problem, way: SearchOptions) -> list[Walk]:
    """The starts besides the first, random multiples of the origin."""
    if way.starts == 1:
        return []
    keys = jax.random.split(way.key, way.starts)[1:]
    return [_first_of_walk(space, problem, way, key) for key in keys]


def _past_vanished_scales(walk: Walk, problem: Problem, way: SearchOptions) -> tuple[Walk, int]:
    """The walk, continued from its best point where scales of the kernel vanished, if that is
    better: with these raised, and with those that vanish again as good as 0. And how many vanished
    in the end.
    """
    space = walk.space
    value_of = lambda params: float(_value(params, space, problem))
    vanished = vanished_scales(walk.lowest.params, space, value_of, way.tol)
    if vanished:
        raised = with_scales_raised(walk.lowest.params, vanished, space, problem.rows)
        walk = _continued(walk, raised, problem, way)
        vanished = vanished_scales(walk.lowest.params, space, value_of, way.tol)
    if vanished:
        without = space.without(walk.lowest.params, vanished)
        walk = _continued(walk, without, problem, way)
    return walk, len(vanished)


def _continued(walk: Walk, params: list, problem: Problem, way: SearchOptions) -> Walk:
    """The walk, and one from these parameters with the steps that are left, if that gets lower."""
    left = way.steps - len(walk.points)
    if left < 0:
        return walk
    point = first_point(params, walk.space, problem, optimizer=way.optimizer)
    more = _walk(Walk([point], walk.space), problem, way._replace(steps=left))
    if more.lowest.value >= walk.lowest.value:
        return walk
    end = walk.points[-1]._replace(state=None)
    return Walk([*walk.points[:-1], end, *more.points], walk.space)


@jax.jit  # so that it is traced once for first points and for steps
def _value(params: Any, space: Any, problem: Problem) -> Float[Array, ""]:
    """What the search minimises, huge where it is not finite."""
    kernel, lam = space.unpack(params)
    error = problem.to_search(replace(problem, kernel=kernel).error(lam))
    return jnp.where(jnp.isfinite(error), error, jnp.asarray(_huge(problem), error.dtype))


def _huge(problem: Problem) -> float:
    """The value of a failure: large, but small enough that a line search can compute with it."""
    return float(jnp.finfo(problem.rows.dtype).max) ** 0.25


@compiled
def first_point(params: Any, space: Any, problem: Problem, *, optimizer: Any) -> Point:
    """A first point, with a new state, strongly typed as a step returns it: a weak type would
    compile the step twice.
    """
    value, grad = jax.value_and_grad(_value)(params, space, problem)
    strong = lambda a: jax.lax.convert_element_type(a, a.dtype)
    state = jax.tree.map(strong, optimizer.init(params))
    return Point(params, space.unpack(params), value, grad, state)


def _with_curvature(learned: Point, walk: Walk) -> Walk:
    """The first point with the state of L-BFGS as if the last step of another walk had ended there:
    the step, and the change of the gradient along it, are kept.

    With the next step optax forms s = params − state.params and y = gradient − state.updates, where
    `updates` is the gradient before: both are moved, so that s and y stay what they were.
    """
    from optax import tree_utils

    (point,) = walk.points

    def moved(name: str, end: list, new_end: list) -> Any:
        begin = tree_utils.tree_get(learned.state, name)
        return jax.tree.map(lambda a, b, c: jnp.asarray(a + (c - b), a.dtype), begin, end, new_end)

    params = moved("params", learned.params, point.params)
    updates = moved("updates", learned.grad, point.grad)
    state = tree_utils.tree_set(learned.state, params=params, updates=updates)
    return Walk([point._replace(state=state)], walk.space, goes_on=True)


@partial(compiled, often=True)
def step(point: Point, space: Any, problem: Problem, *, optimizer: Any) -> Point:
    """The point after one step, with the value and gradient there, which a line search keeps in its
    state.
    """
    import optax

    value_of = lambda params: _value(params, space, problem)
    extra = {"value": point.value, "grad": point.grad, "value_fn": value_of}
    update = optax.with_extra_args_support(optimizer).update
    updates, state = update(point.grad, point.state, point.params, **extra)
    params = optax.apply_updates(point.params, updates)
    value, grad = (optax.tree_utils.tree_get(state, name) for name in ("value", "grad"))
    if value is None or grad is None:
        value, grad = jax.value_and_grad(value_of)(params)
    return Point(params, space.unpack(params), value, grad, state)


def _walk(first: Walk, problem: Problem, way: SearchOptions) -> Walk:
    """The descent from a first point, until it has converged, or steps gain too little: three in a
    row, or one where it goes on from another search.
    """
    patience = 1 if first.goes_on else 3
    least = 0.5 * way.tol if first.goes_on else 0.05 * way.tol
    (point,) = first.points
    visited = [point]
    stalled = 0
    with progress_bar(way.progress, way.steps, "tune", "step") as reached:
        while len(visited) <= way.steps and point.norm > way.tol and stalled < patience:
            before = point
            point = step(point, first.space, problem, optimizer=way.optimizer)
            gain = float(before.value) - float(point.value)
            stalled = stalled + 1 if abs(gain) <= least else 0
            visited[-1] = before._replace(state=None)  # which holds ten gradients
            visited.append(point)
            reached(len(visited) - 1)
    return Walk(visited, first.space)


def _best_of(visited: list[Point], problem: Problem, way: SearchOptions, start_value: Any) -> Tuned:
    """The best of all points, with the history."""
    values = np.array([point.value for point in visited])
    norms = np.array([point.norm for point in visited])
    if not (values < _huge(problem)).any():
        wider = ", or float64" if problem.rows.dtype == np.float32 else ""
        raise ValueError(
            f"the error is not finite at the start: use a larger lam, or a smaller width{wider}"
        )
    best = int(np.argmin(values))
    points = jax.device_get([point.at for point in visited])
    kernels, lams = jax.tree.map(lambda *a: on_device(np.stack(a)), *points)
    error_of = lambda value: on_device(problem.from_search(np.asarray(value)))
    # At the best point, or at a later one that is nearly as good.
    near = values[best:] <= values[best] + 0.05 * way.tol
    converged = bool((near & (norms[best:] <= way.tol)).any())
    reason = "gradient norm below tol" if converged else _why_not(norms, way)
    start = error_of(start_value)
    history = History(error_of(values), on_device(norms), lams, kernels, start, converged, reason)
    kernel, lam = jax.tree.map(on_device, points[best])
    return Tuned(kernel, lam, history, problem, visited[-1])


def _why_not(norms: np.ndarray, way: SearchOptions) -> str:
    """Why a search ended that did not converge."""
    if not norms[-1] > way.tol:
        return "the search left for where the gradient vanishes or is not finite"
    used = len(norms) - 1
    return f"all {used} steps used" if used == way.steps else "no further progress"
