"""`make_plan` decides how `fit` solves a problem: by which solver, and at which λ.

It looks at shapes and options, not at computed numbers, and it checks that memory suffices.
Decisions that depend on computed numbers, because of rounding, are in `run.py`.
`with_solver_without_k` replaces the solver if K is too large.
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

# Up to this many rows a CPU factors K if no solver is named, which takes minutes.
MOST_ROWS = 2**14
# The size of the default grid, also in place of a search if the criterion has no slopes.
GRID_SIZE = 100
# A fit to at most this many rows keeps its solution by default.
KEPT_ROWS = 2000


class Request(NamedTuple):
    """The options of `fit` that say how λ is chosen, and whether the solution is kept.

    The fields are the arguments of the same names of `fit`.
    """

    lams: Any
    per_target: bool = False
    conservative: Any = 0.0
    keep: bool | None = None

    @property
    def leaves_lam_open(self) -> bool:
        """Whether the caller left the values of λ open, so that a search may choose any."""
        is_count = isinstance(self.lams, int | np.integer | str | None)
        return is_count and not self.conservative


# λ to try
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """The values of λ that the caller named, (L,), or (L, t) with a column for each target."""

    lams: Float[Array, "L *t"]


@dataclass(frozen=True)
class Grid:
    """A grid of `num` λ, which covers the spectrum of the factor."""

    num: int


@dataclass(frozen=True)
class Search:
    """A search for the best λ by the error and its slope at about ten values."""


LamsToTry = Given | Grid | Search


def read_lams(lams: Any, problem: Problem) -> LamsToTry:
    """Return the λ to try that the argument `lams` of `fit` stands for, and check it."""
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


def supported_lams(lams: LamsToTry, problem: Problem) -> LamsToTry:
    """Return the λ to try, changed to what solver and criterion allow.

    * A solver without a spectrum has no grid, so a search replaces a grid.
    * A search needs slopes of the error. Without them it may miss the best λ, or read the rows more
      often than a grid does. So a grid replaces a search if the solver has a spectrum.
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
    """The way in which `run` solves a problem, made by `make_plan`.

    Args:
        problem: the problem with its solver.
        lams: the λ to try.
        per_target: whether each target has a λ of its own.
        conservative: within how many standard errors of the smallest error the largest λ is taken.
        retry: what `run` tries next if rounding spoils the first result; None for nothing.
            "below the floor": if the best λ of a grid is near the floor of the spectrum, search by
            Cholesky factors, whose floor is lower. "by a spectrum": if Cholesky factors for a few
            named λ break down or are inexact, compute a spectrum.
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
        """How `fit_arrays` chooses λ from a grid, or among the λ that were named."""
        criterion = self.problem.criterion
        if isinstance(self.lams, Given):
            return Choice(criterion, self.lams.lams, 1, self.per_target, self.conservative)
        num = self.lams.num if isinstance(self.lams, Grid) else 1
        return Choice(criterion, None, num, self.per_target, self.conservative)


def make_plan(problem: Problem, request: Request) -> Plan:
    """Make the plan for a request; if the problem has no solver, choose the cheapest exact one.

    | `lams` is       | the plan                                                             |
    |-----------------|----------------------------------------------------------------------|
    | values          | one spectrum, or a Cholesky factor for each λ if they are few        |
    | a number        | a grid from one spectrum                                             |
    | a number        | a search, if the solver has no spectrum                              |
    | a number        | a search, if its Cholesky factors cost less than a spectrum          |
    | "search"        | a search, if the criterion has slopes and X is in memory             |
    | "search"        | else a grid of GRID_SIZE λ, if the solver has a spectrum             |
    | "search"        | else a search by errors alone, without slopes                        |
    """
    lams = supported_lams(read_lams(request.lams, problem), problem)
    check_conservative(request.conservative, problem.criterion, lams)
    per_target = request.per_target or isinstance(lams, Given) and lams.lams.ndim == 2
    may_factor = _may_take_cholesky(problem, per_target)
    may_search = may_factor and problem.criterion.smooth and not request.conservative
    # In place of a grid, Cholesky factors are used in a search.
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
    """Whether Cholesky factors of K + λI may replace the spectrum of K.

    They may if all of this holds:

    * no solver was named, and one λ serves all targets;
    * the criterion is none of the caller's functions, which may need a factor of a certain class;
    * K of all rows is factored, and the rows are in memory;
    * the problem has values now (outside of `jax.jit`), so that a search can look at errors.
    """
    rows = problem.rows
    asks_for_factor = isinstance(problem.criterion, FunctionCriterion)
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
    """Raise if the matrices of the fit do not fit into memory."""
    if not is_concrete(problem.rows) or not problem.rows.has_pairs:
        return
    at_once = 1
    if isinstance(lams, Given):
        at_once = len(lams.lams)
    elif isinstance(lams, Grid):
        at_once = lams.num
    of_problem(problem, lams=at_once).check()


def check_conservative(conservative: Any, criterion: Criterion, lams: LamsToTry) -> None:
    """Raise unless `conservative` is a valid number, and 0 if there are no standard errors."""
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


def with_solver_without_k(
    problem: Problem, call: str = "fit", leaves_lam_open: bool = True
) -> Problem | None:
    """Return the problem with a solver that needs no K, or None if it should be solved as it is.

    This is only for dense rows in memory, a kernel without explicit features, single rows that are
    held out, and a problem without a named solver. Such a problem gets a solver if

    * K is too large for the device in this `call`, "fit" or "gradient"; or
    * the spectrum of K would take minutes on a CPU, and `leaves_lam_open` says that the values of λ
      are left open.
    """
    if not _may_take_solver_without_k(problem):
        return None
    slow = leaves_lam_open and platform() == "cpu" and len(problem.Y) > MOST_ROWS
    if not slow and not of_problem(problem, call).why_not():
        return None
    for solver in SOLVERS_WITHOUT_K:
        many = replace(problem, solver=solver())
        if not of_problem(many).why_not():
            return many
    return None


def _may_take_solver_without_k(problem: Problem) -> bool:
    """Whether a solver that needs no K can solve the problem, and none was named."""
    rows = problem.rows
    criterion = problem.criterion
    if problem.solver is not None:
        return False
    if not (rows.in_memory and rows.is_dense and problem.kernel.evaluable):
        return False
    holds_out_rows = isinstance(criterion, LeaveOneOut) and criterion.groups is None
    return holds_out_rows and problem.num_features is None


def keeps(problem: Problem, keep: bool | None) -> bool:
    """Whether a fit keeps its solution.

    It does as `keep` says. If `keep` is None, it does up to KEPT_ROWS rows, outside of `jax.jit`.
    """
    if keep is not None:
        return keep
    return problem.rows.shape[0] <= KEPT_ROWS and is_concrete(problem.weights, problem.Y)
