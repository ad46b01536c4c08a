"""A fit as a table, against fits and refits to each target alone; and its standard errors."""

import jax
import numpy as np
import oracle
import pandas
import pytest
from support import ANY_PRECISION, DTYPE, EDGE, EPS, FLOAT64, array, assert_close, refused, wide

import jaxrls as rls
from jaxrls.sklearn import RLSRegressor

RNG = np.random.default_rng(0)
N, LAM = 20, 0.3
X = wide(RNG.normal(size=(N, 2)) + 1)
Y = wide(np.stack([X[:, 0] ** 2, 3 * X[:, 1]], axis=1) + 0.3 * RNG.normal(size=(N, 2)))
V = wide(np.where(np.arange(N) % 5 == 3, 0, RNG.uniform(0.5, 2, N)))
LAMS = [0.1, LAM, 1.0]
TOLERANCE = 4 * N * EPS * (1 + np.linalg.norm(X, 2) ** 2 / 0.1)
LINE = rls.Linear()


def left_out(lam):
    """Held-out residuals of refits without each row."""
    return oracle.loo_residuals(X, Y, lam, V, True)


def weighted_r2(e):
    mean = lambda A: V @ A / V.sum()
    return 1 - mean(e**2) / mean((Y - mean(Y)) ** 2)


def of_mean(losses, v=V):
    """The standard error of a weighted mean of rows, in loops."""
    mean = v @ losses / v.sum()
    count = np.count_nonzero(v)
    squares = sum(v[i] ** 2 * (losses[i] - mean) ** 2 for i in range(N))
    return np.sqrt(squares * count / (count - 1)) / v.sum()


@EDGE
@pytest.mark.parametrize("per_target", [False, True])
def test_a_row_for_each_target_as_refits_have_it(per_target):
    data = {"weights": V.astype(DTYPE), "lams": LAMS, "per_target": per_target}
    fit = rls.fit(LINE, X.astype(DTYPE), Y.astype(DTYPE), **data)
    table = pandas.DataFrame(fit.summary())
    errors = np.array([V @ left_out(lam) ** 2 / V.sum() for lam in LAMS])
    best = errors.argmin(axis=0) if per_target else [errors.mean(axis=1).argmin()] * 2
    at = lambda values: [values[k][t] for t, k in enumerate(best)]
    root = np.sqrt(V)[:, None]
    hat = lambda lam: np.trace(root * _fitted(np.eye(N), lam) / np.where(root > 0, root, 1).T)
    want = {
        "target": [0, 1],
        "rows": [N, N],
        "lam": [LAMS[k] for k in best],
        "error": at(errors),
        "loo_standard_error": at([of_mean(left_out(lam) ** 2) for lam in LAMS]),
        "r2": at([weighted_r2(left_out(lam)) for lam in LAMS]),
        "dof": [hat(LAMS[k]) for k in best],
    }
    for name, values in want.items():
        assert_close(table[name], values, TOLERANCE, name)
    words = {"kernel": "Linear", "criterion": "loo", "standardized": False}
    assert all((table[name] == value).all() for name, value in words.items())
    shared = of_mean((left_out(LAMS[best[0]]) ** 2).mean(axis=1))
    assert_close(
        fit.loo_standard_error, want["loo_standard_error"] if per_target else shared, TOLERANCE
    )


def _fitted(labels, lam):
    w, b = oracle.refit(X, labels, lam, V, True)
    return X @ w + b


@FLOAT64
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:at λ = .* rounding may move", "ignore:the search ended")
def test_a_search_over_several_targets_knows_the_error_of_each():
    tuned = rls.tune(rls.Gaussian(1.0), X, Y, weights=V, steps=3)
    each = [rls.fit(tuned.kernel, X, y, weights=V, lams=[float(tuned.lam)]).summary() for y in Y.T]
    found = tuned.summary()
    for name in ("lam", "error", "loo_standard_error", "r2", "dof"):
        assert_close(found[name], np.concatenate([one[name] for one in each]), 1e-6, name)
    by_evidence = rls.tune(rls.Gaussian(1.0), X, Y, steps=2, criterion="evidence").summary()
    assert np.isnan(by_evidence["error"]).all() and np.isfinite(by_evidence["r2"]).all()


