"""Columns without penalty beside the kernel: fixed effects of groups and others, against refits of the augmented least squares."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import EPS, array, assert_close, factorize, log_marginal_likelihood, loo, loo_residuals, wide

import jaxrls as rls
from jaxrls.criteria.criterion import evaluate

N, LAMS = 14, wide([0.05, 0.3, 2.0])
RNG = np.random.default_rng(18)
X, Y, V = wide(RNG.normal(size=(N, 2))), wide(RNG.normal(size=(N, 2))), wide(RNG.uniform(0.5, 2.0, N))
MEMBER = np.array([0, 1, 2] * 4 + [0, 1])
B = wide(np.column_stack([MEMBER == 1, MEMBER == 2, 3 + RNG.normal(size=N)]))
ZEROS = wide(np.where(np.isin(np.arange(N), [2, 7]), 0.0, V))
FOLDS = np.arange(N) // 2
PLAN = rls.folds(FOLDS)
GAUSSIAN, LINEAR = rls.Gaussian(1.2), rls.Linear()
LANDMARKS = np.array([9, 2, 12, 5, 0])  # row 2 has weight 0 where there are such
POINTS = wide(RNG.normal(size=(5, 2)))
WAYS: dict = {
    "gram": (GAUSSIAN, {"route": "gram"}),
    "cholesky": (GAUSSIAN, {"route": "cholesky"}),
    "features": (LINEAR, {"route": "features"}),
    "covariance": (LINEAR, {"route": "covariance"}),
    "gram of features": (LINEAR, {"route": "gram"}),
    "landmarks": (GAUSSIAN, {"landmarks": LANDMARKS}),
    "landmarks that stay": (GAUSSIAN, {"landmarks": LANDMARKS, "drop": False}),
    "points": (GAUSSIAN, {"landmarks": POINTS}),
    "cholesky landmarks": (GAUSSIAN, {"landmarks": LANDMARKS, "route": "cholesky"}),
    "cholesky points": (GAUSSIAN, {"landmarks": POINTS, "route": "cholesky"}),
    "cholesky features": (LINEAR, {"route": "cholesky"}),
}
OFTEN = ("gram", "cholesky", "features", "covariance", "landmarks", "cholesky landmarks")  # the others are slow tests
# What a solution may be off by, relative to the largest number: 4 n eps (1 + s_max/λ_min), as in the grid.
TOLERANCE = 4 * N * EPS * (1 + 2 * N * 4 / LAMS.min())


@partial(jax.jit, static_argnames=("way", "intercept"))
def answers(X, B, Y, weights, lams, *, way, intercept):
    kernel, options = WAYS[way]
    make = rls.factor_subset if "drop" in options else rls.factorize
    factor = make(kernel, X, weights=weights, intercept=intercept, unpenalized=B, **options)
    solution = factor.solve(Y)
    found = solution.coefficients(lams)
    beta = found.free if not intercept else jnp.concatenate([found.intercept[:, None], found.free], axis=1)
    fitted = factor.expansion.design(kernel, X) @ found.coef
    whole = {name: evaluate(criterion, factor, Y, lams) for name, criterion in (("gcv", rls.GCV()), ("evidence", rls.Evidence()))}
    groups = jnp.stack([rls.loo_residuals(factor, Y, lam, PLAN) for lam in lams])
    return whole | {
        "beta": beta,
        "f": fitted,
        "residuals": solution.residuals(lams),
        "groups": groups,
        "dof": factor.dof(lams)[:, 0],
        "loo": rls.loo(factor, Y, lams),
    }


def refit(Phi, columns, Y, lam, v):
    """Coefficients w and β by least squares on [√vΦ √vB; √λI 0]."""
    root, r = np.sqrt(v)[:, None], Phi.shape[1]
    top, below = root * np.hstack([Phi, columns]), np.hstack([np.sqrt(lam) * np.eye(r), np.zeros((r, columns.shape[1]))])
    found = np.linalg.lstsq(np.vstack([top, below]), np.vstack([root * Y, np.zeros((r, Y.shape[1]))]), rcond=None)[0]
    return found[:r], found[r:]


def features(way, gone=(), x=X, width=1.2):
    """Those of the fit without some rows: their landmarks leave, where they do."""
    kernel, options = WAYS[way]
    if kernel is LINEAR:
        return x
    points, numbers = x, options.get("landmarks", POINTS)
    if numbers.ndim == 1:
        points = x[numbers if "drop" in options else numbers[~np.isin(numbers, gone)]]
    elif "landmarks" in options:
        points = POINTS
    s, U = np.linalg.eigh(gaussian(points, points, width))
    used = s > 1e-13 * s[-1]
    return gaussian(x, points, width) @ U[:, used] / np.sqrt(s[used])


def gaussian(X, Z, width):
    return np.exp(-np.sum((X[:, None] - Z[None]) ** 2, axis=-1) / (2 * width**2))


def held_out(way, columns, lam, v, groups, **moved):
    e = np.empty_like(Y)
    for group in np.unique(groups):
        rest, Phi = groups != group, features(way, np.flatnonzero(groups == group), **moved)
        w, beta = refit(Phi[rest], columns[rest], Y[rest], lam, v[rest])
        e[~rest] = Y[~rest] - Phi[~rest] @ w - columns[~rest] @ beta
    return e


def truth(way, v, intercept):
    """All of `answers` by refits, and the restricted likelihood of the rows of positive weight by dense matrices."""
    Phi, columns = features(way), np.hstack([np.ones((N, int(intercept))), B])
    found, used, root = {}, v > 0, np.sqrt(v[v > 0])[:, None]
    fits = [refit(Phi, columns, Y, lam, v) for lam in LAMS]
    found["beta"], found["f"] = np.array([beta for _, beta in fits]), np.array([Phi @ w for w, _ in fits])
    found["residuals"] = np.array([held_out(way, columns, lam, v, np.arange(N)) for lam in LAMS])
    found["groups"] = np.array([held_out(way, columns, lam, v, FOLDS) for lam in LAMS])
    found["loo"] = np.einsum("i,lit->lt", v, found["residuals"] ** 2) / v.sum()
    H, y, count = root * columns[used], root * Y[used], used.sum()
    parts: dict = {"gcv": [], "dof": [], "evidence": []}
    for lam in LAMS:
        G = root * (Phi[used] @ Phi[used].T) * root.T + lam * np.eye(count)
        inverse = np.linalg.inv(G)
        S = H.T @ inverse @ H
        P = inverse - inverse @ H @ np.linalg.solve(S, H.T @ inverse)
        left = lam * np.trace(P)
        parts["dof"].append(count - left)
        parts["gcv"].append(np.sum((lam * P @ y) ** 2, axis=0) / v.sum() / (left / count) ** 2)
        volume = np.linalg.slogdet(G)[1] + np.linalg.slogdet(S)[1] - np.log(v[used]).sum()
        parts["evidence"].append(-0.5 * (np.sum(y * (P @ y), axis=0) + volume + (count - H.shape[1]) * np.log(2 * np.pi)))
    return found | {name: np.array(values) for name, values in parts.items()}


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way not in OFTEN)) for way in WAYS])
def test_everything_is_that_of_refits(way):
    """Two rows of weight 0, one with all of another group's, and none: one program."""
    for v in (ZEROS, V):
        got, want = answers(*map(array, (X, B, Y, v, LAMS)), way=way, intercept=True), truth(way, v, True)
        for name, values in want.items():
            assert_close(got[name], values, TOLERANCE, f"{name}, {way}")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["gram", "landmarks"])
