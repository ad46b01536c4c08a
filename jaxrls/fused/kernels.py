"""K·V in one CUDA kernel, written with NVIDIA Warp, which compiles it for the device at hand, or
for a CPU. Imported only where a product is taken so.

An entry of K is computed from differences, lives in registers and is multiplied at once by its row
of V, so memory is read for rows alone. Each thread holds up to four rows of X, which saves most
loads of Z and V, and adds up a share of the rows of Z.
"""

import functools
from typing import Any

import jax.numpy as jnp
import warp as wp

wp.config.log_level = wp.LOG_WARNING  # it prints what it compiles
NUMBERS = 160  # of 32 bits, of the 255 that a thread has, that rows of X and sums may take
AT_ONCE = 512  # rows of Z whose values are added up by themselves, which keeps digits
THREADS = 2**18  # that keep a device busy
FEWEST = 2048  # rows of Z in a share


@wp.func
def squared(gap: Any):
    """The square of the Euclidean distance."""
    return wp.dot(gap, gap)


@wp.func
def city_block(gap: Any):
    """The sum of all lengths."""
    total = gap[0] - gap[0]
    for k in range(wp.static(len(gap))):
        total += wp.abs(gap[k])
    return total


@wp.func
def exponential(q: Any, p: Any):
    """exp(−q)."""
    return wp.exp(-q)


@wp.func
def matern_1(q: Any, p: Any):
    """exp(−r), r = √q."""
    return wp.exp(-wp.sqrt(q))


@wp.func
def matern_3(q: Any, p: Any):
    """(1 + r) exp(−r)."""
    r = wp.sqrt(q)
    return (r + type(q)(1.0)) * wp.exp(-r)


@wp.func
def matern_5(q: Any, p: Any):
    """(1 + r + r²/3) exp(−r)."""
    r = wp.sqrt(q)
    return (q / type(q)(3.0) + r + type(q)(1.0)) * wp.exp(-r)


@wp.func
def rational_quadratic(q: Any, p: Any):
    """(1 + q)^(−p)."""
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
    """How many rows of X a thread holds, with two sums for each."""
    numbers_a_row = (d + 2 * t) * (2 if dtype == "float64" else 1)
    return next(rows for rows in (4, 2, 1) if rows * numbers_a_row <= NUMBERS or rows == 1)


@functools.cache
def product_kernel(profile: str, distance: str, dtype: str, d: int, t: int) -> Any:
    """The Warp kernel of a profile, for rows of d columns and t columns of V."""
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
def _as_jax(profile, distance, dtype, d, t):
    kernel = product_kernel(profile, distance, dtype, d, t)
    return wp.jax_kernel(kernel, vmap_method="sequential")


def times(profile: str, distance: str, X, Z, V, parameter) -> Any:
    """Σⱼ profile(distance(xᵢ − zⱼ), parameter) Vⱼ for X (n, d), Z (m, d) and V (m, t)."""
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
