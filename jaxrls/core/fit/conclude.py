"""Makes a `Fit` from a solution and the chosen λ: the model, warnings about its numbers, and the
solution that is kept for what may be asked later.
"""

import sys
import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.criteria import Criterion
from jaxrls.core.factors import Coefficients, Outcome, Solution, Solver
from jaxrls.core.fit.fitted import Fit, r_squared, solution_of
from jaxrls.core.fit.grid import Choice
from jaxrls.core.fit.model import Model
from jaxrls.core.fit.problem import Problem
from jaxrls.core.kernels import Kernel
from jaxrls.core.problem import compiled, first
from jaxrls.core.support import as_lam, is_concrete

KEPT_ROWS = 2000  # a fit to at most so many keeps its solution by default
LARGEST_EFFECT = 0.01  # of a ridge on predictions, relative to the error, without a warning


def conclude(
    kernel: Kernel,
    solution: Solution,
    table: tuple,
    chosen: tuple,
    criterion: Criterion,
    *,
    plan: str = "",
) -> Fit:
    """The fit at the chosen λ, one for all targets or one for each, with held-out residuals, and
    with the table of all λ and errors that it was chosen from.
    """
    (lams, errors), (lam, error) = table, chosen
    drop, total_weight = solution.labels.drop_axis, solution.factor.weights.total
    outcome = solution.outcome(lam.reshape(1, -1), criterion.groups, criterion.total)
    standard_error, r2 = None, None
    if error is None and outcome.total is not None:
        errors = drop(outcome.total / total_weight)
        error = jnp.mean(errors) if lam.ndim == 0 else errors[0]
    if outcome.error is not None and criterion.smooth:  # a step has no useful slope
        standard_error = jnp.mean(outcome.error) if error.ndim == 0 else outcome.error[0]
        standard_error = standard_error / total_weight
    fit = fit_at(kernel, solution, lam, outcome)
    if outcome.residuals is not None:
        weights = solution.factor.weights.values
        r2 = r_squared(outcome.residuals[0], solution.labels.Y, weights, jnp)
    return replace(
        fit,
        lams=lams,
        errors=errors,
        error=error,
        criterion=criterion.name,
        title=criterion.title,
        unit=criterion.unit,
        plan=plan,
        loo_standard_error=standard_error,
        r2=r2,
    )


def conclude_moments(
    kernel: Kernel, solution: Solution, table: tuple, chosen: tuple, *, plan: str
) -> Fit:
    """The fit at the chosen λ of a solution of moments, which has no rows to hold out."""
    (lams, errors), (lam, error), column = table, chosen, chosen[0].reshape(1, -1)
    outcome = Outcome(solution.coefficients(column), None, solution.dof(column))
    fit = fit_at(kernel, solution, lam, outcome)
    return replace(fit, lams=lams, errors=errors, error=error, plan=plan)


def fit_at(kernel: Kernel, solution: Solution, lam, outcome: Outcome) -> Fit:
    """The fit at one λ, or one for each target, without errors: they depend on the criterion."""
    factor, drop = solution.factor, solution.labels.drop_axis
    report, residuals = factor.report, outcome.residuals
    coefficients = jax.tree.map(lambda part: part[0], outcome.coefficients)
    effect = None
    if report.ridge is not None:
        column = lam.reshape(1, -1)
        estimated = residuals is None  # and held-out residuals are larger than this
        length = lambda e: jnp.linalg.norm(factor.weights.scale(e), axis=0)
        missed = jnp.sqrt(solution.residual_norm(column)[0]) if estimated else length(residuals[0])
        effect = factor.jitter_effect(kernel, column[0], coefficients.coef, missed)
    return Fit(
        model=model_of(kernel, solution, coefficients),
        lams=None,
        errors=None,
        lam=lam,
        error=None,
        loo_residuals=None if residuals is None else drop(residuals[0]),
        dof=None if outcome.dof is None else outcome.dof.reshape(lam.shape),
        floor=report.floor,
        indefinite=report.indefinite,
        route=report.route,
        criterion="",
        title="",
        unit="",
        trace_residual=report.trace_residual,
        num_landmarks=0 if report.trace_residual is None else len(factor.points),
        run=outcome.run,
        ridge_effect=effect,
    )


def model_of(kernel: Kernel, solution: Solution, coefficients: Coefficients) -> Model:
    """The model with these coefficients of every target."""
    factor = solution.factor
    coef, intercept, free = jax.tree.map(solution.labels.drop_axis, coefficients)
    points, coef = factor.expansion.compact(kernel, coef)
    return Model(
        kernel, points, coef, intercept, free, None if free is None else factor.fixed.lean()
    )


factored, _chosen = compiled(Problem.solution), compiled(Choice.of)
concluded = compiled(conclude)


def on_grid(problem: Problem, solution: Solution, choice: Choice) -> Fit:
    """The fit at the best of all λ of a choice, with the plan in words."""
    table, best = _chosen(choice, solution, problem.kernel)
    shared = len(table[0]) > 1 and solution.factor.shares_work
    words = f"{len(table[0])} λ{' from one factorization' * shared}"
    plan = f"{problem.solver_or_default.name} ({solution.factor.route}), {words}"
    return concluded(problem.kernel, solution, table, best, problem.criterion, plan=plan)


_on_grid = compiled(on_grid)


def fit_on_grid(problem: Problem, choice: Choice, *, kept: bool) -> tuple[Fit, Solution | None]:
    """The fit with the best λ of a choice, with its solution if that is kept."""
    solution = factored(problem)
    return on_grid(problem, solution, choice), solution if kept else None


