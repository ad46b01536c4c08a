"""How many landmarks are enough: as many as the certificate asks for at the chosen λ, or all
rows.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.factors.solvers import choose_route
from jaxrls.problem.landmarks import TOLERANCE, check_evaluable
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.estimate import of_problem
from jaxrls.search.landmarks import landmarks
from jaxrls.search.problem import Problem
from jaxrls.support.checks import is_concrete

FEWEST = 256


def grow(solve: Callable, problem: Problem, progress: bool = False) -> Any:
    """`solve(problem)` on as few landmarks as the certificate allows, or on none where they would
    not be few; `plan` says why.

    They suffice where tr(K − K̂) ≤ TOLERANCE·λ at the (smallest) chosen λ: see `certified_lam`. A
    first few give a first λ, and so how small the trace has to be; their number follows from that,
    and so on until it holds. Beyond n/2 of them all rows cost no more, and beyond the memory of the
    device there are none."""
    kernel, rows, weights, n = problem.kernel, problem.rows, problem.weights, problem.rows.shape[0]
    if problem.solver is not None:
        raise ValueError(
            f"landmarks='auto' chooses the solver too: leave solver={problem.solver} out"
        )
    if not is_concrete(rows):
        raise ValueError(
            "landmarks='auto' looks at values, which have none inside jax.jit: give a number, or "
            "call fit outside"
        )

    def solved(chosen, words: str) -> Any:
        fit = solve(replace(problem, landmarks=chosen))
        ratio = 0.0 if chosen is None else float(fit.trace_residual) / float(np.min(fit.lam))
        said = "" if chosen is None else f", tr(K − K̂)/λ = {ratio:.2g}"
        return replace(fit, plan=f"{fit.plan}; {words}{said}"), ratio

    if choose_route(kernel, n, rows.shape[1], rows.dtype) != "gram":
        return solved(None, "no landmarks: the kernel's own features are fewer than the rows")[0]
    check_evaluable(kernel)
    # As many as are worth their while, or as there is memory for their choice and the fit on them.
    too_many = lambda m: bool(of_problem(problem, landmarks=m).why_not())
    most = bisect_left(range(1, n // 2 + 1), True, key=too_many)
    if most < FEWEST:
        return solved(None, f"all {n} rows: too few to save any")[0]
    X = rows if is_sparse(rows) else rows.dense()
    options: dict = {"key": jax.random.key(0), "weights": weights.values, "progress": progress}
    mass = float(jnp.sum(weights.array * rows.map(kernel.diag)))
    chosen = landmarks(kernel, X, FEWEST, **options)
    while True:
        m = len(chosen.points)
        fit, ratio = solved(chosen, f"{m} landmarks of {n} rows")
        if ratio <= TOLERANCE:
            return fit
        wanted = 0.5 * TOLERANCE * float(np.min(fit.lam))
        chosen = landmarks(kernel, X, most, tol=min(wanted / mass, 0.5), **options)
        trace: Any = chosen.trace_residual
        if float(trace) > wanted or len(chosen.points) <= m:
            break  # there are not that many, or no others
    m = len(chosen.points)
    if of_problem(problem).why_not():
        return solved(chosen, f"{m} landmarks of {n} rows, where memory ends")[0]
    words = f"all {n} rows: {m} landmarks would not do, and more cost as much or are not there"
    return solved(None, words)[0]
