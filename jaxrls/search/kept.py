"""A fit to rows that change: what is kept beside it, and the fit that moments make when rows have
come or gone.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.criteria.criterion import Criterion
from jaxrls.factors.contract import Solution
from jaxrls.factors.summed import Gone, Summed, summed_features
from jaxrls.kernels.given import KernelValues
from jaxrls.kernels.kernel import Kernel
from jaxrls.leave_out.without import Without
from jaxrls.linalg.products import safe_sqrt
from jaxrls.models.fitted import Fit
from jaxrls.models.intervals import Jackknife
from jaxrls.models.model import Model
from jaxrls.models.posterior import Sure, by_evidence
from jaxrls.problem.folds import Folds
from jaxrls.problem.landmarks import ridge_effect
from jaxrls.problem.weights import Weights
from jaxrls.rows.compiled import compiled
from jaxrls.rows.gram import gram
from jaxrls.rows.moments import Moments
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import as_rows_in
from jaxrls.search.conclude import fit_at
from jaxrls.search.grid import choose_lam, lambda_grid
from jaxrls.search.inspection import inspect_lam, inspect_ridge, warn
from jaxrls.search.problem import Problem, labels_of
from jaxrls.support.checks import as_floats, check_lams, check_range, is_concrete
from jaxrls.support.precision import scope, to_host
from jaxrls.support.pytrees import arrays_alone, pytree, static

# The share of the digits, as a power of eps, whose loss is told.
TELL = -1 / 3


@pytree
class Again:
    """How λ is chosen again, where that takes moments alone; `criterion` is None where λ stays."""

    kernel: Kernel
    criterion: Criterion | None
    lams: Float[Array | np.ndarray, "L *#t"] | None
    num: int = static()
    per_target: bool = static()


@pytree
class Kept:
    """The solution that a fit keeps, from which all that is asked of it afterwards comes.

    `problem` is None after `save`, and where the rows have changed since, of which `solution` has
    moments alone.
    """

    problem: Problem | None
    solution: Solution
    groups: Folds | None
    again: Again
    saved: bool = static(default=True)  # whether `save` writes it
    # What was made of rows that only the host reads, before `save` let go of them.
    made: tuple[Sure | None, Jackknife | None] = (None, None)

    @classmethod
    def of(cls, problem: Problem, solution: Solution, lams, per_target: bool, saved: bool):
        """Beside a fit to a problem."""
        chosen = problem.criterion if problem.criterion.of_sums else None
        chosen = None if isinstance(lams, str) else chosen
        count = lams if isinstance(lams, int) else 0
        named = None if isinstance(lams, int | str) else lams
        again = Again(problem.kernel, chosen, named, count, per_target)
        return cls(problem, solution, problem.criterion.groups, again, saved)

    def for_file(self, fit: Fit) -> "Kept":
        """What `save` writes: all but the problem, and rows that only the host reads, of which it
        is what variances and intervals take.
        """
        solution, problem, made = self.solution, self.problem, self.made
        if problem is not None and _is_explicit(problem, fewer=True):
            solution = replace(solution, summed=fit._once("_moments", lambda _: self.summed()))
        if not arrays_alone(solution):
            known = fit.model.kernel.knows_diag and not np.ndim(fit.lam)
            made = fit._sure() if known else None, fit._jackknife()
            factor = replace(solution.factor, rows=Gone(solution.factor.dtype))  # type: ignore[type-var]
            solution = replace(solution, factor=factor)
        return replace(self, problem=None, solution=solution, made=made)

    def at(self, fit: Fit, lam) -> Fit:
        """The fit at another λ."""
        problem, t = self.problem, fit.model.coef.shape[1:]
        if problem is None:
            raise ValueError(
                "another λ needs the data, which are gone after update and save: fit to all rows anew"
            )
        lam = np.asarray(lam, fit.model.coef.dtype)
        if lam.shape not in ((), t):
            raise ValueError(
                f"lam must be one number, or one for each target, and has shape {lam.shape}"
            )
        check_lams(lam, "lam")
        made = in_dtype_of(fit, lambda: fit_at(problem, self.solution, lam))
        return replace(made, kept=self)

    def sure(self, fit: Fit) -> Sure:
        """What variances at the fit's λ take."""
        if np.ndim(fit.lam):
            raise ValueError("variances are for one λ, and this fit chose one for each target")
        if not fit.model.kernel.knows_diag:
            raise ValueError(
                "variances need k(x, x) of new rows, which a kernel matrix cannot tell: give a kernel"
            )
        if self.made[0] is not None:
            return self.made[0]
        return in_dtype_of(
            fit, lambda: _sure(self.solution, jnp.asarray(fit.lam), fit.loo_residuals)
        )

    def jackknife(self, fit: Fit) -> Jackknife:
        """What intervals take: every fit at these λ that leaves a row, or a group, out."""
        if fit.loo_residuals is None:
            raise ValueError(
                "what each row leaves out is not known any more, as rows were changed: fit to all rows "
                "anew"
            )
        if self.made[1] is not None:
            return self.made[1]
        data = self.solution, self.groups
        found = lambda: _jackknife(*data, jnp.asarray(fit.lam), jnp.asarray(fit.loo_residuals))
        return in_dtype_of(fit, found)

    def summed(self) -> Summed:
        """Moments of the rows."""
        summed, problem = self.solution.summed, self.problem
        if summed is not None:
            return summed
        if problem is None or not _is_explicit(problem):
            raise ValueError(
                "rows are added to sums over features or landmarks, and this fit is one of K of all "
                "rows: fit with landmarks= to update it, or fit to all rows anew"
            )
        data = self.solution.labels, problem.weights, problem.fixed
        return _features(problem.kernel, problem.rows, *data)

    def changed(
        self, fit: Fit, X, Y, weights, fixed_effects, *, sign: int, block_size: int | None = None
    ) -> Fit:
        """The fit with further rows, or for a negative `sign` without some."""
        dtype = fit.model.coef.dtype
        wide = dtype == jnp.float64
        with scope(wide):
            summed = fit._once("_moments", lambda _: self.summed())
            flat = fit.model.coef.ndim == 1
            rows, Y, v = _read(summed, flat, X, Y, weights, dtype)
            fixed = summed.fixed
            given = fixed.new_rows(fixed_effects, rows.shape[0], dtype)
            if given is not None:
                fixed = replace(fixed, rows=rows.column(given))
            more = _summed(summed, rows, fixed, Y, v, block_size=block_size)
            lam = jnp.asarray(fit.lam)
            found, possible, lost = _changed(summed, self.again, more, lam, sign=sign, flat=flat)
            if sign < 0 and is_concrete(possible) and not bool(possible):
                raise ValueError(
                    "X and Y cannot be given up: what they leave is no sum of rows, as they hold all "
                    "of the weight, or were not among the rows that were fitted, with these labels "
                    "and weights"
                )
            found, solution = found
            kept = Kept(None, solution, None, self.again, self.saved)
            how = {"criterion": fit.criterion, "num_landmarks": fit.num_landmarks, "kept": kept}
            result = replace(found, **how)
            if is_concrete(result):
                _inspect(result, self.again.lams is None, float(lost))
            return to_host(result) if wide and not isinstance(fit.model.coef, jax.Array) else result


