"""`fit`, the main function of the package.

It reads its arguments into a `Problem` (`read.py`), and plans how λ is chosen and by which solver
(`plan.py`). It runs the plan (`run.py`), which makes an `Attempt`, and looks at its numbers
(`inspection.py`). At the end it makes a `Fit` of the attempt (`finish.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from typing import Any

from jaxrls.core.criteria import Criterion, loo
from jaxrls.core.factors import Solver
from jaxrls.core.fit import Problem
from jaxrls.core.support import column_names, is_concrete, progress_bar, public_call, target_names
from jaxrls.front.attempt import Attempt
from jaxrls.front.expected import warn_of_long_fit
from jaxrls.front.finish import finish, with_names, words_for_estimate
from jaxrls.front.fitted import Fit, K
from jaxrls.front.inspection import inspect_result, labels_are_equal
from jaxrls.front.plan import (
    Request,
    Search,
    make_plan,
    may_do_without_k,
    read_lams,
    solver_without_k,
)
from jaxrls.front.read import read_problem
from jaxrls.front.run import fit_on_grid, run


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
    """Fit regularized least squares and choose the best of many λ by exact leave-one-out error.

    All λ together cost about as much as one factorization. For every λ, minimise over f and b

        ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖²_H

    Then keep the λ of the smallest leave-one-out error.

    Args:
        kernel: a jaxrls kernel, such as `Gaussian(2.0)`; or a name, such as "linear" or "gaussian".
            A kernel given by name has the median distance between rows as its width.
        X: rows (n, d), NumPy, JAX or sparse (SciPy, BCOO), or a source of rows such as a `stream`.
            If X is a data frame, a table or a stream, the model keeps the names of its columns. It
            then finds the columns of new rows by these names.
        Y: labels (n,) or (n, t). It may be left out if X is a source of rows with labels.
        lams: which λ to try. One of:

            * their number: they form a grid that covers the spectrum. If no spectrum is computed,
              λ is searched for instead: by a solver without a spectrum, and by default with K of
              8000 rows or more on a GPU, or of any number of rows on a TPU.
            * their values, (L,), or (L, t) with a column for each target; 0 stands for `fit.floor`.
            * `"search"`: find the best λ from the error and its slope at about ten values. Where
              slopes are not known, as for a stream or a loss that is a step function, a solver with
              a spectrum does as for `lams=100`.
        per_target: whether each column of Y has a λ of its own.
        conservative: a number c of standard errors, over rows or groups. The largest λ is taken
            whose error is at most c standard errors above the smallest; 1 or True is the
            one-standard-error rule.
        criterion: the error by which λ is chosen: `loo`, `gcv`, `kfold(groups)`, `holdout(X, Y)`,
            `log_marginal_likelihood`, `LeaveOneOut(loss=…)`, the name of one, a `Criterion` of your
            own, or a function `(factor, Y, lams)` to minimise. A likelihood is computed at the
            variance τ² of the prior τ²k at which it is largest, and `fit.plan` shows this τ²;
            `extend.Evidence(scale=1)` sets τ² = 1.
        groups: labels (n,) of rows that are held out together, in place of single rows.
        weights: sample weights (n,), 0 or more; a row of weight 0 counts as absent.
        intercept: whether to fit a constant without penalty.
        fixed_effects: further columns (n, q) without penalty; or `levels(labels)`, an intercept for
            each group; or a list of both. The model keeps their coefficients as `free`, and
            `predict` takes the fixed effects of new rows.
        standardize: whether to subtract the mean of each column of X and divide by its standard
            deviation. The model keeps both in its kernel and applies them to new rows.
        landmarks: a few rows or points, for a fit to many rows. The fitted function is a sum of
            kernel functions at the landmarks alone. Give their number, row numbers (m,), points
            (m, d) or the result of `jaxrls.choose_landmarks`. `"auto"` takes as many as keep the
            fit close to the fit with the full K, and needs all rows in memory: a stream takes a
            number. A landmark is held out with its row, except with `Iterative()`, where it stays.
        solver: `Spectral()`, `Cholesky()`, `Refined()` or `Iterative()`. By default the cheapest
            exact solver for the shapes is taken. If K is too large to be factored, or has more
            than 16,384 rows on a CPU and λ is searched, the default is `Iterative()`, whose
            leave-one-out error is an estimate. `fit.plan` names the solver.
        keep: whether the fit keeps its solution, n² numbers, or n·r with r features or landmarks.
            These need it: `posterior`, `predict(return_std=True)`, `effects`, `effect`,
            `intervals`, `loo_predictive`, `update`, `forget`, `with_lam` and
            `diagnostics.influence`. By default it is kept up to 2000 rows, outside of `jax.jit`.
            `save` writes the solution only with `keep=True`.
        block_size: the number of rows processed at a time in K and in sums over rows.
        progress: whether to show progress bars for the fit and for the choice of landmarks
            (needs tqdm).

    Returns:
        A `Fit`. Float64 NumPy input is computed in float64; the results are NumPy arrays if JAX is
        set to float32. Equal errors go to the larger λ.

    Raises:
        ValueError: for shapes that do not fit, NaN or infinity, values outside the range of the
            dtype or the kernel's domain, λ < 0, a problem larger than memory, or a row without
            which the fixed effects are not determined. Inside `jax.jit` and `jax.vmap` values
            cannot be checked.

    The best λ of a grid may be so near the precision of K that rounding changes held-out residuals
    of single rows. Then a search by Cholesky factors, which are rounded less, takes over. If its λ
    is too small for single rows too, a larger λ is taken, provided that its error is at most 1 %
    larger, plus a tenth of the share by which rounding may move the residuals.

    **Warns** if

    * the chosen λ is at the edge of the grid, or below the precision of the factor;
    * rounding may move held-out residuals of single rows by more than 2 % (in float32 10 %);
    * K is not positive semidefinite, or has no information beyond the fixed effects.

    **Cost** one factorization, O(n³) or O(n r²), and O(n r L t). If `lams` names few values, on a
    CPU up to five, one Cholesky factor for each replaces the spectrum of K.
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
    in_solver_dtype = solver.rows_to_fit(X) if isinstance(solver, Solver) else X
    if in_solver_dtype is not X:  # a new call, as `public_call` sets the precision by X
        names = column_names(X)
        if isinstance(criterion, Criterion):  # its own rows are matched while names are known
            options["criterion"] = criterion.match_columns(names, target_names(X, Y), None)
        options |= {"lams": lams, "per_target": per_target, "conservative": conservative}
        fitted = fit(kernel, in_solver_dtype, Y, **options, keep=keep, progress=progress)
        return with_names(fitted, names)
    problem = read_problem(kernel, X, Y, **options)
    request = Request(read_lams(lams, problem), per_target, conservative, keep)
    if is_concrete(problem, lams, conservative):
        attempt = compute_and_inspect(problem, request, progress)
    else:
        attempt = compute_in_program(problem, request, progress)
    return finish(attempt, column_names(X), target_names(X, Y), saved=bool(keep))


