"""Read tables in batches: CSV, Parquet and Arrow by pyarrow, `.npy` and `.npz` by NumPy.

`open_table` returns a `Table`, which reads chosen columns. `airfoil` loads the example data of the
package.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from itertools import islice
from typing import Any

import numpy as np

from jaxrls.rows.dates import days_of, days_of_arrow, words_of_days
from jaxrls.rows.files import reading

FORMATS = dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), "csv") | {".parquet": "parquet"}
FORMATS |= dict.fromkeys((".arrow", ".feather"), "ipc")
ENDINGS = (*FORMATS, ".npy", ".npz")
AT_ONCE = 65_536  # the most rows in a batch
NO_NAMES = ("", "na", "n/a", "null", "true", "false")  # may be data in place of names
DATES = "dates"  # the kind of a column of dates
EXAMPLES = 1000  # the most words that a message is based on
LOOKED_AT = 2**22  # the bytes of a CSV file from which pyarrow infers the types of columns
# Matrices of numbers, with NaN for a missing value, and columns of text, with an empty text for a
# missing value.
Batch = tuple[list[np.ndarray], list[np.ndarray]]


def ending_of(path: str) -> str:
    """Return which of ENDINGS the name of a file has, or an empty text."""
    return next((ending for ending in ENDINGS if path.endswith(ending)), "")


def arrow_for(what: str) -> Any:
    """Return pyarrow with the modules that tables need. Without it the error names `what`."""
    try:
        import pyarrow.csv
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{what} needs pyarrow: pip install 'jaxrls[tables]'") from None
    return pyarrow


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written.

    `header` says whether its first line holds names. `sep` separates the columns; None for a comma,
    or a tab if the path ends in `.tsv`. `decimal` is the decimal sign.
    """

    header: bool = True
    sep: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"

    def separator(self, path: str) -> str:
        """Return the text that separates the columns of a file."""
        return self.sep or ("\t" if ".tsv" in ending_of(path) else ",")

    def in_words(self, path: str) -> str:
        """Return words for a message on the options by which a file is read."""
        first = "names" if self.header else "data"
        options = f"--sep {self.separator(path)!r} --encoding {self.encoding}"
        return f"{options}, {first} in its first line"


USUAL = Dialect()


def quoted(names: Sequence) -> str:
    """Return names for a message, the first twenty of them."""
    return ", ".join(repr(str(name)) for name in names[:20])


def text_among(words: Iterable) -> str:
    """Return words for a message about the first word that is not a number.

    They are empty if all words are numbers.
    """
    texts = (str(word) for word in words if word and not is_number(word))
    some = [*islice(texts, EXAMPLES)]
    return f"text such as {some[0]!r}{meaning_of_commas(some)}" if some else ""


