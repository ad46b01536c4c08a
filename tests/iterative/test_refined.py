"""Inverses by Cholesky factors in float32 and products in float64, and fits refined by them:
against fits and refits in extended precision.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from contract import cases
from extended import LONG, Fits, Truth
from support import ANY_PRECISION, EDGE, FLOAT64, assert_close, refused

import jaxrls as rls
from jaxrls.core.fit import Result
from jaxrls.core.linalg import solve_diag
from jaxrls.front import inspect_result
from jaxrls.iterative.conjugate import ALL_STEPS, CONVERGED
from jaxrls.iterative.refined import (
    CLOSE,
    STEPS,
    inverse_root,
    refined_inverse,
    refined_solve_diag,
)

N, WIDTH = 90, 1.0
EPS64 = float(np.finfo(float).eps)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = (
    np.stack([np.sin(2 * X[:, 0]), X[:, 0] * X[:, 1]], axis=1) + 0.05 * RNG.normal(size=(N, 2)) + 3
).astype(np.float32)
V = np.where(np.arange(N) % 9 == 4, 0, RNG.uniform(0.3, 2, N)).astype(np.float32)
KERNEL = rls.Gaussian(WIDTH)


def gaussian(A, B):
    """K in extended precision."""
    return cases.gaussian(A.astype(LONG), B.astype(LONG), LONG(WIDTH))


K = gaussian(X, X)
S_MAX = float(np.linalg.eigvalsh(K.astype(float))[-1])
INVERSE_ROOT = jax.jit(inverse_root)


def exactly(lams, groups):
    lams, v, labels = (part.astype(LONG) for part in (np.array(lams), V, Y))
    return Truth(lambda gone: (K, K, np.diagonal(K)), labels, labels, v, lams, groups, True)


def truth(lams):
    """Coefficients (L, n, t), intercept (L, t), every row's residual without it (L, n, t) and the
    degrees of freedom (L,).
    """
    exact = exactly(lams, rows := np.arange(N))
    dof = np.sum(V > 0) - exact.residual_dof[0][:, 0]
    level = exact.fit.solve(exact.Y)[1][0, :, 0]
    return np.sqrt(exact.v)[:, None] * exact.dual, level, exact.held(rows), dof


@pytest.fixture(scope="module")
def floor():
    """Below which float32's spectrum is noise."""
    return float(rls.fit(KERNEL, X, Y, lams=[1.0], solver=rls.Spectral("gram")).floor)


def off(got, want):
    """The largest difference, relative to the largest number."""
    got = np.asarray(got)
    assert got.dtype == np.float64 and got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


