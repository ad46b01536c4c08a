"""Rows that a kernel cannot tell apart once fixed effects are projected out: the fit is that of the
fixed effects, to rounding, with one warning; λ near eps gave the mean plus half a standard
deviation of noise.
"""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, FLOAT64

import jaxrls as rls
from jaxrls.sklearn import RLSClassifier

N = 30
RNG = np.random.default_rng(0)
Y = np.stack([1000 + 3 * RNG.normal(size=N), RNG.normal(size=N)], axis=1).astype(DTYPE)
ONES, NEAR = np.full((N, 2), 0.37), RNG.normal(size=(N, 2))
LEVEL, COLUMN = np.arange(N) % 3, np.linspace(-1, 1, N)[:, None]
WEIGHTS = RNG.uniform(0.1, 5, N)
SOME = np.where(np.arange(N) < 5, 0.0, 1.0)
COSINES = rls.FeatureMap(lambda X: jnp.cos(jnp.tile(X, 2) + 1))
WITHIN = rls.levels(LEVEL)
CASES = {
    "constant columns": (rls.Gaussian(1.0), ONES, {}),
    "the median": (rls.Gaussian("median"), ONES, {"weights": WEIGHTS}),
    "far too wide": (rls.Laplacian(1e20), NEAR, {}),
    "units": (rls.Gaussian(1.0), 1e-9 * NEAR, {"groups": np.arange(N) % 5}),
    "polynomial": (rls.Polynomial(3, 0.3), ONES, {"weights": WEIGHTS}),
    "constant K": (rls.Precomputed(), np.full((N, N), 0.7), {}),
    "within levels": (rls.Precomputed(), 1 + (LEVEL[:, None] == LEVEL), {"fixed_effects": WITHIN}),
    "a column": (rls.Precomputed(), 1 + COLUMN @ COLUMN.T, {"fixed_effects": COLUMN}),
    "weight 0": (rls.Gaussian(1.0), np.where(SOME[:, None] > 0, 1, NEAR), {"weights": SOME}),
    "more columns than rows": (rls.Linear(), np.tile(ONES, 20), {}),
    "covariance": (COSINES, ONES, {"solver": rls.Spectral("covariance")}),
    "features": (COSINES, ONES, {"solver": rls.Spectral("features")}),
    "cholesky of features": (COSINES, ONES, {"solver": rls.Cholesky()}),
    "cholesky": (rls.Gaussian(1.0), ONES, {"solver": rls.Cholesky(), "weights": WEIGHTS}),
    "named": (rls.Gaussian(1.0), ONES, {"lams": [1e-9, 1e-3]}),
    "one": (rls.Gaussian(1.0), ONES, {"lams": [1e-3]}),
    "evidence": (rls.Gaussian(1.0), ONES, {"criterion": "evidence"}),
    "rows as levels": (
        rls.Gaussian(1.0),
        np.column_stack([LEVEL, LEVEL**2]),
        {"fixed_effects": WITHIN, "landmarks": 2},
    ),
    "landmarks": (rls.Gaussian(1e12), NEAR, {"landmarks": NEAR[:4] + 0.1}),
    "cholesky on landmarks": (
        rls.Gaussian(1e12),
        NEAR,
        {"landmarks": NEAR[:4] + 0.1, "solver": rls.Cholesky()},
    ),
}


def heard(call):
    """A result, and what was warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = call()
    return result, [str(one.message) for one in seen]


LONG = "the median", "far too wide", "units", "polynomial", "a column", "weight 0", "cholesky"
LONG += "evidence", "rows as levels", "cholesky on landmarks"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CASES]
)
def test_a_kernel_without_information_gives_what_fixed_effects_fit(name):
    """The weighted mean, or their least squares, as NumPy computes it."""
    kernel, X, options = CASES[name]
    cast = lambda a: a.astype(DTYPE) if getattr(a, "dtype", None) == np.float64 else a
    options = {key: cast(value) for key, value in options.items()}
    effects = options.get("fixed_effects")
    fit, messages = heard(lambda: rls.fit(kernel, np.asarray(X, DTYPE), Y, **options))
    (message,) = messages
    assert message.startswith("the kernel matrix has no information") and not fit.informative
    given = {} if effects is None else {"fixed_effects": effects}
    predicted = np.asarray(fit.predict(np.asarray(X, DTYPE), **given), float)
    B = np.column_stack([np.ones(N), COLUMN]) if name == "a column" else np.ones((N, 1))
    B = np.eye(3)[LEVEL] if effects is WITHIN else B
    root = np.sqrt(np.asarray(options.get("weights", np.ones(N)), float))[:, None]
    want = B @ np.linalg.lstsq(root * B, root * Y, rcond=None)[0]
    off = np.abs(predicted - want)[root[:, 0] > 0].max(axis=0)
    assert (off <= 8 * np.finfo(DTYPE).eps * np.abs(Y).max(axis=0)).all(), off


@FLOAT64
def test_what_stands_above_rounding_is_information():
    """Columns that vary by 1e-3 of what they are, and a width of a thousand times their spread."""
    X = np.linspace(-1, 1, N)[:, None]
    y = 2 * X[:, 0] + 0.01 * RNG.normal(size=N)
    for kernel, rows in ((rls.Linear(), 1000 + X), (rls.Gaussian(1000.0), X)):
        fit = rls.fit(kernel, rows, y)
        assert fit.informative and fit.r2 > 0.99
    alone = rls.fit(rls.Constant(2.0), X, y, intercept=False, lams=[1e-3])
    assert alone.informative


@pytest.mark.slow
@FLOAT64
def test_a_classifier_of_constant_columns_says_the_majority():
    y = np.where(np.arange(N) % 5 < 3, "most", "few")
    model, _ = heard(lambda: RLSClassifier(kernel="gaussian").fit(ONES, y))
    assert set(model.predict(ONES)) == {"most"}