def test_without_weights_and_intercept_as_well(way):
    got, want = answers(*map(array, (X, B, Y)), None, array(LAMS), way=way, intercept=False), truth(way, np.ones(N), False)
    for name, values in want.items():
        assert_close(got[name], values, TOLERANCE, name)


@pytest.mark.float64
@pytest.mark.parametrize(
    "way", ["cholesky", pytest.param("landmarks", marks=pytest.mark.slow), pytest.param("cholesky features", marks=pytest.mark.slow)]
)
def test_objective_and_its_slopes_are_those_of_refits(way):
    """In width, λ, X, the columns and the weights, by differences of refits: a landmark moves with its row."""
    kernel, options = WAYS[way]
    options = {name: value for name, value in options.items() if name == "landmarks"}
    at = np.array([1.2, np.log(LAMS[1]), 0.0, 0.0, 0.0])
    along = np.sin(np.arange(N))

    def moved(width, log_lam, x, b, v):
        return width, np.e**log_lam, X + x * X**2, B + b * np.outer(along, [1, -1, 2]), V + v * along

    def truth(at):
        width, lam, x, b, v = moved(*at)
        e = held_out(way, np.column_stack([np.ones(N), b]), lam, v, np.arange(N), x=x, width=width)
        return np.mean(v @ e**2) / v.sum()

    def error(at):
        width, lam, x, b, v = moved(*at)
        made = rls.Gaussian(width) if kernel is GAUSSIAN else kernel
        return rls.loo_objective(made, x, array(Y), lam, weights=v, unpenalized=b, **options)

    value, slope = jax.jit(jax.value_and_grad(error))(array(at))
    assert_close(value, truth(at), 1e-10)
    want = [(truth(at + step) - truth(at - step)) / 2e-5 for step in 1e-5 * np.eye(5)]
    assert_close(slope, want, 1e-7)


