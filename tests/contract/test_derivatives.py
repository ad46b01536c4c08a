"""Derivatives of every smooth criterion of the Cholesky factors, in λ and in the kernel, against
differences.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from support import array, assert_derivatives

import jaxrls as rls
from contract.cases import CHOLESKY, LANDMARKS, NEW, PLANS, WEIGHTS, Y_NEW, N, Y, draw

pytestmark = pytest.mark.float64
X, X_NEW = 1.2 * draw(4, N, 2), draw(5, NEW, 2)
# Of K, and of features, which those that leave with landmarks are; those that stay in
# test_objective.py and test_drawn_gradients.py.
OPTIONS = {"gram": {}, "landmarks": {"landmarks": LANDMARKS}}


def smooth(plan):
    """Every criterion of the library that has a gradient."""
    held = rls.holdout(array(X_NEW), array(Y_NEW)).bind(array(Y))
    found = (
        rls.LeaveOneOut(),
        rls.kfold(plan),
        held,
        rls.gcv,
        rls.log_marginal_likelihood,
        rls.LogPredictive(),
        rls.LogPredictive("loo"),
    )
    assert all(criterion.smooth for criterion in found)
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_every_smooth_criterion(name):
    """A random mixture of all of them at two λ for each target, in log λ, log width, labels and log
    weights, backwards as a search goes.
    """
    criteria = smooth(rls.folds(PLANS["uneven"]))
    shares = array(draw(10, len(criteria), 2, Y.shape[1]))
    moved_labels, moved_weights = array(draw(11, *Y.shape)), array(draw(12, N))

    def mixture(at):
        (lam, width), v = jnp.exp(at[:2]), array(WEIGHTS["zeros"]) * jnp.exp(at[3] * moved_weights)
        kernel = rls.Gaussian(width)
        factor = rls.factorize(kernel, array(X), weights=v, **CHOLESKY, **OPTIONS[name])
        solution = factor.solve(array(Y) + at[2] * moved_labels)
        lams = lam * array([[1.0, 0.5, 2.0], [2.0, 1.0, 4.0]])
        values = [criterion.values(solution, lams, kernel) for criterion in criteria]
        return jnp.sum(shares * jnp.stack(values))

    assert_derivatives(mixture, np.append(np.log([0.3, 1.3]), [0, 0]), 1e-8, name)
