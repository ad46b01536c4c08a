"""The command line: `python -m jaxrls fit DATA`, `predict MODEL DATA`, and without arguments a demo on real data."""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

import jaxrls as rls
from jaxrls.io.tables import read_inputs, read_table, write_columns
from jaxrls.support.files import replacing

# kernels of a width
RADIAL: dict[str, Callable] = {
    "gaussian": rls.Gaussian,
    "laplacian": rls.Laplacian,
    "matern12": lambda width: rls.Matern(0.5, width),
    "matern32": lambda width: rls.Matern(1.5, width),
    "matern52": lambda width: rls.Matern(2.5, width),
    "rational-quadratic": rls.RationalQuadratic,
}
KERNELS = (*RADIAL, "polynomial", "linear")
CRITERIA = {"loo": rls.loo, "gcv": rls.gcv, "kfold": rls.kfold, "evidence": rls.log_marginal_likelihood}
TITLES = {"loo": "LOO error", "gcv": "GCV error", "kfold": "fold error", "log_marginal_likelihood": "-log evidence"}
TABLE_ROWS = 12
LANDMARKS_TO_TUNE = 500
PICTURES = (".png", ".pdf", ".svg")

EPILOG = """\
example:
  python -m jaxrls fit train.csv --target price --tune --out model.npz
  python -m jaxrls predict model.npz new.csv --out predictions.csv

DATA is a CSV file (.csv, .csv.gz; a first line of names is its header) or a NumPy archive (.npz) with arrays X and y.
"""


# the three commands ----------------------------------------------------------------------------------------------------------


def run_fit(args) -> None:
    """Read, fit, report, save."""
    check_outputs(args.out, args.plot)
    table = read_table(args.data, target=args.target, labels=args.classify, groups=args.groups, weights=args.weights)
    d = table.X.shape[1]
    means, scales = standardisation(table.X, table.weights) if args.standardize else (np.zeros(d), np.ones(d))
    X = (table.X - means) / scales
    Y, classes = code(table.y, table.layout["target"])
    kernel, words = make_kernel(args.kernel, args.width, args.degree, X, args.standardize)
    criterion, groups = make_criterion(args, table.groups, len(X))
    loss = rls.zero_one_loss if classes is not None and criterion in (rls.loo, rls.kfold) else rls.squared_error
    options: dict[str, Any] = {"weights": table.weights, "intercept": args.intercept}
    if args.landmarks != "auto" and args.landmarks is not None and args.landmarks > len(X):
        raise ValueError(f"--landmarks must be at most {len(X)}, the rows of {args.data}, and is {args.landmarks}")

    target = f"target {table.layout['target']}{in_classes(classes)}"
    say("data", f"{args.data}: {count(len(X), 'row')}, {count(d, 'input')}, {target}")
    say("kernel", words)
    start = time.perf_counter()
    if args.tune:
        few = LANDMARKS_TO_TUNE if args.landmarks == "auto" and len(X) > 4 * LANDMARKS_TO_TUNE else args.landmarks
        kernel = tune_kernel(kernel, X, Y, criterion, groups, {**options, "landmarks": None if few == "auto" else few})
    grid = {"lams": args.lams, "num": args.num_lams or 100}
    fit = rls.fit(
        kernel,
        X,
        Y,
        **grid,
        criterion=criterion,
        loss=loss,
        groups=groups,
        landmarks=args.landmarks,
        progress=at_terminal(),
        **options,
    )
    seconds = time.perf_counter() - start
    report(fit, Y, classes, table.weights)
    say("time", f"{seconds:.1f} s, compilation included")
    if args.out:
        extra = {
            "layout": table.layout,
            "means": means.tolist(),
            "scales": scales.tolist(),
            "classes": None if classes is None else classes.tolist(),
        }
        rls.save(args.out, fit, extra=extra)
        say("saved", args.out)
    if args.plot:
        fit.plot().figure.savefig(args.plot, dpi=150)
        say("drawn", args.plot)


def check_outputs(out, plot) -> None:
    """Raise before the work starts where its results could not be written."""
    for path in filter(None, (out, plot)):
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise ValueError(f"{path} cannot be written: there is no folder {folder}")
    if plot:
        if os.path.splitext(plot)[1] not in PICTURES:
            raise ValueError(f"--plot takes a file that ends in {', '.join(PICTURES)}, and got {plot}")
        try:
            import matplotlib
        except ImportError:
            raise ValueError("--plot needs matplotlib: pip install 'jaxrls[plot]'") from None
        matplotlib.use("agg")


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


