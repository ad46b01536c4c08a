"""Save kernels, models and fits as `.npz`, and load them: no pickle, so that a file can hold numbers but no program.

A file is a NumPy archive. Each array of the tree is an entry named by its place, such as `model.coef`, and `header` is a JSON text that
says what the tree is made of: class names, static fields and plain numbers. Loading builds only the classes listed here.
"""

import json
import os
import zipfile
import zlib
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np

from jaxrls import _kernels as kernels
from jaxrls._files import replacing
from jaxrls._fit import Fit
from jaxrls._model import Model
from jaxrls._path import Path
from jaxrls._version import __version__

FORMAT = "jaxrls"
FORMAT_VERSION = 1
HEADER = "header"

CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        kernels.Gaussian,
        kernels.Laplacian,
        kernels.Linear,
        kernels.Matern,
        kernels.On,
        kernels.Periodic,
        kernels.Polynomial,
        kernels.Precomputed,
        kernels.Product,
        kernels.RationalQuadratic,
        kernels.Scaled,
        kernels.Sobolev,
        kernels.Sum,
        Fit,
        Model,
        Path,
    )
}


def save(path: str | os.PathLike, obj: Any, *, extra: dict[str, Any] | None = None) -> None:
    """Save a kernel, a model, a fit or a path, bit for bit, to a file without pickle.

    **Arguments**: `path` is written exactly as named, whole or not at all, and what was there is replaced; `extra` is anything JSON can
    hold that should travel with it, such as the names of columns. **Raises** `ValueError` for kernels that hold a Python function
    (`FeatureMap`, `FunctionKernel`) and for classes that are not the library's own. **Cost** that of writing the arrays.

    The entries are arrays that `numpy.load` reads too, named by their place: `numpy.load(path)["model.coef"]`.

    >>> import os, tempfile, jaxrls as rls
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "kernel.npz")
    ...     save(path, 0.5 * rls.Gaussian(width=2.0) + rls.Linear())
    ...     load(path)
    Sum(left=Scaled(scale=0.5, kernel=Gaussian(width=2.0)), right=Linear())
    """
    arrays: dict[str, np.ndarray] = {}
    tree = _describe(obj, "", arrays)
    if not isinstance(tree, dict) or "class" not in tree:
        raise ValueError(f"save takes a kernel, a model, a fit or a path of jaxrls, and got {type(obj).__name__}")
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "jaxrls_version": __version__, "tree": tree, "extra": extra or {}}
    try:
        text = json.dumps(header)
    except TypeError as error:
        raise ValueError(f"extra must hold only what JSON can (text, numbers, lists, dictionaries): {error}") from None
    with replacing(path) as file:
        np.savez(file, **{HEADER: np.frombuffer(text.encode(), np.uint8)}, **arrays)  # type: ignore[arg-type]


def load(path: str | os.PathLike, *, with_extra: bool = False) -> Any:
    """Load what `save` wrote; with `with_extra`, the pair `(object, extra)`.

    Arrays come back as NumPy arrays, which keep float64 whatever JAX's switch says; they go wherever JAX arrays go. A file can hold
    wrong numbers, but it cannot run code. **Raises** `ValueError` for a file that is truncated, foreign, or written in a newer format;
    `OSError` where it cannot be read. **Cost** that of reading the arrays.

    >>> import os, tempfile, jaxrls as rls
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "kernel.npz")
    ...     save(path, rls.Matern(1.5, width=2.0), extra={"unit": "m"})
    ...     load(path, with_extra=True)
    (Matern(nu=1.5, width=2.0), {'unit': 'm'})
    """
    header, arrays = _read(path)
    try:
        obj, extra = _build(header["tree"], arrays), header["extra"]
        if type(obj) not in CLASSES.values() or not isinstance(extra, dict):
            raise TypeError("no object of the library")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or was not written by jaxrls.save: {error}") from None
    return (obj, extra) if with_extra else obj


# writing ---------------------------------------------------------------------------------------------------------------------


def _describe(value, place: str, arrays: dict[str, np.ndarray]):
    """`value` as JSON, with its arrays put into `arrays` under their places."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is tuple:
        return {"tuple": [_describe(item, f"{place}.{i}", arrays) for i, item in enumerate(value)]}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _describe_array(np.asarray(value), place, arrays)
    name = type(value).__name__
    if CLASSES.get(name) is type(value):
        prefix = place + "." if place else ""
        return {"class": name, "fields": {f.name: _describe(getattr(value, f.name), prefix + f.name, arrays) for f in fields(value)}}
    if isinstance(value, kernels.FeatureMap | kernels.FunctionKernel):
        raise ValueError(
            f"{name} holds a Python function, which a file without pickle cannot carry: save its arrays with numpy.savez and rebuild it in "
            "code, or fit Linear() to the features (Precomputed() to the kernel matrix) and save that"
        )
    kind = "a class of your own" if isinstance(value, kernels.Kernel) or is_dataclass(value) else "nothing that jaxrls can save"
    raise ValueError(f"{place or 'the object'} is of type {name}, which is {kind}: only the library's own classes can be loaded without pickle")


def _describe_array(array, place, arrays):
    if array.dtype.kind in "biufc":
        arrays[place] = array
        return {"array": place}
    if array.dtype.kind == "V" and array.dtype.names is None:  # bfloat16 and its kin, which the .npy format does not know
        arrays[place] = array.view(np.dtype(f"u{array.dtype.itemsize}"))
        return {"array": place, "dtype": array.dtype.name}
    raise ValueError(f"{place} is an array of dtype {array.dtype}, and only arrays of numbers can be saved")


# reading ---------------------------------------------------------------------------------------------------------------------


def _read(path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays, all of them in memory."""
    foreign = f"{path} was not written by jaxrls.save, or is truncated"
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(foreign)
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                if HEADER not in archive.files:
                    raise ValueError(f"{foreign}: it has no {HEADER!r} entry, but {', '.join(archive.files[:10]) or 'none at all'}")
                header = json.loads(archive[HEADER].tobytes())
                if not isinstance(header, dict) or header.get("format") != FORMAT:
                    raise ValueError(foreign)
                version = header.get("format_version")
                if not isinstance(version, int) or version > FORMAT_VERSION:
                    writer = header.get("jaxrls_version")
                    raise ValueError(f"{path} has format {version}, written by jaxrls {writer}, and this is jaxrls {__version__}: upgrade it")
                return header, {name: archive[name] for name in archive.files if name != HEADER}
        except (zipfile.BadZipFile, zlib.error, EOFError, json.JSONDecodeError, UnicodeDecodeError, RecursionError, NotImplementedError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None


def _build(node, arrays):
    """The inverse of `_describe`."""
    if not isinstance(node, dict):
        return node
    if "tuple" in node:
        return tuple(_build(item, arrays) for item in node["tuple"])
    if "array" in node:
        array = arrays[node["array"]]
        return array.view(jax.numpy.dtype(node["dtype"])) if "dtype" in node else array
    if node["class"] not in CLASSES:
        raise ValueError(f"it holds a {node['class']}, which this version of jaxrls does not know")
    return CLASSES[node["class"]](**{name: _build(value, arrays) for name, value in node["fields"].items()})
