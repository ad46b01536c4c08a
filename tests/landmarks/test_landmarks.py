"""Landmarks: the trace they leave, the distribution they are drawn from, what is never chosen
twice, what is never formed.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.cases import gaussian
from support import ANY_PRECISION, DTYPE, EPS, array, refused, wide

import jaxrls as rls
from jaxrls.landmarks.choice import METHODS
from jaxrls.landmarks.points import as_landmarks

GAUSSIAN = rls.Gaussian(1.5)
EACH_METHOD = pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=[] if m == "rpcholesky" else pytest.mark.slow) for m in METHODS],
)


def data(n=200, d=3, seed=0):
    return array(np.random.default_rng(seed).normal(size=(n, d)))


def left_out(kernel, X, points):
    """tr(K − K̂) of a Gaussian, with K̂ in one piece."""
    X, points = wide(X), wide(points)
    K_TR, K_RR = (gaussian(rows, points, kernel.width) for rows in (X, points))
    return len(X) - np.sum(K_TR * np.linalg.solve(K_RR, K_TR.T).T)


@EACH_METHOD
def test_trace_residual_is_what_it_says(method):
    X, num = data(), 40
    R = rls.choose_landmarks(GAUSSIAN, X, num, key=jax.random.key(num), method=method)
    assert R.points.shape == (num, 3) and len(set(R.indices.tolist())) == num
    assert (np.asarray(R.points) == np.asarray(X)[R.indices]).all()
    assert abs(float(R.trace_residual) - left_out(GAUSSIAN, X, R.points)) <= 1e3 * EPS * len(X)


@pytest.mark.slow
def test_given_landmarks_keep_no_trace():
    """It may be that of another kernel or of other weights; that of a fit is of its own."""
    X, v = data(40), array(1 + np.arange(40) % 3)
    chosen = rls.choose_landmarks(rls.Gaussian(3.0), X, 6)
    read = as_landmarks(rls.rows.DenseRows(X), chosen)
    assert read.trace_residual is None and (read.points == chosen.points).all()
    fits = [
        rls.fit(GAUSSIAN, X, X[:, 0], landmarks=given, weights=v, lams=[1.0])
        for given in (chosen, chosen.indices)
    ]
    assert float(fits[0].trace_residual) == float(fits[1].trace_residual)
    assert float(fits[0].trace_residual) > 2 * float(chosen.trace_residual)


def test_the_key_decides():
    """The same key gives the same rows, inside jit too, and another key others."""
    choose = lambda key: rls.choose_landmarks(GAUSSIAN, data(), 40, key=key).indices
    first, again, inside, other = (
        run(jax.random.key(key)).tolist()
        for run, key in ((choose, 1), (choose, 1), (jax.jit(choose), 1), (choose, 2))
    )
    assert first == again == inside != other


@EACH_METHOD
def test_no_duplicate_is_chosen_twice(method):
    """Of 30 points repeated 4 times, 30 rows are chosen, one of each, and nothing is left over."""
    X = array(np.tile(data(30), (4, 1)))
    R = rls.choose_landmarks(GAUSSIAN, X, 120, key=jax.random.key(0), method=method)
    assert sorted((np.asarray(R.indices) % 30).tolist()) == list(range(30))
    assert float(R.trace_residual) <= 1e3 * EPS * 120


@pytest.mark.slow
def test_no_more_than_the_rank():
    """A linear kernel in 3 columns has 3 landmarks; inside jit the shape stays, and the rest are
    rows of positive weight not chosen yet.
    """
    X, v = data(), array(np.abs(np.arange(200) - 7.5) > 6)
    choose = lambda X, v: rls.choose_landmarks(
        rls.Linear(), X, 10, key=jax.random.key(0), weights=v
    )
    R, inside = choose(X, v), jax.jit(choose)(X, v)
    assert R.indices.shape == (3,)
    assert float(R.trace_residual) <= 100 * EPS * np.sum(np.square(X))
    assert inside.points.shape == (10, 3) and len(set(inside.indices.tolist())) == 10
    found = np.asarray(inside.indices)
    assert (found[:3] == R.indices).all() and (np.asarray(v)[found] > 0).all()


@ANY_PRECISION
@pytest.mark.slow
def test_drawn_as_one_row_at_a_time():
    """Rows in a block are accepted with the probabilities of randomly pivoted Cholesky: the first
    two, over 20000 keys.
    """
    X = data(12, 2, seed=3)
    K = np.asarray(rls.extend.gram(GAUSSIAN, X), np.float64)
    expected = np.zeros((12, 12))
    for i, j in itertools.permutations(range(12), 2):
        expected[i, j] = (1 - K[i, j] ** 2) / np.sum(1 - K[i] ** 2) / 12
    draw = jax.jit(jax.vmap(lambda key: rls.choose_landmarks(GAUSSIAN, X, 8, key=key).indices[:2]))
    count = 20000
    pairs = np.asarray(draw(jax.random.split(jax.random.key(0), count)))
    seen = np.zeros((12, 12))
    np.add.at(seen, (pairs[:, 0], pairs[:, 1]), 1)
    off = ~np.eye(12, dtype=bool)
    chi2 = np.sum((seen[off] - count * expected[off]) ** 2 / (count * expected[off]))
    assert chi2 < 131 + 4 * np.sqrt(2 * 131)  # 4 standard deviations above its mean


@pytest.mark.slow
def test_tolerance():
    """As many landmarks as bring the trace below tol·tr K, and not many more, also past the first
    512 columns of the factor.
    """
    X, kernel, tol = data(1500, 8), rls.Gaussian(0.8), 0.3
    R = rls.choose_landmarks(kernel, X, key=jax.random.key(0), tol=tol)
    assert len(R.points) > 512 and float(R.trace_residual) <= tol * 1500
    assert abs(float(R.trace_residual) - left_out(kernel, X, R.points)) <= 1e4 * EPS * 1500


@ANY_PRECISION
@pytest.mark.slow
def test_the_kernel_matrix_is_never_formed():
    """Temporaries of a choice of 64 of 20000 rows are a fiftieth of K."""
    n = 20_000
    choose = jax.jit(lambda X, key: rls.choose_landmarks(GAUSSIAN, X, 64, key=key))
    compiled = choose.lower(jnp.zeros((n, 3), DTYPE), jax.random.key(0)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < n * n * jnp.dtype(DTYPE).itemsize / 50


@ANY_PRECISION
def test_errors_say_what_to_do():
    X, key = data(10), jax.random.key(0)
    asked = {"kernel": GAUSSIAN, "X": X, "num": 3, "key": key}
    choose = lambda **named: lambda: rls.choose_landmarks(**asked | named)
    chosen, whole = choose(num=4)(), "num must be a whole number of at least 1 and at most 10"
    among = lambda named, rows=X: lambda: as_landmarks(rls.rows.DenseRows(rows), named)
    refused(
        (choose(num=None), "num=.*tol="),
        (choose(num=11), whole),
        (choose(tol=1.5), "between 0 and 1"),
        (choose(method="greedy"), "rpcholesky"),
        (choose(kernel=rls.Precomputed()), "precomputed kernel matrix"),
        (among([0, 10]), "include 10"),
        (among(np.zeros((2, 5))), "points"),
        (among(chosen, X + 1), "this X"),
        (lambda: jax.jit(lambda X: choose(X=X, num=None, tol=0.1)())(X), "inside jax.jit"),
    )
