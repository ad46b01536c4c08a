"""The command `predict`, which predicts the rows of a table with a saved model."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import jaxrls as rls
from jaxrls.cli.fitting import KNOWN, dialect_of, inputs_of
from jaxrls.cli.report import at_terminal, count, left_out_in_words
from jaxrls.cli.words import shown
from jaxrls.core.support import progress_bar
from jaxrls.front import Fit, Model
from jaxrls.io.writing import Writer, predicted, rows_to, writing
from jaxrls.rows.files import check_replaceable
from jaxrls.rows.sources import ColumnChoice, Files, paths_of
from jaxrls.rows.tables import is_number


def run_predict(args: Namespace) -> None:
    """Carry out the command `predict`: load, read, predict, write.

    Also print the error of the predictions, if the files have the target.
    """
    if args.out == "-":
        args.out = None
    if args.out:
        check_replaceable(args.out)
    model, known = load_model(args.model, args.interval)
    choice = ColumnChoice(**known["layout"], keep=args.keep)
    filled = known["medians"] is not None
    missing = args.missing or ("median" if filled else None)
    if missing == "median" and not filled:
        raise ValueError("--missing median needs a model that was fitted with --missing median")
    files = Files(
        paths_of(args.data), choice, dialect_of(args), missing, predict=True, unknown=args.unknown
    )
    with writing(args.out) if args.out else printing() as write:
        rows, unknown, tally = predict_files(model, known, files, args, write)
    lines = [f"{count(rows, 'prediction')} written to {args.out}"] if args.out else []
    if left_out := sum(files.left_out.values()):
        lines.append(left_out_in_words(left_out))
    if unknown:
        lines.append(f"{count(unknown, 'row')} with categories that the model does not know")
    for line in lines + verdict(tally, known["classes"], args.interval is not None):
        print(shown(line), file=sys.stdout if args.out else sys.stderr)


@contextmanager
def printing() -> Iterator[Writer]:
    """Give a `with` block the function that prints rows of predictions as CSV.

    If standard output is a terminal, control characters in names and texts are printed as escapes.
    """
    with rows_to(sys.stdout.buffer) as write:
        yield (lambda columns: write(to_show(columns))) if sys.stdout.isatty() else write


def to_show(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns with control characters in names and texts as escapes."""
    words = lambda values: np.array([shown(word) for word in values], str)
    return {
        shown(name): words(values) if values.dtype.kind == "U" else values
        for name, values in columns.items()
    }


def predict_files(
    model: Fit | Model, known: dict, files: Files, args: Namespace, write: Writer
) -> tuple[int, int, np.ndarray]:
    """Predict all rows of the files, and write the predictions.

    Returns:
        (rows, unknown, tally): how many rows there are, how many of them have a category that the
        model does not know, and the three sums of `judged` over all rows with a target.
    """
    classes = known["classes"]
    parts = {name: np.array(part) for name, part in (known["sigmoid"] or {}).items()}
    sigmoid = rls.classes.Sigmoid(**parts) if parts else None
    rows = 0
    unknown = 0
    tally = np.zeros(3)
    with progress_bar(at_terminal(), None, "predict", "row") as reached:
        for piece in files:
            X = inputs_of(piece.place, piece.X, piece.texts, known, piece.numbers, args.unknown)
            columns = predicted(model, X, args.interval, classes, sigmoid)
            first_kept = len(piece.texts) - len(args.keep)
            target = piece.texts[len(files.choice.one_hot) : first_kept]
            write(with_kept(columns, args.keep, piece.texts[first_kept:]))
            if target and "prediction" in columns:
                label = target[0] if classes else np.char.replace(target[0], args.decimal, ".")
                tally += judged(columns, label, classes)
            rows += len(X)
            unknown += count_unknown(piece.texts, known["categories"])
            reached(rows)
    return rows, unknown, tally


def count_unknown(texts: Sequence[np.ndarray], categories: Sequence[Sequence[str]]) -> int:
    """Return how many rows have, in any column of text, a category that the model does not know."""
    columns = zip(texts, categories, strict=False)
    strange = [~np.isin(words, known) for words, known in columns]
    return int(np.any(strange, axis=0).sum()) if strange else 0


def with_kept(
    columns: dict[str, np.ndarray], names: Sequence[str], kept: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the columns to write: the columns of `--keep`, then the predictions."""
    if both := {*names} & {*columns}:
        raise ValueError(f"--keep {min(both)} is the name of a column of predictions: rename it")
    return dict(zip(names, kept, strict=True)) | columns


def load_model(path: str, level: float | None) -> tuple[Fit | Model, dict]:
    """Load a model, and what it knows of the columns of files: a dictionary with the keys of KNOWN.

    Raise if the file holds something else, or if it lacks what intervals of this level need.
    """
    model, extra = rls.load(path, with_extra=True)
    known = KNOWN | extra.get("table", {})
    if not isinstance(model, Fit | Model):
        raise ValueError(f"{path} must hold a model or a fit, and holds a {type(model).__name__}")
    names = model.model.names if isinstance(model, Fit) else model.names
    if names and not known["layout"]:  # it was fitted to a data frame, or to files by `stream`
        known["layout"] = {"inputs": [*map(str, names)]}
    if level is not None and (known["classes"] or getattr(model, "solution", None) is None):
        raise ValueError(f"{path} does not hold what intervals need: fit with --intervals")
    return model, known


def judged(
    columns: Mapping[str, np.ndarray], target: np.ndarray, classes: Sequence[str] | None
) -> tuple[int, Any, Any]:
    """Compare the predictions of some rows with their target, which is given as text.

    Returns:
        (rows, wrong, inside): the number of rows; how many class labels are wrong, or else the sum
        of squared errors; how many labels lie inside their interval. `wrong` is NaN if some targets
        are missing, or are to be numbers and are not.
    """
    n = len(target)
    prediction = columns["prediction"]
    inside: Any = 0
    if classes:
        wrong = np.sum(prediction != as_classes(target, classes))
        return n, np.nan if (target == "").any() else wrong, inside
    try:
        label = np.where(target == "", "nan", target).astype(np.float64)
    except ValueError:
        label = np.full(n, np.nan)
    if "lower" in columns:
        inside = ((columns["lower"] <= label) & (label <= columns["upper"])).sum()
    return n, np.sum((label - prediction) ** 2), inside


def as_classes(words: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Return words with numbers written as the classes write them, such as 1.0 as 1."""
    written = {float(word): word for word in classes if is_number(word)}

    def as_class(word: str) -> str:
        if word in classes or not is_number(word):
            return word
        return written.get(float(word), word)

    return np.array([*map(as_class, words.tolist())], str)


def verdict(tally: np.ndarray, classes: Sequence[str] | None, intervals: bool) -> list[str]:
    """Return the line about the error of all predictions; no line if the files have no target."""
    rows, wrong, inside = tally
    if not rows:
        return []
    if np.isnan(wrong):
        what = "missing" if classes else "missing or not numbers"
        return [f"no error on the target: it has values that are {what}"]
    if classes:
        return [f"{100 * wrong / rows:.3g} % of labels wrong"]
    held = f", {100 * inside / rows:.3g} % inside the intervals" if intervals else ""
    return [f"RMSE {np.sqrt(wrong / rows):.4g} in units of the target{held}"]
