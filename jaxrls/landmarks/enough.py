"""Implement `landmarks="auto"`: as many landmarks as keep the fit close to the fit on all of K."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrls.core.factors import Solver
from jaxrls.core.fit import Problem
from jaxrls.core.support import pytree
from jaxrls.front import Attempt, Request, by_plan, of_problem, plan_and_run
from jaxrls.landmarks.choice import resolve_landmarks
from jaxrls.landmarks.points import TOLERANCE, check_evaluable
from jaxrls.landmarks.solver import Subset

FEWEST = 256  # the number of landmarks to begin with
CHOOSES_SOLVER = "landmarks='auto' chooses the solver too, by known values: leave solver= out"


@pytree
class Enough(Solver):
    """A solver that uses as many landmarks as are needed, or all rows. Trial fits decide."""

    def _refuse(self, *args, **options):
        """Raise, because only `fit` can try numbers of landmarks."""
        raise ValueError(
            "landmarks='auto' tries their number by fits to known values: in other calls than fit, "
            "and inside jax.jit, give a number, row numbers or points"
        )

    differentiable = prepare = solve = _refuse


@plan_and_run.register
def _(solver: Enough, problem: Problem, request: Request, progress: bool) -> Attempt:
    """Compute the fit on as few landmarks as the certificate allows, or on all rows.

    It uses all rows if landmarks would not be cheaper. `Fit.plan` gives the reason.
    """
    n = problem.rows.shape[0]
    problem = replace(problem, solver=None)

    def fit_to(problem: Problem) -> Attempt:
        """Compute the fit to all rows, or on the landmarks that the problem's solver has."""
        return by_plan(problem, request, progress)

    if problem.route != "gram":
        why = "no landmarks: the kernel's own features are fewer than the rows"
        return fit_to(problem).adding(why)
    if not problem.rows.candidates().are_all:
        raise ValueError(
            f'landmarks="auto" looks at all rows, and X {problem.rows.lies}: give a number of '
            "landmarks, or X as one array in memory"
        )
    check_evaluable(problem.kernel)
    most = most_landmarks(problem)
    if most < FEWEST:
        return fit_to(problem).adding(f"all {n} rows: too few to save any")
    return on_enough(problem, fit_to, most, progress)


def on_enough(problem: Problem, fit_to: Callable, most: int, progress: bool) -> Attempt:
    """Compute the fit on as few landmarks as suffice, but on at most `most`.

    Landmarks suffice if tr(K − K̂) ≤ TOLERANCE·λ at the (smallest) chosen λ: see `certified_lam`. A
    few landmarks give a first λ. This λ determines how small the trace must be, and so how many
    landmarks are needed. The loop repeats this until the bound holds. More than n/2 landmarks would
    cost as much as all rows. The memory of the device limits their number too.
    """
    n = problem.rows.shape[0]
    mass = float(jnp.sum(problem.weights.array * problem.rows.map(problem.kernel.diag)))
    choose = partial(
        resolve_landmarks, problem.kernel, problem.rows, weights=problem.weights, progress=progress
    )
    fit_on = lambda chosen: fit_to(replace(problem, solver=Subset(chosen)))

    chosen = choose(FEWEST)
    attempt = fit_on(chosen)
    why_no_more = ""
    while not (_suffices(attempt) or why_no_more):
        before = len(chosen.points)
        wanted = 0.5 * TOLERANCE * _smallest_lam(attempt)
        chosen = choose(most, tol=min(wanted / mass, 0.5))
        count = len(chosen.points)
        missed: Any = chosen.trace_residual
        if float(missed) > wanted or count <= before:
            if not of_problem(problem).why_not():
                words = f"{count} landmarks would not do, and more cost as much or are not there"
                return fit_to(problem).adding(f"all {n} rows: {words}")
            why_no_more = _why_no_more(count, most, n)
        attempt = fit_on(chosen)

    missed_over_lam = _missed_trace(attempt) / _smallest_lam(attempt)
    words = f"{len(chosen.points)} landmarks of {n} rows{why_no_more}"
    return attempt.adding(f"{words}, tr(K − K̂)/λ = {missed_over_lam:.2g}")


def _why_no_more(count: int, most: int, n: int) -> str:
    """Return in words why `count` landmarks are not more, if at most `most` of n rows may be."""
    if count < most:
        return ", of which no other is independent"
    return ", where memory ends" if most < n // 2 else ", the most that are tried"


def _suffices(attempt: Attempt) -> bool:
    """Whether the landmarks of a fit suffice at its (smallest) λ."""
    return _missed_trace(attempt) <= TOLERANCE * _smallest_lam(attempt)


def _missed_trace(attempt: Attempt) -> float:
    """Return tr(K − K̂) of the landmarks of a fit."""
    missed: Any = attempt.result.diagnostics.trace_residual
    return float(missed)


def _smallest_lam(attempt: Attempt) -> float:
    """Return the (smallest) chosen λ of a fit."""
    return float(np.asarray(attempt.result.chosen.lam).min())


def most_landmarks(problem: Problem) -> int:
    """Return the largest number of landmarks that saves time and fits into memory.

    The memory holds the choice of landmarks and the fit on them.
    """
    too_many = lambda m: bool(of_problem(replace(problem, solver=Subset(m))).why_not())
    return bisect_left(range(1, problem.rows.shape[0] // 2 + 1), True, key=too_many)
