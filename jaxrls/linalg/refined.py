"""Inverses to the precision of their products, from Cholesky factors in float32.

A Cholesky factor in float32 of G, with a little added to its diagonal, brings W G Wᵀ as near to the
identity as rounding in float32 lets it; that product is made in the precision of G, and what is
left of it is factored again. Two such steps do for condition numbers to 1e8, three to 1e13, and a
polynomial for the last digits. Nothing but products is asked of the wide precision: devices that
have no float64 make these of pairs of float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.linalg.inverses import rule_of_inverse, rule_of_solve_diag, triangular_inverse
from jaxrls.linalg.products import matmul

# Steps at most. The distance from the identity, ‖·‖ by all entries, that leaves the polynomial
# 2e-11; where it stays above the second nothing is right.
STEPS, CLOSE, USELESS = 6, 3e-3, 0.1


def inverse_root(G: Float[Array, "n n"]) -> tuple[Array, Array, Array]:
    """B with B G Bᵀ = I of a symmetric positive definite G, log |G|, and ‖W G Wᵀ − I‖ after every
    step, NaN after the last; NaN where steps do not bring it there, as G is not positive definite
    to its rounding.

    **Cost** a Cholesky factor and its inverse in float32 and three products a step, but two in the
    first, and three at the end: 16n³ flops in the dtype of G where two steps do. **Source**: Rump
    2009, "Inversion of extremely ill-conditioned matrices in floating-point"; Ogita and Oishi 2012,
    "Accurate and robust inverse Cholesky factorization"."""
    eye = jnp.eye(len(G), dtype=G.dtype)

    def step(state):
        """F to WFWᵀ with a W that brings it near I; in the first one W is B."""
        number, logdet, distances, F, *B = state
        W = _narrow_root(F)
        F = matmul(matmul(W, F), W.T)
        F = (F + F.T) / 2
        logdet = logdet - 2 * jnp.sum(jnp.log(jnp.diagonal(W)))
        distances = distances.at[number].set(jnp.linalg.norm(F - eye))
        return number + 1, logdet, distances, F, matmul(W, B[0]) if B else W

    def unfinished(state):
        number, _, distances, *_ = state
        return (distances[number - 1] > CLOSE) & (number < STEPS)

    distances = jnp.full(STEPS, jnp.nan, G.dtype)
    first = step((jnp.zeros((), int), jnp.zeros((), G.dtype), distances, G))
    number, logdet, distances, F, B = jax.lax.while_loop(unfinished, step, first)
    rest = F - eye  # (I + rest)^(-1/2) is I − rest/2 + 3 rest²/8 − 5 rest³/16, to its fourth power
    square = matmul(rest, rest)
    B = B - matmul(rest / 2 - 0.375 * square + 0.3125 * matmul(rest, square), B)
    series = rest * square / 3 - rest * rest / 2 - square * square / 4
    logdet = logdet + jnp.trace(rest) + jnp.sum(series)
    sound = distances[number - 1] <= USELESS
    return jnp.where(sound, B, jnp.nan), jnp.where(sound, logdet, jnp.nan), distances


def _narrow_root(F):
    """W with W F Wᵀ near I, from F with ones on its diagonal and √n·eps added to them, and taken
    off again of what is 1.
    """
    length, eps = jnp.sqrt(jnp.diagonal(F)), float(jnp.finfo(jnp.float32).eps)
    ridge = 4 * len(F) ** 0.5 * eps
    scaled = (F / length[:, None] / length).astype(jnp.float32)
    scaled = scaled + ridge * jnp.eye(len(F), dtype=jnp.float32)
    W = triangular_inverse(jax.lax.linalg.cholesky(scaled, symmetrize_input=False))
    return (1 + ridge) ** 0.5 * W.astype(F.dtype) / length


@jax.custom_jvp
def refined_inverse(G: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`inverse` by `inverse_root`."""
    B = inverse_root(G)[0]
    return matmul(B.T, B)


@jax.custom_jvp
def refined_solve_diag(
    K: Float[Array, "n n"], shift: Float[Array, ""], B: Float[Array, "n k"]
) -> tuple[Float[Array, "n k"], Float[Array, " n"], Float[Array, ""], Float[Array, " steps"]]:
    """`solve_diag` by `inverse_root`, and the distances of its steps."""
    R, logdet, distances = inverse_root(K + shift * jnp.eye(len(K), dtype=K.dtype))
    return matmul(R.T, matmul(R, B)), jnp.sum(R * R, axis=0), logdet, distances


refined_inverse.defjvp(rule_of_inverse(refined_inverse))
refined_solve_diag.defjvp(
    rule_of_solve_diag(refined_solve_diag, refined_inverse), symbolic_zeros=True
)
