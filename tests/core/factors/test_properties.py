"""Every factor × criterion on drawn problems, badly conditioned ones included, against refits in
extended precision.

A few examples by default; as many as are asked for, on other seeds, by

    JAXRLS_EXAMPLES=1000 pytest tests/core/factors/test_properties.py --hypothesis-seed=1

and in float32 with JAXRLS_X64=0. Shapes are fixed, so that each factor is compiled once; values are
drawn: spread and conditioning of the rows, equal rows, landmarks that are equal, near or more than
the kernel has dimensions, offsets, labels near the span of the features, scales of labels and
weights, weights of 0, groups, λ over decades. What a result may be off by follows from the dtype
and the conditioning of the problem: see `extended`."""

import functools
import os

import jax
import numpy as np
import pytest
from contract import cases
from contract.cases import (
    CHOLESKY,
    FACTORS,
    LANDMARKS,
    NEW,
    PLANS,
    POINTS,
    WIDTH,
    N,
    of_linear,
)
from extended import LONG, Truth, through
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from rows.cases import sparse
from support import DTYPE, EPS, X64, array

import jaxrls as rls

EXAMPLES = int(os.environ.get("JAXRLS_EXAMPLES", "6"))
LARGE = "JAXRLS_EXAMPLES" in os.environ
SLACK = 8  # what constants the bounds leave out
TINY = 1e-9 if X64 else 1e-3  # of 1e3 what doors take
NEAR = (
    (1, 2, 3, 4) if X64 else (1,)
)  # decades, in widths, from one landmark to another: nearer ones take a ridge
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
    "landmarks that stay": (GAUSSIAN, "primal"),
    "points": (GAUSSIAN, "primal"),
    "cholesky gram": (GAUSSIAN, "dual"),
    "refined": (GAUSSIAN, "dual"),
    "cholesky features": (LINEAR, "primal"),
    "cholesky landmarks": (GAUSSIAN, "primal"),
    "cholesky landmarks that stay": (GAUSSIAN, "primal"),
    "cholesky points": (GAUSSIAN, "primal"),
    "sparse": (LINEAR, "primal"),
    "landmarks that depend": (LINEAR, "primal"),
    "cholesky landmarks that depend": (LINEAR, "primal"),
}
# Six landmarks in four dimensions: with two of them gone the others span all of K.
DEPENDENT = {
    f"{route}landmarks that depend": of_linear(
        FACTORS[f"{route}landmarks"].cls, 4, {"landmarks": LANDMARKS, **options}
    )
    for route, options in (("", {}), ("cholesky ", CHOLESKY))
}
CASES = FACTORS | DEPENDENT
LEAVING = (
    "landmarks",
    "cholesky landmarks",
    "landmarks that depend",
    "cholesky landmarks that depend",
)
PAIRED = LEAVING if not LARGE else tuple(KINDS)  # of others by default in test_pairs.py
PAIRS = np.array(
    [*zip(LANDMARKS, LANDMARKS[1:], strict=False), (0, 2), (3, 8), (6, 7)]
)  # landmarks that may be drawn equal among them
# An algebra of its own each: a thin SVD is that of K, and held to refits in test_interpolation.py.
FIRST = (
    "gram",
    "covariance",
    "landmarks",
    "cholesky gram",
    "cholesky landmarks",
    "landmarks that depend",
    "cholesky landmarks that depend",
)
COMBINATIONS = [
    (name, intercept)
    for name in KINDS
    for intercept in (True, False)
    if LARGE or intercept and name in FIRST
]


gaussian, linear = functools.partial(cases.gaussian, width=LONG(WIDTH)), cases.linear()


def spanned(alike, R, rows):
    """K̂ of rows through points R, which may be equal, or as many as span all that a linear kernel
    has.
    """
    R = R[np.sort(np.unique(np.asarray(R, float), axis=0, return_index=True)[1])]
    return (
        linear(rows, rows)
        if alike is linear and len(R) >= R.shape[1]
        else through(alike(R, R), alike(R, rows))
    )


def amplified_by(R):
    """The square of what amplifies rounding: the condition of K_RR, or where points are near one
    another, and their pivots small, its square.
    """
    distances = np.linalg.norm(np.asarray(R[:, None] - R, float), axis=-1)
    distinct = np.unique(np.asarray(R, float), axis=0)
    near = ((distances > 0) & (distances < 0.1 * WIDTH)).any()
    return np.linalg.cond(gaussian(distinct, distinct).astype(float)) ** (2 if near else 1)


