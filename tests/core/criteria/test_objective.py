"""The derivative of every criterion at one λ: against differences of a value that is itself checked
against the spectral route.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import (
    ANY_PRECISION,
    FLOAT64,
    X64,
    array,
    assert_close,
    differences,
    factorize,
    lambda_grid,
    loo,
)

import jaxrls as rls

CRITERIA = {
    "loo": {},
    "evidence": {"criterion": rls.log_marginal_likelihood},
    "kfold": {"groups": rls.folds(np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]))},
    "holdout": {},
}


GAUSSIAN = rls.Gaussian(1.0)


def problem(n=14, seed=0):
    rng = np.random.default_rng(seed)
    X = np.abs(rng.normal(size=(n, 3))) + 0.1
    Y = np.stack([np.sin(2 * X[:, 0]), X.sum(axis=1)], axis=1) + 0.3 * rng.normal(size=(n, 2))
    return X, Y, rng.uniform(0.5, 2, n)


@functools.partial(jax.jit, static_argnames=("name", "intercept"))
def value(kernel, X, Y, lam, weights, name="loo", intercept=True):
    options = dict(CRITERIA[name])
    if name == "holdout":
        options["criterion"] = rls.holdout(X[:4] + 0.05, Y[:4])
    return rls.objective(kernel, X, Y, lam, weights=weights, intercept=intercept, **options)


@functools.partial(jax.jit, static_argnames=("name", "intercept"))
def slopes(args, direction, step, name="loo", intercept=True):
    """Value, derivative and second derivative along a direction, a step along it, by reverse mode
    and forward over reverse.
    """
    dot = lambda a, b: sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)))
    args = jax.tree.map(lambda a, d: a + step * d, args, direction)
    both = jax.value_and_grad(lambda a: value(*a, name=name, intercept=intercept))
    (f, g), (_, h) = jax.jvp(both, (args,), (direction,))
    return f, dot(g, direction), dot(h, direction), jnp.sqrt(dot(g, g) * dot(direction, direction))


def check(kernel, X, Y, lam, weights, name="loo", intercept=True):
    args = jax.tree.map(array, (kernel, X, Y, lam, weights))
    rng = np.random.default_rng(1)
    direction = jax.tree.map(lambda a: array(rng.normal(size=a.shape)), args)
    step = 1e-4
    at = {s: slopes(args, direction, s * step, name, intercept) for s in (-2, -1, 0, 1, 2)}
    order4 = lambda i: (8 * (at[1][i] - at[-1][i]) - (at[2][i] - at[-2][i])) / (12 * step)
    _, first, curvature, largest = map(float, at[0])
    scale = 1e-2 * largest  # a direction may be nearly flat by chance
    assert abs(first - order4(0)) <= 1e-6 * max(abs(first), scale)
    assert abs(curvature - order4(1)) <= 1e-6 * max(abs(curvature), scale)


GRAM, FEATURES = (rls.Gaussian(1.25), True), (rls.Linear(), False)
SIDES = {"evidence": GRAM, "kfold": GRAM, "holdout": FEATURES}


@FLOAT64
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name != "holdout" else []) for name in SIDES],
)
def test_every_criterion(name):
    """With weights, by K or by features; first derivatives of every criterion are in the contract's
    tests, second ones of leave-one-out below, of every kernel in `test_kernels.py`.
    """
    kernel, intercept = SIDES[name]
    X, Y, v = problem()
    check(kernel, X, Y, 0.3, v, name, intercept)


def points(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


CLUSTER = points(5, 12, 2)
HARD = {
    "K near the identity": (rls.Gaussian(1e-2), np.arange(48.0).reshape(24, 2) ** 1.1),
    "rank 2 as a kernel": (rls.FunctionKernel(lambda X, Z: X @ Z.T), points(3, 24, 2)),
    "rank 2 as features": (rls.Linear(), points(3, 24, 2)),
    "duplicated rows": (GAUSSIAN, np.repeat(points(4, 8, 2), 3, axis=0)),
    "two equal clusters": (GAUSSIAN, np.concatenate([CLUSTER, CLUSTER + 100.0])),
}


@FLOAT64
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] if "rank" in case else []) for case in HARD],
)
def test_where_eigenvalues_repeat_or_vanish(case):
    """The cases that break differentiation through an eigendecomposition."""
    check(*HARD[case], points(6, 24, 1), 0.1, None)


@pytest.mark.slow
@ANY_PRECISION
def test_a_fit_by_cholesky_factors_has_the_same_slope():
    X, Y, _ = problem()
    fit = lambda k: jnp.mean(rls.fit(k, X, Y, lams=[0.3], solver=rls.Cholesky()).error)
    slopes = [
        jax.jit(jax.grad(of))(GAUSSIAN).width for of in (fit, lambda k: value(k, X, Y, 0.3, None))
    ]
    assert_close(slopes[0], slopes[1], 1e-10)


@ANY_PRECISION
def test_one_cholesky_one_program_few_matrices():
    """One factorization an evaluation, one program whatever the parameters, and the n×n arrays that
    the docstring states.
    """
    n = 2048
    X, Y, _ = problem(n=n)
    both = jax.jit(jax.value_and_grad(rls.objective, argnums=(0, 3)))
    compiled = both.lower(GAUSSIAN, array(X), array(Y), 0.3).compile()
    assert compiled.as_text().count("potrf") == 1
    matrices = compiled.memory_analysis().temp_size_in_bytes / (n * n * array(X).dtype.itemsize)
    assert matrices < 6


def test_large_loss_and_targets():
    """Any loss; a single target keeps its own value."""
    X, Y, _ = problem()
    absolute = rls.extend.LeaveOneOut(rls.extend.absolute_error)
    error = jax.jit(lambda y: rls.objective(GAUSSIAN, array(X), y, 0.3, criterion=absolute))
    both, *each = map(error, (array(Y), *array(Y.T)))
    assert_close(both, np.mean(each), 1e-12 if X64 else 1e-5)


@pytest.mark.slow
@FLOAT64
def test_best_lam_by_the_implicit_function_theorem():
    """dλ*/dwidth, and the derivative of a validation error at λ*, against differences; the envelope
    for the LOO error itself. Of a loss of one's own.
    """
    X, Y, _ = problem(n=40, seed=2)
    train, test = (array(X[:30]), array(Y[:30, 0])), (array(X[30:]), array(Y[30:, 0]))
    quartic = lambda residuals, labels: residuals**4
    own = rls.extend.LeaveOneOut(quartic)

    def everything(at):
        kernel = rls.Gaussian(at[0])
        lam = rls.extend.best_lam(kernel, *train, criterion=own)
        validation = rls.objective(kernel, *train, lam, criterion=rls.holdout(*test))
        envelope = rls.objective(kernel, *train, jax.lax.stop_gradient(lam), criterion=own)
        return jnp.stack([lam, validation, envelope])

    f = jax.jit(jax.jacrev(lambda at: 2 * (everything(at),), has_aux=True))
    slopes, (lam, *_) = f(jnp.ones(1))
    (wanted,) = differences(lambda at: f(at)[1], np.ones(1), 1e-4)
    for slope, expected in zip(slopes[:, 0], wanted, strict=True):
        assert_close(slope, expected, 1e-6)
    factor = factorize(GAUSSIAN, train[0])
    best, *errors = loo(factor, train[1], jnp.append(lam, lambda_grid(factor)), loss=quartic)
    assert best <= min(errors)


@FLOAT64
def test_best_lam_is_found_on_either_side_of_the_best_of_a_grid():
    """Against the errors at many λ; though the grid is not sorted, and names some λ twice."""
    X, Y, _ = problem(n=30, seed=2)
    X, y, fine = array(X), array(Y[:, 0]), jnp.geomspace(1e-3, 10, 4001)
    errors = loo(factorize(GAUSSIAN, X), y, fine)
    lowest = float(fine[np.argmin(errors)])
    found = jax.jit(lambda lams: rls.extend.best_lam(GAUSSIAN, X, y, lams))
    for beside in (0.6, 1.7):
        grid = beside * lowest * 3.0 ** array([1, -2, 0, 2, -1, 0, 1])
        assert_close(found(grid), lowest, 3e-3)


@pytest.mark.slow
def test_best_lam_at_the_end_of_its_grid_stands_still():
    X, Y, _ = problem()
    chosen = jax.jit(
        jax.value_and_grad(
            lambda w, y, lams: rls.extend.best_lam(rls.Gaussian(w), array(X), y, lams)
        )
    )
    for y, lams, end in (
        (Y[:, 0], [1e3, 1e4], 1e3),
        (np.resize([1.0, -1.0], len(X)), [1.0, 3.0], 3.0),
    ):
        got, slope = chosen(1.0, array(y), array(lams))
        assert_close(got, end, 1e-6 if X64 else 1e-4)
        assert slope == 0
