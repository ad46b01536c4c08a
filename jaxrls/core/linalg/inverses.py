"""Inverses of positive definite matrices whose derivatives are exact to any order and cost few
products.

One λ needs no spectrum: a Cholesky factor and its inverse take the eigendecomposition's place, and
dG⁻¹ = −G⁻¹ dG G⁻¹ never divides by gaps between eigenvalues. The work is in matrix products of
blocks, each half as large as its plain form, for symmetry.

Theory: `docs/theory.md`, "Gradients".
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from jaxrls.core.linalg.products import from_panels, matmul, panels, transposed_matmul

# Below this size a triangular inverse is left to the library's solver.
LEAF = 512


def triangular_inverse(L: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """L⁻¹ of a lower triangular L, by halves: two products of half the size at each level, 2n³/3
    flops.
    """
    n = L.shape[0]
    if n <= LEAF:
        return jax.lax.linalg.triangular_solve(
            L, jnp.eye(n, dtype=L.dtype), left_side=True, lower=True
        )
    half = n // 2
    A, C = triangular_inverse(L[:half, :half]), triangular_inverse(L[half:, half:])
    B = -matmul(C, matmul(L[half:, :half], A))
    return jnp.block([[A, jnp.zeros((half, n - half), L.dtype)], [B, C]])


def _cholesky(G):
    """L with LLᵀ = G, of which Gᵀ is handed over: in LAPACK's column order that is G as it lies,
    and needs no copy.
    """
    return jax.lax.linalg.cholesky(G.T, symmetrize_input=False)


@jax.custom_jvp
def inverse(G: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """G⁻¹ of a symmetric positive definite G; NaN where G is not, to working precision. 1.6n³
    flops.
    """
    W, ends = triangular_inverse(_cholesky(G)), panels(len(G))
    # Half of the zeros of W are left out: entry (i, j) of WᵀW sums over rows k ≥ max(i, j) only.
    return from_panels([transposed_matmul(W[a:, a:b], W[a:, :b]) for a, b in ends])


def rule_of_inverse(inverse):
    """The derivative of a way to invert: dG⁻¹ = −G⁻¹ dG G⁻¹."""

    def rule(primals, tangents):
        (G,), (dG,) = primals, tangents
        P = inverse(G)
        return P, -matmul(matmul(P, dG), P)

    return rule


inverse.defjvp(rule_of_inverse(inverse))


@jax.custom_jvp
def solve_diag(
    K: Float[Array, "n n"], shift: Float[Array, ""], B: Float[Array, "n k"]
) -> tuple[Float[Array, "n k"], Float[Array, " n"], Float[Array, ""]]:
    """G⁻¹B, diag G⁻¹ and log |G| of a positive definite G = K + shift·I: what validation at one λ
    needs of it.

    The derivative takes one more product, half as large for symmetry, and nests to any order; that
    in the shift alone takes none. dK must be symmetric, as it is for every function that returns a
    symmetric K."""
    L = _cholesky(K + shift * jnp.eye(K.shape[0], dtype=K.dtype))
    W = triangular_inverse(L)
    logdet = 2 * jnp.sum(jnp.log(jnp.diagonal(L)))
    return cho_solve((L, True), B), jnp.sum(W * W, axis=0), logdet


def rule_of_solve_diag(solve_diag, inverse):
    """The derivative of a way to solve, by one to invert; what it gives besides is constant."""

    def rule(primals, tangents):
        (K, shift, B), (dK, dshift, dB) = primals, tangents
        P = inverse(K + shift * jnp.eye(K.shape[0], dtype=K.dtype))
        X, p, logdet, *besides = found = solve_diag(K, shift, B)
        dX, dp, dlogdet, *rest = map(jnp.zeros_like, found)
        # Of what nothing that is being differentiated reaches there is no tangent.
        given = lambda tangent: not isinstance(tangent, jax.custom_derivatives.SymbolicZero)
        if given(dB):
            dX = dX + dB
        if given(dshift):
            dX, dp = dX - dshift * X, dp - dshift * jnp.sum(P * P, axis=0)
            dlogdet = dlogdet + dshift * jnp.sum(p)
        if given(dK):
            dX, dp = dX - matmul(dK, X), dp - _sandwich_diagonal(P, dK)
            dlogdet = dlogdet + jnp.sum(P * dK)
        return found, (matmul(P, dX), dp, dlogdet, *rest)

    return rule


solve_diag.defjvp(rule_of_solve_diag(solve_diag, inverse), symbolic_zeros=True)


def _sandwich_diagonal(P, D):
    """diag(P D P) for symmetric P and D, from the blocks of D at and below its diagonal.

    Its transpose, the one large product of a gradient, then fills just those blocks: half of P
    diag(b) P. `split` is transposed to a concatenation, where slices would be to sums of n×n
    arrays, and Pᵀ = P to a product along rows, the faster one on CPUs."""
    n, ends = P.shape[0], panels(P.shape[0])
    total = jnp.zeros(n, P.dtype)
    for (start, stop), columns in zip(
        ends, jax.lax.split(D, [b - a for a, b in ends], axis=1), strict=True
    ):
        below = jax.lax.split(columns, (start, n - start), axis=0)[1] if start else columns
        twice = jnp.where(jnp.arange(start, n) < stop, 1, 2).astype(P.dtype)
        total = total + jnp.sum(
            matmul(P[start:].T, twice[:, None] * below) * P[:, start:stop], axis=1
        )
    return total


# To the precision of products, from Cholesky factors in float32
# --------------------------------------------------------------------------------------------------
#
# A Cholesky factor in float32 of G, with a little added to its diagonal, brings W G Wᵀ as near to
# the identity as rounding in float32 lets it; that product is made in the precision of G, and what
# is left of it is factored again. Two such steps do for condition numbers to 1e8, three to 1e13,
# and a polynomial for the last digits. Nothing but products is asked of the wide precision: devices
# that have no float64 make these of pairs of float32.

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


def whitened(U: Float[Array, "n q"], H: Float[Array, "n q"]):
    """UL⁻ᵀ and L⁻¹ with LLᵀ = HᵀU, so that U(HᵀU)⁻¹Uᵀ is the product of the first with its
    transpose. A column of H that is 0, as of a level without weight, is ignored.
    """
    empty = (jnp.sum(H * H, axis=0) == 0).astype(H.dtype)
    S = matmul(H.T, U) + jnp.diag(empty)
    root = 1 / jnp.sqrt(S) if len(S) == 1 else triangular_inverse(jnp.linalg.cholesky(S))
    return matmul(U, root.T), root
