"""Linear models where λ is 0, or next to nothing: by all routes the fit is that of least squares of
minimum norm, as `lstsq` gives it, with columns that depend on others, more columns than rows, an
intercept and weights. And rows without leverage of their own raise no floor.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from support import DTYPE, FLOAT64, X64, assert_close, wide

import jaxrls as rls

RNG = np.random.default_rng(0)
TALL, WIDE, RANK = (40, 6), (12, 20), 3
TOLERANCE = 1e-9 if X64 else 2e-3
LAMS = (0.0, 1e-16, 1e-8, 1e-2)
FOLDS = rls.folds(np.arange(12) % 4)


def of_rank(shape, rank):
    """Rows of so many independent columns."""
    return RNG.normal(size=(shape[0], rank)) @ RNG.normal(size=(rank, shape[1]))


# In eighths, so that columns are dependent in both precisions.
COLUMNS = np.round(8 * RNG.normal(size=(40, 3))) / 8
CASES = {
    "tall": (RNG.normal(size=TALL), 6),
    "every column twice": (np.hstack([COLUMNS, COLUMNS]), 3),
    "and far from 0": (np.hstack([COLUMNS, COLUMNS]) + 16, 3),
    "sums and multiples": (
        np.column_stack([COLUMNS, COLUMNS[:, 0] + COLUMNS[:, 1], 2 * COLUMNS[:, :2]]),
        3,
    ),
    "all indicators of a group": (np.eye(6)[np.arange(40) % 6], 5),
    "wide": (RNG.normal(size=WIDE), 11),
    "wide, of low rank": (of_rank(WIDE, RANK), RANK),
    "wide, rows twice": (np.tile(RNG.normal(size=(6, 20)), (2, 1)), 5),
}
ROUTES: dict = {
    "default": {},
    "gram": {"solver": rls.Spectral("gram")},
    "features": {"solver": rls.Spectral("features")},
    "covariance": {"solver": rls.Spectral("covariance")},
    "sparse": {},
    "six λ": {},
}

QUICK = [(route, False) for route in ("default", "gram", "features", "covariance")]
QUICK += [("features", True)]
SLOW = [(route, True) for route in ("default", "covariance", "sparse", "six λ")]


def least_squares(X, y, v, effects, lam, rank):
    """Weights and coefficients of the effects, by singular values in float64."""
    root = np.sqrt(v)[:, None]
    Q, T = np.linalg.qr(root * effects)
    A, b = root * X, root[:, 0] * y
    U, s, Vt = np.linalg.svd(A - Q @ (Q.T @ A), full_matrices=False)
    U, s, Vt = U[:, :rank], s[:rank], Vt[:rank]
    w = Vt.T @ (s / (s**2 + lam) * (U.T @ (b - Q @ (Q.T @ b))))
    return w, np.linalg.solve(T, Q.T @ (b - A @ w))


@pytest.mark.filterwarnings("ignore:the chosen λ|λ below")
@pytest.mark.parametrize(
    ("route", "weighted"),
    [
        pytest.param(
            route,
            weighted,
            id=f"{route}, {'weights and effects' if weighted else 'plain'}",
            marks=[pytest.mark.slow] if (route, weighted) not in QUICK else [],
        )
        for route, weighted in QUICK + SLOW
    ],
)
def test_fits_are_least_squares_of_minimum_norm(route, weighted):
    """All coefficients: rows off the plane that X lies in are predicted by the same. Cholesky
    factors keep of the labels what rounding is of λ, until a spectrum takes their place.
    """
    for name in ("sums and multiples", "wide", "wide, of low rank") if weighted else CASES:
        X, rank = CASES[name]
        rng, n = np.random.default_rng(1), len(X)
        X, y = wide(X), wide(X @ rng.normal(size=X.shape[1]) + 0.3 * rng.normal(size=n))
        v = wide(rng.uniform(0.5, 2, n)) if weighted else np.ones(n)
        beside = wide(rng.normal(size=(n, int(weighted))))
        effects = np.hstack([np.ones((n, 1)), beside])
        rank = min(rank, n - effects.shape[1])
        given = scipy.sparse.csr_array(X.astype(DTYPE)) if route == "sparse" else X.astype(DTYPE)
        options = dict(ROUTES[route])
        if weighted:
            options |= {"weights": v.astype(DTYPE), "fixed_effects": beside.astype(DTYPE)}
        for lam in LAMS if route != "six λ" else LAMS[1:]:
            lams = [lam] if route != "six λ" else [lam, 1e3, 1e4, 1e5, 1e6, 1e7]
            fit = rls.fit(rls.Linear(), given, y.astype(DTYPE), lams=lams, **options)
            fit = fit.with_lam(lam) if route == "six λ" else fit
            w, beta = least_squares(X, y, v, effects, lam, rank)
            what = f"{name}, λ = {lam}, {fit.plan}"
            kept = float(fit.floor) / lam / 100 if fit.route == "cholesky" and lam else 0
            assert_close(fit.model.coef, w, max(TOLERANCE, kept), what)
            assert_close(fit.model.intercept, beta[0], 10 * max(TOLERANCE, kept), what)


@pytest.mark.slow
@FLOAT64
def test_cholesky_factors_know_no_constant():
    """Of centred rows K is singular along it, and of rows without their fit by columns along these.
    At a λ far below the eigenvalues all numbers are those of the spectrum, derivatives too: the
    error of c·k at λ is that of k at λ/c.
    """
    rng = np.random.default_rng(2)
    X, y, beside = rng.normal(size=(12, 20)), rng.normal(size=12), rng.normal(size=(12, 2))
    B = np.column_stack([np.ones(12), beside])
    centred = [X - b @ np.linalg.lstsq(b, X, rcond=None)[0] for b in (B[:, :1], B)]
    v = rng.uniform(0.5, 2, 12)

    @partial(jax.jit, static_argnames=("solver", "weighted"))
    def numbers(solver, X, lam, weighted):
        options = {"weights": v, "fixed_effects": beside} if weighted else {}
        factor = rls.factorize(rls.Linear(), X, solver=solver, **options)
        solution, lams = factor.solve(y), lam[None]
        held_out = solution.held_out_residuals(lams), solution.held_out_residuals(lams, FOLDS)
        evidence = rls.log_marginal_likelihood(factor, y, lams)
        coefficients = solution.coefficients(lams)
        return held_out, evidence, solution.dof(lams), coefficients, rls.gcv(factor, y, lams)

    def slopes(X, lam):
        def error(logarithms):
            scale, lam = jnp.exp(logarithms)
            named = {"weights": v, "fixed_effects": beside}
            return rls.objective(scale * rls.Linear(), X, y, lam, **named)

        return jax.jit(jax.grad(error))(jnp.log(jnp.array([1.0, lam])))

    for weighted, X in enumerate(centred):
        for lam in (1e-2, 1e-8):
            solvers = rls.Cholesky(), rls.Spectral("gram")
            found, right = (numbers(one, X, jnp.asarray(lam), weighted) for one in solvers)
            same = partial(assert_close, tolerance=1e-8, what=f"λ = {lam}")
            jax.tree.map(same, found, right)
        fits = [rls.fit(rls.Linear(), X, y, lams=[1e-8], solver=one) for one in solvers]
        spread, known = (fit.predict(0.5 * X[:4], return_std=True)[1] for fit in fits)
        assert_close(spread, known, 1e-6)
    found = slopes(centred[1], 1e-6)
    np.testing.assert_allclose(found[0], -found[1], rtol=1e-5)


def test_rows_without_leverage_of_their_own_raise_no_floor():
    """The middle one of three points, or nearly: what is left out there does not depend on λ."""
    slope = lambda fit: float(np.diff(fit.predict(np.array([[0.0], [1.0]])))[0])
    for middle in (0.0, 1e-6, 1e-3):
        x = np.array([[0.0], [0.5 + middle], [1.0]], DTYPE)
        y = np.array([0, 1.1, 2], DTYPE)
        right = np.polyfit(x[:, 0].astype(float), y, 1)[0]
        for options in ({}, {"groups": [0, 1, 2]}):
            named = rls.fit(rls.Linear(), x, y, lams=[0.0], **options)
            assert float(named.floor) < 1e3 * np.finfo(DTYPE).eps
            assert abs(slope(named) - right) < 1e3 * np.finfo(DTYPE).eps
            # Each row by the line through the others.
            left = [
                np.polyval(
                    np.polyfit(np.delete(x[:, 0].astype(float), i), np.delete(y, i), 1),
                    float(x[i, 0]),
                )
                for i in range(3)
            ]
            assert_close(named.loo_residuals, y - np.array(left), 1e3 * np.finfo(DTYPE).eps)
        assert abs(slope(rls.fit(rls.Linear(), x, y)) - right) < 0.05
