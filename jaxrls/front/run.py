"""`run` executes a plan by compiled programs, and tries another way if rounding spoils the result.

The plan asks for λ of a grid, for named λ, or for a search. `with_lam` computes a finished fit
again at another λ.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxrls.core.data import compiled
from jaxrls.core.factors import ABOVE_ROUNDING, Cholesky, Solution, Spectral
from jaxrls.core.fit import (
    Choice,
    Chosen,
    Fitted,
    Given,
    HeldLam,
    Problem,
    Result,
    fit_arrays,
    result_at,
)
from jaxrls.core.support import as_lam, on_device
from jaxrls.front.attempt import Attempt
from jaxrls.front.finish import finish, words_for_grid
from jaxrls.front.fitted import Fit
from jaxrls.front.inspection import inspect_result
from jaxrls.front.keeping import solution_of
from jaxrls.front.lam_search import search_lam
from jaxrls.front.plan import Plan, Search
from jaxrls.front.rounding import Rounding, is_as_good, is_indefinite, rounding_of
from jaxrls.front.sampling import padded

# From this λ/floor on, by bytes of the dtype, a Cholesky factor of dependent features gives
# coefficients that are right to some 1e-8, in float32 to some 1e-4: their relative error is about
# floor/(50 λ).
WEIGHTS_RIGHT_FROM = {4: 100, 8: 1e6}


def run(plan: Plan, progress: bool) -> Attempt:
    """Compute the fit with the best λ, from a grid or from a search, as the plan says.

    If rounding spoils the result, and the plan names another way, the fit is computed by that.
    """
    plan = plan.prepared(progress)
    plan.check_memory()
    n = len(plan.problem.Y)
    plan = plan._replace(problem=padded(plan.problem))
    attempt = _by_search(plan) if isinstance(plan.lams, Search) else _on_grid_or_again(plan)
    if not plan.kept:
        attempt = attempt._replace(solution=None)
    return attempt.without_padding(n)


def _on_grid_or_again(plan: Plan) -> Attempt:
    """Compute the fit on the grid of a plan, and by its other way if rounding spoils the result."""
    attempt = fit_on_grid(plan)
    match plan.retry:
        case "by a spectrum" if _is_spoilt_by_rounding(attempt.result):
            return fit_on_grid(plan.by(Spectral()))
        case "below the floor" if _factors_may_be_better(attempt.result):
            return _by_search(plan.by(Cholesky()))
    return attempt


# a grid
# --------------------------------------------------------------------------------------------------


def fit_on_grid(plan: Plan) -> Attempt:
    """Compute the fit with the best λ of a grid, or among the λ that were named."""
    problem = plan.problem
    choice = plan.choice
    result, solution = fit_arrays_compiled(problem, choice, kept=plan.kept)
    words = (words_for_grid(result, problem),)
    return Attempt(result=result, solution=solution, problem=problem, words=words, choice=choice)


@compiled
def fit_arrays_compiled(problem: Problem, choice: Choice, *, kept: bool) -> Fitted:
    """Run `fit_arrays` as a compiled program, which returns the solution only if `kept`."""
    fitted = fit_arrays(problem, choice)
    return fitted if kept else fitted._replace(solution=None)


def _is_spoilt_by_rounding(result: Result) -> bool:
    """Whether rounding spoils a fit by a Cholesky factor, for a kernel with explicit features.

    It does if an error is not finite, because the factor broke down. It also does if λ is near the
    floor, and the features cannot fit all rows.
    """
    chosen = result.chosen
    if not np.isfinite(np.asarray(chosen.errors)).all():
        return True
    diagnostics = result.diagnostics
    residual_dof = float(diagnostics.num_rows) - float(diagnostics.dof)
    itemsize = np.asarray(chosen.lam).dtype.itemsize
    right_from = WEIGHTS_RIGHT_FROM[itemsize] * float(diagnostics.floor)
    return float(chosen.lam) < right_from and residual_dof > 0.5


def _factors_may_be_better(result: Result) -> bool:
    """Whether a search by Cholesky factors is worth its cost after a grid from a spectrum.

    It is if rounding may spoil the errors, or held-out residuals of single rows. But if K has
    negative eigenvalues, only a spectrum can set them to 0.
    """
    if is_indefinite(result):
        return False
    above_rounding = ABOVE_ROUNDING * float(result.diagnostics.floor)
    return float(result.chosen.lam) < above_rounding or rounding_of(result).is_too_large


# a search
# --------------------------------------------------------------------------------------------------


def _by_search(plan: Plan) -> Attempt:
    """Compute the fit with the best λ of a search.

    If rounding moves held-out residuals of single rows there, a larger λ may be taken.
    """
    problem = plan.problem
    chosen, solution, how = search_lam(problem, _solution(problem), plan.per_target)
    result = _result_at(problem, solution, chosen)
    words = f"{problem.solver_or_default.name}, a search for λ: {how}"
    attempt = Attempt(result, solution, problem, (words,), HeldLam(chosen.lam))
    if np.ndim(chosen.lam) > 0:
        return attempt
    rounding = rounding_of(result)
    return _above_rounding(plan, attempt, rounding) if rounding.is_too_large else attempt


_solution = compiled(Problem.solution)
_result_at = compiled(result_at)


def _above_rounding(plan: Plan, attempt: Attempt, rounding: Rounding) -> Attempt:
    """Compute the fit at a larger λ than a search found; return it if it is about as good.

    The larger λ is the least at which held-out residuals of single rows are right.
    """
    problem = plan.problem
    lam = on_device(np.asarray([rounding.sound_lam], problem.rows.dtype))
    larger = fit_on_grid(plan._replace(lams=Given(lam), kept=True))
    before = attempt.result.chosen
    after = larger.result.chosen
    if not is_as_good(after.error, before.error, rounding.share, problem):
        return attempt
    chosen = _joined(before, after)
    words = (*attempt.words, "then at larger λ, where single rows are right")
    result = replace(larger.result, chosen=chosen)
    return Attempt(result, larger.solution, problem, words, HeldLam(chosen.lam))


def _joined(before: Chosen, after: Chosen) -> Chosen:
    """Return the later choice, with the λ and errors of both, ascending.

    They are joined on the host, so that no program is compiled.
    """
    lams = np.concatenate([before.lams, after.lams])
    errors = np.concatenate([before.errors, after.errors])
    order = np.argsort(lams)
    return replace(after, lams=on_device(lams[order]), errors=on_device(errors[order]))


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
    choice = Choice(problem.criterion, Given(lam[None]))
    result = _result_of_choice(problem, solution, choice)
    words = (words_for_grid(result, problem),)
    attempt = Attempt(result=result, solution=solution, problem=problem, words=words, choice=choice)
    inspect_result(result, fit.criterion, names_lams=True, why_stopped=attempt.why_stopped)
    if fit.loo_residuals is not None:  # they have no padding, which the problem may have
        attempt = attempt.without_padding(len(fit.loo_residuals))
    return finish(attempt, fit.model.names, fit.about.targets, fit.kept.saved)


@compiled
def _result_of_choice(problem: Problem, solution: Solution, choice: Choice) -> Result:
    """Return the result with the best λ of a choice, from a solution."""
    return result_at(problem, solution, choice.of(solution, problem.kernel))
