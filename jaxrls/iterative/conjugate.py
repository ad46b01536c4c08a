"""Conjugate gradients for many right-hand sides at once, with one product a step for all of them,
and why each of them stopped.

The matrix must be symmetric positive definite up to rounding. Where rounding breaks that (products
in float32, λ far below their noise), a column stops, keeps its best iterate, and reports why.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.support import pytree

CONVERGED, ALL_STEPS, STALLED, INDEFINITE = range(4)
REASONS = (
    "the residual is below the tolerance",
    "all steps were used",
    "the residual did not go down further: rounding of the products hides the rest",
    "the products are not positive definite to their rounding: λ is below it",
)
# A column stops where the residual has not gone below its smallest for so many steps, or has grown
# to so many times it.
PATIENCE, GROWTH = 30, 1e3


@pytree
class Run:
    """How an iteration went: the relative residuals of every step, and why each column stopped
    (`REASONS`).
    """

    residuals: Float[Array, " k"]  # of the solution that is kept
    history: Float[Array, "steps k"]  # NaN after the last step
    steps: Int[Array, ""]
    reason: Int[Array, " k"]

    def why(self, where: Callable, remedy: str) -> str:
        """Why the column with the largest residual of those that did not converge stopped, and what
        to do; empty where all converged.

        Args:
            where: its residual in words, a function of it.
            remedy: what to take instead.
        """
        residuals, reasons = np.asarray(self.residuals), np.asarray(self.reason)
        left = np.where(reasons == CONVERGED, -np.inf, np.nan_to_num(residuals, nan=np.inf))
        worst = left.argmax()
        if left[worst] == -np.inf:
            return ""
        words = where(float(residuals[worst])), REASONS[reasons[worst]]
        return f"the iteration stopped {words[0]}: {words[1]}: take {remedy}"


class Best(NamedTuple):
    """Of every column the iterate with the smallest measure."""

    X: Float[Array, "n k"]
    measure: Float[Array, " k"]
    step: Int[Array, " k"]


class Iterate(NamedTuple):
    """All columns after so many steps; the reason of one that goes on is ALL_STEPS."""

    step: Int[Array, ""]
    X: Float[Array, "n k"]
    R: Float[Array, "n k"]  # B − A X
    direction: Float[Array, "n k"]
    length: Float[Array, " k"]  # rᵀMr
    best: Best
    reason: Int[Array, " k"]
    history: Float[Array, "steps k"]


def conjugate_gradients(
    apply: Callable,
    B: Float[Array, "n k"],
    precondition: Callable,
    *,
    measure: Callable,
    tol: float,
    steps: int,
) -> tuple[Float[Array, "n k"], Run]:
    """X of A X = B for a symmetric positive definite A, column by column with shared products.

    `apply(V)` is A V and `precondition(R)` M R with M near A⁻¹, also symmetric positive definite,
    for V and R (n, k). A column has converged where its `measure(X, R, MR)` with R = B − A X is at
    most `tol` by the recurrence, and 2 `tol` by one more product in the end: rounding hides itself
    from a recurrence. **Cost** one product and one preconditioning a step. **Source**: Hestenes and
    Stiefel 1952; Golub and Van Loan 2013, algorithm 11.5.1."""

    def unfinished(now):
        return (now.step < steps) & jnp.any(now.reason == ALL_STEPS)

    following = partial(_following, apply, precondition, measure, tol)
    last = jax.lax.while_loop(unfinished, following, _start(B, precondition, measure, steps))
    X, reason = last.best.X, last.reason
    R = B - apply(X)
    left = measure(X, R, precondition(R))
    left = jnp.where(jnp.isfinite(left), left, 1)  # no more than at the beginning
    reason = jnp.where((reason == CONVERGED) & ~(left <= 2 * tol), STALLED, reason)
    return X, Run(left, last.history, last.step, reason)


def _start(B, precondition, measure, steps) -> Iterate:
    """X = 0; columns of B that are 0 have converged."""
    Z, X = precondition(B), jnp.zeros_like(B)
    length, zeros = jnp.sum(B * Z, axis=0), jnp.zeros(B.shape[1], int)
    reason = jnp.where(jnp.linalg.norm(B, axis=0) > 0, ALL_STEPS, CONVERGED)
    history = jnp.full((steps, len(zeros)), jnp.nan, B.dtype)
    best = Best(X, measure(X, B, Z), zeros)
    return Iterate(jnp.zeros((), int), X, B, Z, length, best, reason, history)


def _following(apply, precondition, measure, tol, now: Iterate) -> Iterate:
    """One step; columns that stopped stay."""
    product, going = apply(now.direction), now.reason == ALL_STEPS
    curvature = jnp.sum(now.direction * product, axis=0)
    sound = (jnp.minimum(curvature, now.length) > 0) & jnp.isfinite(curvature + now.length)
    moving = going & sound
    alpha = jnp.where(moving, now.length / jnp.where(sound, curvature, 1), 0)
    X, R = now.X + alpha * now.direction, now.R - alpha * product
    Z = precondition(R)
    measured, length = measure(X, R, Z), jnp.sum(R * Z, axis=0)
    better = moving & (measured < now.best.measure)
    best = Best(X, measured, now.step)
    best = jax.tree.map(partial(jnp.where, better), best, now.best)
    ahead = Z + length / jnp.where(now.length > 0, now.length, 1) * now.direction
    return Iterate(
        now.step + 1,
        X,
        R,
        jnp.where(moving, ahead, now.direction),
        length,
        best,
        jnp.where(going, _reason(now.step, sound, measured, best, tol), now.reason),
        now.history.at[now.step].set(jnp.where(going, measured, jnp.nan)),
    )


def _reason(step, sound, measured, best: Best, tol) -> Any:
    """Why columns stop after this step, ALL_STEPS where they go on."""
    stalled = (step - best.step >= PATIENCE) | (measured > GROWTH * best.measure)
    cases = [~sound, measured <= tol, stalled]
    return jnp.select(cases, [INDEFINITE, CONVERGED, STALLED], ALL_STEPS)
