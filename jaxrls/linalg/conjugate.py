"""Conjugate gradients for many right-hand sides at once, each by itself, with one product a step;
and what became of every one.

Nothing is assumed of the product but that it is linear, symmetric and positive definite up to its
rounding: where rounding makes it something else (products in float32, λ far below their noise) a
column stops, keeps the best that it had, and says so."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.support.pytrees import pytree

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


@pytree
class _State:
    """One step of all columns, and the best solution of each so far."""

    step: Int[Array, ""]
    X: Float[Array, "n k"]
    R: Float[Array, "n k"]
    P: Float[Array, "n k"]
    weight: Float[Array, " k"]  # rᵀ M r
    best: Float[Array, "n k"]
    smallest: Float[Array, " k"]
    since: Int[Array, " k"]
    going: Bool[Array, " k"]
    reason: Int[Array, " k"]
    history: Float[Array, "steps k"]


def conjugate_gradients(
    apply: Callable,
    B: Float[Array, "n k"],
    precondition: Callable,
    *,
    tol: float = 1e-6,
    steps: int = 200,
) -> tuple[Float[Array, "n k"], Run]:
    """X of A X = B for a symmetric positive definite A, column by column with shared products.

    `apply(V)` is A V and `precondition(R)` M R with M near A⁻¹, also symmetric positive definite,
    for V and R (n, k): column j may have an A and an M of its own. A column has converged where ‖b
    − A x‖ ≤ tol ‖b‖ by the recurrence, and 2 tol ‖b‖ by one more product in the end: rounding hides
    itself from a recurrence. **Cost** one product and one preconditioning a step. **Source**:
    Hestenes and Stiefel 1952; Golub and Van Loan 2013, algorithm 11.5.1."""
    length = jnp.linalg.norm(B, axis=0)
    unit = jnp.where(length > 0, length, 1)
    Z = precondition(B)
    zero, one = jnp.zeros(B.shape[1], int), jnp.ones(B.shape[1], bool)
    history = jnp.full((steps, B.shape[1]), jnp.nan, B.dtype)
    start = _State(
        step=jnp.zeros((), int),
        X=jnp.zeros_like(B),
        R=B,
        P=Z,
        weight=jnp.sum(B * Z, axis=0),
        best=jnp.zeros_like(B),
        smallest=(length > 0).astype(B.dtype),
        since=zero,
        going=one & (length > 0),
        reason=jnp.where(length > 0, ALL_STEPS, CONVERGED),
        history=history,
    )

    def unfinished(state):
        return (state.step < steps) & jnp.any(state.going)

    def step(state):
        product = apply(state.P)
        curvature = jnp.sum(state.P * product, axis=0)
        sound = (
            (curvature > 0)
            & (state.weight > 0)
            & jnp.isfinite(curvature)
            & jnp.isfinite(state.weight)
        )
        moving = state.going & sound
        alpha = jnp.where(moving, state.weight / jnp.where(sound, curvature, 1), 0)
        X, R = state.X + alpha * state.P, state.R - alpha * product
        relative = jnp.linalg.norm(R, axis=0) / unit
        better = moving & (relative < state.smallest)
        best, smallest = (
            jnp.where(better, X, state.best),
            jnp.where(better, relative, state.smallest),
        )
        since = jnp.where(better, 0, state.since + 1)
        Z = precondition(R)
        weight = jnp.sum(R * Z, axis=0)
        beta = jnp.where(moving, weight / jnp.where(state.weight > 0, state.weight, 1), 0)
        done = relative <= tol
        stalled = ~done & ((since >= PATIENCE) | (relative > GROWTH * smallest))
        reason = jnp.where(
            state.going & ~sound,
            INDEFINITE,
            jnp.where(moving & done, CONVERGED, jnp.where(moving & stalled, STALLED, state.reason)),
        )
        history = state.history.at[state.step].set(jnp.where(state.going, relative, jnp.nan))
        going = moving & ~done & ~stalled
        return _State(
            state.step + 1,
            X,
            R,
            jnp.where(moving, Z + beta * state.P, state.P),
            weight,
            best,
            smallest,
            since,
            going,
            reason,
            history,
        )

    end = jax.lax.while_loop(unfinished, step, start)
    left = jnp.linalg.norm(B - apply(end.best), axis=0) / unit
    left = jnp.where(jnp.isfinite(left), left, 1)  # no more than at the beginning
    reason = jnp.where((end.reason == CONVERGED) & ~(left <= 2 * tol), STALLED, end.reason)
    return end.best, Run(left, end.history, end.step, reason)
