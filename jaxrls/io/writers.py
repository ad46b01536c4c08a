"""Predictions out to files, block by block: CSV, `.npy` and Parquet, each written whole or not at all."""

import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from jaxrls.support.files import replacing


def write_columns(file: BinaryIO, columns: Mapping[str, np.ndarray], header: bool = True) -> None:
    """Write columns of equal length as CSV, numbers so that reading them back gives the same."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    file.write(text.getvalue().encode())


@contextmanager
def writing(path: str | os.PathLike) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """A function that writes the next rows of some columns to a file, which is there when the block ends well.

    `.npy` is a vector, or a matrix of several columns; `.parquet` a table; any other ending CSV.
    """
    make: Any = {".npy": NpyWriter, ".parquet": ParquetWriter}.get(os.path.splitext(path)[1], CsvWriter)
    with replacing(path) as file:
        writer = make(path, file)
        try:
            yield writer.write
        finally:  # Parquet's would else do it when it is gone, and the file closed
            writer.close()


class CsvWriter:
    """Lines under a header."""

    def __init__(self, path, file: BinaryIO):
        del path
        self.file, self.header = file, True

    def write(self, columns) -> None:
        """The next lines."""
        write_columns(self.file, columns, self.header)
        self.header = False

    def close(self) -> None:
        """Nothing is left to do."""


class NpyWriter:
    """An array of NumPy's, whose number of rows is written last, into room that its header has for it."""

    def __init__(self, path, file: BinaryIO):
        self.path, self.file, self.shape = path, file, (0,)

    def write(self, columns) -> None:
        """The next rows."""
        values = [np.asarray(column) for column in columns.values()]
        if any(column.dtype.kind != "f" for column in values):
            raise ValueError(f"{self.path} would hold numbers, and predicted labels are text: name a .csv or .parquet file")
        table = np.ascontiguousarray(values[0] if len(values) == 1 else np.column_stack(values), np.float64)
        if not self.shape[0]:
            self._head(table.shape)
        self.file.write(table.data)
        self.shape = (self.shape[0] + len(table), *table.shape[1:])

    def _head(self, shape) -> None:
        np.lib.format.write_array_header_1_0(self.file, {"descr": "<f8", "fortran_order": False, "shape": shape})

    def close(self) -> None:
        """Write the header again, which takes the same room whatever the number of rows."""
        begin = self.file.tell()
        self.file.seek(0)
        self._head(self.shape)
        self.file.seek(begin)


class ParquetWriter:
    """A table, a row group for every block."""

    def __init__(self, path, file: BinaryIO):
        try:
            import pyarrow.parquet
        except ImportError:
            raise ImportError(f"{path} needs pyarrow: pip install 'jaxrls[parquet]'") from None
        self.arrow, self.file = pyarrow, file
        self.writer: Any = None

    def write(self, columns) -> None:
        """The next rows."""
        table = self.arrow.table({name: self.arrow.array(values.tolist()) for name, values in columns.items()})
        self.writer = self.writer or self.arrow.parquet.ParquetWriter(self.file, table.schema)
        self.writer.write_table(table)

    def close(self) -> None:
        """Write the footer."""
        if self.writer is not None:
            self.writer.close()
