"""Numbers that are small, large or far apart: what is refused, what must not depend on scales, and
what rounding may not hide.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from contract import cases
from extended import LONG, Truth, of_features
from oracle import loo_residuals as refitted
from oracle import of_landmarks, refit
from support import (
    ANY_PRECISION,
    DTYPE,
    EPS,
    FLOAT64,
    X64,
    array,
    assert_close,
    coef,
    factorize,
    gram,
    loo_residuals,
    of_covariance,
    refused,
    solver_of,
    wide,
)

import jaxrls as rls
from jaxrls import extend

ON_LANDMARKS = ("subset", "cholesky on landmarks")


def slow(*given):
    """A case that is slow."""
    return pytest.param(*given, marks=pytest.mark.slow)


def smooth_data(n=60):
    rng = np.random.default_rng(1)
    X = wide(rng.uniform(-1, 1, size=(n, 2)))
    return X, wide(np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n))


def narrow(n):
    return (a.astype(DTYPE) for a in smooth_data(n))


gaussian = functools.partial(cases.gaussian, width=1.0)


def features_of(K):
    """Φ with ΦΦᵀ = K."""
    s, U = np.linalg.eigh(K)
    return U * np.sqrt(np.maximum(s, 0))


def held_out(kernel, X, y, lam, v):
    """Held-out residuals by refits with an intercept."""
    Phi = X if isinstance(kernel, rls.Linear) else features_of(gaussian(X, X))
    return refitted(Phi, y[:, None], wide(lam), v, True)[:, 0]


# --- residual norms from residuals ---


@pytest.mark.parametrize("intercept", [True, False])
def test_norms_on_nearly_dependent_columns_are_those_of_residuals_at_every_lam(intercept):
    """U from moments is orthogonal to eps √(s_max/s) only, and n − 1 = r leaves nothing outside of
    it.
    """
    shares = np.array([1e-11 if X64 else 1e-5, 1e-6 if X64 else 1e-4, 1e-2, 1])

    @jax.jit
    def found(X, y, lams):
        return of_covariance(X, intercept=intercept).solve(y).residual_norm(lams)

    for seed in range(10):
        rng = np.random.default_rng(seed)
        X = wide(rng.normal(size=(5, 4)) * 10.0 ** np.array([0, -1, -2, -4]))
        y, lams = wide(rng.normal(size=(5, 1))), wide(np.linalg.norm(X, 2) ** 2 * shares)
        K = X.astype(LONG) @ X.T.astype(LONG)
        long = (part.astype(LONG) for part in (y, y, np.ones(5), lams))
        truth = Truth(
            lambda gone, K=K: (K, K, np.diagonal(K)), *long, np.arange(5), intercept, "primal", EPS
        )
        norm, off = truth.norm
        assert (np.abs(np.asarray(found(*map(array, (X, y, lams)))) - norm) <= off).all()


# --- scales of labels, columns, weights and kernels ---


GAUSSIAN = rls.Gaussian(1.0)
LARGE, SMALL = (1e200, 1e-200) if X64 else (1e25, 1e-20)
LITTLE = 1e-13 if X64 else 3e-7


def test_what_leaves_the_range_is_refused():
    """Columns, labels or a weight, at every door."""
    X, y = narrow(20)
    far, plain = X * np.array([1, LARGE], DTYPE), GAUSSIAN
    high, low = (DTYPE(scale) * y for scale in (LARGE, SMALL))
    weights = lambda v: np.where(np.arange(20) == 3, v, 1).astype(DTYPE)
    fit = lambda X=X, y=y, **options: lambda: rls.fit(plain, X, y, lams=[0.1], **options)
    overflow, ratio = r"sums of squares overflow float\d+: divide", r"float\d+ takes a ratio of"
    columns = rf"\S+ in column 1, and {overflow}"
    kronecker = lambda rows, other: (
        lambda: rls.two_sided.fit_kronecker(plain, rows, plain, X, np.outer(y, other))
    )
    refused(
        (fit(y=high), rf"Y holds \S+ in column 0, and {overflow} by a scale"),
        (fit(y=low), r"Y holds \S+ at most, and squares underflow float\d+: multiply by"),
        (fit(weights=weights(LITTLE)), rf"weights above 0 go from \S+ to 1, and {ratio}"),
        (fit(weights=weights(1 / LITTLE)), rf"weights above 0 go from 1 to \S+, and {ratio}"),
        (fit(far), f"X holds {columns}"),
        (lambda: rls.factorize(plain, far), columns),
        (lambda: fit()().predict(far), columns),
        (lambda: rls.extend.median_distance(array(far)), columns),
        (lambda: rls.fit(rls.Linear(), scipy.sparse.csr_array(far), y), columns),
        (lambda: rls.rows.stream([(far, y)]), columns),
        (kronecker(far, y), columns),
        (lambda: factorize(plain, X).solve(high), "squares overflow"),
        (kronecker(X, high), "squares overflow"),
    )


def test_a_target_in_tiny_units_is_refused_beside_others():
    """At every door that takes several targets, also where rounding to float32 would make it 0; a
    table of one target has columns of any size.
    """
    X, y = narrow(20)
    mesh = jax.make_mesh((1,), ("rows",))
    stream = lambda Y: rls.rows.stream([(X[:10], Y[:10]), (X[10:], Y[10:])])
    kernels, given = [rls.Linear(), GAUSSIAN], {"shares": [[0.5, 0.5]], "lams": [0.1]}
    factor = factorize(GAUSSIAN, X)
    tiny = float(np.finfo(DTYPE).tiny)
    for scale in (0.1 * tiny**0.5, 0.1 * tiny**0.5 / EPS):
        Y = np.stack([y, y * DTYPE(scale)], axis=1)
        doors = (
            lambda Y=Y: rls.fit(GAUSSIAN, X, Y, lams=[0.1], per_target=True),
            lambda Y=Y: rls.tune(GAUSSIAN, X, Y),
            lambda Y=Y: rls.objective(GAUSSIAN, X, Y, 0.1),
            lambda Y=Y: rls.fit(rls.Linear(), stream(Y), lams=[0.1]),
            lambda Y=Y: rls.fit(rls.Linear(), rls.rows.shard(X, Y, mesh=mesh), lams=[0.1]),
            lambda Y=Y: rls.several.fit_kernels(kernels, X, Y, **given),
            lambda Y=Y: rls.several.select_columns(X, Y, 1, 0.1),
            lambda Y=Y: factor.solve(Y),
        )
        words = rf"Y holds \S+ at most in column 1, and squares underflow {np.dtype(DTYPE)}: mult"
        refused(*((door, words) for door in doors))
    Y = np.stack([y, y * 0.1 * tiny**0.5], axis=1)
    table = Y.T.copy()
    fit = rls.two_sided.fit_kronecker(GAUSSIAN, X[:2], GAUSSIAN, X, table, lams=[0.1])
    assert np.isfinite(fit.error)
    wide_labels = np.stack([y, y], axis=1).astype(np.float64) * [1, 1e-50]
    rounded = lambda X: lambda: rls.fit(GAUSSIAN, X.astype(np.float32), wide_labels, lams=[0.1])
    refused((rounded(X), r"at most in column 1, and squares underflow float32"))
    assert np.isfinite(rls.fit(GAUSSIAN, X, np.stack([y, 0 * y], axis=1), lams=[0.1]).error)


def test_a_weight_below_eps_of_the_largest_is_0():
    X, y = narrow(20)
    v = np.ones(20, DTYPE)
    v[[3, 7]] = EPS / 2, 1e-30
    none = np.where(np.isin(np.arange(20), [3, 7]), 0.0, 1.0)
    Phi = features_of(gaussian(X.astype(float), X.astype(float)))
    want = refitted(Phi, y[:, None].astype(float), wide(0.1), none, True)
    fit = rls.fit(GAUSSIAN, X, y, lams=[0.1], weights=v)
    assert_close(fit.loo_residuals, want[:, 0], 1e4 * EPS)
    assert np.array_equal(extend.Weights.of(v, 20, DTYPE).array, none)


@pytest.mark.slow
@FLOAT64
@pytest.mark.filterwarnings("ignore:.*λ")
def test_held_out_rows_in_another_precision():
    """The errors are in that of the factor, of rows held out and of their design."""
    X, y = smooth_data(30)
    narrow = [part.astype(np.float32) for part in (X, y, np.array([0.1, 1.0]))]
    seen, labels, lams = narrow[0][:20], narrow[1][:20], narrow[2]
    given = {"lams": lams, "solver": rls.Spectral()}
    fit = lambda *held: rls.fit(GAUSSIAN, seen, labels, criterion=rls.holdout(*held), **given)
    want = fit(narrow[0][20:], narrow[1][20:]).errors
    held = rls.holdout(gram(GAUSSIAN, X[20:], X[:20]), y[20:])
    found = jax.jit(held)(factorize(GAUSSIAN, seen), labels, lams)
    for errors in (fit(X[20:], y[20:]).errors, found):
        assert errors.dtype == jnp.float32
        assert_close(errors, want, 1e-5)


@pytest.mark.parametrize("route", ["gram", *map(slow, ["covariance", "cholesky", *ON_LANDMARKS])])
def test_every_factor_of_a_kernel_of_small_or_large_numbers(route):
    """k, λ and squares of labels times a: floors and errors too, of rows and of groups, and slopes
    of errors; no number is compared with one that has no unit.
    """
    X, y = (array(a) for a in smooth_data(30))
    groups, v = np.arange(30) // 3, np.where(np.arange(30) % 7 == 2, 0, 1 + np.arange(30) % 4)
    options = {"solver": solver_of(route.split()[0]), "weights": array(v)}
    if route in ON_LANDMARKS:
        options["landmarks"] = jnp.arange(0, 30, 3)
    kernel = rls.Linear() if route == "covariance" else GAUSSIAN

    @jax.jit
    def look(unit):
        factor = rls.factorize(unit * kernel, X, **options)
        problem = factor, y * jnp.sqrt(unit), unit * array([1 / 16, 1.0])
        errors = {"loo": rls.loo(*problem), "gcv": rls.gcv(*problem)}
        errors["kfold"] = rls.kfold(groups)(*problem)
        residuals = rls.diagnostics.loo_residuals(
            *problem[:2], unit / 16, groups
        )  # of rows of weight 0 too
        errors |= {"floor": factor.report.floor, "residuals": residuals * jnp.sqrt(unit)}
        if route == "cholesky on landmarks":
            given = {"weights": array(v), "landmarks": options["landmarks"]}
            error = lambda scale: rls.objective(
                unit * rls.Gaussian(scale), X, problem[1], unit / 16, **given
            )
            errors["slope"] = jax.grad(error)(array(1.0))
        evidence = rls.log_marginal_likelihood(*problem) + 12.5 * jnp.log(unit)
        return {name: error / unit for name, error in errors.items()} | {"evidence": evidence}

    small, want, large = (look(array(2.0**power)) for power in np.array([-40, 0, 40]) * (1 + X64))
    for name in want:
        for got in (small, large):
            assert_close(got[name], want[name], 1e3 * EPS, name)


# --- rows of tiny weight ---


@functools.cache
def light(kernel):
    """Weights with two that hardly count, of which one is 0, and held-out residuals by refits."""
    X, y = smooth_data(30)
    v = np.ones(30)
    v[[3, 7, 11]] = 1e-30, 0.0, 1e-8
    return X, y, v, held_out(kernel, X, y, 0.1, wide(v))


@pytest.mark.parametrize(
    ("route", "kernel"),
    [("covariance", rls.Linear()), slow("gram", GAUSSIAN), slow("cholesky", GAUSSIAN)],
)
def test_rows_of_tiny_weight(route, kernel):
    """A row of weight v keeps digits to eps/√v."""
    X, y, v, want = light(kernel)
    factor = factorize(kernel, array(X), weights=array(v), solver=solver_of(route))
    assert_close(loo_residuals(factor, array(y), array(0.1)), want, 1e5 * EPS)
    alone = loo_residuals(
        factor, array(y), array(0.1), rls.folds(np.arange(30))
    )  # every row a group
    assert_close(alone, want, 1e5 * EPS)


@pytest.mark.slow
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
    kernel, one = of_features(of_landmarks(gaussian, X, X, X[R], R)), np.arange(40)
    truth = Truth(kernel, y[:, None], y[:, None], v, wide([0.05]), one, True)
    want = truth.held(one)[0, :, 0]
    for solver in (None, rls.Cholesky()):
        factor = factorize(GAUSSIAN, array(X), weights=array(v), landmarks=R, solver=solver)
        assert_close(loo_residuals(factor, array(y), array(0.05)), want, 1e4 * EPS)


# --- what centring takes off ---


@pytest.mark.parametrize("weight", [1e6, pytest.param(1e12, marks=FLOAT64)])
@pytest.mark.parametrize("route", [slow("gram"), "covariance"])
def test_one_heavy_row_makes_no_kernel_indefinite(weight, route):
    X, y = smooth_data()
    v = np.ones(60)
    v[3] = weight
    kernel = rls.Linear() if route == "covariance" else GAUSSIAN
    factor = factorize(kernel, array(X), weights=array(v), solver=solver_of(route))
    assert float(factor.report.indefinite) <= 100 * 60 * EPS
    assert float(factor.precision_floor()) <= 1e4 * EPS
    beside = factorize(
        GAUSSIAN, array(X), weights=array(v), fixed_effects=rls.levels(np.arange(60) % 3)
    )
    assert float(beside.precision_floor()) <= 1e4 * EPS
    found, others = np.asarray(loo_residuals(factor, array(y), array(0.3))), np.arange(60) != 3
    want = held_out(kernel, X, y, 0.3, v)
    assert_close(found[others], want[others], (1e4 + 10 * weight**0.5) * EPS)


@pytest.mark.parametrize(
    ("route", "d"), [("gram", 2), *(slow(one, 40) for one in ("gram", "covariance", "cholesky"))]
)
def test_an_offset_of_the_rows_is_taken_out_before_their_products(route, d):
    """At 1e8 (float32: 3e3) products of rows round to more than their spread."""
    rng = np.random.default_rng(2)
    offset, lam = (1e8 if X64 else 3e3), wide(0.5)
    X = wide(rng.normal(size=(20, d)) + offset)
    y, v = wide(rng.normal(size=20)), wide(rng.uniform(0.5, 2.0, 20))
    v[4] = 0
    factor = factorize(rls.Linear(), array(X), weights=array(v), solver=solver_of(route))
    want = held_out(rls.Linear(), X - offset, y, lam, v)
    got = np.asarray(loo_residuals(factor, array(y), array(lam)))
    assert_close(got[v > 0], want[v > 0], 1e4 * EPS)
    # A row of weight 0 is predicted as a new one: by its products with rows about their mean.
    assert_close(got[4], want[4], 40 * EPS * offset)
    negative = factor.report.indefinite  # a Cholesky factor has no eigenvalues
    assert negative is None if route == "cholesky" else float(negative) <= 100 * 20 * EPS
    w, b = refit(X - offset, y[:, None], lam, v, True)
    coefficients, intercept = coef(factor, array(y), array(lam))
    assert_close(intercept, b[0] - offset * w[:, 0].sum(), 1e4 * EPS)
    design = jax.jit(lambda factor, X: factor.expansion.design(rls.Linear(), X))(factor, array(X))
    want = (X - offset) @ w[:, 0] + b[0]
    assert_close(design @ coefficients + intercept, want, 1e3 * EPS * offset)


# --- the certificate ---


@pytest.mark.slow
@ANY_PRECISION
@pytest.mark.parametrize("route", ["subset", "cholesky"])
def test_a_certificate_in_float32_is_never_too_hopeful(route):
    """What differences of sums lose, and what rounding hides of each row, counts as left out."""
    n, m = 400, 34  # one shape, hence one program
    for width, seed in ((1.0, 1), (0.3, 2), (0.5, 3), (3.0, 4)):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, size=(n, 2)).astype(np.float32)
        chosen = rls.choose_landmarks(rls.Gaussian(width), X, m, key=jax.random.key(seed))
        R = np.asarray(chosen.indices)
        Z = X.astype(np.float64) / width
        s, U = np.linalg.eigh(gaussian(Z[R], Z[R]))
        kept = s > 1e-13 * s[-1]
        squares = (gaussian(Z, Z[R]) @ U[:, kept]) ** 2
        left_out = lambda jitter: n - np.sum(squares / (s[kept] + jitter))  # noqa: B023
        factor = factorize(rls.Gaussian(width), X, landmarks=R, solver=solver_of(route))
        for own, jitter in ((factor, float(factor.report.jitter)), (chosen, 0)):
            most = 1.1 * left_out(jitter) + 20 * np.finfo(np.float32).eps * n
            assert left_out(0) <= float(own.trace_residual) <= most
