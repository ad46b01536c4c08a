"""What criteria are called in pictures and reports, and progress bars with tqdm, which is imported
when it is needed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

TITLES = {
    "loo": "leave-one-out error",
    "gcv": "GCV error",
    "kfold": "error of folds left out",
    "holdout": "hold-out error",
}
# Shares of pairs in the wrong order, for which plots show the share in the right one: AUC, or the
# concordance index.
ORDERED = {
    "pairwise_ranking_error": "AUC (concordance), pairs left out",
    "query_ranking_error": "AUC (concordance), queries left out",
}


def title(criterion: str) -> str:
    """The axis label of a criterion; likelihoods are plotted with a minus, as smaller is better
    there.
    """
    sign = "− " * criterion.startswith("log_")
    return (TITLES | ORDERED).get(criterion, sign + criterion.replace("_", " "))


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
