"""What there is to fit: a table that is read whole, or rows that stream."""

import glob
import os
import zipfile
import zlib
from typing import Any, NamedTuple

import numpy as np

import jaxrls as rls
from jaxrls.cli.columns import standardisation
from jaxrls.cli.report import at_terminal, count, first_line
from jaxrls.io.sources import Files
from jaxrls.io.tables import read_table
from jaxrls.rows.deviations import standardise
from jaxrls.rows.sampled import SAMPLE, SampledRows
from jaxrls.support.checks import check_weights, in_words, memory_bytes

COPIES = 5  # of a table's numbers while it is read, standardised and fitted
GLANCE = 2**20  # bytes of text that show how many numbers a byte holds


class Data(NamedTuple):
    """Inputs, as an array or as rows that stream, the target with its classes, and what a model must know of the files."""

    X: Any
    Y: np.ndarray
    classes: np.ndarray | None
    groups: np.ndarray | None
    weights: np.ndarray | None
    means: np.ndarray
    scales: np.ndarray
    layout: dict[str, Any]
    source: str  # in words
    header: bool | None

    def sample(self) -> tuple[Any, np.ndarray]:
        """Rows in memory and their numbers: all, or those that the stream has drawn."""
        return (self.X.drawn, self.X.sample) if isinstance(self.X, SampledRows) else (slice(None), self.X)


def is_stream(args) -> bool:
    """Whether rows are streamed: several files, by name, pattern or folder, a kind of file that is no table, or because someone said so."""
    paths = args.data
    several = len(paths) > 1 or os.path.isdir(paths[0]) or glob.has_magic(paths[0]) and not os.path.exists(paths[0])
    return args.stream or several or paths[0].endswith((".npy", ".parquet"))


def in_line(args) -> str:
    """The files as they were named."""
    return " ".join(args.data)


def read_data(args) -> Data:
    """All that `fit` needs."""
    return read_stream(args) if is_stream(args) else read_whole(args)


def read_whole(args) -> Data:
    """One file as a table."""
    (path,) = args.data
    check_memory(path)
    columns = {"target": args.target, "groups": args.groups, "weights": args.weights}
    table = read_table(path, **columns, labels=args.classify, header=args.header, max_inflation=args.max_inflation)
    if table.weights is not None:
        check_column_of_weights(args, table.weights)
    d = table.X.shape[1]
    means, scales = standardisation(table.X, table.weights) if args.standardize else (np.zeros(d), np.ones(d))
    Y, classes = code(table.y, table.layout["target"])
    X = standardise(table.X, means, scales)
    return Data(X, Y, classes, table.groups, table.weights, means, scales, table.layout, path, table.header)


def read_stream(args) -> Data:
    """Files as rows that stream."""
    options = {"target": args.target, "weights": args.weights, "standardize": args.standardize, "checkpoint": args.checkpoint}
    reading = {"header": args.header, "max_inflation": args.max_inflation, "progress": at_terminal()}
    rows = rls.stream(args.data, sample=SAMPLE, **options, **reading)
    if rows.row_weights is not None:
        check_column_of_weights(args, rows.row_weights)
    files: Any = rows.source
    layout, header = layout_of(files, args.target)
    d = rows.shape[1]
    means, scales = (rows.means, rows.scales) if args.standardize else (np.zeros(d), np.ones(d))
    Y = rows.labels[:, 0] if rows.labels.ndim == 2 and rows.labels.shape[1] == 1 else rows.labels
    if Y.ndim != 1:
        raise ValueError(
            f"{in_line(args)}: {layout['target']} must have shape ({len(Y)},), one value per row of X, and has shape {Y.shape}"
        )
    source = f"{in_line(args)}, streamed from {count(len(files.paths), 'file')}"
    return Data(rows, Y, None, None, rows.row_weights, means, scales, layout, source, header)


def layout_of(files: Files, target) -> tuple[dict[str, Any], bool | None]:
    """What `read_table` would say of the first file: its layout, and whether its first line holds names."""
    found = files.first()
    if found is None:
        return {"inputs": None, "positions": None, "width": None, "target": target or "y"}, None
    names, (t,) = found.names, found.targets
    inputs = names and [names[j] for j in found.inputs]
    layout = {"inputs": inputs, "positions": found.inputs, "width": found.width, "target": names[t] if names else t}
    return layout, names is not None if ".csv" in files.paths[0] else None


def first_words(data: Data, classes: str) -> str:
    """The first line of the report: the files, how they are read, what is in them."""
    n, d = data.X.shape
    target = f"target {data.layout['target']}{classes}"
    return f"{data.source}: {count(n, 'row')}, {count(d, 'input')}, {target}{first_line(data.header)}"


def check_memory(path: str) -> None:
    """Raise where a table would not fit into memory."""
    limit, needed = memory_bytes(), COPIES * bytes_of_numbers(path)
    if limit is not None and needed > limit:
        raise ValueError(
            f"{path} takes about {in_words(needed)} as a table, and this device has {in_words(limit)}: read it in blocks with --stream"
        )


def bytes_of_numbers(path: str) -> float:
    """About what the numbers of a file take, by what its first lines hold; 0 where that cannot be told, as reading it will tell why."""
    try:
        if path.endswith(".npz"):
            with zipfile.ZipFile(path) as archive:
                return float(sum(info.file_size for info in archive.infolist()))
        with open(path, "rb") as file:
            start = file.read(GLANCE)
        text = zlib.decompressobj(wbits=31).decompress(start) if path.endswith(".gz") else start
    except Exception:  # of noise, which has as many kinds as readers
        return 0.0
    cells = sum(map(text.count, (b"\n", b",", b"\t", b";")))
    return 8.0 * cells * os.path.getsize(path) / max(len(start), 1)


def check_column_of_weights(args, weights) -> None:
    """Raise where the column of weights holds none."""
    try:
        check_weights(weights, len(weights))
    except ValueError as error:
        raise ValueError(f"{in_line(args)}: column {args.weights}: {error}") from None


def code(y, target) -> tuple[np.ndarray, np.ndarray | None]:
    """Numbers as they are, labels as ±1 codes with their classes."""
    if y.dtype.kind != "U":
        return y, None
    Y, classes = rls.encode(y)
    if len(classes) > max(2, len(y) // 2):
        raise ValueError(f"target {target} has {len(classes)} different labels in {len(y)} rows: name the right column with --target")
    return Y, classes
