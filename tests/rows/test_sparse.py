"""Sparse rows agree with their dense selves and never become dense whole: K from products of what
is stored, in fits, on landmarks and in predictions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import scipy.sparse as sp
from jax.experimental import sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import pairwise
from support import ANY_PRECISION, COMPILED, DTYPE, EDGE, EPS, FLOAT64, X64, refused, wide

import jaxrls as rls
import jaxrls.rows.sparse as implementation
from jaxrls.rows.sparse import SparseRows

RTOL = 1e-9 if X64 else 2e-3
N, D = 40, 12


def make(n=N, d=D, density=0.2):
    rng = np.random.default_rng(0)
    X = sp.random(n, d, density=density, random_state=rng, format="lil", dtype=DTYPE)
    X[7] = X[3]
    X[11] = 0  # a row of which nothing is stored
    X = X.tocsr()
    dense = X.toarray()
    return X, dense, (dense @ rng.normal(size=d) + rng.normal(size=n)).astype(DTYPE)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 7 rows and a ragged one."""
    monkeypatch.setattr(implementation, "BLOCK_NUMBERS", 7 * D)
    monkeypatch.setattr(implementation, "FEWEST_ROWS", 1)


def differences(dense, inverse):
    """r² in extended precision."""
    wide = dense.astype(np.longdouble) * np.asarray(inverse, np.longdouble)
    return ((wide[:, None] - wide[None]) ** 2).sum(axis=2)


def test_k_of_sparse_rows_is_right_to_rounding_whether_they_are_near_the_origin_or_far_from_it(
    small_blocks,
):
    """Gaussian kernels with a width for each column, of rows whose squared lengths in widths are up
    to 10 and up to 10⁵.
    """
    X, dense, _ = make()
    rows, made = (
        SparseRows.read("X", X),
        jax.jit(lambda rows, kernel: rls.extend.gram(kernel, rows)),
    )
    for widths in (np.linspace(0.5, 2, D), np.linspace(0.005, 0.02, D)):
        widths = widths.astype(DTYPE)
        K, exact = (
            made(rows, rls.Gaussian(jnp.asarray(widths))),
            np.exp(-differences(dense, 1 / widths.astype(np.longdouble)) / 2),
        )
        assert np.abs(np.asarray(K) - exact).max() < 6 * (2 + D**0.5) * EPS * 17 * np.exp(-0.5)
        assert (np.diagonal(K) == 1).all() and K[7, 3] == K[3, 7] == 1  # of equal rows exactly


@FLOAT64
@pytest.mark.slow
def test_sums_products_and_columns_of_kernels_are_those_of_dense_rows_and_of_scikit_learn(
    small_blocks,
):
    """With a kernel that has no products of rows among them, which sees them dense."""
    X, dense, _ = make()
    width, far = DTYPE(0.7), rls.Laplacian(DTYPE(1.0))
    poly, gaussian = rls.Polynomial(2), rls.Gaussian(width)
    kernels = (
        poly,
        rls.Matern(1.5, width) + DTYPE(0.5) * far * gaussian,
        (rls.Linear() * gaussian).on([0, 3, -1]),
    )
    of = jax.jit(lambda rows, kernels: [rls.extend.gram(kernel, rows) for kernel in kernels])
    ours = of(SparseRows.read("X", X), kernels)
    for K, want in zip(ours, of(dense, kernels), strict=True):
        assert_allclose(K, want, rtol=100 * EPS, atol=100 * EPS)
    assert_allclose(
        ours[0], pairwise.polynomial_kernel(X, degree=2, gamma=1, coef0=1), rtol=100 * EPS
    )


@FLOAT64
@EDGE
@pytest.mark.parametrize(
    "landmarks",
    [
        pytest.param(None, id="all rows"),
        pytest.param([0, 5, 9, 20], id="landmarks", marks=pytest.mark.slow),
    ],
)
def test_fits_and_predictions_of_sparse_rows_are_those_of_dense_ones(
    small_blocks, tmp_path, landmarks
):
    """Dense and sparse rows to predict; saved and loaded."""
    X, dense, y = make()
    options = {"lams": np.geomspace(1e-2, 10, 5, dtype=DTYPE), "landmarks": landmarks}
    ours, theirs = (rls.fit(rls.Gaussian(DTYPE(0.7)), rows, y, **options) for rows in (X, dense))
    assert_allclose(ours.errors, theirs.errors, rtol=1e4 * EPS)
    rls.save(tmp_path / "model", ours)
    want, again = theirs.predict(dense[:9]), rls.load(tmp_path / "model")
    for new in (X[:9], dense[:9]):
        assert_allclose(again.predict(new), want, rtol=1e4 * EPS, atol=1e4 * EPS)


