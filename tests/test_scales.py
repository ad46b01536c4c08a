"""Numbers that are small, large or far apart: what is refused, what must not depend on scales, and
what rounding may not hide.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as scipy_sparse
from extended import LONG, Truth
from oracle import loo_residuals as refitted
from oracle import refit
from support import (
    DTYPE,
    EPS,
    X64,
    array,
    assert_close,
    coef,
    factorize,
    loo_residuals,
    solver_of,
    wide,
)

import jaxrls as rls
from jaxrls import extend

ROUTES = ("gram", "features", "covariance", "cholesky")
GAUSSIAN_ROUTES = ("gram", "cholesky")


def smooth_data(n=60):
    rng = np.random.default_rng(1)
    X = wide(rng.uniform(-1, 1, size=(n, 2)))
    return X, wide(np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n))


def gaussian(X, Z):
    return np.exp(-0.5 * np.sum((X[:, None] - Z[None]) ** 2, axis=-1))


def features_of(K):
    """Φ with ΦΦᵀ = K."""
    s, U = np.linalg.eigh(K)
    return U * np.sqrt(np.maximum(s, 0))


# --- residual norms from residuals ---


@pytest.mark.parametrize("intercept", [True, False])
def test_norms_on_nearly_dependent_columns_are_those_of_residuals_at_every_lam(intercept):
    """U from moments is orthogonal to eps √(s_max/s) only, and n − 1 = r leaves nothing outside of
    it.
    """
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, y = (
            wide(rng.normal(size=(5, 4)) * 10.0 ** np.array([0, -1, -2, -4])),
            wide(rng.normal(size=(5, 1))),
        )
        lams = wide(
            np.linalg.norm(X, 2) ** 2
            * np.array([1e-11 if X64 else 1e-5, 1e-6 if X64 else 1e-4, 1e-2, 1])
        )
        K = X.astype(LONG) @ X.T.astype(LONG)
        long = (part.astype(LONG) for part in (y, y, np.ones(5), lams))
        truth = Truth(
            lambda gone, K=K: (K, K, np.diagonal(K)), *long, np.arange(5), intercept, "primal", EPS
        )
        solution = factorize(
            rls.Linear(), array(X), solver=rls.Spectral("covariance"), intercept=intercept
        ).solve(array(y))
        norm, off = truth.norm
        assert (np.abs(np.asarray(solution.residual_norm(array(lams))) - norm) <= off).all()
        fit = np.sum(truth.Y * truth.dual, axis=1)
        rounding = (off + 10 * EPS * fit * lams[-1]) / lams[:, None]
        assert (np.abs(np.asarray(solution.data_fit(array(lams))) - fit) <= rounding).all()


# --- scales of labels, columns, weights and kernels ---


@pytest.mark.filterwarnings("ignore:.*λ")
@pytest.mark.parametrize("criterion", [rls.loo, rls.gcv])
def test_scales_within_range_change_nothing(criterion):
    """Labels, or columns and width, a thousand times as large; weights, with λ that goes by them."""
    X, y = (a.astype(DTYPE) for a in smooth_data())
    X_new, v, lams = X[:7] + DTYPE(0.1), 1 + np.arange(60, dtype=DTYPE) % 3, np.logspace(-2, 1, 9)

    def look(a=1, b=1, c=1):
        kernel, at = rls.Gaussian(1.0 * b), (c * lams).astype(DTYPE)
        weights = (c * v).astype(DTYPE)
        fit = rls.fit(kernel, b * X, a * y, weights=weights, lams=at, criterion=criterion)
        error = np.asarray(fit.error, float) / a**2
        return float(fit.lam) / c, error, np.asarray(fit.predict(b * X_new)) / a

    one = look()
    for other in (look(a=1000), look(b=1000), look(c=1000)):
        for got, want in zip(other, one, strict=True):
            assert_close(got, want, 1e4 * EPS)


def refused(X=1.0, y=1.0, v=1.0):
    """A fit of which one column, the labels or a weight is so many times as large."""
    rows, labels = smooth_data(20)
    weights = np.ones(20)
    weights[3] = v
    rows[:, 1] *= X
    rls.fit(
        rls.Gaussian(1.0),
        rows.astype(DTYPE),
        (y * labels).astype(DTYPE),
        weights=weights.astype(DTYPE),
        lams=[0.1],
    )


LARGE, SMALL = (1e200, 1e-200) if X64 else (1e25, 1e-20)
LITTLE = 1e-13 if X64 else 3e-7


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            {"y": LARGE},
            r"Y holds \S+ in column 0, and sums of squares overflow float\d+: divide by a scale",
        ),
        ({"y": SMALL}, r"Y holds \S+ at most, and squares underflow float\d+: multiply by"),
        ({"X": LARGE}, r"X holds \S+ in column 1, and sums of squares overflow float\d+: divide"),
        ({"v": LITTLE}, r"weights above 0 go from \S+ to 1, and float\d+ takes a ratio of"),
        ({"v": 1 / LITTLE}, r"weights above 0 go from 1 to \S+, and float\d+ takes a ratio of"),
    ],
)
def test_what_leaves_the_range_is_refused(what, message):
    with pytest.raises(ValueError, match=message):
        refused(**what)


def test_other_doors_refuse_the_same():
    X, y = (a.astype(DTYPE) for a in smooth_data(20))
    kernel, far = rls.Gaussian(1.0), np.array([1, LARGE], DTYPE)
    for call in (
        lambda: rls.factorize(kernel, X * far),
        lambda: rls.fit(kernel, X, y, lams=[0.1]).predict(X * far),
        lambda: rls.median_distance(array(X * far)),
        lambda: rls.fit(rls.Linear(), scipy_sparse.csr_array(X * far), y),
        lambda: rls.stream([(X * far, y)]),
        lambda: rls.fit_kronecker(kernel, X * far, kernel, X, np.outer(y, y)),
    ):
        with pytest.raises(ValueError, match="in column 1, and sums of squares overflow"):
            call()
    for call in (
        lambda Y: rls.factorize(kernel, X).solve(Y),
        lambda Y: rls.tune(kernel, X, Y, steps=1),
        lambda Y: rls.fit_kronecker(kernel, X, kernel, X, np.outer(y, Y)),
    ):
        with pytest.raises(ValueError, match="squares overflow"):
            call(DTYPE(LARGE) * y)


def test_a_weight_below_eps_of_the_largest_is_0():
    X, y = (a.astype(DTYPE) for a in smooth_data(20))
    v = np.ones(20, DTYPE)
    v[[3, 7]] = EPS / 2, 1e-30
    none = np.where(np.isin(np.arange(20), [3, 7]), 0.0, 1.0)
    Phi = features_of(gaussian(X.astype(float), X.astype(float)))
    want = refitted(Phi, y[:, None].astype(float), wide(0.1), none, True)
    fit = rls.fit(rls.Gaussian(1.0), X, y, lams=[0.1], weights=v)
    assert_close(fit.loo_residuals, want[:, 0], 1e4 * EPS)
    assert np.array_equal(extend.Weights.of(v, 20, DTYPE).array, none)


@pytest.mark.float64
@pytest.mark.filterwarnings("ignore:.*λ")
def test_held_out_rows_in_another_precision():
    """The errors are in that of the factor, whether the rows held out come by name, as a criterion
    or as a design.
    """
    (X, y), dtypes = smooth_data(30), (np.float32, np.float64)
    (X_seen, seen), (X_held, held) = (
        (jnp.asarray(X[at], dtype), jnp.asarray(y[at], dtype))
        for at, dtype in zip((slice(20), slice(20, 30)), dtypes, strict=True)
    )
    kernel, lams = rls.Gaussian(1.0), jnp.asarray([0.1, 1.0], dtypes[0])
    factor = rls.factorize(kernel, X_seen, solver=rls.Spectral("gram"))
    criterion = rls.holdout(X_held, held, weights=np.ones(10, dtypes[1]))
    design = rls.gram(kernel, X_held, X_seen.astype(dtypes[1]))
    found = (
        rls.fit(
            kernel,
            X_seen,
            seen,
            lams=lams,
            solver=rls.Spectral("gram"),
            criterion=rls.holdout(X_held, held),
        ).errors,
        rls.fit(
            kernel, X_seen, seen, lams=lams, solver=rls.Spectral("gram"), criterion=criterion
        ).errors,
        rls.holdout(design, held, weights=np.ones(10, dtypes[1]))(factor, seen, lams),
    )
    K, K_held = gaussian(X[:20], X[:20]), gaussian(X[20:], X[:20])
    mean = np.eye(20) - 1 / 20
    want = []
    for lam in (0.1, 1.0):
        c = np.linalg.solve(mean @ K @ mean + lam * np.eye(20), mean @ y[:20])
        want.append(np.mean((y[20:] - K_held @ c - np.mean(y[:20] - K @ c)) ** 2))
    for errors in found:
        assert errors.dtype == dtypes[0]
        assert_close(errors, want, 1e-5)


@pytest.mark.parametrize("landmarks", [False, True])
def test_objective_of_kernels_of_small_and_large_numbers(landmarks):
    """k and λ times a: the same error, and derivatives in λ by 1/a."""
    X, y = (jnp.asarray(a, jnp.float32) for a in smooth_data())
    R = jnp.arange(10) if landmarks else None

    @jax.jit
    def look(unit):
        value = lambda lam: rls.objective(unit * rls.Gaussian(1.0), X, y, lam, landmarks=R)
        return jax.value_and_grad(value)(jnp.float32(1 / 16) * unit)

    want = look(jnp.float32(1))
    for unit in (2.0**-60, 2.0**60):
        got = look(jnp.float32(unit))
        assert_close(got[0], want[0], 1e-5)
        assert_close(np.asarray(got[1], np.float64) * unit, want[1], 1e-3)


@pytest.mark.parametrize("route", [*ROUTES, "refined", "subset", "cholesky on landmarks"])
def test_every_factor_of_a_kernel_of_small_numbers(route):
    """k, λ and squares of labels times a: floors and errors too, of rows and of groups; no number
    is compared with one that has no unit.
    """
    X, y = (array(a) for a in smooth_data(30))
    groups, landmarks = np.arange(30) // 3, jnp.arange(0, 30, 3)
    v = array(np.where(np.arange(30) % 7 == 2, 0, 1 + np.arange(30) % 4))
    options = {"solver": solver_of(route.split()[0])}
    if route in ("subset", "cholesky on landmarks"):
        options = {"solver": solver_of(route.split()[0]), "landmarks": landmarks}
    kernel, lams = (
        rls.Linear() if route in ("features", "covariance") else rls.Gaussian(1.0),
        array([1 / 16, 1.0]),
    )

    @jax.jit
    def look(unit):
        factor = rls.factorize(
            unit * kernel,
            X,
            weights=v,
            **options,
        )
        labels, at = y * jnp.sqrt(unit), unit * lams
        errors = (
            rls.loo(factor, labels, at),
            rls.gcv(factor, labels, at),
            rls.kfold(groups)(factor, labels, at),
        )
        residuals = rls.loo_residuals(factor, labels, at[0], groups) * jnp.sqrt(
            unit
        )  # of rows of weight 0 too
        evidence = rls.log_marginal_likelihood(factor, labels, at) + 12.5 * jnp.log(unit)
        return (
            factor.report.floor / unit,
            *(error / unit for error in (*errors, residuals)),
            evidence,
        )

    for name, got, want in zip(
        ("floor", "loo", "gcv", "kfold", "residuals", "evidence"),
        look(array(2.0 ** (-80 if X64 else -40))),
        look(array(1.0)),
        strict=True,
    ):
        assert_close(got, want, 1e3 * EPS, name)


# --- rows of tiny weight ---


@functools.cache
def light(kernel):
    """Weights with two that hardly count, of which one is 0, and held-out residuals by refits."""
    X, y = smooth_data(30)
    v = np.ones(30)
    v[[3, 7, 11]] = 1e-30, 0.0, 1e-8
    Phi = X if kernel == "linear" else features_of(gaussian(X, X))
    return X, y, v, refitted(Phi, y[:, None], wide(0.1), wide(v), True)[:, 0]


@pytest.mark.parametrize(
    ("route", "kernel"),
    [(route, "linear") for route in ROUTES] + [(route, "gaussian") for route in GAUSSIAN_ROUTES],
)
def test_rows_of_tiny_weight(route, kernel):
    """A row of weight v keeps digits to eps/√v."""
    X, y, v, want = light(kernel)
    made = rls.Linear() if kernel == "linear" else rls.Gaussian(1.0)
    factor = factorize(made, array(X), weights=array(v), solver=solver_of(route))
    assert_close(loo_residuals(factor, array(y), array(0.1)), want, 1e5 * EPS)
    alone = rls.loo_residuals(factor, array(y), array(0.1), np.arange(30))  # every row a group
    assert_close(alone, want, 1e5 * EPS)


def test_landmarks_of_weight_zero():
    """Rows of U are long where no row of positive weight is near: their residual must not be a
    difference of long numbers.
    """
    X, y = smooth_data(40)
    X[0, 0] += 7.0 if X64 else 5.0
    X = wide(X)
    v = np.ones(40)
    v[0] = 0
    R = np.array([0, 10, 17, 25, 33])
    want = np.empty(40)
    for i in range(40):
        rest, stay = np.arange(40) != i, R[i != R]
        Phi = np.linalg.solve(
            np.linalg.cholesky(gaussian(X[stay], X[stay])), gaussian(X, X[stay]).T
        ).T
        w, b = refit(Phi[rest], y[rest, None], wide(0.05), v[rest], True)
        want[i] = y[i] - Phi[i] @ w[:, 0] - b[0]
    for options in ({}, {"solver": rls.Cholesky()}):
        factor = factorize(
            rls.Gaussian(1.0), array(X), weights=array(v), landmarks=jnp.asarray(R), **options
        )
        assert_close(loo_residuals(factor, array(y), array(0.05)), want, 1e4 * EPS)


# --- what centring takes off ---


@pytest.mark.parametrize("weight", [1e6, pytest.param(1e12, marks=pytest.mark.float64)])
@pytest.mark.parametrize("route", ["gram", "covariance"])
def test_one_heavy_row_makes_no_kernel_indefinite(weight, route):
    X, y = smooth_data()
    v = np.ones(60)
    v[3] = weight
    kernel = rls.Linear() if route == "covariance" else rls.Gaussian(1.0)
    factor = factorize(kernel, array(X), weights=array(v), solver=solver_of(route))
    assert float(factor.report.indefinite) <= 100 * 60 * EPS
    assert float(factor.precision_floor()) <= 1e4 * EPS
    Phi = X if route == "covariance" else features_of(gaussian(X, X))
    want = refitted(Phi, y[:, None], wide(0.3), v, True)[:, 0]
    others = np.arange(60) != 3
    assert_close(
        loo_residuals(factor, array(y), array(0.3))[others],
        want[others],
        (1e4 + 10 * weight**0.5) * EPS,
    )


@pytest.mark.parametrize(
    ("route", "d"),
    [("gram", 2), ("gram", 40), ("covariance", 40), ("cholesky", 40)],
)
def test_an_offset_of_the_rows_is_taken_out_before_their_products(route, d):
    """At 1e8 (float32: 3e3) products of rows round to more than their spread."""
    rng = np.random.default_rng(2)
    offset, lam = (1e8 if X64 else 3e3), wide(0.5)
    X = wide(rng.normal(size=(20, d)) + offset)
    y, v = wide(rng.normal(size=20)), wide(rng.uniform(0.5, 2.0, 20))
    v[4] = 0
    factor = factorize(rls.Linear(), array(X), weights=array(v), solver=solver_of(route))
    want = refitted(X - offset, y[:, None], lam, v, True)[:, 0]
    got = loo_residuals(factor, array(y), array(lam))
    assert_close(got[v > 0], want[v > 0], 1e4 * EPS)
    # A row of weight 0 is predicted as a new one: by its products with rows about their mean.
    assert_close(got[4], want[4], 30 * EPS * offset)
    assert float(factor.report.indefinite) <= 100 * 20 * EPS
    w, b = refit(X - offset, y[:, None], lam, v, True)
    found = coef(factor, array(y), array(lam))
    assert_close(found.intercept, b[0] - offset * w[:, 0].sum(), 1e4 * EPS)
    design = factor.expansion.design(rls.Linear(), array(X))
    assert_close(
        design @ found.coef + found.intercept, (X - offset) @ w[:, 0] + b[0], 1e3 * EPS * offset
    )


# --- the certificate ---


@pytest.mark.any_precision
@pytest.mark.parametrize("route", ["subset", "cholesky"])
def test_a_certificate_in_float32_is_never_too_hopeful(route):
    """What differences of sums lose, and what rounding hides of each row, counts as left out."""
    n, m = 400, 34  # one shape, hence one program
    for width, seed in ((1.0, 1), (0.3, 2), (0.5, 3), (3.0, 4)):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, size=(n, 2)).astype(np.float32)
        chosen = rls.landmarks(rls.Gaussian(width), X, m, key=jax.random.key(seed))
        R = np.asarray(chosen.indices)
        Z = X.astype(np.float64) / width
        s, U = np.linalg.eigh(gaussian(Z[R], Z[R]))
        truth = n - np.sum(
            (gaussian(Z, Z[R]) @ U[:, s > 1e-13 * s[-1]]) ** 2 / s[s > 1e-13 * s[-1]]
        )
        found = factorize(
            rls.Gaussian(width), jnp.asarray(X), landmarks=jnp.asarray(R), solver=solver_of(route)
        ).trace_residual
        for trace in (float(found), float(chosen.trace_residual)):
            assert truth <= trace <= 1.1 * truth + 20 * np.finfo(np.float32).eps * n
