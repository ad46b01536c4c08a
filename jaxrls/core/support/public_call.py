"""The decorator `public_call`.

It checks the names and kinds of arguments. It computes float64 data in float64 even if
`jax_enable_x64` is off, and then returns NumPy arrays. It also takes arrays of other libraries.
"""

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.support.checks import check_unmasked
from jaxrls.core.support.device import (
    devices_of,
    is_concrete,
    map_arrays,
    on_auto_axes,
    own_transfers,
    platform,
    to_host,
)

Call = TypeVar("Call", bound=Callable)
Made = TypeVar("Made")
# Names of arguments in other libraries, and the arguments here that correspond to them.
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


# Arguments that must be of the same kind in every public call: the kind in words, and a test of it.
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "kernel": (
        "a jaxrls kernel, such as Gaussian(1.0)",
        lambda value: hasattr(value, "evaluable") and not isinstance(value, type),
    ),
    "factor": ("what factorize returns", lambda value: hasattr(value, "solve_labels")),
    "key": ("one such as jax.random.key(0)", lambda value: isinstance(value, jax.Array)),
}

# Arguments with an entry for each row. Others are compared with the first that has an index.
OF_ROWS = "factor", "fit", "X", "Y", "weights", "groups", "fixed_effects", "codes", "diag"


class PrecisionSource(NamedTuple):
    """Which argument of a public call sets the precision, and whether results are NumPy arrays.

    Args:
        argument: its name. It is empty if all arrays are JAX arrays and are used as they are.
        attributes: the names that lead from the argument to a fitted array, such as ("model",
            "coef"); () if the argument is data.
        moves_arrays: whether all NumPy arrays of the argument are first made JAX arrays.
    """

    argument: str
    attributes: tuple[str, ...] = ()
    moves_arrays: bool = False

    @property
    def is_data(self) -> bool:
        """Whether the argument is data, and not a `Fit`, `Model` or `Factor`."""
        return not self.attributes

    def array(self, value: Any) -> Any:
        """Return the array that sets the precision, from the value of the argument."""
        for name in self.attributes:
            if not hasattr(value, name):
                raise ValueError(f"{self.argument} must be a fit, and is a {type(value).__name__}")
            value = getattr(value, name)
        return value


def public_call(*, data: str = "", fitted: str = "", arrays_of: str = "") -> Callable[[Call], Call]:
    """Decorate a public function or method, so that float64 data are computed in float64.

    This holds even if `jax_enable_x64` is off. One argument sets the precision. If float64 had to
    be switched on for data that are no JAX arrays, results are NumPy arrays. So are the results of
    float64 calls on a `Fit`, `Model` or `Factor` that holds NumPy arrays. All other results are JAX
    arrays.

    * With `data="X"`, the argument X is data. Float64 is switched on if it is off.
    * With `fitted="self.coef"`, the array `self.coef` was fitted before.
    * With `arrays_of="factor"`, a `Factor` or `Fit` is computed with outside of compiled programs.
      All of its arrays are first made JAX arrays.
    * Without any of these, all arrays are JAX arrays and are used as they are.

    On a mesh with Explicit axes, results are sharded as the rows are. Arrays of other libraries are
    read by DLPack. They count as NumPy arrays if they lie on the host, else as JAX arrays. Results
    that are arrays are given back as arrays of that library.
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
    """Return the results of a call, in the precision and kind of the argument that sets them."""
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
        return to_host(results) if wide and from_host else results


def _check_arguments(values: dict, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Raise for arguments that no public call takes."""
    for name, value in values.items():  # first, because NumPy may drop a mask when it reads one
        check_unmasked(name, value)
    _check_kinds(values, parameters)
    check_index(values)


def _needs_float64(source: PrecisionSource, array: Any) -> bool:
    """Whether to switch on float64 for a call.

    It is switched on for float64 data if it is off, and always for float64 arrays of a `Fit` or
    `Factor`.
    """
    if not source.argument or not is_wide(array):
        return False
    return not (source.is_data and jax.config.read("jax_enable_x64"))


