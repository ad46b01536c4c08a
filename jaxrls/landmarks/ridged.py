"""Cholesky factors of kernel matrices of landmarks, with as little jitter as they need."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LARGEST_RIDGE = 0.1


def ridged_cholesky(K: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Float[Array, ""]]:
    """L with LLᵀ = K + ridge·diag K, and the ridge: the first of 0, f, 4f, 16f … whose pivots are
    all above f/2, with f = 2√m·eps.

    A floor relative to each diagonal entry does not depend on the kernel's scale, and leaves a K
    that needs no help exactly alone. The ridge counts as a constant in derivatives.
    """
    diag, i = jnp.diagonal(K), jnp.arange(K.shape[0])
    # k(x, x) = 0 is a landmark that does nothing: a column of 0
    diag = jnp.where(diag > 0, diag, jnp.max(diag))
    K = K.at[i, i].set(diag)
    floor = jnp.asarray(2 * K.shape[0] ** 0.5 * jnp.finfo(K.dtype).eps, K.dtype)
    factor = lambda K, diag, ridge: jnp.linalg.cholesky(K.at[i, i].add(ridge * diag))
    known = jax.lax.stop_gradient((K, diag))

    def failed(ridge):
        pivots = jnp.diagonal(factor(*known, ridge)) ** 2
        return ~jnp.all(pivots >= floor / 2 * known[1]) & (ridge < LARGEST_RIDGE)

    enlarge = lambda ridge: jnp.maximum(4 * ridge, floor)
    ridge = jax.lax.while_loop(failed, enlarge, jnp.zeros_like(floor))
    return factor(K, diag, ridge), ridge
