"""A whole fit in one traceable function."""

from typing import NamedTuple

from jaxrls.core.factors import Solution
from jaxrls.core.fit.choice import Choice
from jaxrls.core.fit.problem import Problem
from jaxrls.core.fit.result import Result, result_at


class Fitted(NamedTuple):
    """The result of a fit, and the solution that it was computed from, None where it is not
    kept.
    """

    result: Result
    solution: Solution | None


def fit_arrays(problem: Problem, choice: Choice) -> Fitted:
    """Fit regularized least squares with the best of many λ, as one function of arrays.

    It factors once, evaluates the criterion at every λ, and computes function, held-out residuals
    and degrees of freedom at the best. It never looks at a number, so that it goes through
    `jax.jit`, `jax.vmap` and `jax.grad` as it is. Inside of these `fit` is this function; outside
    it is this after checks, where λ are tried on a grid.

    Args:
        problem: what `read_problem` makes of the arguments of `fit`.
        choice: how λ is chosen.

    Returns:
        The `Result` at the best λ, and the `Solution`, from which results at other λ follow.

    **Raises** nothing that depends on values. **Cost** one factorization, O(n³) or O(n r²).
    **Source**: Rifkin (lecture), "Leave-One-Out CV".

    >>> from jaxrls import extend
    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.linspace(0, 1, 30)[:, None]
    >>> def error(width):
    ...     problem = extend.read_problem(rls.Gaussian(width), X, jnp.sin(6 * X[:, 0]))
    ...     choice = extend.Choice(problem.criterion, num=20)
    ...     return extend.fit_arrays(problem, choice).result.chosen.error
    >>> jax.jit(jax.vmap(error))(jnp.array([0.3, 1.0])).shape
    (2,)
    """
    solution = problem.solution()
    chosen = choice.of(solution, problem.kernel)
    return Fitted(result_at(problem, solution, chosen), solution)
