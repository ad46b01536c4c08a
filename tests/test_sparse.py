"""Sparse design matrices agree with their dense selves and never become dense whole."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import jaxrls as rls
import jaxrls.rows.sparse as implementation

DTYPE = np.float64 if jax.config.jax_enable_x64 else np.float32
RTOL = 1e-9 if jax.config.jax_enable_x64 else 2e-3


def make(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = sp.random(n, d, density=0.15, random_state=rng, format="csr", dtype=DTYPE)
    dense = X.toarray()
    return (
        X,
        dense,
        (dense @ rng.normal(size=d) + 2 * rng.normal(size=n) + 2).astype(DTYPE),
        rng.uniform(0.5, 2, n).astype(DTYPE),
    )


def test_rows_held_out_and_predicted():
    X, dense, y, _ = make(60, 12)
    held = rls.fit(rls.Linear(), X[:40], y[:40], criterion=rls.holdout(X[40:], y[40:]))
    np.testing.assert_allclose(held.predict(X), held.predict(dense), rtol=RTOL, atol=RTOL)
    error = np.mean((y[40:] - held.predict(dense[40:])) ** 2)
    np.testing.assert_allclose(held.error, error, rtol=RTOL)


def test_other_kernels_with_explicit_features():
    """A multiple of the linear kernel on some columns, and a sum with the features of its squares:
    blocks become dense, and their features of the blocks.
    """
    X, dense, y, v = make(60, 12)
    squares = rls.FeatureMap(lambda X: X * X)
    for kernel in (rls.Linear() + squares, DTYPE(0.5) * rls.Linear().on([0, 3, 5])):
        ours = rls.fit(kernel, X, y, weights=v)
        reference = rls.fit(kernel, dense, y, weights=v, solver=rls.Spectral("covariance"))
        assert ours.route == "covariance"
        np.testing.assert_allclose(ours.errors, reference.errors, rtol=RTOL)
        np.testing.assert_allclose(ours.predict(X), reference.predict(dense), rtol=RTOL, atol=RTOL)


def test_never_dense():
    """100,000 × 400 at one entry a row would be 320 MB dense; the compiled program's temporaries
    stay below a tenth of it.
    """
    n, d = 100_000, 400
    X = implementation.sparse_rows(
        sp.csr_array((np.ones(n, DTYPE), (np.arange(n), np.arange(n) % d)), shape=(n, d))
    )
    y = jnp.ones(n, DTYPE)

    def error(X, y):
        factor = rls.factorize(rls.Linear(), X, intercept=True)
        return rls.loo(factor, y, jnp.asarray([1.0, 10.0], DTYPE))

    memory = jax.jit(error).lower(X, y).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.1 * n * d * np.dtype(DTYPE).itemsize
