"""The `Result` of a fit, as arrays: the fitted function, the chosen λ, and diagnostics of both.

`result_at` computes it. `result_of_moments` does so for fits whose rows are not kept.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.core.criteria import Criterion
from jaxrls.core.data import Folds, Weights
from jaxrls.core.factors import Outcome, Solution
from jaxrls.core.fit.choice import Chosen
from jaxrls.core.fit.function import Function, Numbers
from jaxrls.core.fit.held_out_loss import (
    CountedResiduals,
    counted_residuals,
    mean_if_shared,
    mean_losses,
)
from jaxrls.core.fit.problem import Problem
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import at_least_tiny
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

    `fit_arrays` returns it with the `Solution`, as `Fitted`, and `fit` makes a `Fit` of it.

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
    outcome = solution.outcome(chosen.lam.reshape(1, -1), criterion.groups, criterion.summand)
    chosen = _with_error_of(outcome, solution, chosen)
    return _result_of(problem.kernel, solution, chosen, outcome, criterion)


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
    return _result_of(kernel, solution, chosen, outcome, criterion)


def _result_of(
    kernel: Kernel, solution: Solution, chosen: Chosen, outcome: Outcome, criterion: Any
) -> Result:
    """Return the result of an outcome at the chosen λ. `criterion` is None if λ was not chosen."""
    function = _function_of(kernel, solution, outcome)
    diagnostics = _diagnostics_of(kernel, solution, chosen.lam, outcome, criterion)
    return Result(function, chosen, diagnostics)


def _with_error_of(outcome: Outcome, solution: Solution, chosen: Chosen) -> Chosen:
    """Return what was chosen, with the error of the outcome if it has none."""
    if chosen.error is not None or outcome.held_out_sum is None:
        return chosen
    errors = outcome.held_out_sum / solution.factor.weights.total
    error = _in_shape_of(chosen.lam, errors)
    return replace(chosen, errors=solution.labels.drop_axis(errors), error=error)


def _in_shape_of(lam: PerTarget, values: Float[Array, "1 t"]) -> PerTarget:
    """Return values of all targets in the shape of λ: their mean if targets share λ."""
    return mean_if_shared(values[0], lam).reshape(lam.shape)


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


# diagnostics
# --------------------------------------------------------------------------------------------------


class OfSquares(NamedTuple):
    """The fields of `Diagnostics` that follow from squares of held-out residuals."""

    r2: Any = None
    r2_of_targets: Any = None
    loo_rms: Any = None


class OfLosses(NamedTuple):
    """The fields of `Diagnostics` that follow from losses of held-out residuals."""

    error_of_targets: Any = None
    standard_error_of_targets: Any = None
    loo_standard_error: Any = None


def _diagnostics_of(
    kernel: Kernel,
    solution: Solution,
    lam: Float[Array, "*#t"],
    outcome: Outcome,
    criterion: Any,
) -> Diagnostics:
    """Return the diagnostics of an outcome at λ. `criterion` is None if λ was not chosen."""
    factor = solution.factor
    report = factor.report
    drop = solution.labels.drop_axis
    lam_row = lam.reshape(1, -1)
    dof = outcome.dof
    residuals = outcome.held_out
    counted = None
    if residuals is not None:
        counted = counted_residuals(residuals[0], factor.weights, criterion.groups)
    return Diagnostics(
        loo_residuals=None if residuals is None else drop(residuals[0]),
        dof=None if dof is None else dof.reshape(lam.shape),
        num_rows=factor.weights.count,
        floor=report.floor,
        indefinite=report.indefinite,
        informative=report.informative,
        route=report.route,
        shares_work=factor.shares_work,
        trace_residual=report.trace_residual,
        num_landmarks=0 if report.trace_residual is None else len(factor.points),
        jitter_effect=_jitter_effect(kernel, solution, lam_row, outcome),
        run=outcome.run,
        amplitude=_amplitude(criterion, solution, lam_row),
        **_of_squares(solution, counted, criterion)._asdict(),
        **_of_losses(solution, lam, counted, outcome, criterion)._asdict(),
    )


def _of_squares(solution: Solution, counted: CountedResiduals | None, criterion: Any) -> OfSquares:
    """Return the diagnostics that follow from squares of held-out residuals, if there are any."""
    if counted is None:
        return OfSquares()
    residuals, weights = counted
    Y = _without_unknown_levels(solution, criterion.groups, weights)
    drop = solution.labels.drop_axis
    squares = weights.mean(residuals**2)
    one_label = Y[:1] if weights.are_equal else Y[jnp.argmax(weights.array)]
    r2 = r_squared(squares, Y - one_label, weights.mean, jnp)
    return OfSquares(jnp.mean(r2), drop(r2), drop(jnp.sqrt(squares)))


def _without_unknown_levels(
    solution: Solution, folds: Folds | None, counted: Weights
) -> Float[Array, "n t"]:
    """Return the labels without the constants that held-out residuals lack.

    These are the constants of levels all of whose rows are held out together. The labels of such a
    level get the mean of the other rows in place of their own. `counted` are the weights of the
    rows that are predicted.
    """
    labels = solution.labels
    Y = labels.Y
    whole = solution.factor.fixed.whole_levels_left_out(solution.factor.weights, folds)
    if whole is None:
        return Y
    column = whole[:, None]
    others = counted.times(jnp.where(column, 0, jnp.ones_like(Y)))
    mean = jnp.sum(others * Y, axis=0) / at_least_tiny(jnp.sum(others, axis=0))
    about = Y - labels.by_effects
    is_rounding = jnp.abs(about) <= 4 * float(jnp.finfo(Y.dtype).eps) * jnp.abs(Y)
    return jnp.where(column, jnp.where(is_rounding, 0, about) + mean, Y)


def _of_losses(
    solution: Solution,
    lam: PerTarget,
    counted: CountedResiduals | None,
    outcome: Outcome,
    criterion: Any,
) -> OfLosses:
    """Return the diagnostics that follow from losses of held-out residuals.

    Where residuals are estimates, so is the standard error, by a jackknife. For a loss that is a
    step function it is not valid.
    """
    factor = solution.factor
    drop = solution.labels.drop_axis
    if counted is not None and criterion.has_standard_error and factor.exact:
        losses = mean_losses(criterion, solution.labels.Y, counted, lam)
        mean, standard_error = map(drop, losses.of_targets)
        return OfLosses(mean, standard_error, losses.of_chosen.standard_error.reshape(lam.shape))
    if outcome.standard_error is not None and criterion.smooth:
        standard_error = outcome.standard_error[0].reshape(lam.shape) / factor.weights.total
        return OfLosses(loo_standard_error=standard_error)
    return OfLosses()


def _amplitude(criterion: Any, solution: Solution, lam_row: Float[Array, "1 k"]) -> Any:
    """Return the amplitude τ at which the criterion chose λ, None if there is none."""
    amplitude = None if criterion is None else criterion.amplitude(solution, lam_row)
    return None if amplitude is None else solution.labels.drop_axis(amplitude[0])


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
