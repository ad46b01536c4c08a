"""The subset of regressors against refits: both leave-one-outs, groups, weights, intercepts, and
what goes wrong in K_RR.
"""

import functools

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
    assert_derivatives,
    factor_subset,
    factorize,
    loo,
    loo_residuals,
    of_landmarks,
    wide,
)

import jaxrls as rls
from jaxrls.factors import landmark_spectrum
from jaxrls.linalg.decompositions import SpectralDerivativeError
from jaxrls.problem.fixed_effects import Intercept

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
    return None if kind == "none" else v


def kernel_matrix(X, Z):
    return np.exp(-np.sum((X[:, None] - Z[None]) ** 2, axis=-1) / (2 * WIDTH**2))


def features(X, points):
    """Φ = K_TR K_RR^(−1/2), duplicates allowed."""
    s, P = np.linalg.eigh(kernel_matrix(points, points))
    used = s > 1e-12 * s[-1]
    return kernel_matrix(X, points) @ (P[:, used] / np.sqrt(s[used]))


def held_out(X, Y, R, lam, groups, v, intercept, leave):
    """Residuals by refitting: each group left out in turn, and with `leave` its landmarks too."""
    e = np.empty_like(Y)
    for g in np.unique(groups):
        out = groups == g
        stay = [r for r in R if not (leave and out[r])]
        Phi = features(X, X[stay]) if stay else np.zeros((len(X), 1))
        w, b = oracle.refit(Phi[~out], Y[~out], lam, None if v is None else v[~out], intercept)
        e[out] = Y[out] - Phi[out] @ w - b
    return e


def mean_square(e, v):
    v = np.ones(len(e)) if v is None else v
    return v @ e**2 / v.sum()


@functools.partial(jax.jit, static_argnames=("intercept", "leave"))
def factor_and_path(X, Y, R, v, shares, intercept, leave):
    factor = of_landmarks(GAUSSIAN, X, R, weights=v, intercept=intercept, leave=leave)
    lams = shares * jnp.max(factor.s)
    return factor, rls.path(factor, Y, lams)


LEFT_OUT = {
    "landmarks leave": ("some are 0", True, True),
    "dictionary fixed": ("none", False, False),
}


@pytest.mark.parametrize(("kind", "intercept", "leave"), LEFT_OUT.values(), ids=LEFT_OUT.keys())
def test_path_and_every_left_out(kind, intercept, leave):
    """c(λ), both leave-one-outs and groups, several of them holding landmarks, one of them all but
    one landmark; λ far down the spectrum.
    """
    (X, Y), R, v = data(3), rows(), some_weights(kind)
    weights = None if v is None else array(v)
    factor, path = factor_and_path(
        array(X), array(Y), jnp.asarray(R), weights, array(LAMS), intercept, leave
    )
    groups = np.arange(N) % 4
    groups[R[1:]] = 3
    grouped = jax.jit(rls.kfold)(factor, array(Y), path.lams, rls.folds(groups))
    for i, lam in enumerate(np.asarray(path.lams, np.float64)):
        w, b = oracle.refit(features(X, X[R]), Y, lam, v, intercept)
        fitted = kernel_matrix(X, X[R]) @ np.asarray(path.coef[i], np.float64) + np.asarray(
            path.intercept[i], np.float64
        )
        assert_close(fitted, features(X, X[R]) @ w + b, CLOSE, "predictions")
        e = held_out(X, Y, R, lam, np.arange(N), v, intercept, leave)
        assert_close(
            loo_residuals(factor, array(Y), path.lams[i]), e, CLOSE, "leave-one-out residuals"
        )
        assert_close(path.loo[i], mean_square(e, v), CLOSE, "leave-one-out error")
        e = held_out(X, Y, R, lam, groups, v, intercept, leave)
        assert_close(grouped[i], mean_square(e, v), CLOSE, "groups")


@pytest.mark.parametrize("intercept", [False, True])
def test_an_integer_weight_is_that_many_rows_left_out_together(intercept):
    """A landmark of weight 2 leaves with both its rows."""
    (X, Y), R = data(), rows()
    v = np.random.default_rng(0).integers(1, 4, N).astype(float)
    v[R[0]] = 2
    many = np.repeat(np.arange(N), v.astype(int))
    first = np.searchsorted(many, R)
    factor = factor_subset(
        GAUSSIAN, array(X), jnp.asarray(R), weights=array(v), intercept=intercept
    )
    lam = 1e-2 * float(factor.s.max())
    e = held_out(X[many], Y[many], first, lam, many, None, intercept, True)
    assert_close(loo(factor, array(Y), array([lam]))[0], mean_square(e, None), CLOSE)


