"""Criteria that leave nothing out: generalised cross-validation and the evidence, from sums over
the whole fit.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.criteria.criterion import Criterion, Positive, evaluate
from jaxrls.factors.contract import Factor
from jaxrls.support.checks import Listed
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pytrees import pytree


@pytree
class GCV(Positive):
    """(Σ vᵢ rᵢ² / Σ vᵢ) / (1 − df/n)²: `gcv` as a criterion.

    >>> import jaxrls as rls
    >>> rls.GCV().larger_is_better
    False
    """

    name = "gcv"
    of_sums = of_some_rows = True

    def values(self, solution, lams, kernel):
        """From the residual norm and its degrees of freedom, of which one row with an intercept has
        none, as nothing is left without it.
        """
        del kernel
        factor = solution.factor
        factor.fixed.check_rest(factor.weights, None)
        weights = solution.factor.weights
        share = solution.residual_dof(lams) / weights.count
        return solution.with_rest(solution.residual_norm(lams) / weights.total / share**2)


@pytree
class Evidence(Criterion):
    """log p(y): `log_marginal_likelihood` as a criterion, of which more is better.

    >>> import jaxrls as rls
    >>> rls.Evidence().larger_is_better
    True
    """

    name = "log_marginal_likelihood"
    larger_is_better = True
    of_sums = of_some_rows = True
    keeps_all_rows = True

    def values(self, solution, lams, kernel):
        """−½ (data fit + log determinant + constants)."""
        del kernel
        factor = solution.factor
        constant = factor.weights.log_product - factor.residual_dimensions() * jnp.log(2 * jnp.pi)
        return 0.5 * (
            constant - factor.fixed.log_volume - solution.data_fit(lams) - solution.logdet(lams)
        )

    def to_search(self, error, n):
        """Per row."""
        return error / n

    def from_search(self, value, n):
        """Of all rows."""
        return value * n


@on_any_mesh
def gcv(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lams: Float[Array, " L"] | Float[Array, "L t"] | Listed,
) -> Float[Array, "L *t"]:
    """Generalised cross-validation at every λ: leave-one-out with every leverage replaced by their
    mean.

    GCV(λ) = (Σ vᵢ rᵢ² / Σ vᵢ) / (1 − df(λ)/n)², with r the training residuals and n the number of
    rows of positive weight. Unlike LOO it does not depend on the basis the data are written in.

    **Shapes**: Y (n,) or (n, t), lams (L,), or (L, t) with a λ for each target, give (L,) or (L,
    t), squared units of Y. **Cost** O(r L t). **Raises** as `loo`, and so for one row of positive
    weight with an intercept: NaN inside `jax.jit`. **Fails**: where squares of labels leave the
    range of the dtype, as `squared_error` says. **Source**: Golub, Heath and Wahba 1979, eq. 1.4.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.gcv(rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False), jnp.array([1.0, 3.0]), jnp.array([1.0])).tolist()
    [5.0]
    """
    return evaluate(GCV(), factor, Y, lams)


@on_any_mesh
def log_marginal_likelihood(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lams: Float[Array, " L"] | Float[Array, "L t"] | Listed,
) -> Float[Array, "L *t"]:
    """Log evidence of the Gaussian process y ~ N(0, K + λ V⁻¹), V the weights: larger is better.

    −½ yᵀG⁻¹y − ½ log |G| − (n/2) log 2π. With an intercept, the restricted likelihood under a flat
    prior on it. The noise level is λ and the signal's scale is the kernel's: unlike LOO, the choice
    depends on both.

    **Shapes**: Y (n,) or (n, t), lams (L,), or (L, t) with a λ for each target, give (L,) or (L,
    t), in nats. **Cost** O(r L t). **Raises** as `loo`. **Source**: Rasmussen and Williams 2006,
    eq. 2.30; with intercept, Patterson and Thompson 1971.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> lml = rls.log_marginal_likelihood(rls.factorize(rls.Precomputed(), jnp.eye(1), intercept=False), jnp.array([0.0]), jnp.array([1.0]))
    >>> round(float(lml[0]), 4)
    -1.2655
    """
    return evaluate(Evidence(), factor, Y, lams)
