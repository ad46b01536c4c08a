"""One gradient search on one problem, from the best of several starting points."""

from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

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
    floor: Any  # λ stays above the precision of K
    units: tuple[float | None, ...] = static()

    @classmethod
    def around(cls, guess: Guess) -> "Space":
        """The space whose origin is the guess."""
        above = np.maximum(guess.lam - guess.floor, 1e-2 * guess.floor)
        units = *_units(guess.kernel), LAM_UNIT
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


def descend(
    problem: Problem, guesses: list, way: SearchOptions, learned: Point | None = None
) -> Tuned:
    """A search from the best of the guesses, and from random multiples of it where the way has more
    starts.

    The first guess is what the search was given. `learned` is the end of an earlier search, whose
    curvature is used if the last guess, where it ended, is the best.
    """
    with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
        begin = lambda space, key=None: (
            first_point(space.first(key), space, problem, optimizer=way.optimizer),
            space,
        )
        guessed = [begin(Space.around(guess)) for guess in guesses]
        best = min(guessed, key=lambda pair: float(pair[0].value))
        point, space = best
        carries = learned is not None and best is guessed[-1]
        carries = carries and way.optimizer is default_optimizer()
        starts = [(_with_curvature(learned, point) if carries else point, space)]  # type: ignore[arg-type]
        if way.starts > 1:
            starts += [begin(space, key) for key in jax.random.split(way.key, way.starts)[1:]]
        if problem.criterion.unit == "nats":
            # Of all rows, as nats are, down to rounding.
            rounding = jnp.finfo(problem.rows.dtype).eps ** 0.5
            n = problem.weights.count
            way = way._replace(tol=float(max(way.tol / n, rounding)))  # type: ignore[arg-type]
            few = n <= FEW_ROWS
            starts += [pair for pair in guessed if few and pair is not best]
        walks = [_walk(*pair, problem, way, carries and pair is starts[0]) for pair in starts]
        best_of = lambda walk: min(float(point.value) for point in walk)
        number = min(range(len(walks)), key=lambda number: best_of(walks[number]))
        walk = walks[number]
        words = ""
        if problem.criterion.unit == "nats":
            space = starts[number][1]
            walk, vanished = _past_vanished_scales(walk, space, problem, way)
            words = (
                f"; {vanished} of the kernel's scales vanished, as if it were 0" if vanished else ""
            )
        at_given, _ = guessed[0]
        found = _best_of(walk, problem, way, at_given.value)
        reason = found.history.reason + words
        return found._replace(history=replace(found.history, reason=reason))


def _past_vanished_scales(
    walk: list[Point], space: Space, problem: Problem, way: SearchOptions
) -> tuple[list[Point], int]:
    """The walk, continued from its best point where scales of the kernel vanished, if that is
    better: with these raised, and with those that vanish again as good as 0. And how many vanished
    in the end.
    """
    lowest = lambda walk: min(walk, key=lambda point: float(point.value))
    value_of = lambda params: float(_value(params, space, problem))
    vanished_in = lambda walk: vanished_scales(lowest(walk).params, space, value_of, way.tol)

    def continued(walk: list[Point], params: list) -> list[Point]:
        left = way.steps - len(walk)
        if left < 0:
            return walk
        point = first_point(params, space, problem, optimizer=way.optimizer)
        more = _walk(point, space, problem, way._replace(steps=left), False)
        better = lowest(more).value < lowest(walk).value
        return [*walk[:-1], walk[-1]._replace(state=None), *more] if better else walk

    vanished = vanished_in(walk)
    if vanished:
        raised = with_scales_raised(lowest(walk).params, vanished, space, problem.rows)
        walk = continued(walk, raised)
        vanished = vanished_in(walk)
    if vanished:
        walk = continued(walk, space.without(lowest(walk).params, vanished))
    return walk, len(vanished)


@jax.jit  # so that it is traced once for first points and for steps
def _value(params: Any, space: Any, problem: Problem) -> Float[Array, ""]:
    """What the search minimises, huge where it is not finite."""
    kernel, lam = space.unpack(params)
    error = problem.criterion.to_search(replace(problem, kernel=kernel).error(lam), len(problem.Y))
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


def _with_curvature(learned: Point, point: Point) -> Point:
    """The point with the state of L-BFGS as if its last step had ended there: the step, and the
    change of the gradient along it, are kept.
    """
    from optax import tree_utils

    def moved(name: str, end: list, new_end: list) -> Any:
        begin = tree_utils.tree_get(learned.state, name)
        return jax.tree.map(lambda a, b, c: jnp.asarray(a + (c - b), a.dtype), begin, end, new_end)

    params = moved("params", learned.params, point.params)
    updates = moved("updates", learned.grad, point.grad)
    state = tree_utils.tree_set(learned.state, params=params, updates=updates)
    return point._replace(state=state)


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


def _walk(
    point: Point, space: Space, problem: Problem, way: SearchOptions, carries: bool
) -> list[Point]:
    """All points of the descent from there."""
    patience, least = (1, 0.5) if carries else (3, 0.05)
    visited = [point]
    stalled = 0
    with progress_bar(way.progress, way.steps, "tune", "step") as reached:
        while len(visited) <= way.steps and point.norm > way.tol and stalled < patience:
            before = point
            point = step(point, space, problem, optimizer=way.optimizer)
            gain = float(before.value) - float(point.value)
            stalled = stalled + 1 if abs(gain) <= least * way.tol else 0
            visited[-1] = before._replace(state=None)  # which holds ten gradients
            visited.append(point)
            reached(len(visited) - 1)
    return visited


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
    error_of = lambda value: on_device(
        problem.criterion.from_search(np.asarray(value), len(problem.Y))
    )
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
