"""Arrays over several devices: how many parts their rows are in, what is known of their values, and
meshes whose axes are part of types.

Inside, axes are left to the compiler (`AxisType.Auto`), which keeps rows where they are. Under
Explicit axes every operation would have to say what becomes of them: the doors take them off the
types of what comes in, and put them back on what goes out."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Door = TypeVar("Door", bound=Callable)


def parts_of(X, devices: int = 1) -> int:
    """In how many equal parts the rows of an array lie; of one whose values are not known, may lie:
    on a mesh that is set, else on so many devices.
    """
    if isinstance(X, jax.core.Tracer):
        mesh = jax.sharding.get_abstract_mesh()
        return math.gcd(
            X.shape[0],
            devices if mesh.empty else math.prod(mesh.shape[axis] for axis in mesh.auto_axes),
        )
    return X.shape[0] // X.sharding.shard_shape(X.shape)[0] if isinstance(X, jax.Array) else 1


def seen(ask: Callable, value):
    """`ask(numpy, value)` on the host, or, of an array over several devices, `ask(jax.numpy,
    value)`, so that no row leaves its device.
    """
    spread = isinstance(value, jax.Array) and len(value.sharding.device_set) > 1
    with jax.ensure_compile_time_eval():  # also where jit sees these values from outside
        return np.asarray(ask(jnp, value) if spread else ask(np, np.asarray(value)))


def auto(mesh: Any) -> Any:
    """The same mesh, of devices or abstract, with all axes left to the compiler."""
    if isinstance(mesh, AbstractMesh):
        return mesh.update_axis_types(dict.fromkeys(mesh.axis_names, AxisType.Auto))
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def on_any_mesh(door: Door) -> Door:
    """A door whose arrays may lie on a mesh of Explicit axes: run under Auto axes, its results
    given back under Explicit ones.
    """

    @functools.wraps(door)
    def wrapped(*args, **kwargs):
        found = [leaf for leaf in jax.tree.leaves((args, kwargs)) if _is_explicit(leaf)]
        if not found:
            return door(*args, **kwargs)
        into, enter, back = _between(found)
        with enter():
            out = door(*_arrays(into, args), **_arrays(into, kwargs))
        return _arrays(back, out)

    return wrapped  # type: ignore[return-value]


def _is_explicit(leaf) -> bool:
    return isinstance(leaf, jax.Array) and bool(jax.typeof(leaf).sharding.mesh.explicit_axes)


def _between(found: list):
    """How arrays come in, under which mesh the door runs, and how results go out: those with as
    many rows as the first array that is split are split as it is, all else is whole on every device.
    """
    rows = max(found, key=lambda leaf: any(jax.typeof(leaf).sharding.spec[:1]))
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in found)  # inside of `jax.jit`
    mesh = (jax.typeof(rows) if traced else rows).sharding.mesh
    axis, inside = (*jax.typeof(rows).sharding.spec, None)[0], auto(mesh)

    def into(leaf):
        if traced:
            return (
                jax.sharding.reshard(leaf, P(*[None] * leaf.ndim)) if _is_explicit(leaf) else leaf
            )
        place = None if isinstance(leaf, jax.core.Tracer) else leaf.sharding
        if not isinstance(place, NamedSharding) or place.mesh != mesh:
            return leaf
        return jax.device_put(leaf, NamedSharding(inside, place.spec))

    def back(leaf):
        along = [axis if leaf.shape[:1] == rows.shape[:1] else None, *[None] * (leaf.ndim - 1)]
        place = NamedSharding(mesh, P(*along[: leaf.ndim]))
        return (jax.sharding.reshard if traced else jax.device_put)(leaf, place)

    enter = jax.sharding.use_abstract_mesh if traced else jax.set_mesh
    return into, lambda: enter(inside), back


def _arrays(change: Callable, tree):
    """A tree with its JAX arrays changed."""
    return jax.tree.map(lambda leaf: change(leaf) if isinstance(leaf, jax.Array) else leaf, tree)
