"""Generalised cross-validation, from sums over the whole fit.

Theory: `docs/theory.md`, "Criteria".
"""

from jaxtyping import Array, Float

from jaxrls.core.criteria.criterion import Positive
from jaxrls.core.factors import Solution
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import pytree


@pytree
class GCV(Positive):
    """Generalised cross-validation: leave-one-out with every leverage replaced by their mean.

    GCV(λ) = (Σ vᵢ rᵢ² / Σ vᵢ) / (1 − df(λ)/n)². Here r are the training residuals and n is the
    number of rows of positive weight. It is in squared units of Y. Unlike the leave-one-out error,
    GCV does not change if an orthogonal matrix mixes the rows and their labels.

    **Cost** O(r L t). **Fails**: if squares of labels leave the range of the dtype, as in
    `squared_error`. **Source**: Golub, Heath and Wahba 1979, eq. 1.4.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.gcv(factor, jnp.array([1.0, 3.0]), [1.0]).tolist()
    [5.0]
    """

    name = "gcv"
    title = "GCV error"
    needs_only_sums = fits_samples = ignores_offset = True

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return GCV, from the norm of the residuals and their degrees of freedom.

        It is NaN, or an error outside `jax.jit`, if the fixed effects cannot be fitted without some
        row. An intercept and a single row are such a case.
        """
        weights = solution.factor.weights
        share = solution.residual_dof(lams) / weights.count
        return solution.nan_where_rank_drops(
            solution.residual_norm(lams) / weights.total / share**2
        )


gcv = GCV()
