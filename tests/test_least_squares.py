"""λ = 0, the fit of minimum norm, against NumPy's pseudoinverse, refits by it, and scikit-learn's least squares."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.linear_model
from support import DTYPE, EPS, array, assert_close, factorize, wide

import jaxrls as rls

N = 16
RNG = np.random.default_rng(0)
X, Y, V = wide(RNG.normal(size=(N, 3))), wide(RNG.normal(size=(N, 2))), wide(RNG.uniform(0.5, 2.0, N))
ZEROS = wide(np.where(np.arange(N) % 5 == 3, 0.0, V))
GROUPS = np.arange(N) // 2
PLAN = rls.folds(GROUPS)
GAUSSIAN, LINEAR = rls.Gaussian(0.3), rls.Linear()
LONG, TWICE = wide(RNG.normal(size=(N, 40))), wide(np.concatenate([X[:8], X[:8]]))
LINE, DEPEND = wide(np.linspace(0, 3, N)[:, None]), wide(np.column_stack([X, X[:, :2] - X[:, 1:]]))
POINTS = wide(RNG.normal(size=(4, 3)))
# Kernel, rows, options: fewer features than rows, by four routes; more features; K of full rank, and of half of it; landmarks that are no rows, and rows.
CASES = {
    "features": (LINEAR, X, {"route": "features"}),
    "covariance": (LINEAR, X, {"route": "covariance"}),
    "gram of few features": (LINEAR, X, {"route": "gram"}),
    "columns that depend": (LINEAR, DEPEND, {"route": "features"}),
    "more features": (LINEAR, LONG, {"route": "features"}),
    "more features, outer": (LINEAR, LONG, {"route": "covariance"}),
    "gram": (GAUSSIAN, X, {"route": "gram"}),
    "gram of equal rows": (GAUSSIAN, TWICE, {"route": "gram"}),
    "landmarks": (rls.Gaussian(1.0), X, {"landmarks": POINTS}),
}


def features_of(kernel, X, landmarks=None):
    """Φ with K = ΦΦᵀ, or with K̂ on landmarks."""
    if kernel is LINEAR:
        return X
    k = lambda A, B: np.exp(-np.sum((A[:, None] - B[None]) ** 2, axis=-1) / (2 * float(kernel.width) ** 2))  # noqa: E731
    if landmarks is not None:
        return np.linalg.solve(np.linalg.cholesky(k(landmarks, landmarks)), k(landmarks, X)).T
    s, U = np.linalg.eigh(k(X, X))
    return U * np.sqrt(np.where(s > 1e-10, s, 0))


def minimum_norm(Phi, Y, v, intercept):
    """w and b by the pseudoinverse of √vΦ, centred where there is an intercept."""
    root, centre = np.sqrt(v)[:, None], v @ Phi / v.sum() * intercept
    mean = v @ Y / v.sum() * intercept
    w = np.linalg.pinv(root * (Phi - centre), rcond=1e-5) @ (root * (Y - mean))
    return w, mean - centre @ w


def held_out(Phi, v, intercept, groups):
    e = np.empty_like(Y)
    for group in np.unique(groups):
        rest = groups != group
        w, b = minimum_norm(Phi[rest], Y[rest], v[rest], intercept)
        e[~rest] = Y[~rest] - Phi[~rest] @ w - b
    return e


@partial(jax.jit, static_argnames=("name", "intercept"))
def answers(weights, *, name, intercept):
    kernel, rows, options = CASES[name]
    factor = rls.factorize(kernel, array(rows), weights=weights, intercept=intercept, **options)
    lams = array([0.0, 1.0])
    path = rls.path(factor, array(Y), lams)
    fitted = factor.expansion.design(kernel, array(rows)) @ path.coef + path.intercept[:, None]
    alone = [rls.loo_residuals(factor, array(Y), lams[0], groups) for groups in (None, PLAN)]
    residuals = factor.solve(array(Y)).residuals(lams)
    return fitted, *alone, path.loo, rls.gcv(factor, array(Y), lams), rls.effective_dof(factor, lams), residuals


CONDITION = 2e2  # of every Φ but for what vanishes, squared


# The others differ in where U comes from.
QUICK = {(name, True) for name in ("gram", "features", "covariance", "more features", "gram of equal rows", "landmarks")} | {
    ("gram", False)
}
EVERY = [(name, intercept) for name in CASES for intercept in (True, False)]


@pytest.mark.parametrize(("name", "intercept"), [pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow) for each in EVERY])
def test_minimum_norm_and_what_is_left_out_of_it_are_refits_by_the_pseudoinverse(name, intercept):
    """Beside a positive λ, which a grid that holds 0 leaves alone."""
    kernel, rows, options = CASES[name]
    Phi, tolerance = features_of(kernel, rows, options.get("landmarks")), 4 * N * EPS * CONDITION * (20 if name == "landmarks" else 1)
    for v in (ZEROS, V) if name != "gram of equal rows" else (V,):
        fitted, e, groups, loo, gcv, dof, residuals = answers(array(v), name=name, intercept=intercept)
        w, b = minimum_norm(Phi, Y, v, intercept)
        assert_close(fitted[0], Phi @ w + b, tolerance, "f")
        alone = held_out(Phi, v, intercept, np.arange(N))
        assert_close(e, alone, tolerance, "rows")
        assert_close(residuals[0], alone, tolerance, "rows, beside another λ")
        if name != "gram of equal rows":  # of which a group and its twin are each other's rest
            assert_close(groups, held_out(Phi, v, intercept, GROUPS), tolerance, "groups")
        assert_close(loo[0], v @ alone**2 / v.sum(), tolerance, "loo")
        used = np.sqrt(v[v > 0])[:, None]
        centred = used * (Phi[v > 0] - v @ Phi / v.sum() * intercept)
        rank = np.linalg.matrix_rank(centred, 1e-5) + intercept
        assert_close(dof[0], np.array(float(rank)), tolerance, "dof")
        if rank < len(used):
            training = np.sum((used * (Y - Phi @ w - b)[v > 0]) ** 2, axis=0)
            assert_close(gcv[0], training / v.sum() / (1 - rank / len(used)) ** 2, tolerance, "gcv")
        else:
            assert np.isnan(gcv[0]).all()


def test_ordinary_least_squares_is_that_of_scikit_learn():
    """One call, by the route that it chooses: coefficients, predictions, and the textbook's e/(1 − h)."""
    kernel, peer = rls.Linear(), sklearn.linear_model.LinearRegression().fit(X, Y)
    fit = rls.fit(kernel, X.astype(DTYPE), Y.astype(DTYPE), lams=[0.0])
    assert fit.lam == 0 and fit.dof == 4
    for got, want in ((fit.model.coef, peer.coef_.T), (fit.model.intercept, peer.intercept_), (fit.predict(X), peer.predict(X))):
        assert_close(got, want, 100 * EPS)
    A = np.column_stack([np.ones(N), X])
    leverage = np.einsum("ij,ji->i", A, np.linalg.pinv(A))
    assert_close(fit.loo_residuals, (Y - peer.predict(X)) / (1 - leverage)[:, None], 100 * EPS)


