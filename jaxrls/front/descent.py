"""`descend` searches for the best kernel and λ of one problem by gradients, from the best guess.

A search minimises over parameters θ. They are mostly logarithms of kernel parameters and of λ less
the floor. `Space` translates θ to kernel and λ. Begin with `descend`; `step` is one step of the
optimiser.
"""

from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import compiled
from jaxrls.core.fit import Problem
from jaxrls.core.kernels import Kernel, Scaled
from jaxrls.core.support import on_device, progress_bar, pytree, static
from jaxrls.front.history import History
from jaxrls.front.start import Guess, Guesses
from jaxrls.front.vanished import vanished_scales, with_scales_raised

# A logarithm may move by 16 of its units from the start, that is, a width by a factor of
# e^16 ≈ 9·10⁶ either way. Further away, K is 0 or constant to rounding.
REACH = 16.0
# The unit of log λ: a width times e changes errors about as much as λ times e³.
LAM_UNIT = 3.0
# With at most this many rows, likelihoods have several minima and plateaus. So a search begins at
# every guess.
FEW_ROWS = 100


@cache
def default_optimizer() -> Any:
    """Return L-BFGS with a line search for the strong Wolfe conditions, of at most 12 evaluations.

    Every call returns the same object, so that a second search does not compile again.
    """
    # Imported here, as it takes a third of the package's import time, and only `tune` needs it.
    import optax

    search = optax.scale_by_zoom_linesearch(max_linesearch_steps=12, initial_guess_strategy="one")
    return optax.lbfgs(memory_size=10, linesearch=search)


class Leaf(NamedTuple):
    """How a search treats one leaf of the kernel, or λ.

    * "log": it moves the logarithm, in units of `unit`.
    * "plain": it moves the parameter itself.
    * "fixed": the parameter stays as it is, such as an offset that is at its limit 0.
    """

    kind: Literal["log", "plain", "fixed"]
    unit: float = 1.0
    is_scale: bool = False  # whether it is the number a of a part `a * k` of the kernel


def _leaves_of(kernel: Kernel) -> list[Leaf]:
    """Return a `Leaf` for each leaf of the kernel, in the order of `jax.tree.leaves`."""
    leaves: list[Leaf] = []
    for f in fields(kernel):  # type: ignore[arg-type]
        value = getattr(kernel, f.name)
        if isinstance(value, Kernel):
            leaves += _leaves_of(value)
        elif f.name in kernel.constants:
            leaves += [Leaf("fixed")] * len(jax.tree.leaves(value))
        elif not f.metadata.get("static"):
            for numbers in jax.tree.leaves(value):
                kind = _kind_of(numbers) if f.name in kernel.positive else "plain"
                leaves.append(Leaf(kind, is_scale=isinstance(kernel, Scaled)))
    return leaves


def _kind_of(numbers: Any) -> Literal["log", "fixed"]:
    """Return how a search treats a positive parameter: a parameter at its limit 0 is fixed."""
    return "log" if np.all(np.asarray(numbers) > 0) else "fixed"


