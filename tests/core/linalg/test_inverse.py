"""Inverses by halves and panels, at sizes that divide and sizes that do not, against NumPy in
float64 and derivatives against differences.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import EPS, FLOAT64, array, assert_close, assert_derivatives

from jaxrls.core.linalg import inverses, products


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


@pytest.mark.parametrize("n", [1, 5, 23])
def test_inverse_and_solutions(n, rng):
    G, wide = positive(n, rng)
    B, exact = array(rng.normal(size=(n, 2))), np.linalg.inv(wide)

    @jax.jit
    def both(G, B):
        half = jnp.asarray(0.5, G.dtype)
        solved = inverses.solve_diag(G - half * jnp.eye(n, dtype=G.dtype), half, B)
        return inverses.inverse(G), *solved

    P, *solved = both(G, B)
    want = exact @ np.asarray(B, np.float64), np.diag(exact), np.linalg.slogdet(wide)[1]
    for got, value in zip((P, *solved), (exact, *want), strict=True):
        assert_close(got, value, 10 * 10 * n * EPS)
    assert (np.asarray(P) == np.asarray(P).T).all()


@FLOAT64
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
