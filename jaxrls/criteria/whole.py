"""Criteria that leave nothing out: generalised cross-validation and the evidence, from sums over
the whole fit.
"""

import jax.numpy as jnp

from jaxrls.criteria.criterion import Criterion, Positive
from jaxrls.support.pytrees import pytree


@pytree
class GCV(Positive):
    """Generalised cross-validation: leave-one-out with every leverage replaced by their mean.

    GCV(λ) = (Σ vᵢ rᵢ² / Σ vᵢ) / (1 − df(λ)/n)², with r the training residuals and n the number of
    rows of positive weight. Unlike LOO it does not depend on the basis the data are written in.
    In squared units of Y; O(r L t). **Fails**: where squares of labels leave the range of the dtype,
    as `squared_error` says. **Source**: Golub, Heath and Wahba 1979, eq. 1.4.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.gcv(rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False), jnp.array([1.0, 3.0]), [1.0]).tolist()
    [5.0]
    """

    name = "gcv"
    of_sums = of_some_rows = True

    def values(self, solution, lams, kernel):
        """From the residual norm and its degrees of freedom, of which one row with an intercept has
        none, as nothing is left without it.
        """
        del kernel
        weights = solution.factor.weights
        share = solution.residual_dof(lams) / weights.count
        return solution.with_rest(solution.residual_norm(lams) / weights.total / share**2)


@pytree
class Evidence(Criterion):
    """Log evidence of the Gaussian process y ~ N(0, K + λ V⁻¹), V the weights: larger is better.

    −½ yᵀG⁻¹y − ½ log |G| − (n/2) log 2π. With an intercept, the restricted likelihood under a flat
    prior on it. The noise level is λ and the signal's scale is the kernel's: unlike LOO, the choice
    depends on both. In nats; O(r L t). **Source**: Rasmussen and Williams 2006, eq. 2.30; with
    intercept, Patterson and Thompson 1971.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(1), intercept=False)
    >>> round(float(rls.log_marginal_likelihood(factor, jnp.array([0.0]), [1.0])[0]), 4)
    -1.2655
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


gcv = GCV()
log_marginal_likelihood = Evidence()
