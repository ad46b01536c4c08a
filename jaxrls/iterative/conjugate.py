"""Solve for many right-hand sides at once by conjugate gradients, with one product a step for all.

The matrix must be symmetric positive definite up to rounding. Rounding breaks this for products in
float32 and a λ far below their rounding error. Then a column stops, keeps its best iterate, and
reports why.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.support import pytree

CONVERGED, ALL_STEPS, STALLED, INDEFINITE = range(4)
REASONS = (
    "the residual is below the tolerance",
    "all steps were used",
    "the residual did not go down further: rounding of the products hides the rest",
    "the products are not positive definite to their rounding: λ is below it",
)
# A column stops if its residual has not gone below its smallest value for PATIENCE steps, or has
# grown to GROWTH times that value.
PATIENCE = 30
GROWTH = 1e3


@pytree
class Run:
    """How an iteration went: how far off it was after every step, and why each column stopped.

    `residuals` and `history` hold what the caller measures. With `conjugate_gradients` this is its
    `measure`: how far fitted values are off, as a share of the residuals. In `RefinedGram` it is
    the distance from I. `reason` is an index into `REASONS`.
    """

    residuals: Float[Array, " k"]  # of the solution that is kept, for each column
    history: Float[Array, "steps k"]  # infinite after the last step
    steps: Int[Array, ""]
    reason: Int[Array, " k"]

    def why(self, where: Callable, remedy: str) -> str:
        """Return in words why the iteration stopped and what to do.

        The text is empty if all columns converged. Of the others it describes the one with the
        largest residual.

        Args:
            where: a function of this residual that puts it in words.
            remedy: what to take instead.
        """
        residuals = np.asarray(self.residuals)
        reasons = np.asarray(self.reason)
        left = np.where(reasons == CONVERGED, -np.inf, np.nan_to_num(residuals, nan=np.inf))
        worst = left.argmax()
        if left[worst] == -np.inf:
            return ""
        words = where(float(residuals[worst])), REASONS[reasons[worst]]
        return f"the iteration stopped {words[0]}: {words[1]}: take {remedy}"


class Best(NamedTuple):
    """The iterate of each column with the smallest measure so far."""

    X: Any  # (n, k)
    measure: Any  # (k,)
    step: Any  # (k,)


class Iterate(NamedTuple):
    """The state of all columns after `step` steps."""

    step: Any
    X: Any  # (n, k)
    R: Any  # the residual B − A X
    P: Any  # the next direction
    length: Any  # rᵀMr for each column, (k,)
    best: Best
    reason: Any  # (k,), ALL_STEPS for a column that goes on
    history: Any  # (steps, k)


def conjugate_gradients(
    apply: Callable,
    B: Float[Array, "n k"],
    precondition: Callable,
    begin: Float[Array, "n k"] | None = None,
    *,
    measure: Callable,
    tol: float,
    steps: int,
) -> tuple[Float[Array, "n k"], Run]:
    """Solve A X = B for a symmetric positive definite A; return X and how the iteration went.

    Each column has its own iteration, but all columns share the products. `apply(V)` computes A V.
    `precondition(R)` computes M R, where M is near A⁻¹ and symmetric positive definite too. V and R
    are (n, k). The iteration begins with X = `begin`, or with 0 if it is None.

    Let R = B − A X. A column has converged if its `measure(X, R, MR)` is at most `tol` by the
    recurrence. Rounding does not show in a recurrence, so one more product in the end checks that
    the measure is at most 2 `tol`.

    **Cost** one product and one preconditioning a step. **Source**: Hestenes and Stiefel 1952;
    Golub and Van Loan 2013, algorithm 11.5.1.
    """

    start = _start(apply, B, begin, precondition, measure, steps)
    unfinished = lambda now: (now.step < steps) & jnp.any(now.reason == ALL_STEPS)
    following = partial(_following, apply, precondition, measure, tol)
    last = jax.lax.while_loop(unfinished, following, start)
    X = last.best.X
    R = B - apply(last.best.X)
    left = measure(X, R, precondition(R))
    left = jnp.where(jnp.isfinite(left), left, 1)  # 1 stands for no progress
    hidden = (last.reason == CONVERGED) & ~(left <= 2 * tol)
    return X, Run(left, last.history, last.step, jnp.where(hidden, STALLED, last.reason))


def _start(
    apply: Callable,
    B: Float[Array, "n k"],
    begin: Float[Array, "n k"] | None,
    precondition: Callable,
    measure: Callable,
    steps: int,
) -> Iterate:
    """Return the state before the first step. Columns whose residual is 0 have converged."""
    X, R = (jnp.zeros_like(B), B) if begin is None else (begin, B - apply(begin))
    Z = precondition(R)
    length = jnp.linalg.norm(R, axis=0)
    best = Best(X, measure(X, R, Z), jnp.zeros_like(length, int))
    reason = jnp.where(length > 0, ALL_STEPS, CONVERGED)
    history = jnp.full((steps, len(length)), jnp.inf, B.dtype)
    return Iterate(0, X, R, Z, jnp.sum(R * Z, axis=0), best, reason, history)


def _following(
    apply: Callable, precondition: Callable, measure: Callable, tol: float, now: Iterate
) -> Iterate:
    """Return the state after one more step of the columns that go on."""
    step, X, R, P, length, best, reason, history = now
    product = apply(P)
    going = reason == ALL_STEPS
    curvature = jnp.sum(P * product, axis=0)
    sound = (jnp.minimum(curvature, length) > 0) & jnp.isfinite(curvature + length)
    moving = going & sound
    alpha = jnp.where(moving, length / jnp.where(sound, curvature, 1), 0)
    X = X + alpha * P
    R = R - alpha * product
    Z = precondition(R)
    measured = measure(X, R, Z)
    shorter = jnp.sum(R * Z, axis=0)
    better = moving & (measured < best.measure)
    best = jax.tree.map(partial(jnp.where, better), Best(X, measured, step), best)
    P = jnp.where(moving, Z + shorter / jnp.where(length > 0, length, 1) * P, P)
    reason = jnp.where(going, _reason(step, sound, measured, best, tol), reason)
    history = history.at[step].set(jnp.where(going, measured, jnp.inf))
    return Iterate(step + 1, X, R, P, shorter, best, reason, history)


def _reason(
    step: Int[Array, ""] | int,
    sound: Bool[Array, " k"],
    measured: Float[Array, " k"],
    best: Best,
    tol: float,
) -> Int[Array, " k"]:
    """Return why columns stop after this step; ALL_STEPS for columns that go on."""
    stalled = (step - best.step >= PATIENCE) | (measured > GROWTH * best.measure)
    cases = [~sound, measured <= tol, stalled]
    return jnp.select(cases, [INDEFINITE, CONVERGED, STALLED], ALL_STEPS)
