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
from support import (
    ANY_PRECISION,
    DTYPE,
    EPS,
    array,
    assert_close,
    of_gram,
    refused,
    solver_of,
    wide,
)

import jaxrls as rls
from jaxrls.core.data import as_folds

ROUTES = ("gram", "features", "covariance")


def data(n=24, d=5, t=3, seed=0):
    rng = np.random.default_rng(seed)
    return wide(rng.normal(size=(n, d)) + 1), wide(rng.normal(size=(n, t)) + 3)


def rounding(X, lam):
    """n·eps·s_max/λ: what solving at λ may cost, in units of the result."""
    return len(X) * EPS * (1 + float(np.linalg.norm(np.asarray(X), 2)) ** 2 / lam)


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


@functools.partial(jax.jit, static_argnames="route")
def on_degenerate(X, Y, lams, plan, route):
    factor = rls.factorize(rls.Linear(), X, solver=solver_of(route))
    criteria = rls.loo, rls.kfold(plan), rls.gcv, rls.log_marginal_likelihood
    others = (
        rls.path(factor, Y, lams),
        rls.diagnostics.effective_dof(factor, lams),
        rls.extend.lambda_grid(factor, 5),
    )
    return [criterion(factor, Y, lams) for criterion in criteria], others


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_data(name):
    """Finite everywhere on rank-deficient data, and exact, for every route."""
    X = DEGENERATE[name]
    Y = np.random.default_rng(0).normal(size=(len(X), 2)) + 2
    lams, groups = wide([0.01, 1.0, 100.0]), np.arange(6) // 2
    for route in ROUTES:
        out = on_degenerate(array(X), array(Y), array(lams), rls.folds(groups), route)
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(out)), route
        for errors, plan in zip(out[0], (np.arange(6), groups), strict=False):
            for got, lam in zip(errors, lams, strict=True):
                e = oracle.group_residuals(X, wide(Y), lam, plan, None, True)
                assert_close(got, (e**2).mean(0), 16 * rounding(X, lam), f"{route}, λ = {lam}")


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
        "covariance": 18 * 5**0.5 * EPS,  # fewer than 8 rows for each feature
        "features": 400 * 5 * EPS**2,
    }[route] * float(factor.s.max())
    assert_close(factor.precision_floor(), expected, 24 * EPS, "floor")


def test_the_floor_knows_the_constant_that_centring_took_off():
    """K + C fits the same functions as K beside an intercept, but its rounding is that of C: the
    grid must not go below that.
    """
    K = support.gram(rls.Gaussian(1.5), array(data()[0]))
    constant, weights = K.dtype.type(EPS**-0.5), array(np.linspace(0.5, 2, 24))
    raised = support.factor_gram(K + constant, weights=weights, intercept=True)
    floor = float(raised.precision_floor())
    assert 24**0.5 * EPS * float(constant) <= floor <= 0.9 * 24 * EPS * float(constant) * 24, (
        "24² entries, each rounded by itself"
    )
    assert float(support.lambda_grid(raised)[0]) >= 0.999 * floor


def test_ends_of_the_lambda_grid():
    """From a thousandth of the smallest eigenvalue, or the floor, to ten times the trace; ten times
    its own start where K is 0, and above rounding where centring leaves no more of it.
    """
    for K, low, high in (
        (np.diag([4.0, 1.0, 0.01]), 1e-5, 50.1),
        (np.diag([4.0, 1.0, 0.0]), 1e-3, 50.0),
        (np.zeros((3, 3)), 2 * np.finfo(DTYPE).tiny, 20 * np.finfo(DTYPE).tiny),
    ):
        grid = support.lambda_grid(support.factor_gram(array(K), intercept=False), 7)
        assert_close(grid[0], low, 1e3 * EPS)
        assert_close(grid[-1], high, 1e3 * EPS)
    factor = support.factor_gram(array(np.full((3, 3), 3.7)), intercept=True)
    grid = np.asarray(support.lambda_grid(factor, 7), np.float64)
    assert (np.diff(grid) > 0).all() and grid[0] >= 0.999 * float(factor.precision_floor()) > 0


# messages
# --------------------------------------------------------------------------------------------------

MESSAGES = [
    (
        lambda: rls.loo(factor(), np.ones(3), 1.0),
        "lams must have shape (L,), and has shape (): one λ is lams=[0.1]",
    ),
    (
        lambda: rls.extend.coef(factor(), np.ones((3, 2)), np.ones(3)),
        "lam must be one number, or one for each target, and has shape (3,)",
    ),
    (
        lambda: rls.extend.lambda_grid(factor(), 0),
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
        lambda: jax.jit(rls.folds)(np.arange(3)),
        "groups has no values inside jax.jit: call jaxrls.folds(groups) outside",
    ),
    (
        lambda: jax.jit(lambda plan: as_folds(plan, 4, 3).n)(rls.folds([0, 1, 0])),
        "groups has no values inside jax.jit, and lacks the padding of X, which has 4 rows with it",
    ),
    (
        lambda: rls.holdout(np.ones((2, 3)), np.ones(2), weights=np.ones(3))(
            factor(), np.ones(3), np.ones(1)
        ),
        "weights must have shape (2,)",
    ),
    (
        lambda: rls.holdout(np.ones((2, 3)), np.ones((2, 1)))(
            factor(), np.ones((3, 2)), np.ones(1)
        ),
        "Y of holdout must have shape (2, 2), as its X and Y do, and has shape (2, 1)",
    ),
    (
        lambda: rls.holdout(np.ones((2, 4)), np.ones(2))(
            factor(solver=rls.Spectral("gram")), np.ones(3), np.ones(1)
        ),
        "X of holdout must have 3 columns, one for each coefficient, where no kernel is given",
    ),
]


def factor(**options):
    return support.factorize(rls.Linear(), np.arange(3, dtype=DTYPE)[:, None], **options)


@ANY_PRECISION
def test_messages():
    refused(*((call, re.escape(message)) for call, message in MESSAGES))


def test_symmetry_is_asked_to_rounding_only():
    of_gram(array([[2, 1 + 3 * EPS], [1, 2]]))