def run_demo(args) -> None:
    """A fit of the embedded data before and after tuning, judged on rows that it has not seen."""
    del args
    X, y, names = rls.airfoil()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    test = np.arange(len(X)) % 5 == 0
    kernel: Any = rls.Gaussian(4.0)
    say("data", f"NASA airfoil self-noise: sound in decibels from {', '.join(names)}")
    say("rows", f"{(~test).sum()} to fit, {test.sum()} put aside")
    say("kernel", f"gaussian, width {kernel.width:.4g}, of standardised columns")
    start = time.perf_counter()
    fit = rls.fit(kernel, X[~test], y[~test])
    seconds = time.perf_counter() - start
    report(fit, y[~test], None, None)
    say("time", f"{seconds:.1f} s for {len(fit.lams)} lambdas with exact leave-one-out, compilation included")
    start = time.perf_counter()
    some = np.flatnonzero(~test)[::5]
    tuned: Any = rls.tune(kernel, X[some], y[some], optimizer=plain_optimizer(), steps=10)
    better = rls.fit(tuned.kernel, X[~test], y[~test])
    seconds = time.perf_counter() - start
    steps = count(len(tuned.history.errors) - 1, "step")
    print()
    say(
        "tuned",
        f"width {kernel.width:.4g} -> {float(tuned.kernel.width):.4g} in {steps} along the gradient of the LOO error of {len(some)} rows",
    )
    say("LOO error", f"{float(fit.error):.4g} -> {float(better.error):.4g}, lambda -> {float(better.lam):.4g}")
    say("time", f"{seconds:.1f} s, compilation included")
    before, after = (rms(y[test] - model.predict(X[test])) for model in (fit, better))
    say("check", f"RMSE on the {test.sum()} rows put aside: {before:.4g} -> {after:.4g}")
    print("\nYour own data: python -m jaxrls fit --help")


def plain_optimizer():
    """Adam: many cheap steps, and no line search to compile, which would take longer than the whole demo."""
    import optax

    return optax.adam(0.1)


# from arguments to problem ---------------------------------------------------------------------------------------------------


