"""A fitted function as arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import FixedEffects, Rows, kernel_times
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import pytree

Numbers = Array | np.ndarray  # NumPy's for a fit to float64 NumPy arrays


@pytree
class Function:
    """A sum of kernel values, or a linear function of explicit features.

        f(x) = Σⱼ k(x, pointsⱼ) coefⱼ + intercept, or ⟨φ(x), coef⟩ + intercept without points

    Args:
        kernel: the kernel k.
        points: rows (c, d), dense or sparse, or None for weights of explicit features.
        coef: coefficients (c,) or (c, t).
        intercept: () or (t,).
        free: coefficients of fixed effects (p,) or (p, t), None without.
        effects: what the fixed effects are, without their rows; None without.
        beta: coefficients (q,) or (q, t) of the columns that `effects` makes of fixed effects, an
            intercept among them; None without.
    """

    kernel: Kernel
    points: Any
    coef: Float[Numbers, "c *t"]
    intercept: Float[Numbers, "*t"]
    free: Float[Numbers, "p *t"] | None = None
    effects: FixedEffects | None = None
    beta: Float[Numbers, "q *t"] | None = None

    def values(self, rows: Rows, block_size: int | None = None) -> Float[Array, "m *t"]:
        """f of rows, (m,) or (m, t), without what further fixed effects add; in blocks of rows."""
        if self.points is not None:
            return self._sum_of_kernels(rows, block_size) + self.intercept
        return self._linear_in_features(rows, block_size) + self.intercept

    def _sum_of_kernels(self, rows: Rows, block_size: int | None) -> Float[Array, "m *t"]:
        points = jax.tree.map(jnp.asarray, self.points)
        return kernel_times(self.kernel, rows, points, jnp.asarray(self.coef), block_size)

    def _linear_in_features(self, rows: Rows, block_size: int | None) -> Float[Array, "m *t"]:
        coef = jnp.asarray(self.coef)

        def of_block(x: Any) -> Float[Array, "b *t"]:
            x = x.astype(coef.dtype)
            count = jax.eval_shape(self.kernel.features, x).shape[1]
            if count != coef.shape[0]:
                raise ValueError(
                    f"X with {x.shape[1]} columns gives {count} features, and the model was "
                    f"fitted on {coef.shape[0]}"
                )
            products = self.kernel.times(x, coef.reshape(count, -1))
            return products.reshape(products.shape[0], *coef.shape[1:])

        return rows.map(of_block, block_size=block_size)
