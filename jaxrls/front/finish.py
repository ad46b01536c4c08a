"""`finish` makes a `Fit` of what was computed: an `Attempt`.

The phrases of the plan are joined, the model takes the names of columns and the offset that was
subtracted from the labels, and the solution is kept with what later calls need.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from jaxrls.core.data import first_rows
from jaxrls.core.factors import Solution
from jaxrls.core.fit import Choice, Function, Problem, Result
from jaxrls.core.support import known_values
from jaxrls.front.fitted import About, Fit, Kept
from jaxrls.front.history import History
from jaxrls.front.model import Model


class Attempt(NamedTuple):
    """What a fit computed. It may be replaced by a better attempt; the last one becomes a `Fit`.

    Args:
        result: the fitted function, the chosen λ, and diagnostics.
        solution: what the result was computed from; None if the fit does not keep it.
        problem: the problem that was solved, with the solver that was used.
        choice: how λ was chosen from a grid or among given values, so that `Fit.update` can choose
            it again; the one λ that `tune` found; None if `fit` found λ by a search.
        words: the phrases of the plan: the solver, how λ was searched, and why.
    """

    result: Result
    solution: Solution | None
    problem: Problem
    choice: Choice | None
    words: tuple[str, ...]

    @property
    def why_stopped(self) -> str:
        """Why an iteration stopped before its tolerance, and what to do; "" if it did not."""
        run = self.result.diagnostics.run
        return "" if run is None else self.problem.solver_or_default.explain(run)

    def adding(self, words: str) -> "Attempt":
        """Return the attempt with one more phrase of the plan."""
        return self._replace(words=(*self.words, words))

    def without_padding(self, n: int) -> "Attempt":
        """Return the attempt without points, coefficients and residuals of rows after n.

        n is the number of rows that the caller gave. The rows after it are padding.
        """
        result = self.result
        residuals = result.diagnostics.loo_residuals
        if residuals is None or len(residuals) == n:
            return self
        function = result.function
        if function.points is not None:
            points = first_rows(function.points, n)
            function = replace(function, points=points, coef=first_rows(function.coef, n))
        diagnostics = replace(result.diagnostics, loo_residuals=first_rows(residuals, n))
        return self._replace(result=replace(result, function=function, diagnostics=diagnostics))


def finish(attempt: Attempt, names: tuple, saved: bool, history: History | None = None) -> Fit:
    """Make the `Fit` of an attempt.

    Args:
        attempt: what was computed. Its solution, if there is one, is kept.
        names: the names of the columns of X; () if it has none.
        saved: whether `save` writes the solution.
        history: the history of a search by `tune`.
    """
    result, solution, problem, choice, words = attempt
    criterion = problem.criterion
    plan = "; ".join((*words, *words_for_prior(result.diagnostics.amplitude)))
    kept = Kept()
    if solution is not None:
        again = choice if criterion.needs_only_sums else None
        kept = Kept(solution, problem, criterion.groups, again, saved)
    return Fit(
        model=model_of(result.function, names, problem.label_offset),
        chosen=result.chosen,
        diagnostics=result.diagnostics,
        about=About(criterion.name, criterion.title, criterion.unit, plan, criterion.given_scale),
        history=history,
        kept=kept,
        label_offset=problem.label_offset,
    )


# the model
# --------------------------------------------------------------------------------------------------


def model_of(function: Function, names: tuple, offset: Any) -> Model:
    """Return the model of a fitted function.

    Args:
        function: the function that was fitted.
        names: the names of the columns of X; () if it has none.
        offset: what was subtracted from the labels before the fit; None for nothing.
    """
    model = Model(**vars(function), names=names)
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