@pytest.mark.float64
def test_interpolation_is_left_out_by_the_inverse_of_K():
    """eᵢ = cᵢ/(K⁻¹)ᵢᵢ, from `fit`, which takes the spectrum although one λ would be quicker by a Cholesky factor."""
    fit = rls.fit(GAUSSIAN, X, Y, lams=[0.0], intercept=False)
    inverse = np.linalg.inv(np.exp(-np.sum((X[:, None] - X[None]) ** 2, axis=-1) / (2 * 0.3**2)))
    assert fit.route == "gram"
    assert_close(fit.model.coef, inverse @ Y, 1e-12)
    assert_close(fit.loo_residuals, inverse @ Y / np.diagonal(inverse)[:, None], 1e-12)
    assert_close(fit.predict(X), Y, 1e-12)


@pytest.mark.float64
def test_a_grid_with_0_may_choose_it():
    """Labels without noise: the smaller λ the better, and 0 is no edge to warn of."""
    w = RNG.normal(size=3)
    assert rls.fit(LINEAR, X, X @ w, lams=[0.0, 1e-3, 1.0]).lam == 0
    each = rls.fit(LINEAR, X, np.column_stack([X @ w, Y[:, 0]]), lams=np.array([[0.0, 2.0]]))
    assert each.lam.tolist() == [0.0, 2.0]
    assert_close(each.model.coef[:, 0], w, 1e-13)


def test_a_spectrum_without_a_gap_is_said_to_have_none():
    """Where what is left out is not that of refits, and not where an eigenvalue that is 0 lies far from the next, nor where another λ is chosen."""
    kernel, y = rls.Gaussian(1.3), np.sin(2 * LINE[:, 0]) + 0.1 * Y[:, 0]
    x, y = LINE.astype(DTYPE), y.astype(DTYPE)
    with pytest.warns(
        UserWarning, match=r"λ = 0 counts eigenvalues down to .* beside .*, which rounding may make of 0: .* take a small λ > 0"
    ):
        fit = rls.fit(kernel, x, y, lams=[0.0])
    e = []
    for i in range(N):
        rest = np.arange(N) != i
        factor = factorize(kernel, array(x[rest]), route="gram")
        coef, b = rls.coef(factor, array(y[rest]), 0.0)
        e.append(y[i] - rls.gram(kernel, array(x[[i]]), array(x[rest]))[0] @ coef - b)
    e = np.array(e)
    assert np.abs(fit.loo_residuals - e).max() > 0.05 * np.abs(e).max()
    assert rls.fit(kernel, x, y, lams=[0.0, 1e-2, 1e-1, 1.0]).lam > 0
    for route in ("gram", "features", "covariance"):
        assert rls.fit(LINEAR, DEPEND.astype(DTYPE), Y.astype(DTYPE), lams=[0.0], route=route).lam == 0