def standardisation(X, weights) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; 1 where a column is constant."""
    means = np.average(X, axis=0, weights=weights)
    scales = np.sqrt(np.average((X - means) ** 2, axis=0, weights=weights))
    return means, np.where(scales > 1e-12 * np.abs(X).max(axis=0), scales, 1.0)


def code(y, target) -> tuple[np.ndarray, np.ndarray | None]:
    """Numbers as they are, labels as ±1 codes with their classes."""
    if y.dtype.kind != "U":
        return y, None
    Y, classes = rls.encode(y)
    if len(classes) > max(2, len(y) // 2):
        raise ValueError(f"target {target} has {len(classes)} different labels in {len(y)} rows: name the right column with --target")
    return Y, classes


def make_kernel(name, width, degree, X, standardized) -> tuple[rls.Kernel, str]:
    """The kernel, and what to say of it."""
    if name == "linear":
        return rls.Linear(), name
    if name == "polynomial":
        degree = degree or 2
        return rls.Polynomial(degree), f"{name}, degree {degree}"
    if width is not None:
        return RADIAL[name](width), f"{name}, width {width:.4g}"
    kernel = from_data(RADIAL[name](1.0), X)
    rows = "standardised rows" if standardized else "rows"
    return kernel, f"{name}, width {float(kernel.width):.4g} (the median distance between {rows})"  # type: ignore[attr-defined]


def from_data(kernel, X) -> rls.Kernel:
    """The kernel with the median distance for its width."""
    with jax.enable_x64(X.dtype == np.float64):
        return jax.tree.map(float, jax.jit(rls.start_from_data)(kernel, X))


def tune_kernel(kernel, X, Y, criterion, groups, options) -> rls.Kernel:
    """The kernel with its parameters tuned by gradient, before and after in words."""
    tuned = rls.tune(kernel, X, Y, criterion=criterion, groups=groups, progress=at_terminal(), **options)
    steps = len(tuned.history.errors) - 1
    say(
        "tuned",
        f"{TITLES[criterion.__name__]} {float(tuned.start_error):.4g} -> {float(tuned.error):.4g} in {count(steps, 'step')}: {tuned.reason}",
    )
    names = [jax.tree_util.keystr(path).lstrip(".") for path, _ in jax.tree_util.tree_flatten_with_path(kernel)[0]]
    for name, before, after in zip(names, jax.tree.leaves(kernel), jax.tree.leaves(tuned.kernel), strict=True):
        say("", f"{name} {float(before):.4g} -> {float(after):.4g}")
    say("", f"lambda -> {float(tuned.lam):.4g}; what follows takes the best of a grid, which passes near it")
    return tuned.kernel


def make_criterion(args, groups, n: int):
    """The criterion, and the group labels it needs: those of a column, or folds drawn by chance from a fixed seed."""
    name = args.criterion or ("loo" if groups is None else "kfold")
    if name == "kfold" and groups is None:
        groups = np.random.default_rng(0).permutation(n) % min(args.folds, n)
    return CRITERIA[name], groups


# what is printed --------------------------------------------------------------------------------------------------------------


def at_terminal() -> bool:
    """Whether someone watches, and tqdm is there to show progress with."""
    return sys.stderr.isatty() and find_spec("tqdm") is not None


def say(what: str, text) -> None:
    """One line of the report."""
    print(f"{what:<10}{text}")


def report(fit, Y, classes, weights) -> None:
    """The error over λ, and all that belongs to the chosen one."""
    print()
    print_table(fit, in_units=classes is None and fit.criterion != "log_marginal_likelihood")
    say("lambda", f"{float(fit.lam):.4g}")
    residuals = np.asarray(fit.loo_residuals)
    if classes is None:
        error, scale = np.average(residuals**2, weights=weights), np.sqrt(np.cov(Y, aweights=weights, ddof=0))
        say("LOO error", f"{error:.4g}, RMSE {np.sqrt(error):.4g} in units of the target, whose standard deviation is {scale:.4g}")
    else:
        wrong = rls.decode(Y - residuals, classes) != rls.decode(Y, classes)
        say("LOO error", f"{100 * np.average(wrong, weights=weights):.3g} % of labels wrong")
    say("freedom", f"{float(fit.dof):.4g} effective degrees of freedom, of {len(residuals)} rows")
    say("route", fit.route)
    if fit.certificate:
        say("landmarks", fit.certificate)


def print_table(fit, in_units: bool) -> None:
    """About a dozen λ around the chosen one."""
    lams, errors = np.asarray(fit.lams), np.asarray(fit.errors)
    errors = errors if errors.ndim == 1 else errors.mean(axis=1)
    order = np.argsort(lams)
    best = int(np.flatnonzero(lams[order] == fit.lam)[0])
    step = -(-len(lams) // (2 * TABLE_ROWS))
    rows = np.arange(best % step, len(lams), step)
    start = max(0, min(best // step - TABLE_ROWS // 2, len(rows) - TABLE_ROWS))
    print(f"{'lambda':>12}  {TITLES[fit.criterion]:>13}" + (f"  {'RMSE':>10}" if in_units else ""))
    for i in rows[start : start + TABLE_ROWS]:
        error = errors[order[i]]
        rmse = f"  {np.sqrt(error):10.4g}" if in_units else ""
        print(f"{lams[order[i]]:12.3e}  {error:13.5g}{rmse}" + ("  <- best" if i == best else ""))
    print()


def judge(prediction, y, classes) -> str | None:
    """The error of predictions on a target that may have gaps, in words."""
    if classes:
        return f"{100 * np.mean(prediction != y.astype(str)):.3g} % of labels wrong"
    try:
        residual = y.astype(np.float64) - prediction
    except ValueError:
        residual = np.array([np.nan])
    if not np.isfinite(residual).all():
        return "no error on the target: it has values that are missing or not numbers"
    return f"RMSE {rms(residual):.4g} in units of the target"


def rms(residual) -> float:
    """√ of the mean square."""
    return float(np.sqrt(np.mean(np.square(residual))))


def count(n: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def in_classes(classes) -> str:
    """What to add to the target's name."""
    return "" if classes is None else f" ({len(classes)} classes: {', '.join(classes[:5])}{' …' if len(classes) > 5 else ''})"


# the parser -------------------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Wrong usage is told in one line."""

    def error(self, message):
        """Exit with code 2."""
        self.exit(2, f"jaxrls: {message} (see {self.prog} --help)\n")


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def positives(text: str) -> list[float]:
    """Numbers above 0, separated by commas."""
    return [positive(part) for part in text.split(",")]


def at_least(least: int) -> Callable[[str], int]:
    """Whole numbers from `least` on."""

    def whole(text: str) -> int:
        value = int(text) if text.isdecimal() else least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return value

    return whole


def landmarks(text: str) -> int | str:
    """A whole number above 0, or auto."""
    return text if text == "auto" else at_least(1)(text)


def make_parser() -> Parser:
    """All that can be typed."""
    about = "Regularized least squares with the best regularisation by exact leave-one-out. Without a command: a demo."
    parser = Parser(prog="python -m jaxrls", description=about, epilog=EPILOG, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"jaxrls {rls.__version__}")
    parser.set_defaults(run=run_demo)
    commands = parser.add_subparsers(title="commands", metavar="fit | predict")
    for add in (add_fit, add_predict):
        add(commands)
    return parser