_features = compiled(summed_features)


def _is_explicit(problem: Problem, fewer: bool = False) -> bool:
    """Whether it is one of explicit features, and of fewer than rows where that is asked."""
    count = problem.kernel.num_features(problem.rows.shape[1], problem.rows.dtype)
    return count is not None and not (fewer and count > problem.rows.shape[0])


def in_dtype_of(fit: Fit, find) -> Any:
    """What is found in the precision of a fit, on the host where that is."""
    coef = fit.model.coef
    wide = coef.dtype == jnp.float64
    with scope(wide):
        found = find()
        return to_host(found) if wide and not isinstance(coef, jax.Array) else found


@compiled
def _sure(solution: Solution, lam, left_out) -> Sure:
    factor, drop, at = solution.factor, solution.labels.drop_axis, lam.reshape(1, 1)
    by_loo = None
    if left_out is not None:
        r, e = solution.training_residuals(at)[0], jnp.asarray(left_out).reshape(factor.n, -1)
        squares = jnp.sum(factor.weights.scale(e) * r, axis=0) / lam / factor.weights.count
        by_loo = drop(safe_sqrt(squares))
    return Sure(lam, drop(by_evidence(solution, lam)), by_loo, factor.spread(lam))


@compiled
def _jackknife(solution: Solution, groups: Folds | None, lam, left_out) -> Jackknife:
    """From the residuals left out."""
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


