"""Products along rows and by panels, against NumPy's in float64, at sizes below and above those
from which they differ.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import EPS, array, assert_close, wide

from jaxrls.core.linalg import products
from jaxrls.core.linalg.products import from_panels, gram_panels, tall_matmul, transposed_matmul

ROWS = 12


@pytest.fixture(autouse=True)
def few_columns(monkeypatch):
    """Transpositions and panels from small sizes on."""
    monkeypatch.setattr(products, "FEW_COLUMNS", 3)


def is_barred(function, *arguments):
    """Whether a program holds a barrier, as a product does that is transposed before."""
    return "optimization_barrier" in str(jax.make_jaxpr(function)(*arguments))


@pytest.mark.parametrize("shapes", [(2, 5), (5, 2), (3, 3), (7, 4)])
def test_a_transposed_product(shapes, rng):
    A, B = (array(rng.normal(size=(ROWS, columns))) for columns in shapes)
    assert_close(jax.jit(transposed_matmul)(A, B), wide(A).T @ wide(B), 4 * ROWS * EPS)
    transposes = (min(shapes) >= 3 or shapes[1] < 3) and jax.default_backend() == "cpu"
    assert is_barred(transposed_matmul, A, B) == transposes


@pytest.mark.parametrize("columns", [1, 3, 12, 13, 14, 16, 23])
def test_panels_summed_over_blocks_of_rows(columns, rng):
    A = rng.normal(size=(ROWS, columns))
    halves = [gram_panels(array(half)) for half in (A[:5], A[5:])]
    whole = from_panels(jax.tree.map(jnp.add, *halves))
    assert_close(whole, wide(A).T @ wide(A), 4 * ROWS * EPS)
    assert (np.asarray(whole) == np.asarray(whole).T).all()


def test_derivatives_and_vmap(rng):
    """tr(C (AᵀA)²) with symmetric C, whose derivatives of first and second order are products
    too.
    """
    C = rng.normal(size=(16, 16))
    C, A, B = array(C + C.T), *map(array, rng.normal(size=(2, ROWS, 16)))

    def trace(A):
        G = from_panels(gram_panels(A))
        return jnp.sum(transposed_matmul(G, G) * C)

    a, b, c = wide(A), wide(B), wide(C)

    def exact(A):
        return 2 * A @ (A.T @ A @ c + c @ A.T @ A)

    slope, change = jax.jit(lambda A, B: jax.jvp(jax.grad(trace), (A,), (B,)))(A, B)
    assert_close(slope, exact(a), 100 * ROWS * EPS)
    # `exact` is a polynomial of degree 3 in A, of which this is the exact derivative along B.
    differences = (8 * (exact(a + b) - exact(a - b)) - (exact(a + 2 * b) - exact(a - 2 * b))) / 12
    assert_close(change, differences, 1000 * ROWS * EPS)
    both = jax.jit(jax.vmap(jax.grad(trace)))(jnp.stack([A, B]))
    assert_close(both, np.stack([exact(a), exact(b)]), 100 * ROWS * EPS)


def test_a_tall_product_and_its_slopes(rng):
    """Σ sin(AB) in A and B, and the slope of its slope along a change of B."""
    A, B, dB = (array(rng.normal(size=shape)) for shape in ((ROWS, 5), (5, 4), (5, 4)))
    slopes = jax.grad(lambda A, B: jnp.sum(jnp.sin(tall_matmul(A, B))), (0, 1))
    (in_A, in_B), (_, bent) = jax.jit(lambda: jax.jvp(slopes, (A, B), (jnp.zeros_like(A), dB)))()
    a, b, d = wide(A), wide(B), wide(dB)
    assert_close(in_A, np.cos(a @ b) @ b.T, 20 * ROWS * EPS)
    assert_close(in_B, a.T @ np.cos(a @ b), 20 * ROWS * EPS)
    assert_close(bent, -a.T @ (np.sin(a @ b) * (a @ d)), 20 * ROWS * EPS)
    moved = lambda C: jax.jvp(lambda B: tall_matmul(A, B), (C,), (C,))
    assert not is_barred(moved, B[:, :2])
    assert is_barred(moved, B) == (jax.default_backend() == "cpu")
