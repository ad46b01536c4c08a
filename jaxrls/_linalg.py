"""Matrix products at full precision, and decompositions that refuse to be differentiated wrongly."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

HIGHEST = jax.lax.Precision.HIGHEST


def matmul(a, b):
    """a @ b at the highest precision: the default is TF32 on recent GPUs and bfloat16 on TPUs, which ruins distances."""
    return jnp.matmul(a, b, precision=HIGHEST)


class SpectralDerivativeError(TypeError):
    """Raised in place of the derivative of eigenvectors, which is wrong or NaN where eigenvalues repeat or vanish."""


_MESSAGE = (
    "jaxrls does not differentiate through an eigendecomposition: that derivative divides by gaps between eigenvalues and is "
    "wrong or NaN where they repeat or vanish. For derivatives in kernel parameters, X or weights use "
    "jaxrls.loo_objective(kernel, X, Y, lam), or objective(criterion, ...) for the other criteria; derivatives in Y and λ "
    "of anything computed from a factor are exact as they stand."
)


def _refuse(*_):
    raise SpectralDerivativeError(_MESSAGE)


@jax.custom_jvp
def eigh(A: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues (ascending) and eigenvectors of a symmetric A, of which only the lower triangle is read."""
    Q, s = jax.lax.linalg.eigh(A, lower=True, symmetrize_input=False)
    return s, Q


@jax.custom_jvp
def svd(A: Float[Array, "n d"]) -> tuple[Float[Array, "n k"], Float[Array, " k"], Float[Array, "k d"]]:
    """Thin singular value decomposition A = U diag(σ) Vt."""
    U, sigma, Vt = jnp.linalg.svd(A, full_matrices=False)
    return U, sigma, Vt


eigh.defjvp(_refuse)
svd.defjvp(_refuse)


def safe_sqrt(x):
    """√x with derivative 0, not infinity, at x = 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)
