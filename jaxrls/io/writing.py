"""Write predictions to files, block by block: `predict_to_file` and the writers that it uses.

CSV, Parquet and Arrow files are written by pyarrow, `.npy` files by NumPy.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxrls.core.fit import Numbers
from jaxrls.core.support import as_floats, by_names
from jaxrls.front import Model
from jaxrls.rows.files import replacing
from jaxrls.rows.host import HostRows
from jaxrls.rows.tables import arrow_for
from jaxrls.uncertainty.classes import class_probabilities, decode

Writer = Callable[[Mapping[str, np.ndarray]], None]  # appends rows, given as columns by name
ENDINGS = ("", ".csv", ".txt", ".parquet", ".arrow", ".feather", ".npy")


@contextmanager
def writing(path: str | os.PathLike) -> Iterator[Writer]:
    """Open a file, and give a `with` block the function that appends rows to it.

    The file appears under its name when the block ends without an error. The ending says what is
    written:

    * `.npy`: a vector, or a matrix if there are several columns;
    * `.parquet`, `.arrow`, `.feather`: a table;
    * `.csv`, `.txt` or no ending: CSV.

    Raises:
        ValueError: for another ending.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in ENDINGS:
        known = ", ".join(filter(None, ENDINGS))
        raise ValueError(f"{os.fspath(path)} must end in one of {known}, and ends in {ending}")
    writer = numbers_to if ending == ".npy" else partial(rows_to, ending=ending)
    with replacing(path) as temporary, open(temporary, "wb") as file, writer(file) as write:
        yield write


@contextmanager
def rows_to(file: Any, ending: str = ".csv") -> Iterator[Writer]:
    """Give a `with` block the function that appends rows to CSV, Parquet or Arrow.

    CSV begins with a header. Each block of rows is a row group of Parquet, or a record batch of
    Arrow.
    """
    arrow = arrow_for(f"writing {ending}")
    writer = None
    makers = {".parquet": arrow.parquet.ParquetWriter}
    makers |= dict.fromkeys((".arrow", ".feather"), arrow.ipc.new_file)

    def write(columns: Mapping[str, np.ndarray]) -> None:
        nonlocal writer
        block = arrow.table(dict(columns))
        writer = writer or makers.get(ending, arrow.csv.CSVWriter)(file, block.schema)
        writer.write_table(block)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def numbers_to(file: Any) -> Iterator[Writer]:
    """Give a `with` block the function that appends rows to a NumPy array.

    The array is written when the block ends. Raise for columns of text.
    """
    blocks: list[np.ndarray] = []

    def write(columns: Mapping[str, np.ndarray]) -> None:
        blocks.append(np.column_stack(list(columns.values())))
        if blocks[-1].dtype.kind != "f":
            what = "labels and kept columns are text"
            raise ValueError(f"{what}, and a .npy file holds numbers: write a .csv file")

    yield write
    values = np.concatenate(blocks or [np.empty((0, 1))]).astype(np.float64)
    np.save(file, values[:, 0] if values.shape[1] == 1 else values)


def predicted(
    model: Any,
    X: Float[Numbers, "m d"],
    level: float | None = None,
    classes: Any = None,
    sigmoid: Callable | None = None,
    weights: Float[Numbers, " m"] | None = None,
) -> dict[str, np.ndarray]:
    """Return the predictions for a block of rows as columns, by the names to write them under.

    Args:
        model: a fit or a model.
        X: rows (m, d).
        level: for columns `lower` and `upper` too, the ends of intervals of this level.
        classes: the classes of the labels, for a column of predicted labels too. Predictions are
            then called scores.
        sigmoid: a function from scores to probabilities, for columns of probabilities too.
        weights: the weights of the new labels, for the intervals.
    """
    has_classes = classes is not None
    n = len(X)
    # JAX compiles a program for every number of rows. So rows are repeated up to a power of two.
    # If there are none, they are zeros of weight 1.
    padded = 2 ** (n - 1).bit_length()
    X = np.resize(X, (padded, X.shape[1]))
    weights = None if weights is None else np.resize(weights if n else 1.0, padded)
    scores = np.asarray(model.predict(X))
    columns = {"prediction": decode(scores, classes)[:n]} if has_classes else {}
    if sigmoid is not None:
        likely = class_probabilities(np.asarray(sigmoid(scores)))
        columns |= name_columns(likely[:n], "probability", classes)
    columns |= name_columns(scores[:n], "score" if has_classes else "prediction", classes)
    if level is not None:
        ends = model.intervals(X, level, weights=weights)
        for name, end in zip(("lower", "upper"), ends, strict=True):
            columns |= name_columns(end[:n], name)
    return columns


def name_columns(values: Any, name: str, labels: Any = None) -> dict[str, np.ndarray]:
    """Return the columns of a vector or a matrix by the names to write them under.

    A vector is the column `name`. Column j of a matrix is `name_label` with the label of j, which
    is its number if `labels` is None.
    """
    values = np.asarray(values)
    if values.ndim == 1:
        return {name: values}
    labels = range(values.shape[1]) if labels is None else labels
    return {f"{name}_{label}": column for label, column in zip(labels, values.T, strict=True)}


def predict_to_file(
    model: Any,
    rows: Any,
    path: str | os.PathLike,
    *,
    level: float | None = None,
    classes: Any = None,
) -> int:
    """Predict rows and write the predictions to a file, one block of rows at a time.

    So neither the rows nor the predictions need fit into memory. The columns of the file are
    `prediction`, or `prediction_0` and so on for each target.

    Args:
        model: what `fit` or `tune` returns, or its model.
        rows: what `stream` returns (with `target=False` for files without labels), or X (m, d).
        path: the file, which is written completely or not at all. CSV, `.parquet`, `.arrow` and
            `.feather` are written by pyarrow. `.npy` needs all predictions in memory.
        level: for columns `lower` and `upper` too, the ends of `Fit.intervals`, with the weights of
            a source of rows that has some.
        classes: the classes that `encode` returned. The file then has the predicted label first,
            and the scores after it.

    Returns:
        The number of rows.

    Raises:
        ValueError: as `predict` and `intervals` do. With `level` so does a source of rows of which
            some have weight 0.

    **Cost** reading the rows once, and `predict`. **Source**: none.

    >>> import numpy as np, jaxrls as rls, os, tempfile
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> fit, path = rls.fit(rls.Linear(), X, X[:, 0]), os.path.join(tempfile.mkdtemp(), "new.npy")
    >>> rls.predict_to_file(fit, rls.rows.stream([X[:10], X[10:]]), path), np.load(path).shape
    (20, (20,))
    """
    inner = getattr(model, "model", model)
    if getattr(inner, "effects", None) is not None:
        raise ValueError(
            "model must not need fixed_effects=, which a file of rows does not have: write what "
            "predict(X, fixed_effects=…) gives"
        )
    # A fit of several kernels has names of kernels, and calls those of columns by another name.
    names = inner.names if isinstance(inner, Model) else getattr(inner, "columns", ())
    rows = by_names("rows", rows, names)
    count = 0
    with writing(path) as write:
        for X, weights in blocks_of(rows):
            write(predicted(model, X, level, classes, weights=weights))
            count += len(X)
    return count


def blocks_of(rows: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the rows in blocks, each with the weights of its rows, None without weights."""
    if not isinstance(rows, HostRows):
        yield as_floats("rows", rows), None
        return
    stop = rows.first
    for X in rows.blocks():
        own = slice(stop, stop := stop + len(X))
        yield X, None if rows.row_weights is None else rows.row_weights[own]