def decades(most):
    return st.floats(-most, most).map(lambda exponent: 10.0**exponent)


@st.composite
def problems(draw, name):
    """Rows, labels, weights, λ over the largest eigenvalue, groups, and new rows with labels and
    weights.
    """
    source, d = KINDS[name][0], CASES[name].X.shape[1] if KINDS[name][0] == LINEAR else 2
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Points that are no rows: far from them centring cancels, and directions that all rows lack are
    # dropped.
    near_points = "points" in name
    ends = (-1, 1) if source == LINEAR else (-0.5, 0.2 if near_points else 0.7)
    spread = draw(st.floats(*ends))
    offset = draw(st.sampled_from([0] if near_points else [0, 0, 3]))
    least = -0.3 if name in DEPENDENT else -2 if X64 else -1
    columns = 10.0 ** draw(st.lists(st.floats(least, 0), min_size=d, max_size=d).map(np.array))
    X, X_new = (10.0**spread * columns * (rng.normal(size=(size, d)) + offset) for size in (N, NEW))
    for i in draw(st.lists(st.integers(1, N - 1), max_size=3)):
        X[i] = X[i - 1] if i not in LANDMARKS and i - 1 not in LANDMARKS else X[i]
    if "landmarks" in name and source == GAUSSIAN:
        for i in draw(st.lists(st.integers(1, len(LANDMARKS) - 1), max_size=3)):
            gap = 10.0 ** -draw(st.sampled_from([np.inf, np.inf, *NEAR]))
            X[LANDMARKS[i]] = X[LANDMARKS[i - 1]] + gap * WIDTH * rng.normal(size=d)
    w = rng.normal(size=(X.shape[1], 2))
    near = 10.0 ** -draw(st.floats(0, DECADES["span"]))
    scale = draw(decades(DECADES["label"]))
    Y, Y_new = ((np.sin(Z) if source != LINEAR else Z) @ w for Z in (X, X_new))
    Y, Y_new = (
        scale
        * (Z / np.abs(Y).max() + near * rng.normal(size=Z.shape) + draw(st.sampled_from([0, 1])))
        for Z in (Y, Y_new)
    )
    v = np.array(
        draw(st.lists(st.sampled_from([1, 1, 0, 2.5, 1e-2, TINY, 1e3]), min_size=N, max_size=N))
    )
    lams = np.sort(
        10.0 ** draw(st.lists(st.floats(-DECADES["lam"], 3), min_size=4, max_size=4).map(np.array))
    )
    groups = PLANS["uneven"][rng.permutation(N)] if draw(st.booleans()) else PLANS["uneven"]
    numbers = X, Y, v, lams, X_new, Y_new, rng.uniform(0.5, 2, NEW)
    return *(np.asarray(part, DTYPE) for part in numbers), groups


@functools.cache
def program(name, intercept):
    """All criteria of one factor as one program of arrays."""
    case = CASES[name]

    def run(X, Y, v, lams, X_new, Y_new, shares, plan):
        solution = case.solution(X, Y, v, intercept)
        held = rls.holdout(X_new, Y_new, weights=shares).bind(Y)
        criteria = {
            "loo": rls.extend.LeaveOneOut(),
            "kfold": rls.kfold(plan),
            "gcv": rls.gcv,
            "evidence": rls.log_marginal_likelihood,
            "holdout": held,
        }
        if name in PAIRED:
            criteria["pairs"] = rls.ranking.PairsOut(PAIRS, loss=rls.extend.squared_error)
        return {
            key: criterion.values(solution, lams, case.kernel)
            for key, criterion in criteria.items()
        }

    return jax.jit(run)


