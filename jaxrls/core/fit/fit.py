"""The main function: factor, sweep λ, choose the best, and return a model."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.criteria.criterion import Criterion, FunctionCriterion
from jaxrls.core.criteria.standard import LeaveOneOut, loo
from jaxrls.core.factors.contract import Solution, Solver
from jaxrls.core.factors.solvers import (
    SEARCHED,
    Cholesky,
    Refined,
    Spectral,
    choose_route,
    suits_cholesky,
)
from jaxrls.core.fit.conclude import (
    concluded,
    factored,
    fit_on_grid,
    fit_on_grid_at_once,
    inspect_fit,
    keeps,
    of_rows,
    with_solution,
)
from jaxrls.core.fit.estimate import of_problem
from jaxrls.core.fit.fitted import Fit, K
from jaxrls.core.fit.grid import Choice
from jaxrls.core.fit.lam_search import search
from jaxrls.core.fit.problem import Problem
from jaxrls.core.problem.rows import Rows, kind_of
from jaxrls.core.support.checks import as_floats, as_lams, is_concrete
from jaxrls.core.support.door import door, is_wide
from jaxrls.landmarks.choice import choose_landmarks
from jaxrls.landmarks.points import TOLERANCE, check_evaluable

GRID = 100  # values of λ, in place of a search where the criterion has no slopes
NEAR = 5  # times the floor of a spectrum: from there on its errors are right to 1 %
FEWEST = 256  # landmarks that "auto" begins with


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
        X: rows (n, d), NumPy, JAX or sparse (SciPy, BCOO), or a source of rows such as a `stream`.
        Y: labels (n,) or (n, t); a source of rows may bring its own.
        lams: how many λ, on a grid from the spectrum; or their values, (L,), or (L, t) with a
            column for each target, where 0 stands for `fit.floor`; or `"search"`, which finds the
            best λ from the error and its slope at about ten values; for a stream, or a
            criterion without slopes, the grid is used instead.
        per_target: whether each column of Y has a λ of its own.
        conservative: a number of standard errors: take the largest λ whose error is at most that
            much above the smallest; 1 or True is the one-standard-error rule.
        criterion: what λ is chosen by: `loo`, `gcv`, `kfold(groups)`, `holdout(X, Y)`,
            `log_marginal_likelihood`, `LeaveOneOut(loss=…)`, the name of one, a `Criterion` of your
            own, or a function `(factor, Y, lams)` that is to be minimised.
        groups: labels (n,) of rows that are held out together, in place of single rows.
        weights: sample weights (n,), 0 or more; a row of weight 0 counts as absent.
        intercept: whether to fit a constant without penalty.
        fixed_effects: further columns (n, q) without penalty, or `levels(labels)`, an intercept for
            each group; `predict` takes those of new rows, and the model keeps their coefficients as
            `free`.
        standardize: whether to subtract the mean of each column of X and divide by its standard
            deviation; the model keeps both in its kernel and applies them to new rows.
        landmarks: for many rows: a few rows or points. The fit is a sum of kernel functions at
            these alone. Give their number, row numbers (m,), points (m, d) or the result of
            `jaxrls.choose_landmarks`; `"auto"` takes as many as keep the fit close to that of the full K.
            A landmark is held out with its row.
        solver: `Spectral()`, `Cholesky()`, `Refined()` or `Iterative()`; by default the cheapest
            exact one for the shapes: `fit.plan` says which.
        keep: whether the fit keeps its solution, which `posterior`, `predict(return_std=True)`,
            `intervals`, `loo_predictive`, `update`, `forget` and `at` need: n² numbers, or n·r on r
            features or landmarks. By default it is kept up to 2000 rows, outside of `jax.jit`.
            `save` writes the solution only with `keep=True`.
        block_size: rows at a time while K or sums over rows are made.
        progress: show a bar while landmarks are chosen (needs tqdm).

    Returns:
        A `Fit`; for float64 NumPy input in float64, and as NumPy arrays where JAX is set to
        float32. Equal errors go to the larger λ.

    Raises:
        ValueError: for shapes that do not fit, NaN or infinity, values outside the range of the
            dtype or the kernel's domain, λ < 0, a problem larger than memory, or a row without
            which the fixed effects are not determined. Inside `jax.jit` and `jax.vmap` values
            cannot be checked.

    **Warns** where the chosen λ is at the edge of the grid or below the precision of the factor, or
    K is not positive semidefinite. **Cost** one factorization, O(n³) or O(n r²), and O(n r L t);
    where `lams` names up to five values a Cholesky factor for each takes the place of K's spectrum.
    **Source**: Rifkin (lecture), "Leave-One-Out CV".

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> fit = rls.fit(rls.Gaussian(width=0.3), X, y, lams=[1e-4, 1e-2, 1.0])
    >>> float(fit.lam), bool(fit.error < 1e-2)
    (0.01, True)
    """
    given: dict = {"criterion": criterion, "groups": groups, "weights": weights}
    given |= {"intercept": intercept, "fixed_effects": fixed_effects, "block_size": block_size}
    given |= {"standardize": standardize, "solver": solver, "progress": progress}
    how: dict = {"lams": lams, "per_target": per_target, "conservative": conservative, "keep": keep}
    if isinstance(solver, Refined) and not is_wide(X):  # in float64 whatever the dtype of X
        return fit(kernel, _widened(X), Y, landmarks=landmarks, **given, **how)
    auto = isinstance(landmarks, str) and landmarks == "auto"
    problem = Problem.of(kernel, X, Y, landmarks=None if auto else landmarks, **given)
    run: Callable[[Problem], Fit] = lambda problem: _best(problem, **how)
    found = _on_enough_landmarks(run, problem, progress) if auto else run(problem)
    found = of_rows(found, problem.rows.shape[0])
    if is_concrete(found):
        inspect_fit(found, np.ndim(lams) == 0)
    return found


