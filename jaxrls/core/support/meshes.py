"""Arrays on several devices. Inside of a public call, axes of a mesh are left to the compiler
(`AxisType.Auto`), which keeps rows where they are; under Explicit axes every operation would have
to state the sharding of its result.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrls.core.support.device import changed_arrays, is_concrete


def parts_of(X, devices: int = 1) -> int:
    """The number of equal parts in which the rows of an array lie on devices. Where values are not
    known, the number in which they may lie: on a mesh that is set, else on so many devices.
    """
    if isinstance(X, jax.core.Tracer):
        mesh = jax.sharding.get_abstract_mesh()
        if not mesh.empty:
            devices = math.prod(mesh.shape[axis] for axis in mesh.auto_axes)
        return math.gcd(X.shape[0], devices)
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
    use_mesh: Any
    to_auto: Any
    put: Any
    if is_concrete(explicit):
        mesh, use_mesh, put = rows.sharding.mesh, jax.set_mesh, jax.device_put
        to_auto = partial(_moved, mesh)
    else:  # inside of `jax.jit`
        mesh, use_mesh = _typed(rows).mesh, jax.sharding.use_abstract_mesh
        to_auto, put = _whole, jax.sharding.reshard

    def as_rows(result):
        along = axis if result.shape[:1] == rows.shape[:1] else None
        spec = P(*[along, *[None] * (result.ndim - 1)][: result.ndim])
        return put(result, NamedSharding(mesh, spec))

    with use_mesh(auto(mesh)):
        results = call(*changed_arrays(to_auto, args), **changed_arrays(to_auto, kwargs))
    return changed_arrays(as_rows, results)


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
