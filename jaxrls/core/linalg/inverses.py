"""Inverses of positive definite matrices whose derivatives are exact to any order and cost few
products.

One λ needs no spectrum: a Cholesky factor and its inverse take the eigendecomposition's place, and
dG⁻¹ = −G⁻¹ dG G⁻¹ never divides by gaps between eigenvalues. The work is in matrix products of
blocks, each half as large as its plain form, for symmetry.

Theory: `docs/theory.md`, "Gradients".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from jaxrls.core.linalg.products import (
    Number,
    Square,
    diagonal_of,
    from_panels,
    matmul,
    panels,
    transposed_matmul,
)

# Below this size a triangular inverse is left to the library's solver.
LEAF = 512


def triangular_inverse(L: Square) -> Square:
    """L⁻¹ of a lower triangular L, by halves: two products of half the size at each level, 2n³/3
    flops.
    """
    n = L.shape[0]
    if n <= LEAF:
        return jax.lax.linalg.triangular_solve(
            L, jnp.eye(n, dtype=L.dtype), left_side=True, lower=True
        )
    half = n // 2
    A = triangular_inverse(L[:half, :half])
    C = triangular_inverse(L[half:, half:])
    B = -matmul(C, matmul(L[half:, :half], A))
    return jnp.block([[A, jnp.zeros((half, n - half), L.dtype)], [B, C]])


def _cholesky(G: Square) -> Square:
    """L with LLᵀ = G, of which Gᵀ is handed over: in LAPACK's column order that is G as it lies,
    and needs no copy.
    """
    return jax.lax.linalg.cholesky(G.T, symmetrize_input=False)


@jax.custom_jvp
def inverse(G: Square) -> Square:
    """G⁻¹ of a symmetric positive definite G; NaN where G is not, to working precision. 1.6n³
    flops.
    """
    W = triangular_inverse(_cholesky(G))
    ends = panels(len(G))
    # Half of the zeros of W are left out: entry (i, j) of WᵀW sums over rows k ≥ max(i, j) only.
    return from_panels([transposed_matmul(W[a:, a:b], W[a:, :b]) for a, b in ends])


def rule_of_inverse(inverse: Callable[[Square], Square]) -> Callable:
    """The derivative of a way to invert: dG⁻¹ = −G⁻¹ dG G⁻¹."""

    def rule(primals: tuple, tangents: tuple) -> tuple[Square, Square]:
        (G,) = primals
        (dG,) = tangents
        P = inverse(G)
        return P, -matmul(matmul(P, dG), P)

    return rule


inverse.defjvp(rule_of_inverse(inverse))


class InverseParts(NamedTuple):
    """What validation at one λ needs of G⁻¹."""

    times_B: Float[Array, "n k"]  # G⁻¹B
    diagonal: Float[Array, " n"]  # of G⁻¹
    logdet: Number  # log |G|


@jax.custom_jvp
def solve_diag(K: Square, shift: Number, B: Float[Array, "n k"]) -> InverseParts:
    """G⁻¹B, diag G⁻¹ and log |G| of a positive definite G = K + shift·I.

    The derivative takes one more product, half as large for symmetry, and nests to any order; that
    in the shift alone takes none. dK must be symmetric, as it is for every function that returns a
    symmetric K."""
    L = _cholesky(K + shift * jnp.eye(K.shape[0], dtype=K.dtype))
    W = triangular_inverse(L)
    logdet = 2 * jnp.sum(jnp.log(diagonal_of(L)))
    return InverseParts(cho_solve((L, True), B), jnp.sum(W * W, axis=0), logdet)


def rule_of_solve_diag(solve_diag: Callable, inverse: Callable[[Square], Square]) -> Callable:
    """The derivative of a way to solve, by one to invert; what it gives besides is constant."""

    def rule(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
        K, shift, B = primals
        dK, dshift, dB = tangents
        P = inverse(K + shift * jnp.eye(K.shape[0], dtype=K.dtype))
        parts = solve_diag(K, shift, B)
        X = parts.times_B
        p = parts.diagonal
        dX, dp, dlogdet, *rest = map(jnp.zeros_like, parts)
        # Of what nothing that is being differentiated reaches there is no tangent.
        moves = lambda tangent: not isinstance(tangent, jax.custom_derivatives.SymbolicZero)
        if moves(dB):
            dX = dX + dB
        if moves(dshift):
            dX = dX - dshift * X
            dp = dp - dshift * jnp.sum(P * P, axis=0)
            dlogdet = dlogdet + dshift * jnp.sum(p)
        if moves(dK):
            dX = dX - matmul(dK, X)
            dp = dp - _sandwich_diagonal(P, dK)
            dlogdet = dlogdet + jnp.sum(P * dK)
        return parts, type(parts)(matmul(P, dX), dp, dlogdet, *rest)

    return rule


solve_diag.defjvp(rule_of_solve_diag(solve_diag, inverse), symbolic_zeros=True)


def _sandwich_diagonal(P: Square, D: Square) -> Float[Array, " n"]:
    """diag(P D P) for symmetric P and D, from the blocks of D at and below its diagonal.

    Its transpose, the one large product of a gradient, then fills just those blocks: half of P
    diag(b) P. `split` is transposed to a concatenation, where slices would be to sums of n×n
    arrays, and Pᵀ = P to a product along rows, the faster one on CPUs."""
    n = P.shape[0]
    ends = panels(P.shape[0])
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


def whitened(
    U: Float[Array, "n q"], H: Float[Array, "n q"]
) -> tuple[Float[Array, "n q"], Float[Array, "q q"]]:
    """UL⁻ᵀ and L⁻¹ with LLᵀ = HᵀU, so that U(HᵀU)⁻¹Uᵀ is the product of the first with its
    transpose. A column of H that is 0, as of a level without weight, is ignored.
    """
    empty = (jnp.sum(H * H, axis=0) == 0).astype(H.dtype)
    S = matmul(H.T, U) + jnp.diag(empty)
    root = 1 / jnp.sqrt(S) if len(S) == 1 else triangular_inverse(jnp.linalg.cholesky(S))
    return matmul(U, root.T), root
