"""Conjugate gradients against a direct solution, and what they say where they cannot go on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import EPS, X64, array, assert_close, wide

from jaxrls.linalg import conjugate

N = 40


def problem(condition=1e3, seed=0):
    """A positive definite matrix and three right-hand sides, as the library sees them."""
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(N, N)))
    A = array((Q / np.geomspace(1, condition, N)) @ Q.T)
    return (A + A.T) / 2, array(rng.normal(size=(N, 3)))


def run(A, B, M=None, **options):
    product = lambda V: jnp.matmul(A, V, precision="highest")  # noqa: E731
    precondition = (lambda R: R) if M is None else (lambda R: jnp.matmul(M, R, precision="highest"))
    return jax.jit(lambda B: conjugate.conjugate_gradients(product, B, precondition, **options))(B)


def test_solves_every_column():
    A, B = problem()
    B = B.at[:, 1].set(0)
    tol = 1e-10 if X64 else 1e-3
    found = run(A, B, tol=tol)
    exact = np.linalg.solve(wide(A), wide(B))
    assert (np.asarray(found.reason) == conjugate.CONVERGED).all()
    assert_close(found.X, exact, 1e3 * tol)
    left = np.linalg.norm(wide(B) - wide(A) @ wide(found.X), axis=0)[[0, 2]] / np.linalg.norm(wide(B), axis=0)[[0, 2]]
    assert (left <= 2 * tol + 1e3 * EPS).all()
    assert int(found.steps) <= 3 * N and np.isnan(np.asarray(found.history)[int(found.steps) :]).all()


def test_a_column_of_its_own_matrix():
    """As λ differs between columns: A + λⱼ I."""
    A, B = problem()
    lams = array(np.array([0.01, 0.1, 1.0]))
    apply = lambda V: jnp.matmul(A, V, precision="highest") + lams * V  # noqa: E731
    found = conjugate.conjugate_gradients(apply, B, lambda R: R / (1 + lams), tol=1e-12 if X64 else 1e-5)
    for j, lam in enumerate(wide(lams)):
        assert_close(found.X[:, j], np.linalg.solve(wide(A) + lam * np.eye(N), wide(B[:, j])), 1e-9 if X64 else 1e-2)


def test_a_good_preconditioner_takes_few_steps():
    A, B = problem(1e5)
    near = np.linalg.inv(wide(A) + 1e-5 * np.eye(N))  # the smallest eigenvalue is as large
    assert int(run(A, B, array((near + near.T) / 2), tol=1e-4).steps) <= 8 < int(run(A, B, tol=1e-4).steps)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda A, V: jnp.where(jnp.arange(N)[:, None] < 3, -1.0, 1.0).astype(V.dtype) * V, conjugate.INDEFINITE),
        (lambda A, V: jnp.full_like(V, jnp.nan), conjugate.INDEFINITE),
        (lambda A, V: jnp.round(jnp.matmul(A, V) * 64) / 64, None),
    ],
    ids=["indefinite", "NaN", "coarse"],
)
def test_stops_where_products_are_not_what_they_should_be(spoil, reason):
    A, B = problem(1e4)
    found = conjugate.conjugate_gradients(lambda V: spoil(A, V), B, lambda R: R, tol=1e-13, steps=300)
    assert np.isfinite(np.asarray(found.X)).all()
    assert (np.asarray(found.residuals) <= 1).all()
    assert (np.asarray(found.reason) != conjugate.CONVERGED).all()
    assert reason is None or (np.asarray(found.reason) == reason).all()


def test_all_steps_used_keeps_the_best():
    A, B = problem(1e6)
    found = run(A, B, tol=1e-14, steps=3)
    assert int(found.steps) == 3 and (np.asarray(found.reason) == conjugate.ALL_STEPS).all()
    history = np.asarray(found.history)
    assert_close(found.residuals, np.minimum(1, history.min(axis=0)), 10 * EPS)
    assert len(conjugate.REASONS) == 4
