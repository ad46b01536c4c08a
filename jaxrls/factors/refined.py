"""λ below what float32 can tell, from decompositions in float32: the Cholesky route with
`linalg.refined` in place of its factor and inverse.

Rows, K and vectors are in the dtype of X, which is to be float64; what takes more than products is
done in float32. Everything that a Cholesky factor of K answers, this one does, derivatives
included."""

import jax.numpy as jnp

from jaxrls.factors.cholesky import CholeskyGram
from jaxrls.factors.contract import Coefficients, Outcome, Report
from jaxrls.linalg.conjugate import ALL_STEPS, CONVERGED, Run
from jaxrls.linalg.inverses import CLOSE, refined_inverse, refined_solve_diag
from jaxrls.support.pytrees import pytree


@pytree
class RefinedGram(CholeskyGram):
    """(K̃ + λI)⁻¹ in the precision of products, at one λ after another: about 16n³ flops each in
    products, and n³ in float32.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.eye(3), solver=rls.Refined())
    >>> rls.loo(factor, jnp.arange(3.0), jnp.array([0.1, 1.0])).shape
    (2,)
    """

    @property
    def report(self):
        """That of a Cholesky factor in this dtype."""
        said = super().report
        return Report("refined", said.floor, said.indefinite)

    def spread(self, lam):
        """Not by a factor in float32."""
        raise ValueError(self._lacks("tells no variances"))

    def solve_diag(self, lam, B):
        """By `inverse_root`."""
        return refined_solve_diag(*self._system(lam), B)

    def inverse(self, G):
        """By `inverse_root`."""
        return refined_inverse(G)

    def outcome(self, solution, lam, groups, fn):
        """All from one inverse, and how it was come by: `residuals` of the run are distances from
        the identity.
        """

        def at(lam, one):
            at = self.at(one, lam)
            return self.found(at, one), *at.residuals, at.dof[None], at.distances[:, None]

        (coef, beta), r, R, dof, distances = solution.per_target(lam[0], at)
        count = jnp.sum(jnp.isfinite(distances), axis=0)
        last = jnp.take_along_axis(distances, jnp.maximum(count - 1, 0)[None], axis=0)[0]
        run = Run(last, distances, jnp.max(count), jnp.where(last <= CLOSE, CONVERGED, ALL_STEPS))
        plain = groups is None and self.weights.values is None
        e = (r / R)[None] if plain else solution.residuals(lam, groups)
        found = Coefficients(coef[None], *self.fixed.apart(beta[None]))
        return Outcome(found, e, self.weights.count - dof[None], None, run)
