"""Makes a `Fit` from a solution and the chosen λ: the model, warnings about its numbers, and the
solution that is kept for other λ and for rows that are added or removed.
"""

import sys
import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.criteria.criterion import Criterion
from jaxrls.core.factors.contract import Outcome, Solution
from jaxrls.core.fit.fitted import Fit, r_squared
from jaxrls.core.fit.grid import Choice
from jaxrls.core.fit.model import Model
from jaxrls.core.fit.problem import Problem
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.linalg.conjugate import CONVERGED, REASONS, Run
from jaxrls.core.problem.compiled import compiled, first, padded
from jaxrls.core.problem.folds import Folds
from jaxrls.core.problem.gram import gram
from jaxrls.core.problem.rows import as_rows
from jaxrls.core.support.checks import as_lam, is_concrete, on_device
from jaxrls.core.support.pytrees import arrays_alone, pytree, static
from jaxrls.landmarks.points import ridge_effect
from jaxrls.rows.summed import NoRows, Summed, summed_features
from jaxrls.two_sided.fitted import KroneckerFit
from jaxrls.uncertainty.intervals import Jackknife
from jaxrls.uncertainty.posterior import GaussianProcess, process_at
from jaxrls.uncertainty.without import Without

KEPT_ROWS = 2000  # a fit to at most so many keeps its solution by default
# The share of the digits, as a power of eps, whose loss is warned of.
SHOWN = -1 / 3
LARGEST_EFFECT = 0.01  # of a ridge on predictions, relative to the error, without a warning


def conclude(
    kernel: Kernel,
    solution: Solution,
    table: tuple,
    chosen: tuple,
    criterion: Criterion | None,
    *,
    plan: str = "",
) -> Fit:
    """The model at the chosen λ, one for all targets or one for each, with the table of all λ and
    errors that it was chosen from. Without rows, which a solution of moments lacks, there are no
    criterion and no held-out residuals.
    """
    (lam, error), factor, drop = chosen, solution.factor, solution.labels.drop_axis
    at, report, standard_error, moved = lam.reshape(1, -1), factor.report, None, None
    if criterion is None:
        left = Outcome(solution.coefficients(at), None, solution.dof(at))
    else:
        left = solution.outcome(at, criterion.groups, criterion.total)
        if error is None and left.total is not None:
            errors = drop(left.total / factor.weights.total)
            error, table = jnp.mean(errors) if lam.ndim == 0 else errors[0], (table[0], errors)
        if left.error is not None and criterion.smooth:  # a step has no useful slope
            standard_error = jnp.mean(left.error) if error.ndim == 0 else left.error[0]
            standard_error = standard_error / factor.weights.total
    found, r2 = jax.tree.map(lambda part: part[0], left.coefficients), None
    if left.residuals is not None:
        r2 = r_squared(left.residuals[0], solution.labels.Y, factor.weights.values, jnp)
    if report.ridge is not None:
        length = lambda e: jnp.linalg.norm(factor.weights.scale(e), axis=0)
        estimated = left.residuals is None  # and held-out residuals are larger than this
        missed = jnp.sqrt(solution.residual_norm(at)[0]) if estimated else length(left.residuals[0])
        moved = ridge_effect(gram(kernel, factor.points), report.ridge, found.coef, at[0], missed)
    coef, intercept, free = jax.tree.map(drop, found)
    points, coef = factor.expansion.compact(kernel, coef)
    effects = None if free is None else factor.fixed.lean()
    return Fit(
        model=Model(kernel, points, coef, intercept, free, effects),
        lams=table[0],
        errors=table[1],
        lam=lam,
        error=error,
        loo_residuals=None if left.residuals is None else drop(left.residuals[0]),
        dof=None if left.dof is None else left.dof.reshape(lam.shape),
        floor=report.floor,
        indefinite=report.indefinite,
        route=report.route,
        criterion="" if criterion is None else criterion.name,
        plan=plan,
        trace_residual=report.trace_residual,
        num_landmarks=0 if report.trace_residual is None else len(factor.points),
        run=left.run,
        loo_standard_error=standard_error,
        ridge_effect=moved,
        r2=r2,
    )


factored, _chosen = compiled(Problem.solution), compiled(Choice.of)
concluded = compiled(conclude)


def on_grid(problem: Problem, solution: Solution, choice: Choice) -> Fit:
    """The fit at the best of all λ of a choice, with the plan in words."""
    table, best = _chosen(choice, solution, problem.kernel)
    shared = len(table[0]) > 1 and solution.factor.shares_work
    words = f"{len(table[0])} λ{' from one factorization' * shared}"
    plan = f"{type(problem.solver).__name__} ({solution.factor.route}), {words}"
    return concluded(problem.kernel, solution, table, best, problem.criterion, plan=plan)


