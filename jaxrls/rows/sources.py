"""Rows of one file or many, as a source that can be read repeatedly from its beginning."""

import glob
import os
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from jaxrls.rows.joint import JointRows
from jaxrls.rows.streamed import SAMPLE, Piece, StreamedRows
from jaxrls.rows.tables import ENDINGS, USUAL, Dialect, Table, ending_of, open_table


def stream(
    source,
    *,
    target=None,
    weights=None,
    columns=None,
    sample: int = SAMPLE,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    block_size: int | None = None,
    header: bool = True,
    progress: bool = False,
    distributed: bool = False,
) -> StreamedRows:
    """Read rows that do not fit into memory in blocks: from files, or from an iterable of your own.

    `source` is read once immediately, to count rows, check every number, and keep labels, weights,
    and a random `sample` of rows, from which landmarks are chosen. Every later sum over rows is one
    more reading: the exact leave-one-out error of any number of λ and targets takes two, and the
    held-out residuals that a fit keeps at the chosen λ one more.

    Args:
        source: a path, a pattern such as `"rows/*.parquet"`, a folder, a list of those, or any
            object whose `__iter__` gives blocks `(X, Y)`, `(X, Y, weights)` or X. Files are `.csv`
            and `.tsv`, also with `.gz` after it, `.parquet`, `.arrow` and `.feather` (extra
            `tables`), `.npy` with a matrix, and `.npz` with arrays `X` and `y`. Further files must
            have the columns of the first, by name where it has names.
        target: one column or a list, by name or number, or an array of `.npz` files; by default the
            last column, or `y`. False for files without labels.
        weights: the column of sample weights.
        columns: the inputs; by default all other columns.
        sample: how many rows are kept in the sample.
        seed: of the random sample.
        checkpoint: a file that keeps every sum after each block. If the process is killed, the same
            calls continue from there, with bitwise the same results; only the first reading, which
            counts and checks rows, is repeated.
        block_size: how many rows are processed at a time.
        header: whether the first line of a CSV file holds names.
        progress: show a bar for each reading (needs tqdm).
        distributed: for processes of `jax.distributed`: each process reads its own part of the
            rows, in order, and sums are taken over all processes.

    Returns:
        `Rows`, to pass as X, with attributes `labels` (n,) or (n, t) and `row_weights` (n,), None
        where there are none, and `column_names` of the inputs, () where there are none, by which a
        model takes the columns of data frames.

    Raises:
        ValueError: naming file, row and column, for what is missing or not a number; and for files
            that do not match.

    **Cost** one reading; memory of labels, weights, the sample and a few blocks. **Source**: Fan,
    Muller and Rezucha 1962 for the sample.

    >>> import numpy as np, jaxrls as rls
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> blocks = [(x[i : i + 10], np.sin(6 * x[i : i + 10, 0])) for i in range(0, 50, 10)]
    >>> fit = rls.fit(rls.Gaussian(0.3), rls.rows.stream(blocks), landmarks=10)
    >>> fit.route, bool(fit.error < 1e-3)
    ('subset', True)
    """
    paths = [source] if isinstance(source, str | os.PathLike) else source
    if isinstance(paths, list | tuple) and paths and isinstance(paths[0], str | os.PathLike):
        choice = ColumnChoice(target, weights, columns)
        blocks = open_files(paths_of(paths), choice, Dialect(header))
    elif target is weights is columns is None:
        blocks = source
    else:
        raise ValueError(
            "target, weights and columns name columns of files, and source brings blocks (X, Y, "
            "weights) itself: leave them out"
        )
    kind = JointRows if distributed else StreamedRows
    rows = kind(
        blocks,
        sample=sample,
        seed=seed,
        checkpoint=checkpoint,
        block_size=block_size,
        progress=progress,
    )
    if isinstance(blocks, Files) and blocks.choice.width is None:
        rows.column_names = tuple(blocks.choice.inputs)
    return rows


# What else to do with text among the inputs.
OTHER_USES = ", leave it out (--drop {name}), or make indicators of it (--one-hot {name})"


class FileColumns(NamedTuple):
    """Column numbers of one file, by what they are used as."""

    targets: list[int]
    weights: list[int]
    numbers: list[int]  # inputs that are read as numbers
    one_hot: list[int]  # and as text
    groups: list[int]
    keep: list[int]
    labels: bool  # whether targets are read as text


