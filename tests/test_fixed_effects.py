"""Columns without penalty beside the kernel: fixed effects of groups and others, against refits of
the augmented least squares.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import (
    EPS,
    array,
    assert_close,
    factorize,
    log_marginal_likelihood,
    loo,
    loo_residuals,
    of_landmarks,
    wide,
)

import jaxrls as rls
from jaxrls.criteria.criterion import evaluate

N, LAMS = 14, wide([0.05, 0.3, 2.0])
RNG = np.random.default_rng(18)
X, Y, V = (
    wide(RNG.normal(size=(N, 2))),
    wide(RNG.normal(size=(N, 2))),
    wide(RNG.uniform(0.5, 2.0, N)),
)
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
    "landmarks that stay": (GAUSSIAN, {"landmarks": LANDMARKS, "leave": False}),
    "points": (GAUSSIAN, {"landmarks": POINTS}),
    "cholesky landmarks": (GAUSSIAN, {"landmarks": LANDMARKS, "route": "cholesky"}),
    "cholesky points": (GAUSSIAN, {"landmarks": POINTS, "route": "cholesky"}),
    "cholesky features": (LINEAR, {"route": "cholesky"}),
}
OFTEN = (
    "gram",
    "cholesky",
    "features",
    "covariance",
    "landmarks",
    "cholesky landmarks",
)  # the others are slow tests
# What a solution may be off by, relative to the largest number: 4 n eps (1 + s_max/λ_min), as in
# the grid.
TOLERANCE = 4 * N * EPS * (1 + 2 * N * 4 / LAMS.min())


@partial(jax.jit, static_argnames=("way", "intercept"))
def answers(X, B, Y, weights, lams, *, way, intercept):
    kernel, options = WAYS[way]
    make = of_landmarks if "leave" in options else rls.factorize
    factor = make(kernel, X, weights=weights, intercept=intercept, fixed_effects=B, **options)
    solution = factor.solve(Y)
    found = solution.coefficients(lams)
    beta = (
        found.free
        if not intercept
        else jnp.concatenate([found.intercept[:, None], found.free], axis=1)
    )
    fitted = factor.expansion.design(kernel, X) @ found.coef
    whole = {
        name: evaluate(criterion, factor, Y, lams)
        for name, criterion in (("gcv", rls.GCV()), ("evidence", rls.Evidence()))
    }
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
    top, below = (
        root * np.hstack([Phi, columns]),
        np.hstack([np.sqrt(lam) * np.eye(r), np.zeros((r, columns.shape[1]))]),
    )
    found = np.linalg.lstsq(
        np.vstack([top, below]), np.vstack([root * Y, np.zeros((r, Y.shape[1]))]), rcond=None
    )[0]
    return found[:r], found[r:]


def features(way, gone=(), x=X, width=1.2):
    """Those of the fit without some rows: their landmarks leave, where they do."""
    kernel, options = WAYS[way]
    if kernel is LINEAR:
        return x
    points, numbers = x, options.get("landmarks", POINTS)
    if numbers.ndim == 1:
        points = x[numbers if "leave" in options else numbers[~np.isin(numbers, gone)]]
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
    """All of `answers` by refits, and the restricted likelihood of the rows of positive weight by
    dense matrices.
    """
    Phi, columns = features(way), np.hstack([np.ones((N, int(intercept))), B])
    found, used, root = {}, v > 0, np.sqrt(v[v > 0])[:, None]
    fits = [refit(Phi, columns, Y, lam, v) for lam in LAMS]
    found["beta"], found["f"] = (
        np.array([beta for _, beta in fits]),
        np.array([Phi @ w for w, _ in fits]),
    )
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
        parts["evidence"].append(
            -0.5 * (np.sum(y * (P @ y), axis=0) + volume + (count - H.shape[1]) * np.log(2 * np.pi))
        )
    return found | {name: np.array(values) for name, values in parts.items()}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way not in OFTEN)) for way in WAYS]
)
def test_everything_is_that_of_refits(way):
    """Two rows of weight 0, one with all of another group's, and none: one program."""
    for v in (ZEROS, V):
        got, want = (
            answers(*map(array, (X, B, Y, v, LAMS)), way=way, intercept=True),
            truth(way, v, True),
        )
        for name, values in want.items():
            assert_close(got[name], values, TOLERANCE, f"{name}, {way}")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["gram", "landmarks"])
