"""The decorator `door` of public functions: sets the precision by the inputs, returns NumPy arrays
for NumPy arrays, and handles meshes with Explicit axes.

Inside, axes are left to the compiler (`AxisType.Auto`), which keeps rows where they are; under
Explicit axes every operation would have to state the sharding of its result.
"""

import difflib
import functools
import inspect
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, TypeVar, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrls.core.support.checks import is_concrete, platform

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


# What some arguments must be, in every public call alike, in words and by a test.
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "kernel": (
        "a jaxrls kernel, such as Gaussian(1.0)",
        lambda value: hasattr(value, "evaluable") and not isinstance(value, type),
    ),
    "factor": ("what factorize returns", lambda value: hasattr(value, "solve")),
    "key": ("one such as jax.random.key(0)", lambda value: isinstance(value, jax.Array)),
}


def door(argument: str = "") -> Callable[[Call], Call]:
    """Decorate a public call: float64 input is computed in float64, whatever `jax_enable_x64` says,
    and NumPy input gives NumPy output.

    `argument` names what sets the precision: data such as "X", for which NumPy arrays are returned
    where `jax_enable_x64` is off, or a fitted array such as "self.coef", whose kind all results
    have. Without one all arrays are JAX's, and computed as they are. On a mesh with Explicit axes
    results are sharded as the rows are. Arrays of other libraries come in by DLPack, and count as
    NumPy's on the host, else as JAX's; results that are arrays go back as they came.
    """
    name, *path = argument.split(".")

    def decorate(call: Call) -> Call:
        signature = inspect.signature(call)
        known = dict.fromkeys(name for name in signature.parameters if name != "self")

        @functools.wraps(call)
        def wrapped(*args, **kwargs):
            if kwargs.keys() - known.keys():
                check_known(call.__qualname__, kwargs, known)
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(
                    f"{call.__qualname__}: {error}: it takes {', '.join(known)}"
                ) from None
            values = bound.arguments
            foreign = {name: value for name, value in values.items() if is_foreign(value)}
            values |= {name: _viewed(value) for name, value in foreign.items()}
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
                shared = {name: _shared(value, values[name]) for name, value in foreign.items()}
                values |= shared
                results = _on_auto_axes(call, bound.args, bound.kwargs)
                if foreign:
                    results = _returned(results, [*foreign.values()][0], [*shared.values()])
                as_given = not wide or isinstance(like, jax.Array)
                return results if as_given else _to_host(results)

        return wrapped  # type: ignore[return-value]

    return decorate


def is_wide(value) -> bool:
    """Whether an array is float64, or will be once NumPy reads it on the host."""
    # A source of rows has the dtype that it reads.
    dtype = getattr(value, "host_dtype", getattr(value, "dtype", None))
    if isinstance(value, jax.Array):
        return dtype == np.float64
    return not isinstance(dtype, np.dtype) or dtype.kind != "f" or dtype.itemsize != 4


def _check(values: dict, parameters) -> None:
    """Raise for arguments of the wrong kind: flags, and those of `KINDS`; a kernel may be named
    where text is among the annotations.
    """
    for name, value in values.items():
        annotation = parameters[name].annotation
        if annotation in (bool, bool | None) and not isinstance(value, bool | np.bool_ | None):
            raise ValueError(f"{name} must be True or False, and is {value!r}")
        if name in KINDS and value is not parameters[name].default:
            words, fits = KINDS[name]
            named = isinstance(value, str) and str in get_args(annotation)
            if not named and not fits(value):
                plain = name == "kernel" and callable(value) and not isinstance(value, type)
                hint = ": a function of two matrices is a kernel as FunctionKernel(fn)" * plain
                raise ValueError(f"{name} must be {words}, and is a {type(value).__name__}{hint}")


def check_known(call: str, given, known: dict) -> None:
    """Raise for unknown arguments, and name the one that may be meant."""
    wrong = []
    for name in given:
        if name not in known:
            hint = ELSEWHERE.get(name, "")
            argument = hint.partition("=")[0]
            if argument not in known and " " not in argument:  # not of this call
                hint = "".join(f"{near}=" for near in difflib.get_close_matches(name, known, 1))
            taken = f"did you mean {hint}?" if hint else f"it takes {', '.join(known)}"
            wrong.append(f"no {name}=: {taken}")
    if wrong:
        raise TypeError(f"{call} takes {' And '.join(wrong)}")


def hints_at_names(cls: Any) -> Any:
    """The class, with a constructor that answers an unknown argument as every public call does."""
    plain = cls.__init__
    known = dict.fromkeys(inspect.signature(plain).parameters)

    @functools.wraps(plain)
    def init(self, *args, **options):
        if options.keys() - known.keys():
            check_known(type(self).__name__, options, known)
        plain(self, *args, **options)

    cls.__init__ = init
    return cls


