"""`Attempt`, what a fit computed before it becomes a `Fit`."""

from dataclasses import replace
from typing import NamedTuple

from jaxrls.core.data import first_rows
from jaxrls.core.factors import Solution
from jaxrls.core.fit import Choice, HeldLam, Problem, Result


class Attempt(NamedTuple):
    """What a fit computed. It may be replaced by a better attempt; the last one becomes a `Fit`.

    `run` and `tune` may pad the rows of the problem when they begin (`padded`). When they end, they
    take the padding off the result alone (`without_padding`), as `with_lam` does.

    Args:
        result: the fitted function, the chosen λ, and diagnostics.
        solution: what the result was computed from; None if the fit does not keep it.
        problem: the problem that was solved, with the solver that was used.
        words: the phrases of the plan: the solver, how λ was searched, and why.
        choice: how λ was chosen from a grid or among given values, so that `Fit.update` can choose
            it again, or the one λ that `tune` found; `HeldLam` if `fit` found λ by a search.
    """

    result: Result
    solution: Solution | None
    problem: Problem
    words: tuple[str, ...]
    choice: Choice | HeldLam

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
