"""Derivatives of every smooth criterion of the Cholesky factors, in λ and in the kernel, against
differences.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from support import array, assert_derivatives

import jaxrls as rls
from contract.cases import CHOLESKY, LANDMARKS, NEW, PLANS, POINTS, WEIGHTS, Y_NEW, N, Y, draw

pytestmark = pytest.mark.float64
X, X_NEW = 1.2 * draw(4, N, 2), draw(5, NEW, 2)
WAVES = draw(9, 2, 4)


def waves(width, X):
    """Explicit features with a width."""
    return jnp.sin(X @ array(WAVES) / width)


KERNELS = {
    "gram": (rls.Gaussian, {}),
    "features": (lambda width: rls.FeatureMap(waves, width), {}),
    "landmarks": (rls.Gaussian, {"landmarks": LANDMARKS}),
    "points": (rls.Gaussian, {"landmarks": array(POINTS)}),
}


def smooth(plan):
    """Every criterion of the library that has a gradient."""
    held = rls.HoldOut.of(array(X_NEW), array(Y_NEW))
    found = (
        rls.LeaveOneOut(),
        rls.GroupsOut(plan),
        held,
        rls.GCV(),
        rls.Evidence(),
        rls.LogPredictive(),
        rls.LogPredictive("loo"),
    )
    assert all(criterion.smooth for criterion in found)
    return found


@pytest.mark.parametrize(
    "kind", [pytest.param("plain, λ per target", marks=pytest.mark.slow), "weights and intercept"]
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "points")) for name in KERNELS]
)
def test_every_smooth_criterion(name, kind):
    """A random mixture of all of them at two λ, in log λ and log width, backwards as a search
    goes.
    """
    (kernel_of, options), plain = KERNELS[name], kind.startswith("plain")
    v, plan = None if plain else array(WEIGHTS["zeros"]), rls.folds(PLANS["uneven"])
    criteria = smooth(plan)
    shares = array(draw(10, len(criteria), 2, Y.shape[1]))

    def mixture(at):
        lam, width = jnp.exp(at)
        kernel = kernel_of(width)
        solution = rls.factorize(
            kernel, array(X), weights=v, intercept=not plain, **CHOLESKY, **options
        ).solve(array(Y))
        lams = jnp.stack([lam, 2 * lam])
        lams = lams[:, None] * array([1.0, 0.5, 2.0]) if plain else lams
        return jnp.sum(
            shares * jnp.stack([criterion.values(solution, lams, kernel) for criterion in criteria])
        )

    assert_derivatives(mixture, np.log(array([0.3, 1.3])), 1e-8, name)
