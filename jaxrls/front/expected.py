"""How long a fit to many rows will take, said before it begins."""

import time

import jax
import jax.numpy as jnp

from jaxrls.core.data import gram_matmul
from jaxrls.core.fit import Problem
from jaxrls.core.support import warn

LONG = 120.0  # seconds from which on a caller is told
# Products of all of K with a few columns that take as long as a search for λ with its landmarks:
# measured once on a CPU, where half of a symmetric K is made, 100 at 17,000 rows. More rows take
# more of them.
PRODUCTS = 150
PROBES = 8  # columns of a product beside those of targets
ROWS = 512  # of K, of which a product is timed


def warn_of_long_fit(problem: Problem, searches: bool) -> None:
    """Warn where a fit by products of K will take long, from the time of a part of one product: at
    a λ that is given it takes a third of what one takes that `searches`.
    """
    products = PRODUCTS if searches else PRODUCTS / 3
    seconds = products * seconds_of_product(problem)
    if seconds < LONG:
        return
    n = problem.rows.count
    warn(
        f"K of {n} rows is too large to factor, and a fit by products of it will take about "
        f"{seconds / 60:.0f} minutes: landmarks=1000 takes a small part of that; progress=True "
        "shows how far a fit is"
    )


def seconds_of_product(problem: Problem) -> float:
    """The time of a product of K with a few columns, from that of some of its rows."""
    X = problem.rows.dense()
    n = X.shape[0]
    few = X[:ROWS]
    targets = problem.Y.size // n
    columns = jnp.ones((n, targets + PROBES), X.dtype)
    product = jax.jit(lambda few, X: gram_matmul(problem.kernel, few, X, columns))
    jax.block_until_ready(product(few, X))  # which compiles
    times = []
    for _ in range(2):
        began = time.perf_counter()
        jax.block_until_ready(product(few, X))
        times.append(time.perf_counter() - began)
    return min(times) * n / len(few)
