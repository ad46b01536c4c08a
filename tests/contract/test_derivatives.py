"""Derivatives of every smooth criterion of the Cholesky factors, in all that defines a problem,
against differences.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from support import FLOAT64, array, assert_derivatives

import jaxrls as rls
from contract.cases import (
    BESIDE,
    CHOLESKY,
    COLUMNS,
    LANDMARKS,
    NEW,
    PLANS,
    POINTS,
    WEIGHTS,
    Y_NEW,
    N,
    Y,
    draw,
)

pytestmark = [FLOAT64, pytest.mark.slow]
X, X_NEW = 1.2 * draw(4, N, 2), draw(5, NEW, 2)
# By what moves numbers along with those of X; blocks of K and of features.
OPTIONS = {
    "gram": lambda move: {"block_size": 5},
    "columns": lambda move: {"fixed_effects": move(BESIDE)},
    "landmarks": lambda move: {"landmarks": LANDMARKS, "block_size": 5},
    "points": lambda move: {"landmarks": move(POINTS)},
}


def smooth(plan, scale):
    """Every criterion of the library that has a gradient, densities with a scale."""
    held = rls.holdout(array(X_NEW), array(Y_NEW)).bind(array(Y))
    found = (
        rls.extend.LeaveOneOut(),
        rls.kfold(plan),
        held,
        rls.gcv,
        rls.log_marginal_likelihood,
        rls.extend.LogPredictive(scale),
        rls.extend.CRPS(scale),
        *COLUMNS.values(),
    )
    assert all(criterion.smooth for criterion in found)
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_every_smooth_criterion(name):
    """A random mixture of all of them at two λ, in log λ, log width, labels, log weights and rows,
    with columns or points, backwards as a search goes; λ per target, and densities at their own
    scale, once for each algebra.
    """
    own = name in ("gram", "landmarks")
    criteria = smooth(rls.folds(PLANS["uneven"]), "loo" if own else 1.0)
    if name == "columns":  # which those held out do not have
        criteria = [one for one in criteria if one.name != "holdout"]
    shares = array(draw(10, len(criteria), 2, Y.shape[1]))
    moved_labels, moved_weights = array(draw(11, *Y.shape)), array(draw(12, N))

    def mixture(at):
        (lam, width), v = jnp.exp(at[:2]), array(WEIGHTS["zeros"]) * jnp.exp(at[3] * moved_weights)
        kernel, move = rls.Gaussian(width), lambda part: array(part) + at[4] * jnp.cos(array(part))
        factor = rls.factorize(kernel, move(X), weights=v, **CHOLESKY, **OPTIONS[name](move))
        solution = factor.solve(array(Y) + at[2] * moved_labels)
        lams = lam * array([[1.0, 0.5, 2.0], [2.0, 1.0, 4.0]] if own else [1.0, 2.0])
        values = [criterion.values(solution, lams, kernel) for criterion in criteria]
        return jnp.sum(shares * jnp.stack(values))

    assert_derivatives(mixture, np.append(np.log([0.3, 1.3]), [0, 0, 0]), 1e-8, name)