def _bound(
    call: str, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments bound to parameters. Raise if the call does not fit the signature."""
    known = [name for name in signature.parameters if name != "self"]
    check_known(call, kwargs, known)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{call}: {error}: it takes {', '.join(known)}") from None


def is_wide(value: Any) -> bool:
    """Whether a value is a float64 array, or becomes one when NumPy reads it.

    Data frames and lists count as float64. Their columns are not examined.
    """
    # A source of rows states in `host_dtype` the dtype of the rows that it reads.
    dtype = getattr(value, "host_dtype", getattr(value, "dtype", None))
    if isinstance(value, jax.Array):
        return dtype == np.float64
    return not isinstance(dtype, np.dtype) or dtype.kind != "f" or dtype.itemsize != 4


def _check_kinds(values: dict, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Raise for flags that are not bools, and for arguments that fail their test in `KINDS`.

    A name is allowed in place of a kernel, if the annotation of the argument contains `str`.
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
    """Raise if two arguments with an entry for each row have different pandas indexes.

    This happens if one of the two was sorted later. All are compared with the first that has an
    index: a factor, X, or what comes next.
    """
    of: str = ""
    rows: Any = None
    for name, part in _parts_of_rows(values):
        check_order(name, part, of, rows)
        if not _has_index(rows) and _has_index(part):
            of, rows = name, part


def _has_index(part: Any) -> bool:
    """Whether a part is a series or data frame, or keeps the index of one."""
    return hasattr(getattr(part, "index", None), "equals")


def _parts_of_rows(values: dict) -> Iterator[tuple[str, Any]]:
    """Yield all that holds an entry for each row of X, with the name that the caller knows it by.

    Fixed effects may be a list of parts. A criterion, which may be called itself, may hold labels
    of rows.
    """
    for name in OF_ROWS:
        value = values.get(name)
        parts = value if name == "fixed_effects" and isinstance(value, list | tuple) else [value]
        yield from ((getattr(part, "made_of", name), part) for part in parts)
    of_rows = getattr(values.get("criterion", values.get("self")), "of_rows", None)
    yield from of_rows.items() if isinstance(of_rows, dict) else ()


def check_order(name: str, part: Any, of: str, rows: Any) -> None:
    """Raise if `part`, with an entry for each of the rows, has another pandas index than the rows.

    Args:
        name: the name of `part` in the message.
        part: a series or data frame, or what keeps the index of one; anything else is accepted.
        of: the name of the rows in the message.
        rows: the rows, a data frame; anything else is accepted.
    """
    if _has_index(rows) and _has_index(part) and not rows.index.equals(part.index):
        raise ValueError(
            f"{name} has another index than {of}, and rows are taken in their order: give "
            f"{name}.loc[{of}.index], or {name}.to_numpy() where the order is right"
        )


def with_index(made: Made, given: Any) -> Made:
    """Return what was made of an argument for each row, with the pandas index of the argument.

    The index is an attribute for `check_index`, and no field. So JAX does not see it, and copies
    that JAX makes do not have it.
    """
    index = getattr(given, "index", None)
    if hasattr(index, "equals"):
        object.__setattr__(made, "index", index)
    return made


def check_known(call: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise for unknown arguments, and suggest the argument that may be meant.

    Args:
        call: the name of the call.
        given: the names of the arguments that the caller gave.
        known: the names of the arguments that the call takes.
    """
    wrong = []
    for name in given:
        if name not in known:
            hint = ELSEWHERE.get(name, "")
            argument = hint.partition("=")[0]
            if argument not in known and " " not in argument:  # this call lacks that argument
                hint = "".join(f"{near}=" for near in difflib.get_close_matches(name, known, 1))
            taken = f"did you mean {hint}?" if hint else f"it takes {', '.join(known)}"
            wrong.append(f"no {name}=: {taken}")
    if wrong:
        raise TypeError(f"{call} takes {' And '.join(wrong)}")


def hints_at_names(cls: Any) -> Any:
    """Make the constructor of a class suggest names for unknown arguments. Return the class."""
    plain = cls.__init__
    known = [*inspect.signature(plain).parameters]

    @functools.wraps(plain)
    def init(self, *args, **options):
        check_known(type(self).__name__, options, known)
        plain(self, *args, **options)

    cls.__init__ = init
    return cls


def _to_device(leaf: Any) -> Any:
    """Return a NumPy array as a JAX array, and anything else unchanged."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


# arrays of other libraries, such as Torch and CuPy
# --------------------------------------------------------------------------------------------------


def is_foreign(value: Any) -> bool:
    """Whether a value is an array of another library that supports DLPack."""
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | jax.Array)


def view_of(value: Any) -> Any:
    """Return a view of a foreign array: a NumPy array on the host, a JAX array elsewhere.

    Nothing is copied. If neither library can read the array it is returned unchanged, and
    `as_floats` raises an error later.
    """
    on_host = value.__dlpack_device__()[0] == 1
    for library in (np, jnp) if on_host else (jnp,):  # NumPy does not know bfloat16
        with suppress(Exception), jax.enable_x64(True):
            return library.from_dlpack(value)
    return value


def share_memory(value: Any, view: Any) -> Any:
    """Return a JAX array that shares the memory of a foreign array, if no conversion is needed.

    Otherwise return its NumPy or JAX view.

    Args:
        value: the foreign array.
        view: what `view_of` made of it.
    """
    dtypes = [np.dtype(np.float32), jax.dtypes.canonicalize_dtype(np.float64)]
    if isinstance(view, np.ndarray) and view.dtype in dtypes and platform() == "cpu":
        with suppress(Exception):  # JAX cannot read some orders of entries in memory
            return jnp.from_dlpack(value)
    return view


def give_back(results: Any, value: Any, views: list) -> Any:
    """Return the results of a call that was given foreign arrays.

    An array, or a tuple of arrays, is converted by `from_dlpack` of the library of `value`. In all
    other results, arrays that share memory with a foreign array are copied, because the caller may
    change that memory later.

    Args:
        results: the results of the call.
        value: the first foreign array among the arguments.
        views: what `share_memory` made of all foreign arrays.
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
    """Return the address of an array in the memory of its device.

    None for a traced array and for an array on several devices.
    """
    return array.unsafe_buffer_pointer() if devices_of(array) == 1 else None
