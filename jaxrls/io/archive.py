"""Save kernels, models and fits as `.safetensors`, and load them.

A file holds numbers but no program, because it is not a pickle. Each array is a tensor named by its
place in the object, such as `model.coef`. JSON in the metadata holds class names, static fields and
numbers. Loading builds only classes that `pytree` has registered.
"""

import json
import os
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np

from jaxrls.core.support import REGISTRY, arrays_alone, is_registered, name_in_files
from jaxrls.front import Fit, without_solution
from jaxrls.rows.files import read_arrays, reading, write_arrays
from jaxrls.rows.update import NoRows, summed_of
from jaxrls.uncertainty.intervals import jackknife_of
from jaxrls.uncertainty.posterior import process_of


def save(path: str | os.PathLike, obj: Any, *, extra: dict[str, Any] | None = None) -> None:
    """Save a kernel, a model or any result (fit, path, landmarks), bit for bit, as `.safetensors`.

    Kernels of your own are saved too, if their class is decorated with `jaxrls.extend.pytree`.
    Define the class in a module rather than in a script, because whoever loads it must import it.
    Other programs read the arrays with `safetensors.numpy.load_file(path)`, by their places in
    `obj`: the coefficients are `"model.coef"` of a fit, and `"coef"` of `fit.model`.

    Args:
        path: the file, under exactly this name. It is written whole or not at all, and replaces an
            existing file.
        obj: what to save.
        extra: a dictionary of anything that JSON can hold, such as the names of columns.

    Raises:
        ValueError: for kernels that hold a Python function (`FeatureMap`, `FunctionKernel`), for
            classes that are not registered with `pytree`, and for what JSON cannot hold.

    **Cost** writing the arrays. **Source**: the format of `safetensors`.

    >>> import os, tempfile, jaxrls as rls
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "kernel.safetensors")
    ...     save(path, 0.5 * rls.Gaussian(width=2.0) + rls.Linear())
    ...     load(path)
    Sum(left=Scaled(scale=0.5, kernel=Gaussian(width=2.0)), right=Linear())
    """
    arrays: dict[str, np.ndarray] = {}
    tree = _describe(for_file(obj) if isinstance(obj, Fit) else obj, "", arrays)
    if not isinstance(tree, dict) or "class" not in tree:
        raise ValueError(
            f"obj must be a kernel, a model or a result, and is a {type(obj).__name__}"
        )
    try:
        json.dumps(extra := dict(extra or {}))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"extra must be a dictionary of what JSON can hold, text, numbers and lists: {error}"
        ) from None
    write_arrays(path, arrays, {"tree": tree, "extra": extra})


def load(path: str | os.PathLike, *, with_extra: bool = False) -> Any:
    """Load what `save` wrote.

    Arrays come back as NumPy arrays. They stay float64 even if JAX is set to float32, and are
    accepted wherever JAX arrays are. Loading runs no code from the file and imports nothing. So
    first import the module that defines a kernel of your own.

    Args:
        path: a file that `save` wrote.
        with_extra: whether to return the dictionary `extra` too.

    Returns:
        The object, or the tuple `(object, extra)`.

    Raises:
        ValueError: for a file that is truncated, foreign, damaged, written in a newer format, or
            that holds an unknown class.
        OSError: for a file that cannot be opened.

    **Cost** reading the arrays, and their memory once. **Source**: the format of `safetensors`.

    >>> import os, tempfile, jaxrls as rls
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "kernel.safetensors")
    ...     save(path, rls.Matern(1.5, width=2.0), extra={"unit": "m"})
    ...     load(path, with_extra=True)
    (Matern(nu=1.5, width=2.0), {'unit': 'm'})
    """
    # The checks of a class that a user defined may raise any error.
    with reading(path, "was not written by jaxrls.save, or cannot be loaded"):
        arrays, header = read_arrays(path)
        obj = _build(header["tree"], arrays)
        extra = dict(header["extra"])
        if not is_registered(type(obj)):
            raise ValueError("it holds no object of jaxrls")
    return (obj, extra) if with_extra else obj


