"""Where two features meet: what the old shape of the code let go wrong, each seen wrong before it
was mended.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from contract.cases import WIDTH, gaussian
from support import (
    ANY_PRECISION,
    DTYPE,
    EDGE,
    EPS,
    FLOAT64,
    X64,
    array,
    assert_close,
    factor_gram,
    factor_subset,
    factorize,
    gram,
    refused,
    solver_of,
    wide,
)

import jaxrls as rls

N, LAMS, GAUSSIAN = 20, [0.1, 1.0], rls.Gaussian(1.0)
pytestmark = EDGE
TIGHT = 1e-8 if X64 else 2e-3


@pytest.fixture
def data(rng):
    X = rng.normal(size=(N, 3)).astype(DTYPE)
    return X, (np.sin(X[:, 0]) + 0.1 * rng.normal(size=N)).astype(DTYPE)


@pytest.mark.slow
def test_tuned_offers_what_fit_offers_and_groups_leave_together_in_residuals_too(data):
    """Of fits in test_few_lams.py and test_intervals.py."""
    (X, y), groups = data, np.arange(N) % 4
    tuned = rls.tune(GAUSSIAN, X, y, groups=groups, steps=2)
    lam, Z = float(tuned.lam), wide(X) * (WIDTH / float(tuned.kernel.width))
    Phi = oracle.of_kernel(gaussian, Z, Z)([])[0]
    want = oracle.group_residuals(Phi, wide(y)[:, None], lam, groups, intercept=True)
    assert_close(tuned.loo_residuals, want[:, 0], 10 * TIGHT)
    assert_close(tuned.error, np.mean(want**2), 10 * TIGHT)
    again = rls.fit(tuned.kernel, X, y, lams=[lam], groups=groups)
    assert_close(tuned.dof, again.dof, 10 * TIGHT)


@ANY_PRECISION
def test_powers_that_a_factor_lacks_are_named(data):
    X, y = data
    point = factorize(GAUSSIAN, X, solver=rls.Cholesky())
    words = "route 'cholesky' has no spectrum: use another"
    refused(
        (lambda: rls.extend.lambda_grid(point), words),
        (lambda: rls.diagnostics.influence(point, y, 0.1), words),
        (lambda: rls.diagnostics.eigenfunctions(point, GAUSSIAN, X), words),
    )


@ANY_PRECISION
def test_lists_are_taken_wherever_arrays_are(data):
    """What is returned, without a program that computes it."""
    X, y = map(np.ndarray.tolist, data)
    factor = jax.jit(lambda: rls.factorize(GAUSSIAN, X, weights=[1.0] * N))()
    held = rls.holdout([[0.0] * N], y[:1])
    for call, shape in (
        (lambda: held(factor, y, LAMS), (2,)),
        (lambda: rls.path(factor, y, LAMS).loo, (2,)),
        (lambda: rls.diagnostics.effective_dof(factor, LAMS), (2,)),
        (lambda: rls.extend.coef(factor, y, 0.1)[0], (N,)),
        (lambda: rls.diagnostics.loo_residuals(factor, y, 0.1), (N,)),
        (lambda: rls.diagnostics.influence(factor, y, 0.1).leverage, (N,)),
        (lambda: rls.objective(GAUSSIAN, X, y, 0.1), ()),
        (lambda: rls.extend.best_lam(GAUSSIAN, X, y), ()),
    ):
        assert jax.eval_shape(call).shape == shape


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rpcholesky", "uniform"])
def test_landmarks_are_drawn_by_weight(rng, method):
    """Of 50 landmarks 47 were rows of weight 0."""
    X = np.concatenate([rng.normal(size=(60, 2)), 50 + 20 * rng.normal(size=(300, 2))])
    rows = np.arange(360)

    def choose(width, num, seed, weights):
        options = {"key": jax.random.key(seed), "weights": weights, "method": method}
        return rls.choose_landmarks(rls.Gaussian(width), X, num, **options)

    weights = np.where(rows < 60, 1.0, 0)
    chosen = choose(1.0, 30, 0, weights)
    assert (np.asarray(chosen.indices) < 60).all()
    heavy = np.where(rows < 30, 100.0, np.where(rows < 60, 0.01, 0))
    drawn = [choose(0.1, 10, seed, heavy).indices for seed in range(5)]
    assert np.mean(np.asarray(drawn) < 30) > 0.95
    factor = factor_subset(GAUSSIAN, array(X), chosen, weights=array(weights))
    off = float(chosen.trace_residual) - float(factor.trace_residual)
    assert abs(off) <= 1e3 * EPS * weights.sum()


@FLOAT64
def test_an_indefinite_kernel_predicts_what_was_validated(rng):
    """c once kept z/λ where the eigenvalue had been set to 0: training error .954 by predict, .0224
    by λc.
    """
    X = rng.normal(size=(40, 2))
    Y = np.stack([np.sin(X[:, 0]), 5 * X[:, 1]], axis=1)
    sigmoid = rls.FunctionKernel(lambda X, Z: jnp.tanh(2 * X @ Z.T - 1))
    factor = factorize(sigmoid, X)
    assert float(factor.report.indefinite) > 1e-2
    K, lams = np.tanh(2 * X @ X.T - 1), np.array([1e-3, 1e-1])

    @jax.jit
    def of(factor):
        solution = factor.solve(Y)
        return *solution.coefficients(lams)[:2], solution.residual_norm(lams)

    coef, constant, norm = map(np.asarray, of(factor))
    residuals = Y - K @ coef - constant[:, None]
    assert_close(np.sum(residuals**2, axis=1), norm, 1e-8)
    # rounding is no sign of an indefinite kernel: nothing is dropped from a singular one, whose
    # model still fits, but of features what is rounding alone
    singular = factorize(rls.Linear(), X, solver=rls.Spectral("gram"))
    assert float(jnp.sum(singular.present)) == 2
    given = factor_gram(gram(rls.Linear(), X))
    assert float(jnp.sum(given.present)) == 40


@FLOAT64
@pytest.mark.parametrize("route", [None, pytest.param("cholesky", marks=pytest.mark.slow)])
def test_landmarks_less_than_the_root_of_rounding_apart_are_equal_ones(route):
    """Also where they leave together, by planes that rounding of the kernel turns by eps over the
    root of the ridge.
    """
    n = 20
    x = np.random.default_rng(0).normal(size=(n, 2))
    x[1], y = x[0], np.sin(x[:, 0])
    options = {"landmarks": np.array([0, 1, 5, 9, 12]), "groups": np.arange(n) // 2}
    options |= {"lams": [0.1], "solver": solver_of(route)}
    equal = rls.fit(GAUSSIAN, x, y, **options)
    x[1] += 1e-10
    near = rls.fit(GAUSSIAN, x, y, **options)
    assert_close(near.loo_residuals[:2], equal.loo_residuals[:2], 1e3 * EPS**0.5)
    assert_close(near.loo_residuals, equal.loo_residuals, 1e-3)