@dataclass(frozen=True)
class ColumnChoice:
    """Which columns are inputs, targets and weights, by name or number: plain data, which a model
    file keeps.
    """

    target: Any = None
    weights: Any = None
    inputs: Any = None
    drop: Any = ()
    one_hot: Any = ()  # inputs that are read as text
    groups: Any = None
    labels: bool | None = False  # whether targets are text; None: as the file has it
    width: int | None = None  # of all files, where columns have no names
    keep: Any = ()  # what is written beside predictions, as text

    def of(self, file: Table) -> FileColumns:
        """The column numbers of a file; raises where a column has two uses."""
        find = file.find
        if self.width not in (None, file.width):
            raise ValueError(
                f"{file.path} has {file.width} columns, and the file before it has {self.width}: "
                "give files with the same columns"
            )
        weights = find(self.weights, "weights")
        groups = find(self.groups, "groups")
        dropped = find(self.drop, "columns to drop")
        dropped += unnamed_index(file) if self.inputs is None else []
        special = [*weights, *groups, *dropped]
        free = [j for j in range(file.width) if j not in special]
        last = "y" if file.path.endswith(".npz") else free[-1:]
        targets = find(last if self.target is None else self.target, "target")
        inputs = find(self.inputs, "inputs") or [j for j in free if j not in targets]
        one_hot = find(self.one_hot, "inputs")
        others = {*targets, *weights, *groups}  # which are no inputs, also where they are dropped
        dropped = [j for j in {*dropped} if j not in others]
        uses = {"input": inputs, "target": targets, "weights": weights, "groups": groups}
        check_uses(file, uses | {"column to drop": dropped}, one_hot)
        labels = any(file.kinds[j] for j in targets) if self.labels is None else self.labels
        numbers = [j for j in inputs if j not in one_hot]
        check_numbers(file, column=numbers, weight=weights, target=[] if labels else targets)
        keep = find(self.keep, "columns to keep")
        return FileColumns(targets, weights, numbers, one_hot, groups, keep, labels)

    def settled(self, file: Table) -> "ColumnChoice":
        """The same columns for other files: by name where this file has names, else by number."""
        columns = self.of(file)
        named = lambda j: file.named or j >= file.width  # as arrays of a `.npz` file are
        name = lambda numbers: [*dict.fromkeys(file.names[j] if named(j) else j for j in numbers)]
        several = isinstance(self.target, list | tuple)
        target = name(columns.targets)
        return replace(
            self,
            target=(target if several else target[0]) if target else False,
            weights=name(columns.weights),
            inputs=name([*columns.numbers, *columns.one_hot]),
            drop=(),
            one_hot=name(columns.one_hot),
            labels=columns.labels,
            width=None if file.named else file.width,
        )

    def of_inputs(self, file: Table) -> FileColumns:
        """The same inputs of a file to predict, and the target as text if the file has it.

        By name where both have names, else by number in a file of the same width; any other file
        holds only inputs.
        """
        inputs = self.inputs
        one_hot = self.one_hot
        same = file.width == self.width
        if inputs and not same and not (file.named and self.width is None):
            if file.width != len(inputs):
                raise ValueError(
                    f"{file.path} has {file.width} columns, and the model was fitted on "
                    f"{len(inputs)}: give the same inputs"
                )
            inputs = list(range(file.width))
            one_hot = inputs[len(inputs) - len(one_hot) :]
        target = "y" if self.target is None else self.target
        known = same or self.width is None and target in file.names
        return ColumnChoice(
            target=target if known else False,
            inputs=inputs,
            one_hot=one_hot,
            labels=True,
            keep=self.keep,
        ).of(file)


def unnamed_index(file: Table) -> list[int]:
    """The first column where it has no name, as pandas writes its index; warns of it."""
    if file.width < 2 or file.names[0]:
        return []
    words = "the first column has no name, and is left out: give it a name to use it"
    warnings.warn(f"{file.path}: {words}", stacklevel=2)
    return [0]


def check_uses(file: Table, uses: dict[str, list[int]], one_hot: list[int]) -> None:
    """Raise where a column has two uses, none is an input, or one to code is none."""
    if not uses["input"]:
        sep = " (--sep says what separates them)" if file.width == 1 else ""
        raise ValueError(f"{file.path}: no column is left for the inputs{sep}: give one or more")
    use_of: dict[int, str] = {}
    for use, columns in uses.items():
        for j in columns:
            if j in use_of:
                before = use_of[j]
                twice = "named twice" if before == use else f"{before} as well as {use}"
                raise ValueError(
                    f"{file.path}: column {file.names[j]!r} is {twice}: give it one use"
                )
            use_of[j] = use
    for j in {*one_hot} - {*uses["input"]}:
        raise ValueError(
            f"{file.path}: column {file.names[j]!r} of --one-hot is no input: it is the "
            "target, has another use, or is not in --columns"
        )


