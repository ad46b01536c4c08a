"""Average derivatives and differences of a fit, with standard errors: by weights of the posterior
at moved rows, and by the formulas of the Gaussian kernel.
"""

from dataclasses import replace
from functools import partial

import jax
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from contract.cases import WIDTH, draw, gaussian
from support import ANY_PRECISION, DTYPE, EPS, FLOAT64, assert_close, refused, wide

import jaxrls as rls
from jaxrls.core.linalg import blocks
from jaxrls.uncertainty.effect import _check_smooth, partial_effects

mpl.use("agg")
N, LAM = 30, 0.2
X = wide(np.column_stack([draw(0, N, 2), np.arange(N) % 2, np.arange(N) % 5]))
B, V = draw(1, N, 1), wide(np.linspace(0.5, 2, N))
Y = wide(np.stack([np.sin(2 * X[:, 0]) + X[:, 2], X[:, 1] ** 2], axis=1) + 0.3 * draw(2, N, 2))
INPUT, OUTPUT = X.astype(DTYPE), Y.astype(DTYPE)
OPTIONS = {"lams": [LAM], "keep": True, "weights": V.astype(DTYPE)}
GAUSSIAN = rls.Gaussian(WIDTH)


def moved(column, value):
    """X with a column at a value, or by so much more."""
    Z = X.copy()
    Z[:, column] = value
    return Z


@pytest.mark.slow
@ANY_PRECISION
def test_the_average_derivative_of_a_gaussian_kernel_and_its_variance():
    """∂k(x, z)/∂x_j = −(x_j − z_j)/w² k, ∂²k/∂x_j∂z_j = (1/w² − (x_j − z_j)²/w⁴) k, with a flat
    prior on an intercept and a column.
    """
    beside = np.column_stack([np.ones(N), B])
    inverse = np.linalg.inv(gaussian(X, X) + LAM * np.diag(1 / V))
    cov = np.linalg.inv(beside.T @ inverse @ beside)
    P = inverse - inverse @ beside @ cov @ beside.T @ inverse
    fit = rls.fit(GAUSSIAN, X, Y, fixed_effects=wide(B), **{**OPTIONS, "weights": V})
    for j in (0, 1, 3, -1):
        apart, K = X[:, None, j] - X[None, :, j], gaussian(X, X)
        across = np.mean(-apart / WIDTH**2 * K, axis=0)
        own = np.mean((1 / WIDTH**2 - apart**2 / WIDTH**4) * K)
        found = fit.effect(X, j, scale=[4.0, 9.0])
        assert_close(found.mean, across @ P @ Y, 1e-9)
        assert_close(found.std, np.sqrt(own - across @ P @ across) * np.array([2, 3]), 1e-9)


KERNELS = {
    "a rough kernel at two values": (rls.Matern(0.5, WIDTH), 2, {}),
    "matern": (rls.Matern(2.5, WIDTH), 0, {}),
    "landmarks": (GAUSSIAN, 0, {"landmarks": INPUT[::4]}),
    "landmarks by cholesky": (GAUSSIAN, 2, {"landmarks": INPUT[::4], "solver": rls.Cholesky()}),
    "linear": (rls.Linear(), 1, {}),
    "linear, few rows": (rls.FeatureMap(lambda X: X**3), 1, {"solver": rls.Spectral("gram")}),
    "a sum": (GAUSSIAN.on([0, 1]) + 0.5 * rls.Levels().on([3]), 0, {"standardize": True}),
}


