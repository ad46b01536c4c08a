"""The decorator `door` of public functions: sets the precision by the inputs, returns NumPy arrays
for NumPy arrays, and handles meshes with Explicit axes.

Inside, axes are left to the compiler (`AxisType.Auto`), which keeps rows where they are; under
Explicit axes every operation would have to state the sharding of its result.
"""

import difflib
import functools
import inspect
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

Call = TypeVar("Call", bound=Callable)
# Names of arguments in other libraries, and what corresponds to them here.
ELSEWHERE = {
    "alpha": "lams=[…]",
    "alphas": "lams=",
    "lam": "lams=[…]",
    "num": "lams=, how many λ,",
    "sample_weight": "weights=",
    "gamma": "a kernel such as Gaussian.from_gamma(…)",
    "cv": "groups=",
    "scoring": "criterion=",
    "fit_intercept": "intercept=",
    "length_scale": "a kernel's width=",
    "lengthscale": "a kernel's width=",
    "sigma": "a kernel's width=",
    "return_cov": "the covariance of posterior(X)",
    "noise": "lams=[…]",
    "normalize": "standardize=",
}


# What some arguments must be, in every public call alike.
WANTED = {
    "kernel": "a jaxrls kernel, such as Gaussian(1.0)",
    "factor": "what factorize returns",
    "key": "one such as jax.random.key(0)",
}


def door(argument: str = "") -> Callable[[Call], Call]:
    """Decorate a public call: float64 input is computed in float64, whatever `jax_enable_x64` says,
    and NumPy input gives NumPy output.

    `argument` names what sets the precision: data such as "X", for which NumPy arrays are returned
    where `jax_enable_x64` is off, or a fitted array such as "self.coef", whose kind all results
    have. Without one all arrays are JAX's, and computed as they are. On a mesh with Explicit axes
    results are sharded as the rows are.
    """
    name, *path = argument.split(".")

    def decorate(call: Call) -> Call:
        signature = inspect.signature(call)
        known = [parameter for parameter in signature.parameters if parameter != "self"]

        @functools.wraps(call)
        def wrapped(*args, **kwargs):
            check_known(call.__qualname__, kwargs, known)
            try:
                values = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(
                    f"{call.__qualname__}: {error}: it takes {', '.join(known)}"
                ) from None
            _check(values, signature.parameters)
            like = values.get(name)
            for part in path:
                if not hasattr(like, part):
                    raise ValueError(f"{name} must be a fit, and is a {type(like).__name__}")
                like = getattr(like, part)
            on = jax.config.read("jax_enable_x64")
            wide = bool(name) and is_wide(like) and (not on or bool(path))
            scope = jax.enable_x64(True) if wide else nullcontext()
            with scope, jax.numpy_rank_promotion("allow"):
                found = _on_auto_axes(call, args, kwargs)
                return found if not wide or isinstance(like, jax.Array) else _to_host(found)

        return wrapped  # type: ignore[return-value]

    return decorate


def is_wide(value) -> bool:
    """Whether an array is float64, or will be once NumPy reads it on the host."""
    # A source of rows has the dtype that it reads.
    dtype = getattr(value, "host_dtype", getattr(value, "dtype", None))
    if isinstance(value, jax.Array):
        return dtype == np.float64
    return not isinstance(dtype, np.dtype) or dtype.kind != "f" or dtype.itemsize == 8


def _check(values: dict, parameters) -> None:
    """Raise for arguments of the wrong kind: flags, and those of `WANTED`."""
    for name, value in values.items():
        of = parameters[name]
        flag = of.annotation in (bool, bool | None)
        named = isinstance(value, str) and "str" in str(of.annotation) or value is of.default
        if flag and not isinstance(value, bool | np.bool_ | None):
            raise ValueError(f"{name} must be True or False, and is {value!r}")
        fits = {
            "kernel": hasattr(value, "evaluable") and not isinstance(value, type) or named,
            "factor": hasattr(value, "solve"),
            "key": isinstance(value, jax.Array | None),
        }
        if not fits.get(name, True):
            raise ValueError(f"{name} must be {WANTED[name]}, and is a {type(value).__name__}")


def check_known(call: str, given, known: list[str]) -> None:
    """Raise for unknown arguments, and name the one that may be meant."""
    wrong = []
    for name in given:
        if name not in known:
            meant = difflib.get_close_matches(name, known, 1)
            hint = ELSEWHERE.get(name, "")
            to = hint.partition("=")[0]
            if to not in known and " " not in to:  # not of this call
                hint = f"{meant[0]}=" if meant else ""
            taken = f"did you mean {hint}?" if hint else f"it takes {', '.join(known)}"
            wrong.append(f"no {name}=: {taken}")
    if wrong:
        raise TypeError(f"{call} takes {' And '.join(wrong)}")


def hints_at_names(cls: Any) -> Any:
    """The class, with a constructor that answers an unknown argument as every public call does."""
    made = cls.__init__
    known = [*inspect.signature(made).parameters]

    @functools.wraps(made)
    def init(self, *args, **options):
        check_known(type(self).__name__, options, known)
        made(self, *args, **options)

    cls.__init__ = init
    return cls


def _to_host(tree):
    """Arrays as NumPy arrays, except those without values yet, inside `jax.jit`."""
    known = lambda leaf: not isinstance(leaf, jax.core.Tracer)
    return _arrays(lambda leaf: np.asarray(leaf) if known(leaf) else leaf, tree)


def _arrays(change: Callable, tree):
    """A tree with its JAX arrays changed."""
    return jax.tree.map(lambda leaf: change(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


# several devices
# --------------------------------------------------------------------------------------------------


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


def _is_explicit(leaf) -> bool:
    return isinstance(leaf, jax.Array) and bool(jax.typeof(leaf).sharding.mesh.explicit_axes)


def _on_auto_axes(call: Callable, args: tuple, kwargs: dict) -> Any:
    """Call with arrays under Auto axes. Results with as many rows as the first array that is
    sharded are sharded as it is, all others are whole on every device.
    """
    found = [leaf for leaf in jax.tree.leaves((args, kwargs)) if _is_explicit(leaf)]
    if not found:
        return call(*args, **kwargs)
    rows = max(found, key=lambda leaf: any(jax.typeof(leaf).sharding.spec[:1]))
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in found)  # inside of `jax.jit`
    mesh = (jax.typeof(rows) if traced else rows).sharding.mesh
    axis, inside = (*jax.typeof(rows).sharding.spec, None)[0], auto(mesh)

    def into(leaf):
        if traced:
            whole = P(*[None] * leaf.ndim)
            return jax.sharding.reshard(leaf, whole) if _is_explicit(leaf) else leaf
        place = None if isinstance(leaf, jax.core.Tracer) else leaf.sharding
        if not isinstance(place, NamedSharding) or place.mesh != mesh:
            return leaf
        return jax.device_put(leaf, NamedSharding(inside, place.spec))

    def back(leaf):
        along = [axis if leaf.shape[:1] == rows.shape[:1] else None, *[None] * (leaf.ndim - 1)]
        place = NamedSharding(mesh, P(*along[: leaf.ndim]))
        return (jax.sharding.reshard if traced else jax.device_put)(leaf, place)

    with (jax.sharding.use_abstract_mesh if traced else jax.set_mesh)(inside):
        found = call(*_arrays(into, args), **_arrays(into, kwargs))
    return _arrays(back, found)
