"""Tables read some rows at a time, whatever the file: `names`, `width`, and `pieces` of the columns that are asked for."""

import os
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jaxrls.io.csv_file import CsvFile


@runtime_checkable
class Reader(Protocol):
    """A file of rows and columns, of which the first are known."""

    names: list[str] | None
    width: int

    def pieces(self, numbers, optional, size: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Columns of numbers as one matrix, and columns that may hold anything, `size` rows at a time."""


class NpyFile:
    """A matrix, mapped into memory."""

    names = None

    def __init__(self, path, header: bool | None, max_inflation: float | int, known=None):
        del header, max_inflation, known
        try:
            self.table = np.lib.format.open_memmap(path, mode="r")
        except OSError:
            raise
        except Exception as error:  # a header is a Python expression: its parser raises a dozen kinds
            raise ValueError(f"{path} is not an array of numbers that NumPy wrote: {error}") from None
        if self.table.ndim != 2:
            raise ValueError(f"{path} must hold a matrix, and has shape {self.table.shape}")
        declared, present = self.table.nbytes, os.path.getsize(path) - self.table.offset
        if declared != present:
            raise ValueError(f"{path} has shape {self.table.shape} of {self.table.dtype}, which is {declared} bytes, and holds {present}")
        self.width = self.table.shape[1]

    def pieces(self, numbers, optional, size):
        """Copies of so many rows."""
        for first in range(0, len(self.table), size):
            part = self.table[first : first + size]
            yield part[:, numbers], [part[:, j] for j in optional]


class ParquetFile:
    """Record batches, of which only the columns that are needed are read."""

    def __init__(self, path, header: bool | None, max_inflation: float | int, known=None):
        del header, max_inflation, known
        try:
            import pyarrow.parquet
        except ImportError:
            raise ImportError(f"{path} needs pyarrow: pip install 'jaxrls[parquet]'") from None
        self.path, self.arrow = path, pyarrow
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                self.names: list[str] | None = list(file.schema_arrow.names)
        except (pyarrow.lib.ArrowException, OSError) as error:
            raise self._damaged(error) from None
        self.width = len(self.names)
        if len(set(self.names)) < self.width:
            raise ValueError(f"{path} has more than one column of one name: rename them")

    def pieces(self, numbers, optional, size):
        """Those of record batches of so many rows."""
        first, names = 0, self.names or []
        for batch in self._batches(sorted({names[j] for j in (*numbers, *optional)}), size):
            table = [self._numbers(names[j], batch.column(names[j]), first) for j in numbers]
            yield np.column_stack(table), [self._anything(batch.column(names[j])) for j in optional]
            first += batch.num_rows

    def _batches(self, names, size):
        try:
            with self.arrow.parquet.ParquetFile(self.path) as file:
                yield from file.iter_batches(size, columns=names)
        except (self.arrow.lib.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error) -> ValueError:
        return ValueError(f"{self.path} is not a Parquet file, or is damaged: {error}")

    def _numbers(self, name, column, first) -> np.ndarray:
        if not self._is_numeric(column):
            raise ValueError(f"{self.path}: column {name} must hold numbers, and holds {column.type}")
        if column.null_count:
            row = first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise ValueError(f"{self.path}: row {row}, column {name}: the value is missing: fill it in, or drop the row")
        return column.to_numpy(zero_copy_only=False)

    def _anything(self, column) -> np.ndarray:
        if self._is_numeric(column):
            return column.to_numpy(zero_copy_only=False).astype(np.float64)
        return np.array(["" if value is None else str(value) for value in column.to_pylist()])

    def _is_numeric(self, column) -> bool:
        types = self.arrow.types
        return any(is_kind(column.type) for is_kind in (types.is_integer, types.is_floating, types.is_boolean))


TABLES: dict[str, Any] = {".npy": NpyFile, ".csv": CsvFile, ".csv.gz": CsvFile, ".parquet": ParquetFile}
ENDINGS = (".npy", ".npz", ".csv", ".csv.gz", ".parquet")


def ending_of(path: str) -> str:
    """That of a file which can be streamed, or an empty text."""
    return next((ending for ending in ENDINGS if path.endswith(ending)), "")


def open_table(path: str, header: bool | None, max_inflation: float | int, known=None) -> Reader:
    """The file, by its ending; `known` names make a header of the first line that holds them."""
    return TABLES[ending_of(path)](path, header, max_inflation, known)
