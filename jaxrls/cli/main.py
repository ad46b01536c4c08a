"""The entry of the command line: `main` parses arguments and runs one command.

Errors of the data become one line on stderr and an exit code.
"""

import argparse
import contextlib
import glob
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import jax

import jaxrls as rls
from jaxrls.cli.fitting import run_fit
from jaxrls.cli.pipes import is_pipe, pipes_copied
from jaxrls.cli.predicting import run_predict
from jaxrls.cli.report import run_demo
from jaxrls.cli.words import shown, typed
from jaxrls.core.criteria import CRITERIA
from jaxrls.core.kernels import KERNELS, PLAIN, POLYNOMIAL, RADIAL
from jaxrls.rows.sources import paths_of


def names(text: str) -> list[str]:
    """Return the names of columns, which are separated by commas."""
    return text.split(",")


def character(text: str) -> str:
    r"""Return the one character that was typed. A tab may be typed as `tab` or `\t`."""
    text = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(text) != 1:
        raise argparse.ArgumentTypeError(f"must be one character, such as ; or tab, not {text!r}")
    return text


def lams(text: str) -> int | str | list[float]:
    """Return how many λ to try, a list of λ, or "search"."""
    if text == "search":
        return text
    try:
        return int(text) if text.isdecimal() else [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be how many, such as 100, or which, such as 0.1,1,10, or search, not {text!r}"
        ) from None


def landmarks(text: str) -> int | str:
    """Return how many landmarks to take, or "auto"."""
    return text if text == "auto" else int(text)


EPILOG = """\
example:
  {prog} fit train.csv --target price --tune --out model.safetensors
  {prog} predict model.safetensors new.csv --out predictions.csv

DATA is a table: .csv or .tsv with a line of names, also with .gz after it, .parquet, .arrow or
.feather (these need pyarrow), .npz with arrays X and y, or .npy. Several files, a pattern or a
folder are read as one stream of rows, of any size. - is standard input.
"""
# Tables of options. An entry is what can be typed, two spaces or more, and its help. "--width W"
# takes a value. "--tune" sets `tune` to True. "--no-cache" sets `cache` to False.
CACHE = """
--no-cache         do not keep compiled programs in the user's cache folder for the next call
"""
READING = """
--stream           read rows in blocks, which need not fit into memory; always for several files
--no-header        the first line of CSV files is data, and columns go by number
--sep S            what separates the columns of CSV files: a comma by default, a tab in .tsv files
--decimal S        the decimal sign of CSV files, %(default)s by default
--encoding NAME    of CSV files, such as latin-1; %(default)s by default
"""
FIT = """
data DATA          file, files, pattern or folder; all columns but those named below are inputs
--target T         column to predict, by name or number; by default the last
--weights COL      column of sample weights
--groups COL       column of labels: rows of one label are left out together (--criterion kfold),
                   or ordered among themselves (pairs, --rank)
--columns A,B,...  the inputs
--drop A,B,...     columns to leave out
--one-hot A,B,...  columns of text that become an indicator of each category
--days A,B,...     columns of dates that become a number of days
--yearly A,B,...   columns of dates that become two inputs for the part of the year, its cosine and
                   sine, which go on from December to January
--missing HOW      drop: leave out rows with a missing value; median: fill in the median of the
                   input, and make a missing category one of its own; by default an error
--classify         the target holds class labels (always if it is text): predict writes labels,
                   their probabilities and scores
--rank             fit the order of the target, not its values, within --groups where they are
                   named
--no-standardize   do not standardize the inputs
--no-intercept     fit no constant
--kernel NAME      %(choices)s; %(default)s by default
--width W          kernel width in units of the inputs as fitted; by default their median distance
--degree D         of the polynomial kernel, %(default)s by default
--tune             tune the kernel by the gradient of the criterion; a single lambda is held
--ard              with --tune, a width for each input
--criterion NAME   what to minimise: %(choices)s; by default loo (leave-one-out), with --rank
                   pairs
--folds K          of kfold without --groups, 10 by default
--lams N           how many lambdas, or which, such as 0.1,1,10, or search; %(default)s by default
--landmarks M      approximate the kernel matrix on M rows, or on as many as needed (auto): for more
                   than 10000 rows
--plot PICTURE     draw the error over lambda (needs matplotlib)
--checkpoint PATH  save the sums of a stream in this file as they grow: if it is killed, the same
                   command continues from there
--intervals        keep in the model what predict --interval needs: n x n numbers for n rows,
                   n x M with --landmarks M
--out MODEL        save the model, as .safetensors, for predict
"""
PREDICT = """
model MODEL        file written by fit --out, or by jaxrls.save
data DATA          file, files, pattern or folder; columns are found by name where both files have
                   names
--interval P       also write columns lower and upper, which hold a label with this probability,
                   such as 0.9 (needs a model fitted with --intervals)
--missing HOW      drop: leave out rows with a missing input; median: fill in the medians of the
                   fitted table, which is the default where it was fitted so; else an error
--unknown HOW      zero: rows with a category that the model was not fitted with have 0 in all its
                   indicators; by default an error
--keep A,B,...     columns of DATA to write before the predictions, as text
--out FILE         file to write, .npy, .parquet, .arrow or CSV; - or by default predictions are
                   printed
"""
# What `add_argument` needs to know of options whose value is not text.
KINDS: dict = {
    "data": {"nargs": "+"},
    "--columns": {"type": names},
    "--drop": {"type": names, "default": []},
    "--one-hot": {"action": "extend", "type": names, "default": []},
    "--keep": {"type": names, "default": []},
    "--sep": {"type": character},
    "--decimal": {"type": character, "default": "."},
    "--encoding": {"default": "utf-8"},
    "--days": {"action": "extend", "type": names, "default": []},
    "--yearly": {"action": "extend", "type": names, "default": []},
    "--unknown": {"choices": ("zero",)},
    "--missing": {"choices": ("drop", "median")},
    "--kernel": {"choices": [k for k in KERNELS if k != "precomputed"], "default": "gaussian"},
    "--width": {"type": float},
    "--degree": {"type": int, "default": 2},
    "--criterion": {"choices": CRITERIA},
    "--folds": {"type": int},
    "--lams": {"type": lams, "default": 100},
    "--landmarks": {"type": landmarks},
    "--interval": {"type": float},
}


class Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line."""

    def __init__(self, **options) -> None:
        wide = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30)
        super().__init__(formatter_class=wide, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print the message in one line, and exit with code 2."""
        self.exit(2, f"jaxrls: {shown(message)} (see {self.prog} --help)\n")


def add(parser: Any, table: str, **common) -> None:
    """Add every entry of a table of options to a parser.

    The help of an entry may continue in indented lines. `common` are options of `add_argument` for
    all entries.
    """
    for entry in re.split(r"\n(?=\S)", table.strip()):
        typed, words = re.split("  +", entry, maxsplit=1)
        flag, _, value = typed.partition(" ")
        options = KINDS.get(flag, {}) | common
        if value:
            options |= {"metavar": value}
        elif flag.startswith("--no-"):
            options |= {"action": "store_false", "dest": flag[5:]}
        else:
            options |= {"action": "store_true"}
        parser.add_argument(flag, help=" ".join(words.split()), **options)


def make_parser(prog: str = "python -m jaxrls") -> Parser:
    """Make the parser of all commands, for a program that is called as `prog`."""
    about = (
        "Regularized least squares with lambda chosen by exact leave-one-out. "
        "Without a command: a demo."
    )
    parser = Parser(prog=prog, description=about, epilog=EPILOG.format(prog=prog))
    parser.add_argument("--version", action="version", version=f"jaxrls {rls.__version__}")
    add(parser, CACHE)
    parser.set_defaults(data=[], run=run_demo, check=lambda args: (), prog=prog)
    commands = parser.add_subparsers(title="commands", metavar="fit | predict")
    for run, name, table, about in (
        (
            run_fit,
            "fit",
            FIT,
            "fit a table or a stream of rows, with lambda chosen by exact leave-one-out",
        ),
        (run_predict, "predict", PREDICT, "predict with a saved model, and print its error"),
    ):
        command = commands.add_parser(name, help=about, description=about, epilog=parser.epilog)
        command.set_defaults(run=run)
        add(command, table)
        group = command.add_argument_group("reading")
        add(group, READING)
        add(group, CACHE, default=argparse.SUPPRESS)
    commands.choices["fit"].set_defaults(check=check_fit)
    return parser


def are_there(paths: list[str]) -> bool:
    """Whether all paths, patterns and folders name existing files, or are pipes."""
    try:
        return bool(paths_of(path for path in paths if not is_pipe(path)) or paths)
    except (OSError, ValueError):
        return False


