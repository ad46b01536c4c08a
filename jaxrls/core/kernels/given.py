"""Define kernels given by the caller: as features, as a function of two matrices, as a matrix, or
by a name.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.kernels.block import Block, Gram, as_dense
from jaxrls.core.kernels.inner import Cosine, Linear, Tanimoto
from jaxrls.core.kernels.kernel import Kernel, Matrix
from jaxrls.core.kernels.stationary import (
    ChiSquared,
    Gaussian,
    Laplacian,
    Matern,
    RationalQuadratic,
)
from jaxrls.core.linalg import diagonal_of
from jaxrls.core.support import on_device, pytree, static, values_unknown


@pytree
class OfFunction(Kernel):
    """A kernel given by a function, `fn(*matrices)` or `fn(params, *matrices)`."""

    fn: Callable = static()
    params: Any = None

    def __post_init__(self):
        if not callable(self.fn):
            raise ValueError(f"{type(self).__name__}.fn must be a function, and is {self.fn!r}")

    def _values(self, *matrices, columns: int | None = None) -> Float[Array, "n r"]:
        """Call the function, and check what it returns.

        The result must be a real matrix with one row for each row of the first matrix. If `columns`
        is given, the result must have that many columns.
        """
        name = f"{type(self).__name__}.fn"
        rows = matrices[0].shape[0]
        takes = " and ".join(str(part.shape) for part in matrices)
        takes = (
            f"it takes whole matrices, {takes}{', and not two rows' if columns is not None else ''}"
        )
        args = matrices if self.params is None else (self.params, *matrices)
        try:
            with values_unknown(name):
                values = jnp.asarray(self.fn(*args))
        except (TypeError, ValueError) as error:
            if isinstance(error.__cause__, jax.errors.JAXTypeError):  # raised by values_unknown
                raise
            raise ValueError(f"{name} failed: {takes}: {error}") from error
        if values.ndim != 2 or values.shape[0] != rows or columns not in (None, values.shape[1]):
            raise ValueError(
                f"{name} must return shape ({rows}, {columns or 'r'}), and returned "
                f"{values.shape}: {takes}"
            )
        if jnp.issubdtype(values.dtype, jnp.complexfloating):
            raise ValueError(
                f"{name} must return real numbers, and returned {values.dtype}: return its real "
                "part"
            )
        return values


@pytree
class FeatureMap(OfFunction):
    """The kernel of explicit features (a basis expansion), given as a function of the rows.

        k(x, z) = ⟨φ(x), φ(z)⟩

    Args:
        fn: `fn(X) -> (n, r)`, or `fn(params, X) -> (n, r)` where `params` is given. Each row of the
            result depends on the same row of X only, not on the mean of X, for example, because
            rows are given in blocks. `fit` and `tune` check this on a few rows. It is static.
            Pass the same function object again, not a new lambda, or `jax.jit` compiles again.
        params: parameters of `fn`, any pytree, differentiable. None for a function of X alone.

    **Cost** that of `fn`, plus O(n m r). **Source**: *Regularized linear regression* (lecture),
    "the design matrix Φ".

    >>> import jax.numpy as jnp
    >>> line = FeatureMap(lambda X: jnp.concatenate([jnp.ones_like(X), X], axis=1))  # φ(x) = (1, x)
    >>> line(jnp.array([[2.0]]), jnp.array([[3.0]])).tolist()
    [[7.0]]
    """

    def features(self, X: Matrix) -> Float[Array, "n r"]:
        return self._values(X)

    def num_features(self, d: int, dtype: Any) -> int:
        return jax.eval_shape(self.features, jax.ShapeDtypeStruct((1, d), dtype)).shape[1]


@pytree
class FunctionKernel(OfFunction):
    """Any kernel, given as a function of two matrices.

        k(xᵢ, zⱼ) = fn(X, Z)ᵢⱼ

    The diagonal is computed row by row, as k(xᵢ, xᵢ) of 1×1 matrices.

    Args:
        fn: `fn(X, Z) -> (n, m)`, or `fn(params, X, Z)` where `params` is given. It must be
            symmetric and positive semidefinite, which is not checked here. Each value depends on
            one row of X and one row of Z only, which `fit` and `tune` check on a few rows. It is
            static, as in `FeatureMap`.
        params: parameters of `fn`, any pytree, differentiable. None for a function of X and Z
            alone.

    **Cost** that of `fn`. **Source**: Aronszajn 1950.

    >>> import jax.numpy as jnp
    >>> FunctionKernel(lambda X, Z: (X @ Z.T) ** 2)(jnp.array([[2.0]]), jnp.array([[3.0]])).tolist()
    [[36.0]]
    """

    def __call__(self, X: Matrix, Z: Float[Array, "m d"]) -> Gram:
        return self._values(X, Z, columns=Z.shape[0])

    def diag(self, X: Matrix) -> Float[Array, " n"]:
        return jax.vmap(lambda x: self(x[None], x[None])[0, 0])(X)

    def is_semidefinite(self) -> bool:
        return False


@pytree
class GramBlock(Block):
    """A block of rows of a given kernel matrix K, with their row numbers in K.

    For two such rows, k(x, z) is the entry in the row of x and in the column of z's number.

    >>> rows = GramBlock.of(jnp.array([[2.0, 1.0], [1.0, 3.0]]))
    >>> Precomputed()(rows, rows[1:]).tolist(), Precomputed().diag(rows).tolist()
    ([[1.0], [3.0]], [2.0, 3.0])
    """

    values: Float[Array | np.ndarray, "b n"]
    numbers: Int[Array | np.ndarray, " b"]

    @classmethod
    def of(cls, K: Float[Array | np.ndarray, "b n"]) -> "GramBlock":
        """Make the block of all rows of the matrix."""
        return cls(K, on_device(np.arange(len(K), dtype=np.int32)))

    @property
    def shape(self):
        """The shape of the values."""
        return self.values.shape

    def __getitem__(self, rows: Any) -> "GramBlock":
        """Return some of the rows, with their original numbers."""
        return GramBlock(self.values[rows], self.numbers[rows])


@pytree
class Precomputed(Kernel):
    """A kernel given as a matrix: X *is* K, (n, n), and new rows are k(new, training), (m, n).

    Sums, products, multiples and columns are not available: compute them into K. Landmarks are rows
    of K, given by number or chosen. With landmarks, new rows are k(new, training), or k(new,
    landmarks) alone, (m, number of landmarks).

    Predictions are linear in the given rows, so `features` returns these rows. `num_features` is
    None, because K is no design matrix. K must be symmetric and positive semidefinite. `fit` and
    `tune` check that it is symmetric, and warn if it is not semidefinite.

    **Cost** none. **Source**: as `metric="precomputed"` in scikit-learn.

    >>> import jax.numpy as jnp
    >>> K = jnp.array([[2.0, 1.0], [1.0, 2.0]])
    >>> Precomputed()(K, K).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """

    evaluable = False
    takes_blocks = True

    def __call__(self, X: Float[Array, "n k"] | Block, Z: Any) -> Gram:
        values = as_dense(X)
        # Rows of X have one column for every training row, of which Z names some, such as
        # landmarks. New rows may instead have columns for the rows of Z alone.
        of_all_rows = isinstance(Z, GramBlock) and values.shape[1] == Z.shape[1]
        return values[:, Z.numbers] if of_all_rows else values

    def features(self, X: Matrix | Block) -> Matrix:
        return as_dense(X)

    def diag(self, X: Matrix | Block) -> Float[Array, " n"]:
        if isinstance(X, GramBlock):
            return X.values[jnp.arange(len(X)), X.numbers]
        if X.shape[0] != X.shape[1]:
            raise ValueError(
                f"Precomputed.diag needs the square kernel matrix, and X has shape {X.shape}: give "
                "k(x, x) of new rows, predict(K, return_std=True, diag=…)"
            )
        return diagonal_of(as_dense(X))

    def is_semidefinite(self) -> bool:
        return False


# kernels by name, for `fit`, the estimators and the command line
# --------------------------------------------------------------------------------------------------

# Kernels with a width.
RADIAL: dict[str, Callable] = {
    "gaussian": Gaussian,
    "rbf": Gaussian,
    "laplacian": Laplacian,
    "matern12": partial(Matern, 0.5),
    "matern32": partial(Matern, 1.5),
    "matern52": partial(Matern, 2.5),
    "rational_quadratic": RationalQuadratic,
    "chi2": ChiSquared,
}
PLAIN: dict[str, Callable] = {
    "linear": Linear,
    "cosine": Cosine,
    "tanimoto": Tanimoto,
    "precomputed": Precomputed,
}
NAMED = {name: make("median") for name, make in RADIAL.items()}
NAMED |= {name: make() for name, make in PLAIN.items()}
POLYNOMIAL = ("polynomial", "poly")
KERNELS = (*PLAIN, *POLYNOMIAL, *RADIAL)


def check_leaves(kernel: Kernel) -> None:
    """Raise for a parameter that is neither a number nor an array, such as a function in `params`.

    Text is accepted too, because a width may be given as a rule such as "median".
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(kernel):
        known = isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex | str)
        if not known and not hasattr(leaf, "__jax_array__"):
            place = f"{type(kernel).__name__}{jax.tree_util.keystr(path)}"
            raise ValueError(
                f"{place} must be an array or a number, and is {leaf!r}: keep what is no array out "
                "of parameters, as equinox.partition(module, equinox.is_array) does"
            )


def check_kernel(kernel: Any) -> None:
    """Raise unless `kernel` is a jaxrls kernel with valid parameters."""
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"kernel must be a jaxrls kernel such as Gaussian(1.0), and is {kernel!r}: fit and "
            f"tune also take the names {', '.join(map(repr, NAMED))}"
        )
    check_leaves(kernel)
