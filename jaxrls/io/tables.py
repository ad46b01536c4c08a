"""Files of rows and columns, read in batches: CSV, Parquet and Arrow by pyarrow, `.npy` and `.npz`
by NumPy.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

FORMATS = {".csv": "csv", ".csv.gz": "csv", ".parquet": "parquet"} | dict.fromkeys(
    (".arrow", ".feather"), "ipc"
)
ENDINGS = (*FORMATS, ".npy", ".npz")
AT_ONCE = 65_536  # rows
LOOKED_AT = 2**24  # bytes of a CSV file by which the types of its columns are known
LISTED = 20  # names in a message, at most
# Lists of columns as matrices, NaN where a number is missing, and columns of text, empty where it
# is.
Batch = tuple[list[np.ndarray], list[np.ndarray]]


def ending_of(path: str) -> str:
    """That of a table, or an empty text."""
    return next((ending for ending in ENDINGS if path.endswith(ending)), "")


def arrow_for(path) -> Any:
    """pyarrow with what tables take of it."""
    try:
        import pyarrow.csv
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{path} needs pyarrow: pip install 'jaxrls[tables]'") from None
    return pyarrow


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Whatever goes wrong inside as one line that names the file: parsers raise a dozen kinds."""
    try:
        yield
    except Exception as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} cannot be read: {cause}") from None


class ArrowTable:
    """A table that pyarrow reads."""

    is_archive = False
    arrays: tuple = ()

    def __init__(self, path: str, header: bool):
        self.path, self.format, self.arrow = path, FORMATS[ending_of(path)], arrow_for(path)
        if self.format == "csv":
            csv = self.arrow.csv
            self.format = self.arrow.dataset.CsvFileFormat(
                read_options=csv.ReadOptions(
                    block_size=LOOKED_AT, autogenerate_column_names=not header
                ),
                convert_options=csv.ConvertOptions(strings_can_be_null=True),
            )
        self.is_text = ".csv" in ending_of(path)
        with reading(path):
            self.schema = self._open(None).schema
            names = list(self.schema.names)
            if len(set(names)) < len(names):
                raise ValueError("two columns have one name: rename them")
        self.width, self.names = len(names), None if self.is_text and not header else names
        with suppress(ValueError):
            if self.is_text and header and list(map(float, names)):
                warnings.warn(
                    f"{path}: the first line holds numbers, which are taken for the names of columns: "
                    "if they are data, say --no-header (header=False)",
                    stacklevel=2,
                )

    def _open(self, schema):
        return self.arrow.dataset.dataset(
            os.path.abspath(self.path),
            format=self.format,
            schema=schema,
            filesystem=self.arrow.fs.LocalFileSystem(),
        )

    def find(self, name, what: str) -> list[int]:
        """The column of a name or a number."""
        return [find_column(self.path, self.names, self.width, name, what)]

    def type_of(self, column: int) -> str | None:
        """What a column holds in place of numbers; truth values and nothing but gaps are some."""
        kind, types = self.schema.types[column], self.arrow.types
        numbers = "integer", "floating", "decimal", "boolean", "null"
        found = any(getattr(types, f"is_{name}")(kind) for name in numbers)
        return None if found else f"{kind} values"

    def batches(self, numbers: list[list[int]], texts: list[int]) -> Iterator[Batch]:
        """So many rows at once; columns of CSV that begin with whole numbers may hold fractions."""
        names, kinds = self.schema.names, list(self.schema.types)
        used = sorted({j for part in (*numbers, texts) for j in part})
        for j in used if self.is_text else ():
            if j in texts:
                kinds[j] = self.arrow.string()
            elif not self.arrow.types.is_boolean(kinds[j]):
                kinds[j] = self.arrow.float64()
        with reading(self.path):
            source = self._open(self.arrow.schema(list(zip(names, kinds, strict=True))))
            options = {"columns": [names[j] for j in used], "batch_size": AT_ONCE}
            for batch in source.scanner(batch_readahead=2, **options).to_batches():
                found = {j: self._values(batch.column(names[j]), j in texts) for j in used}
                empty = np.empty((len(batch), 0))
                yield (
                    [
                        np.column_stack([found[j] for j in part]) if part else empty
                        for part in numbers
                    ],
                    [found[j] for j in texts],
                )

    def _values(self, column, text: bool) -> np.ndarray:
        if text:
            words = column.cast(self.arrow.string()).fill_null("").to_pylist()
            return np.array(words, str)
        if column.type != self.arrow.float32():
            column = column.cast(self.arrow.float64(), safe=False)
        return column.to_numpy(zero_copy_only=False)


