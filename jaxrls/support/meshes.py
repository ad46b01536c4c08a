"""Arrays over several devices: how many parts their rows are in, what is known of their values, and
meshes whose axes are part of types.

Inside, axes are left to the compiler (`AxisType.Auto`), which keeps rows where they are. Under
Explicit axes every operation would have to say what becomes of them: the doors take them off the
types of what comes in, and put them back on what goes out."""

import functools
import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
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


def auto(mesh: Mesh) -> Mesh:
    """The same mesh with all axes left to the compiler."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


class Split(NamedTuple):
    """Rows under Explicit axes: the mesh, concrete where they are, how many rows, and the names of
    the axes that they are split over.
    """

    mesh: Any
    n: int
    axis: Any

    def spec(self, leaf) -> P:
        """What has n rows is split as they are, and all else is whole on every device."""
        return (
            P(self.axis if leaf.shape[:1] == (self.n,) else None, *[None] * (leaf.ndim - 1))
            if leaf.ndim
            else P()
        )


def on_any_mesh(door: Door) -> Door:
    """A door whose arrays may lie on a mesh of Explicit axes: run under Auto axes, its results
    given back under Explicit ones.
    """

    @functools.wraps(door)
    def wrapped(*args, **kwargs):
        split = _split(args, kwargs)
        if split is None:
            return door(*args, **kwargs)
        into, enter, back = (
            _traced(split)
            if isinstance(split.mesh, jax.sharding.AbstractMesh)
            else _concrete(split)
        )
        with enter():
            out = door(*_arrays(into, args), **_arrays(into, kwargs))
        return _arrays(back, out)

    return wrapped  # type: ignore[return-value]


def _split(*trees) -> Split | None:
    """The rows under Explicit axes among all arrays, those whose first axis is split before others;
    None where there are no such axes.
    """
    found = [
        leaf
        for leaf in jax.tree.leaves(trees)
        if isinstance(leaf, jax.Array) and jax.typeof(leaf).sharding.mesh.explicit_axes
    ]
    if not found:
        return None
    rows = max(found, key=lambda leaf: any(jax.typeof(leaf).sharding.spec[:1]))
    typed, traced = (
        jax.typeof(rows).sharding,
        any(isinstance(leaf, jax.core.Tracer) for leaf in found),
    )
    mesh: Any = typed.mesh if traced else rows.sharding.mesh  # type: ignore[attr-defined]
    return Split(mesh, rows.shape[0] if rows.ndim else 0, (*typed.spec, None)[0])


def _concrete(split: Split):
    """How arrays with values change their mesh: nothing is moved."""
    inside = auto(split.mesh)

    def into(leaf):
        named = isinstance(leaf.sharding, NamedSharding) and not isinstance(leaf, jax.core.Tracer)
        return (
            jax.device_put(leaf, NamedSharding(inside, leaf.sharding.spec))
            if named and leaf.sharding.mesh == split.mesh
            else leaf
        )

    return (
        into,
        lambda: jax.set_mesh(inside),
        lambda leaf: jax.device_put(leaf, NamedSharding(split.mesh, split.spec(leaf))),
    )


def _traced(split: Split):
    """How arrays inside `jax.jit` change their types."""
    inside = split.mesh.update_axis_types(dict.fromkeys(split.mesh.axis_names, AxisType.Auto))

    def into(leaf):
        typed = jax.typeof(leaf).sharding.mesh.explicit_axes
        return jax.sharding.reshard(leaf, P(*[None] * leaf.ndim)) if typed else leaf

    @contextmanager
    def enter():
        with jax.sharding.use_abstract_mesh(inside):
            yield

    return (
        into,
        enter,
        lambda leaf: jax.sharding.reshard(leaf, NamedSharding(split.mesh, split.spec(leaf))),
    )


def _arrays(change: Callable, tree):
    """A tree with its JAX arrays changed."""
    return jax.tree.map(lambda leaf: change(leaf) if isinstance(leaf, jax.Array) else leaf, tree)