def kernel_of(name, X, X_new, groups):
    """K, k(new, rows) and k(new, new) with the dictionary that stays, in extended precision, and
    what amplifies the rounding of an entry.
    """
    X, X_new = X.astype(LONG), X_new.astype(LONG)
    if "landmarks" in name or "points" in name:
        points = POINTS.astype(DTYPE).astype(LONG) if "points" in name else X[LANDMARKS]
        rows, alike = np.concatenate([X, X_new]), linear if name in DEPENDENT else gaussian

        def kernel(gone):
            R = points[~np.isin(LANDMARKS, gone)] if name in LEAVING else points
            K = spanned(alike, R, rows)
            return K[:N, :N], K[N:, :N], np.diagonal(K)[N:]

        if name in DEPENDENT:  # pivots are those of the first that come, and of what stays
            gone = [np.flatnonzero(groups == g) for g in range(5)] + list(PAIRS) + list(LANDMARKS)
            some = [
                points[:4],
                *(points[~np.isin(LANDMARKS, rows)] for rows in gone),
            ]
            return kernel, max(np.linalg.cond(R.astype(float)) ** 3 for R in some)
        return kernel, amplified_by(points)
    if KINDS[name][0] == LINEAR:
        scale = LONG(0.5 if name == "sparse" else 1)
        found = scale * X @ X.T, scale * X_new @ X.T, scale * np.sum(X_new**2, axis=1)
    else:
        found = gaussian(X, X), gaussian(X_new, X), np.ones(NEW, LONG)
    if KINDS[name][0] == MATRIX:
        found = tuple(part.astype(DTYPE).astype(LONG) for part in found)
    return lambda gone: found, 1.0


def compared(name, intercept, drawn):
    """Every criterion as it is found, as it is by refits, and how far off rounding may take a sound
    algorithm.
    """
    X, Y, v, lams, X_new, Y_new, shares, groups = drawn
    kernel, amplified = kernel_of(name, X, X_new, groups)
    K, K_new, _ = kernel(np.array([], int))
    v64 = v.astype(LONG)
    total = [np.count_nonzero(v[groups != g]) for g in range(5)]
    assume(min(total) > 1 and np.abs(Y).max() > 0)
    lams = (
        lams * np.linalg.norm((np.sqrt(v64)[:, None] * K * np.sqrt(v64)).astype(float), 2)
    ).astype(DTYPE)
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
    if name in PAIRED and (v[PAIRS].prod(axis=1) @ (Y[PAIRS[:, 0]] != Y[PAIRS[:, 1]]) > 0).all():
        wanted["pairs"] = truth.pairs(PAIRS)
    rows, new = (K, K_new) if KINDS[name][0] == MATRIX else (X, X_new)
    rows = sparse(rows) if name == "sparse" else array(rows)
    numbers = map(array, (Y, v, lams, new, Y_new, shares))
    found = program(name, intercept)(rows, *numbers, rls.folds(groups))
    return {
        criterion: (np.asarray(found[criterion], LONG), *pair) for criterion, pair in wanted.items()
    }


def judge(got, value, off, scale):
    """Where a result is wrong: further from the value than `off`, which is small beside it, or else
    there is nothing to see.
    """
    return (off < 0.1 * scale) & ~(np.abs(got - value) <= off)


@pytest.mark.parametrize(
    ("name", "intercept"),
    [
        pytest.param(
            name,
            i,
            id=f"{name}-{'intercept' if i else 'plain'}",
            # A dual one in the quick run, unless more are asked for.
            marks=[pytest.mark.slow] if not LARGE and name != "gram" else [],
        )
        for name, i in COMBINATIONS
    ],
)
def test_every_criterion_is_that_of_refits(name, intercept):
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=not LARGE,
        database=None,
        phases=[Phase.generate, Phase.shrink],
    )
    @given(problems(name))
    def run(drawn):
        for criterion, (got, value, off) in compared(name, intercept, drawn).items():
            scale = np.abs(value) + (criterion == "evidence")
            wrong = judge(got, value, off, scale)
            worst = [part[wrong][:1] for part in (got, value, off)]
            assert not wrong.any(), f"{criterion}: found, true, and what it may be off by: {worst}"

    run()


def test_every_factor_in_memory_is_drawn():
    # Whose tolerance is their own, or whose weights are a pair: test_iterative.py, test_update.py,
    # test_kronecker.py.
    elsewhere = {"iterative", "iterative landmarks", "moments", "moments on landmarks", "kronecker"}
    elsewhere.add("more features than rows")  # rows of few columns are drawn here
    # Those on devices are the same algebra.
    drawn = {
        name
        for name, case in FACTORS.items()
        if case.traceable and not name.startswith("on devices")
    }
    assert set(KINDS) == (drawn - elsewhere) | set(DEPENDENT)
