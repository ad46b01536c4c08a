"""What the tests share: dtypes, tolerances that follow dtype and conditioning, derivatives by differences."""

import jax
import jax.numpy as jnp
import numpy as np

X64 = jax.config.jax_enable_x64
DTYPE = np.float64 if X64 else np.float32
EPS = float(np.finfo(DTYPE).eps)


def array(values):
    """A JAX array in the precision of this run."""
    return jnp.asarray(np.asarray(values, DTYPE))


def wide(values):
    """What `array` made of the values, back in float64: the data both the library and the oracle see."""
    return np.asarray(np.asarray(values, DTYPE), np.float64)


def assert_close(got, want, tolerance, what=""):
    """|got − want| ≤ tolerance × the largest |want|, shapes equal, nothing NaN."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    scale = max(np.abs(want).max(initial=0), np.finfo(np.float64).tiny)
    error = np.abs(got - want).max(initial=0) / scale
    assert error <= tolerance, f"{what}: relative error {error:.2g}, tolerance {tolerance:.2g}"


def assert_gradient(f, x, tolerance=1e-6, what=""):
    """The gradient of a scalar function of one array against central differences of order 4, entry by entry."""
    x = jnp.asarray(x)
    f = jax.jit(f)
    got, flat = jax.jit(jax.grad(f))(x), np.asarray(x).reshape(-1)
    assert bool(jnp.isfinite(got).all()), f"{what}: gradient is not finite"
    want = np.empty_like(flat)
    for i, value in enumerate(flat):
        step = 1e-3 * max(abs(value), 1.0) if value <= 0 else 1e-3 * value

        def at(shift, i=i, value=value):
            moved = flat.copy()
            moved[i] = value + shift
            return float(f(jnp.asarray(moved.reshape(x.shape))))

        want[i] = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
    assert_close(got, want.reshape(x.shape), tolerance, what)