def _to_host(tree):
    """Arrays as NumPy arrays, except those without values yet, inside `jax.jit`."""
    leaves, structure = jax.tree.flatten(tree)
    known = [
        isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) for leaf in leaves
    ]
    pairs = zip(leaves, known, strict=True)
    return jax.tree.unflatten(structure, [np.asarray(a) if here else a for a, here in pairs])


def _arrays(change: Callable, tree):
    """A tree with its JAX arrays changed."""
    leaves, structure = jax.tree.flatten(tree)
    changed = [change(leaf) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, changed)


# arrays of other libraries
# --------------------------------------------------------------------------------------------------


def is_foreign(value) -> bool:
    """Whether it is an array of another library, such as Torch or CuPy, which DLPack hands over."""
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | jax.Array)


def _viewed(value) -> Any:
    """A foreign array without a copy, as NumPy sees it on the host, or JAX elsewhere; as it is
    where neither can: `as_floats` says why.
    """
    on_host = value.__dlpack_device__()[0] == 1
    for library in (np, jnp) if on_host else (jnp,):  # NumPy does not know bfloat16
        with suppress(Exception), jax.enable_x64(True):
            return library.from_dlpack(value)
    return value


def _shared(value, view) -> Any:
    """The same numbers as a JAX array in the memory of the foreign one, where they need not be
    converted.
    """
    dtypes = [np.dtype(np.float32), jax.dtypes.canonicalize_dtype(np.float64)]
    if isinstance(view, np.ndarray) and view.dtype in dtypes and platform() == "cpu":
        with suppress(Exception):  # of an order of entries that JAX does not have
            return jnp.from_dlpack(value)
    return view


def _returned(results, value, shared) -> Any:
    """Results that are arrays, or a tuple of them, in kind, by the `from_dlpack` of the library of
    `value`; in others what lies in the memory of a foreign array is copied, as that may change.
    """
    jax.block_until_ready((results, shared))
    library: Any = sys.modules.get(type(value).__module__.partition(".")[0])
    arrays = results if isinstance(results, tuple) else (results,)
    plain = all(isinstance(part, np.ndarray | jax.Array) for part in arrays)
    if plain and hasattr(library, "from_dlpack") and is_concrete(results):
        return jax.tree.map(lambda part: library.from_dlpack(jnp.asarray(part)), results)
    places = [_place(part) for part in shared if isinstance(part, jax.Array)]
    return _arrays(lambda leaf: jnp.array(leaf) if _place(leaf) in places else leaf, results)


def _place(array: jax.Array) -> int | None:
    """Where an array begins in the memory of its device, None for one on several."""
    whole = is_concrete(array) and len(array.devices()) == 1
    return array.unsafe_buffer_pointer() if whole else None


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


def _on_auto_axes(call: Callable, args: tuple, kwargs: dict) -> Any:
    """Call with arrays under Auto axes. Results with as many rows as the first array that is
    sharded are sharded as it is, all others are whole on every device.
    """
    leaves = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, jax.Array)]
    explicit = [leaf for leaf in leaves if jax.typeof(leaf).sharding.mesh.explicit_axes]
    if not explicit:
        return call(*args, **kwargs)
    rows = max(explicit, key=lambda leaf: any(jax.typeof(leaf).sharding.spec[:1]))
    traced = not is_concrete(explicit)  # inside of `jax.jit`
    mesh = (jax.typeof(rows) if traced else cast(Any, rows)).sharding.mesh
    axis = (*jax.typeof(rows).sharding.spec, None)[0]
    into = _whole if traced else functools.partial(_moved, mesh)

    def back(leaf):
        along = [axis if leaf.shape[:1] == rows.shape[:1] else None, *[None] * (leaf.ndim - 1)]
        place = NamedSharding(mesh, P(*along[: leaf.ndim]))
        return (jax.sharding.reshard if traced else jax.device_put)(leaf, place)

    with (jax.sharding.use_abstract_mesh if traced else jax.set_mesh)(auto(mesh)):
        results = call(*_arrays(into, args), **_arrays(into, kwargs))
    return _arrays(back, results)


def _whole(leaf: jax.Array) -> jax.Array:
    """An array in a program, whole on every device."""
    explicit = jax.typeof(leaf).sharding.mesh.explicit_axes
    return jax.sharding.reshard(leaf, P(*[None] * leaf.ndim)) if explicit else leaf


def _moved(mesh: Any, leaf: jax.Array) -> jax.Array:
    """An array of this mesh, where it is, with Auto axes."""
    place = None if isinstance(leaf, jax.core.Tracer) else leaf.sharding
    if not isinstance(place, NamedSharding) or place.mesh != mesh:
        return leaf
    return jax.device_put(leaf, NamedSharding(auto(mesh), place.spec))
