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


def solve(A, B, M=None, **options):
    product = lambda V: jnp.matmul(A, V, precision="highest")
    precondition = (lambda R: R) if M is None else (lambda R: jnp.matmul(M, R, precision="highest"))
    return jax.jit(lambda B: conjugate.conjugate_gradients(product, B, precondition, **options))(B)


def test_solves_every_column():
    A, B = problem()
    B = B.at[:, 1].set(0)
    tol = 1e-10 if X64 else 1e-3
    X, run = solve(A, B, tol=tol)
    exact = np.linalg.solve(wide(A), wide(B))
    assert (np.asarray(run.reason) == conjugate.CONVERGED).all()
    assert_close(X, exact, 1e3 * tol)
    left = (
        np.linalg.norm(wide(B) - wide(A) @ wide(X), axis=0)[[0, 2]]
        / np.linalg.norm(wide(B), axis=0)[[0, 2]]
    )
    assert (left <= 2 * tol + 1e3 * EPS).all()
    assert int(run.steps) <= 3 * N and np.isnan(np.asarray(run.history)[int(run.steps) :]).all()


def test_a_column_of_its_own_matrix():
    """As λ differs between columns: A + λⱼ I."""
    A, B = problem()
    lams = array(np.array([0.01, 0.1, 1.0]))
    apply = lambda V: jnp.matmul(A, V, precision="highest") + lams * V
    X, run = conjugate.conjugate_gradients(
        apply, B, lambda R: R / (1 + lams), tol=1e-12 if X64 else 1e-5
    )
    for j, lam in enumerate(wide(lams)):
        assert_close(
            X[:, j],
            np.linalg.solve(wide(A) + lam * np.eye(N), wide(B[:, j])),
            1e-9 if X64 else 1e-2,
        )


def test_a_good_preconditioner_takes_few_steps():
    A, B = problem(1e5)
    near = np.linalg.inv(wide(A) + 1e-5 * np.eye(N))  # the smallest eigenvalue is as large
    steps = [int(solve(A, B, M, tol=1e-4)[1].steps) for M in (array((near + near.T) / 2), None)]
    assert steps[0] <= 8 < steps[1]


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


def test_all_steps_used_keeps_the_best():
    A, B = problem(1e6)
    X, run = solve(A, B, tol=1e-14, steps=3)
    assert int(run.steps) == 3 and (np.asarray(run.reason) == conjugate.ALL_STEPS).all()
    history = np.asarray(run.history)
    assert_close(run.residuals, np.minimum(1, history.min(axis=0)), 10 * EPS)
    assert len(conjugate.REASONS) == 4


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
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_every_step_is_that_of_the_books(steps):
    """With a preconditioner that is no multiple of the identity, and columns of their own
    lengths.
    """
    A, B = problem(1e2)
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


@pytest.mark.float64
@pytest.mark.parametrize(("turn", "best"), [(0.5, 2), (1.0, 0), (40.0, 0)])
def test_a_column_stops_where_it_has_not_gone_down_for_long_or_has_grown(turn, best):
    """V + turn·JV, J a rotation by a right angle: as definite as the identity, and not symmetric,
    so that residuals grow but in the first steps.
    """
    J = np.kron(np.eye(N // 2), [[0.0, -1.0], [1.0, 0.0]])
    _, B = problem()
    S = np.eye(N) + turn * J
    X, run = solve(array(S), B, tol=1e-12)
    found = [
        (0 * wide(B), np.ones(3)),
        *textbook(lambda V: S @ V, wide(B), lambda R: R, best + conjugate.PATIENCE),
    ]
    relative = np.array([relative for _, relative in found])[:, 0]
    assert relative.argmin() == best
    grown = np.flatnonzero(relative > conjugate.GROWTH * np.minimum.accumulate(relative))
    stop = min([best + conjugate.PATIENCE, *grown])
    assert int(run.steps) == stop and (np.asarray(run.reason) == conjugate.STALLED).all()
    assert_close(run.history[:stop, 0], relative[1 : stop + 1], 1e-6)
    assert_close(run.residuals, np.full(3, relative[best]), 1e-10)
    assert (
        np.abs(wide(X) - found[best][0]).max() < 1e-10
        and np.isnan(np.asarray(run.history)[stop:]).all()
    )


@pytest.mark.float64
def test_columns_that_are_done_are_left_alone():
    """One converges at once, one is 0, one goes on: each by itself, and the history of one that is
    done is NaN.
    """
    A, B = problem(1e3)
    vector = np.linalg.eigh(wide(A))[1][:, 5]
    B = jnp.stack([array(vector), 0 * B[:, 1], B[:, 2]], axis=1)
    X, run = solve(A, B, tol=1e-9)
    history = np.asarray(run.history)
    assert (
        np.isfinite(history[0, [0, 2]]).all()
        and np.isnan(history[1:, 0]).all()
        and np.isnan(history[:, 1]).all()
    )
    assert (
        np.isfinite(history[: int(run.steps), 2]).all()
        and (np.asarray(run.reason) == conjugate.CONVERGED).all()
    )
    assert_close(X, np.linalg.solve(wide(A), wide(B)), 1e-5)
    assert float(run.residuals[1]) == 0