@FLOAT64
@pytest.mark.parametrize(
    ("kernel", "column", "options"),
    [
        pytest.param(*case, id=name, marks=[] if name == "linear" else pytest.mark.slow)
        for name, case in KERNELS.items()
    ],
)
def test_effects_are_those_of_the_posterior_at_moved_rows(kernel, column, options):
    """A difference by differences, also with levels beside; a derivative by differences of order
    4, whose variances are of 4m rows at once. Rows count by weights.
    """
    levels = rls.levels(np.arange(N) % 3)
    fit = rls.fit(kernel, X, Y[:, 0], fixed_effects=levels, **OPTIONS, **options)
    steps = {0.0: -1, 1.0: 1} if column == 2 else {}
    for h, share in {-2: 1, -1: -8, 1: 8, 2: -1}.items() if column != 2 else ():
        steps[h] = share / 12 / 0.02
    rows = [moved(column, at if column == 2 else X[:, column] + 0.02 * at) for at in steps]
    weights = np.outer([*steps.values()], V / V.sum()).ravel()
    beside = np.tile(np.arange(N) % 3, len(rows))
    want = fit.posterior(np.concatenate(rows), fixed_effects=beside)
    found = fit.effect(X, column, weights=V)
    assert_close(found.mean, weights @ want.mean, 1e-5)
    assert_close(found.std, np.sqrt(weights @ want.covariance @ weights), 1e-4)
    assert found.mean.shape == found.std.shape == ()


@pytest.mark.slow
def test_blocks_of_rows_change_no_effect(monkeypatch):
    """Of the same rows twenty times, with weights, an average is that of the rows: where these are
    read in blocks, of derivatives and of differences, on landmarks too.
    """
    monkeypatch.setattr(blocks, "CPU_BLOCK_BYTES", 2**12)
    monkeypatch.setattr(blocks, "FEWEST_ROWS", 64)
    many = np.tile(INPUT, (20, 1))
    weights = V.astype(DTYPE)
    for options in ({}, {"landmarks": INPUT[::4]}):
        fit = rls.fit(GAUSSIAN, INPUT, OUTPUT, **OPTIONS | options)
        for column in (0, 2):
            once = fit.effect(INPUT, column, weights=weights)
            often = fit.effect(many, column, weights=np.tile(weights, 20))
            assert_close(often.mean, once.mean, 1e3 * EPS)
            assert_close(often.std, once.std, 1e5 * EPS)


@FLOAT64
@pytest.mark.slow
def test_an_effect_on_the_treated_compares_the_two_values_of_the_fit():
    """Columns by name, of a frame in another order, and rows in which a column has one value."""
    frame = pd.DataFrame(X, columns=["dose", "age", "treated", "site"])
    fit, treated = rls.fit(GAUSSIAN, frame, Y[:, 0], **OPTIONS), frame[X[:, 2] == 1]
    found = fit.effect(treated[["site", "treated", "age", "dose"]], "treated")
    change = fit.predict(moved(2, 1)) - fit.predict(moved(2, 0))
    assert_close(found.mean, change[X[:, 2] == 1].mean(), 1e-9)
    assert_close(fit.effect(frame, 0, values=(2.0, -1.0)).mean, -_change(fit, -1.0, 2.0), 1e-9)
    few = fit.effect(frame[:2], "dose")  # a derivative, though these rows have two values
    step = [fit.predict(X[:2] + [h, 0, 0, 0]) for h in (-1e-4, 1e-4)]
    assert_close(few.mean, np.mean(step[1] - step[0]) / 2e-4, 1e-5)
    assert fit.plot_effect(treated, "dose").get_xlabel() == "dose"
    mpl.pyplot.close("all")


@FLOAT64
def test_two_rows_do_not_make_a_column_of_two_values_in_a_linear_fit():
    """Its model has no rows, and its fit has."""
    frame = pd.DataFrame(X, columns=["dose", "age", "treated", "site"])
    fit = rls.fit(rls.Linear(), frame, Y[:, 0], **OPTIONS)
    assert_close(fit.effect(frame[:2], "dose").mean, fit.model.coef[0], 1e-12, "a slope")
    change = fit.predict(moved(2, 1)) - fit.predict(moved(2, 0))
    assert_close(fit.effect(frame[:2], "treated").mean, change[0], 1e-12, "a difference")
    more = fit.update(frame, Y[:, 0])
    assert_close(more.effect(frame[:3], "dose").mean, more.model.coef[0], 1e-12, "of three rows")
    again = frame.iloc[[0, 1, 1]]  # three rows with two values
    refused((lambda: more.effect(again, "dose"), "column 0 has the values .* keeps no dense rows"))
    assert_close(more.effect(frame[:2], "treated").mean, more.model.coef[2], 1e-12, "0 and 1")


def _change(fit, before, after):
    return np.mean(fit.predict(moved(0, after)) - fit.predict(moved(0, before)))


