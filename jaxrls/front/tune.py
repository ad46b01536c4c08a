"""`tune`, which searches for kernel parameters and λ by the exact gradient of a validation error.

It reads its arguments into a `Problem` (`read.py`), chooses where to start (`start.py`), and
descends (`descent.py`). If rounding spoils the end, it goes on at larger λ.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.criteria import Criterion, loo
from jaxrls.core.data import compiled, kind_of
from jaxrls.core.fit import Choice, Chosen, Fitted, Given, Grid, Problem, Result, result_at
from jaxrls.core.support import (
    as_lams,
    check_whole,
    column_names,
    on_device,
    progress_bar,
    public_call,
    require_values,
    target_names,
    warn,
)
from jaxrls.front.attempt import Attempt
from jaxrls.front.descent import SearchOptions, Tuned, default_optimizer, descend
from jaxrls.front.finish import finish
from jaxrls.front.fit import compute_and_inspect
from jaxrls.front.fitted import Fit, K
from jaxrls.front.history import History
from jaxrls.front.inspection import EQUAL_LABELS, labels_are_equal, rounding_in_words
from jaxrls.front.memory import of_problem
from jaxrls.front.plan import Request, Search, keeps, may_do_without_k, solver_without_k
from jaxrls.front.read import read_problem
from jaxrls.front.rounding import Rounding, is_as_good, is_below_floor, rounding_of
from jaxrls.front.sampling import padded, sample_of
from jaxrls.front.start import SCREEN_LAMS, Guess, Guesses, first_guesses

# How many rows a search may begin on. They are enough to distinguish widths.
SAMPLE_ROWS = 4000
CANNOT_GROW = (
    f"grow=True needs landmarks, more than {2 * SAMPLE_ROWS} rows, a criterion without groups or "
    "pairs, and no fixed_effects=: leave it out"
)


@public_call(data="X")
def tune(
    kernel: K | str,
    X: Any,
    Y: Any = None,
    *,
    lams: Any = None,
    criterion: Criterion | Callable | str = loo,
    groups: Any = None,
    weights: Any = None,
    intercept: bool = True,
    fixed_effects: Any = None,
    standardize: bool = False,
    landmarks: Any = None,
    optimizer: Any = None,
    steps: int = 50,
    tol: float = 2e-3,
    start: str = "screen",
    starts: int = 1,
    key: Any = None,
    grow: bool | None = None,
    keep: bool | None = None,
    block_size: int | None = None,
    progress: bool = False,
) -> Fit[K]:
    """Tune every kernel parameter and λ together, by the exact gradient of the leave-one-out error.

    It minimises log E(θ, λ) over the logarithms of λ and of all positive parameters (widths,
    scales, α, periods, offsets). The parameters of a `FeatureMap` or `FunctionKernel` are searched
    without logarithms. `Gaussian(jnp.ones(d))` tunes one width per column (automatic relevance
    determination). A sum of `aₖ * kₖ.on(columns)` tunes the weights of several kernels (banded
    ridge).

    Args:
        kernel: the kernel to start from; or a name, as in `fit`.
        X: rows (n, d), dense.
        Y: labels (n,) or (n, t).
        lams: λ (L,), by default a grid; the search starts from the best of them. Or one number,
            such as `lams=0.1`: λ is held there, and only the kernel is tuned, for those who know
            their noise. By a likelihood, λ is then the variance of the noise in units of the
            labels, if a number multiplies the kernel. Otherwise it is the ratio of this variance to
            τ², which the likelihood estimates.
        criterion: as in `fit`; its loss needs a gradient. If it is the evidence or another
            likelihood, it estimates the variance τ² of the prior, as a mean over targets. If a
            number multiplies the kernel, or every part of a sum, then these numbers and λ are
            multiplied by τ². They are then variances in units of the labels.
        groups, weights, intercept, fixed_effects, standardize, keep, block_size: as in `fit`.
        landmarks: the number of landmarks, or row numbers, or points, for more rows than K can be
            factored for. A number of landmarks is chosen with the best kernel known at the start.
            Landmarks stay fixed. If there are none, and K cannot be factored, the kernel is tuned
            on 4000 of the rows, and then fitted to all rows, as `fit` does.
        optimizer: an optimiser of optax, by default L-BFGS.
        steps: the largest number of steps.
        tol: the tolerance. A search ends if ‖∇ log E‖∞ is below it, or if three steps in a row
            change log E by less than tol/20. A search that goes on from the end of another, with
            `grow` or at larger λ, ends at the first step that changes log E by less than tol/2, if
            the optimiser is the default. For the evidence, E in nats of all rows takes the place of
            log E. For a criterion of your own it is E divided by its size at the start.
        start: how to find the first kernel. The given kernel itself is always among the candidates.
            With a likelihood and at most 100 rows, another search begins at it. One of:

            * `"screen"`: multiply all widths by the best of seven factors from 1/16 to 16, judged
              on at most 300 rows. A single width without landmarks is then refined in smaller
              steps, judged on 1200 rows.
            * `"data"`: set widths to the median distance.
            * `"kernel"`: leave widths as they are.
        starts: how many searches to run, one after another. The first begins at the first
            parameters, the others at random multiples of them (needs `key`). The best is kept.
        key: a JAX random key.
        grow: whether to search in stages: on a sample of the rows with fewer landmarks, then on
            sixteen rows for each landmark, then on all rows. If the number of landmarks was given,
            each stage chooses its own. By default only if a step on all rows is expensive, and
            never for groups or pairs.
        progress: whether to show progress bars (needs tqdm).

    Returns:
        A `Fit` at the best kernel and λ found, which on the rows of the search are never worse than
        the start. Its `history` is that of the search on all rows, and `history.stages` has the
        searches before it. If the kernel was tuned on 4000 of the rows, `history` is that of the
        search on these, and the fit to all rows has a λ of its own, unless λ is held. If a
        likelihood is largest without some parts of a sum of kernels, `history.reason` says that
        their scales vanished. Large values of these scales were tried too.

    Raises:
        ValueError: as `fit`; for a criterion whose derivative is 0 everywhere; for a whole number
            as `lams`, which `fit` takes for how many; and where λ is held, and a criterion is told
            to estimate τ² beside a number that multiplies the kernel.

    The search may end so near the precision of K that rounding changes held-out residuals of single
    rows. Then it goes on at larger λ. Its new end is kept if the error there is at most 1 % larger,
    plus a tenth of the share by which rounding may move the residuals.

    **Warns** if the search ends at a λ below the precision of the factor, or so near it that
    residuals of single rows may be off by more than 2 % (in float32 10 %). It also warns if the
    best of `lams` is below the precision.
    **Cost** a step is one or a few values with gradients of `objective`: one Cholesky factor and
    about three products each, for every start, in four n×n arrays; O(n m²) on m landmarks.
    **Fails**: error surfaces have several minima: use `starts`. **Source**: Rasmussen and Williams
    2006, §5.4.2, with the exact squared LOO error in place of the predictive probability.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> tuned = rls.tune(rls.Gaussian(width=5.0), X, y, steps=20)
    >>> bool(tuned.error < tuned.history.start_error)
    True
    >>> float(rls.tune(rls.Gaussian(width=5.0), X, y, lams=0.1, steps=5).lam)
    0.1
    """
    if not kind_of(X).is_dense:
        raise ValueError(
            "tune needs a dense X: pass X.toarray(), or fit(kernel, X), which takes sparse rows"
        )
    problem = read_problem(
        kernel,
        X,
        Y,
        criterion=criterion,
        groups=groups,
        weights=weights,
        intercept=intercept,
        fixed_effects=fixed_effects,
        standardize=standardize,
        landmarks=landmarks,
        block_size=block_size,
    )
    optimizer = optimizer or default_optimizer()
    holds_lam = lams is not None and np.ndim(lams) == 0 and not isinstance(lams, str)
    options = SearchOptions(optimizer, steps, tol, starts, key, progress, holds_lam)
    _check(problem, options, start)
    if holds_lam:
        _check_held(lams, criterion, problem)
        problem = replace(problem, criterion=_with_noise_known(problem))
        lams = np.reshape(lams, 1)
    dtype = problem.rows.dtype
    to_try: Given | Grid = SCREEN_LAMS if lams is None else Given(as_lams(lams, dtype))
    on_sample = _begins_on_sample(problem, keep)
    searched = sample_of(problem, SAMPLE_ROWS).problem if on_sample else problem
    searched = replace(searched, solver=searched.solver_or_default.differentiable())
    with progress_bar(
        progress, 1, "tune: where to start; a first call compiles", "start"
    ) as reached:
        guesses = _beginning(searched, start, to_try, near=landmarks is None, held=holds_lam)
        reached(1)
    attempt, history = _search(searched, guesses, options, grow)
    if on_sample:
        request = Request(to_try if holds_lam else Search(), keep=keep)
        attempt = _fitted_to_all_rows(problem, attempt, request, progress)
    elif not keeps(attempt.problem, keep):
        attempt = attempt._replace(solution=None)
    targets = target_names(X, Y)
    return finish(attempt, column_names(X), targets, saved=bool(keep), history=history)


# many rows
# --------------------------------------------------------------------------------------------------


def _begins_on_sample(problem: Problem, keep: bool | None) -> bool:
    """Whether the search runs on a sample of the rows, as a gradient on all of K is too large."""
    if not may_do_without_k(problem, keep):
        return False
    memory_of_k = of_problem(problem, call="gradient")
    return solver_without_k(problem, memory_of_k, may_change_lams=True) is not None


def _fitted_to_all_rows(
    problem: Problem, of_sample: Attempt, request: Request, progress: bool
) -> Attempt:
    """Compute the fit to all rows with the kernel that was found on a sample of them."""
    problem = replace(problem, kernel=of_sample.problem.kernel)
    (how_tuned,) = of_sample.words
    attempt = compute_and_inspect(problem, request, progress)
    return attempt._replace(words=(f"{how_tuned}, on {SAMPLE_ROWS} rows", *attempt.words))


# λ at the start
# --------------------------------------------------------------------------------------------------


def _check_held(lams: Any, criterion: Any, problem: Problem) -> None:
    """Raise unless λ can be held at this number. `criterion` is as the user gave it."""
    if np.asarray(lams).dtype.kind in "biu":
        raise ValueError(
            f"lams is the whole number {lams}, which fit takes for how many: give "
            f"lams={float(lams)} to hold λ there, or an array, from the best of which to start"
        )
    # Some criteria estimate their scale by default. Only another scale was asked for.
    asked = getattr(criterion, "scale", None)
    by_default = getattr(type(criterion), "scale", None)
    estimates = isinstance(asked, str) and asked != by_default
    if estimates and problem.kernel.multiplied(1.0) is not None:
        raise ValueError(
            f"lams={lams} holds the ratio of noise to the prior, and the number that multiplies "
            f"the kernel would undo it where scale={asked!r} is estimated too: leave scale= out, "
            "or take a kernel without that number"
        )


def _with_noise_known(problem: Problem) -> Criterion:
    """Return the criterion to use if λ is held.

    If a number multiplies the kernel, tuning that number gives the variance of the prior. So the
    prior is the kernel itself, and λ is the variance of the noise.
    """
    criterion: Any = problem.criterion
    has_scale = problem.kernel.multiplied(1.0) is not None
    if has_scale and criterion.takes_best:
        return replace(criterion, scale=1.0)
    return criterion


def _beginning(
    problem: Problem, start: str, lams: Given | Grid, *, near: bool, held: bool
) -> Guesses:
    """Return the kernels and λ at which the search may start.

    Warn if the best of several given λ is below the precision of K. If λ is `held`, the end of the
    search warns.
    """
    guesses = first_guesses(problem, start, lams, near)
    given = guesses.given
    if isinstance(lams, Given) and not held and given.lam < given.floor:
        warn(
            f"lams={given.lam:.3g} is below the precision of the kernel matrix, "
            f"{given.floor:.3g}: the search starts above it"
        )
    return guesses


# the search
# --------------------------------------------------------------------------------------------------


def _search(
    problem: Problem, guesses: Guesses, options: SearchOptions, grow: bool | None
) -> tuple[Attempt, History]:
    """Compute the fit at the best kernel and λ that a search finds, and return the history too."""
    best = search_kernel(problem.solver, padded(problem), guesses, options, grow)
    attempt = _at_end_of(best, options)
    rounding = rounding_of(attempt.result)
    if rounding.is_too_large and not options.holds_lam:
        best = _above_rounding(best, attempt.result, rounding, options)
        attempt = _at_end_of(best, options)
    scaled = _in_units_of_labels(best, attempt.result)
    if scaled is not None:
        best = scaled
        attempt = _at_end_of(best, options)
    _inspect(attempt, options.holds_lam)
    return attempt.without_padding(len(problem.Y)), best.history


def _at_end_of(best: Tuned, options: SearchOptions) -> Attempt:
    """Compute the fit at the end of a search, which knows the error there."""
    history = best.history
    problem = replace(best.problem, kernel=best.kernel)
    error = on_device(np.asarray(history.errors).min())  # on the host: nothing is compiled
    result, solution = _fitted_at(problem, jnp.asarray(best.lam), error)
    choice = Choice(problem.criterion, Given(result.chosen.lams))
    held = ", λ held fixed" if options.holds_lam else ""
    words = (f"tuned in {len(history.errors) - 1} steps{held}: {history.reason}",)
    return Attempt(result=result, solution=solution, problem=problem, words=words, choice=choice)


@compiled
def _fitted_at(problem: Problem, lam: Any, error: Any) -> Fitted:
    """Return the result and the solution at a known λ with a known error."""
    solution = problem.solution()
    chosen = Chosen(lam[None], error[None], lam, error)
    return Fitted(result_at(problem, solution, chosen), solution)


def _above_rounding(
    best: Tuned, result: Result, rounding: Rounding, options: SearchOptions
) -> Tuned:
    """Return the search, or one that goes on from its end at larger λ if that is about as good.

    At the larger λ held-out residuals of single rows are right. Unless labels have no noise,
    widths can shrink as λ grows, with nearly the same fitted function. `result` is that of the end.
    """
    # Residuals are right from `sound_lam` on, which is a multiple of the precision of K. The floor
    # of this search is twice that, so that they stay right if the precision at most doubles as the
    # kernel changes. The start is above the floor, as the search moves log (λ − floor).
    lowest = result.chosen.lam.dtype.type(2 * rounding.sound_lam)
    here = Guess(best.kernel, 2 * lowest, lowest, result.chosen.error)
    again = descend(best.problem, Guesses(here), options._replace(starts=1), best.last_point)
    before = np.asarray(best.history.errors).min()
    after = np.asarray(again.history.errors).min()
    start = best.history.start_error
    if after > start or not is_as_good(after, before, rounding.share, best.problem):
        return best
    reason = f"{again.history.reason}, and in {len(best.history.errors) - 1} before, with less λ"
    return again._replace(history=replace(again.history, reason=reason, start_error=start))


def _in_units_of_labels(best: Tuned, result: Result) -> Tuned | None:
    """Return the end of a search with λ and the kernel's scales multiplied by the prior variance.

    The likelihood of the search chose this variance τ². None if the criterion chooses none, or if
    the kernel cannot be multiplied: see `multiplied_in_range`. `result` is that of the end.
    """
    if not best.problem.criterion.takes_best:
        return None
    # The mean over targets, as one kernel has to serve all of them.
    lam = result.chosen.lam
    amplitude = np.asarray(result.diagnostics.amplitude, np.float64)
    variance = lam.dtype.type(np.mean(np.square(amplitude)))
    kernel = multiplied_in_range(best.kernel, lam, variance)
    if kernel is None:
        return None
    history = best.history
    kernels = history.kernels.multiplied(variance)
    history = replace(history, kernels=kernels, lams=history.lams * variance)
    return best._replace(kernel=kernel, lam=best.lam * variance, history=history)


def multiplied_in_range(kernel: K, lam: Any, factor: Any) -> K | None:
    """Return the kernel with its scales multiplied by a factor.

    None if the kernel has no scale of its own, or if a scale or λ leaves the range of the dtype.
    """
    kernel = jax.device_get(kernel)
    scaled = kernel.multiplied(factor)
    if scaled is None:
        return None
    limits = np.finfo(factor.dtype)
    before = jax.tree.leaves((kernel, lam))
    after = jax.tree.leaves((scaled, lam * factor))
    for old, new in zip(before, after, strict=True):
        changed = np.abs(new) != np.abs(old)
        if (changed & ~((limits.tiny < np.abs(new)) & (np.abs(new) < limits.max))).any():
            return None
    return jax.tree.map(on_device, scaled)


def _inspect(attempt: Attempt, held: bool) -> None:
    """Warn if the labels are all equal, or if λ is near the precision of the factor."""
    result = attempt.result
    lam = float(result.chosen.lam)
    floor = float(result.diagnostics.floor)
    rounding = rounding_of(result)
    if labels_are_equal(attempt.problem):
        warn(EQUAL_LABELS)
    elif is_below_floor(lam, floor):
        wider = ", or use float64" if result.chosen.lam.dtype == np.float32 else ""
        remedy = "hold a larger λ, or start" if held else "start"
        warn(
            f"the search ended at λ = {lam:.2g}, below the precision of the factor, {floor:.2g}: "
            f"{remedy} from a narrower kernel{wider}"
        )
    elif rounding.is_too_large:
        warn(rounding_in_words(result, rounding))


@singledispatch
def search_kernel(
    solver: Any, problem: Problem, guesses: Guesses, options: SearchOptions, grow: bool | None
) -> Tuned:
    """Return the best kernel and λ that a search from the guesses finds.

    With `grow`, a search on landmarks may begin with fewer rows. The room of landmarks registers
    this for its solver. For other solvers `grow=True` raises a `ValueError`.
    """
    if grow:
        raise ValueError(CANNOT_GROW)
    return descend_in_memory(problem, guesses, options)


def descend_in_memory(problem: Problem, guesses: Guesses, options: SearchOptions) -> Tuned:
    """Call `descend`, or raise if memory does not suffice for a gradient."""
    of_problem(problem, call="gradient").check()
    return descend(problem, guesses, options)


def _check(problem: Problem, options: SearchOptions, start: Any) -> None:
    """Raise if the problem cannot be searched, or an option of the search is wrong."""
    if not problem.traceable:
        raise ValueError(
            "tune needs X and held-out rows in memory, and one of them is a stream: give an array "
            "of some of its rows, as in tune(kernel, rows.sample, rows.labels[rows.drawn])"
        )
    if not problem.criterion.smooth:
        name = getattr(getattr(problem.criterion, "loss", None), "__name__", problem.criterion.name)
        raise ValueError(
            f"{name} has derivative 0 everywhere and cannot be tuned by gradient: tune with "
            "squared_error"
        )
    require_values(
        "tune runs its own loop and cannot be called inside jax.jit or vmap: use objective "
        "with an optimiser there",
        problem,
    )
    check_whole("steps", options.steps)
    check_whole("starts", options.starts)
    if not hasattr(options.optimizer, "update"):
        raise ValueError(
            "optimizer must be one of optax's, such as optax.adam(0.1), and is "
            f"{options.optimizer!r}"
        )
    if start not in ("screen", "kernel", "data"):
        raise ValueError(f"start must be 'screen', 'kernel' or 'data', and is {start!r}")
    if options.starts > 1 and options.key is None:
        raise ValueError("starts > 1 draws random starts: pass key=jax.random.key(0)")
    if not (isinstance(options.tol, int | float | np.number) and options.tol > 0):
        raise ValueError(f"tol must be a number above 0, and is {options.tol!r}")
