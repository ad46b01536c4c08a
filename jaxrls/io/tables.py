"""Tables from CSV and NPZ files, with errors that name the bad cell, and predictions back out.

NumPy's C reader does the reading. Only where it fails, or a number is not finite, is the file read again row by row, to say
which cell is to blame; and before, where its first line may be a header or not (`header.py`).
"""

import csv
import gzip
import io
import itertools
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jaxrls.io.header import is_header, is_missing, is_number
from jaxrls.io.npz import Archive, Damaged, open_archive
from jaxrls.io.packed import MAX_INFLATION, check_gzip

LISTED = 20  # column names in an error message, at most
MOST_COLUMNS = 10**6  # of text: a line of commas alone would take a hundred times its size in memory


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
    source = _Csv(path, header, max_inflation)
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

    Columns are matched by name where both files have names, else by position: a file as wide as the first one has its target
    where that one had it, any other holds inputs alone. Other columns are ignored. A first line with all the names is a header, whatever
    stands below it; else `header` and `max_inflation` are as in `read_table`. **Raises** `ValueError` as `read_table`.
    """
    layout = layout or {}
    if str(path).endswith(".npz"):
        with _archive(path, max_inflation) as arrays:
            target, X = next((name for name in (layout.get("target"), "y") if name in arrays), None), _matrix(path, arrays)
            return X, None if target is None else _vector(path, arrays, target, len(X))
    names, target = layout.get("inputs"), layout.get("target")
    source = _Csv(path, header, max_inflation, names)
    if source.names and names:
        absent = sorted({*names} - {*source.names})
        if absent:
            raise ValueError(
                f"{path} lacks columns that the model was fitted on: {', '.join(absent[:LISTED])}; its columns are {source.list_columns()}"
            )
        places = {name: j for j, name in enumerate(source.names)}
        inputs = [places[name] for name in names]
        t = source.names.index(target) if target in source.names else None
    elif source.width == layout.get("width"):
        inputs = layout["positions"]
        t = source.column(target, "target") if isinstance(target, int) else None
    else:
        inputs, t = list(range(source.width)), None
    values, words = source.read(inputs, [], [] if t is None else [t])
    return values, words[0] if words else None


def write_columns(file: BinaryIO, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns of equal length as CSV with a header, numbers so that reading them back gives the same."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    file.write(text.getvalue().encode())


# CSV ---------------------------------------------------------------------------------------------------------------------------


class _Csv:
    """A CSV file whose first rows have been looked at.

    Columns are separated by commas, or by tabs or semicolons where the first line has no comma.
    """

    def __init__(self, path, header: bool | None, max_inflation: float | int, known=None):
        self.path = path
        if str(path).endswith(".gz"):
            check_gzip(path, max_inflation)
        with self._rows(",") as rows:
            start = ",".join(next(rows, [""]))
        self.delimiter = "," if "," in start else next((c for c in "\t;" if c in start), ",")
        with self._rows(self.delimiter) as rows:
            first = next(rows, None)
            if first is None:
                raise ValueError(f"{path} is empty")
            if len(first) > MOST_COLUMNS:
                raise ValueError(f"{path} has {len(first)} columns, and at most {MOST_COLUMNS} are read from text: save it as .npz")
            line, second = rows.line, next(rows, None)
            names = [cell.strip() for cell in first]
            if header is None:
                below = rows if second is None else itertools.chain([second], rows)
                header = bool(known) and set(known) <= set(names) or is_header(first, iter(below))
        if header and second is None:
            raise ValueError(f"{path} has a header and no rows")
        self.names: list[str] | None = names if header else None
        self.skip = line if header else 0
        self.width, self.first = len(first), [*((second or []) if header else first), *[""] * len(first)]
        doubled = sorted(name for name, times in Counter(self.names).items() if times > 1)
        if doubled:
            raise ValueError(f"{path} has more than one column named {', '.join(map(repr, doubled[:LISTED]))}: rename them")

    def column(self, name, what: str) -> int:
        """The position of a column given by name or by number."""
        if self.names and name in self.names:
            return self.names.index(name)
        try:
            index = int(name)
        except ValueError:
            index = self.width
        if -self.width <= index < self.width:
            return index % self.width
        raise ValueError(f"{self.path} has no column {name!r} for the {what}: its columns are {self.list_columns()}")

    def list_columns(self) -> str:
        """The columns, in words."""
        if not self.names:
            return f"0 to {self.width - 1}, without names"
        return ", ".join(self.names[:LISTED]) + (f" and {self.width - LISTED} more" if self.width > LISTED else "")

    def read(self, numbers, texts, optional=()) -> tuple[np.ndarray, list[np.ndarray]]:
        """Columns of numbers as one matrix, and columns of text; the `optional` ones are text that may have gaps."""
        texts = [*texts, *optional]
        options: dict[str, Any] = {
            "delimiter": self.delimiter,
            "quotechar": '"',
            "comments": None,
            "encoding": "utf-8-sig",
            "skiprows": self.skip,
        }
        kinds = ["U1"] * self.width
        for kind, columns in (("f8", numbers), ("O", texts)):
            for j in columns:
                kinds[j] = kind
        try:
            if set(kinds) == {"f8"}:
                table = np.loadtxt(os.fspath(self.path), ndmin=2, **options)
                if table.shape[1] != self.width:
                    raise ValueError("rows of unequal length")
                values, words = table[:, numbers], []
            else:
                fields = [(str(j), kind) for j, kind in enumerate(kinds)]
                table = np.loadtxt(os.fspath(self.path), ndmin=1, dtype=fields, **options)
                values = np.stack([table[str(j)] for j in numbers], axis=1)
                words = [np.char.strip(table[str(j)].astype(str)) for j in texts]
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise self._explain(numbers, texts, optional, error) from None
        if not np.isfinite(values).all() or any((column == "").any() for column in words[: len(words) - len(optional)]):
            raise self._explain(numbers, texts, optional, "a cell is missing or not finite")
        return values, words

    def _explain(self, numbers, texts, optional, cause) -> ValueError:
        """The first cell that is to blame, found row by row."""
        needed, columns = sorted({*numbers, *texts} - {*optional}), set(numbers)
        with self._rows(self.delimiter) as rows:
            if self.names:
                next(rows)
            for i, row in enumerate(rows, start=1):
                where = f"{self.path}: row {i} (line {rows.line})"
                if len(row) != self.width:
                    return ValueError(f"{where} has {len(row)} cells, and the {'header' if self.names else 'first row'} has {self.width}")
                for j in needed:
                    fault = _fault(row[j], j in columns)
                    if fault:
                        return ValueError(f"{where}, column {self.names[j] if self.names else j}: {fault}{self._hint(i)}")
        return ValueError(f"{self.path} could not be read: {cause}")

    def _hint(self, i: int) -> str:
        return "" if self.names or i > 1 else " (the first line is taken for data; where it holds names, say --header)"

    @contextmanager
    def _rows(self, delimiter) -> Iterator["_Rows"]:
        opener = gzip.open if str(self.path).endswith(".gz") else open
        try:
            with opener(self.path, "rt", encoding="utf-8-sig", newline="") as file:
                yield _Rows(csv.reader(file, delimiter=delimiter))
        except UnicodeDecodeError:
            raise ValueError(f"{self.path} is not text in UTF-8") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{self.path} is not a whole gzip file: {error}") from None
        except csv.Error as error:
            raise ValueError(f"{self.path} is not a CSV file: {error}") from None


class _Rows:
    """Rows of a CSV file without the blank ones, as NumPy's reader sees them; `line` is where the last one ended."""

    def __init__(self, reader):
        self.reader, self.line = reader, 0

    def __iter__(self):
        return self

    def __next__(self) -> list[str]:
        row = next(self.reader)
        while not row:
            row = next(self.reader)
        self.line = self.reader.line_num
        return row


def _fault(cell: str, number: bool) -> str | None:
    """What is wrong with a cell, in words, or None."""
    if is_missing(cell) and (number or not cell.strip()):
        return "the value is missing: fill it in, or drop the row"
    if not number:
        return None
    if not is_number(cell):
        return f"{cell.strip()!r} is not a number: code it as one, or drop the column"
    return None if np.isfinite(float(cell)) else f"{cell.strip()} is not a finite number"


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
