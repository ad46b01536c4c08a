"""What a fit of two-sided data leaves behind: a function of a row and a column."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.kernels.kernel import Kernel
from jaxrls.rows.gram import kernel_times
from jaxrls.support.checks import as_floats, check_finite, check_matrix
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pictures import plot_errors
from jaxrls.support.precision import scope, to_host
from jaxrls.support.pytrees import pytree, static


@pytree
class KroneckerModel:
    """f(x₁, x₂) = Σᵢⱼ k₁(x₁, x₁ᵢ) k₂(x₂, x₂ⱼ) coefᵢⱼ + intercept.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> model = rls.KroneckerModel(rls.Linear(), jnp.ones((1, 1)), rls.Linear(), jnp.ones((1, 1)), jnp.array([[2.0]]), jnp.array(1.0))
    >>> model.predict(jnp.array([[1.0], [2.0]]), jnp.array([[3.0]])).tolist()
    [[7.0], [13.0]]
    """

    kernel1: Kernel
    points1: Float[Array | np.ndarray, "n1 d1"]
    kernel2: Kernel
    points2: Float[Array | np.ndarray, "n2 d2"]
    coef: Float[Array | np.ndarray, "n1 n2"]
    intercept: Float[Array | np.ndarray, ""]

    @on_any_mesh
    def predict(self, X1, X2) -> Float[Array | np.ndarray, "m1 m2"]:
        """Predictions for all pairs of a row of X1 and a row of X2: those of the fit itself for rows or columns that it knows.

        **Shapes**: X1 (m₁, d₁) and X2 (m₂, d₂) give (m₁, m₂). **Cost** O(m₁n₁(d₁ + n₂) + m₂n₂(d₂ + m₁)), in blocks of rows of both kernel matrices.
        **Raises** `ValueError` for a wrong number of columns, NaN or infinity.
        """
        wide = self.coef.dtype == jnp.float64
        with scope(wide):
            sides = (("X1", X1, self.kernel1, self.points1), ("X2", X2, self.kernel2, self.points2))
            out = _evaluate(self, *(_new_rows(*side, self.coef.dtype) for side in sides))
            return to_host(out) if wide and not isinstance(self.coef, jax.Array) else out


def _new_rows(name, X, kernel, points, dtype):
    X = jnp.asarray(as_floats(name, X, dtype))
    check_matrix(name, X)
    check_finite(name, X)
    if X.shape[1] != points.shape[1]:
        raise ValueError(f"{name} must have {points.shape[1]} columns, those it was fitted on, and has {X.shape[1]}")
    kernel.check(X)
    return X


@jax.jit
def _evaluate(model: KroneckerModel, X1, X2):
    half = kernel_times(model.kernel1, X1, jnp.asarray(model.points1), jnp.asarray(model.coef))
    return kernel_times(model.kernel2, X2, jnp.asarray(model.points2), half.T).T + model.intercept


@pytree
class KroneckerFit:
    """The result of `fit_kronecker`: the model at the chosen λ, and how it was chosen.

    `errors` (L,) over `lams` is the error of what `setting` leaves out, `lam` and `error` those chosen; `left_out` (n₁, n₂) are labels less held-out
    predictions there, `dof` the effective degrees of freedom, and `floor` the λ below which rounding rules.

    >>> import numpy as np, jaxrls as rls
    >>> x, z = np.linspace(0, 1, 8)[:, None], np.linspace(0, 1, 6)[:, None]
    >>> kernel = rls.Gaussian(0.5)
    >>> rls.fit_kronecker(kernel, x, kernel, z, np.sin(3 * x + 2 * z.T), lams=[1e-2]).left_out.shape
    (8, 6)
    """

    model: KroneckerModel
    lams: Float[Array | np.ndarray, " L"]
    errors: Float[Array | np.ndarray, " L"]
    lam: Float[Array | np.ndarray, ""]
    error: Float[Array | np.ndarray, ""]
    left_out: Float[Array | np.ndarray, "n1 n2"]
    dof: Float[Array | np.ndarray, ""]
    floor: Float[Array | np.ndarray, ""]
    indefinite: Float[Array | np.ndarray, ""]
    setting: str = static()

    @property
    def criterion(self) -> str:
        """What the errors are, in words."""
        return f"{self.setting} left out"

    def predict(self, X1, X2) -> Float[Array | np.ndarray, "m1 m2"]:
        """Predictions for all pairs of a row of X1 and a row of X2: see `KroneckerModel.predict`."""
        return self.model.predict(X1, X2)

    def plot(self, ax=None):
        """The error over λ with the chosen one, on Matplotlib axes, which it returns."""
        return plot_errors(self, ax)
