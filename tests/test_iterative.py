"""All of K by products: coefficients and leave-one-out against the factor of K itself, exact where the random signs are made to be."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, X64, array, assert_close

import jaxrls as rls
from jaxrls.linalg import conjugate
from jaxrls.search.fit import _inspect as inspect

N, KERNEL = 64, rls.Gaussian(1.0)
LAMS = np.array([0.03, 0.3, 3.0])
TOL, CLOSE = (1e-11, 1e-8) if X64 else (1e-5, 2e-3)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    Y = np.stack([np.sin(2 * X[:, 0]), X[:, 0] * X[:, 1]], axis=1) + 0.1 * rng.normal(size=(N, 2)) + 3
    v = np.where(np.arange(N) % 9 == 4, 0, rng.uniform(0.3, 2, N))
    return array(X), array(Y), array(v)


def factors(X, weights, intercept, **options):
    """All of K, and K by products with as many probes as rows, which tell the diagonal itself."""
    iteration = rls.Iteration(tol=TOL, probes=N, **options)
    made = rls.factor_iterative(KERNEL, X, np.arange(0, N, 3), iteration=iteration, weights=weights, intercept=intercept)
    return rls.factorize(KERNEL, X, weights=weights, intercept=intercept), made


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_is_the_fit_to_all_of_K(data, weighted, intercept):
    X, Y, v = data
    exact, found = (factor.solve(Y) for factor in factors(X, v if weighted else None, intercept))
    lams = array(LAMS)
    for name in ("coefficients", "residual_norm", "data_fit", "residual_dof", "dof", "residuals"):
        for one, other in zip(jax.tree.leaves(getattr(found, name)(lams)), jax.tree.leaves(getattr(exact, name)(lams)), strict=True):
            assert_close(one, np.broadcast_to(other, one.shape), CLOSE, name)
    for criterion in (rls.loo, rls.gcv):
        assert_close(criterion(found.factor, Y, lams), criterion(exact.factor, Y, lams), CLOSE, criterion.__name__)


def test_a_lam_for_each_target(data):
    X, Y, v = data
    exact, found = factors(X, v, True)
    lams = array(LAMS[[[0, 2], [2, 1]]])
    assert_close(rls.loo(found, Y, lams), rls.loo(exact, Y, lams), CLOSE, "loo")
    assert_close(found.solve(Y).coefficients(lams).intercept, exact.solve(Y).coefficients(lams).intercept, CLOSE, "intercept")


@pytest.mark.float64
def test_the_standard_error_is_what_the_error_varies_by(data):
    """Over forty draws of signs; the mean is off by the second order of what was left out, which is small here."""
    X, Y, _ = data
    exact = float(rls.loo(rls.factorize(KERNEL, X), Y[:, 0], LAMS[1:2])[0])
    draws = []
    for seed in range(40):
        factor = rls.factor_iterative(KERNEL, X, np.arange(0, N, 2), iteration=rls.Iteration(key=jax.random.key(seed), tol=1e-8, probes=16))
        squares = lambda e, Y, v: jnp.sum(v[:, None] * e**2, axis=0) / N  # noqa: E731
        draws.append(
            (
                float(rls.loo(factor, Y[:, 0], LAMS[1:2])[0]),
                float(factor.solve(Y[:, 0]).outcome(array(LAMS[1:2, None]), fn=squares).error[0, 0]),
            )
        )
    errors, said = np.array(draws).T
    assert 0.5 < errors.std() / said.mean() < 2
    assert np.mean(np.abs(errors - exact) <= 2 * said) >= 0.8
    assert said.max() < 0.2 * exact


@pytest.mark.float64
def test_products_in_float32_with_vectors_in_float64(data):
    X, Y, _ = data
    exact, found = factors(X, None, True, products=jnp.float32)
    assert found.dtype == DTYPE
    coarse, fine = found.solve(Y).coefficients(LAMS[1:]).coef, exact.solve(Y).coefficients(LAMS[1:]).coef
    assert 1e-9 < float(jnp.abs(coarse - fine).max() / jnp.abs(fine).max()) < 1e-4


@pytest.mark.float64
def test_says_where_rounding_ends_it(data):
    """λ far below what products in float32 can tell: the residual stays, that is said, and no number comes of it."""
    X, Y, _ = data
    _, found = factors(jnp.concatenate([X, X + 1e-9])[:N] / 20, None, True, products=jnp.float32)
    dual, run = found.solve_columns(array([1e-12, 1e-12]), Y)
    assert (np.asarray(run.reason) != conjugate.CONVERGED).all() and (np.asarray(run.residuals) > 1e-8).all()
    assert (np.isfinite(np.asarray(dual)).all(axis=0) == (np.asarray(run.residuals) <= 0.1)).all()
    assert not np.isfinite(np.asarray(rls.loo(found, Y, [1e-12]))).any()


def test_what_takes_an_inverse_is_refused(data):
    X, Y, _ = data
    _, found = factors(X, None, True)
    with pytest.raises(ValueError, match="the evidence needs a determinant"):
        rls.log_marginal_likelihood(found, Y, LAMS)
    with pytest.raises(ValueError, match="groups left out together"):
        rls.kfold(found, Y, LAMS, groups=np.arange(N) % 4)


def test_fit_by_products(data):
    """λ by a search, the model, the residuals and how sure they are; the reason of every column's end."""
    X, Y, v = data
    found = rls.fit(KERNEL, X, 1e3 * Y, landmarks=np.arange(0, N, 2), route="iterative", lams="search", weights=v)
    exact = rls.fit(KERNEL, X, 1e3 * Y, weights=v, lams=[float(found.lam)], route="gram")
    assert found.route == "iterative" and found.search.endswith("iterations and one for the model")
    assert (np.asarray(found.run.reason) == conjugate.CONVERGED).all() and float(found.run.residuals.max()) <= 1e-4
    assert 0 < float(found.loo_standard_error) < 0.5 * float(exact.error)
    assert abs(float(found.error) - float(exact.error)) < 4 * float(found.loo_standard_error)
    assert_close(found.predict(X), exact.predict(X), 1e-2, "predictions")
    with pytest.raises(ValueError, match="route='iterative' needs landmarks="):
        rls.fit(KERNEL, X, Y, route="iterative", lams=[1.0])
    with pytest.raises(ValueError, match="route='iterative' has no spectrum"):
        rls.fit(KERNEL, X, Y, landmarks=20, route="iterative")


