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

from jaxrls.core.factors import Outcome, Solution, Solver
from jaxrls.core.fit.fitted import Fit, Model, r_squared, solution_of
from jaxrls.core.fit.grid import Choice
from jaxrls.core.fit.problem import Problem
from jaxrls.core.problem import compiled, first
from jaxrls.core.support import as_lam, is_concrete

KEPT_ROWS = 2000  # a fit to at most so many keeps its solution by default
LARGEST_EFFECT = 0.01  # of a ridge on predictions, relative to the error, without a warning


def conclude(kernel, solution, chosen, criterion, *, plan: str = "") -> Fit:
    """The fit at the chosen λ, one for all targets or one for each, with held-out residuals."""
    lam, labels, weights = chosen.lam, solution.labels, solution.factor.weights
    outcome = solution.outcome(lam.reshape(1, -1), criterion.groups, criterion.total)
    at_lam = lambda sums: sums[0] if lam.ndim else jnp.mean(sums)
    standard_error, r2 = None, None
    if chosen.error is None and outcome.total is not None:
        errors = labels.drop_axis(outcome.total / weights.total)
        chosen = chosen._replace(errors=errors, error=at_lam(errors))
    if outcome.error is not None and criterion.smooth:  # a step has no useful slope
        standard_error = at_lam(outcome.error) / weights.total
    if outcome.residuals is not None:
        r2 = r_squared(outcome.residuals[0], labels.Y, weights.values, jnp)
    return replace(
        _fit_of(kernel, solution, chosen, outcome, plan),
        criterion=criterion.name,
        title=criterion.title,
        unit=criterion.unit,
        loo_standard_error=standard_error,
        r2=r2,
    )


def conclude_moments(kernel, solution, chosen, *, plan: str) -> Fit:
    """The fit at the chosen λ of a solution of moments, which has no rows to hold out."""
    column = chosen.lam.reshape(1, -1)
    outcome = Outcome(solution.coefficients(column), None, solution.dof(column))
    return _fit_of(kernel, solution, chosen, outcome, plan)


def _fit_of(kernel, solution, chosen, outcome, plan):
    """The fit, but for what depends on a criterion."""
    report, residuals, points = solution.factor.report, outcome.residuals, solution.factor.points
    coefficients = jax.tree.map(lambda part: part[0], outcome.coefficients)
    drop, lam = solution.labels.drop_axis, chosen.lam
    return Fit(
        model=_model_of(kernel, solution, coefficients),
        lams=chosen.lams,
        errors=chosen.errors,
        lam=lam,
        error=chosen.error,
        loo_residuals=None if residuals is None else drop(residuals[0]),
        dof=None if outcome.dof is None else outcome.dof.reshape(lam.shape),
        floor=report.floor,
        indefinite=report.indefinite,
        route=report.route,
        plan=plan,
        trace_residual=report.trace_residual,
        num_landmarks=0 if report.trace_residual is None else len(points),
        run=outcome.run,
        ridge_effect=None
        if report.ridge is None
        else _ridge_effect(kernel, solution, lam, outcome),
    )


def _ridge_effect(kernel, solution, lam, outcome):
    """How far jitter moved the fit at most, relative to the held-out residuals; where there are
    none, to those of training, which are smaller.
    """
    factor, column, residuals = solution.factor, lam.reshape(1, -1), outcome.residuals
    length = lambda residuals: jnp.linalg.norm(factor.weights.scale(residuals), axis=0)
    of_training = residuals is None
    missed = jnp.sqrt(solution.residual_norm(column)[0]) if of_training else length(residuals[0])
    return factor.jitter_effect(kernel, column[0], outcome.coefficients.coef[0], missed)


def _model_of(kernel, solution, coefficients):
    """The model with these coefficients of every target."""
    factor = solution.factor
    coef, intercept, free = jax.tree.map(solution.labels.drop_axis, coefficients)
    points, coef = factor.expansion.compact(kernel, coef)
    return Model(
        kernel, points, coef, intercept, free, None if free is None else factor.fixed.lean()
    )


factored, _chosen = compiled(Problem.solution), compiled(Choice.of)
concluded = compiled(conclude)


def fit_on_grid(problem, choice, *, kept: bool) -> tuple[Fit, Solution | None]:
    """The fit with the best λ of a choice, with its solution if that is kept."""
    solution = factored(problem)
    return _with_choice(problem, solution, choice), solution if kept else None


def _with_choice(problem, solution, choice):
    """The fit at the best of all λ of a choice, with the plan in words."""
    chosen, factor = _chosen(choice, solution, problem.kernel), solution.factor
    count = len(chosen.lams)
    words = f"{count} λ{' from one factorization' * (count > 1 and factor.shares_work)}"
    plan = f"{problem.solver_or_default.name} ({factor.route}), {words}"
    return concluded(problem.kernel, solution, chosen, problem.criterion, plan=plan)


fit_on_grid_at_once = compiled(fit_on_grid)  # where all rows go into a program
_with_choice_at_once = compiled(_with_choice)


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


def keeps(problem, keep: bool | None) -> bool:
    """Whether a fit keeps its solution: as was asked, or where rows are few and known."""
    few = problem.rows.shape[0] <= KEPT_ROWS and is_concrete(problem.weights, problem.Y)
    return few if keep is None else keep


def with_solution(
    fit, solution: Solution | None, problem, choice: Choice | None, keep: bool | None
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


def with_lam(fit, lam) -> Fit:
    """`Fit.with_lam`."""
    solution, problem, coef = solution_of(fit), fit.problem, fit.model.coef
    if problem is None:
        raise ValueError(
            "another λ needs the data, which a fit does not have after update or load: fit "
            "all rows again"
        )
    lam = as_lam(lam, coef.dtype, coef.shape[1:])
    choice = Choice(problem.criterion, lam[None], per_target=lam.ndim > 0)
    changed = _with_choice_at_once(problem, solution, choice)
    inspect_fit(changed, False, problem.solver)
    changed = with_solution(changed, solution, problem, fit.choice, fit.saved or None)
    return without_padding(changed, len(fit.loo_residuals))


def without_padding(fit, n: int) -> Fit:
    """The fit of the first n rows."""
    model, residuals = fit.model, fit.loo_residuals
    if residuals is None or len(residuals) == n or not is_concrete(fit):
        return fit
    if model.points is not None:
        model = replace(model, points=first(model.points, n), coef=first(model.coef, n))
    return replace(fit, model=model, loo_residuals=first(residuals, n))
