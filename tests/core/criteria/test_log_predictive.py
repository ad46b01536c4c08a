"""The leave-one-out log predictive density: its scale, in searches, and errors; against refits in
the contract grid.
"""

from functools import partial

import jax
import numpy as np
import pytest
from support import ANY_PRECISION, EDGE, FLOAT64, array, assert_close, factorize, refused, wide

import jaxrls as rls
from jaxrls.uncertainty.posterior import process_of

LAMS = wide(np.geomspace(0.02, 2.0, 8))
N = 16
RNG = np.random.default_rng(0)
X, V = wide(RNG.normal(size=(N, 2))), wide(RNG.uniform(0.5, 2.0, N))
Y = wide(np.stack([np.sin(2 * X[:, 0]), X[:, 0] * X[:, 1]], axis=1) + 0.2 * RNG.normal(size=(N, 2)))
KERNEL = rls.Gaussian(1.25)
by_factor = jax.jit(rls.extend.LogPredictive("loo"))
density = jax.jit(rls.extend.log_predictive_density)


@FLOAT64
def test_the_scale_multiplies_the_kernel():
    """And λ by as much; densities of scale 1 are those of refits in the contract grid."""
    plain, scaled = (factorize(a * KERNEL, X, weights=V) for a in (1.0, 0.3))
    want = density(scaled, Y, 0.3 * LAMS)
    assert_close(jax.jit(rls.extend.LogPredictive(0.3))(plain, Y, LAMS), want, 1e-10)


@pytest.mark.slow
@FLOAT64
@EDGE
def test_it_is_a_criterion_everywhere():
    """In the grid and the search of λ, by function and by class, negated where less is better."""
    factor = factorize(KERNEL, X)
    values = np.asarray(density(factor, Y[:, 0], LAMS))
    as_it_is = rls.extend.LogPredictive(1)
    fit = rls.fit(KERNEL, X, Y[:, 0], lams=LAMS, criterion=as_it_is)
    assert_close(fit.errors, -values, 1e-10)
    assert fit.lam == LAMS[values.argmax()] and fit.criterion == "log_predictive_density"
    found = rls.fit(KERNEL, X, Y[:, 0], lams="search", criterion="log_predictive_density")
    near = np.geomspace(found.lam / 2, 2 * found.lam, 41)
    grid = by_factor(factor, Y[:, 0], near)
    assert float(found.error) <= -np.max(grid) + 1e-4


@pytest.mark.slow
@FLOAT64
def test_scale_by_what_is_left_out_is_that_of_predicted_deviations():
    """τ of `predict(return_std=True, scale="loo")`; labels in other units move the density by their
    logarithm alone, and choose the same λ.
    """
    fit = rls.fit(KERNEL, X, Y[:, 0], lams=[0.1], keep=True)
    tau = float(process_of(fit).amplitude("loo")) ** 2
    factor = factorize(KERNEL, X)
    given, chosen = (
        rls.extend.LogPredictive(scale)(factor, Y[:, 0], [0.1])[0] for scale in (tau, "loo")
    )
    assert_close(given, chosen, 1e-10)
    larger = by_factor(factor, 100 * Y[:, 0], LAMS)
    assert_close(larger + np.log(100), by_factor(factor, Y[:, 0], LAMS), 1e-10)


@pytest.mark.slow
@FLOAT64
@EDGE
def test_the_ranked_probability_score_is_that_of_predictive_distributions():
    """Of `loo_predictive`, whose scores are held to integrals, with weights, by the name too; the
    unit of the labels multiplies it.
    """
    v = np.where(np.arange(N) % 5 == 2, 0, V)
    fit = rls.fit(KERNEL, X, Y, weights=v, lams=LAMS, criterion="crps", per_target=True)
    assert fit.criterion == "crps" and fit.unit == "error"
    factor = factorize(KERNEL, X, weights=v)
    for at, lam in enumerate(LAMS[::3]):
        kept = rls.fit(KERNEL, X, Y, weights=v, lams=[lam], keep=True)
        for scale in ("loo", 2.0, None):
            of_fit = 1.0 if scale is None else scale
            want = np.nanmean(kept.loo_predictive(scale=of_fit).crps, axis=0)
            found = rls.extend.CRPS(scale)(factor, Y, [lam])[0]
            assert_close(found, want, 1e-10)
        assert_close(
            rls.extend.crps(factor, 100 * Y, [lam])[0],
            100 * rls.extend.crps(factor, Y, [lam])[0],
            1e-10,
        )
        assert_close(fit.errors[3 * at], rls.extend.crps(factor, Y, [lam])[0], 1e-10)
    searched = rls.fit(KERNEL, X, Y[:, 0], lams="search", criterion="crps")
    grid = rls.fit(KERNEL, X, Y[:, 0], lams=200, criterion="crps")
    assert searched.error <= grid.error * (1 + 1e-4)


@pytest.mark.slow
def test_rows_that_the_others_predict_exactly_give_numbers():
    """A row of leverage 1, and labels of 0: large densities of one sign or the other, and no
    NaN.
    """
    design = array(np.column_stack([X, np.arange(N) == 3]))
    factor = factorize(rls.Linear(), 1e4 * design, solver=rls.Spectral("covariance"))
    for of in (density, by_factor, rls.extend.crps, rls.extend.CRPS(1.0)):
        for labels in (array(Y), array(0 * Y)):
            assert np.isfinite(of(factor, labels, array([1e-6, 1.0]))).all()


def test_what_it_refuses():
    words = "scale must be a positive number, by which the kernel is multiplied, or 'loo', and is "
    fit = lambda **named: (
        lambda: rls.fit(KERNEL, X, Y, criterion=rls.extend.log_predictive_density, **named)
    )
    iterative = rls.Iterative(np.arange(8))
    refused(
        *((partial(rls.extend.LogPredictive, scale), words) for scale in (0.0, "evidence", True)),
        (partial(rls.extend.CRPS, "evidence"), words),
        (
            lambda: rls.fit(rls.Linear(), rls.rows.stream([(X, Y)]), criterion="crps"),
            "criterion crps reads the rows anew for every λ",
        ),
        (fit(lams=[1.0], solver=iterative), "has no determinant, exact leverages"),
    )


# what a caller writes
# --------------------------------------------------------------------------------------------------


NUMPY = {
    "criterion loo, or its loss,": {"criterion": rls.extend.LeaveOneOut(lambda e, y: np.abs(e))},
    "FunctionKernel.fn": {"kernel": rls.FunctionKernel(lambda X, Z: np.exp(-np.abs(X @ Z.T)))},
    "FeatureMap.fn": {"kernel": rls.FeatureMap(lambda X: np.tanh(X))},
}


@ANY_PRECISION
def test_what_is_written_in_numpy_is_told_so():
    """It was a TracerArrayConversionError from deep inside of JAX."""
    named = {"kernel": KERNEL, "X": X, "Y": Y[:, 0], "lams": [0.1, 1.0]}
    words = "needs the values of arrays, as NumPy, .* write it with jax.numpy"
    refused(
        *((partial(rls.fit, **named | own), f"{what} {words}") for what, own in NUMPY.items()),
        error=TypeError,
    )
