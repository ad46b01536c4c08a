"""The fitted function f, as a pytree of arrays that evaluates f on new rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import FixedEffects, Rows, kernel_times
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import pytree

Numbers = Array | np.ndarray  # NumPy arrays in the results of fits to float64 NumPy data


@pytree
class Function:
    """A fitted function f: a sum of kernel values, or a linear function of explicit features.

        f(x) = Σⱼ k(x, pointsⱼ) coefⱼ + constant    with points
        f(x) = ⟨φ(x), coef⟩ + constant              without points

    Fixed effects b(x) of a row add b(x)·beta. The last three arguments are None if the fit has no
    fixed effects except the constant.

    Args:
        kernel: the kernel k.
        points: rows (c, d), dense or sparse; None if `coef` are weights of explicit features φ.
        coef: coefficients (c,) or (c, t).
        constant: () or (t,); 0 if none is fitted.
        free: coefficients (p,) or (p, t) of the fixed effects as the user gave them.
        effects: the `FixedEffects`, without the values of the fitted rows.
        beta: coefficients (p,) or (p, t) of the columns b(x) that `effects` makes of the fixed
            effects of a row.
    """

    kernel: Kernel
    points: Any
    coef: Float[Numbers, "c *t"]
    constant: Float[Numbers, "*t"]
    free: Float[Numbers, "p *t"] | None = None
    effects: FixedEffects | None = None
    beta: Float[Numbers, "p *t"] | None = None

    def values(
        self, rows: Rows, columns: Any = None, block_size: int | None = None
    ) -> Float[Array, "m *t"]:
        """Return f of every row with its fixed effects, (m,) or (m, t), in blocks of rows.

        `columns` is what `effects.new_values` returns for the rows.
        """
        by_kernel = self._linear_in_features if self.points is None else self._sum_of_kernels
        by_effects: Any = self.constant
        if self.effects is not None:
            by_effects = by_effects + self.effects.varying(columns, jnp.asarray(self.beta))
        return by_kernel(rows, block_size) + by_effects

    def _sum_of_kernels(self, rows: Rows, block_size: int | None) -> Float[Array, "m *t"]:
        """Return Σⱼ k(x, pointsⱼ) coefⱼ for every row x."""
        points = jax.tree.map(jnp.asarray, self.points)
        return kernel_times(self.kernel, rows, points, jnp.asarray(self.coef), block_size)

    def _linear_in_features(self, rows: Rows, block_size: int | None) -> Float[Array, "m *t"]:
        """Return ⟨φ(x), coef⟩ for every row x. Raise if φ(x) and coef differ in length."""
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
