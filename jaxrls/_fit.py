"""The one call: factor, sweep λ, choose, and leave a model."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls._checks import as_floats, check_dense_size, check_lams, is_concrete
from jaxrls._criteria import gcv, holdout, kfold, log_marginal_likelihood, loo
from jaxrls._few import are_few, search_few
from jaxrls._kernel import Kernel
from jaxrls._losses import squared_error
from jaxrls._model import Model, make_model
from jaxrls._path import coef, effective_dof, lambda_grid, loo_residuals
from jaxrls._plot import plot_errors, plot_function, plot_left_out
from jaxrls._precision import in_precision_of
from jaxrls._pytree import pytree, static
from jaxrls._rank import grow
from jaxrls._routes import choose_route, factorize
from jaxrls._sparse import is_sparse
from jaxrls._subset import certificate_words
from jaxrls._validation import check_data, evaluate, name_of, resolve_criterion, resolve_landmarks

CRITERIA = (loo, gcv, kfold, holdout, log_marginal_likelihood)


@pytree
class Fit:
    """The result of `fit`: the model at the chosen λ, and how it was chosen.

    `errors` (L,) or (L, t) is the criterion over `lams`, smaller better (the evidence negated); `lam` and `error` the chosen λ and its
    error, averaged over targets, or one of each per target. `loo_residuals` and `dof` belong to the chosen λ, `floor` is the λ
    below which rounding rules, `route` and `criterion` say how it was done. On landmarks `trace_residual` is tr(K − K̂), and `certificate`
    says in words how close that keeps the fit to that of all of K.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])).criterion
    'loo'
    """

    model: Model
    lams: Float[Array | np.ndarray, " L"]
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

    def predict(self, X, *, block_size: int | None = None) -> Float[Array | np.ndarray, "m *t"]:
        """Predictions for the rows of X: see `Model.predict`."""
        return self.model.predict(X, block_size=block_size)

    def plot(self, ax=None):
        """The criterion over λ with the chosen one, on Matplotlib axes, which it returns."""
        return plot_errors(self, ax)

    def plot_left_out(self, Y, ax=None):
        """The labels Y that were fitted against their leave-one-out predictions."""
        return plot_left_out(self, Y, ax)

    def plot_function(self, X, Y, ax=None):
        """The fitted function of a single input, with the data."""
        return plot_function(self, X, Y, ax)


@in_precision_of("X")
def fit(
    kernel: Kernel,
    X,
    Y,
    *,
    lams=None,
    num: int = 100,
    criterion: Callable = loo,
    loss: Callable = squared_error,
    weights=None,
    intercept: bool = True,
    per_target: bool = False,
    landmarks=None,
    tol: float = 0.1,
    groups=None,
    validation=None,
    route: str | None = None,
    block_size: int | None = None,
    progress: bool = False,
) -> Fit:
    """Fit regularized least squares with the best λ of a grid, by exact leave-one-out, for the price of one factorization.

    minimise ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖²_H over f and b for every λ, and keep the λ of the smallest error.

    **Arguments**: X (n, d) and Y (n,) or (n, t), NumPy or JAX, in any units; X may be sparse (SciPy, BCOO) for `Linear`.
    `lams` (L,), by default `num` of them from the spectrum.
    `criterion`: `loo`, `gcv`, `kfold`, `holdout`, `log_marginal_likelihood`, or any function `(factor, Y, lams)` of which less is
    better. `loss` for the ones that average a loss. `weights` (n,) ≥ 0. `intercept` unpenalised. `per_target` chooses λ for each column
    of Y. `groups` (n,) labels of rows left out together (the criterion is then `kfold`); `validation` a pair `(X, Y)` (then
    `holdout`). `landmarks` for more rows than K can be factored for: how many to choose by pivoted Cholesky, or what
    `jaxrls.landmarks` chose, or row numbers, or points (m, d); leave-one-out then lets a landmark leave with its row. `"auto"` takes as many
    as bring `certified_lam` at `tol` down to the chosen λ, and all rows where that does not pay; `certificate` says which.
    `route` and `block_size` as in `factorize`. `progress` shows a bar while landmarks are chosen (needs tqdm).

    **Returns** a `Fit`; float64 NumPy input is computed in float64 and comes back as NumPy arrays. **Cost** one
    factorization, O(n³) or O(n r²), and O(n r L t); where `lams` names one value, or up to five for thousands of rows, a Cholesky factor of
    K + λI for each takes the place of K's spectrum (name `route="gram"` for that one). Equal errors go to the larger λ.
    **Raises** `ValueError` for shapes that do not fit, NaN or infinity in the data, λ ≤ 0, parameters outside a kernel's domain, a problem
    larger than memory. **Warns** where the chosen λ is at the edge of the grid, λ is below the precision of the factor, or K is not
    positive semidefinite. Inside `jax.jit` and `jax.vmap` values cannot be checked. **Source**: Rifkin (lecture), "Leave-One-Out CV".

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> fit = rls.fit(rls.Gaussian(width=0.3), X, y, lams=[1e-4, 1e-2, 1.0])
    >>> float(fit.lam), bool(fit.error < 1e-2)
    (0.01, True)
    """
    kernel, X, Y, weights = check_data(kernel, X, Y, weights, intercept)
    criterion, options = resolve_criterion(criterion, loss, groups, validation)
    if lams is not None:
        lams = jnp.atleast_1d(jnp.asarray(as_floats("lams", lams, X.dtype)))
        check_lams(lams)

    def solve(landmarks):
        dense = landmarks is None and is_concrete(X) and not is_sparse(X) and (route or choose_route(kernel, *X.shape, X.dtype)) == "gram"
        if dense:
            check_dense_size(X.shape[0], X.dtype)
        if dense and route is None and not per_target and _are_direct(kernel, X, Y, lams, weights, options, criterion):
            few = _fit_few(kernel, X, Y, lams, weights, options, criterion, loss, intercept, block_size)
            if np.isfinite(few.errors).all():  # else the spectrum can tell more
                return few
        return _fit(kernel, X, Y, lams, weights, options, landmarks, criterion, loss, intercept, per_target, route, block_size, num)

    if not (isinstance(tol, int | float | np.number) and tol > 0):
        raise ValueError(f"tol must be a number above 0, the largest relative change of the coefficients, and is {tol!r}")
    if isinstance(landmarks, str) and landmarks == "auto":
        if route is not None:
            raise ValueError(f"landmarks='auto' chooses the route, and route is {route!r}: leave one of them out")
        result = _solve_auto(solve, kernel, X, weights, tol, progress)
    else:
        chosen = resolve_landmarks(kernel, X, landmarks, progress)
        result = solve(chosen)
        if is_concrete(result) and result.trace_residual is not None:
            result = replace(result, certificate=_words(result, len(chosen.points), tol))
    if is_concrete(result):
        _inspect(result, lams is None)
    return result


def _words(result: Fit, m: int, tol: float) -> str:
    """The certificate of m landmarks, and whether it holds at the chosen λ."""
    trace, chosen = float(np.asarray(result.trace_residual)), float(np.min(result.lam))
    held = f"the chosen λ = {chosen:.3g} is {'' if chosen >= trace / tol else 'not '}among them"
    return f"{certificate_words(trace, m, tol)}; {held}"


def _solve_auto(solve, kernel, X, weights, tol, progress):
    if is_sparse(X):
        raise ValueError("landmarks='auto' needs a dense X: leave it out, the linear kernel's features are fewer")
    result, words = grow(solve, kernel, X, weights, tol, progress)
    return replace(result, certificate=words)


@partial(jax.jit, static_argnums=(7, 8, 9, 10, 11, 12, 13))
def _fit(kernel, X, Y, lams, weights, options, landmarks, criterion, loss, intercept, per_target, route, block_size, num):
    factor = factorize(kernel, X, weights=weights, intercept=intercept, landmarks=landmarks, route=route, block_size=block_size)
    lams = lambda_grid(factor, num) if lams is None else lams
    errors = evaluate(criterion, loss, factor, kernel, X, Y, lams, options)
    lam, error = _choose(lams, errors, per_target)
    model = make_model(kernel, getattr(factor, "points", X), *coef(factor, Y, lam), factor.route)
    residuals = loo_residuals(factor, Y, lam)
    dof = effective_dof(factor, jnp.atleast_1d(lam)).reshape(lam.shape)
    how = factor.precision_floor(), factor.indefinite, factor.route, name_of(criterion), getattr(factor, "trace_residual", None)
    return Fit(model, lams, errors, lam, error, residuals, dof, *how)


def _are_direct(kernel, X, Y, lams, weights, options, criterion) -> bool:
    """Whether a Cholesky factor for each λ does: criteria of our own, and no doubt about K that its spectrum would have to settle."""
    if lams is None or not are_few(len(lams), len(X)) or criterion not in CRITERIA:
        return False
    return kernel.is_semidefinite() and is_concrete(kernel, Y, lams, weights, options)


@partial(jax.jit, static_argnums=(6, 7, 8, 9))
def _fit_few(kernel, X, Y, lams, weights, options, criterion, loss, intercept, block_size):
    errors, best, floor = search_few(kernel, X, Y, lams, weights, options, criterion, loss, intercept, block_size)
    model = make_model(kernel, X, best.coef, best.intercept, "gram")
    how = floor, jnp.zeros_like(floor), "gram", name_of(criterion)
    return Fit(model, lams, errors, best.lam, best.error, best.loo_residuals, best.dof, *how)


def _choose(lams, errors, per_target):
    """The λ of the smallest error, the larger of equals: shared, by the mean over targets, or one per target."""
    if errors.ndim == 2 and not per_target:
        errors = jnp.mean(errors, axis=1)
    smallest = jnp.min(errors, axis=0)
    return jnp.max(jnp.where(errors <= smallest, lams.reshape(-1, *[1] * smallest.ndim), 0), axis=0), smallest


def _inspect(fit: Fit, default_grid: bool) -> None:
    """Say what a user would want to know before trusting the numbers."""
    lams, errors, chosen = np.asarray(fit.lams), np.asarray(fit.errors), np.asarray(fit.lam)
    if not np.isfinite(errors).all():
        raise ValueError(
            f"the {fit.criterion} error is not finite at {int((~np.isfinite(errors)).sum())} of {errors.size} λ: the factorization broke down; "
            "use float64 (NumPy float64 input), a larger smallest λ, or a smaller kernel width"
        )
    if float(fit.indefinite) > 100 * len(fit.loo_residuals) * np.finfo(errors.dtype).eps:
        _warn(
            f"the kernel matrix is not positive semidefinite: its most negative eigenvalue, {float(fit.indefinite):.2g} of the largest, was set to 0"
        )
    if lams.min() < 0.99 * float(fit.floor):
        _warn(
            f"λ below {float(fit.floor):.2g} is below the precision of the factor, and the grid goes down to {lams.min():.2g}: drop those, or use float64"
        )
    low, high = bool((chosen == lams.min()).any()), bool((chosen == lams.max()).any())
    unregularised = default_grid and lams.min() > 2 * float(fit.floor)  # below the grid's low end the fit no longer changes
    if len(lams) > 1 and (high or low and not unregularised):
        edge, remedy = ("smallest", "smaller") if low else ("largest", "larger")
        _warn(
            f"the chosen λ, {lams.min() if low else lams.max():.3g}, is the {edge} of the grid: pass lams= that reach {remedy} values, "
            "or change the kernel"
        )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=5)