GROUPS = np.arange(40) % 4
DATA = wide(np.linspace(0, 3, 40)[:, None]), wide(np.sin(np.linspace(0, 6, 40)) + 5.0 * GROUPS)
INDICATORS = np.eye(4)[GROUPS]


def test_fit_keeps_the_coefficients_and_predict_takes_the_columns(tmp_path):
    """One intercept a group: as the smooth part tells what is common, they come out 5 apart."""
    x, y = DATA
    fit = rls.fit(rls.Gaussian(0.5), x, y, unpenalized=INDICATORS, intercept=False)
    assert np.abs(np.diff(fit.model.free) - 5).max() < 0.01 and fit.model.intercept == 0
    assert fit.error < 1e-3  # labels have variance 31
    again = rls.fit(rls.Gaussian(0.5), x, y, unpenalized=INDICATORS[:, 1:], lams=[float(fit.lam)])  # by a Cholesky factor
    predictions = fit.predict(x, unpenalized=INDICATORS)
    tolerance = 40 * 40 * float(np.finfo(predictions.dtype).eps) / float(fit.lam)
    assert_close(again.predict(x, unpenalized=INDICATORS[:, 1:]), predictions, tolerance)
    assert_close(again.loo_residuals, fit.loo_residuals, 1e3 * tolerance)
    rls.save(tmp_path / "fit.npz", fit)
    assert (rls.load(tmp_path / "fit.npz").predict(x, unpenalized=INDICATORS) == predictions).all()
    with pytest.raises(ValueError, match="unpenalized must be what the model was fitted with, 4 such columns"):
        fit.predict(x)
    with pytest.raises(ValueError, match=r"unpenalized must have shape \(40, 4\)"):
        fit.predict(x, unpenalized=INDICATORS[:3])


@pytest.mark.float64
@pytest.mark.parametrize("landmarks", [12, "auto"])
def test_fit_path_and_coef_on_landmarks(landmarks):
    """Also where their number is asked for; without one of their rows they are one less, which a refit has too."""
    x, y = DATA
    kernel, options = rls.Gaussian(0.5), {"unpenalized": INDICATORS, "intercept": False}
    fit = rls.fit(kernel, x, y, landmarks=landmarks, **options)
    assert np.abs(np.diff(fit.model.free) - 5).max() < 0.01 and fit.error < 1e-3
    assert bool(fit.certificate)
    if landmarks == "auto":  # of so few rows all
        return
    fit = rls.fit(kernel, x, y, landmarks=landmarks, lams=[1e-3], **options)  # far above rounding
    numbers = np.flatnonzero(np.isin(x[:, 0], fit.model.points[:, 0]))
    factor = factorize(kernel, x, landmarks=numbers, **options)
    path, found = rls.path(factor, y, [float(fit.lam)]), rls.coef(factor, y, fit.lam)
    assert_close(path.free[0], fit.model.free, 1e-8)
    assert_close(found.free, fit.model.free, 1e-8)
    assert_close(path.loo[0], fit.error, 1e-6)
    gone = numbers[3]
    rest = np.arange(40) != gone
    points = x[np.setdiff1d(numbers, gone)]
    again = rls.fit(kernel, x[rest], y[rest], landmarks=points, lams=[float(fit.lam)], unpenalized=INDICATORS[rest], intercept=False)
    predicted = again.predict(x[[gone]], unpenalized=INDICATORS[[gone]])
    assert_close(y[gone] - predicted[0], fit.loo_residuals[gone], 1e-5)


@pytest.mark.float64
@pytest.mark.parametrize("landmarks", [None, pytest.param(np.arange(0, 40, 2), marks=pytest.mark.slow)])
def test_tune_finds_width_and_lam_with_the_columns(landmarks):
    """No worse than a grid of both, and the model is that of a fit there."""
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 3, (40, 2))
    y = np.sin(2 * x[:, 0]) + np.cos(2 * x[:, 1]) + 5 * GROUPS + 0.3 * rng.normal(size=40)
    options = {"unpenalized": INDICATORS, "intercept": False, "landmarks": landmarks}
    tuned = rls.tune(rls.Gaussian(3.0), x, y, **options)
    assert tuned.converged and tuned.error < tuned.start_error
    lams = np.geomspace(1e-2, 30, 40)
    grid = [np.min(loo(factorize(rls.Gaussian(width), x, **options), y, lams)) for width in np.geomspace(0.3, 2.5, 9)]
    assert tuned.error <= 1.001 * min(grid)
    fit = rls.fit(tuned.kernel, x, y, lams=[float(tuned.lam)], **options)
    for got, want in ((tuned.model.free, fit.model.free), (tuned.error, fit.error), (tuned.loo_residuals, fit.loo_residuals)):
        assert_close(got, want, 1e-6)
    assert_close(tuned.predict(x, unpenalized=INDICATORS), fit.predict(x, unpenalized=INDICATORS), 1e-6)
    with pytest.raises(ValueError, match="such as groups, and no unpenalized="):
        rls.tune(rls.Gaussian(3.0), x, y, grow=True, **options | {"landmarks": 20})


