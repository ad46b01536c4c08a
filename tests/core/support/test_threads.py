"""Four threads, in two dtypes, each on another route, and through another door: the same bits
as one after the other.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import scipy

import jaxrls as rls
from jaxrls.core.support import threads

THREADS, ROUNDS = 4, 2
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 2)), RNG.normal(size=(20, 2))
LAMS = np.array([1e-3, 0.1, 1.0, 100.0, 1e4])
WAYS = {
    "gram": (rls.Gaussian(1.0), {"solver": rls.Spectral("gram")}),
    "features": (rls.Linear(), {"solver": rls.Spectral("features")}),
    "cholesky": (rls.Gaussian(1.0), {"solver": rls.Cholesky()}),
    "landmarks": (rls.Gaussian(1.0), {"landmarks": np.array([1, 5, 7, 12])}),
}
TASKS = [*zip(WAYS, [np.float64, np.float32] * 2, strict=True)]


def bits(way, dtype):
    """Every number of a fit in this dtype, and its predictions."""
    kernel, options = WAYS[way]
    fit = rls.fit(
        kernel,
        X.astype(dtype),
        Y.astype(dtype),
        lams=LAMS.astype(dtype),
        weights=np.abs(Y[:, 0]).astype(dtype),
        **options,
    )
    found = [np.asarray(leaf) for leaf in jax.tree.leaves((fit, fit.predict(X.astype(dtype))))]
    assert {leaf.dtype for leaf in found if leaf.dtype.kind == "f"} == {np.dtype(dtype)}
    return [(leaf.dtype.name, leaf.shape, leaf.tobytes()) for leaf in found]


@pytest.mark.filterwarnings("ignore:the chosen λ")
def test_lapack_has_one_thread_for_few_rows_and_then_as_many_as_before(monkeypatch):
    """Also after an error, and while another caller is still within."""
    number, put = [7], []
    calls = lambda: number[0], lambda threads: (put.append(threads), number.__setitem__(0, threads))
    monkeypatch.setattr(threads, "of_openblas", lambda: calls)
    rls.fit(rls.Gaussian(1.0), X, Y, lams=LAMS)
    assert 1 in put and number == [7]
    put.clear()
    long = np.linspace(0, 1, 1100)[:, None]
    rls.fit(rls.Linear(), long, long[:, 0], lams=LAMS)
    assert not put
    with threads.ONE_THREAD:
        with pytest.raises(ZeroDivisionError), threads.ONE_THREAD:
            1 / 0  # noqa: B018
        assert number == [1]
    assert number == [7]


def test_the_openblas_of_scipy_is_found():
    """In the wheels of Linux, which this tests where SciPy has that library."""
    found = threads.of_openblas()
    build = scipy.show_config(mode="dicts")["Build Dependencies"]["lapack"]["name"]
    assert build != "scipy-openblas" or found[0]() >= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the chosen λ", "ignore:λ below")
def test_threads_do_not_meet():
    """Each thread begins with another task, so that every two of them are at work together in some
    round; the first round compiles.
    """
    together = threading.Barrier(THREADS)

    def work(number):
        found = []
        for turn in range(ROUNDS * len(TASKS)):
            if turn % len(TASKS) == 0:
                together.wait(timeout=120)
            task = TASKS[(number + turn) % len(TASKS)]
            found.append((task, bits(*task)))
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        found = [pair for part in pool.map(work, range(THREADS)) for pair in part]
    alone = {task: bits(*task) for task in TASKS}
    for task, got in found:
        assert got == alone[task], task
