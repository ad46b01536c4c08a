"""Tables from CSV and NPZ files, with errors that name the bad cell.

Lines are read in `csv_file.py`, archives in `npz.py`.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from jaxrls.io.csv_file import CsvFile
from jaxrls.io.header import is_missing, is_number
from jaxrls.io.naming import LISTED, match_columns
from jaxrls.io.npz import Archive, Damaged, open_archive
from jaxrls.io.packed import MAX_INFLATION


class Table(NamedTuple):
    """Inputs and target of a problem, and `layout`, plain data by which `read_inputs` finds the same columns in another file."""

    X: np.ndarray  # (n, d) numbers
    y: np.ndarray  # (n,) numbers, or text where the target holds labels
    groups: np.ndarray | None  # (n,) any labels
    weights: np.ndarray | None  # (n,) numbers
    layout: dict[str, Any]
    header: bool | None = None  # whether the first line was taken for names; None for archives, which have no lines


def read_table(
    path,
    *,
    target=None,
    labels: bool = False,
    groups=None,
    weights=None,
    header: bool | None = None,
    max_inflation: float | int = MAX_INFLATION,
) -> Table:
    """Read a problem from a CSV file (`.csv`, `.csv.gz`) or a NumPy archive (`.npz`, arrays `X` and `y`).

    **Arguments**: `target`, `groups` and `weights` name columns, or count them from 0 or, negative, from the end; all others are
    inputs. The target is the last column (the array `y`) by default. It is read as text where `labels` is true, or where
    its first cell is no number. `header` says whether the first line holds names, which is found out by default; `max_inflation` how
    many times its size a compressed file may become. **Raises** `ValueError` that names the row and the column of the first cell that is
    missing or not a number, rows of unequal length, unknown columns, empty and damaged files, and such as become too large. **Cost** one pass of
    NumPy's reader.
    """
    if str(path).endswith(".npz"):
        with _archive(path, max_inflation) as arrays:
            return _read_archive(path, arrays, target, labels, {"groups": groups, "weights": weights})
    source = CsvFile(path, header, max_inflation)
    special = {what: source.column(name, what) for what, name in (("groups", groups), ("weights", weights)) if name is not None}
    free = [j for j in range(source.width) if j not in special.values()]
    t = source.column(target, "target") if target is not None else (free or [0])[-1]
    if len({t, *special.values()}) <= len(special):
        raise ValueError(f"{path}: target, groups and weights must be different columns")
    inputs = [j for j in free if j != t]
    if not inputs:
        raise ValueError(f"{path} has no column left for inputs: its columns are {source.list_columns()} (are they separated by commas?)")
    labels = labels or not is_number(source.first[t]) and not is_missing(source.first[t])
    numbers = [*inputs, *([] if labels else [t]), *([special["weights"]] if weights is not None else [])]
    texts = [*([t] if labels else []), *([special["groups"]] if groups is not None else [])]
    values, words = source.read(numbers, texts)
    d = len(inputs)
    names = source.names and [source.names[j] for j in inputs]
    layout = {"inputs": names, "positions": inputs, "width": source.width, "target": source.names[t] if source.names else t}
    return Table(
        values[:, :d],
        words[0] if labels else values[:, d],
        words[-1] if groups is not None else None,
        values[:, -1] if weights is not None else None,
        layout,
        source.names is not None,
    )


def read_inputs(
    path, layout: Mapping[str, Any] | None, *, header: bool | None = None, max_inflation: float | int = MAX_INFLATION
) -> tuple[np.ndarray, np.ndarray | None]:
    """The columns that a model was fitted on, from another file, and its target as text or numbers where the file has it.

    Columns are matched as `match_columns` says. A first line with all the names is a header, whatever stands below it; else `header` and
    `max_inflation` are as in `read_table`. **Raises** `ValueError` as `read_table`.
    """
    layout = layout or {}
    if str(path).endswith(".npz"):
        with _archive(path, max_inflation) as arrays:
            target, X = next((name for name in (layout.get("target"), "y") if name in arrays), None), _matrix(path, arrays)
            return X, None if target is None else _vector(path, arrays, target, len(X))
    source = CsvFile(path, header, max_inflation, layout.get("inputs"))
    inputs, t = match_columns(path, source.names, source.width, layout)
    values, words = source.read(inputs, [], [] if t is None else [t])
    return values, words[0] if words else None


# NPZ ---------------------------------------------------------------------------------------------------------------------------


@contextmanager
def _archive(path, max_inflation) -> Iterator[Archive]:
    try:
        with open_archive(path, max_inflation) as arrays:
            yield arrays
    except Damaged as error:
        raise ValueError(f"{path} is not an NPZ file, or is damaged: {error}") from None


def _read_archive(path, arrays: Archive, target, labels: bool, special: Mapping[str, str | None]) -> Table:
    X, name = _matrix(path, arrays), target or "y"
    y = _vector(path, arrays, name, len(X))
    numeric = not labels and y.dtype.kind in "fiu"
    with np.errstate(over="ignore"):  # what X's precision cannot hold is told of as infinite
        y = _finite(path, name, y.astype(X.dtype)) if numeric else _texts(path, name, y)
    groups, weights = (column and _vector(path, arrays, column, len(X)) for column in (special["groups"], special["weights"]))
    if groups is not None:
        groups = _texts(path, special["groups"], groups)
    if weights is not None:
        weights = _finite(path, special["weights"], weights)
    return Table(X, y, groups, weights, {"inputs": None, "positions": None, "width": None, "target": name})


def _array(path, arrays, name) -> np.ndarray:
    if name not in arrays:
        raise ValueError(f"{path} has no array {name!r}: it holds {', '.join(itertools.islice(arrays, LISTED)) or 'none'}")
    return arrays[name]


def _matrix(path, arrays) -> np.ndarray:
    X = _array(path, arrays, "X")
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"{path}: X must have shape (n, d) with at least one row and one column, and has shape {X.shape}")
    return _finite(path, "X", X)


def _vector(path, arrays, name, n=None) -> np.ndarray:
    y = _array(path, arrays, name)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or n is not None and len(y) != n:
        raise ValueError(f"{path}: {name} must have shape ({'n' if n is None else n},), one value per row of X, and has shape {y.shape}")
    return y


def _texts(path, name, array) -> np.ndarray:
    """Labels as text, or an error that names the first one that is missing."""
    if array.dtype.kind not in "fiubUSmM":
        raise ValueError(f"{path}: {name} must hold labels, and has dtype {array.dtype}")
    try:
        words = np.char.strip(array.astype(str))
    except UnicodeDecodeError:
        raise ValueError(f"{path}: {name} holds bytes that are not ASCII text: save it as text") from None
    missing = np.isnan(array) if array.dtype.kind == "f" else np.isnat(array) if array.dtype.kind in "mM" else words == ""
    if missing.any():
        raise ValueError(f"{path}: {name}[{int(missing.argmax())}] is missing: fill it in, or drop the row")
    return words


def _finite(path, name, array) -> np.ndarray:
    """Numbers in float64 (float32 stays as it is), or an error that names the first bad one."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{path}: {name} must hold numbers, and has dtype {array.dtype}")
    with np.errstate(over="ignore"):
        array = array if array.dtype == np.float32 else array.astype(np.float64)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = ", ".join(map(str, bad[0]))
        raise ValueError(f"{path}: {name}[{where}] is {array[tuple(bad[0])]}: fill it in, or drop the row")
    return array
