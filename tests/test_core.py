"""The core beyond the product grid: worked examples, axes, weights as repeated rows, tiny λ,
degenerate data, messages.
"""

import functools
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import support
from support import DTYPE, EPS, X64, array, assert_close, of_features, of_gram, wide

import jaxrls as rls

ROUTES = ("gram", "features", "covariance")


def data(n=24, d=5, t=3, seed=0):
    rng = np.random.default_rng(seed)
    return wide(rng.normal(size=(n, d)) + 1), wide(rng.normal(size=(n, t)) + 3)


def rounding(X, lam):
    """n·eps·s_max/λ: what solving at λ may cost, in units of the result."""
    return len(X) * EPS * (1 + float(np.linalg.norm(np.asarray(X), 2)) ** 2 / lam)


# worked examples
# -------------------------------------------------------------------------------------------------------


def exact_line(pairs, lam):
    """w of φ(x) = (1, x) by Gaussian elimination on (ΦᵀΦ + λI) w = Φᵀy in rational numbers."""
    n = len(pairs)
    sx, sy = sum(x for x, _ in pairs), sum(y for _, y in pairs)
    sxx, sxy = sum(x * x for x, _ in pairs), sum(x * y for x, y in pairs)
    a, b, c = n + lam, sx, sxx + lam
    determinant = a * c - b * b
    return (c * sy - b * sxy) / determinant, (a * sxy - b * sy) / determinant


@pytest.mark.parametrize("route", ROUTES)
def test_the_lectures_four_points(route):
    """(1; 0.8), (4; 4.1), (6; 6.2), (9; 8.5) on φ(x) = (1, x) with λ = 1: primal, dual and
    leave-one-out, as rational numbers.
    """
    pairs = [
        (Fraction(x), Fraction(y))
        for x, y in (("1", "0.8"), ("4", "4.1"), ("6", "6.2"), ("9", "8.5"))
    ]
    w = exact_line(pairs, 1)
    assert w == (Fraction(28, 275), Fraction(21, 22))
    left_out = []
    for i, (x, y) in enumerate(pairs):
        w0, w1 = exact_line(pairs[:i] + pairs[i + 1 :], 1)
        left_out.append(y - w0 - w1 * x)

    x, y = (array([float(pair[j]) for pair in pairs]) for j in (0, 1))
    factor = rls.factorize(
        rls.FeatureMap(lambda X: rls.polynomial_features(X, 1)),
        x[:, None],
        intercept=False,
        route=route,
    )
    got, intercept = support.coef(factor, y, 1.0)
    tolerance = rounding(rls.polynomial_features(x[:, None], 1), 1.0)
    if route == "gram":
        Phi = rls.polynomial_features(x[:, None], 1)
        dual = [y - w[0] - w[1] * x for x, y in pairs]  # c = (y − f)/λ
        assert_close(got, [float(c) for c in dual], tolerance, "dual")
        got = Phi.T @ got
    assert_close(got, [float(v) for v in w], tolerance, "primal")
    assert_close(
        support.loo_residuals(factor, y, 1.0),
        [float(e) for e in left_out],
        tolerance,
        "leave-one-out residuals",
    )
    assert_close(
        support.loo(factor, y, array([1.0]))[0],
        float(sum(e * e for e in left_out) / 4),
        tolerance,
        "leave-one-out error",
    )
    assert float(intercept) == 0


def test_one_row_left_of_two():
    """n = 2 by hand: with K = I each row is predicted as 0 by the other; with an intercept, as the
    other's label.
    """
    y = array([1.0, 3.0])
    for intercept, expected in ((False, [1.0, 3.0]), (True, [-2.0, 2.0])):
        factor = support.factor_gram(jnp.eye(2, dtype=DTYPE), intercept=intercept)
        assert_close(support.loo_residuals(factor, y, 0.5), expected, 4 * EPS)


# axes and dtypes
# ---------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="route")
def every_result(X, Y, lams, weights, plan, new, Y_new, route):
    factor = rls.factorize(rls.Linear(), X, weights=weights, intercept=True, route=route)
    path = rls.path(factor, Y, lams)
    coef, intercept = rls.coef(factor, Y, lams[0])
    return {
        "path.coef": path.coef,
        "path.intercept": path.intercept,
        "path.loo": path.loo,
        "coef": coef,
        "intercept": intercept,
        "loo_residuals": rls.loo_residuals(factor, Y, lams[0]),
        "loo": rls.loo(factor, Y, lams),
        "gcv": rls.gcv(factor, Y, lams),
        "log_marginal_likelihood": rls.log_marginal_likelihood(factor, Y, lams),
        "kfold": rls.kfold(factor, Y, lams, plan),
        "holdout": rls.holdout(
            factor, Y, lams, new if factor.basis is not None else new @ X.T, Y_new
        ),
    }


