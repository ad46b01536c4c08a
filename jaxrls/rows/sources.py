"""Read rows from one file or many, or from the caller's blocks, repeatedly and in the same order.

`stream` is the public function. `ColumnChoice` says which columns of a file are inputs, targets and
weights. `Files` iterates over the rows of files with this choice.
"""

import glob
import os
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxrls.rows.dates import yearly
from jaxrls.rows.joint import JointRows
from jaxrls.rows.streamed import SAMPLE, Piece, StreamedRows
from jaxrls.rows.tables import (
    DATES,
    ENDINGS,
    USUAL,
    Dialect,
    Table,
    ending_of,
    open_table,
    quoted,
)


def stream(
    source: Any,
    *,
    target: Any = None,
    weights: Any = None,
    columns: Any = None,
    sample: int = SAMPLE,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    block_size: int | None = None,
    header: bool = True,
    progress: bool = False,
    distributed: bool = False,
) -> StreamedRows:
    """Read rows that do not fit into memory in blocks: from files, or from an iterable of your own.

    `source` is read once immediately, to count rows and check every number. This reading keeps
    labels, weights, and a random `sample` of rows, from which landmarks are chosen. Every later sum
    over rows is one more reading. The exact leave-one-out error of any number of λ and targets
    takes two readings. The held-out residuals that a fit keeps at the chosen λ take one more.

    Args:
        source: a path, a pattern such as `"rows/*.parquet"`, a folder, a list of these, or any
            object whose `__iter__` yields blocks `(X, Y)`, `(X, Y, weights)` or X. Files are `.csv`
            and `.tsv`, also with `.gz` after it, `.parquet`, `.arrow` and `.feather` (extra
            `tables`), `.npy` with a matrix, and `.npz` with arrays `X` and `y`. Further files must
            have the columns of the first, by name if it has names.
        target: one column or a list, by name or number, or an array of `.npz` files; by default the
            last column, or `y`. False for files without labels.
        weights: the column of sample weights.
        columns: the inputs; by default all other columns.
        sample: how many rows are kept in the sample.
        seed: the seed of the random sample.
        checkpoint: a file that keeps every sum after each block. If the process is killed, the same
            calls continue from there, with bitwise the same results. Only the first reading, which
            counts and checks rows, is repeated.
        block_size: how many rows are processed at a time.
        header: whether the first line of a CSV file holds names.
        progress: whether to show a bar for each reading (needs tqdm).
        distributed: for processes of `jax.distributed`. Each process reads its own part of the
            rows, in order, and sums are taken over all processes.

    Returns:
        `Rows`, to pass as X. Its attributes are `labels` (n,) or (n, t) and `row_weights` (n,),
        None if the source has none, and `column_names` of the inputs, () if the source has no
        names. By these names a model finds the columns of data frames. If a call is given labels
        or weights besides, it takes those in place of the stream's.

    Raises:
        ValueError: for a value that is missing or not a number, naming file, row and column; and
            for files that do not match. Later readings raise if the number of rows or a row of the
            sample is another than in the first: all must give the same rows in the same order.

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
    return kind(
        blocks,
        sample=sample,
        seed=seed,
        checkpoint=checkpoint,
        block_size=block_size,
        progress=progress,
    )


# What a message proposes for inputs that are not numbers, by what they hold.
REMEDIES = {
    "text": "code {it} as numbers, leave it out (--drop {names}), or make indicators of it "
    "(--one-hot {names})",
    DATES: "take {it} as a number of days (--days {names}), as the part of the year (--yearly "
    "{names}), or not at all (--drop {names})",
}
# What it proposes to callers of `stream`; the command line leaves this out.
IN_PYTHON = " (in Python: name other columns=, or give blocks of rows that you made usable)"
FILL_IN = "leave such rows out (--missing drop), or fill in medians (--missing median)"
LISTED = 20  # the most columns that a message lists


class FileColumns(NamedTuple):
    """The numbers of the columns of one file, by what they are used as."""

    targets: list[int]
    weights: list[int]
    inputs: list[int]  # all of them, in the order of the choice, else of the file
    numbers: list[int]  # inputs that are read as numbers, dates as days
    yearly: list[int]  # dates whose part of the year is an input
    one_hot: list[int]  # inputs that become indicators, read as text
    groups: list[int]  # read as text
    keep: list[int]  # written to the file of predictions, read as text
    labels: bool  # whether targets are read as text


@dataclass(frozen=True)
class ColumnChoice:
    """Which columns are inputs, targets and weights, by name or number.

    It is plain data, which a model file keeps.
    """

    target: Any = None
    weights: Any = None
    inputs: Any = None
    drop: Any = ()
    one_hot: Any = ()  # inputs that are read as text
    groups: Any = None
    labels: bool | None = False  # whether targets are text; None: if the file holds text there
    width: int | None = None  # the number of columns of every file, if columns have no names
    keep: Any = ()  # columns that are written to the file of predictions, as text
    days: Any = ()  # dates that are inputs as a number of days
    yearly: Any = ()  # dates that are inputs as a part of the year
    settled: bool = False  # whether text names a column, and is not the number of one

    def columns_of(self, file: Table, missing: str | None = "drop") -> FileColumns:
        """Return the column numbers of a file, by what they are used as.

        Raise if a column has two uses, or if inputs do not hold numbers. In the latter case the
        message also names inputs in which values are missing, unless `missing` says what to do with
        them.
        """
        find = partial(file.find, only_names=self.settled)
        if self.width not in (None, file.width):
            raise ValueError(
                f"{file.path} has {file.width} columns, and the file before it has {self.width}: "
                "give files with the same columns"
            )
        weights = find(self.weights, "weights")
        groups = find(self.groups, "groups")
        dropped = find(self.drop, "columns to drop")
        check_single(file, weights=weights, groups=groups)
        index = unnamed_index(file, warns=self.inputs is None)
        special = [*weights, *groups, *dropped, *index]
        free = [j for j in range(file.width) if j not in special]
        last = "y" if file.path.endswith(".npz") else [j for j in free if j not in file.index][-1:]
        targets = find(last if self.target is None else self.target, "target")
        inputs = find(self.inputs, "inputs") or [j for j in free if j not in targets]
        one_hot = find(self.one_hot, "inputs")
        others = {*targets, *weights, *groups}  # no inputs anyway, so that they may be dropped too
        dropped = [j for j in {*dropped} if j not in others]
        uses = {"input": inputs, "target": targets, "weights": weights, "groups": groups}
        check_uses(file, uses | {"column to drop": dropped})
        days = find(self.days, "inputs")
        yearly = find(self.yearly, "inputs")
        check_coded(file, inputs, {"--one-hot": one_hot, "--days": days, "--yearly": yearly})
        labels = any(file.kinds[j] for j in targets) if self.labels is None else self.labels
        coded = {*one_hot, *yearly} - {*days}
        numbers = [j for j in inputs if j not in coded]
        check_inputs_read(file, inputs, {*one_hot, *days, *yearly}, missing)
        check_numbers(file, weight=weights, target=[] if labels else targets)
        keep = file.find(self.keep, "columns to keep")
        return FileColumns(targets, weights, inputs, numbers, yearly, one_hot, groups, keep, labels)

    def settle(self, file: Table, missing: str | None) -> "ColumnChoice":
        """Return the same choice for further files, with the columns of this file in place of
        defaults.

        Columns are chosen by name if this file has names, else by number.
        """
        columns = self.columns_of(file, missing)
        named = lambda j: file.named or j >= file.width  # `.npz`: its other arrays
        name = lambda numbers: [*dict.fromkeys(file.names[j] if named(j) else j for j in numbers)]
        several = isinstance(self.target, list | tuple)
        target = name(columns.targets)
        return replace(
            self,
            target=(target if several else target[0]) if target else False,
            weights=name(columns.weights),
            groups=name(columns.groups) or None,
            inputs=name(columns.inputs),
            drop=(),
            one_hot=name(columns.one_hot),
            days=name(file.find(self.days, "inputs")),
            yearly=name(columns.yearly),
            labels=columns.labels,
            width=None if file.named else file.width,
            settled=True,
        )

    def columns_to_predict(self, file: Table) -> FileColumns:
        """Return the column numbers of a file to predict.

        These are the same inputs, and the target, as text, if the file has it. The inputs are found
        in one of three ways:

        * by name, if both files have names;
        * by number, if the file has the same width as the fitted files;
        * in any other file all columns must be the inputs, in the same order.
        """
        inputs = self.inputs
        coded = {"one_hot": self.one_hot, "days": self.days, "yearly": self.yearly}
        same = file.width == self.width
        if inputs and not same and not (file.named and self.width is None):
            if file.width != len(inputs):
                raise ValueError(
                    f"{file.path} has {file.width} columns, and the model was fitted on "
                    f"{len(inputs)}: give the same inputs"
                )
            place = {name: j for j, name in enumerate(inputs)}
            coded = {use: [place[name] for name in names] for use, names in coded.items()}
            inputs = list(range(file.width))
        target = "y" if self.target is None else self.target
        known = same or self.width is None and target in file.names and target not in inputs
        return ColumnChoice(
            target=target if known else False,
            inputs=inputs,
            labels=True,
            keep=self.keep,
            settled=True,
            **coded,
        ).columns_of(file)

    def target_names(self) -> tuple:
        """Return the names of the targets, for a choice that `settle` returned."""
        if self.target is False:
            return ()
        return tuple(self.target) if isinstance(self.target, list) else (self.target,)

    def column_names(self) -> tuple:
        """Return the names of the columns of X, for a choice that `settle` returned.

        Cosine and sine of dates come last. Columns that become indicators are not included.
        """
        coded = {*self.one_hot, *self.yearly} - {*self.days}
        parts = (f"{name}_{part}" for name in self.yearly for part in ("cos", "sin"))
        return (*(name for name in self.inputs if name not in coded), *parts)


def unnamed_index(file: Table, warns: bool) -> list[int]:
    """Return the columns that pandas writes for an index without a name.

    They are the first column of a CSV file, without a name, and the columns `__index_level_0__` and
    so on at the end of other files. If `warns`, it warns that they are left out.
    """
    if file.width < 2:
        return []
    first = [] if file.names[0] else [0]
    levels = [j for j, name in enumerate(file.names) if re.fullmatch(r"__index_level_\d+__", name)]
    if warns and (first or levels):
        which = (
            "the first column has no name" if first else "the index of the data frame has no name"
        )
        words = f"{which}, and is left out: give it a name to use it"
        warnings.warn(f"{file.path}: {words}", stacklevel=2)
    return first + levels


def check_uses(file: Table, uses: dict[str, list[int]]) -> None:
    """Raise if a column has two uses, or if no column is an input."""
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


def check_single(file: Table, **columns: list[int]) -> None:
    """Raise if several columns have a use that takes one. The keyword of each list is the use."""
    for use, numbers in columns.items():
        if len(numbers) > 1:
            names = quoted([file.names[j] for j in numbers])
            raise ValueError(f"{file.path}: {use} must be one column, and are {names}: name one")


def check_coded(file: Table, inputs: list[int], coded: dict[str, list[int]]) -> None:
    """Raise if a column of an option is not an input, or cannot be coded as the option says."""
    for option, columns in coded.items():
        for j in columns:
            which = f"{file.path}: column {file.names[j]!r} of {option}"
            if j not in inputs:
                raise ValueError(
                    f"{which} is no input: it is the target, has another use, or is not in "
                    "--columns"
                )
            if option == "--one-hot":
                continue
            if j in coded["--one-hot"]:
                raise ValueError(f"{which} is in --one-hot too: leave it out of one of them")
            if file.kinds[j] != DATES and not is_empty(file, j):
                held = file.held(j) if file.kinds[j] else "numbers"
                raise ValueError(f"{which} holds {held}, and not dates: write dates as 2020-12-31")


def is_empty(file: Table, j: int) -> bool:
    """Whether a column of numbers has no number among the first rows."""
    return not file.kinds[j] and all(np.isnan(next(file.read([j], []), {j: ()})[j]))


def check_numbers(file: Table, **columns: list[int]) -> None:
    """Raise if columns do not hold numbers. The keyword of each list says what its columns are used
    for.
    """
    for use, numbers in columns.items():
        for j in filter(file.kinds.__getitem__, numbers):
            raise ValueError(
                f"{file.path}: {use} {file.names[j]!r} holds {file.held(j)}, and not numbers: code "
                "it as numbers"
            )


def check_inputs_read(file: Table, inputs: list[int], coded: set[int], missing: str | None) -> None:
    """Raise if inputs that are not in `coded` do not hold numbers.

    The message says all that the caller has to choose: what to do with each of these inputs, and,
    unless `missing` says so, with inputs in which values are missing.
    """
    bad = [j for j in inputs if file.kinds[j] and j not in coded]
    if not bad:
        return
    listed = ", ".join(f"{file.names[j]!r} holds {file.held(j)}" for j in bad[:LISTED])
    single = len(bad) == 1
    what = (
        f"column {listed}, and not numbers"
        if single
        else f"{len(bad)} inputs are no numbers, {listed}"
    )
    remedies = []
    for kind, remedy in REMEDIES.items():
        of_kind = [file.names[j] for j in bad if (file.kinds[j] == DATES) == (kind == DATES)]
        if of_kind:
            names = ",".join(map(shlex.quote, of_kind))
            remedies.append(remedy.format(it="it" if single else kind, names=names))
    gaps = "" if missing else gaps_in_words(file, inputs)
    raise ValueError(f"{file.path}: {what}: {'; '.join(remedies)}{gaps}{IN_PYTHON}")


def gaps_in_words(file: Table, inputs: list[int]) -> str:
    """Return words for a message on the inputs in which values are missing, and on what to do.

    Only the first rows are read. The text is empty if no value is missing there.
    """
    texts = [j for j in inputs if file.kinds[j] == "text"]
    readable = [j for j in inputs if file.kinds[j] in (None, DATES, "text")]
    first: dict[int, np.ndarray] = {}
    with suppress(ValueError):  # the caller raises another message
        first = next(file.read(readable, texts), {}) if readable else {}
    lacking = {j: (values == "" if j in texts else np.isnan(values)) for j, values in first.items()}
    named = [file.names[j] for j in inputs if j in lacking and np.any(lacking[j])]
    return f"; values are missing in {quoted(named)}: {FILL_IN}" if named else ""


@dataclass(frozen=True)
class Files:
    """The rows of several files, one file after the other.

    `missing` says what happens to rows in which a number is missing: None raises, "drop" leaves
    them out, and "median" keeps NaN in X and empty text in categories. With `predict` the files
    need no target, and `unknown="zero"` accepts missing categories in them. `left_out` has, for the
    number of each file, how many of its rows the last reading left out.
    """

    paths: tuple[str, ...]
    choice: ColumnChoice
    dialect: Dialect = USUAL
    missing: str | None = None
    predict: bool = False
    unknown: str | None = None
    left_out: dict[int, int] = field(default_factory=dict, compare=False)

    @property
    def column_names(self) -> tuple:
        """The names of the columns of X, () for files without names."""
        return self.choice.column_names() if self.choice.width is None else ()

    @property
    def target_names(self) -> tuple:
        """The names of the targets, () for files without names."""
        return self.choice.target_names() if self.choice.width is None else ()

    def __iter__(self) -> Iterator[Piece]:
        """Yield all rows in pieces.

        The `texts` of a piece are one-hot columns, groups, text labels and kept columns.
        """
        for i, path in enumerate(self.paths):
            self.left_out[i] = 0
            file = open_table(path, self.dialect)
            columns = (
                self.choice.columns_to_predict(file)
                if self.predict
                else self.choice.columns_of(file)
            )
            for piece, left_out in self._pieces(file, columns):
                self.left_out[i] += left_out
                yield piece

    def _pieces(self, file: Table, columns: FileColumns) -> Iterator[tuple[Piece, int]]:
        """Yield the rows of one file in pieces, each with the number of rows that it leaves out."""
        labels, targets = (columns.targets, []) if columns.labels else ([], columns.targets)
        numbers = [columns.numbers, columns.yearly, targets, columns.weights]
        texts = [*columns.one_hot, *columns.groups, *labels]
        checked = [*numbers, *([j] for j in (columns.one_hot if self.predict else texts))]
        several = len(targets) > 1 or targets and isinstance(self.choice.target, list | tuple)
        only = lambda part: part[:, 0] if part.shape[1] else None
        first = 1
        for values, words in file.batches(numbers, [*texts, *columns.keep]):
            used = self._usable(file, columns, first, checked, [*values, *words])
            X, dates, Y, v = (part[used] for part in values)
            X = np.hstack([X, yearly(dates)]) if columns.yearly else X
            numbered = np.arange(first, first + len(values[0]))[used]
            texts_used = [word[used] for word in words]
            piece = Piece(X, Y if several else only(Y), only(v), file.path, texts_used, numbered)
            yield piece, len(values[0]) - len(X)
            first += len(values[0])

    def _usable(
        self, file: Table, columns: FileColumns, first: int, checked: list[list[int]], parts: list
    ) -> Any:
        """Return which rows are usable, as a slice of all or a mask.

        Raise for infinity. Raise for a missing value unless `missing` or `unknown` allows it in
        that column.
        """
        used = np.ones(len(parts[0]), bool)
        gaps: dict[int, int] = {}  # the first row without a value, by column
        for numbers, part in zip(checked, parts, strict=False):
            values = part.reshape(len(used), len(numbers))
            text = values.dtype.kind == "U"
            missing = values == "" if text else np.isnan(values)
            if self.missing == "drop":
                used &= ~missing.any(axis=1)
            bad = np.zeros_like(missing) if text else ~np.isfinite(values) & ~missing
            for row, k in np.argwhere(bad)[:1]:
                raise ValueError(
                    f"{file.path}: row {first + row}, column {file.names[numbers[k]]!r}: the value "
                    f"is {values[row, k]}: correct it"
                )
            for k in np.flatnonzero(missing.any(axis=0)):
                gaps.setdefault(numbers[k], first + int(missing[:, k].argmax()))
        accepted = {*gaps} if self.missing == "drop" else self._fillable(columns)
        if lacking := [j for j in gaps if j not in accepted]:
            names = [file.names[j] for j in lacking]
            others = f", and others in {quoted(names[1:])}" if names[1:] else ""
            raise ValueError(
                f"{file.path}: row {gaps[lacking[0]]}, column {names[0]!r}: the value is missing"
                f"{others}: {self._remedy(columns, lacking[0])}{IN_PYTHON}"
            )
        return slice(None) if used.all() else used

    def _fillable(self, columns: FileColumns) -> set[int]:
        """Return the inputs in which values may be missing."""
        fillable = {*columns.one_hot} if self.unknown == "zero" else set()
        if self.missing == "median":
            fillable |= {*columns.numbers, *columns.yearly, *columns.one_hot}
        return fillable

    def _remedy(self, columns: FileColumns, j: int) -> str:
        """Return words for a message on what to do with a value that is missing in a column."""
        remedy = "leave the row out, as --missing drop does"
        if self.predict:
            zero = ", or take it for an unknown category, as --unknown zero does"
            return f"{remedy}{zero if j in columns.one_hot else ''}"
        if j in columns.one_hot:
            return f"{remedy}, or make it a category of its own, as --missing median does"
        of_input = j in columns.numbers or j in columns.yearly
        return f"{remedy}{', or fill in the median, as --missing median does' if of_input else ''}"


def open_files(
    paths: tuple[str, ...],
    choice: ColumnChoice,
    dialect: Dialect = USUAL,
    missing: str | None = None,
) -> Files:
    """Return the rows of these files, with the choice of columns settled by the first file."""
    settled = choice.settle(open_table(paths[0], dialect), missing)
    return Files(paths, settled, dialect, missing)


def paths_of(named: Iterable) -> tuple[str, ...]:
    """Return every file that paths, patterns and folders name, in order."""
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
    found: set[str] = set()
    for path in paths:
        if not ending_of(path):
            raise ValueError(f"{path} must end in {', '.join(ENDINGS)}")
        if (file := os.path.realpath(path)) in found:
            raise ValueError(f"{path} is named twice, and its rows would count twice: name it once")
        found.add(file)
    return tuple(paths)
