"""Which solver, and which λ: what a fit is going to do, decided from shapes and said in words."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrls.factors.iterative import Iterative
from jaxrls.factors.solvers import (
    SEARCHED,
    Cholesky,
    Refined,
    Spectral,
    choose_route,
    suits_cholesky,
)
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.estimate import of_problem
from jaxrls.search.problem import Problem
from jaxrls.support.checks import as_array, check_lams, is_concrete
from jaxrls.support.pytrees import pytree, static

GRID = 100  # values of λ, where a search is asked for that has no slopes to follow


@pytree
class Plan:
    """A problem with its solver, and the λ to look at: an array, or None for `num` of a grid.

    `searches` for the best λ without a grid; `falls_back` on a spectrum where Cholesky factors of a
    few λ break down; `goes_below` the floor of the spectrum by Cholesky factors.
    """

    problem: Problem
    lams: Any
    num: int = static(default=GRID)
    per_target: bool = static(default=False)
    searches: bool = static(default=False)
    falls_back: bool = static(default=False)
    goes_below: bool = static(default=False)

    @classmethod
    def of(cls, problem: Problem, lams, per_target: bool) -> "Plan":
        """The cheapest way of those that are right, unless a solver is named."""
        rows, smooth = problem.rows, problem.criterion.smooth
        solver, search = problem.solver, isinstance(lams, str)
        if search and not (problem.traceable and smooth):
            # Without slopes a search may miss the best; and a grid takes fewer readings.
            if isinstance(solver, Cholesky | Refined) and not smooth:
                raise ValueError(_no_slopes(problem.criterion.name, solver))
            if not (isinstance(solver, Iterative) or solver and not problem.traceable):
                lams, search = GRID, False
        default = isinstance(lams, int) and not search
        if default and solver is not None and not solver.has_spectrum:
            raise ValueError(
                f"{solver} has no spectrum to make a grid of λ from: give lams=, numbers or 'search'"
            )
        num = lams if default else 1 if search else len(lams)
        plain = is_concrete(rows) and rows.in_memory and solver is None and not per_target
        may_search = smooth and not problem.conservative
        count = SEARCHED if default else 1 if search else num
        few = plain and (not default or may_search) and _suits(problem, lams, count)
        search = search or default and few
        below = default and plain and not problem.conservative and _suits(problem, lams, 1)
        made = replace(problem, solver=Cholesky() if few else solver or Spectral())
        flags = {"searches": search, "falls_back": few and not search}
        given = None if default or search else lams
        return cls(made, given, num, per_target, **flags, goes_below=below and not search)

    def check(self) -> None:
        """Raise for what the default device cannot hold."""
        problem, rows = self.problem, self.problem.rows
        if not is_concrete(rows):
            return
        explicit = problem.kernel.num_features(rows.shape[1], rows.dtype)
        if rows.in_memory or is_sparse(rows) and explicit is None:
            of_problem(problem, lams=1 if self.searches else self.num).check()


def _no_slopes(name: str, solver) -> str:
    return (
        f"lams='search' follows slopes, and criterion {name} is a step, which has none; the grid in "
        f"its place needs a spectrum, which {solver} does without: give lams=, numbers, or leave "
        "solver= out"
    )


def _suits(problem: Problem, lams, count: int) -> bool:
    """Whether a Cholesky factor for each of `count` λ does: any factor suits the criterion, and no
    doubt about K that its spectrum would settle.
    """
    kernel, rows = problem.kernel, problem.rows
    dense = problem.landmarks is None and choose_route(kernel, *rows.shape, rows.dtype) == "gram"
    return (
        dense
        and is_concrete(problem, lams)
        and problem.criterion.any_factor
        and suits_cholesky(kernel, rows.shape[0], count)
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
