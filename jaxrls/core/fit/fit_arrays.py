"""A whole fit in one function that JAX can trace."""

from typing import NamedTuple

from jaxrls.core.factors import Solution
from jaxrls.core.fit.choice import Choice
from jaxrls.core.fit.problem import Problem
from jaxrls.core.fit.result import Result, result_at


class Fitted(NamedTuple):
    """The result of a fit, and the `Solution` from which it was computed.

    The solution is None if it is not kept.
    """

    result: Result
    solution: Solution | None


def fit_arrays(problem: Problem, choice: Choice) -> Fitted:
    """Fit regularized least squares with the best of many λ, as one function of arrays.

    It factors once and evaluates the criterion at every λ. At the best λ it computes the fitted
    function, the held-out residuals and the degrees of freedom. It never asks for the values of
    arrays, so that `jax.jit`, `jax.vmap` and `jax.grad` can trace it. Inside these
    transformations `fit` reads its arguments, prepares the solver, and calls this function. Outside
    of them `fit` also checks values, and calls this function if λ is chosen from a grid.

    Args:
        problem: what `read_problem` makes of the arguments of `fit`.
        choice: how λ is chosen.

    Returns:
        `(result, solution)`: the `Result` at the best λ, and the `Solution`, which gives results at
        any other λ.

    **Raises** nothing that depends on values. **Cost** one factorization, O(n³) or O(n r²).
    **Source**: Rifkin (lecture), "Leave-One-Out CV".

    >>> from jaxrls import extend
    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.linspace(0, 1, 30)[:, None]
    >>> def error(width):
    ...     problem = extend.read_problem(rls.Gaussian(width), X, jnp.sin(6 * X[:, 0]))
    ...     choice = extend.Choice(problem.criterion, extend.Grid(20))
    ...     return extend.fit_arrays(problem, choice).result.chosen.error
    >>> jax.jit(jax.vmap(error))(jnp.array([0.3, 1.0])).shape
    (2,)
    """
    solution = problem.solution()
    chosen = choice.of(solution, problem.kernel)
    return Fitted(result_at(problem, solution, chosen), solution)
