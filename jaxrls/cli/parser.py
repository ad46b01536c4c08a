"""All that can be typed."""

import argparse
from collections.abc import Callable

import jaxrls as rls
from jaxrls.cli.demo import run_demo
from jaxrls.cli.fitting import CRITERIA, KERNELS, PLAIN, RADIAL, run_fit
from jaxrls.cli.predicting import run_predict
from jaxrls.cli.reading import is_stream

EPILOG = """\
example:
  {prog} fit train.csv --target price --tune --out model.safetensors
  {prog} predict model.safetensors new.csv --out predictions.csv

DATA is a table: .csv or .csv.gz with a line of names, .parquet, .arrow or .feather (these need pyarrow), .npz with arrays X and y, or .npy;
or files of any number and size, as names, a pattern or a folder, whose rows are streamed.
"""


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


def level(text: str) -> float:
    """A number between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1, such as 0.9")
    return value


def names(text: str) -> list[str]:
    """Columns separated by commas."""
    return text.split(",")


def lambdas(text: str) -> list[float] | str:
    """Numbers above 0, separated by commas, or search."""
    return text if text == "search" else [positive(part) for part in text.split(",")]


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


def make_parser(prog: str = "python -m jaxrls") -> Parser:
    """All that can be typed, after what calls it."""
    about = "Regularized least squares with the best regularisation by exact leave-one-out. Without a command: a demo."
    parser = Parser(prog=prog, description=about, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"jaxrls {rls.__version__}")
    add_cache(parser, default=True)
    parser.set_defaults(run=run_demo, prog=prog)
    commands = parser.add_subparsers(title="commands", metavar="fit | predict")
    for add in (add_fit, add_predict):
        add(commands)
    for each in (parser, *commands.choices.values()):
        each.epilog = EPILOG.format(prog=prog)
    return parser


def raw(prog: str) -> argparse.HelpFormatter:
    """Help text as it is written."""
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30)


def add_cache(parser: Parser, **default) -> None:
    """Whether compiled programs are kept: before a command or after it."""
    kept = (
        "compile anew, and keep no compiled programs in the user's cache folder for the next call"
    )
    parser.add_argument("--no-cache", dest="cache", action="store_false", help=kept, **default)


def add_command(commands, name: str, summary: str, about: str) -> Parser:
    """One command."""
    return commands.add_parser(
        name, help=summary, description=about, formatter_class=raw, allow_abbrev=False
    )


def add_fit(commands) -> None:
    """`fit`."""
    about = "Fit a table, choose lambda among a whole grid by exact leave-one-out, and print what it found."
    parser = add_command(commands, "fit", "fit a table, or rows that stream", about)
    parser.add_argument(
        "data",
        metavar="DATA",
        nargs="+",
        help="file, files, pattern or folder; every column but the special ones below is an input",
    )
    parser.add_argument(
        "--target",
        metavar="T",
        help="column to predict: its name, or its number from 0 (-1 is the last, the default)",
    )
    groups = "column of labels: rows of one label are left out together (--criterion kfold), or ordered among themselves (auc, --rank)"
    parser.add_argument("--groups", metavar="COL", help=groups)
    parser.add_argument("--weights", metavar="COL", help="column of sample weights")
    parser.add_argument(
        "--columns", type=names, metavar="A,B,...", help="the inputs; by default all other columns"
    )
    parser.add_argument(
        "--drop", type=names, default=[], metavar="A,B,...", help="columns to leave out"
    )
    parser.add_argument(
        "--one-hot",
        action="append",
        default=[],
        metavar="COL",
        help="column of text to make an indicator of every category of; may be repeated",
    )
    parser.add_argument(
        "--missing",
        choices=("drop", "median"),
        help="leave out rows in which a value is missing, or put the median of an input; else they are an error",
    )
    parser.add_argument(
        "--classify",
        action="store_true",
        help="the target holds labels (implied where its first value is no number)",
    )
    parser.add_argument(
        "--rank",
        action="store_true",
        help="fit the order of the target, not its values, within --groups where they are named",
    )
    parser.add_argument(
        "--no-standardize",
        dest="standardize",
        action="store_false",
        help="leave inputs in their units",
    )
    parser.add_argument(
        "--no-intercept", dest="intercept", action="store_false", help="fit no unpenalised constant"
    )
    kernel = parser.add_argument_group("kernel")
    kernel.add_argument(
        "--kernel",
        choices=KERNELS,
        default="gaussian",
        metavar="NAME",
        help=f"{', '.join(KERNELS)}; gaussian by default",
    )
    kernel.add_argument(
        "--width",
        type=positive,
        help="kernel width in units of the inputs as fitted; by default their median distance",
    )
    kernel.add_argument(
        "--degree", type=at_least(1), help="degree of the polynomial kernel, 2 by default"
    )
    kernel.add_argument(
        "--tune",
        action="store_true",
        help="tune the kernel's parameters by the gradient of the criterion",
    )
    choice = parser.add_argument_group("choice of lambda")
    choice.add_argument(
        "--criterion",
        choices=CRITERIA,
        help="what to minimise; loo (leave-one-out) by default, auc with --rank",
    )
    choice.add_argument(
        "--folds",
        type=at_least(2),
        default=10,
        help="number of folds for kfold without --groups, 10 by default",
    )
    grid = choice.add_mutually_exclusive_group()
    grid.add_argument(
        "--lams",
        type=lambdas,
        metavar="A,B,...",
        help="lambdas to try, or search; by default 100 over the range that matters",
    )
    grid.add_argument("--num-lams", type=at_least(1), metavar="N", help="how many over that range")
    parser.add_argument(
        "--landmarks",
        type=landmarks,
        metavar="M",
        help="carry the solution by M rows, or by as many as needed (auto): past 10000 rows",
    )
    parser.add_argument(
        "--plot",
        metavar="PICTURE",
        help="draw the error over lambda, as .png, .pdf or .svg (needs matplotlib)",
    )
    checkpoint = "keep the sums of a stream in this file as they grow: after a kill the same command goes on from there"
    parser.add_argument("--checkpoint", metavar="PATH", help=checkpoint)
    kept = "keep in the model what predict --interval takes: n x n numbers for n rows, n x M with --landmarks M"
    parser.add_argument("--intervals", action="store_true", help=kept)
    parser.add_argument(
        "--out",
        metavar="MODEL",
        help="save the model, as .safetensors, for predict and for jaxrls.load",
    )
    add_reading(parser)
    parser.set_defaults(run=run_fit, check=check_fit)


def add_reading(parser: Parser) -> None:
    """How files are read."""
    reading = parser.add_argument_group("reading")
    reading.add_argument(
        "--stream",
        action="store_true",
        help="read in blocks what need not fit into memory; implied but for one file",
    )
    reading.add_argument(
        "--no-header",
        dest="header",
        action="store_false",
        help="the first line of CSV files is data, and columns go by number",
    )
    add_cache(parser, default=argparse.SUPPRESS)


def check_fit(parser: Parser, args) -> None:
    """Options that do not go together."""
    if args.width is not None and args.kernel not in RADIAL:
        parser.error(f"--width does not go with --kernel {args.kernel}")
    if args.intervals and args.classify:
        parser.error("--intervals does not go with --classify: they are for numbers")
    if args.degree is not None and args.kernel != "polynomial":
        parser.error(f"--degree does not go with --kernel {args.kernel}")
    if args.kernel == "chi2" and args.standardize:
        parser.error(
            "--kernel chi2 is for columns that are not negative, as they are: say --no-standardize"
        )
    if args.groups is not None and args.criterion not in (None, "kfold", "auc"):
        parser.error(f"--groups does not go with --criterion {args.criterion}")
    check_order(parser, args)
    if not is_stream(args):
        if args.checkpoint is not None:
            parser.error(
                "--checkpoint is for rows that stream: name several files, a pattern or a folder, or say --stream"
            )
        return
    for option, said in (
        ("--groups", args.groups),
        ("--classify", args.classify),
        ("--one-hot", args.one_hot),
        ("--missing median", args.missing == "median"),
    ):
        if said:
            parser.error(f"{option} is for tables that are read whole: name one file")
    if args.kernel not in PLAIN and args.landmarks in (None, "auto"):
        parser.error(
            f"--kernel {args.kernel} on rows that stream takes a number of landmarks, as in --landmarks 1000; --kernel linear takes none"
        )


def check_order(parser: Parser, args) -> None:
    """Options that do not go with the order of rows."""
    if not (args.rank or args.criterion == "auc"):
        return
    what = "--rank" if args.rank else "--criterion auc"
    if args.tune:
        parser.error(
            f"--tune does not go with {what}, which has no gradient: tune without it, and give --width"
        )
    if is_stream(args):
        parser.error(f"{what} is for tables that are read whole: name one file")
    if args.rank and not args.intercept:
        parser.error("--no-intercept does not go with --rank, in which a constant has no part")
    if args.rank and args.criterion == "kfold" and args.groups is None:
        parser.error(
            "--criterion kfold with --rank leaves out whole groups: name their column with --groups"
        )


def add_predict(commands) -> None:
    """`predict`."""
    about = "Predict the rows of a table, or of a stream, with a saved model; where the target is there too, print the error on it."
    parser = add_command(commands, "predict", "predict with a saved model", about)
    parser.add_argument(
        "model", metavar="MODEL", help="file written by fit --out, or by jaxrls.save"
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        nargs="+",
        help="file, files, pattern or folder; columns are found by name where both files have names",
    )
    ends = "columns lower and upper too, which hold a label with this probability, such as 0.9 (of a model fitted with --intervals)"
    parser.add_argument("--interval", type=level, metavar="P", help=ends)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="file to write, .npy, .parquet, .arrow or CSV; by default predictions are printed",
    )
    add_reading(parser)
    parser.set_defaults(run=run_predict)
