"""jit, vmap, grad and export of every public computation."""

import collections
import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support import (
    ANY_PRECISION,
    DTYPE,
    EPS,
    FLOAT64,
    array,
    assert_close,
    differences,
    no_fit,
    refused,
    solver_of,
)

import jaxrls as rls
from jaxrls import extend
from jaxrls.core.data import data as data_module
from jaxrls.core.linalg import MAP
from jaxrls.core.linalg.decompositions import SpectralDerivativeError

GROUPS, GAUSSIAN = np.arange(12) % 4, rls.Gaussian(1.5)


Data = collections.namedtuple("Data", "X Y lams weights new Y_new")


def data(n=12, d=3, t=2, seed=0):
    rng = np.random.default_rng(seed)
    X, Y, new, Y_new = (rng.normal(size=s) for s in ((n, d), (n, t), (5, d), (5, t)))
    v = rng.uniform(0.5, 2, n) * (np.arange(n) != 3)
    values = X, Y + 1, [0.1, 1.0, 10.0], v, new, Y_new + 1
    return Data(*(array(v) for v in values))


def kernel(p):
    made = 0.5 * GAUSSIAN + rls.Linear()
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, p.X.dtype), made)


@functools.partial(jax.jit, static_argnames="route")  # traced once for all that is asked of it
def factor(p, route=None, landmarks=None):
    made = rls.Linear() if route in ("features", "covariance") else kernel(p)
    options = {"weights": p.weights, "landmarks": landmarks, "solver": solver_of(route)}
    return rls.factorize(made, p.X, **options)


def facts(f):
    """What a factor says without the signs of its eigenvectors."""
    U = f.read_left(MAP, lambda block: block.U)
    return f.s, jnp.matmul(U * f.s, U.T, precision="highest")


def solved(p, route=None):
    """What a criterion takes."""
    return factor(p, route), p.Y, p.lams


def at_one(p):
    return {"lam": p.lams[1], "weights": p.weights}


@jax.jit
def marked(p):
    return rls.choose_landmarks(kernel(p), p.X, 4, key=jax.random.key(0))


def chosen(p, **options):
    fit = rls.fit(kernel(p), p.X, p.Y, lams=p.lams, weights=p.weights, **options)
    return fit.lam, fit.error, fit.errors, fit.loo_residuals, fit.dof, fit.model


PLAN, HALVES, LEVELS = rls.folds(GROUPS), rls.folds(GROUPS % 2), rls.levels(GROUPS % 2)


def squares(values, functions, new):
    """Eigenvalues, and eigenfunctions up to their sign."""
    return values, functions.predict(new) ** 2


def signs(values):
    """Codes of two classes, where a column has both."""
    return 2 * (values > jnp.mean(values)).astype(values.dtype) - 1


def conformal(p):
    """p-values of two labels, by a fit of which the variance is kept."""
    codes = signs(p.Y[:, 0])
    fit = rls.fit(kernel(p), p.X, codes, lams=p.lams[:1], keep=True)
    return rls.classes.conformal_labels(fit, p.X, codes).p_values(p.new)


@jax.jit
def sides(p):
    """Two-sided data of 5 rows and 3 columns."""
    return rls.two_sided.factor_kronecker(kernel(p)(p.new, p.new), GAUSSIAN(p.X[:3], p.X[:3]))


CHOSEN = jnp.arange(4)


# Each group is one program: what its members share is traced and compiled once.
def data_of(problem):
    """What moments are of."""
    return data_module.Data(problem.rows, problem.weights, problem.fixed)


def asked(p):
    """Arguments of `fit_arrays`."""
    problem = extend.read_problem(kernel(p), p.X, p.Y, weights=p.weights)
    return problem, extend.Choice(problem.criterion, extend.Given(p.lams))


def of_result(result):
    """What of a result is not rounding alone."""
    return result.function.coef, result.chosen, result.diagnostics.loo_residuals


