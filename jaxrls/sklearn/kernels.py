"""Make kernels from the names and parameters that scikit-learn uses."""

from collections.abc import Callable
from typing import Any

import numpy as np

import jaxrls as rls
from jaxrls.core.kernels import PLAIN, POLYNOMIAL, RADIAL, Kernel
from jaxrls.core.support import as_floats

# Kernels that may be given by γ in place of a width, such as exp(−γ‖x − z‖²).
BY_GAMMA: dict[str, Callable] = {
    "gaussian": rls.Gaussian.from_gamma,
    "rbf": rls.Gaussian.from_gamma,
    "laplacian": lambda gamma: rls.Laplacian(1 / gamma),
    "chi2": rls.ChiSquared.from_gamma,
}


def named_kernel(
    name: str,
    X: Any,
    *,
    width: Any = "median",
    gamma: Any = None,
    degree: int = 3,
    coef0: float | int = 1.0,
) -> Kernel:
    """Return the kernel of a name, where γ, degree and coef0 mean what they mean in scikit-learn.

    Args:
        name: one of `KERNELS`.
        X: rows (n, d), dense or sparse, from which γ = "auto" and "scale" are computed.
        width: a number, or one for each column. "median", or a list of "median", leaves it to `fit`
            to compute the median distance.
        gamma: a number in place of a width. "auto" is 1/d, "scale" is 1/(d · variance of all of X).
        degree: the degree of "polynomial", (γ⟨x, z⟩ + coef0)^degree, where γ is 1 by default.
        coef0: the constant of "polynomial".
    """
    if isinstance(gamma, str):
        gamma = 1 / (X.shape[1] * (_variance(X) if gamma == "scale" else 1.0))
    if name in POLYNOMIAL:
        gamma = 1.0 if gamma is None else float(gamma)
        kernel = rls.Polynomial(degree, coef0 / gamma)
        return kernel if gamma == 1 else gamma**degree * kernel
    if name in PLAIN:
        return PLAIN[name]()
    median = {*map(str, np.ravel(width))} == {"median"}
    if gamma is None:
        return RADIAL[name](
            np.asarray(width).tolist() if median else np.asarray(as_floats("width", width, X.dtype))
        )
    if name not in BY_GAMMA or not median:
        known = ", ".join((*BY_GAMMA, *POLYNOMIAL))
        raise ValueError(
            f"gamma takes the place of width in {known}, and kernel is {name!r}, width {width!r}: "
            "leave one of them out"
        )
    return BY_GAMMA[name](float(gamma))


def _variance(X: Any) -> float:
    """Return the variance of all numbers of X, or 1 if it is 0.

    It is computed in units of the largest number, so that no square underflows.
    """
    largest = float(abs(X).max()) or 1.0
    X = X.astype(np.float64) / largest
    sparse = hasattr(X, "tocsr")
    share = float(X.power(2).mean() - X.mean() ** 2 if sparse else np.var(X))
    variance = share * largest**2
    if share > 0 and not variance:
        raise ValueError(
            f"X holds {largest:.3g} at most, and its variance, which gamma='scale' needs, "
            "underflows: multiply X by a scale, or give width="
        )
    return variance or 1.0
