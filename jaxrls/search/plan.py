"""Which solver, and which λ: what a fit is going to do, decided from shapes and said in words."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrls.factors.iterative import Iterative
from jaxrls.factors.solvers import SEARCHED, Cholesky, Spectral, choose_route, suits_cholesky
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.estimate import of_problem
from jaxrls.search.grid import Choice
from jaxrls.search.problem import Problem
from jaxrls.support.checks import as_array, check_lams, is_concrete
from jaxrls.support.pytrees import pytree, static

GRID = 100  # values of λ, where a search is asked for that has no slopes to follow


@pytree
class Plan:
    """A problem with its solver, and how λ is chosen.

    `searches` for the best λ without a grid; `goes_on` where its solver ends by another one: by a
    spectrum where Cholesky factors of named λ break down, by those below the floor of a spectrum.
    """

    problem: Problem
    choice: Choice
    searches: bool = static(default=False)
    goes_on: bool = static(default=False)

    @classmethod
    def of(cls, problem: Problem, lams, per_target=False, conservative: Any = 0.0) -> "Plan":
        """The cheapest way of those that are right, unless a solver is named."""
        criterion, solver, kernel = problem.criterion, problem.solver, problem.kernel
        lams, n = as_lams(lams, problem), problem.rows.shape[0]
        _check_conservative(conservative, criterion, lams)
        search, has_spectrum = isinstance(lams, str), solver is None or solver.has_spectrum
        if search and not (problem.traceable and criterion.smooth):
            # Without slopes a search may miss the best; and a grid takes fewer readings.
            if has_spectrum:
                lams, search = GRID, False
            elif not criterion.smooth and not isinstance(solver, Iterative):
                raise ValueError(
                    f"lams='search' follows slopes, and criterion {criterion.name} is a step, which "
                    f"has none; {solver} has no spectrum for a grid: give lams=, numbers, or leave "
                    "solver= out"
                )
        default = isinstance(lams, int)
        if default and not has_spectrum:
            raise ValueError(
                f"{solver} has no spectrum to make a grid of λ from: give lams=, numbers or "
                "'search'"
            )
        choice = Choice(
            criterion,
            None if default or search else lams,
            lams if default else 1 if search else len(lams),
            per_target or np.ndim(lams) == 2,
            float(conservative),
        )
        # Whether Cholesky factors may answer too: of all of K, without a doubt about it.
        either = solver is None and not choice.per_target and is_concrete(problem, choice)
        either = either and criterion.any_factor and _dense(problem) and kernel.is_semidefinite()
        follows = not default or criterion.smooth and not conservative
        few = either and follows and suits_cholesky(kernel, n, SEARCHED if default else choice.num)
        searches = search or default and few
        goes_on = either and not searches and (few or default and not conservative)
        problem = replace(problem, solver=Cholesky() if few else solver or Spectral())
        explicit = kernel.num_features(problem.rows.shape[1], problem.rows.dtype)
        held = problem.rows.in_memory or is_sparse(problem.rows) and explicit is None
        if held and is_concrete(problem.rows):
            of_problem(problem, lams=choice.num).check()
        return cls(problem, choice, searches, goes_on)


def _dense(problem: Problem) -> bool:
    """Whether K of all rows in memory is factored."""
    rows, (n, d) = problem.rows, problem.rows.shape
    route = choose_route(problem.kernel, n, d, rows.dtype)
    return rows.in_memory and problem.landmarks is None and route == "gram"


def _check_conservative(conservative, criterion, lams) -> None:
    """Raise for what is no number of standard errors, and for what has none."""
    number = isinstance(conservative, bool | int | float | np.number)
    if not number or not 0 <= conservative < np.inf:
        raise ValueError(
            "conservative must be a number of standard errors, 0 or more, or True for one, and is "
            f"{conservative!r}"
        )
    if conservative and (isinstance(lams, str) or not criterion.of_losses):
        raise ValueError(
            "conservative= takes the largest of several λ by the losses of rows left out: take "
            f"criterion loo or kfold, not {criterion.name}, and numbers as lams, not 'search'"
        )


def as_lams(lams, problem: Problem):
    """How many λ, or an array (L,), or (L, t) with those of each target, or "search"."""
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
    lams = as_array("lams", lams, problem.rows.dtype)
    if lams.ndim != 1 and lams.shape != (len(lams), *problem.Y.shape[1:]):
        each = f", or (L, {problem.Y.shape[-1]}) with those of each target"
        raise ValueError(
            f"lams must have shape (L,){each * (problem.Y.ndim == 2)}, and has shape {lams.shape}: "
            "with per_target=True every target chooses from (L,)"
        )
    check_lams(lams, zero=True)
    return jnp.asarray(lams)
