"""Where two features meet: what the old shape of the code let go wrong, each seen wrong before it
was mended.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from support import (
    DTYPE,
    EPS,
    X64,
    array,
    assert_close,
    factor_subset,
    of_features,
    of_gram,
    of_landmarks,
    solver_of,
    wide,
)

import jaxrls as rls

N, LAMS = 20, [0.1, 1.0]
pytestmark = pytest.mark.filterwarnings("ignore:the chosen λ")
TIGHT = 1e-8 if X64 else 2e-3


@pytest.fixture
def data(rng):
    X = rng.normal(size=(N, 3))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=N)


def test_groups_leave_together_in_residuals_too(data):
    """fit.loo_residuals, the picture of what is left out, and the estimators' loo_predictions_."""
    X, y = wide(data[0]), wide(data[1])
    groups = np.arange(N) % 4
    lams = np.array([0.3, 3.0], DTYPE)
    fit = rls.fit(rls.Linear(), X.astype(DTYPE), y.astype(DTYPE), groups=groups, lams=lams)
    want = oracle.group_residuals(X, y[:, None], float(fit.lam), groups, intercept=True)[:, 0]
    assert_close(fit.loo_residuals, want, TIGHT)
    assert_close(fit.error, np.mean(want**2), TIGHT)
    tuned = rls.tune(rls.Linear(), X.astype(DTYPE), y.astype(DTYPE), groups=groups, steps=2)
    want = oracle.group_residuals(X, y[:, None], float(tuned.lam), groups, intercept=True)[:, 0]
    assert_close(tuned.loo_residuals, want, 10 * TIGHT)


def test_powers_that_a_factor_lacks_are_named(data):
    X, y = map(array, data)
    point = rls.factorize(rls.Gaussian(1.0), X, solver=rls.Cholesky())
    for ask in (
        rls.lambda_grid,
        lambda f: rls.influence(f, y, 0.1),
        lambda f: rls.eigenfunctions(f, rls.Gaussian(1.0), X),
    ):
        with pytest.raises(ValueError, match="route 'cholesky' has no spectrum: use another"):
            ask(point)


