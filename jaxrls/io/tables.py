"""Files of rows and columns, read and written in batches: CSV, Parquet and Arrow by pyarrow, `.npy`
and `.npz` by NumPy.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from jaxrls.support.files import replacing

FORMATS = {".csv": "csv", ".csv.gz": "csv", ".parquet": "parquet"}
FORMATS |= dict.fromkeys((".arrow", ".feather"), "ipc")
ENDINGS = (*FORMATS, ".npy", ".npz")
AT_ONCE = 65_536  # rows
LOOKED_AT = 2**24  # bytes of a CSV file by which the types of its columns are known
# Lists of columns as matrices, NaN where a number is missing, and columns of text, empty where it
# is.
Batch = tuple[list[np.ndarray], list[np.ndarray]]


def ending_of(path: str) -> str:
    """That of a table, or an empty text."""
    return next((ending for ending in ENDINGS if path.endswith(ending)), "")


def arrow_for(what) -> Any:
    """pyarrow with what tables take of it."""
    try:
        import pyarrow.csv
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{what} needs pyarrow: pip install 'jaxrls[tables]'") from None
    return pyarrow


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Whatever goes wrong inside as one line that names the file: parsers raise a dozen kinds."""
    try:
        yield
    except Exception as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} cannot be read: {cause}") from None


class Table:
    """Columns by name, and those of a file without names by their number, as text."""

    path: str
    names: list[str]
    named = False
    width: int  # columns that are inputs unless something else is said

    def find(self, name, what: str) -> list[int]:
        """All columns of a name, or else the one of a number."""
        found = [j for j, known in enumerate(self.names) if known == str(name)]
        if not found and str(name).removeprefix("-").isdecimal():
            found = [j % self.width for j in [int(name)] if -self.width <= j < self.width]
        if not found:
            columns = ", ".join(self.names[:20])
            raise ValueError(
                f"{self.path} has no column {str(name)!r} for the {what}: its columns are {columns}"
            )
        return found

    def type_of(self, column: int) -> str | None:
        """What a column holds in place of numbers."""
        raise NotImplementedError

    def read(self, columns: list[int], texts: list[int]) -> Iterator[dict[int, np.ndarray]]:
        """So many rows of some columns at once, some of them as text."""
        raise NotImplementedError

    def batches(self, numbers: list[list[int]], texts: list[int]) -> Iterator[Batch]:
        """So many rows at once."""
        used = sorted({j for part in (*numbers, texts) for j in part})
        for found in self.read(used, texts):
            none = np.empty((len(found[used[0]]), 0))
            parts = [np.column_stack([found[j] for j in p]) if p else none for p in numbers]
            yield parts, [found[j] for j in texts]


class ArrowTable(Table):
    """A table that pyarrow reads."""

    def __init__(self, path: str, header: bool):
        self.path, self.format, self.arrow = path, FORMATS[ending_of(path)], arrow_for(path)
        self.is_text = self.format == "csv"
        if self.is_text:
            csv = self.arrow.csv
            how = csv.ReadOptions(block_size=LOOKED_AT, autogenerate_column_names=not header)
            nulls = csv.ConvertOptions(strings_can_be_null=True)
            self.format = self.arrow.dataset.CsvFileFormat(read_options=how, convert_options=nulls)
        with reading(path):
            self.schema = self._open(None).schema
            self.fields = list(self.schema.names)  # which may be no text
        self.width, self.named = len(self.fields), header or not self.is_text
        self.names = self.fields if self.named else list(map(str, range(self.width)))
        with suppress(ValueError):
            if self.is_text and header and list(map(float, self.names)):
                warnings.warn(
                    f"{path}: the first line holds numbers, which are taken for the names of "
                    "columns: if they are data, say --no-header (header=False)",
                    stacklevel=2,
                )

    def _open(self, schema):
        local = self.arrow.fs.LocalFileSystem()
        options = {"format": self.format, "schema": schema, "filesystem": local}
        return self.arrow.dataset.dataset(os.path.abspath(self.path), **options)

    def type_of(self, column):
        """Truth values and nothing but gaps are numbers."""
        kind, types = self.schema.types[column], self.arrow.types
        numbers = "integer", "floating", "decimal", "boolean", "null"
        found = any(getattr(types, f"is_{name}")(kind) for name in numbers)
        return None if found else f"{kind} values"

    def read(self, columns, texts):
        """Columns of CSV that begin with whole numbers may hold fractions."""
        kinds = list(self.schema.types)
        for j in columns if self.is_text else ():
            if j in texts:
                kinds[j] = self.arrow.string()
            elif not self.arrow.types.is_boolean(kinds[j]):
                kinds[j] = self.arrow.float64()
        with reading(self.path):
            source = self._open(self.arrow.schema(list(zip(self.fields, kinds, strict=True))))
            options = {"columns": [self.fields[j] for j in columns], "batch_size": AT_ONCE}
            for batch in source.scanner(batch_readahead=2, **options).to_batches():
                yield {j: self._values(batch.column(i), j in texts) for i, j in enumerate(columns)}

    def _values(self, column, text: bool) -> np.ndarray:
        if text:
            return np.array(column.cast(self.arrow.string()).fill_null("").to_pylist(), str)
        if column.type != self.arrow.float32():
            column = column.cast(self.arrow.float64(), safe=False)
        return column.to_numpy(zero_copy_only=False)


