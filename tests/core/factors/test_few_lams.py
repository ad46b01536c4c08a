"""When a few λ are answered by a Cholesky factor each in place of a spectrum; what both say is held
to refits by the contract grid.
"""

import jax
import numpy as np
import pytest
from support import ANY_PRECISION, COMPILED, EDGE

import jaxrls as rls
from jaxrls.core.factors import solvers

pytestmark = [
    ANY_PRECISION,  # of data in float64
    EDGE,  # the best of three is often one of the ends
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


def test_where_cholesky_breaks_down_the_error_says_what_to_do():
    twice = [np.repeat(part, 2, axis=0) for part in data()]
    with pytest.raises(ValueError, match="not finite at 2 of 4 λ: λ below .* leave it out"):
        rls.fit(KERNEL, *twice, lams=[1e-30, 1.0])


@pytest.mark.parametrize(
    "kernel",
    [
        rls.Precomputed(),
        rls.FunctionKernel(lambda X, Z: X @ Z.T - 2) + rls.Linear(),
        2.0 * rls.FunctionKernel(lambda X, Z: X @ Z.T - 2),
    ],
    ids=["precomputed", "sum", "multiple of a function"],
)
def test_a_matrix_of_the_callers_own_is_looked_at_as_a_whole(kernel):
    K = np.diag([1.0, 1.0, -0.5, 1.0])
    with pytest.warns(UserWarning, match="not positive semidefinite"):
        fit = rls.fit(kernel, K, np.arange(4.0), lams=[1.0], intercept=False)
    assert fit.route == "gram"


@pytest.mark.slow
def test_when_the_spectrum_is_taken():
    """By default in test_lam_search.py; inside of jit no λ is known to be one of few."""
    X, Y = data()
    fit = lambda X, **options: rls.fit(KERNEL, X, Y, **options).route
    own = lambda factor, Y, lams: rls.gcv(factor, Y, lams)
    assert fit(X, lams=np.geomspace(1, 10, 4)) == "cholesky"
    for options in ({"per_target": True}, {"criterion": own}, {"lams": np.geomspace(1, 10, 5)}):
        assert fit(X, **{"lams": LAMS} | options) == "gram"
    routes = []
    jax.eval_shape(lambda X: routes.append(fit(X, lams=LAMS)), X)
    assert routes == ["gram"]


def test_one_program():
    X, Y = data()
    fits = lambda lam: rls.fit(rls.Gaussian(1.0 + lam), X, Y, lams=[lam])
    fits(0.1)
    COMPILED.clear()
    assert [float(fits(lam).lam) for lam in (1.0, 10.0)] == [1, 10] and not COMPILED
