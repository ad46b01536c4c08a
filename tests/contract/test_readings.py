"""How often a source of rows is read: once for the moments, once for leave-one-out, whatever the
number of λ and targets.
"""

import functools

import numpy as np
import pytest
from support import array

import jaxrls as rls
from contract.cases import FACTORS, NEW, Y_NEW, HostRows, N, Y
from jaxrls import extend
from jaxrls.problem.fixed_effects import as_fixed_effects
from jaxrls.problem.labels import Labels
from jaxrls.problem.weights import Weights

pytestmark = pytest.mark.any_precision  # counts of readings
LAMS = np.geomspace(0.01, 10, 50)
HOSTS = [name for name, case in FACTORS.items() if isinstance(case.X, HostRows)]
WHOLE = [rls.gcv, rls.log_marginal_likelihood]


def counted(rows, fn):
    """The result of `fn`, and how many readings began and how many blocks were handed out while it
    ran.
    """
    readings, read = rows.readings, rows.read
    out = fn()
    return out, rows.readings - readings, rows.read - read


@functools.cache
def labelled(name):
    """A source of rows and its solution from labels in one go, with what that read."""
    case = FACTORS[name]
    weights = Weights.of(None, N, case.X.dtype)
    fixed = as_fixed_effects(None, True, weights)
    labels = Labels.of(array(Y), weights, fixed)
    options = {"landmarks": None, "leave": True, "block_size": None, **case.options}
    solver = options.pop("solver", rls.Spectral())
    if options["landmarks"] is not None:
        options["landmarks"] = extend.Landmarks(None, options["landmarks"], None)
    return case.X, *counted(
        case.X, lambda: solver.solve(case.kernel, case.X, labels, weights, fixed, **options)
    )


BLOCKS = -(-N // FACTORS["host"].X.size)


@pytest.mark.parametrize("name", HOSTS)
def test_leave_one_out_reads_the_rows_once(name):
    rows, solution, *_ = labelled(name)
    values, readings, read = counted(
        rows, lambda: rls.LeaveOneOut().values(solution, array(LAMS), None)
    )
    assert values.shape == (50, 3) and (readings, read) == (1, BLOCKS)


@pytest.mark.parametrize("name", HOSTS)
def test_solving_and_leave_one_out_read_the_rows_twice_in_all(name):
    """With at most one block of those that are worked on more, for an origin near the mean."""
    rows, solution, readings, read = labelled(name)
    _, more, again = counted(rows, lambda: rls.LeaveOneOut().values(solution, array(LAMS), None))
    assert readings + more <= 3 and read + again <= 3 * BLOCKS


@pytest.mark.parametrize("name", HOSTS)
def test_coefficients_follow_from_the_moments_and_evidence_and_gcv_from_residuals(name):
    """One reading, whatever the number of λ and targets: differences of moments would cancel."""
    rows, solution, *_ = labelled(name)
    _, *numbers = counted(
        rows,
        lambda: (
            solution.coefficients(array(LAMS)),
            solution.dof(array(LAMS)),
            solution.logdet(array(LAMS)),
        ),
    )
    assert numbers == [0, 0]
    for criterion in WHOLE:
        _, readings, _ = counted(
            rows, lambda criterion=criterion: criterion.values(solution, array(LAMS), None)
        )
        assert readings == 1, criterion.name


@pytest.mark.parametrize("name", HOSTS)
def test_hold_out_reads_its_own_rows_once(name):
    rows, solution, *_ = labelled(name)
    held = type(rows)(FACTORS[name].X_new, size=2)
    criterion = rls.holdout(held, array(Y_NEW)).bind(array(Y))
    (values, *numbers), *own = counted(
        held,
        lambda: counted(
            rows, lambda: criterion.values(solution, array(LAMS), FACTORS[name].kernel)
        ),
    )
    assert values.shape == (50, 3) and numbers == [0, 0] and own == [1, -(-NEW // 2)]


@pytest.mark.parametrize("name", HOSTS)
def test_new_labels_read_the_rows_once(name):
    rows, solution, *_ = labelled(name)
    _, *numbers = counted(rows, lambda: solution.factor.solve(array(Y)))
    assert numbers == [1, BLOCKS]
