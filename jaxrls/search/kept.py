"""A fit to rows that change: what is kept beside it, and the fit that moments make when rows have
come or gone.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.factors.contract import Solution
from jaxrls.factors.summed import Gone, Summed, summed_features
from jaxrls.inference.fitted import Fit
from jaxrls.inference.intervals import Jackknife
from jaxrls.inference.posterior import GaussianProcess, process_at
from jaxrls.kernels.given import KernelValues
from jaxrls.kernels.kernel import Kernel
from jaxrls.leave_out.without import Without
from jaxrls.problem.fixed_effects import FixedEffects
from jaxrls.problem.folds import Folds
from jaxrls.rows.compiled import compiled
from jaxrls.rows.moments import Moments
from jaxrls.rows.sparse import as_rows
from jaxrls.search.conclude import conclude, fit_at, inspect_fit, warn
from jaxrls.search.grid import Choice
from jaxrls.search.problem import Problem
from jaxrls.support.checks import check_lams, is_concrete
from jaxrls.support.pytrees import arrays_alone, pytree, static

KEPT_ROWS = 2000  # a fit to no more of them keeps its solution unless told otherwise
# The share of the digits, as a power of eps, whose loss is told.
TELL = -1 / 3


def keeps(problem: Problem, keep: bool | None) -> bool:
    """Whether a fit keeps its solution: as was asked, or where rows are few and known."""
    few = problem.rows.shape[0] <= KEPT_ROWS and is_concrete(problem.weights, problem.Y)
    return few if keep is None else keep


@pytree
class Kept:
    """The solution that a fit keeps, from which all that is asked of it afterwards comes.

    `problem` is None after `save`, and where the rows have changed since, of which `solution` has
    moments alone. `choice` is how λ is chosen again, None where moments do not tell.
    """

    problem: Problem | None
    solution: Solution
    groups: Folds | None
    choice: Choice | None
    saved: bool = static(default=True)  # whether `save` writes it
    # What was made of rows that only the host reads, before `save` let go of them.
    made: tuple[GaussianProcess | None, Jackknife | None] = (None, None)

    def for_file(self, fit: Fit) -> "Kept":
        """What `save` writes: all but the problem, and rows that only the host reads, of which it
        is what variances and intervals take.
        """
        solution, problem, made = self.solution, self.problem, self.made
        if problem is not None and (_features(problem) or np.inf) <= problem.rows.shape[0]:
            solution = replace(solution, summed=fit.of_kept("summed"))
        if not arrays_alone(solution):
            known = fit.model.kernel.knows_diag and not np.ndim(fit.lam)
            made = fit.of_kept("process") if known else None, fit.of_kept("jackknife")
            factor = replace(solution.factor, rows=Gone(solution.factor.dtype))  # type: ignore[type-var]
            solution = replace(solution, factor=factor)
        return replace(self, problem=None, solution=solution, made=made)

    def at(self, fit: Fit, lam) -> Fit:
        """The fit at another λ."""
        problem, coef = self.problem, fit.model.coef
        if problem is None:
            raise ValueError(
                "another λ needs the data, which are gone after update and save: fit to all rows "
                "anew"
            )
        lam = np.asarray(lam, coef.dtype)
        if lam.shape not in ((), coef.shape[1:]):
            raise ValueError(
                f"lam must be one number, or one for each target, and has shape {lam.shape}"
            )
        check_lams(lam, "lam")
        return replace(fit_at(problem, self.solution, lam), kept=self)

    def process(self, fit: Fit) -> GaussianProcess:
        """What variances at the fit's λ take."""
        if np.ndim(fit.lam):
            raise ValueError("variances are for one λ, and this fit chose one for each target")
        if not fit.model.kernel.knows_diag:
            raise ValueError(
                "variances need k(x, x) of new rows, which a kernel matrix cannot tell: give a kernel"
            )
        return self.made[0] or process_at(self.solution, jnp.asarray(fit.lam), fit.loo_residuals)

    def jackknife(self, fit: Fit) -> Jackknife:
        """What intervals take: every fit at these λ that leaves a row, or a group, out."""
        if fit.loo_residuals is None:
            raise ValueError(
                "what each row leaves out is not known any more, as rows were changed: fit to all "
                "rows anew"
            )
        given = self.solution, self.groups
        chosen = map(jnp.asarray, (fit.lam, fit.loo_residuals))
        return self.made[1] or _jackknife(*given, *chosen)

    def summed(self, fit: Fit | None = None) -> Summed:
        """Moments of the rows."""
        del fit
        problem, solution = self.problem, self.solution
        if solution.summed is not None:
            return solution.summed
        if problem is None or _features(problem) is None:
            raise ValueError(
                "rows are added to sums over features or landmarks, and this fit is one of K of all "
                "rows: fit with landmarks= to update it, or fit to all rows anew"
            )
        data = problem.rows, solution.labels, problem.weights, problem.fixed
        return _summed_features(problem.kernel, *data)

    def changed(
        self, fit: Fit, X, Y, weights, fixed_effects, block_size: int | None, sign: int
    ) -> Fit:
        """The fit with further rows, or for a negative `sign` without some."""
        kernel, dtype = fit.model.kernel, fit.model.coef.dtype

        summed, flat = fit.of_kept("summed"), fit.model.coef.ndim == 1
        new, fixed = _read(summed, flat, X, Y, weights, dtype), summed.fixed
        given = fixed.new_rows(fixed_effects, new.rows.shape[0], dtype)
        if given is not None:
            fixed = replace(fixed, rows=new.rows.column(given))
        more = _moments(summed, fixed, new, block_size=block_size)
        data = kernel, summed, more, self.choice, jnp.asarray(fit.lam)
        found, solution, possible, lost = _changed(*data, sign=sign, flat=flat)
        known = is_concrete(found)
        if known and sign < 0 and not possible:
            raise ValueError(
                "X and Y cannot be given up: what they leave is no sum of rows, as they hold "
                "all of the weight, or were not among the rows that were fitted, with these "
                "labels and weights"
            )
        kept = Kept(None, solution, None, self.choice, self.saved)
        found = replace(found, criterion=fit.criterion, kept=kept)
        if known:
            _inspect_digits(float(lost), dtype)
            inspect_fit(found, self.choice is not None and self.choice.lams is None)
        return found