def test_a_fit_by_products_is_saved_whole(data, tmp_path):
    X, Y, _ = data
    fit = rls.fit(KERNEL, X, Y, landmarks=np.arange(0, N, 2), route="iterative", lams=[0.3])
    rls.save(tmp_path / "fit.npz", fit)
    back = rls.load(tmp_path / "fit.npz")
    assert jax.tree.structure(back) == jax.tree.structure(fit)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(fit), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fit_says_where_the_iteration_ended_early(data):
    X, Y, _ = data
    fit = rls.fit(KERNEL, X, Y, landmarks=np.arange(0, N, 2), route="iterative", lams=[0.3])
    run = replace(fit.run, reason=fit.run.reason.at[1].set(conjugate.ALL_STEPS), residuals=fit.run.residuals.at[1].set(0.05))
    with pytest.warns(UserWarning, match="the iteration stopped at a residual of 0.05: all steps were used"):
        inspect(replace(fit, run=run), False)


@pytest.mark.filterwarnings("ignore:λ below")
def test_a_useless_iteration_is_no_fit(data):
    """λ so far below what rounding leaves of K that no column comes near."""
    X, Y, _ = data
    with pytest.raises(ValueError, match="error is not finite"):
        rls.fit(KERNEL, X / 100, Y, landmarks=[0, 1], route="iterative", lams=[1e-30])
