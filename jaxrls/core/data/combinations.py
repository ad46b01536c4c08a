"""Combinations of the columns that a user gives as fixed effects, orthonormal over the rows.

The columns C may be far from 0 and nearly dependent. So fixed effects compute with (C − 1m) S, with
means m and an upper triangular S. Begin with the class `Combinations`. The function `orthonormal`
makes it.

Theory: `docs/theory.md`, "One matrix".
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.core.data.effects_given import Columns, GivenColumns
from jaxrls.core.data.weights import Weights
from jaxrls.core.linalg import Number, diagonal_of, matmul, triangular_inverse
from jaxrls.core.support import known_values, on_device, pytree, where_known


@pytree
class Combinations:
    """The combinations (C − 1m) S of columns C."""

    centre: Float[Array, "2 p"]  # m, as the sum of two rows
    scale: Float[Array, "p p"]  # S, upper triangular

    def of(self, C: GivenColumns) -> Columns:
        """Return (C − 1m) S of rows, from their columns C."""
        return matmul(C.about(self.centre), self.scale)

    def of_new(self, C: GivenColumns) -> Columns:
        """Return (C − 1m) S of new rows.

        Columns in NumPy stay on the host, where a new number of rows compiles nothing.
        """
        known = None if isinstance(C.rounded, jax.Array) else known_values(self)
        if known is None:
            return self.of(C)
        return on_device(np.matmul(C.about(known.centre), known.scale))

    def at_means(self, free: Any) -> Any:
        """Return m·free, () or (t,), for coefficients (p,) or (p, t) of the columns C."""
        return sum((mean * free.T).sum(axis=-1) for mean in self.centre)

    @property
    def log_volume(self) -> Number:
        """log |S|²."""
        return 2 * jnp.sum(jnp.log(diagonal_of(self.scale)))


class Independence(NamedTuple):
    """The numbers that decide whether given columns are linearly independent.

    `orthonormal` computes them, and `check_independent` looks at them. σ are the singular values of
    the columns after centring, each scaled to length 1.
    """

    gram: Float[Array, "p p"]  # a matrix with the eigenvalues σ²/(σ² + shift)
    rounding: Float[Array, " p"]  # the rounding error of each column as given, over its spread


def orthonormal(
    C: GivenColumns, weights: Weights, moves: Bool[Array, " p"]
) -> tuple[Combinations, Independence]:
    """Return combinations that are orthonormal over weighted rows, and the numbers for their check.

    m has the means of the columns that `moves` marks, and 0 for the others. A fit does not depend
    on m and S. So derivatives treat m and S as constants.
    """
    C, weights = jax.lax.stop_gradient((C, weights))
    centre = _mean_in_two(C, weights, moves)
    about = weights.scale(C.about(centre))
    scale, gram = _orthonormalizing(about)
    lengths_as_given = jnp.linalg.norm(weights.scale(C.rounded), axis=0)
    rounding = C.eps[0] * lengths_as_given / jnp.linalg.norm(about, axis=0)
    return Combinations(centre, scale), Independence(gram, rounding)


def _mean_in_two(
    C: GivenColumns, weights: Weights, moves: Bool[Array, " p"]
) -> Float[Array, "2 p"]:
    """Return the means of columns as the sum of two rows, (2, p).

    The second row is the mean of the columns minus the first row. It corrects the rounding error of
    the first. Both are 0 for columns that `moves` does not mark.
    """
    mean = lambda A: jnp.where(moves, matmul(weights.array, A) / weights.total, 0)
    first = mean(C.rounded)
    nothing = jnp.zeros_like(first)
    second = mean(C.about(jnp.stack([first, nothing])))
    return jnp.stack([first, second])


def _orthonormalizing(A: Columns) -> tuple[Float[Array, "p p"], Float[Array, "p p"]]:
    """Return an upper triangular S such that AS has orthonormal columns, and a Gram matrix.

    Three rounds of Cholesky factors make S. They need only sums over rows. The second result is the
    Gram matrix of the columns after the first round. It serves to check their independence.

    A Gram matrix has the squares of the singular values σ. So rounding hides half of the digits of
    a small σ, and AᵀA may have no Cholesky factor. The first round scales the columns to length 1
    and adds a shift s:

        AᵀA + sI = RᵀR, and AR⁻¹ has the singular values σ/√(σ² + s).

    If σ > s, these are far enough above rounding for two rounds without a shift. Their squares,
    the eigenvalues of the second result, determine σ down to s.

    Source: Fukaya, Kannan, Nakatsukasa, Yamamoto and Yanagisawa 2020 (shifted CholeskyQR).
    """
    lengths = jnp.linalg.norm(A, axis=0)
    S = jnp.diag(1 / jnp.where(lengths > 0, lengths, 1))
    S, _ = _one_round(A, S, _shift(A.shape[1], A.dtype))
    S, gram = _one_round(A, S)
    S, _ = _one_round(A, S)
    return S, gram


def _one_round(
    A: Columns, S: Float[Array, "p p"], shift: float = 0.0
) -> tuple[Float[Array, "p p"], Float[Array, "p p"]]:
    """Return SR⁻¹ and RᵀR, where RᵀR = (AS)ᵀAS + shift·I."""
    columns = matmul(A, S)
    gram = matmul(columns.T, columns) + shift * jnp.eye(len(S), dtype=S.dtype)
    return matmul(S, triangular_inverse(jnp.linalg.cholesky(gram)).T), gram


def _shift(p: int, dtype: Any) -> float:
    """Return a bound on the rounding errors of the singular values of p columns of length 1."""
    return 64 * p * float(jnp.finfo(dtype).eps)


@where_known
def check_independent(independence: Independence, intercept: bool) -> None:
    """Raise `ValueError` if the columns are linearly dependent up to rounding."""
    columns = jax.device_get(independence)
    p = len(columns.gram)
    if not p:
        return
    shift = _shift(p, columns.gram.dtype)
    # The smallest eigenvalue is a = σ²/(σ² + shift), so that σ² = shift · a/(1 − a).
    a = np.linalg.eigvalsh(np.asarray(columns.gram, np.float64))[0]
    smallest = np.sqrt(max(a, 0) / max(1 - a, shift) * shift)
    # A column without spread has infinite rounding, or NaN if the column as given is 0.
    if not smallest > max(shift, 4 * np.max(columns.rounding)):
        constant = ", the constant of intercept=True among them," if intercept else ""
        raise ValueError(
            f"the {p + intercept} columns of fixed_effects{constant} are linearly dependent over "
            "the rows of positive weight: drop a column, or give levels(labels) for an indicator "
            "of each group"
        )