class ArrayTable(Table):
    """The matrix of a `.npy` file, or X of a `.npz` archive, with the columns of its other arrays
    of as many rows under their names.
    """

    def __init__(self, path: str):
        self.path, arrays = path, {}
        with reading(path):
            if path.endswith(".npy"):
                arrays["X"] = np.load(path, mmap_mode="r")
            else:
                with open(path, "rb") as opened, np.load(opened) as archive:
                    arrays = dict(archive)
            X = arrays.pop("X", np.empty(()))
            if X.ndim != 2:
                raise ValueError(f"X must be a matrix, and has shape {X.shape}")
        self.width, self.columns = X.shape[1], list(X.T)
        self.names = list(map(str, range(self.width)))
        for name, array in arrays.items():
            if array.ndim in (1, 2) and len(array) == len(X):
                more = list(array.reshape(len(X), -1).T)
                self.columns += more
                self.names += [name] * len(more)

    def type_of(self, column):
        """By the dtype of the array."""
        dtype = self.columns[column].dtype
        return None if dtype.kind in "fiub" else f"values of dtype {dtype}"

    def read(self, columns, texts):
        """As many rows as caches hold."""
        n, step = len(self.columns[0]), max(1, min(AT_ONCE, 2**20 // self.width))
        for first in range(0, n, step):
            found = {j: self.columns[j][first : first + step] for j in columns}
            for j in texts:  # NaN and NaT are missing
                with reading(self.path):
                    found[j] = np.where(found[j] == found[j], found[j].astype(str), "")
            yield found


def open_table(path: str, header: bool = True) -> Table:
    """The file, by its ending; without `header` the first line of a CSV file is data.

    Raises:
        ValueError: for a file that is damaged, or something else.
        ImportError: for a kind of file that takes pyarrow, where it is missing.
    """
    with open(path, "rb"):
        pass
    return ArrowTable(path, header) if ending_of(path) in FORMATS else ArrayTable(path)


# writing
# --------------------------------------------------------------------------------------------------

Writer = Callable[[Mapping[str, np.ndarray]], None]  # of the next rows of some columns


@contextmanager
def writing(path: str | os.PathLike) -> Iterator[Writer]:
    """A function that writes the next rows of some columns to a file, which is there when the block
    ends well.

    `.npy` is a vector, or a matrix of several columns; `.parquet`, `.arrow` and `.feather` are
    tables; any other ending is CSV.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        ending = os.path.splitext(path)[1]
        with (numbers_to if ending == ".npy" else rows_to)(file, ending) as write:
            yield write


@contextmanager
def rows_to(file: Any, ending: str = ".csv") -> Iterator[Writer]:
    """CSV under a header, Parquet or Arrow, a row group or a record batch for every block."""
    arrow, writer = arrow_for(f"writing {ending}"), None
    makers = {".parquet": arrow.parquet.ParquetWriter}
    makers |= dict.fromkeys((".arrow", ".feather"), arrow.ipc.new_file)

    def write(columns):
        nonlocal writer
        block = arrow.table(dict(columns))
        writer = writer or makers.get(ending, arrow.csv.CSVWriter)(file, block.schema)
        writer.write_table(block)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def numbers_to(file: Any, ending: str) -> Iterator[Writer]:
    """An array of NumPy's."""
    blocks: list[np.ndarray] = []

    def write(columns):
        blocks.append(np.column_stack(list(columns.values())))
        if blocks[-1].dtype.kind != "f":
            raise ValueError(f"{ending} holds numbers, and predicted labels are text: name a .csv")

    yield write
    values = np.concatenate(blocks or [np.empty((0, 1))]).astype(np.float64)
    np.save(file, values[:, 0] if values.shape[1] == 1 else values)