@FLOAT64
@pytest.mark.slow
def test_landmarks_of_sparse_rows_are_those_of_dense_ones(small_blocks):
    X, dense, _ = make()
    chosen, theirs = (
        rls.choose_landmarks(rls.Gaussian(DTYPE(0.7)), given, 6, key=jax.random.key(0))
        for given in (X, dense)
    )
    assert chosen.indices.tolist() == theirs.indices.tolist()
    assert_array_equal(chosen.points, theirs.points)
    assert_allclose(chosen.trace_residual, theirs.trace_residual, rtol=1e3 * EPS)


@FLOAT64
@pytest.mark.slow
def test_k_of_sparse_rows_takes_no_dense_matrix():
    """3,000 × 40,000 at some five entries a row would be 960 MB dense; K itself is 72 MB."""
    n, d = 3_000, 40_000
    rng = np.random.default_rng(0)
    X = sp.csr_array(
        (np.ones(5 * n), (np.repeat(np.arange(n), 5), rng.integers(0, d, 5 * n))), shape=(n, d)
    )
    compiled = (
        jax.jit(lambda rows, kernel: rls.extend.gram(kernel, rows))
        .lower(SparseRows.read("X", X), rls.Gaussian(jnp.array(1.0)))
        .compile()
    )
    assert (
        compiled.memory_analysis().temp_size_in_bytes
        < 8 * (4 * n * n + 6 * 128 * d)
        < 0.8 * 8 * n * d
    )


@FLOAT64
@pytest.mark.slow
def test_kernels_of_gaps_and_of_angles_are_those_of_scikit_learn(small_blocks):
    X, dense, _ = make()
    X, dense, reference = abs(X), abs(dense), {}
    reference[rls.Laplacian(DTYPE(2.0))] = lambda X, Z: pairwise.laplacian_kernel(X, Z, gamma=0.5)
    reference[rls.ChiSquared(DTYPE(2.0))] = lambda X, Z: pairwise.chi2_kernel(X, Z, gamma=0.5)
    reference[rls.Cosine() + rls.Constant(DTYPE(3.0))] = lambda X, Z: (
        pairwise.cosine_similarity(X, Z) + 3
    )
    rows, few = SparseRows.read("X", X), SparseRows.read("X", X[:9])
    ours = jax.jit(
        lambda *new: [[rls.extend.gram(kernel, A, rows) for A in new] for kernel in reference]
    )(rows, few, jnp.asarray(dense[:9]))
    for (K, *others), of in zip(ours, reference.values(), strict=True):
        assert_allclose(K, of(dense, dense), atol=100 * EPS)
        for found in others:
            assert_allclose(found, of(dense[:9], dense), atol=100 * EPS)


def far(offset):
    """Rows as sparse and as dense ones, labels, weights: one column, of which all rows store
    something, is that far from 0.
    """
    rng = np.random.default_rng(5)
    n, d = 30, 60
    dense = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.15)
    dense[:, 0] = 1 + rng.random(n)
    y, v = rng.normal(size=(n, 2)).astype(DTYPE), rng.uniform(0.5, 2, n).astype(DTYPE)
    moved = dense.astype(DTYPE)
    moved[:, 0] += DTYPE(offset)
    dense = moved - DTYPE(offset) * (np.arange(d) == 0).astype(DTYPE)  # as rounded
    return sp.csr_array(moved), dense, y, v


FAR_LAMS, HALF = np.array([0.1, 3.0], DTYPE), DTYPE(0.5) * rls.Linear()


@EDGE
@pytest.mark.parametrize(
    ("offset", "weighted"),
    [
        pytest.param(1e4, False, id="far"),
        pytest.param(1e4, True, id="far, weights"),
        pytest.param(0, True, id="weights, no intercept", marks=pytest.mark.slow),
    ],
)
def test_linear_models_of_fewer_rows_than_columns_are_refits_also_far_from_0(
    offset, weighted, small_blocks
):
    """With weights, and no intercept, for which the columns must be near 0. The origin of the
    column costs no digits.
    """
    X, dense, y, v = far(offset)
    lams, n, intercept = FAR_LAMS, len(y), offset > 0
    weights = v if weighted else None
    fit = rls.fit(HALF, X, y, lams=lams, weights=weights, intercept=intercept)
    assert fit.route == "gram" and fit.model.points is None
    Phi, wide = np.sqrt(0.5) * dense.astype(float), y.astype(float)
    w = v.astype(float) if weighted else None
    e = [oracle.loo_residuals(Phi, wide, lam, w, intercept) for lam in lams.astype(float)]
    share = np.ones(n) / n if w is None else w / w.sum()
    assert_allclose(fit.errors, [share @ part**2 for part in e], rtol=RTOL)
    coef, b = oracle.refit(Phi, wide, float(fit.lam), w, intercept)
    assert_allclose(fit.predict(X), Phi @ coef + b, rtol=RTOL, atol=RTOL * (1 + offset**0.5))


