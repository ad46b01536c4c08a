"""As many landmarks as keep the fit close to that of all of K: `landmarks="auto"`."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.factors import Solver, choose_route
from jaxrls.core.fit import Problem, fit_by, of_problem
from jaxrls.core.support import is_concrete, pytree
from jaxrls.landmarks.choice import choose_landmarks
from jaxrls.landmarks.points import TOLERANCE, Landmarks, check_evaluable
from jaxrls.landmarks.solver import Subset

FEWEST = 256  # landmarks to begin with


@pytree
class Enough(Solver):
    """As many landmarks as are needed, or all rows: the solver is chosen by fits on a few."""

    def differentiable(self):
        """Raises: only `fit` tries landmarks."""
        raise ValueError(
            "landmarks='auto' is for fit, which tries their number: give a number, row numbers or "
            "points"
        )

    def prepare(self, kernel, rows, weights, progress=False):
        """Raises, as `differentiable`."""
        return self.differentiable()

    def solve(self, kernel, data, labels, *, block_size=None):
        """Raises, as `differentiable`."""
        return self.differentiable()


@fit_by.register
def _(solver: Enough, problem: Problem, run: Callable, progress: bool) -> Any:
    """The fit on as few landmarks as the certificate allows, or on all rows where landmarks would
    not be cheaper; `plan` says why.

    They suffice where tr(K − K̂) ≤ TOLERANCE·λ at the (smallest) chosen λ: see `certified_lam`. A
    few landmarks give a first λ, which determines how small the trace must be, and so how many
    landmarks are needed. This repeats until the bound holds. More than n/2 of them would cost as
    much as all rows; their number is also limited by the memory of the device.
    """
    problem, n = replace(problem, solver=None), problem.rows.shape[0]
    if why := why_all_rows(problem):
        return on_all_rows(problem, run, why)
    most, mass = most_landmarks(problem), kernel_mass(problem)
    if most < FEWEST:
        return on_all_rows(problem, run, f"all {n} rows: too few to save any")
    chosen, last = chosen_rows(problem, FEWEST, progress), False
    while True:
        m = len(chosen.points)
        words = f"{m} landmarks of {n} rows{', where memory ends' * last}"
        fit = run(replace(problem, solver=Subset(chosen)))
        lam, trace = float(np.min(fit.lam)), float(fit.trace_residual)
        if last or trace <= TOLERANCE * lam:
            left = f"tr(K − K̂)/λ = {trace / lam:.2g}"
            return replace(fit, plan=f"{fit.plan}; {words}, {left}")
        wanted = 0.5 * TOLERANCE * lam
        chosen = chosen_rows(problem, most, progress, tol=min(wanted / mass, 0.5))
        # Memory may not hold that many, or no further row may be independent.
        missed: Any = chosen.trace_residual
        last = float(missed) > wanted or len(chosen.points) <= m
        if last and not of_problem(problem).why_not():
            words = f"{len(chosen.points)} landmarks would not do, and more cost as much or are not"
            return on_all_rows(problem, run, f"all {n} rows: {words} there")


def why_all_rows(problem: Problem) -> str:
    """Why landmarks cannot save anything; empty where they may."""
    kernel, rows = problem.kernel, problem.rows
    if not is_concrete(rows):
        solver_words = "leave solver= out, and inside jax.jit give a number"
        raise ValueError(
            f"landmarks='auto' chooses the solver too, by known values: {solver_words}"
        )
    if choose_route(kernel, rows.shape, rows.dtype) != "gram":
        return "no landmarks: the kernel's own features are fewer than the rows"
    check_evaluable(kernel)
    return ""


def on_all_rows(problem: Problem, run: Callable, why: str) -> Any:
    """The fit to all rows, whose plan says why."""
    fit = run(problem)
    return replace(fit, plan=f"{fit.plan}; {why}")


def most_landmarks(problem: Problem) -> int:
    """As many as save time, or as memory allows for choosing them and for the fit on them."""
    too_many = lambda m: bool(of_problem(replace(problem, solver=Subset(m))).why_not())
    return bisect_left(range(1, problem.rows.shape[0] // 2 + 1), True, key=too_many)


def kernel_mass(problem: Problem) -> float:
    """Σ vᵢ k(xᵢ, xᵢ)."""
    return float(jnp.sum(problem.weights.array * problem.rows.map(problem.kernel.diag)))


def chosen_rows(problem: Problem, num: int, progress: bool, tol: float | None = None) -> Landmarks:
    """So many rows at most, or as many as miss a share `tol` of the trace."""
    return choose_landmarks(
        problem.kernel,
        problem.rows,
        num,
        tol=tol,
        key=jax.random.key(0),
        weights=problem.weights.values,
        progress=progress,
    )
