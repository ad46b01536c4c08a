"""A factor with labels: coefficients, residuals and sums at any λ. Criteria and searches see
nothing else of a fit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Folds, Labels
from jaxrls.core.factors.lams import (
    Lams,
    OfLeftOut,
    OfLeftOutRows,
    PerLam,
    PerRow,
    PerTarget,
    as_columns,
)
from jaxrls.core.linalg import safe_sqrt
from jaxrls.core.support import pytree


class Coefficients(NamedTuple):
    """Coefficients, unpenalised intercept, and coefficients of other fixed effects or None; with a
    leading axis where there are several λ.
    """

    coef: Any
    intercept: Any
    free: Any = None


class Outcome(NamedTuple):
    """All results of a fit at λ, with the coefficients of `Factor.coefficients`. Where held-out
    residuals are estimates, `total` is an unbiased sum over them and `error` its standard error;
    `run` says how an iteration went.
    """

    coefficients: tuple[Any, Any]
    held_out: Any
    dof: Any
    total: Any = None
    error: Any = None
    run: Any = None


@pytree
class Solution:
    """A factor with labels: coefficients, residuals and sums at any λ.

    `Factor.solve` makes it. Methods take λ as (L,), or (L, t) with one for each target.

    Args:
        factor: the `Factor`.
        labels: labels, minus their fit by the fixed effects.
        state: what the factor needs of the labels, from `Factor.project`.
        summed: features and their `Moments`, where the solution is made of these; else None.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(3), intercept=False)
    >>> solution = factor.solve([1.0, 2.0, 3.0])
    >>> solution.held_out_residuals([1.0]).tolist(), solution.dof([1.0]).tolist()
    ([[[1.0], [2.0], [3.0]]], [[1.5]])
    """

    factor: Any
    labels: Labels
    state: Any  # what the factor makes of the labels
    summed: Any = None  # features and their moments, where it is made of them

    # λ and targets --------------------------------------------------------------------------------

    def lam_columns(self, lams: Lams) -> PerLam:
        """λ as columns (L, 1) or (L, t), checked against the targets."""
        return as_columns(lams, self.labels.Y.shape[1])

    def target(self, j: Any) -> "Solution":
        """The solution of target j alone."""
        labels, state = jax.tree.map(lambda a: a[..., j[None]], (self.labels, self.state))
        return replace(self, labels=labels, state=state)

    def of_unit_labels(self) -> tuple["Solution", Float[Array, " t"]]:
        """The solution of the labels of every target divided by their unit, the largest that the
        fixed effects leave, and these units: squares of labels may leave the range of the dtype.

        All that a solution makes of labels is linear in them. Where rows are not kept, the factor
        has squares of labels, and the units are 1.
        """
        size = jnp.max(jnp.abs(jax.lax.stop_gradient(self.labels.scaled)), axis=0, initial=0)
        unit = jnp.where(size > 0, size, 1)
        labels, state = jax.tree.map(lambda a: a / unit, (self.labels, self.state))
        return replace(self, labels=labels, state=state), unit

    def per_target(self, lam: Float[Array, " k"], fn: Callable) -> Any:
        """`fn(λ, solution)` once for all targets where they share one λ, else for each target at
        its own; results (…, t).
        """
        if lam.shape[0] == 1:
            return fn(lam[0], self)
        stacked = jax.lax.map(lambda j: fn(lam[j], self.target(j)), jnp.arange(lam.shape[0]))
        return jax.tree.map(lambda a: jnp.moveaxis(a[..., 0], 0, -1), stacked)

    def at_each(self, lams: PerLam, fn: Callable) -> Any:
        """`per_target` at every λ, one after the other."""
        return jax.lax.map(lambda lam: self.per_target(lam, fn), lams)

    # sums over the fit ----------------------------------------------------------------------------

    def coefficients(self, lams: Lams) -> Coefficients:
        """Coefficients (L, c, t), intercept (L, t), and coefficients of other fixed effects (L, p,
        t) or None.
        """
        coef, beta = self.factor.coefficients(self, self.lam_columns(lams))
        return Coefficients(coef, *self.factor.fixed.split(beta))

    def residual_norm(self, lams: Lams) -> PerTarget:
        """Σ vᵢ (yᵢ − f(xᵢ))², (L, t)."""
        return self.factor.residual_norm(self, self.lam_columns(lams))

    def data_fit(self, lams: Lams) -> PerTarget:
        """ỹᵀ P̃ ỹ, (L, t)."""
        return self.factor.data_fit(self, self.lam_columns(lams))

    def amplitude(self, lams: Lams) -> PerTarget:
        """τ = √(ỹᵀP̃ỹ/(n − q)), (L, t): the prior τ²k under which the evidence of labels with noise
        of variance τ²λ/v is largest.
        """
        solution, unit = self.of_unit_labels()
        dimensions = jnp.maximum(self.factor.residual_dimensions(), 1)
        return unit * safe_sqrt(solution.data_fit(lams) / dimensions)

    def logdet(self, lams: Lams) -> PerLam:
        """log of the product of the eigenvalues of K̃ + λI."""
        return self.factor.logdet(self, self.lam_columns(lams))

    def residual_dof(self, lams: Lams) -> PerLam:
        """Residual degrees of freedom, Σ (1 − leverage)."""
        return self.factor.residual_dof(self, self.lam_columns(lams))

    def dof(self, lams: Lams) -> PerLam:
        """Effective degrees of freedom, Σ leverage, those of fixed effects included."""
        return self.factor.weights.count - self.residual_dof(lams)

    # held-out rows -------------------------------------------------------------------------------

    def sum_held_out(self, fn: OfLeftOut, lams: Lams, groups: Folds | None = None) -> Any:
        """Sum a function of held-out residuals over rows, for every λ, with each row, or each
        group, left out in turn.

        A held-out residual is yᵢ − f₍without i₎(xᵢ).

        Args:
            fn: `fn(residuals (b, t), labels (b, t), weights (b,))` of a block of rows, summed over
                these; it must give 0 for a weight of 0.
            lams: λ (L,), or (L, t) with one for each target.
            groups: `Folds` of rows that are left out together; None for single rows.

        Returns:
            What `fn` gives, summed, with a leading axis L. NaN inside `jax.jit` where the fixed
            effects cannot be fitted without a row or group.

        Raises:
            ValueError: outside `jax.jit`, where the fixed effects cannot be fitted without a row or
                group.
        """
        if groups is None and self.factor.exact:
            return self.sum_with_remaining(lambda e, _, Y, v: fn(e, Y, v), lams)
        lams = self.lam_columns(lams)
        if groups is None:
            return self.estimated(lams, fn).total
        of_all_lams = jax.vmap(fn, in_axes=(1, None, None))
        return self.nan_where_rank_drops(
            self.factor.sweep_folds(self, of_all_lams, lams, groups), groups
        )

    def sum_with_remaining(self, fn: OfLeftOutRows, lams: Lams) -> Any:
        """Sum a function of held-out residuals and leverages over rows, for every λ: `sum_held_out`
        of single rows with one more argument.

        v/λ · (1 − leverage) is one over the variance of a label given all others. For a row that is
        a landmark it belongs to the fit without this landmark.

        Args:
            fn: `fn(residuals, remaining, labels, weights)`, with `remaining` = 1 − leverage, (b, 1)
                or (b, t).
            lams: λ (L,), or (L, t).

        Returns:
            The sums, as `sum_held_out` gives them.

        Raises:
            ValueError: as `sum_held_out` does.
        """
        return self.nan_where_rank_drops(
            self.factor.sum_left_out_rows(self, fn, self.lam_columns(lams))
        )

    def held_out_residuals(self, lams: Lams, groups: Folds | None = None) -> PerRow:
        """Held-out residuals of every row, those of weight 0 included: yᵢ − f₍without i, or its
        group₎(xᵢ).

        Args:
            lams: λ (L,), or (L, t) with one for each target.
            groups: `Folds` of rows that are left out together; None for single rows.

        Returns:
            (L, n, t), in units of Y, NaN for a row that no split predicts; inside `jax.jit` NaN for
            a row if the fixed effects cannot be fitted without it or its group.

        Raises:
            ValueError: outside `jax.jit`, where that is so for some row.
        """
        lams = self.lam_columns(lams)
        factor = self.factor
        factor.fixed.check_rank(factor.weights, groups)
        if groups is not None:
            e = factor.sweep_folds(self, lambda e, Y, v: e, lams, groups, stack=True)
            e = jnp.moveaxis(e, 1, 0)
            if not groups.are_groups:
                e = jnp.where(groups.predicted[:, None], e, jnp.nan)
        elif factor.exact:
            e = factor.held_out_rows(self, lams)
        else:
            return self.estimated(lams).held_out
        if factor.fixed.keeps_any_rank(factor.weights, groups):
            return e
        full = factor.fixed.keeps_rank(factor.weights, groups)
        full = full if groups is None else full[groups.fold_of_row]
        return jnp.where(full[:, None], e, jnp.nan)

    def estimated(self, lams: Lams, fn: OfLeftOut | None = None) -> Outcome:
        """The `Outcome` with single rows left out, of a factor that estimates it."""
        if not self.factor.has_residuals:
            raise ValueError(
                "leave-one-out needs probes, and the solver has probes=0: give probes=32, a "
                "single λ as lams=, or criterion=holdout(X, Y)"
            )
        return self.factor.outcome(self, lams, None, fn)

    def training_residuals(self, lams: Lams) -> PerRow:
        """Training residuals √v (y − f) of every row."""
        r = self.factor.sweep(self, self.lam_columns(lams), lambda r, R, v: r, stack=True)
        return jnp.moveaxis(r, 1, 0)

    def outcome(
        self, lam: Lams, groups: Folds | None = None, fn: OfLeftOut | None = None
    ) -> Outcome:
        """Coefficients, held-out residuals and degrees of freedom at one λ, or one per target; and
        the standard error of `sum_held_out(fn)`, where that is an estimate.
        """
        return self.factor.outcome(self, self.lam_columns(lam), groups, fn)

    def nan_where_rank_drops(self, total: Any, groups: Folds | None = None) -> Any:
        """`total`, if the fixed effects can be fitted without each row, or group. Otherwise an
        error, or NaN inside `jax.jit`.
        """
        fixed = self.factor.fixed
        weights = self.factor.weights
        if fixed.keeps_any_rank(weights, groups):
            return total
        fixed.check_rank(weights, groups)
        defined = jnp.all(fixed.keeps_rank(weights, groups))
        return jax.tree.map(lambda a: jnp.where(defined, a, jnp.nan), total)
