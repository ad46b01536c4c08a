"""Save kernels, models and fits as `.safetensors`, and load them: no pickle, so that a file can
hold numbers but no program.

Each array is a tensor named by its place, such as `model.coef`; JSON in the metadata has class
names, static fields and numbers. Loading builds only classes that `pytree` has registered.
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

    Kernels of your own are saved too, if their class is decorated with `jaxrls.extend.pytree` and
    defined in a module rather than in a script, since whoever loads them must import it. Other
    programs read the arrays with `safetensors.numpy.load_file(path)["model.coef"]`.

    Args:
        path: the file, written under exactly this name, whole or not at all; an existing file is
            replaced.
        obj: what to save.
        extra: a dictionary of anything that JSON can hold, such as the names of columns.

    Raises:
        ValueError: for kernels that hold a Python function (`FeatureMap`, `FunctionKernel`), for
            classes that are not registered with `pytree`, and for what JSON cannot hold.

    **Cost** that of writing the arrays. **Source**: the format of `safetensors`.

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

    Arrays come back as NumPy arrays, which stay float64 even where JAX is set to float32; they are
    accepted wherever JAX arrays are. Loading runs no code from the file and imports nothing: import
    the module that defines a kernel of your own first.

    Args:
        path: a file that `save` wrote.
        with_extra: whether to return the dictionary `extra` too.

    Returns:
        The object, or the pair `(object, extra)`.

    Raises:
        ValueError: for a file that is truncated, foreign, damaged, written in a newer format, or
            that holds an unknown class.
        OSError: where it cannot be opened.

    **Cost** that of reading the arrays, and their memory once. **Source**: the format of
    `safetensors`.

    >>> import os, tempfile, jaxrls as rls
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "kernel.safetensors")
    ...     save(path, rls.Matern(1.5, width=2.0), extra={"unit": "m"})
    ...     load(path, with_extra=True)
    (Matern(nu=1.5, width=2.0), {'unit': 'm'})
    """
    # The check of a class of one's own may raise anything.
    with reading(path, "was not written by jaxrls.save, or cannot be loaded"):
        arrays, header = read_arrays(path)
        obj = _build(header["tree"], arrays)
        extra = dict(header["extra"])
        if not is_registered(type(obj)):
            raise ValueError("it holds no object of jaxrls")
    return (obj, extra) if with_extra else obj


def for_file(fit) -> Fit:
    """The fit as it is written: without the problem, and with the solution where `keep=True` asked
    for it. In place of rows that only the host reads come what variances and intervals need, and
    moments where they are smaller than the rows.
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


def _describe(value, place, arrays):
    """`value` as JSON, with its arrays put into `arrays` under their places."""
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
            part = part.item()  # an array would come back, which is not hashable
        described[f.name] = _describe(part, f"{place}.{f.name}".lstrip("."), arrays)
    return {"class": name_in_files(type(value)), "fields": described}


def _build(node, arrays):
    """The inverse of `_describe`: a class is rebuilt from its fields, as JAX does, without
    `__init__`, which may need JAX arrays, but with its checks of values.
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
