"""Conjugate gradients for many right-hand sides at once, with one product a step for all of them,
and why each of them stopped.

The matrix must be symmetric positive definite up to rounding. Where rounding breaks that (products
in float32, λ far below their noise), a column stops, keeps its best iterate, and reports why.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
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
    from a recurrence. The measure is ‖r‖/‖b‖ by default. **Cost** one product and one
    preconditioning a step. **Source**: Hestenes and Stiefel 1952; Golub and Van Loan 2013,
    algorithm 11.5.1."""
    length, k, Z = jnp.linalg.norm(B, axis=0), B.shape[1], precondition(B)
    # A column's reason is ALL_STEPS while it goes on.
    start = (
        jnp.zeros((), int),  # number of steps
        (jnp.zeros_like(B), B, Z, jnp.sum(B * Z, axis=0)),  # x, r, direction, rᵀMr
        # The best x, its measure and its step.
        (jnp.zeros_like(B), measure(jnp.zeros_like(B), B, Z), jnp.zeros(k, int)),
        jnp.where(length > 0, ALL_STEPS, CONVERGED),
        jnp.full((steps, k), jnp.nan, B.dtype),
    )

    def unfinished(state):
        number, _, _, reason, _ = state
        return (number < steps) & jnp.any(reason == ALL_STEPS)

    def step(state):
        number, (X, R, P, weight), best, reason, history = state
        product, going = apply(P), reason == ALL_STEPS
        curvature = jnp.sum(P * product, axis=0)
        sound = (jnp.minimum(curvature, weight) > 0) & jnp.isfinite(curvature + weight)
        moving = going & sound
        alpha = jnp.where(moving, weight / jnp.where(sound, curvature, 1), 0)
        X, R = X + alpha * P, R - alpha * product
        Z = precondition(R)
        relative = measure(X, R, Z)
        better = moving & (relative < best[1])
        best = jax.tree.map(partial(jnp.where, better), (X, relative, number), best)
        _, smallest, since = best
        stalled = (number - since >= PATIENCE) | (relative > GROWTH * smallest)
        now = jnp.select(
            [~sound, relative <= tol, stalled], [INDEFINITE, CONVERGED, STALLED], ALL_STEPS
        )
        history = history.at[number].set(jnp.where(going, relative, jnp.nan))
        new = jnp.sum(R * Z, axis=0)
        P = jnp.where(moving, Z + new / jnp.where(weight > 0, weight, 1) * P, P)
        reason = jnp.where(going, now, reason)
        return number + 1, (X, R, P, new), best, reason, history

    number, _, (X, *_), reason, history = jax.lax.while_loop(unfinished, step, start)
    R = B - apply(X)
    left = measure(X, R, precondition(R))
    left = jnp.where(jnp.isfinite(left), left, 1)  # no more than at the beginning
    reason = jnp.where((reason == CONVERGED) & ~(left <= 2 * tol), STALLED, reason)
    return X, Run(left, history, number, reason)