def test_without_weights_and_intercept_as_well(way):
    got, want = (
        answers(*map(array, (X, B, Y)), None, array(LAMS), way=way, intercept=False),
        truth(way, np.ones(N), False),
    )
    for name, values in want.items():
        assert_close(got[name], values, TOLERANCE, name)


@pytest.mark.float64
@pytest.mark.parametrize(
    "way",
    [
        "cholesky",
        pytest.param("landmarks", marks=pytest.mark.slow),
        pytest.param("cholesky features", marks=pytest.mark.slow),
    ],
)
def test_objective_and_its_slopes_are_those_of_refits(way):
    """In width, λ, X, the columns and the weights, by differences of refits: a landmark moves with
    its row.
    """
    kernel, options = WAYS[way]
    options = {name: value for name, value in options.items() if name == "landmarks"}
    at = np.array([1.2, np.log(LAMS[1]), 0.0, 0.0, 0.0])
    along = np.sin(np.arange(N))

    def moved(width, log_lam, x, b, v):
        return (
            width,
            np.e**log_lam,
            X + x * X**2,
            B + b * np.outer(along, [1, -1, 2]),
            V + v * along,
        )

    def truth(at):
        width, lam, x, b, v = moved(*at)
        e = held_out(way, np.column_stack([np.ones(N), b]), lam, v, np.arange(N), x=x, width=width)
        return np.mean(v @ e**2) / v.sum()

    def error(at):
        width, lam, x, b, v = moved(*at)
        made = rls.Gaussian(width) if kernel is GAUSSIAN else kernel
        return rls.loo_objective(made, x, array(Y), lam, weights=v, fixed_effects=b, **options)

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
    fit = rls.fit(rls.Gaussian(0.5), x, y, fixed_effects=INDICATORS, intercept=False)
    assert np.abs(np.diff(fit.model.free) - 5).max() < 0.01 and fit.model.intercept == 0
    assert fit.error < 1e-3  # labels have variance 31
    again = rls.fit(
        rls.Gaussian(0.5), x, y, fixed_effects=INDICATORS[:, 1:], lams=[float(fit.lam)]
    )  # by a Cholesky factor
    predictions = fit.predict(x, fixed_effects=INDICATORS)
    tolerance = 40 * 40 * float(np.finfo(predictions.dtype).eps) / float(fit.lam)
    assert_close(again.predict(x, fixed_effects=INDICATORS[:, 1:]), predictions, tolerance)
    assert_close(again.loo_residuals, fit.loo_residuals, 1e3 * tolerance)
    rls.save(tmp_path / "fit.npz", fit)
    assert (
        rls.load(tmp_path / "fit.npz").predict(x, fixed_effects=INDICATORS) == predictions
    ).all()
    with pytest.raises(ValueError, match=r"fixed_effects must be the columns \(40, 4\)"):
        fit.predict(x)
    with pytest.raises(ValueError, match=r"fixed_effects must have shape \(40, 4\)"):
        fit.predict(x, fixed_effects=INDICATORS[:3])


@pytest.mark.float64
@pytest.mark.parametrize("landmarks", [12, "auto"])
def test_fit_path_and_coef_on_landmarks(landmarks):
    """Also where their number is asked for; without one of their rows they are one less, which a
    refit has too.
    """
    x, y = DATA
    kernel, options = rls.Gaussian(0.5), {"fixed_effects": INDICATORS, "intercept": False}
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
    again = rls.fit(
        kernel,
        x[rest],
        y[rest],
        landmarks=points,
        lams=[float(fit.lam)],
        fixed_effects=INDICATORS[rest],
        intercept=False,
    )
    predicted = again.predict(x[[gone]], fixed_effects=INDICATORS[[gone]])
    assert_close(y[gone] - predicted[0], fit.loo_residuals[gone], 1e-5)


