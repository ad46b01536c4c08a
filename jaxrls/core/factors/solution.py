"""A factor with labels: `Solution` gives coefficients, residuals and sums at any λ.

Criteria and searches are given a `Solution`. Some also read weights and fixed effects of its
factor.
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
    PerLam,
    PerTarget,
    as_columns,
)
from jaxrls.core.factors.residuals import Summand
from jaxrls.core.linalg import MAP, safe_sqrt
from jaxrls.core.support import pytree


class Coefficients(NamedTuple):
    """The coefficients of a fit. Each has a leading axis if there are several λ.

    `coef` are the coefficients of the expansion. `intercept` is the constant without penalty, 0 if
    there is none. `free` are the coefficients of the other fixed effects, None without them.
    """

    coef: Any
    intercept: Any
    free: Any = None


class Outcome(NamedTuple):
    """All results of a fit at λ.

    The leading axis of arrays is λ. Fields that do not apply are None. If held-out residuals are
    estimates, `held_out_sum` is an unbiased estimate of `Solution.sum_held_out`, and
    `standard_error` is its standard error, or that of the mean of the targets' sums if they share λ.
    `run` says how an iteration went.
    """

    coef: Any  # (L, c, t), coefficients of the expansion
    beta: Any  # (L, q, t), coefficients of the fixed effects
    held_out: Any  # (L, n, t), held-out residuals
    dof: Any
    held_out_sum: Any = None  # (L, t)
    standard_error: Any = None  # (L, k)
    run: Any = None


@pytree
class Solution:
    """A factor with labels: coefficients, residuals and sums at any λ.

    `Factor.solve` makes it. Methods take λ as (L,), or as (L, t) with one λ for each target.

    Args:
        factor: the `Factor`.
        labels: labels, with their fit by the fixed effects.
        state: what the factor needs of the labels, from `Factor.state_of`.
        summed: the features and their `Moments`, if the solution was made from moments; else None.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(3), intercept=False)
    >>> solution = factor.solve([1.0, 2.0, 3.0])
    >>> solution.held_out_residuals([1.0]).tolist(), solution.dof([1.0]).tolist()
    ([[[1.0], [2.0], [3.0]]], [[1.5]])
    """

    factor: Any
    labels: Labels
    state: Any
    summed: Any = None

    # λ and targets --------------------------------------------------------------------------------

    def lam_columns(self, lams: Lams) -> PerLam:
        """Return λ as columns (L, 1) or (L, t), after a check against the number of targets."""
        return as_columns(lams, self.labels.Y.shape[1])

    def target(self, j: Any) -> "Solution":
        """Return the solution of target j alone."""
        labels, state = jax.tree.map(lambda a: a[..., j[None]], (self.labels, self.state))
        return replace(self, labels=labels, state=state)

    def of_unit_labels(self) -> tuple["Solution", Float[Array, " t"]]:
        """Return the solution for labels of unit size, and the unit (t,) of each target.

        The unit is the largest |√v (y − Bβ)|, or 1 if that is 0. Without the division, squares of
        labels may leave the range of the dtype. Results can be scaled back, because all that a
        solution makes of labels is linear in them. If rows are not kept, the factor holds squares
        of labels, and the units are 1.
        """
        size = jnp.max(jnp.abs(jax.lax.stop_gradient(self.labels.scaled)), axis=0, initial=0)
        unit = jnp.where(size > 0, size, 1)
        labels, state = jax.tree.map(lambda a: a / unit, (self.labels, self.state))
        return replace(self, labels=labels, state=state), unit

    def per_target(self, lam: Float[Array, " k"], fn: Callable) -> Any:
        """Call `fn(λ, solution)` at one λ for each target, and return its results (…, t).

        If all targets share λ, `fn` is called once with all of them. Otherwise it is called for
        each target with its own λ.
        """
        if lam.shape[0] == 1:
            return fn(lam[0], self)
        stacked = jax.lax.map(lambda j: fn(lam[j], self.target(j)), jnp.arange(lam.shape[0]))
        return jax.tree.map(lambda a: jnp.moveaxis(a[..., 0], 0, -1), stacked)

    def at_each(self, lams: PerLam, fn: Callable) -> Any:
        """Apply `per_target` at one λ after another, and return its results with a leading axis of
        λ.
        """
        return jax.lax.map(lambda lam: self.per_target(lam, fn), lams)

    # sums over the fit ----------------------------------------------------------------------------

    def coefficients(self, lams: Lams) -> Coefficients:
        """Return the `Coefficients`: those of the expansion (L, c, t), the intercept (L, t), and
        those of the other fixed effects, (L, p, t) or None.
        """
        coef, beta = self.factor.coef_and_beta(self, self.lam_columns(lams))
        fixed = self.factor.fixed
        return Coefficients(coef, *fixed.split(fixed.as_given(beta)))

    def residual_norm(self, lams: Lams) -> PerTarget:
        """Return Σ vᵢ (yᵢ − f(xᵢ))², (L, t)."""
        return self.factor.residual_norm(self, self.lam_columns(lams))

    def data_fit(self, lams: Lams) -> PerTarget:
        """Return ỹᵀ P̃ ỹ, (L, t)."""
        return self.factor.data_fit(self, self.lam_columns(lams))

    def amplitude(self, lams: Lams) -> PerTarget:
        """Return τ = √(ỹᵀ P̃ ỹ/(n − q)), (L, t).

        With the prior τ²k and noise of variance τ²λ/v, this τ maximises the evidence of the labels.
        """
        solution, unit = self.of_unit_labels()
        dimensions = jnp.maximum(self.factor.residual_dimensions(), 1)
        return unit * safe_sqrt(solution.data_fit(lams) / dimensions)

    def logdet(self, lams: Lams) -> PerLam:
        """Return the log of the product of the eigenvalues of K̃ + λI, without those of the fixed
        effects.
        """
        return self.factor.logdet(self, self.lam_columns(lams))

    def residual_dof(self, lams: Lams) -> PerLam:
        """Return the residual degrees of freedom, Σ (1 − leverage)."""
        return self.factor.residual_dof(self, self.lam_columns(lams))

    def dof(self, lams: Lams) -> PerLam:
        """Return the effective degrees of freedom, Σ leverage, those of the fixed effects
        included.
        """
        return self.factor.weights.count - self.residual_dof(lams)

    # held-out rows -------------------------------------------------------------------------------

    def sum_held_out(self, fn: Summand, lams: Lams, groups: Folds | None = None) -> Any:
        """Sum a function of held-out residuals over rows, for every λ.

        A held-out residual is yᵢ − f₍without i₎(xᵢ). Each row, or each group of rows, is left out
        in turn.

        Args:
            fn: `fn(held)`, which sums over a block of b rows that are held out at one λ. It reads
                the residuals `held.e` (b, t), `held.labels` (b, t) and `held.weights` (b,), and
                must give 0 for a weight of 0.
            lams: λ (L,), or (L, t) with one for each target.
            groups: `Folds` of rows that are left out together; None for single rows.

        Returns:
            The sums of what `fn` gives, with a leading axis L. They are NaN inside `jax.jit` if the
            fixed effects cannot be fitted without some row or group.

        Raises:
            ValueError: outside `jax.jit`, if the fixed effects cannot be fitted without some row or
                group.
        """
        kept = self.kept_rank(groups)
        total = self.factor.sum_held_out(self, self.lam_columns(lams), fn, groups)
        return _nan_in_total(total, kept)

    def sum_with_remaining(self, fn: Summand, lams: Lams) -> Any:
        """Sum a function of held-out residuals and leverages over rows, for every λ.

        This is `sum_held_out` of single rows whose leverages are exact. For the prior k and
        noise of variance λ/v, the variance of a label given all others is λ/(v (1 − leverage)). For
        a row that is a landmark, the leverage is that of the fit without this landmark.

        Args:
            fn: as for `sum_held_out`. It also reads `held.remaining` = 1 − leverage, (b, 1) or
                (b, t).
            lams: λ (L,), or (L, t) with one for each target.

        Returns:
            The sums, as `sum_held_out` returns them.

        Raises:
            ValueError: as `sum_held_out` does.
        """
        kept = self.kept_rank(None)
        total = self.factor.sum_held_out_rows(self, self.lam_columns(lams), fn)
        return _nan_in_total(total, kept)

    def held_out_residuals(self, lams: Lams, groups: Folds | None = None) -> Float[Array, "L n t"]:
        """Return the held-out residuals of every row, yᵢ − f₍without i, or without its group₎(xᵢ).

        Rows of weight 0 have held-out residuals too.

        Args:
            lams: λ (L,), or (L, t) with one for each target.
            groups: `Folds` of rows that are left out together; None for single rows.

        Returns:
            Residuals (L, n, t), in units of Y. They are NaN for a row that no split predicts.
            Inside `jax.jit` they are also NaN for a row without which, or without whose group, the
            fixed effects cannot be fitted.

        Raises:
            ValueError: outside `jax.jit`, if the fixed effects cannot be fitted without some row or
                group.
        """
        kept = self.kept_rank(groups)
        e = self.factor.held_out_residuals(self, self.lam_columns(lams), groups)
        return _nan_in_rows(jnp.moveaxis(e, 1, 0), kept, groups)

    def training_residuals(self, lams: Lams) -> Float[Array, "L n t"]:
        """Return the training residuals √v (y − f) of every row, (L, n, t)."""
        lams = self.lam_columns(lams)
        r = self.factor.sweep(MAP, self, lams, lambda residuals: residuals.r)
        return jnp.moveaxis(r, 1, 0)

    def outcome(self, lam: Lams, folds: Folds | None = None, fn: Summand | None = None) -> Outcome:
        """Return coefficients, held-out residuals and degrees of freedom at `lam`.

        `lam` is (L,), or (L, t) with one λ for each target. A fit asks for L = 1, and some factors
        support no more. If held-out residuals are estimates, the `Outcome` also has the estimate of
        `sum_held_out(fn)` and its standard error.
        """
        outcome = self.factor.outcome(self, self.lam_columns(lam), folds, fn)
        if outcome.held_out is None:
            return outcome
        kept = self.kept_rank(folds)
        return outcome._replace(
            held_out=_nan_in_rows(outcome.held_out, kept, folds),
            held_out_sum=_nan_in_total(outcome.held_out_sum, kept),
        )

    # rows without which the fixed effects cannot be fitted ----------------------------------------

    def kept_rank(self, folds: Folds | None) -> Any:
        """Return whether the fixed effects can be fitted without each row, (n,), or fold, (k,).

        Outside `jax.jit` the result is None: they can, or `check_rank` raises. It is None inside
        too, if shapes alone show that they can.
        """
        fixed = self.factor.fixed
        weights = self.factor.weights
        is_checked = fixed.check_rank(weights, folds)
        return None if is_checked else fixed.keeps_rank(weights, folds)

    def nan_where_rank_drops(self, total: Any, folds: Folds | None = None) -> Any:
        """Return `total` if the fixed effects can be fitted without any one row, or any one group.

        Otherwise raise an error, or return NaN inside `jax.jit`.
        """
        return _nan_in_total(total, self.kept_rank(folds))


def _nan_in_total(total: Any, kept: Any) -> Any:
    """Return sums over rows, NaN unless `kept_rank` is true for all rows or folds."""
    if kept is None:
        return total
    defined = jnp.all(kept)
    return jax.tree.map(lambda a: jnp.where(defined, a, jnp.nan), total)


def _nan_in_rows(e: Float[Array, "L n t"], kept: Any, folds: Folds | None) -> Float[Array, "L n t"]:
    """Return held-out residuals, NaN for rows whose `kept_rank` is false."""
    if kept is None:
        return e
    of_row = kept if folds is None else kept[folds.predicted_by]
    return jnp.where(of_row[:, None], e, jnp.nan)
