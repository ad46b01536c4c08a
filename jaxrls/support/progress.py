"""A progress bar on request: tqdm, which is imported only then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(shown: bool, total: int, what: str, unit: str) -> Iterator[Callable[[int], None]]:
    """A function that moves the bar to a count, or does nothing where no bar is `shown`.

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
    with tqdm(total=total, desc=what, unit=unit) as bar:
        yield lambda count: bar.update(count - bar.n) and None
