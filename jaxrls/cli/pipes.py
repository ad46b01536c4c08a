"""Copy tables that come through a pipe to temporary files, as a table is read several times."""

import os
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

# The first bytes of a file, and the ending that its copy gets. Anything else is CSV.
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
    """Whether a path is standard input, an open descriptor, or a pipe of the file system.

    Shells make descriptors for `<(...)`.
    """
    if path == "-" or path.startswith(DESCRIPTORS):
        return True
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def pipes_copied(args: Namespace) -> Iterator[None]:
    """Replace the pipes in `args.data` by copies, which exist until the `with` block ends.

    `args.copies` gets the name of each pipe, by the path of its copy.
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
    """Copy what comes through the pipe `path`, and return the path of the copy.

    It is `name` with the ending of the format that the first bytes show.
    """
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
