"""The decisions of a fit that shapes and the request allow, taken once: which solver and route,
which λ, a grid or a search, and whether memory suffices. Those that need its numbers, where
rounding has the say, are in `run`.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria import Criterion, FunctionCriterion, LeaveOneOut
from jaxrls.core.factors import (
    LAMS_PER_SEARCH,
    SOLVERS_WITHOUT_K,
    Cholesky,
    choose_route,
    suits_cholesky,
)
from jaxrls.core.fit import Choice, Problem
from jaxrls.core.support import as_lams, is_concrete, platform
from jaxrls.front.memory import of_problem

MOST_ROWS = 2**14  # whose K a CPU factors, which takes minutes, where no solver is named
GRID_SIZE = 100  # values of λ, in place of a search where the criterion has no slopes
KEPT_ROWS = 2000  # a fit to at most so many keeps its solution by default


class Request(NamedTuple):
    """What a caller asks of λ, and whether the fit is to keep its solution: as in `fit`."""

    lams: Any
    per_target: bool = False
    conservative: Any = 0.0
    keep: bool | None = None

    @property
    def any_lam(self) -> bool:
        """Whether λ may be searched for anywhere."""
        is_count = isinstance(self.lams, int | np.integer | str | None)
        return is_count and not self.conservative


# λ to try
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """λ that were named, (L,), or (L, t) with a column for each target."""

    lams: Float[Array, "L *t"]


@dataclass(frozen=True)
class Grid:
    """So many λ of a grid from the spectrum."""

    count: int


@dataclass(frozen=True)
class Search:
    """The best λ, from the error and its slope at about ten."""


LamsToTry = Given | Grid | Search


def read_lams(lams: Any, problem: Problem) -> LamsToTry:
    """What a caller's `lams` means."""
    if isinstance(lams, str) and lams == "search":
        return Search()
    lams = GRID_SIZE if lams is None else lams
    whole = isinstance(lams, int | np.integer) and not isinstance(lams, bool)
    if isinstance(lams, str) or np.ndim(lams) == 0 and not (whole and lams > 1):
        raise ValueError(
            "lams must be how many λ, 2 or more, or an array of them, or 'search', and is "
            f"{lams!r}: for λ = 0.1 give lams=[0.1]"
        )
    if whole:
        return Grid(int(lams))
    return Given(as_lams(lams, problem.rows.dtype, problem.Y.shape[1:], zero=True))


def possible_lams(lams: LamsToTry, problem: Problem) -> LamsToTry:
    """λ as the solver can try them: a solver without a spectrum has no grid, and a search needs
    slopes, without which it may miss the best, or takes more readings of the rows than a grid.
    """
    solver = problem.solver
    has_spectrum = solver is None or solver.has_spectrum
    has_slopes = problem.criterion.smooth and problem.traceable
    if isinstance(lams, Search) and has_spectrum and not has_slopes:
        return Grid(GRID_SIZE)
    if isinstance(lams, Grid) and not has_spectrum:
        if not problem.criterion.smooth:
            raise ValueError(f"{solver} has no spectrum for a grid of λ: give lams=[…]")
        return Search()
    return lams


