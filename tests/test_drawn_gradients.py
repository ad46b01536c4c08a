"""Gradients of every smooth criterion on drawn problems, against differences of refits in extended
precision.

    JAXRLS_EXAMPLES=1000 pytest tests/test_drawn_gradients.py --hypothesis-seed=1

Each example compares six derivatives of five criteria: in log λ, in the log scales of columns and
of K, in the labels and in the weights, the latter two along a drawn direction. A derivative may be
off by what its criterion may be off by, once more amplified by the conditioning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.cases import CHOLESKY, LANDMARKS, POINTS, WIDTH, N
from extended import LONG, Truth
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from support import DTYPE, EPS, array
from test_properties import (
    EXAMPLES,
    LARGE,
    SLACK,
    amplified_by,
    gaussian,
    judge,
    linear,
    problems,
    spanned,
)

import jaxrls as rls

pytestmark = pytest.mark.float64
STEP = LONG("1e-4")
WEIGHTS_OF_DIFFERENCES = {-2: LONG(1) / 12, -1: -LONG(2) / 3, 1: LONG(2) / 3, 2: -LONG(1) / 12}
# factors: which problems, the kernel, what is decomposed, and options
LINEAR, RADIAL = rls.Linear(), rls.Gaussian(WIDTH)
KINDS = {
    "gram": ("cholesky gram", RADIAL, "dual", {}),
    "landmarks": ("cholesky landmarks", RADIAL, "primal", {"landmarks": LANDMARKS}),
    "points": ("cholesky points", RADIAL, "primal", {"landmarks": POINTS}),
    "features": ("cholesky features", LINEAR, "primal", {}),
}


def moved(np, at, X, Y, v, X_new, directions):
    """λ and data where the parameters are `at`: in JAX, or in extended precision."""
    along_labels, along_weights = directions
    columns = np.resize(np.exp(at[1:3]), X.shape[1])
    return columns * X, Y + at[4] * along_labels, v * np.exp(at[5] * along_weights), columns * X_new


@functools.cache
def gradients(name, intercept):
    """The derivatives of all criteria, averaged over targets, by one program that goes
    backwards.
    """
    _, kernel, _, options = KINDS[name]

    def values(at, lam, data, Y_new, shares, directions, plan):
        X, Y, v, X_new = moved(jnp, at, *data, directions)
        points = {
            key: jnp.exp(at[1:3]) * array(part) if part is POINTS else part
            for key, part in options.items()
        }
        scaled = jnp.exp(at[3]) * kernel
        solution = rls.factorize(
            scaled, X, weights=v, intercept=intercept, **CHOLESKY, **points
        ).solve(Y)
        held = rls.holdout(X_new, Y_new, weights=shares).bind(Y)
        criteria = rls.LeaveOneOut(), rls.kfold(plan), rls.gcv, rls.log_marginal_likelihood, held
        return jnp.stack(
            [jnp.mean(one.values(solution, lam * jnp.exp(at[:1]), scaled)) for one in criteria]
        )

    return jax.jit(jax.jacrev(values))


def truth_of(name, intercept, at, lam, data, Y_new, directions, groups):
    """The problem in extended precision where the parameters are `at`."""
    _, _, kind, options = KINDS[name]
    X, Y, v, X_new = moved(np, at, *data, directions)
    points = options.get("landmarks")
    if points is POINTS:
        points = np.exp(at[1:3]) * POINTS.astype(DTYPE).astype(LONG)
    alike = gaussian if name != "features" else linear
    scale, rows, amplified = np.exp(at[3]), np.concatenate([X, X_new]), 1.0

    def kernel(gone):
        if points is None:
            K = alike(rows, X)
            return (
                scale * K[:N],
                scale * K[N:],
                scale * np.array([alike(x[None], x[None])[0, 0] for x in X_new]),
            )
        R = points if name == "points" else X[points[~np.isin(points, gone)]]
        K = scale * spanned(gaussian, R, rows)
        return K[:N, :N], K[N:, :N], np.diagonal(K)[N:]

    if points is not None:
        amplified = amplified_by(points if name == "points" else X[points])
    reach = 1 if name == "features" else 1 + float(np.sum(X**2, axis=1).max()) / WIDTH**2
    noise = SLACK * EPS * (np.sqrt(amplified) + reach)
    return Truth(kernel, Y, Y_new, v, lam * np.exp(at[:1]), groups, intercept, kind, noise)


def pairs(truth, shares):
    """Value and what it may be off by, of every criterion, averaged over targets."""
    found = (
        truth.mean_square(np.arange(N)),
        truth.mean_square(truth.groups),
        truth.gcv,
        truth.evidence,
        truth.holdout(shares),
    )
    return np.array([[np.mean(value), np.mean(off)] for value, off in found]).T


def compared(name, intercept, drawn, seed):
    """Gradients as they are found and as they are by differences (criteria, parameters), how far
    off they may be, and their scale.
    """
    X, Y, v, lams, X_new, Y_new, shares, groups = drawn
    assume(min(np.count_nonzero(v[groups != g]) for g in range(5)) > 1 and np.abs(Y).max() > 0)
    long = [part.astype(LONG) for part in (X, Y, v, X_new)]
    rng = np.random.default_rng(seed)
    directions = [
        part.astype(DTYPE)
        for part in (rng.normal(size=Y.shape) * np.abs(Y).max(), rng.normal(size=N))
    ]
    wide = [part.astype(LONG) for part in directions]
    here, zero = (
        (
            lambda at, lam: truth_of(
                name, intercept, at, lam, long, Y_new.astype(LONG), wide, groups
            )
        ),
        np.zeros(6, LONG),
    )
    s = here(zero, np.ones(1, LONG)).size[0]
    lam = (lams[:1] * s).astype(DTYPE)
    assume((lam > 1e-30).all())
    middle, condition = here(zero, lam.astype(LONG)), 1 + s / float(lam[0])
    value, off = pairs(middle, shares.astype(LONG))
    wanted = (
        sum(
            weight
            * np.stack(
                [
                    pairs(here(zero + step * STEP * unit, lam.astype(LONG)), shares.astype(LONG))[0]
                    for unit in np.eye(6, dtype=LONG)
                ]
            )
            for step, weight in WEIGHTS_OF_DIFFERENCES.items()
        ).T
        / STEP
    )
    data = [array(part) for part in (X, Y, v, X_new)]
    found = gradients(name, intercept)(
        array(np.zeros(6)),
        array(lam),
        data,
        array(Y_new),
        array(shares),
        [array(part) for part in directions],
        rls.folds(groups),
    )
    scale = np.abs(value) + (np.arange(5) == 3)
    return (
        np.asarray(found, LONG),
        wanted,
        (condition * off)[:, None],
        np.maximum(np.abs(wanted), scale[:, None]),
    )


@pytest.mark.parametrize("intercept", [True, False] if LARGE else [True])
# By default the others in contract/test_derivatives.py, and in X in test_fixed_effects.py.
@pytest.mark.parametrize("name", KINDS if LARGE else ["points"])
def test_every_gradient_is_that_of_differences(name, intercept):
    @settings(
        max_examples=EXAMPLES if LARGE else 2,
        deadline=None,
        derandomize=not LARGE,
        database=None,
        phases=[Phase.generate],
    )
    @given(problems(KINDS[name][0]), st.integers(0, 2**32 - 1))
    def run(drawn, seed):
        got, wanted, off, scale = compared(name, intercept, drawn, seed)
        wrong = judge(got, wanted, np.broadcast_to(off, wanted.shape), scale)
        where = np.argwhere(wrong)
        assert not wrong.any(), (
            f"{where.tolist()}: {got[wrong][0]:.9g} for {wanted[wrong][0]:.9g}, may be off by "
            f"{off[where[0][0]][0]:.2g}"
        )

    run()