COMPUTATIONS: dict = {
    "kernels and landmarks": {
        "gram": lambda p: rls.extend.gram(kernel(p), p.X, p.new, block_size=5),
        "gram_matmul": lambda p: rls.extend.gram_matmul(kernel(p), p.new, p.X, p.Y, block_size=2),
        "polynomial_features": lambda p: rls.extend.polynomial_features(p.X, 3, 0.5),
        "choose_landmarks": lambda p: marked(p).points,
        "certified_lam": lambda p: rls.extend.certified_lam(marked(p), 0.1),
        "select_columns": lambda p: rls.several.select_columns(p.X, p.Y, 2, **at_one(p)).errors,
        "fit_kernels": lambda p: (
            rls.several.fit_kernels(
                [GAUSSIAN, rls.Linear()],
                p.X,
                p.Y,
                shares=[[0.5, 0.5], [1.0, 0.0]],
                lams=p.lams,
                weights=p.weights,
            ).error
        ),
    },
    "factors": {
        "factorize": lambda p: facts(factor(p)),
        "factorize, covariance": lambda p: facts(factor(p, "covariance")),
        "factorize, iterative": lambda p: rls.loo(
            rls.factorize(
                GAUSSIAN, p.X, solver=rls.Iterative(CHOSEN, tol=10 * EPS), weights=p.weights
            ),
            p.Y,
            p.lams,
        ),
        "factorize, landmarks": lambda p: rls.loo(factor(p, None, CHOSEN), p.Y, p.lams),
        "factorize, cholesky": lambda p: rls.loo(factor(p, "cholesky"), p.Y, p.lams),
        "moments": lambda p: extend.moments(
            data_of(extend.read_problem(rls.Linear(), p.X, p.Y, weights=p.weights)),
            rls.Linear(),
            p.Y,
        ),
    },
    "functions of a factor": {
        "lambda_grid": lambda p: rls.extend.lambda_grid(factor(p), 5),
        "path": lambda p: rls.path(*solved(p)),
        "coef": lambda p: rls.extend.coef(factor(p), p.Y, p.lams[:2]),
        "loo_residuals": lambda p: rls.diagnostics.loo_residuals(factor(p), p.Y, p.lams[1]),
        "influence": lambda p: rls.diagnostics.influence(factor(p), p.Y, p.lams[1]),
        "eigenfunctions": lambda p: squares(
            *rls.diagnostics.eigenfunctions(factor(p), kernel(p), p.X, 3), p.new
        ),
        "effective_dof": lambda p: rls.diagnostics.effective_dof(factor(p), p.lams),
        "loo": lambda p: rls.extend.LeaveOneOut(rls.extend.absolute_error)(*solved(p)),
        "gcv": lambda p: rls.gcv(*solved(p)),
        "kfold": lambda p: rls.kfold(PLAN)(factor(p), p.Y, p.lams[:1]),
        "kfold, by the other folds": lambda p: rls.kfold(HALVES)(*solved(p, "covariance")),
        "holdout": lambda p: rls.holdout(kernel(p)(p.new, p.X), p.Y_new)(*solved(p)),
        "log_marginal_likelihood": lambda p: rls.log_marginal_likelihood(*solved(p)),
        "log_predictive_density": lambda p: rls.extend.log_predictive_density(*solved(p)),
        "crps": lambda p: rls.extend.crps(*solved(p)),
        "pairwise_ranking_error": lambda p: rls.ranking.pairwise_ranking_error(
            factor(p), p.Y[:, 0], p.lams
        ),
    },
    "objectives": {
        "objective": lambda p: jax.grad(rls.objective)(
            kernel(p), p.X, p.Y, p.lams[1], weights=p.weights
        ),
        "objective, landmarks": lambda p: jax.grad(rls.objective)(
            kernel(p), p.X, p.Y, p.lams[1], weights=p.weights, landmarks=CHOSEN
        ),
        "best_lam": lambda p: rls.extend.best_lam(kernel(p), p.X, p.Y, p.lams),
    },
    "fits": {
        "fit": lambda p: chosen(p, per_target=True),
        "fit, levels": lambda p: chosen(p, fixed_effects=LEVELS),
        "fit_arrays": lambda p: of_result(extend.fit_arrays(*asked(p)).result),
        "predict": lambda p: rls.extend.Model(kernel(p), p.X, p.Y, p.Y[0]).predict(p.new),
    },
    "two sides": {
        "factor_kronecker": lambda p: rls.gcv(sides(p), p.X[:5].ravel(), p.lams),
        "kronecker_left_out": lambda p: rls.two_sided.kronecker_left_out(
            sides(p), p.X[:5], p.lams, "both"
        ),
        "kronecker_residuals": lambda p: rls.two_sided.kronecker_residuals(
            sides(p), p.X[:5], p.lams[0]
        ),
        "fit_kronecker": lambda p: (
            rls.two_sided.fit_kronecker(
                kernel(p), p.new, GAUSSIAN, p.X[:3], p.X[:5], lams=p.lams
            ).errors
        ),
    },
    "labels": {
        "fit_sigmoid": lambda p: rls.classes.fit_sigmoid(
            p.Y[:, 0], signs(p.Y[:, 0] + 2 * p.Y[:, 1]), p.weights
        ),
        "class_probabilities": lambda p: rls.classes.class_probabilities(jax.nn.sigmoid(p.Y)),
        "label_p_values": lambda p: rls.classes.label_p_values(
            p.Y[:, 0], signs(p.Y[:, 1]), p.Y_new[:, 0], p.weights
        ),
        "conformal_labels": conformal,
        "misordered": lambda p: rls.ranking.misordered(p.Y, p.Y - p.Y[0]),
        "squared_error": lambda p: rls.extend.squared_error(p.Y, p.Y + 1),
        "absolute_error": lambda p: rls.extend.absolute_error(p.Y, p.Y + 1),
        "zero_one_loss": lambda p: rls.classes.zero_one_loss(p.Y, p.Y + 1),
    },
    # JAX's own SVD for TPUs, and its median, hold float64 inside where float64 is switched on.
    "wider": {
        "factorize, features": lambda p: facts(factor(p, "features")),
        "median_distance": lambda p: rls.extend.median_distance(p.X),
        "start_from_data": lambda p: rls.extend.start_from_data(kernel(p), p.X),
    },
}
ON_THE_HOST = {
    "airfoil": "reads the data set that comes with the package",
    "decode": "labels may be text",
    "encode": "labels may be text",
    "folds": "shapes depend on the labels",
    "levels": "shapes depend on the labels",
    "load": "reads a file",
    "memory": "computes with shapes",
    "pytree": "decorates a class",
    "read_problem": "what it makes goes into fit_arrays",
    "save": "writes a file",
    "predict_to_file": "writes a file",
    "static": "declares a field",
    "shard": "moves arrays to devices",
    "stream": "reads files",
    "tune": "searches until done; its own tests jit its steps",
}
QUICK = "fits", "wider"
EVERY = pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=[] if group in QUICK else [pytest.mark.slow])
        for group in COMPUTATIONS
    ],
)


