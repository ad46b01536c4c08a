"""Inverses by halves and panels, at sizes that divide and sizes that do not, against NumPy in
float64 and derivatives against differences.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import EPS, array, assert_close, assert_derivatives

from jaxrls.linalg import inverses, products

SIZES = (1, 5, 23)


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch):
    """Many levels and panels at small sizes."""
    monkeypatch.setattr(inverses, "LEAF", 3)
    monkeypatch.setattr(products, "FEW_COLUMNS", 1)


def positive(n, rng):
    """A matrix of condition 10 and its values in float64, as the library sees them."""
    Q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    G = array((Q * np.geomspace(1, 10, n)) @ Q.T)
    return (G + G.T) / 2, np.asarray((G + G.T) / 2, np.float64)


@pytest.mark.parametrize("n", SIZES)
def test_inverse(n, rng):
    G, wide = positive(n, rng)
    P = jax.jit(lambda G: inverses.inverse(G))(G)
    assert_close(P, np.linalg.inv(wide), 10 * 10 * n * EPS)
    assert (np.asarray(P) == np.asarray(P).T).all()


@pytest.mark.parametrize("n", SIZES)
def test_solve_diag(n, rng):
    G, wide = positive(n, rng)
    B = array(rng.normal(size=(n, 2)))
    X, diagonal, logdet = jax.jit(
        lambda G, B: inverses.solve_diag(
            G - 0.5 * jnp.eye(n, dtype=G.dtype), jnp.asarray(0.5, G.dtype), B
        )
    )(G, B)
    P = np.linalg.inv(wide)
    assert_close(X, P @ np.asarray(B, np.float64), 10 * 10 * n * EPS)
    assert_close(diagonal, np.diag(P), 10 * 10 * n * EPS)
    assert_close(logdet, np.linalg.slogdet(wide)[1], 10 * 10 * n * EPS)


@pytest.mark.float64
def test_derivatives(rng):
    G, _ = positive(7, rng)
    B, a, E = (
        array(rng.normal(size=(7, 2))),
        array(rng.normal(size=7)),
        array(rng.normal(size=(7, 7))),
    )

    def value(x):
        """In the matrix, the shift, the right-hand side and a factor of the result."""
        A, shift = G + x[0] * (E @ E.T), 1 + x[1]
        X, diagonal, logdet = inverses.solve_diag(A, shift, B * x[2])
        return x[3] * (jnp.sum(jnp.sin(X)) + jnp.dot(a, jnp.exp(diagonal)) + logdet**2)

    for f in (value, jax.grad(value)):
        assert_derivatives(f, jnp.array([0.1, 0.1, 0.1, 0.2]))


def test_what_is_not_positive_definite_is_nan():
    assert np.isnan(inverses.inverse(array(np.diag([1.0, -1.0, 1.0, 1.0])))).any()