def for_file(fit: Fit) -> Fit:
    """Return the fit as it is written to a file.

    It has no problem, and a solution only if `keep=True` asked for it. With a solution it stores
    results that could not be computed after loading:

    * the moments of its rows, if they are not larger than the rows;
    * what intervals need and, for a single λ, what variances need, if the rows are read on the
      host, so that they cannot be saved as arrays.
    """
    solution = fit.solution
    problem = fit.kept.problem
    if solution is None or not fit.kept.saved:
        return without_solution(fit)
    wanted: list[Callable] = []
    if problem is not None and (problem.num_features or np.inf) <= problem.rows.shape[0]:
        wanted.append(summed_of)
    if not arrays_alone(solution):
        wanted += [jackknife_of] if np.ndim(fit.lam) else [jackknife_of, process_of]
        factor: Any = solution.factor
        data = replace(factor.data, rows=NoRows(factor.dtype))
        solution = replace(solution, factor=replace(factor, data=data))
    stored = fit.stored | {result_of.__name__: result_of(fit) for result_of in wanted}
    return replace(fit, kept=replace(fit.kept, solution=solution, problem=None), stored=stored)


def _describe(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return `value` as what JSON can hold, and put its arrays into the dictionary `arrays`.

    Args:
        value: an object, or a part of it.
        place: the name of this part within the object, such as "model.coef", by which its array is
            stored.
        arrays: the arrays so far, by their places.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if type(value) is dict:
        named = {name: _describe(item, f"{place}.{name}", arrays) for name, item in value.items()}
        return {"dict": named}
    if type(value) in (tuple, list):
        items = [_describe(item, f"{place}.{i}", arrays) for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if not is_registered(type(value)):
        if isinstance(getattr(value, "dtype", None), np.dtype):
            arrays[place] = np.asarray(value)
            return {"array": place}
        raise ValueError(
            f"{place or 'the object to save'} must be an array, a number, text or a class under "
            f"jaxrls.extend.pytree as it is defined now, and is of type {type(value).__name__}: "
            "make a kernel that holds a Python function anew in code, and pickle an estimator"
        )
    described = {}
    for f in fields(value):
        part = getattr(value, f.name)
        if f.metadata.get("static") and isinstance(part, np.generic):
            part = part.item()  # it would be loaded as an array, which is not hashable
        described[f.name] = _describe(part, f"{place}.{f.name}".lstrip("."), arrays)
    return {"class": name_in_files(type(value)), "fields": described}


def _build(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Rebuild an object from what `_describe` returned and the arrays.

    An instance is made from its fields without `__init__`, which may need JAX arrays. JAX builds
    pytrees in the same way. The checks of values in `__post_init__` and `check_loaded` are called.
    """
    if not isinstance(node, dict):
        return node
    if "dtype" in node:
        return np.dtype(node["dtype"])
    if "array" in node:
        return arrays[node["array"]]
    if "dict" in node:
        return {name: _build(item, arrays) for name, item in node["dict"].items()}
    for sequence in (tuple, list):
        if sequence.__name__ in node:
            return sequence(_build(item, arrays) for item in node[sequence.__name__])
    cls = REGISTRY.get(node["class"])
    if cls is None:
        raise ValueError(
            f"it holds the unknown class {node['class']}: import the module that defines it first, "
            "or upgrade jaxrls"
        )
    obj: Any = object.__new__(cls)
    for f in fields(cls):
        if f.name in node["fields"] or f.default is MISSING:
            object.__setattr__(obj, f.name, _build(node["fields"].pop(f.name), arrays))
    if node["fields"]:
        raise ValueError(f"{cls.__name__} has no {', '.join(node['fields'])}")
    for check in ("__post_init__", "check_loaded"):
        getattr(obj, check, lambda: None)()
    return obj
