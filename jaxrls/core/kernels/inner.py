"""Define kernels of inner products: `Linear`, `Constant`, `Cosine`, `Tanimoto` and `Polynomial`.
Also `Sobolev`, the kernel min(x, z), and the explicit features of `Polynomial`.
"""

import math
from functools import reduce
from itertools import combinations_with_replacement
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from jaxtyping import ArrayLike as Scalars

from jaxrls.core.kernels.block import Block, Gram, as_dense, inner_products, squared_lengths, times
from jaxrls.core.kernels.kernel import Kernel, Matrix, check_not_negative, parameter
from jaxrls.core.linalg import safe_sqrt
from jaxrls.core.support import known_and, public_call, pytree, static


@pytree
class Linear(Kernel):
    """The linear kernel, whose functions are f(x) = ⟨w, x⟩. Its explicit features are X itself.

        k(x, z) = ⟨x, z⟩

    **Cost** O(n m d). **Source**: R. Rifkin, *Regularized Least Squares* (lecture), "The Linear
    Case".

    >>> import jax.numpy as jnp
    >>> Linear()(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
    [[11.0]]
    """

    takes_blocks = True

    def __call__(self, X: Matrix | Block, Z: Float[Array, "m d"] | Block) -> Gram:
        return inner_products(X, Z)

    def diag(self, X: Matrix | Block) -> Float[Array, " n"]:
        return squared_lengths(X)

    def num_features(self, d: int, dtype: Any) -> int:
        return d

    def features(self, X: Matrix | Block) -> Matrix:
        return as_dense(X)

    def times(self, X: Any, w: Float[Array, "d t"]) -> Float[Array, "n t"]:
        return times(X, w)

    def is_linear(self) -> bool:
        return True


IDENTITY = Linear()  # as a map of features, φ(x) = x


@pytree
class Constant(Kernel):
    """The constant kernel, whose functions are the constants: a penalised bias with ‖f‖² =
    f²/value.

        k(x, z) = value

    In a sum it replaces the intercept. Give `intercept=False`, because an unpenalised intercept
    would leave it nothing to fit. Its one feature is √value.

    Args:
        value: a number > 0, by default 1, as in scikit-learn's `ConstantKernel`.

    **Cost** O(n m). **Source**: Rasmussen and Williams 2006, table 4.1.

    >>> import jax.numpy as jnp
    >>> (Linear() + Constant(2.0))(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
    [[13.0]]
    """

    positive = ("value",)
    takes_blocks = True
    value: Scalars = 1.0

    def __call__(self, X: Matrix | Block, Z: Float[Array, "m d"] | Block) -> Gram:
        return jnp.broadcast_to(parameter(self, "value", X), (X.shape[0], Z.shape[0]))

    def diag(self, X: Matrix | Block) -> Float[Array, " n"]:
        return jnp.broadcast_to(parameter(self, "value", X), X.shape[:1])

    def num_features(self, d: int, dtype: Any) -> int:
        return 1

    def features(self, X: Matrix | Block) -> Float[Array, "n 1"]:
        return jnp.broadcast_to(safe_sqrt(parameter(self, "value", X)), (X.shape[0], 1))


@pytree
class Cosine(Kernel):
    """The cosine kernel, as scikit-learn's `cosine_similarity`.

        k(x, z) = ⟨x, z⟩ / (‖x‖ ‖z‖), and 0 for rows of zeros

    The length of rows does not matter, which suits texts of different lengths. The features are
    x/‖x‖. Derivatives at a row of zeros are taken as 0.

    **Cost** O(n m d). **Source**: Shawe-Taylor and Cristianini 2004, §5.1, on normalised kernels.

    >>> import jax.numpy as jnp
    >>> Cosine()(jnp.array([[3.0, 4.0]]), jnp.array([[6.0, 8.0], [0.0, 0.0]])).round(3).tolist()
    [[1.0, 0.0]]
    """

    takes_blocks = True

    def __call__(self, X: Matrix | Block, Z: Float[Array, "m d"] | Block) -> Gram:
        return inner_products(X, Z) * self._scale(X)[:, None] * self._scale(Z)

    def diag(self, X: Matrix | Block) -> Float[Array, " n"]:
        return squared_lengths(X) * self._scale(X) ** 2

    def num_features(self, d: int, dtype: Any) -> int:
        return d

    def features(self, X: Matrix | Block) -> Matrix:
        return as_dense(X) * self._scale(X)[:, None]

    def times(self, X: Any, w: Float[Array, "d t"]) -> Float[Array, "n t"]:
        return times(X, w) * self._scale(X)[:, None]

    @staticmethod
    def _scale(X: Any) -> Float[Array, " n"]:
        """Compute 1/‖x‖ for every row, and 0 for rows of zeros."""
        squares = squared_lengths(X)
        used = squares > 0
        return jnp.where(used, 1 / jnp.sqrt(jnp.where(used, squares, 1)), 0)


@pytree
class Tanimoto(Kernel):
    """The Tanimoto (Jaccard) kernel, for rows without negative entries such as molecular
    fingerprints.

        k(x, z) = ⟨x, z⟩ / (‖x‖² + ‖z‖² − ⟨x, z⟩), and 1 for two rows of zeros

    **Cost** O(n m d). It takes sparse rows too. **Source**: Ralaivola, Swamidass, Saigo and Baldi
    2005, §3.

    >>> import jax.numpy as jnp
    >>> Tanimoto()(jnp.array([[1.0, 1.0]]), jnp.array([[2.0, 0.0]])).round(3).tolist()
    [[0.5]]
    """

    takes_blocks = True

    def __call__(self, X: Matrix | Block, Z: Float[Array, "m d"] | Block) -> Gram:
        both = inner_products(X, Z)
        either = squared_lengths(X)[:, None] + squared_lengths(Z)[None] - both
        return jnp.where(either > 0, both / jnp.where(either > 0, either, 1), 1)

    def diag(self, X: Matrix | Block) -> Float[Array, " n"]:
        return jnp.ones_like(squared_lengths(X))


