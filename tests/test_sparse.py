"""Sparse design matrices agree with their dense selves and never become dense whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.experimental import sparse as jsparse
from support import factorize, of_features

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


ONE_BLOCK = 2**20 * 12


@pytest.mark.parametrize(
    ("block_numbers", "weighted", "intercept"),
    [
        (7 * 12, False, True),
        (7 * 12, True, False),
        (7 * 12, True, True),
        (ONE_BLOCK, False, False),
        (ONE_BLOCK, True, True),
    ],
)
@pytest.mark.parametrize(("n", "d"), [(60, 12), (16, 30)])
def test_agrees_with_dense(monkeypatch, n, d, weighted, intercept, block_numbers):
    """In many blocks and in one, with every combination of weights and intercept over the two."""
    monkeypatch.setattr(implementation, "BLOCK_NUMBERS", block_numbers)
    X, dense, y, v = make(n, d)
    weights = jnp.asarray(v * (np.arange(n) % 4 > 0), DTYPE) if weighted else None
    rest = (
        jnp.asarray(y),
        weights,
        jnp.asarray(np.geomspace(1e-2, 1e1, 4), DTYPE),
        rls.folds(np.arange(n) % 3),
        intercept,
    )
    sparse = everything(implementation.sparse_rows(X), *rest, block_numbers=block_numbers)
    for ours, reference in zip(
        sparse, everything(jnp.asarray(dense), *rest, route="features"), strict=True
    ):
        np.testing.assert_allclose(ours, reference, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bcoo", "bcsr"])
def test_forms(form):
    X, dense, _, _ = make(20, 6)
    if form == "bcoo":
        given = jsparse.BCOO.fromdense(jnp.asarray(dense), nse=X.nnz + 5)
    elif form == "bcsr":
        given = jsparse.BCSR.fromdense(jnp.asarray(dense))
    else:
        given = X.asformat(form)
    ours, reference = (
        rls.factorize(rls.Linear(), given),
        factorize(rls.Linear(), jnp.asarray(dense), route="covariance"),
    )
    np.testing.assert_allclose(ours.s, reference.s, rtol=RTOL, atol=RTOL)


def test_fit_and_predict():
    X, dense, y, _ = make(60, 12)
    ours, reference = rls.fit(rls.Linear(), X, y), rls.fit(rls.Linear(), dense, y)
    np.testing.assert_allclose(ours.lam, reference.lam, rtol=1e-3)
    np.testing.assert_allclose(ours.predict(X), reference.predict(dense), rtol=RTOL, atol=RTOL)
    held = rls.fit(rls.Linear(), X[:40], y[:40], validation=(X[40:], y[40:]))
    np.testing.assert_allclose(
        held.error, np.mean((y[40:] - held.predict(dense[40:])) ** 2), rtol=RTOL
    )


def test_other_kernels_with_explicit_features():
    """A multiple of the linear kernel, and a sum with the features of its squares: blocks become
    dense, and their features of the blocks.
    """
    X, dense, y, v = make(60, 12)
    squares = rls.FeatureMap(lambda X: X * X)
    for kernel in (DTYPE(0.5) * rls.Linear(), rls.Linear() + squares, rls.Linear().on([0, 3, 5])):
        ours, reference = (
            rls.fit(kernel, X, y, weights=v),
            rls.fit(kernel, dense, y, weights=v, route="covariance"),
        )
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


def test_errors():
    X, dense, y, _ = make(20, 5)
    with pytest.raises(ValueError, match="needs a dense X"):
        of_features(implementation.sparse_rows(X))
    X.data[0] = np.nan
    with pytest.raises(ValueError, match="X holds 1 stored values that are NaN"):
        rls.fit(rls.Linear(), X, y)
    with pytest.raises(ValueError, match="X is empty"):
        rls.factorize(rls.Linear(), sp.csr_array((0, 3)))
    with pytest.raises(ValueError, match=r"outside jax\.jit"):
        jax.jit(lambda X: rls.factorize(rls.Linear(), X))(
            jsparse.BCOO.fromdense(jnp.asarray(dense))
        )