@pytree
class Space:
    """The space of parameters θ of a search, with its start, and the map from θ to kernel and λ.

    θ has an array for each leaf of the kernel and one for λ, as `leaves` describes them. If λ is
    held, its leaf is "fixed", and `floor` is 0.
    """

    kernel: Kernel  # at the start
    above_floor: Any  # λ − floor at the start
    floor: Any  # the precision of K, which λ stays above; 0 if λ is held
    leaves: tuple[Leaf, ...] = static()

    @classmethod
    def around(cls, guess: Guess, holds_lam: bool = False) -> "Space":
        """Return the space of a search that starts at the guess, and that moves λ unless held."""
        leaves = _leaves_of(guess.kernel)
        if holds_lam:
            lam = np.asarray(guess.lam)
            return cls(guess.kernel, lam, np.zeros_like(guess.floor), (*leaves, Leaf("fixed")))
        above = np.maximum(guess.lam - guess.floor, 1e-2 * guess.floor)
        leaves.append(Leaf("log", LAM_UNIT))
        return cls(guess.kernel, np.asarray(above), np.asarray(guess.floor), tuple(leaves))

    @property
    def start(self) -> tuple[Kernel, Any]:
        """The kernel and λ − floor at the start, whose leaves `leaves` describes."""
        return self.kernel, self.above_floor

    def first(self, key: Any = None) -> list:
        """Return θ at the start of the search, or with a random key near it.

        With a key, a normal draw of standard deviation 1 is added to each logarithm, and to each
        parameter that is searched without logarithm. Fixed parameters get a draw too, and `unpack`
        ignores it.
        """
        params = []
        starts = jax.tree.leaves(self.start)
        for i, (leaf, start) in enumerate(zip(self.leaves, starts, strict=True)):
            param = np.log(start) / leaf.unit if leaf.kind == "log" else start
            if key is not None:
                draw = jax.random.normal(jax.random.fold_in(key, i), np.shape(param), param.dtype)
                param = param + draw / leaf.unit
            params.append(param)
        return params

    def without(self, params: list, places: list[int]) -> list:
        """Return θ with the scales of the kernel at these places as small as they may become."""
        first = self.first()
        changed = list(params)
        for place in places:
            changed[place] = first[place] - REACH
        return changed

    def unpack(self, params: list) -> tuple[Kernel, Any]:
        """Return the kernel and λ at θ."""
        starts, tree = jax.tree.flatten(self.start)
        values = []
        for leaf, start, param in zip(self.leaves, starts, params, strict=True):
            if leaf.kind == "log":
                middle = jnp.log(start)
                most = REACH * leaf.unit
                values.append(jnp.exp(jnp.clip(leaf.unit * param, middle - most, middle + most)))
            else:
                values.append(start if leaf.kind == "fixed" else param)
        kernel, above_floor = jax.tree.unflatten(tree, values)
        return kernel, above_floor + self.floor


class SearchOptions(NamedTuple):
    """The options of a search by `tune`: how it proceeds, and when it ends.

    It ends at the first of these:

    * it has made `steps` steps;
    * ‖∇ log E‖∞ is below `tol`;
    * a few steps in a row change log E by little, as its `Patience` says.

    For a likelihood, E per row takes the place of log E. `tol` is then in nats of all rows, and
    `descend` converts it.
    """

    optimizer: Any
    steps: int
    tol: float
    starts: int  # how many searches; all but the first begin at random multiples of its start
    key: Any  # the JAX random key of these multiples
    progress: bool
    holds_lam: bool = False  # whether λ stays that of the guesses


class Point(NamedTuple):
    """A point of a search, with all that the next step needs."""

    params: Any  # the parameters θ
    at: tuple[Kernel, Any]  # kernel and λ at θ
    value: Any  # what the search minimises, at θ
    grad: Any  # the gradient of the value in θ
    state: Any  # the state of the optimiser, None where it is no longer needed

    @property
    def norm(self) -> Any:
        """The largest absolute slope, ‖∇ log E‖∞; NaN if a slope is NaN.

        θ holds log (λ − floor) divided by its unit, so its slope is divided by the unit too.
        """
        *leaves, slope = map(np.asarray, self.grad)
        return np.max([np.abs(g).max() for g in (*leaves, slope / LAM_UNIT) if np.size(g)])


class Patience(NamedTuple):
    """How long a search goes on that makes no progress.

    It ends after so many `steps` in a row of which each changes the value by at most `share` of the
    tolerance.
    """

    steps: int
    share: float


PATIENCE = Patience(steps=3, share=0.05)
# The same for a search that begins with the curvature of an earlier one.
PATIENCE_WITH_CURVATURE = Patience(steps=1, share=0.5)


