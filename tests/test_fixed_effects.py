"""Columns without penalty beside the kernel: fixed effects of groups and others, against refits of
the augmented least squares.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.cases import WIDTH, gaussian
from contract.oracle import of_landmarks
from support import (
    EPS,
    array,
    assert_close,
    factorize,
    log_marginal_likelihood,
    loo,
    loo_residuals,
    wide,
)

import jaxrls as rls

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
PLAN = rls.folds(np.arange(N) // 2)
GAUSSIAN, LINEAR = rls.Gaussian(WIDTH), rls.Linear()
LANDMARKS = np.array([9, 2, 12, 5, 0])  # row 2 has weight 0 where there are such
POINTS = wide(RNG.normal(size=(5, 2)))
WAYS: dict = {
    "gram": (GAUSSIAN, {"solver": rls.Spectral("gram")}),
    "cholesky": (GAUSSIAN, {"solver": rls.Cholesky()}),
    "features": (LINEAR, {"solver": rls.Spectral("features")}),
    "covariance": (LINEAR, {"solver": rls.Spectral("covariance")}),
    "landmarks": (GAUSSIAN, {"landmarks": LANDMARKS}),
    "cholesky landmarks": (GAUSSIAN, {"landmarks": LANDMARKS, "solver": rls.Cholesky()}),
}
# What a solution may be off by, relative to the largest number: 4 n eps (1 + s_max/λ_min), as in
# the grid.
TOLERANCE = 4 * N * EPS * (1 + 2 * N * 4 / LAMS.min())


@partial(jax.jit, static_argnames="way")
def answers(X, B, Y, weights, lams, *, way):
    kernel, options = WAYS[way]
    factor = rls.factorize(kernel, X, weights=weights, fixed_effects=B, **options)
    solution = factor.solve(Y)
    found = rls.path(factor, Y, lams)
    return {
        "gcv": rls.gcv(factor, Y, lams),
        "evidence": rls.log_marginal_likelihood(factor, Y, lams),
        "beta": jnp.concatenate([found.intercept[:, None], found.free], axis=1),
        "f": factor.expansion.design(kernel, X) @ found.coef,
        "residuals": solution.residuals(lams),
        "groups": jnp.stack([rls.loo_residuals(factor, Y, lam, PLAN) for lam in lams]),
        "dof": factor.dof(lams)[:, 0],
        "loo": found.loo,
    }


def refit(Phi, columns, Y, lam, v):
    """Coefficients w and β by least squares on [√vΦ √vB; √λI 0]."""
    root, r = np.sqrt(v)[:, None], Phi.shape[1]
    A = np.vstack(
        [root * np.hstack([Phi, columns]), np.sqrt(lam) * np.eye(r, r + columns.shape[1])]
    )
    y = np.vstack([root * Y, np.zeros((r, Y.shape[1]))])
    return np.split(np.linalg.lstsq(A, y, rcond=None)[0], [r])


def features(way, gone=(), new=X):
    """Those of the fit without some rows, whose landmarks leave, and at new rows."""
    kernel, options = WAYS[way]
    if kernel is LINEAR:
        return X, new
    points = (X[LANDMARKS], LANDMARKS) if "landmarks" in options else (X, None)
    return of_landmarks(gaussian, X, new, *points)(gone)


def held_out(way, columns, lam, v, groups):
    e = np.empty_like(Y)
    for group in np.unique(groups):
        rest, Phi = groups != group, features(way, np.flatnonzero(groups == group))[0]
        w, beta = refit(Phi[rest], columns[rest], Y[rest], lam, v[rest])
        e[~rest] = Y[~rest] - Phi[~rest] @ w - columns[~rest] @ beta
    return e


def truth(way, v):
    """All of `answers` by refits, and the restricted likelihood of the rows of positive weight by
    dense matrices.
    """
    Phi, columns = features(way)[0], np.column_stack([np.ones(N), B])
    used, root = v > 0, np.sqrt(v[v > 0])[:, None]
    H, y, count, found = root * columns[used], root * Y[used], used.sum(), []
    for lam in LAMS:
        w, beta = refit(Phi, columns, Y, lam, v)
        residuals, groups = (
            held_out(way, columns, lam, v, each) for each in (np.arange(N), np.arange(N) // 2)
        )
        G = root * (Phi[used] @ Phi[used].T) * root.T + lam * np.eye(count)
        inverse = np.linalg.inv(G)
        S = H.T @ inverse @ H
        P = inverse - inverse @ H @ np.linalg.solve(S, H.T @ inverse)
        left = lam * np.trace(P)
        volume = np.linalg.slogdet(G)[1] + np.linalg.slogdet(S)[1] - np.log(v[used]).sum()
        volume += (count - H.shape[1]) * np.log(2 * np.pi)
        found.append(
            {
                "beta": beta,
                "f": Phi @ w,
                "residuals": residuals,
                "groups": groups,
                "loo": v @ residuals**2 / v.sum(),
                "dof": count - left,
                "gcv": np.sum((lam * P @ y) ** 2, axis=0) / v.sum() / (left / count) ** 2,
                "evidence": -0.5 * (np.sum(y * (P @ y), axis=0) + volume),
            }
        )
    return {name: np.array([one[name] for one in found]) for name in found[0]}


@pytest.mark.parametrize("way", WAYS)
def test_everything_is_that_of_refits(way):
    """Two rows of weight 0, one with all of another group's, and none: one program."""
    for v in (ZEROS, V):
        got = answers(*map(array, (X, B, Y, v, LAMS)), way=way)
        for name, values in truth(way, v).items():
            assert_close(got[name], values, TOLERANCE, f"{name}, {way}")


