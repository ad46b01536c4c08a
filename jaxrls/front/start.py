"""`first_guesses` chooses the kernel and λ from which `tune` starts.

It tries a few multiples of the kernel's widths on a sample of the rows, and keeps the best.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.criteria import LeaveOneOut, loo
from jaxrls.core.data import Rows, compiled
from jaxrls.core.factors import Spectral
from jaxrls.core.fit import Given, Grid, Problem
from jaxrls.core.kernels import Kernel
from jaxrls.front.sampling import padded, sample_of
from jaxrls.front.widths import from_data, width_sizes, with_widths

SCREEN_ROWS = 300
SCREEN_FACTORS = [1 / 16, 1 / 4, 1 / 2, 2.0, 4.0, 16.0]
SCREEN_LAMS = Grid(60)
# Then widths near the best of these are judged on more rows, which resolve finer detail.
NEAR_ROWS = 1200
NEAR_FACTORS = [1.5, 1.0, 2 / 3, 4 / 9, 0.3]


class Guess(NamedTuple):
    """A kernel and a λ from which a search may start.

    As `first_guesses` makes it, λ is the best on a sample of the rows, `floor` is the precision of
    K of all rows, estimated from the sample, and `error` is the error on the sample. A search that
    follows another one starts from the kernel and λ that were found, and may have a higher floor.
    A search keeps λ above the floor, unless it holds λ. Only `first_guesses` reads `error`.
    """

    kernel: Any
    lam: Any
    floor: Any
    error: Any


class Guesses(NamedTuple):
    """The kernels and λ at which a search may start.

    `given` has the kernel that the user gave, or the end of an earlier search if only that is a
    start. `better` has another kernel, which was better on a sample of the rows, such as the end of
    a search there. It is None if no other was better.
    """

    given: Guess
    better: Guess | None = None

    @property
    def all(self) -> list[Guess]:
        """The guesses that there are, the best one last."""
        return [self.given] if self.better is None else [self.given, self.better]

    @property
    def best(self) -> Guess:
        """The better guess if there is one, else the given one."""
        return self.all[-1]


def first_guesses(problem: Any, start: str, lams: Given | Grid, near: bool) -> Guesses:
    """Return guesses for the start: the given kernel, and the best of others if it is better.

    The other kernels are those that the option `start` of `tune` asks for. All are judged on a
    sample of the rows, so that no spectrum of a large matrix is computed. They are judged by the
    criterion of the search if it needs only sums over rows, as the evidence does, else by
    leave-one-out error. With `near`, the best kernel and widths around it are then judged on a
    larger sample: errors have several minima, and a small sample misses some of them. If the given
    kernel is the best of these too, its λ is that of the larger sample.
    """
    kernel = problem.kernel
    rows = problem.rows
    kernels: list[Kernel] = [kernel]
    sizes = width_sizes(kernel, rows)
    if start == "data":
        kernels.append(from_data(kernel, rows, problem.weights))
    elif start == "screen" and sizes:
        kernels += [_multiple(kernel, factor, rows) for factor in SCREEN_FACTORS]
    error_of = lambda guess: guess.error
    screened = _guesses_of(problem, kernels, SCREEN_ROWS, lams)
    given = screened[0]
    best = min(screened, key=error_of)
    # If there are several widths, the search moves each by itself, and they are left as they are.
    if near and start == "screen" and sum(sizes) == 1:
        close = [_multiple(best.kernel, factor, rows) for factor in NEAR_FACTORS]
        best = min(_guesses_of(problem, close, NEAR_ROWS, lams), key=error_of)
    return Guesses(best) if best.kernel is kernel else Guesses(given, better=best)


def lam_on_few(problem: Any) -> float:
    """Return the best λ of the problem's kernel on a sample of NEAR_ROWS of its rows.

    The best λ of all rows is near it, as λ is the variance of the noise divided by the variance τ²
    of the prior τ²k.
    """
    (guess,) = _guesses_of(problem, [problem.kernel], NEAR_ROWS, SCREEN_LAMS)
    return float(guess.lam)


def _multiple(kernel: Kernel, factor: float, rows: Rows) -> Kernel:
    """Return the kernel with all widths multiplied by a factor, in the dtype of the rows.

    If the factor is 1, it is the same kernel.
    """
    if factor == 1:
        return kernel
    scaled = lambda width: np.asarray(np.asarray(width) * factor, rows.dtype)
    return with_widths(kernel, rows, scaled)


def _guesses_of(
    problem: Problem, kernels: list[Kernel], most: int, lams: Given | Grid
) -> list[Guess]:
    """Return a guess for each of the kernels, with its error on at most `most` rows."""
    criterion: Any = problem.criterion
    n = problem.rows.shape[0]
    guesses = []
    measured = criterion if criterion.needs_only_sums else loo
    measured = LeaveOneOut(criterion.loss) if criterion.averages_loss else measured
    few = replace(problem, criterion=measured, solver=Spectral())
    judged = n
    if problem.kernel.evaluable:  # a kernel matrix cannot be sampled by rows alone
        few = padded(sample_of(few, most).problem)
        judged = min(most, n)
    for kernel in kernels:
        guess = jax.device_get(_judge(replace(few, kernel=kernel), lams))
        # floor = √n·eps·s_max, and the largest eigenvalue s_max of K is proportional to n.
        floor = guess.floor * (n / judged) ** 1.5
        error = guess.error if np.isfinite(guess.error) else np.inf
        guesses.append(Guess(kernel, guess.lam, floor, error))
    return guesses


@compiled
def _judge(problem: Problem, lams: Given | Grid) -> Guess:
    """Return a guess without its kernel: the best λ, the precision of K, the error."""
    solution = problem.solution()
    values = lams.values(solution.factor)
    errors = problem.errors(solution, values)
    errors = jnp.mean(errors.reshape(len(values), -1), axis=1)
    best = jnp.argmin(errors)
    return Guess(None, values[best], solution.factor.precision_floor(), errors[best])
