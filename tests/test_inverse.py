"""Inverses by halves and panels, at sizes that divide and sizes that do not, against NumPy in
float64 and derivatives against differences.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import EPS, X64, array, assert_close, assert_derivatives

from jaxrls.linalg import inverses, products

SIZES = (1, 3, 4, 5, 16, 23, 40)


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
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("moving", ["matrix", "shift", "side", "all"])
def test_derivatives(moving, order, rng):
    assert X64
    G, _ = positive(7, rng)
    B, a, E = (
        array(rng.normal(size=(7, 2))),
        array(rng.normal(size=7)),
        array(rng.normal(size=(7, 7))),
    )

    def value(x):
        """Of two numbers, one that moves what is to move and one that multiplies the result."""
        at = {
            part: x[0] if moving in (part, "all") else 0.1 for part in ("matrix", "shift", "side")
        }
        X, diagonal, logdet = inverses.solve_diag(
            G + at["matrix"] * (E @ E.T), 1 + jnp.asarray(at["shift"]), B * at["side"]
        )
        return x[1] * (jnp.sum(jnp.sin(X)) + jnp.dot(a, jnp.exp(diagonal)) + logdet**2)

    assert_derivatives(value if order == 1 else jax.grad(value), jnp.array([0.1, 0.2]))


def test_what_is_not_positive_definite_is_nan():
    assert np.isnan(inverses.inverse(array(np.diag([1.0, -1.0, 1.0, 1.0])))).any()
