"""Questions about arrays and devices.

The first part asks whether arrays have values now, which inside `jax.jit` they do not. Elsewhere in
the package, code that needs values stands under `where_known`, or calls `require_values`,
`known_and` or `known_values`. Then come transfers, and the platform and memory of the default
device. The last part is about meshes of several devices. Inside a public call the axes of a mesh
are left to the compiler (`AxisType.Auto`), which keeps rows where they are. Under Explicit axes
every operation would have to state the sharding of its result.
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

ZERO = np.zeros(())
Look = TypeVar("Look", bound=Callable)


# whether arrays have values now
# --------------------------------------------------------------------------------------------------


def is_concrete(*trees) -> bool:
    """Whether every array in `trees` has values now, that is, whether none is traced."""
    return not [leaf for leaf in jax.tree.leaves(trees) if isinstance(leaf, jax.core.Tracer)]


def within_program(*trees) -> bool:
    """Whether a call with these arguments is traced, as part of another program.

    Inside of a program not even a constant has a value. So this is also true for calls without
    traced arguments.
    """
    return not is_concrete(trees, jax.device_put(ZERO))


def where_known(look: Look) -> Look:
    """Decorate a function that looks at values, so that it runs only if all arguments have values.

    Inside `jax.jit` traced arguments have no values. The function then does nothing, and the result
    is None.
    """

    @wraps(look)
    def run(*args: Any, **options: Any) -> Any:
        return look(*args, **options) if is_concrete(args, options) else None

    return run  # type: ignore[return-value]


def require_values(message: str, *values: Any) -> None:
    """Raise `ValueError` with this message if some array has no values, inside `jax.jit`."""
    if not is_concrete(values):
        raise ValueError(message)


def known_and(test: Callable[..., Any], *values: Any) -> bool:
    """Whether all arrays have values, and `test` of these values is true.

    Inside `jax.jit` traced arrays have no values, and the answer is False. `test` gets NumPy
    arrays. But an array that is sharded over several devices stays a JAX array. So `test` may use
    only operators and methods, which both kinds have.

    >>> known_and(lambda v: (v < 0).any(), np.array([1.0, -1.0]))
    True
    """
    if not is_concrete(values):
        return False
    # Without this, operations on an array with values would be traced inside `jax.jit`.
    with jax.ensure_compile_time_eval():
        return bool(test(*map(as_readable, values)))


def known_values(tree: Any) -> Any:
    """Return an array, or a pytree of arrays, in NumPy; None if some have no values.

    Inside `jax.jit` traced arrays have no values.

    >>> known_values(jnp.arange(3)).tolist()
    [0, 1, 2]
    >>> jax.eval_shape(known_values, jnp.arange(3)) is None
    True
    """
    return jax.tree.map(np.asarray, tree) if is_concrete(tree) else None


def numpy_or_jax(*trees) -> Any:
    """Return NumPy if all arrays have values, else JAX's NumPy.

    A small computation by NumPy compiles nothing for a new shape. Traced arrays need JAX.
    """
    return np if is_concrete(trees) else jnp


@contextmanager
def values_unknown(what: str) -> Iterator[None]:
    """Make a context in which a function of the caller is traced.

    If the function asks for the values of arrays, as NumPy, `float` and `if` do, a `TypeError`
    names the function as `what` and explains the remedy.
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


# places and transfers
# --------------------------------------------------------------------------------------------------


def devices_of(value: Any) -> int:
    """Return on how many devices a JAX array lies.

    The result is 0 for anything else, and for a traced array, whose place is not known.
    """
    known = isinstance(value, jax.Array) and is_concrete(value)
    return len(value.sharding.device_set) if known else 0


def value_of(ask: Callable, value: Any) -> np.ndarray:
    """Return a property of an array, such as its largest value, as a NumPy array.

    It is `ask(numpy, value)`, computed on the host. For an array that is sharded over several
    devices it is `ask(jax.numpy, value)`, so that no row leaves its device.
    """
    # Without this, operations on an array with values would be traced inside `jax.jit`.
    with jax.ensure_compile_time_eval():
        return np.asarray(ask(jnp, value) if devices_of(value) > 1 else ask(np, np.asarray(value)))


def as_readable(value: Any) -> Any:
    """Return a JAX array with values on one device as a NumPy array, and anything else unchanged."""
    return np.asarray(value) if devices_of(value) == 1 else value


def to_host(tree: Any) -> Any:
    """Return a pytree with its JAX arrays as NumPy arrays, except traced arrays."""
    return map_arrays(lambda leaf: np.asarray(leaf) if is_concrete(leaf) else leaf, tree)


def on_device(value: Any) -> jax.Array:
    """Return a value as a JAX array on the default device.

    No program is compiled, while `jnp.asarray` would compile one for every new shape. NumPy arrays
    are copied first: JAX may share their memory, and the caller may change it later.
    """
    return value if isinstance(value, jax.Array) else jax.device_put(np.array(value))


