"""The choice of λ: the λ that are tried, and the best of them by the criterion.

`Choice` is the entry point. It tries λ that are `Given`, or a `Grid`: `lambda_grid` covers the
range of λ in which the fits of a factor differ. `choose_lam` picks the best λ from their errors.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria import Criterion
from jaxrls.core.factors import GRID_SIZE, Factor, Solution
from jaxrls.core.fit.held_out_loss import counted_residuals, mean_losses
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number
from jaxrls.core.support import check_whole, public_call, pytree, static


@public_call(arrays_of="factor")
def lambda_grid(factor: Factor, num: int = GRID_SIZE) -> Float[Array, " num"]:
    """Make a geometric grid of λ, ascending, that covers all fits the factor can distinguish.

    Let s be the eigenvalues of the factor. The largest λ is 10·Σs. There the effective degrees of
    freedom, not counting fixed effects, are at most 1/10. The smallest λ is a thousandth of the
    smallest eigenvalue above rounding, but at least the floor of the factor, below which rounding
    errors dominate. For a factor of K the floor is √n·eps·s_max.

    Args:
        factor: what `factorize` returned.
        num: the number of λ, static in `jax.jit`.

    Returns:
        λ (num,), ascending.

    Raises:
        ValueError: for a `num` below 1, and for a factor without eigenvalues.

    **Cost** O(r). **Source**: the rule of GURLS's `paramsel`, with both ends derived from spectrum
    and dtype.

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
    """Return the smallest and the largest λ worth trying, without computing a spectrum.

    The smallest is the floor of the factor, or `low` if that is larger. The largest is 10·Σs, from
    the trace, but at least 10 times the smallest.
    """
    # Twice the smallest normal number, because exp(log λ) rounds and must not underflow.
    tiny = 2 * jnp.finfo(factor.dtype).tiny
    low = jnp.maximum(jnp.maximum(factor.precision_floor(), low), tiny)
    return low, jnp.maximum(10 * factor.trace(), 10 * low)


@pytree
class Given:
    """Values of λ to choose from.

    Args:
        lams: the values, (L,), or (L, t) with a column for each target; 0 stands for the floor of
            the factor.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.extend.Given(jnp.array([0.5, 2.0])).values(factor).tolist()
    [0.5, 2.0]
    """

    lams: Float[Array | np.ndarray, "L *#t"]

    @property
    def num(self) -> int:
        """How many λ there are."""
        return len(self.lams)

    @property
    def per_target(self) -> bool:
        """Whether each target has values of its own."""
        return self.lams.ndim == 2

    def values(self, factor: Factor) -> Float[Array, "L *t"]:
        """Return the values of λ for a factor: its floor in place of 0."""
        return factor.zero_as_floor(self.lams)


@pytree
class Grid:
    """A grid of λ to choose from, as `lambda_grid` makes it from the spectrum of the factor.

    Args:
        num: the number of λ.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.extend.Grid(3).values(factor).shape
    (3,)
    """

    num: int = static(default=GRID_SIZE)
    per_target: ClassVar[bool] = False  # targets share the values

    def values(self, factor: Factor) -> Float[Array, " num"]:
        """Return the values of λ for a factor."""
        return lambda_grid(factor, self.num)


def choose_lam(
    lams: Float[Array, "L *#t"], errors: Float[Array, "L *t"], per_target: bool, within: Any = 0
) -> tuple[Float[Array, "*#t"], Float[Array, "*#t"]]:
    """Return the λ of the smallest error, and the error at this λ.

    If several λ have the smallest error, the largest of them is chosen. A λ whose error is NaN, for
    instance because a Cholesky factorization failed, is chosen only if all errors are NaN.

    Args:
        lams: λ (L,), or (L, t) with a column for each target.
        errors: the error at each λ, (L,) or (L, t).
        per_target: whether each target gets its own λ. Otherwise all targets share the λ of the
            smallest mean error.
        within: how much the error may exceed the smallest error. The largest λ within this
            tolerance is chosen.

    Returns:
        `(lam, error)`, both of shape (), or (t,) if each target has its own λ.
    """
    if errors.ndim == 2 and not per_target:
        errors = jnp.mean(errors, axis=1)
    if len(lams) == 1:
        # λ then does not depend on the errors, so that errors and model can share computations.
        return jnp.broadcast_to(lams[0], errors.shape[1:]), errors[0]
    undefined = jnp.isnan(errors)
    defined = jnp.where(undefined, jnp.inf, errors)
    smallest = jnp.min(defined, axis=0)
    may_be_chosen = (defined <= smallest + within) & (~undefined | undefined.all(axis=0))
    columns = lams if lams.ndim == errors.ndim else lams[:, None]
    lam = jnp.max(jnp.where(may_be_chosen, columns, 0), axis=0)
    # The error at the chosen λ is at least `smallest`, which stands for all other λ.
    return lam, jnp.max(jnp.where(columns == lam, errors, smallest), axis=0)


