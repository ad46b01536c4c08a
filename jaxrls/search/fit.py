"""The one call: factor, sweep λ, choose, and leave a model."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.left_out import loo
from jaxrls.criteria.losses import squared_error
from jaxrls.factors.certificate import certificate_words
from jaxrls.factors.choose import SEARCHED, choose_route, suits_cholesky
from jaxrls.factors.contract import Solution
from jaxrls.factors.iterative import Iteration
from jaxrls.kernels.kernel import Kernel
from jaxrls.models.fitted import Fit
from jaxrls.problem.landmarks import ridge_effect
from jaxrls.rows.gram import gram
from jaxrls.rows.sparse import is_sparse
from jaxrls.rows.staged import between_readings
from jaxrls.search.conservative import check_conservative, choose
from jaxrls.search.estimate import of_problem
from jaxrls.search.grid import choose_lam, lambda_grid
from jaxrls.search.inspection import inspect_fit
from jaxrls.search.kept import Kept
from jaxrls.search.lam_search import search, search_below
from jaxrls.search.problem import Problem, check_refinable
from jaxrls.search.rank import grow
from jaxrls.support.checks import as_array, check_lams, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.precision import in_precision_of, scope, to_host

TOLERANCE = 0.1  # of coefficients, in what is certified of landmarks
NEAR = 5  # times the floor of a spectrum: from there on its errors are right to 1 %


@on_any_mesh
@in_precision_of("X")
def fit(
    kernel: Kernel,
    X,
    Y=None,
    *,
    lams=None,
    num: int = 100,
    criterion: Callable | Criterion = loo,
    loss: Callable = squared_error,
    weights=None,
    intercept: bool = True,
    per_target: bool = False,
    conservative: float | int | bool = 0.0,
    landmarks=None,
    tol: float = TOLERANCE,
    groups=None,
    validation=None,
    route: str | None = None,
    iteration: Iteration | None = None,
    block_size: int | None = None,
    progress: bool = False,
    refine: bool = False,
    keep_moments: bool = False,
    keep_variance: bool = False,
    keep_intervals: bool = False,
    fixed_effects=None,
) -> Fit:
    """Fit regularized least squares with the best λ of a grid, by exact leave-one-out, for the
    price of one factorization.

    minimise ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖²_H over f and b for every λ, and keep the λ of the
    smallest error.

    **Arguments**: X (n, d) and Y (n,) or (n, t), NumPy or JAX; X may be sparse (SciPy,
    BCOO), or a source of rows (`Rows`); one that brings labels and weights, such as a `stream`,
    needs no Y. `lams` (L,), where 0 is taken as `fit.floor`, by default `num` of them
    from the spectrum; or (L, t), from whose columns the targets choose, so that one row of them is
    a given λ for each; `"search"` finds the λ of the smallest error between those from its value
    and slope at about ten λ, with a Cholesky factor for each in place of the spectrum where the
    criterion allows it: `search` says how many. Without slopes, for rows made on the host, such as
    a `stream`, and for criteria that are steps, such as `zero_one_loss`, it takes
    the grid. `criterion`: `loo`, `gcv`, `kfold`, `holdout`, `log_marginal_likelihood`,
    `log_predictive_density`, any function `(factor, Y, lams)` of which less is better, or a
    `Criterion`. `loss` for the ones that average a loss. `weights` (n,) ≥ 0. `intercept`
    unpenalised. `per_target` chooses λ for each column of Y. `conservative` takes the largest λ
    whose error is within so many standard errors of the smallest, as the losses of rows or groups
    left out tell it: 1 or True is the rule of one standard error. `groups` (n,) labels of rows left
    out together (then `kfold`); `validation` a pair `(X, Y)` (then `holdout`). `landmarks` for more
    rows than K can be factored for: how many to choose by pivoted Cholesky, or what
    `jaxrls.landmarks` chose, or row numbers, or points (m, d); leave-one-out then lets a landmark
    leave with its row. `"auto"` takes as many as bring `certified_lam` at `tol` down to the chosen
    λ, and all rows where that does not pay; `certificate` says which. `route`, `iteration` and
    `block_size` as in `factorize`. `progress` shows a bar while landmarks are chosen (needs tqdm).
    `refine` makes the model, what it leaves out and `error` those of float64, as NumPy arrays, from
    Cholesky factors in float32 and products in float64, on all of K: at the λ chosen in the
    precision of X, or at all that `lams` names or searches, however small. `run` says how near to
    the identity every step came. `keep_moments` keeps the sums that a fit on explicit features or
    landmarks is made of, r² numbers, to `update` it with further rows or `forget` some.
    `keep_variance` keeps what `predict(X, return_std=True)` and `posterior` take at the chosen λ,
    one for all targets: n² numbers for K of all rows, else r²; the routes "refined" and
    "iterative" tell no variances. `keep_intervals` keeps what `intervals` and `loo_predictive`
    take, the fits that leave out a row, or a group where the criterion does (`kfold`): n² numbers
    for K of all rows, n·r else, or r for every group; the route "iterative" tells none.
    `fixed_effects` are columns b (n, q) beside the kernel, f(x) + b·β with no penalty on β, or
    `levels(labels)`, an intercept for each group: the model keeps β as `free`, and `predict` takes
    those of new rows. A row without which they are linearly dependent cannot be left out, and is
    refused but by the evidence. RankRLS, whose objective is Σᵢ<ⱼ ((yᵢ − yⱼ) − (fᵢ − fⱼ))², is the fit
    with an intercept and `criterion=PairsOut()`, or with `levels(queries)` and
    `PairsOut(within=queries)` or `QueriesOut.of(queries)`.

    **Returns** a `Fit`; float64 NumPy input is computed in float64 and comes back as NumPy arrays.
    **Cost** one factorization, O(n³) or O(n r²), and O(n r L t); where `lams` names one value, or
    up to five for thousands of rows, a Cholesky factor of K + λI for each takes the place of K's
    spectrum (name `route="gram"` for that one); so does a search on TPUs, where a spectrum takes
    minutes to compile. Where the best λ of a default grid is near the precision of K's spectrum, up
    to five such factors, which are rounded less, go on below it. Equal errors go to the larger λ.
    **Raises** `ValueError` for shapes that do not fit, NaN or infinity in the data, labels or
    columns whose squares leave the range of their dtype, weights too far apart, λ < 0,
    parameters outside a kernel's domain, a problem larger than memory. **Warns** where the chosen λ
    is at the edge of the grid, λ is below the precision of the factor, or K is not positive
    semidefinite. Inside `jax.jit` and `jax.vmap` values cannot be checked. **Source**: Rifkin
    (lecture), "Leave-One-Out CV".

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> fit = rls.fit(rls.Gaussian(width=0.3), X, y, lams=[1e-4, 1e-2, 1.0])
    >>> float(fit.lam), bool(fit.error < 1e-2)
    (0.01, True)
    """
    auto = isinstance(landmarks, str) and landmarks == "auto"
    named = {"criterion": criterion, "loss": loss, "groups": groups, "validation": validation}
    options = {
        "weights": weights,
        "intercept": intercept,
        "block_size": block_size,
        "iteration": iteration,
        "progress": progress,
        **named,
    }
    options |= {
        "keep_moments": keep_moments,
        "keep_variance": keep_variance,
        "keep_intervals": keep_intervals,
        "fixed_effects": fixed_effects,
    }
    raw = Problem.of(kernel, X, Y, landmarks=None if auto else landmarks, **options)
    check_conservative(conservative, raw.criterion, lams)
    raw = replace(raw, conservative=float(conservative))
    problem, named_lams = raw.check(), lams
    lams = _as_lams(lams, problem)
    if (
        isinstance(lams, str)
        and not problem.criterion.smooth
        and (refine or route in ("cholesky", "refined"))
    ):
        raise ValueError(
            _no_slopes(problem.criterion.name, "refine=True" if refine else f"route={route!r}")
        )
    per_target = per_target or np.ndim(lams) == 2
    if not (isinstance(tol, int | float | np.number) and tol > 0):
        raise ValueError(
            f"tol must be a number above 0, the largest relative change of the coefficients, and is {tol!r}"
        )
    if route in ("cholesky", "iterative", "refined") and lams is None:
        raise ValueError(
            f"route={route!r} has no spectrum to make a grid of λ from: give lams=, numbers or 'search'"
        )
    if auto and (route is not None or keep_moments):
        found = "keep_moments=True" if route is None else f"route is {route!r}"
        raise ValueError(f"landmarks='auto' chooses the route, and {found}: leave one of them out")
    check_one_lam(keep_variance, per_target)
    if refine:
        check_refinable(raw, landmarks, route, keep_moments or keep_variance or keep_intervals)
    if refine and lams is not None:
        lams = lams if isinstance(lams, str) else np.atleast_1d(np.asarray(named_lams, np.float64))
        return _in_float64(
            raw,
            partial(_best, lams=lams, num=num, per_target=per_target, route="refined"),
            isinstance(lams, str),
        )
    run = partial(_best, lams=lams, num=num, per_target=per_target, route=route)
    if auto:
        result, words = grow(run, problem, tol, progress)
        result = replace(result, certificate=words)
    else:
        result = _certified(run(problem), tol)
    if keep_moments:
        kept = Kept.of(problem, result.kept, lams=lams, num=num, per_target=per_target)
        result = replace(result, kept=kept)
    if is_concrete(result):
        inspect_fit(result, lams is None or isinstance(lams, str))
    if not refine:
        return result
    return replace(
        _in_float64(raw, partial(_refined, lam=np.asarray(result.lam)), False),
        lams=result.lams,
        errors=result.errors,
    )


def _as_lams(lams, problem: Problem):
    """λ as an array (L,), or (L, t) with those of each target, or as what stands for them."""
    if isinstance(lams, str) and lams != "search":
        raise ValueError(
            f"lams must be numbers, or 'search' for the best without a grid, or None to choose, and is {lams!r}"
        )
    if lams is None or isinstance(lams, str):
        return lams
    lams = jnp.atleast_1d(as_array("lams", lams, problem.rows.dtype))
    if lams.ndim != 1 and lams.shape != (len(lams), *problem.Y.shape[1:]):
        each = (
            f", or (L, {problem.Y.shape[1]}) with those of each target"
            if problem.Y.ndim == 2
            else ""
        )
        raise ValueError(
            f"lams must have shape (L,){each}, and has shape {lams.shape}: with per_target=True every target chooses from (L,)"
        )
    check_lams(lams, zero=True)
    return lams


def _no_slopes(name: str, way: str) -> str:
    return (
        f"lams='search' follows slopes, and criterion {name} is a step, which has none; the grid that would take its place needs a spectrum, "
        f"which {way} does without: give lams=, numbers, or leave {way.split('=')[0]} out"
    )


def _in_float64(raw: Problem, make: Callable, default_grid: bool) -> Fit:
    """What `make` leaves of a problem in float64, NumPy arrays unless that is the default."""
    everywhere = jax.config.read("jax_enable_x64")
    with scope(True):
        result = make(raw.astype(jnp.float64).check())
        inspect_fit(result, default_grid)
        return result if everywhere else to_host(result)


def _refined(problem: Problem, lam) -> Fit:
    """The fit at one λ, or at one per target, by the refined route."""
    of_problem(problem, lams=1, route="refined").check()
    run: Any = _refined_at if problem.traceable else inspect.unwrap(_refined_at)
    return run(problem, jnp.asarray(lam, problem.rows.dtype))


@jax.jit
def _refined_at(problem: Problem, lam) -> Fit:
    return _at(problem, problem.solution("refined"), lam)


def fit_at(problem: Problem, solution: Solution, lam) -> Fit:
    """The fit at one λ, or at one for each target, that others chose, of a problem that is
    solved.
    """
    run = _jitted_at if problem.traceable else _at
    fit = _certified(run(problem, solution, jnp.asarray(lam, problem.rows.dtype)), TOLERANCE)
    inspect_fit(fit, False)
    return fit


def _at(problem: Problem, solution: Solution, lam) -> Fit:
    errors = problem.errors(solution, lam.reshape(1, -1))
    return _conclude(
        problem,
        solution,
        lam.reshape(1, *lam.shape),
        errors,
        lam,
        errors[0] if lam.ndim else jnp.mean(errors[0]),
    )


_jitted_at = jax.jit(_at)


def check_one_lam(keep_variance: bool, per_target: bool) -> None:
    """Raise where variances are asked for of targets with a λ for each."""
    if keep_variance and per_target:
        raise ValueError(
            "keep_variance=True is for one λ, and per_target=True, or lams (L, t), chooses one for each target: leave one of them out"
        )


def _best(problem: Problem, *, lams, num: int, per_target: bool, route: str | None) -> Fit:
    """The fit with the best λ: by a spectrum, or where λ are few or cheaper to search for, by
    Cholesky.
    """
    rows, options = problem.rows, {"num": num, "per_target": per_target}
    sloped = problem.traceable and problem.criterion.smooth
    if (
        isinstance(lams, str)
        and not sloped
        and (route is None or problem.traceable and route != "iterative")
    ):
        lams = None  # without slopes a search may miss the best; and a grid takes fewer readings
    jitted: Any = (lambda fn: fn) if problem.traceable else between_readings
    in_memory = is_concrete(rows) and rows.in_memory
    count = 1 if isinstance(lams, str) else SEARCHED if lams is None else len(lams)
    plain = in_memory and route is None and not per_target and not problem.keep_moments
    suits = (
        plain
        and (lams is not None or problem.criterion.smooth and not problem.conservative)
        and _suits_cholesky(problem, lams, count)
    )
    searched = isinstance(lams, str) or lams is None and suits
    taken = "cholesky" if searched and suits else route
    if (
        in_memory
        or is_concrete(rows)
        and is_sparse(rows)
        and problem.kernel.num_features(rows.shape[1], rows.dtype) is None
    ):
        of_problem(
            problem, lams=1 if searched else num if lams is None else count, route=taken
        ).check()
    if searched:
        return _searched(problem, taken, per_target, jitted)
    if suits:
        few = jitted(_fit)(problem, lams, route="cholesky", **options)
        if np.isfinite(few.errors).all():  # else the spectrum can tell more
            return few
    result = jitted(_fit)(problem, lams, route=route, **options)
    below = (
        lams is None and plain and not problem.conservative and _suits_cholesky(problem, lams, 1)
    )
    return _continued(result, problem, jitted) if below else result


def _suits_cholesky(problem: Problem, lams, count: int) -> bool:
    """Whether a Cholesky factor for each of `count` λ does: any factor suits the criterion, and no
    doubt about K that its spectrum would settle.
    """
    kernel, rows = problem.kernel, problem.rows
    dense = problem.landmarks is None and choose_route(kernel, *rows.shape, rows.dtype) == "gram"
    return (
        dense
        and is_concrete(problem, lams)
        and problem.criterion.any_factor
        and suits_cholesky(kernel, rows.shape[0], count)
    )


def _searched(problem: Problem, route: str | None, per_target: bool, jitted: Callable) -> Fit:
    """The fit with the best λ of a search, which looks at values."""
    if not is_concrete(problem):
        raise ValueError(
            "lams='search' looks at values, which have none inside jax.jit: give numbers, or call fit outside"
        )
    solution = jitted(_solved)(problem, route=route)
    found = search(problem, solution, per_target)
    return replace(jitted(_concluded)(problem, solution, *found[:4]), search=found.words)


def _continued(fit: Fit, problem: Problem, jitted: Callable) -> Fit:
    """The fit with a grid that ends at the floor of the spectrum, gone on with by Cholesky factors
    where its λ is near: their floor is lower.
    """
    floor, lams = float(fit.floor), np.asarray(fit.lams)
    if not (len(lams) > 1 and lams[0] <= 1.01 * floor and float(fit.lam) < NEAR * floor):
        return fit
    solution = jitted(_solved)(problem, route="cholesky")
    if not float(solution.factor.precision_floor()) < floor:
        return fit
    first = int(np.searchsorted(lams, NEAR * floor))
    above = jnp.asarray(fit.lams)[first:], jnp.asarray(fit.errors)[first:]
    found = search_below(problem, solution, *(part[:2] for part in above))
    words = f"a grid down to {lams[first]:.3g}, {NEAR} times the precision of its spectrum, and below it {found.words}"
    table = jnp.concatenate([found.lams, above[0]]), jnp.concatenate([found.errors, above[1]])
    return replace(
        jitted(_concluded)(problem, solution, *table, *choose_lam(*table, per_target=False)),
        search=words,
    )


@partial(jax.jit, static_argnames=("num", "per_target", "route"))
def _fit(problem: Problem, lams, *, num: int, per_target: bool, route: str | None) -> Fit:
    """The fit with the best λ of a grid."""
    solution = problem.solution(route)
    lams = lambda_grid(solution.factor, num) if lams is None else solution.factor.with_floor(lams)
    errors = problem.errors(solution, lams)
    return _conclude(
        problem, solution, lams, errors, *choose(problem, solution, lams, errors, per_target)
    )


@partial(jax.jit, static_argnames="route")
def _solved(problem: Problem, *, route: str | None) -> Solution:
    return problem.solution(route)


@jax.jit
def _concluded(problem, solution, lams, errors, lam, error) -> Fit:
    return _conclude(problem, solution, lams, errors, lam, error)


def _conclude(problem: Problem, solution: Solution, lams, errors, lam, error) -> Fit:
    """The model at one λ, or one for each target, and how it was chosen."""
    factor, drop, at = solution.factor, solution.labels.drop_axis, lam.reshape(1, -1)
    left = solution.outcome(at, problem.criterion.groups, problem.criterion.total)
    coefficients = jax.tree.map(lambda part: part[0], left.coefficients)
    model = problem.model(solution, jax.tree.map(drop, coefficients))
    report = factor.report
    how = (
        report.floor,
        report.indefinite,
        report.route,
        problem.criterion.name,
        report.trace_residual,
    )
    num_landmarks = 0 if problem.landmarks is None else len(problem.landmarks.points)
    sure = None
    if left.error is not None and problem.criterion.smooth:  # the slope of a step says nothing
        sure = (jnp.mean(left.error) if error.ndim == 0 else left.error[0]) / factor.weights.total
    more: dict = {
        "num_landmarks": num_landmarks,
        "run": left.run,
        "loo_standard_error": sure,
        "kept": solution.summed,
    }
    if problem.keep_variance:
        single = left.residuals if problem.criterion.groups is None else solution.residuals(at)
        more["sure"] = problem.sure(solution, lam, coefficients, single[0])
    if problem.keep_intervals:
        more["jackknife"] = problem.jackknife(solution, lam, coefficients, left.residuals[0])
    if report.ridge is not None:
        held = jnp.linalg.norm(factor.weights.scale(left.residuals[0]), axis=0)
        more["ridge_effect"] = ridge_effect(
            gram(problem.kernel, factor.points),
            report.ridge,
            left.coefficients.coef[0],
            at[0],
            held,
        )
    return Fit(
        model,
        lams,
        errors,
        lam,
        error,
        drop(left.residuals[0]),
        left.dof.reshape(lam.shape),
        *how,
        **more,
    )


def _certified(fit: Fit, tol: float) -> Fit:
    """With what is certified of its landmarks in words, where there are any and values are
    known.
    """
    return (
        replace(fit, certificate=_words(fit, tol))
        if is_concrete(fit) and fit.trace_residual is not None
        else fit
    )


def _words(result: Fit, tol: float) -> str:
    """The certificate of the landmarks, and whether it holds at the chosen λ."""
    trace, chosen = float(np.asarray(result.trace_residual)), float(np.min(result.lam))
    held = f"the chosen λ = {chosen:.3g} is {'' if chosen >= trace / tol else 'not '}among them"
    return f"{certificate_words(trace, result.num_landmarks, tol)}; {held}"
