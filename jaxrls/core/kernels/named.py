"""Kernels by name, as `fit`, the estimators and the command line take them."""

from collections.abc import Callable
from functools import partial

from jaxrls.core.kernels.given import Precomputed
from jaxrls.core.kernels.inner import Cosine, Linear, Tanimoto
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.kernels.stationary import (
    ChiSquared,
    Gaussian,
    Laplacian,
    Matern,
    RationalQuadratic,
)

# Kernels of a width.
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


def check_kernel(kernel) -> None:
    """Raise unless it is a jaxrls kernel."""
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"kernel must be a jaxrls kernel such as Gaussian(1.0), and is {kernel!r}: fit and "
            f"tune also take the names {', '.join(map(repr, NAMED))}"
        )
