"""Columns without penalty beside the kernel, and levels of groups: what `fit`, `tune` and all that
comes of a fit make of them; the contract grid holds every factor with columns to refits.
"""

import functools

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from contract.cases import LAMS, POINTS, WEIGHTS, WIDTH, N, Y, draw, gaussian
from extended import Truth, of_features
from oracle import of_kernel
from support import (
    ANY_PRECISION,
    DTYPE,
    EPS,
    FLOAT64,
    array,
    assert_close,
    factorize,
    log_marginal_likelihood,
    loo,
    loo_residuals,
    refused,
    wide,
)

import jaxrls as rls
from jaxrls.core.data import of_splits
from jaxrls.uncertainty.posterior import process_of

X, ZEROS = draw(4, N, 2), WEIGHTS["zeros"]
MEMBER = np.arange(N) % 4 % 3
LABELS, EYE = np.array(["a", "b", "c"])[MEMBER], np.eye(3)[MEMBER]
GAUSSIAN = rls.Gaussian(WIDTH)


GROUPS = np.arange(40) % 4
DATA = wide(np.linspace(0, 3, 40)[:, None]), wide(np.sin(np.linspace(0, 6, 40)) + 5.0 * GROUPS)
INDICATORS = np.eye(4)[GROUPS]


def test_fit_keeps_the_coefficients_and_predict_takes_the_columns(tmp_path):
    """One intercept a group: as the smooth part tells what is common, they come out 5 apart."""
    x, y = DATA
    fit = rls.fit(rls.Gaussian(0.5), x, y, lams=[1e-5], fixed_effects=INDICATORS, intercept=False)
    assert np.abs(np.diff(fit.model.free) - 5).max() < 0.01 and fit.model.intercept == 0
    assert fit.error < 1e-3  # labels have variance 31
    predictions = fit.predict(x, fixed_effects=INDICATORS)
    assert_close(predictions, y, 0.01)
    score = 1 - np.mean((y - predictions) ** 2) / np.var(y)
    assert_close(fit.score(x, y, fixed_effects=INDICATORS), score, 1e-12)
    assert fit.score(x, np.ones(40), fixed_effects=INDICATORS) == 0  # as r2 of constant labels
    rls.save(tmp_path / "fit.npz", fit)
    loaded = rls.load(tmp_path / "fit.npz")
    assert (loaded.predict(x, fixed_effects=INDICATORS) == predictions).all()
    words = r"fixed_effects must be the columns \(40, 4\)"
    refused(
        (lambda: fit.predict(x), words),
        (lambda: fit.predict(x, fixed_effects=INDICATORS[:3]), words),
    )


def test_columns_that_are_named_as_unnamed_ones_go_by_name():
    """Columns without names are called x0, x1, …, and those with these names were taken for them;
    so were those with numbers for names.
    """
    x, y = (a.astype(DTYPE) for a in DATA)
    columns = draw(11, 40, 2).astype(DTYPE)
    for names in (["x0", "x1"], [0, 1], [2021, 2020]):
        frame = pd.DataFrame(columns, columns=names)
        fit = rls.fit(GAUSSIAN, x, y + columns[:, 1], fixed_effects=frame, lams=[1e-2])
        backwards = fit.predict(x, fixed_effects=frame[names[::-1]])
        assert_close(backwards, fit.predict(x, fixed_effects=columns), 1e3 * EPS)


