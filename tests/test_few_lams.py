"""A few λ by a Cholesky factor each: the same answers as refits and as the spectrum, which is never
made.
"""

import jax
import numpy as np
import pytest
from support import COMPILED, array, assert_close

import jaxrls as rls
from jaxrls import extend
from jaxrls.factors import solvers
from jaxrls.search import fit as search
from jaxrls.search.plan import Plan

pytestmark = [
    pytest.mark.any_precision,  # of data in float64
    pytest.mark.filterwarnings("ignore:the chosen"),  # the best of three is often one of the ends
]
KERNEL, LAMS = rls.Polynomial(3), [30.0, 0.3, 3.0]


def data():
    """16 rows, and more cubic features than that."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(16, 3))
    Y = np.stack([np.sin(X[:, 0]) + 2, X[:, 1] * X[:, 2]], axis=1)
    return X, Y + 0.1 * rng.normal(size=(16, 2))


@pytest.fixture(autouse=True)
def rows_are_many(monkeypatch):
    """Small data count as large."""
    monkeypatch.setattr(solvers, "LAMS_PER_SPECTRUM", {"cpu": ((5, 2), (10, 3), (15, 4))})


@pytest.fixture
def spectra(monkeypatch):
    """How often the spectrum was asked."""
    calls, fit = [], search._on_grid_at_once

    def counted(plan, **options):
        calls.extend([1] * (not isinstance(plan.problem.solver, rls.Cholesky)))
        return fit(plan, **options)

    monkeypatch.setattr(search, "_on_grid_at_once", counted)
    return calls


@pytest.mark.parametrize(
    "options",
    [
        {"weights": np.arange(16) % 4 * 0.5, "groups": np.arange(16) % 3},
        {"intercept": False, "criterion": rls.log_marginal_likelihood},
        {"criterion": "holdout"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_said_is_what_the_spectrum_says(spectra, options):
    """Both are held to refits by the contract grid."""
    X, Y = data()
    if options.get("criterion") == "holdout":
        options = {"criterion": rls.holdout(X[:5] + 0.1, Y[:5])}
    few = rls.fit(KERNEL, X, Y, lams=LAMS, **options)
    assert not spectra
    whole = rls.fit(KERNEL, X, Y, lams=LAMS, solver=rls.Spectral("gram"), **options)
    assert len(spectra) == 1
    for name in ("lams", "errors", "lam", "error", "loo_residuals", "dof"):
        assert_close(getattr(few, name), getattr(whole, name), 1e-10, name)
    assert_close(few.predict(X), whole.predict(X), 1e-10, "predictions")
    assert (few.route, whole.route) == ("cholesky", "gram") and few.criterion == whole.criterion
    # 6√n·eps of the largest diagonal entry, which s_max bounds where rows weigh the same
    assert float(few.floor) > 0 and ("weights" in options or few.floor < 6.1 * whole.floor)


def test_where_cholesky_breaks_down_the_error_says_what_to_do(spectra):
    X, Y = data()
    X, Y = np.repeat(X, 2, axis=0), np.repeat(Y, 2, axis=0)
    with pytest.raises(ValueError, match=r"not finite at 2 of 4 λ: .* or solver=Spectral\(\)"):
        rls.fit(KERNEL, X, Y, lams=[1e-30, 1.0])
    assert not spectra


@pytest.mark.parametrize(
    "kernel",
    [
        rls.Precomputed(),
        rls.FunctionKernel(lambda X, Z: X @ Z.T - 2) + rls.Linear(),
        2.0 * rls.FunctionKernel(lambda X, Z: X @ Z.T - 2),
    ],
    ids=["precomputed", "sum", "multiple of a function"],
)
def test_a_matrix_of_the_callers_own_is_looked_at_as_a_whole(spectra, kernel):
    K = np.diag([1.0, 1.0, -0.5, 1.0])
    with pytest.warns(UserWarning, match="not positive semidefinite"):
        rls.fit(kernel, K, np.arange(4.0), lams=[1.0], intercept=False)
    assert len(spectra) == 1


def test_when_the_spectrum_is_taken(spectra):
    X, Y = data()
    rls.fit(KERNEL, X, Y, lams=np.geomspace(1, 10, 4))
    assert not spectra
    rls.fit(KERNEL, X, Y, lams=np.geomspace(1, 10, 5))
    rls.fit(KERNEL, X, Y, lams=LAMS, per_target=True)
    rls.fit(KERNEL, X, Y, lams=LAMS, criterion=lambda factor, Y, lams: rls.gcv(factor, Y, lams))
    rls.fit(KERNEL, X, Y)
    jax.jit(lambda X: rls.fit(KERNEL, X, Y, lams=LAMS).error)(X)
    assert len(spectra) == 5


def test_one_program_and_no_spectrum():
    X, Y = data()
    fits = lambda lam: rls.fit(rls.Gaussian(1.0 + lam), X, Y, lams=[lam])
    fits(0.1)
    COMPILED.clear()
    assert fits(1.0).lam < fits(10.0).lam and not COMPILED
    problem = extend.Problem.of(KERNEL, array(X), array(Y), solver=rls.Cholesky())
    plan = Plan.of(problem, array(LAMS))
    program = jax.jit(search._on_grid, static_argnames="keeps")
    lowered = program.lower(plan, keeps=False).as_text()
    assert "potrf" in lowered and "syevd" not in lowered
