"""Products along rows and by panels, against NumPy's in float64, at sizes below and above those
from which they differ.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, EPS, array, assert_close, of_covariance, of_landmarks, wide

import jaxrls as rls
from jaxrls.linalg import products
from jaxrls.linalg.decompositions import clip, rounding, spectrum_of
from jaxrls.linalg.products import (
    PANELS,
    from_panels,
    gram_panels,
    panels,
    power_of_two,
    safe_sqrt,
    tall_matmul,
    transposed_matmul,
)

ROWS = 12


@pytest.fixture(autouse=True)
def few_columns(monkeypatch):
    """Transpositions and panels from small sizes on."""
    monkeypatch.setattr(products, "FEW_COLUMNS", 3)


def test_products_are_made_at_the_highest_precision():
    (product,) = jax.make_jaxpr(products.matmul)(jnp.ones((2, 3)), jnp.ones((3, 2))).eqns
    assert product.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2


@pytest.mark.parametrize("shapes", [(2, 5), (5, 2), (3, 3), (7, 4)])
def test_a_transposed_product(shapes, rng):
    A, B = rng.normal(size=(ROWS, shapes[0])), rng.normal(size=(ROWS, shapes[1]))
    assert_close(
        jax.jit(transposed_matmul)(array(A), array(B)), wide(A).T @ wide(B), 4 * ROWS * EPS
    )
    transposes = "optimization_barrier" in str(
        jax.make_jaxpr(transposed_matmul)(array(A), array(B))
    )
    assert transposes == (min(shapes) >= 3 and jax.default_backend() == "cpu")


@pytest.mark.parametrize("columns", [1, 3, 12, 13, 14, 16, 23])
def test_panels_summed_over_blocks_of_rows(columns, rng):
    A = rng.normal(size=(ROWS, columns))
    halves = [gram_panels(array(half)) for half in (A[:5], A[5:])]
    whole = from_panels(jax.tree.map(jnp.add, *halves))
    assert_close(whole, wide(A).T @ wide(A), 4 * ROWS * EPS)
    assert (np.asarray(whole) == np.asarray(whole).T).all()


@pytest.mark.parametrize("n", [1, 12, 13, 14, 17, 100])
def test_panels_cover_every_row_once(n):
    starts, stops = zip(*panels(n), strict=True)
    assert starts == (0, *stops[:-1])
    assert stops[-1] == n
    assert len(starts) == (1 if n <= 12 else PANELS)


def test_only_blocks_up_to_the_diagonal_are_multiplied():
    numbers = sum(panel.size for panel in gram_panels(jnp.zeros((2, 16))))
    assert numbers == 16 * 16 * (PANELS + 1) // (2 * PANELS)


def test_derivatives_and_vmap(rng):
    """tr(C (AᵀA)²) with symmetric C, whose derivatives of first and second order are products
    too.
    """
    C = rng.normal(size=(16, 16))
    C = array(C + C.T)
    A, B = (array(rng.normal(size=(ROWS, 16))) for _ in range(2))

    def trace(A):
        G = from_panels(gram_panels(A))
        return jnp.sum(transposed_matmul(G, G) * C)

    def exact(A):
        G, wide_C = A.T @ A, np.asarray(C, np.float64)
        return 2 * A @ (G @ wide_C + wide_C @ G)

    a, b = np.asarray(A, np.float64), np.asarray(B, np.float64)
    slope, change = jax.jit(lambda A, B: jax.jvp(jax.grad(trace), (A,), (B,)))(A, B)
    assert_close(slope, exact(a), 100 * ROWS * EPS)
    # `exact` is a polynomial of degree 3 in A, of which this is the exact derivative along B.
    differences = (8 * (exact(a + b) - exact(a - b)) - (exact(a + 2 * b) - exact(a - 2 * b))) / 12
    assert_close(change, differences, 1000 * ROWS * EPS)
    assert_close(
        jax.vmap(jax.grad(trace))(jnp.stack([A, B])),
        np.stack([exact(a), exact(b)]),
        100 * ROWS * EPS,
    )


def results(rng):
    """What goes through sums of panels over ragged blocks: both factors of features, both points,
    and a derivative of second order.
    """
    X, y, weights = (
        array(rng.normal(size=(41, 9))),
        array(rng.normal(size=41)),
        array(rng.uniform(0.5, 2, size=41)),
    )
    rows, lams, kernel = jnp.arange(0, 36, 4), array([0.1, 1.0]), rls.Gaussian(array(3.0))

    @jax.jit
    def run(X, y, weights, lam):
        covariance = of_covariance(X, weights=weights, intercept=True)
        subset = of_landmarks(kernel, X, rows, weights=weights, intercept=True, block_size=7)
        found = [rls.loo(factor, y, lams) for factor in (covariance, subset)]
        for each, landmarks in ((kernel, rows), (rls.Linear(), None)):
            error = functools.partial(
                rls.loo_objective, each, X, y, weights=weights, landmarks=landmarks, block_size=7
            )
            found += [error(lam), *jax.jvp(jax.grad(error), (lam,), (lam,))]
        return found

    return run(X, y, weights, lams[0])


@pytest.mark.float64  # the same sums in another order
@pytest.mark.slow
def test_all_that_sums_panels_is_what_one_panel_gives(monkeypatch):
    monkeypatch.setattr(products, "FEW_COLUMNS", 100)
    whole = results(np.random.default_rng(0))
    monkeypatch.setattr(products, "FEW_COLUMNS", 1)
    for one, several in zip(whole, results(np.random.default_rng(0)), strict=True):
        assert_close(several, one, 1e4 * EPS)


def test_a_unit_is_the_power_of_two_at_or_below():
    """1 where there is none; never so small or so large that its reciprocal is not one too."""
    info = np.finfo(DTYPE)
    least = 2.0 ** (info.minexp + 1)
    given = [
        0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        1.5,
        -3.0,
        4.0,
        0.3,
        np.nextafter(DTYPE(2), DTYPE(0)),
        info.tiny,
        info.max,
    ]
    want = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 0.25, 1.0, least, 1 / least]
    assert np.asarray(jax.jit(power_of_two)(array(given))).tolist() == want
    assert jax.jit(jax.grad(lambda x: x / power_of_two(x)))(array(3.0)) == 0.5


def test_a_root_at_0_stands_still():
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(safe_sqrt)))(array([-1.0, 0.0, 4.0]))
    assert value.tolist() == [0.0, 0.0, 2.0] and slope.tolist() == [0.0, 0.0, 0.25]


def test_rounding_below_0_is_taken_off_and_told():
    """Relative to the largest eigenvalue, or to what centring took off; a spectrum of zeros is 0
    below 0.
    """
    for given, constant, kept, below in (
        ([-1.0, 2.0], 0.0, [0.0, 2.0], 0.5),
        ([-1.0, 2.0], 8.0, [0.0, 2.0], 0.125),
        ([0.25, 0.5], 0.0, [0.25, 0.5], 0.0),
        ([-0.25, 0.5], 0.0, [0.0, 0.5], 0.5),
        ([0.0, 0.0], 0.0, [0.0, 0.0], 0.0),
    ):
        s, found = clip(array(given), constant)
        assert s.tolist() == kept and found == below
    assert_close(rounding(9, array([1.0, 2.0])), 6 * EPS, 2 * EPS)
    assert_close(rounding(1, array([1.0, 2.0]), 4.0), 4 * EPS, 2 * EPS)


def test_eigenvalues_of_0_have_no_inverse():
    s, V, inverse_root, below = jax.jit(spectrum_of)(array(np.diag([4.0, 0.0, 0.5 * EPS])))
    assert s.tolist() == [0.0, 0.0, 4.0] and inverse_root.tolist() == [0.0, 0.0, 0.5] and below == 0
    assert_close(np.abs(V), [[0, 0, 1], [1, 0, 0], [0, 1, 0]], 10 * EPS)
    assert_close(
        spectrum_of(array(np.diag([0.5, -0.25, 0.0])))[3], 0.5, 10 * EPS
    )  # relative to the largest, of what is below 0


def test_a_tall_product_and_its_slopes(rng):
    """Σ sin(AB) in A and B, and the slope of its slope along a change of B."""
    A, B, dB = (array(rng.normal(size=shape)) for shape in ((ROWS, 5), (5, 4), (5, 4)))
    slopes = jax.grad(lambda A, B: jnp.sum(jnp.sin(tall_matmul(A, B))), (0, 1))
    (in_A, in_B), (_, bent) = jax.jit(lambda: jax.jvp(slopes, (A, B), (jnp.zeros_like(A), dB)))()
    a, b, d = wide(A), wide(B), wide(dB)
    assert_close(in_A, np.cos(a @ b) @ b.T, 20 * ROWS * EPS)
    assert_close(in_B, a.T @ np.cos(a @ b), 20 * ROWS * EPS)
    assert_close(bent, -a.T @ (np.sin(a @ b) * (a @ d)), 20 * ROWS * EPS)
    for columns in (2, 4):  # of B
        program = str(
            jax.make_jaxpr(lambda C: jax.jvp(lambda B: tall_matmul(A, B), (C,), (C,)))(
                B[:, :columns]
            )
        )
        assert ("optimization_barrier" in program) == (
            columns >= 3 and jax.default_backend() == "cpu"
        )