@pytree
class Chosen:
    """All λ that were tried with their errors, and the chosen λ with its error.

    `Choice.of` leaves `errors` and `error` None if there is a single λ and the criterion is not
    evaluated there. `result_at` fills them in if the factor gives the error together with the
    coefficients. Otherwise they stay None. `lams` is None too if nothing was tried, as in an update
    of a fit that keeps its λ.

    Args:
        lams: all λ that were tried, (L,), or (L, t) if each target has its own. Those of a grid or
            a search are ascending. Named ones keep their order.
        errors: the criterion at each of these λ, (L,) or (L, t); smaller is better.
        lam: the chosen λ, (), or (t,) if each target has its own.
        error: the criterion at the chosen λ, in the shape of `lam`.
    """

    lams: Any
    errors: Any
    lam: Any
    error: Any = None


@pytree
class Choice:
    """A rule by which λ is chosen.

    Args:
        criterion: the criterion that is minimised.
        lams: the λ to choose from: `Given(values)`, or `Grid(num)`, made from the spectrum.
        per_target: whether each target has its own λ. It has if values are given for each target.
        conservative: a number of standard errors. The largest λ is chosen whose error exceeds the
            smallest error by no more than this.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> choice = extend.Choice(rls.loo, extend.Given(jnp.array([0.1, 1.0, 10.0])))
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> choice.of(factor.solve([1.0, 2.0]), rls.Precomputed()).errors.shape
    (3,)
    """

    criterion: Criterion
    lams: Given | Grid = Grid()
    per_target: bool = static(default=False)
    conservative: float = static(default=0.0)

    def of(self, solution: Solution, kernel: Kernel) -> Chosen:
        """Return the chosen λ for a solution, with the errors of all λ that were tried."""
        lams = self.lams.values(solution.factor)
        per_target = self.per_target or self.lams.per_target
        if len(lams) == 1 and not self._evaluates_single_lam(solution.factor):
            targets = solution.labels.given.shape[1:] if per_target else ()
            return Chosen(lams, None, jnp.broadcast_to(lams[0], targets))
        errors = self.criterion.errors(solution, lams, kernel)
        lam, error = choose_lam(lams, errors, per_target)
        if self.conservative:
            within = self.conservative * standard_error(self.criterion, solution, lam)
            lam, error = choose_lam(lams, errors, per_target, within)
        return Chosen(lams, errors, lam, error)

    def _evaluates_single_lam(self, factor: Factor) -> bool:
        """Whether to evaluate the criterion at a single λ, where nothing is to be chosen.

        It is not evaluated in two cases:

        * the factor gives no held-out residuals, and the criterion has no rows of its own;
        * the factor only estimates held-out residuals. Then `result_at` gets the error together
          with the coefficients, at no further cost.
        """
        can_be_evaluated = factor.has_residuals or self.criterion.has_own_rows
        comes_with_model = not factor.exact and self.criterion.summand is not None
        return can_be_evaluated and not comes_with_model


@pytree
class HeldLam:
    """A λ that stays as it is when rows are added or removed, in place of a `Choice`.

    Its error is not computed again. So it is if a search found λ, or if the criterion needs the
    earlier rows.

    Args:
        lam: λ, (), or (t,) if each target has its own.
    """

    lam: Float[Array | np.ndarray, "*#t"]
    criterion: ClassVar[None] = None

    def of(self, solution: Solution, kernel: Kernel) -> Chosen:
        """Return λ without errors, where `Choice.of` returns what it chose."""
        return Chosen(None, None, self.lam)


def standard_error(
    criterion: Any, solution: Solution, lam: Float[Array, "*#t"]
) -> Float[Array, "*t"]:
    """Return the standard error of the criterion at λ, as `mean_loss` defines it.

    Args:
        criterion: a criterion with `loss` and `groups`.
        solution: the factor with labels.
        lam: the λ of all targets (), or one for each target (t,).

    Returns:
        The standard error (t,) of each target, or () of the mean over targets if they share λ.
    """
    folds = criterion.groups
    held_out = solution.held_out_residuals(lam.reshape(1, -1), folds)[0]
    counted = counted_residuals(held_out, solution.factor.weights, folds)
    losses = mean_losses(criterion, solution.labels.Y, counted, lam)
    return losses.of_chosen.standard_error.reshape(lam.shape)
