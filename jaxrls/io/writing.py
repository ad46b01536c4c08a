"""Predictions written to files in batches: CSV, Parquet and Arrow by pyarrow, `.npy` by NumPy."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np

from jaxrls.core.support import as_floats, by_names
from jaxrls.front import Model
from jaxrls.rows.files import replacing
from jaxrls.rows.host import HostRows
from jaxrls.rows.tables import arrow_for
from jaxrls.uncertainty.classes import class_probabilities, decode

Writer = Callable[[Mapping[str, np.ndarray]], None]  # of the next rows of some columns
ENDINGS = ("", ".csv", ".txt", ".parquet", ".arrow", ".feather", ".npy")


@contextmanager
def writing(path: str | os.PathLike) -> Iterator[Writer]:
    """A function that appends rows of some columns to a file, which is complete when the `with`
    block ends without an error.

    `.npy` is a vector, or a matrix of several columns; `.parquet`, `.arrow` and `.feather` are
    tables; `.csv`, `.txt` and no ending are CSV.

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
def rows_to(file, ending=".csv") -> Iterator[Writer]:
    """CSV under a header, Parquet or Arrow, a row group or a record batch for every block."""
    arrow = arrow_for(f"writing {ending}")
    writer = None
    makers = {".parquet": arrow.parquet.ParquetWriter}
    makers |= dict.fromkeys((".arrow", ".feather"), arrow.ipc.new_file)

    def write(columns):
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
def numbers_to(file) -> Iterator[Writer]:
    """An array of NumPy's."""
    blocks: list[np.ndarray] = []

    def write(columns):
        blocks.append(np.column_stack(list(columns.values())))
        if blocks[-1].dtype.kind != "f":
            what = "labels and kept columns are text"
            raise ValueError(f"{what}, and a .npy file holds numbers: write a .csv file")

    yield write
    values = np.concatenate(blocks or [np.empty((0, 1))]).astype(np.float64)
    np.save(file, values[:, 0] if values.shape[1] == 1 else values)


def predicted(model, X, level=None, classes=None, sigmoid=None) -> dict[str, np.ndarray]:
    """What a model predicts for a block of rows, by the names of columns to write; probabilities of
    classes where there is a `sigmoid` that makes them of scores.
    """
    n = len(X)
    # Rows are repeated up to a power of two, as every number of rows is a program of its own; zeros
    # where there are none.
    X = np.resize(X, (2 ** (n - 1).bit_length(), X.shape[1]))
    scores = np.asarray(model.predict(X))
    columns = {"prediction": decode(scores, classes)[:n]} if classes else {}
    if sigmoid is not None:
        likely = class_probabilities(np.asarray(sigmoid(scores)))
        columns |= name_columns(likely[:n], "probability", classes)
    columns |= name_columns(scores[:n], "score" if classes else "prediction", classes)
    if level is not None:
        for name, end in zip(("lower", "upper"), model.intervals(X, level), strict=True):
            columns |= name_columns(end[:n], name)
    return columns


def name_columns(values, name, labels=None) -> dict[str, np.ndarray]:
    """The columns of a matrix by the names they are written under."""
    values = np.asarray(values)
    if values.ndim == 1:
        return {name: values}
    return {
        f"{name}_{label}": column
        for label, column in zip(labels or range(values.shape[1]), values.T, strict=True)
    }


def predict_to_file(model, rows, path, *, level=None, classes=None) -> int:
    """Predict rows and write the predictions to a file, a block at a time, so that neither need fit
    into memory.

    Args:
        model: what `fit` or `tune` returns, or its model.
        rows: what `stream` returns (with `target=False` for files without labels), or X (m, d).
        path: the file, written completely or not at all: CSV, `.parquet`, `.arrow` or `.feather`,
            all by pyarrow, or `.npy`, whose numbers are held in memory.
        level: for columns `lower` and `upper` too, the ends of `Fit.intervals`.
        classes: the classes that `encode` returned. The file then has the predicted label first,
            and the scores after it.

    Returns:
        The number of rows. Columns are `prediction`, or `prediction_0` and so on for each target.

    Raises:
        ValueError: as `predict` and `intervals`.

    **Cost** one reading of the rows, and that of `predict`. **Source**: none.

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
    rows = by_names("rows", rows, inner.names if isinstance(inner, Model) else ())
    count = 0
    blocks = rows.blocks() if isinstance(rows, HostRows) else [as_floats("rows", rows)]
    with writing(path) as write:
        for X in blocks:
            write(predicted(model, X, level, classes))
            count += len(X)
    return count