@pytest.mark.float64
@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize(("kind", "intercept"), [("none", False), ("positive", True)])
def test_all_rows_as_landmarks_is_kernel_rls(kind, intercept, leave):
    """m = n gives kernel RLS's leave-one-out back, either way."""
    (X, Y), v = data(), some_weights(kind)
    X = 2 * X
    weights = None if v is None else array(v)
    dual = factorize(GAUSSIAN, array(X), weights=weights, intercept=intercept, route="gram")
    factor = factor_subset(
        GAUSSIAN,
        array(X),
        jnp.asarray(rows(m=N)),
        weights=weights,
        intercept=intercept,
        leave=leave,
    )
    for share in (1e-4, 1e-2, 1.0):
        lam = share * dual.s.max()
        assert_close(
            loo_residuals(factor, array(Y), lam),
            loo_residuals(dual, array(Y), lam),
            1e-10,
            f"{share}",
        )


@pytest.mark.parametrize("m", [1, 2])
def test_few_landmarks(m):
    (X, Y), R = data(), rows(m=m)
    factor = factor_subset(GAUSSIAN, array(X), jnp.asarray(R), intercept=True)
    lam = 1e-2 * float(factor.s.max())
    e = held_out(X, Y, R, lam, np.arange(N), None, True, True)
    assert_close(loo_residuals(factor, array(Y), lam), e, CLOSE)


@pytest.mark.parametrize("m", [M, 60])
def test_points_that_are_not_rows_stay(m):
    """They never leave, whatever `leave` says, fewer than rows or more."""
    (X, Y), points = data(), wide(np.random.default_rng(9).normal(size=(m, 3)))
    factors = [
        factor_subset(GAUSSIAN, array(X), array(points), intercept=True, leave=leave)
        for leave in (True, False)
    ]
    lam = 1e-2 * float(factors[0].s.max())
    e = oracle.loo_residuals(features(X, points), Y, lam, None, True)
    for factor in factors:
        assert_close(loo_residuals(factor, array(Y), lam), e, CLOSE)


@pytest.mark.parametrize("leave", [True, False])
def test_equal_landmarks(leave):
    """Rows that are equal, all of them landmarks: a ridge takes the place of pivots of 0, one
    leaves and its twin stays.
    """
    (X, Y), R = data(), np.arange(20)
    X[10:20] = X[:10]
    factor = factor_subset(GAUSSIAN, array(X), jnp.asarray(R), intercept=True, leave=leave)
    assert 0 < float(factor.report.ridge) < 100 * EPS
    for share in LAMS:
        lam = share * float(factor.s.max())
        e = held_out(X, Y, R, lam, np.arange(N), None, True, leave)
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
        few = rls.factorize(rls.Linear(), X, route="features").solve(Y)
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


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_floor_is_relative(scale):
    """The scale of the kernel changes nothing but the scale of λ, and a well-conditioned K_RR is
    left exactly alone.
    """
    (X, Y), R = data(), jnp.asarray(rows())
    factor, plain = (
        factor_subset(k, array(X), R, intercept=False) for k in (scale * GAUSSIAN, GAUSSIAN)
    )
    assert float(factor.report.ridge) == 0
    assert_close(
        loo_residuals(factor, array(Y), scale * 0.1),
        loo_residuals(plain, array(Y), 0.1),
        CLOSE / 10,
    )


