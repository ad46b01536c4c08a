"""One command from what is typed to its exit code, and one line where something is wrong."""

import argparse
import glob
import os
import sys
import warnings
from collections.abc import Callable, Sequence

import jaxrls as rls
from jaxrls.cli.demo import run_demo
from jaxrls.cli.fitting import run_fit
from jaxrls.cli.predicting import run_predict
from jaxrls.io.named import CRITERIA, KERNELS, PLAIN, POLYNOMIAL, RADIAL

EPILOG = """\
example:
  {prog} fit train.csv --target price --tune --out model.safetensors
  {prog} predict model.safetensors new.csv --out predictions.csv

DATA is a table: .csv or .csv.gz with a line of names, .parquet, .arrow or .feather (these need pyarrow), .npz with arrays X and y, or .npy;
or files of any number and size, as names, a pattern or a folder, whose rows are streamed.
"""


def main(
    argv: Sequence[str] | None = None,
    prog: str = "python -m jaxrls",
    prepare: Callable | None = None,
) -> int:
    """Run one command; 0 if all went well, 2 with one line on stderr if the data or the usage were
    wrong.

    `prog` is what it was called as; `prepare` sees the arguments before the command runs: a process
    of its own sets itself up by them."""
    parser = make_parser(prog)
    args = parser.parse_args(argv)
    for words in filter(None, args.check(args)):
        parser.error(words)
    if prepare is not None:
        prepare(args)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            args.run(args)
    except BrokenPipeError:
        raise
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}" if error.filename else error)
    except (ValueError, ImportError) as error:  # of an extra that is not installed
        return complain(error)
    except MemoryError as error:
        return complain(f"out of memory: {error or 'use fewer rows, or --landmarks'}")
    for warning in caught:
        if warning.category is UserWarning:
            complain(f"warning: {warning.message}")
    return 0


def complain(message) -> int:
    """One line on stderr."""
    print("jaxrls: " + " ".join(str(message).split()), file=sys.stderr)
    return 2


class Parser(argparse.ArgumentParser):
    """Wrong usage is told in one line."""

    def __init__(self, **options):
        wide = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30)
        super().__init__(formatter_class=wide, allow_abbrev=False, **options)

    def error(self, message):
        """Exit with code 2."""
        self.exit(2, f"jaxrls: {message} (see {self.prog} --help)\n")


def names(text: str) -> list[str]:
    """Columns separated by commas."""
    return text.split(",")


def lams(text: str) -> int | str | list[float]:
    """How many λ, those that are named, or "search"."""
    if text == "search" or text.isdecimal():
        return int(text) if text.isdecimal() else text
    return [float(part) for part in text.split(",")]


def landmarks(text: str) -> int | str:
    """How many, or "auto"."""
    return text if text == "auto" else int(text)


def make_parser(prog: str = "python -m jaxrls") -> Parser:
    """All that can be typed, after what calls it."""
    about = (
        "Regularized least squares with the best regularisation by exact leave-one-out. "
        "Without a command: a demo."
    )
    parser = Parser(prog=prog, description=about, epilog=EPILOG.format(prog=prog))
    parser.add_argument("--version", action="version", version=f"jaxrls {rls.__version__}")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help=CACHE)
    parser.set_defaults(run=run_demo, check=lambda args: (), prog=prog)
    commands = parser.add_subparsers(title="commands", metavar="fit | predict")
    for add, name, summary, about in (
        (add_fit, "fit", "fit a table, or rows that stream", FIT),
        (add_predict, "predict", "predict with a saved model", PREDICT),
    ):
        options: dict = {"help": summary, "description": about, "epilog": parser.epilog}
        command = commands.add_parser(name, **options)
        add(command.add_argument)
        option = command.add_argument_group("reading").add_argument
        option("--stream", action="store_true", help=STREAM)
        option("--no-header", dest="header", action="store_false", help=HEADER)
        default = argparse.SUPPRESS
        option("--no-cache", dest="cache", action="store_false", default=default, help=CACHE)
    commands.choices["fit"].set_defaults(run=run_fit, check=check_fit)
    commands.choices["predict"].set_defaults(run=run_predict)
    return parser


CACHE = "compile anew, and keep no compiled programs in the user's cache folder for the next call"
STREAM = "read in blocks what need not fit into memory; implied but for one file"
HEADER = "the first line of CSV files is data, and columns go by number"
FIT = (
    "Fit a table, choose lambda among a whole grid by exact leave-one-out, and print what it found."
)
PREDICT = (
    "Predict the rows of a table, or of a stream, with a saved model; where the target is there "
    "too, print the error on it."
)


