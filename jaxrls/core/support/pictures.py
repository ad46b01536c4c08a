"""What criteria are called in pictures and reports, and progress bars with tqdm, which is imported
when it is needed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

MANY = 10_000  # above it the bar shows counts in thousands and millions


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
