"""λ below what float32 can tell, from decompositions in float32: the Cholesky route with `linalg.refined` in place of its factor and inverse.

Rows, K and vectors are in the dtype of X, which is to be float64; what takes more than products is done in float32. Everything that a Cholesky factor
of K answers, this one does, derivatives included.
"""

import jax.numpy as jnp

from jaxrls.factors.cholesky import CholeskyGram, GramSolution
from jaxrls.factors.contract import Factor, Report
from jaxrls.factors.outcome import Coefficients, Outcome
from jaxrls.linalg.conjugate import ALL_STEPS, CONVERGED, Run
from jaxrls.linalg.refined import CLOSE, refined_inverse, refined_solve_diag
from jaxrls.support.pytrees import pytree


@pytree
class RefinedGram(CholeskyGram):
    """(K̃ + λI)⁻¹ in the precision of products, at one λ after another: about 16n³ flops each in products, and n³ in float32.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.eye(3), route="refined")
    >>> rls.loo(factor, jnp.arange(3.0), jnp.array([0.1, 1.0])).shape
    (2,)
    """

    @property
    def report(self):
        """That of a Cholesky factor in this dtype."""
        said = super().report
        return Report("refined", said.floor, said.indefinite)

    @property
    def route(self):
        """How it was made."""
        return "refined"

    def spread(self, lam):
        """Not by a factor in float32."""
        return Factor.spread(self, lam)

    def solve_labels(self, labels):
        """Nothing yet: the work begins with λ."""
        return RefinedSolution(self, labels)


@pytree
class RefinedSolution(GramSolution):
    """A `RefinedGram` with labels."""

    factor: RefinedGram

    def _solve_diag(self, lam, B):
        return refined_solve_diag(*self._system(lam), B)

    def _inverse(self, G):
        return refined_inverse(G)

    def outcome(self, lam, groups=None, fn=None):
        """All from one inverse, and how it was come by: `residuals` of the run are distances from the identity."""
        del fn
        parts = self._each(
            lambda at, lam: (*self._coefficients(at, lam), self._residuals(at, lam), self._residual_dof(at, lam), at.distances), lam
        )
        coef, intercept, e, residual_dof, (distances,) = parts
        count = jnp.sum(jnp.isfinite(distances), axis=0)
        last = jnp.take_along_axis(distances, jnp.maximum(count - 1, 0)[None], axis=0)[0]
        run = Run(last, distances, jnp.max(count), jnp.where(last <= CLOSE, CONVERGED, ALL_STEPS))
        e = e if groups is None else self.residuals(lam, groups)
        return Outcome(Coefficients(coef, intercept), e, self.factor.weights.count - residual_dof, None, run)
