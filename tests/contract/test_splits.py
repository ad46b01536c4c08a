"""Splits whose training rows are not all rows outside of the test: purged, subsampled, or rows of
the past alone. Every factor against refits to the training rows.
"""

import functools

import jax
import numpy as np
import pytest
from support import FLOAT64, array, assert_close

import jaxrls as rls
from contract.cases import FACTORS, LAMS, WEIGHTS, N, Y
from jaxrls.core.data import of_splits

ROWS = np.arange(N)
TESTS = [0, 1, 2], [3, 4, 5], [7, 6, 8], [9, 10], [11]  # and two rows that none predicts
TRAIN = {
    # Two rows beside the test are purged, and one anywhere is not drawn.
    "purged": [
        np.setdiff1d(ROWS, [*range(t[0] - 2, t[-1] + 3), *t, i]) for i, t in enumerate(TESTS)
    ],
    "past": [ROWS[:5], ROWS[:6], ROWS[:8]],
}
SPLITS = {
    "purged": list(zip(TRAIN["purged"], map(np.array, TESTS), strict=True)),
    "past": list(zip(TRAIN["past"], (ROWS[5:6], ROWS[7:8], ROWS[9:]), strict=True)),
}


def truth(case, weights, splits):
    """Held-out residuals (L, n, t) of refits, NaN where none predicts."""
    oracle = case.truth(weights, True)
    sets = [np.setdiff1d(ROWS, train) for train, _ in splits]
    e = np.full((len(LAMS), *Y.shape), np.nan)
    for (_, test), all_rows in zip(splits, oracle.left_out(sets), strict=True):
        e[:, test] = all_rows[:, test]
    return e


@functools.cache
def program(name):
    case = FACTORS[name]

    def run(X, weights, plans):
        solution, found = case.solution(X, array(Y), weights, "constant"), {}
        for part, plan in plans.items():
            found[part] = solution.held_out_residuals(array(LAMS), plan)
            found[f"error {part}"] = rls.kfold(plan).values(solution, array(LAMS), case.kernel)
        return found

    return (
        jax.jit(run)
        if case.traceable
        else lambda X, *rest: jax.jit(functools.partial(run, X))(*rest)
    )


# The algebra of others: a spectrum of K, landmarks that are no rows, and blocks of a stream.
ALIKE = {"outer", "precomputed", "host", "host points", "host cholesky", "on devices, linear"}
ALIKE |= {"landmarks that stay", "cholesky landmarks that stay"}
NAMES = [
    name
    for name, case in FACTORS.items()
    if case.offers("kfold") and "constant" in case.fixed and name not in ALIKE
]


QUICK = "gram", "cholesky gram", "landmarks", "features", "kronecker"


@FLOAT64
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NAMES],
)
def test_splits_are_those_of_refits(name):
    case = FACTORS[name]
    for v in (WEIGHTS[kind] for kind in (("ones", "zeros") if case.weighted else ("ones",))):
        plans = {part: rls.folds(splits) for part, splits in SPLITS.items()}
        plans["past"] = of_splits(SPLITS["past"], N)
        got = program(name)(case.X, array(v), plans)
        for part, splits in SPLITS.items():
            e = truth(case, v, splits)
            known = np.isfinite(e[0, :, 0])
            assert np.isnan(np.asarray(got[part])[:, ~known]).all()
            assert_close(got[part][:, known], e[:, known], case.tolerance(), part)
            error = np.array([v[known] @ one[known] ** 2 / v[known].sum() for one in e])
            assert_close(got[f"error {part}"], error, case.tolerance(), f"error {part}")