def program(group):
    """All of a group, by name."""
    return jax.jit(lambda p: {name: of(p) for name, of in COMPUTATIONS[group].items()})


def test_every_public_function_is_in_the_list():
    modules = [getattr(rls, name) for name in rls.__all__]
    pages = rls, *(value for value in modules if inspect.ismodule(value))
    public = {
        name
        for page in pages
        for name in page.__all__
        if callable(value := getattr(page, name)) and not isinstance(value, type)
    }
    listed = {name.split(",")[0] for group in COMPUTATIONS.values() for name in group}
    assert public - listed == set(ON_THE_HOST), "each is in COMPUTATIONS, or says why not"


@FLOAT64  # where the other precision can be told from it
@EVERY
def test_jit_and_vmap(group):
    """Two data sets at once are the same as one after the other."""
    problems = [data(seed=seed) for seed in (0, 1)]
    f = program(group)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *problems)
    together = jax.device_get(jax.jit(jax.vmap(f))(stacked))
    for i, p in enumerate(problems):
        for (path, one), both in zip(
            jax.tree.leaves_with_path(f(p)), jax.tree.leaves(together), strict=True
        ):
            assert one.dtype == both.dtype and (
                not jnp.issubdtype(one.dtype, jnp.floating) or one.dtype == DTYPE
            )
            assert_close(both[i], one, 1e4 * EPS, jax.tree_util.keystr(path))


