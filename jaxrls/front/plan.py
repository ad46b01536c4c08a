"""`make_plan` decides how `fit` solves a problem: by which solver, and at which λ.

It looks at shapes, options and the size of memory, not at computed numbers. Its `Plan` says what
was decided, and `run` executes it. Decisions that depend on computed numbers, because of rounding,
are in `run.py`.

The plan is made of answers that stand elsewhere, each in one place:

* what the caller named by `solver=` and `landmarks=`: `named_solver`;
* what `lams=` stands for: `read_lams`;
* what is factored at these shapes, K or features: `CallShape.route`;
* whether Cholesky factors take less time than a spectrum: `cheapest_solver`;
* how much memory a solver takes: `of_problem`.

If K is too large for its plan, or takes minutes, `solver_without_k` names a solver for another. So
`fit` may make a second plan, in place of the first.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxrls.core.criteria import Criterion
from jaxrls.core.factors import (
    GRID_SIZE,
    LAMS_PER_SEARCH,
    SOLVERS_WITHOUT_K,
    Cholesky,
    Solver,
    cheapest_solver,
)
from jaxrls.core.fit import Choice, Given, Grid, Problem
from jaxrls.core.support import as_lams, is_concrete, platform
from jaxrls.front.memory import Memory, of_problem

# Up to this many rows a CPU factors K if no solver is named, which takes minutes.
MOST_ROWS = 2**14
# A fit to at most this many rows keeps its solution by default.
KEPT_ROWS = 2000


# the request
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """A search for the best λ by the error and its slope at about ten values."""


LamsToTry = Given | Grid | Search


def read_lams(lams: Any, problem: Problem) -> LamsToTry:
    """Return the λ to try that the argument `lams` of `fit` stands for, checked."""
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


class Request(NamedTuple):
    """The options of `fit` that say how λ is chosen, and whether the solution is kept.

    `lams` is what `read_lams` makes of the argument of this name. The other fields are arguments.
    """

    lams: LamsToTry
    per_target: bool = False
    conservative: Any = 0.0
    keep: bool | None = None

    @property
    def names_lams(self) -> bool:
        """Whether the caller named values of λ, and not only their number or "search"."""
        return isinstance(self.lams, Given)

    @property
    def may_change_lams(self) -> bool:
        """Whether a search may choose any λ, in place of a grid."""
        return not self.names_lams and not self.conservative


# the plan
# --------------------------------------------------------------------------------------------------


Retry = Literal["below the floor", "by a spectrum"]


class Plan(NamedTuple):
    """The way in which `run` solves a problem, made by `make_plan`.

    Args:
        problem: the problem with its solver.
        lams: the λ to try. A grid that was requested may have become a search.
        per_target: whether each target has a λ of its own.
        conservative: within how many standard errors of the smallest error the largest λ is taken.
        retry: what `run` tries next if rounding spoils the fit from a grid or from named λ; None
            for nothing. "below the floor": if the best λ of a grid is near the floor of the
            spectrum, and K is not indefinite, search by Cholesky factors, whose floor is lower. "by
            a spectrum": if Cholesky factors for a few named λ break down or are inexact, compute a
            spectrum. It is planned only for a kernel with explicit features. After any search for
            one λ, `run` may also try a larger λ, which is not planned.
        kept: whether the fit keeps its solution.
    """

    problem: Problem
    lams: LamsToTry
    per_target: bool
    conservative: float
    retry: Retry | None
    kept: bool

    def by(self, solver: Solver) -> "Plan":
        """Return the plan with another solver."""
        return self._replace(problem=replace(self.problem, solver=solver))

    def prepared(self, progress: bool) -> "Plan":
        """Return the plan after its solver has chosen what it chooses once, such as landmarks."""
        return self._replace(problem=self.problem.prepare(progress))

    @property
    def memory(self) -> Memory:
        """The memory of a fit that tries these λ. A search tries one after another."""
        at_once = 1 if isinstance(self.lams, Search) else self.lams.num
        return of_problem(self.problem, lams=at_once)

    def check_memory(self) -> None:
        """Raise if the matrices of the fit do not fit into memory, where the rows are known."""
        rows = self.problem.rows
        if is_concrete(rows) and rows.has_pairs:
            self.memory.check()

    @property
    def choice(self) -> Choice:
        """How `fit_arrays` chooses λ from a grid, or among the λ that are given."""
        if isinstance(self.lams, Search):
            raise TypeError("a search chooses λ by itself")
        return Choice(self.problem.criterion, self.lams, self.per_target, self.conservative)


class Way(NamedTuple):
    """The part of a plan that depends on `lams`. The fields are those of `Plan`."""

    solver: Solver
    lams: LamsToTry
    retry: Retry | None = None


def make_plan(problem: Problem, request: Request) -> Plan:
    """Make the plan for a request; if the problem has no solver, choose the cheapest exact one."""
    lams = request.lams
    check_conservative(request.conservative)
    per_target = request.per_target or isinstance(lams, Given) and lams.per_target
    may_factor = _may_take_cholesky(problem, per_target)
    way = _way_to_try(lams, problem, may_factor, request.may_change_lams)
    if request.conservative:
        _check_standard_errors(problem.criterion, way.lams)
    return Plan(
        problem=replace(problem, solver=way.solver),
        lams=way.lams,
        per_target=per_target,
        conservative=float(request.conservative),
        retry=way.retry,
        kept=keeps(problem, request.keep),
    )


def _way_to_try(lams: LamsToTry, problem: Problem, may_factor: bool, may_change_lams: bool) -> Way:
    """Return the solver, the λ to try, and what `run` tries again if rounding spoils the result.

    The first line of the table that applies decides. `may_factor` says whether Cholesky factors of
    K + λI may be taken. They are "allowed" if they may, and K is known to be positive semidefinite.
    They are "cheaper" if they are allowed, and factors for all λ cost less than one spectrum.

    | `lams` is | if                                | the plan                        | again by   |
    |-----------|-----------------------------------|---------------------------------|------------|
    | values    | factors are cheaper               | a Cholesky factor for each λ    | a spectrum |
    |           | else                              | the named solver, or a spectrum |            |
    | a number  | the solver has no spectrum        | a search by that solver         |            |
    |           | a search in place of a grid may   | a search by Cholesky factors    |            |
    |           | be made, and factors are cheaper  |                                 |            |
    |           | it may be made                    | a grid from one spectrum        | factors    |
    |           | else                              | a grid from one spectrum        |            |
    | "search"  | no slopes, but the solver has a   | as for the number GRID_SIZE     |            |
    |           | spectrum                          |                                 |            |
    |           | factors are allowed               | a search by Cholesky factors    |            |
    |           | else                              | a search by the solver          |            |

    A solver with a spectrum makes a search in place of a grid only if `may_factor`,
    `may_change_lams`, and the criterion is smooth. A search may miss the best λ of an error that is
    constant between steps. The slopes of a smooth criterion need not be known: those of an error of
    held-out rows from a stream are estimated. For "search" they must be known. Without them a
    search reads such rows at every λ, and a grid reads them once.

    What follows again:

    * A spectrum follows Cholesky factors only if the kernel has explicit features. Then eigenvalues
      may be rounding alone, and a spectrum leaves them out.
    * Factors follow a spectrum even if K is not known to be positive semidefinite, as `run` learns
      from the spectrum whether it is.
    """
    solver = problem.solver_or_default
    criterion = problem.criterion
    has_slopes = criterion.smooth and problem.traceable
    has_features = problem.num_features is not None

    def cheaper(num: int) -> bool:
        """Whether factors are cheaper for `num` values of λ."""
        return may_factor and isinstance(cheapest_solver(problem.call_shape(num)), Cholesky)

    match lams:
        case Given():
            if cheaper(lams.num):
                return Way(Cholesky(), lams, "by a spectrum" if has_features else None)
            return Way(solver, lams)
        case Grid() if not solver.has_spectrum:
            if not criterion.smooth:
                raise ValueError(f"{solver} has no spectrum for a grid of λ: give lams=[…]")
            return Way(solver, Search())
        case Grid():
            if not (may_factor and may_change_lams and criterion.smooth):
                return Way(solver, lams)
            if cheaper(LAMS_PER_SEARCH):
                return Way(Cholesky(), Search())
            return Way(solver, lams, "below the floor")
        case Search():
            if solver.has_spectrum and not has_slopes:
                return _way_to_try(Grid(GRID_SIZE), problem, may_factor, may_change_lams)
            allowed = may_factor and problem.kernel.is_semidefinite()
            return Way(Cholesky() if allowed else solver, lams)


def _may_take_cholesky(problem: Problem, per_target: bool) -> bool:
    """Whether Cholesky factors of K + λI may replace the spectrum of K.

    They may if all of this holds:

    * no solver was named, and one λ serves all targets;
    * the criterion is none of the caller's functions, which may need a factor of a certain class;
    * K of all rows is factored, and the rows are in memory;
    * the problem has values now (outside of `jax.jit`), so that a search can look at errors.
    """
    asks_for_factor = problem.criterion.asks_for_factor
    in_memory = problem.rows.in_memory
    if problem.solver is not None or asks_for_factor or per_target or not in_memory:
        return False
    return problem.route == "gram" and is_concrete(problem)


def check_conservative(conservative: Any) -> None:
    """Raise unless `conservative` is a valid number of standard errors."""
    number = isinstance(conservative, bool | int | float | np.number)
    if not number or not 0 <= conservative < np.inf:
        raise ValueError(
            "conservative must be a number of standard errors, 0 or more, or True for one, and is "
            f"{conservative!r}"
        )


def _check_standard_errors(criterion: Criterion, lams: LamsToTry) -> None:
    """Raise unless the errors at these λ have standard errors, which `conservative` needs."""
    searches = isinstance(lams, Search)
    if searches or not criterion.has_standard_error:
        what = "those of a search" if searches else f"criterion {criterion.name}"
        raise ValueError(
            "conservative= needs standard errors, which loo and kfold have at λ of a grid or given "
            f"by lams=[…]: take those, not {what}"
        )


# many rows
# --------------------------------------------------------------------------------------------------


def may_do_without_k(problem: Problem, keep: bool | None) -> bool:
    """Whether a solver that needs no K may solve the problem, if K is too large.

    It may if all of this holds:

    * no solver was named, and the fit was not asked to `keep` its solution, which is the factor;
    * the rows are dense and in memory;
    * the kernel can be evaluated, and has no explicit features;
    * single rows are held out.
    """
    rows = problem.rows
    if keep or problem.solver is not None:
        return False
    if not (rows.in_memory and rows.is_dense and problem.kernel.evaluable):
        return False
    holds_out_rows = problem.criterion.summand is not None
    return holds_out_rows and problem.num_features is None


def solver_without_k(problem: Problem, memory_of_k: Memory, may_change_lams: bool) -> Solver | None:
    """Return a solver that needs no K, or None if K is to be factored.

    Call it only if `may_do_without_k`. There is a solver if

    * K is too large for the device, by `memory_of_k`; or
    * the spectrum of K would take minutes on a CPU, and `may_change_lams` says that a search may
      choose any λ.
    """
    is_slow = may_change_lams and platform() == "cpu" and len(problem.Y) > MOST_ROWS
    if not is_slow and not memory_of_k.why_not():
        return None
    for make_solver in SOLVERS_WITHOUT_K:
        solver = make_solver()
        if not of_problem(replace(problem, solver=solver)).why_not():
            return solver
    return None


def keeps(problem: Problem, keep: bool | None) -> bool:
    """Whether a fit keeps its solution.

    It does as `keep` says. If `keep` is None, it does up to KEPT_ROWS rows, outside of `jax.jit`.
    """
    if keep is not None:
        return keep
    return problem.rows.shape[0] <= KEPT_ROWS and is_concrete(problem.weights, problem.Y)