ALONE = np.eye(40)[:, [7]]
REFUSED = {
    "collinear": (
        {"unpenalized": INDICATORS},
        "5 columns of unpenalized, the constant of intercept=True among them, are linearly dependent",
    ),
    "twice": ({"unpenalized": INDICATORS[:, [1, 1]], "intercept": False}, "the 2 columns of unpenalized are linearly dependent"),
    "no weight": ({"unpenalized": ALONE, "weights": 1 - ALONE[:, 0]}, "dependent over the rows of positive weight"),
    "more than rows": ({"unpenalized": np.eye(40)}, "the 41 columns of unpenalized"),
    "a vector": ({"unpenalized": GROUPS}, r"unpenalized\[:, None\] for a single column"),
    "NaN": ({"unpenalized": ALONE * np.nan}, "unpenalized holds"),
    "alone": ({"unpenalized": ALONE}, "without row 7 the columns of unpenalized are linearly dependent"),
    "alone, GCV": ({"unpenalized": ALONE, "criterion": rls.gcv}, "without row 7 the columns"),
    "groups": ({"unpenalized": INDICATORS[:, 1:], "groups": GROUPS}, "without the group of rows 0, 4, 8, 12, 16, … the columns"),
    "alone, landmarks": ({"unpenalized": ALONE, "landmarks": 5}, "without row 7 the columns"),
    "iterative": (
        {"unpenalized": INDICATORS[:, 1:], "landmarks": 5, "route": "iterative", "lams": [1.0]},
        "unpenalized= goes by routes 'gram'",
    ),
    "route": ({"unpenalized": INDICATORS[:, 1:], "route": "tridiagonal"}, "unpenalized= goes by routes 'gram', 'cholesky'"),
    "rank": ({"unpenalized": ALONE, "rank": True}, "rank=True fits their order"),
    "validation": ({"unpenalized": ALONE, "validation": DATA}, "leave validation out"),
    "moments": ({"unpenalized": ALONE, "keep_moments": True}, "leave keep_moments out"),
    "variance": ({"unpenalized": ALONE, "keep_variance": True}, "leave keep_variance and keep_intervals out"),
}


@pytest.mark.float64
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_by_name(name, unchecked):
    options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        rls.fit(rls.Gaussian(0.5), *DATA, **options)


@pytest.mark.float64
def test_a_row_that_cannot_be_left_out_is_said_to_be_so():
    """By the functions too, NaN inside of jit; the evidence leaves nothing out, and is that without the row."""
    x, y = DATA
    kernel, lams = rls.Gaussian(0.5), array([0.1])
    factor = factorize(kernel, array(x), unpenalized=array(ALONE))
    with pytest.raises(ValueError, match="without row 7"):
        factor.solve(array(y)).check_rest()
    assert np.isnan(loo(factor, array(y), lams)).all()
    residuals = loo_residuals(factor, array(y), lams[0])
    assert np.flatnonzero(np.isnan(residuals)).tolist() == [7]
    rest = np.arange(40) != 7
    want = log_marginal_likelihood(factorize(kernel, array(x[rest])), array(y[rest]), lams)
    # |BᵀVB| of the constant and the indicator of row 7 is 39: that of the constant on the other rows.
    assert_close(log_marginal_likelihood(factor, array(y), lams), want, 1e-12)


@pytest.mark.float64
@pytest.mark.parametrize("intercept", [True, False])
def test_a_search_begins_with_a_constant_and_what_the_columns_leave(intercept):
    near = rls.Problem.of(GAUSSIAN, X, Y, unpenalized=B, intercept=intercept).without_free()
    columns = np.column_stack([np.ones(N), B]) if intercept else B
    left = Y - columns @ np.linalg.lstsq(columns, Y, rcond=None)[0]
    assert near.free is None and near.intercept
    np.testing.assert_allclose(near.Y, left, atol=1e-13)