@pytest.mark.float64
@pytest.mark.parametrize("route", ROUTES)
def test_the_target_axis_is_the_callers(route):
    """(n,) gives results without it, (n, 1) keeps it, and every column of (n, t) is what it would
    be alone.
    """
    (X, Y), (new, Y_new) = data(), data(7, seed=1)
    v = array(np.random.default_rng(2).uniform(0.5, 2, len(X)))
    call = functools.partial(
        every_result,
        array(X),
        lams=array([0.1, 10.0]),
        weights=v,
        plan=rls.folds(np.arange(24) % 4),
        new=array(new),
        route=route,
    )
    several, single, column = (
        call(Y=array(Y[:, t]), Y_new=array(Y_new[:, t])) for t in (slice(None), 0, slice(0, 1))
    )
    for name, value in several.items():
        assert value.shape[-1] == 3 and value.dtype == DTYPE
        assert column[name].shape == (*value.shape[:-1], 1), name
        assert single[name].shape == value.shape[:-1], name
        assert_close(column[name][..., 0], single[name], 8 * np.finfo(DTYPE).eps, name)
        assert_close(value[..., 0], single[name], rounding(X, 0.1), name)


@pytest.mark.parametrize("route", ROUTES)
def test_float32(route):
    """float32 in, float32 out, also where float64 is switched on, and right to float32's own
    precision.
    """
    (X, Y), (new, Y_new) = data(), data(7, seed=1)
    X, Y, new, Y_new = (np.asarray(a, np.float32) for a in (X, Y, new, Y_new))
    s_max = np.linalg.norm(X - X.mean(0), 2) ** 2
    lams = np.float32(s_max * np.array([1e-2, 1]))
    plan = rls.folds(np.arange(24) % 4)
    got = every_result(
        *map(jnp.asarray, (X, Y, lams)), None, plan, jnp.asarray(new), jnp.asarray(Y_new), route
    )
    for i, lam in enumerate(lams):
        tolerance = 24 * float(np.finfo(np.float32).eps) * (1 + s_max / lam)
        X_wide, Y_wide = np.float64(X), np.float64(Y)
        w, b = oracle.refit(X_wide, Y_wide, lam, intercept=True)
        e = oracle.loo_residuals(X_wide, Y_wide, lam, intercept=True)
        assert_close(got["loo"][i], (e**2).mean(0), tolerance, "loo")
        assert_close(got["holdout"][i], ((Y_new - new @ w - b) ** 2).mean(0), tolerance, "holdout")
        assert_close(got["path.intercept"][i], b, tolerance, "intercept")
    assert {value.dtype for value in got.values()} == {np.dtype(np.float32)}


# weights
# -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_integer_weights_are_rows_repeated(route):
    """A row of weight 3 is three equal rows that are left out together, one of weight 0 is none."""
    X, Y = data(12)
    counts = np.array([1, 3, 0, 2, 1, 1, 2, 0, 1, 4, 1, 2])
    copies = np.repeat(np.arange(12), counts)
    lams = wide([3.0, 0.03])
    call = functools.partial(
        every_result, lams=array(lams), new=array(X), Y_new=array(Y), route=route
    )
    weighted = call(array(X), array(Y), weights=array(counts), plan=rls.folds(np.arange(12)))
    repeated = call(array(X[copies]), array(Y[copies]), weights=None, plan=rls.folds(copies))
    tolerance = rounding(X[copies], 0.03)
    for one, other in (
        ("loo", "kfold"),
        ("kfold", "kfold"),
        ("path.intercept", "path.intercept"),
        ("holdout", "holdout"),
    ):
        assert_close(weighted[one], repeated[other], tolerance, one)
    coef = repeated["path.coef"]
    if route == "gram":  # the dual coefficients of equal rows add up
        coef = jnp.stack([coef[:, copies == i].sum(1) for i in range(12)], axis=1)
    assert_close(weighted["path.coef"], coef, tolerance, "coef")
    w, b = oracle.refit(X[copies], Y[copies], lams[0], None, True)
    assert_close(
        weighted["loo_residuals"][2], Y[2] - X[2] @ w - b, tolerance, "a row that was never there"
    )


