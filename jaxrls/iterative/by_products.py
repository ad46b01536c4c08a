"""What factors by conjugate gradients have in common: predictions are accurate to a share of the
residuals of the fit, and the leave-one-out error is an estimate, from random vectors that are
solved for together with the labels."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import kernel_times
from jaxrls.core.factors import Factor, Outcome
from jaxrls.core.kernels import Kernel
from jaxrls.iterative.conjugate import Run, conjugate_gradients
from jaxrls.iterative.leverages import leverages_from_probes

# Where fitted values are off by more than this share of the residuals, what follows is NaN.
USELESS = 0.5


class ByProducts(Factor):
    """A factor whose every λ costs some tens of products with a kernel matrix."""

    exact: ClassVar[bool] = False
    kernel: Kernel
    signs: Any  # of the probes, (n, p)
    iteration: Any  # an `Iterative`
    block_size: Any
    begin: Any  # with which columns an iteration begins, or None

    @abstractmethod
    def iterate(self, lam, B: Float[Array, "n k"], signs: Float[Array, "n p"]) -> "Iterated":
        """The fits to columns B at λ."""

    def times_kernel(self, V: Float[Array, "c k"]) -> Float[Array, "n k"]:
        """Values of f with the coefficients V at the rows."""
        return kernel_times(self.kernel, self.data.rows, self.points, V, self.block_size)

    @property
    def has_residuals(self):
        """Whether there are probes."""
        return self.signs.shape[1] > 0

    def trace(self):
        """Σ vᵢ Kᵢᵢ, an upper bound."""
        return jnp.sum(self.weights.array * self.kernel.diag(self.data.rows.points))

    def conjugate_gradients(self, apply: Callable, B, precondition: Callable, measure: Callable):
        """What `conjugate_gradients` finds as the caller wants it, NaN where fitted values are too
        far off to be of use.
        """
        stop: dict = {"tol": self.iteration.tol, "steps": self.iteration.steps}
        known = self.begin is not None and self.begin.shape == B.shape
        begin = self.begin if known else None
        X, run = conjugate_gradients(apply, B, precondition, begin, measure=measure, **stop)
        return jnp.where(run.residuals <= USELESS, X, jnp.nan), run

    def nothing(self, solution) -> Float[Array, "c k"]:
        """Columns for targets and probes with which an iteration begins where none are known."""
        count = solution.state.shape[1] + self.signs.shape[1]
        return jnp.zeros((self.points.shape[0], count), self.dtype)

    def solved(self, solution, lams, signs) -> "Solved":
        """Everything at λ (L, k), one iteration after another, with probes of these signs."""
        return solution.at_each(lams, partial(self.solved_at, signs))

    def solved_at(self, signs, lam, solution) -> "Solved":
        """Everything at one λ for all targets."""
        Y = solution.state
        n, p = signs.shape
        fits = self.iterate(lam, jnp.concatenate([Y, signs], axis=1), signs)
        run = jax.tree.map(lambda a: a[..., None], fits.run)
        coef = fits.coef[:, : Y.shape[1]]
        r, drawn = jnp.split(fits.residuals, [Y.shape[1]], axis=1)
        if not p:
            return Solved(coef, r, run)
        # Squares of fits to signs are leverages, but for what λ takes.
        near = fits.near
        probes = signs * drawn
        if near is None:
            near = 1 / (1 + jnp.mean((signs - drawn) ** 2, axis=1))
        if fits.rough is not None and p < n:
            probes = probes - signs * fits.rough + near[:, None]
        used = self.weights.used
        unscale = self.weights.unscale
        R, growth = leverages_from_probes(probes, near, r, used)
        e = jax.vmap(lambda R, growth: unscale(r / R[:, None] * growth))(R, growth)
        dof = jnp.sum(jnp.where(used, 1 - R[0], 0))[None]
        return Solved(coef, r, run, dof, e[0], e[1:], fits.columns)

    def without_probes(self, solution, lams) -> "Solved":
        """The fit alone."""
        return self.solved(solution, lams, self.signs[:, :0])

    def coefficients(self, solution, lams):
        """Those of f, and β of y − f."""
        return self.expanded(solution, self.without_probes(solution, lams).coef)[:2]

    def expanded(self, solution, coef: Float[Array, "L c t"]) -> "Expanded":
        """Coefficients, β and f at the rows."""
        flat = jnp.moveaxis(coef, 0, 1).reshape(coef.shape[1], -1)
        fitted = self.times_kernel(flat).reshape(self.n, len(coef), coef.shape[2])
        fitted = jnp.moveaxis(fitted, 1, 0)
        beta = solution.labels.beta - jax.vmap(partial(self.fixed.fit, self.weights))(fitted)
        return Expanded(coef, beta, fitted)

    def residual_norm(self, solution, lams):
        """‖r‖²."""
        return jnp.sum(self.without_probes(solution, lams).residuals ** 2, axis=1)

    def data_fit(self, solution, lams):
        """ỹᵀ r/λ."""
        r = self.without_probes(solution, lams).residuals
        return jnp.sum(solution.state * r, axis=1) / lams

    def residual_dof(self, solution, lams):
        """Σ Rᵢᵢ, estimated."""
        return self.weights.count - solution.estimated(lams).dof

    def outcome(self, solution, lams, groups, fn):
        """All from one iteration; without probes, what needs them is None."""
        if groups is not None:
            self.view(solution, lams[0, 0])
        solved = self.solved(solution, lams, self.signs)
        coef, beta, fitted = self.expanded(solution, solved.coef)
        coefficients = (coef, beta)
        run = in_one_row(solved.run)
        if not self.has_residuals:
            return Outcome(coefficients, None, None, run=run)
        e = solved.e
        if self.weights.values is not None:
            fitted = fitted + jax.vmap(partial(self.fixed.fitted, self.fixed.values))(beta)
            e = jnp.where(self.weights.used[:, None], e, solution.labels.Y - fitted)
        total, error = (None, None) if fn is None else sum_and_error(solution, solved, fn)
        return Outcome(coefficients, e, solved.dof, total, error, run)

    def _refuse(self, *asked, **how):
        """Raise: this would need entries of an inverse. `outcome` knows the variance of its
        diagonal.
        """
        raise ValueError(self.refusal("has no determinant, exact leverages or intervals"))

    logdet = sweep = _refuse


class Iterated(NamedTuple):
    """Fits to columns B (n, k): what was solved for, coefficients, the residuals R B, and how it
    went. Where a matrix near R is known, its diagonal, and its product with the probes.
    """

    columns: Float[Array, "c k"]
    coef: Float[Array, "c k"]
    residuals: Float[Array, "n k"]
    run: Run
    near: Float[Array, " n"] | None = None
    rough: Float[Array, "n p"] | None = None


class Solved(NamedTuple):
    """Results of an iteration for each λ: coefficients, residuals √v (y − f), and how it went. With
    probes also degrees of freedom; held-out residuals; the same without each probe; and all that
    was solved for.
    """

    coef: Any  # (L, c, t)
    residuals: Any  # (L, n, t)
    run: Run
    dof: Any = None  # (L, k)
    e: Any = None  # (L, n, t)
    others: Any = None  # (L, p, n, t)
    columns: Any = None  # of targets and probes, (L, c, t + p)


class Expanded(NamedTuple):
    """Coefficients of f, those of the fixed effects, and f without these at the rows."""

    coef: Float[Array, "L c t"]
    beta: Float[Array, "L q t"]
    fitted: Float[Array, "L n t"]


def in_one_row(run: Run) -> Run:
    """The columns of all λ and targets, (L, …, columns, targets), in one row."""
    history = jnp.moveaxis(run.history, 0, 1)
    history = history.reshape(len(history), -1)
    return Run(run.residuals.ravel(), history, jnp.max(run.steps), run.reason.ravel())


def sum_and_error(solution, solved: Solved, fn) -> tuple[Any, Any]:
    """Σ `fn` over held-out rows for each λ, and its standard error by the jackknife over probes."""
    labels = solution.labels.Y
    v = solution.factor.weights.array
    total = jax.vmap(lambda e: fn(e, labels, v))
    every = total(solved.e)
    p = max(solved.others.shape[1], 1)

    def error(every, others):
        return jnp.sqrt((p - 1) / p * jnp.sum((others - every) ** 2, axis=0))

    probes = jnp.moveaxis(solved.others, 1, 0)
    # Without probes a loop has no steps, which JAX does not run outside of programs.
    others = jax.lax.map(total, probes) if len(probes) else jax.vmap(total)(probes)
    return every, jax.tree.map(error, every, others)