@pytest.mark.float64
def test_objective_and_its_slopes_are_those_of_refits():
    """In width, λ, X, the columns and the weights, by differences of refits."""
    at, along = np.array([1.2, np.log(LAMS[1]), 0.0, 0.0, 0.0]), np.sin(np.arange(N))

    def moved(at):
        width, log_lam, x, b, v = at
        columns = B + b * np.outer(along, [1, -1, 2])
        return width, np.e**log_lam, X + x * X**2, columns, V + v * along

    def truth(at):
        width, lam, x, b, v = moved(at)
        x = x * WIDTH / width
        Phi, columns, total = (
            of_landmarks(gaussian, x, x, x)([])[0],
            np.column_stack([np.ones(N), b]),
            0,
        )
        for i in range(N):
            rest = np.arange(N) != i
            w, beta = refit(Phi[rest], columns[rest], Y[rest], lam, v[rest])
            total += v[i] * np.mean((Y[i] - Phi[i] @ w - columns[i] @ beta) ** 2)
        return total / v.sum()

    def error(at):
        width, lam, x, b, v = moved(at)
        return rls.objective(rls.Gaussian(width), x, Y, lam, weights=v, fixed_effects=b)

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
    with pytest.raises(ValueError, match=r"fixed_effects must be the columns \(40, 4\)"):
        fit.predict(x, fixed_effects=INDICATORS[:3])


@pytest.mark.float64
def test_tune_finds_width_and_lam_with_the_columns():
    """The model is that of a fit there."""
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 3, (40, 2))
    y = np.sin(2 * x[:, 0]) + np.cos(2 * x[:, 1]) + 5 * GROUPS + 0.3 * rng.normal(size=40)
    options = {"fixed_effects": INDICATORS, "intercept": False}
    tuned = rls.tune(rls.Gaussian(1.0), x, y, **options)
    assert tuned.history.converged and tuned.error < tuned.history.start_error
    fit = rls.fit(tuned.kernel, x, y, lams=[float(tuned.lam)], **options)
    assert_close(tuned.model.free, fit.model.free, 1e-6)
    assert_close(tuned.error, fit.error, 1e-6)
    assert_close(tuned.loo_residuals, fit.loo_residuals, 1e-6)
    got, want = (each.predict(x, fixed_effects=INDICATORS) for each in (tuned, fit))
    assert_close(got, want, 1e-6)
    with pytest.raises(ValueError, match="without groups or pairs, and no fixed_effects="):
        rls.tune(rls.Gaussian(3.0), x, y, grow=True, landmarks=20, **options)


@pytest.mark.any_precision
def test_more_columns_than_rows_are_refused_inside_of_jit():
    """Shapes are known there, and the fit would be NaN."""
    error = jax.jit(lambda B: rls.fit(rls.Gaussian(0.5), *DATA, fixed_effects=B, lams=[1.0]).error)
    with pytest.raises(ValueError, match="at most 39 independent columns"):
        error(np.ones((40, 40)))


