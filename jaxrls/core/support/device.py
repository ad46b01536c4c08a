"""What is known of arrays and devices: whether arrays have values yet, which inside `jax.jit` they
do not, where they lie, and the platform and memory of the default device.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_concrete(*trees) -> bool:
    """Whether every array in `trees` has values now, so that they can be looked at on the host."""
    return not [leaf for leaf in jax.tree.leaves(trees) if isinstance(leaf, jax.core.Tracer)]


@contextmanager
def values_unknown(what: str) -> Iterator[None]:
    """Raise `TypeError` in the name of a caller's function, traced inside, where it asks for the
    values of arrays, as NumPy, `float` and `if` do.
    """
    try:
        yield
    except (
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
        jax.errors.ConcretizationTypeError,
    ) as error:
        raise TypeError(
            f"{what} needs the values of arrays, as NumPy, float() and if do, and inside a "
            "compiled program they are not known: write it with jax.numpy, and choices with "
            "jax.numpy.where"
        ) from error


def value_of(ask: Callable, value):
    """`ask(numpy, value)` on the host, or, for an array sharded over several devices,
    `ask(jax.numpy, value)`, so that no row leaves its device.
    """
    spread = isinstance(value, jax.Array) and len(value.sharding.device_set) > 1
    with jax.ensure_compile_time_eval():  # also inside jit, where these values are constants
        return np.asarray(ask(jnp, value) if spread else ask(np, np.asarray(value)))


def on_device(value) -> jax.Array:
    """An array on the default device, by no program, as `jnp.asarray` would compile one for every
    new shape. NumPy arrays are copied first, as the caller may change them and JAX may share them.
    """
    return value if isinstance(value, jax.Array) else jax.device_put(np.array(value))


def changed_arrays(change: Callable, tree) -> Any:
    """A tree with its JAX arrays changed."""
    return jax.tree.map(lambda leaf: change(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


def platform() -> str:
    """The platform of `jax.default_device` where that is set, for a device that may not even be
    here, else of the default backend.
    """
    # `jax.jit` compiles anew where it changes.
    device = jax.config.jax_default_device
    if device is None:
        return jax.default_backend()
    name = device if isinstance(device, str) else device.platform
    return {"cuda": "gpu", "rocm": "gpu"}.get(name, name)


def memory_bytes() -> int | None:
    """Memory of the default device, or None where it is unknown."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