_at = compiled(on_grid)


def fit_on_grid(problem: Problem, choice: Choice, *, kept: bool) -> tuple[Fit, Solution | None]:
    """The fit with the best λ of a choice, with its solution if that is kept."""
    solution = factored(problem)
    return on_grid(problem, solution, choice), solution if kept else None


fit_on_grid_at_once = compiled(fit_on_grid)  # where all rows go into a program


def of_rows(fit: Fit, n: int) -> Fit:
    """The fit without the rows that its problem was padded with."""
    model, left_out = fit.model, fit.loo_residuals
    if left_out is None or len(left_out) == n or not is_concrete(fit):
        return fit
    if model.points is not None:
        model = replace(model, points=first(model.points, n), coef=first(model.coef, n))
    return replace(fit, model=model, loo_residuals=first(left_out, n))


# warnings
# --------------------------------------------------------------------------------------------------


def inspect_fit(fit: Fit, default_grid: bool) -> None:
    """Warn of what a user needs to know before trusting the numbers; raise where they are not
    finite.
    """
    stopped = "" if fit.run is None else _stopped(fit.run, "Iterative" in fit.plan)
    what, which, values = f"the {fit.criterion} error", "λ", fit.errors
    if values is None:
        what, which, values = "the model", "coefficients", fit.model.coef
    bad = ~np.isfinite(np.asarray(values))
    if bad.any():
        why = stopped or (
            "the factorization broke down; use float64 (NumPy float64 input), a larger smallest λ, "
            "a smaller kernel width, or solver=Spectral()"
        )
        raise ValueError(f"{what} is not finite at {bad.sum()} of {bad.size} {which}: {why}")
    dtype, residuals = fit.model.coef.dtype, fit.loo_residuals
    rounding = 100 * float(np.finfo(dtype).eps)
    if residuals is not None and float(fit.indefinite) > len(residuals) * rounding:
        warn(
            "the kernel matrix is not positive semidefinite: its most negative eigenvalue, "
            f"{float(fit.indefinite):.2g} of the largest, was set to 0: "
            "check the matrix, or take another kernel"
        )
    if stopped:
        warn(stopped)
    if fit.ridge_effect is not None and float(fit.ridge_effect) > LARGEST_EFFECT:
        warn(
            "the landmarks are nearly dependent, and rounding, or the jitter against it, may move "
            f"predictions by {100 * float(fit.ridge_effect):.2g} % of the error: take fewer "
            f"landmarks{', or float64' * (dtype == np.float32)}"
        )
    inspect_lam(fit, default_grid)


def inspect_lam(fit: Fit | KroneckerFit, default_grid: bool) -> None:
    """The warnings about the chosen λ."""
    chosen, floor = np.asarray(fit.lam), float(fit.floor)
    lams = np.atleast_1d(chosen if fit.lams is None else np.asarray(fit.lams))
    known = lams >= 0.99 * floor
    # Errors below the floor matter where they were chosen, or where they may have hidden a better λ
    # next to the chosen one.
    if not known.all() and (chosen <= lams[known].min(initial=np.inf)).any():
        warn(
            f"λ below {floor:.2g} is below the precision of the factor, and the grid goes down to "
            f"{lams.min():.2g}: leave such λ out, or use float64"
        )
    if fit.lams is None or len(lams) == 1:
        return
    low, high = (chosen <= lams.min(axis=0)).any(), (chosen >= lams.max(axis=0)).any()
    unregularised = default_grid and lams.min() > 2 * floor  # below it the fit no longer changes
    if high or low and not unregularised:
        edge, further = ("smallest", "smaller") if low else ("largest", "larger")
        remedy = f"pass lams= that reach {further} values"
        if low and lams.min() <= 1.01 * floor:
            remedy = "below it is rounding, so use float64"
        warn(
            f"the chosen λ, {lams.min() if low else lams.max():.3g}, is the {edge} of the grid: "
            f"{remedy}, or change the kernel"
        )


def _stopped(run: Run, iterative: bool) -> str:
    """Why the column with the largest residual stopped, and what to do; empty where all columns
    reached the tolerance.
    """
    residuals, reasons = np.asarray(run.residuals), np.asarray(run.reason)
    open_ones = np.flatnonzero(reasons != CONVERGED)
    if not len(open_ones):
        return ""
    worst = open_ones[np.nan_to_num(residuals[open_ones], nan=np.inf).argmax()]
    left, remedy = f"at a residual of {residuals[worst]:.2g}", "a larger λ"
    if iterative:
        left = f"with fitted values off by {residuals[worst]:.0%} of the residuals"
        remedy = "more landmarks, a larger λ, or float64"
    return f"the iteration stopped {left}: {REASONS[reasons[worst]]}: take {remedy}"