@ANY_PRECISION
@pytest.mark.parametrize("switch", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_refined_float32_below_the_floor_is_float64(floor, switch):
    """Coefficients to 1e-6 and held-out residuals to 1e-5 at 1e-3 of the floor, where float32 alone
    has no digit right.
    """
    lam = 1e-3 * floor
    coef, level, left_out, dof = truth([lam])
    with jax.enable_x64(switch):
        fit = rls.fit(KERNEL, X, Y, weights=V, lams=[lam], solver=rls.Refined())
        assert isinstance(fit.model.coef, jax.Array if switch else np.ndarray)
    fit = jax.tree.map(np.asarray, fit)
    assert fit.route == "refined" and (fit.run.reason == CONVERGED).all()
    assert fit.run.residuals.max() <= CLOSE
    assert off(fit.model.coef, coef[0]) < 1e-6 and off(fit.model.intercept, level[0]) < 1e-6
    assert off(fit.loo_residuals, left_out[0]) < 1e-5
    assert abs(float(fit.dof / dof[0]) - 1) < 1e-5
    error = np.sum(V[:, None] * left_out[0] ** 2, axis=0) / np.sum(V)
    assert abs(float(fit.error / np.mean(error)) - 1) < 1e-5
    new = RNG.normal(size=(20, 2))
    predicted = gaussian(new, X.astype(float)) @ coef[0] + level[0]
    assert off(fit.predict(new), predicted) < 1e-6


@ANY_PRECISION
@EDGE
@pytest.mark.slow
def test_a_search_goes_below_what_float32_can_tell(floor):
    """Labels without noise: the best λ is below float32's floor, and the search finds it."""
    smooth = np.sin(X[:, 0]).astype(float)
    found = rls.fit(KERNEL, X, smooth, lams="search", solver=rls.Refined())
    exact = rls.fit(KERNEL, X.astype(float), smooth, lams="search", solver=rls.Cholesky())
    assert float(found.lam) < 1e-3 * floor and "Cholesky factors" in found.plan
    assert abs(np.log(float(found.error) / float(exact.error))) < 0.02


@ANY_PRECISION
@pytest.mark.slow
def test_other_criteria():
    """Held-out rows and groups go to float64 with the rest."""
    new, rows = X[:20] + 1, np.arange(N)
    for criterion, left in ((rls.holdout(new, Y[:20]), rows), (rls.kfold(rows % 5), rows % 5)):
        found = rls.fit(
            KERNEL, X, Y, weights=V, lams=[1e-6], solver=rls.Refined(), criterion=criterion
        )
        exact = exactly([1e-6], left)
        want, v = exact.held(left)[0], V
        assert_close(found.loo_residuals, want, 1e-6, found.criterion)
        if left is rows:
            want, v = Y[:20] - exact.fit.predict(gaussian(new, X)[None], exact.Y)[0, 0], None
        assert_close(found.error, np.average(want**2, 0, v).mean(), 1e-6, found.criterion)
        assert (np.asarray(found.run.reason) == CONVERGED).all()


@ANY_PRECISION
@pytest.mark.slow
def test_a_refined_fit_says_where_it_did_not_come_near():
    fit = rls.fit(KERNEL, X, Y, lams=[1e-6], solver=rls.Refined())
    run = replace(fit.run, reason=jnp.array([ALL_STEPS]), residuals=jnp.array([0.05]))
    with pytest.warns(
        UserWarning,
        match="the iteration stopped at a residual of 0.05: all steps were used: take a larger λ",
    ):
        result = Result(fit.model, fit.chosen, replace(fit.diagnostics, run=run))
        why = rls.Refined().explain(run)
        inspect_result(result, fit.criterion, names_lams=False, why_stopped=why)


def test_frames_are_refined_in_float64_too():
    X32 = np.asarray(X, np.float32)
    y = np.asarray(Y, np.float32)
    options = {"lams": [1.0], "solver": rls.Refined()}
    framed = rls.fit(KERNEL, pd.DataFrame(X32), y, **options)
    plain = rls.fit(KERNEL, X32, y, **options)
    assert framed.model.coef.dtype == plain.model.coef.dtype == np.float64
    assert framed.model.coef.tolist() == plain.model.coef.tolist()
    # Columns of held-out rows go by name, though the frame becomes an array.
    backwards = pd.DataFrame(X32[:9]).iloc[:, ::-1].add_prefix("x")
    held_out = rls.fit(
        KERNEL,
        pd.DataFrame(X32).add_prefix("x"),
        y,
        criterion=rls.holdout(backwards, y[:9]),
        **options,
    )
    in_order = rls.fit(KERNEL, X32, y, criterion=rls.holdout(X32[:9], y[:9]), **options)
    assert held_out.error == in_order.error


@ANY_PRECISION
def test_what_cannot_be_refined_is_refused():
    fit = lambda X, **named: rls.fit(KERNEL, X, Y, lams=[1.0], solver=rls.Refined(), **named)
    sparse = scipy.sparse.csr_array(X)
    refused(
        (lambda: fit(X, landmarks=10), "landmarks= cannot be used with "),
        (lambda: jax.jit(lambda X: fit(X).error)(X), "call fit outside of jax.jit"),
        (lambda: fit(sparse), "dense X with known values, and X is csr_array"),
    )


def wide(A):
    return jnp.asarray(np.asarray(A, float))


@FLOAT64
@pytest.mark.parametrize("times", [1.0, 1e-3, 1e-6, 1e-9])
def test_inverse_root(times):
    """B G Bᵀ = I, and the diagonal of BᵀB and log |G|, to rounding in float64 times the condition
    number; two steps to 1e-9 s_max, three to 1e-12.
    """
    lam = times * S_MAX * 1e-3
    exact = Fits(K[None], np.ones((1, N), LONG), np.array([lam], LONG), False)
    root, found, distances = INVERSE_ROOT(wide(K) + lam * jnp.eye(N))
    inverse, tolerance = np.asarray(root.T @ root), 10 * N**0.5 * EPS64 * S_MAX / lam
    assert_close(inverse, exact.P[0, 0], tolerance, "inverse")
    assert_close(np.diagonal(inverse), np.diagonal(exact.P[0, 0]), tolerance, "diagonal")
    logdet = 2 * float(np.sum(np.log(np.diagonal(exact.L[0, 0]))))
    assert abs(float(found) - logdet) < N * tolerance
    count = int(jnp.sum(jnp.isfinite(distances)))
    assert count <= (2 if times >= 1e-6 else 3) and float(distances[count - 1]) <= CLOSE


@FLOAT64
@pytest.mark.parametrize("least", [-1e-3, -1e-9])
def test_an_indefinite_matrix_has_no_root(least):
    """NaN, as a Cholesky factor has it, whether float32 can see that or only float64."""
    Q = np.linalg.qr(RNG.normal(size=(30, 30)))[0]
    G = (Q * np.append(np.linspace(0.1, 1, 29), least)) @ Q.T
    root, logdet, distances = INVERSE_ROOT(jnp.asarray((G + G.T) / 2))
    assert bool(jnp.isnan(root).all()) and bool(jnp.isnan(logdet)) and distances.shape == (STEPS,)


@FLOAT64
@pytest.mark.slow
def test_derivatives_are_those_of_the_plain_inverse():
    """In K, the shift and the right-hand side."""
    B, weight = wide(Y[:9]), wide(RNG.normal(size=(9, 9)))

    def value(solve, invert, width, shift):
        A = rls.extend.gram(rls.Gaussian(width), wide(X[:9]))
        x, p, logdet = solve(A, shift, B * width)[:3]
        return (
            jnp.sum(x**2) + jnp.sum(p) + logdet + jnp.sum(weight * invert(A + shift * jnp.eye(9)))
        )

    ways = (refined_solve_diag, refined_inverse), (solve_diag, jnp.linalg.inv)
    got, want = (
        jax.jit(jax.grad(lambda at, way=way: value(*way, *at)))(jnp.array([1.0, 0.1]))
        for way in ways
    )
    assert_close(got, want, 1e-8)
