"""What there is to fit: a table that is read whole, or rows that stream."""

import glob
import os
from typing import Any, NamedTuple

import numpy as np

import jaxrls as rls
from jaxrls.cli.columns import standardisation
from jaxrls.cli.report import at_terminal, count
from jaxrls.io.sources import Choice, Files, open_files, paths_of
from jaxrls.rows.deviations import standardise
from jaxrls.rows.streamed import SAMPLE, StreamedRows
from jaxrls.support.checks import check_weights, in_words, memory_bytes

COPIES = 5  # of a table's numbers while it is read, standardised and fitted


class Data(NamedTuple):
    """Inputs, as an array or as rows that stream, the target with its classes, and what a model
    must know of the files.
    """

    X: Any
    Y: np.ndarray
    classes: np.ndarray | None
    groups: np.ndarray | None
    weights: np.ndarray | None
    means: np.ndarray
    scales: np.ndarray
    layout: dict[str, Any]
    source: str  # in words

    def sample(self) -> tuple[Any, np.ndarray]:
        """Rows in memory and their numbers: all, or those that the stream has drawn."""
        return (
            (self.X.drawn, self.X.sample)
            if isinstance(self.X, StreamedRows)
            else (slice(None), self.X)
        )


def is_stream(args) -> bool:
    """Whether rows are streamed: those of several files, by name, pattern or folder, or because
    someone said so.
    """
    path = args.data[0]
    several = len(args.data) > 1 or os.path.isdir(path)
    return args.stream or several or glob.has_magic(path) and not os.path.exists(path)


def in_line(args) -> str:
    """The files as they were named."""
    return " ".join(args.data)


def read_data(args) -> Data:
    """All that `fit` needs."""
    choice = Choice(
        args.target,
        args.weights,
        args.columns,
        args.drop,
        args.one_hot,
        args.groups,
        False if is_stream(args) else args.classify or None,
    )
    files = open_files(paths_of(args.data), choice, args.header, args.missing)
    return read_stream(args, files) if is_stream(args) else read_whole(args, files)


def read_whole(args, files: Files) -> Data:
    """One file as a table."""
    pieces, found, held = [], [], 0.0
    for piece, words in files.parts():
        pieces.append(piece)
        found.append(words)
        held += piece.X.nbytes
        check_memory(in_line(args), held)
    if not sum(len(piece.X) for piece in pieces):
        raise ValueError(f"{in_line(args)} has no rows")
    X, Y, weights = (
        None if pieces[0][i] is None else np.concatenate([piece[i] for piece in pieces])
        for i in range(3)
    )
    texts = [np.concatenate(words) for words in zip(*found, strict=True)]
    check_column_of_weights(args, weights)
    layout = layout_of(files)
    layout["categories"] = [np.unique(words).tolist() for words in texts[: len(args.one_hot)]]
    if args.missing == "median":
        layout["medians"] = medians_of(in_line(args), X)
    X = inputs_of(in_line(args), X, texts, layout)
    Y, classes = code(texts[-1] if Y is None else Y, layout["target"])
    groups = None if args.groups is None else texts[len(args.one_hot)]
    d = X.shape[1]
    means, scales = standardisation(X, weights) if args.standardize else (np.zeros(d), np.ones(d))
    X = standardise(X, means, scales)
    return Data(X, Y, classes, groups, weights, means, scales, layout, in_line(args))


def read_stream(args, files: Files) -> Data:
    """Files as rows that stream."""
    rows = rls.stream(
        files,
        standardize=args.standardize,
        sample=SAMPLE,
        checkpoint=args.checkpoint,
        progress=at_terminal(),
    )
    check_column_of_weights(args, rows.row_weights)
    Y, d = rows.labels, rows.shape[1]
    means, scales = (rows.means, rows.scales) if args.standardize else (np.zeros(d), np.ones(d))
    source = f"{in_line(args)}, streamed from {count(len(files.paths), 'file')}"
    return Data(rows, Y, None, None, rows.row_weights, means, scales, layout_of(files), source)


def check_column_of_weights(args, weights) -> None:
    """Raise where the column of weights holds none."""
    try:
        if weights is not None:
            check_weights(weights, len(weights))
    except ValueError as error:
        raise ValueError(f"{in_line(args)}: column {args.weights}: {error}") from None


def layout_of(files: Files) -> dict[str, Any]:
    """What a model must know of the columns, in plain data."""
    kept = {name: getattr(files.choice, name) for name in ("inputs", "one_hot", "target", "width")}
    return kept | {"categories": [], "medians": None}


def medians_of(source: str, X) -> list[float]:
    """Those of the numbers that are there."""
    absent = np.isnan(X).all(axis=0)
    if absent.any():
        raise ValueError(
            f"{source}: input {absent.argmax()} has no numbers, and so no median: leave it out with --drop"
        )
    return np.nanmedian(X, axis=0).tolist()


def inputs_of(source: str, X, texts, layout: dict[str, Any]) -> np.ndarray:
    """Numbers with medians where they are missing, and an indicator of every category of columns of
    text.
    """
    X = X if X.dtype == np.float32 else X.astype(np.float64)
    if layout["medians"]:
        X = np.where(np.isnan(X), np.array(layout["medians"], X.dtype), X)
    parts = [X]
    for known, words in zip(layout["categories"], texts, strict=False):
        new = sorted({*words.tolist()} - {*known})
        if new:
            raise ValueError(
                f"{source} has a category {new[0]!r} that the model has not seen: its categories are {', '.join(known[:20])}"
            )
        parts.append((words[:, None] == np.array(known)).astype(X.dtype))
    return np.hstack(parts)


def check_memory(source: str, held: float) -> None:
    """Raise where a table does not fit into memory."""
    limit, needed = memory_bytes(), COPIES * held
    if limit is not None and needed > limit:
        raise ValueError(
            f"{source} takes more than {in_words(needed)} as a table, and this device has {in_words(limit)}: read it in blocks with --stream"
        )


def code(y, target) -> tuple[np.ndarray, np.ndarray | None]:
    """Numbers as they are, labels as ±1 codes with their classes."""
    if y.dtype.kind != "U":
        return y, None
    Y, classes = rls.encode(y)
    if len(classes) > max(2, len(y) // 2):
        raise ValueError(
            f"target {target} has {len(classes)} different labels in {len(y)} rows: name the right column with --target"
        )
    return Y, classes