@pytest.mark.parametrize("given", [np.asarray, np.ndarray.tolist], ids=["arrays", "lists"])
def test_lists_and_numpy_arrays_are_taken_wherever_jax_arrays_are(data, given):
    """What is returned, without a program that computes it."""
    X, y, lams, eye = map(given, (*data, np.array(LAMS), np.eye(3)))
    kernel, design = rls.Gaussian(1.0), given(np.zeros((5, N)))
    factor = rls.factorize(kernel, X, weights=given(np.ones(N)))
    for call, shape in (
        (lambda: rls.loo(factor, y, lams), (2,)),
        (lambda: rls.gcv(factor, y, lams), (2,)),
        (lambda: rls.log_marginal_likelihood(factor, y, lams), (2,)),
        (lambda: rls.path(factor, y, lams).loo, (2,)),
        (lambda: rls.kfold([0, 1] * (N // 2))(factor, y, lams), (2,)),
        (lambda: rls.holdout(design, y[:5])(factor, y, lams), (2,)),
        (lambda: rls.effective_dof(factor, lams), (2,)),
        (lambda: rls.coef(factor, y, 0.1)[0], (N,)),
        (lambda: rls.loo_residuals(factor, y, 0.1), (N,)),
        (lambda: rls.influence(factor, y, 0.1).leverage, (N,)),
        (lambda: of_gram(eye).s, (3,)),
        (lambda: of_features(eye).s, (3,)),
        (lambda: of_landmarks(kernel, X, given(np.arange(2))).s, (2,)),
        (lambda: rls.objective(kernel, X, y, 0.1), ()),
        (lambda: rls.best_lam(kernel, X, y), ()),
    ):
        assert jax.eval_shape(call).shape == shape


def test_one_default_for_the_intercept():
    public = (value for name, value in vars(rls).items() if not name.startswith("_"))
    functions = filter(inspect.isfunction, map(inspect.unwrap, filter(callable, public)))
    named = [inspect.signature(function).parameters for function in functions]
    defaults = [each["intercept"].default for each in named if "intercept" in each]
    assert len(defaults) >= 9 and set(defaults) == {True}


def test_tuned_offers_what_fit_offers(data):
    X, y = data[0].astype(DTYPE), data[1].astype(DTYPE)
    tuned = rls.tune(rls.Gaussian(1.0), X, y, steps=2)
    again = rls.fit(tuned.kernel, X, y, lams=[float(tuned.lam)], solver=rls.Spectral("gram"))
    # What is of landmarks or of an iteration, and what `fit` keeps where it is asked to:
    # fit(tuned.kernel, …, lams=tuned.lam).
    own = [
        "num_landmarks",
        "search",
        "run",
        "loo_standard_error",
        "ridge_effect",
        "kept",
        "update",
        "forget",
        "process",
        "posterior",
        "jackknife",
        "intervals",
        "loo_predictive",
    ]
    public = {name for name in dir(again) if not name.startswith("_")} - set(own)
    assert public <= set(dir(tuned))
    for name in ("loo_residuals", "dof", "error"):
        assert_close(getattr(tuned, name), getattr(again, name), 10 * TIGHT, name)
    assert (tuned.criterion, tuned.route) == ("loo", "cholesky")
    assert len(tuned.lams) == len(tuned.errors)


@pytest.mark.parametrize("method", ["rpcholesky", "uniform"])
def test_landmarks_are_drawn_by_weight(rng, method):
    """Of 50 landmarks 47 were rows of weight 0."""
    X = np.concatenate([rng.normal(size=(60, 2)), 50 + 20 * rng.normal(size=(300, 2))])
    weights = np.concatenate([np.ones(60), np.zeros(300)])
    chosen = rls.landmarks(
        rls.Gaussian(1.0), X, 30, key=jax.random.key(0), weights=weights, method=method
    )
    assert (np.asarray(chosen.indices) < 60).all()
    heavy = np.where(np.arange(360) < 30, 100.0, np.where(np.arange(360) < 60, 0.01, 0))
    drawn = [
        rls.landmarks(
            rls.Gaussian(0.1), X, 10, key=jax.random.key(s), weights=heavy, method=method
        ).indices
        for s in range(5)
    ]
    assert np.mean(np.asarray(drawn) < 30) > 0.95
    factor = factor_subset(rls.Gaussian(1.0), array(X), chosen, weights=array(weights))
    assert (
        abs(float(chosen.trace_residual) - float(factor.trace_residual))
        <= 1e3 * EPS * weights.sum()
    )


@pytest.mark.float64
def test_an_indefinite_kernel_predicts_what_was_validated(rng):
    """c once kept z/λ where the eigenvalue had been set to 0: training error .954 by predict, .0224
    by λc.
    """
    X = rng.normal(size=(40, 2))
    y = np.sin(X[:, 0])
    sigmoid = rls.FunctionKernel(lambda X, Z: jnp.tanh(2 * X @ Z.T - 1))
    factor = rls.factorize(sigmoid, X)
    assert float(factor.report.indefinite) > 1e-2
    solution = factor.solve(y)
    for lam in (1e-3, 1e-1):
        coef, constant = rls.coef(factor, y, lam)
        predicted = np.asarray(sigmoid(jnp.asarray(X), jnp.asarray(X)) @ coef + constant)
        assert_close(
            np.sum((y - predicted) ** 2), solution.residual_norm(jnp.array([lam]))[0, 0], 1e-8
        )
    # rounding is no sign of an indefinite kernel: nothing is dropped from a singular one, whose
    # model still fits
    singular = rls.factorize(rls.Linear(), X, solver=rls.Spectral("gram"))
    assert singular.solved is None
    given = of_gram(rls.gram(rls.Linear(), jnp.asarray(X)))
    assert float(jnp.sum(given.solved)) == 40


def test_equal_kernels_of_array_widths():
    one, two = rls.Gaussian(jnp.ones(3)), rls.Gaussian(np.ones(3))
    assert one == two and hash(one) == hash(two) and one != rls.Gaussian(jnp.arange(3.0) + 1)


@pytest.mark.float64
@pytest.mark.parametrize("route", [None, "cholesky"])
def test_landmarks_less_than_the_root_of_rounding_apart_are_equal_ones(route):
    """Also where they leave together, by planes that rounding of the kernel turns by eps over the
    root of the ridge.
    """
    n = 20
    x = np.random.default_rng(0).normal(size=(n, 2))
    x[1], y = x[0], np.sin(x[:, 0])
    options = {
        "landmarks": np.array([0, 1, 5, 9, 12]),
        "lams": [0.1],
        "solver": solver_of(route),
        "groups": np.arange(n) // 2,
    }
    equal = rls.fit(rls.Gaussian(1.0), x, y, **options)
    x[1] += 1e-10
    near = rls.fit(rls.Gaussian(1.0), x, y, **options)
    assert_close(near.loo_residuals[:2], equal.loo_residuals[:2], 1e3 * EPS**0.5)
    assert_close(near.loo_residuals, equal.loo_residuals, 1e-3)


@pytest.mark.parametrize("route", [None, "cholesky"])
def test_landmarks_that_depend_leave_in_pairs_and_groups(route):
    """Five in four dimensions: one that leaves takes nothing along, two take what no three tell.
    Sums over all pairs, and groups of two, by refits.
    """
    n, lam, rng = 16, 0.1, np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=n)

    def left_out(rows):
        rest = np.setdiff1d(np.arange(n), rows)
        spanned = np.linalg.svd(x[np.setdiff1d(np.arange(5), rows)], full_matrices=False)[2]
        w, b = oracle.refit(x[rest] @ spanned.T, y[rest, None], lam, None, True)
        return y[rows] - (x[rows] @ spanned.T @ w + b)[:, 0]

    pairs = [[j, i] for i in range(n) for j in range(i)]
    wanted = np.array([left_out(pair) for pair in pairs])
    groups = np.arange(n) // 2
    tolerance = 4 * n * EPS * (1 + np.linalg.norm(x, 2) ** 2 / lam)
    lams = np.full(1, lam, DTYPE)

    @jax.jit
    def asked(x, y):
        factor = rls.factorize(rls.Linear(), x, landmarks=np.arange(5), solver=solver_of(route))
        solution = factor.solve(y)
        of = lambda one, other: (
            (one.residual - other.residual) ** 2,
            one.residual * other.residual,
        )
        return solution.pairs_left_out(of, lams), solution.residuals(lams, rls.folds(groups))

    found, residuals = asked(x.astype(DTYPE), y.astype(DTYPE))
    assert_close(found[0][0, 0], np.sum((wanted[:, 0] - wanted[:, 1]) ** 2), tolerance)
    assert_close(found[1][0, 0], np.sum(wanted[:, 0] * wanted[:, 1]), tolerance)
    want = np.concatenate([left_out([i, i + 1]) for i in range(0, n, 2)])
    assert_close(residuals[0, :, 0], want, tolerance)
