"""The command `fit`, which reads a table or a stream of rows, fits it, and reports and saves the
result.

Begin with `run_fit`. The second half of the file, from `read` on, turns files into numbers.
"""

import os
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxrls as rls
from jaxrls.cli.report import at_terminal, count, left_out_in_words, report, show
from jaxrls.core.criteria import CRITERIA, Criterion
from jaxrls.core.kernels import PLAIN, POLYNOMIAL, RADIAL, Kernel, Standardized
from jaxrls.core.support import check_inputs, check_weights, check_whole, in_words, memory_bytes
from jaxrls.front import Fit, with_names
from jaxrls.landmarks.growing import landmarks_to_tune
from jaxrls.rows.files import check_replaceable, replacing
from jaxrls.rows.sources import ColumnChoice, Files, open_files, paths_of
from jaxrls.rows.streamed import Piece
from jaxrls.rows.tables import Dialect, quoted, text_among

COPIES = 5  # how many copies of a table's numbers are made while it is read and fitted


class Table(NamedTuple):
    """The rows that were read, from one table or from files that stream.

    X is an array, or rows that stream. `weights` and `groups` are None if no column holds them.
    """

    X: Any
    Y: Any
    weights: Any
    groups: Any
    known: dict  # what a model must know of the columns: a dictionary with the keys of KNOWN
    left_out: int = 0  # how many rows were left out, because values are missing

    @property
    def sample(self) -> Any:
        """The rows in memory: a sample of rows that stream, else all rows."""
        return getattr(self.X, "sample", self.X)


def run_fit(args: Namespace) -> None:
    """Carry out the command `fit`: read, fit, report, save."""
    check_outputs(args)
    check_lams(args.lams)
    folds = 10 if args.folds is None else args.folds
    check_whole("--folds", folds)
    if folds == 1:
        raise ValueError("--folds must be 2 or more, and is 1: one fold leaves nothing to fit")
    table = read(args)
    kernel = kernel_of(args, table.X.shape[1])
    classes = table.known["classes"]
    show_data(args, table, classes)
    start = time.perf_counter()
    options: dict = {"intercept": args.intercept, "standardize": args.standardize}
    options["progress"] = at_terminal()
    name = args.criterion or ("kfold" if args.groups else "pairs" if args.rank else "loo")
    if name == "kfold" and table.groups is None:
        numbers = np.random.default_rng(0).permutation(len(table.Y))
        table = table._replace(groups=numbers % min(folds, len(numbers)))
    if args.tune:
        kernel = tune_kernel(kernel, table, CRITERIA[name], args.landmarks, args.lams, options)
    options |= criterion_options(args, name, classes, table.groups)
    fit = rls.fit(
        kernel,
        table.X,
        table.Y,
        weights=table.weights,
        lams=args.lams,
        landmarks=args.landmarks,
        keep=args.intervals,
        **options,
    )
    show("kernel", f"{args.kernel}{numbers_of(fit.kernel)}")
    report(fit, table.Y, classes, table.weights, scores=args.rank)
    show("time", f"{time.perf_counter() - start:.1f} s, compilation included")
    write(args, fit, table)


def name_of(args: Namespace) -> str:
    """Return the names of the files as they were typed, pipes included."""
    return " ".join(args.copies.get(path, path) for path in args.data)


def show_data(args: Namespace, table: Table, classes: Sequence[str] | None) -> None:
    """Print the line of the report about the data."""
    n, d = table.X.shape
    target = table.known["layout"]["target"]
    text = "text, " if text_among(classes or ()) else ""
    kinds = f" ({text}{len(classes)} classes: {', '.join(classes[:5])})" if classes else ""
    out = f"; {left_out_in_words(table.left_out)}" if table.left_out else ""
    files = f"{name_of(args)}{', streamed' if args.stream else ''}"
    show("data", f"{files}: {count(n, 'row')}, {count(d, 'input')}, target {target}{kinds}{out}")