def meaning_of_commas(words: list[str]) -> str:
    """Return what the commas in words mean, for a message that shows the first of the words.

    The result is empty if the first word has no digits with commas, or if the meaning is unclear.
    Commas may separate thousands if three digits follow each of them. Otherwise each word may be a
    number with a decimal comma.
    """
    with_commas = [word for word in words if re.fullmatch(r"[-+]?\d+(,\d+)+(\.\d*)?", word)]
    if words[0] not in with_commas:
        return ""
    if all(re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", word) for word in with_commas):
        return ", perhaps with commas after thousands, which must be taken out"
    fractions = all(re.fullmatch(r"[-+]?\d+,\d+", word) for word in with_commas)
    return ", which --decimal , reads as numbers" if fractions else ""


def is_number(word: str) -> bool:
    """Whether a word is one that Python reads as a number."""
    with suppress(ValueError):
        float(word)
        return True
    return False


@dataclass(frozen=True)
class Table:
    """A table in a file, whose columns are read in batches.

    `names` has the name of each column, or its number as text if the file has no names. `kinds` has
    for each column what it holds, None for numbers. `read(columns, texts)` yields batches of some
    columns by their numbers. Columns in `texts` come as text, and dates as days since 1970-01-01.
    """

    path: str
    names: list[str]
    kinds: list[str | None]
    read: Callable[[list[int], list[int]], Iterator[dict[int, np.ndarray]]]
    width: int  # how many columns, the first ones, are inputs by default or named by a number
    named: bool = False  # whether the file has names for its columns
    index: tuple[int, ...] = ()  # the columns that pandas wrote for the index of a data frame

    def find(self, wanted: Any, what: str, only_names: bool = False) -> list[int]:
        """Return the numbers of the wanted columns, or raise if a wanted column does not exist.

        * A name stands for all columns of this name.
        * A whole number, or text of one that is not a name, stands for one column; with
          `only_names`, text does not.
        * A list stands for all columns of its entries.
        * None and False stand for no column.

        `what` says what the columns are used as, for the message.
        """
        if isinstance(wanted, list | tuple):
            return [j for name in wanted for j in self.find(name, what, only_names)]
        if wanted is None or wanted is False:
            return []
        is_number = isinstance(wanted, int | np.integer)
        by_name = () if is_number else self.names
        numbers = [j for j, name in enumerate(by_name) if name == str(wanted)]
        may_be_number = is_number or not only_names
        if not numbers and may_be_number and re.fullmatch(r"-?\d+", str(wanted)):
            numbers = [j % self.width for j in [int(wanted)] if -self.width <= j < self.width]
        if not numbers:
            spaced = any(name.strip() == str(wanted) for name in self.names)
            near = ", with spaces around the name" if spaced else ""
            sep = (
                " (if these are several, --sep says what separates them)" if self.width == 1 else ""
            )
            raise ValueError(
                f"{self.path} has no column {str(wanted)!r} for the {what}: its columns are "
                f"{quoted(self.names)}{near}{sep}"
            )
        return numbers

    def held(self, j: int) -> str:
        """Return words for a message on what a column without numbers holds, with an example."""
        kind = str(self.kinds[j])
        words = next(self.read([j], [j]), {j: ()})[j] if kind in ("text", DATES) else ()
        if kind == DATES:
            return f"dates such as {next(filter(None, map(str, words)), '')!r}"
        return text_among(words) or kind

    def batches(self, numbers: list[list[int]], texts: list[int]) -> Iterator[Batch]:
        """Yield batches of at most AT_ONCE rows.

        A batch has a matrix for each list of columns in `numbers`, and an array of text for each
        column in `texts`.
        """
        used = sorted({j for part in (*numbers, texts) for j in part})
        as_text = [j for j in texts if not any(j in part for part in numbers)]
        for columns in self.read(used, as_text):
            none = np.empty((len(columns[used[0]]), 0))
            parts = [np.column_stack([columns[j] for j in p]) if p else none for p in numbers]
            of_dates = [j not in as_text and self.kinds[j] == DATES for j in texts]
            yield (
                parts,
                [
                    words_of_days(columns[j]) if dates else columns[j].astype(str)
                    for j, dates in zip(texts, of_dates, strict=True)
                ],
            )


def open_table(path: str, dialect: Dialect = USUAL) -> Table:
    """Open a table, in the format that its ending names.

    Raises:
        ValueError: for a file that is damaged or is not a table.
        ImportError: for a kind of file that needs pyarrow, if pyarrow is missing.
    """
    return _arrow_table(path, dialect) if ending_of(path) in FORMATS else _array_table(path)


def _arrow_table(path: str, dialect: Dialect) -> Table:
    """Open a CSV, Parquet or Arrow file, which pyarrow reads."""
    kind = FORMATS[ending_of(path)]
    failed = "cannot be read"
    if is_csv := kind == "csv":
        kind = _csv_format(path, dialect)
        failed = f"cannot be read by {dialect.in_words(path)}"
    with reading(path, failed):
        schema = _dataset(path, kind).schema
        fields = schema.names  # raises for names that are not text

    def read(columns: list[int], texts: list[int]) -> Iterator[dict[int, np.ndarray]]:
        to_read = schema
        for j in columns if is_csv else ():
            to_read = to_read.set(j, _csv_field(schema.field(j), j in texts))
        names_read = [fields[j] for j in columns]
        with reading(path, failed):
            dataset = _dataset(path, kind, to_read)
            for batch in dataset.to_batches(names_read, batch_size=AT_ONCE, batch_readahead=2):
                in_columns = zip(columns, batch.columns, strict=True)
                yield {j: _in_numpy(column, j in texts) for j, column in in_columns}

    kinds = [_kind_of(_type_name(kind)) for kind in schema.types]
    if is_csv and not dialect.header:
        return Table(path, list(map(str, range(len(fields)))), kinds, read, len(fields))
    if is_csv:
        _warn_of_data(path, fields, kinds, dialect.decimal)
    return Table(path, fields, kinds, read, len(fields), named=True, index=_index_of(schema))


def _index_of(schema: Any) -> tuple[int, ...]:
    """Return the columns of a pyarrow schema that pandas wrote for the index of a data frame."""
    of_index = (schema.pandas_metadata or {}).get("index_columns", ())
    return tuple(j for j, name in enumerate(schema.names) if name in of_index)


def _dataset(path: str, kind: Any, schema: Any = None) -> Any:
    """Return the pyarrow dataset of a file, with the types of a schema or those that pyarrow
    infers.
    """
    arrow = arrow_for(path)
    local = arrow.fs.LocalFileSystem()
    return arrow.dataset.dataset(os.path.abspath(path), schema, format=kind, filesystem=local)


def _csv_format(path: str, dialect: Dialect) -> Any:
    """Return the pyarrow format that reads a CSV file of this dialect."""
    arrow = arrow_for(path)
    with reading(path, f"cannot be read by --encoding {dialect.encoding}"):
        return arrow.dataset.CsvFileFormat(
            arrow.csv.ParseOptions(delimiter=dialect.separator(path)),
            convert_options=arrow.csv.ConvertOptions(
                strings_can_be_null=True, decimal_point=dialect.decimal
            ),
            read_options=arrow.csv.ReadOptions(
                block_size=LOOKED_AT,
                autogenerate_column_names=not dialect.header,
                encoding=dialect.encoding,
            ),
        )


def _csv_field(field: Any, as_text: bool) -> Any:
    """Return a column of a CSV file with the type in which it is read.

    The type is wider than pyarrow inferred from the first rows: fractions may follow whole numbers,
    and times may follow days.
    """
    arrow = arrow_for("a CSV file")
    if as_text:
        return field.with_type(arrow.string())
    if _kind_of(str(field.type)) == DATES:  # times may follow days
        whole = str(field.type) in ("date32[day]", "timestamp[s]")
        return field.with_type(arrow.timestamp("us")) if whole else field
    return field if field.type == arrow.bool_() else field.with_type(arrow.float64())


def _in_numpy(column: Any, as_text: bool) -> np.ndarray:
    """Return a pyarrow column as numbers, dates as days since 1970-01-01, or as text."""
    if as_text:
        column = column.cast("string").fill_null("")
    elif _kind_of(_type_name(column.type)) == DATES:
        decoded = column.dictionary_decode() if hasattr(column.type, "value_type") else column
        return days_of_arrow(decoded)
    elif column.type != "float32":
        column = column.cast("float64", safe=False)
    return column.to_numpy(zero_copy_only=False)


def _type_name(kind: Any) -> str:
    """Return the name of a pyarrow type, for a dictionary the name of the type of its values."""
    return str(getattr(kind, "value_type", kind))


def _kind_of(type_name: str) -> str | None:
    """Return what a column of an Arrow type holds.

    The result is None for numbers, booleans and columns without any value.
    """
    if re.match("date|timestamp", type_name):
        return DATES
    if re.match("u?int|halffloat|float|double|decimal|bool|null", type_name):
        return None
    kinds = {"string": "text", "binary": "bytes that are no text in this --encoding"}
    return kinds.get(type_name.removeprefix("large_"), f"{type_name} values")


def _warn_of_data(path: str, names: list[str], kinds: list[str | None], decimal: str) -> None:
    """Warn if every column of numbers has a number as its name, as in a file without names.

    Names that are empty or a truth value are passed over, as long as other names are numbers.
    """
    of_numbers = [name for name, kind in zip(names, kinds, strict=True) if kind is None]
    of_numbers = [name for name in of_numbers if name.strip().lower() not in NO_NAMES]
    if of_numbers and all(is_number(name.replace(decimal, ".")) for name in of_numbers):
        warnings.warn(
            f"{path}: the first line holds numbers, which are taken for the names of columns: "
            "if they are data, say --no-header (header=False)",
            stacklevel=2,
        )


def _array_table(path: str) -> Table:
    """Open the matrix of a `.npy` file, or the matrix X of a `.npz` archive.

    Other arrays of the archive with as many rows become further columns, under the name of their
    array.
    """
    X, others = _arrays_of(path)
    n, width = X.shape
    columns = list(X.T)
    names = list(map(str, range(width)))
    for name, array in others.items():
        if array.ndim in (1, 2) and len(array) == n:
            more = array.reshape(n, -1).T
            columns.extend(more)
            names += [name] * len(more)

    def read(numbers: list[int], texts: list[int]) -> Iterator[dict[int, np.ndarray]]:
        step = max(1, min(AT_ONCE, 2**20 // width))  # 2**20 numbers fit into caches
        for first in range(0, n, step):
            parts = {j: columns[j][first : first + step] for j in numbers}
            with reading(path):
                for j in texts:  # NaN and NaT differ from themselves
                    parts[j] = np.where(parts[j] == parts[j], parts[j].astype(str), "")
            dates = [j for j, part in parts.items() if part.dtype.kind == "M"]
            parts |= {j: days_of(parts[j]) for j in dates}
            yield parts

    return Table(path, names, [_kind_of_dtype(column.dtype) for column in columns], read, width)


def _arrays_of(path: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the matrix X of a file, and its other arrays by name."""
    with reading(path):
        if path.endswith(".npy"):
            arrays = {"X": np.load(path, mmap_mode="r")}
        else:
            with open(path, "rb") as opened, np.load(opened) as archive:
                arrays = dict(archive)
        X = arrays.pop("X", np.empty(()))
        if X.ndim != 2:
            raise ValueError(f"X must be a matrix, and has shape {X.shape}")
    return X, arrays


def _kind_of_dtype(dtype: np.dtype) -> str | None:
    """Return what a column of a NumPy dtype holds, None for numbers and booleans."""
    if dtype.kind in "fiub":
        return None
    kinds = {"U": "text", "M": DATES}
    return kinds.get(dtype.kind, f"values of dtype {dtype}")


def airfoil() -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Load the NASA airfoil self-noise data: sound pressure levels of an aerofoil in a wind tunnel,
    from five settings.

    There are 1503 measurements, in shuffled order, and the mean of each column has been subtracted.
    Standardise X before you use a radial kernel.

    Returns:
        `(X, y, names)`: X (1503, 5) and y (1503,) in float64, and the names of the five columns of
        X. X is in the units that the names end with, and y in decibels.

    **Cost** one small file. **Raises** nothing. **Source**: Brooks, Pope and Marcolini 1989, NASA
    RP 1218; from the UCI Machine Learning Repository, CC BY 4.0; `jaxrls/data/README.md` has the
    details.

    >>> X, y, names = airfoil()
    >>> X.shape, y.shape, names[0]
    ((1503, 5), (1503,), 'frequency_Hz')
    """
    with as_file(files("jaxrls") / "data" / "airfoil.csv.gz") as path:
        table: Any = np.genfromtxt(path, delimiter=",", names=True)
    *names, last = table.dtype.names
    return np.column_stack([table[name] for name in names]), table[last].copy(), tuple(names)
