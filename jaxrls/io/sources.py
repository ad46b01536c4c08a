"""Rows of files, read in pieces: `.npy`, `.npz`, `.csv` and Parquet, one file or many, as a source that begins anew whenever it is read."""

import glob
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxrls.io.naming import LISTED, find_column, match_columns
from jaxrls.io.npz import Archive, Damaged, open_archive
from jaxrls.io.packed import MAX_INFLATION
from jaxrls.io.readers import ENDINGS, Reader, ending_of, open_table
from jaxrls.rows.joint import JointRows
from jaxrls.rows.sampled import SAMPLE
from jaxrls.rows.streamed import Piece, StreamedRows

AT_ONCE = 65_536  # rows of a file


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
    header: bool | None = None,
    max_inflation: float | int = MAX_INFLATION,
    progress: bool = False,
    distributed: bool = False,
) -> StreamedRows | JointRows:
    """Rows that need not fit into memory: files, or blocks from an iterable of the caller's, with labels and weights.

    Reads `source` once, at once: counts rows, looks at every number, and keeps labels and weights, the means and standard deviations of all columns and
    `sample` rows drawn by chance, from which landmarks are chosen. Every later sum over rows is one more reading: the exact leave-one-out error of
    any number of λ and targets takes two, and the held-out residuals that a fit keeps at the chosen λ one more.

    **Arguments**: `source` is a path, a pattern such as `"rows/*.npz"`, a folder, a list of those, or any object whose `__iter__` gives blocks
    `(X, Y)`, `(X, Y, weights)` or X. Of files, `.npz` hold arrays `X`, and `y` or the one that `target` names; `.csv` and `.csv.gz` have a column a
    number, `.npy` are matrices and `.parquet` tables: `target`, one or a list, and `weights` name columns or count them, and all others, or `columns`,
    are inputs; the target is the last column by default, and `target=False` says that there is none. The files that follow have the columns of the
    first, by name where it has names. `standardize` brings columns to (weighted) mean 0 and standard deviation 1, or takes a pair (means, deviations), as
    those of the rows that a model was fitted on. `block_size` rows are worked on at once. `header` says whether first lines of text hold names, and
    `max_inflation` how much compressed files may become, as in `load`; `progress` shows a bar for each reading (needs tqdm).
    `checkpoint` names a file that keeps every sum after each block: after a kill the same calls go on from there, and end with the same numbers to the bit.
    `distributed` is for processes of `jax.distributed`: each gives its own part of the rows, in order, and what they add up to is summed over all.
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
        blocks = Files(paths_of(source), Choice(target, weights, columns), header, max_inflation)
    options: dict = {"checkpoint": checkpoint, "block_size": block_size, "progress": progress}
    kind = JointRows if distributed else StreamedRows
    return kind(blocks, standardize=standardize, sample=sample, seed=seed, **options)


class Columns(NamedTuple):
    """Positions of the columns of one file that are inputs, targets and weights; `vector` where labels are one column.

    Where a target may have `gaps`, or be text, it is passed on as it is.
    """

    names: list[str] | None
    width: int
    inputs: list[int]
    targets: list[int]
    weights: list[int]
    vector: bool = True
    gaps: bool = False

    def pieces(self, file: Reader, path: str) -> Iterator[Piece]:
        """The rows of the file, so many at once."""
        numbers, optional = [*self.inputs, *([] if self.gaps else self.targets), *self.weights], self.targets if self.gaps else []
        d, t, first = len(self.inputs), 0 if self.gaps else len(self.targets), 0
        for table, words in file.pieces(numbers, optional, AT_ONCE):
            Y = words[0] if words else table[:, d : d + t] if t else None
            Y = Y[:, 0] if Y is not None and self.vector and not words else Y
            yield Piece(table[:, :d], Y, table[:, -1] if self.weights else None, path, first)
            first += len(table)


@dataclass(frozen=True)
class Choice:
    """Which columns are target, weights and inputs, by name or number; and how wide the file must be, where that is known."""

    target: Any = None
    weights: Any = None
    inputs: Any = None
    width: int | None = None

    def of(self, path, names: list[str] | None, width: int) -> Columns:
        """The columns of a file that has these names, or so many."""
        if self.width not in (None, width):
            raise ValueError(
                f"{path} has {width} columns, and the file before it has {self.width}, neither of them by names that both have"
            )

        def find(name, what):
            return find_column(path, names, width, name, what)

        weights = [] if self.weights is None else [find(self.weights, "weights")]
        free = [j for j in range(width) if j not in weights]
        targets = free[-1:] if self.target is None else [find(name, "target") for name in as_list(self.target) if name is not False]
        inputs = [j for j in free if j not in targets] if self.inputs is None else [find(name, "inputs") for name in as_list(self.inputs)]
        if not inputs or len({*inputs, *targets, *weights}) < len(inputs) + len(targets) + len(weights):
            raise ValueError(f"{path}: inputs, target and weights must be different columns, and one at least is for inputs")
        return Columns(names, width, inputs, targets, weights, not isinstance(self.target, list | tuple))

    def settled(self, columns: Columns) -> "Choice":
        """The same columns of the files that follow: by name where this one has names, else by number in files as wide."""
        names = columns.names or range(columns.width)
        targets, inputs, weights = ([names[j] for j in part] for part in (columns.targets, columns.inputs, columns.weights))
        target = (targets[0] if columns.vector else targets) if targets else False
        return Choice(target, weights[0] if weights else None, inputs, None if columns.names else columns.width)

    def shard(self, path, arrays: Archive) -> Piece:
        """Arrays X, y and weights."""
        target = "y" if self.target is None else self.target
        names = ["X", *([] if target is False else [target]), *([] if self.weights is None else [self.weights])]
        absent = [name for name in names if name not in arrays]
        if absent:
            raise ValueError(f"{path} has no array {absent[0]!r}: it holds {', '.join(itertools.islice(arrays, LISTED)) or 'none'}")
        X = arrays["X"]
        if self.inputs is not None:
            X = X[:, [find_column(path, None, X.shape[1], name, "inputs") for name in as_list(self.inputs)]]
        Y = None if target is False else arrays[target]
        return Piece(X, Y, None if self.weights is None else arrays[self.weights], path)


@dataclass(frozen=True)
class Fitted:
    """The columns that a model was fitted on, as `layout` says, and the target where a file has it."""

    layout: Mapping[str, Any]

    @property
    def inputs(self):
        """Their names, or None."""
        return self.layout.get("inputs")

    def of(self, path, names, width) -> Columns:
        """The columns of a file that has these names, or so many."""
        inputs, target = match_columns(path, names, width, self.layout)
        return Columns(names, width, inputs, [] if target is None else [target], [], gaps=True)

    def settled(self, columns: Columns) -> "Fitted":
        """The same: every file is matched with the model."""
        del columns
        return self

    def shard(self, path, arrays: Archive) -> Piece:
        """The array X, and the target."""
        if "X" not in arrays:
            raise ValueError(f"{path} has no array 'X': it holds {', '.join(itertools.islice(arrays, LISTED)) or 'none'}")
        target = next((name for name in (self.layout.get("target"), "y") if name in arrays), None)
        return Piece(arrays["X"], None if target is None else arrays[target], None, path)


@dataclass(frozen=True)
class Files:
    """Files one after the other, each with the columns of the first."""

    paths: tuple[str, ...]
    choice: Any  # a `Choice`, or `Fitted`
    header: bool | None
    max_inflation: float | int

    def __iter__(self) -> Iterator[Piece]:
        choice = self.choice
        for path in self.paths:
            if ending_of(path) == ".npz":
                yield self._shard(path, choice)
                continue
            file = self._open(path, choice)
            columns = choice.of(path, file.names, file.width)
            yield from columns.pieces(file, path)
            choice = choice.settled(columns)

    def first(self) -> Columns | None:
        """What the columns of the first file are, None where it is an archive, whose arrays have none."""
        path = self.paths[0]
        if ending_of(path) == ".npz":
            return None
        file = self._open(path, self.choice)
        return self.choice.of(path, file.names, file.width)

    def _open(self, path, choice) -> Reader:
        known = [name for name in choice.inputs or () if isinstance(name, str)] if isinstance(choice.inputs, list | tuple) else None
        return open_table(path, self.header, self.max_inflation, known)

    def _shard(self, path, choice) -> Piece:
        try:
            with open_archive(path, self.max_inflation) as arrays:
                return choice.shard(path, arrays)
        except Damaged as error:
            raise ValueError(f"{path} is not an NPZ file, or is damaged: {error}") from None


def paths_of(source) -> tuple[str, ...]:
    """Every file that is meant, in order."""
    found: list[str] = []
    for path in map(os.fspath, [source] if isinstance(source, str | os.PathLike) else source):
        if os.path.isdir(path):
            inside = sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
            found += [one for one in inside if ending_of(one)]
        elif glob.has_magic(path) and not os.path.exists(path):
            found += sorted(glob.glob(path))
        else:
            found.append(path)
    if not found:
        raise ValueError(f"source {source!r} names no file")
    for path in found:
        if not ending_of(path):
            raise ValueError(f"{path} must end in {', '.join(ENDINGS)}")
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no file {path}")
    return tuple(found)


def _is_list_of_paths(source) -> bool:
    return isinstance(source, list | tuple) and bool(source) and all(isinstance(path, str | os.PathLike) for path in source)


def as_list(names) -> list:
    """One name, or several."""
    return list(names) if isinstance(names, list | tuple) else [names]