def check_fit(args: argparse.Namespace) -> Iterator[str]:
    """Yield a message for each set of options of `fit` that do not go together.

    `args.stream` is set to True if several files are named, or a folder or a pattern.
    """
    path = args.data[0]
    pattern = os.path.isdir(path) or glob.has_magic(path) and not os.path.exists(path)
    args.stream |= len(args.data) > 1 or pattern
    options = ("groups", "classify", "one_hot", "rank")
    whole = [name for name in options if getattr(args, name)]
    if args.missing == "median":
        whole.append("missing median")
    if args.stream and whole:
        yield f"--{whole[0].replace('_', '-')} needs a table that is read whole: name one file"
    if args.checkpoint and not args.stream:
        yield "--checkpoint needs a stream of rows: name several files, or add --stream"
    needs_number = args.kernel not in PLAIN and args.landmarks in (None, "auto")
    if args.stream and needs_number and are_there(args.data):  # else reading raises, naming files
        yield "a stream of rows needs a number of landmarks (--landmarks 1000) or --kernel linear"
    if args.width is not None and args.kernel not in RADIAL:
        yield f"--width does not go with --kernel {args.kernel}"
    if args.degree != 2 and args.kernel not in POLYNOMIAL:
        yield f"--degree does not go with --kernel {args.kernel}"
    if args.ard and not (args.tune and args.kernel in RADIAL):
        yield "--ard tunes a width for each input: give --tune and a kernel that has a width"
    if args.tune and (args.rank or args.criterion == "pairs"):
        yield "--tune needs a gradient, which the order of pairs does not have: give --width"
    if args.rank and args.intervals:
        yield "--intervals hold labels, and --rank gives scores in other units: leave one out"
    if args.groups and args.criterion not in (None, "kfold", "pairs"):
        yield f"--groups leaves groups out, and --criterion {args.criterion} does not: leave it out"
    if args.folds is not None and (args.criterion != "kfold" or args.groups):
        yield "--folds goes with --criterion kfold, without --groups: give that, or leave it out"
    if args.rank and args.criterion == "kfold" and args.groups is None:
        yield "--criterion kfold with --rank holds out whole groups: name them with --groups"


def main(
    argv: Sequence[str] | None = None, prog: str = "python -m jaxrls", keep: bool = False
) -> int:
    """Run one command, and return its exit code: 0, or 2 if the data were wrong.

    Print one line on stderr for an error and for each warning. Wrong usage exits with code 2.

    Args:
        argv: the arguments; None for those of the process.
        prog: the name by which the program was called.
        keep: whether compiled programs may be kept for the next call. This changes settings of JAX,
            so only a process that runs nothing else may ask for it.
    """
    parser = make_parser(prog)
    args = parser.parse_args(argv)
    args.copies = {}
    for words in args.check(args):
        parser.error(words)
    if keep and args.cache:
        keep_programs()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        code = exit_code(args)
    words = [str(warning.message) for warning in caught if warning.category is UserWarning]
    for warning in dict.fromkeys(words):
        complain(f"warning: {warning}", args.copies)
    return code


def exit_code(args: argparse.Namespace) -> int:
    """Run a command, and return 0. For an error, print one line on stderr and return 2."""
    try:
        with pipes_copied(args):
            args.run(args)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        checkpoint = getattr(args, "checkpoint", None)
        if checkpoint and os.path.exists(checkpoint):
            complain(f"stopped: the same command continues from {checkpoint}", args.copies)
        raise
    except OSError as error:
        words = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return complain(words, args.copies)
    except (ValueError, ImportError) as error:  # ImportError: an extra is missing
        return complain(str(error), args.copies)
    except MemoryError as error:
        words = f"out of memory: {error or 'use fewer rows, or --landmarks'}"
        return complain(words, args.copies)
    return 0


def complain(message: str, copies: dict[str, str]) -> int:
    """Print one line on stderr, and return 2. Paths of copies become the names of their pipes."""
    for copy, name in copies.items():
        message = message.replace(copy, name)
    print(f"jaxrls: {shown(typed(message))}", file=sys.stderr)
    return 2


# compiled programs: compilation takes most of the time of a short call
# --------------------------------------------------------------------------------------------------

MOST_BYTES = 512 * 2**20
SHORTEST = 0.05  # only programs that took so many seconds to compile are kept


def cache_folder() -> str:
    """Return the folder for compiled programs.

    It is `jaxrls/<machine>` in `$XDG_CACHE_HOME`, by default `~/.cache`. Each machine has a folder
    of its own, because programs are compiled for its processor.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "jaxrls", platform.node() or "here")


def keep_programs() -> None:
    """Let JAX keep compiled programs in files for the next call.

    Nothing is changed if the user has chosen a folder for JAX, or if the cache folder cannot be
    written. Only the command line does this: the library leaves JAX's settings as they are.
    """
    folder = cache_folder()
    chosen = jax.config.jax_compilation_cache_dir is not None
    if chosen or not os.path.isabs(folder):  # relative if the home folder is unknown
        return
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        forget_oldest(folder)
    except OSError:
        return
    if os.access(folder, os.W_OK | os.X_OK):
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)


def forget_oldest(folder: str, most: int = MOST_BYTES) -> None:
    """Remove the oldest files of a folder, until the others take at most `most` bytes."""
    files = [entry for entry in os.scandir(folder) if entry.is_file()]
    for entry in sorted(files, key=lambda entry: entry.stat().st_mtime, reverse=True):
        most -= entry.stat().st_size
        if most < 0:
            with contextlib.suppress(OSError):  # another process has removed it
                os.remove(entry)
