"""The context `ONE_THREAD`, in which LAPACK runs on one thread. It is used for small matrices.

On CPUs JAX's decompositions run on SciPy's OpenBLAS, whose threads wait for each other without
sleeping. If other programs use the cores, a decomposition of some hundred rows on several threads
takes many times as long as on one.
"""

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def of_openblas() -> tuple[Callable, Callable] | None:
    """Return two functions that read and set the number of threads of SciPy's OpenBLAS.

    None if SciPy uses another library than the OpenBLAS of its wheel.
    """
    import scipy  # imported late, because it takes time

    root = Path(scipy.__file__).parent
    for path in (*root.parent.glob("scipy.libs/*openblas*"), *root.glob(".dylibs/*openblas*")):
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(path))
            return library.scipy_openblas_get_num_threads, library.scipy_openblas_set_num_threads
    return None


class OneThread:
    """A context in which LAPACK has one thread.

    Several threads of Python may be inside at once. When the last one leaves, LAPACK has as many
    threads as before.
    """

    lock = threading.Lock()
    within = 0
    before = 1

    def __enter__(self):
        self._change(1)

    def __exit__(self, *error):
        self._change(-1)

    def _change(self, more: int) -> None:
        """Count callers that enter (1) or leave (−1), and set the number of LAPACK's threads."""
        if not (calls := of_openblas()):
            return
        read, put = calls
        with self.lock:
            if not self.within:
                self.before = read()
            self.within += more
            put(1 if self.within else self.before)


ONE_THREAD = OneThread()
