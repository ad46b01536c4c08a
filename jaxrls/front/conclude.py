"""From a solution and a chosen λ to a `Fit`: model, held-out residuals and sums; and the solution
that is kept for what may be asked later.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.data import compiled, first_rows
from jaxrls.core.factors import Outcome, Solution
from jaxrls.core.support import as_lam, is_concrete
from jaxrls.front.fitted import Fit, Model, add_names_and_offset, r_squared, solution_of
from jaxrls.front.grid import Choice, Chosen, counted_residuals
from jaxrls.front.inspection import inspect_fit

KEPT_ROWS = 2000  # a fit to at most so many keeps its solution by default


@compiled
def at_best(problem, solution, choice) -> Fit:
    """The fit at the best of all λ of a choice, with the plan in words."""
    chosen = choice.of(solution, problem.kernel)
    factor = solution.factor
    count = len(chosen.lams)
    words = f"{count} λ{' from one factorization' if count > 1 and factor.shares_work else ''}"
    plan = f"{problem.solver_or_default.name} ({factor.route}), {words}"
    return conclude(problem, solution, chosen, plan)


def conclude(problem, solution: Solution, chosen: Chosen, plan: str = "") -> Fit:
    """The fit at the chosen λ, one for all targets or one for each, with held-out residuals."""
    criterion = problem.criterion
    labels = solution.labels
    weights = solution.factor.weights
    groups = criterion.groups
    lam = chosen.lam
    outcome = solution.outcome(lam.reshape(1, -1), groups, criterion.summand)
    of_lam = lambda sums: sums[0] if lam.ndim else jnp.mean(sums)
    if chosen.error is None and outcome.total is not None:
        errors = labels.drop_axis(outcome.total / weights.total)
        chosen = chosen._replace(errors=errors, error=of_lam(errors))
    fit = _fit_of(problem.kernel, solution, chosen, outcome, plan)
    fit = replace(fit, criterion=criterion.name, title=criterion.title, unit=criterion.unit)
    amplitude = criterion.amplitude(solution, lam.reshape(1, -1))
    if amplitude is not None:
        fit = replace(fit, amplitude=labels.drop_axis(amplitude[0]))
    if outcome.error is not None and criterion.smooth:  # a step has no useful slope
        fit = replace(fit, loo_standard_error=of_lam(outcome.error) / weights.total)
    if outcome.held_out is None:
        return fit
    e, counted = counted_residuals(outcome.held_out[0], weights, groups)
    squares = counted.mean(e**2)
    even = counted.values is None or counted.padded
    of_one_row = labels.Y[:1] if even else labels.Y[jnp.argmax(counted.values)]
    r2 = jnp.mean(r_squared(squares, labels.Y - of_one_row, counted.mean, jnp))
    return replace(fit, r2=r2, loo_rms=labels.drop_axis(jnp.sqrt(squares)))


def conclude_moments(kernel, solution: Solution, chosen: Chosen, plan: str) -> Fit:
    """The fit at the chosen λ of a solution of moments, which has no rows to hold out."""
    column = chosen.lam.reshape(1, -1)
    coefficients = solution.factor.coefficients(solution, column)
    outcome = Outcome(coefficients, None, solution.dof(column))
    return _fit_of(kernel, solution, chosen, outcome, plan)


def _fit_of(kernel, solution: Solution, chosen: Chosen, outcome: Outcome, plan: str) -> Fit:
    """The fit, but for what depends on a criterion."""
    factor = solution.factor
    drop = solution.labels.drop_axis
    lam = chosen.lam
    report = factor.report
    dof = outcome.dof
    residuals = outcome.held_out
    coef, beta = (part[0] for part in outcome.coefficients)
    intercept, free = jax.tree.map(drop, factor.fixed.split(beta))
    points, coef = factor.expansion.compact(kernel, drop(coef))
    model = Model(kernel, points, coef, intercept)
    if free is not None:
        effects = factor.fixed.without_values()
        model = replace(model, free=free, effects=effects, beta=drop(beta))
    return Fit(
        model=model,
        lams=chosen.lams,
        errors=chosen.errors,
        lam=lam,
        error=chosen.error,
        loo_residuals=None if residuals is None else drop(residuals[0]),
        dof=None if dof is None else dof.reshape(lam.shape),
        floor=report.floor,
        indefinite=report.indefinite,
        informative=report.informative,
        route=report.route,
        plan=plan,
        trace_residual=report.trace_residual,
        num_landmarks=0 if report.trace_residual is None else len(factor.points),
        run=outcome.run,
        jitter_effect=_jitter_effect(kernel, solution, lam.reshape(1, -1), outcome),
    )


def _jitter_effect(kernel, solution: Solution, column, outcome: Outcome) -> Any:
    """How far jitter moved the fit, as a share of the held-out residuals; None without jitter."""
    factor = solution.factor
    residuals = outcome.held_out
    if factor.report.jitter is None:
        return None
    squares = (
        solution.residual_norm(column)[0]  # those of training, which are smaller
        if residuals is None
        else jnp.nansum(factor.weights.scale(residuals[0]) ** 2, axis=0)
    )
    coef = outcome.coefficients[0][0]
    return factor.jitter_effect(kernel, column[0], coef, jnp.sqrt(squares))


# what a fit keeps
# --------------------------------------------------------------------------------------------------


def with_prior_in_plan(fit: Fit) -> Fit:
    """The fit whose plan says the variance of the prior, where that was estimated."""
    if fit.amplitude is None or not is_concrete(fit.amplitude):
        return fit
    variances = np.square(np.asarray(fit.amplitude, np.float64))
    low = f"{np.min(variances):.3g}"
    high = f"{np.max(variances):.3g}"
    of_targets = "" if low == high else f" to {high}"
    return replace(fit, plan=f"{fit.plan}; variance of the prior τ² = {low}{of_targets}")


def keeps(problem, keep: bool | None) -> bool:
    """Whether a fit keeps its solution: as was asked, or where rows are few and known."""
    few = problem.rows.shape[0] <= KEPT_ROWS and is_concrete(problem.weights, problem.Y)
    return few if keep is None else keep


def with_solution(
    fit, solution: Solution | None, problem, choice: Choice | None, keep: bool | None, n: int
) -> Fit:
    """The fit with its solution, if that is kept, and without what belongs to rows after n."""
    criterion = problem.criterion
    model = fit.model
    residuals = fit.loo_residuals
    if keeps(problem, keep):
        choice = choice if criterion.needs_only_sums else None
        fit = replace(fit, solution=solution, problem=problem, choice=choice)
        fit = replace(fit, groups=criterion.groups, saved=bool(keep))
    if residuals is None or len(residuals) == n or not is_concrete(fit):
        return fit
    if model.points is not None:
        model = replace(model, points=first_rows(model.points, n), coef=first_rows(model.coef, n))
    return replace(fit, model=model, loo_residuals=first_rows(residuals, n))


def with_lam(fit, lam) -> Fit:
    """`Fit.with_lam`."""
    solution = solution_of(fit)
    problem = fit.problem
    coef = fit.model.coef
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
    keep = fit.saved or None
    n = len(problem.Y if fit.loo_residuals is None else fit.loo_residuals)
    changed = with_solution(changed, solution, problem, fit.choice, keep, n)
    changed = with_prior_in_plan(changed)
    return add_names_and_offset(changed, fit.model.names, fit.label_offset)
