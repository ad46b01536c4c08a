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
from jax.experimental.sparse import BCOO
from oracle import group_residuals
from support import (
    DTYPE,
    EPS,
    X64,
    array,
    assert_close,
    of_covariance,
    of_gram,
)

import jaxrls as rls
from jaxrls import extend
from jaxrls.kernels.kernel import Scaled
from jaxrls.sklearn import RLSRegressor

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


@functools.cache
def model():
    return rls.Model(KERNEL, jnp.asarray(X), jnp.asarray(Y), jnp.zeros((), DTYPE))


def refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# what is masked
# -----------------------------------------------------------------------------------------------------------------

MASKED = {
    "X": lambda: rls.fit(KERNEL, masked(X), Y, lams=LAMS),
    "Y": lambda: rls.fit(KERNEL, X, masked(Y), lams=LAMS),
    "weights": lambda: rls.fit(KERNEL, X, Y, weights=masked(np.ones(N)), lams=LAMS),
    "groups": lambda: rls.fit(KERNEL, X, Y, groups=masked(PLAIN), lams=LAMS),
    "groups, folds": lambda: rls.folds(masked(PLAIN)),
    "lams": lambda: rls.fit(KERNEL, X, Y, lams=masked(LAMS)),
    "lam": lambda: rls.coef(factor(), Y, masked(0.1)),
    "landmarks": lambda: rls.fit(KERNEL, X, Y, landmarks=masked([0, 1, 2]), lams=LAMS),
    "Y of holdout": lambda: rls.fit(KERNEL, X, Y, criterion=rls.holdout(X, masked(Y)), lams=LAMS),
    "X, predict": lambda: model().predict(masked(X)),
    "Gaussian.width": lambda: rls.fit(rls.Gaussian(masked([1.0, 2.0])), X, Y, lams=LAMS),
    "labels": lambda: rls.encode(masked(PLAIN)),
    "scores": lambda: rls.decode(masked(Y), ["a", "b"]),
    "y, RLSRegressor": lambda: RLSRegressor().fit(X, masked(Y)),
    "sample_weight": lambda: RLSRegressor().fit(X, Y, sample_weight=masked(np.ones(N))),
    "width": lambda: RLSRegressor(width=masked([1.0, 2.0])).fit(X, Y),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_values_are_refused_by_name(name, unchecked):
    refused(
        MASKED[name],
        f"{name.split(',')[0].removesuffix(' as rows').removesuffix(' as points')} is a masked array with 1 masked value",
    )


@pytest.mark.filterwarnings("ignore:the chosen λ")
def test_a_masked_array_without_masked_values_is_data():
    plain = np.ma.masked_array
    groups = rls.folds(plain(PLAIN))
    want = rls.fit(KERNEL, X, Y, lams=LAMS, weights=Y**2, groups=PLAIN)
    got = rls.fit(KERNEL, plain(X), plain(Y), lams=plain(LAMS), weights=plain(Y**2), groups=groups)
    assert np.asarray(got.errors).tolist() == np.asarray(want.errors).tolist()
    assert rls.encode(plain(PLAIN))[1].tolist() == [0, 1, 2]


# what is missing
# ----------------------------------------------------------------------------------------------------------------

NAN = float("nan")
MISSING = {
    "objects": np.array([1.0, NAN, 2.0, NAN, 1.0], object),
    "None": ["a", None],
    "an array of texts": np.array(["a", NAN, "b"]),
    "an empty text": ["a", "", "b"],
    "bytes": np.array([b"a", b""]),
    "variable texts": np.array(["a", None, "b"], np.dtypes.StringDType(na_object=None)),
    "dates": np.array(["2020-01-01", "NaT", "NaT"], "datetime64[D]"),
    "date objects": [pd.NaT, pd.Timestamp("2020-01-01"), pd.NaT],
    "numbers": [0.0, NAN],
    "complex numbers": np.array([1, complex(NAN, 1)]),
    "pandas numbers": pd.Series([1, None, 2], dtype="Int64"),
    "pandas categories": pd.Series(["a", None], dtype="category"),
}


@pytest.mark.any_precision
@pytest.mark.parametrize("name", MISSING)
def test_missing_labels_are_refused(name):
    """NaN equals nothing, itself included: labels alike would be split into groups of their own."""
    for call, what in ((rls.folds, "groups"), (rls.encode, "labels")):
        refused(lambda call=call: call(MISSING[name]), f"{what} must have none missing, and holds ")


@pytest.mark.any_precision
@pytest.mark.parametrize(
    "labels",
    [
        ["None", "b", "None"],
        ["nano", "b", "nano"],
        [True, False, True],
        np.array([2, 1, 2], object),
    ],
    ids=str,
)
def test_other_labels_are_labels(labels):
    assert rls.folds(labels).inside.shape == (2, 2)
    assert len(rls.encode(labels)[1]) == 2


def test_dates_without_a_value_are_no_numbers():
    refused(
        lambda: rls.fit(KERNEL, X, np.array(["NaT"] * N, "datetime64[D]"), lams=LAMS),
        "Y must hold real numbers",
    )


# what is not real
# ---------------------------------------------------------------------------------------------------------------


def unreal(X, Z):
    return (X @ Z.T).astype(complex) if X64 else (X @ Z.T).astype(np.complex64)


COMPLEX = {
    "Gaussian.width must be a real number, or an array of them, and has dtype complex128": lambda: (
        rls.fit(rls.Gaussian(1 + 1j), X, Y, lams=LAMS)
    ),
    "Matern.width must be a real number, or an array of them, and has dtype complex64": lambda: (
        rls.fit(rls.Matern(0.5, np.array([1, 1j], np.complex64)), X, Y, lams=LAMS)
    ),
    "Scaled.scale must be a real number, or an array of them, and has dtype complex128": lambda: (
        rls.fit(Scaled(1j, KERNEL), X, Y, lams=LAMS)
    ),
    "FunctionKernel.fn must return real numbers, and returned complex": lambda: rls.fit(
        rls.FunctionKernel(unreal), X, Y, lams=LAMS
    ),
    "FeatureMap.fn must return real numbers, and returned complex": lambda: rls.fit(
        rls.FeatureMap(lambda X: unreal(X, jnp.eye(2, dtype=X.dtype))), X, Y, lams=LAMS
    ),
    "lam must be real, in float32 or float64, and has dtype complex128": lambda: rls.objective(
        KERNEL, X, Y, 1j
    ),
}


@pytest.mark.parametrize("message", COMPLEX)
def test_complex_numbers_are_refused_with_their_dtype(message, unchecked):
    refused(COMPLEX[message], message)


def long(X):
    return X.astype(np.longdouble)


@pytest.mark.parametrize(
    "to_sparse",
    [scipy.sparse.csr_array, lambda X: BCOO.fromdense(jnp.asarray(X))],
    ids=["SciPy", "BCOO"],
)
def test_sparse_rows_are_real(to_sparse):
    refused(
        lambda: rls.fit(rls.Linear(), to_sparse(X * (1 + 1j)), Y, lams=LAMS),
        "X must be real, in float32 or float64, and has dtype complex",
    )
    linear = rls.Model(rls.Linear(), None, array([1.0, 2.0]), array(0.0))
    refused(
        lambda: linear.predict(to_sparse(X * (1 + 1j))),
        "X must be real, in float32 or float64, and has dtype complex",
    )


def test_sparse_rows_in_another_precision_are_refused_as_dense_ones_are():
    refused(
        lambda: rls.fit(rls.Linear(), scipy.sparse.csr_array(long(X)), Y, lams=LAMS),
        f"X must be real, in float32 or float64, and has dtype {np.dtype(np.longdouble)}",
    )
    refused(
        lambda: rls.fit(rls.Linear(), BCOO.fromdense(jnp.asarray(X, jnp.float16)), Y, lams=LAMS),
        "X must be real, in float32 or float64, and has dtype float16",
    )


@pytest.mark.parametrize("value", ["a", None, object()], ids=["text", "none", "object"])
def test_parameters_that_are_no_numbers(value, unchecked):
    refused(
        lambda: rls.fit(rls.Gaussian(value), X, Y, lams=LAMS),
        "Gaussian.width must be a real number, or an array of them, and has dtype ",
    )
    refused(
        lambda: rls.fit(rls.Polynomial(2, value), X, Y, lams=LAMS),
        "Polynomial.offset must be a real number",
    )
    refused(lambda: rls.gram(rls.Gaussian(value), array(X)), "Gaussian.width must be a real number")


def test_an_offset_is_one_finite_number(unchecked):
    refused(
        lambda: rls.fit(rls.Polynomial(2, np.ones(N)), X, Y, lams=LAMS),
        "Polynomial.offset must be one number, and has shape (8,)",
    )
    refused(
        lambda: rls.fit(rls.Polynomial(2, np.inf), X, Y, lams=LAMS),
        "Polynomial.offset must be finite and not negative, and is inf",
    )


# what has no answer
# -------------------------------------------------------------------------------------------------------------

ALONE = np.where(PLAIN == 1, 2.0, 0.0)  # rows 1, 3 and 6 hold all of the weight
ROUTES = {
    "gram": (KERNEL, {"solver": rls.Spectral("gram")}),
    "features": (rls.Linear(), {"solver": rls.Spectral("features")}),
    "covariance": (rls.Linear(), {"solver": rls.Spectral("covariance")}),
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
    held = solution.residuals(lams, plan), solution.residuals(lams)
    return (
        rls.kfold(plan).values(solution, lams, None),
        rls.LeaveOneOut().values(solution, lams, None),
        *held,
    )


@pytest.mark.parametrize("name", ROUTES)
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


def test_leaving_all_of_the_weight_out_raises_by_the_groups_name(unchecked):
    message = (
        "the group of rows 1, 3, 6 holds all of the weight: without it no row is left to fit an"
    )
    refused(
        lambda: rls.kfold([0] * N)(factor(weights=None), Y, LAMS), "groups holds one label only"
    )
    made = rls.factorize(KERNEL, X, weights=ALONE)
    refused(lambda: rls.kfold(PLAIN)(made, Y, LAMS), message)
    refused(lambda: rls.loo_residuals(made, Y, 0.1, PLAIN), message)
    small = np.where(np.isin(np.arange(N), [2, 3]), 0, 1)
    heavy = rls.factorize(KERNEL, X, weights=np.eye(N)[3] + np.eye(N)[2])
    refused(
        lambda: rls.kfold(small)(heavy, Y, LAMS), "the group of rows 2, 3 holds all of the weight"
    )
    for door in (rls.fit, rls.tune, lambda *args, **named: rls.objective(*args, 0.1, **named)):
        refused(lambda door=door: door(KERNEL, X, Y, weights=ALONE, groups=PLAIN), message)
    refused(
        lambda: rls.loo(rls.factorize(KERNEL, X, weights=np.eye(N)[3]), Y, LAMS),
        "row 3 holds all of the weight",
    )
    refused(
        lambda: rls.loo(rls.factorize(KERNEL, X[:1]), Y[:1], LAMS), "row 0 holds all of the weight"
    )


def test_without_an_intercept_nothing_left_predicts_zero():
    got = rls.loo_residuals(
        rls.factorize(rls.Linear(), X, weights=ALONE, intercept=False), Y, 0.5, PLAIN
    )
    want = group_residuals(np.asarray(X, float), np.asarray(Y, float)[:, None], 0.5, PLAIN, ALONE)[
        :, 0
    ]
    assert_close(got, want, 1000 * EPS)
    assert_close(got[PLAIN == 1], Y[PLAIN == 1], 1000 * EPS)


def test_the_objective_of_one_row_is_undefined(unchecked):
    one = array(np.eye(N)[2])
    message = "row 2 holds all of the weight: without it no row is left to fit an intercept to"
    refused(lambda: rls.objective(KERNEL, X, Y, 0.1, weights=one), message)
    refused(lambda: rls.objective(KERNEL, X, Y, 0.1, weights=one, criterion=rls.gcv), message)
    refused(lambda: rls.best_lam(KERNEL, X, Y, LAMS, weights=one), message)
    for criterion in (rls.loo, rls.gcv):
        assert np.isnan(
            jax.jit(partial(rls.objective, criterion=criterion))(KERNEL, X, Y, 0.1, weights=one)
        )


GRID = np.geomspace(1e-3, 1e2, 6).astype(DTYPE)
LONGER = np.r_[GRID, 1e4 * GRID[1:], 1e8].astype(
    DTYPE
)  # of as many λ as the grids that repeat theirs, so that one program serves all
GRIDS = {"twice": np.repeat(GRID, 2), "unsorted": np.r_[GRID[::-1], GRID]}


@partial(jax.jit)
def best(width, lams):
    inputs = array(np.linspace(0, 3, 14)[:, None])
    labels = array(
        np.sin(3 * np.linspace(0, 3, 14)) + 0.5 * np.random.default_rng(1).normal(size=14)
    )
    return jax.value_and_grad(
        lambda width: rls.best_lam(rls.Gaussian(width), inputs, labels, lams)
    )(width)


@pytest.mark.parametrize("name", GRIDS)
def test_the_best_lam_does_not_depend_on_how_often_the_grid_names_it(name):
    value, slope = best(array(0.5), array(LONGER))
    assert (
        GRID[0] < value < GRID[-1] and not np.isclose(GRID, value, rtol=1e-3).any() and slope != 0
    )
    got = best(array(0.5), array(GRIDS[name]))
    assert_close(got[0], value, 1e4 * EPS)
    assert_close(got[1], slope, 1e5 * EPS)


def test_a_grid_of_the_wrong_shape_is_refused(unchecked):
    wrong = [[0.1, 1.0]]
    for function in (rls.loo, rls.gcv, rls.log_marginal_likelihood, rls.path):
        refused(
            lambda function=function: function(factor(), Y, wrong),
            "lams must have shape (L,), or (L, t)",
        )
        refused(
            lambda function=function: function(factor(), np.stack([Y] * 3, 1), wrong),
            "lams must have shape (L,), or (L, t)",
        )
    refused(lambda: rls.kfold(PLAIN)(factor(), Y, wrong), "lams must have shape (L,), or (L, t)")
    refused(lambda: rls.effective_dof(factor(), wrong), "lams must have shape (L,), or (L, t)")
    refused(lambda: rls.best_lam(KERNEL, X, Y, wrong), "lams must have shape (L,)")
    refused(
        lambda: rls.fit(KERNEL, X, Y, lams=wrong), "lams must have shape (L,), and has shape (1, 2)"
    )
    for door in (rls.objective, rls.objective):
        refused(
            lambda door=door: door(KERNEL, X, Y, wrong),
            "lam must be one number, and has shape (1, 2)",
        )
        refused(
            lambda door=door: door(KERNEL, X, Y, -1.0),
            "lam must be positive, and the smallest is -1.0",
        )
    solution = factor().solve(np.stack([Y] * 3, 1))
    refused(
        lambda: solution.residuals(wrong),
        "lams must have shape (L,), or (L, 3) with a λ for each target, and has shape (1, 2)",
    )
    refused(
        lambda: solution.left_out(lambda e, y, v: e, wrong), "lams must have shape (L,), or (L, 3)"
    )
    refused(
        lambda: solution.coefficients(0.1),
        "lams must have shape (L,), or (L, 3) with a λ for each target, and has shape ()",
    )


BROKEN = np.where((np.arange(N)[:, None] == 3) & (np.arange(2) == 0), np.nan, X)
MADE = {
    "gram": lambda: rls.factorize(KERNEL, BROKEN),
    "cholesky": lambda: rls.factorize(KERNEL, BROKEN, solver=rls.Cholesky()),
    "covariance": lambda: of_covariance(BROKEN),
    "iterative": lambda: rls.factorize(KERNEL, BROKEN, solver=rls.Iterative([0, 1])),
    "median": lambda: rls.median_distance(BROKEN),
}


@pytest.mark.parametrize("name", MADE)
def test_values_that_are_not_finite_are_named_where_factors_are_made(name, unchecked):
    refused(MADE[name], "holds 1 values that are NaN or infinite, the first at index (3, 0)")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_kernel_matrices_and_labels_that_are_not_finite_are_named(wrong, unchecked):
    K, y = np.diag([1.0, wrong, 1.0]), np.array([0.0, 1.0, wrong])
    for made in (
        lambda: of_gram(K),
        lambda: rls.factorize(rls.Precomputed(), K, solver=rls.Cholesky()),
    ):
        refused(made, "holds 1 values that are NaN or infinite, the first at index (1, 1)")
    for read in (
        lambda f: f.solve(y),
        lambda f: rls.loo(f, y, [0.1]),
        lambda f: rls.gcv(f, y, [0.1]),
        lambda f: rls.coef(f, y, [0.1]),
    ):
        refused(
            lambda read=read: read(of_gram(np.eye(3))),
            "Y holds 1 values that are NaN or infinite, the first at index (2,)",
        )


def test_no_numbers_are_no_landmarks(unchecked):
    none = np.zeros(0, int)
    refused(
        lambda: rls.factorize(KERNEL, X, landmarks=none),
        "landmarks must be row numbers (m,) or points (m, 2), and have shape (0,)",
    )


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (
            [-1, 0],
            "row numbers must be rows of X, 0 to 7, and include -1: negative ones do not count from the end",
        ),
        ([0, 0], "landmarks name a row of X more than once: name each row once"),
        ([0.0, 1.0], "row numbers must be whole numbers (m,), and have dtype float"),
        (
            [1],
            "landmarks were chosen from other rows than those of X",
        ),
    ],
    ids=str,
)
def test_landmarks_made_by_hand_are_rows(indices, message, unchecked):
    indices = jnp.asarray(indices)
    points = X[np.asarray(indices, int)] if len(indices) == 2 else X[[1, 1]]
    made = extend.Landmarks(indices, jnp.asarray(points), None)
    for call in (
        lambda: rls.fit(KERNEL, X, Y, landmarks=made, lams=LAMS),
        lambda: rls.objective(KERNEL, X, Y, 0.1, landmarks=made),
        lambda: rls.factorize(KERNEL, X, landmarks=made),
        lambda: rls.factorize(KERNEL, X, solver=rls.Iterative(made)),
    ):
        refused(call, message)


def test_validation_outside_of_the_domain_is_refused(unchecked):
    kernel, inputs = rls.Sobolev(), np.abs(X[:, :1])
    message = "Sobolev lives on [0, ∞), and the smallest input is"
    held = (-inputs, Y)
    refused(lambda: rls.fit(kernel, inputs, Y, lams=LAMS, criterion=rls.holdout(*held)), message)
    refused(lambda: rls.fit(kernel, inputs, Y, lams=LAMS, criterion=rls.holdout(*held)), message)
    refused(lambda: rls.objective(kernel, inputs, Y, 0.1, criterion=rls.holdout(*held)), message)
    refused(lambda: rls.tune(0.5 * kernel, inputs, Y, criterion=rls.holdout(*held)), message)
    refused(lambda: rls.objective(kernel, -inputs, Y, 0.1), message)
    refused(lambda: rls.best_lam(kernel, -inputs, Y), message)
