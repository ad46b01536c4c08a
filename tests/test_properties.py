"""Every factor × criterion on drawn problems, badly conditioned ones included, against refits in extended precision.

A few examples by default; as many as are asked for, on other seeds, by

    JAXRLS_EXAMPLES=1000 pytest tests/test_properties.py --hypothesis-seed=1

and in float32 with JAXRLS_X64=0. Shapes are fixed, so that each factor is compiled once; values are drawn: spread and conditioning of the rows, equal
rows, offsets, labels near the span of the features, scales of labels and weights, weights of 0, groups, λ over decades. What a result may be off by
follows from the dtype and the conditioning of the problem: see `extended`.
"""

import functools
import os

import jax
import numpy as np
import pytest
from contract.cases import FACTORS, FREED, LANDMARKS, NEW, PLANS, POINTS, WIDTH, N, sparse
from extended import LONG, Truth, through
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from support import DTYPE, EPS, X64, array

import jaxrls as rls

EXAMPLES = int(os.environ.get("JAXRLS_EXAMPLES", "6"))
LARGE = "JAXRLS_EXAMPLES" in os.environ
SLACK = 8  # what constants the bounds leave out
TINY = 1e-30 if X64 else 1e-10
DECADES = {"label": 60, "span": 10, "lam": 10} if X64 else {"label": 8, "span": 4, "lam": 4}

# factors: rows of which kernel, and what is decomposed
GAUSSIAN, LINEAR, MATRIX = "gaussian", "linear", "matrix"
KINDS = {
    "gram": (GAUSSIAN, "dual"),
    "features": (LINEAR, "svd"),
    "covariance": (LINEAR, "primal"),
    "outer": (LINEAR, "dual"),
    "precomputed": (MATRIX, "dual"),
    "landmarks": (GAUSSIAN, "primal"),
    "landmarks not kept": (GAUSSIAN, "primal"),
    "landmarks that stay": (GAUSSIAN, "primal"),
    "points": (GAUSSIAN, "primal"),
    "cholesky gram": (GAUSSIAN, "dual"),
    "refined": (GAUSSIAN, "dual"),
    "cholesky features": (LINEAR, "primal"),
    "cholesky landmarks": (GAUSSIAN, "primal"),
    "cholesky points": (GAUSSIAN, "primal"),
    "tridiagonal": (GAUSSIAN, "dual"),
    "tridiagonal of few features": (LINEAR, "dual"),
    "sparse": (LINEAR, "primal"),
}
LEAVING = ("landmarks", "landmarks not kept", "cholesky landmarks")
FIRST = ("gram", "features", "covariance", "landmarks", "cholesky gram", "cholesky landmarks", "tridiagonal")  # each an algebra of its own
COMBINATIONS = [(name, intercept) for name in KINDS for intercept in (True, False) if LARGE or intercept and name in FIRST]


def gaussian(X, Z):
    return np.exp(-np.sum((X[:, None] - Z[None]) ** 2, axis=-1) / (2 * LONG(WIDTH) ** 2))


def decades(most):
    return st.floats(-most, most).map(lambda exponent: 10.0**exponent)


@st.composite
def problems(draw, name):
    """Rows, labels, weights, λ over the largest eigenvalue, groups, and new rows with labels and weights."""
    source, d = KINDS[name][0], FACTORS[name].X.shape[1] if KINDS[name][0] == LINEAR else 2
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    near_points = "points" in name  # that are no rows: far from them centring cancels, and directions that all rows lack are dropped
    spread = draw(st.floats(-1, 1) if source == LINEAR else st.floats(-0.5, 0.2 if near_points else 0.7))
    offset = draw(st.sampled_from([0] if near_points else [0, 0, 3]))
    columns = 10.0 ** draw(st.lists(st.floats(-2 if X64 else -1, 0), min_size=d, max_size=d).map(np.array))
    X, X_new = (10.0**spread * columns * (rng.normal(size=(size, d)) + offset) for size in (N, NEW))
    for i in draw(st.lists(st.integers(1, N - 1), max_size=3)):
        X[i] = X[i - 1] if i not in LANDMARKS and i - 1 not in LANDMARKS else X[i]
    w = rng.normal(size=(X.shape[1], 2))
    near = 10.0 ** -draw(st.floats(0, DECADES["span"]))
    scale = draw(decades(DECADES["label"]))
    Y, Y_new = ((np.sin(Z) if source != LINEAR else Z) @ w for Z in (X, X_new))
    Y, Y_new = (scale * (Z / np.abs(Y).max() + near * rng.normal(size=Z.shape) + draw(st.sampled_from([0, 1]))) for Z in (Y, Y_new))
    v = np.array(draw(st.lists(st.sampled_from([1, 1, 0, 2.5, 1e-2, TINY, 1e3]), min_size=N, max_size=N)))
    lams = np.sort(10.0 ** draw(st.lists(st.floats(-DECADES["lam"], 3), min_size=4, max_size=4).map(np.array)))
    groups = PLANS["uneven"][rng.permutation(N)] if draw(st.booleans()) else PLANS["uneven"]
    return tuple(np.asarray(part, DTYPE) for part in (X, Y, v, lams, X_new, Y_new, rng.uniform(0.5, 2, NEW))) + (groups,)


