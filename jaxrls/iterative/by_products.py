"""Define `ByProducts`, the base class of factors that solve by conjugate gradients.

Fitted values are accurate to a share of the residuals of the fit. The leave-one-out error is an
estimate. It comes from probes, which are vectors of random signs. The iteration solves for probes
and labels together.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Folds, kernel_times
from jaxrls.core.factors import (
    Factor,
    HeldOut,
    Outcome,
    PerLam,
    PerRow,
    PerTarget,
    Solution,
    Summand,
)
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number
from jaxrls.iterative.conjugate import Run, conjugate_gradients
from jaxrls.iterative.leverages import LeveragesByProbes, leverages_from_probes

# If fitted values are off by more than this share of the residuals, results are NaN.
USELESS = 0.5


class ByProducts(Factor):
    """A factor whose every λ costs some tens of products with a kernel matrix."""

    exact: ClassVar[bool] = False
    kernel: Kernel
    signs: Any  # the signs of the probes, (n, p)
    iteration: Any  # an `Iterative`
    block_size: Any
    begin: Any  # the columns with which an iteration begins; None for 0

    @abstractmethod
    def iterate(
        self, lam: Number, B: Float[Array, "n k"], signs: Float[Array, "n p"]
    ) -> "Iterated":
        """Compute the fits to the columns B at λ."""

    def times_kernel(self, V: Float[Array, "c k"]) -> Float[Array, "n k"]:
        """Compute the values of f at the rows, for columns V of coefficients."""
        return kernel_times(self.kernel, self.data.rows, self.points, V, self.block_size)

    def narrow_solver(self) -> Any:
        """Return the solver of the same problem by products in float32; None if there is none."""
        return None

    @property
    def has_residuals(self) -> bool:
        """Whether there are probes, without which held-out residuals cannot be estimated."""
        return self.signs.shape[1] > 0

    def trace(self) -> Number:
        """Compute Σ vᵢ Kᵢᵢ, an upper bound of the trace."""
        return jnp.sum(self.weights.array * self.kernel.diag(self.data.rows.points))

    def conjugate_gradients(
        self, apply: Callable, B: Float[Array, "m k"], precondition: Callable, measure: Callable
    ) -> tuple[Float[Array, "m k"], Run]:
        """Call `conjugate_gradients` with the tolerance, steps and start of this factor.

        Columns whose fitted values are too far off to be of use are NaN. `begin` is used only if it
        has the shape of B.
        """
        stop: dict = {"tol": self.iteration.tol, "steps": self.iteration.steps}
        known = self.begin is not None and self.begin.shape == B.shape
        begin = self.begin if known else None
        X, run = conjugate_gradients(apply, B, precondition, begin, measure=measure, **stop)
        return jnp.where(run.residuals <= USELESS, X, jnp.nan), run

    def zero_columns(self, solution: Solution) -> Float[Array, "c k"]:
        """Return columns of 0 for targets and probes, to begin an iteration if none are known."""
        count = solution.state.shape[1] + self.signs.shape[1]
        return jnp.zeros((self.points.shape[0], count), self.dtype)

    def solved(self, solution: Solution, lams: PerLam, signs: Float[Array, "n p"]) -> "Solved":
        """Compute the results for each λ (L, k), one after another, with probes of these signs."""
        return solution.at_each(lams, partial(self.solved_at, signs))

    def solved_at(self, signs: Float[Array, "n p"], lam: Number, solution: Solution) -> "Solved":
        """Compute the results at one λ for all targets, by one iteration for labels and probes."""
        Y = solution.state
        t = Y.shape[1]
        fits = self.iterate(lam, jnp.concatenate([Y, signs], axis=1), signs)
        coef = fits.coef[:, :t]
        r = fits.residuals[:, :t]
        run = jax.tree.map(lambda a: a[..., None], fits.run)
        if not signs.shape[1]:
            return Solved(coef=coef, residuals=r, run=run)
        by_probes = self.leverages(fits, signs, r)
        used = self.weights.used
        held_out = lambda of: self.weights.unscale(r / of.R[:, None] * of.growth)
        return Solved(
            coef=coef,
            residuals=r,
            run=run,
            dof=jnp.sum(jnp.where(used, 1 - by_probes.all.R, 0))[None],
            held_out=held_out(by_probes.all),
            held_out_without_each=jax.vmap(held_out)(by_probes.without_each),
            columns=fits.columns,
        )

    def leverages(
        self, fits: "Iterated", signs: Float[Array, "n p"], r: Float[Array, "n t"]
    ) -> LeveragesByProbes:
        """Estimate leverages from the fits to probes of these signs; r are the residuals of labels.

        Products of signs and their residuals have the diagonal of R as their mean.
        """
        n, p = signs.shape
        residuals_of_signs = fits.residuals[:, r.shape[1] :]
        probes = signs * residuals_of_signs
        diagonal = fits.approximate_diagonal
        if diagonal is None:
            # The mean square q of the fits Hg to signs g is (H²)ᵢᵢ on average: the leverage, but
            # for what λ takes. 1/(1 + q) is 1 − q to first order. It stays above 0 also where few
            # probes make q larger than 1. Only its order, and its ratios within a group of rows,
            # count.
            diagonal = 1 / (1 + jnp.mean((signs - residuals_of_signs) ** 2, axis=1))
        if fits.approximate_times_signs is not None and p < n:
            # A control variate: the diagonal of the approximation, less its estimate.
            probes = probes - signs * fits.approximate_times_signs + diagonal[:, None]
        return leverages_from_probes(probes, diagonal, r, self.weights.used)

    def without_probes(self, solution: Solution, lams: PerLam) -> "Solved":
        """Compute the results without probes: the fit alone."""
        return self.solved(solution, lams, self.signs[:, :0])

    def coef_and_beta(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """Return the coefficients of f, and β, the fit of y − f by the fixed effects."""
        coef = self.without_probes(solution, lams).coef
        return coef, self.beta_and_values(solution, coef)[0]

    def beta_and_values(
        self, solution: Solution, coef: Float[Array, "L c t"]
    ) -> tuple[Float[Array, "L q t"], Float[Array, "L n t"]]:
        """Return β and the values of f at the rows, without β, for the coefficients at each λ."""
        flat = jnp.moveaxis(coef, 0, 1).reshape(coef.shape[1], -1)
        fitted = self.times_kernel(flat).reshape(self.n, len(coef), coef.shape[2])
        fitted = jnp.moveaxis(fitted, 1, 0)
        beta = solution.labels.beta - jax.vmap(partial(self.fixed.fit, self.weights))(fitted)
        return beta, fitted

    def residual_norm(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute ‖r‖²."""
        return jnp.sum(self.without_probes(solution, lams).residuals ** 2, axis=1)

    def data_fit(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute ỹᵀ r/λ."""
        r = self.without_probes(solution, lams).residuals
        return jnp.sum(solution.state * r, axis=1) / lams

    def residual_dof(self, solution: Solution, lams: PerLam) -> PerLam:
        """Estimate Σ Rᵢᵢ."""
        return self.weights.count - self.estimated(solution, lams, None).dof

    def sum_held_out(
        self, solution: Solution, lams: PerLam, summand: Summand, folds: Folds | None
    ) -> Any:
        """Estimate the sum over single rows that are held out."""
        return self.estimated(solution, lams, folds, summand).held_out_sum

    def held_out_residuals(self, solution: Solution, lams: PerLam, folds: Folds | None) -> PerRow:
        """Estimate the held-out residual of every row."""
        return jnp.moveaxis(self.estimated(solution, lams, folds).held_out, 0, 1)

    def estimated(
        self,
        solution: Solution,
        lams: PerLam,
        folds: Folds | None,
        summand: Summand | None = None,
    ) -> Outcome:
        """Return the `Outcome`, or raise if there are no probes to estimate held-out residuals."""
        if folds is None and not self.has_residuals:
            raise ValueError(
                "leave-one-out needs probes, and the solver has probes=0: give probes=32, a "
                "single λ as lams=, or criterion=holdout(X, Y)"
            )
        return self.outcome(solution, lams, folds, summand)

    def outcome(
        self, solution: Solution, lams: PerLam, folds: Folds | None, summand: Summand | None
    ) -> Outcome:
        """Return all results from one iteration.

        Without probes, the results that need them are None.
        """
        if folds is not None:
            raise ValueError(self.refusal("does not support leaving groups or pairs out"))
        solved = self.solved(solution, lams, self.signs)
        beta, fitted = self.beta_and_values(solution, solved.coef)
        run = in_one_row(solved.run)
        if not self.has_residuals:
            return Outcome(solved.coef, beta, None, None, run=run)
        e = solved.held_out
        if self.weights.values is not None:
            fitted = fitted + jax.vmap(partial(self.fixed.fitted, self.fixed.values))(beta)
            e = jnp.where(self.weights.used[:, None], e, solution.labels.Y - fitted)
        total = error = None
        if summand is not None:
            total, error = sum_and_error(solution, solved, summand, lams)
        return Outcome(solved.coef, beta, e, solved.dof, total, error, run)

    def _refuse(self, *asked, **how):
        """Raise, because the result would need entries of an inverse.

        `outcome` estimates only the diagonal of this inverse.
        """
        raise ValueError(self.refusal("has no determinant, exact leverages or intervals"))

    logdet = sweep = _refuse


class Iterated(NamedTuple):
    """Fits to columns B (n, k) by one iteration.

    If a matrix is known that approximates R, the last two fields are of this matrix.
    """

    columns: Float[Array, "c k"]  # what was solved for
    coef: Float[Array, "c k"]
    residuals: Float[Array, "n k"]  # R B
    run: Run
    approximate_diagonal: Float[Array, " n"] | None = None
    approximate_times_signs: Float[Array, "n p"] | None = None


class Solved(NamedTuple):
    """Results of iterations, with a leading axis of λ.

    Without probes the fields from `dof` on are None.
    """

    coef: Any  # (L, c, t)
    residuals: Any  # √v (y − f), (L, n, t)
    run: Run
    dof: Any = None  # degrees of freedom, (L, k)
    held_out: Any = None  # held-out residuals, (L, n, t)
    held_out_without_each: Any = None  # those without each of the p probes, (L, p, n, t)
    columns: Any = None  # what was solved for: targets and probes, (L, c, t + p)


def in_one_row(run: Run) -> Run:
    """Return a run whose columns are those of all λ and targets, in one axis.

    The fields of the given run have shape (L, …, columns, targets).
    """
    history = jnp.moveaxis(run.history, 0, 1)
    history = history.reshape(len(history), -1)
    return Run(run.residuals.ravel(), history, jnp.max(run.steps), run.reason.ravel())


def sum_and_error(
    solution: Solution, solved: Solved, summand: Summand, lams: PerLam
) -> tuple[Any, Any]:
    """Sum `summand` over held-out rows for each λ, and estimate the standard error of the sum.

    The standard error, (L, k), comes from the jackknife over probes. If targets share λ, it is that
    of the mean of their sums. As all targets have the same probes, this is neither the mean of their
    standard errors nor what independent sums would have.
    """
    labels = solution.labels.Y
    v = solution.factor.weights.array
    total = jax.vmap(lambda e: summand(HeldOut(e, None, labels, v)))
    of_all = total(solved.held_out)
    held_out = jnp.moveaxis(solved.held_out_without_each, 1, 0)
    p = max(len(held_out), 1)

    def error(of_all: Float[Array, "L t"], each: Float[Array, "p L t"]) -> Float[Array, "L k"]:
        off = each - of_all
        if lams.shape[1] == 1:
            off = jnp.mean(off, axis=-1, keepdims=True)
        return jnp.sqrt((p - 1) / p * jnp.sum(off**2, axis=0))

    # With as many probes as rows the sum is exact, and no probe is left out. JAX runs no loop
    # without steps outside of compiled programs.
    without_each = jax.lax.map(total, held_out) if len(held_out) else jax.vmap(total)(held_out)
    return of_all, jax.tree.map(error, of_all, without_each)
