"""What a chosen λ makes of a solution: the model, what it leaves out, and how sure its numbers are."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.factors.certificate import certificate_words
from jaxrls.factors.contract import Solution
from jaxrls.factors.solvers import Spectral
from jaxrls.models.fitted import Fit
from jaxrls.problem.landmarks import ridge_effect
from jaxrls.rows.compiled import compiled
from jaxrls.rows.gram import gram
from jaxrls.search.inspection import inspect_fit
from jaxrls.search.problem import Problem
from jaxrls.support.checks import is_concrete

KEPT_ROWS = 2000  # a fit to no more of them keeps its solution unless told otherwise
TOLERANCE = 0.1  # of coefficients, in what is certified of landmarks


def solver_name(problem: Problem) -> str:
    """What its solver is called."""
    return type(problem.solver or Spectral()).__name__


def fit_at(problem: Problem, solution: Solution, lam) -> Fit:
    """The fit at one λ, or at one for each target, that others chose, of a problem that is
    solved.
    """
    fit = certified(_at(problem, solution, jnp.asarray(lam, problem.rows.dtype)))
    inspect_fit(fit, False)
    return fit


@compiled
def _at(problem: Problem, solution: Solution, lam) -> Fit:
    errors = problem.errors(solution, lam.reshape(1, -1))
    error = errors[0] if lam.ndim else jnp.mean(errors[0])
    return conclude(problem, solution, lam.reshape(1, *lam.shape), errors, lam, error)


def conclude(problem: Problem, solution: Solution, lams, errors, lam, error) -> Fit:
    """The model at one λ, or one for each target, and how it was chosen."""
    factor, drop, at = solution.factor, solution.labels.drop_axis, lam.reshape(1, -1)
    left = solution.outcome(at, problem.criterion.groups, problem.criterion.total)
    coefficients = jax.tree.map(lambda part: drop(part[0]), left.coefficients)
    report, sure, moved = factor.report, None, None
    if left.error is not None and problem.criterion.smooth:  # the slope of a step says nothing
        sure = (jnp.mean(left.error) if error.ndim == 0 else left.error[0]) / factor.weights.total
    if report.ridge is not None:
        held = jnp.linalg.norm(factor.weights.scale(left.residuals[0]), axis=0)
        corner, coef = gram(problem.kernel, factor.points), left.coefficients.coef[0]
        moved = ridge_effect(corner, report.ridge, coef, at[0], held)
    shared = len(lams) > 1 and factor.shares_work
    words = f"{len(lams)} λ{' from one factorization' * shared}"
    return Fit(
        model=problem.model(solution, coefficients),
        lams=lams,
        errors=errors,
        lam=lam,
        error=error,
        loo_residuals=None if left.residuals is None else drop(left.residuals[0]),
        dof=None if left.dof is None else left.dof.reshape(lam.shape),
        floor=report.floor,
        indefinite=report.indefinite,
        route=report.route,
        criterion=problem.criterion.name,
        plan=f"{solver_name(problem)} ({report.route}), {words}",
        trace_residual=report.trace_residual,
        num_landmarks=0 if problem.landmarks is None else len(problem.landmarks.points),
        run=left.run,
        loo_standard_error=sure,
        ridge_effect=moved,
    )


concluded = compiled(conclude)


def certified(fit: Fit) -> Fit:
    """With what is certified of its landmarks in words, where there are any and values are
    known.
    """
    if not is_concrete(fit.lam) or fit.trace_residual is None:
        return fit
    trace, chosen = float(np.asarray(fit.trace_residual)), float(np.min(fit.lam))
    words = certificate_words(trace, fit.num_landmarks, TOLERANCE)
    held = (
        f"the chosen λ = {chosen:.3g} is {'' if chosen >= trace / TOLERANCE else 'not '}among them"
    )
    return replace(fit, certificate=f"{words}; {held}")