def _best(problem: Problem, *, lams, per_target: bool, conservative, keep: bool | None) -> Fit:
    """The fit with the best λ, from a grid or from a search."""
    problem, choice, searches, goes_below = planned(problem, lams, per_target, conservative)
    problem = problem.padded()
    if not searches:
        choose = fit_on_grid_at_once if problem.traceable else fit_on_grid
        found, solution = choose(problem, choice, kept=keeps(problem, keep))
        # Near the floor of a spectrum errors may be rounding; Cholesky factors are rounded less.
        searches = goes_below and float(found.lam) < NEAR * float(found.floor)
        problem = replace(problem, solver=Cholesky()) if searches else problem
    if searches:
        found, solution = _searched(problem, choice.per_target)
    return with_solution(found, solution, problem, None if searches else choice, keep)


def planned(
    problem: Problem, lams, per_target: bool, conservative: Any
) -> tuple[Problem, Choice, bool, bool]:
    """The cheapest exact plan, unless a solver is named: the problem with its solver, how λ is
    chosen, whether by a search without a grid, and whether one may also go below the floor of the
    spectrum, with Cholesky factors, whose floor is lower.
    """
    criterion, solver, rows = problem.criterion, problem.solver, problem.rows
    n, d = rows.shape
    lams, has_spectrum = _as_lams(lams, problem), solver is None or solver.has_spectrum
    _check_conservative(conservative, criterion, lams)
    named, counted = not isinstance(lams, str | int), isinstance(lams, int)
    if counted and not has_spectrum and not criterion.smooth:
        raise ValueError(f"{solver} has no spectrum for a grid of λ: give lams=[…]")
    # Without slopes a search may miss the best; and a grid takes fewer readings.
    guided = not counted and problem.traceable and criterion.smooth
    searches = not named and (guided or not has_spectrum)
    num = len(lams) if named else 1 if searches else lams if counted else GRID
    per_target = per_target or np.ndim(lams) == 2
    choice = Choice(criterion, lams if named else None, num, per_target, float(conservative))
    # Cholesky factors of all of K may replace the spectrum where all of this holds.
    on_grid = not named and not searches
    route = choose_route(problem.kernel, n, d, rows.dtype)
    whole = rows.in_memory and problem.landmarks is None and route == "gram"
    either = (
        whole and solver is None and not isinstance(criterion, FunctionCriterion) and not per_target
    )
    either = either and (named or criterion.smooth and not conservative)
    either = either and is_concrete(problem)  # inside `jax.jit` no λ is known to go on from
    few = either and suits_cholesky(problem.kernel, n, SEARCHED if on_grid else num)
    problem = replace(problem, solver=Cholesky() if few else solver or Spectral())
    if is_concrete(rows) and (rows.in_memory or not rows.is_dense and problem.explicit is None):
        of_problem(problem, lams=num).check()
    return problem, choice, searches or on_grid and few, on_grid and either


