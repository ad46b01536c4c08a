"""`predict`: the rows of a table predicted by a saved model."""

import sys

import numpy as np

import jaxrls as rls
from jaxrls.cli.report import count, judge
from jaxrls.io.tables import read_inputs, write_columns
from jaxrls.support.files import replacing


def run_predict(args) -> None:
    """Load, read, predict, write, and say the error where the file has the target."""
    model, extra = rls.load(args.model, with_extra=True)
    if not isinstance(model, rls.Fit | rls.Tuned | rls.Model):
        raise ValueError(f"{args.model} holds a {type(model).__name__}, and predict needs a model, a fit or a tuned one")
    X, y = read_inputs(args.data, extra.get("layout"))
    means, scales, classes = extra.get("means"), extra.get("scales"), extra.get("classes")
    if means is not None:
        if X.shape[1] != len(means):
            raise ValueError(f"{args.data} has {count(X.shape[1], 'column')} of inputs, and the model was fitted on {len(means)}")
        X = (X - means) / scales
    scores = np.asarray(model.predict(X))
    columns: dict[str, np.ndarray] = (
        {"prediction": scores} if scores.ndim == 1 else {f"prediction_{j}": column for j, column in enumerate(scores.T)}
    )
    if classes:
        names = ["score"] if scores.ndim == 1 else [f"score_{name}" for name in classes]
        columns = {"prediction": rls.decode(scores, classes), **dict(zip(names, np.atleast_2d(scores.T), strict=True))}
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