class Walk(NamedTuple):
    """The state of a search: where it has been so far, and how it goes on.

    Args:
        problem: the problem, whose kernel the search replaces.
        options: the options of the search.
        space: the space in which the points lie.
        points: the points in order, from the first to the one where the search is now.
        patience: how long the search goes on that makes no progress.
        stalled: how many of the last steps in a row have changed the value by little.
    """

    problem: Problem
    options: SearchOptions
    space: Space
    points: list[Point]
    patience: Patience = PATIENCE
    stalled: int = 0

    @property
    def lowest(self) -> Point:
        """The point of the smallest value."""
        return min(self.points, key=lambda point: float(point.value))

    @property
    def goes_on(self) -> bool:
        """Whether no condition of `SearchOptions` ends the search yet."""
        within_steps = len(self.points) <= self.options.steps
        is_steep = bool(self.points[-1].norm > self.options.tol)
        return within_steps and is_steep and self.stalled < self.patience.steps


class Tuned(NamedTuple):
    """The result of `descend`: the best kernel and λ, and the history of the walk that found them.

    `problem` is the problem that was searched. `last_point` is the last point of the walk, from
    which a later search takes the curvature.
    """

    kernel: Kernel
    lam: np.ndarray
    history: History
    problem: Problem
    last_point: Point


def descend(
    problem: Problem, guesses: Guesses, options: SearchOptions, last_point: Point | None = None
) -> Tuned:
    """Search for the best kernel and λ, from the best of the guesses.

    If `options.starts` is above 1, further searches begin at random multiples of the best guess. A
    likelihood of few rows is also searched from every other guess. The best result is kept.

    Args:
        problem: the problem, whose kernel the search replaces.
        guesses: kernels and λ at which the search may start.
        options: options of the search.
        last_point: the last point of an earlier search, which ended at the kernel of
            `guesses.best`; None for nothing. If no guess is better here, the search begins with the
            curvature there.

    Returns:
        The best kernel and λ, with the history.
    """
    with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
        of_likelihood = problem.criterion.is_likelihood
        if of_likelihood:
            options = options._replace(tol=_tolerance_per_row(problem, options.tol))
        if problem.criterion.needs_unit and problem.error_unit is None:
            problem = problem.in_units_of(_begun_at(guesses.given, problem, options).lowest.value)
        at_guesses = [_begun_at(guess, problem, options) for guess in guesses.all]
        starts = _starts(at_guesses, last_point)
        walks = [_walked(start) for start in starts]
        best = min(walks, key=_lowest_value)
        words = ""
        if of_likelihood:
            best, vanished = _with_scales_revived(best)
            if vanished:
                words = f"; {vanished} of the kernel's scales vanished, as if it were 0"
        return _tuned(best, start_value=at_guesses[0].lowest.value, words=words)


def _tolerance_per_row(problem: Problem, tol: float) -> float:
    """Return the tolerance of the error per row, from a tolerance in nats of all rows.

    The search minimises the error per row. The result is at least √eps, the size of rounding.
    """
    rounding = float(jnp.finfo(problem.rows.dtype).eps) ** 0.5
    return max(tol / float(problem.weights.count), rounding)


def _lowest_value(walk: Walk) -> float:
    """Return the smallest value of a walk."""
    return float(walk.lowest.value)


# where searches begin
# --------------------------------------------------------------------------------------------------


def _begun_at(guess: Guess, problem: Problem, options: SearchOptions) -> Walk:
    """Return the search that begins at a guess, in a space around it, before its first step."""
    space = Space.around(guess, options.holds_lam)
    return _begun(space.first(), space, problem, options)


def _begun(params: list, space: Space, problem: Problem, options: SearchOptions) -> Walk:
    """Return the search that begins at θ, before its first step."""
    point = first_point(params, space, problem, optimizer=options.optimizer)
    return Walk(problem, options, space, [point])


