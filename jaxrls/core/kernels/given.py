"""Kernels that a caller brings: explicit features, a function of two matrices, or a matrix."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.support.checks import values_unknown
from jaxrls.core.support.pytrees import pytree, static


class _OfFunction(Kernel):
    """A kernel given by a function, `fn(*matrices)` or `fn(params, *matrices)`."""

    fn: Callable
    params: Any

    def __post_init__(self):
        if not callable(self.fn):
            raise ValueError(f"{type(self).__name__}.fn must be a function, and is {self.fn!r}")

    def _values(self, *matrices, columns: int | None = None):
        """What the function returns, checked: a matrix with one row for each row of the first
        matrix and, where `columns` is given, that many columns.
        """
        name, n = f"{type(self).__name__}.fn", matrices[0].shape[0]
        with values_unknown(name):
            found = self.fn(*matrices) if self.params is None else self.fn(self.params, *matrices)
        if found.shape[:1] != (n,) or found.ndim != 2 or columns not in (None, found.shape[1]):
            raise ValueError(
                f"{name} must return shape ({n}, {columns or 'r'}), and returned {found.shape}"
            )
        if jnp.issubdtype(found.dtype, jnp.complexfloating):
            raise ValueError(
                f"{name} must return real numbers, and returned {found.dtype}: return its real part"
            )
        return found


@pytree
class FeatureMap(_OfFunction):
    """The kernel of explicit features (a basis expansion), given as a function of the rows.

        k(x, z) = ⟨φ(x), φ(z)⟩

    Args:
        fn: `fn(X) -> (n, r)`, or `fn(params, X) -> (n, r)` where `params` is given. It is static:
            pass the same function object again, not a new lambda, or `jax.jit` compiles again.
        params: parameters of `fn`, any pytree, differentiable; None for a function of X alone.

    **Cost** that of `fn`, plus O(n m r). **Source**: *Regularized linear regression* (lecture),
    "the design matrix Φ".

    >>> import jax.numpy as jnp
    >>> line = FeatureMap(lambda X: jnp.concatenate([jnp.ones_like(X), X], axis=1))  # φ(x) = (1, x)
    >>> line(jnp.array([[2.0]]), jnp.array([[3.0]])).tolist()
    [[7.0]]
    """

    fn: Callable = static()
    params: Any = None

    def features(self, X):
        return self._values(X)

    def num_features(self, d, dtype):
        return jax.eval_shape(self.features, jax.ShapeDtypeStruct((1, d), dtype)).shape[1]


@pytree
class FunctionKernel(_OfFunction):
    """Any kernel, given as a function of two matrices.

        k(xᵢ, zⱼ) = fn(X, Z)ᵢⱼ

    The diagonal is computed row by row, as k(xᵢ, xᵢ) of 1×1 matrices.

    Args:
        fn: `fn(X, Z) -> (n, m)`, or `fn(params, X, Z)` where `params` is given; symmetric and
            positive semidefinite, which is not checked here. Static, as in `FeatureMap`.
        params: parameters of `fn`, any pytree, differentiable; None for a function of X and Z
            alone.

    **Cost** that of `fn`. **Source**: Aronszajn 1950.

    >>> import jax.numpy as jnp
    >>> FunctionKernel(lambda X, Z: (X @ Z.T) ** 2)(jnp.array([[2.0]]), jnp.array([[3.0]])).tolist()
    [[36.0]]
    """

    fn: Callable = static()
    params: Any = None

    def __call__(self, X, Z):
        return self._values(X, Z, columns=Z.shape[0])

    def diag(self, X):
        return jax.vmap(lambda x: self(x[None], x[None])[0, 0])(X)

    def is_semidefinite(self):
        return False


@pytree
class Precomputed(Kernel):
    """A kernel matrix computed elsewhere: X *is* K, (n, n), and new rows are k(new, training),
    (m, n).

    Sums, products, multiples and columns do not apply: compute them into K. Landmarks are rows of
    K, by number or chosen; new rows are then k(new, training), or k(new, landmarks) alone, (m,
    number of landmarks). Predictions are linear in the given rows, which are what `features`
    returns; `num_features` is None, as K is no design matrix. K must be symmetric and positive
    semidefinite: `fit` and `tune` check that it is symmetric, and warn where it is not
    semidefinite.

    **Cost** none. **Source**: as `metric="precomputed"` in scikit-learn.

    >>> import jax.numpy as jnp
    >>> K = jnp.array([[2.0, 1.0], [1.0, 2.0]])
    >>> Precomputed()(K, K).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """

    evaluable = knows_diag = False

    def __call__(self, X, Z):
        return X

    def features(self, X):
        return X

    def diag(self, X):
        if X.shape[0] != X.shape[1]:
            raise ValueError(
                f"Precomputed.diag needs the square kernel matrix, and X has shape {X.shape}: give "
                "k(x, x) of new rows, predict(K, return_std=True, diag=…)"
            )
        return jnp.diagonal(X)

    def is_semidefinite(self):
        return False


@pytree
class KernelValues(Kernel):
    """A given kernel matrix on landmarks, what `Precomputed` becomes there: row i is stored as (Kᵢ₁
    … Kᵢₙ, i, Kᵢᵢ), and k(x, z) is the entry of x at the number of z.

    New rows are k(new, training), (m, n), or k(new, landmarks) alone. **Cost** that of taking those
    columns.

    >>> import jax.numpy as jnp
    >>> rows = jnp.array([[2.0, 1.0, 0.0, 2.0], [1.0, 3.0, 1.0, 3.0]])
    >>> KernelValues()(rows, rows[1:]).tolist(), KernelValues().diag(rows).tolist()
    ([[1.0], [3.0]], [2.0, 3.0])
    """

    knows_diag = False

    def widths(self, points):
        return points.shape[1] - 2, points.shape[0]

    def __call__(self, X, Z):
        n = Z.shape[1] - 2
        if X.shape[1] == Z.shape[0] and X.shape[1] not in (n, n + 2):
            return X
        return X[:, Z[:, n].astype(jnp.int32)]

    def diag(self, X):
        return X[:, -1]

    def is_semidefinite(self):
        return False
