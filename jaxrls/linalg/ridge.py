"""The Cholesky factor of a matrix that is positive semidefinite but for rounding, with as small a
ridge as makes it exist.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LARGEST_RIDGE = 0.1


def ridged_cholesky(K: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Float[Array, ""]]:
    """L with LLᵀ = K + ridge·diag K, and the ridge: the first of 0, f, 4f, 16f … whose pivots are
    all above f/2, with f = 2√m·eps.

    A floor relative to each diagonal entry does not depend on the kernel's scale, and leaves a K
    that needs no help exactly alone. The ridge counts as a constant in derivatives."""
    diag = jnp.diagonal(K)
    diag = jnp.where(
        diag > 0, diag, jnp.max(diag)
    )  # k(x, x) = 0 is a landmark that does nothing: a column of 0
    floor = jnp.asarray(2 * K.shape[0] ** 0.5 * jnp.finfo(K.dtype).eps, K.dtype)
    i = jnp.arange(K.shape[0])
    K = K.at[i, i].set(diag)

    def factor(K, diag, ridge):
        return jnp.linalg.cholesky(K.at[i, i].add(ridge * diag))

    known, known_diag = jax.lax.stop_gradient((K, diag))

    def failed(state):
        L, ridge = state
        return ~jnp.all(jnp.diagonal(L) ** 2 >= floor / 2 * known_diag) & (ridge < LARGEST_RIDGE)

    def enlarge(state):
        ridge = jnp.maximum(4 * state[1], floor)
        return factor(known, known_diag, ridge), ridge

    start = jnp.zeros_like(floor)
    _, ridge = jax.lax.while_loop(failed, enlarge, (factor(known, known_diag, start), start))
    return factor(K, diag, ridge), ridge
