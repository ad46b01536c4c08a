"""Rows of files, read in pieces: `.npy`, `.npz`, `.csv` and Parquet, one file or many, as a source that begins anew whenever it is read."""

import glob
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxrls.io.csv_file import CsvFile
from jaxrls.io.npz import Damaged, open_archive
from jaxrls.io.packed import MAX_INFLATION
from jaxrls.rows.streamed import SAMPLE, Piece, StreamedRows

AT_ONCE = 65_536  # rows of a file
LISTED = 20


def stream(
    source,
    *,
    target=None,
    weights=None,
    columns=None,
    standardize: Any = False,
    sample: int = SAMPLE,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    block_size: int | None = None,
    max_inflation: float | int = MAX_INFLATION,
) -> StreamedRows:
    """Rows that need not fit into memory: files, or blocks from an iterable of the caller's, with labels and weights.

    Reads `source` once, at once: counts rows, looks at every number, and keeps labels and weights, the means and standard deviations of all columns and
    `sample` rows drawn by chance, from which landmarks are chosen. Every later sum over rows is one more reading: the exact leave-one-out error of
    any number of λ and targets takes two, and the held-out residuals that a fit keeps at the chosen λ one more.

    **Arguments**: `source` is a path, a pattern such as `"rows/*.npz"`, a folder, a list of those, or any object whose `__iter__` gives blocks
    `(X, Y)`, `(X, Y, weights)` or X. Of files, `.npz` hold arrays `X`, and `y` or the one that `target` names; `.csv` and `.csv.gz` have a column a
    number, `.npy` are matrices and `.parquet` tables: `target`, one or a list, and `weights` name columns or count them, and all others, or `columns`,
    are inputs; the target is the last column by default, and `target=False` says that there is none. `standardize` brings columns to mean 0
    and standard deviation 1, or takes a pair (means, deviations), as those of the rows that a model was fitted on. `block_size` rows are worked on at once.
    `checkpoint` names a file that keeps every sum after each block: after a kill the same calls go on from there, and end with the same numbers to the bit.
    **Returns** a `Rows`; `labels`, `row_weights`, `means` and `scales` are what it found. **Cost** one reading; memory of labels, weights, the sample and
    a few blocks. **Raises** `ValueError` that names file, row and column of what is missing or no number, and files that do not go together.
    **Source**: Fan, Muller and Rezucha 1962 for the sample; Chan, Golub and LeVeque 1979 for means and deviations.

    >>> import numpy as np, jaxrls as rls
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> blocks = [(x[i : i + 10], np.sin(6 * x[i : i + 10, 0])) for i in range(0, 50, 10)]
    >>> fit = rls.fit(rls.Gaussian(0.3), rls.stream(blocks), landmarks=10)
    >>> fit.route, bool(fit.error < 1e-3)
    ('subset', True)
    """
    if not isinstance(source, str | os.PathLike) and not _is_list_of_paths(source):
        named = [name for name, value in (("target", target), ("weights", weights), ("columns", columns)) if value is not None]
        if named:
            raise ValueError(f"{named[0]} names a column of files, and source brings blocks (X, Y, weights) itself: leave it out")
        blocks = source
    else:
        blocks = Files(paths_of(source), Choice(target, weights, columns), max_inflation)
    return StreamedRows(blocks, standardize=standardize, sample=sample, seed=seed, checkpoint=checkpoint, block_size=block_size)


class Columns(NamedTuple):
    """Positions of the columns of one file that are inputs, targets and weights; `vector` where labels are one column."""

    inputs: list[int]
    targets: list[int]
    weights: list[int]
    vector: bool

    @property
    def needed(self) -> list[int]:
        """All of them, in the order in which `piece` takes them."""
        return [*self.inputs, *self.targets, *self.weights]

    def piece(self, table: np.ndarray, place: str, first: int) -> Piece:
        """Rows of the columns that are needed."""
        d, t = len(self.inputs), len(self.targets)
        Y = table[:, d : d + t] if t else None
        return Piece(table[:, :d], Y[:, 0] if Y is not None and self.vector else Y, table[:, -1] if self.weights else None, place, first)


@dataclass(frozen=True)
class Choice:
    """Which columns are target, weights and inputs, by name or number."""

    target: Any
    weights: Any
    inputs: Any

    def of(self, path, names: list[str] | None, width: int) -> Columns:
        """The columns of a file that has these names, or so many."""

        def find(name, what):
            if names and name in names:
                return names.index(name)
            if isinstance(name, int | np.integer) and -width <= name < width:
                return int(name) % width
            known = ", ".join(names[:LISTED]) if names else f"0 to {width - 1}, without names"
            raise ValueError(f"{path} has no column {name!r} for the {what}: its columns are {known}")

        weights = [] if self.weights is None else [find(self.weights, "weights")]
        free = [j for j in range(width) if j not in weights]
        targets = free[-1:] if self.target is None else [find(name, "target") for name in as_list(self.target) if name is not False]
        inputs = [j for j in free if j not in targets] if self.inputs is None else [find(name, "inputs") for name in as_list(self.inputs)]
        if not inputs or len({*inputs, *targets, *weights}) < len(inputs) + len(targets) + len(weights):
            raise ValueError(f"{path}: inputs, target and weights must be different columns, and one at least is for inputs")
        return Columns(inputs, targets, weights, not isinstance(self.target, list | tuple))