def _starts(at_guesses: list[Walk], last_point: Point | None) -> list[Walk]:
    """Return the searches to run, before their first steps. The first begins at the best guess.

    Args:
        at_guesses: a search at each guess, in the order of `Guesses.all`.
        last_point: as in `descend`.
    """
    best = min(at_guesses, key=_lowest_value)
    problem = best.problem
    options = best.options
    continues = best is at_guesses[-1]  # the guess at which the earlier search ended
    first = best
    if last_point is not None and continues and _has_curvature(last_point, options):
        first = _with_curvature(best, last_point)
    starts = [first]
    if options.starts > 1:
        for key in jax.random.split(options.key, options.starts)[1:]:
            starts.append(_begun(best.space.first(key), best.space, problem, options))
    # A likelihood of few rows may have several minima: every other guess is a start too.
    if problem.criterion.is_likelihood and problem.weights.count <= FEW_ROWS:
        starts += [walk for walk in at_guesses if walk is not best]
    return starts


def _has_curvature(last_point: Point, options: SearchOptions) -> bool:
    """Whether the default optimiser made steps up to this point, where its slopes are finite."""
    from optax import tree_utils

    if options.optimizer is not default_optimizer() or not np.isfinite(last_point.norm):
        return False
    return bool(tree_utils.tree_get(last_point.state, "count") > 0)


def _with_curvature(walk: Walk, last_point: Point) -> Walk:
    """Return a walk of one point with the L-BFGS state of `last_point`, the end of another walk.

    At the next step, optax computes the pair

        s = params − state.params
        y = gradient − state.updates, where `updates` is the gradient one step before

    The pair of the last step of the other walk shall stay as it is. So `state.params` is moved by
    the difference of the parameters of the two points, and `state.updates` by the difference of
    their gradients.
    """
    from optax import tree_utils

    (point,) = walk.points

    def moved(name: str, end: list, new_end: list) -> Any:
        begin = tree_utils.tree_get(last_point.state, name)
        return jax.tree.map(lambda a, b, c: jnp.asarray(a + (c - b), a.dtype), begin, end, new_end)

    params = moved("params", last_point.params, point.params)
    updates = moved("updates", last_point.grad, point.grad)
    state = tree_utils.tree_set(last_point.state, params=params, updates=updates)
    point = point._replace(state=state)
    return walk._replace(points=[point], patience=PATIENCE_WITH_CURVATURE)


# steps
# --------------------------------------------------------------------------------------------------


def _walked(walk: Walk) -> Walk:
    """Return the search at its end, after one step after another."""
    options = walk.options
    with progress_bar(options.progress, options.steps, "tune", "step") as reached:
        while walk.goes_on:
            walk = _after_step(walk)
            reached(len(walk.points) - 1)
    return walk


def _after_step(walk: Walk) -> Walk:
    """Return the search after one more step."""
    options = walk.options
    *earlier, before = walk.points
    point = step(before, walk.space, walk.problem, optimizer=options.optimizer)
    change = abs(float(before.value) - float(point.value))
    is_little = change <= walk.patience.share * options.tol
    before = before._replace(state=None)  # a state holds ten gradients
    return walk._replace(
        points=[*earlier, before, point],
        stalled=walk.stalled + 1 if is_little else 0,
    )


