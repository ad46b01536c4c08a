"""`warn_of_long_fit` warns before a fit to many rows that it will take minutes.

It measures the time of a part of a product of K, and multiplies.
"""

import time

import jax
import jax.numpy as jnp

from jaxrls.core.data import gram_matmul
from jaxrls.core.fit import Problem
from jaxrls.core.support import warn

LONG = 120.0  # a fit that takes at least this many seconds is worth a warning
# A fit with a search for λ takes as long as this many products of all of K with a few columns,
# including the choice of landmarks. One measurement on a CPU, where only half of the symmetric K is
# computed, gave 100 at 17,000 rows. More rows take more products.
PRODUCTS = 150
PROBES = 8  # the columns of a product besides those of the targets
ROWS = 512  # the number of rows of K whose product is timed


def warn_of_long_fit(problem: Problem, searches: bool) -> None:
    """Warn if a fit by products of K will take longer than LONG seconds.

    The time is estimated from that of a part of one product. A fit that does not search for λ takes
    a third of the time of a fit that `searches`.
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
    """Return the time of a product of K with a few columns, estimated from some of its rows."""
    X = problem.rows.dense()
    n = X.shape[0]
    few = X[:ROWS]
    targets = problem.Y.size // n
    columns = jnp.ones((n, targets + PROBES), X.dtype)
    product = jax.jit(lambda few, X: gram_matmul(problem.kernel, few, X, columns))
    jax.block_until_ready(product(few, X))  # the first call compiles
    times = []
    for _ in range(2):
        began = time.perf_counter()
        jax.block_until_ready(product(few, X))
        times.append(time.perf_counter() - began)
    return min(times) * n / len(few)
