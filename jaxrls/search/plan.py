"""The plan of a fit: which solver, and how λ is searched, decided from shapes."""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxrls.factors.solvers import SEARCHED, Cholesky, Spectral, choose_route, suits_cholesky
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.estimate import of_problem
from jaxrls.search.grid import Choice, lam_vector
from jaxrls.search.problem import Problem
from jaxrls.support.checks import is_concrete
from jaxrls.support.pytrees import pytree, static

GRID = 100  # values of λ, in place of a search where the criterion has no slopes


@pytree
class Plan:
    """A problem with its solver, and how λ is chosen.

    `searches`: for the best λ without a grid. `goes_below`: it also searches below the floor of the
    spectrum, with Cholesky factors, whose floor is lower.
    """

    problem: Problem
    choice: Choice
    searches: bool = static(default=False)
    goes_below: bool = static(default=False)

    @classmethod
    def of(cls, problem: Problem, lams, per_target=False, conservative: Any = 0.0) -> "Plan":
        """The cheapest exact plan, unless a solver is named."""
        criterion, solver, rows = problem.criterion, problem.solver, problem.rows
        n, d = rows.shape
        lams, has_spectrum = as_lams(lams, problem), solver is None or solver.has_spectrum
        _check_conservative(conservative, criterion, lams)
        named, counted = not isinstance(lams, str | int), isinstance(lams, int)
        if counted and not has_spectrum and not criterion.smooth:
            raise ValueError(f"{solver} has no spectrum for a grid of λ: give lams=[…]")
        # Without slopes a search may miss the best; and a grid takes fewer readings.
        guided = not counted and problem.traceable and criterion.smooth
        search = not named and (guided or not has_spectrum)
        num = len(lams) if named else 1 if search else lams if counted else GRID
        per_target = per_target or np.ndim(lams) == 2
        values = lams if named else None
        choice = Choice(criterion, values, num, per_target, float(conservative))
        # Cholesky factors of all of K may replace the spectrum where all of this holds.
        on_grid = not named and not search
        route = choose_route(problem.kernel, n, d, rows.dtype)
        whole = rows.in_memory and problem.landmarks is None and route == "gram"
        either = whole and solver is None and criterion.any_factor and not per_target
        either = either and (named or criterion.smooth and not conservative)
        either = either and is_concrete(problem)  # inside `jax.jit` no λ is known to go on from
        tried = SEARCHED if on_grid else num
        few = either and suits_cholesky(problem.kernel, n, tried)
        problem = replace(problem, solver=Cholesky() if few else solver or Spectral())
        if is_concrete(rows) and (rows.in_memory or is_sparse(rows) and problem.explicit is None):
            of_problem(problem, lams=num).check()
        return cls(problem, choice, search or on_grid and few, on_grid and either)


def _check_conservative(conservative, criterion, lams) -> None:
    """Raise unless it is a number of standard errors, and the criterion has them."""
    number = isinstance(conservative, bool | int | float | np.number)
    if not number or not 0 <= conservative < np.inf:
        raise ValueError(
            "conservative must be a number of standard errors, 0 or more, or True for one, and is "
            f"{conservative!r}"
        )
    if conservative and (isinstance(lams, str) or not criterion.of_losses):
        found = "lams='search'" if isinstance(lams, str) else f"criterion {criterion.name}"
        raise ValueError(
            "conservative= needs standard errors, which loo and kfold have at λ of a grid: take "
            f"those, not {found}"
        )


def as_lams(lams, problem: Problem):
    """How many λ; or an array (L,), or (L, t) with a column for each target; or "search"."""
    if isinstance(lams, str) and lams == "search":
        return lams
    lams = GRID if lams is None else lams
    whole = isinstance(lams, int | np.integer) and not isinstance(lams, bool)
    if isinstance(lams, str) or np.ndim(lams) == 0 and not (whole and lams > 1):
        raise ValueError(
            "lams must be how many λ, 2 or more, or an array of them, or 'search', and is "
            f"{lams!r}: for λ = 0.1 give lams=[0.1]"
        )
    if whole:
        return int(lams)
    return lam_vector(lams, problem.rows.dtype, problem.Y.shape[1:], zero=True)
