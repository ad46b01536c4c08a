"""No silent wrong number: what is masked, missing or complex is refused by name, and so is what has
no answer.
"""

import functools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import support
from jax.experimental.sparse import BCOO
from oracle import group_residuals
from support import ANY_PRECISION, DTYPE, EPS, X64, array, assert_close, of_gram

import jaxrls as rls
from jaxrls import extend
from jaxrls.sklearn import RLSClassifier, RLSRegressor

N = 8
KERNEL = rls.Gaussian(1.0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(DTYPE)
Y = RNG.normal(size=N).astype(DTYPE)
LAMS = np.array([0.1, 1.0], DTYPE)
PLAIN = np.array([0, 1, 0, 1, 2, 2, 1, 0])


def masked(values, where=0):
    """A masked array with −9999 under the mask."""
    values = np.array(values)
    values.flat[where] = -99
    return np.ma.masked_array(values, np.arange(values.size).reshape(values.shape) == where)


@functools.cache
def factor(**options):
    return rls.factorize(KERNEL, jnp.asarray(X), **options)


def refused(call, *messages):
    support.refused(*((call, re.escape(message)) for message in messages))


# what is masked
# --------------------------------------------------------------------------------------------------

MASKED = {
    "X": lambda: rls.fit(KERNEL, masked(X), Y, lams=LAMS),
    "groups": lambda: rls.fit(KERNEL, X, Y, groups=masked(PLAIN), lams=LAMS),
    "landmarks": lambda: rls.fit(KERNEL, X, Y, landmarks=masked([0, 1, 2]), lams=LAMS),
    "Gaussian.width": lambda: rls.fit(rls.Gaussian(masked([1.0, 2.0])), X, Y, lams=LAMS),
    "y, RLSRegressor": lambda: RLSRegressor().fit(X, masked(Y)),
    "sample_weight": lambda: RLSRegressor().fit(X, Y, sample_weight=masked(np.ones(N))),
    "X, predict": lambda: known().predict(masked(X)),
    "X, of a model": lambda: known().model.predict(masked(X)),
    "X, score": lambda: known().score(masked(X), Y),
    "Y, score": lambda: known().score(X, masked(Y)),
    "weights, score": lambda: known().score(X, Y, masked(np.ones(N))),
    "X, update": lambda: known().update(masked(X), Y),
    "block 0: X": lambda: rls.rows.stream([(masked(X), Y)]),
    "block 1: Y": lambda: rls.rows.stream([(X, Y), (X, masked(Y))]),
    "block 0: weights": lambda: rls.rows.stream([(X, Y, masked(np.ones(N)))]),
    "rows": lambda: rls.predict_to_file(known(), masked(X), "none.npy"),
    "X, distributed": lambda: rls.rows.shard(masked(X)),
    "X, RLSRegressor": lambda: RLSRegressor(lams=1.0).fit(X, Y).predict(masked(X)),
    "y, RLSRegressor's score": lambda: RLSRegressor(lams=1.0).fit(X, Y).score(X, masked(Y)),
    "y, RLSClassifier's score": lambda: classifier().score(X, masked(PLAIN)),
    "sample_weight, its score": lambda: classifier().score(X, PLAIN, masked(np.ones(N))),
}


@functools.cache
def known():
    return rls.fit(rls.Linear(), X, Y, lams=LAMS[:1])


@functools.cache
def classifier():
    return RLSClassifier(lams=1.0).fit(X, PLAIN)


def test_masked_values_are_refused_by_name():
    for name, call in MASKED.items():
        refused(call, f"{name.split(',')[0]} is a masked array with 1 masked value")


# what is missing
# --------------------------------------------------------------------------------------------------

NAN = float("nan")
MISSING = [
    np.array([1.0, NAN, 2.0, NAN, 1.0], object),
    ["a", None],
    np.array(["2020-01-01", "NaT", "NaT"], "datetime64[D]"),
    pd.Series([1, None, 2], dtype="Int64"),
    pd.Series(["a", None], dtype="category"),
]


@ANY_PRECISION
def test_missing_labels_are_refused():
    """NaN equals nothing, itself included: labels alike would be split into groups of their own."""
    for labels in MISSING:
        for call, what in ((rls.folds, "groups"), (rls.classes.encode, "labels")):
            refused(partial(call, labels), f"{what} must have none missing, and holds ")


@ANY_PRECISION
def test_other_labels_are_labels():
    words = (["None", "b", "None"], ["nano", "b", "nano"])
    for labels in (*words, [True, False, True], np.array([2, 1, 2], object)):
        assert rls.folds(labels).left_out.shape == (2, 2)
        assert len(rls.classes.encode(labels)[1]) == 2


# what is not real
# --------------------------------------------------------------------------------------------------


def unreal(X, Z):
    return (X @ Z.T).astype(complex) if X64 else (X @ Z.T).astype(np.complex64)


REAL = " must be a real number, or an array of them, and has dtype "
OF_ROWS = "X must be real, in float32 or float64, and has dtype "
OUTPUT = ".fn must return real numbers, and returned complex"


def fit(kernel, rows=X):
    return lambda: rls.fit(kernel, rows, Y, lams=LAMS)


def test_complex_numbers_are_refused_with_their_dtype():
    features = rls.FeatureMap(lambda X: unreal(X, jnp.eye(2, dtype=X.dtype)))
    refused(fit(rls.Gaussian(1 + 1j)), f"Gaussian.width{REAL}complex128")
    refused(fit(rls.FunctionKernel(unreal)), f"FunctionKernel{OUTPUT}")
    refused(fit(features), f"FeatureMap{OUTPUT}")


@pytest.mark.slow
@pytest.mark.float64
def test_sparse_rows_are_real_and_in_the_precisions_of_dense_ones():
    refused(fit(rls.Linear(), scipy.sparse.csr_array(X * (1 + 1j))), f"{OF_ROWS}complex")
    half = BCOO.fromdense(jnp.asarray(X, jnp.float16))
    sparse, dense = (rls.fit(rls.Linear(), rows, Y, lams=[0.1]) for rows in (half, half.todense()))
    assert sparse.model.coef.dtype == dense.model.coef.dtype == jnp.result_type(float)


# what has no answer
# --------------------------------------------------------------------------------------------------

ALONE = np.where(PLAIN == 1, 2.0, 0.0)  # rows 1, 3 and 6 hold all of the weight
ROUTES = {
    "gram": (KERNEL, {"solver": rls.Spectral("gram")}),
    "landmarks": (KERNEL, {"landmarks": np.array([1, 4])}),
    "cholesky": (KERNEL, {"solver": rls.Cholesky()}),
    "cholesky features": (rls.Linear(), {"solver": rls.Cholesky()}),
}


@partial(jax.jit, static_argnames="name")
def left_out(name, v, rows, plan):
    """k-fold, LOO, and held-out residuals of both, by one of the routes."""
    kernel, options = ROUTES[name]
    solution = rls.factorize(kernel, rows, weights=v, **options).solve(array(Y))
    lams = array(LAMS)
    held = solution.held_out_residuals(lams, plan), solution.held_out_residuals(lams)
    return (
        rls.kfold(plan).values(solution, lams, None),
        rls.extend.LeaveOneOut().values(solution, lams, None),
        *held,
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name != "gram" else []) for name in ROUTES],
)
def test_leaving_all_of_the_weight_out_is_undefined(name):
    """NaN inside `jax.jit`, and nothing else: neither for other rows, nor where some weight is
    left.
    """
    plan, v, one = rls.folds(PLAIN), array(ALONE), array(np.eye(N)[3])
    kfold, loo, groups, rows = left_out(name, v, array(X), plan)
    assert np.isnan(kfold).all() and np.isfinite(loo).all() and np.isfinite(rows).all()
    assert (np.isnan(groups).any(axis=(0, 2)) == (PLAIN == 1)).all()
    kfold, loo, groups, rows = left_out(name, one, array(X), plan)
    assert np.isnan(kfold).all() and np.isnan(loo).all()
    assert (np.isnan(rows).any(axis=(0, 2)) == (np.arange(N) == 3)).all()
    assert all(np.isfinite(part).all() for part in left_out(name, v + 1, array(X), plan))


