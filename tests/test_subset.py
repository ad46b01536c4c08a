"""The subset of regressors against refits: both leave-one-outs, groups, weights, intercepts, and
what goes wrong in K_RR.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import support
from support import (
    DTYPE,
    EPS,
    X64,
    array,
    assert_close,
    factor_subset,
    factorize,
    loo_residuals,
    of_landmarks,
    wide,
)

import jaxrls as rls

WIDTH = 1.5
GAUSSIAN = rls.Gaussian(WIDTH)
N, M = 40, 10
# 1e-10 in float64, as promised; in float32 what K_RR's condition number of a few hundred leaves.
CLOSE = 1e-10 if X64 else 2e-3
LAMS = (1e-6, 1e-3, 1.0) if X64 else (1e-3, 1e-1, 1.0)  # of the largest eigenvalue


def data(t=2, n=N, seed=0):
    rng = np.random.default_rng(seed)
    return wide(rng.normal(size=(n, 3))), wide(rng.normal(size=(n, t)) + 3)


def rows(seed=1, n=N, m=M):
    return np.random.default_rng(seed).choice(n, m, replace=False)


def some_weights(kind, n=N):
    v = wide(np.random.default_rng(2).uniform(0.3, 2, n))
    if kind == "some are 0":  # rows of X and landmarks among them
        v = v * (np.arange(n) % 5 > 0)
        v[rows()[[0, 3]]] = 0
    return v


def kernel_matrix(X, Z):
    return np.exp(-np.sum((X[:, None] - Z[None]) ** 2, axis=-1) / (2 * WIDTH**2))


def features(X, points):
    """Φ = K_TR K_RR^(−1/2), duplicates allowed."""
    s, P = np.linalg.eigh(kernel_matrix(points, points))
    used = s > 1e-12 * s[-1]
    return kernel_matrix(X, points) @ (P[:, used] / np.sqrt(s[used]))


def held_out(X, Y, R, lam, groups, v):
    """Residuals by refitting: each group left out in turn, and with `leave` its landmarks too."""
    e = np.empty_like(Y)
    for g in np.unique(groups):
        out = groups == g
        stay = [r for r in R if not out[r]]
        Phi = features(X, X[stay]) if stay else np.zeros((len(X), 1))
        w, b = oracle.refit(Phi[~out], Y[~out], lam, None if v is None else v[~out], True)
        e[out] = Y[out] - Phi[out] @ w - b
    return e


def mean_square(e, v):
    return v @ e**2 / v.sum()


@jax.jit
def factor_and_path(X, Y, R, v, shares):
    factor = of_landmarks(GAUSSIAN, X, R, weights=v, intercept=True)
    lams = shares * jnp.max(factor.s)
    return factor, rls.path(factor, Y, lams)


def test_path_and_every_left_out():
    """c(λ), leave-one-out and groups, several of them holding landmarks, one of them all but
    one landmark; λ far down the spectrum.
    """
    (X, Y), R, v = data(3), rows(), some_weights("some are 0")
    factor, path = factor_and_path(array(X), array(Y), jnp.asarray(R), array(v), array(LAMS))
    groups = np.arange(N) % 4
    groups[R[1:]] = 3
    grouped = jax.jit(rls.kfold(groups))(factor, array(Y), path.lams)
    for i, lam in enumerate(np.asarray(path.lams, np.float64)):
        w, b = oracle.refit(features(X, X[R]), Y, lam, v, True)
        fitted = kernel_matrix(X, X[R]) @ np.asarray(path.coef[i], np.float64) + np.asarray(
            path.intercept[i], np.float64
        )
        assert_close(fitted, features(X, X[R]) @ w + b, CLOSE, "predictions")
        e = held_out(X, Y, R, lam, np.arange(N), v)
        assert_close(
            loo_residuals(factor, array(Y), path.lams[i]), e, CLOSE, "leave-one-out residuals"
        )
        assert_close(path.loo[i], mean_square(e, v), CLOSE, "leave-one-out error")
        e = held_out(X, Y, R, lam, groups, v)
        assert_close(grouped[i], mean_square(e, v), CLOSE, "groups")


def test_one_landmark():
    (X, Y), R = data(), rows(m=1)
    factor = factor_subset(GAUSSIAN, array(X), jnp.asarray(R), intercept=True)
    lam = 1e-2 * float(factor.s.max())
    e = held_out(X, Y, R, lam, np.arange(N), None)
    assert_close(loo_residuals(factor, array(Y), lam), e, CLOSE)


def test_points_that_are_not_rows_stay():
    """They never leave, whatever `leave` says, though there are more of them than rows."""
    (X, Y), points = data(), wide(np.random.default_rng(9).normal(size=(60, 3)))
    factors = [
        factor_subset(GAUSSIAN, array(X), array(points), intercept=True, leave=leave)
        for leave in (True, False)
    ]
    lam = 1e-2 * float(factors[0].s.max())
    e = oracle.loo_residuals(features(X, points), Y, lam, None, True)
    for factor in factors:
        assert_close(loo_residuals(factor, array(Y), lam), e, CLOSE)


def test_equal_landmarks():
    """Rows that are equal, all of them landmarks: a ridge takes the place of pivots of 0, one
    leaves and its twin stays.
    """
    (X, Y), R = data(), np.arange(20)
    X[10:20] = X[:10]
    factor = factor_subset(GAUSSIAN, array(X), jnp.asarray(R), intercept=True)
    assert 0 < float(factor.report.ridge) < 100 * EPS
    for share in LAMS:
        lam = share * float(factor.s.max())
        e = held_out(X, Y, R, lam, np.arange(N), None)
        assert_close(
            loo_residuals(factor, array(Y), lam), e, 10 * CLOSE
        )  # half of the directions are at the level of rounding


def test_landmarks_that_do_nothing():
    """k(x, x) = 0 at a landmark, and more landmarks than the kernel has dimensions."""
    X, Y = data()
    X[3] = 0
    factor = factor_subset(rls.Linear(), array(X), jnp.arange(8), intercept=True)
    lam = 0.01 * float(factor.s.max())
    assert_close(
        loo_residuals(factor, array(Y), lam), oracle.loo_residuals(X, Y, lam, None, True), CLOSE
    )


def test_landmarks_that_depend_are_the_features_they_span():
    """More landmarks than the kernel has dimensions, three of them twice: nothing counts what they
    are too many by.
    """
    (_, Y), lams = data(), array([0.01, 0.1, 1.0])
    X = wide(np.random.default_rng(3).normal(size=(N, 6)))
    X[13:16] = X[1:4]

    @jax.jit
    def answers(X, Y):
        few = rls.factorize(rls.Linear(), X, solver=rls.Spectral("features")).solve(Y)
        many = factor_subset(rls.Linear(), X, jnp.arange(16), intercept=True, leave=False).solve(Y)
        names = "dof", "residual_dof", "logdet", "data_fit", "residual_norm", "residuals"
        return {name: [getattr(of, name)(lams) for of in (many, few)] for name in names}

    for name, (found, want) in answers(array(X), array(Y)).items():
        assert_close(found, want, 100 * N * EPS, name)


def test_a_landmark_far_from_all_rows_tells_nothing_of_where_it_is():
    """The variance there is k(x, x), at λ of the size of what rounding hides too."""
    (X, _), far = data(), np.full((1, 3), 50.0)
    factor = rls.factorize(
        GAUSSIAN, array(X), landmarks=array(np.concatenate([X[:5], far])), intercept=False
    )
    for times in (1, 10):
        found = factor.spread(times * factor.precision_floor()).variance(
            GAUSSIAN, array(far), corrected=False
        )
        assert_close(found, [1.0], 100 * EPS)


def test_trace_residual():
    """tr √v(K − K̂)√v, never below rounding."""
    (X, _), R, v = data(), rows(), some_weights("some are 0")
    weights = array(v)
    factor = factor_subset(GAUSSIAN, array(X), jnp.asarray(R), weights=weights, intercept=True)
    assert (
        abs(float(factor.trace_residual) - v @ (1 - np.sum(features(X, X[R]) ** 2, axis=1)))
        <= 100 * EPS * v.sum()
    )
    everything = factor_subset(GAUSSIAN, array(X), jnp.arange(N), weights=weights, intercept=True)
    assert 0 < float(everything.trace_residual) <= 1e4 * EPS * v.sum()


def test_the_certificate_holds():
    """From certified_lam on, dual coefficients are within `tol` of the exact ones, and the path is
    not certified for nothing.
    """
    (X, Y), v = data(), some_weights("positive")
    weights, root = array(v), np.sqrt(v)[:, None]
    factor = factor_subset(
        rls.Gaussian(4.0), array(X), jnp.asarray(rows()), weights=weights, intercept=True
    )
    dual = factorize(rls.Gaussian(4.0), array(X), weights=weights, intercept=True)
    for tol in (0.3, 0.03):
        start = float(rls.certified_lam(factor, tol))
        assert start < float(factor.s.max())
        for lam in (start, 10 * start):
            exact = np.asarray(support.coef(dual, array(Y), lam)[0]) / root
            coef, constant = support.coef(factor, array(Y), lam)
            residuals = Y - np.asarray(
                support.gram(rls.Gaussian(4.0), array(X), factor.points) @ coef + constant,
                np.float64,
            )
            near = root * residuals / lam
            for t in range(Y.shape[1]):
                assert np.linalg.norm(near[:, t] - exact[:, t]) <= tol * np.linalg.norm(near[:, t])


def test_the_certificate_in_words():
    R = support.landmarks(rls.Gaussian(4.0), array(data()[0]), 10, key=jax.random.key(0))
    lam = float(rls.certified_lam(R, 0.05))
    assert lam == pytest.approx(float(R.trace_residual) / 0.05, rel=1e-5)
    words = rls.certificate(R, 0.05)
    assert f"λ = {lam:.3g}" in words and "10 landmarks" in words and "5%" in words


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
        return rls.path(factor, y, rls.lambda_grid(factor, 20)).loo

    held = jax.jit(run).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    assert held < 3 * n * m * size


def test_factorize_takes_landmarks():
    X = array(data()[0])
    factor = factorize(GAUSSIAN, X, landmarks=jnp.asarray(rows()))
    assert factor.route == "subset" and factor.n == N and factor.s.shape == (M,)
    chosen = support.landmarks(GAUSSIAN, X, 5, key=jax.random.key(0))
    by_result, by_rows = (factorize(GAUSSIAN, X, landmarks=R) for R in (chosen, chosen.indices))
    assert (by_result.s == by_rows.s).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda X: rls.factorize(
                GAUSSIAN, X, landmarks=np.arange(3), solver=rls.Spectral("gram")
            ),
            "landmarks= fits on landmarks in place of all rows",
        ),
        (lambda X: of_landmarks(GAUSSIAN, X, np.array([0, 40])), "and include 40"),
        (
            lambda X: of_landmarks(GAUSSIAN, X, np.arange(3), weights=jnp.ones(3, DTYPE)),
            "weights",
        ),
        (lambda X: of_landmarks(GAUSSIAN, X, np.arange(3), block_size=0), "block_size"),
        (lambda X: rls.certified_lam(rls.Landmarks(None, X, None), 0.1), "factor"),
        (lambda X: rls.certified_lam(rls.Landmarks(None, X, jnp.ones(())), -0.1), "positive"),
    ],
)
def test_errors_say_what_to_do(call, message, unchecked):
    with pytest.raises(ValueError, match=message):
        call(array(data()[0]))