def add_fit(option: Callable) -> None:
    """`fit`."""
    option(
        "data",
        metavar="DATA",
        nargs="+",
        help="file, files, pattern or folder; all columns but those named below are inputs",
    )
    option(
        "--target", metavar="T", help="column to predict, by name or number; by default the last"
    )
    option("--weights", metavar="COL", help="column of sample weights")
    option(
        "--groups",
        metavar="COL",
        help="column of labels: rows of one label are left out together (--criterion kfold), or "
        "ordered among themselves (pairs, --rank)",
    )
    option("--columns", type=names, metavar="A,B,...", help="the inputs")
    option("--drop", type=names, default=[], metavar="A,B,...", help="columns to leave out")
    option(
        "--one-hot",
        action="append",
        default=[],
        metavar="COL",
        help="column of text to make an indicator of every category of; may be repeated",
    )
    option(
        "--missing",
        choices=("drop", "median"),
        help="leave out rows in which a value is missing, or put the median of an input; else "
        "they are an error",
    )
    option("--classify", action="store_true", help="the target holds labels (implied by text)")
    option(
        "--rank",
        action="store_true",
        help="fit the order of the target, not its values, within --groups where they are named",
    )
    option(
        "--no-standardize",
        dest="standardize",
        action="store_false",
        help="leave inputs in their units",
    )
    option(
        "--no-intercept", dest="intercept", action="store_false", help="fit no unpenalised constant"
    )
    option(
        "--kernel",
        choices=[name for name in KERNELS if name != "precomputed"],
        default="gaussian",
        metavar="NAME",
        help="%(choices)s; %(default)s by default",
    )
    option(
        "--width",
        type=float,
        help="kernel width in units of the inputs as fitted; by default their median distance",
    )
    option("--degree", type=int, default=2, help="of the polynomial kernel, 2 by default")
    option("--tune", action="store_true", help="tune the kernel by the gradient of the criterion")
    option(
        "--criterion",
        choices=CRITERIA,
        help="what to minimise; loo (leave-one-out) by default, pairs with --rank",
    )
    option(
        "--folds", type=int, default=10, help="of kfold without --groups, %(default)s by default"
    )
    option(
        "--lams",
        type=lams,
        default=100,
        metavar="N",
        help="how many lambdas, or which ones as 0.1,1,10, or search; %(default)s by default",
    )
    option(
        "--landmarks",
        type=landmarks,
        metavar="M",
        help="carry the solution by M rows, or by as many as needed (auto): past 10000 rows",
    )
    option("--plot", metavar="PICTURE", help="draw the error over lambda (needs matplotlib)")
    option(
        "--checkpoint",
        metavar="PATH",
        help="keep the sums of a stream in this file as they grow: after a kill the same command "
        "goes on from there",
    )
    option(
        "--intervals",
        action="store_true",
        help="keep in the model what predict --interval takes: n x n numbers for n rows, n x M "
        "with --landmarks M",
    )
    option("--out", metavar="MODEL", help="save the model, as .safetensors, for predict")


def add_predict(option: Callable) -> None:
    """`predict`."""
    option("model", metavar="MODEL", help="file written by fit --out, or by jaxrls.save")
    option(
        "data",
        metavar="DATA",
        nargs="+",
        help="file, files, pattern or folder; columns are found by name where both files have names",
    )
    option(
        "--interval",
        type=float,
        metavar="P",
        help="columns lower and upper too, which hold a label with this probability, such as 0.9 "
        "(of a model fitted with --intervals)",
    )
    option(
        "--out",
        metavar="FILE",
        help="file to write, .npy, .parquet, .arrow or CSV; by default predictions are printed",
    )


def check_fit(args):
    """Options that do not go together, in words."""
    path = args.data[0]
    several = len(args.data) > 1 or os.path.isdir(path)
    several = several or glob.has_magic(path) and not os.path.exists(path)
    args.stream = args.stream or several
    ordered = args.rank or args.criterion == "pairs"
    whole = ("groups", "classify", "one_hot", "rank")
    said = [name for name in whole if getattr(args, name)]
    said += ["missing median"] * (args.missing == "median")
    if args.stream and said:
        yield f"--{said[0].replace('_', '-')} is for tables that are read whole: name one file"
    if args.checkpoint and not args.stream:
        yield "--checkpoint is for rows that stream: name several files, or say --stream"
    if args.stream and args.kernel not in PLAIN and args.landmarks in (None, "auto"):
        yield (
            "rows that stream take a number of landmarks, as in --landmarks 1000, or --kernel linear"
        )
    if args.width is not None and args.kernel not in RADIAL:
        yield f"--width does not go with --kernel {args.kernel}"
    if args.degree != 2 and args.kernel not in POLYNOMIAL:
        yield f"--degree does not go with --kernel {args.kernel}"
    if args.tune and ordered:
        yield "--tune takes a gradient, which the order of pairs has not: give --width"
    if args.rank and args.criterion == "kfold" and args.groups is None:
        yield "--criterion kfold with --rank leaves out whole groups: name them with --groups"