def weighted(weights, rows=X):
    return support.factorize(KERNEL, rows, weights=weights)


ALL_OF = "holds all of the weight"
OF_PLAIN = f"the group of rows 1, 3, 6 {ALL_OF}: without it no row is left to fit an"


def test_a_fit_without_all_of_the_weight_raises_by_the_groups_name():
    refused(lambda: rls.fit(KERNEL, X, Y, weights=ALONE, groups=PLAIN), OF_PLAIN)


@pytest.mark.slow
def test_leaving_all_of_the_weight_out_raises_by_the_groups_name():
    refused(lambda: rls.kfold(PLAIN)(weighted(ALONE), Y, LAMS), OF_PLAIN)
    refused(lambda: rls.diagnostics.loo_residuals(weighted(ALONE), Y, 0.1, PLAIN), OF_PLAIN)
    pair = np.isin(np.arange(N), [2, 3])
    refused(
        lambda: rls.kfold(~pair)(weighted(1.0 * pair), Y, LAMS), f"the group of rows 2, 3 {ALL_OF}"
    )
    refused(lambda: rls.loo(weighted(np.eye(N)[3]), Y, LAMS), f"row 3 {ALL_OF}")
    refused(lambda: rls.loo(weighted(None, X[:1]), Y[:1], LAMS), f"row 0 {ALL_OF}")


