"""The main function: read what the caller gives, plan how λ is chosen and by which solver, run the
plan, and report.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrls.core.criteria import Criterion, loo
from jaxrls.core.factors import Solver
from jaxrls.core.fit import Problem
from jaxrls.core.support import column_names, is_concrete, progress_bar, public_call
from jaxrls.front.expected import warn_of_long_fit
from jaxrls.front.fitted import Fit, K
from jaxrls.front.inspection import inspect_fit, labels_are_equal
from jaxrls.front.plan import Request, Search, keeps, make_plan, without_matrix
from jaxrls.front.read import read_problem
from jaxrls.front.report import (
    add_names_and_offset,
    as_fit,
    with_estimate_in_plan,
    with_prior_in_plan,
    with_solution,
    words_for_grid,
)
from jaxrls.front.run import fit_arrays_compiled, run


@public_call(data="X")
def fit(
    kernel: K | str,
    X: Any,
    Y: Any = None,
    *,
    lams: Any = 100,
    per_target: bool = False,
    conservative: float | int | bool = 0.0,
    criterion: Criterion | Callable | str = loo,
    groups: Any = None,
    weights: Any = None,
    intercept: bool = True,
    fixed_effects: Any = None,
    standardize: bool = False,
    landmarks: Any = None,
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
    request = Request(lams, per_target, conservative, keep)
    in_solver_dtype = solver.rows_to_fit(X) if isinstance(solver, Solver) else X
    if in_solver_dtype is not X:  # everything is computed in that dtype
        result = fit(kernel, in_solver_dtype, Y, **options, **request._asdict(), progress=progress)
        return add_names_and_offset(result, column_names(X))
    problem = read_problem(kernel, X, Y, **options)
    if is_concrete(problem, lams, conservative):
        fitted = plan_run_report(problem, request, progress)
    else:
        fitted = fit_in_program(problem, request, progress)
    return add_names_and_offset(fitted, column_names(X), problem.label_offset)


def plan_run_report(problem: Problem, request: Request, progress: bool) -> Fit:
    """The fit with the best λ; where no solver was named and K is too large, by one without K."""
    smaller = None if request.keep else without_matrix(problem, any_lam=request.any_lam)
    if smaller:
        warn_of_long_fit(smaller, request.any_lam)
    problem = smaller or problem
    plan_and_run = lambda problem: run(make_plan(problem, request))
    with progress_bar(progress, 1, "fit, which compiles in a first call", "fit") as reached:
        fit = problem.solver_or_default.run_trials(problem, plan_and_run, progress)
        reached(1)
    default_grid = np.ndim(request.lams) == 0
    inspect_fit(fit, default_grid, problem.solver, labels_are_equal(problem))
    fit = with_prior_in_plan(fit)
    return with_estimate_in_plan(fit) if smaller else fit


def fit_in_program(problem: Problem, request: Request, progress: bool) -> Fit:
    """The fit inside of `jax.jit` and `jax.vmap`, where values are not known: `fit_arrays`."""
    plan = make_plan(problem.prepare(progress), request)
    if isinstance(plan.lams, Search):
        raise ValueError(
            "lams='search' needs known values, and inside jax.jit there are none: give numbers, "
            "or call fit outside"
        )
    kept = keeps(plan.problem, plan.keep)
    result, solution = fit_arrays_compiled(plan.problem, plan.choice, kept=kept)
    fit = as_fit(result, plan.problem, words_for_grid(result, plan.problem))
    return with_solution(fit, solution, plan.problem, plan.choice, plan.keep, len(problem.Y))
