"""λ by a search: at least as good as a grid of a hundred, for every criterion, factor and dtype,
and the model that belongs to it.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import X64, array, solver_of

import jaxrls as rls
from jaxrls.factors import solvers
from jaxrls.search import line

GAUSSIAN = rls.Gaussian(0.3)
# A search promises errors within 1e-5; in float32 an error at one λ is itself known to so much of
# its curve only.
CLOSE = 3e-5 if X64 else 2e-2


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(40, 1))
    Y = np.stack([np.sin(5 * X[:, 0]), np.sign(X[:, 0])], axis=1) + 0.2 * rng.normal(size=(40, 2))
    return (
        np.asarray(X, array(X).dtype),
        np.asarray(Y, array(Y).dtype),
        np.asarray(rng.uniform(0.2, 2, 40), array(X).dtype),
    )


def searched(kernel, X, y, **options):
    """The fit by a search and by a grid of a hundred; neither warns."""
    found = rls.fit(kernel, X, y, lams="search", **options)
    grid = rls.fit(
        kernel,
        X,
        y,
        **{
            name: None if isinstance(value, rls.Cholesky) else value
            for name, value in options.items()
        },
    )
    assert len(found.lams) == len(found.errors) <= line.MOST
    assert (
        np.diff(np.asarray(found.lams), axis=0)
        >= (0 if found.lams.ndim == 2 else 1e-9 * np.asarray(found.lams)[:-1])
    ).all()
    return found, grid


CRITERIA = {
    "loo": {},
    "evidence": {"criterion": rls.log_marginal_likelihood},
    "kfold": {"groups": np.arange(40) % 5},
    "holdout": {
        "criterion": rls.holdout(
            np.linspace(-1, 1, 11)[:, None], np.sin(5 * np.linspace(-1, 1, 11))
        )
    },
    "own": {"criterion": lambda factor, Y, lams: rls.gcv(factor, Y, lams)},
}


# In float32 a search meets the rounding of one criterion of each kind: of residuals, of a
# determinant, of rows held out.
FLOAT32 = {"loo", "evidence", "holdout", "gram", "landmarks", "cholesky features"}


def in_both(names):
    """All of them, and in float32 some."""
    return [
        pytest.param(name, marks=() if name in FLOAT32 else pytest.mark.float64) for name in names
    ]


@pytest.mark.parametrize("name", in_both(CRITERIA))
def test_every_criterion(data, name):
    X, Y, v = data
    found, grid = searched(GAUSSIAN, X, Y[:, 0], weights=v, **CRITERIA[name])
    size = abs(float(grid.error)) if name != "evidence" else 40
    assert float(found.error) <= float(grid.error) + CLOSE * size
    assert found.route == ("gram" if name == "own" else "cholesky")
    looked = "values of λ" if name == "own" else "Cholesky factors"
    assert f"a search for λ: {len(found.lams)} {looked}" in found.plan


FACTORS = {
    "gram": (GAUSSIAN, {"solver": rls.Spectral("gram")}),
    "landmarks": (GAUSSIAN, {"landmarks": 12}),
    "cholesky landmarks": (GAUSSIAN, {"landmarks": 12, "solver": rls.Cholesky()}),
    "cholesky features": (rls.Linear(), {"solver": rls.Cholesky()}),
    "sums": (GAUSSIAN + 0.1 * rls.Linear(), {"intercept": False}),
}


@pytest.mark.parametrize("name", in_both(FACTORS))
@pytest.mark.filterwarnings("ignore:the chosen λ")
def test_every_factor(data, name):
    X, Y, _ = data
    kernel, options = FACTORS[name]
    found, grid = searched(kernel, X, Y, **options)
    assert np.shape(found.lam) == () and found.errors.shape == (len(found.lams), 2)
    assert float(found.error) <= float(grid.error) * (1 + CLOSE)


@pytest.mark.parametrize("route", [None, "cholesky"])
def test_a_lam_for_each_target(data, route):
    X, Y, _ = data
    found, grid = searched(GAUSSIAN, X, Y, per_target=True, solver=solver_of(route))
    assert found.lam.shape == (2,) and found.lams.shape == found.errors.shape
    assert (np.asarray(found.error) <= np.asarray(grid.error) * (1 + CLOSE)).all()
    alone = rls.fit(GAUSSIAN, X, Y[:, 1], lams=[float(found.lam[1])])
    np.testing.assert_allclose(
        found.predict(X)[:, 1], alone.predict(X), atol=(1e-9 if X64 else 1e-3)
    )


def test_counts_of_wrong_labels_have_no_slope(data):
    """Steps take the grid, and say so where there is no spectrum for one."""
    X, Y, _ = data
    found, grid = (
        rls.fit(
            GAUSSIAN, X, np.sign(Y[:, 1]), lams=lams, criterion=rls.LeaveOneOut(rls.zero_one_loss)
        )
        for lams in ("search", None)
    )
    assert (
        float(found.lam) == float(grid.lam)
        and float(found.error) == float(grid.error)
        and "search" not in found.plan
    )
    for way in (rls.Cholesky(), rls.Refined()):
        with pytest.raises(
            ValueError,
            match=f"criterion loo is a step, which has none; {re.escape(str(way))} has no spectrum",
        ):
            rls.fit(
                GAUSSIAN,
                X,
                np.sign(Y[:, 1]),
                lams="search",
                solver=way,
                criterion=rls.LeaveOneOut(rls.zero_one_loss),
            )


@pytest.mark.float64
def test_two_valleys_as_deep_are_both_named():
    """A criterion made for it, with valleys at log λ = −20 and −3."""

    @rls.pytree
    class Valleys(rls.Criterion):
        name = "two valleys"

        def values(self, solution, lams, kernel):
            x = jnp.log(jnp.asarray(lams).reshape(-1, 1))
            return (
                1
                + jnp.minimum((x + 20) ** 2 + 0.005, (x + 3) ** 2) / (1 + jnp.abs(x))
                + 0 * solution.labels.mean
            )

    X = np.linspace(0, 1, 12)[:, None]
    found = rls.fit(rls.Gaussian(0.3), X, np.sin(9 * X[:, 0]), lams="search", criterion=Valleys())
    said = re.search(r"λ = (\S+) and (\S+) are as good, within 1 %", found.plan)
    np.testing.assert_allclose(np.log([float(lam) for lam in said.groups()]), [-20, -3], atol=0.1)


def test_taken_by_itself_where_a_spectrum_takes_as_long_as_many_factors(data, monkeypatch):
    X, Y, _ = data
    assert rls.fit(GAUSSIAN, X, Y).route == "gram"
    monkeypatch.setattr(solvers, "LAMS_PER_SPECTRUM", {"cpu": ((1, 100),)})
    found = rls.fit(GAUSSIAN, X, Y)
    assert found.route == "cholesky" and "a search for λ" in found.plan
    assert rls.fit(GAUSSIAN, X, Y, solver=rls.Spectral("gram")).route == "gram"
    assert rls.fit(rls.Linear(), X, Y).route == "covariance"
    assert rls.fit(GAUSSIAN, X, Y, per_target=True).route == "gram"


def test_as_many_landmarks_as_it_takes(data):
    found = rls.fit(rls.Gaussian(3.0), *data[:2], lams="search", landmarks="auto")
    assert "a search for λ" in found.plan and "too few to save any" in found.plan


@pytest.mark.filterwarnings("ignore:the chosen λ")
def test_equal_errors_take_the_largest_lam(data):
    """As a grid does: constant labels need no kernel."""
    found, grid = searched(GAUSSIAN, data[0], np.ones(40, data[0].dtype))
    np.testing.assert_allclose(float(found.lam), float(grid.lam), rtol=1e-4)


def test_labels_of_another_scale(data):
    (X, Y, _), unit = data, 1e7
    one, other = (
        rls.fit(GAUSSIAN, X, (scale * Y).astype(Y.dtype), lams="search") for scale in (1, unit)
    )
    np.testing.assert_allclose(float(other.lam), float(one.lam), rtol=1e-2)


def test_messages(data):
    X, Y, _ = data
    with pytest.raises(ValueError, match="lams must be how many λ, .* or 'search', and is 'find'"):
        rls.fit(GAUSSIAN, X, Y, lams="find")
    with pytest.raises(ValueError, match="inside jax.jit"):
        jax.jit(lambda X: rls.fit(GAUSSIAN, X, Y, lams="search").error)(jnp.asarray(X))
