"""Matrix products at full precision, in the memory order that is faster on the platform.

XLA's products on CPUs are up to twice as fast if the left factor is stored row by row. Symmetric
products compute only block rows up to the diagonal, which are called panels.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.support import platform

Number = Float[Array, ""]
Square = Float[Array, "n n"]
HIGHEST = jax.lax.Precision.HIGHEST


def matmul(a: Float[Array | np.ndarray, "..."], b: Float[Array | np.ndarray, "..."]) -> Array:
    """Return a @ b at the highest precision.

    JAX's default is TF32 on recent GPUs and bfloat16 on TPUs, which is too rough for distances.
    """
    return jnp.matmul(a, b, precision=HIGHEST)


def diagonal_of(A: Square) -> Float[Array, " n"]:
    """Return the diagonal of a square matrix by one operation. `jnp.diagonal` takes twenty."""
    return jnp.einsum("ii->i", A)


# If either factor has fewer columns than this, the other is not transposed in memory first: that
# would cost as much as it saves.
FEW_COLUMNS = 128
# The number m of block rows of a symmetric product. The work is (m + 1)/2m of the full product.
PANELS = 4


def transposed_matmul(A: Float[Array, "n a"], B: Float[Array, "n b"]) -> Float[Array, "a b"]:
    """Return AᵀB. On CPUs it is computed along the rows of A, which is faster, and several times as
    fast if B has one column.
    """
    return _along_rows(A, B) if platform() == "cpu" else matmul(A.T, B)


@jax.custom_jvp
def _along_rows(A: Float[Array, "n a"], B: Float[Array, "n b"]) -> Float[Array, "a b"]:
    """Return AᵀB, as (BᵀA)ᵀ for few columns B, else with A transposed in memory first."""
    if B.shape[1] < FEW_COLUMNS:
        return _transposed(matmul(B.T, A))
    if A.shape[1] < FEW_COLUMNS:
        return matmul(A.T, B)
    return matmul(_transposed(A), B)


@_along_rows.defjvp
def _along_rows_jvp(
    primals: tuple, tangents: tuple
) -> tuple[Float[Array, "a b"], Float[Array, "a b"]]:
    A, B = primals
    dA, dB = tangents
    # Reverse mode transposes these two products, and the transposes read along rows.
    return _along_rows(A, B), matmul(dA.T, B) + matmul(A.T, dB)


def _transposed(A: Float[Array, "n a"]) -> Float[Array, "a n"]:
    """Return Aᵀ, laid out in memory in this order."""
    # Without the barrier XLA would merge the transposition into the product.
    return jax.lax.optimization_barrier(A.T)


@jax.custom_jvp
def tall_matmul(A: Float[Array, "n a"], B: Float[Array, "a b"]) -> Float[Array, "n b"]:
    """Return AB for an A of many rows.

    The gradient in B is AᵀC for a cotangent C. It is computed like `transposed_matmul(A, C)`.
    """
    return matmul(A, B)


@tall_matmul.defjvp
def _tall_matmul_jvp(
    primals: tuple, tangents: tuple
) -> tuple[Float[Array, "n b"], Float[Array, "n b"]]:
    A, B = primals
    dA, dB = tangents
    pays = min(B.shape) >= FEW_COLUMNS and platform() == "cpu"
    return tall_matmul(A, B), tall_matmul(dA, B) + matmul(_transposed(A).T if pays else A, dB)


def panels(n: int) -> list[tuple[int, int]]:
    """Return the first row and the end row of every block row of a symmetric n×n product.

    There are PANELS block rows, or one if n is small.
    """
    height = -(-n // PANELS) if n > PANELS * FEW_COLUMNS else n
    return [(start, min(start + height, n)) for start in range(0, n, height)]


def gram_panels(
    A: Float[Array, "n m"], B: Float[Array, "n m"] | None = None
) -> list[Float[Array, "_ _"]]:
    """Return the block rows, up to the diagonal, of AᵀA or of a symmetric AᵀB.

    The results of several blocks of rows may be added before `from_panels` makes a matrix of them.
    """
    right = A if B is None else B
    return [
        transposed_matmul(A[:, start:stop], right[:, :stop]) for start, stop in panels(A.shape[1])
    ]


def from_panels(rows: list[Float[Array, "_ _"]]) -> Float[Array, "m m"]:
    """Return the symmetric matrix whose block rows up to the diagonal are `rows`."""
    m = rows[-1].shape[1]
    lower = jnp.concatenate([jnp.pad(row, ((0, 0), (0, m - row.shape[1]))) for row in rows])
    return jnp.tril(lower) + jnp.tril(lower, -1).T


def safe_sqrt(x: Any) -> Float[Array, "..."]:
    """Return √x, with the derivative 0 at x = 0 instead of infinity."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def at_least_tiny(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Return x with numbers below the smallest normal number replaced by it, to divide by it."""
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)


@jax.custom_jvp
def reciprocal(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Return 1/x, with a derivative −dx/x² that is finite even if x² underflows or overflows."""
    return 1 / x


@reciprocal.defjvp
def _reciprocal_jvp(
    primals: tuple, tangents: tuple
) -> tuple[Float[Array, "*s"], Float[Array, "*s"]]:
    (x,) = primals
    (dx,) = tangents
    inverse = reciprocal(x)
    return inverse, -inverse * (inverse * dx)