def warn(message: str) -> None:
    """Warn at the line outside of the library that called it."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals["__name__"].startswith("jaxrls."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


# what a fit keeps, and its update from moments when rows are added or removed
# --------------------------------------------------------------------------------------------------


def keeps(problem: Problem, keep: bool | None) -> bool:
    """Whether a fit keeps its solution: as was asked, or where rows are few and known."""
    few = problem.rows.shape[0] <= KEPT_ROWS and is_concrete(problem.weights, problem.Y)
    return few if keep is None else keep


@pytree
class Kept:
    """The solution that a fit keeps, from which its later methods compute their results.

    `problem` is None after `save`, and after `update` or `forget`, when `solution` has only
    moments. `choice` is how λ is chosen again, None where moments do not suffice for it.
    """

    problem: Problem | None
    solution: Solution
    groups: Folds | None
    choice: Choice | None
    saved: bool = static(default=True)  # whether `save` writes it
    # Results from rows that only the host reads, which `save` does not write.
    made: tuple[GaussianProcess | None, Jackknife | None] = (None, None)

    def for_file(self, fit: Fit) -> "Kept":
        """What `save` writes: everything except the problem; and for rows that only the host reads,
        in place of them what variances and intervals need.
        """
        solution, problem, made = self.solution, self.problem, self.made
        if problem is not None and (problem.explicit or np.inf) <= problem.rows.shape[0]:
            solution = replace(solution, summed=fit.of_kept("summed"))
        if not arrays_alone(solution):
            made = None if np.ndim(fit.lam) else fit.of_kept("process"), fit.of_kept("jackknife")
            factor: Any = solution.factor
            solution = replace(solution, factor=replace(factor, rows=NoRows(factor.dtype)))
        return replace(self, problem=None, solution=solution, made=made)

    def at(self, fit: Fit, lam) -> Fit:
        """The fit at another λ."""
        problem, coef = self.problem, fit.model.coef
        if problem is None:
            raise ValueError(
                "another λ needs the data, which a fit does not have after update or load: fit "
                "all rows again"
            )
        lam = as_lam(lam, coef.dtype, coef.shape[1:])
        choice = Choice(problem.criterion, lam[None], per_target=lam.ndim > 0)
        found = _at(problem, self.solution, choice)
        inspect_fit(found, False)
        return replace(of_rows(found, len(fit.loo_residuals)), kept=self)

    def process(self, fit: Fit) -> GaussianProcess:
        """What variances at the fit's λ need."""
        if np.ndim(fit.lam):
            raise ValueError(
                "variances need one λ, and this fit has one for each target: fit with one for "
                "all, or each target alone"
            )
        return self.made[0] or process_at(self.solution, jnp.asarray(fit.lam), self._left_out(fit))

    def _left_out(self, fit: Fit):
        """Held-out residuals, 0 for rows that the problem was padded with."""
        e, n = fit.loo_residuals, self.solution.factor.n
        return e if e is None or len(e) == n else on_device(padded(np.asarray(e), n - len(e)))

    def jackknife(self, fit: Fit) -> Jackknife:
        """What intervals need: all fits at this λ with a row, or a group, held out."""
        if fit.loo_residuals is None:
            raise ValueError(
                "held-out residuals are not known after update, forget or load of rows: fit all "
                "rows again"
            )
        lam = jnp.asarray(fit.lam)
        return self.made[1] or _jackknife(self.solution, self.groups, lam, self._left_out(fit))

    def summed(self, _: Any) -> Summed:
        """Moments of the rows."""
        problem, solution = self.problem, self.solution
        if solution.summed is not None:
            return solution.summed
        if problem is None or problem.explicit is None:
            raise ValueError(
                "update and forget need a fit on features or landmarks, and this one has the full "
                "kernel matrix: fit with landmarks=, or fit all rows again"
            )
        return _summed_features(
            problem.kernel, problem.rows, solution.labels, problem.weights, problem.fixed
        )

    def changed(
        self, fit: Fit, X, Y, weights, fixed_effects, block_size: int | None, sign: int
    ) -> Fit:
        """The fit with rows added, or with a negative `sign` removed."""
        summed, flat = fit.of_kept("summed"), fit.model.coef.ndim == 1
        new, fixed = _read(fit, summed, X, Y, weights), summed.fixed
        rows, labels = new.rows, new.Y.reshape(len(new.Y), -1)
        given = fixed.new_rows(fixed_effects, len(labels), rows.dtype)
        if given is not None:
            fixed = replace(fixed, rows=rows.column(given))
        more = _moments(summed, rows, fixed, labels, new.weights, block_size=block_size)
        found, solution, possible, cancellation = _changed(
            fit.model.kernel, summed, more, self.choice, jnp.asarray(fit.lam), sign=sign, flat=flat
        )
        known = is_concrete(found)
        if known and sign < 0 and not possible:
            raise ValueError(
                "X and Y cannot be removed: they hold all of the weight, or were not fitted with "
                "these labels and weights"
            )
        kept = Kept(None, solution, None, self.choice, self.saved)
        found = replace(found, criterion=fit.criterion, kept=kept)
        if known:
            _inspect_digits(float(cancellation), rows.dtype)
            inspect_fit(found, self.choice is not None and self.choice.lams is None)
        return found


