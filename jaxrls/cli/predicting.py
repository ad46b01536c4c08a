"""`predict`: the rows of a table predicted by a saved model."""

import sys
from typing import Any

import numpy as np

import jaxrls as rls
from jaxrls.cli.fitting import KNOWN, inputs_of
from jaxrls.cli.report import at_terminal, count
from jaxrls.io.sources import Choice, Files, paths_of
from jaxrls.io.tables import rows_to, writing
from jaxrls.rows.streamed import standardise
from jaxrls.support.progress import progress_bar


def run_predict(args) -> None:
    """Load, read, predict, write, and say the error where the files have the target."""
    found, extra = rls.load(args.model, with_extra=True)
    model: Any = found
    known = KNOWN | extra.get("table", {})
    classes, means = known["classes"], known["means"]
    if not isinstance(found, rls.Fit | rls.Model):
        raise ValueError(f"{args.model} holds a {type(found).__name__}, and no model or fit")
    if args.interval is not None and (classes or getattr(model, "kept", None) is None):
        raise ValueError(f"{args.model} has no intervals: fit numbers with --intervals")
    choice, missing = Choice(**known["layout"]), "median" if known["medians"] else None
    files = Files(paths_of(args.data), choice, args.header, missing, predict=True)
    verdict, rows = Verdict(classes), 0
    with (
        writing(args.out) if args.out else rows_to(sys.stdout.buffer) as write,
        progress_bar(at_terminal(), None, "predict", "row") as reached,
    ):
        for piece, texts in files.parts():
            n = len(piece.X)
            if not n:
                continue
            X = inputs_of(piece.place, piece.X, texts, known)
            if means is not None:
                X = standardise(X, np.array(means), np.array(known["scales"]))
            # The last row again up to a power of two of them: each number of rows is a program.
            X = X[np.minimum(np.arange(2 ** (n - 1).bit_length()), n - 1)]
            scores = model.predict(X)[:n]
            columns = name_columns(scores, "prediction")
            if classes:
                columns = {"prediction": rls.decode(scores, classes)}
                columns |= name_columns(scores, "score", classes)
            if args.interval is not None:
                ends = model.intervals(X, args.interval)
                for name, end in zip(("lower", "upper"), ends, strict=True):
                    columns |= name_columns(end[:n], name)
            write(columns)
            verdict.add(columns, texts[len(choice.one_hot) :])
            rows += n
            reached(rows)
    told = [f"{count(rows, 'prediction')} written to {args.out}"] if args.out else []
    for line in told + verdict.words():
        print(line, file=sys.stdout if args.out else sys.stderr)


def name_columns(values, name: str, labels=None) -> dict[str, np.ndarray]:
    """The columns of a matrix by the names they are written under."""
    values = np.asarray(values)
    if values.ndim == 1:
        return {name: values}
    labels = labels or range(values.shape[1])
    return {f"{name}_{label}": column for label, column in zip(labels, values.T, strict=True)}


class Verdict:
    """The error of predictions, from one block of rows after the other, on a target that may have
    gaps, which are NaN.
    """

    def __init__(self, classes):
        self.classes, self.rows, self.wrong, self.inside = classes, 0, 0.0, None

    def add(self, columns, target) -> None:
        """Take in the predictions of some rows, with their intervals where there are some, and
        their target as text where it is there.
        """
        if not target or "prediction" not in columns:
            return
        prediction, y = columns["prediction"], target[0]
        self.rows += len(y)
        if self.classes:
            self.wrong += np.sum(prediction != y.astype(str))
            return
        try:
            label = np.where(y == "", "nan", y).astype(np.float64)
        except ValueError:
            label = np.full(len(y), np.nan)
        self.wrong += np.sum((label - prediction) ** 2)
        if "lower" in columns:
            inside = (columns["lower"] <= label) & (label <= columns["upper"])
            self.inside = (self.inside or 0) + inside.sum()

    def words(self) -> list[str]:
        """All that they come to; nothing where there was no target."""
        if not self.rows:
            return []
        share = self.wrong / self.rows
        if self.classes:
            return [f"{100 * share:.3g} % of labels wrong"]
        if np.isnan(share):
            return ["no error on the target: it has values that are missing or not numbers"]
        inside = self.inside
        held = "" if inside is None else f", {100 * inside / self.rows:.3g} % inside the intervals"
        return [f"RMSE {np.sqrt(share):.4g} in units of the target{held}"]