ALONE = np.eye(40)[:, [7]]
REFUSED = {
    "collinear": (
        {"fixed_effects": INDICATORS},
        "5 columns of fixed_effects, the constant of intercept=True among them, are linearly",
    ),
    "twice": (
        {"fixed_effects": INDICATORS[:, [1, 1]], "intercept": False},
        "the 2 columns of fixed_effects are linearly dependent",
    ),
    "no weight": (
        {"fixed_effects": ALONE, "weights": 1 - ALONE[:, 0]},
        "dependent over the rows of positive weight",
    ),
    "more than rows": (
        {"fixed_effects": np.eye(40)},
        "40 rows take at most 39 independent columns",
    ),
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
    "rows held out": (
        {"fixed_effects": INDICATORS[:, 1:], "criterion": rls.holdout(*DATA)},
        "criterion holdout cannot be used with fixed_effects=",
    ),
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


# --- what follows from one operator: levels, posterior, intervals, updates, streams ---

LABELS = np.array(["a", "b", "c"])[MEMBER]


def dense_posterior(Phi, columns, v, lam, Phi_new, columns_new, prior):
    """Generalised least squares with a flat prior on β: covariance of f at new rows."""
    used = v > 0
    P = np.linalg.inv(Phi[used] @ Phi[used].T + lam * np.diag(1 / v[used]))
    H, across = columns[used], Phi[used] @ Phi_new.T
    slack = columns_new - across.T @ P @ H
    return prior - across.T @ P @ across + slack @ np.linalg.solve(H.T @ P @ H, slack.T)


@pytest.mark.float64
@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("gram", "levels"),
        ("cholesky", "columns"),
        ("landmarks", "columns"),
        ("cholesky landmarks", "levels"),
    ],
)
def test_posterior_and_intervals_with_fixed_effects(way, kind):
    """Weights, two of them 0: the covariance by dense matrices, every fit without a row by refits."""
    lam, new = 0.3, X[:4] + 0.3
    if kind == "levels":
        given, new_given, columns = rls.levels(LABELS), LABELS[:4], np.eye(3)[MEMBER]
    else:
        given, new_given, columns = B, B[:4], np.column_stack([np.ones(N), B])
    fit = rls.fit(
        GAUSSIAN,
        X,
        Y[:, 0],
        lams=[lam],
        weights=ZEROS,
        fixed_effects=given,
        keep=True,
        **WAYS[way][1],
    )
    Phi, Phi_new = features(way, new=new)
    prior = gaussian(new, new)
    want = dense_posterior(Phi, columns, ZEROS, lam, Phi_new, columns[:4], prior)
    found = fit.posterior(new, scale=1.0, fixed_effects=new_given)
    assert_close(found.covariance, want, 1e-9)
    w, beta = refit(Phi, columns, Y[:, :1], lam, ZEROS)
    assert_close(found.mean, (Phi_new @ w + columns[:4] @ beta)[:, 0], 1e-9)
    found, used = fit.fixed_effects(scale=1.0), ZEROS > 0
    G = Phi[used] @ Phi[used].T + lam * np.diag(1 / ZEROS[used])
    want = np.linalg.inv(columns[used].T @ np.linalg.solve(G, columns[used]))
    assert_close(found.covariance, want, 1e-9, "generalised least squares")
    assert_close(found.mean, beta[:, 0], 1e-9)
    ends = []
    for i in np.flatnonzero(ZEROS > 0):
        rest, (Phi, Phi_new) = np.arange(N) != i, features(way, [i], new)
        w, beta = refit(Phi[rest], columns[rest], Y[rest, :1], lam, ZEROS[rest])
        e = abs(Y[i, 0] - (Phi[i] @ w + columns[i] @ beta)[0])
        ends.append((Phi_new @ w + columns[:4] @ beta)[:, 0] + e)
    level, n = 0.8, len(ends)
    upper = np.sort(np.array(ends), axis=0)[int(np.ceil(level * (n + 1))) - 1]
    assert_close(fit.intervals(new, level, fixed_effects=new_given)[1], upper, 1e-8)


@pytest.mark.float64
def test_update_and_stream_with_fixed_effects():
    """Rows that come and go, and rows that are read in blocks, are those of one array."""
    options = {"lams": [0.2], "landmarks": POINTS}
    want = rls.fit(GAUSSIAN, X, Y, fixed_effects=rls.levels(LABELS), **options)
    first = rls.fit(
        GAUSSIAN, X[:9], Y[:9], fixed_effects=rls.levels(LABELS[:9]), keep=True, **options
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