@pytest.mark.float64
@pytest.mark.parametrize(
    "landmarks", [None, pytest.param(np.arange(0, 40, 2), marks=pytest.mark.slow)]
)
def test_tune_finds_width_and_lam_with_the_columns(landmarks):
    """No worse than a grid of both, and the model is that of a fit there."""
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 3, (40, 2))
    y = np.sin(2 * x[:, 0]) + np.cos(2 * x[:, 1]) + 5 * GROUPS + 0.3 * rng.normal(size=40)
    options = {"fixed_effects": INDICATORS, "intercept": False, "landmarks": landmarks}
    tuned = rls.tune(rls.Gaussian(3.0), x, y, **options)
    assert tuned.converged and tuned.error < tuned.start_error
    lams = np.geomspace(1e-2, 30, 40)
    grid = [
        np.min(loo(factorize(rls.Gaussian(width), x, **options), y, lams))
        for width in np.geomspace(0.3, 2.5, 9)
    ]
    assert tuned.error <= 1.001 * min(grid)
    fit = rls.fit(tuned.kernel, x, y, lams=[float(tuned.lam)], **options)
    for got, want in (
        (tuned.model.free, fit.model.free),
        (tuned.error, fit.error),
        (tuned.loo_residuals, fit.loo_residuals),
    ):
        assert_close(got, want, 1e-6)
    assert_close(
        tuned.predict(x, fixed_effects=INDICATORS), fit.predict(x, fixed_effects=INDICATORS), 1e-6
    )
    with pytest.raises(ValueError, match="such as groups, and no fixed_effects="):
        rls.tune(rls.Gaussian(3.0), x, y, grow=True, **options | {"landmarks": 20})


ALONE = np.eye(40)[:, [7]]
REFUSED = {
    "collinear": (
        {"fixed_effects": INDICATORS},
        "5 columns of fixed_effects, the constant of intercept=True among them, are linearly dependent",
    ),
    "twice": (
        {"fixed_effects": INDICATORS[:, [1, 1]], "intercept": False},
        "the 2 columns of fixed_effects are linearly dependent",
    ),
    "no weight": (
        {"fixed_effects": ALONE, "weights": 1 - ALONE[:, 0]},
        "dependent over the rows of positive weight",
    ),
    "more than rows": ({"fixed_effects": np.eye(40)}, "the 41 columns of fixed_effects"),
    "a vector": ({"fixed_effects": GROUPS}, r"fixed_effects\[:, None\] for a single column"),
    "NaN": ({"fixed_effects": ALONE * np.nan}, "fixed_effects holds"),
    "alone": (
        {"fixed_effects": ALONE},
        "without row 7 the columns of fixed_effects are linearly dependent",
    ),
    "alone, GCV": ({"fixed_effects": ALONE, "criterion": rls.gcv}, "without row 7 the columns"),
    "groups": (
        {"fixed_effects": INDICATORS[:, 1:], "groups": GROUPS},
        "without the group of rows 0, 4, 8, 12, 16, … the columns",
    ),
    "alone, landmarks": ({"fixed_effects": ALONE, "landmarks": 5}, "without row 7 the columns"),
    "validation": ({"fixed_effects": ALONE, "validation": DATA}, "leave validation out"),
}


@pytest.mark.float64
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_by_name(name, unchecked):
    options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        rls.fit(rls.Gaussian(0.5), *DATA, **options)


