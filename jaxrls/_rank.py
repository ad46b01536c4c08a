"""How many landmarks are enough: as many as the certificate asks for at the chosen λ, or all rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls._checks import check_dense_size, is_concrete, memory_bytes
from jaxrls._kernel import Kernel
from jaxrls._landmarks import landmarks
from jaxrls._routes import choose_route

FEWEST = 256


def grow(solve: Callable, kernel: Kernel, X, weights, tol: float, progress: bool = False):
    """`solve(landmarks)` on as few landmarks as the certificate allows, or `solve(None)` where they would not be few; and why, in words.

    They suffice where tr(K − K̂) ≤ tol·λ at the (smallest) chosen λ: see `certified_lam`. A first few give a first λ, and so how small the
    trace has to be; their number follows from that, and so on until it holds. Beyond n/2 of them all rows cost no more, and
    beyond the memory of the device there are none.
    """
    if not is_concrete(X):
        raise ValueError("landmarks='auto' looks at values, which have none inside jax.jit: give a number, or call fit outside")
    n, most = X.shape[0], _most(X)
    if choose_route(kernel, n, X.shape[1], X.dtype) != "gram":
        return solve(None), "no landmarks: the kernel's own features are fewer than the rows"
    if most < FEWEST:
        return solve(None), f"all {n} rows: too few to save any"
    heaviest = 1.0 if weights is None else float(jnp.max(weights))
    chosen, words = landmarks(kernel, X, FEWEST, key=jax.random.key(0), progress=progress), ""
    while True:
        result, m = solve(chosen), len(chosen.points)
        lam = float(np.min(result.lam))
        ratio = float(result.trace_residual) / lam
        words = f"{m} landmarks of {n} rows, tr(K − K̂)/λ = {ratio:.2g}"
        if ratio <= tol:
            return result, f"{words}: they change the coefficients by at most {100 * tol:g}%"
        wanted = 0.5 * tol * lam / heaviest
        share = min(wanted / float(jnp.sum(kernel.diag(X))), 0.5)
        chosen = landmarks(kernel, X, most, tol=share, key=jax.random.key(0), progress=progress)
        if float(chosen.trace_residual) > wanted or len(chosen.points) <= m:
            break  # there are not that many, or no others
    try:
        check_dense_size(n, X.dtype)
    except ValueError:
        result = solve(chosen)
        ratio = float(result.trace_residual) / float(np.min(result.lam))
        return result, f"{len(chosen.points)} landmarks of {n} rows, where memory ends: tr(K − K̂)/λ = {ratio:.2g} is above {tol:g}"
    return solve(None), f"all {n} rows: {len(chosen.points)} landmarks would not do, and more cost as much or are not there"


def _most(X) -> int:
    """B and the partial Cholesky factor are n×m each, and their making takes as much again."""
    limit = memory_bytes()
    return X.shape[0] // 2 if limit is None else min(X.shape[0] // 2, limit // (4 * X.shape[0] * X.dtype.itemsize))