def write(args: Namespace, fit: Fit, table: Table) -> None:
    """Write the files that `--out` and `--plot` ask for."""
    known = table.known
    if args.out:
        if known["classes"]:
            known["sigmoid"] = sigmoid_of(fit, table)
        layout = known["layout"]
        if args.rank:  # `predict` cannot compare scores with the target
            layout["target"] = False
        fit = with_names(fit, names_of(known))
        rls.save(args.out, fit, extra={"table": known})
        show("saved", args.out)
    if args.plot:
        with replacing(args.plot) as temporary:
            fit.plot().figure.savefig(temporary, dpi=150, format=format_of(args.plot))
        show("drawn", args.plot)


def sigmoid_of(fit: Fit, table: Table) -> dict[str, Any]:
    """Return the parameters of the sigmoid that turns scores into probabilities.

    It is fitted to held-out scores. The parameters are plain numbers, by name.
    """
    left_out = table.Y - np.asarray(fit.loo_residuals)
    sigmoid = rls.classes.fit_sigmoid(left_out, table.Y, table.weights)
    parts = {"slope": sigmoid.slope, "offset": sigmoid.offset}
    return {name: np.asarray(part).tolist() for name, part in parts.items()}


def names_of(known: dict) -> tuple:
    """Return the names of the inputs, the columns of X.

    Indicators are named as by `pandas.get_dummies`. The result is () if the files have no names, or
    if two names are equal.
    """
    layout = known["layout"]
    if layout["width"]:
        return ()
    names = [*ColumnChoice(**layout).column_names()]
    for name, categories in zip(layout["one_hot"], known["categories"], strict=True):
        names += [f"{name}_{category or 'missing'}" for category in categories]
    return tuple(names) if len({*names}) == len(names) else ()


def kernel_of(args: Namespace, d: int) -> Kernel:
    """Return the kernel of d inputs that the options name.

    Without `--width` its width is the median distance, with `--ard` one width for each input.
    """
    if args.kernel in POLYNOMIAL:
        return rls.Polynomial(args.degree)
    if args.kernel in PLAIN:
        return PLAIN[args.kernel]()
    width: Any = "median" if args.width is None else args.width
    if args.ard:
        width = [width] * d if args.width is None else np.full(d, width)
    return RADIAL[args.kernel](width)


def tune_kernel(
    kernel: Kernel,
    table: Table,
    criterion: Criterion,
    landmarks: Any,
    lams: Any,
    options: dict[str, Any],
) -> Kernel:
    """Tune the parameters of the kernel on the rows in memory, and return the tuned kernel.

    If `lams` is a list of one λ above 0, the kernel is tuned at this λ.
    """
    one = isinstance(lams, list) and len(lams) == 1 and lams[0] != 0
    rows = getattr(table.X, "drawn", slice(None))
    m = landmarks_to_tune(landmarks, len(table.Y))
    Y, v, groups = (part if part is None else part[rows] for part in table[1:4])
    of_landmarks = f" and {m} landmarks" if m else ""
    show("tuning", f"on {count(len(table.sample), 'row')}{of_landmarks}")
    fit: Any = rls.tune(
        kernel,
        table.sample,
        Y,
        lams=lams[0] if one else None,
        criterion=criterion,
        groups=groups,
        weights=v,
        landmarks=m,
        keep=False,
        **options,
    )
    steps = count(len(fit.history.errors) - 1, "step")
    errors = f"{float(fit.history.start_error):.4g} -> {float(fit.error):.4g}"
    show("tuned", f"{fit.criterion} error {errors} in {steps}: {fit.history.reason}")
    return fit.kernel.kernel if options["standardize"] else fit.kernel


