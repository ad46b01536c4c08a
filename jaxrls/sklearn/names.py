"""What estimators' parameters name: kernels, with scikit-learn's meaning of their numbers, criteria
and losses.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import jaxrls as rls
from jaxrls.search.start import MEDIAN_ROWS
from jaxrls.support.checks import as_floats
from jaxrls.support.precision import scope

RADIAL: dict[str, Callable] = {
    "gaussian": rls.Gaussian,
    "rbf": rls.Gaussian,
    "laplacian": rls.Laplacian,
    "matern12": partial(rls.Matern, 0.5),
    "matern32": partial(rls.Matern, 1.5),
    "matern52": partial(rls.Matern, 2.5),
    "rational_quadratic": rls.RationalQuadratic,
    "chi2": rls.ChiSquared,
}
# Those of γ in place of a width: exp(−γ‖x − z‖²), or of the city-block distance.
BY_GAMMA: dict[str, Callable] = {
    "gaussian": rls.Gaussian.from_gamma,
    "rbf": rls.Gaussian.from_gamma,
    "laplacian": lambda gamma: rls.Laplacian(1 / gamma),
    "chi2": rls.ChiSquared.from_gamma,
}
POLYNOMIAL = ("polynomial", "poly")
PLAIN: dict[str, Callable] = {
    "linear": rls.Linear,
    "cosine": rls.Cosine,
    "precomputed": rls.Precomputed,
}
KERNELS = ("linear", *POLYNOMIAL, *RADIAL, "cosine", "precomputed")
CRITERIA: dict[str, Any] = {
    "kfold": rls.kfold,
    **{
        c.name: c
        for c in (rls.loo, rls.gcv, rls.log_marginal_likelihood, rls.log_predictive_density)
    },
}
LOSSES = {f.__name__: f for f in (rls.squared_error, rls.absolute_error, rls.zero_one_loss)}
start_from_data = jax.jit(rls.start_from_data)


def look_up(name: str, value, known: dict) -> Callable:
    """The function that a parameter names, or is."""
    if callable(value):
        return value
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, known))}, or a function of that kind, and is {value!r}"
        )
    return known[value]


def named_kernel(kernel, X, counted, *, width, gamma, degree, coef0) -> Any:
    """The kernel of a name and its numbers, for rows X of which some are `counted`; a kernel object
    stays what it is, and a function becomes one.
    """
    if isinstance(kernel, rls.Kernel):
        return kernel
    if callable(kernel) and not isinstance(kernel, type):
        return rls.FunctionKernel(kernel)
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise ValueError(
            f"kernel must be one of {', '.join(map(repr, KERNELS))}, a jaxrls kernel, or a function of two matrices, and is {kernel!r}"
        )
    if kernel in POLYNOMIAL:
        return _polynomial(degree, None if gamma is None else _as_gamma(gamma, X), coef0)
    if kernel not in RADIAL:
        return PLAIN[kernel]()
    if gamma is None:
        return RADIAL[kernel](
            _median(kernel, X[counted])
            if _is_median(width)
            else np.asarray(as_floats("width", width, X.dtype))
        )
    if kernel not in BY_GAMMA:
        raise ValueError(
            f"gamma is for the kernels {', '.join(map(repr, (*BY_GAMMA, *POLYNOMIAL)))}: {kernel!r} has width="
        )
    if not _is_median(width):
        raise ValueError(
            f"gamma and width both say how wide the kernel is, {gamma!r} and {width!r}: leave one of them out"
        )
    return BY_GAMMA[kernel](_as_gamma(gamma, X))


def _is_median(width) -> bool:
    if isinstance(width, str) and width != "median":
        raise ValueError(
            f"width must be a positive number, one for each column of X, or 'median', and is {width!r}"
        )
    return isinstance(width, str)


def _median(kernel: str, X):
    """The median distance between distinct rows: one of weight 2 is two equal rows."""
    if scipy.sparse.issparse(X):
        X = X[
            np.unique(np.linspace(0, X.shape[0] - 1, min(X.shape[0], MEDIAN_ROWS)).astype(int))
        ].toarray()
    distinct = np.unique(X, axis=0)
    with scope(X.dtype == np.float64):
        return np.asarray(start_from_data(RADIAL[kernel](1.0), jnp.asarray(distinct)).width)


def _as_gamma(gamma, X) -> float:
    """γ as a number: "auto" is 1/d and "scale" 1/(d · variance of all of X), as scikit-learn's
    `SVC` has them.
    """
    if isinstance(gamma, str) and gamma in ("auto", "scale"):
        variance = (
            float(X.power(2).mean() - X.mean() ** 2 if scipy.sparse.issparse(X) else np.var(X))
            if gamma == "scale"
            else 1.0
        )
        return 1 / (X.shape[1] * (variance or 1.0))
    if not isinstance(gamma, int | float | np.number) or not 0 < gamma < np.inf:
        raise ValueError(
            f"gamma must be a positive number, 'auto', 'scale' or None, and is {gamma!r}"
        )
    return float(gamma)


def _polynomial(degree, gamma: float | None, coef0):
    """(γ⟨x, z⟩ + coef0)^degree, as γ^degree (⟨x, z⟩ + coef0/γ)^degree."""
    if not isinstance(coef0, int | float | np.number) or not 0 <= coef0 < np.inf:
        raise ValueError(
            f"coef0 must be a number that is not negative, or no kernel is positive semidefinite, and is {coef0!r}"
        )
    if gamma is None:
        return rls.Polynomial(degree, float(coef0))
    kernel = rls.Polynomial(degree, coef0 / gamma)
    return gamma**degree * kernel