def test_weights_and_lam_have_one_scale():
    """Objective and error know weights and λ by their ratio: weights 4 at 4λ are weights 1 at λ."""
    X, Y = map(array, data(12))
    one, four = (
        support.factorize(rls.Linear(), X, weights=weights, intercept=True)
        for weights in (None, jnp.full(12, 4, DTYPE))
    )
    lams = array([0.1, 10.0])
    for criterion in (support.loo, support.gcv):
        assert_close(criterion(four, Y, 4 * lams), criterion(one, Y, lams), rounding(X, 0.1))
    assert_close(
        support.effective_dof(four, 4 * lams), support.effective_dof(one, lams), rounding(X, 0.1)
    )


# groups
# ------------------------------------------------------------------------------------------------------------------


def test_group_labels_may_be_anything():
    X, Y = map(array, data(6))
    factor, lams = support.factorize(rls.Linear(), X, intercept=True), array([1.0])
    numbers = rls.kfold(factor, Y, lams, np.array([0, 1, 2, 0, 1, 2]))
    for labels in (
        list("abcabc"),
        np.array([7, -3, 100, 7, -3, 100]),
        jnp.array([2, 0, 1, 2, 0, 1]),
    ):
        assert_close(rls.kfold(factor, Y, lams, labels), numbers, rounding(X, 1.0))
    plan = rls.folds([0, 1, 0, 0, 1, 0])
    assert plan.inside.tolist() == [[0, 2, 3, 5], [1, 4, 4, 4]] and plan.inside_mask.tolist() == [
        [1, 1, 1, 1],
        [1, 1, 0, 0],
    ]


# precision
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.float64
def test_tiny_lam_against_eighty_digits():
    """c/p keeps its digits at λ = 1e-14, where (y − ŷ)/(1 − h), the textbook form, has lost
    them.
    """
    mp = pytest.importorskip("mpmath", reason="mpmath is not installed: it is the judge here")
    n, lam = 24, 1e-14
    x = np.linspace(0, 1, n)
    K = np.asarray(rls.gram(rls.Matern(1.5, 0.5), array(x[:, None])))
    y = np.sin(6 * x) + 0.1 * np.cos(50 * x)
    with mp.workdps(80):
        G = mp.matrix(K.tolist()) + mp.mpf(lam) * mp.eye(n)
        inverse = G**-1
        c = inverse * mp.matrix(y.tolist())
        exact = np.array([float(c[i] / inverse[i, i]) for i in range(n)])
        path_coef = np.array([float(c[i]) for i in range(n)])
    factor = support.factor_gram(jnp.asarray(K), intercept=False)
    tolerance = n * EPS * np.linalg.cond(K)
    assert_close(support.loo_residuals(factor, jnp.asarray(y), lam), exact, tolerance, "c/p")
    assert_close(support.coef(factor, jnp.asarray(y), lam)[0], path_coef, tolerance, "c")
    H = K @ np.linalg.inv(K + lam * np.eye(n))
    textbook = (y - H @ y) / (1 - np.diag(H))
    assert np.abs(textbook - exact).max() > 100 * tolerance * np.abs(exact).max()


# degenerate data
# -----------------------------------------------------------------------------------------------------------

DEGENERATE = {
    "orthonormal rows": np.eye(6),
    "all zero": np.zeros((6, 3)),
    "equal rows": np.ones((6, 1)) * [[1.0, 2.0, 3.0]],
    "pairs of equal rows": np.repeat(np.arange(9.0).reshape(3, 3), 2, axis=0),
    "rank 1": np.outer(np.arange(1.0, 7.0), [1.0, -2.0, 0.5]),
    "a constant column": np.stack([np.ones(6), np.arange(6.0), np.arange(6.0) ** 2], axis=1),
    "two rows": np.array([[1.0], [3.0]]),
}