def criterion_options(
    args: Namespace, name: str, classes: Sequence[str] | None, groups: np.ndarray | None
) -> dict[str, Any]:
    """Return the options `criterion`, `groups` and `fixed_effects` of `fit` as a dictionary.

    If groups are named, and the order of rows counts (`--rank` or `--criterion pairs`):

    * pairs are formed within groups;
    * both rows of a pair are left out, or the whole group for `--criterion kfold`;
    * with `--rank` each group has a constant of its own.

    Otherwise rows, or groups for `--criterion kfold`, are held out. The error of class labels is
    then the share of wrong ones.
    """
    criterion = CRITERIA[name]
    if name == "pairs" and classes is not None and len(classes) > 2:
        raise ValueError(
            f"--criterion pairs needs a numeric target or two classes, and there are "
            f"{len(classes)}: use another --criterion"
        )
    if groups is not None and (args.rank or name == "pairs"):
        whole = name == "kfold"
        criterion = rls.ranking.QueriesOut(groups) if whole else rls.ranking.PairsOut(within=groups)
        fixed = rls.levels(groups) if args.rank else None
        return {"criterion": criterion, "fixed_effects": fixed}
    if classes is not None and criterion == rls.loo:
        criterion = rls.extend.LeaveOneOut(rls.classes.zero_one_loss)
    return {"criterion": criterion, "groups": groups}


def numbers_of(kernel: Kernel) -> str:
    """Return the parameters of a kernel by name, as text.

    The means and scales by which columns are standardized are not parameters.
    """
    leaves = jax.tree_util.tree_leaves_with_path(kernel)
    named = [(path[-1].name, leaf) for path, leaf in leaves]
    words = lambda leaf: " ".join(f"{number:.4g}" for number in np.ravel(leaf))
    constants = Standardized.constants
    return "".join(f", {name} {words(leaf)}" for name, leaf in named if name not in constants)


def check_lams(lams: Any) -> None:
    """Raise for `--lams 0` and `--lams 1`, which are read as a number of λ but mean one λ."""
    if isinstance(lams, int) and lams < 2:
        remedy = "for λ = 1 give --lams 1.0" if lams else "for the smallest λ give --lams 0.0"
        raise ValueError(f"--lams {lams} is how many λ to try, and must be 2 or more: {remedy}")


def check_outputs(args: Namespace) -> None:
    """Raise before the work starts if its results could not be written."""
    for path in filter(None, (args.out, args.plot, args.checkpoint)):
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise ValueError(f"{path} cannot be written, as there is no folder {folder}: make it")
        check_replaceable(path)
    if args.plot:
        check_picture(args.plot)