@dataclass(frozen=True)
class Files:
    """Files one after the other."""

    paths: tuple[str, ...]
    choice: Choice
    max_inflation: float | int

    def __iter__(self) -> Iterator[Piece]:
        for path in self.paths:
            yield from READERS[_ending(path)](path, self.choice, self.max_inflation)


def paths_of(source) -> tuple[str, ...]:
    """Every file that is meant, in order."""
    found: list[str] = []
    for path in map(os.fspath, [source] if isinstance(source, str | os.PathLike) else source):
        if os.path.isdir(path):
            inside = sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
            found += [one for one in inside if _ending(one)]
        elif glob.has_magic(path) and not os.path.exists(path):
            found += sorted(glob.glob(path))
        else:
            found.append(path)
    if not found:
        raise ValueError(f"source {source!r} names no file")
    for path in found:
        if not _ending(path):
            raise ValueError(f"{path} must end in {', '.join(READERS)}")
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no file {path}")
    return tuple(found)


def _ending(path) -> str:
    return next((ending for ending in READERS if path.endswith(ending)), "")


def _is_list_of_paths(source) -> bool:
    return isinstance(source, list | tuple) and bool(source) and all(isinstance(path, str | os.PathLike) for path in source)


def as_list(names) -> list:
    """One name, or several."""
    return list(names) if isinstance(names, list | tuple) else [names]


def _npy(path, choice, max_inflation) -> Iterator[Piece]:
    """A matrix, mapped into memory."""
    del max_inflation
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not an array of numbers that NumPy wrote: {error}") from None
    if table.ndim != 2:
        raise ValueError(f"{path} must hold a matrix, and has shape {table.shape}")
    columns = choice.of(path, None, table.shape[1])
    for first in range(0, len(table), AT_ONCE):
        yield columns.piece(table[first : first + AT_ONCE][:, columns.needed], path, first)


def _npz(path, choice, max_inflation) -> Iterator[Piece]:
    """Arrays X, y and weights of one shard, which is read whole."""
    try:
        with open_archive(path, max_inflation) as arrays:
            target = "y" if choice.target is None else choice.target
            names = ["X", *([] if target is False else [target]), *([] if choice.weights is None else [choice.weights])]
            absent = [name for name in names if name not in arrays]
            if absent:
                raise ValueError(f"{path} has no array {absent[0]!r}: it holds {', '.join(itertools.islice(arrays, LISTED)) or 'none'}")
            Y = None if target is False else arrays[target]
            X = arrays["X"] if choice.inputs is None else arrays["X"][:, as_list(choice.inputs)]
            yield Piece(X, Y, None if choice.weights is None else arrays[choice.weights], path)
    except Damaged as error:
        raise ValueError(f"{path} is not an NPZ file, or is damaged: {error}") from None


def _csv(path, choice, max_inflation) -> Iterator[Piece]:
    """Lines of numbers, so many at once."""
    file = CsvFile(path, None, max_inflation)
    columns, first = choice.of(path, file.names, file.width), 0
    for table in file.pieces(columns.needed, AT_ONCE):
        yield columns.piece(table, path, first)
        first += len(table)


def _parquet(path, choice, max_inflation) -> Iterator[Piece]:
    """Record batches of the columns that are needed."""
    del max_inflation
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{path} needs pyarrow: pip install 'jaxrls[parquet]'") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.lib.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file, or is damaged: {error}") from None
    with file:
        names = list(file.schema_arrow.names)
        columns, first = choice.of(path, names, len(names)), 0
        needed = [names[j] for j in columns.needed]
        for batch in file.iter_batches(AT_ONCE, columns=needed):
            table = np.column_stack([_numbers(path, name, batch.column(name), first) for name in needed])
            yield columns.piece(table, path, first)
            first += batch.num_rows


def _numbers(path, name, column, first) -> np.ndarray:
    """A column of a record batch."""
    if column.null_count:
        row = first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise ValueError(f"{path}: row {row}, column {name}: the value is missing: fill it in, or drop the row")
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{path}: column {name} must hold numbers, and holds {column.type}")
    return values


READERS: dict[str, Callable] = {".npy": _npy, ".npz": _npz, ".csv": _csv, ".csv.gz": _csv, ".parquet": _parquet}