@EDGE
@pytest.mark.slow
def test_levels_of_linear_models_far_from_0_are_those_of_refits(small_blocks):
    X, dense, y, _ = far(1e4)
    n, group = len(y), np.arange(len(y)) % 2
    found = rls.fit(HALF, X, y, lams=FAR_LAMS, fixed_effects=rls.levels(group))
    K, B, want = 0.5 * (dense @ dense.T).astype(float), np.eye(2)[group], []
    for lam in FAR_LAMS.astype(float):
        e = np.empty((n, 2))
        for i in range(n):
            stay = np.arange(n) != i
            G = K[np.ix_(stay, stay)] + lam * np.eye(n - 1)
            system = np.block([[G, B[stay]], [B[stay].T, np.zeros((2, 2))]])
            solved = np.linalg.solve(system, np.pad(y[stay].astype(float), ((0, 2), (0, 0))))
            e[i] = y[i] - np.hstack([K[i, stay], B[i]]) @ solved
        want.append(np.mean(e**2, axis=0))
    assert_allclose(found.errors, want, rtol=RTOL)


@EDGE
@pytest.mark.slow
def test_deviations_of_linear_models_are_those_of_dense_rows(small_blocks):
    X, dense, y, v = far(100.0)
    options = {"weights": v, "lams": FAR_LAMS[1:]}
    dense_fit = rls.fit(HALF, dense, y, solver=rls.Spectral(), **options)
    want = dense_fit.predict(dense, return_std=True)[1]
    for solver, route in ((rls.Spectral(), "gram"), (rls.Cholesky(), "cholesky")):
        fit = rls.fit(HALF, X, y, solver=solver, **options)
        assert fit.route == route
        assert_allclose(fit.predict(X, return_std=True)[1], want, rtol=100 * RTOL)


