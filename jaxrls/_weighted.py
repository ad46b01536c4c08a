"""What every weighted problem shares, with or without an unpenalised intercept: its counts, its means, its √v."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls._checks import check_targets, check_weights
from jaxrls._linalg import matmul, safe_sqrt


class Weighted:
    """The part of a factor that knows only n, the weights, and whether an intercept is fitted."""

    weights: Float[Array, " n"] | None

    if TYPE_CHECKING:  # fields or properties of each factor

        @property
        def n(self) -> int: ...
        @property
        def dtype(self) -> Any: ...
        @property
        def intercept_fitted(self) -> bool: ...
        def project(self, Y) -> Any: ...
        def loo_sum(self, fn, target, lam) -> Any: ...

    @property
    def root_weights(self) -> Float[Array, " n"] | None:
        """√v, or None for weights 1."""
        return None if self.weights is None else safe_sqrt(self.weights)

    def direction(self) -> Float[Array, " n"]:
        """h = √v/‖√v‖, the constant function in the weighted problem."""
        root = jnp.ones(self.n, self.dtype) if self.weights is None else safe_sqrt(self.weights)
        return root / jnp.sqrt(self.total_weight())

    def num_rows(self) -> Float[Array, ""]:
        """The number of rows of positive weight, less one for the intercept: the dimension the fit lives in."""
        n = jnp.asarray(self.n, self.dtype) if self.weights is None else jnp.sum(self.weights > 0).astype(self.dtype)
        return n - int(self.intercept_fitted)

    def total_weight(self) -> Float[Array, ""]:
        """Σᵢ vᵢ."""
        return jnp.asarray(self.n, self.dtype) if self.weights is None else jnp.sum(self.weights)

    def center(self, Y):
        """Labels as (n, t), their weighted mean (0 without an intercept), and √v (Y − mean)."""
        check_targets("Y", Y, self.n)
        Y = jnp.asarray(Y, self.dtype).reshape(self.n, -1)
        mean = jnp.zeros(Y.shape[1], self.dtype)
        if self.intercept_fitted:
            mean = jnp.mean(Y, axis=0) if self.weights is None else matmul(self.weights, Y) / jnp.sum(self.weights)
        return Y, mean, scale_rows(self.root_weights, Y - mean)


def scale_rows(scale, A):
    """diag(scale) A, for a matrix or a vector, or A where `scale` is None."""
    return A if scale is None else A * (scale[:, None] if A.ndim == 2 else scale)


def unscale(scaled, root):
    """Residuals from scaled ones, e = ẽ/√v, and 0 for rows of weight 0; derivatives stay finite there."""
    if root is None:
        return scaled
    used = (root > 0)[:, None]
    return jnp.where(used, scaled / jnp.where(used, root[:, None], 1), 0)


def prepare_weights(weights, n, dtype):
    """Weights in the dtype of the data, checked, or None."""
    if weights is None:
        return None
    weights = jnp.asarray(weights, dtype)
    check_weights(weights, n)
    return weights