@pytest.mark.float64
@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize("width", [1.5, 6.0])
def test_float32_where_the_landmarks_nearly_depend(width, leave):
    """K_RR with a condition number from 1e7 to far beyond float32: the error is right to 5 % at the
    float32 precision floor, residuals come closer above.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 4)).astype(np.float32)
    y = np.sin(X.sum(axis=1)) + 0.1 * rng.normal(size=1000).astype(np.float32)
    R = jnp.asarray(rng.choice(1000, 100, replace=False))
    single, double = (
        factor_subset(rls.Gaussian(width), jnp.asarray(X, t), R, leave=leave, intercept=True)
        for t in (np.float32, np.float64)
    )
    for k in (1, 10, 100):
        lam = k * float(single.precision_floor())
        e = np.asarray(loo_residuals(double, jnp.asarray(y, np.float64), lam))
        error = np.asarray(loo_residuals(single, jnp.asarray(y, np.float32), lam)) - e
        assert np.sqrt(np.mean(error**2) / np.mean(e**2)) < 0.3 / k**0.5
        assert abs(np.mean((e + error) ** 2) / np.mean(e**2) - 1) < 0.05


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("kind", ["none", "some are 0"])
def test_trace_residual(kind, intercept):
    """tr √v(K − K̂)√v, never below rounding."""
    (X, _), R, v = data(), rows(), some_weights(kind)
    weights = None if v is None else array(v)
    factor = factor_subset(GAUSSIAN, array(X), jnp.asarray(R), weights=weights, intercept=intercept)
    v = np.ones(N) if v is None else v
    assert (
        abs(float(factor.trace_residual) - v @ (1 - np.sum(features(X, X[R]) ** 2, axis=1)))
        <= 100 * EPS * v.sum()
    )
    everything = factor_subset(
        GAUSSIAN, array(X), jnp.arange(N), weights=weights, intercept=intercept
    )
    assert 0 < float(everything.trace_residual) <= 1e4 * EPS * v.sum()


@pytest.mark.parametrize("kind", ["none", "positive"])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_certificate_holds(kind, intercept):
    """From certified_lam on, dual coefficients are within `tol` of the exact ones, and the path is
    not certified for nothing.
    """
    (X, Y), v = data(), some_weights(kind)
    weights = None if v is None else array(v)
    factor = factor_subset(
        rls.Gaussian(4.0), array(X), jnp.asarray(rows()), weights=weights, intercept=intercept
    )
    dual = factorize(rls.Gaussian(4.0), array(X), weights=weights, intercept=intercept)
    root = 1 if v is None else np.sqrt(v)[:, None]
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


def test_sums_add_up_over_pieces():
    """One function, one carry: the sums of two halves, added, are those of the whole, to
    rounding.
    """
    X = array(data()[0])
    lift = landmark_spectrum.Dictionary.of(GAUSSIAN, X[rows()]).lift
    v, origin = array(some_weights("positive")), jnp.full(M, 0.1, DTYPE)
    Y, label_origin = array(data()[1]), jnp.full(2, 3, DTYPE)

    @functools.partial(jax.jit, static_argnames="block_size")
    def of(X, Y, v, block_size=None):
        return rls.moments(
            rls.DenseRows(X),
            lift,
            Intercept(jnp.sum(v)),
            Y,
            v,
            origin=origin[None],
            label_origin=label_origin[None],
            block_size=block_size,
        )

    whole = of(X, Y, v)
    halves = [of(X[part], Y[part], v[part], block_size=7) for part in (slice(0, 13), slice(13, N))]
    for one, other in zip(
        jax.tree.leaves(whole), jax.tree.leaves(halves[0] + halves[1]), strict=True
    ):
        assert_close(other, one, 100 * EPS)
    for one, other in zip(
        jax.tree.leaves(whole - halves[1]), jax.tree.leaves(halves[0]), strict=True
    ):
        assert_close(
            one,
            other,
            100
            * EPS
            * (
                1
                + np.abs(jax.tree.leaves(whole)[2]).max()
                / np.abs(jax.tree.leaves(halves[0])[2]).max()
            ),
        )


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


def test_derivatives_in_labels_and_lam():
    """Exact where they are given, refused where they would run through the eigendecomposition."""
    (X, Y), R = data(), jnp.asarray(rows())
    factor = factor_subset(GAUSSIAN, array(X), R, intercept=True)
    assert_derivatives(
        lambda x: loo(factor, array(Y), jnp.exp(x)), array([-2.0, 0.0]), 1e-6 if X64 else 1e-1
    )
    grad = jax.jit(jax.grad(lambda Y: loo(factor, Y, array([0.1])).sum()))(array(Y))
    step = array(np.random.default_rng(0).normal(size=Y.shape))
    up, down = (loo(factor, array(Y) + h * step, array([0.1])).sum() for h in (0.1, -0.1))
    assert_close(jnp.sum(grad * step), (up - down) / 0.2, 1e-8 if X64 else 1e-2)
    with pytest.raises(SpectralDerivativeError, match="loo_objective"):
        jax.grad(lambda X: loo(factor_subset(GAUSSIAN, X, R), array(Y), array([0.1])).sum())(
            array(X)
        )


def test_factorize_takes_landmarks():
    X = array(data()[0])
    factor = factorize(GAUSSIAN, X, landmarks=jnp.asarray(rows()))
    assert factor.route == "subset" and factor.n == N and factor.s.shape == (M,)
    chosen = support.landmarks(GAUSSIAN, X, 5, key=jax.random.key(0))
    by_result, by_rows = (
        factorize(GAUSSIAN, X, landmarks=R, route="subset") for R in (chosen, chosen.indices)
    )
    assert (by_result.s == by_rows.s).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X: rls.factorize(GAUSSIAN, X, route="subset"), "landmarks="),
        (
            lambda X: rls.factorize(GAUSSIAN, X, landmarks=np.arange(3), route="gram"),
            "belong together",
        ),
        (lambda X: rls.factorize(GAUSSIAN, X, route="subsets"), "'subset'"),
        (lambda X: of_landmarks(GAUSSIAN, X, np.array([0, 40])), "row 40"),
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


@pytest.mark.any_precision
def test_every_fourth_landmark_leads():
    assert landmark_spectrum.lead_order(10).tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 3, 7]