def beside(fit: Fit, solution, problem: Problem, choice: Choice | None, keep: bool | None) -> Fit:
    """The fit with its solution, where it keeps that."""
    if not keeps(problem, keep):
        return fit
    choice = choice if problem.criterion.of_sums else None
    kept = Kept(problem, solution, problem.criterion.groups, choice, bool(keep))
    return replace(fit, kept=kept)


def _features(problem: Problem) -> int | None:
    """How many explicit features there are."""
    return problem.kernel.num_features(problem.rows.shape[1], problem.rows.dtype)


_summed_features = compiled(summed_features)


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


def _read(summed: Summed, flat: bool, X, Y, weights, dtype) -> Problem:
    """Rows, labels and weights, checked as those of a fit are."""
    kernel, m = summed.of.kernel, summed.moments
    if not kernel.evaluable or isinstance(kernel, KernelValues):
        raise ValueError("a fit to a kernel matrix takes no further rows: give a kernel and rows")
    rows = as_rows(kernel, X, dtype=dtype)
    if rows.dtype != dtype:
        raise ValueError(f"X must have dtype {dtype}, that of the moments, and has {rows.dtype}")
    summed.of.check_width(rows.shape[1], m.second.shape[0])
    new = Problem.of(kernel, rows, Y, weights=weights, intercept=False)
    expected = (rows.shape[0],) if flat else (rows.shape[0], m.cross.shape[1])
    if new.Y.shape != expected:
        raise ValueError(
            f"Y must have shape {expected}, one row for each of X and as many columns as before, "
            f"and has shape {new.Y.shape}"
        )
    return new


@compiled
def _moments(summed: Summed, fixed: FixedEffects, new: Problem, *, block_size) -> Moments:
    Y = new.Y.reshape(len(new.Y), -1)
    return summed.moments_of(new.rows, fixed, Y, new.weights, block_size)


@partial(jax.jit, static_argnames=("sign", "flat"))
def _changed(
    kernel: Kernel, summed: Summed, more: Moments, choice: Choice | None, lam, *, sign, flat
) -> tuple[Fit, Solution, Bool[Array, ""], Float[Array, ""]]:
    """The fit and its solution, whether there may be such rows, and by how much rounding has
    grown.
    """
    summed = summed.changed(more, sign)
    solution = replace(summed.solution(flat), summed=summed)
    table, chosen = (None, None), (lam, None)
    if choice is not None:
        table, chosen = choice.of(solution, kernel)
    words = "sums over rows that were added or given up"
    fit = conclude(kernel, solution, table, chosen, None, plan=words)
    return fit, solution, summed.possible(), summed.lost(chosen[0])


def _inspect_digits(lost: float, dtype) -> None:
    """Say what rounding has done."""
    eps = float(np.finfo(dtype).eps)
    if lost > eps**TELL:
        left, whole = max(0, int(-np.log10(eps * lost))), int(-np.log10(eps))
        warn(
            f"the sums over rows were {lost:.1g} times as large as they are now, so that some "
            f"{left} of {whole} digits are left: fit anew to the rows that stay"
        )
