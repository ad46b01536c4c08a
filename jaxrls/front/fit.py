"""The main function: plan how λ is chosen and by which solver, factor, try λ, and return the fit
with the best.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, singledispatch
from typing import Any, NamedTuple

import numpy as np

from jaxrls.core.criteria import Criterion, FunctionCriterion, LeaveOneOut, loo
from jaxrls.core.data import compiled
from jaxrls.core.factors import (
    ABOVE_ROUNDING,
    LAMS_PER_SEARCH,
    SOLVERS_WITHOUT_K,
    Cholesky,
    Solution,
    Solver,
    Spectral,
    choose_route,
    suits_cholesky,
)
from jaxrls.core.support import (
    as_lams,
    column_names,
    door,
    is_concrete,
    on_device,
    platform,
    progress_bar,
)
from jaxrls.front.conclude import (
    at_best,
    conclude,
    keeps,
    with_prior_in_plan,
    with_solution,
)
from jaxrls.front.fitted import Fit, K, add_names_and_offset
from jaxrls.front.grid import Choice
from jaxrls.front.inspection import (
    inspect_fit,
    is_as_good,
    is_off_by_rounding,
    share_of_rounding,
    sound_lam,
)
from jaxrls.front.lam_search import search
from jaxrls.front.memory import of_problem
from jaxrls.front.problem import Problem

MOST_ROWS = 2**14  # whose K a CPU factors, which takes minutes, where no solver is named
GRID_SIZE = 100  # values of λ, in place of a search where the criterion has no slopes
# Floors, by bytes of the dtype, from which on weights by a Cholesky factor of dependent features are
# right to 1e-8, in float32 to 1e-3: rounding adds about a fiftieth of floor/λ to them.
NEAR_FLOOR = {4: 100, 8: 1e6}


@door("X")
def fit(
    kernel: K | str,
    X,
    Y=None,
    *,
    lams=100,
    per_target: bool = False,
    conservative: float | int | bool = 0.0,
    criterion: Criterion | Callable | str = loo,
    groups=None,
    weights=None,
    intercept: bool = True,
    fixed_effects=None,
    standardize: bool = False,
    landmarks=None,
    solver: Solver | None = None,
    keep: bool | None = None,
    block_size: int | None = None,
    progress: bool = False,
) -> Fit[K]:
    """Fit regularized least squares with the best of many λ, by exact leave-one-out, for the price
    of one factorization.

    minimise ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖²_H over f and b for every λ, and keep the λ of the
    smallest error.

    Args:
        kernel: a jaxrls kernel, such as `Gaussian(2.0)`; or a name, such as "linear" or "gaussian",
            whose width is then the median distance between rows.
        X: rows (n, d), NumPy, JAX or sparse (SciPy, BCOO), or a source of rows such as a `stream`;
            of a data frame, table or stream the model keeps the names of columns, by which it takes
            those of new rows.
        Y: labels (n,) or (n, t); a source of rows may bring its own.
        lams: how many λ, on a grid from the spectrum (they are searched by a solver without one);
            or their values, (L,), or (L, t) with a column for each target, where 0 stands for
            `fit.floor`; or `"search"`, which finds the best λ from the error and its slope at about
            ten values; for a stream, or a criterion without slopes, the grid is used instead.
        per_target: whether each column of Y has a λ of its own.
        conservative: a number of standard errors: take the largest λ whose error is at most that
            much above the smallest; 1 or True is the one-standard-error rule.
        criterion: what λ is chosen by: `loo`, `gcv`, `kfold(groups)`, `holdout(X, Y)`,
            `log_marginal_likelihood`, `LeaveOneOut(loss=…)`, the name of one, a `Criterion` of your
            own, or a function `(factor, Y, lams)` that is to be minimised. Likelihoods are those at
            the best variance τ² of the prior τ²k, as `fit.plan` says; `extend.Evidence(scale=1)`
            takes it for 1.
        groups: labels (n,) of rows that are held out together, in place of single rows.
        weights: sample weights (n,), 0 or more; a row of weight 0 counts as absent.
        intercept: whether to fit a constant without penalty.
        fixed_effects: further columns (n, q) without penalty, or `levels(labels)`, an intercept for
            each group, or a list of both; `predict` takes those of new rows, and the model keeps
            their coefficients as `free`.
        standardize: whether to subtract the mean of each column of X and divide by its standard
            deviation; the model keeps both in its kernel and applies them to new rows.
        landmarks: for many rows: a few rows or points. The fit is a sum of kernel functions at
            these alone. Give their number, row numbers (m,), points (m, d) or the result of
            `jaxrls.choose_landmarks`; `"auto"` takes as many as keep the fit close to that of the
            full K. A landmark is held out with its row, except with `Iterative()`,
            where it stays.
        solver: `Spectral()`, `Cholesky()`, `Refined()` or `Iterative()`; by default the cheapest
            exact one for the shapes, or where K is too large to be factored, `Iterative()`, whose
            leave-one-out error is an estimate: `fit.plan` says which.
        keep: whether the fit keeps its solution, which `posterior`, `predict(return_std=True)`,
            `intervals`, `loo_predictive`, `update`, `forget` and `with_lam` need: n² numbers, or
            n·r on r features or landmarks. By default it is kept up to 2000 rows, outside of
            `jax.jit`. `save` writes the solution only with `keep=True`.
        block_size: rows at a time while K or sums over rows are made.
        progress: show bars of the fit, which says that a first call compiles, and of the choice of
            landmarks (needs tqdm).

    Returns:
        A `Fit`; for float64 NumPy input in float64, and as NumPy arrays where JAX is set to
        float32. Equal errors go to the larger λ.

    Raises:
        ValueError: for shapes that do not fit, NaN or infinity, values outside the range of the
            dtype or the kernel's domain, λ < 0, a problem larger than memory, or a row without
            which the fixed effects are not determined. Inside `jax.jit` and `jax.vmap` values
            cannot be checked.

    Where λ is so near the precision of K that held-out residuals of single rows are off, a search
    by Cholesky factors goes on, and from its end to a larger λ, if the error there is at most 1 %
    larger.

    **Warns** where the chosen λ is at the edge of the grid or below the precision of the factor, or
    so near it that held-out residuals of single rows are off by more than 2 % (in float32 10 %), or
    K is not positive semidefinite, or has no information beside the fixed effects. **Cost** one
    factorization, O(n³) or O(n r²), and O(n r L t); where `lams` names few values, on a
    CPU up to five, a Cholesky factor for each takes the place of K's spectrum.
    **Source**: Rifkin (lecture), "Leave-One-Out CV".

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> fit = rls.fit(rls.Gaussian(width=0.3), X, y, lams=[1e-4, 1e-2, 1.0])
    >>> float(fit.lam), bool(fit.error < 1e-2)
    (0.01, True)
    """
    options: dict = {
        "criterion": criterion,
        "groups": groups,
        "weights": weights,
        "intercept": intercept,
        "fixed_effects": fixed_effects,
        "standardize": standardize,
        "landmarks": landmarks,
        "solver": solver,
        "block_size": block_size,
    }
    asked = LamOptions(lams, per_target, conservative, keep)
    wanted = solver.rows_to_fit(X) if isinstance(solver, Solver) else X
    if wanted is not X:  # rows of another dtype, in which everything is computed
        result = fit(kernel, wanted, Y, **options, **asked._asdict(), progress=progress)
        return add_names_and_offset(result, column_names(X))
    problem = Problem.of(kernel, X, Y, **options)
    return add_names_and_offset(
        best_fit(problem, asked, progress), column_names(X), problem.label_offset
    )


class LamOptions(NamedTuple):
    """What a caller asks of λ, and whether the fit is to keep its solution: as in `fit`."""

    lams: Any
    per_target: bool = False
    conservative: Any = 0.0
    keep: bool | None = None


def best_fit(problem, asked: LamOptions, progress: bool) -> Fit:
    """The fit with the best λ; where no solver was named and K is too large, by one without K."""
    any_lam = isinstance(asked.lams, int | str) and not asked.conservative
    many = without_matrix(problem, any_lam=any_lam) if not asked.keep else None
    problem = many or problem
    with progress_bar(progress, 1, "fit, which compiles in a first call", "fit") as reached:
        result = fit_by(problem.solver, problem, partial(_best, asked=asked), progress)
        reached(1)
    if is_concrete(result):
        inspect_fit(result, np.ndim(asked.lams) == 0, problem.solver)
    result = with_prior_in_plan(result)
    if many is None:
        return result
    error = result.error
    spread = result.loo_standard_error
    how_exact = (
        ""
        if error is None or spread is None
        else f", {np.asarray(error).mean():.3g} ± {np.asarray(spread).mean():.1g}"
    )
    plan = f"{result.plan}; K of all rows is not factored"
    words = f"{plan}, so the {result.title} is an estimate{how_exact}"
    return replace(result, plan=words)


@singledispatch
def fit_by(solver: Solver | None, problem: Problem, run: Callable, progress: bool) -> Fit:
    """`run` on the problem as its solver prepares it; a solver that is chosen by trial fits has
    another function.
    """
    return run(problem.prepare(progress))


_solution = compiled(Problem.solution)
_concluded = compiled(conclude)


def _best(problem, asked: LamOptions) -> Fit:
    """The fit with the best λ, as planned: from a grid or from a search."""
    plan = make_plan(problem, asked)
    keep = asked.keep
    n = len(problem.Y)
    problem = plan.problem.pad()
    choice = plan.choice
    searches = plan.searches
    if not searches:
        fit, solution = fit_on_grid(problem, choice, kept=keeps(problem, keep))
        if plan.by_cholesky and _keeps_rounding(fit, problem):
            problem = replace(problem, solver=Spectral())
            fit, solution = fit_on_grid(problem, choice, kept=keeps(problem, keep))
        searches = plan.goes_below and _is_near_floor(fit)
        problem = replace(problem, solver=Cholesky()) if searches else problem
    if searches:
        fit, solution = _fit_by_search(problem, choice.per_target)
        if np.ndim(fit.lam) == 0 and is_off_by_rounding(fit):
            fit, solution = _above_rounding(fit, solution, problem)
    return with_solution(fit, solution, problem, None if searches else choice, keep, n)


def _keeps_rounding(fit: Fit, problem: Problem) -> bool:
    """Whether a Cholesky factor of features broke down, or took up rounding: at a λ near its floor,
    of rows that the features cannot fit. A spectrum leaves out what is rounding.
    """
    if problem.explicit is None or not is_concrete(fit):
        return False
    broke = not np.isfinite(np.asarray(fit.errors)).all()
    left = float(problem.weights.count) - float(fit.dof)
    near = NEAR_FLOOR[np.asarray(fit.lam).dtype.itemsize] * float(fit.floor)
    return broke or float(fit.lam) < near and left > 0.5


def _is_near_floor(fit) -> bool:
    """Whether errors at the λ of a spectrum, or single rows, may be rounding; Cholesky factors are
    rounded less.
    """
    return float(fit.lam) < ABOVE_ROUNDING * float(fit.floor) or is_off_by_rounding(fit)


def _above_rounding(
    fit: Fit, solution: Solution | None, problem: Problem
) -> tuple[Fit, Solution | None]:
    """The fit at the end of a search, or at the least λ from which on single rows are right, where
    the error there is as good.
    """
    lam = np.asarray([sound_lam(fit)], problem.rows.dtype)
    larger, its_solution = fit_on_grid(
        problem, Choice(problem.criterion, on_device(lam)), kept=True
    )
    share = share_of_rounding(fit)
    if not is_as_good(larger.error, fit.error, share, problem.criterion, problem.weights.count):
        return fit, solution
    lams = np.concatenate([fit.lams, larger.lams])  # on the host, by no program
    errors = np.concatenate([fit.errors, larger.errors])
    order = np.argsort(lams)
    words = f"{fit.plan}; then at larger λ, where single rows are right"
    larger = replace(larger, lams=on_device(lams[order]), errors=on_device(errors[order]))
    return replace(larger, plan=words), its_solution


def _fit_by_search(problem, per_target):
    """The fit with the best λ of a search, which runs on known values, and its solution."""
    if not is_concrete(problem):
        raise ValueError(
            "lams='search' needs known values, and inside jax.jit there are none: give numbers, "
            "or call fit outside"
        )
    chosen, solution, words = search(problem, _solution(problem), per_target)
    fit = _concluded(problem, solution, chosen)
    return replace(fit, plan=f"{problem.solver.name}, a search for λ: {words}"), solution


@compiled
def fit_on_grid(problem, choice, *, kept: bool) -> tuple[Fit, Solution | None]:
    """The fit with the best λ of a choice, with its solution if that is kept."""
    solution = _solution(problem)
    return at_best(problem, solution, choice), solution if kept else None


# how λ is chosen, and by which solver
# --------------------------------------------------------------------------------------------------


def without_matrix(problem, call: str = "fit", any_lam: bool = True) -> Problem | None:
    """The problem with a solver that needs no K, where no solver was named, single rows are held
    out, and K is too large for the device, or its spectrum takes minutes and any λ will do;
    else None.
    """
    rows = problem.rows
    kernel = problem.kernel
    criterion = problem.criterion
    able = problem.solver is None and is_concrete(problem) and rows.in_memory and rows.is_dense
    able = able and kernel.evaluable and problem.explicit is None
    able = able and isinstance(criterion, LeaveOneOut) and criterion.groups is None
    slow = any_lam and platform() == "cpu" and len(problem.Y) > MOST_ROWS
    if able and (slow or of_problem(problem, call).why_not()):
        for solver in SOLVERS_WITHOUT_K:
            many = replace(problem, solver=solver())
            if not of_problem(many).why_not():
                return many
    return None


class Plan(NamedTuple):
    """How λ is chosen for a problem with its solver: by a search, or by a choice among λ; and
    whether from a best λ near the floor of the spectrum a search goes on with Cholesky factors,
    whose floor is lower; and whether Cholesky factors were taken for named λ, as these are few.
    """

    problem: Problem
    choice: Choice
    searches: bool
    goes_below: bool
    by_cholesky: bool


def make_plan(problem, asked: LamOptions) -> Plan:
    """The cheapest exact plan, unless a solver is named.

    | λ are            | the way                                                               |
    |------------------|-----------------------------------------------------------------------|
    | named            | a spectrum; for few of them a Cholesky factor each                    |
    | counted          | a grid of so many from the spectrum; without one a search             |
    | counted, large n | a search where its Cholesky factors cost less than a spectrum         |
    | "search"         | a search, where the criterion has slopes that X in memory gives       |
    | "search", else   | as counted, GRID_SIZE; or without a spectrum a search by values alone |
    """
    criterion = problem.criterion
    rows = problem.rows
    lams = _lams_to_try(asked.lams, problem)
    conservative = asked.conservative
    per_target = asked.per_target or np.ndim(lams) == 2
    _check_conservative(conservative, criterion, lams)
    searches = isinstance(lams, str)
    counted = isinstance(lams, int)
    allowed = _may_take_cholesky(problem, per_target)
    if searches:
        num = 1
        cost = 1
        lams = None
    elif counted:
        num = lams
        cost = LAMS_PER_SEARCH
        lams = None
        allowed = allowed and criterion.smooth and not conservative
    else:
        num = cost = len(lams)
    by_cholesky = allowed and suits_cholesky(problem.kernel, rows.shape[0], cost)
    problem = replace(problem, solver=Cholesky() if by_cholesky else problem.solver_or_default)
    if is_concrete(rows) and rows.has_pairs:
        of_problem(problem, lams=num).check()
    choice = Choice(criterion, lams, num, per_target, float(conservative))
    return Plan(
        problem,
        choice,
        searches or counted and by_cholesky,
        goes_below=counted and allowed,
        by_cholesky=by_cholesky and not counted,
    )


def _lams_to_try(lams, problem) -> Any:
    """λ (L,), or (L, t) with a column for each target; how many of a grid; or "search"."""
    solver = problem.solver
    smooth = problem.criterion.smooth
    has_spectrum = solver is None or solver.has_spectrum
    if isinstance(lams, str) and lams == "search":
        # Without slopes a search may miss the best; and a grid takes fewer readings.
        return GRID_SIZE if has_spectrum and not (smooth and problem.traceable) else lams
    lams = GRID_SIZE if lams is None else lams
    whole = isinstance(lams, int | np.integer) and not isinstance(lams, bool)
    if isinstance(lams, str) or np.ndim(lams) == 0 and not (whole and lams > 1):
        raise ValueError(
            "lams must be how many λ, 2 or more, or an array of them, or 'search', and is "
            f"{lams!r}: for λ = 0.1 give lams=[0.1]"
        )
    if not whole:
        return as_lams(lams, problem.rows.dtype, problem.Y.shape[1:], zero=True)
    if not (has_spectrum or smooth):
        raise ValueError(f"{solver} has no spectrum for a grid of λ: give lams=[…]")
    return int(lams) if has_spectrum else "search"


def _may_take_cholesky(problem, per_target: bool) -> bool:
    """Whether Cholesky factors of all of K may replace the spectrum, where λ are known outside of
    `jax.jit`, so that a search can go on from them.
    """
    rows = problem.rows
    route = choose_route(problem.kernel, rows.shape, rows.dtype)
    of_factor = isinstance(problem.criterion, FunctionCriterion)  # which may ask for its class
    free = problem.solver is None and not of_factor and not per_target
    return free and rows.in_memory and route == "gram" and is_concrete(problem)


def _check_conservative(conservative, criterion, lams) -> None:
    """Raise unless it is a number of standard errors, and the criterion has them."""
    number = isinstance(conservative, bool | int | float | np.number)
    if not number or not 0 <= conservative < np.inf:
        raise ValueError(
            "conservative must be a number of standard errors, 0 or more, or True for one, and is "
            f"{conservative!r}"
        )
    if conservative and (isinstance(lams, str) or not isinstance(criterion, LeaveOneOut)):
        what = "those of a search" if isinstance(lams, str) else f"criterion {criterion.name}"
        raise ValueError(
            "conservative= needs standard errors, which loo and kfold have at λ of a grid or given "
            f"by lams=[…]: take those, not {what}"
        )
