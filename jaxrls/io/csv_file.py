"""A CSV file of which the first rows have been looked at: its columns, its numbers and texts, and which cell is to blame where it has none.

NumPy's C reader does the reading. Only where it fails, or a number is not finite, is the file read again row by row, to say which cell is to blame;
and before, where its first line may be a header or not (`header.py`).
"""

import csv
import gzip
import itertools
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxrls.io.header import is_header, is_missing, is_number
from jaxrls.io.naming import LISTED, find_column, list_columns
from jaxrls.io.packed import check_gzip

MOST_COLUMNS = 10**6  # of text: a line of commas alone would take a hundred times its size in memory


class CsvFile:
    """A CSV file whose first rows have been looked at.

    Columns are separated by commas, or by tabs or semicolons where the first line has no comma.
    """

    def __init__(self, path, header: bool | None, max_inflation: float | int, known=None):
        self.path = path
        if str(path).endswith(".gz"):
            check_gzip(path, max_inflation)
        with self.rows(",") as rows:
            start = ",".join(next(rows, [""]))
        self.delimiter = "," if "," in start else next((c for c in "\t;" if c in start), ",")
        with self.rows(self.delimiter) as rows:
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
        return find_column(self.path, self.names, self.width, name, what)

    def list_columns(self) -> str:
        """The columns, in words."""
        return list_columns(self.names, self.width)

    def read(self, numbers, texts, optional=()) -> tuple[np.ndarray, list[np.ndarray]]:
        """Columns of numbers as one matrix, and columns of text; the `optional` ones are text that may have gaps."""
        return self._load(os.fspath(self.path), self.skip, numbers, texts, optional)

    def pieces(self, numbers, optional, size: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Columns of numbers and of text that may have gaps, `size` rows at a time."""
        with self._text() as file:
            lines = (line for line in itertools.islice(file, self.skip, None) if line.strip())
            while part := list(itertools.islice(lines, size)):
                yield self._load(part, 0, numbers, [], optional)

    def _load(self, lines, skip: int, numbers, texts, optional=()) -> tuple[np.ndarray, list[np.ndarray]]:
        """What `read` gives, of a path or of lines."""
        texts = [*texts, *optional]
        options: dict[str, Any] = {
            "delimiter": self.delimiter,
            "quotechar": '"',
            "comments": None,
            "encoding": "utf-8-sig",
            "skiprows": skip,
        }
        kinds = ["U1"] * self.width
        for kind, columns in (("f8", numbers), ("O", texts)):
            for j in columns:
                kinds[j] = kind
        try:
            if set(kinds) == {"f8"}:
                table = np.loadtxt(lines, ndmin=2, **options)
                if table.shape[1] != self.width:
                    raise ValueError("rows of unequal length")
                values, words = table[:, numbers], []
            else:
                fields = [(str(j), kind) for j, kind in enumerate(kinds)]
                table = np.loadtxt(lines, ndmin=1, dtype=fields, **options)
                values = np.stack([table[str(j)] for j in numbers], axis=1)
                words = [np.char.strip(table[str(j)].astype(str)) for j in texts]
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise self.explain(numbers, texts, optional, error) from None
        if not np.isfinite(values).all() or any((column == "").any() for column in words[: len(words) - len(optional)]):
            raise self.explain(numbers, texts, optional, "a cell is missing or not finite")
        return values, words

    def explain(self, numbers, texts, optional, cause) -> ValueError:
        """The first cell that is to blame, found row by row."""
        needed, columns = sorted({*numbers, *texts} - {*optional}), set(numbers)
        with self.rows(self.delimiter) as rows:
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
    def rows(self, delimiter) -> Iterator["Lines"]:
        """The rows as lists of cells."""
        with self._text() as file:
            yield Lines(csv.reader(file, delimiter=delimiter))

    @contextmanager
    def _text(self) -> Iterator[Any]:
        opener = gzip.open if str(self.path).endswith(".gz") else open
        try:
            with opener(self.path, "rt", encoding="utf-8-sig", newline="") as file:
                yield file
        except UnicodeDecodeError:
            raise ValueError(f"{self.path} is not text in UTF-8") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{self.path} is not a whole gzip file: {error}") from None
        except csv.Error as error:
            raise ValueError(f"{self.path} is not a CSV file: {error}") from None


class Lines:
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
