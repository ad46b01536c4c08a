"""The rule of one standard error: of λ that rows left out can hardly tell from the best, the
largest.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.factors.contract import Solution
from jaxrls.search.grid import choose_lam
from jaxrls.search.problem import Problem


def check_conservative(conservative, criterion, lams) -> None:
    """Raise for what is no number of standard errors, and for what has none."""
    if (
        not isinstance(conservative, bool | int | float | np.number)
        or not 0 <= conservative < np.inf
    ):
        raise ValueError(
            f"conservative must be a number of standard errors, 0 or more, or True for one, and is {conservative!r}"
        )
    if conservative and not criterion.of_losses:
        raise ValueError(
            f"conservative= goes by the losses of rows left out, which criterion {criterion.name} has none of: take loo or kfold, or leave it out"
        )
    if conservative and isinstance(lams, str):
        raise ValueError(
            "conservative= takes the largest of several λ, and lams='search' finds the best: give numbers, or leave lams out"
        )


def choose(problem: Problem, solution: Solution, lams, errors, per_target: bool) -> tuple[Any, Any]:
    """The best λ and its error, or the largest λ whose error is within so many standard errors of
    the smallest as the problem says.
    """
    best = choose_lam(lams, errors, per_target)
    if not problem.conservative:
        return best
    return choose_lam(
        lams, errors, per_target, problem.conservative * standard_error(problem, solution, best[0])
    )


def standard_error(problem: Problem, solution: Solution, lam) -> Float[Array, "*t"]:
    """√(Σ V_g² (m_g − m)² · G/(G − 1)) / ΣV: of the mean m of G losses m_g, of rows or of groups,
    of weights V_g; at one λ for all targets of their mean.
    """
    groups = problem.criterion.groups
    left_out = solution.residuals(lam.reshape(1, -1), groups)[0]
    losses = problem.criterion.loss(left_out, solution.labels.Y)  # type: ignore[attr-defined]
    losses = losses if lam.ndim else jnp.mean(losses, axis=1, keepdims=True)
    v = problem.weights.array[:, None]
    sums, mass = v * losses, v
    if groups is not None:
        sums, mass = (
            jax.ops.segment_sum(part, groups.numbers, len(groups.inside)) for part in (sums, mass)
        )
    total, count = jnp.sum(mass), jnp.sum(mass > 0).astype(v.dtype)
    away = sums - mass * (jnp.sum(sums, axis=0) / total)
    found = jnp.sqrt(jnp.sum(away**2, axis=0) * count / jnp.maximum(count - 1, 1)) / total
    return found if lam.ndim else found[0]
