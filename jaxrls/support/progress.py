"""A progress bar on request: tqdm, which is imported only then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

MANY = 10_000  # from which on counts are told in thousands and millions


@contextmanager
def progress_bar(
    shown: bool, total: int | None, what: str, unit: str
) -> Iterator[Callable[[int], None]]:
    """A function that moves the bar to a count, or does nothing where no bar is `shown`; without a
    `total` no time left is told.

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