fit_on_grid_at_once = compiled(fit_on_grid)  # where all rows go into a program


def of_rows(fit: Fit, n: int) -> Fit:
    """The fit without the rows that its problem was padded with."""
    model, left_out = fit.model, fit.loo_residuals
    if left_out is None or len(left_out) == n or not is_concrete(fit):
        return fit
    if model.points is not None:
        model = replace(model, points=first(model.points, n), coef=first(model.coef, n))
    return replace(fit, model=model, loo_residuals=first(left_out, n))


# warnings
# --------------------------------------------------------------------------------------------------


def inspect_fit(fit: Fit, default_grid: bool, solver: Solver | None = None) -> None:
    """Warn of what a user needs to know before trusting the numbers; raise where they are not
    finite.
    """
    stopped = "" if fit.run is None or solver is None else solver.explain(fit.run)
    what, which, values = f"the {fit.criterion} error", "λ", fit.errors
    if values is None:
        what, which, values = "the model", "coefficients", fit.model.coef
    bad = ~np.isfinite(np.asarray(values))
    if bad.any():
        why = stopped or (
            "the factorization broke down; use float64 (NumPy float64 input), a larger smallest λ, "
            "a smaller kernel width, or solver=Spectral()"
        )
        raise ValueError(f"{what} is not finite at {bad.sum()} of {bad.size} {which}: {why}")
    dtype, residuals = fit.model.coef.dtype, fit.loo_residuals
    rounding = 100 * float(np.finfo(dtype).eps)
    if residuals is not None and float(fit.indefinite) > len(residuals) * rounding:
        warn(
            "the kernel matrix is not positive semidefinite: its most negative eigenvalue, "
            f"{float(fit.indefinite):.2g} of the largest, was set to 0: "
            "check the matrix, or take another kernel"
        )
    if stopped:
        warn(stopped)
    if fit.ridge_effect is not None and float(fit.ridge_effect) > LARGEST_EFFECT:
        warn(
            "the landmarks are nearly dependent, and rounding, or the jitter against it, may move "
            f"predictions by {100 * float(fit.ridge_effect):.2g} % of the error: take fewer "
            f"landmarks{', or float64' * (dtype == np.float32)}"
        )
    inspect_lam(fit, default_grid)


def inspect_lam(fit: Any, default_grid: bool) -> None:
    """The warnings about the chosen λ of any result that has `lam`, `lams` and `floor`."""
    chosen, floor = np.asarray(fit.lam), float(fit.floor)
    lams = np.atleast_1d(chosen if fit.lams is None else np.asarray(fit.lams))
    known = lams >= 0.99 * floor
    # Errors below the floor matter where they were chosen, or where they may have hidden a better λ
    # next to the chosen one.
    if not known.all() and (chosen <= lams[known].min(initial=np.inf)).any():
        warn(
            f"λ below {floor:.2g} is below the precision of the factor, and the grid goes down to "
            f"{lams.min():.2g}: leave such λ out, or use float64"
        )
    if fit.lams is None or len(lams) == 1:
        return
    low, high = (chosen <= lams.min(axis=0)).any(), (chosen >= lams.max(axis=0)).any()
    unregularised = default_grid and lams.min() > 2 * floor  # below it the fit no longer changes
    if high or low and not unregularised:
        edge, further = ("smallest", "smaller") if low else ("largest", "larger")
        remedy = f"pass lams= that reach {further} values"
        if low and lams.min() <= 1.01 * floor:
            remedy = "below it is rounding, so use float64"
        warn(
            f"the chosen λ, {lams.min() if low else lams.max():.3g}, is the {edge} of the grid: "
            f"{remedy}, or change the kernel"
        )


def warn(message: str) -> None:
    """Warn at the line outside of the library that called it."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals["__name__"].startswith("jaxrls."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


# what a fit keeps
# --------------------------------------------------------------------------------------------------


def keeps(problem: Problem, keep: bool | None) -> bool:
    """Whether a fit keeps its solution: as was asked, or where rows are few and known."""
    few = problem.rows.shape[0] <= KEPT_ROWS and is_concrete(problem.weights, problem.Y)
    return few if keep is None else keep


def with_solution(
    fit: Fit, solution: Solution | None, problem: Problem, choice: Choice | None, keep: bool | None
) -> Fit:
    """The fit with its solution, if that is kept."""
    if not keeps(problem, keep):
        return fit
    criterion = problem.criterion
    return replace(
        fit,
        solution=solution,
        problem=problem,
        groups=criterion.groups,
        choice=choice if criterion.of_sums else None,
        saved=bool(keep),
    )


def with_lam(fit: Fit, lam) -> Fit:
    """`Fit.at`."""
    solution, problem, coef = solution_of(fit), fit.problem, fit.model.coef
    if problem is None:
        raise ValueError(
            "another λ needs the data, which a fit does not have after update or load: fit "
            "all rows again"
        )
    lam = as_lam(lam, coef.dtype, coef.shape[1:])
    choice = Choice(problem.criterion, lam[None], per_target=lam.ndim > 0)
    changed = _on_grid(problem, solution, choice)
    inspect_fit(changed, False, problem.solver)
    return replace(
        of_rows(changed, len(fit.loo_residuals)),
        solution=solution,
        problem=problem,
        groups=fit.groups,
        choice=fit.choice,
        saved=fit.saved,
    )
