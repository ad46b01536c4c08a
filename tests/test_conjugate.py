"""Conjugate gradients against a direct solution, and what they say where they cannot go on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import array, assert_close, wide

from jaxrls.linalg import conjugate

N = 40


def problem(condition=1e3, seed=0):
    """A positive definite matrix and three right-hand sides, as the library sees them."""
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(N, N)))
    A = array((Q / np.geomspace(1, condition, N)) @ Q.T)
    return (A + A.T) / 2, array(rng.normal(size=(N, 3)))


def solve(A, B, M=None, **options):
    product = lambda V: jnp.matmul(A, V, precision="highest")
    precondition = (lambda R: R) if M is None else (lambda R: jnp.matmul(M, R, precision="highest"))
    return jax.jit(lambda B: conjugate.conjugate_gradients(product, B, precondition, **options))(B)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda A, V: jnp.where(jnp.arange(N)[:, None] < 3, -1.0, 1.0).astype(V.dtype) * V,
            conjugate.INDEFINITE,
        ),
        (lambda A, V: jnp.full_like(V, jnp.nan), conjugate.INDEFINITE),
        (lambda A, V: jnp.round(jnp.matmul(A, V) * 64) / 64, None),
    ],
    ids=["indefinite", "NaN", "coarse"],
)
def test_stops_where_products_are_not_what_they_should_be(spoil, reason):
    A, B = problem(1e4)
    X, run = conjugate.conjugate_gradients(
        lambda V: spoil(A, V), B, lambda R: R, tol=1e-13, steps=300
    )
    assert np.isfinite(np.asarray(X)).all()
    assert (np.asarray(run.residuals) <= 1).all()
    assert (np.asarray(run.reason) != conjugate.CONVERGED).all()
    assert reason is None or (np.asarray(run.reason) == reason).all()


@pytest.mark.float64
def test_a_recurrence_that_hides_rounding_is_found_out():
    """Products to three digits: the recurrence comes down to the tolerance, and the residual does
    not.
    """
    A, B = problem(1e2)

    def coarse(V):
        product = jnp.matmul(A, V, precision="highest")
        return (
            jnp.round(product * 2**10 / jnp.max(jnp.abs(product)))
            * jnp.max(jnp.abs(product))
            / 2**10
        )

    X, run = conjugate.conjugate_gradients(coarse, B, lambda R: R, tol=1e-6)
    left = np.linalg.norm(wide(B) - wide(A) @ wide(X), axis=0) / np.linalg.norm(wide(B), axis=0)
    assert (np.nanmin(np.asarray(run.history), axis=0) <= 1e-6).any() and (left > 1e-5).all()
    assert (np.asarray(run.reason) != conjugate.CONVERGED).all()
    assert (np.asarray(run.residuals) > 1e-5).all()


def textbook(product, B, precondition, steps):
    """Preconditioned conjugate gradients in NumPy, a column at a time as it stands in the books:
    solutions and relative residuals of every step.
    """
    X, R, Z = np.zeros_like(B), B.copy(), precondition(B)
    P, found = Z.copy(), []
    for _ in range(steps):
        product_of_p, weight = product(P), (R * Z).sum(axis=0)
        alpha = weight / (P * product_of_p).sum(axis=0)
        X, R = X + alpha * P, R - alpha * product_of_p
        Z = precondition(R)
        P = Z + (R * Z).sum(axis=0) / weight * P
        found.append((X, np.linalg.norm(R, axis=0) / np.linalg.norm(B, axis=0)))
    return found


@pytest.mark.float64
def test_every_step_is_that_of_the_books():
    """With a preconditioner that is no multiple of the identity, and columns of their own
    lengths.
    """
    (A, B), steps = problem(1e2), 7
    B, M = B * array([1e-3, 1.0, 1e5]), np.diag(np.linspace(0.5, 2, N))
    found = textbook(lambda V: wide(A) @ V, wide(B), lambda R: M @ R, steps)
    X, run = solve(A, B, array(M), tol=1e-15, steps=steps)
    assert_close(run.history, np.array([relative for _, relative in found]), 1e-10)
    best = np.argmin([np.ones(3), *(relative for _, relative in found)], axis=0)
    want = np.stack(
        [found[k - 1][0][:, j] if k else 0 * found[0][0][:, j] for j, k in enumerate(best)], axis=1
    )
    for j in range(3):
        assert_close(X[:, j], want[:, j], 1e-9)
    assert (np.asarray(run.reason) == conjugate.ALL_STEPS).all() and run.residuals.shape == (3,)