def raw(prog: str) -> argparse.HelpFormatter:
    """Help text as it is written."""
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30)


def add_command(commands, name: str, summary: str, about: str) -> Parser:
    """One command, with the example that all help texts end in."""
    return commands.add_parser(name, help=summary, description=about, epilog=EPILOG, formatter_class=raw, allow_abbrev=False)


def add_fit(commands) -> None:
    """`fit`."""
    about = "Fit a table, choose lambda among a whole grid by exact leave-one-out, and print what it found."
    parser = add_command(commands, "fit", "fit a CSV or NPZ file", about)
    parser.add_argument("data", metavar="DATA", help="CSV or NPZ file; every column but the special ones below is an input")
    parser.add_argument("--target", metavar="T", help="column to predict: its name, or its number from 0 (-1 is the last, the default)")
    parser.add_argument("--groups", metavar="COL", help="column of labels: rows of one label are left out together (--criterion kfold)")
    parser.add_argument("--weights", metavar="COL", help="column of sample weights")
    parser.add_argument("--classify", action="store_true", help="the target holds labels (implied where its first value is no number)")
    parser.add_argument("--no-standardize", dest="standardize", action="store_false", help="leave inputs in their units")
    parser.add_argument("--no-intercept", dest="intercept", action="store_false", help="fit no unpenalised constant")
    kernel = parser.add_argument_group("kernel")
    kernel.add_argument("--kernel", choices=KERNELS, default="gaussian", metavar="NAME", help=f"{', '.join(KERNELS)}; gaussian by default")
    kernel.add_argument("--width", type=positive, help="kernel width in units of the inputs as fitted; by default their median distance")
    kernel.add_argument("--degree", type=at_least(1), help="degree of the polynomial kernel, 2 by default")
    kernel.add_argument("--tune", action="store_true", help="tune the kernel's parameters by the gradient of the criterion")
    choice = parser.add_argument_group("choice of lambda")
    choice.add_argument("--criterion", choices=CRITERIA, help="what to minimise; loo (leave-one-out) by default")
    choice.add_argument("--folds", type=at_least(2), default=10, help="number of folds for kfold without --groups, 10 by default")
    grid = choice.add_mutually_exclusive_group()
    grid.add_argument("--lams", type=positives, metavar="A,B,...", help="lambdas to try; by default 100 over the range that matters")
    grid.add_argument("--num-lams", type=at_least(1), metavar="N", help="how many over that range")
    parser.add_argument(
        "--landmarks", type=landmarks, metavar="M", help="carry the solution by M rows, or by as many as needed (auto): past 10000 rows"
    )
    parser.add_argument("--plot", metavar="PICTURE", help="draw the error over lambda, as .png, .pdf or .svg (needs matplotlib)")
    parser.add_argument("--out", metavar="MODEL", help="save the model, as .npz, for predict and for jaxrls.load")
    parser.set_defaults(run=run_fit, check=check_fit)


def check_fit(parser: Parser, args) -> None:
    """Options that do not go together."""
    if args.width is not None and args.kernel not in RADIAL:
        parser.error(f"--width does not go with --kernel {args.kernel}")
    if args.degree is not None and args.kernel != "polynomial":
        parser.error(f"--degree does not go with --kernel {args.kernel}")
    if args.groups is not None and args.criterion not in (None, "kfold"):
        parser.error(f"--groups does not go with --criterion {args.criterion}")


def add_predict(commands) -> None:
    """`predict`."""
    about = "Predict the rows of a table with a saved model, as CSV; where the table has the target too, print the error on it."
    parser = add_command(commands, "predict", "predict with a saved model", about)
    parser.add_argument("model", metavar="MODEL", help="file written by fit --out, or by jaxrls.save")
    parser.add_argument("data", metavar="DATA", help="CSV or NPZ file; columns are matched by name where both files have names")
    parser.add_argument("--out", metavar="FILE", help="CSV file to write; by default predictions are printed")
    parser.set_defaults(run=run_predict)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 if all went well, 2 with one line on stderr if the data or the usage were wrong."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if check := getattr(args, "check", None):
        check(parser, args)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            args.run(args)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        return complain(f"{error.filename}: {error.strerror}" if error.filename else error)
    except ValueError as error:
        return complain(error)
    for warning in caught:
        if warning.category is UserWarning:
            complain(f"warning: {warning.message}")
    return 0


def complain(message) -> int:
    """One line on stderr."""
    print("jaxrls: " + " ".join(str(message).split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code_of_exit = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code_of_exit = 1
    except KeyboardInterrupt:
        code_of_exit = 130
    sys.exit(code_of_exit)
