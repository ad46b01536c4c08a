"""What the jitter of landmarks that nearly depend does to a fit, and that `fit` says so."""

import re
import warnings

import numpy as np
import pytest
from support import ANY_PRECISION, FLOAT64, factorize, solver_of

import jaxrls as rls

N, WARNS = 240, "landmarks are nearly dependent, and rounding, or the jitter"


def data(noise, d=4):
    """Rows of which 160 landmarks nearly depend in float32 under a Gaussian of width 3."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(N, d)).astype(np.float32)
    return X, (np.sin(X.sum(axis=1)) + noise * rng.normal(size=N)).astype(np.float32)


def heard(X, y, width=3.0, m=160, **options):
    """The fit in the precision of X, and whether it warned of a jitter."""
    kernel = rls.Gaussian(np.asarray(width, X.dtype))
    landmarks = np.arange(m) if isinstance(m, int) else m
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = rls.fit(kernel, X, y.astype(X.dtype), landmarks=landmarks, **options)
    return fit, any(WARNS in str(message.message) for message in caught)


@FLOAT64  # both precisions at once
@pytest.mark.parametrize("route", [None, "cholesky"])
@pytest.mark.slow
def test_predictions_move_by_no_more_than_the_effect(route):
    """Against float64, whose jitter is too small to be seen; well above the floor, where rounding
    is smaller than the jitter's effect.
    """
    (X, y), v = data(0.02), np.random.default_rng(1).uniform(0.3, 2, N)
    kernel = rls.Gaussian(np.float32(3.0))
    lam = 10 * float(factorize(kernel, X, landmarks=np.arange(160)).precision_floor())
    options = {"lams": [lam], "solver": solver_of(route)}
    narrow, said = heard(X, y, weights=v.astype(np.float32), **options)
    wide, more = heard(X.astype(float), y, weights=v, **options)
    e = np.asarray(wide.loo_residuals)
    moved = np.asarray(narrow.predict(X), float) - wide.predict(X.astype(float))
    share = np.sqrt(v @ moved**2 / (v @ e**2))
    rounding = 0.1 * float(narrow.floor) / lam
    assert 0.01 < share < float(narrow.jitter_effect) + rounding
    assert float(narrow.jitter_effect) < 5 * share
    assert said and not more and float(wide.jitter_effect) < 1e-4


@ANY_PRECISION
@pytest.mark.slow
def test_a_large_target_hides_no_other_and_rows_that_come_are_told_of_it():
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (60, 1)).astype(np.float32)
    y = np.sin(6 * X[:, 0]) + 0.3 * np.sign(X[:, 0])
    large = (1e4 * rng.standard_normal(60)).astype(np.float32)
    options = {"landmarks": X[:30], "lams": [1e-4]}  # above the floor
    one, said = heard(X, np.c_[y, y], 0.6, X[:30], lams=[1e-4])
    both, _ = heard(X, np.c_[y, large], 0.6, X[:30], lams=[1e-4])
    assert said and float(both.jitter_effect) >= 0.99 * float(one.jitter_effect) > 0.01
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = rls.fit(rls.Gaussian(0.6), X[:40], y[:40], keep=True, **options)
        more = first.update(X[40:], y[40:])
    # Beside residuals, which are smaller than what is left out.
    assert float(more.jitter_effect) >= 0.9 * float(one.jitter_effect)
    assert sum("nearly dependent" in str(w.message) for w in caught) == 2


@pytest.mark.slow
@FLOAT64
def test_rounding_that_asks_for_no_ridge_is_told_too():
    """Pairs of landmarks .005 widths apart whose labels differ: pivots of K_RR are right to a few
    percent in float32, and so is what their rows leave.
    """
    rng, m = np.random.default_rng(1), 20
    X = rng.uniform(-2, 2, size=(40, 2)).astype(np.float32)
    X[1:m:2] = X[:m:2] + np.array([0.003, 0.004], np.float32)
    y = np.sin(X.sum(axis=1)) + 0.02 * rng.normal(size=40)
    y[1:m:2] += 0.3
    assert factorize(rls.Gaussian(np.float32(1)), X, landmarks=np.arange(m)).report.jitter == 0
    (narrow, said), (wide, more) = (
        heard(Z, y.astype(np.float32), 1.0, m, lams=[1e-2]) for Z in (X, X.astype(float))
    )
    e = np.asarray(wide.loo_residuals)
    moved = np.asarray(narrow.loo_residuals, float) - e
    assert 0.005 < np.linalg.norm(moved) / np.linalg.norm(e) < float(narrow.jitter_effect) and said
    assert not more and float(wide.jitter_effect) < 1e-4


def test_landmarks_that_do_not_depend_have_none_and_rounding_moves_little():
    X, y = (part[:40] for part in data(0.02, 2))
    fit, said = heard(X, y, 0.3, 20, lams=[1e-2])
    assert float(fit.jitter_effect) < 1e-3 and not said
    assert rls.fit(rls.Gaussian(np.float32(3.0)), X, y, lams=[0.1]).jitter_effect is None


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [(np.float32, "take fewer landmarks, or float64"), (np.float64, "take fewer landmarks$")],
)
def test_the_remedy(dtype, remedy):
    """A kernel so wide, and λ so small, that landmarks depend in float64 too."""
    X, y = (part[:40].astype(dtype) for part in data(0.02, 2))
    kernel = rls.Gaussian(dtype(3000.0 if dtype == np.float64 else 80.0))
    fit = lambda lam: rls.fit(kernel, X, y, landmarks=np.arange(20), lams=[lam])
    with pytest.warns(UserWarning) as heard:
        fit(float(fit(1.0).floor))
    assert any(re.search(f"the {WARNS}.*{remedy}", str(message.message)) for message in heard)
