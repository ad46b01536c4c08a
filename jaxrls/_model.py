"""What a fit leaves behind: a function that predicts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls._blocks import check_block_size, default_block_size, map_rows
from jaxrls._checks import as_floats, check_finite, check_matrix
from jaxrls._gram import gram_matmul
from jaxrls._kernel import Kernel
from jaxrls._kernels import Linear, Precomputed
from jaxrls._linalg import matmul
from jaxrls._precision import scope, to_host
from jaxrls._pytree import pytree
from jaxrls._sparse import is_sparse, sparse_rows


@pytree
class Model:
    """f(x) = Σⱼ k(x, pointsⱼ) coefⱼ + intercept, or ⟨φ(x), coef⟩ + intercept where `points` is None.

    Kernels with explicit features keep the weights w alone, so that a linear model predicts in O(d) a row.

    **Shapes**: points (q, d) or None, coef (q,) or (q, t), intercept () or (t,). **Source**: the representer theorem,
    Rifkin (lecture), "Applying the Representer".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.Model(rls.Linear(), None, jnp.array([2.0]), jnp.array(1.0)).predict(jnp.array([[3.0]])).tolist()
    [7.0]
    """

    kernel: Kernel
    points: Float[Array | np.ndarray, "q d"] | None
    coef: Float[Array | np.ndarray, "q *t"]
    intercept: Float[Array | np.ndarray, "*t"]

    def predict(self, X, *, block_size: int | None = None) -> Float[Array | np.ndarray, "m *t"]:
        """Predictions for the rows of X, in blocks of rows.

        **Shapes**: X (m, d) gives (m,) or (m, t), in the dtype of the model. **Cost** O(m q (d + t)), or O(m r t) on features; memory of a
        block of rows. **Raises** `ValueError` for a wrong number of columns, NaN or infinity.
        """
        wide = self.coef.dtype == jnp.float64
        with scope(wide):
            X = sparse_rows(X, self.coef.dtype) if is_sparse(X) else jnp.asarray(as_floats("X", X, self.coef.dtype))
            out = self._predict(X, block_size)
            return to_host(out) if wide and not isinstance(self.coef, jax.Array) else out

    def _predict(self, X, block_size):
        check_matrix("X", X)
        check_finite("X", X)
        self._check_columns(X.shape[1])
        if is_sparse(X) and not isinstance(self.kernel, Linear):
            raise ValueError("a sparse X needs a model of the Linear() kernel: pass X.toarray()")
        self.kernel.check(X)
        return _evaluate(self, X, block_size)

    def _check_columns(self, d: int) -> None:
        if isinstance(self.kernel, Precomputed):
            expected: int | None = self.coef.shape[0]
            what = "one column per training row, as a precomputed kernel"
        elif self.points is not None:
            expected, what = self.points.shape[1], "the columns it was fitted on"
        else:
            return
        if d != expected:
            raise ValueError(f"X must have {expected} columns, {what}, and has {d}")


@partial(jax.jit, static_argnums=2)
def _evaluate(model: Model, X, block_size):
    if model.points is not None:
        return gram_matmul(model.kernel, X, jnp.asarray(model.points), jnp.asarray(model.coef), block_size=block_size) + model.intercept
    coef = jnp.asarray(model.coef)
    if block_size is None:
        block_size = default_block_size(X.shape[0], coef.shape[0] * X.dtype.itemsize)

    def block(rows):
        design = rows if isinstance(model.kernel, Precomputed) else model.kernel.features(rows)
        if design.shape[1] != coef.shape[0]:
            raise ValueError(f"X with {X.shape[1]} columns gives {design.shape[1]} features, and the model was fitted on {coef.shape[0]}")
        return matmul(design, coef)

    return map_rows(block, X, check_block_size(block_size, X.shape[0])) + model.intercept


def make_model(kernel: Kernel, X, coef, intercept, route: str) -> Model:
    """The smallest model: dual coefficients on explicit features become w = Φᵀc."""
    if route not in ("gram", "subset") or isinstance(kernel, Precomputed):
        return Model(kernel, None, coef, intercept)
    if kernel.num_features(X.shape[1], X.dtype) is not None:
        return Model(kernel, None, matmul(kernel.features(X).T, coef), intercept)
    return Model(kernel, X, coef, intercept)