@functools.partial(jax.jit, static_argnames=("route", "intercept"))
def on_degenerate(X, Y, lams, plan, route, intercept):
    factor = rls.factorize(rls.Linear(), X, intercept=intercept, route=route)
    criteria = [f(factor, Y, lams) for f in (rls.gcv, rls.log_marginal_likelihood)]
    return (
        rls.path(factor, Y, lams),
        rls.kfold(factor, Y, lams, plan),
        criteria,
        rls.effective_dof(factor, lams),
        rls.lambda_grid(factor, 5),
    )


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_data(name):
    """Finite everywhere on rank-deficient data, and exact: for every route, with and without
    intercept.
    """
    X = DEGENERATE[name]
    Y = np.random.default_rng(0).normal(size=(len(X), 2)) + 2
    lams, groups = wide([0.01, 1.0, 100.0]), np.arange(len(X)) // 2 if len(X) > 2 else np.arange(2)
    for route in ROUTES:
        for intercept in (False, True):
            out = on_degenerate(
                array(X), array(Y), array(lams), rls.folds(groups), route, intercept
            )
            assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(out)), (
                f"{route}, {intercept}"
            )
            path, groups_out = out[:2]
            for i, lam in enumerate(lams):
                what = f"{route}, intercept {intercept}, λ = {lam}"
                e, e_group = (
                    oracle.group_residuals(X, wide(Y), lam, g, None, intercept)
                    for g in (np.arange(len(X)), groups)
                )
                tolerance = 16 * rounding(X, lam)
                assert_close(path.loo[i], (e**2).mean(0), tolerance, f"leave-one-out, {what}")
                assert_close(groups_out[i], (e_group**2).mean(0), tolerance, f"groups, {what}")


# the grid
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_lambda_grid(route):
    """Geometric and ascending, from the factor's floor or below its spectrum to a fit of a tenth of
    a degree of freedom.
    """
    X = array(data(24, 5)[0])
    factor = support.factorize(rls.Linear(), X, route=route, intercept=True)
    for num in (1, 2, 100):
        grid = np.asarray(support.lambda_grid(factor, num), np.float64)
        assert grid.shape == (num,) and support.lambda_grid(factor, num).dtype == DTYPE
    ratios = grid[1:] / grid[:-1]
    assert ratios.min() > 1
    assert_close(ratios, np.full(99, ratios[0]), 400 * EPS, "geometric")
    assert grid[0] >= 0.999 * float(factor.precision_floor())
    assert grid[0] <= float(factor.s[factor.s > factor.precision_floor()].min())
    assert float(support.effective_dof(factor, support.lambda_grid(factor))[-1]) - 1 <= 0.1
    expected = {
        "gram": 24**0.5 * EPS,
        "covariance": 2 * 5**0.5 * EPS,
        "features": 400 * 5 * EPS**2,
    }[route] * float(factor.s.max())
    assert_close(factor.precision_floor(), expected, 24 * EPS, "floor")


@pytest.mark.parametrize("weighted", [False, True])
def test_the_floor_knows_the_constant_that_centring_took_off(weighted):
    """K + C fits the same functions as K beside an intercept, but its rounding is that of C: the
    grid must not go below that.
    """
    X, Y = data()
    K = support.gram(rls.Gaussian(1.5), array(X))
    constant = K.dtype.type(EPS**-0.5)
    weights = array(np.linspace(0.5, 2, 24)) if weighted else None
    plain = support.factor_gram(K, weights=weights, intercept=True)
    raised = support.factor_gram(K + constant, weights=weights, intercept=True)
    floor = float(raised.precision_floor())
    assert 24**0.5 * EPS * float(constant) <= floor <= 0.9 * 24 * EPS * float(constant) * 24, (
        "24² entries, each rounded by itself"
    )
    lams = support.lambda_grid(raised)
    assert float(lams[0]) >= 0.999 * floor
    residuals = jax.vmap(rls.loo_residuals, (None, None, 0))
    errors = np.abs(
        np.asarray(residuals(raised, array(Y), lams)) - np.asarray(residuals(plain, array(Y), lams))
    )
    worst = errors.reshape(len(lams), -1).max(1) / np.abs(Y - Y.mean(0)).max()
    assert (worst <= 4 * floor / np.asarray(lams, np.float64)).all(), "K's rounding over λ"


