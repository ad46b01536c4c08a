"""The subset of regressors by products: fits against those of its moments, more rows than the
approximate inverse is made of, how sure leave-one-out is, and what is held in memory.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from contract.cases import gaussian
from support import ANY_PRECISION, DTYPE, EDGE, FLOAT64, X64, array, assert_close, refused

import jaxrls as rls
from jaxrls.iterative import conjugate
from jaxrls.iterative.subset import SAMPLED

N, M, KERNEL = 157, 16, rls.Gaussian(1.0)  # rows in ragged blocks of 50
TOL, CLOSE = (1e-10, 1e-8) if X64 else (1e-2, 2e-2)  # products in float32 come to some 1e-3
GROUPS = np.arange(N) % 3


def drawn(n, noise=0.1):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    Y = np.stack([np.sin(2 * X[:, 0]), X[:, 0] * X[:, 1]], axis=1) + 3
    return array(X), array(Y + noise * rng.normal(size=(n, 2))), array(rng.uniform(0.3, 2, n))


X, Y, V = drawn(N)
POINTS, UNSEEN = array(np.random.default_rng(1).normal(size=(M, 2))), np.arange(N) % 9 == 4
OPTIONS = {
    "plain": {"weights": jnp.where(UNSEEN, 0, V), "block_size": 50, "intercept": False},
    "levels": {"weights": V, "fixed_effects": rls.levels(GROUPS), "block_size": 50},
}


@pytest.mark.filterwarnings("ignore:the landmarks are nearly dependent")  # in float32
@pytest.mark.parametrize(
    "named", [pytest.param(n, marks=[] if n == "levels" else pytest.mark.slow) for n in OPTIONS]
)
def test_the_fit_is_that_of_the_moments(named):
    """After several steps, as the approximate inverse is of some of the rows."""
    assert SAMPLED * M < N
    options = {**OPTIONS[named], "lams": [0.1], "landmarks": POINTS}
    found = rls.fit(KERNEL, X, Y, solver=rls.Iterative(tol=TOL, probes=N), **options)
    exact = rls.fit(KERNEL, X, Y, solver=rls.Cholesky(), **options)
    assert found.run.steps > 2 and (np.asarray(found.run.reason) == conjugate.CONVERGED).all()
    assert found.num_landmarks == M and found.plan == "Iterative (iterative subset), 1 λ"
    new = {"fixed_effects": GROUPS} if named == "levels" else {}
    assert_close(found.predict(X, **new), exact.predict(X, **new), CLOSE, "predictions")
    for name in ("loo_residuals", "dof", "error"):
        assert_close(getattr(found, name), getattr(exact, name), CLOSE, name)
    assert float(found.loo_standard_error) == 0
    assert_close(found.trace_residual, exact.trace_residual, 0.3)  # from some rows


@FLOAT64
@pytest.mark.slow
def test_the_iteration_says_how_far_off_it_is():
    """At several tolerances, to a factor for an inverse that is not quite the inverse."""
    options = {"lams": [0.03], "landmarks": POINTS}
    exact = rls.fit(KERNEL, X, Y, **options)
    left = np.linalg.norm(np.asarray(Y - exact.predict(X)), axis=0)
    for tol in (0.1, 1e-4):  # a program each
        found = rls.fit(KERNEL, X, Y, solver=rls.Iterative(tol=tol, probes=0), **options)
        off = np.linalg.norm(np.asarray(found.predict(X) - exact.predict(X)), axis=0) / left
        said = np.asarray(found.run.residuals)
        assert found.error is None and (said <= 2 * tol).all()
        assert (off <= 3 * said).all() and (said <= 3 * off + 1e-9).all()


@FLOAT64
@pytest.mark.parametrize("lam", [1e-3, 0.1])
@pytest.mark.slow
def test_leave_one_out_is_as_sure_as_it_says(lam):
    """Over draws of eight probes; landmarks are rows, and stay."""
    X, Y, _ = drawn(800, 0.3)
    rows, y = jnp.arange(0, 800, 16), Y[:, 0]
    solve = lambda **options: rls.factorize(
        KERNEL, X, landmarks=rows, leave=False, **options
    ).solve(y)
    total, lam = rls.extend.LeaveOneOut().summand, array([lam])
    exact = float(jax.jit(lambda: solve().sum_held_out(total, lam)[0, 0])())

    @jax.jit
    def draw(key):
        found = solve(solver=rls.Iterative(tol=1e-4, probes=8, key=key)).outcome(lam, fn=total)
        return jnp.stack([found.held_out_sum[0, 0], found.standard_error[0, 0]])

    found, said = np.stack([draw(jax.random.key(seed)) for seed in range(12)], axis=1)
    assert np.mean(np.abs(found - exact) <= 3 * said) >= 0.9 and said.mean() < 0.05 * exact
    assert abs(found.mean() - exact) < 0.02 * exact


@EDGE
@FLOAT64
@pytest.mark.slow
def test_lam_is_found_by_a_walk():
    X, Y, _ = (np.asarray(part) for part in drawn(600))
    options = {"landmarks": X[::12]}
    fit = rls.fit(KERNEL, X, Y, solver=rls.Iterative(), **options)
    s, U = np.linalg.eigh(gaussian(X[::12], X[::12], 1.0))
    used = s > 1e-12 * s[-1]
    features = gaussian(X, X[::12], 1.0) @ U[:, used] / np.sqrt(s[used])
    features, labels = features - features.mean(axis=0), Y - Y.mean(axis=0)

    def error(lam):
        inverse = np.linalg.inv(features.T @ features + lam * np.eye(used.sum()))
        leverage = 1 / len(X) + np.sum(features @ inverse * features, axis=1)
        residuals = labels - features @ (inverse @ (features.T @ labels))
        return np.mean((residuals / (1 - leverage)[:, None]) ** 2)

    assert fit.plan.startswith("Iterative, a search for λ: ") and 1 < len(fit.lams) <= 6
    best = min(map(error, np.geomspace(1e-4, 10, 60)))
    assert fit.error < 1.03 * best + 4 * fit.loo_standard_error


@pytest.mark.slow
def test_a_number_of_landmarks_draws_rows_that_weigh():
    weights = np.where(np.arange(N) < 40, 1.0, 0.0)
    make = lambda: rls.factorize(KERNEL, X, landmarks=30, weights=weights, solver=rls.Iterative())
    points, again = np.asarray(make().points), np.asarray(jax.jit(make)().points)
    assert len({*map(tuple, points)} & {*map(tuple, np.asarray(X[:40]))}) == 30
    np.testing.assert_array_equal(points, again)
    of_all = lambda: rls.factorize(KERNEL, X, landmarks=30, solver=rls.Iterative()).points
    np.testing.assert_array_equal(of_all(), jax.jit(of_all)())
    options = {"weights": weights, "landmarks": 60, "solver": rls.Iterative(), "lams": [0.1]}
    assert rls.fit(KERNEL, X, Y, **options).num_landmarks == 40  # of as many rows that weigh


@ANY_PRECISION
@pytest.mark.slow
def test_no_matrix_of_rows_and_landmarks():
    """Compiled for ten times the rows the fit takes some vectors more, and the estimate of it says
    so.
    """
    size, solver = jnp.dtype(DTYPE).itemsize, rls.Iterative()

    @functools.cache
    def held(n, m):
        shapes = [jax.ShapeDtypeStruct(shape, DTYPE) for shape in ((n, 3), (n,), (m, 3))]

        def run(X, y, points):
            factor = rls.factorize(KERNEL, X, landmarks=points, solver=solver)
            found = factor.solve(y).outcome(array([0.1]), fn=rls.extend.LeaveOneOut().summand)
            return found.coef, found.beta, found.held_out_sum, found.standard_error

        program = jax.jit(run).lower(*shapes).compile()
        return program.memory_analysis().temp_size_in_bytes / size

    n, m = 100_000, 1000
    assert held(n, m) - held(n // 10, m) < 60 * n
    options = {"landmarks": m, "solver": solver, "lams": 1, "dtype": DTYPE}
    for rows in (n, n // 10):
        said = rls.memory(KERNEL, (rows, 3), **options).bytes / size
        assert 0.5 < said / held(rows, m) < 2


@ANY_PRECISION
def test_what_does_not_go_with_it():
    rows = np.asarray(X, np.float64)
    usual = {"landmarks": 5, "solver": rls.Iterative(), "lams": [1.0]}
    fit = lambda X=X, **options: rls.fit(KERNEL, X, Y, **usual | options)
    stream = rls.rows.stream([(rows, np.asarray(Y))])
    refused(
        (lambda: fit(solver=rls.Iterative(5)), "and is given landmarks: leave it out"),
        (lambda: fit(solver=rls.Iterative(dtype="float32")), "and is given dtype: leave it out"),
        (lambda: fit(landmarks=N + 1), "landmarks, as their number, must be a whole number"),
        (lambda: fit(landmarks="auto"), "chooses the solver too"),
        (lambda: fit(scipy.sparse.csr_array(rows)), "this needs all rows in one array"),
        (lambda: fit(stream), "this needs all rows in one array"),
        (lambda: fit(groups=GROUPS), "does not support leaving groups or pairs out"),
        (lambda: fit(keep=True).posterior(X), "has no determinant, exact leverages"),
    )


@EDGE
def test_says_that_steps_were_used_up_and_what_to_do():
    with pytest.warns(UserWarning, match="all steps were used: take a larger λ$"):
        solver = rls.Iterative(steps=6, tol=1e-12, probes=0)
        rls.fit(KERNEL, np.asarray(X, np.float64), Y, lams=[0.03], landmarks=POINTS, solver=solver)
