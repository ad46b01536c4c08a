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
from jaxrls.support.pytrees import pytree

# Steps at most. The distance from the identity, ‖·‖ by all entries, that leaves the polynomial
# 2e-11; where it stays above the second nothing is right.
STEPS, CLOSE, USELESS = 6, 3e-3, 0.1


@pytree
class Rooted:
    """B with BᵀB = G⁻¹ and log |G|, and ‖W G Wᵀ − I‖ after every step, NaN after the last."""

    root: Float[Array, "n n"]
    logdet: Float[Array, ""]
    distances: Float[Array, " steps"]


@pytree
class _Step:
    number: Array
    product: Float[Array, "n n"]  # B G Bᵀ
    root: Float[Array, "n n"]
    logdet: Float[Array, ""]
    distances: Float[Array, " steps"]


def inverse_root(G: Float[Array, "n n"]) -> Rooted:
    """B with B G Bᵀ = I of a symmetric positive definite G; NaN where steps do not bring it there,
    as G is not positive definite to its rounding.

    **Cost** a Cholesky factor and its inverse in float32 and three products a step, but two in the
    first, and three at the end: 16n³ flops in the dtype of G where two steps do. **Source**: Rump
    2009, "Inversion of extremely ill-conditioned matrices in floating-point"; Ogita and Oishi 2012,
    "Accurate and robust inverse Cholesky factorization"."""
    n, dtype = G.shape[0], G.dtype
    eye = jnp.eye(n, dtype=dtype)

    def next_step(state, root):
        W = _narrow_root(state.product)
        product = matmul(matmul(W, state.product), W.T)
        product = (product + product.T) / 2
        distance = jnp.linalg.norm(product - eye)
        logdet = state.logdet - 2 * jnp.sum(jnp.log(jnp.diagonal(W)))
        return _Step(
            state.number + 1,
            product,
            root(W),
            logdet,
            state.distances.at[state.number].set(distance),
        )

    def unfinished(state):
        last = state.distances[state.number - 1]
        return (last > CLOSE) & (state.number < STEPS)

    start = _Step(jnp.zeros((), int), G, eye, jnp.zeros((), dtype), jnp.full(STEPS, jnp.nan, dtype))
    first = next_step(start, lambda W: W)
    end = jax.lax.while_loop(
        unfinished, lambda state: next_step(state, lambda W: matmul(W, state.root)), first
    )
    rest = (
        end.product - eye
    )  # (I + rest)^(-1/2) is I − rest/2 + 3 rest²/8 − 5 rest³/16, to its fourth power
    square = matmul(rest, rest)
    root = end.root - matmul(rest / 2 - 0.375 * square + 0.3125 * matmul(rest, square), end.root)
    logdet = (
        end.logdet
        + jnp.trace(rest)
        - jnp.sum(rest * rest) / 2
        + jnp.sum(rest * square) / 3
        - jnp.sum(square * square) / 4
    )
    sound = end.distances[end.number - 1] <= USELESS
    return Rooted(jnp.where(sound, root, jnp.nan), jnp.where(sound, logdet, jnp.nan), end.distances)


def _narrow_root(F):
    """W with W F Wᵀ near I, from F with ones on its diagonal and √n·eps added to them, and taken
    off again of what is 1.
    """
    n = F.shape[0]
    length = jnp.sqrt(jnp.diagonal(F))
    ridge = 4 * n**0.5 * float(jnp.finfo(jnp.float32).eps)
    scaled = (F / length[:, None] / length[None, :]).astype(jnp.float32) + ridge * jnp.eye(
        n, dtype=jnp.float32
    )
    W = triangular_inverse(jax.lax.linalg.cholesky(scaled, symmetrize_input=False))
    return (1 + ridge) ** 0.5 * W.astype(F.dtype) / length[None, :]


@jax.custom_jvp
def refined_inverse(G: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`inverse` by `inverse_root`."""
    B = inverse_root(G).root
    return matmul(B.T, B)


@jax.custom_jvp
def refined_solve_diag(
    K: Float[Array, "n n"], shift: Float[Array, ""], B: Float[Array, "n k"]
) -> tuple[Float[Array, "n k"], Float[Array, " n"], Float[Array, ""], Float[Array, " steps"]]:
    """`solve_diag` by `inverse_root`, and the distances of its steps."""
    rooted = inverse_root(K + shift * jnp.eye(K.shape[0], dtype=K.dtype))
    R = rooted.root
    return matmul(R.T, matmul(R, B)), jnp.sum(R * R, axis=0), rooted.logdet, rooted.distances


refined_inverse.defjvp(rule_of_inverse(refined_inverse))
refined_solve_diag.defjvp(
    rule_of_solve_diag(refined_solve_diag, refined_inverse), symbolic_zeros=True
)
