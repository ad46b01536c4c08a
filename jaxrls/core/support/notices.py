"""Output for the caller besides results: warnings, progress bars, and numbers in words."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

# If the total is above this, a progress bar shows counts in thousands and millions.
MANY = 10_000


def warn(message: str) -> None:
    """Warn at the line of the caller's code, outside of this library and of scikit-learn."""
    frame = sys._getframe()
    level = 1
    # `functools` calls functions that are registered for a class of solvers, or of factors.
    inside = ("jaxrls.", "sklearn.", "functools")
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(inside):
        frame = frame.f_back
        level = level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


# Replacements for symbols that the encoding of the output lacks, as for files on Windows.
IN_ASCII = str.maketrans(
    {"λ": "lambda", "²": "2", "τ": "tau", "√": "sqrt", "×": "x", "±": "+/-", "≤": "<=", "−": "-"}
)


def printable(text: str) -> str:
    """Return a text that standard output can show, whose encoding may lack λ and other symbols."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(IN_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def in_words(number: int | float, unit: str = "B") -> str:
    """Return a number with three digits, an SI prefix and its unit, such as "1.23 GB"."""
    power = min(6, int(np.log10(max(number, 1)) // 3))
    return f"{number / 1000**power:.3g} {['', 'k', 'M', 'G', 'T', 'P', 'E'][power]}{unit}"


@contextmanager
def progress_bar(
    shown: bool, total: int | None, what: str, unit: str
) -> Iterator[Callable[[int], None]]:
    """Make a context with a progress bar. Its value is a function that moves the bar to a count.

    Args:
        shown: whether there is a bar. Otherwise the function does nothing.
        total: the count at the end; None if it is not known, and no remaining time is shown.
        what: the words in front of the bar.
        unit: the unit of the count.

    >>> with progress_bar(False, 10, "search", "step") as reached:
    ...     reached(5)
    """
    if not shown:
        yield lambda count: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install 'jaxrls[plot]'") from None
    with tqdm(total=total, desc=what, unit=unit, unit_scale=total is None or total > MANY) as bar:
        yield lambda count: bar.update(count - bar.n) and None
