"""Linear models whose weights would be larger than their rows: coefficients stay dual, predictions
are those of refits.
"""

import jax
import numpy as np
import oracle
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from support import ANY_PRECISION, DTYPE, EDGE, FLOAT64, X64

import jaxrls as rls

N, D, T = 14, 400, 100
RTOL = 1e-9 if X64 else 2e-3
LAMS = np.array([0.5, 20.0], DTYPE)


def data(offset=0.0):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N + 5, D)) * (rng.random((N + 5, D)) < 0.5)
    X[:, 0] = offset + 1 + rng.random(N + 5)
    return X.astype(DTYPE), rng.normal(size=(N, T)).astype(DTYPE), rng.uniform(0.5, 2, N)


SPARSE = pytest.param(scipy.sparse.csr_array, id="sparse", marks=pytest.mark.slow)


@EDGE
@pytest.mark.parametrize("way", [pytest.param(np.asarray, id="dense"), SPARSE])
@pytest.mark.parametrize("targets", [T, pytest.param(2, marks=pytest.mark.slow)])
def test_predictions_are_those_of_refits(way, targets, tmp_path):
    """Columns far from 0, weights, with an intercept and λ for each target, and without."""
    X, Y, v = data(50.0)
    Y, kernel = Y[:, :targets], DTYPE(2.0) * rls.Linear()
    for intercept, each in ((True, True), (False, False)):
        options = {"weights": v.astype(DTYPE), "intercept": intercept, "per_target": each}
        fit = rls.fit(kernel, way(X[:N]), Y, lams=LAMS, **options)
        assert (fit.model.points is None) == (targets == 2)
        Phi, wide = np.sqrt(2) * X.astype(float), Y.astype(float)
        refits = [oracle.refit(Phi[:N], wide, float(lam), v, intercept) for lam in LAMS]
        want = np.where(fit.lam == LAMS[0], *(Phi[N:] @ w + b for w, b in refits))
        for new in (X[N:], way(X[N:])):
            assert_allclose(fit.predict(new), want, rtol=RTOL, atol=RTOL)
    rls.save(tmp_path / "model", fit)
    assert_allclose(rls.load(tmp_path / "model").predict(X[N:]), want, rtol=RTOL, atol=RTOL)


@ANY_PRECISION
def test_nothing_is_as_large_as_columns_times_targets():
    """20,000 columns and 10,000 targets: the weights would have 200 million numbers."""
    n, d, t = 30, 20_000, 10_000
    rows, labels = (jax.ShapeDtypeStruct((n, k), DTYPE) for k in (d, t))

    def predicted(X, Y):
        return rls.fit(rls.Linear(), X, Y, lams=[1.0], keep=False).predict(X)

    memory = jax.jit(predicted).lower(rows, labels).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.2 * d * t * np.dtype(DTYPE).itemsize


@FLOAT64
def test_memory_counts_the_coefficients_that_are_kept():
    size = lambda targets: rls.memory(rls.Linear(), (500, 148_000), targets=targets, lams=1).bytes
    assert size(52_000) < 5e9 < 8 * 148_000 * 52_000
    assert size(100) > 8 * 148_000 * 100
