"""Inverses of positive definite matrices, with derivatives that are exact to any order.

A fit at one λ needs no spectrum. A Cholesky factor and its inverse replace the eigendecomposition.
The derivative dG⁻¹ = −G⁻¹ dG G⁻¹ never divides by gaps between eigenvalues, and costs few products.
Most of the time is spent in products of blocks. Symmetry halves the work of each.

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

# A triangular matrix of at most this size is inverted by JAX's triangular solver.
LEAF = 512


def triangular_inverse(L: Square) -> Square:
    """Return L⁻¹ of a lower triangular L, in 2n³/3 flops.

    L is split into halves recursively. Each level takes two products of half the size:

        [A 0; M C]⁻¹ = [A⁻¹ 0; −C⁻¹MA⁻¹ C⁻¹]
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
    """Return the lower triangular L with LLᵀ = G."""
    # LAPACK reads matrices column by column. Gᵀ = G in that order lies in memory as G does in
    # JAX's row order, so that no copy is made.
    return jax.lax.linalg.cholesky(G.T, symmetrize_input=False)


@jax.custom_jvp
def inverse(G: Square) -> Square:
    """Return G⁻¹ of a symmetric positive definite G, in 1.6n³ flops.

    The result is NaN if G is not positive definite to working precision.
    """
    # G⁻¹ = WᵀW with the lower triangular W = L⁻¹.
    # Entry (i, j) of WᵀW sums only over rows k ≥ max(i, j). A block row of the result reads rows
    # k ≥ a, which skips half of the zeros of W.
    W = triangular_inverse(_cholesky(G))
    ends = panels(len(G))
    return from_panels([transposed_matmul(W[a:, a:b], W[a:, :b]) for a, b in ends])


def rule_of_inverse(inverse: Callable[[Square], Square]) -> Callable:
    """Return the derivative rule of a function that inverts a matrix: dG⁻¹ = −G⁻¹ dG G⁻¹."""

    def rule(primals: tuple, tangents: tuple) -> tuple[Square, Square]:
        (G,) = primals
        (dG,) = tangents
        P = inverse(G)
        return P, -matmul(matmul(P, dG), P)

    return rule


inverse.defjvp(rule_of_inverse(inverse))


class InverseParts(NamedTuple):
    """The parts of G⁻¹ that held-out residuals at one λ need."""

    times_B: Float[Array, "n k"]  # G⁻¹B
    diagonal: Float[Array, " n"]  # of G⁻¹
    logdet: Number  # log |G|


@jax.custom_jvp
def solve_diag(K: Square, shift: Number, B: Float[Array, "n k"]) -> InverseParts:
    """Return G⁻¹B, diag G⁻¹ and log |G| of a positive definite G = K + shift·I.

    The derivative takes one more product, which symmetry halves. The derivative in the shift alone
    takes no product. Derivatives nest to any order. dK must be symmetric, as it is for every
    function that returns a symmetric K.
    """
    L = _cholesky(K + shift * jnp.eye(K.shape[0], dtype=K.dtype))
    W = triangular_inverse(L)
    logdet = 2 * jnp.sum(jnp.log(diagonal_of(L)))
    return InverseParts(cho_solve((L, True), B), jnp.sum(W * W, axis=0), logdet)


def rule_of_solve_diag(solve_diag: Callable, inverse: Callable[[Square], Square]) -> Callable:
    """Return the derivative rule of a function with the arguments and results of `solve_diag`.

    With P = G⁻¹, X = PB and dG = dK + dshift·I:

        dX = P(dB − dG X)
        d diag P = −diag(P dG P)
        d log |G| = tr(P dG)

    Args:
        solve_diag: the function. It returns `InverseParts`, or a named tuple with more fields,
            whose derivatives are taken as 0.
        inverse: the function that computes P.
    """

    def rule(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
        K, shift, B = primals
        dK, dshift, dB = tangents
        P = inverse(K + shift * jnp.eye(K.shape[0], dtype=K.dtype))
        parts = solve_diag(K, shift, B)
        X = parts.times_B
        p = parts.diagonal
        zeros = jax.tree.map(jnp.zeros_like, parts)
        dX, dp, dlogdet = zeros.times_B, zeros.diagonal, zeros.logdet
        # JAX passes a SymbolicZero as the tangent of an argument that is constant. Its terms are
        # skipped.
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
        return parts, zeros._replace(times_B=matmul(P, dX), diagonal=dp, logdet=dlogdet)

    return rule


solve_diag.defjvp(rule_of_solve_diag(solve_diag, inverse), symbolic_zeros=True)


def _sandwich_diagonal(P: Square, D: Square) -> Float[Array, " n"]:
    """Return diag(P D P) for symmetric P and D.

    Only blocks of D at and below its diagonal are read. Blocks below the diagonal count twice,
    because D is symmetric. A gradient transposes this function to b ↦ P diag(b) P, its one large
    product. The transpose then computes just the blocks that were read, half of the matrix.

    Two choices make the transpose fast:

    * `split` instead of slices. Its transpose is a concatenation, while slices would become a sum
      of n×n arrays.
    * Rows of Pᵀ = P as the left side. Their transpose is a product along rows, which is faster on
      CPUs.
    """
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
    """Return UL⁻ᵀ and L⁻¹, with LLᵀ = HᵀU.

    The product of UL⁻ᵀ with its transpose is U(HᵀU)⁻¹Uᵀ. A column of H that is 0 is ignored. Levels
    of fixed effects without weight have such columns.
    """
    empty = (jnp.sum(H * H, axis=0) == 0).astype(H.dtype)
    S = matmul(H.T, U) + jnp.diag(empty)
    root = 1 / jnp.sqrt(S) if len(S) == 1 else triangular_inverse(jnp.linalg.cholesky(S))
    return matmul(U, root.T), root
