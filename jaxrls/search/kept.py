"""A fit to rows that change: what is kept beside it, and the fit that moments make when rows have
come or gone.
"""

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.criteria.criterion import Criterion
from jaxrls.factors.summed import Summed
from jaxrls.models.fitted import Fit
from jaxrls.models.model import Model
from jaxrls.models.posterior import Sure, by_evidence
from jaxrls.problem.landmarks import ridge_effect
from jaxrls.problem.weights import Weights
from jaxrls.rows.gram import gram
from jaxrls.rows.moments import Moments
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import as_rows_in
from jaxrls.search.grid import choose_lam, lambda_grid
from jaxrls.search.inspection import inspect_lam, inspect_ridge, warn
from jaxrls.search.problem import Problem, labels_of
from jaxrls.support.checks import as_floats, check_range, is_concrete
from jaxrls.support.precision import scope, to_host
from jaxrls.support.pytrees import pytree, static

# The share of the digits, as a power of eps, whose loss is told.
TELL = -1 / 3


@pytree
class Kept:
    """Moments of the rows of a fit, and how λ is chosen again, where that takes moments alone."""

    summed: Summed
    criterion: Criterion | None  # None where λ stays
    lams: Float[Array | np.ndarray, "L *#t"] | None
    num: int = static()
    per_target: bool = static()
    flat: bool = static()
    variance: bool = static()

    @classmethod
    def of(cls, problem: Problem, summed: Summed, *, lams, num: int, per_target: bool) -> "Kept":
        """Beside a fit to a problem."""
        again = problem.criterion.of_sums and not isinstance(lams, str)
        criterion, lams = (problem.criterion, lams) if again else (None, None)
        return cls(
            summed,
            criterion,
            lams,
            num,
            per_target,
            problem.Y.ndim == 1,
            problem.keep_variance,
        )

    def changed(
        self, fit: Fit, X, Y, weights, fixed_effects, *, sign: int, block_size: int | None = None
    ) -> Fit:
        """The fit with further rows, or for a negative `sign` without some."""
        dtype = fit.model.coef.dtype
        wide = dtype == jnp.float64
        with scope(wide):
            rows, Y, v = self._read(X, Y, weights, dtype)
            fixed = self.summed.fixed
            given = fixed.new_rows(fixed_effects, rows.shape[0], dtype)
            if given is not None:
                fixed = replace(fixed, rows=rows.column(given))  # type: ignore[type-var]
            add: Any = _summed if rows.traceable else inspect.unwrap(_summed)
            more = add(self.summed, rows, fixed, Y, v, block_size=block_size)
            found, possible, lost = _changed(self, more, jnp.asarray(fit.lam), sign=sign)
            if sign < 0 and is_concrete(possible) and not bool(possible):
                raise ValueError(
                    "X and Y cannot be given up: what they leave is no sum of rows, as they hold all of the weight, or were not among the "
                    "rows that were fitted, with these labels and weights"
                )
            if is_concrete(found):
                _inspect(found, self.lams is None, float(lost))
            result = self._named(fit, found)
            return to_host(result) if wide and not isinstance(fit.model.coef, jax.Array) else result

    def _read(self, X, Y, weights, dtype) -> tuple[Rows, Array, Weights]:
        """Rows, labels and weights, checked as those of a fit are."""
        kernel, m = self.summed.of.kernel, self.summed.moments
        rows = as_rows_in(dtype, kernel, X)
        if rows.dtype != dtype:
            raise ValueError(
                f"X must have dtype {dtype}, in which the moments are, and has {rows.dtype}"
            )
        self.summed.of.check_width(rows.shape[1], m.second.shape[0])
        rows.check(kernel, training=False)
        Y = rows.column(as_floats("Y", labels_of(rows, Y), dtype))
        expected = (rows.shape[0],) if self.flat else (rows.shape[0], m.cross.shape[1])
        if Y.shape != expected:
            raise ValueError(
                f"Y must have shape {expected}, one row for each of X and as many columns as before, and has shape {Y.shape}"
            )
        check_range("Y", Y)
        return rows, Y.reshape(len(Y), -1), Weights.of_rows(weights, rows)

    def _named(self, fit: Fit, found: Fit) -> Fit:
        """With what stays as it was."""
        return replace(found, criterion=fit.criterion, num_landmarks=fit.num_landmarks)


@partial(jax.jit, static_argnames="block_size")
def _summed(summed, rows: Rows, fixed, Y, weights: Weights, *, block_size) -> Moments:
    return summed.moments_of(rows, fixed, Y, weights, block_size)


@partial(jax.jit, static_argnames="sign")
def _changed(
    kept: Kept, more: Moments, lam, *, sign: int
) -> tuple[Fit, Bool[Array, ""], Float[Array, ""]]:
    """The fit, whether there may be such rows, and by how much rounding has grown."""
    kept = replace(kept, summed=kept.summed.changed(more, sign))
    summed, kernel = kept.summed, kept.summed.of.kernel
    solution = summed.solution(kept.flat)
    factor, drop = solution.factor, solution.labels.drop_axis
    lams = errors = error = None
    if kept.criterion is not None:
        lams = lambda_grid(factor, kept.num) if kept.lams is None else factor.with_floor(kept.lams)
        errors = kept.criterion.errors(solution, lams, kernel)
        lam, error = choose_lam(lams, errors, kept.per_target)
    at = lam.reshape(1, -1)
    found = solution.coefficients(at)
    effect = None
    if factor.report.ridge is not None:
        norms = jnp.sqrt(solution.residual_norm(at)[0])  # what is left out is larger, and not known
        effect = ridge_effect(
            gram(kernel, factor.points), factor.report.ridge, found.coef[0], at[0], norms
        )
    coef, intercept, free = jax.tree.map(lambda part: drop(part[0]), found)
    points, coef = factor.expansion.compact(kernel, coef)
    dof, report = solution.dof(at).reshape(lam.shape), factor.report
    model, how = (
        Model(kernel, points, coef, intercept, free, None if free is None else factor.fixed.lean()),
        (report.floor, report.indefinite, report.route, ""),
    )
    sure = None
    if kept.variance:
        sure = Sure(lam, drop(by_evidence(solution, lam)), None, factor.spread(lam))
    fit = Fit(
        model,
        lams,
        errors,
        lam,
        error,
        None,
        dof,
        *how,
        trace_residual=report.trace_residual,
        kept=kept,
        sure=sure,
        ridge_effect=effect,
    )
    return fit, summed.possible(), summed.lost(lam)


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
