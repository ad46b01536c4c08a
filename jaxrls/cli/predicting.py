"""`predict`: the rows of a table predicted by a saved model."""

import sys

import numpy as np

import jaxrls as rls
from jaxrls.rows.spread import standardise
from jaxrls.cli.report import count, judge
from jaxrls.io.tables import read_inputs
from jaxrls.io.writers import write_columns
from jaxrls.support.files import replacing


def run_predict(args) -> None:
    """Load, read, predict, write, and say the error where the file has the target."""
    model, extra = rls.load(args.model, with_extra=True, max_inflation=args.max_inflation)
    if not isinstance(model, rls.Fit | rls.Tuned | rls.Model):
        raise ValueError(f"{args.model} holds a {type(model).__name__}, and predict needs a model, a fit or a tuned one")
    layout, means, scales, classes = read_extra(args.model, extra)
    X, y = read_inputs(args.data, layout, header=args.header, max_inflation=args.max_inflation)
    if means is not None:
        if X.shape[1] != len(means):
            raise ValueError(f"{args.data} has {count(X.shape[1], 'column')} of inputs, and the model was fitted on {len(means)}")
        X = standardise(X, means, scales)
    columns = name_columns(args.model, scores_of(args.model, model, X), classes)
    if args.out:
        with replacing(args.out) as file:
            write_columns(file, columns)
    else:
        sys.stdout.flush()
        write_columns(sys.stdout.buffer, columns)
    verdict = judge(columns["prediction"], y, classes) if "prediction" in columns and y is not None else None
    for line in (f"{count(len(X), 'prediction')} written to {args.out}" if args.out else None, verdict):
        if line:
            print(line, file=sys.stdout if args.out else sys.stderr)


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
    try:
        scores = np.asarray(model.predict(X))
    except ValueError as error:
        raise ValueError(f"{path} cannot predict these rows: {error}") from error
    except OSError:
        raise
    except Exception as error:  # fields that are consistent as JSON and as arrays, and no model
        raise ValueError(f"{path} holds a model that cannot predict, as if it had been changed by hand: {error}") from error
    if scores.dtype.kind != "f" or scores.ndim not in (1, 2) or len(scores) != len(X):
        raise ValueError(f"{path} holds a model whose predictions have shape {scores.shape} of {scores.dtype}: it was changed by hand")
    return scores


def name_columns(path, scores, classes) -> dict[str, np.ndarray]:
    """Predictions by the names they are written under."""
    if not classes:
        return {"prediction": scores} if scores.ndim == 1 else {f"prediction_{j}": column for j, column in enumerate(scores.T)}
    names = ["score"] if scores.ndim == 1 else [f"score_{name}" for name in classes]
    if len(np.atleast_2d(scores.T)) != len(names) or (scores.ndim == 1) != (len(classes) == 2):
        raise ValueError(f"{path} has {len(classes)} classes, which its scores of shape {scores.shape} do not fit: it was changed by hand")
    return {"prediction": rls.decode(scores, classes), **dict(zip(names, np.atleast_2d(scores.T), strict=True))}