def _read(summed: Summed, flat: bool, X, Y, weights, dtype) -> tuple[Rows, Array, Weights]:
    """Rows, labels and weights, checked as those of a fit are."""
    kernel, m = summed.of.kernel, summed.moments
    if not kernel.evaluable or isinstance(kernel, KernelValues):
        raise ValueError("a fit to a kernel matrix takes no further rows: give a kernel and rows")
    rows = as_rows_in(dtype, kernel, X)
    if rows.dtype != dtype:
        raise ValueError(
            f"X must have dtype {dtype}, in which the moments are, and has {rows.dtype}"
        )
    summed.of.check_width(rows.shape[1], m.second.shape[0])
    rows.check(kernel, training=False)
    Y = rows.column(as_floats("Y", labels_of(rows, Y), dtype))
    expected = (rows.shape[0],) if flat else (rows.shape[0], m.cross.shape[1])
    if Y.shape != expected:
        raise ValueError(
            f"Y must have shape {expected}, one row for each of X and as many columns as before, "
            f"and has shape {Y.shape}"
        )
    check_range("Y", Y)
    return rows, Y.reshape(len(Y), -1), Weights.of_rows(weights, rows)


@compiled
def _summed(summed, rows: Rows, fixed, Y, weights: Weights, *, block_size) -> Moments:
    return summed.moments_of(rows, fixed, Y, weights, block_size)


@partial(jax.jit, static_argnames=("sign", "flat"))
def _changed(
    summed: Summed, again: Again, more: Moments, lam, *, sign: int, flat: bool
) -> tuple[tuple[Fit, Solution], Bool[Array, ""], Float[Array, ""]]:
    """The fit and its solution, whether there may be such rows, and by how much rounding has
    grown.
    """
    summed, kernel = summed.changed(more, sign), again.kernel
    solution = summed.solution(flat)
    factor, drop = solution.factor, solution.labels.drop_axis
    lams = errors = error = None
    if again.criterion is not None:
        lams = (
            lambda_grid(factor, again.num) if again.lams is None else factor.with_floor(again.lams)
        )
        errors = again.criterion.errors(solution, lams, kernel)
        lam, error = choose_lam(lams, errors, again.per_target)
    at, report = lam.reshape(1, -1), factor.report
    found, moved = jax.tree.map(lambda part: part[0], solution.coefficients(at)), None
    if report.ridge is not None:
        norms = jnp.sqrt(solution.residual_norm(at)[0])  # what is left out is larger, and not known
        moved = ridge_effect(gram(kernel, factor.points), report.ridge, found.coef, at[0], norms)
    coef, intercept, free = jax.tree.map(drop, found)
    points, coef = factor.expansion.compact(kernel, coef)
    effects = None if free is None else factor.fixed.lean()
    fit: Fit = Fit(
        model=Model(kernel, points, coef, intercept, free, effects),
        lams=lams,
        errors=errors,
        lam=lam,
        error=error,
        loo_residuals=None,
        dof=solution.dof(at).reshape(lam.shape),
        floor=report.floor,
        indefinite=report.indefinite,
        route=report.route,
        criterion="",
        plan="sums over rows that were added or given up",
        trace_residual=report.trace_residual,
        ridge_effect=moved,
    )
    return (fit, replace(solution, summed=summed)), summed.possible(), summed.lost(lam)


def _inspect(fit: Fit, default_grid: bool, lost: float) -> None:
    """Say what rounding has done, and what there is to say of λ."""
    eps = float(np.finfo(fit.model.coef.dtype).eps)
    if lost > eps**TELL:
        left, whole = max(0, int(-np.log10(eps * lost))), int(-np.log10(eps))
        warn(
            f"the sums over rows were {lost:.1g} times as large as they are now, so that some {left} of {whole} digits are left: fit anew to the "
            "rows that stay",
            6,
        )
    inspect_ridge(fit)
    inspect_lam(fit, default_grid)
