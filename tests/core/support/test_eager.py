"""What is called again outside of `jax.jit`, on new numbers of the same shapes, finds its program
ready; and computes in the precision of its data.
"""

import chex
import jax
import numpy as np
import pytest
from support import ANY_PRECISION, DTYPE, array, assert_close, factor_gram, gram

import jaxrls as rls

KERNEL = rls.Gaussian(1.5)


def data(seed, n=11):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.where(X[:, 0] + rng.normal(size=n) > 0, 1.0, -1.0), rng.normal(size=(4, 2))


def of_intervals(seed):
    """Of rows in blocks from elsewhere, whose blocks are programs."""
    X, y, new = (part.astype(DTYPE) for part in data(seed))
    fit = rls.fit(KERNEL, X, y, lams=[0.3], keep=True)
    stream = rls.rows.stream([(new[:2],), (new[2:],)])
    return lambda: fit.intervals(stream, 0.7)[0]


def of_pairs(seed):
    X, y, _ = map(array, data(seed))
    factor = factor_gram(gram(KERNEL, X))
    return lambda: rls.ranking.pairwise_ranking_error(factor, X[:, 0] + y, [0.1, 1.0])


def of_both_sides(ask, lams):
    def call(seed):
        X, _, new = map(array, data(seed))
        factor = jax.jit(rls.two_sided.factor_kronecker)(gram(KERNEL, X), gram(KERNEL, new))
        return lambda: ask(factor, gram(KERNEL, X, new), lams, "both")

    return call


def of_a_table(seed):
    X, _, new = (part.astype(DTYPE) for part in data(seed))
    fit = rls.two_sided.fit_kronecker(KERNEL, X, KERNEL, new, X @ new.T, lams=[0.3], keep=True)
    return lambda: fit.predict(new, X, pairs=[[0, 2], [seed, 1]], return_std=True)[1]


def of_a_sigmoid(seed):
    X, y, _ = map(array, data(seed))
    return lambda: rls.classes.fit_sigmoid(X[:, 0], y).slope


CALLS = {
    "gram": lambda seed: lambda: rls.extend.gram(KERNEL, data(seed)[0].repeat(2, 1)),
    "intervals": of_intervals,
    "pairs": of_pairs,
    "both sides": of_both_sides(rls.two_sided.kronecker_left_out, [0.1, 1.0]),
    "an entry": of_both_sides(rls.two_sided.kronecker_residuals, 0.1),
    "a table": of_a_table,
    "a sigmoid": of_a_sigmoid,
}


@ANY_PRECISION
@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_compiles_nothing(name, caplog):
    first, second = CALLS[name](0), CALLS[name](1)
    with jax.log_compiles(True):
        one = np.asarray(first())
        before = programs(caplog)
        other = np.asarray(second())
    assert before and programs(caplog) == before
    assert (one != other).any()


@pytest.mark.slow
@ANY_PRECISION
@pytest.mark.parametrize("kernel", [KERNEL, rls.Linear()], ids=["gram", "covariance"])
def test_other_numbers_of_rows_compile_nothing(kernel, caplog):
    """Rows of weight 0 fill them up to a number that they share; what a fit gives is of its rows
    alone, as all fits of few rows in these tests.
    """
    for n in (45, 50, 60):
        X, y, new = (part.astype(DTYPE) for part in data(n, n))
        y = X[:, 0] + np.sin(X[:, 1]) + 0.3 * y
        weights = np.linspace(0, 1, n).astype(DTYPE) if n == 50 else None
        with jax.log_compiles(n == 60):
            fit = rls.fit(kernel, X, y, weights=weights, lams=[1e-4, 0.3, 1e3])
            mean, std = fit.predict(new, return_std=True)
            lower, _ = fit.intervals(new, 0.7)
            tuned = rls.tune(KERNEL, X, y, weights=weights, steps=2)
            again = fit.with_lam(0.5)
        assert (lower < mean).all() and (std > 0).all()
        for residuals in (tuned.loo_residuals, again.loo_residuals, fit.loo_predictive().std):
            assert residuals.shape == y.shape
        assert fit.model.points is None or fit.model.points.shape == (n, 2)
    assert not programs(caplog)


def programs(caplog) -> list[str]:
    """Those that were compiled."""
    return [record.message for record in caplog.records if record.message.startswith("Compiling ")]


def aligned(values):
    """As JAX would take it without a copy: at an address that 64 divides."""
    values = np.asarray(values, DTYPE)
    memory = np.empty(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    found = memory[start : start + values.nbytes].view(DTYPE).reshape(values.shape)
    found[...] = values
    return found


@pytest.mark.slow
@ANY_PRECISION
def test_results_do_not_follow_arrays_that_the_caller_changes_later():
    """Arrays of the host are copied, whether fitted, factored or put on a mesh."""
    X, y, new = data(0, 64)
    X, y, v = map(aligned, (X, y + X[:, 1], np.linspace(1, 2, 64)))
    mesh = jax.make_mesh((1,), ("rows",))
    rows, points = rls.rows.shard(X, y, v, mesh=mesh), new.astype(DTYPE)
    by_fit = rls.fit(KERNEL, X, y, weights=v, lams=[0.3], solver=rls.Spectral())
    factor = rls.factorize(rls.Linear(), X, weights=v)
    solution = factor.solve(y)

    def results():
        fit = rls.fit(KERNEL, rows, landmarks=points, lams=[0.3])
        return (
            fit.error,
            by_fit.predict(new),
            by_fit.with_lam(0.5).error,
            solution.held_out_residuals([0.3]),
        )

    before = jax.tree.map(np.array, results())
    for given in (X, y, v):
        given[:] = 7
    chex.assert_trees_all_equal(results(), before)


@ANY_PRECISION
def test_scores_in_float64_on_the_host_stay_in_float64():
    """As data of `fit` do, whatever the switch says."""
    X, codes, new = data(2)
    scores = X[:, 0] + 1e-9 * X[:, 1]

    def found():
        sigmoid = rls.classes.fit_sigmoid(scores, codes)
        p = rls.classes.label_p_values(scores.tolist(), codes.tolist(), new[:, 0])
        return sigmoid.slope, sigmoid(new[:, 0]), p

    want = found()
    with jax.enable_x64(False):
        for got, value in zip(found(), want, strict=True):
            assert got.dtype == np.float64
            assert_close(got, value, 8 * np.finfo(float).eps)
