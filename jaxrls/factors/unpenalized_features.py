"""Features, explicit or of landmarks, at one λ after another by Cholesky, with columns that have no penalty: differentiable in everything.

What the columns fit of every feature is taken off, ψ − B R⁻¹ Hᵀ√v ψ, row by row: rows bring their row of B R⁻¹ behind their columns of X.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.cholesky_features import CholeskyFeatures, FeatureSolution, map_of
from jaxrls.factors.free import Free
from jaxrls.factors.landmarks import Landmarks
from jaxrls.factors.outcome import FreeCoefficients
from jaxrls.factors.subset import left_over
from jaxrls.factors.unpenalized import Freed, FreedSolution
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import matmul, tall_matmul
from jaxrls.rows.moments import moments
from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.support.pytrees import pytree


@pytree
class Rest:
    """ψ of a row, less what the columns fit of it."""

    of: Any  # OfLandmarks or Explicit
    across: Float[Array, "q r"]  # Hᵀ√v ψ
    points: Float[Array, "m e"] | None  # the landmarks that are rows, as those are
    reads_stored = True

    def _parts(self, X):
        d = X.shape[1] - self.across.shape[0]
        return X[:, :d], X[:, d:]

    def raw(self, X):
        """That."""
        x, level = self._parts(X)
        return self.of.raw(x) - matmul(level, self.across)

    def features(self, X):
        """φ."""
        return self.raw(X) if self.back is None else tall_matmul(self.raw(X), self.back)

    def diag(self, X):
        """k(x, x)."""
        return self.of.diag(self._parts(X)[0])

    @property
    def back(self):
        """As without columns."""
        return self.of.back

    @property
    def amplified(self):
        """As without columns."""
        return self.of.amplified


@pytree
class FreedFeatures(Freed, CholeskyFeatures):
    """A `CholeskyFeatures` with such columns, which reads all rows at once: their leverage in the columns is known by their number."""

    free: Any = None

    def solve_labels(self, labels):
        """Φᵀ√v y, O(n r t)."""
        return FreedFeatureSolution(self, labels, CholeskyFeatures.solve_labels(self, labels).cross)


@pytree
class FreedFeatureSolution(FreedSolution, FeatureSolution):
    """A `FreedFeatures` with labels."""

    factor: FreedFeatures

    def coefficients(self, lams):
        """Rq, and β of the labels less f."""

        def at(seen, columns):
            coef = matmul(seen.R, seen.q)
            return FreeCoefficients(coef, *self.levels(-matmul(self.factor.map.across, coef), columns))

        return self._at(lams, at)


def solve_free_cholesky(kernel: Kernel, rows: Rows, chosen: Landmarks | None, labels: Labels, weights: Weights, free: Free):
    """The solution on explicit features, or on landmarks, with such columns."""
    (made, expansion, ridge), X, level = map_of(kernel, chosen), rows.dense(), free.level
    psi, indices, points, trace = made.raw(X), None, None, None
    across = free.along(psi)
    across = across + free.along(psi - matmul(level, across))  # once more, as rounding of the first grows with what goes
    if chosen is not None:
        trace = weights.sum(left_over(kernel, X, tall_matmul(psi, made.back)))
        indices = chosen.indices
    if indices is not None:
        points = jnp.concatenate([chosen.points, level[indices]], axis=1)  # type: ignore[union-attr]
    rest, beside = Rest(made, across, points), DenseRows(jnp.concatenate([X, level], axis=1))
    sums = moments(beside, rest, weights=weights.values, origin=jnp.zeros_like(across[0]), block_size=weights.n)
    made_of = beside, rest, sums.second, sums.origin, trace, ridge
    return FreedFeatures(*made_of, weights, expansion, indices, False, weights.n, free).solve_labels(labels)