@pytest.mark.float64
def test_a_row_that_cannot_be_left_out_is_said_to_be_so():
    """By the functions too, NaN inside of jit; the evidence leaves nothing out, and is that without
    the row.
    """
    x, y = DATA
    kernel, lams = rls.Gaussian(0.5), array([0.1])
    factor = factorize(kernel, array(x), fixed_effects=array(ALONE))
    with pytest.raises(ValueError, match="without row 7"):
        rls.loo(factor, array(y), lams)
    assert np.isnan(loo(factor, array(y), lams)).all()
    residuals = loo_residuals(factor, array(y), lams[0])
    assert np.flatnonzero(np.isnan(residuals)).tolist() == [7]
    rest = np.arange(40) != 7
    want = log_marginal_likelihood(factorize(kernel, array(x[rest])), array(y[rest]), lams)
    # |BᵀVB| of the constant and the indicator of row 7 is 39: that of the constant on the other
    # rows.
    assert_close(log_marginal_likelihood(factor, array(y), lams), want, 1e-12)


@pytest.mark.float64
@pytest.mark.parametrize("intercept", [True, False])
def test_a_search_begins_with_a_constant_and_what_the_columns_leave(intercept):
    near = rls.Problem.of(GAUSSIAN, X, Y, fixed_effects=B, intercept=intercept).with_constant()
    columns = np.column_stack([np.ones(N), B]) if intercept else B
    left = Y - columns @ np.linalg.lstsq(columns, Y, rcond=None)[0]
    assert near.fixed.rows is None and near.intercept
    np.testing.assert_allclose(near.Y, left, atol=1e-13)


# --- what follows from one operator: levels, posterior, intervals, updates, streams ---

LABELS = np.array(["a", "b", "c"])[MEMBER]


def dense_posterior(Phi, columns, v, lam, Phi_new, columns_new, prior):
    """Generalised least squares with a flat prior on β: covariance of f at new rows."""
    used = v > 0
    P = np.linalg.inv(Phi[used] @ Phi[used].T + lam * np.diag(1 / v[used]))
    H, across = columns[used], Phi[used] @ Phi_new.T
    slack = columns_new - across.T @ P @ H
    return prior - across.T @ P @ across + slack @ np.linalg.solve(H.T @ P @ H, slack.T)


KEPT = {
    "gram": {"route": "gram"},
    "cholesky": {"route": "cholesky"},
    "landmarks": {"landmarks": LANDMARKS},
    "cholesky landmarks": {"landmarks": LANDMARKS, "route": "cholesky"},
}


@pytest.mark.float64
@pytest.mark.parametrize("way", KEPT)
@pytest.mark.parametrize("kind", ["levels", "columns"])
def test_posterior_and_intervals_with_fixed_effects(way, kind):
    """Weights, two of them 0: the covariance by dense matrices, every fit without a row by refits."""
    lam, options = 0.3, KEPT[way]
    given = rls.levels(LABELS) if kind == "levels" else B
    columns = np.eye(3)[MEMBER] if kind == "levels" else np.column_stack([np.ones(N), B])
    new, new_given, new_columns = X[:4] + 0.3, given, columns[:4]
    new_given = LABELS[:4] if kind == "levels" else B[:4]
    fit = rls.fit(
        GAUSSIAN,
        X,
        Y[:, 0],
        lams=[lam],
        weights=ZEROS,
        fixed_effects=given,
        keep_variance=True,
        keep_intervals=True,
        **options,
    )
    points = X[LANDMARKS] if "landmarks" in options else X
    s, U = np.linalg.eigh(gaussian(points, points, 1.2))
    kept = s > 1e-13 * s[-1]
    turn = U[:, kept] / np.sqrt(s[kept])
    Phi, Phi_new = gaussian(X, points, 1.2) @ turn, gaussian(new, points, 1.2) @ turn
    prior = gaussian(new, new, 1.2)
    spanned = Phi_new @ Phi_new.T
    inside = prior if "landmarks" not in options else spanned
    want = dense_posterior(Phi, columns, ZEROS, lam, Phi_new, new_columns, inside)
    found = fit.posterior(new, scale=1.0, fixed_effects=new_given)
    left = prior - spanned if "landmarks" in options else 0
    assert_close(found.covariance, want + left, 1e-9)
    w, beta = refit(Phi, columns, Y[:, :1], lam, ZEROS)
    assert_close(found.mean, (Phi_new @ w + new_columns @ beta)[:, 0], 1e-9)
    ends = []
    for i in np.flatnonzero(ZEROS > 0):
        rest = np.arange(N) != i
        stay = points if way in ("gram", "cholesky") else X[LANDMARKS[i != LANDMARKS]]
        s, U = np.linalg.eigh(gaussian(stay, stay, 1.2))
        kept = s > 1e-13 * s[-1]
        turned = U[:, kept] / np.sqrt(s[kept])
        of = lambda x, stay=stay, turned=turned: gaussian(x, stay, 1.2) @ turned
        w, beta = refit(of(X)[rest], columns[rest], Y[rest, :1], lam, ZEROS[rest])
        e = abs(Y[i, 0] - (of(X)[i] @ w + columns[i] @ beta)[0])
        ends.append((of(new) @ w + new_columns @ beta)[:, 0] + e)
    level, n = 0.8, len(ends)
    rank = int(np.ceil(level * (n + 1)))
    upper = np.sort(np.array(ends), axis=0)[rank - 1]
    assert_close(fit.intervals(new, level, fixed_effects=new_given)[1], upper, 1e-8)