@ANY_PRECISION
def test_rows_with_about_as_many_entries_compile_nothing_again():
    """As the texts of one fold after another."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=40).astype(DTYPE)
    for entries in (720, 703, 741):
        places = rng.integers(0, 40, entries), rng.integers(0, 5000, entries)
        X = sp.csr_array((rng.random(entries).astype(DTYPE), places), shape=(40, 5000))
        COMPILED.clear()
        rls.fit(rls.Linear(), X, y, lams=[1.0]).predict(X[:10])
    assert not COMPILED


@FLOAT64
@EDGE
@pytest.mark.slow
def test_rows_of_a_million_columns_take_what_their_entries_take():
    """Fits and predictions by K of SciPy's products, also the widths from distances, which are
    NumPy's; and programs for a million columns, which hold less than 4 % of the dense matrix of
    2.5 GB.
    """
    n, w = 300, 20
    rng = np.random.default_rng(0)

    def rows_of(d):
        columns = rng.integers(0, d, n * w) // rng.choice([1, 9999], n * w)
        X = sp.csr_array((rng.random(n * w), (np.repeat(np.arange(n), w), columns)), shape=(n, d))
        X.sum_duplicates()
        return X[[*range(5), 3, *range(6, n)]]

    X = rows_of(2**16)
    y, v, lams = rng.normal(size=n), rng.uniform(0.5, 2, n), np.geomspace(0.1, 10, 3)
    products = (X @ X.T).toarray()
    lengths = np.diagonal(products)
    r2 = np.maximum(lengths[:, None] + lengths - 2 * products, 0)
    reference = {
        rls.Linear(): products,
        rls.Polynomial(2): (products + 1) ** 2,
        rls.Cosine(): products / np.sqrt(np.outer(lengths, lengths)),
        rls.Gaussian(3.0): np.exp(-r2 / 18),
        rls.Gaussian(0.02): np.exp(-r2 / 0.0008),  # rows far out
    }
    for kernel, K in reference.items():
        ours = rls.fit(kernel, X, y, lams=lams, weights=v)
        theirs = rls.fit(rls.Precomputed(), K, y, lams=lams, weights=v)
        assert_allclose(ours.errors, theirs.errors, rtol=1e-9)
        for new in (X[:7], X[:2].toarray())[: 1 + isinstance(kernel, rls.Gaussian)]:
            want = theirs.predict(K[: new.shape[0]])
            assert_allclose(ours.predict(new), want, rtol=1e-9, atol=1e-9)
    million = SparseRows.read("X", rows_of(2**20))
    fit = lambda rows, y: rls.fit(rls.Gaussian(3.0), rows, y, lams=lams).predict(rows)
    linear = lambda rows, y: rls.fit(rls.Linear(), rows, y, lams=lams).predict(rows)
    for program in (fit, linear):
        memory = jax.jit(program).lower(million, jnp.asarray(y)).compile().memory_analysis()
        assert memory.temp_size_in_bytes < 0.04 * 8 * n * 2**20
    rows = SparseRows.read("X", X)
    kept = np.delete(r2, 5, 0)[:, np.delete(np.arange(n), 5)][np.tril_indices(n - 1, -1)]
    width = rls.fit("gaussian", X, y, lams=lams).kernel.width
    assert_allclose(width, np.sqrt(np.median(kept)), rtol=1e-9)
    program = jax.jit(lambda y: rls.fit("gaussian", rows, y, lams=lams).kernel.width)
    every = r2[np.tril_indices(n, -1)]  # equal rows are not known as such inside of a program
    assert_allclose(program(y), np.sqrt(np.median(every[every > 1e-9])), rtol=1e-9)


@ANY_PRECISION
@pytest.mark.slow
def test_sparse_matrices_of_jax_are_those_of_scipy():
    X, dense, y = make()
    want = rls.fit(rls.Gaussian(DTYPE(2.0)), X, y, lams=[1.0])
    for kind in (sparse.BCOO, sparse.BCSR):
        fit = rls.fit(rls.Gaussian(DTYPE(2.0)), kind.fromdense(jnp.asarray(dense)), y, lams=[1.0])
        assert_allclose(fit.loo_residuals, want.loo_residuals, rtol=RTOL, atol=RTOL)


def test_what_sparse_rows_cannot_do_is_said(small_blocks):
    X, _, y = make()
    chi, positive = rls.ChiSquared(1.0), "ChiSquared is for X ≥ 0"
    late = abs(X) + sp.csr_array(([-9], ([N - 1], [D - 1])), shape=(N, D), dtype=DTYPE)
    refused(
        (
            lambda: rls.fit(rls.Gaussian(DTYPE(1.0)).on([0, 0]), X, y),
            r"columns of a sparse X must be named once each, and are \[0, 0\]",
        ),
        (lambda: rls.fit(chi, -abs(X), y), positive),
        (lambda: rls.fit(chi, late, y), positive),
        (lambda: rls.fit(rls.Precomputed(), X @ X.T, y), "and X is sparse"),
    )
    SparseRows.read("X", late).check(chi.on([0, 3]))


@pytest.mark.slow
def test_rows_held_out_and_predicted():
    X, dense, y = make(60)
    held = rls.fit(rls.Linear(), X[:40], y[:40], criterion=rls.holdout(X[40:], y[40:]))
    coef, b = oracle.refit(wide(dense[:40]), wide(y[:40, None]), float(held.lam), None, True)
    want = (wide(dense) @ coef + b)[:, 0]
    assert_allclose(held.predict(X), want, rtol=RTOL, atol=RTOL)
    assert_allclose(held.error, np.mean((y[40:] - want[40:]) ** 2), rtol=RTOL)


@EDGE
@pytest.mark.slow
def test_other_kernels_with_explicit_features():
    """A multiple of the linear kernel on some columns, and a sum with the features of its squares:
    blocks become dense, and their features of the blocks.
    """
    X, dense, y = make()
    v = np.linspace(0.5, 2, N, dtype=DTYPE)
    labels, w, rows = wide(y)[:, None], wide(v), wide(dense)
    features = {
        rls.Linear() + rls.FeatureMap(lambda X: X * X): np.hstack([rows, rows**2]),
        DTYPE(0.5) * rls.Linear().on([0, 3, 5]): np.sqrt(0.5) * rows[:, [0, 3, 5]],
    }
    for kernel, Phi in features.items():
        ours = rls.fit(kernel, X, y, weights=v, lams=FAR_LAMS)
        assert ours.route == "covariance"
        e = [oracle.loo_residuals(Phi, labels, lam, w, True) for lam in wide(FAR_LAMS)]
        errors = [w @ part[:, 0] ** 2 / w.sum() for part in e]
        assert_allclose(np.ravel(ours.errors), errors, rtol=RTOL)
        coef, b = oracle.refit(Phi, labels, float(ours.lam), w, True)
        assert_allclose(ours.predict(X), (Phi @ coef + b)[:, 0], rtol=RTOL, atol=RTOL)


@ANY_PRECISION
@pytest.mark.slow
def test_never_dense():
    """100,000 × 400 at one entry a row would be 320 MB dense; the compiled program's temporaries
    stay below a tenth of it.
    """
    n, d = 100_000, 400
    X = SparseRows.read(
        "X", sp.csr_array((np.ones(n, DTYPE), (np.arange(n), np.arange(n) % d)), shape=(n, d))
    )
    y = jnp.ones(n, DTYPE)

    def error(X, y):
        factor = rls.factorize(rls.Linear(), X, intercept=True)
        return rls.loo(factor, y, jnp.asarray([1.0, 10.0], DTYPE))

    memory = jax.jit(error).lower(X, y).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.1 * n * d * np.dtype(DTYPE).itemsize