def check_numbers(file: Table, **columns) -> None:
    """Raise where columns, by what they are used as, do not hold numbers."""
    for use, numbers in columns.items():
        for j in filter(file.kinds.__getitem__, numbers):
            options = OTHER_USES.format(name=shlex.quote(file.names[j])) if use == "column" else ""
            raise ValueError(
                f"{file.path}: {use} {file.names[j]!r} holds {file.held(j)}, and not numbers: code "
                f"it as numbers{options}"
            )


@dataclass(frozen=True)
class Files:
    """Files one after the other. For rows with a missing number, `missing="drop"` leaves them out
    and "median" leaves NaN in X. Files to `predict` need no target.
    """

    paths: tuple[str, ...]
    choice: ColumnChoice
    dialect: Dialect = USUAL
    missing: str | None = None
    predict: bool = False

    def __iter__(self) -> Iterator[Piece]:
        """All rows, with one-hot columns, groups, labels and what is kept as text."""
        for path in self.paths:
            file = open_table(path, self.dialect)
            columns = self.choice.of_inputs(file) if self.predict else self.choice.of(file)
            yield from self._pieces(file, columns)

    def _pieces(self, file: Table, columns: FileColumns) -> Iterator[Piece]:
        """The rows of one file."""
        labels, targets = (columns.targets, []) if columns.labels else ([], columns.targets)
        numbers = [columns.numbers, targets, columns.weights]
        texts = [*columns.one_hot, *columns.groups, *labels]
        checked = [*numbers, *([j] for j in (columns.one_hot if self.predict else texts))]
        several = len(targets) > 1 or targets and isinstance(self.choice.target, list | tuple)
        only = lambda part: part[:, 0] if part.shape[1] else None
        first = 1
        for values, words in file.batches(numbers, [*texts, *columns.keep]):
            used = self._usable(file, first, checked, [*values, *words])
            X, Y, v = (part[used] for part in values)
            numbered = np.arange(first, first + len(values[0]))[used]
            texts_used = [word[used] for word in words]
            yield Piece(X, Y if several else only(Y), only(v), file.path, texts_used, numbered)
            first += len(values[0])

    def _usable(self, file: Table, first: int, columns, parts) -> Any:
        """The usable rows; raises for infinity, and for a missing number unless `missing` allows
        it.
        """
        used = np.ones(len(parts[0]), bool)
        for i, (numbers, values) in enumerate(zip(columns, parts, strict=False)):
            values = values.reshape(len(used), len(numbers))
            text = values.dtype.kind == "U"
            missing = values == "" if text else np.isnan(values)
            bad = missing if text else ~np.isfinite(values)
            if self.missing == "drop":
                used &= ~missing.any(axis=1)
            if self.missing == "drop" or self.missing and i == 0:
                bad = bad & ~missing
            for row, j in np.argwhere(bad)[:1]:
                remedy = "missing: leave the row out, as --missing drop does"
                words = remedy if missing[row, j] else f"{values[row, j]}: correct it"
                raise ValueError(
                    f"{file.path}: row {first + row}, column {file.names[numbers[j]]!r}: the value "
                    f"is {words}"
                )
        return slice(None) if used.all() else used


def open_files(
    paths: tuple[str, ...],
    choice: ColumnChoice,
    dialect: Dialect = USUAL,
    missing: str | None = None,
) -> Files:
    """Files with the columns of the first."""
    return Files(paths, choice.settled(open_table(paths[0], dialect)), dialect, missing)


def paths_of(named) -> tuple[str, ...]:
    """Every file that paths, patterns and folders name, in order."""
    paths: list[str] = []
    for path in map(os.fspath, named):
        pattern = os.path.join(glob.escape(path), "**") if os.path.isdir(path) else path
        inside = sorted(glob.glob(pattern, recursive=True))
        files = [path] if os.path.isfile(path) else list(filter(ending_of, inside))
        if not files:
            of_folder = f"in {path} that ends in {', '.join(ENDINGS)}"
            which = of_folder if os.path.isdir(path) else path
            raise FileNotFoundError(f"there is no file {which}: check its name and folder")
        paths += files
    for path in paths:
        if not ending_of(path):
            raise ValueError(f"{path} must end in {', '.join(ENDINGS)}")
    return tuple(paths)
