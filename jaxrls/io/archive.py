"""Save kernels, models and fits as `.npz`, and load them: no pickle, so that a file can hold numbers but no program.

A file is a NumPy archive. Each array of the tree is an entry named by its place, such as `model.coef`, and `header` is a JSON text that
says what the tree is made of: class names, static fields and plain numbers. Loading builds only classes that `pytree` has registered,
and imports none.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import jax
import numpy as np

from jaxrls.io.npz import open_archive, write_archive
from jaxrls.io.packed import MAX_INFLATION, Refused
from jaxrls.support.files import replacing
from jaxrls.support.pytrees import REGISTRY, is_registered, name_in_files
from jaxrls.support.version import __version__

FORMAT = "jaxrls"
FORMAT_VERSION = 1
HEADER = "header"


def save(path: str | os.PathLike, obj: Any, *, extra: dict[str, Any] | None = None) -> None:
    """Save a kernel, a model or any result (fit, path, tuned, landmarks), bit for bit, to a file without pickle.

    Kernels of one's own are saved too, if their class stands under `jaxrls.pytree`: in a module, which who loads them can import, rather
    than in a script.

    **Arguments**: `path` is written exactly as named, whole or not at all, and what was there is replaced; `extra` is anything JSON can
    hold that should travel with it, such as the names of columns. **Raises** `ValueError` for kernels that hold a Python function
    (`FeatureMap`, `FunctionKernel`) and for classes that `pytree` does not know. **Cost** that of writing the arrays.
    **Source**: NumPy's `.npz` format.

    The entries are arrays that `numpy.load` reads too, named by their place: `numpy.load(path)["model.coef"]`.

    >>> import os, tempfile, jaxrls as rls
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "kernel.npz")
    ...     save(path, 0.5 * rls.Gaussian(width=2.0) + rls.Linear())
    ...     load(path)
    Sum(left=Scaled(scale=0.5, kernel=Gaussian(width=2.0)), right=Linear())
    """
    arrays: dict[str, np.ndarray] = {}
    if extra is not None and not isinstance(extra, dict):
        raise ValueError(f"extra must be a dictionary, as load gives it back, and is a {type(extra).__name__}: put it under a name")
    try:
        tree = _describe(obj, "", arrays)
    except RecursionError:
        raise ValueError("the object to save lies too deep in itself: build it of fewer parts") from None
    if not isinstance(tree, dict) or "class" not in tree:
        raise ValueError(f"save takes a kernel, a model or a result of jaxrls, and got {type(obj).__name__}")
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "jaxrls_version": __version__, "tree": tree, "extra": extra or {}}
    try:
        text = json.dumps(header)
        json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"extra must hold only what JSON can (text, numbers, lists, dictionaries): {error}") from None
    try:
        _build(tree, arrays)
    except Exception as error:  # the check of a class of one's own may raise anything
        raise ValueError(f"the object to save could not be loaded again: {error}") from None
    with replacing(path) as file:
        write_archive(file, {HEADER: np.frombuffer(text.encode(), np.uint8), **arrays})


def load(path: str | os.PathLike, *, with_extra: bool = False, max_inflation: float | int = MAX_INFLATION) -> Any:
    """Load what `save` wrote; with `with_extra`, the pair `(object, extra)`.

    Only what belongs to the object is read, each array to its end and its checksum with it, and a file that someone has compressed may become
    at most `max_inflation` times as large in memory (or 16 MiB), so that a small one cannot take all of it.

    Arrays come back as NumPy arrays, which keep float64 whatever JAX's switch says; they go wherever JAX arrays go. A file can hold
    wrong numbers, but it cannot run code: nothing is imported, so that the module which defines a kernel of one's own must be imported
    before. **Raises** `ValueError` for a file that is truncated, foreign, damaged, written in a newer format, too large, or holds a class
    that is not known; `OSError` where it cannot be read; nothing else, whatever the bytes. **Cost** that of reading the arrays.
    **Source**: NumPy's `.npz` format.

    >>> import os, tempfile, jaxrls as rls
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "kernel.npz")
    ...     save(path, rls.Matern(1.5, width=2.0), extra={"unit": "m"})
    ...     load(path, with_extra=True)
    (Matern(nu=1.5, width=2.0), {'unit': 'm'})
    """
    foreign = f"{path} was not written by jaxrls.save, or is damaged"
    try:
        with open_archive(path, max_inflation) as arrays:
            header = json.loads(arrays[HEADER].tobytes())
            _check_format(path, header)
            obj, extra = _build(header["tree"], arrays), header["extra"]
        if not is_registered(type(obj)) or not isinstance(extra, dict):
            raise TypeError("no object of the library")
    except _NotImported as error:
        raise ValueError(f"{path} holds an object of class {error}, which is not known: import the module that defines it first") from None
    except (OSError, Refused):
        raise
    except Exception as error:  # the check of a class of one's own may raise anything
        raise ValueError(f"{foreign}: {error}") from None
    return (obj, extra) if with_extra else obj


# writing ---------------------------------------------------------------------------------------------------------------------


def _describe(value, place: str, arrays: dict[str, np.ndarray]):
    """`value` as JSON, with its arrays put into `arrays` under their places."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        return {type(value).__name__: [_describe(item, f"{place}.{i}", arrays) for i, item in enumerate(value)]}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _describe_array(np.asarray(value), place, arrays)
    if is_registered(type(value)):
        return {"class": name_in_files(type(value)), "fields": _describe_fields(value, place + "." if place else "", arrays)}
    what, name = place or "the object to save", type(value).__name__
    if name_in_files(type(value)) in REGISTRY:
        raise ValueError(f"{what} is of a class {name} that has been defined again since: make the object anew, and save that")
    raise ValueError(
        f"{what} is of type {name}: only the library's own classes, those under jaxrls.pytree, arrays of numbers, numbers and text can be "
        "saved"
    )