def check_picture(path: str) -> None:
    """Raise if matplotlib is missing, or does not write the format of this file name."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install 'jaxrls[plot]'") from None
    matplotlib.use("agg")
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if format_of(path) not in formats:
        endings = ", ".join(f".{name}" for name in formats)
        raise ValueError(f"--plot {path} must end in one of {endings}")


def format_of(path: str) -> str:
    """Return the ending of a file name in lower case, without its dot."""
    return os.path.splitext(path)[1].lower().removeprefix(".")


# reading
# --------------------------------------------------------------------------------------------------

# What a saved model must know of the columns of its files, as plain data. These values are for a
# model that was not fitted to files.
KNOWN: dict = {
    "medians": None,  # of each input, to fill in for missing values
    "classes": None,  # the class labels
    "sigmoid": None,  # its parameters by name, for probabilities of classes
    "layout": {},  # the fields LAYOUT of `ColumnChoice`
    "categories": [],  # of each column of text
}
LAYOUT = ("inputs", "one_hot", "days", "yearly", "target", "width")


def read(args: Namespace) -> Table:
    """Read the files that the arguments name, as one table or as rows that stream."""
    special = args.columns, args.drop, args.one_hot, args.groups
    labels = not args.stream and (args.classify or None)
    dates = {"days": args.days, "yearly": args.yearly}
    choice = ColumnChoice(args.target, args.weights, *special, labels, **dates)
    files = open_files(paths_of(args.data), choice, dialect_of(args), args.missing)
    known = KNOWN | {"layout": {name: getattr(files.choice, name) for name in LAYOUT}}
    if args.stream:
        rows = rls.rows.stream(files, checkpoint=args.checkpoint, progress=at_terminal())
        table = Table(rows, rows.labels, rows.row_weights, None, known)
    else:
        table = read_whole(files, name_of(args), known)
    table = table._replace(left_out=sum(files.left_out.values()))
    if len(table.Y) < 2:
        raise ValueError(f"{name_of(args)} has 1 row that can be used: give 2 or more")
    if table.weights is not None:
        check_weights(table.weights, len(table.Y))
    if table.known["classes"] is not None and (args.intervals or args.rank):
        held = text_among(table.known["classes"]) or "labels"
        raise ValueError(
            f"--intervals and --rank need a numeric target, and {str(files.choice.target)!r} holds "
            f"{held}: code it as numbers, or leave these options out"
        )
    return table


def read_whole(files: Files, source: str, known: dict) -> Table:
    """Read all rows into memory as numbers.

    Categories, medians and class labels, which say what the numbers mean, are put into `known`.
    """
    whole = joined(files, source)
    choice = files.choice
    X = whole.X
    Y = whole.Y
    texts = whole.texts
    categories = texts[: len(choice.one_hot)]
    rest = texts[len(choice.one_hot) :]
    known["categories"] = [np.unique(words).tolist() for words in categories]
    if files.missing == "median":
        if (absent := np.isnan(X).all(axis=0)).any():
            name = str(choice.column_names()[absent.argmax()])
            raise ValueError(f"{source}: column {name!r} is empty: leave it out with --drop")
        known["medians"] = np.nanmedian(X, axis=0).tolist()
    X = inputs_of(source, X, texts, known)
    check_inputs("X", X)
    if Y is None:
        words = rest.pop()
        Y, classes = rls.classes.encode(words)
        known["classes"] = classes.tolist()
        if len(classes) > max(2, len(Y) // 2):
            held = text_among(words)
            raise ValueError(
                f"the target {str(choice.target)!r} {f'holds {held}, and ' if held else ''}has "
                f"{len(classes)} different labels in {len(Y)} rows: name the right column with "
                f"--target{', or code it as numbers' if held else ''}"
            )
    return Table(X, Y, whole.weights, rest[0] if rest else None, known)


def joined(files: Files, source: str) -> Piece:
    """Read all rows into one `Piece`. Raise if they need more memory than there is."""
    parts: list = []
    held = 0.0
    limit = memory_bytes()
    for piece in files:
        parts.append((*piece[:3], *piece.texts))
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
    columns = zip(*parts, strict=True)
    X, Y, v, *texts = (None if part[0] is None else np.concatenate(part) for part in columns)
    return Piece(X, Y, v, texts=texts)


def dialect_of(args: Namespace) -> Dialect:
    """Return the options that say how CSV files are to be read."""
    return Dialect(args.header, args.sep, args.decimal, args.encoding)


def inputs_of(
    source: str,
    X: np.ndarray,
    texts: Any,
    known: dict,
    numbers: Any = None,
    unknown: str | None = None,
) -> np.ndarray:
    """Return the inputs (n, d): numbers, and indicators of the categories of columns of text.

    Args:
        source: the name of the file in messages.
        X: the numbers of n rows, NaN where missing. Medians are filled in, if `known` has them.
        texts: the columns of text, (n,) each.
        known: what the model knows of the columns.
        numbers: the number of each row in its file, for messages.
        unknown: "zero" for indicators that are all 0 if a category is not known. None to raise.
    """
    X = X if X.dtype == np.float32 else X.astype(np.float64)
    if known["medians"]:
        X = np.where(np.isnan(X), np.array(known["medians"], X.dtype), X)
    parts = [X]
    names = known["layout"].get("one_hot", ())
    for name, categories, words in zip(names, known["categories"], texts, strict=False):
        strange = np.flatnonzero(~np.isin(words, categories)) if unknown is None else ()
        for i in strange[:1]:
            raise ValueError(
                f"{source}: row {numbers[i]}, column {str(name)!r}: the category "
                f"{str(words[i])!r} is none that the model was fitted with, "
                f"{quoted(categories)}: leave such rows out, or take 0 for all of these, as "
                "--unknown zero does"
            )
        parts.append((words[:, None] == np.array(categories)).astype(X.dtype))
    return np.hstack(parts)
