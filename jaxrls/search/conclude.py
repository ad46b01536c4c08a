"""What a chosen λ makes of a solution, a `Fit`, and what a user would want to know before trusting
its numbers: errors and warnings, on the host.
"""

import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.criteria.criterion import Criterion
from jaxrls.factors.contract import Outcome, Solution
from jaxrls.factors.solvers import Spectral
from jaxrls.inference.fitted import Fit
from jaxrls.inference.model import Model
from jaxrls.inference.two_sided import KroneckerFit
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.conjugate import CONVERGED, REASONS, Run
from jaxrls.problem.landmarks import ridge_effect
from jaxrls.rows.compiled import compiled
from jaxrls.rows.gram import gram
from jaxrls.search.problem import Problem

LARGEST_EFFECT = 0.01  # of a ridge on predictions, beside the error, that goes without a word


def conclude(
    kernel: Kernel,
    solution: Solution,
    table: tuple,
    chosen: tuple,
    criterion: Criterion | None,
    *,
    plan: str = "",
) -> Fit:
    """The model at the chosen λ, one or one for each target, with the table of all λ and errors
    that it was chosen from. Of rows that are gone there is no criterion, and nothing is left out.
    """
    (lam, error), factor, drop = chosen, solution.factor, solution.labels.drop_axis
    at, report, sure, moved = lam.reshape(1, -1), factor.report, None, None
    if criterion is None:
        left = Outcome(solution.coefficients(at), None, solution.dof(at))
    else:
        left = solution.outcome(at, criterion.groups, criterion.total)
        if left.error is not None and criterion.smooth:  # the slope of a step says nothing
            sure = jnp.mean(left.error) if error.ndim == 0 else left.error[0]
            sure = sure / factor.weights.total
    found = jax.tree.map(lambda part: part[0], left.coefficients)
    if report.ridge is not None:
        length = lambda e: jnp.linalg.norm(factor.weights.scale(e), axis=0)
        gone = left.residuals is None  # and what was left out is larger than this
        missed = jnp.sqrt(solution.residual_norm(at)[0]) if gone else length(left.residuals[0])
        moved = ridge_effect(gram(kernel, factor.points), report.ridge, found.coef, at[0], missed)
    coef, intercept, free = jax.tree.map(drop, found)
    points, coef = factor.expansion.compact(kernel, coef)
    effects = None if free is None else factor.fixed.lean()
    return Fit(
        model=Model(kernel, points, coef, intercept, free, effects),
        lams=table[0],
        errors=table[1],
        lam=lam,
        error=error,
        loo_residuals=None if left.residuals is None else drop(left.residuals[0]),
        dof=None if left.dof is None else left.dof.reshape(lam.shape),
        floor=report.floor,
        indefinite=report.indefinite,
        route=report.route,
        criterion="" if criterion is None else criterion.name,
        plan=plan,
        trace_residual=report.trace_residual,
        num_landmarks=0 if report.trace_residual is None else len(factor.points),
        run=left.run,
        loo_standard_error=sure,
        ridge_effect=moved,
    )


concluded = compiled(conclude)


def solver_name(problem: Problem) -> str:
    """What its solver is called."""
    return type(problem.solver or Spectral()).__name__


def conclude_grid(problem: Problem, solution: Solution, table: tuple, chosen: tuple) -> Fit:
    """`conclude` for all λ of a table at once, and in which words."""
    shared = len(table[0]) > 1 and solution.factor.shares_work
    words = f"{len(table[0])} λ{' from one factorization' * shared}"
    plan = f"{solver_name(problem)} ({solution.factor.route}), {words}"
    return concluded(problem.kernel, solution, table, chosen, problem.criterion, plan=plan)


def fit_at(problem: Problem, solution: Solution, lam) -> Fit:
    """The fit at one λ, or at one for each target, that others chose, of a problem that is
    solved.
    """
    fit = _at(problem, solution, jnp.asarray(lam, problem.rows.dtype))
    inspect_fit(fit, False)
    return fit


@compiled
def _at(problem: Problem, solution: Solution, lam) -> Fit:
    errors = problem.errors(solution, lam.reshape(1, -1))
    error = errors[0] if lam.ndim else jnp.mean(errors[0])
    return conclude_grid(problem, solution, (lam[None], errors), (lam, error))


# what there is to say
# --------------------------------------------------------------------------------------------------


def inspect_fit(fit: Fit, default_grid: bool) -> None:
    """Say what a user would want to know before trusting the numbers."""
    stopped = "" if fit.run is None else _stopped(fit.run, "Iterative" in fit.plan)
    errors: Any = np.asarray(fit.model.coef if fit.errors is None else fit.errors)
    if not np.isfinite(errors).all():
        why = stopped or (
            "the factorization broke down; use float64 (NumPy float64 input), a larger smallest λ, "
            "a smaller kernel width, or solver=Spectral()"
        )
        what, which = f"the {fit.criterion} error", "λ"
        if fit.errors is None:
            what, which = "the model", "coefficients"
        count = int((~np.isfinite(errors)).sum())
        raise ValueError(f"{what} is not finite at {count} of {errors.size} {which}: {why}")
    floor, residuals = np.asarray(fit.floor), fit.loo_residuals
    rounding = 100 * float(np.finfo(floor.dtype).eps)
    if residuals is not None and float(fit.indefinite) > len(residuals) * rounding:
        warn(
            "the kernel matrix is not positive semidefinite: its most negative eigenvalue, "
            f"{float(fit.indefinite):.2g} of the largest, was set to 0"
        )
    if stopped:
        warn(stopped)
    if fit.ridge_effect is not None and float(fit.ridge_effect) > LARGEST_EFFECT:
        warn(
            "the landmarks nearly depend, and rounding, or the ridge that it asks for, may move "
            f"predictions by {100 * float(fit.ridge_effect):.2g} % of the error: take fewer "
            f"landmarks{', or float64' * (floor.dtype == np.float32)}"
        )
    inspect_lam(fit, default_grid)


def inspect_lam(fit: Fit | KroneckerFit, default_grid: bool) -> None:
    """Of these, what there is to say of λ."""
    chosen, floor = np.asarray(fit.lam), float(fit.floor)
    lams = np.atleast_1d(chosen if fit.lams is None else np.asarray(fit.lams))
    known = lams[lams >= 0.99 * floor]
    # Errors below the floor matter where they were chosen, or where they may have hidden a better λ
    # next to the chosen one.
    if len(known) < len(lams) and (len(known) == 0 or bool((chosen <= known.min()).any())):
        warn(
            f"λ below {floor:.2g} is below the precision of the factor, and the grid goes down to "
            f"{lams.min():.2g}: drop those, or use float64"
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


def _stopped(run: Run, iterative: bool) -> str:
    """Why the column that is furthest from its solution stopped, and what to do; empty where all
    came to the tolerance.
    """
    residuals, reasons = np.asarray(run.residuals), np.asarray(run.reason)
    if (reasons == CONVERGED).all():
        return ""
    far = np.where(np.isnan(residuals), np.inf, residuals)
    worst = int(np.argmax(np.where(reasons == CONVERGED, -np.inf, far)))
    remedy = "more landmarks, a larger λ, or float64" if iterative else "a larger λ"
    return (
        f"the iteration stopped at a residual of {residuals[worst]:.2g}: "
        f"{REASONS[reasons[worst]]}: take {remedy}"
    )


def warn(message: str) -> None:
    """To who called the library."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals["__name__"].startswith("jaxrls."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
