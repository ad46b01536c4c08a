"""What is known of arrays and devices: whether arrays have values yet, which inside `jax.jit` they
do not, where they lie, and the platform and memory of the default device.

Inside of a public call, axes of a mesh are left to the compiler (`AxisType.Auto`), which keeps rows
where they are; under Explicit axes every operation would have to state the sharding of its result.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

Check = TypeVar("Check", bound=Callable)


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


def value_of(ask: Callable, value: Any) -> np.ndarray:
    """`ask(numpy, value)` on the host, or, for an array sharded over several devices,
    `ask(jax.numpy, value)`, so that no row leaves its device.
    """
    spread = isinstance(value, jax.Array) and len(value.sharding.device_set) > 1
    with jax.ensure_compile_time_eval():  # also inside jit, where these values are constants
        return np.asarray(ask(jnp, value) if spread else ask(np, np.asarray(value)))


def where_known(check: Check) -> Check:
    """A check of values that is passed over where those of some argument are not known: inside of
    `jax.jit`.
    """

    @wraps(check)
    def run(*args: Any, **options: Any) -> None:
        if is_concrete(args, options):
            check(*args, **options)

    return run  # type: ignore[return-value]


def require_values(message: str, *values: Any) -> None:
    """Raise the message where some values are not known, inside of `jax.jit`."""
    if not is_concrete(values):
        raise ValueError(message)


def known_and(test: Callable[..., Any], *values: Any) -> bool:
    """Whether values are known, and `test` of them as NumPy arrays is true: what checks of values
    ask. Inside of `jax.jit` nothing is known, and the answer is false.

    An array that is sharded over several devices stays there, so that `test` may use what NumPy and
    JAX arrays have in common: operators and methods.

    >>> known_and(lambda v: (v < 0).any(), np.array([1.0, -1.0]))
    True
    """
    if not is_concrete(values):
        return False
    with jax.ensure_compile_time_eval():  # also inside jit, where these values are constants
        return bool(test(*map(_where_it_can_be_read, values)))


def _where_it_can_be_read(value: Any) -> Any:
    """An array on the host, unless it is sharded; anything else as it is."""
    if isinstance(value, jax.Array) and len(value.sharding.device_set) == 1:
        return np.asarray(value)
    return value


def on_device(value: Any) -> jax.Array:
    """An array on the default device, by no program, as `jnp.asarray` would compile one for every
    new shape. NumPy arrays are copied first, as the caller may change them and JAX may share them.
    """
    return value if isinstance(value, jax.Array) else jax.device_put(np.array(value))


def own_transfers() -> AbstractContextManager:
    """Within this, what goes between host and device is meant: where JAX was told to disallow
    transfers that are not stated, it allows them; anything stricter stays.
    """
    directions = "host_to_device", "device_to_device", "device_to_host"
    levels = [getattr(jax.config, f"jax_transfer_guard_{each}") for each in directions]
    stricter = "disallow_explicit" in levels
    return jax.transfer_guard("allow") if "disallow" in levels and not stricter else nullcontext()


def map_arrays(change: Callable, tree: Any) -> Any:
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
    device = jax.config.jax_default_device
    if device is None or isinstance(device, str):
        device = jax.devices(device)[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def is_symbolic(n: Any) -> bool:
    """Whether a number of rows is a symbol, as `jax.export` has for programs of any number."""
    return jax.export.is_symbolic_dim(n)


# meshes of several devices
# --------------------------------------------------------------------------------------------------


def shards_of(X: Any, devices: int = 1) -> int:
    """The number of equal parts in which the rows of an array lie on devices. Where values are not
    known, the number in which they may lie: on a mesh that is set, else on so many devices.
    """
    if isinstance(X, jax.core.Tracer):
        mesh = jax.sharding.get_abstract_mesh()
        if not mesh.empty:
            devices = math.prod(mesh.shape[axis] for axis in mesh.auto_axes)
        return 1 if is_symbolic(X.shape[0]) else math.gcd(X.shape[0], devices)
    return X.shape[0] // X.sharding.shard_shape(X.shape)[0] if isinstance(X, jax.Array) else 1


def auto(mesh: Any) -> Any:
    """The same mesh, of devices or abstract, with all axes left to the compiler."""
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def on_auto_axes(call: Callable, args: tuple, kwargs: dict) -> Any:
    """Call with arrays under Auto axes. Results with as many rows as the first array that is
    sharded are sharded as it is, all others are whole on every device.
    """
    arrays = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, jax.Array)]
    explicit: list[Any] = [array for array in arrays if _typed(array).mesh.explicit_axes]
    if not explicit:
        return call(*args, **kwargs)
    rows = max(explicit, key=lambda array: any(_typed(array).spec[:1]))
    axis = (*_typed(rows).spec, None)[0]
    to_auto: Callable
    put: Callable
    in_program = not is_concrete(explicit)
    if in_program:
        mesh = _typed(rows).mesh
        context = jax.sharding.use_abstract_mesh(auto(mesh))
        to_auto = _whole
        put = jax.sharding.reshard
    else:
        mesh = rows.sharding.mesh
        context = _auto_context(mesh, is_concrete(args, kwargs))
        to_auto = partial(_moved, mesh)
        put = jax.device_put

    def as_rows(result: jax.Array) -> jax.Array:
        # Without a mesh that is set, JAX takes derivatives of what is on one in no Explicit axes.
        if not (in_program or is_concrete(result)) and jax.sharding.get_abstract_mesh().empty:
            return result
        along = axis if result.shape[:1] == rows.shape[:1] else None
        spec = P(*[along, *[None] * (result.ndim - 1)][: result.ndim])
        return put(result, NamedSharding(mesh, spec))

    with context:
        results = call(*map_arrays(to_auto, args), **map_arrays(to_auto, kwargs))
    return map_arrays(as_rows, results)


def _auto_context(mesh: Any, known: bool) -> Any:
    """The mesh set, with Auto axes; where not all arguments are known, as while a derivative is
    taken in those that are not on the mesh, JAX lets none be set: then the one that is set.
    """
    if known:
        return jax.set_mesh(auto(mesh))
    mesh = jax.sharding.get_abstract_mesh()
    return nullcontext() if mesh.empty else jax.sharding.use_abstract_mesh(auto(mesh))


def _typed(array: jax.Array) -> Any:
    """The sharding in the type of an array."""
    return jax.typeof(array).sharding


def _whole(array: jax.Array) -> jax.Array:
    """An array in a program, whole on every device."""
    explicit = _typed(array).mesh.explicit_axes
    return jax.sharding.reshard(array, P(*[None] * array.ndim)) if explicit else array


def _moved(mesh: Any, array: jax.Array) -> jax.Array:
    """An array of this mesh, where it is, with Auto axes."""
    place = None if isinstance(array, jax.core.Tracer) else array.sharding
    if not isinstance(place, NamedSharding) or place.mesh != mesh:
        return array
    return jax.device_put(array, NamedSharding(auto(mesh), place.spec))
