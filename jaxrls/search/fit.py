"""The main function: factor, sweep λ, choose the best, and return a model."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.standard import loo
from jaxrls.factors.contract import Solution, Solver
from jaxrls.factors.solvers import Cholesky, Refined, choose_route
from jaxrls.inference.fitted import Fit, K
from jaxrls.problem.landmarks import TOLERANCE, check_evaluable
from jaxrls.rows.compiled import compiled
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.conclude import (
    concluded,
    inspect_fit,
    keeps,
    of_rows,
    on_grid,
    with_solution,
)
from jaxrls.search.estimate import of_problem
from jaxrls.search.lam_search import search
from jaxrls.search.landmarks import landmarks as choose_landmarks
from jaxrls.search.plan import Plan
from jaxrls.search.problem import Problem
from jaxrls.support.checks import as_floats, is_concrete
from jaxrls.support.door import door, is_wide

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
            best λ from the error and its slope at about ten values.
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
            `jaxrls.landmarks`; `"auto"` takes as many as keep the fit close to that of the full K.
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
        A `Fit`; for float64 NumPy input in float64, as NumPy arrays. Equal errors go to the larger
        λ.

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
    if is_concrete(found.lam):
        inspect_fit(found, np.ndim(lams) == 0)
    return found


def _best(problem: Problem, *, lams, per_target: bool, conservative, keep: bool | None) -> Fit:
    """The fit with the best λ, from a grid or from a search."""
    plan = Plan.of(problem, lams, per_target, conservative)
    plan = replace(plan, problem=plan.problem.padded())
    if plan.searches:
        found, solved = _searched(plan)
        return with_solution(found, solved, plan.problem, None, keep)
    search_grid = _on_grid_at_once if plan.problem.traceable else _on_grid
    found, kept = search_grid(plan, keeps=keeps(problem, keep))
    found = with_solution(found, kept, plan.problem, plan.choice, keep)
    if not plan.goes_below or float(found.lam) >= NEAR * float(found.floor):
        return found
    # Near the floor of a spectrum its errors may be rounding; Cholesky factors are rounded less.
    below = replace(plan.problem, solver=Cholesky())
    found, kept = _searched(replace(plan, problem=below))
    return with_solution(found, kept, below, None, keep)


_solved = compiled(Problem.solution)


def _on_grid(plan: Plan, *, keeps: bool) -> tuple[Fit, Solution | None]:
    """The fit with the best λ of a grid, with its solution if that is kept."""
    solution = _solved(plan.problem)
    return on_grid(plan.problem, solution, plan.choice), solution if keeps else None


_on_grid_at_once = compiled(_on_grid)  # where all rows go into a program


def _searched(plan: Plan) -> tuple[Fit, Solution]:
    """The fit with the best λ of a search, which runs on known values, and its solution."""
    problem = plan.problem
    if not is_concrete(problem):
        raise ValueError(
            "lams='search' needs known values, and inside jax.jit there are none: give numbers, "
            "or call fit outside"
        )
    solution = _solved(problem)
    table, chosen, words = search(problem, solution, plan.choice.per_target)
    found = concluded(problem.kernel, solution, table, chosen, problem.criterion)
    plan_words = f"{type(problem.solver).__name__}, a search for λ: {words}"
    return replace(found, plan=plan_words), solution


def _widened(X) -> np.ndarray:
    """Rows in float64, for `Refined`."""
    if isinstance(X, Rows) or is_sparse(X) or not is_concrete(X):
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
    if problem.solver is not None:
        raise ValueError(
            f"landmarks='auto' chooses the solver too: leave solver={problem.solver} out"
        )
    if not is_concrete(rows):
        raise ValueError(
            "landmarks='auto' needs known values, and inside jax.jit there are none: give a "
            "number, or call fit outside"
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
    X = rows if is_sparse(rows) else rows.dense()
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