@pytest.mark.float64
def test_levels_are_indicator_columns():
    """An intercept for every group is a column of ones for each, without an intercept."""
    indicators = np.eye(3)[MEMBER]
    for options in ({}, {"landmarks": LANDMARKS}, {"landmarks": LANDMARKS, "route": "cholesky"}):
        options = {"lams": [0.1], "weights": V, **options}
        one = rls.fit(GAUSSIAN, X, Y, fixed_effects=rls.levels(LABELS), **options)
        two = rls.fit(GAUSSIAN, X, Y, fixed_effects=indicators, intercept=False, **options)
        assert_close(one.errors, two.errors, 1e-10)
        assert_close(one.loo_residuals, two.loo_residuals, 1e-10)
        assert_close(one.model.free, two.model.free, 1e-9)
        got = one.predict(X, fixed_effects=LABELS)
        assert_close(got, two.predict(X, fixed_effects=indicators), 1e-10)


@pytest.mark.float64
def test_update_and_stream_with_fixed_effects():
    """Rows that come and go, and rows that are read in blocks, are those of one array."""
    options = {"lams": [0.2], "landmarks": POINTS}
    want = rls.fit(GAUSSIAN, X, Y, fixed_effects=rls.levels(LABELS), **options)
    first = rls.fit(
        GAUSSIAN, X[:9], Y[:9], fixed_effects=rls.levels(LABELS[:9]), keep_moments=True, **options
    )
    grown = first.update(X[9:], Y[9:], fixed_effects=LABELS[9:])
    assert_close(
        grown.predict(X, fixed_effects=LABELS), want.predict(X, fixed_effects=LABELS), 1e-9
    )
    back = grown.forget(X[9:], Y[9:], fixed_effects=LABELS[9:])
    assert_close(back.model.free, first.model.free, 1e-9)
    rows = rls.stream([(X[:5], Y[:5]), (X[5:], Y[5:])], block_size=4)
    read = rls.fit(GAUSSIAN, rows, fixed_effects=rls.levels(LABELS), **options)
    assert_close(read.loo_residuals, want.loo_residuals, 1e-9)


def test_new_rows_must_bring_levels_that_were_fitted(unchecked):
    fit = rls.fit(GAUSSIAN, X, Y, fixed_effects=rls.levels(LABELS), lams=[1.0])
    for given, words in (
        (["z"] * N, "has the level 'z', which no fitted row has"),
        (LABELS[:3], "a level for each of 14 rows, and has 3"),
    ):
        with pytest.raises(ValueError, match=words):
            fit.predict(X, fixed_effects=given)
    assert_close(fit.predict(X) + fit.model.free[MEMBER], fit.predict(X, fixed_effects=LABELS), EPS)
    with pytest.raises(ValueError, match="row 13 is the only one of its level"):
        rls.fit(GAUSSIAN, X, Y, fixed_effects=rls.levels([*LABELS[:13], "z"]), lams=[1.0])
