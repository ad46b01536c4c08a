"""The one call: factor, sweep λ, choose, and leave a model."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.left_out import loo
from jaxrls.factors.contract import Solution, Solver
from jaxrls.factors.solvers import Cholesky, Refined
from jaxrls.inference.fitted import Fit, K
from jaxrls.rows.compiled import compiled
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.conclude import conclude_grid, concluded, inspect_fit, solver_name
from jaxrls.search.grid import Choice, choose_lam
from jaxrls.search.kept import beside, keeps
from jaxrls.search.lam_search import search, search_below
from jaxrls.search.plan import Plan
from jaxrls.search.problem import Problem
from jaxrls.search.rank import grow
from jaxrls.support.checks import as_floats, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.precision import in_precision_of, is_wide

NEAR = 5  # times the floor of a spectrum: from there on its errors are right to 1 %


@on_any_mesh
@in_precision_of("X")
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
        kernel: a jaxrls kernel, such as `Gaussian(2.0)`; or "gaussian", "laplacian", "matern" (of
            ν = 5/2), all with the median distance between rows as width, or "linear".
        X: rows (n, d), NumPy, JAX or sparse (SciPy, BCOO), or a source of rows such as a `stream`.
        Y: labels (n,) or (n, t); a source of rows may bring its own.
        lams: how many λ, on a grid from the spectrum; or λ (L,), where 0 is taken as `fit.floor`; or
            (L, t), from whose columns the targets choose; or `"search"`, the λ of the smallest error
            by value and slope at about ten λ.
        per_target: whether each column of Y has a λ of its own.
        conservative: take the largest λ whose error is within so many standard errors of the
            smallest; 1 or True is the one-standard-error rule.
        criterion: what λ is chosen by: `loo`, `gcv`, `kfold(groups)`, `holdout(X, Y)`,
            `log_marginal_likelihood`, `LeaveOneOut(loss=…)`, the name of one, a `Criterion` of your
            own, or a function `(factor, Y, lams)` of which less is better.
        groups: labels (n,) of rows that are left out together, in place of single rows.
        weights: sample weights (n,), 0 or more; a row of weight 0 was never there.
        intercept: whether to fit a constant without penalty.
        fixed_effects: further columns (n, q) without penalty, or `levels(labels)`, an intercept for
            each group; `predict` takes those of new rows, and the model keeps their coefficients as
            `free`.
        standardize: whether the kernel sees the columns of X about their mean and over their
            standard deviation, which the model keeps in its kernel and applies to new rows.
        landmarks: for more rows than K can be factored for: how many to choose, or what
            `jaxrls.landmarks` chose, row numbers (m,), or points (m, d). A landmark leaves with its
            row. `"auto"` takes as many as keep the fit close to that of all rows.
        solver: `Spectral()`, `Cholesky()`, `Refined()` or `Iterative()`; by default the cheapest
            exact one for the shapes: `fit.plan` says which.
        keep: whether the fit keeps its solution, n² numbers, or n·r on r features or landmarks, from
            which `posterior`, `predict(return_std=True)`, `intervals`, `loo_predictive`, `update`,
            `forget` and `at` come. By default up to 2000 rows outside of `jax.jit`; `save` writes it
            where it is asked for here.
        block_size: rows at a time while K or sums over rows are made.
        progress: show a bar while landmarks are chosen (needs tqdm).

    Returns:
        A `Fit`; of float64 NumPy input in float64, as NumPy arrays. Equal errors go to the larger λ.

    Raises:
        ValueError: for shapes that do not fit, NaN or infinity, values outside the range of the
            dtype or the kernel's domain, λ < 0, a problem larger than memory, or a row that cannot
            be left out as the fixed effects need it. Inside `jax.jit` and `jax.vmap` values cannot
            be checked.

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
    given |= {"standardize": standardize}
    how: dict = {"per_target": per_target, "conservative": conservative, "keep": keep}
    counted = np.ndim(lams) == 0  # how many λ, or a search for one
    if isinstance(solver, Refined) and (counted and lams != "search" or not is_wide(X)):
        return _refined(kernel, X, Y, lams, landmarks, solver, given | how)
    auto = isinstance(landmarks, str) and landmarks == "auto"
    given |= {"landmarks": None if auto else landmarks, "solver": solver, "progress": progress}
    problem = Problem.of(kernel, X, Y, **given)
    run: Callable[[Problem], Fit] = partial(_best, lams=lams, **how)
    found = grow(run, problem, progress) if auto else run(problem)
    if is_concrete(found.lam):
        inspect_fit(found, counted)
    return found


def _best(problem: Problem, *, lams, per_target: bool, conservative, keep: bool | None) -> Fit:
    """The fit with the best λ: by a grid, or by a search."""
    plan = Plan.of(problem, lams, per_target, conservative)
    found, solution = _searched(plan) if plan.searches else _on_grid(plan, keeps(problem, keep))
    choice = None if plan.searches else plan.choice
    return beside(found, plan.problem, solution, choice, keep)


def _on_grid(plan: Plan, kept: bool) -> tuple[Fit, Any]:
    """The fit with the best λ of a grid, and where its solver ends by another one."""
    fitted = _in_one if plan.problem.traceable else _fit
    found = fitted(plan, keeps=kept)
    if not plan.goes_on:
        return found
    if plan.choice.lams is None:
        return _below(found, plan)
    if np.isfinite(found[0].errors).all():
        return found
    return fitted(replace(plan, problem=replace(plan.problem, solver=None)), keeps=kept)


_solved, _chosen = compiled(Problem.solution), compiled(Choice.of)


def _fit(plan: Plan, *, keeps: bool) -> tuple[Fit, Solution | None]:
    """The fit with the best λ of a grid, and the solution where it is kept."""
    solution = _solved(plan.problem)
    found = _chosen(plan.choice, solution, plan.problem.kernel)
    return conclude_grid(plan.problem, solution, *found), solution if keeps else None


_in_one = jax.jit(_fit, static_argnames="keeps")  # of rows that can go into a program


def _searched(plan: Plan) -> tuple[Fit, Solution]:
    """The fit with the best λ of a search, which looks at values."""
    problem = plan.problem
    if not is_concrete(problem):
        raise ValueError(
            "lams='search' looks at values, which have none inside jax.jit: give numbers, or call "
            "fit outside"
        )
    solution = _solved(problem)
    found = search(problem, solution, plan.choice.per_target)
    words = f"a search for λ: {found.words}"
    return _told(problem, solution, found[:2], found[2:4], words), solution


def _below(found: tuple[Fit, Any], plan: Plan) -> tuple[Fit, Any]:
    """The fit with a grid that ends at the floor of the spectrum, gone on with by Cholesky factors
    where its λ is near: their floor is lower.
    """
    fit = found[0]
    floor, lams = float(fit.floor), np.asarray(fit.lams)
    if lams[0] > 1.01 * floor or float(fit.lam) >= NEAR * floor:
        return found
    problem = replace(plan.problem, solver=Cholesky())
    solution = _solved(problem)
    if not float(solution.factor.precision_floor()) < floor:
        return found
    first = int(np.searchsorted(lams, NEAR * floor))
    above = jnp.asarray(fit.lams)[first:], jnp.asarray(fit.errors)[first:]
    below = search_below(problem, solution, *(part[:2] for part in above))
    words = (
        f"a grid down to {lams[first]:.3g}, {NEAR} times the precision of its spectrum, and below "
        f"it {below.words}"
    )
    both, errors = (jnp.concatenate(parts) for parts in zip(below[:2], above, strict=True))
    chosen, table = choose_lam(both, errors, per_target=False), (both, errors)
    return _told(problem, solution, table, chosen, words), solution


def _told(problem: Problem, solution: Solution, table, chosen, words: str) -> Fit:
    """The fit, and how λ was looked for."""
    fit = concluded(problem.kernel, solution, tuple(table), tuple(chosen), problem.criterion)
    return replace(fit, plan=f"{solver_name(problem)}, {words}")


def _refined(kernel, X, Y, lams, landmarks, solver: Refined, options: dict) -> Fit:
    """The fit by `Refined`, in float64 whatever the dtype of X: at the λ chosen in float32, or at
    those that are named or searched.
    """
    if landmarks is not None or isinstance(X, Rows) or is_sparse(X):
        found = "landmarks=" if landmarks is not None else type(X).__name__
        raise ValueError(
            f"Refined() is for K of all rows of a dense X, and {found} was given: leave it out, or "
            "give float64 NumPy data"
        )
    if not is_concrete(X, Y):
        raise ValueError(
            "Refined() computes in float64 whatever jax.jit was traced in: call fit outside of it"
        )
    X = np.asarray(as_floats("X", X))
    table: dict = {}
    if np.ndim(lams) == 0 and lams != "search":
        narrow = options | {"keep": False}
        first: Fit = fit(kernel, X.astype(np.float32), Y, lams=lams, **narrow)
        table, lams = {"lams": first.lams, "errors": first.errors}, np.asarray(first.lam)[None]
    wide: Fit = fit(kernel, X.astype(np.float64), Y, lams=lams, solver=solver, **options)
    return replace(wide, **table)
