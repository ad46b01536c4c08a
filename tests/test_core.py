"""The core beyond the product grid: worked examples, axes, weights as repeated rows, tiny λ,
degenerate data, messages.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import support
from support import DTYPE, EPS, X64, array, assert_close, of_gram, refused, solver_of, wide

import jaxrls as rls

ROUTES = ("gram", "features", "covariance")


def data(n=24, d=5, t=3, seed=0):
    rng = np.random.default_rng(seed)
    return wide(rng.normal(size=(n, d)) + 1), wide(rng.normal(size=(n, t)) + 3)


def rounding(X, lam):
    """n·eps·s_max/λ: what solving at λ may cost, in units of the result."""
    return len(X) * EPS * (1 + float(np.linalg.norm(np.asarray(X), 2)) ** 2 / lam)


# precision
# --------------------------------------------------------------------------------------------------


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
# --------------------------------------------------------------------------------------------------

DEGENERATE = {  # of one shape, hence one program each
    "orthonormal columns": np.eye(6, 3),
    "all zero": np.zeros((6, 3)),
    "equal rows": np.ones((6, 1)) * [[1.0, 2.0, 3.0]],
    "pairs of equal rows": np.repeat(np.arange(9.0).reshape(3, 3), 2, axis=0),
    "rank 1": np.outer(np.arange(1.0, 7.0), [1.0, -2.0, 0.5]),
    "a constant column": np.arange(6.0)[:, None] ** [0, 1, 2],
}


@functools.partial(jax.jit, static_argnames=("route", "intercept"))
def on_degenerate(X, Y, lams, plan, route, intercept):
    factor = rls.factorize(rls.Linear(), X, intercept=intercept, solver=solver_of(route))
    criteria = [f(factor, Y, lams) for f in (rls.gcv, rls.log_marginal_likelihood)]
    return (
        rls.path(factor, Y, lams),
        rls.kfold(plan)(factor, Y, lams),
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
    lams, groups = wide([0.01, 1.0, 100.0]), np.arange(6) // 2
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
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_lambda_grid(route):
    """Geometric and ascending, from the factor's floor or below its spectrum to a fit of a tenth of
    a degree of freedom.
    """
    X = array(data(24, 5)[0])
    factor = support.factorize(rls.Linear(), X, solver=solver_of(route), intercept=True)
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


def test_the_floor_knows_the_constant_that_centring_took_off():
    """K + C fits the same functions as K beside an intercept, but its rounding is that of C: the
    grid must not go below that.
    """
    X, Y = data()
    K = support.gram(rls.Gaussian(1.5), array(X))
    constant = K.dtype.type(EPS**-0.5)
    weights = array(np.linspace(0.5, 2, 24))
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
    factor = support.factorize(kernel, array(X), solver=rls.Cholesky())
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
# --------------------------------------------------------------------------------------------------

MESSAGES = [
    (
        lambda: of_gram(jnp.array([[1.0, 2.0], [0.0, 1.0]])),
        "entries differ from their mirror image by up to 2",
    ),
    (
        lambda: rls.factorize(rls.Linear(), jnp.ones(3)),
        "X must have shape (n, d), and has shape (3,): use X[None] for one row",
    ),
    (
        lambda: rls.factorize("gaussian", jnp.ones((3, 1))),
        "kernel must be a jaxrls kernel, such as Gaussian(1.0), and is a str",
    ),
    (
        lambda: rls.factorize(rls.Linear(), jnp.ones((3, 1)), solver="svd"),
        "solver must be Spectral(), Cholesky(), Refined() or Iterative()",
    ),
    (
        lambda: rls.loo(factor(), jnp.ones(4), jnp.ones(1)),
        "Y must have shape (3,) or (3, t), one row per row of X, and has shape (4,)",
    ),
    (
        lambda: rls.loo(factor(), jnp.ones(3), 1.0),
        "has shape (): use coef and loo_residuals for one",
    ),
    (
        lambda: rls.gcv(factor(), jnp.ones(3), jnp.ones(0)),
        "lams is empty: give at least one λ",
    ),
    (
        lambda: rls.coef(factor(), jnp.ones(3), -1.0),
        "lam must be positive, or 0 for the floor of the factor, and the smallest is -1.0",
    ),
    (
        lambda: rls.coef(factor(), jnp.ones((3, 2)), jnp.ones(3)),
        "lam must be one number, or one per target where Y is (n, t): it has shape (3,), and Y "
        "(3, 2)",
    ),
    (
        lambda: rls.lambda_grid(factor(), 0),
        "num must be a whole number of at least 1, and is 0",
    ),
    (
        lambda: rls.folds([[0, 1]]),
        "groups must have shape (n,), one label per row, and has shape (1, 2)",
    ),
    (
        lambda: rls.folds([5, 5]),
        "groups holds one label only, 5: leaving it out would leave nothing to fit",
    ),
    (
        lambda: jax.jit(rls.folds)(jnp.arange(3)),
        "groups has no values inside jax.jit: call jaxrls.folds(groups) outside",
    ),
    (
        lambda: rls.holdout(jnp.ones((2, 3)), jnp.ones(4))(factor(), jnp.ones(3), jnp.ones(1)),
        "Y of holdout must have shape (2,), as its X and Y do, and has shape (4,)",
    ),
    (
        lambda: rls.holdout(jnp.ones((2, 3)), jnp.ones(2), weights=jnp.ones(3))(
            factor(), jnp.ones(3), jnp.ones(1)
        ),
        "weights must have shape (2,)",
    ),
    (
        lambda: rls.holdout(jnp.ones((2, 3)), jnp.ones((2, 1)))(
            factor(), jnp.ones((3, 2)), jnp.ones(1)
        ),
        "Y of holdout must have shape (2, 2), as its X and Y do, and has shape (2, 1)",
    ),
    (
        lambda: rls.holdout(jnp.ones((2, 4)), jnp.ones(2))(
            factor(solver=rls.Spectral("gram")), jnp.ones(3), jnp.ones(1)
        ),
        "X of holdout must have 3 columns, one for each coefficient, where no kernel is given",
    ),
]


def factor(**options):
    return rls.factorize(rls.Linear(), jnp.arange(3, dtype=DTYPE)[:, None], **options)


@pytest.mark.any_precision
def test_messages():
    refused(*((call, re.escape(message)) for call, message in MESSAGES))


def test_symmetry_is_asked_to_rounding_only():
    K = np.array([[2, 1], [1, 2]], DTYPE)
    of_gram(jnp.asarray(K + np.array([[0, 3 * EPS], [0, 0]], DTYPE)))
    assert not X64 or of_gram(jnp.asarray(K)).dtype == np.float64
