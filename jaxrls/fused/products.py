"""Decide which products K·V are computed by one CUDA kernel, and call it.

These are products of kernels of a distance, and of their sums and multiples, on few columns. Here
"kernel" is the kernel function k, and "Warp kernel" is the program on the device.
"""

import math
import warnings
from collections.abc import Callable
from functools import cache, singledispatch
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import PRODUCTS, times_in_blocks
from jaxrls.core.kernels import (
    Gaussian,
    Kernel,
    Laplacian,
    Matern,
    RationalQuadratic,
    Scaled,
    Sum,
    Transformed,
    parameter,
)
from jaxrls.core.support import platform

PLATFORMS = {"gpu"}
MOST_COLUMNS = 32  # the most columns of X
MOST_TARGETS = 32  # the most columns of V that are multiplied at once


def fused_times(kernel: Kernel, X: Any, Z: Any, V: Any) -> Float[Array, "n *t"] | None:
    """Return K·V by a Warp kernel, or None if that is not possible.

    It is not possible in these cases:

    * there is no CUDA device, or Warp does not work;
    * the kernel is not one of a distance, or a sum or multiple of such kernels;
    * X has more than MOST_COLUMNS columns;
    * X, Z or V is not a single JAX array, or V is neither float32 nor float64.

    Derivatives are computed in blocks of K, as without Warp.

    **Cost** O(n m (d + t)) time. Only X, Z and V are read from memory.
    """
    if platform() not in PLATFORMS or not all(isinstance(part, jax.Array) for part in (X, Z, V)):
        return None
    known = V.dtype in (np.float32, np.float64) and product_of(kernel, X) is not None
    if not known or not _works():
        return None
    columns = V.reshape(V.shape[0], -1)
    product = _product(kernel, X.astype(V.dtype), Z.astype(V.dtype), columns)
    return product.reshape(X.shape[0], *V.shape[1:])


PRODUCTS.append(fused_times)


@jax.custom_jvp
def _product(
    kernel: Kernel, X: Float[Array, "n d"], Z: Float[Array, "m d"], V: Float[Array, "m t"]
) -> Float[Array, "n t"]:
    """Compute K·V by Warp kernels, for a few columns of V at a time."""
    times: Any = product_of(kernel, X)
    parts = range(0, V.shape[1], MOST_TARGETS)
    products = [times(Z, V[:, part : part + MOST_TARGETS]) for part in parts]
    return jnp.concatenate(products, axis=1)


@_product.defjvp
def _product_jvp(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
    """Return the product and its derivative, which is computed in blocks of K."""
    return _product(*primals), jax.jvp(times_in_blocks, primals, tangents)[1]


# the product of each kernel -----------------------------------------------------------------------


@singledispatch
def product_of(kernel: Any, X: Array) -> Callable | None:
    """Return the function `(Z, V)` that computes K·V by Warp kernels, for rows X.

    None if Warp kernels do not cover this kernel or these rows.
    """
    return None


@product_of.register
def _(kernel: Sum, X: Array) -> Callable | None:
    parts: Any = product_of(kernel.left, X), product_of(kernel.right, X)
    return None if None in parts else lambda *args: parts[0](*args) + parts[1](*args)


@product_of.register
def _(kernel: Scaled, X: Array) -> Callable | None:
    product = product_of(kernel.kernel, X)
    return product and (lambda Z, V: parameter(kernel, "scale", X) * product(Z, V))


@product_of.register
def _(kernel: Transformed, X: Array) -> Callable | None:
    product = product_of(kernel.kernel, kernel.transform(X))
    return product and (lambda Z, V: product(kernel.transform(Z), V))


@product_of.register
def _(kernel: Gaussian, X: Array) -> Callable | None:
    return _of_widths(kernel, X, "exponential", math.sqrt(0.5))


@product_of.register
def _(kernel: Laplacian, X: Array) -> Callable | None:
    return _of_widths(kernel, X, "exponential", 1.0, distance="city_block")


@product_of.register
def _(kernel: Matern, X: Array) -> Callable | None:
    order = int(2 * kernel.nu)
    return _of_widths(kernel, X, f"matern_{order}", math.sqrt(order))


@product_of.register
def _(kernel: RationalQuadratic, X: Array) -> Callable | None:
    alpha = parameter(kernel, "alpha", X)
    return _of_widths(kernel, X, "rational_quadratic", 1 / jnp.sqrt(2 * alpha), alpha)


def _of_widths(
    kernel: Any, X: Array, profile: str, factor: Any, shape: Any = 0.0, distance: str = "squared"
) -> Callable | None:
    """Return the function `(Z, V)` of `product_of`, for a kernel with a width.

    Args:
        kernel: the kernel.
        X: rows (n, d).
        profile: the name of its profile.
        factor: rows are multiplied by factor / width before distances are taken.
        shape: the parameter of the profile.
        distance: the name of its distance.

    Returns:
        The function, or None if X has no columns or too many.
    """
    if not 0 < X.shape[1] <= MOST_COLUMNS:
        return None

    def product(Z: Float[Array, "m d"], V: Float[Array, "m t"]) -> Float[Array, "n t"]:
        scale = factor / parameter(kernel, "width", X, per_column=True)
        return _times()(profile, distance, X * scale, Z * scale, V, jnp.asarray(shape, V.dtype))

    return product


def _times() -> Callable:
    """Return the function `times` of `kernels.py`, which imports Warp."""
    return import_module("jaxrls.fused.kernels").times


@cache
def _works() -> bool:
    """Whether Warp is installed and computes a product. Warn if it is installed but fails."""
    if find_spec("warp") is None:
        return False
    try:
        with jax.core.eval_context():  # compute now, also while a product is traced
            X = jnp.ones((1, 1))
            jax.block_until_ready(_times()("exponential", "squared", X, X, X, X))
    except Exception as error:
        warnings.warn(f"K·V is computed in blocks, as Warp fails: {error}", stacklevel=2)
        return False
    return True