def _describe_fields(obj, prefix: str, arrays) -> dict[str, Any]:
    described = {}
    for f in fields(obj):
        value = getattr(obj, f.name)
        if callable(value) and not is_dataclass(value):
            raise ValueError(
                f"{type(obj).__name__} holds a Python function, which a file without pickle cannot carry: save its arrays with numpy.savez "
                "and rebuild it in code, or fit Linear() to the features (Precomputed() to the kernel matrix) and save that"
            )
        if f.metadata.get("static") and isinstance(value, np.generic):
            value = value.item()  # an array would come back, which is not hashable
        described[f.name] = _describe(value, prefix + f.name, arrays)
    return described


def _describe_array(array, place, arrays):
    if place == HEADER:  # a field of a class of one's own
        place += "."
    if array.dtype.kind in "biufc":
        arrays[place] = array
        return {"array": place}
    if array.dtype.kind == "V" and array.dtype.names is None:  # bfloat16 and its kin, which the .npy format does not know
        arrays[place] = array.view(np.dtype(f"u{array.dtype.itemsize}"))
        return {"array": place, "dtype": array.dtype.name}
    raise ValueError(f"{place} is an array of dtype {array.dtype}, and only arrays of numbers can be saved")


# reading ---------------------------------------------------------------------------------------------------------------------


class _NotImported(Exception):
    """A class that is not the library's own, by its name with its module."""


def _check_format(path, header) -> None:
    if not isinstance(header, dict) or header.get("format") != FORMAT or not isinstance(header.get("format_version"), int):
        raise TypeError("its header is another program's")
    if header["format_version"] > FORMAT_VERSION:
        found, writer = header["format_version"], header.get("jaxrls_version")
        raise Refused(f"{path} has format {found}, written by jaxrls {writer}, and this is jaxrls {__version__}: upgrade it")


def _build(node, arrays: Mapping[str, np.ndarray]):
    """The inverse of `_describe`."""
    if not isinstance(node, dict):
        return node
    for sequence in (tuple, list):
        if sequence.__name__ in node:
            return sequence(_build(item, arrays) for item in node[sequence.__name__])
    if "array" in node:
        array = arrays[node["array"]]
        return array.view(jax.numpy.dtype(node["dtype"])) if "dtype" in node else array
    name = node["class"]
    if name not in REGISTRY:
        raise _NotImported(name) if "." in name else ValueError(f"it holds a {name}, which this version of jaxrls does not know")
    return _make(REGISTRY[name], {field: _build(value, arrays) for field, value in node["fields"].items()})


def _make(cls, values: dict[str, Any]):
    """An object by its fields, as JAX rebuilds a pytree: past `__init__`, which may ask for JAX arrays, but with its checks of values."""
    required = {f.name for f in fields(cls) if f.default is MISSING}
    if not required <= set(values) <= {f.name for f in fields(cls)}:
        raise ValueError(f"{cls.__name__} has fields {', '.join(f.name for f in fields(cls))}, and the file has {', '.join(values)}")
    obj = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(obj, name, value)
    getattr(obj, "__post_init__", lambda: None)()
    return obj
