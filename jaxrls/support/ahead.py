"""Read ahead: a thread that makes the next items while the last one is worked on."""

import queue
import threading
from collections.abc import Iterable, Iterator

END = object()


def ahead(items: Iterable, depth: int = 2) -> Iterator:
    """The same items in the same order, up to `depth` of them made before they are asked for; an
    error is raised where its item would come.

    >>> list(ahead(range(3)))
    [0, 1, 2]
    """
    made: queue.Queue = queue.Queue(depth)
    left = threading.Event()

    def put(item, error=None) -> bool:
        while not left.is_set():
            try:
                made.put((item, error), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work():
        try:
            for item in items:
                if not put(item):
                    return
            put(END)
        except BaseException as error:  # whatever it is, it belongs to the one who reads
            put(END, error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if error is not None:
                raise error
            if item is END:
                return
            yield item
    finally:
        left.set()
        thread.join()
