"""Sparse design matrices agree with their dense selves and never become dense whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


@functools.partial(jax.jit, static_argnames=("intercept", "route", "block_numbers"))
def everything(X, y, weights, lams, plan, intercept, route=None, block_numbers=None):
    """`block_numbers` makes a program of each block size, which the library reads while it is
    traced.
    """
    assert block_numbers in (None, implementation.BLOCK_NUMBERS)
    factor = rls.factorize(rls.Linear(), X, weights=weights, intercept=intercept, route=route)
    path = rls.path(factor, y, lams)
    return (
        path.coef,
        path.intercept,
        path.loo,
        rls.loo_residuals(factor, y, 0.5),
        rls.kfold(factor, y, lams, plan),
    )


dense_ones = functools.partial(everything, route="features")
ONE_BLOCK = 2**20 * 12


@pytest.mark.parametrize(
    ("block_numbers", "weighted", "intercept"),
    [(7 * 12, False, True), (7 * 12, True, True), (ONE_BLOCK, True, False)],
)
@pytest.mark.parametrize(("n", "d"), [(60, 12), (16, 30)])
def test_agrees_with_dense(monkeypatch, n, d, weighted, intercept, block_numbers):
    """In many blocks and in one."""
    monkeypatch.setattr(implementation, "BLOCK_NUMBERS", block_numbers)
    X, dense, y, v = make(n, d)
    weights = jnp.asarray(v * (np.arange(n) % 4 > 0), DTYPE) if weighted else None
    lams, plan = jnp.asarray(np.geomspace(1e-2, 1e1, 4), DTYPE), rls.folds(np.arange(n) % 3)
    rest = jnp.asarray(y), weights, lams, plan, intercept
    sparse = everything(implementation.sparse_rows(X), *rest, block_numbers=block_numbers)
    for ours, reference in zip(sparse, dense_ones(jnp.asarray(dense), *rest), strict=True):
        np.testing.assert_allclose(ours, reference, rtol=RTOL, atol=RTOL)


def test_rows_held_out_and_predicted():
    X, dense, y, _ = make(60, 12)
    held = rls.fit(rls.Linear(), X[:40], y[:40], validation=(X[40:], y[40:]))
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
        reference = rls.fit(kernel, dense, y, weights=v, route="covariance")
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
