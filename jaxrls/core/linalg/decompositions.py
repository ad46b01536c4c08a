"""Eigenvalue and singular value decompositions, and how far rounding moves eigenvalues.

Derivatives of these decompositions raise an error, because they are wrong or NaN if eigenvalues
repeat or vanish.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.linalg.products import Number
from jaxrls.core.support import platform


class SpectralDerivativeError(TypeError):
    """The error raised by the derivatives of `eigh` and `svd`."""


_MESSAGE = (
    "jaxrls does not differentiate through an eigendecomposition, which divides by gaps between "
    "eigenvalues and is wrong or NaN where they repeat or vanish. For derivatives in kernel "
    "parameters, X or weights use jaxrls.objective(kernel, X, Y, lam); those in Y and λ of "
    "anything computed from a factor are exact as they stand."
)


def _refuse(*_):
    """Raise `SpectralDerivativeError`. This is the derivative rule of both decompositions."""
    raise SpectralDerivativeError(_MESSAGE)


@jax.custom_jvp
def eigh(A: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Return the eigenvalues, ascending, and the eigenvectors of a symmetric A.

    Only the lower triangle of A is read.
    """
    return jnp.linalg.eigh(A, symmetrize_input=False)


@jax.custom_jvp
def svd(
    A: Float[Array, "n d"],
) -> tuple[Float[Array, "n k"], Float[Array, " k"], Float[Array, "k d"]]:
    """Return U, σ and Vt of the thin singular value decomposition A = U diag(σ) Vt."""
    return tuple(jnp.linalg.svd(A, full_matrices=False))  # type: ignore[return-value]


eigh.defjvp(_refuse)
svd.defjvp(_refuse)


def clip_negative(s: Float[Array, " n"], removed: Number | float = 0.0) -> tuple[Any, Number]:
    """Return the eigenvalues with negative ones set to 0, and how negative the smallest was.

    Args:
        s: the eigenvalues.
        removed: how large the part is that centring removed from the matrix, in the units of s.

    Returns:
        `(clipped, below)`. `below` is minus the smallest eigenvalue, relative to the largest |s| or
        to `removed`, whichever is larger. It is 0 if no eigenvalue is negative.
    """
    largest = jnp.maximum(jnp.max(jnp.abs(s)), removed)
    below = jnp.maximum(-jnp.min(s), 0) / jnp.maximum(largest, jnp.finfo(s.dtype).tiny)
    return jnp.maximum(s, 0), below


def rounding(n: Number | float | int, largest: Float[Array, "*r"]) -> Float[Array, "*r"]:
    """Return √n·eps·largest, the error that rounding may cause in eigenvalues of an n×n matrix.

    `largest` is the largest eigenvalue. If centring removed a larger part from the matrix, which
    was rounded too, it is the size of this part.

    In measurements, ‖K − U diag(s) Uᵀ‖ was .2 to .7 of the returned value for n = 600 to 2000, and
    .3 to 1.3 for n = 160. The factor is √n and not n, because rounding errors have random signs.
    """
    return n**0.5 * float(jnp.finfo(largest.dtype).eps) * largest


# How many times `rounding` the eigenvalues of a platform's library may be off. It is 1 for LAPACK.
# cuSOLVER on an H100 was measured in one problem of 160 rows in float32. There ‖K − U diag(s) Uᵀ‖
# was 1.45 times `rounding`. At a λ of that size held-out residuals were 17 % off, ten times as much
# as with LAPACK. At three times that λ they were 2.6 % off.
EIGH_ROUNDINGS = {"gpu": 4.0}


def eigh_rounding(n: Number | float | int, largest: Float[Array, "*r"]) -> Float[Array, "*r"]:
    """Return `rounding` for eigenvalues that the library of the current platform computes."""
    return EIGH_ROUNDINGS.get(platform(), 1.0) * rounding(n, largest)
