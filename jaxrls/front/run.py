"""`run` executes a plan by compiled programs, and tries another way if rounding spoils the result.

The plan asks for λ of a grid, for named λ, or for a search. `with_lam` computes a finished fit
again at another λ.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from jaxrls.core.data import compiled
from jaxrls.core.factors import ABOVE_ROUNDING, Cholesky, Solution, Spectral
from jaxrls.core.fit import Choice, Chosen, Fitted, Problem, Result, fit_arrays, result_at
from jaxrls.core.support import as_lam, on_device
from jaxrls.front.finish import (
    add_names_and_offset,
    as_fit,
    keep_solution,
    with_plan,
    with_prior_in_plan,
    without_padding,
    words_for_grid,
)
from jaxrls.front.fitted import Fit
from jaxrls.front.inspection import (
    inspect_fit,
    is_as_good,
    is_off_by_rounding,
    share_of_rounding,
    sound_lam,
)
from jaxrls.front.keeping import solution_of
from jaxrls.front.lam_search import search_lam
from jaxrls.front.plan import Plan, Search
from jaxrls.front.sampling import padded

# From this λ/floor on, by bytes of the dtype, a Cholesky factor of dependent features gives
# coefficients that are right to some 1e-8, in float32 to some 1e-4: their relative error is about
# floor/(50 λ).
WEIGHTS_RIGHT_FROM = {4: 100, 8: 1e6}


class Attempt(NamedTuple):
    """A fit that `run` may return or replace by a better one.

    `solution` is what the fit was computed from, None if the plan does not keep it and no search
    needed it. `problem` has the solver that was used. `choice` is how λ was chosen, None for a
    search.
    """

    fit: Fit
    solution: Solution | None
    problem: Problem
    choice: Choice | None


def run(plan: Plan) -> Fit:
    """Return the fit with the best λ, from a grid or from a search, as the plan says."""
    problem = padded(plan.problem)
    if isinstance(plan.lams, Search):
        attempt = _by_search(problem, plan)
    else:
        attempt = _by_grid(problem, plan)
        if plan.retry == "below the floor" and _is_near_floor(attempt.fit):
            attempt = _by_search(replace(problem, solver=Cholesky()), plan)
    fit, solution, solved, choice = attempt
    if plan.kept:
        fit = keep_solution(fit, solution, solved, choice, plan.saved)
    return without_padding(fit, len(plan.problem.Y))


# a grid
# --------------------------------------------------------------------------------------------------


def _by_grid(problem: Problem, plan: Plan) -> Attempt:
    """Return the fit with the best λ of a grid, or among the λ that were named.

    If a Cholesky factor was inexact, and the plan allows it, the fit is computed by a spectrum.
    """
    attempt = fit_on_grid(problem, plan.choice, plan.kept)
    if plan.retry == "by a spectrum" and _is_spoilt_by_rounding(attempt):
        return fit_on_grid(replace(problem, solver=Spectral()), plan.choice, plan.kept)
    return attempt


def fit_on_grid(problem: Problem, choice: Choice, kept: bool) -> Attempt:
    """Return the fit with the best λ of a choice, and its solution if `kept`."""
    result, solution = fit_arrays_compiled(problem, choice, kept=kept)
    fit = as_fit(result, problem, words_for_grid(result, problem))
    return Attempt(fit, solution, problem, choice)


@compiled
def fit_arrays_compiled(problem: Problem, choice: Choice, *, kept: bool) -> Fitted:
    """Run `fit_arrays` as a compiled program, which returns the solution only if `kept`."""
    fitted = fit_arrays(problem, choice)
    return fitted if kept else fitted._replace(solution=None)


def _is_spoilt_by_rounding(attempt: Attempt) -> bool:
    """Whether rounding spoils a fit by a Cholesky factor, for a kernel with explicit features.

    It does if an error is not finite, because the factor broke down. It also does if λ is near the
    floor, and the features cannot fit all rows. A spectrum would leave out the eigenvalues that are
    rounding alone. For other kernels the result is False.
    """
    fit = attempt.fit
    problem = attempt.problem
    if problem.num_features is None:
        return False
    if not np.isfinite(np.asarray(fit.errors)).all():
        return True
    residual_dof = float(problem.weights.count) - float(fit.dof)
    right_from = WEIGHTS_RIGHT_FROM[np.asarray(fit.lam).dtype.itemsize] * float(fit.floor)
    return float(fit.lam) < right_from and residual_dof > 0.5


def _is_near_floor(fit: Fit) -> bool:
    """Whether rounding may spoil the errors, or held-out residuals of single rows, of a spectrum.

    Cholesky factors are rounded less, so a search by them is worth its cost.
    """
    return float(fit.lam) < ABOVE_ROUNDING * float(fit.floor) or is_off_by_rounding(fit)


# a search
# --------------------------------------------------------------------------------------------------


def _by_search(problem: Problem, plan: Plan) -> Attempt:
    """Return the fit with the best λ of a search.

    If rounding moves held-out residuals of single rows there, a larger λ may be taken.
    """
    chosen, solution, words = search_lam(problem, _solution(problem), plan.per_target)
    fit = as_fit(_result_at(problem, solution, chosen), problem)
    name = problem.solver_or_default.name
    fit = with_plan(fit, f"{name}, a search for λ: {words}")
    attempt = Attempt(fit, solution, problem, choice=None)
    if np.ndim(fit.lam) == 0 and is_off_by_rounding(fit):
        return _above_rounding(attempt)
    return attempt


_solution = compiled(Problem.solution)
_result_at = compiled(result_at)


def _above_rounding(attempt: Attempt) -> Attempt:
    """Return the fit at the end of a search, or at a larger λ if that fit is about as good.

    The larger λ is the least at which held-out residuals of single rows are right.
    """
    fit = attempt.fit
    problem = attempt.problem
    lam = np.asarray([sound_lam(fit)], problem.rows.dtype)
    at_larger = fit_on_grid(problem, Choice(problem.criterion, on_device(lam)), kept=True)
    larger = at_larger.fit
    if not is_as_good(larger.error, fit.error, share_of_rounding(fit), problem):
        return attempt
    chosen = replace(larger.chosen, **_both_ascending(fit.chosen, larger.chosen))
    larger = replace(larger, chosen=chosen)
    words = f"{fit.plan}; then at larger λ, where single rows are right"
    return at_larger._replace(fit=with_plan(larger, words), choice=None)


def _both_ascending(first: Chosen, second: Chosen) -> dict:
    """Return all λ that were tried, ascending, and their errors, as fields of `Chosen`.

    They are joined on the host, so that no program is compiled.
    """
    lams = np.concatenate([first.lams, second.lams])
    errors = np.concatenate([first.errors, second.errors])
    order = np.argsort(lams)
    return {"lams": on_device(lams[order]), "errors": on_device(errors[order])}


# another λ
# --------------------------------------------------------------------------------------------------


def with_lam(fit: Fit, lam: Any) -> Fit:
    """Return the fit at another λ, from the solution that the fit keeps: see `Fit.with_lam`."""
    solution = solution_of(fit)
    problem = fit.kept.problem
    coef = fit.model.coef
    if problem is None:
        raise ValueError(
            "another λ needs the data, which a fit does not have after update or load: fit "
            "all rows again"
        )
    lam = as_lam(lam, coef.dtype, coef.shape[1:])
    choice = Choice(problem.criterion, lam[None], per_target=lam.ndim > 0)
    result = _result_of_choice(problem, solution, choice)
    changed = as_fit(result, problem, words_for_grid(result, problem))
    inspect_fit(changed, True, problem.solver)
    changed = keep_solution(changed, solution, problem, fit.kept.choice, fit.kept.saved)
    if fit.loo_residuals is not None:  # they have no padding, which the problem may have
        changed = without_padding(changed, n=len(fit.loo_residuals))
    changed = with_prior_in_plan(changed)
    return add_names_and_offset(changed, fit.model.names, fit.label_offset)


@compiled
def _result_of_choice(problem: Problem, solution: Solution, choice: Choice) -> Result:
    """Return the result with the best λ of a choice, from a solution."""
    return result_at(problem, solution, choice.of(solution, problem.kernel))
