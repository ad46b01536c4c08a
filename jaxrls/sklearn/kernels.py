"""Kernels by scikit-learn's names and numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np

import jaxrls as rls
from jaxrls.core.kernels import PLAIN, POLYNOMIAL, RADIAL, Kernel
from jaxrls.core.support import as_floats

# Those of γ in place of a width: exp(−γ‖x − z‖²), or of the city-block distance.
BY_GAMMA: dict[str, Callable] = {
    "gaussian": rls.Gaussian.from_gamma,
    "rbf": rls.Gaussian.from_gamma,
    "laplacian": lambda gamma: rls.Laplacian(1 / gamma),
    "chi2": rls.ChiSquared.from_gamma,
}


def named_kernel(
    name: str, X, *, width: Any = "median", gamma=None, degree: int = 3, coef0: float | int = 1.0
) -> Kernel:
    """The kernel of a name and its numbers, with scikit-learn's meaning of γ, degree and coef0.

    Args:
        name: one of `KERNELS`.
        X: rows (n, d), dense or sparse, from which "auto" and "scale" are computed.
        width: a number, one for each column, or "median", which `fit` computes, or a list of it.
        gamma: a number in place of a width; "auto" is 1/d, "scale" 1/(d · variance of all of X).
        degree: of "polynomial", (γ⟨x, z⟩ + coef0)^degree, where γ is 1 by default.
        coef0: of "polynomial".
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


def _variance(X) -> float:
    """The variance of all of X, or 1 where it is 0; from numbers in units of the largest, whose
    squares do not underflow.
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
