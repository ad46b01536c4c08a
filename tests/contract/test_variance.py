"""The posterior covariance of every factor that tells it, against the dense formula of generalised
least squares with a flat prior on the intercept.
"""

import jax
import numpy as np
import pytest
from support import array, assert_close, wide

import jaxrls as rls
from contract.cases import FACTORS, LAMS, LANDMARKS, WEIGHTS, gaussian, linear
from jaxrls import extend

LAM = 0.2
LACKING = {"refined", "iterative"}
ELSEWHERE = {"kronecker"}  # of rows of each side, in test_two_sided_variance.py
ROWS = {"host", "host points", "host cholesky", "on devices, linear", "streamed", "sparse"}
MATRIX = {"precomputed"}  # without k(x, x) of new rows


def through(points):
    """K̂ as a function."""
    points = np.unique(points, axis=0)
    return lambda A, B: (
        gaussian(A, points) @ np.linalg.solve(gaussian(points, points), gaussian(points, B))
    )


def dense(rows):
    """Rows of any kind as a matrix."""
    if isinstance(rows, extend.Rows):
        return wide(np.asarray(rows.map(lambda block: block)))
    return wide(np.asarray(rows))


def truth(k, X, X_new, v, intercept):
    """k_** − k_*ᵀPk_* + (1 − k_*ᵀP1)(1 − 1ᵀPk_*)/1ᵀP1 with P = (K + λV⁻¹)⁻¹ of the rows of positive
    weight.
    """
    X, v = X[v > 0], v[v > 0]
    P, across = np.linalg.inv(k(X, X) + LAM * np.diag(1 / v)), k(X, X_new)
    found = k(X_new, X_new) - across.T @ P @ across
    if intercept:
        slack = 1 - P.sum(axis=0) @ across
        found = found + np.outer(slack, slack) / P.sum()
    return found


def expected(case, weights, intercept):
    """With what landmarks leave over, and without; the same of all else."""
    X, X_new = dense(case.X), dense(case.X_new)
    v = WEIGHTS[weights]
    if isinstance(case.kernel, rls.Linear | type(0.5 * rls.Linear())):
        k = linear(1.0 if isinstance(case.kernel, rls.Linear) else 0.5)
        return [truth(k, X, X_new, v, intercept)] * 2
    points = case.options.get("landmarks")
    if points is None and case.maker is None:
        return [truth(gaussian, X, X_new, v, intercept)] * 2
    points = X[LANDMARKS] if points is None or points is LANDMARKS else wide(np.asarray(points))
    k = through(points)
    bare = truth(k, X, X_new, v, intercept)
    return [bare + gaussian(X_new, X_new) - k(X_new, X_new), bare]


def measured(case, weights, intercept):
    """Covariance and variance, corrected and not."""

    def run(X, X_new, v):
        spread = case.make(X, v, intercept).spread(array(LAM))
        return [
            (
                spread.covariance(case.kernel, X_new, corrected=both),
                spread.variance(case.kernel, X_new, corrected=both),
            )
            for both in (True, False)
        ]

    v = array(WEIGHTS[weights])
    if case.traceable:
        return jax.jit(run)(case.X, array(case.X_new), v)
    return run(case.X, array(case.X_new), v)


@pytest.mark.float64  # the same in float32, in test_posterior.py, on fewer factors
@pytest.mark.parametrize(("weights", "intercept"), [("ones", False), ("zeros", True)])
@pytest.mark.parametrize(
    "name", [name for name in FACTORS if name not in LACKING | ELSEWHERE | MATRIX | ROWS]
)
def test_covariance_is_that_of_the_gaussian_process(name, weights, intercept):
    case = FACTORS[name]
    tolerance = case.tolerance() * LAMS.min() / LAM * 4
    for found, want in zip(
        measured(case, weights, intercept), expected(case, weights, intercept), strict=True
    ):
        assert_close(found[0], want, tolerance, "covariance")
        assert_close(found[1], np.diag(want), tolerance, "variance")


@pytest.mark.any_precision
@pytest.mark.parametrize("name", sorted(LACKING))
def test_a_factor_that_lacks_it_is_named(name, unchecked):
    case = FACTORS[name]
    factor = case.make(case.X, None, True)
    with pytest.raises(
        ValueError,
        match=rf"a factor by route '{factor.route}'.* has no posterior variances: use another",
    ):
        factor.spread(array(LAM))
