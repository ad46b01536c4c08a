"""Where kernels are so wide that most eigenvalues of K are below λ, and λ is near the floor: what a
fit says of single rows, and of their variances, is right, or it says that it is not. Against 80-bit
numbers.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from support import EPS, FLOAT64

import jaxrls as rls

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import floors

pytestmark = FLOAT64
N = 120
WIDE = np.longdouble


def drawn(seed):
    """Three columns of different kinds, and one outlier."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(0, 4, N), rng.normal(5, 1, N), rng.integers(0, 2, N)])
    y = np.sin(1.5 * X[:, 0]) + 0.2 * X[:, 1] + 0.5 * X[:, 2] + 0.2 * rng.normal(size=N)
    y[7] += 4
    return X, y


def right(X, y, width, lam):
    """What 80 bits say of the rows, and the root mean square of held-out residuals."""
    data = floors.Drawn(X, y, np.ones(N), np.asarray(width))
    said = floors.reference(data, [lam], WIDE)
    return said, float(np.sqrt(np.mean(said.held_out**2)))


def away(found, want):
    """The largest difference."""
    return float(np.max(np.abs(np.asarray(found) - want)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_tune_ends_where_single_rows_are_right(seed):
    """To 2 % of their root mean square; it went on to a λ of four times the floor, where they were
    off by a tenth, and standard deviations NaN.
    """
    X, y = drawn(seed)
    fit = rls.tune(rls.Gaussian(np.ones(3)), X, y)
    said, rms = right(X, y, fit.kernel.width, float(fit.lam))
    assert away(fit.loo_residuals, said.held_out[0]) <= 0.02 * rms
    assert away(fit.predict(X), said.predicted[0]) <= 0.02 * rms
    assert abs(float(fit.error) / rms**2 - 1) < 0.01
    std = np.asarray(fit.posterior(X, scale=1).std)
    assert away(std / np.sqrt(said.variances[0]), 1) < 0.05


WIDTHS = np.array([8.0, 20.0, 20.0])


def fit_and_share(*given, **options):
    """A fit that warns of rounding, and by what share of their size it may move single rows."""
    with pytest.warns(UserWarning, match="rounding may move held-out residuals") as told:
        fit = rls.fit(*given, **options)
    (message,) = [str(one.message) for one in told]
    return fit, float(message.split(" by ")[1].split(" %")[0]) / 100


@pytest.mark.slow
@pytest.mark.parametrize("solver", [rls.Cholesky(), rls.Spectral("gram")], ids=str)
def test_a_fit_says_how_far_single_rows_are_off(solver):
    """By no more than it says, without a word where it is less than 2 %; variances stay positive,
    at the floor too. Rows of weight 0 change nothing of it.
    """
    X, y = drawn(0)
    kernel = rls.Gaussian(WIDTHS)
    floor = float(rls.fit(kernel, X, y, lams=[1.0], solver=solver).floor)
    for times in (1.0, 10.0, 100.0):
        options = {"lams": [times * floor], "solver": solver, "keep": True}
        if times < 50:
            fit, share = fit_and_share(kernel, X, y, **options)
            assert abs(share * times - 1 + float(fit.dof) / N) < 0.1
            rows_twice = np.vstack([X, X]), np.append(y, y)
            weights = np.repeat([1.0, 0.0], N)
            _, of_half = fit_and_share(kernel, *rows_twice, weights=weights, **options)
            assert abs(of_half / share - 1) < 0.05
        else:
            fit = rls.fit(kernel, X, y, **options)
            share = 1 / times
        said, rms = right(X, y, WIDTHS, float(fit.lam))
        assert away(fit.loo_residuals, said.held_out[0]) <= 3 * share * rms
        variances = np.asarray(fit.posterior(X, scale=1).std) ** 2
        assert (variances > 0).all()
        assert away(variances, said.variances[0]) <= 50 * EPS
        spread = fit.predict(X, return_std=True, scale=1)[1]
        np.testing.assert_allclose(spread**2, variances + float(fit.lam), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_single_rows_of_a_default_fit_are_right_or_it_says_how_far_they_are_off(seed):
    """From a λ of the spectrum at which they may be off by more than 2 % it goes on by Cholesky
    factors, and from there to the least λ at which they are right, if the error is as good.
    """
    X, y = drawn(seed)
    plans, told = [], 0
    for times in (4, 16, 32, 64, 128):
        kernel = rls.Gaussian(times * WIDTHS)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit = rls.fit(kernel, X, y)
        most = 0.02
        for one in caught:
            assert "rounding may move held-out residuals" in str(one.message)
            most = float(str(one.message).split(" by ")[1].split(" %")[0]) / 100
            assert most > 0.02
            told += 1
        said, rms = right(X, y, kernel.width, float(fit.lam))
        assert away(fit.loo_residuals, said.held_out[0]) <= most * rms
        if not caught:
            assert abs(float(fit.error) / rms**2 - 1) < 0.01
        assert len(fit.errors) == len(fit.lams) and (np.diff(np.asarray(fit.lams)) > 0).all()
        plans.append((fit.route, "larger λ" in fit.plan))
    routes, went_on = zip(*plans, strict=True)
    assert told == 1 and set(routes) == {"gram", "cholesky"} and any(went_on) == (seed == 1)
