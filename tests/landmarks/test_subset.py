"""Fits on landmarks beyond the grid: one landmark, more than there are rows or dimensions, what
they leave over, certificates, and memory.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import support
from contract.cases import gaussian
from support import (
    ANY_PRECISION,
    DTYPE,
    EPS,
    FLOAT64,
    X64,
    array,
    assert_close,
    factor_subset,
    factorize,
    loo_residuals,
    of_landmarks,
    refused,
    wide,
)

import jaxrls as rls
from jaxrls import extend
from jaxrls.landmarks import slopes, solver
from jaxrls.uncertainty.spread import spread

WIDTH = 1.5
GAUSSIAN = rls.Gaussian(WIDTH)
N, M = 40, 10
# 1e-10 in float64, as promised; in float32 what K_RR's condition number of a few hundred leaves.
CLOSE = 1e-10 if X64 else 2e-3


def data():
    rng = np.random.default_rng(0)
    return wide(rng.normal(size=(N, 3))), wide(rng.normal(size=(N, 2)) + 3)


def rows(m=M):
    return np.random.default_rng(1).choice(N, m, replace=False)


V = wide(np.random.default_rng(2).uniform(0.3, 2, N))


kernel_matrix = partial(gaussian, width=WIDTH)


def features(X, points):
    """Φ = K_TR K_RR^(−1/2), duplicates allowed."""
    s, P = np.linalg.eigh(kernel_matrix(points, points))
    used = s > 1e-12 * s[-1]
    return kernel_matrix(X, points) @ (P[:, used] / np.sqrt(s[used]))


def assert_left_out(factor, Phi, Y, lam, landmarks=()):
    """Held-out residuals, but of landmarks without which nothing but the intercept is left."""
    e = oracle.loo_residuals(Phi, Y, lam, None, True)
    for row in landmarks:
        e[row] = Y[row] - np.delete(Y, row, axis=0).mean(axis=0)
    assert_close(loo_residuals(factor, array(Y), lam), e, CLOSE)


def test_one_landmark():
    (X, Y), R = data(), rows(m=1)
    factor = factor_subset(GAUSSIAN, array(X), jnp.asarray(R))
    assert_left_out(factor, features(X, X[R]), Y, 1e-2 * float(factor.s.max()), R)


def test_landmarks_that_do_nothing():
    """k(x, x) = 0 at a landmark, and more landmarks than the kernel has dimensions."""
    X, Y = data()
    X[3] = 0
    factor = factor_subset(rls.Linear(), array(X), jnp.arange(8))
    assert_left_out(factor, X, Y, 0.01 * float(factor.s.max()))


def test_a_landmark_far_from_all_rows_tells_nothing_of_where_it_is():
    """The variance there is k(x, x), at λ of the size of what rounding hides too."""
    (X, _), far = data(), np.full((1, 3), 50.0)
    points = array(np.concatenate([X[:5], far]))

    @jax.jit
    def variance(times):
        factor = rls.factorize(GAUSSIAN, array(X), landmarks=points, intercept=False)
        posterior = spread(factor, times * factor.precision_floor())
        return posterior.variances(GAUSSIAN, posterior.new_rows(GAUSSIAN, array(far)))

    for times in (1.0, 10.0):
        assert_close(variance(times), [1.0], 100 * EPS)


def test_trace_residual():
    """tr √v(K − K̂)√v, never below rounding."""
    (X, _), R, v = data(), rows(), V * (np.arange(N) % 5 > 0)
    v[R[[0, 3]]] = 0
    weights = array(v)
    factor = factor_subset(GAUSSIAN, array(X), jnp.asarray(R), weights=weights)
    want = v @ (1 - np.sum(features(X, X[R]) ** 2, axis=1))
    assert abs(float(factor.trace_residual) - want) <= 100 * EPS * v.sum()
    everything = factor_subset(GAUSSIAN, array(X), jnp.arange(N), weights=weights)
    assert 0 < float(everything.trace_residual) <= 1e4 * EPS * v.sum()


def test_the_certificate_holds():
    """From certified_lam on, dual coefficients are within `tol` of the exact ones, and the path is
    not certified for nothing.
    """
    (X, Y), weights, root, kernel = data(), array(V), np.sqrt(V)[:, None], rls.Gaussian(4.0)
    factor = factor_subset(kernel, array(X), jnp.asarray(rows()), weights=weights)
    dual = factorize(kernel, array(X), weights=weights)
    K = np.asarray(support.gram(kernel, array(X), factor.points))
    for tol in (0.3, 0.03):
        start = float(rls.extend.certified_lam(factor, tol))
        assert start < float(factor.s.max())
        for lam in (start, 10 * start):
            exact = np.asarray(support.coef(dual, array(Y), lam)[0]) / root
            coef, constant = support.coef(factor, array(Y), lam)
            near = root * (Y - K @ np.asarray(coef) - np.asarray(constant)) / lam
            off, size = (np.linalg.norm(A, axis=0) for A in (near - exact, near))
            assert (off <= tol * size).all()


@pytest.mark.slow
def test_the_certificate_in_words():
    X, Y = (array(part) for part in data())
    fit = rls.fit(rls.Gaussian(4.0), X, Y, lams=[1.0], landmarks=rows())
    least = float(fit.trace_residual) / 0.1
    words = f"from λ = {least:.3g} on, the 10 landmarks change the dual coefficients by at most 10%"
    assert fit.certificate.startswith(words)


@ANY_PRECISION
@pytest.mark.slow
def test_memory():
    """K is never formed, and without `keep` no n×m matrix either: not while factoring, nor in the
    path with leave-one-out.
    """
    n, m, size = 200_000, 100, jnp.dtype(DTYPE).itemsize
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((n, 3), DTYPE), ((n,), DTYPE), ((m,), jnp.int32))
    ]

    def run(X, y, R):
        factor = of_landmarks(GAUSSIAN, X, R, intercept=True)
        return rls.path(factor, y, rls.extend.lambda_grid(factor, 20)).loo

    held = jax.jit(run).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    assert held < 3 * n * m * size


@FLOAT64  # bytes by the number of entries
@pytest.mark.slow
def test_memory_of_a_gradient_does_not_grow_with_rows(monkeypatch):
    """Value and gradient by Cholesky on ten times the rows take the same memory beside X, y and
    their cotangents: a few columns of n, and no n×m array, where memory would not hold it.
    """
    monkeypatch.setattr(slopes, "keeps_rows", lambda *sizes: False)

    def temporaries(n):
        shapes = [jax.ShapeDtypeStruct(shape, DTYPE) for shape in ((n, 3), (n,), (50, 3))]
        run = jax.grad(
            lambda w, X, y, P: rls.objective(
                rls.Gaussian(w), X, y, 0.3, landmarks=P, block_size=1000
            )
        )
        return jax.jit(run).lower(1.0, *shapes).compile().memory_analysis().temp_size_in_bytes

    more = temporaries(100_000) - temporaries(10_000)
    assert more < 90_000 * 16 * np.dtype(DTYPE).itemsize


@FLOAT64
@pytest.mark.parametrize("by_number", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_slopes_are_those_of_the_plain_error(monkeypatch, by_number):
    """By derivatives of every step, in kernel, λ and points; by row numbers, landmarks leave with
    their rows; weights are 0 among others.
    """
    X, Y = map(array, data())
    v = array(np.arange(len(X)) % 3)
    numbers = np.array([3, 10, 20, 30, 39, 31])

    def error(width, log_lam, points):
        named = numbers if by_number else points
        return rls.objective(
            rls.Gaussian(width), X, Y, jnp.exp(log_lam), landmarks=named, weights=v
        )

    at = 1.5, -1.0, X[numbers]
    found = jax.jit(jax.value_and_grad(error, (0, 1, 2)))(*at)
    asked = []
    monkeypatch.setattr(solver, "has_slopes", lambda problem: asked.append(problem))
    want = jax.jit(jax.value_and_grad(error, (0, 1, 2)))(*at)
    assert asked
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-9), found, want)


@FLOAT64
@pytest.mark.slow
def test_slopes_on_dependent_landmarks():
    """Points twice, and points that the kernel can hardly tell apart: the gradient is that without
    the doubles, and never NaN.
    """
    X, Y = map(array, data())
    chosen = np.array([3, 10, 20, 30, 39, 31, 32, 7, 9])
    gradient = jax.jit(
        jax.grad(
            lambda width, points: rls.objective(rls.Gaussian(width), X, Y, 0.3, landmarks=points)
        )
    )
    once = X[chosen]
    assert_close(gradient(1.5, jnp.concatenate([once, once])), gradient(1.5, once), 1e-8)
    assert np.isfinite(gradient(1000.0, X[:18]))


def test_errors_say_what_to_do():
    X, three = array(data()[0]), np.arange(3)
    untold, told = (extend.Landmarks(None, X, trace) for trace in (None, jnp.ones(())))
    refused(
        (
            lambda: rls.factorize(GAUSSIAN, X, landmarks=three, solver=rls.Spectral("gram")),
            "landmarks= cannot be used with",
        ),
        (lambda: rls.extend.certified_lam(untold, 0.1), "factor"),
        (lambda: rls.extend.certified_lam(told, -0.1), "positive"),
    )
