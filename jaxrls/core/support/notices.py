"""What a caller sees of a call besides its result: warnings, progress bars, numbers in words."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

# Above it a progress bar shows counts in thousands and millions.
MANY = 10_000


def warn(message: str) -> None:
    """Warn at the line outside of the library, and of scikit-learn, that called it."""
    frame = sys._getframe()
    level = 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("jaxrls.", "sklearn.")):
        frame = frame.f_back
        level = level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


# For outputs whose encoding lacks them, as files on Windows.
IN_ASCII = str.maketrans(
    {"λ": "lambda", "²": "2", "τ": "tau", "√": "sqrt", "×": "x", "±": "+/-", "≤": "<=", "−": "-"}
)


def printable(text: str) -> str:
    """A text that standard output can show: its encoding may lack λ and the like."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(IN_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def in_words(number: int | float, unit: str = "B") -> str:
    """A number with three digits and an SI prefix, as in 1.23 GB."""
    power = min(6, int(np.log10(max(number, 1)) // 3))
    return f"{number / 1000**power:.3g} {['', 'k', 'M', 'G', 'T', 'P', 'E'][power]}{unit}"


@contextmanager
def progress_bar(
    shown: bool, total: int | None, what: str, unit: str
) -> Iterator[Callable[[int], None]]:
    """A function that moves the progress bar to a count, or does nothing where the bar is not
    `shown`; without a `total` the bar shows no remaining time.

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
