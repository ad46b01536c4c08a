"""`predict`: the rows of a table predicted by a saved model."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import jaxrls as rls
from jaxrls.cli.reading import inputs_of
from jaxrls.cli.report import Verdict, at_terminal, count
from jaxrls.io.sources import Choice, Files, paths_of
from jaxrls.io.writers import csv_lines, writing
from jaxrls.rows.deviations import standardise
from jaxrls.support.progress import progress_bar

# What a model that was not fitted to files knows of their columns.
EMPTY = dict.fromkeys(("inputs", "target", "width", "medians")) | {"one_hot": [], "categories": []}


def run_predict(args) -> None:
    """Load, read, predict, write, and say the error where the files have the target."""
    found, extra = rls.load(args.model, with_extra=True)
    model: Any = found
    if not isinstance(found, rls.Fit | rls.Model):
        raise ValueError(
            f"{args.model} holds a {type(found).__name__}, and predict needs a model or a fit"
        )
    layout, means, scales, classes = read_extra(args.model, extra)
    if args.interval is not None and (classes or getattr(model, "kept", None) is None):
        what = (
            "predicts classes, and intervals are for numbers"
            if classes
            else "keeps nothing to make intervals of: fit it with --intervals"
        )
        raise ValueError(f"{args.model} {what}")
    verdict, rows = Verdict(classes), 0
    with (
        writing(args.out) if args.out else csv_lines("stdout", sys.stdout.buffer) as write,
        progress_bar(at_terminal(), None, "predict", "row") as reached,
    ):
        for source, X, y in blocks_of(args, layout):
            if means is not None:
                if X.shape[1] != len(means):
                    raise ValueError(
                        f"{source} has {count(X.shape[1], 'column')} of inputs, and the model was fitted on {len(means)}"
                    )
                X = standardise(X, means, scales)
            padded = in_few_sizes(X)
            scores = asked(args.model, model.predict, padded)
            columns = name_columns(scores[: len(X)], "prediction", classes)
            if args.interval is not None:
                ends = asked(args.model, model.intervals, padded, args.interval)
                for name, end in zip(("lower", "upper"), ends, strict=True):
                    columns |= name_columns(end[: len(X)], name)
            write(columns)
            if "prediction" in columns:
                verdict.add(columns, y)
            rows += len(X)
            reached(rows)
    for line in (
        f"{count(rows, 'prediction')} written to {args.out}" if args.out else None,
        verdict.words(),
    ):
        if line:
            print(line, file=sys.stdout if args.out else sys.stderr)


def blocks_of(args, layout) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """Where they stand, inputs and the target, as they are read."""
    choice = Choice(**{name: layout[name] for name in ("inputs", "one_hot", "target", "width")})
    missing = "median" if layout["medians"] else None
    for piece, texts in Files(paths_of(args.data), choice, args.header, missing, True).parts():
        if len(piece.X):
            X = inputs_of(piece.place, piece.X, texts, layout)
            yield piece.place, X, texts[-1] if len(texts) > len(choice.one_hot) else None


def in_few_sizes(X) -> np.ndarray:
    """The rows, and the last one again up to a power of two of them: each number of rows is a
    program of its own.
    """
    return X[np.minimum(np.arange(2 ** (len(X) - 1).bit_length()), len(X) - 1)]


def read_extra(path, extra):
    """Layout, means, scales and classes that `fit` has saved, or what stands for none."""
    means, scales = (extra.get(name) for name in ("means", "scales"))
    try:
        layout = EMPTY | (extra.get("layout") or {})
        if means is not None or scales is not None:
            means, scales = (np.array(part, np.float64) for part in (means, scales))
            if means.ndim != 1 or means.shape != scales.shape or not (scales > 0).all():
                raise ValueError("not one of each for every column")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: layout, means and scales in its extra are not those that fit writes: {error}: give them other names"
        ) from None
    return layout, means, scales, extra.get("classes")


def asked(path, ask: Callable, *arguments) -> np.ndarray:
    """What a model answers, or what is wrong with the rows."""
    try:
        return np.asarray(ask(*arguments))
    except ValueError as error:
        raise ValueError(f"{path} cannot predict these rows: {error}") from error


def name_columns(scores, name: str, classes=None) -> dict[str, np.ndarray]:
    """Predictions by the names they are written under."""
    if not classes:
        return (
            {name: scores}
            if scores.ndim == 1
            else {f"{name}_{j}": column for j, column in enumerate(scores.T)}
        )
    names = ["score"] if scores.ndim == 1 else [f"score_{name}" for name in classes]
    return {
        "prediction": rls.decode(scores, classes),
        **dict(zip(names, np.atleast_2d(scores.T), strict=True)),
    }
