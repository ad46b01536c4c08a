"""Save kernels, models and fits as `.safetensors`, and load them: no pickle, so that a file can hold
numbers but no program.

Each array of the tree is a tensor named by its place, such as `model.coef`; the metadata says in
JSON what the tree is made of: class names, static fields and plain numbers. Loading builds only
classes that `pytree` has registered, and imports none.
"""

import json
import os
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import jax
import numpy as np

from jaxrls.support.files import Damaged, read_arrays, write_arrays
from jaxrls.support.pytrees import REGISTRY, is_registered, name_in_files


def save(path: str | os.PathLike, obj: Any, *, extra: dict[str, Any] | None = None) -> None:
    """Save a kernel, a model or any result (fit, path, landmarks), bit for bit, as
    `.safetensors`.

    Kernels of one's own are saved too, if their class stands under `jaxrls.pytree`: in a module,
    which who loads them can import, rather than in a script. Other programs read the arrays with
    `safetensors.numpy.load_file(path)["model.coef"]`.

    **Cost** that of writing the arrays. **Source**: the format of `safetensors`.

    Args:
        path: written exactly as named, whole or not at all; what was there is replaced.
        obj: what to save.
        extra: anything JSON can hold that should travel with it, such as the names of columns.

    Raises:
        ValueError: for kernels that hold a Python function (`FeatureMap`, `FunctionKernel`), for
            classes that `pytree` does not know, and for what JSON cannot hold.

    >>> import os, tempfile, jaxrls as rls
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "kernel.safetensors")
    ...     save(path, 0.5 * rls.Gaussian(width=2.0) + rls.Linear())
    ...     load(path)
    Sum(left=Scaled(scale=0.5, kernel=Gaussian(width=2.0)), right=Linear())
    """
    arrays: dict[str, np.ndarray] = {}
    obj = obj.for_file() if hasattr(obj, "for_file") else obj
    if extra is not None and not isinstance(extra, dict):
        raise ValueError(
            f"extra must be a dictionary, as load gives it back, and is a {type(extra).__name__}: put it under a name"
        )
    try:
        tree = _describe(obj, "", arrays)
    except RecursionError:
        raise ValueError(
            "the object to save lies too deep in itself: build it of fewer parts"
        ) from None
    if not isinstance(tree, dict) or "class" not in tree:
        raise ValueError(
            f"save takes a kernel, a model or a result of jaxrls, and got {type(obj).__name__}"
        )
    header = {"tree": tree, "extra": extra or {}}
    try:
        json.loads(json.dumps(header))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"extra must hold only what JSON can (text, numbers, lists, dictionaries): {error}"
        ) from None
    try:
        _build(tree, arrays)
    except Exception as error:  # the check of a class of one's own may raise anything
        raise ValueError(f"the object to save could not be loaded again: {error}") from None
    write_arrays(path, arrays, header)


def load(path: str | os.PathLike, *, with_extra: bool = False) -> Any:
    """Load what `save` wrote.

    Arrays come back as NumPy arrays, which keep float64 whatever JAX's switch says; they go
    wherever JAX arrays go. A file cannot run code: nothing is imported, so that the module which
    defines a kernel of one's own must be imported before. **Cost** that of reading the arrays,
    and their memory once. **Source**: the format of `safetensors`.

    Args:
        path: a file of `save`.
        with_extra: whether to return what was saved as `extra` too.

    Returns:
        The object, or the pair `(object, extra)`.

    Raises:
        ValueError: for a file that is truncated, foreign, damaged, written in a newer format, or
            holds a class that is not known.
        OSError: where it cannot be opened.

    >>> import os, tempfile, jaxrls as rls
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "kernel.safetensors")
    ...     save(path, rls.Matern(1.5, width=2.0), extra={"unit": "m"})
    ...     load(path, with_extra=True)
    (Matern(nu=1.5, width=2.0), {'unit': 'm'})
    """
    try:
        arrays, header = read_arrays(path)
        obj, extra = _build(header["tree"], arrays), header["extra"]
        if not is_registered(type(obj)) or not isinstance(extra, dict):
            raise Damaged("no object of the library")
    except OSError:
        raise
    except Exception as error:  # the check of a class of one's own may raise anything
        cause = " ".join(str(error).split())
        raise ValueError(
            f"{path} was not written by jaxrls.save, or cannot be loaded: {cause}"
        ) from None
    return (obj, extra) if with_extra else obj


# writing
# ---------------------------------------------------------------------------------------------------------------------


def _describe(value, place: str, arrays: dict[str, np.ndarray]):
    """`value` as JSON, with its arrays put into `arrays` under their places."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if type(value) in (tuple, list):
        return {
            type(value).__name__: [
                _describe(item, f"{place}.{i}", arrays) for i, item in enumerate(value)
            ]
        }
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        dtype = value.dtype
        keys = jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
        if keys or dtype.kind not in "biufcV" or dtype.names is not None:
            raise ValueError(
                f"{place} is an array of dtype {dtype}, and only arrays of numbers can be saved"
            )
        arrays[place] = np.asarray(value)
        return {"array": place}
    if is_registered(type(value)):
        return {
            "class": name_in_files(type(value)),
            "fields": _describe_fields(value, place + "." if place else "", arrays),
        }
    raise ValueError(
        f"{place or 'the object to save'} is of type {type(value).__name__}: only the library's own classes, those under jaxrls.pytree, arrays of numbers, "
        "numbers and text can be saved; a class that has been defined again since must make the object anew"
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


# reading
# ---------------------------------------------------------------------------------------------------------------------


def _build(node, arrays: dict[str, np.ndarray]):
    """The inverse of `_describe`."""
    if not isinstance(node, dict):
        return node
    for sequence in (tuple, list):
        if sequence.__name__ in node:
            return sequence(_build(item, arrays) for item in node[sequence.__name__])
    if "dtype" in node:
        return np.dtype(node["dtype"])
    if "array" in node:
        return arrays[node["array"]]
    name = node["class"]
    if name not in REGISTRY:
        what = "import the module that defines it first" if "." in name else "upgrade jaxrls"
        raise ValueError(f"it holds an object of class {name}, which is not known: {what}")
    return _make(
        REGISTRY[name], {field: _build(value, arrays) for field, value in node["fields"].items()}
    )


def _make(cls, values: dict[str, Any]):
    """An object by its fields, as JAX rebuilds a pytree: past `__init__`, which may ask for JAX
    arrays, but with its checks of values.
    """
    required = {f.name for f in fields(cls) if f.default is MISSING}
    if not required <= set(values) <= {f.name for f in fields(cls)}:
        raise ValueError(
            f"{cls.__name__} has fields {', '.join(f.name for f in fields(cls))}, and the file has {', '.join(values)}"
        )
    obj = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(obj, name, value)
    getattr(obj, "__post_init__", lambda: None)()
    return obj
