"""`predict`: the rows of a table predicted by a saved model."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import jaxrls as rls
from jaxrls.cli.reading import check_memory, is_stream
from jaxrls.cli.report import Verdict, at_terminal, count
from jaxrls.io.sources import Files, Fitted, paths_of
from jaxrls.io.tables import read_inputs
from jaxrls.io.writers import CsvWriter, writing
from jaxrls.rows.deviations import standardise
from jaxrls.rows.streamed import as_numbers, shapes_of
from jaxrls.support.progress import progress_bar


def run_predict(args) -> None:
    """Load, read, predict, write, and say the error where the files have the target."""
    model, extra = rls.load(args.model, with_extra=True, max_inflation=args.max_inflation)
    if not isinstance(model, rls.Fit | rls.Tuned | rls.Model):
        raise ValueError(f"{args.model} holds a {type(model).__name__}, and predict needs a model, a fit or a tuned one")
    layout, means, scales, classes = read_extra(args.model, extra)
    if args.interval is not None and (classes or getattr(model, "jackknife", None) is None):
        what = (
            "predicts classes, and intervals are for numbers" if classes else "keeps nothing to make intervals of: fit it with --intervals"
        )
        raise ValueError(f"{args.model} {what}")
    verdict, rows = Verdict(classes), 0
    with writing(args.out) if args.out else printing() as write, progress_bar(at_terminal(), None, "predict", "row") as reached:
        for source, X, y in blocks_of(args, layout or {}):
            if means is not None:
                if X.shape[1] != len(means):
                    raise ValueError(f"{source} has {count(X.shape[1], 'column')} of inputs, and the model was fitted on {len(means)}")
                X = standardise(X, means, scales)
            padded = in_few_sizes(X) if is_stream(args) else X
            columns = name_columns(scores_of(args.model, model, padded)[: len(X)], "prediction", classes, args.model)
            if args.interval is not None:
                for name, end in zip(("lower", "upper"), ends_of(args.model, model, padded, args.interval), strict=True):
                    columns |= name_columns(end[: len(X)], name)
            write(columns)
            if "prediction" in columns:
                verdict.add(columns, y)
            rows += len(X)
            reached(rows)
    for line in (f"{count(rows, 'prediction')} written to {args.out}" if args.out else None, verdict.words()):
        if line:
            print(line, file=sys.stdout if args.out else sys.stderr)


def blocks_of(args, layout) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """Where they stand, inputs and the target, as they are read: of a table all rows at once."""
    if not is_stream(args):
        (path,) = args.data
        check_memory(path)
        yield path, *read_inputs(path, layout, header=args.header, max_inflation=args.max_inflation)
        return
    for piece in Files(paths_of(args.data), Fitted(layout), args.header, args.max_inflation):
        X = as_numbers(piece, "X", piece.X)
        if X.ndim != 2 or piece.Y is not None and piece.Y.shape != X.shape[:1]:
            raise ValueError(f"{piece.place} must hold X (n, d) and a target (n,), and has {shapes_of(X, piece.Y, None)}")
        if len(X):
            yield piece.place, X, piece.Y


def in_few_sizes(X) -> np.ndarray:
    """The rows, and the last one again up to a power of two of them: each number of rows is a program of its own."""
    return X[np.minimum(np.arange(2 ** (len(X) - 1).bit_length()), len(X) - 1)]


@contextmanager
def printing() -> Iterator[Callable]:
    """A function that prints the next rows of columns."""
    sys.stdout.flush()
    yield CsvWriter(None, sys.stdout.buffer).write


def read_extra(path, extra):
    """Layout, means, scales and classes that `fit` has saved, or None each; an error where another program has changed them."""
    layout, means, scales, classes = (extra.get(name) for name in ("layout", "means", "scales", "classes"))
    if means is None and scales is None:
        right = True
    else:
        right = are_numbers(means) and are_numbers(scales) and len(means) == len(scales) and all(scale > 0 for scale in scales)
    right = right and (layout is None or is_layout(layout))
    right = right and (classes is None or isinstance(classes, list) and len(classes) > 1 and all(type(name) is str for name in classes))
    if not right:
        raise ValueError(f"{path}: layout, means, scales and classes in its extra are not those that fit writes: give them other names")
    return layout, means, scales, classes


def is_layout(layout) -> bool:
    """Whether this is a `Table.layout` that has gone through JSON."""
    if not isinstance(layout, dict):
        return False
    names, positions, width, target = (layout.get(name) for name in ("inputs", "positions", "width", "target"))
    return (
        (names is None or isinstance(names, list) and all(type(name) is str for name in names))
        and (width is None) == (positions is None)
        and (width is None or type(width) is int and isinstance(positions, list))
        and all(type(j) is int and 0 <= j < (width or 0) for j in positions or ())
        and (names is None or positions is None or len(names) == len(positions))
        and (target is None or type(target) is str or type(target) is int)
    )


def are_numbers(values) -> bool:
    """Whether this is a list of finite numbers."""
    return isinstance(values, list) and all(type(value) in (int, float) and abs(value) <= sys.float_info.max for value in values)


def scores_of(path, model, X) -> np.ndarray:
    """What the model predicts, in floating-point numbers."""
    return in_words(path, X, lambda: (model.predict(X),))[0]


def ends_of(path, model, X, level: float) -> list[np.ndarray]:
    """Both ends of its intervals, likewise."""
    return in_words(path, X, lambda: model.intervals(X, level))


def in_words(path, X, ask: Callable) -> list[np.ndarray]:
    """Arrays that a model is asked for, one row for each of X, or what is wrong with it."""
    try:
        found = [np.asarray(part) for part in ask()]
    except ValueError as error:
        raise ValueError(f"{path} cannot predict these rows: {error}") from error
    except OSError:
        raise
    except Exception as error:  # fields that are consistent as JSON and as arrays, and no model
        raise ValueError(f"{path} holds a model that cannot predict, as if it had been changed by hand: {error}") from error
    for scores in found:
        if scores.dtype.kind != "f" or scores.ndim not in (1, 2) or len(scores) != len(X):
            raise ValueError(f"{path} holds a model whose predictions have shape {scores.shape} of {scores.dtype}: it was changed by hand")
    return found


def name_columns(scores, name: str, classes=None, path=None) -> dict[str, np.ndarray]:
    """Predictions by the names they are written under."""
    if not classes:
        return {name: scores} if scores.ndim == 1 else {f"{name}_{j}": column for j, column in enumerate(scores.T)}
    names = ["score"] if scores.ndim == 1 else [f"score_{name}" for name in classes]
    if len(np.atleast_2d(scores.T)) != len(names) or (scores.ndim == 1) != (len(classes) == 2):
        raise ValueError(f"{path} has {len(classes)} classes, which its scores of shape {scores.shape} do not fit: it was changed by hand")
    return {"prediction": rls.decode(scores, classes), **dict(zip(names, np.atleast_2d(scores.T), strict=True))}