@pytest.mark.slow
def test_without_an_intercept_nothing_left_predicts_zero():
    got = rls.diagnostics.loo_residuals(
        rls.factorize(rls.Linear(), X, weights=ALONE, intercept=False), Y, 0.5, PLAIN
    )
    want = group_residuals(X.astype(float), Y[:, None].astype(float), 0.5, PLAIN, ALONE)
    assert_close(got, want[:, 0], 1000 * EPS)
    assert_close(got[PLAIN == 1], Y[PLAIN == 1], 1000 * EPS)


def test_a_grid_of_the_wrong_shape_is_refused():
    wrong, three, shape = [[0.1, 1.0]], np.stack([Y] * 3, 1), "lams must have shape (L,), "
    has = "and has shape (1, 2)"
    for function in (rls.loo, rls.path):
        refused(partial(function, factor(), three, wrong), f"{shape}or (L, 3) with those of each")
    refused(lambda: rls.diagnostics.effective_dof(factor(), wrong), f"{shape}{has}")
    refused(lambda: rls.extend.best_lam(KERNEL, X, Y, wrong), f"{shape}{has}")
    refused(lambda: rls.fit(KERNEL, X, Y, lams=wrong), f"{shape}{has}")
    refused(lambda: rls.objective(KERNEL, X, Y, wrong), f"lam must be one number, {has}")
    solution, each = (
        factor().solve(three),
        f"{shape}or (L, 3) with a λ for each target, and has shape ",
    )
    refused(lambda: solution.held_out_residuals(wrong), f"{each}(1, 2)")
    refused(lambda: solution.coefficients(0.1), f"{each}()")


BROKEN = np.where((np.arange(N)[:, None] == 3) & (np.arange(2) == 0), np.nan, X)
FIRST = "holds 1 values that are NaN or infinite, the first at index "


def test_values_that_are_not_finite_are_named_where_factors_are_made():
    refused(lambda: rls.factorize(KERNEL, BROKEN), f"{FIRST}(3, 0)")
    refused(lambda: rls.extend.median_distance(BROKEN), f"{FIRST}(3, 0)")
    K = np.diag([1.0, np.inf, 1.0])
    refused(lambda: rls.factorize(rls.Precomputed(), K), f"{FIRST}(1, 1)")
    refused(lambda: of_gram(np.eye(3)).solve(np.array([0.0, 1.0, np.nan])), f"Y {FIRST}(2,)")


def test_no_numbers_are_no_landmarks():
    none = np.zeros(0, int)
    refused(
        lambda: rls.factorize(KERNEL, X, landmarks=none),
        "landmarks must be row numbers (m,) or points (m, 2), and have shape (0,)",
    )


def test_landmarks_made_by_hand_are_rows():
    rows = "row numbers must be rows of X, 0 to 7, and include -1: negative ones do not count from"
    for indices, message in (
        ([-1, 0], rows),
        ([0, 0], "landmarks name a row of X more than once: name each row once"),
        ([0.0, 1.0], "row numbers must be whole numbers (m,), and have dtype float"),
        ([1], "landmarks were chosen from other rows than those of X"),
    ):
        points = X[np.asarray(indices, int)] if len(indices) == 2 else X[[1, 1]]
        made = extend.Landmarks(jnp.asarray(indices), jnp.asarray(points), None)
        for options in ({"landmarks": made}, {"solver": rls.Iterative(made)}):
            refused(partial(rls.factorize, KERNEL, X, **options), message)


def test_validation_outside_of_the_domain_is_refused():
    kernel, inputs = rls.Sobolev(), np.abs(X[:, :1])
    message = "Sobolev lives on [0, ∞), and the smallest input is"
    held = {"criterion": rls.holdout(-inputs, Y)}
    refused(lambda: rls.fit(0.5 * kernel, inputs, Y, lams=LAMS, **held), message)
