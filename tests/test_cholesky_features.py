"""The primal problem by Cholesky, on landmarks: what the spectral factor says, and derivatives in everything, the landmarks included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, array, assert_close

import jaxrls as rls

N, LAM = 40, 0.3
GAUSSIAN = rls.Gaussian(1.5)
ROWS = np.array([3, 10, 20, 30, 39, 31, 32, 7, 9])
GROUPS = rls.folds(np.arange(N) % 7)


def data(seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2, N)
    weights[[3, 5]] = 0
    return array(rng.normal(size=(N, 3))), array(rng.normal(size=(N, 2)) + 1), array(weights)


def everything(factor, Y, X):
    """All that criteria, models and predictions are made of."""
    lams = array([LAM, 10 * LAM])
    criteria = [criterion(factor, Y, lams) for criterion in (rls.loo, rls.gcv, rls.log_marginal_likelihood)]
    grouped = rls.kfold(factor, Y, lams, GROUPS)
    held_out = rls.holdout(factor, Y, lams, rls.gram(GAUSSIAN, X[::3] + 1, factor.points), Y[::3])
    return [*criteria, grouped, held_out, *factor.solve(Y).coefficients(lams), factor.trace_residual]


@functools.partial(jax.jit, static_argnames="intercept")
def both(X, Y, weights, landmarks, intercept):
    options = {"weights": weights, "intercept": intercept, "landmarks": landmarks}
    spectrum, cholesky = rls.factorize(GAUSSIAN, X, **options), rls.factorize(GAUSSIAN, X, route="cholesky", block_size=16, **options)
    return everything(spectrum, Y, X), everything(cholesky, Y, X)


@pytest.mark.float64  # in float32 the contract grid
@pytest.mark.parametrize(("leave", "weighted", "intercept"), [(False, False, False), (True, True, True)], ids=["points stay", "rows leave"])
def test_agrees_with_the_spectral_factor(leave, weighted, intercept):
    """In blocks of rows; in one piece both are held to refits by the contract grid, with every combination of weights and intercept."""
    X, Y, v = data()
    landmarks = jnp.asarray(ROWS) if leave else X[ROWS] + 0.1
    want, got = both(X, Y, v if weighted else None, landmarks, intercept)
    for a, b in zip(want, got, strict=True):
        assert_close(b, a, 1e-10)


CRITERIA = {
    "loo": {},
    "kfold": {"groups": GROUPS},
    "holdout": {"validation": "yes"},
}


@functools.partial(jax.jit, static_argnames=("name", "leave"))
def slopes(args, direction, step, name, leave):
    """Value, gradient and Hessian-vector product along a direction, a step along it, in blocks of rows."""

    def value(args):
        kernel, X, Y, lam, weights, points = args
        options = dict(CRITERIA[name])
        if name == "holdout":
            options["validation"] = (X[:4] + 0.05, Y[:4])
        landmarks = jnp.asarray(ROWS) if leave else points
        return rls.objective(kernel, X, Y, lam, weights=weights, landmarks=landmarks, block_size=16, **options)

    dot = lambda a, b: sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))  # noqa: E731
    args = jax.tree.map(lambda a, d: a + step * d, args, direction)
    (f, g), (_, h) = jax.jvp(jax.value_and_grad(value), (args,), (direction,))
    return f, dot(g, direction), dot(h, direction), jnp.sqrt(dot(g, g) * dot(direction, direction))


SLOW = [pytest.param(name, True, marks=pytest.mark.slow) for name in ("loo", "kfold")]


@pytest.mark.float64
@pytest.mark.parametrize(("name", "leave"), [("holdout", False), *SLOW])
def test_derivatives(name, leave):
    """In the kernel, X, Y, λ, weights and points at once, against differences.

    Every criterion has its first derivatives on landmarks in the contract's tests, and its second ones by this factor in `test_objective.py`.
    """
    X, Y, v = data()
    args = jax.tree.map(jnp.asarray, (GAUSSIAN, X, Y, array(LAM), v + 0.1, X[ROWS] + 0.1))
    rng = np.random.default_rng(1)
    direction = jax.tree.map(lambda a: array(rng.normal(size=a.shape)), args)
    step = 1e-4
    at = {s: slopes(args, direction, s * step, name, leave) for s in (-2, -1, 0, 1, 2)}
    for order, tolerance in ((0, 1e-6), (1, 1e-6)):
        slope = (8 * (at[1][order] - at[-1][order]) - (at[2][order] - at[-2][order])) / (12 * step)
        scale = max(abs(at[0][order + 1]), 1e-2 * at[0][3])
        assert abs(at[0][order + 1] - slope) <= tolerance * scale


@pytest.mark.float64
def test_dependent_landmarks():
    """Points twice, and points that the kernel can hardly tell apart: the gradient is that without the doubles, and never NaN."""
    X, Y, _ = data()
    gradient = jax.jit(jax.grad(lambda width, points: rls.loo_objective(rls.Gaussian(width), X, Y, LAM, landmarks=points)))
    once, twice = X[ROWS], X[np.concatenate([ROWS, ROWS])]
    assert_close(gradient(1.5, twice), gradient(1.5, once), 1e-8)
    assert np.isfinite(gradient(100.0, X))


@pytest.mark.float64  # bytes by the number of entries
def test_memory_does_not_grow_with_rows():
    """Value and gradient on ten times the rows take the same memory beside X, y and their cotangents."""
    m = 50

    def temporaries(n):
        shapes = [jax.ShapeDtypeStruct(shape, DTYPE) for shape in ((n, 3), (n,), (m, 3))]
        run = jax.grad(lambda w, X, y, P: rls.loo_objective(rls.Gaussian(w), X, y, LAM, landmarks=P, block_size=1000))
        return jax.jit(run).lower(1.0, *shapes).compile().memory_analysis().temp_size_in_bytes

    size = jnp.dtype(DTYPE).itemsize
    assert temporaries(100_000) - temporaries(10_000) < 90_000 * 16 * size  # a few columns of n, and no n×m array


@pytest.mark.float64  # searches in float32 are in test_tune.py
@pytest.mark.slow
def test_tune():
    """The search on landmarks: never worse than its start, and its model that of the subset factor at the tuned λ."""
    X, Y, _ = data()
    y = jnp.sin(2 * X[:, 0]) + 0.1 * Y[:, 1]
    with jax.numpy_dtype_promotion("standard"):
        tuned = rls.tune(rls.Gaussian(5.0), X, y, landmarks=12, steps=10)
    assert tuned.error < tuned.start_error
    assert tuned.model.points.shape == (12, 3)
    rows = jnp.asarray([int(np.flatnonzero((np.asarray(X) == p).all(axis=1))[0]) for p in np.asarray(tuned.model.points)])
    again = rls.fit(tuned.kernel, X, y, lams=[float(tuned.lam)], landmarks=rows)
    assert_close(again.error, tuned.error, 1e-8)
    assert_close(again.predict(X), tuned.predict(X), 1e-6)