def test_levels_and_columns_together(tmp_path):
    """They are the indicators of every level of the first grouping, of all but the first level of
    the second, and the columns, by name; with weights, of new rows too.
    """
    x, y = (a.astype(DTYPE) for a in DATA)
    site, year, age = GROUPS, np.arange(40) // 7, draw(11, 40, 2).astype(DTYPE)
    y = y + 2 * (year == 3).astype(DTYPE) - 3 * age[:, 1]
    frame = pd.DataFrame(age, columns=["age", "dose"])
    B = np.column_stack([age, INDICATORS, np.eye(6)[year][:, 1:]]).astype(DTYPE)
    names = np.array(["n", "e", "s", "w"])[site]
    order = [0, 1, 3, 2, *range(4, 11)]  # levels are sorted
    parts = [frame, rls.levels(names), rls.levels(year)]
    weights = np.linspace(0.5, 2, 40).astype(DTYPE)
    options = {"lams": [1e-2], "weights": weights, "keep": True}
    found = rls.fit(rls.Gaussian(0.5), x, y, fixed_effects=parts, **options)
    want = rls.fit(rls.Gaussian(0.5), x, y, fixed_effects=B[:, order], intercept=False, **options)
    tolerance = 1e4 * EPS
    assert_close(found.model.free, want.model.free, tolerance)
    assert_close(found.loo_residuals, want.loo_residuals, tolerance)
    assert_close(found.effects().covariance, want.effects().covariance, tolerance)
    assert found.effects().names == ("age", "dose", "e", "n", "s", "w", 1, 2, 3, 4, 5)
    assert want.effects().names == tuple(f"x{j}" for j in range(11))
    new = [frame[["dose", "age"]], names, rls.levels(year)]
    rls.save(tmp_path / "fit", found)
    for model in (found, rls.load(tmp_path / "fit")):
        again = model.predict(x, fixed_effects=new)
        assert_close(again, want.predict(x, fixed_effects=B[:, order]), tolerance)
    asked = lambda new: lambda: found.predict(x, fixed_effects=new)
    count = "fixed_effects must be a list of the 3 parts of the fit, .* and "
    refused(
        (asked(None), count + "is None"),
        (asked(new[:2]), count + "has 2"),
        (asked([frame, names, year + 1]), "fixed_effects has the level 6, which no"),
        (asked([frame[["age"]], *new[1:]]), "lacks 1 of the 2 columns that were fitted, 'dose'"),
        (
            lambda: rls.fit(GAUSSIAN, x, y, fixed_effects=[rls.levels(site), np.ones((40, 1))]),
            "columns of fixed_effects are linearly dependent",
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("solver", [None, rls.Cholesky(), rls.Spectral("features")], ids=str)
def test_levels_and_columns_beside_more_linear_columns_than_rows(solver):
    """Predictions and coefficients are those of indicators by hand, and deviations those of a fit
    with indicators: with weights, of rows far from 0, dense and sparse.
    """
    far, lam = 10.0, 0.7
    rows, new = draw(3, 20, 30) + far, draw(4, 5, 30) + far
    age, y = draw(5, 20, 1) + 3, draw(6, 20) + np.arange(20) % 4
    levels, new_levels, v = np.arange(20) % 4, np.array([0, 3, 1, 2, 2]), np.linspace(0.5, 2, 20)
    B, B_new = (np.column_stack([np.eye(4)[a], age[: len(a)]]) for a in (levels, new_levels))
    G = np.linalg.inv(rows @ rows.T + lam * np.diag(1 / v))
    beta = np.linalg.solve(B.T @ G @ B, B.T @ G @ y)
    want = new @ (rows.T @ (G @ (y - B @ beta))) + B_new @ beta
    x, x_new, y, B, B_new, age, v = map(array, (rows, new, y, B, B_new, age, v))
    options = {"lams": [lam], "solver": solver, "weights": v}
    parts, new_parts = [rls.levels(levels), age], [new_levels, age[:5]]
    tolerance = 1e5 * EPS  # the entries of K are some 4000 times λ
    kinds = [np.asarray]
    if solver != rls.Spectral("features"):
        kinds.append(scipy.sparse.csr_matrix)
    for kind in kinds:
        fit = rls.fit(rls.Linear(), kind(x), y, fixed_effects=parts, **options)
        assert_close(fit.predict(kind(x_new), fixed_effects=new_parts), want, tolerance)
        assert_close(fit.model.free, beta, tolerance)
    fit, other = (
        rls.fit(rls.Linear(), x, y, fixed_effects=effects, intercept=False, keep=True, **options)
        for effects in (parts, B)
    )
    std = fit.posterior(x_new, fixed_effects=new_parts).std
    assert_close(std, other.posterior(x_new, fixed_effects=B_new).std, tolerance)


@pytest.mark.slow
@FLOAT64
def test_tune_finds_width_and_lam_with_the_columns():
    """The model is that of a fit there."""
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 3, (40, 2))
    y = np.sin(2 * x[:, 0]) + np.cos(2 * x[:, 1]) + 5 * GROUPS + 0.3 * rng.normal(size=40)
    options = {"fixed_effects": INDICATORS, "intercept": False}
    tuned = rls.tune(rls.Gaussian(1.0), x, y, start="kernel", steps=3, **options)
    assert tuned.error < tuned.history.start_error
    fit = rls.fit(tuned.kernel, x, y, lams=[float(tuned.lam)], **options)
    assert_close(tuned.model.free, fit.model.free, 1e-6)
    assert_close(tuned.loo_residuals, fit.loo_residuals, 1e-6)
    few = lambda: rls.tune(rls.Gaussian(3.0), x, y, grow=True, landmarks=20, **options)
    refused((few, "without groups or pairs, and no fixed_effects="))


ALONE = np.eye(40)[:, [7]]
REFUSED = [
    (
        {"fixed_effects": INDICATORS},
        "5 columns of fixed_effects, the constant of intercept=True among them, are linearly",
    ),
    (
        {"fixed_effects": INDICATORS[:, [1, 1]], "intercept": False},
        "the 2 columns of fixed_effects are linearly dependent",
    ),
    (
        {"fixed_effects": ALONE, "weights": 1 - ALONE[:, 0]},
        "dependent over the rows of positive weight",
    ),
    ({"fixed_effects": np.eye(40)}, "40 rows take at most 39 independent columns"),
    ({"fixed_effects": GROUPS}, r"fixed_effects\[:, None\] for a single column"),
    ({"fixed_effects": ALONE * np.nan}, "fixed_effects holds"),
    ({"fixed_effects": ALONE}, "without row 7 the columns of fixed_effects are linearly dependent"),
    ({"fixed_effects": ALONE, "criterion": rls.gcv}, "without row 7 the columns"),
    (
        {"fixed_effects": INDICATORS[:, 1:], "groups": GROUPS},
        "without the group of rows 0, 4, 8, 12, 16, … the columns",
    ),
    ({"fixed_effects": ALONE, "landmarks": np.arange(5)}, "without row 7 the columns"),
    (
        {"fixed_effects": INDICATORS[:, 1:], "criterion": rls.holdout(*DATA)},
        "criterion holdout cannot be used with fixed_effects=",
    ),
]


@FLOAT64
def test_what_cannot_be_is_refused_by_name():
    for options, words in REFUSED:
        refused((lambda options=options: rls.fit(rls.Gaussian(0.5), *DATA, **options), words))
    # Shapes are known inside of jit too, and the fit would be NaN.
    error = jax.jit(lambda B: rls.fit(rls.Gaussian(0.5), *DATA, fixed_effects=B, lams=[1.0]).error)
    refused((lambda: error(np.ones((40, 40))), "at most 39 independent columns"))


@FLOAT64
def test_a_row_that_cannot_be_left_out_is_said_to_be_so():
    """By the functions too, NaN inside of jit; the evidence leaves nothing out, and is that without
    the row.
    """
    x, y = DATA
    kernel, lams = rls.Gaussian(0.5), array([0.1])
    factor = factorize(kernel, array(x), fixed_effects=array(ALONE))
    refused((lambda: rls.loo(factor, array(y), lams), "without row 7"))
    assert np.isnan(loo(factor, array(y), lams)).all()
    residuals = loo_residuals(factor, array(y), lams[0])
    assert np.flatnonzero(np.isnan(residuals)).tolist() == [7]
    rest = np.arange(40) != 7
    want = log_marginal_likelihood(factorize(kernel, array(x[rest])), array(y[rest]), lams)
    # |BᵀVB| of the constant and the indicator of row 7 is 39: that of the constant on the other
    # rows.
    assert_close(log_marginal_likelihood(factor, array(y), lams), want, 1e-12)


# levels, and what comes of a fit
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@FLOAT64
def test_posterior_and_intervals_with_levels():
    """With weights, some of them 0: the posterior, and the ends of intervals of all fits without a
    row, by the oracle; with columns of every factor in contract/test_inference.py.
    """
    lam, new = 0.3, X[:4] + 0.3
    of = {"lams": [lam], "weights": ZEROS, "keep": True}
    fit = rls.fit(GAUSSIAN, X, Y[:, 0], fixed_effects=rls.levels(LABELS), **of)
    features, lams, groups = of_kernel(gaussian, X, new), np.array([lam]), np.arange(N)
    truth = Truth(of_features(features), Y[:, :1], Y, ZEROS, lams, groups, EYE, fixed_new=EYE[:4])
    found = fit.posterior(new, scale=1.0, fixed_effects=LABELS[:4])
    K_new = truth.whole[1][None]
    want = truth.fit.covariance(K_new, gaussian(new, new), EYE[:4])[0, 0]
    assert_close(found.covariance, want, 1e-9)
    assert_close(found.mean, truth.fit.predict(K_new, truth.Y, EYE[:4])[0, 0, :, 0], 1e-9)
    effects, T = fit.effects(scale=1.0), truth.fit.T[0, 0]
    assert_close(effects.covariance, T.T @ T, 1e-9, "generalised least squares")
    assert_close(effects.mean, truth.fit.solve(truth.Y)[1][0, 0, :, 0], 1e-9)
    ends = fit.intervals(new, 0.8, fixed_effects=LABELS[:4])
    for end, value in zip(ends, truth.intervals(0.8, groups), strict=True):
        assert_close(end, value[0, :, 0], 1e-8)


@pytest.mark.slow
@FLOAT64
def test_update_and_stream_with_fixed_effects():
    """Rows that come and go, and rows that are read in blocks, are those of one array."""
    options = {"lams": [0.2], "landmarks": POINTS}
    K = np.linalg.solve(np.linalg.cholesky(gaussian(POINTS, POINTS)), gaussian(POINTS, X))
    G = K.T @ K + 0.2 * np.eye(N)
    inverse = np.linalg.inv(np.block([[G, EYE], [EYE.T, np.zeros((3, 3))]]))
    residuals = 0.2 * inverse[:N, :N] @ Y
    left_out = residuals / (0.2 * np.diagonal(inverse)[:N, None])
    first = rls.fit(
        GAUSSIAN, X[:9], Y[:9], fixed_effects=rls.levels(LABELS[:9]), keep=True, **options
    )
    grown = first.update(X[9:], Y[9:], fixed_effects=LABELS[9:])
    assert_close(grown.predict(X, fixed_effects=LABELS), Y - residuals, 1e-9)
    back = grown.forget(X[9:], Y[9:], fixed_effects=LABELS[9:])
    assert_close(back.model.free, first.model.free, 1e-9)
    rows = rls.rows.stream([(X[:5], Y[:5]), (X[5:], Y[5:])], block_size=4)
    read = rls.fit(GAUSSIAN, rows, fixed_effects=rls.levels(LABELS), **options)
    assert_close(read.loo_residuals, left_out, 1e-9)


def test_new_rows_must_bring_levels_that_were_fitted():
    fit = rls.fit(GAUSSIAN, X, Y, fixed_effects=rls.levels(LABELS), lams=[1.0])
    alone = rls.levels([*LABELS[:13], "z"])
    refused(
        (lambda: fit.predict(X, fixed_effects=["z"] * N), "has the level 'z', which no fitted row"),
        (
            lambda: fit.predict(X, fixed_effects=LABELS[:3]),
            "a level for each of 14 rows, and has 3",
        ),
        (
            lambda: rls.fit(GAUSSIAN, X, Y, fixed_effects=alone, lams=[1.0]),
            "row 13 is the only one of its level",
        ),
    )
    assert_close(fit.predict(X) + fit.model.free[MEMBER], fit.predict(X, fixed_effects=LABELS), EPS)
    # Inside of jit, where the weights of levels have no values: Y less λc of λ = 1, by one solve.
    zeros = np.zeros((3, 3))
    system = np.block([[gaussian(X, X) + np.eye(N), EYE], [EYE.T, zeros]])
    c = np.linalg.solve(system, np.vstack([Y, zeros]))[:N]
    inside = jax.jit(lambda model: model.predict(X, fixed_effects=LABELS))(fit.model)
    assert_close(inside, Y - c, 1e3 * EPS)


def test_what_is_about_labels_needs_their_levels():
    """Without them intervals and updates were off by the levels."""
    fit = rls.fit(GAUSSIAN, X, Y, fixed_effects=rls.levels(LABELS), lams=[1.0], keep=True)
    calls = {
        "return_std": lambda: fit.predict(X, return_std=True),
        "posterior": lambda: fit.posterior(X),
        "intervals": lambda: fit.intervals(X),
        "update": lambda: fit.update(X, Y),
        "forget": lambda: fit.forget(X[:2], Y[:2]),
        "score": lambda: fit.score(X, Y),
    }
    words = "{} is about labels, which have fixed effects: give fixed_effects="
    refused(
        *((call, words.format(name)) for name, call in calls.items()),
        (lambda: rls.predict_to_file(fit, X, "never.npy"), "model must not need fixed_effects="),
        (lambda: rls.levels(np.array(["2020-01-01"], "M8[ns]")), "and holds dates: give labels"),
    )


@pytest.mark.slow
def test_groups_that_are_levels_leave_residuals_without_their_constant():
    grouped = {"fixed_effects": rls.levels(LABELS), "groups": LABELS, "lams": [1.0], "keep": True}
    alone = rls.fit(GAUSSIAN, X, Y, **grouped)
    refused((lambda: alone.intervals(X, fixed_effects=LABELS), "held out whole levels"))
    crossed = rls.fit(GAUSSIAN, X, Y, **grouped | {"groups": np.arange(N) // 5})
    assert np.isfinite(crossed.intervals(X, 0.5, fixed_effects=LABELS)[0]).all()


def test_levels_that_are_held_out_as_a_whole_count_for_what_is_explained_within():
    """R² of labels less the means of their levels, and τ² with a dimension less for each level."""
    v, B = wide(ZEROS), np.eye(3)[MEMBER]
    labels = wide(Y) + 100 * MEMBER[:, None]
    root = np.sqrt(v)[:, None]
    H = root * B
    inverse = np.linalg.inv(root * gaussian(X, X) * root.T + np.eye(N))
    P = inverse - inverse @ H @ np.linalg.solve(H.T @ inverse @ H, H.T @ inverse)
    dual = P @ (root * labels)
    squares = products = spread = 0
    for level in range(3):
        S = (level == MEMBER) & (v > 0)
        e = np.linalg.pinv(P[np.ix_(S, S)], rcond=1e-10, hermitian=True) @ dual[S]
        squares = squares + np.sum(e**2, axis=0)
        products = products + np.sum(e * dual[S], axis=0)
        spread = spread + v[S] @ (labels[S] - np.average(labels[S], axis=0, weights=v[S])) ** 2
    options = {"weights": v, "fixed_effects": rls.levels(LABELS), "groups": LABELS}
    fit = rls.fit(GAUSSIAN, wide(X), labels, lams=[1.0], keep=True, **options)
    assert_close(fit.summary()["r2"], 1 - squares / spread, 1e-9)
    assert_close(process_of(fit).loo, np.sqrt(products / (np.sum(v > 0) - 3)), 1e-9)


def test_the_training_rows_of_every_split_determine_the_intercept():
    past = [(np.arange(i), np.arange(i, i + 2)) for i in (3, 5)]
    read = functools.partial(rls.extend.read_problem, GAUSSIAN, X, Y)
    read(criterion=rls.kfold(of_splits(past, N)))
    weights = np.where(np.arange(N) < 3, 0.0, 1.0)
    words = "holds all of the weight: without it no row is left to fit an intercept to"
    refused((lambda: read(criterion=rls.kfold(of_splits(past, N)), weights=weights), words))


def test_the_volume_and_rank_of_fixed_effects_are_those_of_their_columns():
    """log |BᵀVB|, which the evidence has, and their number, which degrees of freedom have."""
    ones = np.ones((N, 1))
    given = {"levels": rls.levels(LABELS), "columns": X.tolist(), "an intercept": None}
    for name, B in (("levels", EYE), ("columns", np.hstack([ones, X])), ("an intercept", ones)):
        options = {"weights": wide(ZEROS), "fixed_effects": given[name]}
        fixed = rls.extend.read_problem(GAUSSIAN, wide(X), wide(Y), **options).prepare().fixed
        want = np.linalg.slogdet(B.T @ (ZEROS[:, None] * B))[1]
        assert_close(fixed.log_volume, want, 1e3 * EPS, name)
        assert fixed.rank == B.shape[1]


@pytest.mark.slow
def test_of_a_level_without_weight_nothing_is_known():
    """As of one that no row has."""
    of = {"weights": np.where(MEMBER == 1, 0.0, 1.0), "lams": [0.3], "keep": True}
    fit = rls.fit(GAUSSIAN, X, Y[:, 0], fixed_effects=rls.levels(LABELS), **of)
    assert np.isinf(fit.effects().std).tolist() == [False, True, False]
    words = "has the level 'b', which no fitted row that counts has"
    refused((lambda: fit.predict(X[:1], fixed_effects=["b"]), words))


@pytest.mark.slow
def test_no_columns_are_no_fixed_effects():
    none = np.zeros((N, 0))
    fit = rls.fit(GAUSSIAN, X, Y, fixed_effects=none, lams=[0.3])
    alone = rls.fit(GAUSSIAN, X, Y, lams=[0.3])
    assert_close(fit.predict(X, fixed_effects=none), alone.predict(X), 10 * EPS)
    assert alone.effects().names == ("intercept",)


@pytest.mark.slow
def test_large_groups_with_levels_of_their_own_are_left_out_as_by_refits():
    """For as many λ as here by fits to the other rows, for one by R_SS. One level lies in both
    groups, and two in one each: known up to a constant there.
    """
    half = np.arange(N) % 2
    member, want = half + (np.arange(N) % 5 > 1), np.empty((len(LAMS), N))
    K, B = gaussian(X, X), np.eye(3)[member]
    for own in (half == 0, half == 1):
        C = ~own & (ZEROS > 0)
        y = np.append(Y[C, 0], np.zeros(3))
        for i, lam in enumerate(LAMS):
            G = K[C][:, C] + np.diag(lam / ZEROS[C])
            system = np.block([[G, B[C]], [B[C].T, np.zeros((3, 3))]])
            fit = np.linalg.lstsq(system, y, rcond=None)[0]
            want[i, own] = Y[own, 0] - np.hstack([K[own][:, C], B[own]]) @ fit
    options = {"weights": array(ZEROS), "fixed_effects": rls.levels(member)}
    solution = factorize(GAUSSIAN, array(X), **options).solve(array(Y[:, 0]))
    left_out = jax.jit(solution.held_out_residuals)
    centred = lambda e: e - np.where(member == 1, 0, 1) * (e @ B / B.sum(0) @ B.T)
    for some in (slice(0, 4), slice(1, 2)):
        got = np.asarray(left_out(array(LAMS[some]), rls.folds(half)))[:, :, 0]
        assert_close(centred(got), centred(want[some]), 1e5 * EPS)


# columns far from 0
# --------------------------------------------------------------------------------------------------

Z = draw(12, N, 1)
FAR = {  # and how many digits their coefficients may lack
    "year": (np.round(2007 + 10 * Z).astype(DTYPE), 1),
    "latitude": ((52 + 0.2 * Z).astype(DTYPE), 1),
    "pressure": ((1013 + 3 * Z).astype(DTYPE), 1),
    "seconds, in float64 beside float32": (1.7e9 + 170 * Z, 1),
    "year and its square": (np.round(2007 + 10 * Z).astype(DTYPE) ** [1, 2], 1e4),
}
V = ZEROS.astype(DTYPE)


def by_refits(C, constant, lam=0.3):
    """Held-out residuals, predictions at the rows, coefficients and their covariance for scale 1,
    from refits with a `constant` that spans 1 beside the columns less their means.
    """
    mean = C[V > 0].mean(axis=0)
    K, B, v = gaussian(wide(X), wide(X)), np.hstack([constant, C - mean]), wide(V)
    q, given = B.shape[1], np.eye(B.shape[1])
    given[: constant.shape[1], constant.shape[1] :] = -mean

    def without(rows):
        stay = (v > 0) & ~np.isin(np.arange(N), rows)
        G = K[np.ix_(stay, stay)] + lam * np.diag(1 / v[stay])
        system = np.block([[G, B[stay]], [B[stay].T, np.zeros((q, q))]])
        c, beta = np.split(np.linalg.solve(system, np.append(wide(Y[stay, 0]), np.zeros(q))), [-q])
        covariance = np.linalg.inv(B[stay].T @ np.linalg.solve(G, B[stay]))
        return K[:, stay] @ c + B @ beta, given @ beta, given @ covariance @ given.T

    fitted, beta, covariance = without([])
    held_out = [wide(Y)[i, 0] - without([i])[0][i] for i in range(N)]
    return np.array(held_out), fitted, beta, covariance


@pytest.mark.parametrize(
    ("way", "names"),
    [
        pytest.param("levels", list(FAR)[:-1], id="levels"),
        pytest.param("columns", list(FAR)[-1:], id="columns", marks=pytest.mark.slow),
        pytest.param("jit", ["year"], id="jit", marks=pytest.mark.slow),
    ],
)
def test_columns_far_from_zero_keep_their_digits(way, names, tmp_path):
    """In float32 a year was refused as dependent on the constant, and in float64 ten minutes of
    Unix time: beside an intercept or levels, inside of `jax.jit`, and loaded, as by refits.
    """
    x, y = X.astype(DTYPE), Y[:, 0].astype(DTYPE)
    run = functools.partial(rls.fit, GAUSSIAN, x, y, lams=[0.3], weights=V, keep=True)
    make = {
        "levels": lambda C: run(fixed_effects=[rls.levels(MEMBER), C]),
        "columns": lambda C: run(fixed_effects=C),
        "jit": jax.jit(lambda C: run(fixed_effects=C)),
    }[way]
    constant = EYE if way == "levels" else np.ones((N, 1))
    for name in names:
        C, lacks = FAR[name]
        new = [MEMBER, C] if way == "levels" else C
        held_out, fitted, beta, covariance = by_refits(np.asarray(C, np.float64), constant)
        fit, tolerance = make(C), 1e3 * EPS
        rls.save(tmp_path / "fit", fit)
        assert_close(fit.loo_residuals, held_out, tolerance, name)
        for model in (fit, rls.load(tmp_path / "fit")):
            found = model.predict(x, fixed_effects=new)
            assert_close(found, fitted, tolerance, name)
            assert found.dtype == DTYPE
        effects = fit.effects(scale=1.0)
        assert_close(effects.mean, beta, tolerance * lacks, name)
        slopes = slice(constant.shape[1], None)
        assert_close(fit.model.free[-C.shape[1] :], beta[slopes], tolerance * lacks, name)
        ratio = effects.std / np.sqrt(np.diag(covariance))
        assert_close(ratio, np.ones(len(ratio)), tolerance * lacks, name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name != "evidence" else [])
        for name in ("evidence", "sparse", "stream", "changed")
    ],
)
def test_columns_far_from_zero_are_those_about_another_zero(name):
    """Of sparse rows and streams, on landmarks before and after rows came and went; the evidence
    too.
    """
    C = np.round(2007 + 10 * Z).astype(DTYPE)
    x, y = X.astype(DTYPE), Y[:, 0].astype(DTYPE)
    rows = lambda: rls.rows.stream([(x[:5], y[:5]), (x[5:], y[5:])], block_size=4)
    on_landmarks = {"lams": [0.2], "landmarks": POINTS.astype(DTYPE), "keep": True}
    fit = functools.partial(rls.fit, GAUSSIAN)

    def changed(C):
        first = fit(x[:9], y[:9], fixed_effects=C[:9], **on_landmarks)
        more = first.update(x[9:], y[9:], fixed_effects=C[9:])
        return first, more.forget(x[:5], y[:5], fixed_effects=C[:5])

    calls = {
        "evidence": lambda C: (fit(x, y, fixed_effects=C, lams=[0.2], criterion="evidence"),),
        "sparse": lambda C: (
            rls.fit(rls.Linear(), scipy.sparse.csr_array(x), y, fixed_effects=C, lams=[0.2]),
        ),
        "stream": lambda C: (fit(rows(), fixed_effects=C, **on_landmarks),),
        "changed": changed,
    }
    tolerance = 1e3 * EPS * (20 if name in ("stream", "changed") else 1)
    for far, near in zip(calls[name](C), calls[name](C - 2000), strict=True):
        if far.error is not None:
            assert_close(far.error, near.error, tolerance, name)
        assert_close(far.model.free, near.model.free, tolerance, name)
        want = near.model.intercept - 2000 * near.model.free[0]
        assert_close(far.model.intercept, want, tolerance, name)
        predicted = (fit.predict(x, fixed_effects=B) for fit, B in ((far, C), (near, C - 2000)))
        assert_close(*predicted, tolerance, name)


@pytest.mark.slow
def test_columns_far_from_zero_beside_indicators_that_sum_to_1():
    """With intercept=False."""
    C = np.round(2007 + 10 * Z).astype(DTYPE)
    x, y = X.astype(DTYPE), Y[:, 0].astype(DTYPE)
    options = {"fixed_effects": np.hstack([EYE, C]), "intercept": False}
    fit = rls.fit(GAUSSIAN, x, y, weights=V, lams=[0.3], **options)
    assert_close(fit.loo_residuals, by_refits(C.astype(float), EYE)[0], 1e3 * EPS)


def test_columns_that_differ_by_rounding_alone_are_dependent():
    """A constant column and its neighbours among floating-point numbers, and a multiple of another
    column.
    """
    ones = np.full((N, 1), 0.1, DTYPE)
    noise = np.nextafter(ones, 1)
    noise[::2] = 0.1
    year = np.round(2007 + 10 * Z).astype(DTYPE)
    words = "of fixed_effects, the constant of intercept=True among them, are linearly dependent"
    refused(
        *(
            (lambda C=C: rls.fit(GAUSSIAN, X, Y, fixed_effects=C, lams=[1.0]), words)
            for C in (ones, noise, 0 * ones, np.hstack([year, year * DTYPE(0.3)]))
        )
    )


@ANY_PRECISION
@pytest.mark.slow
def test_a_group_of_nearly_all_weight_leaves_the_constant_to_the_other():
    """In float32, against a refit in float64: rows whose squares in H sum to 1 by rounding were
    taken for all rows that determine the constant.
    """
    rng = np.random.default_rng(0)
    n, lam = 1000, 300.0
    groups = np.repeat([0, 1], n // 2)
    weights = np.where(groups == 0, 1000.0, 0.1)
    X = rng.normal(size=(n, 2))
    y = np.sin(X[:, 0]) + 3 + 0.1 * rng.normal(size=n)
    K = np.exp(-((X[:, None] - X) ** 2).sum(axis=-1) / 2)
    narrow = (array.astype(np.float32) for array in (X, y))
    options = {"weights": weights.astype(np.float32), "groups": groups, "lams": [lam]}
    fit = rls.fit(rls.Gaussian(1.0), *narrow, **options)
    for group in (0, 1):
        rest = groups != group
        ridge = K[np.ix_(rest, rest)] + np.diag(lam / weights[rest])
        one = np.ones(rest.sum())
        of_one, of_y = np.linalg.solve(ridge, np.stack([one, y[rest]], axis=1)).T
        constant = (one @ of_y) / (one @ of_one)
        want = y - constant - K[:, rest] @ (of_y - constant * of_one)
        assert_close(fit.loo_residuals[~rest], want[~rest], 5e-3)