def test_ends_of_the_lambda_grid():
    """From a thousandth of the smallest eigenvalue, or the floor, to ten times the trace; ten times
    its own start where K is 0.
    """
    for K, low, high in (
        (np.diag([4.0, 1.0, 0.01]), 1e-5, 50.1),
        (np.diag([4.0, 1.0, 0.0]), 1e-3, 50.0),
        (np.zeros((3, 3)), 2 * np.finfo(DTYPE).tiny, 20 * np.finfo(DTYPE).tiny),
    ):
        grid = support.lambda_grid(support.factor_gram(array(K), intercept=False), 7)
        assert_close(grid[0], low, 1e3 * EPS)
        assert_close(grid[-1], high, 1e3 * EPS)


@pytest.mark.parametrize("kernel", [rls.Gaussian(1.5), rls.Linear()], ids=["gram", "features"])
def test_the_floor_of_a_cholesky_factor(kernel):
    """Twice √r·eps times the norm of the matrix of features, or six times √n·eps times the largest
    entry of K.
    """
    X = data()[0]
    factor = support.factorize(kernel, array(X), route="cholesky")
    largest, n = (
        (3 * 1.0, len(X))
        if isinstance(kernel, rls.Gaussian)
        else (np.linalg.norm((X - X.mean(axis=0)).T @ (X - X.mean(axis=0))), X.shape[1])
    )
    assert_close(factor.precision_floor(), 2 * n**0.5 * EPS * largest, 1e-5, "floor")


def test_the_grid_of_constant_rows_is_ascending():
    """K of equal rows is a constant, which centring turns into rounding noise: no λ below it is
    offered, and the order holds.
    """
    factor = support.factor_gram(array(np.full((6, 6), 3.7)), intercept=True)
    grid = np.asarray(support.lambda_grid(factor, 10), np.float64)
    assert (np.diff(grid) > 0).all() and grid[0] >= 0.999 * float(factor.precision_floor()) > 0


# messages
# ------------------------------------------------------------------------------------------------------------------