def own_transfers() -> AbstractContextManager:
    """Make a context in which the library may move arrays between host and device.

    A user may set JAX's transfer guard to "disallow", which forbids implicit transfers. Transfers
    of the library are intended, so the context allows them. The stricter guard "disallow_explicit"
    stays in force.
    """
    directions = "host_to_device", "device_to_device", "device_to_host"
    levels = [getattr(jax.config, f"jax_transfer_guard_{each}") for each in directions]
    stricter = "disallow_explicit" in levels
    return jax.transfer_guard("allow") if "disallow" in levels and not stricter else nullcontext()


def map_arrays(change: Callable, tree: Any) -> Any:
    """Return a pytree with `change` applied to each of its JAX arrays."""
    return jax.tree.map(lambda leaf: change(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


def platform() -> str:
    """Return the platform of the device for which programs are compiled, such as "cpu" or "gpu".

    It is that of `jax.default_device` if the user has set it, even to a device that this machine
    lacks. Else it is the platform of the default backend.
    """
    # A traced function may depend on the platform: `jax.jit` compiles again when it changes.
    device = jax.config.jax_default_device
    if device is None:
        return jax.default_backend()
    name = device if isinstance(device, str) else device.platform
    return {"cuda": "gpu", "rocm": "gpu"}.get(name, name)


def memory_bytes() -> int | None:
    """Return the memory of the default device in bytes, or None if it is unknown."""
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
    """Whether a number of rows is a symbol. `jax.export` uses them for any number of rows."""
    return jax.export.is_symbolic_dim(n)


# meshes of several devices
# --------------------------------------------------------------------------------------------------


def shards_of(X: Any, devices: int = 1) -> int:
    """Return the number of equal parts in which the rows of an array are spread over devices.

    The place of a traced array is not known. Its rows are taken to lie on all devices of the mesh
    that is set, or else on so many as `devices` says. The result is the greatest common divisor of
    this number and the number of rows.
    """
    if isinstance(X, jax.core.Tracer):
        mesh = jax.sharding.get_abstract_mesh()
        if not mesh.empty:
            devices = math.prod(mesh.shape[axis] for axis in mesh.auto_axes)
        return 1 if is_symbolic(X.shape[0]) else math.gcd(X.shape[0], devices)
    return X.shape[0] // X.sharding.shard_shape(X.shape)[0] if isinstance(X, jax.Array) else 1


def auto(mesh: Any) -> Any:
    """Return a mesh, concrete or abstract, with all its axes left to the compiler."""
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def on_auto_axes(call: Callable, args: tuple, kwargs: dict) -> Any:
    """Return the results of a call, computed with all arrays under Auto axes.

    If no array lies on Explicit axes, this is a plain call. Otherwise results get Explicit axes
    again. Those with as many rows as the first sharded array are sharded as it is. All other
    results are whole on every device.
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
        # JAX can differentiate arrays with Explicit axes only while a mesh is set. Without one a
        # traced result keeps its Auto axes.
        if not (in_program or is_concrete(result)) and jax.sharding.get_abstract_mesh().empty:
            return result
        along = axis if result.shape[:1] == rows.shape[:1] else None
        spec = P(*[along, *[None] * (result.ndim - 1)][: result.ndim])
        return put(result, NamedSharding(mesh, spec))

    with context:
        results = call(*map_arrays(to_auto, args), **map_arrays(to_auto, kwargs))
    return map_arrays(as_rows, results)


def _auto_context(mesh: Any, known: bool) -> Any:
    """Return a context in which the mesh is set, with Auto axes.

    JAX lets no mesh be set if some arguments are traced, as in derivatives in arguments that do not
    lie on the mesh. Then the mesh that is set already, if any, gets Auto axes.

    Args:
        mesh: the mesh of the arguments.
        known: whether all arguments have values.
    """
    if known:
        return jax.set_mesh(auto(mesh))
    mesh = jax.sharding.get_abstract_mesh()
    return nullcontext() if mesh.empty else jax.sharding.use_abstract_mesh(auto(mesh))


def _typed(array: jax.Array) -> Any:
    """Return the sharding in the JAX type of an array."""
    return jax.typeof(array).sharding


def _whole(array: jax.Array) -> jax.Array:
    """Return a traced array whole on every device, if it lies on Explicit axes."""
    explicit = _typed(array).mesh.explicit_axes
    return jax.sharding.reshard(array, P(*[None] * array.ndim)) if explicit else array


def _moved(mesh: Any, array: jax.Array) -> jax.Array:
    """Return an array of this mesh with Auto axes, without moving it, and others unchanged."""
    place = None if isinstance(array, jax.core.Tracer) else array.sharding
    if not isinstance(place, NamedSharding) or place.mesh != mesh:
        return array
    return jax.device_put(array, NamedSharding(auto(mesh), place.spec))
