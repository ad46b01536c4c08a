"""What is left out where the rows that stay hardly determine a fit: as λ → 0 they are interpolated,
and 1 − leverage goes to 0. Above the floor it is what refits in extended precision say; below it a
fit warns.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from extended import LONG, Fits, sets_of
from support import DTYPE, FLOAT64

import jaxrls as rls

SVD, COVARIANCE = rls.Spectral("features"), rls.Spectral("covariance")


def case(n, d, seed=0, folds=None, v=None, fixed=None, change=None):
    """X, y, the fold of each row, weights and fixed effects beside an intercept."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X = (X if change is None else change(X)).astype(np.float32).astype(float)
    y = (X @ rng.normal(size=d) + 0.2 * rng.normal(size=n)).astype(np.float32).astype(float)
    fixed = np.empty((n, 0)) if fixed is None else rng.normal(size=(n, fixed))
    v = np.ones(n) if v is None else v.astype(np.float32).astype(float)
    return X, y, np.arange(n) if folds is None else np.arange(n) % folds, v, fixed


def dummy(*rows):
    """The last column is not 0 in these rows alone."""

    def change(X):
        X[:, -1] = np.isin(np.arange(len(X)), rows)
        return X

    return change


def first(d):
    """Columns but the first d are 0: as many features as there are, in one shape."""
    return lambda X: X * (np.arange(X.shape[1]) < d)


ROWS = np.arange(20)
CASES = {
    "n = d + 1": case(20, 19),
    "n = d + 2": case(20, 19, 1, change=first(18)),
    "rows of weight 0": case(20, 19, v=np.where(ROWS < 6, 0, 1), change=first(13)),
    "weights": case(20, 19, v=10 ** np.random.default_rng(0).uniform(-2, 2, 20)),
    "heavy rows": case(20, 19, v=np.where(ROWS < 3, 1e4, 1)),
    "a column of one row": case(20, 19, change=lambda X: dummy(7)(first(4)(X))),
    "two folds": case(20, 16, 3, folds=2),
    "scales": case(20, 16, 1, folds=2, change=lambda X: X * 10.0 ** np.linspace(-2, 2, 16)),
    "four folds": case(20, 16, folds=4, change=first(14)),
    "folds with weight 0": case(20, 16, folds=4, v=np.where(ROWS < 4, 0, 1), change=first(11)),
    "a column of one fold": case(20, 16, folds=4, change=lambda X: dummy(3, 11)(first(4)(X))),
    "fixed effects": case(24, 14, fixed=8),
}
SLOW = "two folds", "four folds", "folds with weight 0", "a column of one fold", "fixed effects"


def refitted(X, y, folds, v, fixed, lams):
    """Mean squares of held-out residuals (L,), by refits in extended precision."""
    K, B = X.astype(LONG) @ X.T.astype(LONG), np.column_stack([np.ones(len(y)), fixed])
    sets = sets_of(folds)
    without = np.stack([np.where(np.isin(np.arange(len(y)), gone), 0, v) for gone in sets])
    Ks = np.stack([K] * len(sets))
    fits = Fits(Ks, without.astype(LONG), np.asarray(lams, LONG), B)
    predicted = fits.predict(Ks, y[:, None].astype(LONG), B)[..., 0]
    errors = [v[gone] * (y - f)[:, gone] ** 2 for gone, f in zip(sets, predicted, strict=True)]
    return sum(e.sum(axis=1) for e in errors) / v.sum()


@partial(jax.jit, static_argnames="solver")
def errors(solver, X, y, v, fixed, folds):
    """The floor, and the errors at 1, 10 and 1000 times it."""
    X, y, v, fixed = (jnp.asarray(a, DTYPE) for a in (X, y, v, fixed))
    problem = rls.extend.read_problem(
        rls.Linear(), X, y, weights=v, fixed_effects=fixed, groups=folds, solver=solver
    )
    solution = problem.solution()
    lams = solution.factor.precision_floor() * jnp.array([1, 10, 1000], DTYPE)
    return lams, problem.errors(solution, lams)


@pytest.mark.parametrize(
    "name",
    # Those of one shape share their programs: leave-one-out, two folds, four folds, fixed effects.
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES],
)
def test_above_the_floor_errors_are_those_of_refits(name):
    """To 5 %, by all routes of features; and the floor is not far above where rounding begins: it
    was 1e12 times lower.
    """
    X, y, folds, v, fixed = CASES[name]
    plan = None if len(set(folds)) == len(folds) else rls.folds(folds)
    for solver in (SVD, COVARIANCE, rls.Cholesky()):
        lams, found = map(np.asarray, errors(solver, X, y, v, fixed, plan))
        size = np.linalg.norm(np.sqrt(v)[:, None] * X, 2) ** 2
        # As long as no fold leaves too few rows, refits do not change below what K resolves.
        want = refitted(X, y, folds, v, fixed, np.maximum(lams, 1e-15 * size)).astype(float)
        assert np.abs(found / want - 1).max() <= 0.05, solver
        assert 0 < lams[0] <= 500 * np.finfo(DTYPE).eps * size, solver


@pytest.mark.slow
@FLOAT64
def test_where_rows_suffice_the_floor_is_that_of_singular_values():
    """Twenty-four rows for eight features, and folds that leave enough; single rows of more features
    than rows, which leave nothing that is a difference. Errors there are those of refits.
    """
    for d, folds in ((8, None), (8, 4), (30, None)):
        X, y, rows, v, fixed = case(24, d, folds=folds)
        lams, found = errors(SVD, X, y, v, fixed, folds and rls.folds(rows))
        assert float(lams[0]) < 1e-24
        want = refitted(X, y, rows, v, fixed, np.maximum(lams, 1e-13)).astype(float)
        np.testing.assert_allclose(found, want, rtol=0.05)


@FLOAT64
@pytest.mark.slow
@pytest.mark.parametrize("name", ["two folds", "n = d + 1"])
def test_a_lam_below_that_floor_is_warned_of_and_a_search_stays_above(name):
    """Float64 is not told to use float64. A search began at 1e-26, where errors were noise."""
    X, _, rows, v, none = CASES[name]
    y, options = CASES["two folds"][1], {"groups": rows} if name == "two folds" else {}
    with pytest.warns(UserWarning) as seen:
        try:
            rls.fit(rls.Linear(), X, y, lams=[1e-15, 1e-14], **options)
        except ValueError as error:
            warnings.warn(str(error), UserWarning, stacklevel=1)
    words = " ".join(str(one.message) for one in seen)
    assert "is below the precision of the factor" in words and "float64" not in words
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the chosen λ")
        fit = rls.fit(rls.Linear(), X, y, lams="search", **options)
    want = refitted(X, y, rows, v, none, np.atleast_1d(fit.lam))
    np.testing.assert_allclose(fit.error, float(want[0]), rtol=0.01)


@pytest.mark.slow
@FLOAT64
def test_a_lam_of_0_is_the_floor_of_what_is_left_out():
    X, y, folds, _, _ = CASES["two folds"]
    assert rls.fit(rls.Linear(), X[:, :15], y, lams=[0.0], groups=folds).lam > 1e-14
