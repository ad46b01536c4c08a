"""All that a fit computes at the chosen λ, as arrays: the function, how λ was chosen, and what
tells how good both are.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.core.criteria import LeaveOneOut
from jaxrls.core.data import Weights
from jaxrls.core.factors import Outcome, Solution
from jaxrls.core.fit.choice import Chosen, counted_residuals, error_of_mean
from jaxrls.core.fit.function import Function, Numbers
from jaxrls.core.fit.problem import Problem
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import pytree, static

Number = Float[Numbers, ""]
PerTarget = Float[Numbers, "*#t"]  # (), or (t,) where each target has its own


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
        """With the residuals (b, *t) of further rows."""
        weight = weights.total
        squares = weights.sum(missed**2)
        if before is not None:
            squares += before.weight * before.error
            weight += before.weight
        return cls(squares / weight, weight)


@pytree
class Diagnostics:
    """What tells how good a fit is, and how far its numbers can be trusted; the fields are those of
    `Fit`.
    """

    loo_residuals: Float[Numbers, "n *t"] | Any = None
    dof: PerTarget | Any = None
    floor: Number | Any = None
    indefinite: Number | Any = None
    informative: Bool[Numbers, ""] | None = None
    route: str = static(default="")
    shares_work: bool = static(default=False)  # whether several λ take hardly more than one
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
    """What `fit_arrays` returns, and `fit` makes a `Fit` of.

    Args:
        function: the function at the chosen λ, with `values(rows)`.
        chosen: all λ with their errors, and the chosen one.
        diagnostics: held-out residuals, degrees of freedom, the precision of the factor, and so on.

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
    """The result at the chosen λ, one for all targets or one for each, with held-out residuals."""
    criterion = problem.criterion
    labels = solution.labels
    weights = solution.factor.weights
    lam = chosen.lam
    column = lam.reshape(1, -1)
    outcome = solution.outcome(column, criterion.groups, criterion.summand)
    of_lam = lambda sums: sums[0] if lam.ndim else jnp.mean(sums)
    if chosen.error is None and outcome.total is not None:
        errors = labels.drop_axis(outcome.total / weights.total)
        chosen = replace(chosen, errors=errors, error=of_lam(errors))
    result = _result_of(problem.kernel, solution, chosen, outcome)
    more: dict[str, Any] = {}
    amplitude = criterion.amplitude(solution, column)
    if amplitude is not None:
        more["amplitude"] = labels.drop_axis(amplitude[0])
    if outcome.error is not None and criterion.smooth:  # a step has no useful slope
        more["loo_standard_error"] = of_lam(outcome.error) / weights.total
    if outcome.held_out is not None:
        residuals, counted = counted_residuals(outcome.held_out[0], weights, criterion.groups)
        of_targets = _scores(residuals, counted, labels.Y)
        if isinstance(criterion, LeaveOneOut) and solution.factor.exact:
            losses = criterion.loss(residuals, labels.Y)
            spread = error_of_mean(losses, counted, criterion.groups)
            of_targets["error_of_targets"] = counted.mean(losses)
            of_targets["standard_error_of_targets"] = spread
            mean_losses = jnp.mean(losses, axis=1, keepdims=True)
            of_mean = error_of_mean(mean_losses, counted, criterion.groups)[0]
            more["loo_standard_error"] = spread if lam.ndim else of_mean
        more["r2"] = jnp.mean(of_targets["r2_of_targets"])
        more |= {name: labels.drop_axis(values) for name, values in of_targets.items()}
    return replace(result, diagnostics=replace(result.diagnostics, **more))


def _scores(
    residuals: Float[Array, "n t"], weights: Weights, Y: Float[Array, "n t"]
) -> dict[str, Any]:
    """R² of held-out predictions and the root mean square of their residuals, of each target."""
    squares = weights.mean(residuals**2)
    even = weights.values is None or weights.padded
    one_label = Y[:1] if even else Y[jnp.argmax(weights.array)]
    r2 = r_squared(squares, Y - one_label, weights.mean, jnp)
    return {"r2_of_targets": r2, "loo_rms": jnp.sqrt(squares)}


def result_of_moments(kernel: Kernel, solution: Solution, chosen: Chosen) -> Result:
    """The result at the chosen λ of a solution of moments, which has no rows to hold out."""
    column = chosen.lam.reshape(1, -1)
    coefficients = solution.factor.coefficients(solution, column)
    outcome = Outcome(coefficients, None, solution.dof(column))
    return _result_of(kernel, solution, chosen, outcome)


def _result_of(kernel: Kernel, solution: Solution, chosen: Chosen, outcome: Outcome) -> Result:
    """The result, but for what depends on a criterion."""
    factor = solution.factor
    drop = solution.labels.drop_axis
    report = factor.report
    residuals = outcome.held_out
    dof = outcome.dof
    diagnostics = Diagnostics(
        loo_residuals=None if residuals is None else drop(residuals[0]),
        dof=None if dof is None else dof.reshape(chosen.lam.shape),
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
    """The fitted function, with the fewest numbers that it can be kept in."""
    factor = solution.factor
    drop = solution.labels.drop_axis
    coef, beta = (part[0] for part in outcome.coefficients)
    intercept, free = jax.tree.map(drop, factor.fixed.split(beta))
    points, coef = factor.expansion.compact(kernel, drop(coef))
    function = Function(kernel, points, coef, intercept)
    if free is None:
        return function
    effects = factor.fixed.without_values()
    return replace(function, free=free, effects=effects, beta=drop(beta))


def _jitter_effect(
    kernel: Kernel, solution: Solution, column: Float[Array, "1 k"], outcome: Outcome
) -> Any:
    """How far jitter moved the fit, as a share of the held-out residuals; None without jitter."""
    factor = solution.factor
    residuals = outcome.held_out
    if factor.report.jitter is None:
        return None
    if residuals is None:
        squares = solution.residual_norm(column)[0]  # those of training, which are smaller
    else:
        squares = jnp.nansum(factor.weights.scale(residuals[0]) ** 2, axis=0)
    coef = outcome.coefficients[0][0]
    return factor.jitter_effect(kernel, column[0], coef, jnp.sqrt(squares))


def r_squared(missed: Any, Y: Any, mean: Callable, xp: Any) -> Any:
    """1 − Σ v e² / Σ v (y − ȳ)² of every target, 0 for constant labels, from the mean squares that
    are `missed`. `mean` is with weights v; labels are less those of one row, so that constant ones
    are exactly 0.
    """
    square = mean((Y - mean(Y)) ** 2)
    varies = square > 0
    return xp.where(varies, 1 - missed / xp.where(varies, square, 1), 0)
