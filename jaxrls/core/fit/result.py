"""The `Result` of a fit, as arrays: the fitted function, the chosen λ, and diagnostics of both.

`result_at` computes it. `result_of_moments` does so for fits whose rows are not kept.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.core.criteria import Criterion
from jaxrls.core.data import Weights
from jaxrls.core.factors import Outcome, Solution
from jaxrls.core.fit.choice import Chosen
from jaxrls.core.fit.function import Function, Numbers
from jaxrls.core.fit.held_out_loss import counted_residuals, mean_if_shared, mean_losses
from jaxrls.core.fit.problem import Problem
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import pytree, static

Number = Float[Numbers, ""]
PerTarget = Float[Numbers, "*#t"]  # (), or (t,) if each target has its own λ


@pytree
class Prequential:
    """The mean squared error of predictions of rows before they were added to a fit.

    Args:
        error: Σ v (y − f)² / Σ v over all rows that were added, () or (t,).
        weight: Σ v, ().
    """

    error: Float[Numbers, "*t"]
    weight: Number

    @classmethod
    def of(cls, before: "Prequential | None", missed: Any, weights: Weights) -> "Prequential":
        """Return the error of `before`, pooled with that of further rows.

        `missed` are the residuals (b, *t) of these rows, and `before` may be None.
        """
        weight = weights.total
        squares = weights.sum(missed**2)
        if before is not None:
            # Before, rows of weight 0 alone may have been added, whose mean error is undefined.
            squares += jnp.where(before.weight > 0, before.weight * before.error, 0)
            weight += before.weight
        return cls(squares / weight, weight)


@pytree
class Diagnostics:
    """Numbers that show how good a fit is, and how far rounding affects it.

    Most fields are described by the property of `Fit` of the same name. A field is None if the
    number was not computed. `…_of_targets` has a number for each target, for `Fit.summary`.
    """

    loo_residuals: Float[Numbers, "n *t"] | Any = None
    dof: PerTarget | Any = None
    num_rows: Number | Any = None  # of positive weight
    floor: Number | Any = None
    indefinite: Number | Any = None
    informative: Bool[Numbers, ""] | None = None
    route: str = static(default="")
    shares_work: bool = static(default=False)  # whether several λ cost hardly more than one
    trace_residual: Number | None = None
    num_landmarks: int = static(default=0)
    jitter_effect: Number | None = None
    run: Any = None
    loo_standard_error: PerTarget | None = None
    r2: Number | None = None
    r2_of_targets: Float[Numbers, "*t"] | None = None
    # Of each target, where the criterion is a mean of losses that are exact.
    error_of_targets: Float[Numbers, "*t"] | None = None
    standard_error_of_targets: Float[Numbers, "*t"] | None = None
    loo_rms: Float[Numbers, "*t"] | None = None
    amplitude: Float[Numbers, "*t"] | None = None
    prequential: Prequential | None = None


@pytree
class Result:
    """The arrays that a fit computes at the chosen λ.

    `fit_arrays` returns it, and `fit` makes a `Fit` of it.

    Args:
        function: the fitted function at the chosen λ.
        chosen: all λ with their errors, and the chosen λ.
        diagnostics: held-out residuals, degrees of freedom, the floor of the factor, and so on.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.linspace(0, 1, 30)[:, None]
    >>> problem = extend.read_problem(rls.Gaussian(0.3), X, jnp.sin(6 * X[:, 0]))
    >>> result, _ = extend.fit_arrays(problem, extend.Choice(problem.criterion))
    >>> result.chosen.lams.shape, result.diagnostics.loo_residuals.shape
    ((100,), (30,))
    """

    function: Function
    chosen: Chosen
    diagnostics: Diagnostics


def result_at(problem: Problem, solution: Solution, chosen: Chosen) -> Result:
    """Return the result at the chosen λ, with held-out residuals.

    If `chosen` has no error, and the factor gives one together with the coefficients, the result
    has a `Chosen` with this error.

    Args:
        problem: what is fitted.
        solution: the factor of the problem with labels.
        chosen: the chosen λ, one for all targets or one for each.
    """
    criterion = problem.criterion
    labels = solution.labels
    weights = solution.factor.weights
    lam = chosen.lam
    lam_row = lam.reshape(1, -1)
    outcome = solution.outcome(lam_row, criterion.groups, criterion.summand)
    in_shape_of_lam = lambda values: mean_if_shared(values[0], lam).reshape(lam.shape)
    if chosen.error is None and outcome.held_out_sum is not None:
        errors = outcome.held_out_sum / weights.total
        chosen = replace(chosen, errors=labels.drop_axis(errors), error=in_shape_of_lam(errors))
    result = _result_of(problem.kernel, solution, chosen, outcome)
    diagnostics = _with_amplitude(result.diagnostics, criterion, solution, lam_row)
    # Where residuals are estimates, so is the standard error, by a jackknife. For a loss that is a
    # step function it is not valid. `_with_held_out` has the standard error of exact residuals.
    if outcome.standard_error is not None and criterion.smooth:
        standard_error = in_shape_of_lam(outcome.standard_error) / weights.total
        diagnostics = replace(diagnostics, loo_standard_error=standard_error)
    if outcome.held_out is not None:
        diagnostics = _with_held_out(diagnostics, criterion, solution, outcome.held_out[0], lam)
    return replace(result, diagnostics=diagnostics)


def _with_held_out(
    diagnostics: Diagnostics,
    criterion: Any,
    solution: Solution,
    held_out: Float[Array, "n t"],
    lam: PerTarget,
) -> Diagnostics:
    """Return the diagnostics with those that follow from held-out residuals at the chosen λ."""
    labels = solution.labels
    Y = labels.Y
    drop = labels.drop_axis
    residuals, counted = counted_residuals(held_out, solution.factor.weights, criterion.groups)
    squares = counted.mean(residuals**2)
    one_label = Y[:1] if counted.are_equal else Y[jnp.argmax(counted.array)]
    r2 = r_squared(squares, Y - one_label, counted.mean, jnp)
    diagnostics = replace(
        diagnostics, r2=jnp.mean(r2), r2_of_targets=drop(r2), loo_rms=drop(jnp.sqrt(squares))
    )
    if not criterion.has_standard_error or not solution.factor.exact:
        return diagnostics
    losses = mean_losses(criterion, Y, residuals, counted, lam)
    return replace(
        diagnostics,
        error_of_targets=drop(losses.of_targets.mean),
        standard_error_of_targets=drop(losses.of_targets.standard_error),
        loo_standard_error=losses.of_chosen.standard_error.reshape(lam.shape),
    )


def result_of_moments(
    kernel: Kernel, solution: Solution, chosen: Chosen, criterion: Criterion | None
) -> Result:
    """Return the result at the chosen λ for a solution made of moments.

    Its rows are not kept, so that the result has no held-out residuals. `criterion` is what chose
    λ, None if it was not chosen.
    """
    lam_row = chosen.lam.reshape(1, -1)
    coef, beta = solution.factor.coef_and_beta(solution, lam_row)
    outcome = Outcome(coef, beta, None, solution.dof(lam_row))
    result = _result_of(kernel, solution, chosen, outcome)
    if criterion is None:
        return result
    diagnostics = _with_amplitude(result.diagnostics, criterion, solution, lam_row)
    return replace(result, diagnostics=diagnostics)


def _with_amplitude(
    diagnostics: Diagnostics,
    criterion: Criterion,
    solution: Solution,
    lam_row: Float[Array, "1 k"],
) -> Diagnostics:
    """Return the diagnostics with the amplitude τ at which the criterion chose λ, if it has one."""
    amplitude = criterion.amplitude(solution, lam_row)
    if amplitude is None:
        return diagnostics
    return replace(diagnostics, amplitude=solution.labels.drop_axis(amplitude[0]))


def _result_of(kernel: Kernel, solution: Solution, chosen: Chosen, outcome: Outcome) -> Result:
    """Return the result, without the diagnostics that depend on the criterion."""
    factor = solution.factor
    drop = solution.labels.drop_axis
    report = factor.report
    residuals = outcome.held_out
    dof = outcome.dof
    diagnostics = Diagnostics(
        loo_residuals=None if residuals is None else drop(residuals[0]),
        dof=None if dof is None else dof.reshape(chosen.lam.shape),
        num_rows=factor.weights.count,
        floor=report.floor,
        indefinite=report.indefinite,
        informative=report.informative,
        route=report.route,
        shares_work=factor.shares_work,
        trace_residual=report.trace_residual,
        num_landmarks=0 if report.trace_residual is None else len(factor.points),
        run=outcome.run,
        jitter_effect=_jitter_effect(kernel, solution, chosen.lam.reshape(1, -1), outcome),
    )
    return Result(_function_of(kernel, solution, outcome), chosen, diagnostics)


def _function_of(kernel: Kernel, solution: Solution, outcome: Outcome) -> Function:
    """Return the fitted function, stored in as few numbers as possible.

    It holds weights w of explicit features if w has fewer numbers than points and coefficients.
    """
    factor = solution.factor
    fixed = factor.fixed
    drop = solution.labels.drop_axis
    points, coef = factor.expansion.compact(kernel, drop(outcome.coef[0]))
    beta = outcome.beta[0]
    constant, others = jax.tree.map(drop, fixed.split(beta))
    function = Function(kernel, points, coef, constant)
    if others is None:
        return function
    _, free = fixed.split(fixed.as_given(beta))
    return replace(function, free=drop(free), effects=fixed.without_values(), beta=others)


def _jitter_effect(
    kernel: Kernel, solution: Solution, lam_row: Float[Array, "1 k"], outcome: Outcome
) -> Any:
    """Return a bound on how far jitter moved the fit, relative to the held-out residuals.

    None if the factor has no jitter.
    """
    factor = solution.factor
    residuals = outcome.held_out
    if factor.report.jitter is None:
        return None
    if residuals is None:
        # Training residuals are smaller than held-out ones, so that the bound only gets larger.
        squares = solution.residual_norm(lam_row)[0]
    else:
        squares = jnp.nansum(factor.weights.scale(residuals[0]) ** 2, axis=0)
    return factor.jitter_effect(kernel, lam_row[0], outcome.coef[0], jnp.sqrt(squares))


def r_squared(mean_squared_error: Any, Y: Any, mean: Callable, xp: Any) -> Any:
    """Return R² = 1 − Σ v e² / Σ v (y − ȳ)² of every target, and 0 for constant labels.

    Args:
        mean_squared_error: the weighted mean of the squared residuals e², (t,).
        Y: labels (n, t) minus the labels of one row, so that constant labels are exactly 0.
        mean: the function that averages over rows with weights v.
        xp: `numpy` or `jax.numpy`.
    """
    square = mean((Y - mean(Y)) ** 2)
    varies = square > 0
    return xp.where(varies, 1 - mean_squared_error / xp.where(varies, square, 1), 0)
