"""Where two features meet: what the old shape of the code let go wrong, each seen wrong before it
was mended.
"""

import functools

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
    gram,
    of_covariance,
    of_features,
    of_gram,
    of_landmarks,
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


WRAPS = {
    "jit": jax.jit,
    "partial": functools.partial,
    "both": lambda f: jax.jit(functools.partial(f)),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_a_wrapped_criterion_keeps_its_sign(data, wrap):
    X, y = data[0].astype(DTYPE), data[1].astype(DTYPE)
    lams = np.geomspace(1e-3, 1e2, 12).astype(DTYPE)
    for criterion in (rls.log_marginal_likelihood, rls.loo):
        plain, wrapped = (
            rls.fit(rls.Gaussian(1.5), X, y, lams=lams, criterion=c)
            for c in (criterion, wrap(criterion))
        )
        assert plain.lam == wrapped.lam, criterion.__name__
        assert_close(wrapped.errors, plain.errors, 10 * TIGHT)


def test_the_search_knows_the_sign_of_a_wrapped_criterion(data):
    X, y = data[0].astype(DTYPE), data[1].astype(DTYPE)
    tuned = rls.tune(
        rls.Gaussian(1.5), X, y, criterion=WRAPS["both"](rls.log_marginal_likelihood), steps=3
    )
    assert tuned.error <= tuned.start_error


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


def test_estimators_leave_groups_out_in_their_predictions(data):
    from jaxrls.sklearn import RLSRegressor

    X, y = wide(data[0]), wide(data[1])
    groups = np.arange(N) % 4
    model = RLSRegressor("linear", criterion="kfold", lams=[0.3, 3.0]).fit(X, y, groups=groups)
    want = oracle.group_residuals(X, y[:, None], float(model.lam_), groups, intercept=True)[:, 0]
    assert_close(model.loo_predictions_, y - want, 1e-8)


def test_residuals_of_groups_by_function(data):
    X, y = wide(data[0]), wide(data[1])
    groups = np.arange(N) % 4
    for route in ("gram", "features", "covariance", "cholesky"):
        factor = rls.factorize(rls.Linear(), array(X), route=route)
        want = oracle.group_residuals(X, y[:, None], 0.5, groups, intercept=True)[:, 0]
        assert_close(rls.loo_residuals(factor, array(y), 0.5, groups), want, TIGHT, route)


def test_powers_that_a_factor_lacks_are_named(data):
    X, y = map(array, data)
    point = rls.factorize(rls.Gaussian(1.0), X, route="cholesky")
    assert rls.loo_residuals(point, y, 0.1).shape == (N,) and rls.effective_dof(
        point, LAMS
    ).shape == (2,)
    for ask in (
        rls.lambda_grid,
        lambda f: rls.influence(f, y, 0.1),
        lambda f: rls.eigenfunctions(f, rls.Gaussian(1.0), X),
    ):
        with pytest.raises(
            ValueError,
            match=r"route 'cholesky' has no spectrum: make it by another, such as factorize\(.*route='gram'\)",
        ):
            ask(point)


def test_multiples_of_linear_kernels_take_sparse_rows(data):
    sparse = pytest.importorskip("scipy.sparse")
    X, y = data[0].astype(DTYPE), data[1].astype(DTYPE)
    X[np.abs(X) < 0.5] = 0
    kernel = 0.5 * rls.Linear() + rls.Linear().on([0, 2])
    dense, thin = (
        rls.fit(kernel, A, y, lams=LAMS, route="covariance") for A in (X, sparse.csr_array(X))
    )
    assert_close(thin.errors, dense.errors, TIGHT)
    assert_close(thin.predict(sparse.csr_array(X)), dense.predict(X), TIGHT)


@pytest.mark.parametrize(
    "combine",
    [lambda K: K + rls.Linear(), lambda K: rls.Linear() * K, lambda K: 2.0 * K, lambda K: K.on(0)],
)
def test_a_kernel_matrix_has_no_algebra(combine):
    with pytest.raises(ValueError, match="Precomputed"):
        combine(rls.Precomputed())


def test_lists_and_numpy_arrays_are_taken_wherever_jax_arrays_are(data):
    X, y = data[0].tolist(), data[1].tolist()
    factor = jax.jit(lambda: rls.factorize(rls.Gaussian(1.0), X, weights=[1.0] * N))()
    lams, lists, numpys = (
        jnp.asarray(LAMS, factor.dtype),
        (y, LAMS),
        (np.asarray(y), np.asarray(LAMS)),
    )
    functions = (
        rls.loo,
        rls.gcv,
        rls.log_marginal_likelihood,
        lambda *a: rls.path(*a).loo,
        lambda *a: rls.kfold(*a, [0, 1] * (N // 2)),
    )
    asked = (
        (jnp.asarray(y, factor.dtype), lams),
        lists,
        numpys,
    )  # known while the one program of all is traced
    found = jax.jit(
        lambda factor: [[function(factor, *each) for each in asked] for function in functions]
    )(factor)
    for want, *others in found:
        for got in others:
            assert_close(got, want, TIGHT)

    def shape(fn, *arguments):
        """What is returned for lists, without a program that computes it."""
        return jax.eval_shape(lambda: fn(*arguments)).shape

    design = gram(rls.Gaussian(1.0), array(X)[:5], array(X)).tolist()
    assert shape(lambda: rls.holdout(factor, y, LAMS, design, y[:5])) == (2,)
    assert (
        shape(lambda: rls.coef(factor, y, 0.1)[0])
        == shape(rls.loo_residuals, factor, y, 0.1)
        == (N,)
    )
    assert shape(rls.effective_dof, factor, LAMS) == (2,) and shape(
        lambda: rls.influence(factor, y, 0.1).leverage
    ) == (N,)
    for make in (of_gram, of_features):
        assert jax.eval_shape(lambda make=make: make(np.eye(3).tolist())).n == 3
    assert jax.eval_shape(lambda: of_covariance(np.eye(3))).n == 3
    assert jax.eval_shape(lambda: of_landmarks(rls.Gaussian(1.0), X, [0, 1])).n == N
    assert (
        shape(rls.loo_objective, rls.Gaussian(1.0), X, y, 0.1)
        == shape(rls.best_lam, rls.Gaussian(1.0), X, y)
        == ()
    )


def test_one_default_for_the_intercept():
    import inspect

    functions = [
        value
        for name, value in vars(rls).items()
        if inspect.isfunction(inspect.unwrap(value))
        if not name.startswith("_")
    ]
    defaults = {
        f.__name__: inspect.signature(f).parameters["intercept"].default
        for f in functions
        if "intercept" in inspect.signature(f).parameters
    }
    assert len(defaults) >= 9 and set(defaults.values()) == {True}


def test_tuned_offers_what_fit_offers(data):
    X, y = data[0].astype(DTYPE), data[1].astype(DTYPE)
    fit, tuned = rls.fit(rls.Gaussian(1.0), X, y), rls.tune(rls.Gaussian(1.0), X, y, steps=2)
    # What is of landmarks or of an iteration, and what `fit` keeps where it is asked to:
    # fit(tuned.kernel, …, lams=tuned.lam).
    own = {
        "num_landmarks",
        "search",
        "run",
        "loo_standard_error",
        "ridge_effect",
        "kept",
        "update",
        "forget",
        "sure",
        "posterior",
    }
    own |= {"jackknife", "intervals", "loo_predictive"}
    public = {name for name in dir(fit) if not name.startswith("_")} - own
    assert not public - set(dir(tuned))
    again = rls.fit(tuned.kernel, X, y, lams=[float(tuned.lam)], route="gram")
    for name in ("loo_residuals", "dof", "error"):
        assert_close(getattr(tuned, name), getattr(again, name), 10 * TIGHT, name)
    assert (
        tuned.criterion == "loo"
        and tuned.route == "cholesky"
        and len(tuned.lams) == len(tuned.errors)
    )


@pytest.mark.parametrize("method", ["rpcholesky", "uniform"])
def test_landmarks_are_drawn_by_weight(rng, method):
    """Of 50 landmarks 47 were rows of weight 0: error .202 where the same rows without them give
    .0156.
    """
    X = np.concatenate([rng.normal(size=(60, 2)), 50 + 20 * rng.normal(size=(300, 2))])
    weights = np.concatenate([np.ones(60), np.zeros(300)])
    chosen = rls.landmarks(
        rls.Gaussian(1.0), X, 30, key=jax.random.key(0), weights=weights, method=method
    )
    assert (np.asarray(chosen.indices) < 60).all()
    y = np.sin(X[:, 0])
    with_zeros = rls.fit(rls.Gaussian(1.0), X, y, weights=weights, landmarks=30)
    assert float(with_zeros.error) < 0.5 * np.var(y[:60])
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
@pytest.mark.parametrize("intercept", [True, False])
def test_an_indefinite_kernel_predicts_what_was_validated(rng, intercept):
    """c once kept z/λ where the eigenvalue had been set to 0: training error .954 by predict, .0224
    by λc.
    """
    X = rng.normal(size=(40, 2))
    y = np.sin(X[:, 0])
    sigmoid = rls.FunctionKernel(lambda X, Z: jnp.tanh(2 * X @ Z.T - 1))
    factor = rls.factorize(sigmoid, X, intercept=intercept)
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
    singular = rls.factorize(rls.Linear(), X, route="gram", intercept=intercept)
    assert singular.solved is None
    given = of_gram(rls.gram(rls.Linear(), jnp.asarray(X)), intercept=intercept)
    assert float(jnp.sum(given.solved)) == 40


def test_equal_kernels_of_array_widths():
    one, two = rls.Gaussian(jnp.ones(3)), rls.Gaussian(np.ones(3))
    assert one == two and hash(one) == hash(two) and one != rls.Gaussian(jnp.arange(3.0) + 1)


@pytest.mark.parametrize("route", [None, "cholesky"])
@pytest.mark.parametrize("equal", [2, 3])
def test_equal_landmarks_leave_together_or_one_by_one(equal, route):
    """Against refits in which each stands for all that are equal: in one group, in two, and by
    themselves.
    """
    n, lam, width = 20, 0.1, 1.0
    draws = np.random.default_rng(0).normal(size=(n, 2))
    x = draws[np.where(np.arange(n) < equal, 0, np.arange(n))]
    y, chosen = np.sin(draws[:, 0]), np.array([*range(equal), 5, 9, 12])

    def left_out(rows):
        rest = np.setdiff1d(np.arange(n), rows)
        points = np.unique(x[np.intersect1d(chosen, rest)], axis=0)
        K, across = (
            np.exp(-((A[:, None] - points) ** 2).sum(axis=-1) / (2 * width**2)) for A in (points, x)
        )
        features = np.linalg.solve(np.linalg.cholesky(K), across.T).T
        w, b = oracle.refit(features[rest], y[rest, None], lam, None, True)
        return y[rows] - (features[rows] @ w + b)[:, 0]

    for groups in (np.arange(n) // 4, np.arange(n) // 2, np.arange(n)):
        want = np.concatenate(
            [left_out(np.flatnonzero(groups == group)) for group in np.unique(groups)]
        )
        fit = rls.fit(
            rls.Gaussian(DTYPE(width)),
            x.astype(DTYPE),
            y.astype(DTYPE),
            landmarks=chosen,
            lams=[lam],
            route=route,
            groups=groups,
        )
        assert_close(fit.loo_residuals, want, 4 * n * EPS * (1 + n / lam))


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
        "route": route,
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
    solution = rls.factorize(
        rls.Linear(), x.astype(DTYPE), landmarks=np.arange(5), route=route
    ).solve(y.astype(DTYPE))
    found = solution.pairs_left_out(
        lambda one, other: ((one.residual - other.residual) ** 2, one.residual * other.residual),
        np.full(1, lam, DTYPE),
    )
    assert_close(found[0][0, 0], np.sum((wanted[:, 0] - wanted[:, 1]) ** 2), tolerance)
    assert_close(found[1][0, 0], np.sum(wanted[:, 0] * wanted[:, 1]), tolerance)
    residuals = solution.residuals(np.full(1, lam, DTYPE), rls.folds(groups))[0, :, 0]
    assert_close(
        residuals, np.concatenate([left_out([i, i + 1]) for i in range(0, n, 2)]), tolerance
    )
