"""`finish` makes a `Fit` of what was computed: an `Attempt`.

The phrases of the plan are joined, the model takes the names of columns and the offset that was
subtracted from the labels, and the solution is kept with what later calls need.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxrls.core.fit import Function, HeldLam, Problem, Result
from jaxrls.core.support import known_values
from jaxrls.front.attempt import Attempt
from jaxrls.front.fitted import About, Fit, Kept
from jaxrls.front.history import History
from jaxrls.front.model import Model


def finish(
    attempt: Attempt,
    names: tuple,
    targets: tuple,
    saved: bool,
    history: History | None = None,
) -> Fit:
    """Make the `Fit` of an attempt.

    Args:
        attempt: what was computed. Its solution, if there is one, is kept.
        names: the names of the columns of X; () if it has none.
        targets: the names of the columns of Y; () if it has none.
        saved: whether `save` writes the solution.
        history: the history of a search by `tune`.
    """
    result = attempt.result
    problem = attempt.problem
    criterion = problem.criterion
    num_columns = problem.rows.shape[1] if problem.kernel.evaluable else None
    plan = "; ".join((*attempt.words, *words_for_prior(result.diagnostics.amplitude)))
    kept = Kept()
    if attempt.solution is not None:
        kept = Kept(
            attempt.solution,
            problem,
            folds=criterion.groups,
            choice=attempt.choice if criterion.needs_only_sums else HeldLam(result.chosen.lam),
            saved=saved,
        )
    return Fit(
        model=model_of(result.function, names, num_columns, problem.label_offset),
        chosen=result.chosen,
        diagnostics=result.diagnostics,
        about=About(
            criterion=criterion.name,
            title=criterion.title,
            unit=criterion.unit,
            plan=plan,
            scale=criterion.given_scale,
            targets=targets,
        ),
        history=history,
        kept=kept,
        label_offset=problem.label_offset,
    )


# the model
# --------------------------------------------------------------------------------------------------


def model_of(function: Function, names: tuple, num_columns: int | None, offset: Any) -> Model:
    """Return the model of a fitted function.

    Args:
        function: the function that was fitted.
        names: the names of the columns of X; () if it has none.
        num_columns: how many columns X has; None for a kernel matrix.
        offset: what was subtracted from the labels before the fit; None for nothing.
    """
    model = Model(**vars(function), names=names, num_columns=num_columns)
    return model if offset is None else with_offset(model, offset)


def with_offset(model: Model, offset: Any) -> Model:
    """Return the model with an offset added to its predictions, and its constant in float64."""
    return replace(model, constant=np.asarray(model.constant, np.float64) + offset)


def with_names(fit: Fit, names: tuple) -> Fit:
    """Return the fit with other names of columns, or with its own if there are none."""
    return replace(fit, model=replace(fit.model, names=names)) if names else fit


# the plan in words
# --------------------------------------------------------------------------------------------------


def words_for_grid(result: Result, problem: Problem) -> str:
    """Return the plan of a fit on a grid, or with named λ, in words."""
    solver = problem.solver_or_default
    count = len(result.chosen.lams)
    shares_work = count > 1 and result.diagnostics.shares_work
    how = " from one factorization" if shares_work else ""
    return f"{solver.name} ({result.diagnostics.route}), {count} λ{how}"


def words_for_estimate(attempt: Attempt) -> str:
    """Return in words that K is not factored, so that the error is an estimate with this standard
    error.
    """
    result = attempt.result
    standard_error = result.diagnostics.loo_standard_error
    how_exact = ""
    if result.chosen.error is not None and standard_error is not None:
        error = np.asarray(result.chosen.error).mean()
        spread = np.asarray(standard_error).mean()
        how_exact = f", {error:.3g} ± {spread:.1g}"
    title = attempt.problem.criterion.title
    return f"K of all rows is not factored, so the {title} is an estimate{how_exact}"


def words_for_prior(amplitude: Any) -> list[str]:
    """Return in words the variance τ² of the prior, if the criterion has one and it is known."""
    known = known_values(amplitude)
    if known is None:
        return []
    variances = np.square(known.astype(np.float64))
    low = f"{np.min(variances):.3g}"
    high = f"{np.max(variances):.3g}"
    of_targets = "" if low == high else f" to {high}"
    return [f"variance of the prior τ² = {low}{of_targets}"]