def _check_conservative(conservative, criterion, lams) -> None:
    """Raise unless it is a number of standard errors, and the criterion has them."""
    number = isinstance(conservative, bool | int | float | np.number)
    if not number or not 0 <= conservative < np.inf:
        raise ValueError(
            "conservative must be a number of standard errors, 0 or more, or True for one, and is "
            f"{conservative!r}"
        )
    if conservative and (isinstance(lams, str) or not isinstance(criterion, LeaveOneOut)):
        found = "lams='search'" if isinstance(lams, str) else f"criterion {criterion.name}"
        raise ValueError(
            "conservative= needs standard errors, which loo and kfold have at λ of a grid: take "
            f"those, not {found}"
        )


def _as_lams(lams, problem: Problem):
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
    return as_lams(lams, problem.rows.dtype, problem.Y.shape[1:], zero=True)


def _searched(problem: Problem, per_target: bool) -> tuple[Fit, Solution]:
    """The fit with the best λ of a search, which runs on known values, and its solution."""
    if not is_concrete(problem):
        raise ValueError(
            "lams='search' needs known values, and inside jax.jit there are none: give numbers, "
            "or call fit outside"
        )
    solution = factored(problem)
    table, chosen, words = search(problem, solution, per_target)
    found = concluded(problem.kernel, solution, table, chosen, problem.criterion)
    plan_words = f"{type(problem.solver).__name__}, a search for λ: {words}"
    return replace(found, plan=plan_words), solution


def _widened(X) -> np.ndarray:
    """Rows in float64, for `Refined`."""
    if isinstance(X, Rows) or not kind_of(X).is_dense or not is_concrete(X):
        raise ValueError(
            f"Refined() needs a dense X with known values, and X is {type(X).__name__}: call fit "
            "outside of jax.jit, or give float64 NumPy data"
        )
    return np.asarray(as_floats("X", X), np.float64)


def _on_enough_landmarks(run: Callable, problem: Problem, progress: bool) -> Any:
    """The fit on as few landmarks as the certificate allows, or on all rows where landmarks would
    not be cheaper; `plan` says why.

    They suffice where tr(K − K̂) ≤ TOLERANCE·λ at the (smallest) chosen λ: see `certified_lam`. A
    few landmarks give a first λ, which determines how small the trace must be, and so how many
    landmarks are needed. This repeats until the bound holds. More than n/2 of them would cost as
    much as all rows; their number is also limited by the memory of the device.
    """
    kernel, rows, weights, n = problem.kernel, problem.rows, problem.weights, problem.rows.shape[0]
    if problem.solver is not None or not is_concrete(rows):
        raise ValueError(
            "landmarks='auto' chooses the solver too, by known values: leave solver= out, and "
            "inside jax.jit give a number"
        )

    def solved(chosen, words: str) -> Any:
        found = run(replace(problem, landmarks=chosen))
        return replace(found, plan=f"{found.plan}; {words}")

    if choose_route(kernel, n, rows.shape[1], rows.dtype) != "gram":
        return solved(None, "no landmarks: the kernel's own features are fewer than the rows")
    check_evaluable(kernel)
    # As many as save time, or as memory allows for choosing them and for the fit on them.
    too_many = lambda m: bool(of_problem(problem, landmarks=m).why_not())
    most = bisect_left(range(1, n // 2 + 1), True, key=too_many)
    if most < FEWEST:
        return solved(None, f"all {n} rows: too few to save any")
    X = rows.points
    options: dict = {"key": jax.random.key(0), "weights": weights.values, "progress": progress}
    mass = float(jnp.sum(weights.array * rows.map(kernel.diag)))
    last = False
    chosen: Any = choose_landmarks(kernel, X, FEWEST, **options)
    while True:
        m = len(chosen.points)
        found = solved(chosen, f"{m} landmarks of {n} rows{', where memory ends' * last}")
        lam, trace = float(np.min(found.lam)), float(found.trace_residual)
        if last or trace <= TOLERANCE * lam:
            return replace(found, plan=f"{found.plan}, tr(K − K̂)/λ = {trace / lam:.2g}")
        wanted = 0.5 * TOLERANCE * lam
        chosen = choose_landmarks(kernel, X, most, tol=min(wanted / mass, 0.5), **options)
        # Memory may not hold that many, or no further row may be independent.
        last = float(chosen.trace_residual) > wanted or len(chosen.points) <= m
        if last and not of_problem(problem).why_not():
            m = len(chosen.points)
            words = f"{m} landmarks would not do, and more cost as much or are not there"
            return solved(None, f"all {n} rows: {words}")