ALONE = np.column_stack([X, np.arange(N) == 5])  # a column of which one row tells all
FACTOR = {"route": "features", "intercept": False}
REFUSED = {
    "fit": (lambda: rls.fit(LINEAR, ALONE, Y, lams=[0.0]), "lams holds 0, where the fit without a row, or group, is not known"),
    "one λ": (lambda: rls.loo_residuals(factorize(LINEAR, ALONE, **FACTOR), Y, 0.0), "lam holds 0, where the fit"),
    "gcv": (lambda: rls.fit(GAUSSIAN, X, Y, lams=[0.0], criterion=rls.gcv), "lams holds 0, where the fit"),
    "evidence": (
        lambda: rls.fit(LINEAR, X, Y, lams=[0.0], criterion=rls.log_marginal_likelihood),
        "as criterion log_marginal_likelihood needs",
    ),
    "variance": (lambda: rls.fit(LINEAR, X, Y, lams=[0.0], keep_variance=True), "leave keep_variance and keep_intervals out"),
    "auto": (lambda: rls.fit(GAUSSIAN, X, Y, lams=[0.0, 0.1], landmarks="auto"), "as landmarks='auto' certifies landmarks for λ > 0"),
    "kernels": (
        lambda: rls.fit_kernels([LINEAR, GAUSSIAN], X, Y, lams=[0.0], shares=[[1.0, 1.0]]),
        "as weights of kernels are found for λ > 0",
    ),
    "refine": (lambda: rls.fit(GAUSSIAN, X, Y, lams=[0.0], refine=True), "as refine=True cannot tell which eigenvalues are 0"),
    "cholesky": (
        lambda: rls.coef(factorize(GAUSSIAN, X, route="cholesky"), Y, 0.0),
        "as a factor by route 'cholesky' cannot tell which",
    ),
    "influence": (
        lambda: rls.influence(factorize(LINEAR, X, intercept=False, route="features"), Y, 0.0),
        "lam must be positive, as leave-one-out needs",
    ),
    "negative": (
        lambda: rls.coef(factorize(LINEAR, X, intercept=False, route="features"), Y, -1.0),
        "lam must be positive, or 0 for the fit of minimum norm",
    ),
}


@pytest.mark.float64
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_undefined_at_0_says_so(name, unchecked):
    refused, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        refused()


@pytest.mark.float64
def test_inside_jit_a_row_that_cannot_be_left_out_is_nan_and_no_other():
    factor = factorize(LINEAR, array(ALONE), **FACTOR)
    e = jax.jit(rls.loo_residuals)(factor, array(Y), jnp.zeros(()))
    assert np.flatnonzero(np.isnan(e).any(axis=1)).tolist() == [5]
    rest = held_out(ALONE, np.ones(N), False, np.arange(N))
    assert_close(np.delete(e, 5, axis=0), np.delete(rest, 5, axis=0), 1e-12)


@pytest.mark.slow
@pytest.mark.float64
def test_landmarks_leave_with_their_rows_at_0_too():
    rows, kernel = np.array([1, 4, 7, 10]), rls.Gaussian(1.0)
    e = np.empty_like(Y)
    for i in range(N):
        rest, stay = np.arange(N) != i, rows[rows != i]
        Phi = features_of(kernel, X, X[stay])
        e[i] = Y[i] - Phi[i] @ np.linalg.lstsq(Phi[rest], Y[rest], rcond=None)[0]
    factor = rls.factorize(kernel, X, landmarks=rows, intercept=False)
    assert_close(rls.loo_residuals(factor, Y, 0.0), e, 1e-12)


@pytest.mark.slow
@pytest.mark.float64
def test_columns_without_penalty_at_0_too():
    """The features' part is the minimum norm of what the columns leave over, of full rank (Gaussian) or not."""
    columns = np.column_stack([np.ones(N), np.arange(N) % 3 == 0])
    for kernel in (GAUSSIAN, LINEAR):
        Phi, e = features_of(kernel, X), np.empty_like(Y)
        for i in range(N):
            rest = np.arange(N) != i
            Q = np.linalg.qr(columns[rest])[0]
            w = np.linalg.pinv(Phi[rest] - Q @ (Q.T @ Phi[rest]), rcond=1e-5) @ (Y[rest] - Q @ (Q.T @ Y[rest]))
            beta = np.linalg.lstsq(columns[rest], Y[rest] - Phi[rest] @ w, rcond=None)[0]
            e[i] = Y[i] - Phi[i] @ w - columns[i] @ beta
        factor = rls.factorize(kernel, X, unpenalized=columns[:, 1:], route="gram")
        assert_close(rls.loo_residuals(factor, Y, 0.0), e, 1e-11)
