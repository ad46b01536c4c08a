"""Landmarks: the trace they leave, the distribution they are drawn from, what is never chosen
twice, what is never formed.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, EPS, X64, array, assert_close, landmarks

import jaxrls as rls
from jaxrls.problem import landmarks as given
from jaxrls.search import landmarks as choice
from jaxrls.search.landmarks import METHODS, _block

GAUSSIAN = rls.Gaussian(1.5)


def as_landmarks(X, landmarks):
    """Landmarks for the rows of an array."""
    return given.as_landmarks(rls.DenseRows(X), landmarks)


def data(n=200, d=3, seed=0):
    return array(np.random.default_rng(seed).normal(size=(n, d)))


def left_out(kernel, X, points):
    """tr(K − K̂) of a Gaussian, with K̂ in one piece."""

    def matrix(X, Z):
        return np.exp(-np.sum((X[:, None] - Z[None]) ** 2, axis=-1) / (2 * kernel.width**2))

    X, points = np.asarray(X, np.float64), np.asarray(points, np.float64)
    K_TR = matrix(X, points)
    return len(X) - np.sum(K_TR * np.linalg.solve(matrix(points, points), K_TR.T).T)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num", [1, 7, 40])
def test_trace_residual_is_what_it_says(method, num):
    X = data()
    R = landmarks(GAUSSIAN, X, num, key=jax.random.key(num), method=method)
    assert R.points.shape == (num, 3) and len(set(R.indices.tolist())) == num
    assert (R.points == X[R.indices]).all()
    assert abs(float(R.trace_residual) - left_out(GAUSSIAN, X, R.points)) <= 1e3 * EPS * len(X)


@pytest.mark.parametrize("method", METHODS)
def test_the_key_decides(method):
    """The same key gives the same rows, inside jit too, and another key others."""
    X = data()
    choose = functools.partial(rls.landmarks, GAUSSIAN, X, 20, method=method)
    first = choose(key=jax.random.key(1))
    assert (choose(key=jax.random.key(1)).indices == first.indices).all()
    assert (jax.jit(lambda key: choose(key=key).indices)(jax.random.key(1)) == first.indices).all()
    assert (choose(key=jax.random.key(2)).indices != first.indices).any()


@pytest.mark.parametrize(
    ("named", "held"), [({"num": 300}, [300]), ({"tol": 0.5}, [256]), ({"tol": 1e-6}, [256, 300])]
)
def test_memory_grows_with_the_landmarks_where_a_tolerance_stops_them(named, held, monkeypatch):
    grow, seen = choice._grow, []
    monkeypatch.setattr(
        choice, "_grow", lambda *args, **more: seen.append(more["capacity"]) or grow(*args, **more)
    )
    rls.landmarks(rls.Gaussian(0.1), data(300), key=jax.random.key(0), **named)
    assert sorted(set(seen)) == held


def test_a_bar_changes_nothing(capsys):
    """With `progress` the growth is interrupted to move the bar; the rows are the same."""
    pytest.importorskip("tqdm", reason="progress bars need tqdm")
    for options in ({"num": 40}, {"tol": 0.02}):
        plain = rls.landmarks(GAUSSIAN, data(), key=jax.random.key(1), **options)
        assert capsys.readouterr().err == ""
        shown = rls.landmarks(GAUSSIAN, data(), key=jax.random.key(1), progress=True, **options)
        assert (plain.indices == shown.indices).all()
        assert "landmarks" in capsys.readouterr().err


@pytest.mark.parametrize("method", METHODS)
def test_no_duplicate_is_chosen_twice(method):
    """Of 30 points repeated 4 times, 30 rows are chosen, one of each, and nothing is left over."""
    X = jnp.tile(data(30), (4, 1))
    R = rls.landmarks(GAUSSIAN, X, 120, key=jax.random.key(0), method=method)
    assert sorted(np.asarray(R.indices % 30).tolist()) == list(range(30))
    assert float(R.trace_residual) <= 1e3 * EPS * 120


@pytest.mark.parametrize("method", METHODS)
def test_no_more_than_the_rank(method):
    """A linear kernel in 3 columns has 3 landmarks; inside jit the shape stays, and the rest are
    rows not chosen yet.
    """
    X = data()
    R = rls.landmarks(rls.Linear(), X, 10, key=jax.random.key(0), method=method)
    assert R.indices.shape == (3,)
    assert float(R.trace_residual) <= 100 * EPS * float(jnp.sum(X * X))
    v = jnp.ones(len(X)).at[2:14].set(0)
    choose = jax.jit(
        lambda X, v: rls.landmarks(
            rls.Linear(), X, 10, key=jax.random.key(0), method=method, weights=v
        )
    )
    inside, weighted = choose(X, jnp.ones(len(X))), choose(X, v)
    assert inside.points.shape == (10, 3) and len(set(inside.indices.tolist())) == 10
    assert (inside.indices[:3] == R.indices).all()
    assert len(set(weighted.indices.tolist())) == 10 and (v[weighted.indices] > 0).all()


def test_drawn_as_one_row_at_a_time():
    """Rows in a block are accepted with the probabilities of randomly pivoted Cholesky: the first
    two, over 20000 keys.
    """
    X = data(12, 2, seed=3)
    K = np.asarray(rls.gram(GAUSSIAN, X), np.float64)
    expected = np.zeros((12, 12))
    for i, j in itertools.permutations(range(12), 2):
        expected[i, j] = (1 - K[i, j] ** 2) / np.sum(1 - K[i] ** 2) / 12
    draw = jax.jit(jax.vmap(lambda key: rls.landmarks(GAUSSIAN, X, 8, key=key).indices[:2]))
    count = 20000
    pairs = np.asarray(draw(jax.random.split(jax.random.key(0), count)))
    seen = np.zeros((12, 12))
    np.add.at(seen, (pairs[:, 0], pairs[:, 1]), 1)
    off = ~np.eye(12, dtype=bool)
    chi2 = np.sum((seen[off] - count * expected[off]) ** 2 / (count * expected[off]))
    assert chi2 < 131 + 4 * np.sqrt(2 * 131)  # 4 standard deviations above its mean


def test_uniform_is_uniform():
    draw = jax.jit(
        jax.vmap(
            lambda key: rls.landmarks(GAUSSIAN, data(12, 2), 4, key=key, method="uniform").indices
        )
    )
    seen = np.bincount(
        np.asarray(draw(jax.random.split(jax.random.key(0), 6000))).ravel(), minlength=12
    )
    assert np.abs(seen / 6000 - 4 / 12).max() < 5 * np.sqrt(2 / 9 / 6000)


def test_leaves_less_than_uniform_where_data_cluster():
    """Few rows far from a crowd: uniform draws miss them."""
    rng = np.random.default_rng(0)
    X = array(np.concatenate([rng.normal(size=(1000, 3)), 5 * rng.normal(size=(50, 3))]))
    adaptive, uniform = (
        np.mean(
            [
                float(
                    landmarks(GAUSSIAN, X, 100, key=jax.random.key(s), method=method).trace_residual
                )
                for s in range(3)
            ]
        )
        for method in ("rpcholesky", "uniform")
    )
    assert adaptive < 0.5 * uniform


@pytest.mark.parametrize("method", METHODS)
def test_tolerance(method):
    """As many landmarks as bring the trace below tol·tr K, and not many more."""
    X, tol = data(2000, 2), 1e-3
    R = rls.landmarks(rls.Gaussian(0.5), X, tol=tol, key=jax.random.key(0), method=method)
    assert float(R.trace_residual) <= tol * 2000
    few = rls.landmarks(
        rls.Gaussian(0.5), X, R.points.shape[0] // 2, key=jax.random.key(0), method=method
    )
    assert float(few.trace_residual) > tol * 2000


def test_tolerance_beyond_the_first_capacity():
    """A spectrum that hardly decays: the factor grows past its first 512 columns, and the trace
    still holds.
    """
    X = data(1500, 8)
    R = rls.landmarks(rls.Gaussian(0.8), X, tol=0.3, key=jax.random.key(0))
    assert R.points.shape[0] > 512
    assert float(R.trace_residual) <= 0.3 * 1500
    assert (
        abs(float(R.trace_residual) - left_out(rls.Gaussian(0.8), X, R.points)) <= 1e4 * EPS * 1500
    )


def test_num_and_tol_together():
    """Whichever comes first."""
    X = data(1000, 8)
    few = rls.landmarks(GAUSSIAN, X, 30, tol=1e-3, key=jax.random.key(0))
    assert few.points.shape[0] == 30 and float(few.trace_residual) > 1e-3 * 1000
    inside = jax.jit(lambda X: rls.landmarks(GAUSSIAN, X, 300, tol=1e-9, key=jax.random.key(0)))(X)
    assert len(set(inside.indices.tolist())) == 300 and float(inside.trace_residual) < 0.5 * float(
        few.trace_residual
    )
    enough = rls.landmarks(rls.Gaussian(20.0), X, 900, tol=0.05, key=jax.random.key(0))
    assert enough.points.shape[0] < 900 and float(enough.trace_residual) <= 0.05 * 1000


def test_the_kernel_matrix_is_never_formed():
    """Temporaries of a choice of 64 of 20000 rows are a fiftieth of K."""
    n = 20_000
    compiled = (
        jax.jit(lambda X, key: rls.landmarks(GAUSSIAN, X, 64, key=key))
        .lower(jnp.zeros((n, 3), DTYPE), jax.random.key(0))
        .compile()
    )
    assert compiled.memory_analysis().temp_size_in_bytes < n * n * jnp.dtype(DTYPE).itemsize / 50


def test_from_rows_and_from_points():
    X = data(10)
    rows = as_landmarks(X, np.array([3, 1]))
    assert (
        rows.indices.tolist() == [3, 1]
        and (rows.points == X[jnp.array([3, 1])]).all()
        and rows.trace_residual is None
    )
    points = as_landmarks(X, data(4, seed=1))
    assert points.indices is None and points.points.dtype == DTYPE
    assert (as_landmarks(X, points).points == points.points).all()
    chosen = rls.landmarks(
        GAUSSIAN, X, 4, key=jax.random.key(0)
    )  # 4 of 10: the program of the errors below too
    assert as_landmarks(X, chosen).trace_residual == chosen.trace_residual


def test_numpy_in_numpy_out():
    X = np.asarray(data(10))
    R = rls.landmarks(GAUSSIAN, X, 4, key=jax.random.key(0))
    assert R.points.dtype == DTYPE
    if X64:
        assert (
            abs(float(R.trace_residual) - left_out(GAUSSIAN, jnp.asarray(X), jnp.asarray(R.points)))
            < 1e-10
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, key: rls.landmarks(GAUSSIAN, X, key=key), "num=.*tol="),
        (
            lambda X, key: rls.landmarks(GAUSSIAN, X, 11, key=key),
            "num must be a whole number of at least 1 and at most 10",
        ),
        (
            lambda X, key: rls.landmarks(GAUSSIAN, X, 0, key=key),
            "num must be a whole number of at least 1 and at most 10",
        ),
        (lambda X, key: rls.landmarks(GAUSSIAN, X, 2.5, key=key), "whole number"),
        (lambda X, key: rls.landmarks(GAUSSIAN, X, tol=1.5, key=key), "between 0 and 1"),
        (lambda X, key: rls.landmarks(GAUSSIAN, X, 3, key=key, method="greedy"), "rpcholesky"),
        (
            lambda X, key: rls.landmarks(rls.Precomputed(), X, 3, key=key),
            "precomputed kernel matrix",
        ),
        (lambda X, key: rls.landmarks(rls.Gaussian(-1.0), X, 3, key=key), "positive"),
        (lambda X, key: rls.landmarks(GAUSSIAN, X.at[0, 0].set(jnp.nan), 3, key=key), "NaN"),
        (
            lambda X, key: jax.jit(lambda X: rls.landmarks(GAUSSIAN, X, tol=0.1, key=key))(X),
            "inside jax.jit",
        ),
        (lambda X, key: as_landmarks(X, [0, 10]), "row 10"),
        (lambda X, key: as_landmarks(X, [-1, 2]), "row -1"),
        (lambda X, key: as_landmarks(X, [2, 3, 2]), "row 2 of X 2 times"),
        (lambda X, key: as_landmarks(X, [[0, 1]]), "shape"),
        (lambda X, key: as_landmarks(X, np.zeros((2, 5))), "points"),
        (lambda X, key: as_landmarks(X + 1, rls.landmarks(GAUSSIAN, X, 4, key=key)), "this X"),
        (lambda X, key: as_landmarks(X[:3], rls.landmarks(GAUSSIAN, X, 4, key=key)), "this X"),
    ],
)
def test_errors_say_what_to_do(call, message, unchecked):
    with pytest.raises(ValueError, match=message):
        call(data(10), jax.random.key(0))


@pytest.mark.any_precision
def test_rounds_are_equal_and_at_least_four():
    assert [_block(capacity) for capacity in (1, 3, 4, 5, 200, 512, 513, 1000)] == [
        1,
        1,
        1,
        2,
        50,
        128,
        103,
        125,
    ]


def test_what_rounding_may_hide_counts_as_left_out():
    chosen = rls.landmarks(
        GAUSSIAN,
        jnp.zeros((6, 2), DTYPE),
        4,
        key=jax.random.key(0),
        weights=jnp.arange(6, dtype=DTYPE),
    )
    assert len(chosen.indices) == 1
    assert_close(chosen.trace_residual, 4**0.5 * EPS * 15, 10 * EPS)
