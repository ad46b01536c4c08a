"""The decorator `public_call`: checks the names and kinds of arguments, sets the precision
by the inputs, and returns NumPy arrays for float64 NumPy arrays.
"""

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.support.checks import check_unmasked
from jaxrls.core.support.device import (
    is_concrete,
    map_arrays,
    on_auto_axes,
    own_transfers,
    platform,
)

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
    "factor": ("what factorize returns", lambda value: hasattr(value, "solve_labels")),
    "key": ("one such as jax.random.key(0)", lambda value: isinstance(value, jax.Array)),
}

# What holds a part for each row of X.
OF_ROWS = "Y", "weights", "groups", "fixed_effects"


class PrecisionSource(NamedTuple):
    """Which argument of a public call sets its precision and the kind of its results."""

    argument: str  # its name; empty where arrays are JAX's and are taken as they are
    attributes: tuple[
        str, ...
    ] = ()  # where in the argument the array is, such as ("model", "coef")
    moves_arrays: bool = False  # whether all arrays of the argument become JAX's first

    @property
    def is_data(self) -> bool:
        """Whether the argument is data, not something that was fitted to data before."""
        return not self.attributes

    def array(self, value: Any) -> Any:
        """The array in the value of the argument that decides."""
        for name in self.attributes:
            if not hasattr(value, name):
                raise ValueError(f"{self.argument} must be a fit, and is a {type(value).__name__}")
            value = getattr(value, name)
        return value


def public_call(*, data: str = "", fitted: str = "", arrays_of: str = "") -> Callable[[Call], Call]:
    """Decorate a public call: float64 input is computed in float64, whatever `jax_enable_x64` says.

    One of the arguments sets the precision, and NumPy arrays in it make the results NumPy arrays:

    * `data="X"`: where `jax_enable_x64` is off, an argument with data;
    * `fitted="self.coef"`: an array that was fitted;
    * `arrays_of="factor"`: a factor or fit that is computed with outside of compiled programs, all
      of whose arrays become JAX's first;
    * nothing: all arrays are JAX's, and are computed with as they are.

    On a mesh with Explicit axes results are sharded as the rows are. Arrays of other libraries come
    in by DLPack, and count as NumPy's on the host, else as JAX's. Results that are arrays go back
    as they came.
    """
    if arrays_of:
        source = PrecisionSource(arrays_of, ("sample_array",), moves_arrays=True)
    elif fitted:
        argument, *attributes = fitted.split(".")
        source = PrecisionSource(argument, tuple(attributes))
    else:
        source = PrecisionSource(data)

    def decorate(call: Call) -> Call:
        signature = inspect.signature(call)

        @functools.wraps(call)
        def wrapped(*args, **kwargs):
            bound = _bound(call.__qualname__, signature, args, kwargs)
            return _call(call, bound, source)

        return wrapped  # type: ignore[return-value]

    return decorate


def _call(call: Callable, bound: inspect.BoundArguments, source: PrecisionSource) -> Any:
    """The results of a call, in the precision and the kind of arrays of one of its arguments."""
    values = bound.arguments
    foreign = {name: value for name, value in values.items() if is_foreign(value)}
    values |= {name: view_of(value) for name, value in foreign.items()}
    _check_arguments(values, bound.signature.parameters)
    array = source.array(values.get(source.argument))
    wide = _needs_float64(source, array)
    from_host = not isinstance(array, jax.Array)
    precision = jax.enable_x64(True) if wide else nullcontext()
    with precision, jax.numpy_rank_promotion("allow"), own_transfers():
        views = {name: share_memory(value, values[name]) for name, value in foreign.items()}
        values |= views
        if source.moves_arrays and from_host:
            values[source.argument] = jax.tree.map(_to_device, values[source.argument])
        results = on_auto_axes(call, bound.args, bound.kwargs)
        if foreign:
            first = next(iter(foreign.values()))
            results = give_back(results, first, list(views.values()))
        return _to_host(results) if wide and from_host else results


