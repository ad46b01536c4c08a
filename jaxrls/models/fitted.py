"""What `fit` and `tune` return: a model, how it was chosen, and pictures of both."""

import numpy as np
from jaxtyping import Array, Float

from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.conjugate import Run
from jaxrls.models.model import Model
from jaxrls.support.pictures import plot_errors, plot_function, plot_left_out, plot_search
from jaxrls.support.pytrees import pytree, static


class _Fitted:
    """What every result of a fit offers."""

    model: Model
    loo_residuals: Float[Array | np.ndarray, "n *t"] | None

    def predict(self, X, *, block_size: int | None = None) -> Float[Array | np.ndarray, "m *t"]:
        """Predictions for the rows of X: see `Model.predict`."""
        return self.model.predict(X, block_size=block_size)

    def plot_left_out(self, Y, ax=None):
        """The labels Y that were fitted against their predictions with the row, or its group, left out."""
        return plot_left_out(self, Y, ax)

    def plot_function(self, X, Y, ax=None):
        """The fitted function of a single input, with the data."""
        return plot_function(self, X, Y, ax)


@pytree
class Fit(_Fitted):
    """The result of `fit`: the model at the chosen λ, and how it was chosen.

    `errors` (L,) or (L, t) is the criterion over `lams`, smaller better (the evidence negated); `lam` and `error` the chosen λ and its
    error, averaged over targets, or one of each per target. `loo_residuals` and `dof` belong to the chosen λ; where the criterion leaves groups
    out, so do the residuals. `floor` is the λ below which rounding rules, `route` and `criterion` say how it was done. On landmarks
    `trace_residual` is tr √v(K − K̂)√v, and `certificate` says in words how close that keeps the fit to that of all of K; `ridge_effect` bounds
    how far the ridge that nearly dependent landmarks take has moved the fit, as a share of what is left out: above 1 % `fit` warns.
    Where λ was searched for, `lams` are those looked at, (L, t) where each target has its own, and `search` says how many factors that took; where only
    below a grid, `lams` are those and the grid's above.
    By the iterative route `run` has residuals, history and the reason of every column's end, and `loo_standard_error` says how sure `error` is,
    None where its loss is a step.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])).criterion
    'loo'
    """

    model: Model
    lams: Float[Array | np.ndarray, "L *#t"]
    errors: Float[Array | np.ndarray, "L *t"]
    lam: Float[Array | np.ndarray, "*#t"]
    error: Float[Array | np.ndarray, "*#t"]
    loo_residuals: Float[Array | np.ndarray, "n *t"]
    dof: Float[Array | np.ndarray, "*#t"]
    floor: Float[Array | np.ndarray, ""]
    indefinite: Float[Array | np.ndarray, ""]
    route: str = static()
    criterion: str = static()
    trace_residual: Float[Array | np.ndarray, ""] | None = None
    certificate: str = static(default="")
    num_landmarks: int = static(default=0)
    search: str = static(default="")
    run: Run | None = None
    loo_standard_error: Float[Array | np.ndarray, "*#t"] | None = None
    ridge_effect: Float[Array | np.ndarray, ""] | None = None

    def plot(self, ax=None):
        """The criterion over λ with the chosen one, on Matplotlib axes, which it returns."""
        return plot_errors(self, ax)


@pytree
class History:
    """What `tune` saw at every step, its best start first: S steps."""

    errors: Float[Array, " S"]
    gradient_norms: Float[Array, " S"]
    lams: Float[Array, " S"]
    kernels: Kernel  # every leaf with a leading axis S


@pytree
class Tuned(_Fitted):
    """The result of `tune`: the kernel and λ of the smallest error seen, a model fitted with them, and how it went.

    `error` is the criterion there (the evidence negated), never above `start_error`. `converged` says whether the gradient norm
    fell below `tol`, `reason` why the search stopped; the rest is as in `Fit`, at this λ.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> tuned = rls.tune(rls.Gaussian(1.0), X, np.sin(6 * X[:, 0]), steps=5)
    >>> bool(tuned.error <= tuned.start_error)
    True
    """

    kernel: Kernel
    lam: Float[Array | np.ndarray, ""]
    error: Float[Array | np.ndarray, ""]
    start_error: Float[Array | np.ndarray, ""]
    model: Model
    history: History
    converged: bool = static()
    reason: str = static()
    loo_residuals: Float[Array | np.ndarray, "n *t"] | None = None
    dof: Float[Array | np.ndarray, ""] | None = None
    floor: Float[Array | np.ndarray, ""] | None = None
    indefinite: Float[Array | np.ndarray, ""] | None = None
    route: str = static(default="")
    criterion: str = static(default="")
    trace_residual: Float[Array | np.ndarray, ""] | None = None
    certificate: str = static(default="")

    @property
    def lams(self) -> Float[Array | np.ndarray, " S"]:
        """λ at every step."""
        return self.history.lams

    @property
    def errors(self) -> Float[Array | np.ndarray, " S"]:
        """The criterion at every step."""
        return self.history.errors

    def plot(self, axes=None):
        """Error and gradient norm at every step, on two Matplotlib axes, which it returns."""
        return plot_search(self, axes)