@ANY_PRECISION
def test_what_a_fit_does_not_know_is_no_column():
    fit = rls.fit(LINE, X.astype(DTYPE), Y[:, 0].astype(DTYPE), lams=[LAM], keep=True)
    whole, updated = fit.summary(), fit.update(X.astype(DTYPE), Y[:, 0].astype(DTYPE)).summary()
    assert set(whole) - set(updated) == {"rows", "error", "loo_standard_error", "r2"} and whole[
        "rows"
    ].tolist() == [N]
    assert all(len(column) == 1 for column in [*whole.values(), *updated.values()])
    assert_close(whole["error"][0], fit.error, 0)
    several = jax.vmap(lambda y: rls.fit(LINE, array(X), y, lams=[LAM]))(array(Y.T))
    one = jax.tree.map(lambda a: a[0], several)
    assert_close(one.summary()["r2"][0], several.r2[0], 0)
    inside = lambda y: rls.fit(LINE, array(X), y, lams=[LAM]).summary()["lam"]
    refused(
        (several.summary, "this one holds several, out of jax.vmap: take one"),
        (lambda: jax.jit(inside)(array(Y[:, 0])), "summary needs numbers: call it outside of"),
    )


@EDGE
@FLOAT64
@pytest.mark.slow
def test_standard_errors_of_losses_groups_levels_and_none():
    y, levels = Y[:, 0], np.arange(N) % 2
    absolute = rls.extend.LeaveOneOut(rls.extend.absolute_error)
    fit = rls.fit(LINE, X, y, weights=V, lams=[LAM], criterion=absolute)
    e = left_out(LAM)[:, 0]
    assert_close(fit.loo_standard_error, of_mean(abs(e)), TOLERANCE)
    signs = np.where(y > np.median(y), 1.0, -1.0)
    wrong = rls.extend.LeaveOneOut(rls.classes.zero_one_loss)
    classes = rls.fit(LINE, X, signs, lams=[LAM], criterion=wrong)
    missed = ((signs - np.asarray(classes.loo_residuals) > 0) != (signs > 0)).astype(float)
    assert 0 < missed.mean() < 1
    assert_close(classes.loo_standard_error, missed.std(ddof=1) / np.sqrt(N), TOLERANCE)
    groups = np.arange(N) // 3
    by_group = rls.fit(LINE, X, y, weights=V, lams=[LAM], groups=groups)
    squares = oracle.group_residuals(X, Y[:, :1], LAM, groups, V, True)[:, 0] ** 2
    mass = np.array([V[groups == g].sum() for g in range(7)])
    means = np.array([V[groups == g] @ squares[groups == g] for g in range(7)]) / mass
    mean = mass @ means / mass.sum()
    want = np.sqrt((mass**2 * (means - mean) ** 2).sum() * 7 / 6) / mass.sum()
    assert_close(by_group.loo_standard_error, want, TOLERANCE)
    of_levels = rls.fit(LINE, X, y, lams=[LAM], fixed_effects=levels[:, None].astype(float))
    losses = np.asarray(of_levels.loo_residuals) ** 2
    assert_close(of_levels.loo_standard_error, losses.std(ddof=1) / np.sqrt(N), TOLERANCE)
    for criterion in ("gcv", "evidence"):
        none = rls.fit(LINE, X, y, lams=[LAM], criterion=criterion)
        assert none.loo_standard_error is None and "loo_standard_error" not in none.summary()
    scored = RLSRegressor("linear", lams=LAMS, scoring="r2").fit(X, y)
    assert scored.path_.loo_standard_error is None


@FLOAT64
@pytest.mark.slow
def test_over_data_sets_the_error_varies_by_about_as_much():
    """At a λ that was not chosen by the labels."""
    rng = np.random.default_rng(1)
    labels = np.sin(2 * X[:, 0]) + 0.5 * rng.normal(size=(2000, N))

    def both(y):
        fit = rls.fit(LINE, array(X), y, lams=[LAM])
        return fit.error, fit.loo_standard_error

    errors, spreads = jax.jit(jax.vmap(both))(array(labels))
    assert abs(np.mean(spreads**2) ** 0.5 / np.std(errors) - 1) < 0.25
