"""Where a search starts: widths from the data and multiples of them, the way down to a smaller
error, the sample they are judged on.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from support import DTYPE, EPS, array, assert_close

import jaxrls as rls
from jaxrls import extend
from jaxrls.front import sample_of, start

median_distance = jax.jit(rls.extend.median_distance, static_argnames=("order", "rows"))


def rows(n=40, d=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(DTYPE)


@extend.pytree
class Own(rls.extend.Kernel):
    """A user's kernel: a Laplacian under another name, which declares what a search needs to
    know.
    """

    positive = length_scales = ("reach",)
    metric = "cityblock"
    reach: Any

    def __call__(self, X, Z):
        return rls.Laplacian(self.reach)(X, Z)

    def diag(self, X):
        return jnp.ones(X.shape[0], X.dtype)


@extend.pytree
class Hidden(Own):
    """The same without the declarations: nothing is known of its parameter."""

    positive = length_scales = ()


# widths from the data


@pytest.mark.parametrize("order", [1, 2])
def test_the_median_is_that_of_all_pairs(order):
    X = rows()
    i, j = np.triu_indices(len(X), 1)
    expected = np.median(np.linalg.norm(X[i] - X[j], ord=order, axis=1))
    assert_close(median_distance(X, order=order), expected, 50 * EPS)


def test_the_median_leaves_out_equal_rows_and_takes_rows_spread_evenly():
    median = lambda column, **options: median_distance(array(column)[:, None], **options)
    assert median([0.0, 0.0, 3.0]) == 3
    assert median(np.arange(101.0), rows=3) == 50  # of the rows 0, 50 and 100
    assert median(np.zeros(3)) == median([1.0]) == 1


def test_widths_from_the_data_by_the_columns_and_the_metric_of_each_part():
    kernel = lambda one, other: (
        array(0.5) * rls.Gaussian(one).on([1, 2])
        + rls.Laplacian(other).on(0) * rls.Linear()
        + rls.Periodic(3.0, 9.0)
    )

    @jax.jit
    def both(X):
        found = [
            rls.extend.start_from_data(k, X) for k in (kernel(9.0, 9.0), Own(9.0), Hidden(9.0))
        ]
        block = lambda X: rls.extend.median_distance(X, order=1)
        parts = rls.extend.median_distance(X[:, 1:]), block(X[:, :1])
        return found, [kernel(*parts), Own(block(X)), Hidden(9.0)]

    found, want = both(rows())
    assert found == want


def test_a_width_per_column_follows_the_spread_of_the_column():
    X = rows() * np.array([1.0, 10.0, 0.0], DTYPE)
    width = np.asarray(
        jax.jit(rls.extend.start_from_data)(rls.Gaussian(np.ones(3, DTYPE)), X).width
    )
    spread = np.array([X[:, 0].std(), X[:, 1].std(), 1.0])
    assert_close(width / width[2], spread, 50 * EPS)
    assert_close(width[2], median_distance(X / spread.astype(DTYPE)), 50 * EPS)


@pytest.mark.slow
def test_widths_follow_tiny_and_huge_units():
    """Of the median of all columns and of each, in units whose squares underflow; and what a search
    makes of them. A column that is constant, of whatever value, counts with spread 1.
    """
    X, tiny = rows(), float(np.finfo(DTYPE).tiny)
    noise = 0.3 * np.random.default_rng(1).normal(size=40)
    y = (np.sin(X[:, 0]) + X[:, 1] + noise).astype(DTYPE)
    start = jax.jit(rls.extend.start_from_data)
    by_column = lambda X: np.asarray(start(rls.Gaussian(np.ones(3, DTYPE)), X).width, np.float64)
    sparse = lambda X: rls.fit(rls.Gaussian("median"), scipy.sparse.csr_array(X), y, lams=[1.0])
    for unit in (tiny**0.5 / EPS / 2, tiny**0.6, tiny**0.8, 1e-3 * tiny**-0.5):
        units = np.array([1.0, unit, 1.0])
        scaled, one = (X * units).astype(DTYPE), (X * unit).astype(DTYPE)
        assert_close(by_column(scaled) / units, by_column(X), 50 * EPS, f"columns × {unit}")
        for order in (1, 2):
            want = median_distance(X, order=order)
            found = np.float64(median_distance(one, order=order))
            assert_close(found / unit, want, 50 * EPS, f"all × {unit}")
        if unit > 1:
            continue
        want = np.float64(median_distance(X))
        assert_close(np.float64(sparse(one).kernel.width) / unit, want, 50 * EPS, "sparse rows")
        tuned, same = (
            rls.tune(rls.Gaussian(["median"] * 3), A, y, start="kernel", steps=3)
            for A in (scaled, X)
        )
        found = np.float64(tuned.kernel.width) / units
        assert_close(found, same.kernel.width, EPS**0.25, "tuned, from other roundings")
        totals = np.abs(np.stack([X, X * DTYPE(unit)]))
        chi2 = [rls.ChiSquared(w)(A, A) for w, A in zip((1.0, unit), totals, strict=True)]
        assert_close(chi2[1], chi2[0], 50 * EPS, "χ²")
    constant = np.full((40, 1), 0.1, DTYPE) * np.arange(1, 4, dtype=DTYPE)
    constant[:, 0] = X[:, 0]
    width, spread = by_column(constant), np.array([np.std(X[:, 0], dtype=np.float64), 1, 1])
    assert_close(width / width[1], spread, 50 * EPS)


# the first guesses


def guesses(kernel, X, Y, weights=None, how="screen", near=False, **options):
    weights = None if weights is None else jnp.asarray(weights)
    problem = extend.read_problem(
        kernel, jnp.asarray(X), jnp.asarray(Y), weights=weights, **options
    )
    return start.first_guesses(problem, how, start.SCREEN_LAMS, near)


@pytest.mark.parametrize("make", [rls.Gaussian, Own], ids=lambda cls: cls.__name__)
def test_a_width_far_off_is_replaced_by_a_multiple_of_it(make):
    X = rows(60, 1)
    Y = np.sin(3 * X[:, 0])
    given, better = guesses(make(array(64.0)), X, Y)
    assert given.kernel == make(array(64.0))
    (width,) = (float(part) for part in better.kernel.__dict__.values())
    assert width / 64 in start.SCREEN_FACTORS and width < 64


@pytest.mark.parametrize("near", [False, True])
def test_a_width_that_is_best_is_the_only_guess(near, monkeypatch):
    """Judged on more rows it is no second guess, at which a search would begin once more."""
    monkeypatch.setattr(start, "SCREEN_ROWS", 30)
    X = rows(60, 1)
    Y = np.sin(3 * X[:, 0]) + 0.3 * rows(60, 1, seed=1)[:, 0]
    kernel = rls.Gaussian(array(1.0))
    given, better = guesses(kernel, X, Y, near=near)
    assert better is None and given.kernel == kernel
    assert (float(given.lam) == start.lam_on_few(extend.read_problem(kernel, X, Y))) == near


def test_what_declares_no_length_scale_is_not_screened():
    X = rows(60, 1)
    assert guesses(Hidden(array(64.0)), X, np.sin(3 * X[:, 0])).better is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the search ended at")  # in float32
def test_a_users_kernel_is_tuned_as_the_librarys_own():
    X = rows(60, 2)
    Y = np.sin(3 * X[:, 0])
    ours, theirs = (
        rls.tune(make(array(8.0)), X, Y, start="kernel", steps=3) for make in (Own, rls.Laplacian)
    )
    assert_close(ours.kernel.reach, theirs.kernel.width, 1e3 * EPS)


def test_a_kernel_matrix_is_judged_whole(monkeypatch):
    """Its floor is that of a fit to all rows, of which none were left out."""
    monkeypatch.setattr(start, "SCREEN_ROWS", 5)
    X = rows(20)
    K = X @ X.T + np.eye(20, dtype=DTYPE)
    (kernel, lam, floor, _), better = guesses(rls.Precomputed(), K, X[:, 0])
    assert better is None
    assert kernel == rls.Precomputed() and np.isfinite(lam)
    fitted = rls.factorize(rls.Precomputed(), array(K)).precision_floor()
    assert_close(floor, fitted, 0.1)


def test_groups_of_all_rows_set_no_floor_on_a_sample():
    """Their row numbers are not the sample's: a search could not go below λ = .15."""
    X, groups = rows(900, 100), np.arange(900) // 300
    alone, grouped = (
        guesses(rls.Linear(), X, X[:, 0], **more).given for more in ({}, {"groups": groups})
    )
    assert grouped.floor == alone.floor and grouped.lam == alone.lam


# the sample


def test_rows_are_drawn_in_proportion_to_their_weights():
    """A row counts for its share of all weight, whether it is drawn once or often."""
    weights = np.r_[np.full(6000, 1.0), np.full(3000, 4.0), [9000.0, 18000.0]].astype(DTYPE)
    X = rows(len(weights), 1)
    problem = extend.read_problem(rls.Gaussian(array(1.0)), X, X[:, 0], weights=weights)
    some, numbers = sample_of(problem, 3000)
    assert (np.diff(numbers) > 0).all() and np.array_equal(some.Y, X[numbers, 0])
    counted = np.asarray(some.weights.values)
    parts = np.split(counted, np.searchsorted(numbers, [6000, 9000, 9001]))
    share = np.array([part.sum() for part in parts]) / counted.sum()
    assert_close(share, np.array([6, 12, 9, 18]) / 45, 0.03)
    assert_close(counted.sum() / 3000, weights.mean(), 20 * EPS)