def compute_and_inspect(problem: Problem, request: Request, progress: bool) -> Attempt:
    """Compute the fit with the best λ, and warn of what its numbers show."""
    with progress_bar(progress, 1, "fit, which compiles in a first call", "fit") as reached:
        attempt = plan_and_run(problem.solver, problem, request, progress)
        reached(1)
    inspect_result(
        attempt.result,
        problem.criterion.name,
        names_lams=request.names_lams,
        why_stopped=attempt.why_stopped,
        equal_labels=labels_are_equal(problem),
    )
    return attempt


@singledispatch
def plan_and_run(solver: Any, problem: Problem, request: Request, progress: bool) -> Attempt:
    """Plan how the problem is solved, and run the plan.

    If K is too large to be factored, a solver that needs no K may take over, which estimates the
    error. `solver` is that of the problem, or None. `landmarks="auto"` registers a version that
    makes several plans.
    """
    plan = make_plan(problem, request)
    without_k = None
    if may_do_without_k(problem, request.keep):
        without_k = solver_without_k(problem, plan.memory, request.may_change_lams)
    if without_k is None:
        return run(plan, progress)
    problem = replace(problem, solver=without_k)
    warn_of_long_fit(problem, request.may_change_lams)
    attempt = by_plan(problem, request, progress)
    return attempt.adding(words_for_estimate(attempt))


def by_plan(problem: Problem, request: Request, progress: bool) -> Attempt:
    """Compute the fit by the solver of the problem, or if it has none, by the cheapest exact one."""
    return run(make_plan(problem, request), progress)


def compute_in_program(problem: Problem, request: Request, progress: bool) -> Attempt:
    """Compute the fit inside of `jax.jit` or `jax.vmap`, where arrays have no values yet.

    No check or warning depends on a value.
    """
    plan = make_plan(problem, request)
    if isinstance(plan.lams, Search):
        raise ValueError(
            "lams='search' needs known values, and inside jax.jit there are none: give numbers, "
            "or call fit outside"
        )
    plan = plan.prepared(progress)
    plan.check_memory()
    return fit_on_grid(plan)
