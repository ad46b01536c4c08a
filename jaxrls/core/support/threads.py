"""One thread of LAPACK where matrices are small: on CPUs JAX's decompositions run on SciPy's
OpenBLAS, whose threads wait for each other without sleeping. Where other work has the cores, a
decomposition of some hundred rows on several threads takes many times as long as on one.
"""

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def of_openblas() -> tuple[Callable, Callable] | None:
    """What reads and what sets the number of threads of the OpenBLAS in SciPy's wheel; None where
    SciPy has another library.
    """
    import scipy  # here, as its import takes time

    root = Path(scipy.__file__).parent
    for path in (*root.parent.glob("scipy.libs/*openblas*"), *root.glob(".dylibs/*openblas*")):
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(path))
            return library.scipy_openblas_get_num_threads, library.scipy_openblas_set_num_threads
    return None


class OneThread:
    """While any caller is within, LAPACK has one thread; then as many as before."""

    lock = threading.Lock()
    within = 0
    before = 1

    def __enter__(self):
        self._change(1)

    def __exit__(self, *error):
        self._change(-1)

    def _change(self, more: int) -> None:
        if not (calls := of_openblas()):
            return
        read, put = calls
        with self.lock:
            if not self.within:
                self.before = read()
            self.within += more
            put(1 if self.within else self.before)


ONE_THREAD = OneThread()