@partial(compiled, often=True)
def step(point: Point, space: Any, problem: Problem, *, optimizer: Any) -> Point:
    """Return the point after one step of the optimiser.

    A line search keeps the value and gradient of the new point in its state. If the state has none,
    they are computed.
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


@compiled
def first_point(params: Any, space: Any, problem: Problem, *, optimizer: Any) -> Point:
    """Return the point at θ with a new state of the optimiser.

    The state is strongly typed, as a step returns it. A weak type would compile the step twice.
    """
    value, grad = jax.value_and_grad(_value)(params, space, problem)
    strong = lambda a: jax.lax.convert_element_type(a, a.dtype)
    state = jax.tree.map(strong, optimizer.init(params))
    return Point(params, space.unpack(params), value, grad, state)


@jax.jit  # so that it is traced only once, for first points and for steps
def _value(params: Any, space: Any, problem: Problem) -> Float[Array, ""]:
    """Return what the search minimises at θ, and a huge number if that is not finite."""
    kernel, lam = space.unpack(params)
    error = problem.to_search(replace(problem, kernel=kernel).error(lam))
    return jnp.where(jnp.isfinite(error), error, jnp.asarray(_huge(problem), error.dtype))


def _huge(problem: Problem) -> float:
    """Return the value of a failure: large, but a line search can still compute with it."""
    return float(jnp.finfo(problem.rows.dtype).max) ** 0.25


# scales that vanished
# --------------------------------------------------------------------------------------------------


def _with_scales_revived(walk: Walk) -> tuple[Walk, int]:
    """Try to improve a walk whose best kernel has vanished scales; return it and their number.

    A scale vanished if the likelihood is the same without its part of the kernel (`vanished.py`).
    Its slope is then 0, though a large scale may be better. So the walk is continued from its best
    point in two ways, and each continuation is kept only if it gets lower:

    1. with the vanished scales raised;
    2. with the scales that vanish in spite of this as small as they may become.
    """
    space = walk.space
    problem = walk.problem
    value_of = lambda params: float(_value(params, space, problem))
    vanished = vanished_scales(walk.lowest.params, space, value_of, walk.options.tol)
    if vanished:
        raised = with_scales_raised(walk.lowest.params, vanished, space, problem.rows)
        walk = _continued(walk, raised)
        vanished = vanished_scales(walk.lowest.params, space, value_of, walk.options.tol)
    if vanished:
        without = space.without(walk.lowest.params, vanished)
        walk = _continued(walk, without)
    return walk, len(vanished)


def _continued(walk: Walk, params: list) -> Walk:
    """Return the walk, continued from these parameters if a walk from there gets lower.

    The continuation has the steps that the walk left of `options.steps`.
    """
    left = walk.options.steps - len(walk.points)
    if left < 0:
        return walk
    options = walk.options._replace(steps=left)
    more = _walked(_begun(params, walk.space, walk.problem, options))
    if _lowest_value(more) >= _lowest_value(walk):
        return walk
    end = walk.points[-1]._replace(state=None)
    return walk._replace(points=[*walk.points[:-1], end, *more.points])


# the end
# --------------------------------------------------------------------------------------------------


def _tuned(walk: Walk, start_value: Any, words: str) -> Tuned:
    """Return the best of all points, with the history of the walk.

    Args:
        walk: the search at its end.
        start_value: the value at the kernel that was given, the first of `Guesses.all`.
        words: what to add to the reason why the search ended.
    """
    problem = walk.problem
    options = walk.options
    values = np.array([point.value for point in walk.points])
    norms = np.array([point.norm for point in walk.points])
    if not (values < _huge(problem)).any():
        wider = ", or float64" if problem.rows.dtype == np.float32 else ""
        raise ValueError(
            f"the error is not finite at the start: use a larger lam, or a smaller width{wider}"
        )
    best = int(np.argmin(values))
    points = jax.device_get([point.at for point in walk.points])
    kernels, lams = jax.tree.map(lambda *a: on_device(np.stack(a)), *points)
    error_of = lambda value: on_device(problem.from_search(np.asarray(value)))
    # The gradient may be small at the best point, or at a later one that is nearly as good.
    near = values[best:] <= values[best] + 0.05 * options.tol
    converged = bool((near & (norms[best:] <= options.tol)).any())
    reason = "gradient norm below tol" if converged else _why_not(norms, options)
    history = History(
        error_of(values),
        on_device(norms),
        lams,
        kernels,
        start_error=error_of(start_value),
        converged=converged,
        reason=reason + words,
    )
    kernel, lam = jax.tree.map(on_device, points[best])
    return Tuned(kernel, lam, history, problem, walk.points[-1])


def _why_not(norms: np.ndarray, options: SearchOptions) -> str:
    """Return in words why a search ended without convergence."""
    if not norms[-1] > options.tol:
        return "the search left for where the gradient vanishes or is not finite"
    used = len(norms) - 1
    return f"all {used} steps used" if used == options.steps else "no further progress"