def with_solution(
    fit: Fit, solution, problem: Problem, choice: Choice | None, keep: bool | None
) -> Fit:
    """The fit with its solution, if that is kept."""
    if not keeps(problem, keep):
        return fit
    choice = choice if problem.criterion.of_sums else None
    kept = Kept(problem, solution, problem.criterion.groups, choice, bool(keep))
    return replace(fit, kept=kept)


_summed_features, _moments = compiled(summed_features), compiled(Summed.moments_of)


@compiled
def _jackknife(solution: Solution, groups: Folds | None, lam, left_out) -> Jackknife:
    """Intervals from the held-out residuals."""
    factor, weights = solution.factor, solution.factor.weights
    found = jax.tree.map(lambda part: part[0], solution.coefficients(lam.reshape(1, -1)))
    coef = jnp.concatenate([found.coef, factor.fixed.joined(found.intercept, found.free)])
    e, stacked = left_out.reshape(factor.n, -1), lam.ndim == 1

    def fits(lam, coef, e) -> Without:
        smoother = factor.smoother(lam)
        if groups is None:
            return smoother.without_rows(weights, lam, coef, e)
        return smoother.without_folds(weights, groups, coef, e)

    columns = lam, *(part.T[..., None] if stacked else part for part in (coef, e))
    made = jax.lax.map(lambda each: fits(*each), columns) if stacked else fits(*columns)
    fixed, flat = factor.fixed.lean(), solution.labels.flat
    return Jackknife(made, factor.expansion, fixed, weights.count, flat, stacked)


def _read(fit: Fit, summed: Summed, X, Y, weights) -> Problem:
    """Rows, labels and weights, checked as those of a fit are."""
    kernel, coef = summed.of.kernel, fit.model.coef
    if not kernel.evaluable:
        raise ValueError(
            "a fit to a given kernel matrix cannot be updated: fit with a kernel and its inputs"
        )
    dtype = coef.dtype
    rows = as_rows(kernel, X, dtype=dtype)
    if rows.dtype != dtype:
        raise ValueError(
            f"X must have dtype {dtype}, as the rows of the fit, and has {rows.dtype}: convert it"
        )
    summed.check_width(rows.shape[1])
    new = Problem.of(kernel, rows, Y, weights=weights, intercept=False)
    expected = rows.shape[0], *coef.shape[1:]
    if new.Y.shape != expected:
        raise ValueError(
            f"Y must have shape {expected}, one row for each of X and as many columns as before, "
            f"and has shape {new.Y.shape}"
        )
    return new


@compiled
def _changed(
    kernel: Kernel, summed: Summed, more, choice: Choice | None, lam, *, sign, flat
) -> tuple[Fit, Solution, Any, Any]:
    """The fit and its solution; whether such rows can exist; and by how much rounding has grown."""
    summed = summed.changed(more, sign)
    solution = replace(summed.solution(flat), summed=summed)
    table, chosen = (None, None), (lam, None)
    if choice is not None:
        table, chosen = choice.of(solution, kernel)
    words = "sums over rows that were added or removed"
    fit = conclude(kernel, solution, table, chosen, None, plan=words)
    return fit, solution, summed.possible(), summed.cancellation(chosen[0])


def _inspect_digits(cancellation: float, dtype) -> None:
    """Warn of digits that rounding has destroyed."""
    eps = float(np.finfo(dtype).eps)
    if cancellation > eps**SHOWN:
        left, whole = max(0, int(-np.log10(eps * cancellation))), int(-np.log10(eps))
        warn(
            f"removing rows left about {left} of {whole} digits, as sums over rows were "
            f"{cancellation:.1g} times as large before: fit the remaining rows again"
        )