def _check_arguments(values: dict, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Raise for what no public call takes."""
    for name, value in values.items():  # before NumPy, which may drop the mask, reads it
        check_unmasked(name, value)
    _check_kinds(values, parameters)
    check_index(values)


def _needs_float64(source: PrecisionSource, array: Any) -> bool:
    """Whether float64 is switched on for a call: for data where it is off, and for fitted
    arrays.
    """
    if not source.argument or not is_wide(array):
        return False
    return not (source.is_data and jax.config.read("jax_enable_x64"))


def _bound(
    call: str, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Arguments by their parameters; raises where a call does not fit the signature."""
    known = [name for name in signature.parameters if name != "self"]
    check_known(call, kwargs, known)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{call}: {error}: it takes {', '.join(known)}") from None


def is_wide(value: Any) -> bool:
    """Whether an array is float64, or will be once NumPy reads it on the host; of a frame or a
    list, whose columns are not looked at, it is taken to be.
    """
    # A source of rows has the dtype that it reads.
    dtype = getattr(value, "host_dtype", getattr(value, "dtype", None))
    if isinstance(value, jax.Array):
        return dtype == np.float64
    return not isinstance(dtype, np.dtype) or dtype.kind != "f" or dtype.itemsize != 4


def _check_kinds(values: dict, parameters: Mapping[str, inspect.Parameter]) -> None:
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
                hint = (
                    ": a function of two matrices is a kernel as FunctionKernel(fn)"
                    if plain
                    else ""
                )
                raise ValueError(f"{name} must be {words}, and is a {type(value).__name__}{hint}")


def check_index(values: dict) -> None:
    """Raise where what holds a part for each row has another index than the rows, as of a data
    frame that was sorted since.
    """
    rows: Any = getattr(values.get("X"), "index", None)
    for name in OF_ROWS:
        index = getattr(values.get(name), "index", None)
        if hasattr(rows, "equals") and hasattr(index, "equals") and not rows.equals(index):
            raise ValueError(
                f"{name} has another index than X, and rows are taken in their order: give "
                f"{name}.loc[X.index], or {name}.to_numpy() where the order is right"
            )


def check_known(call: str, given: Collection[str], known: Collection[str]) -> None:
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
    known = [*inspect.signature(plain).parameters]

    @functools.wraps(plain)
    def init(self, *args, **options):
        check_known(type(self).__name__, options, known)
        plain(self, *args, **options)

    cls.__init__ = init
    return cls


def _to_device(leaf: Any) -> Any:
    """A NumPy array as JAX's."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _to_host(tree: Any) -> Any:
    """Arrays as NumPy arrays, except those without values yet, inside `jax.jit`."""
    return map_arrays(lambda leaf: np.asarray(leaf) if is_concrete(leaf) else leaf, tree)


# arrays of other libraries, such as Torch and CuPy
# --------------------------------------------------------------------------------------------------


def is_foreign(value: Any) -> bool:
    """Whether it is an array of another library, which DLPack hands over."""
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | jax.Array)


def view_of(value: Any) -> Any:
    """A foreign array without a copy, as NumPy sees it on the host, or JAX elsewhere; as it is
    where neither can: `as_floats` says why.
    """
    on_host = value.__dlpack_device__()[0] == 1
    for library in (np, jnp) if on_host else (jnp,):  # NumPy does not know bfloat16
        with suppress(Exception), jax.enable_x64(True):
            return library.from_dlpack(value)
    return value


def share_memory(value: Any, view: Any) -> Any:
    """The same numbers as a JAX array in the memory of the foreign one, where they need not be
    converted; else the view.
    """
    dtypes = [np.dtype(np.float32), jax.dtypes.canonicalize_dtype(np.float64)]
    if isinstance(view, np.ndarray) and view.dtype in dtypes and platform() == "cpu":
        with suppress(Exception):  # of an order of entries that JAX does not have
            return jnp.from_dlpack(value)
    return view


def give_back(results: Any, value: Any, views: list) -> Any:
    """Results that are arrays, or a tuple of them, in kind, by the `from_dlpack` of the library of
    `value`; in others what lies in the memory of a foreign array is copied, as that may change.
    """
    jax.block_until_ready((results, views))
    library: Any = sys.modules.get(type(value).__module__.partition(".")[0])
    arrays = results if isinstance(results, tuple) else (results,)
    plain = all(isinstance(part, np.ndarray | jax.Array) for part in arrays)
    if plain and hasattr(library, "from_dlpack") and is_concrete(results):
        return jax.tree.map(lambda part: library.from_dlpack(jnp.asarray(part)), results)
    places = [_place(view) for view in views if isinstance(view, jax.Array)]
    copied = lambda leaf: jnp.array(leaf) if _place(leaf) in places else leaf
    return map_arrays(copied, results)


def _place(array: jax.Array) -> int | None:
    """Where an array begins in the memory of its device, None for one on several."""
    whole = is_concrete(array) and len(array.devices()) == 1
    return array.unsafe_buffer_pointer() if whole else None
