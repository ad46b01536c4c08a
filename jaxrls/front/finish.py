"""Functions that make a `Fit` of a `Result`, and complete it.

They add the plan in words, the solution if it is kept, the names of columns, and the offset that
was subtracted from the labels. They remove rows of padding.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxrls.core.data import first_rows
from jaxrls.core.factors import Solution
from jaxrls.core.fit import Choice, Problem, Result
from jaxrls.front.fitted import About, Fit, Kept
from jaxrls.front.model import Model


def as_fit(result: Result, problem: Problem, plan: str = "") -> Fit:
    """Make a `Fit` of a result, with criterion and plan in words."""
    criterion = problem.criterion
    about = About(criterion.name, criterion.title, criterion.unit, plan)
    model = Model(**vars(result.function))
    return Fit(model, result.chosen, result.diagnostics, about)


def words_for_grid(result: Result, problem: Problem) -> str:
    """Return the plan of a fit on a grid, or with named λ, in words."""
    solver = problem.solver_or_default
    count = len(result.chosen.lams)
    shares_work = count > 1 and result.diagnostics.shares_work
    how = " from one factorization" if shares_work else ""
    return f"{solver.name} ({result.diagnostics.route}), {count} λ{how}"


def with_plan(fit: Fit, words: str) -> Fit:
    """Return the fit with other words for its plan."""
    return replace(fit, about=replace(fit.about, plan=words))


def with_prior_in_plan(fit: Fit) -> Fit:
    """Return the fit with the prior's variance τ² in its plan, if the criterion chose it."""
    if fit.amplitude is None:
        return fit
    variances = np.square(np.asarray(fit.amplitude, np.float64))
    low = f"{np.min(variances):.3g}"
    high = f"{np.max(variances):.3g}"
    of_targets = "" if low == high else f" to {high}"
    return with_plan(fit, f"{fit.plan}; variance of the prior τ² = {low}{of_targets}")


def with_estimate_in_plan(fit: Fit) -> Fit:
    """Return the fit with two facts added to its plan: K is not factored, so the error is an
    estimate; and the standard error of this estimate.
    """
    how_exact = ""
    if fit.error is not None and fit.loo_standard_error is not None:
        error = np.asarray(fit.error).mean()
        spread = np.asarray(fit.loo_standard_error).mean()
        how_exact = f", {error:.3g} ± {spread:.1g}"
    why = f"K of all rows is not factored, so the {fit.title} is an estimate{how_exact}"
    return with_plan(fit, f"{fit.plan}; {why}")


def keep_solution(
    fit: Fit, solution: Solution | None, problem: Problem, choice: Choice | None, saved: bool
) -> Fit:
    """Return the fit with its solution, and with what another λ and other rows need.

    Args:
        fit: the fit to complete.
        solution: what the fit was computed from.
        problem: the problem that was solved.
        choice: how λ was chosen, so that `Fit.update` can choose it again; None after a search.
        saved: whether `save` writes the solution.
    """
    criterion = problem.criterion
    again = choice if criterion.needs_only_sums else None
    return replace(fit, kept=Kept(solution, problem, criterion.groups, again, saved))


def without_padding(fit: Fit, n: int) -> Fit:
    """Return the fit without the points, coefficients and residuals of rows after n.

    n is the number of rows that the caller gave. The rows after it are padding.
    """
    if fit.loo_residuals is None or len(fit.loo_residuals) == n:
        return fit
    model = fit.model
    if model.points is not None:
        points = first_rows(model.points, n)
        model = replace(model, points=points, coef=first_rows(model.coef, n))
    residuals = first_rows(fit.loo_residuals, n)
    return replace(fit, model=model, diagnostics=replace(fit.diagnostics, loo_residuals=residuals))


def add_names_and_offset(fit: Fit, names: tuple, offset: Any = None) -> Fit:
    """Return the fit with the names of columns, and with the label offset in its intercept.

    The offset is what was subtracted from the labels before the fit; None for nothing. An intercept
    with an offset is in float64.
    """
    model = replace(fit.model, names=names) if names else fit.model
    if offset is None:
        return replace(fit, model=model)
    model = replace(model, intercept=np.asarray(model.intercept, np.float64) + offset)
    if model.beta is not None:  # beta[0] is the intercept: without one, nothing is subtracted
        beta = np.array(model.beta, np.float64)
        beta[0] += offset
        model = replace(model, beta=beta)
    return replace(fit, model=model, label_offset=offset)