K2 = [[2.0, 1.0], [1.0, 2.0]]
MESSAGES = {
    "K not square": (
        lambda: of_gram(jnp.ones((2, 3))),
        "X, as the precomputed kernel matrix, must be square, (n, n), and has shape (2, 3)",
    ),
    "K not symmetric": (
        lambda: of_gram(jnp.array([[1.0, 2.0], [0.0, 1.0]])),
        "entries differ from their mirror image by up to 2",
    ),
    "precomputed not symmetric": (
        lambda: rls.factorize(rls.Precomputed(), jnp.array([[1.0, 2.0], [0.0, 1.0]])),
        "X, as the precomputed kernel matrix, is not symmetric",
    ),
    "weights length": (
        lambda: factor(weights=jnp.ones(2)),
        "weights must have shape (3,), one per row of X, and has shape (2,)",
    ),
    "weights negative": (
        lambda: factor(weights=jnp.array([1.0, -2.0, 1.0])),
        "weights must not be negative, and the smallest is -2.0: 0 takes a row out",
    ),
    "weights zero": (
        lambda: factor(weights=jnp.zeros(3)),
        "weights are all zero, so that no row is left to fit",
    ),
    "weights NaN": (
        lambda: factor(weights=jnp.array([1.0, jnp.nan, 1.0])),
        "weights holds 1 values that are NaN or infinite, the first at index (1,)",
    ),
    "X a vector": (
        lambda: rls.factorize(rls.Linear(), jnp.ones(3)),
        "X must have shape (n, d), and has shape (3,): use X[:, None]",
    ),
    "X empty": (
        lambda: rls.factorize(rls.Linear(), jnp.ones((0, 3))),
        "X is empty, with shape (0, 3)",
    ),
    "features a vector": (
        lambda: of_features(jnp.ones(3)),
        "must have shape (n, d), and has shape (3,)",
    ),
    "kernel": (
        lambda: rls.factorize("gaussian", jnp.ones((3, 1))),
        "kernel must be a jaxrls kernel such as Gaussian(1.0), and is 'gaussian'",
    ),
    "route": (lambda: factor(route="svd"), "route must be one of 'gram', 'features', 'covariance'"),
    "route without features": (
        lambda: rls.factorize(rls.Gaussian(1.0), jnp.ones((3, 1)), route="covariance"),
        "route='covariance' needs explicit features, which Gaussian does not have: use route='gram'",
    ),
    "Y length": (
        lambda: rls.loo(factor(), jnp.ones(4), jnp.ones(1)),
        "Y must have shape (3,) or (3, t), one row per row of X, and has shape (4,)",
    ),
    "Y cube": (
        lambda: rls.path(factor(), jnp.ones((3, 1, 1)), jnp.ones(1)),
        "Y must have shape (3,) or (3, t)",
    ),
    "Y empty": (
        lambda: rls.coef(factor(), jnp.ones((3, 0)), 1.0),
        "Y must have shape (3,) or (3, t)",
    ),
    "lams a number": (
        lambda: rls.loo(factor(), jnp.ones(3), 1.0),
        "has shape (): use coef and loo_residuals for one",
    ),
    "lams empty": (
        lambda: rls.gcv(factor(), jnp.ones(3), jnp.ones(0)),
        "lams is empty: give at least one λ",
    ),
    "lams infinite": (
        lambda: rls.loo(factor(), jnp.ones(3), jnp.array([jnp.inf])),
        "lams holds 1 values that are NaN or infinite",
    ),
    "lam": (
        lambda: rls.coef(factor(), jnp.ones(3), -1.0),
        "lam must be positive, or 0 for the floor of the factor, and the smallest is -1.0",
    ),
    "lam per target": (
        lambda: rls.coef(factor(), jnp.ones((3, 2)), jnp.ones(3)),
        "lam must be one number, or one per target where Y is (n, t): it has shape (3,), and Y (3, 2)",
    ),
    "lam per target of one": (
        lambda: rls.loo_residuals(factor(), jnp.ones(3), jnp.ones(3)),
        "lam must be one number, or one per target",
    ),
    "grid": (
        lambda: rls.lambda_grid(factor(), 0),
        "num must be a whole number of at least 1, and is 0",
    ),
    "groups length": (
        lambda: rls.kfold(factor(), jnp.ones(3), jnp.ones(1), [0, 1]),
        "groups must have 3 labels, one per row of X, and has 2",
    ),
    "groups axes": (
        lambda: rls.folds([[0, 1]]),
        "groups must have shape (n,), one label per row, and has shape (1, 2)",
    ),
    "one group": (
        lambda: rls.folds([5, 5]),
        "groups holds one label only, 5: leaving it out would leave nothing to fit",
    ),
    "groups traced": (
        lambda: jax.jit(rls.folds)(jnp.arange(3)),
        "groups has no values inside jax.jit: call jaxrls.folds(groups) outside",
    ),
    "holdout rows": (
        lambda: rls.holdout(factor(), jnp.ones(3), jnp.ones(1), jnp.ones((2, 3)), jnp.ones(4)),
        "Y_holdout must have shape (2,) or (2, t), one row per row of X, and has shape (4,)",
    ),
    "holdout axes": (
        lambda: rls.holdout(factor(), jnp.ones(3), jnp.ones(1), jnp.ones((2, 3)), jnp.ones((2, 1))),
        "Y_holdout must have as many axes as Y: they have shapes (2, 1) and (3,)",
    ),
    "holdout weights": (
        lambda: rls.holdout(
            factor(), jnp.ones(3), jnp.ones(1), jnp.ones((2, 3)), jnp.ones(2), weights=jnp.ones(3)
        ),
        "weights must have shape (2,)",
    ),
    "holdout targets": (
        lambda: rls.holdout(
            factor(), jnp.ones((3, 2)), jnp.ones(1), jnp.ones((2, 3)), jnp.ones((2, 1))
        ),
        "held-out labels must have 2 columns, as Y does, and have 1",
    ),
    "holdout design": (
        lambda: rls.holdout(
            factor(route="gram"), jnp.ones(3), jnp.ones(1), jnp.ones((2, 4)), jnp.ones(2)
        ),
        "design must have 3 columns, one for each coefficient, and has 4",
    ),
    "landmarks of no kernel": (
        lambda: rls.landmarks("gaussian", jnp.ones((3, 1)), 2, key=jax.random.key(0)),
        "kernel must be a jaxrls kernel such as Gaussian(1.0), and is 'gaussian'",
    ),
}


def factor(**options):
    return rls.factorize(rls.Linear(), jnp.arange(3, dtype=DTYPE)[:, None], **options)


@pytest.mark.parametrize(("call", "message"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(call, message, unchecked):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_symmetry_is_asked_to_rounding_only():
    K = np.array(K2, DTYPE)
    of_gram(jnp.asarray(K + np.array([[0, 3 * EPS], [0, 0]], DTYPE)))
    assert not X64 or of_gram(jnp.asarray(K)).dtype == np.float64
