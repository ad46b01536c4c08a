"""Tables that come through a pipe, as copies in temporary files: a table is read several times."""

import os
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

# How a file begins, and the ending of its name; anything else is CSV.
BEGINNINGS = {
    b"\x1f\x8b": ".csv.gz",
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
    b"\x93NUMPY": ".npy",
    b"PK\x03\x04": ".npz",
}
STANDARD_INPUT = "-", "/dev/stdin"
DESCRIPTORS = *STANDARD_INPUT[1:], "/dev/fd/", "/proc/self/fd/"


def is_pipe(path: str) -> bool:
    """Whether a path is standard input, an open descriptor as shells make for `<(...)`, or a pipe
    of the file system.
    """
    if path == "-" or path.startswith(DESCRIPTORS):
        return True
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def pipes_copied(args: Namespace) -> Iterator[None]:
    """Copies in place of the pipes in `args.data`, until the block ends; `args.copies` has what
    each copy is called.
    """
    if not any(map(is_pipe, args.data)):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="jaxrls-") as folder:
        for i, path in enumerate(args.data):
            if is_pipe(path):
                copy = copy_of(path, os.path.join(folder, str(i)))
                args.data[i] = copy
                args.copies[copy] = "standard input" if path in STANDARD_INPUT else path
        yield


def copy_of(path: str, name: str) -> str:
    """The path of a copy: this name, with the ending of what comes through the pipe."""
    with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as pipe:
        if pipe.isatty():
            raise ValueError(
                f"{path} is a terminal: let another command write a table to it, or name a file"
            )
        first = pipe.read(max(map(len, BEGINNINGS)))
        endings = (end for begin, end in BEGINNINGS.items() if first.startswith(begin))
        copy = name + next(endings, ".csv")
        with open(copy, "wb") as file:
            file.write(first)
            shutil.copyfileobj(pipe, file)
    return copy
