"""Predictions out to files, block by block, each file written whole or not at all."""

import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from jaxrls.io.tables import arrow_for
from jaxrls.support.files import replacing

Writer = Callable[[Mapping[str, np.ndarray]], None]  # of the next rows of some columns


@contextmanager
def writing(path: str | os.PathLike) -> Iterator[Writer]:
    """A function that writes the next rows of some columns to a file, which is there when the block
    ends well.

    `.npy` is a vector, or a matrix of several columns; `.parquet`, `.arrow` and `.feather` are
    tables; any other ending is CSV.
    """
    make = {".npy": npy, **dict.fromkeys((".parquet", ".arrow", ".feather"), table)}
    kind = make.get(os.path.splitext(path)[1], csv_lines)
    with (
        replacing(path) as temporary,
        open(temporary, "wb") as file,
        kind(path, file) as write,
    ):
        yield write


@contextmanager
def csv_lines(path, file: BinaryIO) -> Iterator[Writer]:
    """Lines under a header, numbers so that reading them back gives the same."""
    del path
    begun = False

    def write(columns):
        nonlocal begun
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        if not begun:
            writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
        file.write(text.getvalue().encode())
        begun = True

    yield write


@contextmanager
def npy(path, file: BinaryIO) -> Iterator[Writer]:
    """An array of NumPy's."""
    blocks: list[np.ndarray] = []

    def write(columns):
        values = [np.asarray(column) for column in columns.values()]
        if any(column.dtype.kind != "f" for column in values):
            raise ValueError(
                f"{path} would hold numbers, and predicted labels are text: name a .csv or .parquet file"
            )
        blocks.append(values[0] if len(values) == 1 else np.column_stack(values))

    yield write
    np.save(file, np.concatenate(blocks or [np.empty(0)]).astype(np.float64))


@contextmanager
def table(path, file: BinaryIO) -> Iterator[Writer]:
    """Parquet or Arrow, a row group or a record batch for every block."""
    arrow = arrow_for(path)
    make = arrow.parquet.ParquetWriter if str(path).endswith(".parquet") else arrow.ipc.new_file
    writer: Any = None

    def write(columns):
        nonlocal writer
        block = arrow.table({name: arrow.array(values) for name, values in columns.items()})
        writer = writer or make(file, block.schema)
        writer.write_table(block)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
