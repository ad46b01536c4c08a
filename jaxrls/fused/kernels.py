"""K·V in one CUDA kernel, written with NVIDIA Warp: `times` computes the product.

Warp compiles the kernel for the device in use, or for a CPU. `products.py` imports this file only
when it takes such a product.

Each entry of K is computed from differences of rows. It stays in registers and is multiplied at
once by its row of V, so that only X, Z and V are read from memory. Each thread holds up to four
rows of X, which saves most loads of Z and V. It sums over a share of the rows of Z.
"""

import functools
from typing import Any

import jax.numpy as jnp
import warp as wp
from jaxtyping import Array, Float

wp.config.log_level = wp.LOG_WARNING  # else Warp prints what it compiles
NUMBERS = 160  # registers for rows of X and their sums, of the 255 that a thread has (32 bits each)
AT_ONCE = 512  # rows of Z that are summed before the sum joins the total, which keeps digits
THREADS = 2**18  # threads that keep a device busy
FEWEST = 2048  # the smallest number of rows of Z in a share


@wp.func
def squared(gap: Any):
    """Return the square of the Euclidean distance, from the difference of two rows."""
    return wp.dot(gap, gap)


@wp.func
def city_block(gap: Any):
    """Return the city-block distance Σ |gap|, from the difference of two rows."""
    total = gap[0] - gap[0]
    for k in range(wp.static(len(gap))):
        total += wp.abs(gap[k])
    return total


@wp.func
def exponential(q: Any, p: Any):
    """Return exp(−q)."""
    return wp.exp(-q)


@wp.func
def matern_1(q: Any, p: Any):
    """Return exp(−r) with r = √q."""
    return wp.exp(-wp.sqrt(q))


@wp.func
def matern_3(q: Any, p: Any):
    """Return (1 + r) exp(−r) with r = √q."""
    r = wp.sqrt(q)
    return (r + type(q)(1.0)) * wp.exp(-r)


@wp.func
def matern_5(q: Any, p: Any):
    """Return (1 + r + r²/3) exp(−r) with r = √q."""
    r = wp.sqrt(q)
    return (q / type(q)(3.0) + r + type(q)(1.0)) * wp.exp(-r)


@wp.func
def rational_quadratic(q: Any, p: Any):
    """Return (1 + q)^(−p)."""
    return wp.exp(-p * wp.log(q + type(q)(1.0)))


PROFILES = {
    "exponential": exponential,
    "matern_1": matern_1,
    "matern_3": matern_3,
    "matern_5": matern_5,
    "rational_quadratic": rational_quadratic,
}
DISTANCES = {"squared": squared, "city_block": city_block}


def rows_in_thread(dtype: str, d: int, t: int) -> int:
    """Return how many rows of X one thread holds in registers, with two sums for each: 4, 2 or 1.

    Rows have d numbers and sums t numbers.
    """
    numbers_a_row = (d + 2 * t) * (2 if dtype == "float64" else 1)
    return next(rows for rows in (4, 2, 1) if rows * numbers_a_row <= NUMBERS or rows == 1)


@functools.cache
def product_kernel(profile: str, distance: str, dtype: str, d: int, t: int) -> Any:
    """Return the Warp kernel of a profile and a distance, for rows of d and V of t columns."""
    number = getattr(wp, dtype)
    count = rows_in_thread(dtype, d, t)
    row = wp.types.vector(d, number)
    rows_of_x = wp.types.matrix((count, d), number)
    values = wp.types.vector(t, number)
    sums = wp.types.matrix((count, t), number)
    value_of = PROFILES[profile]
    distance_of = DISTANCES[distance]
    rows = wp.constant(count)
    at_once = wp.constant(AT_ONCE)
    options = {"fast_math": dtype == "float32", "enable_backward": False}

    @wp.kernel(module="unique", module_options=options)
    def product(
        x: wp.array(dtype=row),
        z: wp.array(dtype=row),
        v: wp.array(dtype=values),
        p: wp.array(dtype=number),
        out: wp.array(dtype=values, ndim=2),
    ):
        i, share = wp.tid()
        m = z.shape[0]
        step = x.shape[0] // rows
        length = (m + out.shape[0] - 1) // out.shape[0]
        begin = share * length
        end = wp.min((share + 1) * length, m)
        a = rows_of_x()
        total = sums()
        parameter = p[0]
        for r in range(rows):
            a[r] = x[i + r * step]
        for first in range(begin, end, at_once):
            part = sums()
            for j in range(first, wp.min(first + at_once, end)):
                b = z[j]
                w = v[j]
                for r in range(rows):
                    part[r] += value_of(distance_of(a[r] - b), parameter) * w
            total += part
        for r in range(rows):
            out[share, i + r * step] = total[r]

    return product


@functools.cache
def _as_jax(profile: str, distance: str, dtype: str, d: int, t: int) -> Any:
    """Return a Warp kernel as a function of JAX arrays."""
    kernel = product_kernel(profile, distance, dtype, d, t)
    return wp.jax_kernel(kernel, vmap_method="sequential")


def times(
    profile: str,
    distance: str,
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    V: Float[Array, "m t"],
    parameter: Float[Array, "..."],
) -> Any:
    """Compute Σⱼ profile(distance(xᵢ − zⱼ), parameter) Vⱼ for every row i, (n, t).

    Args:
        profile: a name in PROFILES.
        distance: a name in DISTANCES.
        X: rows (n, d).
        Z: rows (m, d).
        V: (m, t).
        parameter: the argument p of the profile, one number as an array.
    """
    n, d = X.shape
    m, t = V.shape
    dtype = X.dtype.name
    rows = rows_in_thread(dtype, d, t)
    X = jnp.pad(X, ((0, -n % rows), (0, 0)))
    threads = len(X) // rows
    shares = max(1, min(-(-THREADS // threads), m // FEWEST))
    sizes: dict = {"launch_dims": (threads, shares), "output_dims": {"out": (shares, len(X))}}
    (out,) = _as_jax(profile, distance, dtype, d, t)(X, Z, V, parameter.reshape(1), **sizes)
    return out.sum(axis=0)[:n]
