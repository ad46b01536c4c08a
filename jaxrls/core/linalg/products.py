"""Matrix products at full precision, by the faster of two arrangements."""

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
    """a @ b at the highest precision: the default is TF32 on recent GPUs and bfloat16 on TPUs,
    which ruins distances.
    """
    return jnp.matmul(a, b, precision=HIGHEST)


def diagonal_of(A: Square) -> Float[Array, " n"]:
    """The diagonal of a square matrix, by one operation: `jnp.diagonal` takes twenty."""
    return jnp.einsum("ii->i", A)


# A product with fewer columns than this on either side is made as it lies: transposing would cost
# as much as it saves.
FEW_COLUMNS = 128
# Block rows of a symmetric product: with m of them the work is (m + 1)/2m of the full product.
PANELS = 4


def transposed_matmul(A: Float[Array, "n a"], B: Float[Array, "n b"]) -> Float[Array, "a b"]:
    """AᵀB, with A transposed in memory first where that pays: XLA's products on CPUs are up to
    twice as fast along rows.
    """
    if min(A.shape[1], B.shape[1]) < FEW_COLUMNS or platform() != "cpu":
        return matmul(A.T, B)
    return _along_rows(A, B)


@jax.custom_jvp
def _along_rows(A: Float[Array, "n a"], B: Float[Array, "n b"]) -> Float[Array, "a b"]:
    return matmul(_transposed(A), B)


@_along_rows.defjvp
def _along_rows_jvp(
    primals: tuple, tangents: tuple
) -> tuple[Float[Array, "a b"], Float[Array, "a b"]]:
    A, B = primals
    dA, dB = tangents
    # The transposes of these two run along rows.
    return _along_rows(A, B), matmul(dA.T, B) + matmul(A.T, dB)


@jax.custom_jvp
def _transposed(A: Float[Array, "n a"]) -> Float[Array, "a n"]:
    """Aᵀ as it lies in memory."""
    # Without the barrier the compiler takes the transposition back.
    return jax.lax.optimization_barrier(A.T)


_transposed.defjvp(lambda primals, tangents: (_transposed(*primals), tangents[0].T))


@jax.custom_jvp
def tall_matmul(A: Float[Array, "n a"], B: Float[Array, "a b"]) -> Float[Array, "n b"]:
    """A B of many rows, with a gradient in B, AᵀC, that is arranged as `transposed_matmul`
    would.
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
    """Where the block rows of a symmetric n×n product begin and end: PANELS of them, or one where n
    is small.
    """
    height = -(-n // PANELS) if n > PANELS * FEW_COLUMNS else n
    return [(start, min(start + height, n)) for start in range(0, n, height)]


def gram_panels(
    A: Float[Array, "n m"], B: Float[Array, "n m"] | None = None
) -> list[Float[Array, "_ _"]]:
    """AᵀA, or a symmetric AᵀB, as its block rows up to the diagonal, which may be summed over
    blocks of rows before `from_panels`.
    """
    right = A if B is None else B
    return [
        transposed_matmul(A[:, start:stop], right[:, :stop]) for start, stop in panels(A.shape[1])
    ]


def from_panels(rows: list[Float[Array, "_ _"]]) -> Float[Array, "m m"]:
    """The symmetric matrix of which `rows` are the block rows up to the diagonal."""
    m = rows[-1].shape[1]
    lower = jnp.concatenate([jnp.pad(row, ((0, 0), (0, m - row.shape[1]))) for row in rows])
    return jnp.tril(lower) + jnp.tril(lower, -1).T


def safe_sqrt(x: Any) -> Float[Array, "..."]:
    """√x with derivative 0, not infinity, at x = 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


@jax.custom_jvp
def reciprocal(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """1/x, whose derivative −dx/x² is finite also where x² underflows or overflows."""
    return 1 / x


@reciprocal.defjvp
def _reciprocal_jvp(
    primals: tuple, tangents: tuple
) -> tuple[Float[Array, "*s"], Float[Array, "*s"]]:
    (x,) = primals
    (dx,) = tangents
    inverse = reciprocal(x)
    return inverse, -inverse * (inverse * dx)