# float32 programs, and only where float64 is switched on may they hold any of it.
@ANY_PRECISION
@EVERY
def test_export(group):
    """float32 programs lower for every platform, multiply at full precision, and hold no float64
    that a TPU would not have.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), data())
    platforms = ("cpu", "cuda", "rocm", "tpu")
    exported = jax.export.export(program(group), platforms=platforms)(shapes)
    assert exported.platforms == platforms
    assert {out.dtype for out in exported.out_avals if jnp.issubdtype(out.dtype, jnp.floating)} <= {
        np.dtype(np.float32)
    }
    module = exported.mlir_module()
    products = [line for line in module.splitlines() if "stablehlo.dot_general" in line]
    exact = "precision = [HIGHEST, HIGHEST]", "xi32"
    assert [line for line in products if not any(word in line for word in exact)] == []
    if group != "wider":
        assert not re.search(r"tensor<\d[\dx]*xf64>", module), "an array of float64"


@pytest.mark.slow
@FLOAT64
def test_rows_of_weight_0_may_hold_anything_in_a_program():
    """NaN and infinity there change neither values nor derivatives: all is as without these
    rows.
    """
    p = data()
    count = 9  # of 12 rows
    filled = p.weights.at[count:].set(0)
    X = p.X.at[count:].set(jnp.nan).at[count, 1].set(jnp.inf)
    Y = p.Y.at[count:].set(jnp.nan).at[count, 1].set(-jnp.inf)
    kept = [part[:count] for part in (p.X, p.Y, p.weights)]

    @jax.jit
    def everything(X, Y, v):
        error = lambda kernel, lam, X, Y, v: rls.objective(kernel, X, Y, lam, weights=v)
        value, slopes = jax.value_and_grad(error, range(5))(kernel(p), p.lams[1], X, Y, v)
        fit = rls.fit(kernel(p), X, Y, weights=v, lams=p.lams)
        rows = slopes[2:], fit.loo_residuals
        return (value, slopes[:2], fit.error, fit.predict(p.new)), rows

    got, got_rows = everything(X, Y, filled)
    want, want_rows = everything(*kept)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(one, other, 1e4 * EPS)
    for one, other in zip(jax.tree.leaves(got_rows), jax.tree.leaves(want_rows), strict=True):
        assert np.isfinite(one).all()
        assert_close(one[:count], other, 1e4 * EPS)
    for slope in got_rows[0]:
        assert not slope[count:].any()


FUNCTION = rls.FunctionKernel(lambda X, Z: (1 + X @ Z.T) ** 2)
MANY_KERNELS = [
    *(rls.Gaussian(1.5), rls.Gaussian([1.0, 2.0, 3.0]), rls.Matern(1.5, 1.0), rls.Laplacian(1.0)),
    *(rls.RationalQuadratic(1.0, 1.0), rls.Periodic(1.0, 1.0), rls.Polynomial(2), rls.Tanimoto()),
    *(rls.ChiSquared(1.0), rls.Cosine(), rls.Levels(), rls.Sobolev().on([0]), FUNCTION),
    *(0.5 * rls.Gaussian(1.0) + rls.Linear(), rls.Gaussian(1.0).on([0, 2]) * rls.Linear()),
]


@pytest.mark.slow
@FLOAT64
def test_export_for_any_number_of_rows():
    """Predictions of every kernel, by rows or by features, and standard deviations and intervals;
    blocks of a number of rows are refused.
    """
    p = data()
    X, new = abs(p.X) / 4, abs(p.new) / 4
    models = [rls.extend.Model(k, X, p.Y, p.Y[0]) for k in MANY_KERNELS]
    for k in rls.Linear(), rls.FeatureMap(jnp.tanh):
        models.append(rls.extend.Model(k, None, p.Y[:3], p.Y[0]))
    fit = rls.fit(kernel(p), X, p.Y[:, 0], lams=[0.1], standardize=True, weights=p.weights)
    levels = rls.levels(np.arange(len(X)) % 3)
    models.append(rls.fit(kernel(p), X, p.Y[:, 0], lams=[0.1], fixed_effects=levels).model)

    def predictions(new):
        return [each.predict(new) for each in models], fit.predict(new, return_std=True)

    everything = jax.jit(lambda new: (predictions(new), fit.intervals(new)))
    (m,) = jax.export.symbolic_shape("m")
    exported = jax.export.export(everything)(jax.ShapeDtypeStruct((m, 3), new.dtype))
    for rows in new[:1], new:
        got, want = exported.call(rows), everything(rows)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert_close(one, other, 1e4 * EPS)
    of_three = lambda new: models[0].predict(new, block_size=3)
    any_rows = functools.partial(jax.eval_shape, of_three, jax.ShapeDtypeStruct((m, 3), new.dtype))
    refused((any_rows, "block_size must be None where the number of rows is a symbol, m, and is 3"))


@ANY_PRECISION
def test_a_symbolic_number_of_rows_to_fit_is_refused_and_of_data_sets_taken():
    (n,) = jax.export.symbolic_shape("n")
    X, y = jax.ShapeDtypeStruct((n, 2), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)
    K = rls.Gaussian(1.0)
    calls = [
        lambda X, y: rls.objective(K, X, y, 0.1),
        lambda X, y: rls.fit(K, X, y, lams=[0.1]).error,
        lambda X, y: rls.factorize(K, X).spectrum().s,
        lambda X, y: rls.choose_landmarks(K, X, 3).points,
    ]
    with no_fit():
        for call in calls:
            export = functools.partial(jax.eval_shape, call, X, y)
            refused((export, "X must have a known number of rows to fit, and has the symbol n"))
    sets = [jax.ShapeDtypeStruct((n, 6, 2), jnp.float32), jax.ShapeDtypeStruct((n, 6), jnp.float32)]
    assert jax.eval_shape(jax.vmap(calls[0]), *sets).shape == (n,)


# derivatives
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@FLOAT64
def test_derivatives_in_labels_and_lam():
    """Everything computed from a factor, by its gradient in Y and every λ, against differences;
    rows of weight 0 included.
    """
    p = data()
    f = jax.jit(functools.partial(factor, route="covariance"))(p)
    start, back = ravel_pytree((p.Y, jnp.log(p.lams)))

    def outputs(flat):
        Y, lams = back(flat)
        lams = jnp.exp(lams)
        path = rls.path(f, Y, lams)
        return {
            "path.coef": path.coef,
            "path.intercept": path.intercept,
            "loo_residuals": rls.diagnostics.loo_residuals(f, Y, lams[1:]),
            "loo": rls.loo(f, Y, lams),
            "loo, absolute": rls.extend.LeaveOneOut(rls.extend.absolute_error)(f, Y, lams),
            "gcv": rls.gcv(f, Y, lams),
            "kfold": rls.kfold(PLAN)(f, Y, lams[:1]),
            "kfold, by the other folds": rls.kfold(HALVES)(f, Y, lams),
            "holdout": rls.holdout(p.new, p.Y_new)(f, Y, lams),
            "log_marginal_likelihood": rls.log_marginal_likelihood(f, Y, lams),
            "effective_dof": rls.diagnostics.effective_dof(f, lams),
        }

    def values(flat):
        """One number for each output, so that one program gives all gradients."""
        return {
            name: sum(jnp.sum(leaf**2) + jnp.sum(leaf) for leaf in jax.tree.leaves(value))
            for name, value in outputs(flat).items()
        }

    both = jax.jit(jax.jacrev(lambda flat: 2 * (values(flat),), has_aux=True))
    gradients = both(start)[0]
    numbers = differences(lambda flat: np.array(list(both(flat)[1].values())), start)
    for i, name in enumerate(gradients):
        assert np.abs(numbers[:, i]).max() > 1e-3, f"{name} does not depend on anything"
        assert_close(gradients[name], numbers[:, i], 1e-6, name)


@pytest.mark.parametrize("route", ["gram", "features"])
def test_eigenvectors_refuse_to_be_differentiated(route):
    """In kernel, X and weights a gradient through the factor raises, and names what to use instead:
    never a NaN or a wrong number.
    """
    p = data()
    k = kernel(p) if route == "gram" else rls.FeatureMap(lambda scale, X: scale * X, array(2.0))

    def error(kernel, X, weights):
        factor = rls.factorize(kernel, X, weights=weights, solver=solver_of(route))
        return jnp.sum(rls.loo(factor, p.Y, p.lams))

    arguments, words = (k, p.X, p.weights), r"use jaxrls\.objective\(kernel, X, Y, lam\)"
    derivatives = *(jax.grad(error, i) for i in range(3)), lambda *at: jax.jvp(error, at, at)
    refused(
        *(
            (functools.partial(jax.eval_shape, derivative, *arguments), words)
            for derivative in derivatives
        ),
        error=SpectralDerivativeError,
    )
    assert issubclass(SpectralDerivativeError, TypeError)
