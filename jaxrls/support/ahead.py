"""Read ahead: a thread that makes the next items while the last one is worked on."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

END = object()


def ahead(items: Iterable, depth: int = 2) -> Iterator:
    """The same items in the same order, up to `depth` of them made before they are asked for; an
    error is raised where its item would come.

    >>> list(ahead(range(3)))
    [0, 1, 2]
    """
    source = iter(items)
    with ThreadPoolExecutor(1) as thread:
        made = deque(thread.submit(next, source, END) for _ in range(depth))
        while (item := made.popleft().result()) is not END:
            made.append(thread.submit(next, source, END))
            yield item
