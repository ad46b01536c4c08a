"""One row of positive weight: with an intercept nothing is left to validate on, and every factor
says so; without one it predicts 0 for itself.
"""

import jax
import numpy as np
import pytest
from support import EPS, array, assert_close

import jaxrls as rls
from contract.cases import FACTORS, LAMS, N, Y

ROW, WEIGHT = 8, 1.7  # a landmark, where there are any
ALONE = WEIGHT * np.eye(N)[ROW]
WEIGHTED = [name for name, case in FACTORS.items() if case.weighted]


def inside_jit(case, intercept):
    """GCV, and where there is one the evidence, of a weight that is not known; and the factor, of
    rows that jit holds.
    """

    def run(X, weights):
        factor = case.make(X, weights, intercept)
        evidence = (
            rls.log_marginal_likelihood(factor, array(Y), array(LAMS))
            if case.offers("evidence")
            else None
        )
        return rls.gcv(factor, array(Y), array(LAMS)), evidence, factor if case.traceable else None

    if case.traceable:
        return jax.jit(run)(case.X, array(ALONE))
    return jax.jit(lambda weights: run(case.X, weights))(array(ALONE))


@pytest.mark.parametrize("name", WEIGHTED)
def test_gcv_of_one_row_with_an_intercept_is_undefined(name, unchecked):
    """It was 0/0 by rounding: 0, or .25. The evidence is the density of no numbers at all, whatever
    λ.
    """
    case = FACTORS[name]
    gcv, evidence, factor = inside_jit(case, True)
    assert np.isnan(gcv).all()
    if (
        case.traceable or name == "host"
    ):  # which reads by one operation after another, as the others that no jit holds
        with pytest.raises(ValueError, match=f"row {ROW} holds all of the weight"):
            rls.gcv(factor or case.make(case.X, array(ALONE), True), array(Y), array(LAMS))
    if evidence is not None:
        assert np.abs(evidence).max() <= case.tolerance()


@pytest.mark.float64  # in float32 the other one, where what is divided is rounding
@pytest.mark.parametrize("name", WEIGHTED)
def test_gcv_of_one_row_without_an_intercept(name):
    """What is left predicts 0. The residual and its degrees of freedom are but λ/(s + λ) of what
    rounding is relative to.
    """
    case = FACTORS[name]
    gcv, *_ = inside_jit(case, False)
    assert_close(
        gcv,
        np.broadcast_to(np.asarray(Y)[ROW] ** 2, gcv.shape),
        case.tolerance() ** 2 / (4 * N * EPS),
    )
