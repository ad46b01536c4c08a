"""A few λ by a Cholesky factor each: the same answers as refits and as the spectrum, which is never
made, and which steps in where it must.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from support import array, assert_close

import jaxrls as rls
from jaxrls.factors import choose
from jaxrls.search import fit as search

pytestmark = pytest.mark.filterwarnings(
    "ignore:the chosen"
)  # the best of three is often one of the ends
KERNEL, LAMS = rls.Polynomial(3), [30.0, 0.3, 3.0]
WEIGHTS = {
    "none": None,
    "positive": np.random.default_rng(1).uniform(0.3, 2, 16),
    "some 0": np.arange(16) % 4 * 0.5,
}


def data():
    """16 rows, and more cubic features than that."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(16, 3))
    with jax.enable_x64(True):
        Phi = np.asarray(rls.polynomial_features(jnp.asarray(X), 3))
    return (
        X,
        Phi,
        np.stack([np.sin(X[:, 0]) + 2, X[:, 1] * X[:, 2]], axis=1) + 0.1 * rng.normal(size=(16, 2)),
    )


@pytest.fixture(autouse=True)
def rows_are_many(monkeypatch):
    """Small data count as large."""
    monkeypatch.setattr(choose, "LAMS_PER_SPECTRUM", {"cpu": ((5, 2), (10, 3), (15, 4))})


@pytest.fixture
def spectra(monkeypatch):
    """How often the spectrum was asked."""
    calls, fit = [], search._fit

    def counted(*args, route, **options):
        calls.extend([1] * (route != "cholesky"))
        return fit(*args, route=route, **options)

    monkeypatch.setattr(search, "_fit", counted)
    return calls


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_against_refits(spectra, weights, intercept):
    (X, Phi, Y), v = data(), WEIGHTS[weights]
    fit = rls.fit(KERNEL, X, Y, lams=LAMS, weights=v, intercept=intercept)
    used = np.ones(16) if v is None else v
    residuals = [oracle.loo_residuals(Phi, Y, lam, used, intercept) for lam in LAMS]
    errors = np.array([(used[:, None] * e**2).sum(0) / used.sum() for e in residuals])
    best = errors.mean(1).argmin()
    w, b = oracle.refit(Phi, Y, LAMS[best], used, intercept)
    hat = [oracle.refit(Phi, row[:, None], LAMS[best], used, intercept) for row in np.eye(16)]
    dof = sum(Phi[i] @ column[:, 0] + constant[0] for i, (column, constant) in enumerate(hat))
    assert_close(fit.errors, errors, 1e-10, "errors")
    assert fit.lam == LAMS[best] and fit.lam.shape == ()
    assert_close(fit.error, errors.mean(1).min(), 1e-10, "error")
    assert_close(fit.loo_residuals, residuals[best], 1e-10, "residuals")
    assert_close(fit.predict(X), Phi @ w + b, 1e-10, "predictions")
    assert_close(fit.dof, dof, 1e-10, "degrees of freedom")
    assert not spectra


@pytest.mark.float64
@pytest.mark.parametrize("single", [False, True], ids=["two targets", "one"])
@pytest.mark.parametrize(
    "options",
    [
        {"criterion": rls.gcv},
        {"criterion": rls.log_marginal_likelihood},
        {"loss": rls.absolute_error},
        {"groups": np.arange(16) % 3},
        {"validation": 0},
    ],
    ids=["gcv", "evidence", "absolute error", "groups", "hold-out"],
)
def test_every_criterion_says_what_it_says_of_the_spectrum(spectra, options, single):
    X, _, Y = data()
    Y = Y[:, 0] if single else Y
    options = (
        {**options, "validation": (X[:5] + 0.1, Y[:5])} if "validation" in options else options
    )
    few = rls.fit(KERNEL, X, Y, lams=LAMS, **options)
    assert not spectra
    whole = rls.fit(KERNEL, X, Y, lams=LAMS, route="gram", **options)
    assert len(spectra) == 1
    for name in ("lams", "errors", "lam", "error", "loo_residuals", "dof"):
        assert_close(getattr(few, name), getattr(whole, name), 1e-10, name)
    assert_close(few.predict(X), whole.predict(X), 1e-10, "predictions")
    assert (few.route, whole.route) == ("cholesky", "gram") and few.criterion == whole.criterion
    assert 0 < float(few.floor) < 6.1 * float(whole.floor), (
        "6√n·eps of the largest diagonal entry, which s_max bounds"
    )


def test_of_equal_errors_the_larger_lam():
    X, _, Y = data()
    assert rls.fit(KERNEL, X, 0 * Y, lams=[1.0, 3.0, 2.0]).lam == 3


def test_where_cholesky_breaks_down_the_spectrum_answers(spectra):
    X, _, Y = data()
    X, Y = np.repeat(X, 2, axis=0), np.repeat(Y, 2, axis=0)
    with pytest.warns(UserWarning, match="below the precision of the factor"):
        fit = rls.fit(KERNEL, X, Y, lams=[1e-30, 1.0])
    assert len(spectra) == 1 and np.isfinite(fit.errors).all()


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
    X, _, Y = data()
    rls.fit(KERNEL, X, Y, lams=np.geomspace(1, 10, 4))
    assert not spectra
    rls.fit(KERNEL, X, Y, lams=np.geomspace(1, 10, 5))
    rls.fit(KERNEL, X, Y, lams=LAMS, per_target=True)
    rls.fit(KERNEL, X, Y, lams=LAMS, criterion=lambda factor, Y, lams: rls.gcv(factor, Y, lams))
    rls.fit(KERNEL, X, Y)
    jax.jit(lambda X: rls.fit(KERNEL, X, Y, lams=LAMS).error)(X)
    assert len(spectra) == 5


@pytest.mark.parametrize(
    ("backend", "few"), [("cpu", [1, 1, 2, 3, 5, 5]), ("gpu", [1, 1, 8, 9, 17, 18])]
)
def test_how_many_are_few(backend, few, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert [
        max(num for num in range(1, 30) if choose.are_few(num, n))
        for n in (1, 999, 1000, 2000, 4000, 9000)
    ] == few


def test_one_program_and_no_spectrum():
    X, _, Y = data()
    before = search._fit._cache_size()
    for lam in (0.1, 1.0, 10.0):
        rls.fit(rls.Gaussian(1.0 + lam), X, Y, lams=[lam])
    assert search._fit._cache_size() <= before + 1
    problem = rls.Problem.of(KERNEL, array(X), array(Y))
    lowered = search._fit.lower(
        problem, array(LAMS), num=100, per_target=False, route="cholesky"
    ).as_text()
    assert "potrf" in lowered and "syevd" not in lowered
