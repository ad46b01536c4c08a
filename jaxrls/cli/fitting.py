"""The command `fit`: reads a table or a stream of rows, fits, reports and saves."""

import os
import time
from typing import Any

import jax
import numpy as np

import jaxrls as rls
from jaxrls.cli.report import at_terminal, count, report, show
from jaxrls.core.criteria import CRITERIA
from jaxrls.core.kernels import PLAIN, POLYNOMIAL, RADIAL, Standardized
from jaxrls.core.support import check_inputs, check_weights, check_whole, in_words, memory_bytes
from jaxrls.landmarks.growing import landmarks_to_tune
from jaxrls.rows.sources import ColumnChoice, open_files, paths_of

COPIES = 5  # of a table's numbers while it is read, standardised and fitted


def run_fit(args) -> None:
    """Read, fit, report, save."""
    check_outputs(args.out, args.plot)
    check_whole("--folds", args.folds)
    files = " ".join(args.data)
    X, Y, v, groups, known = read(args, files)
    if v is not None:
        check_weights(v, len(v))
    n, classes, target = X.shape[0], known["classes"], known["layout"]["target"]
    drawn, sample = (X.drawn, X.sample) if args.stream else (slice(None), X)
    if classes is not None and (args.intervals or args.rank):
        raise ValueError(
            f"--intervals and --rank need a numeric target, and {target} holds labels: code them "
            "as numbers, or leave these options out"
        )
    width: Any = "median" if args.width is None else args.width
    if args.ard:
        width = [width] * X.shape[1] if args.width is None else np.full(X.shape[1], width)
    if args.kernel in POLYNOMIAL:
        kernel: Any = rls.Polynomial(args.degree)
    else:
        kernel = RADIAL[args.kernel](width) if args.kernel in RADIAL else PLAIN[args.kernel]()
    kinds = "" if classes is None else f" ({len(classes)} classes: {', '.join(classes[:5])})"
    rows, inputs = count(n, "row"), count(X.shape[1], "input")
    show("data", f"{files}{', streamed' * args.stream}: {rows}, {inputs}, target {target}{kinds}")

    name = args.criterion or ("kfold" if groups is not None else "pairs" if args.rank else "loo")
    if name == "kfold" and groups is None:
        groups = np.random.default_rng(0).permutation(n) % min(args.folds, n)
    start = time.perf_counter()
    options: dict = {"intercept": args.intercept, "progress": at_terminal()}
    options |= {"standardize": args.standardize}
    if args.tune:
        some = {"weights": v, "groups": groups}
        some = {key: part if part is None else part[drawn] for key, part in some.items()}
        m = landmarks_to_tune(args.landmarks, n)
        show("tuning", f"on {count(len(sample), 'row')}{f' and {m} landmarks' * bool(m)}")
        some |= {"criterion": CRITERIA[name], "landmarks": m}
        tuned: Any = rls.tune(kernel, sample, Y[drawn], **options, **some, keep=False)
        steps = count(len(tuned.history.errors) - 1, "step")
        kernel = tuned.kernel.kernel if args.standardize else tuned.kernel
        errors = f"{float(tuned.history.start_error):.4g} -> {float(tuned.error):.4g}"
        show("tuned", f"{tuned.criterion} error {errors} in {steps}: {tuned.history.reason}")
    options |= chosen(args, name, classes, groups)
    options |= {"lams": args.lams, "landmarks": args.landmarks, "keep": args.intervals}
    fit = rls.fit(kernel, X, Y, weights=v, **options)
    show("kernel", f"{args.kernel}{numbers_of(fit.kernel)}")
    report(fit, Y, classes, v, scores=args.rank)
    show("time", f"{time.perf_counter() - start:.1f} s, compilation included")
    if args.out:
        if args.rank:  # scores are not in the units of the target
            known["layout"]["target"] = False
        rls.save(args.out, fit, extra={"table": known})
        show("saved", args.out)
    if args.plot:
        fit.plot().figure.savefig(args.plot, dpi=150)
        show("drawn", args.plot)


def chosen(args, name: str, classes, groups):
    """Criterion, groups and fixed effects: of order pairs of all rows, or within groups, which
    `--rank` gives a constant each, or whole groups left out.
    """
    criterion = CRITERIA[name]
    if name == "pairs" and classes is not None and len(classes) > 2:
        raise ValueError(
            f"--criterion pairs needs a numeric target or two classes, and there are "
            f"{len(classes)}: use another --criterion"
        )
    if groups is not None and (args.rank or name == "pairs"):
        fixed = rls.levels(groups) if args.rank else None
        made = (
            rls.ranking.QueriesOut(groups)
            if name == "kfold"
            else rls.ranking.PairsOut(within=groups)
        )
        return {"criterion": made, "fixed_effects": fixed}
    if classes is not None and criterion == rls.loo:
        criterion = rls.extend.LeaveOneOut(rls.classes.zero_one_loss)
    return {"criterion": criterion, "groups": groups}


