"""The range of λ in which the fits of a factor differ, a grid over it, and the choice of the best λ
by its error.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria import Criterion, HoldOut
from jaxrls.core.data import Folds, Weights
from jaxrls.core.factors import Factor, Solution
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number
from jaxrls.core.support import check_whole, door, pytree, static


@door("factor.sample_array")
def lambda_grid(factor: Factor, num: int = 100) -> Float[Array, " num"]:
    """Make a geometric grid of λ, ascending, that covers all fits the factor can distinguish.

    The largest λ is 10·Σs, with the eigenvalues s of the factor: there the effective degrees of
    freedom beside the fixed effects are at most 1/10. The smallest is a thousandth of the smallest
    eigenvalue above rounding, but at least the floor of the factor, for K √n·eps·s_max, below which
    rounding errors dominate.

    Args:
        factor: what `factorize` returned.
        num: how many λ; static in `jax.jit`.

    Returns:
        λ (num,), ascending.

    Raises:
        ValueError: for a `num` below 1, and for a factor without eigenvalues.

    **Cost** O(r). **Source**: the rule of GURLS's `paramsel`, with both ends tied to spectrum and
    dtype.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.extend.lambda_grid(rls.factorize(rls.Precomputed(), jnp.eye(2)), 3).shape
    (3,)
    """
    check_whole("num", num)
    low, high = lambda_range(factor, 1e-3 * factor.smallest_eigenvalue())
    share = np.linspace(0, 1, num, dtype=factor.dtype)
    low = jnp.log(low)
    high = jnp.log(high)
    return jnp.exp(low + share * (high - low))


def lambda_range(factor: Factor, low: Number | float = 0.0) -> tuple[Number, Number]:
    """The ends of that grid: the precision of the factor, or `low` where that is larger, and 10·Σs,
    for which no spectrum is needed.
    """
    tiny = 2 * jnp.finfo(factor.dtype).tiny  # twice: exp and log round, and must stay in range
    low = jnp.maximum(jnp.maximum(factor.precision_floor(), low), tiny)
    return low, jnp.maximum(10 * factor.trace(), 10 * low)


def choose_lam(
    lams: Float[Array, "L *#t"], errors: Float[Array, "L *t"], per_target: bool, within: Any = 0
) -> tuple[Float[Array, "*#t"], Float[Array, "*#t"]]:
    """The λ of the smallest error: one for all targets, by the mean of their errors, or one for
    each target, from its own column where `lams` is (L, t).

    With `within`, the largest λ whose error exceeds the smallest by no more; equal errors go to the
    larger λ. A λ whose error is NaN, as where a factor broke down, is not chosen, unless all are.
    """
    if errors.ndim == 2 and not per_target:
        errors = jnp.mean(errors, axis=1)
    if len(lams) == 1:  # nothing to choose: the model can share what the errors used
        return jnp.broadcast_to(lams[0], errors.shape[1:]), errors[0]
    undefined = jnp.isnan(errors)
    defined = jnp.where(undefined, jnp.inf, errors)
    smallest = jnp.min(defined, axis=0)
    may_be_chosen = (defined <= smallest + within) & (~undefined | undefined.all(axis=0))
    columns = lams if lams.ndim == errors.ndim else lams[:, None]
    lam = jnp.max(jnp.where(may_be_chosen, columns, 0), axis=0)
    return lam, jnp.max(jnp.where(columns == lam, errors, smallest), axis=0)


@pytree
class Chosen:
    """All λ with their errors, and the chosen λ with its error, where these are known.

    Args:
        lams: all λ that were tried, ascending, (L,), or (L, t) where each target has its own.
        errors: the criterion at each of them, (L,) or (L, t); smaller is better.
        lam: the chosen λ, (), or (t,) where each target has its own.
        error: the criterion at the chosen λ, shaped as `lam`.
    """

    lams: Any
    errors: Any
    lam: Any
    error: Any = None


@pytree
class Choice:
    """How λ is chosen.

    Args:
        criterion: by which criterion.
        lams: from which λ, (L,), or (L, t) with one for each target; None for a grid.
        num: how many λ the grid has.
        per_target: whether each target has a λ of its own.
        conservative: within how many standard errors of the smallest error the largest λ is taken.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> choice = rls.extend.Choice(rls.loo, jnp.array([0.1, 1.0, 10.0]))
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> choice.of(factor.solve([1.0, 2.0]), rls.Precomputed()).errors.shape
    (3,)
    """

    criterion: Criterion
    lams: Float[Array | np.ndarray, "L *#t"] | None = None
    num: int = static(default=100)
    per_target: bool = static(default=False)
    conservative: float = static(default=0.0)

    def of(self, solution: Solution, kernel: Kernel) -> Chosen:
        """The chosen λ of a solution."""
        lams = self.lams_to_try(solution.factor)
        if len(lams) == 1 and not self._needs_an_error(solution.factor):
            targets = solution.labels.given.shape[1:] if self.per_target else ()
            return Chosen(lams, None, jnp.broadcast_to(lams[0], targets))
        errors = self.criterion.errors(solution, lams, kernel)
        lam, error = choose_lam(lams, errors, self.per_target)
        if self.conservative:
            within = self.conservative * standard_error(self.criterion, solution, lam)
            lam, error = choose_lam(lams, errors, self.per_target, within)
        return Chosen(lams, errors, lam, error)

    def lams_to_try(self, factor: Factor) -> Float[Array, "L *t"]:
        """Those that were named, 0 as the floor of the factor; or a grid from its spectrum."""
        if self.lams is None:
            return lambda_grid(factor, self.num)
        return factor.zero_as_floor(self.lams)

    def _needs_an_error(self, factor: Factor) -> bool:
        """Whether the criterion is evaluated at a single λ, of which nothing is to be chosen: not
        where the factor gives no held-out residuals, and not where they are estimates, which the
        model at that λ brings with it.
        """
        can_be_evaluated = factor.has_residuals or isinstance(self.criterion, HoldOut)
        comes_with_model = not factor.exact and self.criterion.summand is not None
        return can_be_evaluated and not comes_with_model


def standard_error(
    criterion: Any, solution: Solution, lam: Float[Array, "*#t"]
) -> Float[Array, "*t"]:
    """The standard error of a mean of losses at λ; with one λ for all targets, of their mean."""
    groups = criterion.groups
    left_out = solution.held_out_residuals(lam.reshape(1, -1), groups)[0]
    left_out, weights = counted_residuals(left_out, solution.factor.weights, groups)
    losses = criterion.loss(left_out, solution.labels.Y)
    if lam.ndim:
        return error_of_mean(losses, weights, groups)
    return error_of_mean(jnp.mean(losses, axis=1, keepdims=True), weights, groups)[0]


def error_of_mean(
    losses: Float[Array, "n t"], weights: Weights, groups: Folds | None
) -> Float[Array, " t"]:
    """The standard error of the mean m of G losses m_g, of rows or of groups, with weights V_g: √(Σ
    V_g² (m_g − m)² · G/(G − 1)) / ΣV.
    """
    v = weights.array[:, None]
    away = v * (losses - jnp.sum(v * losses, axis=0) / weights.total)
    count = weights.count
    if groups is not None:
        away = groups.sums(away)
        count = jnp.sum(groups.sums(v) > 0).astype(v.dtype)
    spread = jnp.sqrt(jnp.sum(away**2, axis=0) * count / jnp.maximum(count - 1, 1))
    return spread / weights.total


def counted_residuals(
    residuals: Float[Array, "n t"], weights: Weights, groups: Folds | None
) -> tuple[Float[Array, "n t"], Weights]:
    """Held-out residuals, 0 for rows that do not count in means over them, and the weights of
    rows in these means.
    """
    weights = weights if groups is None else groups.weights_of_predicted(weights)
    if weights.values is not None:
        residuals = jnp.where(weights.used[:, None], residuals, 0)
    return residuals, weights
