"""What a fit keeps for later calls, and results that are computed once for each fit."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from jaxrls.core.factors import Solution
from jaxrls.core.support import is_concrete, public_call
from jaxrls.front.fitted import Fit, Kept


def solution_of(fit: Fit) -> Solution:
    """The solution that a fit keeps."""
    if fit.solution is None:
        raise ValueError("this fit kept no solution, which this call needs: fit with keep=True")
    return fit.solution


def without_solution(fit: Fit) -> Fit:
    """The fit without its solution and all that goes with it."""
    return replace(fit, kept=Kept(), stored={})


def once_per_fit(compute: Callable[[Fit], Any]) -> Callable[[Fit], Any]:
    """A function of a fit alone, which is computed once for each, where values are known. Where the
    fit stores the result, that is taken.
    """
    name = compute.__name__
    compute = public_call(fitted="fit.model.coef")(compute)

    @wraps(compute)
    def recalled(fit: Fit) -> Any:
        for results in (fit.stored, vars(fit)):
            if name in results:
                return results[name]
        result = compute(fit)
        if is_concrete(result):
            vars(fit)[name] = result
        return result

    return recalled
