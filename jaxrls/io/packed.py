"""How much a compressed file may become in memory: a file of 1 MB can hold 1 GB of zeros."""

import gzip
import os
import zlib

# Real tables shrink to a tenth or so; zeros in long runs shrink a thousandfold, and a program that meets them without warning is out of memory.
MAX_INFLATION = 100.0
ALWAYS = 16 * 2**20  # bytes that any file may become
PIECE = 2**20


class Refused(ValueError):
    """Said in full, to be passed on as it is."""


class Budget:
    """The bytes that what is read from one file may still take."""

    def __init__(self, path, max_inflation: float | int):
        if not max_inflation > 0:
            raise ValueError(f"max_inflation must be a number above 0, and is {max_inflation!r}")
        self.path, self.packed = path, max(os.stat(path).st_size, 1)
        self.left = self.limit = max(ALWAYS, max_inflation * self.packed)

    def take(self, size: int) -> None:
        """Take `size` bytes, or raise where the file would become larger than it may."""
        self.left -= size
        if self.left < 0:
            raise Refused(
                f"{self.path} has {self.packed} bytes and becomes more than {self.limit:.0f} in memory, which is too much for a file that is not "
                f"trusted: if it is, unpack it first, or say max_inflation above {self.limit / self.packed:.0f} (--max-inflation on the command line)"
            )


def check_gzip(path, max_inflation: float | int) -> None:
    """Raise `ValueError` unless a gzip file is whole and becomes no larger than it may: one pass that keeps nothing."""
    budget = Budget(path, max_inflation)
    try:
        with gzip.open(path, "rb") as file:
            while size := len(file.read(PIECE)):
                budget.take(size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from None
