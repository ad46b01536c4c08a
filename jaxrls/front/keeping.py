"""Helpers for calls on a finished fit: get or drop its solution, and remember what was computed."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from jaxrls.core.factors import Solution
from jaxrls.core.support import is_concrete, public_call
from jaxrls.front.fitted import Fit, Kept


def solution_of(fit: Fit) -> Solution:
    """Return the solution that a fit keeps; raise if it keeps none."""
    if fit.solution is None:
        raise ValueError("this fit kept no solution, which this call needs: fit with keep=True")
    return fit.solution


def without_solution(fit: Fit) -> Fit:
    """Return the fit without its stored results and without what `Kept` holds: the solution, the
    problem, the folds, the choice of λ, and whether they are saved.
    """
    return replace(fit, kept=Kept(), stored={})


def once_per_fit(compute: Callable[[Fit], Any]) -> Callable[[Fit], Any]:
    """Decorate a function of a fit so that its result is computed once for each fit.

    The first call keeps the result as an attribute of the fit, unless it runs inside of `jax.jit`.
    If `fit.stored` already has a result under the function's name, that is returned.
    """
    name = compute.__name__
    compute = public_call(fitted="fit.model.coef")(compute)

    @wraps(compute)
    def recalled(fit: Fit) -> Any:
        # `stored` is a field, which `replace` copies. The attributes in `vars(fit)` that are
        # no fields are not in the new fit, which computes them anew.
        for results in (fit.stored, vars(fit)):
            if name in results:
                return results[name]
        result = compute(fit)
        if is_concrete(result):
            vars(fit)[name] = result
        return result

    return recalled