@functools.cache
def program(name, intercept):
    """All criteria of one factor as one program of arrays."""
    case = FACTORS[name]

    def run(X, Y, v, lams, X_new, Y_new, shares, plan):
        solution = case.solution(X, Y, v, intercept)
        held = rls.HoldOut.of(X_new, Y_new, shares)
        criteria = {"loo": rls.LeaveOneOut(), "kfold": rls.GroupsOut(plan), "gcv": rls.GCV(), "evidence": rls.Evidence(), "holdout": held}
        return {name: criterion.values(solution, lams, case.kernel) for name, criterion in criteria.items()}

    return jax.jit(run)


def kernel_of(name, X, X_new):
    """K, k(new, rows) and k(new, new) with the dictionary that stays, in extended precision, and what amplifies the rounding of an entry."""
    X, X_new = X.astype(LONG), X_new.astype(LONG)
    if "landmarks" in name or "points" in name:
        points = POINTS.astype(DTYPE).astype(LONG) if "points" in name else X[LANDMARKS]
        rows = np.concatenate([X, X_new])

        def kernel(gone):
            R = points[~np.isin(LANDMARKS, gone)] if name in LEAVING else points
            K = through(gaussian(R, R), gaussian(R, rows))
            return K[:N, :N], K[N:, :N], np.diagonal(K)[N:]

        return kernel, np.linalg.cond(gaussian(points, points).astype(float))
    if KINDS[name][0] == LINEAR:
        scale = LONG(0.5 if name == "sparse" else 1)
        found = scale * X @ X.T, scale * X_new @ X.T, scale * np.sum(X_new**2, axis=1)
    else:
        found = gaussian(X, X), gaussian(X_new, X), np.ones(NEW, LONG)
    if KINDS[name][0] == MATRIX:
        found = tuple(part.astype(DTYPE).astype(LONG) for part in found)
    return lambda gone: found, 1.0


def compared(name, intercept, drawn):
    """Every criterion as it is found, as it is by refits, and how far off rounding may take a sound algorithm."""
    X, Y, v, lams, X_new, Y_new, shares, groups = drawn
    kernel, amplified = kernel_of(name, X, X_new)
    K, K_new, _ = kernel(np.array([], int))
    v64 = v.astype(LONG)
    total = [np.count_nonzero(v[groups != g]) for g in range(5)]
    assume(min(total) > 1 and np.abs(Y).max() > 0)
    lams = (lams * np.linalg.norm((np.sqrt(v64)[:, None] * K * np.sqrt(v64)).astype(float), 2)).astype(DTYPE)
    assume((lams > 1e-30).all())
    reach = 1 + np.sum(X**2, axis=1).max() / WIDTH**2 if KINDS[name][0] == GAUSSIAN else 1
    noise = SLACK * EPS * (np.sqrt(amplified) + reach)
    long = (part.astype(LONG) for part in (Y, Y_new, v, lams))
    truth = Truth(kernel, *long, groups, intercept, KINDS[name][1], noise)
    wanted = {
        "loo": truth.mean_square(np.arange(N)),
        "kfold": truth.mean_square(groups),
        "gcv": truth.gcv,
        "evidence": truth.evidence,
        "holdout": truth.holdout(shares.astype(LONG)),
    }
    rows = {LINEAR: (X, X_new), GAUSSIAN: (X, X_new), MATRIX: (K.astype(DTYPE), K_new.astype(DTYPE))}[KINDS[name][0]]
    rows = sparse(rows[0]) if name == "sparse" else array(rows[0]), array(rows[1])
    plan = rls.folds(groups)
    found = program(name, intercept)(rows[0], array(Y), array(v), array(lams), rows[1], array(Y_new), array(shares), plan)
    return {criterion: (np.asarray(found[criterion], LONG), *pair) for criterion, pair in wanted.items()}


def judge(got, value, off, scale):
    """Where a result is wrong: further from the value than `off`, which is small beside it, or else there is nothing to see."""
    return (off < 0.1 * scale) & ~(np.abs(got - value) <= off)


@pytest.mark.parametrize(("name", "intercept"), COMBINATIONS, ids=[f"{name}-{'intercept' if i else 'plain'}" for name, i in COMBINATIONS])
def test_every_criterion_is_that_of_refits(name, intercept):
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=not LARGE, database=None, phases=[Phase.generate, Phase.shrink])
    @given(problems(name))
    def run(drawn):
        for criterion, (got, value, off) in compared(name, intercept, drawn).items():
            wrong = judge(got, value, off, 1 + np.abs(value) if criterion == "evidence" else np.abs(value))
            assert not wrong.any(), f"{criterion}: {got[wrong][0]:.9g} for {value[wrong][0]:.9g}, which may be off by {off[wrong][0]:.2g}"

    run()


def test_every_factor_in_memory_is_drawn():
    elsewhere = {"iterative", "moments", "moments on landmarks"}  # whose tolerance is their own: test_iterative.py, test_update.py
    elsewhere |= {"kronecker"}  # whose weights are a pair, one for each side: test_kronecker.py
    elsewhere |= FREED  # of which other columns matter: test_unpenalized.py
    drawn = {name for name, case in FACTORS.items() if case.traceable and not name.startswith("on devices")}  # which are the same algebra
    assert set(KINDS) == drawn - elsewhere