@FLOAT64
@pytest.mark.slow
def test_partial_effects_and_their_picture():
    """What changes on average as all rows take a value, from what it is."""
    fit = rls.fit(GAUSSIAN, X, Y, fixed_effects=wide(B), **OPTIONS)
    values = np.array([-1.0, 0.3])
    found = partial_effects(fit, X, 0, values)
    for at, value in enumerate(values):
        both = np.concatenate([moved(0, value), X])
        want = fit.posterior(both, fixed_effects=np.tile(wide(B), (2, 1)))
        weights = np.repeat([1, -1], N) / N
        assert_close(found.mean[at], weights @ want.mean, 1e-9)
        variance = np.einsum("i,ijt,j->t", weights, want.covariance, weights)
        assert_close(found.std[at], np.sqrt(variance), 1e-7)
    ax = fit.plot_effect(X, 0, level=0.9)
    x, line = ax.lines[1].get_data()
    assert len(ax.lines) == len(ax.collections) == 2 and len(x) == 50
    assert_close(line[[3]], partial_effects(fit, X, 0, x[3:4]).mean[:, 1], 1e-9)
    assert fit.plot_effect(X, 2).lines[0].get_xdata().tolist() == [0, 1]
    mpl.pyplot.close("all")


@pytest.mark.slow
def test_what_an_effect_refuses():
    """What is asked of the kernel alone, of one fit, whatever its kernel was."""
    known = rls.fit(rls.Linear(), INPUT, OUTPUT, **OPTIONS)
    sparse, matrix = scipy.sparse.csr_array(INPUT), INPUT @ INPUT.T
    of = lambda kernel: replace(known, model=replace(known.model, kernel=kernel))
    rough = "functions of {} have no derivative in column 0: take a smoother"
    asked = lambda fit, column=0: lambda: fit.effect(INPUT, column)
    refused(
        *(
            (asked(of(kernel)), rough.format(name))
            for name, kernel in {
                "Laplacian": rls.Laplacian(1.0),
                "Matern": rls.Matern(0.5, 1.0),
                "Sum": rls.Linear() + rls.Levels().on([0]),
            }.items()
        ),
        (asked(known, 4), "column must be a name or an index of a column of X, of the 4 that were"),
        (asked(known, "a"), "with no names, and is 'a'"),
        (lambda: known.effect(INPUT, 0, values=[1.0]), "values must be two numbers to compare"),
        *(
            (partial(fit.effect, given, 0), f"a column of dense X, and found {what}")
            for fit, given, what in (
                (rls.fit(GAUSSIAN, sparse, OUTPUT, **OPTIONS), INPUT, "sparse rows"),
                (known, sparse, "sparse rows"),
                (rls.fit(rls.Precomputed(), matrix, OUTPUT, **OPTIONS), matrix, "a kernel matrix"),
            )
        ),
        (lambda: jax.jit(lambda X: known.effect(X, 0))(INPUT), "effect needs the values of X"),
    )
    for smooth in (rls.Matern(1.5, 1.0), rls.Linear(), rls.Polynomial(3)):
        _check_smooth(smooth, INPUT, 0)


@pytest.mark.slow
def test_deviations_of_effects_are_finite_of_rough_fits_and_0_of_columns_that_do_not_count():
    fit = lambda kernel: rls.fit(kernel, INPUT, OUTPUT, **OPTIONS)
    assert np.isfinite(fit(rls.Gaussian(0.05)).effect(INPUT, 0).std).all()
    assert_close(fit(GAUSSIAN.on([1])).effect(INPUT, 0).std, np.zeros(2), EPS)


@pytest.mark.slow
def test_float32_has_the_digits_of_its_precision():
    fits = [rls.fit(GAUSSIAN, A, C, lams=[LAM], keep=True) for A, C in ((X, Y), (INPUT, OUTPUT))]
    for column in (0, 2):
        one, other = (fit.effect(A, column) for fit, A in zip(fits, (X, INPUT), strict=True))
        assert_close(other.mean, one.mean, 1e5 * EPS)
        assert_close(other.std, one.std, 1e5 * EPS)