# the plan
# --------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """How a problem is solved.

    Args:
        problem: the problem with its solver.
        lams: the λ to try.
        per_target: whether each target has a λ of its own.
        conservative: within how many standard errors of the smallest error the largest λ is taken.
        retry: what is tried again where rounding has the say: from a best λ of a grid near the
            floor of the spectrum a search by Cholesky factors, whose floor is lower; for named λ
            that Cholesky factors were taken for, as these are few, a spectrum. None for nothing.
        keep: whether the solution is kept; None for the default.
    """

    problem: Problem
    lams: LamsToTry
    per_target: bool
    conservative: float
    retry: Literal["below the floor", "by a spectrum"] | None = None
    keep: bool | None = None

    @property
    def choice(self) -> Choice:
        """How λ is chosen from a grid, or among those that were named."""
        criterion = self.problem.criterion
        if isinstance(self.lams, Given):
            return Choice(criterion, self.lams.lams, 1, self.per_target, self.conservative)
        count = self.lams.count if isinstance(self.lams, Grid) else 1
        return Choice(criterion, None, count, self.per_target, self.conservative)


def make_plan(problem: Problem, request: Request) -> Plan:
    """The cheapest exact plan, unless a solver is named.

    | λ are            | the way                                                               |
    |------------------|-----------------------------------------------------------------------|
    | named            | a spectrum; for few of them a Cholesky factor each                    |
    | counted          | a grid of so many from the spectrum; without one a search             |
    | counted, large n | a search where its Cholesky factors cost less than a spectrum         |
    | "search"         | a search, where the criterion has slopes that X in memory gives       |
    | "search", else   | as counted, GRID_SIZE; or without a spectrum a search by values alone |
    """
    lams = possible_lams(read_lams(request.lams, problem), problem)
    check_conservative(request.conservative, problem.criterion, lams)
    per_target = request.per_target or isinstance(lams, Given) and lams.lams.ndim == 2
    may_factor = _may_take_cholesky(problem, per_target)
    may_search = may_factor and problem.criterion.smooth and not request.conservative
    # Of a grid the Cholesky factors are those of a search.
    allowed = may_search if isinstance(lams, Grid) else may_factor
    takes_cholesky = allowed and _is_cheaper_by_cholesky(problem, lams)
    solver = Cholesky() if takes_cholesky else problem.solver_or_default
    planned = replace(problem, solver=solver)
    _check_memory(planned, lams)
    retry: Any = None
    if isinstance(lams, Grid) and may_search:
        retry = "below the floor"
    elif isinstance(lams, Given) and takes_cholesky:
        retry = "by a spectrum"
    return Plan(
        problem=planned,
        lams=Search() if isinstance(lams, Grid) and takes_cholesky else lams,
        per_target=per_target,
        conservative=float(request.conservative),
        retry=retry,
        keep=request.keep,
    )


def _may_take_cholesky(problem: Problem, per_target: bool) -> bool:
    """Whether Cholesky factors of all of K may replace the spectrum, where λ are known outside of
    `jax.jit`, so that a search can go on from them.
    """
    rows = problem.rows
    asks_for_factor = isinstance(problem.criterion, FunctionCriterion)  # perhaps for its class
    if problem.solver is not None or asks_for_factor or per_target or not rows.in_memory:
        return False
    return choose_route(problem.kernel, rows.shape, rows.dtype) == "gram" and is_concrete(problem)


def _is_cheaper_by_cholesky(problem: Problem, lams: LamsToTry) -> bool:
    """Whether a Cholesky factor for each λ costs less than a spectrum."""
    factors = 1
    if isinstance(lams, Given):
        factors = len(lams.lams)
    elif isinstance(lams, Grid):
        factors = LAMS_PER_SEARCH
    return suits_cholesky(problem.kernel, problem.rows.shape[0], factors)


def _check_memory(problem: Problem, lams: LamsToTry) -> None:
    """Raise where K is larger than memory."""
    if not is_concrete(problem.rows) or not problem.rows.has_pairs:
        return
    at_once = 1
    if isinstance(lams, Given):
        at_once = len(lams.lams)
    elif isinstance(lams, Grid):
        at_once = lams.count
    of_problem(problem, lams=at_once).check()


def check_conservative(conservative: Any, criterion: Criterion, lams: LamsToTry) -> None:
    """Raise unless it is a number of standard errors, and the criterion has them."""
    number = isinstance(conservative, bool | int | float | np.number)
    if not number or not 0 <= conservative < np.inf:
        raise ValueError(
            "conservative must be a number of standard errors, 0 or more, or True for one, and is "
            f"{conservative!r}"
        )
    searches = isinstance(lams, Search)
    if conservative and (searches or not isinstance(criterion, LeaveOneOut)):
        what = "those of a search" if searches else f"criterion {criterion.name}"
        raise ValueError(
            "conservative= needs standard errors, which loo and kfold have at λ of a grid or given "
            f"by lams=[…]: take those, not {what}"
        )


# many rows
# --------------------------------------------------------------------------------------------------


def without_matrix(problem: Problem, call: str = "fit", any_lam: bool = True) -> Problem | None:
    """The problem with a solver that needs no K, where no solver was named, single rows are held
    out, and K is too large for the device, or its spectrum takes minutes and any λ will do;
    else None.
    """
    if not _could_do_without_matrix(problem):
        return None
    slow = any_lam and platform() == "cpu" and len(problem.Y) > MOST_ROWS
    if not slow and not of_problem(problem, call).why_not():
        return None
    for solver in SOLVERS_WITHOUT_K:
        many = replace(problem, solver=solver())
        if not of_problem(many).why_not():
            return many
    return None


def _could_do_without_matrix(problem: Problem) -> bool:
    """Whether a solver that needs no K could take its place."""
    rows = problem.rows
    criterion = problem.criterion
    if problem.solver is not None:
        return False
    if not (rows.in_memory and rows.is_dense and problem.kernel.evaluable):
        return False
    holds_out_rows = isinstance(criterion, LeaveOneOut) and criterion.groups is None
    return holds_out_rows and problem.explicit is None


def keeps(problem: Problem, keep: bool | None) -> bool:
    """Whether a fit keeps its solution: as was asked, or where rows are few and known."""
    if keep is not None:
        return keep
    return problem.rows.shape[0] <= KEPT_ROWS and is_concrete(problem.weights, problem.Y)