def numbers_of(kernel) -> str:
    """Its parameters by name, in words, without those of columns that are standardized."""
    leaves = jax.tree_util.tree_leaves_with_path(kernel)
    named = [(path[-1].name, leaf) for path, leaf in leaves]
    words = lambda leaf: " ".join(f"{number:.4g}" for number in np.ravel(leaf))
    constants = Standardized.constants
    return "".join(f", {name} {words(leaf)}" for name, leaf in named if name not in constants)


def check_outputs(out, plot) -> None:
    """Raise before the work starts where its results could not be written."""
    for path in filter(None, (out, plot)):
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise ValueError(f"{path} cannot be written, as there is no folder {folder}: make it")
    if plot:
        try:
            import matplotlib
        except ImportError:
            raise ValueError("--plot needs matplotlib: pip install 'jaxrls[plot]'") from None
        matplotlib.use("agg")


# reading
# --------------------------------------------------------------------------------------------------

# What a model must know of the columns, in plain data; of one that was not fitted to files.
KNOWN: dict[str, Any] = {"medians": None, "classes": None, "layout": {}, "categories": []}


def read(args, source: str):
    """Rows, labels, weights, groups, and what a model must know of the columns: of one table, or of
    files that stream.
    """
    special = args.columns, args.drop, args.one_hot, args.groups
    choice = ColumnChoice(
        args.target, args.weights, *special, not args.stream and (args.classify or None)
    )
    files = open_files(paths_of(args.data), choice, args.header, args.missing)
    kept = ("inputs", "one_hot", "target", "width")
    known = KNOWN | {"layout": {name: getattr(files.choice, name) for name in kept}}
    if args.stream:
        rows = rls.rows.stream(files, checkpoint=args.checkpoint, progress=at_terminal())
        return rows, rows.labels, rows.row_weights, None, known
    X, Y, v, texts = joined(files, source)
    coded = len(files.choice.one_hot)
    categories, rest = texts[:coded], texts[coded:]
    known["categories"] = [np.unique(words).tolist() for words in categories]
    if args.missing == "median":
        if (absent := np.isnan(X).all(axis=0)).any():
            name = files.choice.inputs[absent.argmax()]
            raise ValueError(f"{source}: column {name} is empty: leave it out (--drop {name})")
        known["medians"] = np.nanmedian(X, axis=0).tolist()
    X = inputs_of(source, X, texts, known)
    check_inputs("X", X)
    if Y is None:
        Y, classes = rls.classes.encode(rest[-1])
        known["classes"] = classes.tolist()
        if len(classes) > max(2, len(Y) // 2):
            raise ValueError(
                f"target {known['layout']['target']} has {len(classes)} different labels in "
                f"{len(Y)} rows: name the right column with --target"
            )
    return X, Y, v, None if args.groups is None else rest[0], known


def joined(files, source: str):
    """Inputs, target and weights of all rows, and columns of text."""
    parts: list = []
    held, limit = 0.0, memory_bytes()
    for piece, texts in files.parts():
        parts.append((*piece[:3], *texts))
        held += COPIES * piece.X.nbytes
        if limit is not None and held > limit:
            raise ValueError(
                f"{source} takes more than {in_words(held)} as a table, and this device has "
                f"{in_words(limit)}: read it in blocks with --stream"
            )
    if not sum(len(part[0]) for part in parts):
        raise ValueError(
            f"{source} has no rows with all their values: if a column is empty, name it in --drop"
        )
    whole = (None if part[0] is None else np.concatenate(part) for part in zip(*parts, strict=True))
    X, Y, v, *texts = whole
    return X, Y, v, texts


def inputs_of(source: str, X, texts, known: dict[str, Any]) -> np.ndarray:
    """Numbers with medians where they are missing, and an indicator of every category of columns of
    text.
    """
    X = X if X.dtype == np.float32 else X.astype(np.float64)
    if known["medians"]:
        X = np.where(np.isnan(X), np.array(known["medians"], X.dtype), X)
    parts = [X]
    for categories, words in zip(known["categories"], texts, strict=False):
        if new := sorted({*words.tolist()} - {*categories}):
            raise ValueError(
                f"{source} has the category {new[0]!r}, and the model was fitted with "
                f"{', '.join(categories[:20])} only: leave such rows out"
            )
        parts.append((words[:, None] == np.array(categories)).astype(X.dtype))
    return np.hstack(parts)
