"""How many landmarks are enough: as many as the certificate asks for at the chosen λ, or all
rows.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.factors.solvers import choose_route
from jaxrls.problem.landmarks import check_evaluable
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.conclude import TOLERANCE
from jaxrls.search.estimate import of_problem
from jaxrls.search.landmarks import landmarks
from jaxrls.search.problem import Problem
from jaxrls.support.checks import is_concrete

FEWEST = 256


def grow(solve: Callable, problem: Problem, progress: bool = False):
    """`solve(problem)` on as few landmarks as the certificate allows, or on none where they would
    not be few; and why, in words.

    They suffice where tr(K − K̂) ≤ TOLERANCE·λ at the (smallest) chosen λ: see `certified_lam`. A first
    few give a first λ, and so how small the trace has to be; their number follows from that, and so
    on until it holds. Beyond n/2 of them all rows cost no more, and beyond the memory of the device
    there are none."""
    kernel, rows, weights, tol = problem.kernel, problem.rows, problem.weights, TOLERANCE
    if not is_concrete(rows):
        raise ValueError(
            "landmarks='auto' looks at values, which have none inside jax.jit: give a number, or call fit outside"
        )
    if choose_route(kernel, *rows.shape, rows.dtype) != "gram":
        return solve(problem), "no landmarks: the kernel's own features are fewer than the rows"
    check_evaluable(kernel)
    X = rows if is_sparse(rows) else rows.dense()
    n, most = X.shape[0], _most(problem)
    if most < FEWEST:
        return solve(problem), f"all {n} rows: too few to save any"
    choose: Callable[..., Any] = partial(
        landmarks, kernel, X, key=jax.random.key(0), weights=weights.values, progress=progress
    )
    chosen = choose(FEWEST)
    while True:
        result, m = solve(replace(problem, landmarks=chosen)), len(chosen.points)
        lam = float(np.min(result.lam))
        ratio = float(result.trace_residual) / lam
        words = f"{m} landmarks of {n} rows, tr(K − K̂)/λ = {ratio:.2g}"
        if ratio <= tol:
            return result, f"{words}: they change the coefficients by at most {100 * tol:g}%"
        wanted = 0.5 * tol * lam
        share = min(wanted / float(jnp.sum(weights.array * rows.map(kernel.diag))), 0.5)
        chosen = choose(most, tol=share)
        if float(chosen.trace_residual) > wanted or len(chosen.points) <= m:
            break  # there are not that many, or no others
    if of_problem(problem).why_not():
        result = solve(replace(problem, landmarks=chosen))
        ratio = float(result.trace_residual) / float(np.min(result.lam))
        return (
            result,
            f"{len(chosen.points)} landmarks of {n} rows, where memory ends: tr(K − K̂)/λ = {ratio:.2g} is above {tol:g}",
        )
    return (
        solve(problem),
        f"all {n} rows: {len(chosen.points)} landmarks would not do, and more cost as much or are not there",
    )


def _most(problem: Problem) -> int:
    """As many as are worth their while, or as there is memory for their choice and the fit on
    them.
    """
    count = range(1, problem.rows.shape[0] // 2 + 1)
    return bisect_left(count, True, key=lambda m: bool(of_problem(problem, landmarks=m).why_not()))
