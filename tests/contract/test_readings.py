"""How often a source of rows is read: once for the moments, once for leave-one-out, whatever the
number of λ and targets.
"""

import jax
import numpy as np
import pytest
from support import ANY_PRECISION, array

import jaxrls as rls
from contract.cases import FACTORS, NEW, Y_NEW, HostRows, N, Y

pytestmark = ANY_PRECISION  # counts of readings
HOSTS = [name for name, case in FACTORS.items() if isinstance(case.X, HostRows)]


def counted(rows, fn):
    """The result of `fn`, and how many readings began and how many blocks were handed out while it
    ran.
    """
    readings, read = rows.readings, rows.read
    out = fn()
    return out, rows.readings - readings, rows.read - read


@pytest.mark.parametrize("name", HOSTS)
def test_readings(name):
    """One for moments and labels, with at most one block of those that are worked on more, for an
    origin near the mean; one for residuals, as differences of moments would cancel; none for what
    follows from the moments, and for rows held out one of theirs; traced as well.
    """
    jax.eval_shape(lambda: read_as_often(FACTORS[name]))


def read_as_often(case):
    rows, lams = case.X, array(np.geomspace(0.01, 10, 50))
    blocks = -(-N // rows.size)
    solution, readings, read = counted(rows, lambda: case.solution(rows, array(Y), None, True))
    assert readings <= 2 and read <= 2 * blocks
    held = type(rows)(case.X_new, size=2)
    holdout = rls.holdout(held, array(Y_NEW)).bind(array(Y))
    for ask, wanted in (
        (lambda: rls.extend.LeaveOneOut().values(solution, lams, None), 1),
        (lambda: rls.gcv.values(solution, lams, None), 1),
        (lambda: rls.log_marginal_likelihood.values(solution, lams, None), 1),
        (lambda: (solution.coefficients(lams), solution.dof(lams), solution.logdet(lams)), 0),
        (lambda: holdout.values(solution, lams, case.kernel), 0),
        (lambda: solution.factor.solve(array(Y)), 1),
    ):
        assert counted(rows, ask)[1:] == (wanted, wanted * blocks)
    assert (held.readings, held.read) == (1, -(-NEW // 2))
