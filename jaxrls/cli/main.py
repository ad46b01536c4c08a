"""One command from arguments to exit code, and one line where something is wrong."""

import sys
import warnings
from collections.abc import Callable, Sequence

from jaxrls.cli.parser import make_parser


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
    if check := getattr(args, "check", None):
        check(parser, args)
    if prepare is not None:
        prepare(args)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            args.run(args)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
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
