"""Kernels by name, as `fit`, the estimators and the command line take them."""

from collections.abc import Callable
from functools import partial

from jaxrls.kernels.given import Precomputed
from jaxrls.kernels.inner import Cosine, Linear, Tanimoto
from jaxrls.kernels.stationary import ChiSquared, Gaussian, Laplacian, Matern, RationalQuadratic

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
