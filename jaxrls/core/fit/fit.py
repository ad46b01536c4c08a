"""The main function: factor, sweep λ, choose the best, and return a model; warnings about its
numbers; and the solution that is kept for what may be asked later.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.criteria import Criterion, FunctionCriterion, LeaveOneOut, loo
from jaxrls.core.factors import (
    NEAR,
    SEARCHED,
    WITHOUT_K,
    Cholesky,
    Outcome,
    Solution,
    Solver,
    choose_route,
    suits_cholesky,
)
from jaxrls.core.fit.fitted import Fit, K, Model, completed, r_squared, solution_of
from jaxrls.core.fit.grid import Choice
from jaxrls.core.fit.lam_search import search
from jaxrls.core.fit.memory import of_problem
from jaxrls.core.fit.problem import Problem
from jaxrls.core.problem import compiled, first
from jaxrls.core.support import as_lam, as_lams, column_names, door, is_concrete, progress_bar, warn

GRID = 100  # values of λ, in place of a search where the criterion has no slopes
KEPT_ROWS = 2000  # a fit to at most so many keeps its solution by default
NO_INFORMATION = (
    "the kernel matrix has no information beyond the intercept or fixed effects: what is left of "
    "it is rounding, and the fit is that of these alone: check that columns of X vary, and that the "
    "width of the kernel suits their units"
)
LARGEST_EFFECT = 0.01  # of a ridge on predictions, relative to the error, without a warning


@door("X")
def fit(
    kernel: K | str,
    X,
    Y=None,
    *,
    lams=100,
    per_target: bool = False,
    conservative: float | int | bool = 0.0,
    criterion: Criterion | Callable | str = loo,
    groups=None,
    weights=None,
    intercept: bool = True,
    fixed_effects=None,
    standardize: bool = False,
    landmarks=None,
    solver: Solver | None = None,
    keep: bool | None = None,
    block_size: int | None = None,
    progress: bool = False,
) -> Fit[K]:
    """Fit regularized least squares with the best of many λ, by exact leave-one-out, for the price
    of one factorization.

    minimise ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖²_H over f and b for every λ, and keep the λ of the
    smallest error.

    Args:
        kernel: a jaxrls kernel, such as `Gaussian(2.0)`; or a name, such as "linear" or "gaussian",
            whose width is then the median distance between rows.
        X: rows (n, d), NumPy, JAX or sparse (SciPy, BCOO), or a source of rows such as a `stream`;
            of a data frame or table the model keeps the names of columns, by which it takes those
            of new rows.
        Y: labels (n,) or (n, t); a source of rows may bring its own.
        lams: how many λ, on a grid from the spectrum; or their values, (L,), or (L, t) with a
            column for each target, where 0 stands for `fit.floor`; or `"search"`, which finds the
            best λ from the error and its slope at about ten values; for a stream, or a
            criterion without slopes, the grid is used instead.
        per_target: whether each column of Y has a λ of its own.
        conservative: a number of standard errors: take the largest λ whose error is at most that
            much above the smallest; 1 or True is the one-standard-error rule.
        criterion: what λ is chosen by: `loo`, `gcv`, `kfold(groups)`, `holdout(X, Y)`,
            `log_marginal_likelihood`, `LeaveOneOut(loss=…)`, the name of one, a `Criterion` of your
            own, or a function `(factor, Y, lams)` that is to be minimised.
        groups: labels (n,) of rows that are held out together, in place of single rows.
        weights: sample weights (n,), 0 or more; a row of weight 0 counts as absent.
        intercept: whether to fit a constant without penalty.
        fixed_effects: further columns (n, q) without penalty, or `levels(labels)`, an intercept for
            each group, or a list of both; `predict` takes those of new rows, and the model keeps
            their coefficients as `free`.
        standardize: whether to subtract the mean of each column of X and divide by its standard
            deviation; the model keeps both in its kernel and applies them to new rows.
        landmarks: for many rows: a few rows or points. The fit is a sum of kernel functions at
            these alone. Give their number, row numbers (m,), points (m, d) or the result of
            `jaxrls.choose_landmarks`; `"auto"` takes as many as keep the fit close to that of the
            full K. A landmark is held out with its row, but by `Iterative()`.
        solver: `Spectral()`, `Cholesky()`, `Refined()` or `Iterative()`; by default the cheapest
            exact one for the shapes, or where K is too large for the device, `Iterative()`, whose
            leave-one-out error is an estimate: `fit.plan` says which.
        keep: whether the fit keeps its solution, which `posterior`, `predict(return_std=True)`,
            `intervals`, `loo_predictive`, `update`, `forget` and `with_lam` need: n² numbers, or
            n·r on r features or landmarks. By default it is kept up to 2000 rows, outside of
            `jax.jit`. `save` writes the solution only with `keep=True`.
        block_size: rows at a time while K or sums over rows are made.
        progress: show bars of the fit, which says that a first call compiles, and of the choice of
            landmarks (needs tqdm).

    Returns:
        A `Fit`; for float64 NumPy input in float64, and as NumPy arrays where JAX is set to
        float32. Equal errors go to the larger λ.

    Raises:
        ValueError: for shapes that do not fit, NaN or infinity, values outside the range of the
            dtype or the kernel's domain, λ < 0, a problem larger than memory, or a row without
            which the fixed effects are not determined. Inside `jax.jit` and `jax.vmap` values
            cannot be checked.

    **Warns** where the chosen λ is at the edge of the grid or below the precision of the factor, or
    K is not positive semidefinite, or has no information beside the fixed effects. **Cost** one
    factorization, O(n³) or O(n r²), and O(n r L t); where `lams` names up to five values a Cholesky
    factor for each takes the place of K's spectrum.
    **Source**: Rifkin (lecture), "Leave-One-Out CV".

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> fit = rls.fit(rls.Gaussian(width=0.3), X, y, lams=[1e-4, 1e-2, 1.0])
    >>> float(fit.lam), bool(fit.error < 1e-2)
    (0.01, True)
    """
    options: dict = {"criterion": criterion, "groups": groups, "weights": weights}
    options |= {"intercept": intercept, "fixed_effects": fixed_effects, "block_size": block_size}
    options |= {"standardize": standardize, "landmarks": landmarks, "solver": solver}
    how: dict = {"lams": lams, "per_target": per_target, "conservative": conservative, "keep": keep}
    wanted = solver.rows_to_fit(X) if isinstance(solver, Solver) else X
    if wanted is not X:  # rows of another dtype, in which everything is computed
        result = fit(kernel, wanted, Y, **options, **how, progress=progress)
        return completed(result, column_names(X))
    problem = Problem.of(kernel, X, Y, **options)
    return completed(best_fit(problem, how, progress), column_names(X), problem.origin)


def best_fit(problem, how: dict, progress: bool) -> Fit:
    """The fit with the best λ; where no solver was named and K is too large, by one without K."""
    many = without_matrix(problem) if not how["keep"] else None
    problem = many or problem
    with progress_bar(progress, 1, "fit, which compiles in a first call", "fit") as reached:
        result = fit_by(problem.solver, problem, partial(_best, **how), progress)
        reached(1)
    if is_concrete(result):
        inspect_fit(result, np.ndim(how["lams"]) == 0, problem.solver)
    if many is None:
        return result
    error, spread = result.error, result.loo_standard_error
    how_exact = (
        "" if error is None or spread is None else f", {np.mean(error):.3g} ± {np.mean(spread):.1g}"
    )
    words = f"{result.plan}; K is too large, so the {result.title} is an estimate{how_exact}"
    return replace(result, plan=words)


def without_matrix(problem, call: str = "fit") -> Problem | None:
    """The problem with a solver that needs no K, where no solver was named, K is too large for the
    device, and single rows are held out; else None.
    """
    rows, criterion = problem.rows, problem.criterion
    able = problem.solver is None and is_concrete(problem) and rows.in_memory and rows.is_dense
    able = able and problem.kernel.evaluable and problem.explicit is None and bool(WITHOUT_K)
    able = able and isinstance(criterion, LeaveOneOut) and criterion.groups is None
    if not able or not of_problem(problem, call).why_not():
        return None
    many = replace(problem, solver=WITHOUT_K[0]())
    return None if of_problem(many).why_not() else many


@singledispatch
def fit_by(solver: Solver | None, problem: Problem, run: Callable, progress: bool) -> Fit:
    """`run` on the problem as its solver prepares it; a solver that is chosen by trial fits has
    another function.
    """
    return run(problem.prepared(progress))


def _best(problem, *, lams, per_target, conservative, keep):
    """The fit with the best λ, as planned: from a grid or from a search."""
    plan, n = planned(problem, lams, per_target, conservative), len(problem.Y)
    problem, choice, searches = plan.problem.padded(), plan.choice, plan.way == "search"
    if not searches:
        fit, solution = fit_on_grid(problem, choice, kept=keeps(problem, keep))
        # Near the floor of a spectrum errors may be rounding; Cholesky factors are rounded less.
        searches = plan.goes_below and float(fit.lam) < NEAR * float(fit.floor)
        problem = replace(problem, solver=Cholesky()) if searches else problem
    if searches:
        fit, solution = _searched(problem, choice.per_target)
    return finished(fit, solution, problem, None if searches else choice, keep, n)


class Plan(NamedTuple):
    """How λ is chosen for a problem with its solver: the way, "named", "counted" or "search", and
    the choice among λ; and whether from a best λ near the floor of the spectrum a search goes on
    with Cholesky factors, whose floor is lower.
    """

    problem: Problem
    way: str
    choice: Choice
    goes_below: bool


def planned(problem, lams, per_target: bool, conservative: Any) -> Plan:
    """The cheapest exact plan, unless a solver is named.

    | λ are            | the way                                                               |
    |------------------|-----------------------------------------------------------------------|
    | named            | a spectrum; for few of them a Cholesky factor each                    |
    | counted          | a grid of so many from the spectrum                                   |
    | counted, large n | where ten Cholesky factors cost less than a spectrum, a search        |
    | "search"         | a search, where the criterion has slopes that X in memory gives       |
    | "search", else   | as counted, GRID; or without a spectrum a search by values alone      |
    """
    criterion, rows = problem.criterion, problem.rows
    lams, per_target = _as_lams(lams, problem), per_target or np.ndim(lams) == 2
    _check_conservative(conservative, criterion, lams)
    way, num = _way(problem, lams)
    named, counted = way == "named", way == "counted"
    choice = Choice(criterion, lams if named else None, num, per_target, float(conservative))
    free = may_take_cholesky(problem, per_target)
    free = free and (named or criterion.smooth and not conservative)
    few = SEARCHED if counted else num
    by_cholesky = free and suits_cholesky(problem.kernel, rows.shape[0], few)
    problem = replace(problem, solver=Cholesky() if by_cholesky else problem.solver_or_default)
    if is_concrete(rows) and rows.has_pairs:
        of_problem(problem, lams=num).check()
    way = "search" if counted and by_cholesky else way
    return Plan(problem, way, choice, goes_below=counted and free)


def _way(problem, lams) -> tuple[str, int]:
    """How λ are chosen, if no cheaper solver is found, and their number."""
    solver, smooth = problem.solver, problem.criterion.smooth
    if not isinstance(lams, str | int):
        return "named", len(lams)
    if solver is not None and not solver.has_spectrum:
        if isinstance(lams, int) and not smooth:
            raise ValueError(f"{solver} has no spectrum for a grid of λ: give lams=[…]")
        return "search", 1
    if isinstance(lams, int):
        return "counted", lams
    # Without slopes a search may miss the best; and a grid takes fewer readings.
    return ("search", 1) if smooth and problem.traceable else ("counted", GRID)


def may_take_cholesky(problem, per_target: bool) -> bool:
    """Whether Cholesky factors of all of K may replace the spectrum, where λ are known outside of
    `jax.jit`, so that a search can go on from them.
    """
    rows = problem.rows
    route = choose_route(problem.kernel, rows.shape, rows.dtype)
    of_factor = isinstance(problem.criterion, FunctionCriterion)  # which may ask for its class
    free = problem.solver is None and not of_factor and not per_target
    return free and rows.in_memory and route == "gram" and is_concrete(problem)


def _check_conservative(conservative, criterion, lams) -> None:
    """Raise unless it is a number of standard errors, and the criterion has them."""
    number = isinstance(conservative, bool | int | float | np.number)
    if not number or not 0 <= conservative < np.inf:
        raise ValueError(
            "conservative must be a number of standard errors, 0 or more, or True for one, and is "
            f"{conservative!r}"
        )
    if conservative and (isinstance(lams, str) or not isinstance(criterion, LeaveOneOut)):
        what = "lams='search'" if isinstance(lams, str) else f"criterion {criterion.name}"
        raise ValueError(
            "conservative= needs standard errors, which loo and kfold have at λ of a grid: take "
            f"those, not {what}"
        )


def _as_lams(lams, problem):
    """How many λ; or an array (L,), or (L, t) with a column for each target; or "search"."""
    if isinstance(lams, str) and lams == "search":
        return lams
    lams = GRID if lams is None else lams
    whole = isinstance(lams, int | np.integer) and not isinstance(lams, bool)
    if isinstance(lams, str) or np.ndim(lams) == 0 and not (whole and lams > 1):
        raise ValueError(
            "lams must be how many λ, 2 or more, or an array of them, or 'search', and is "
            f"{lams!r}: for λ = 0.1 give lams=[0.1]"
        )
    if whole:
        return int(lams)
    return as_lams(lams, problem.rows.dtype, problem.Y.shape[1:], zero=True)


def _searched(problem, per_target):
    """The fit with the best λ of a search, which runs on known values, and its solution."""
    if not is_concrete(problem):
        raise ValueError(
            "lams='search' needs known values, and inside jax.jit there are none: give numbers, "
            "or call fit outside"
        )
    chosen, solution, words = search(problem, _solution(problem), per_target)
    fit = _concluded(problem, solution, chosen)
    return replace(fit, plan=f"{problem.solver.name}, a search for λ: {words}"), solution


# the fit of a solution
# --------------------------------------------------------------------------------------------------


def conclude(problem, solution, chosen, plan: str = "") -> Fit:
    """The fit at the chosen λ, one for all targets or one for each, with held-out residuals."""
    criterion, lam, factor = problem.criterion, chosen.lam, solution.factor
    labels, weights = solution.labels, factor.weights
    outcome = solution.outcome(lam.reshape(1, -1), criterion.groups, criterion.total)
    at_lam = lambda sums: sums[0] if lam.ndim else jnp.mean(sums)
    more = {"criterion": criterion.name, "title": criterion.title, "unit": criterion.unit}
    if chosen.error is None and outcome.total is not None:
        errors = labels.drop_axis(outcome.total / weights.total)
        chosen = chosen._replace(errors=errors, error=at_lam(errors))
    if outcome.error is not None and criterion.smooth:  # a step has no useful slope
        more["loo_standard_error"] = at_lam(outcome.error) / weights.total
    if outcome.residuals is not None:
        counted = weights if criterion.groups is None else criterion.groups.counted(weights)
        e = jnp.where(counted.used[:, None], outcome.residuals[0], 0)
        more["r2"] = r_squared(e, labels.Y, counted.values, jnp)
        squares = jnp.average(e**2, axis=0, weights=counted.values)
        more["loo_rms"] = labels.drop_axis(jnp.sqrt(squares))
    return _fit_of(problem.kernel, solution, chosen, outcome, plan=plan, **more)


def conclude_moments(kernel, solution, chosen, plan: str) -> Fit:
    """The fit at the chosen λ of a solution of moments, which has no rows to hold out."""
    column = chosen.lam.reshape(1, -1)
    outcome = Outcome(solution.coefficients(column), None, solution.dof(column))
    return _fit_of(kernel, solution, chosen, outcome, plan=plan)


def _fit_of(kernel, solution, chosen, outcome, **more) -> Fit:
    """The fit, but for what depends on a criterion."""
    factor, drop, (lams, errors, lam, error) = solution.factor, solution.labels.drop_axis, chosen
    report, residuals, effect = factor.report, outcome.residuals, None
    coef, intercept, free = jax.tree.map(lambda part: drop(part[0]), outcome.coefficients)
    points, coef = factor.expansion.compact(kernel, coef)
    if report.ridge is not None:
        column = lam.reshape(1, -1)
        # Where none are held out, relative to the residuals of training, which are smaller.
        missed = (
            jnp.sqrt(solution.residual_norm(column)[0])
            if residuals is None
            else jnp.sqrt(jnp.nansum(factor.weights.scale(residuals[0]) ** 2, axis=0))
        )
        at_lam = outcome.coefficients.coef[0]
        effect = factor.jitter_effect(kernel, column[0], at_lam, missed)
    effects = None if free is None else factor.fixed.lean()
    return Fit(
        model=Model(kernel, points, coef, intercept, free, effects),
        lams=lams,
        errors=errors,
        lam=lam,
        error=error,
        loo_residuals=None if residuals is None else drop(residuals[0]),
        dof=None if outcome.dof is None else outcome.dof.reshape(lam.shape),
        floor=report.floor,
        indefinite=report.indefinite,
        informative=report.informative,
        route=report.route,
        trace_residual=report.trace_residual,
        num_landmarks=0 if report.trace_residual is None else len(factor.points),
        run=outcome.run,
        ridge_effect=effect,
        **more,
    )


_solution, _concluded = compiled(Problem.solution), compiled(conclude)


@compiled
def fit_on_grid(problem, choice, *, kept: bool) -> tuple[Fit, Solution | None]:
    """The fit with the best λ of a choice, with its solution if that is kept."""
    solution = _solution(problem)
    return at_best(problem, solution, choice), solution if kept else None


@compiled
def at_best(problem, solution, choice) -> Fit:
    """The fit at the best of all λ of a choice, with the plan in words."""
    chosen, factor = choice.of(solution, problem.kernel), solution.factor
    count = len(chosen.lams)
    words = f"{count} λ{' from one factorization' * (count > 1 and factor.shares_work)}"
    plan = f"{problem.solver_or_default.name} ({factor.route}), {words}"
    return conclude(problem, solution, chosen, plan)


# warnings
# --------------------------------------------------------------------------------------------------


def inspect_fit(fit, default_grid: bool, solver: Solver | None = None) -> None:
    """Warn of what a user needs to know before trusting the numbers; raise where they are not
    finite.
    """
    stopped = "" if fit.run is None or solver is None else solver.explain(fit.run)
    what, which, values = f"the {fit.criterion} error", "λ", fit.errors
    if values is None:
        what, which, values = "the model", "coefficients", fit.model.coef
    bad = ~np.isfinite(np.asarray(values))
    dtype, residuals = fit.model.coef.dtype, fit.loo_residuals
    if bad.any():
        why = stopped or _why_not_finite(fit, bad, dtype == np.float32)
        raise ValueError(f"{what} is not finite at {bad.sum()} of {bad.size} {which}: {why}")
    rounding = 100 * float(np.finfo(dtype).eps)
    if residuals is not None and float(fit.indefinite) > len(residuals) * rounding:
        warn(
            "the kernel matrix is not positive semidefinite: its most negative eigenvalue, "
            f"{float(fit.indefinite):.2g} of the largest, was set to 0: "
            "check the matrix, or take another kernel"
        )
    if fit.informative is not None and not fit.informative:
        warn(NO_INFORMATION)
        return
    if stopped:
        warn(stopped)
    if fit.ridge_effect is not None and float(fit.ridge_effect) > LARGEST_EFFECT:
        warn(
            "the landmarks are nearly dependent, and rounding, or the jitter against it, may move "
            f"predictions by {100 * float(fit.ridge_effect):.2g} % of the error: take fewer "
            f"landmarks{', or float64' * (dtype == np.float32)}"
        )
    inspect_lam(fit, default_grid)


def _why_not_finite(fit, bad, narrow: bool) -> str:
    """Why errors at these λ, or coefficients, are not finite, and what to do."""
    of_errors, floor = fit.errors is not None, float(fit.floor)
    lams = np.asarray(fit.lams)[bad.reshape(len(bad), -1).any(axis=1)] if of_errors else fit.lam
    if np.max(lams) < 0.99 * floor:
        wider = ", or use float64 (NumPy float64 input)" * narrow
        return f"λ below {floor:.2g} is below the precision of the factor: leave it out{wider}"
    wider = "use float64 (NumPy float64 input), " if narrow else "take "
    return (
        f"the factorization broke down; {wider}a larger smallest λ, a smaller kernel width, or "
        "solver=Spectral()"
    )


def inspect_lam(fit: Any, default_grid: bool) -> None:
    """The warnings about the chosen λ of any result that has `lam`, `lams` and `floor`."""
    chosen, floor = np.asarray(fit.lam), float(fit.floor)
    narrow = chosen.dtype == np.float32
    lams = np.atleast_1d(chosen if fit.lams is None else np.asarray(fit.lams))
    known = lams >= 0.99 * floor
    # Errors below the floor matter where they were chosen, or where they may have hidden a better λ
    # next to the chosen one.
    if not known.all() and (chosen <= lams[known].min(initial=np.inf)).any():
        warn(
            f"λ below {floor:.2g} is below the precision of the factor, and the grid goes down to "
            f"{lams.min():.2g}: leave such λ out{', or use float64' * narrow}"
        )
    if fit.lams is None or len(lams) == 1:
        return
    low, high = chosen <= lams.min(axis=0), chosen >= lams.max(axis=0)
    if default_grid and lams.min() > 2 * floor:  # below it the fit no longer changes
        low = low & False
    for at, end, edge, further in (
        (low, lams.min(), "smallest", "smaller"),
        (high, lams.max(), "largest", "larger"),
    ):
        remedy = f"pass lams= that reach {further} values"
        if edge == "smallest" and lams.min() <= 1.01 * floor:
            remedy = f"below it is rounding, so {'use float64' if narrow else 'keep it'}"
        of_targets = f" of {at.sum()} of {at.size} targets" if at.size > 1 else ""
        if at.any():
            warn(
                f"the chosen λ{of_targets}, {end:.3g}, is the {edge} of the grid: "
                f"{remedy}, or change the kernel"
            )


# what a fit keeps
# --------------------------------------------------------------------------------------------------


def keeps(problem, keep: bool | None) -> bool:
    """Whether a fit keeps its solution: as was asked, or where rows are few and known."""
    few = problem.rows.shape[0] <= KEPT_ROWS and is_concrete(problem.weights, problem.Y)
    return few if keep is None else keep


def finished(
    fit, solution: Solution | None, problem, choice: Choice | None, keep: bool | None, n: int
) -> Fit:
    """The fit with its solution, if that is kept, and without what belongs to rows after n."""
    criterion, model, residuals = problem.criterion, fit.model, fit.loo_residuals
    if keeps(problem, keep):
        choice = choice if criterion.of_sums else None
        kept: dict = {"solution": solution, "problem": problem, "choice": choice}
        fit = replace(fit, **kept, groups=criterion.groups, saved=bool(keep))
    if residuals is None or len(residuals) == n or not is_concrete(fit):
        return fit
    if model.points is not None:
        model = replace(model, points=first(model.points, n), coef=first(model.coef, n))
    return replace(fit, model=model, loo_residuals=first(residuals, n))


def with_lam(fit, lam) -> Fit:
    """`Fit.with_lam`."""
    solution, problem, coef = solution_of(fit), fit.problem, fit.model.coef
    if problem is None:
        raise ValueError(
            "another λ needs the data, which a fit does not have after update or load: fit "
            "all rows again"
        )
    lam = as_lam(lam, coef.dtype, coef.shape[1:])
    changed = at_best(
        problem, solution, Choice(problem.criterion, lam[None], per_target=lam.ndim > 0)
    )
    inspect_fit(changed, False, problem.solver)
    keep, n = fit.saved or None, len(fit.loo_residuals)
    changed = finished(changed, solution, problem, fit.choice, keep, n)
    return completed(changed, fit.model.names, fit.origin)