@pytree
class Polynomial(Kernel):
    """The polynomial kernel. With offset > 0 its functions are the polynomials of degree at most
    `degree`.

        k(x, z) = (⟨x, z⟩ + offset)^degree

    `polynomial_features` gives the same kernel as an explicit basis expansion.

    Args:
        degree: a whole number ≥ 1, static.
        offset: a number ≥ 0, by default 1.

    **Cost** O(n m d). **Source**: M. Wainwright, *Advanced Topics in Statistical Learning*, lecture
    6, §6.3.2.

    >>> import jax.numpy as jnp
    >>> Polynomial(2)(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
    [[144.0]]
    """

    positive = ("offset",)
    takes_blocks = True
    degree: int = static()
    offset: Scalars = 1.0

    def __post_init__(self):
        if not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise ValueError(
                f"Polynomial.degree must be a whole number of at least 1, and is {self.degree!r}"
            )

    def __call__(self, X: Matrix | Block, Z: Float[Array, "m d"] | Block) -> Gram:
        return (inner_products(X, Z) + parameter(self, "offset", X)) ** self.degree

    def diag(self, X: Matrix | Block) -> Float[Array, " n"]:
        return (squared_lengths(X) + parameter(self, "offset", X)) ** self.degree

    def check(self, X: Array | np.ndarray | Block) -> None:
        parameter(self, "offset", X)
        if known_and(lambda offset: not 0 <= offset < np.inf, self.offset):
            raise ValueError(
                f"Polynomial.offset must be finite and not negative, and is {self.offset}: else no "
                "kernel is positive semidefinite"
            )


@pytree
class Sobolev(Kernel):
    """The kernel of the first-order Sobolev space on [0, ∞) with f(0) = 0.

        k(x, z) = min(x, z), with ‖f‖² = ∫ f′(t)² dt

    The fitted functions are piecewise linear with knots at the data. X must have one column without
    negative entries. For several columns use `Sobolev().on(j)`, and sums or products of these.

    **Cost** O(n m). **Source**: M. Wainwright, lecture 6, §6.3.3, eq. 6.11 and 6.12.

    >>> import jax.numpy as jnp
    >>> Sobolev()(jnp.array([[0.5], [2.0]]), jnp.array([[1.0]])).tolist()
    [[0.5], [1.0]]
    """

    def __call__(self, X: Matrix, Z: Float[Array, "m d"]) -> Gram:
        self._check_columns(X)
        return jnp.minimum(X[:, :1], Z[:, 0])

    def diag(self, X: Matrix) -> Float[Array, " n"]:
        self._check_columns(X)
        return X[:, 0]

    def check(self, X: Array | np.ndarray | Block) -> None:
        self._check_columns(X)
        check_not_negative("Sobolev lives on [0, ∞)", X, "shift the column so that it starts at 0")

    @staticmethod
    def _check_columns(X: Array | np.ndarray | Block) -> None:
        if X.shape[1] != 1:
            raise ValueError(
                f"Sobolev takes one column, and X has {X.shape[1]}: use Sobolev().on(j), and + or "
                "* over several columns"
            )


@public_call(data="X")
def polynomial_features(X: Matrix, degree: int, offset: float = 1.0) -> Float[Array, "n r"]:
    """Compute the monomials of the columns of X up to a degree, scaled to give the polynomial
    kernel.

        φ(x)ᵀφ(z) = (⟨x, z⟩ + offset)^degree

    The column of x₁^α₁ ⋯ x_d^α_d is multiplied by √(degree! / (α₀! α₁! ⋯ α_d!) · offset^α₀), with
    α₀ = degree − Σαⱼ. With degree = offset = 1 the result is the design matrix (1, x).

    Args:
        X: rows (n, d).
        degree: the largest degree, a whole number ≥ 1.
        offset: the kernel's offset, a number ≥ 0, by default 1.

    Returns:
        The features (n, r), r = C(d + degree, degree), with the constant first. For offset = 0 only
        the monomials of exactly this degree, r = C(d + degree − 1, degree).

    Raises:
        ValueError: for a degree below 1 or a negative offset.

    **Cost** O(n r). **Source**: Wainwright, lecture 6, eq. 6.10.

    >>> import jax.numpy as jnp
    >>> polynomial_features(jnp.array([[4.0], [6.0]]), 1).tolist()
    [[1.0, 4.0], [1.0, 6.0]]
    """
    if degree < 1 or offset < 0:
        raise ValueError(
            f"polynomial_features needs degree ≥ 1 and offset ≥ 0, and got {degree} and {offset}"
        )
    # Put a column of ones before X, as column 0. Monomials of exactly this degree in all columns
    # are monomials of at most this degree in X.
    least = 0 if offset else 1
    monomials = list(combinations_with_replacement(range(least, X.shape[1] + 1), degree))
    scales = []
    for monomial in monomials:
        repeats = (math.factorial(monomial.count(j)) for j in set(monomial))
        count = math.factorial(degree) // math.prod(repeats)
        scales.append(math.sqrt(count * offset ** monomial.count(0)))
    ones = jnp.ones((X.shape[0], 1), X.dtype)
    wide = jnp.concatenate([ones, X], axis=1)
    factors = (wide[:, np.array(columns)] for columns in zip(*monomials, strict=True))
    return jnp.asarray(scales, X.dtype) * reduce(jnp.multiply, factors)