class ArrayTable:
    """The matrix of a `.npy` file, or X of a `.npz` archive with its other arrays, whose columns
    are numbered behind those of X.
    """

    names: list[str] | None = None

    def __init__(self, path: str):
        self.path, self.more, self.is_archive = path, [], path.endswith(".npz")  # type: ignore[var-annotated]
        self.arrays: list[str] = []
        with reading(path):
            if self.is_archive:
                with open(path, "rb") as opened, np.load(opened) as archive:
                    self.arrays = archive.files
            self.X = self.array("X") if self.is_archive else np.load(path, mmap_mode="r")
            if self.X.ndim != 2:
                raise ValueError(f"X must be a matrix, and has shape {self.X.shape}")
        self.width = self.X.shape[1]

    def array(self, name: str) -> np.ndarray:
        """One of an archive."""
        if name not in self.arrays:
            held = ", ".join(self.arrays[:LISTED]) or "none"
            raise ValueError(f"it has no array {name!r}: it holds {held}")
        with open(self.path, "rb") as opened, np.load(opened) as archive:
            return archive[name]

    def find(self, name, what: str) -> list[int]:
        """Columns of X by number, and in an archive all of another array by name."""
        if not self.is_archive or _is_whole(name):
            return [find_column(self.path, None, self.width, name, what)]
        with reading(self.path):
            array, n = self.array(str(name)), len(self.X)
            if array.ndim not in (1, 2) or len(array) != n:
                raise ValueError(f"{name} must have {n} rows, as X, and has shape {array.shape}")
        start = self.width + len(self.more)
        self.more += list(array.reshape(n, -1).T)
        return list(range(start, self.width + len(self.more)))

    def type_of(self, column: int) -> str | None:
        """By the dtype of the array."""
        dtype = self._column(column).dtype
        return None if dtype.kind in "fiub" else f"values of dtype {dtype}"

    def batches(self, numbers: list[list[int]], texts: list[int]) -> Iterator[Batch]:
        """Copies of so many rows."""
        for first in range(0, len(self.X), AT_ONCE):
            rows = slice(first, first + AT_ONCE)
            with reading(self.path):
                found = [self._matrix(part, rows) for part in (*numbers, *([j] for j in texts))]
                words = [  # NaN and NaT are missing
                    np.where(part == part, part.astype(str), "")[:, 0]
                    for part in found[len(numbers) :]
                ]
            yield found[: len(numbers)], words

    def _matrix(self, columns, rows):
        if all(j < self.width for j in columns):
            return self.X[rows][:, columns]
        return np.column_stack([self._column(j)[rows] for j in columns])

    def _column(self, j: int) -> np.ndarray:
        return self.X[:, j] if j < self.width else self.more[j - self.width]


Table = ArrowTable | ArrayTable


def open_table(path: str, header: bool = True) -> Table:
    """The file, by its ending; without `header` the first line of a CSV file is data.

    Raises:
        ValueError: for a file that is damaged, or something else.
        ImportError: for a kind of file that takes pyarrow, where it is missing.
    """
    with open(path, "rb"):
        pass
    return ArrowTable(path, header) if ending_of(path) in FORMATS else ArrayTable(path)


def name_of(file: Table, column: int) -> str:
    """Its name, or its number."""
    return file.names[column] if file.names else str(column)


def find_column(path, names: list[str] | None, width: int, name, what: str) -> int:
    """The position of a column given by name or by number, as text or not."""
    if names and name in names:
        return names.index(name)
    index = int(name) if _is_whole(name) else width
    if -width <= index < width:
        return index % width
    columns = ", ".join(names[:LISTED]) if names else f"0 to {width - 1}, without names"
    more = f" and {width - LISTED} more" if names and width > LISTED else ""
    raise ValueError(
        f"{path} has no column {name!r} for the {what}: its columns are {columns}{more}"
    )


def _is_whole(name) -> bool:
    return str(name).removeprefix("-").isdecimal()
