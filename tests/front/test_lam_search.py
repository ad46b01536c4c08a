"""λ by a search: at least as good as a grid of a hundred, for every criterion, factor and dtype,
and the model that belongs to it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ANY_PRECISION, DTYPE, EDGE, FLOAT64, X64, array, refused, solver_of

import jaxrls as rls
from jaxrls.core.factors import solvers
from jaxrls.core.fit import choose_lam
from jaxrls.front.lam_search import COARSE, GAIN, MOST, Curve, next_place

GAUSSIAN = rls.Gaussian(0.3)
# A search promises errors within 1e-5; in float32 an error at one λ is itself known to so much of
# its curve only.
CLOSE = 3e-5 if X64 else 2e-2


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(40, 1))
    Y = np.stack([np.sin(5 * X[:, 0]), np.sign(X[:, 0])], axis=1) + 0.2 * rng.normal(size=(40, 2))
    return tuple(part.astype(DTYPE) for part in (X, Y, rng.uniform(0.2, 2, 40)))


def searched(kernel, X, y, **options):
    """The fit by a search and by a grid of a hundred; neither warns."""
    found = rls.fit(kernel, X, y, lams="search", **options)
    if isinstance(options.get("solver"), rls.Cholesky):
        options["solver"] = None
    grid = rls.fit(kernel, X, y, **options)
    lams = np.asarray(found.lams)
    assert len(lams) == len(found.errors) <= MOST
    assert (np.diff(lams, axis=0) >= (0 if lams.ndim == 2 else 1e-9 * lams[:-1])).all()
    return found, grid


LINE = np.linspace(-1, 1, 11)
CRITERIA = {
    "loo": {},
    "evidence": {"criterion": rls.log_marginal_likelihood},
    "kfold": {"groups": np.arange(40) % 5},
    "holdout": {"criterion": rls.holdout(LINE[:, None], np.sin(5 * LINE))},
    "own": {"criterion": lambda factor, Y, lams: rls.gcv(factor, Y, lams)},
}


def test_a_lam_of_which_the_error_is_nan_is_not_chosen():
    lams = array([0.1, 1.0, 2.0])
    errors = array([np.nan, 0.5, 0.7])
    of_both = jnp.stack([errors, errors[::-1]], axis=1)
    lam, error = choose_lam(lams, errors, False)
    assert (float(lam), float(error)) == (1.0, 0.5)
    lam, _ = choose_lam(lams, of_both, True)
    assert lam.tolist() == [1.0, 1.0]
    lam, error = choose_lam(lams, array([np.inf, np.nan, np.nan]), False)
    assert (float(lam), float(error)) == (float(lams[0]), np.inf)
    assert np.isnan(choose_lam(lams, array([np.nan] * 3), False)[1])


# In float32 a search meets the rounding of one criterion of each kind: of residuals, of a
# determinant, of rows held out.
FLOAT32 = {"loo", "evidence", "holdout", "gram", "landmarks", "cholesky features"}


def in_both(names):
    """All of them, and in float32 some; the first of criteria in the quick run."""

    def marks(name):
        in_float64 = [] if name in FLOAT32 else [FLOAT64]
        return in_float64 if name == "loo" else [*in_float64, pytest.mark.slow]

    return [pytest.param(name, marks=marks(name)) for name in names]


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
    "landmarks": (GAUSSIAN, {"landmarks": np.arange(6)}),
    "cholesky landmarks": (GAUSSIAN, {"landmarks": np.arange(6), "solver": rls.Cholesky()}),
    "cholesky features": (rls.Linear(), {"solver": rls.Cholesky()}),
}


@pytest.mark.parametrize("name", in_both(FACTORS))
@EDGE
def test_every_factor(data, name):
    X, Y, _ = data
    kernel, options = FACTORS[name]
    found, grid = searched(kernel, X, Y, **options)
    assert np.shape(found.lam) == () and found.errors.shape == (len(found.lams), 2)
    assert float(found.error) <= float(grid.error) * (1 + CLOSE)


@pytest.mark.slow
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


@pytest.mark.slow
def test_counts_of_wrong_labels_have_no_slope(data):
    """Steps take the grid, or the values alone where there is no spectrum for one."""
    X, Y, _ = data
    options = {"criterion": rls.extend.LeaveOneOut(rls.classes.zero_one_loss)}
    found, grid, values = (
        rls.fit(GAUSSIAN, X, np.sign(Y[:, 1]), lams=lams, solver=solver, **options)
        for lams, solver in (("search", None), (None, None), ("search", rls.Cholesky()))
    )
    assert float(found.lam) == float(grid.lam) and float(found.error) == float(grid.error)
    assert "search" not in found.plan and "search" in values.plan
    assert float(values.error) == np.min(values.errors)


def test_what_was_measured_on_a_gpu_has_large_grids_searched(monkeypatch):
    """From 8000 rows on, where an eigendecomposition took as long as 23 factors and more."""
    monkeypatch.setattr(solvers, "platform", lambda: "gpu")
    shape = solvers.CallShape(GAUSSIAN, 7999, 3, DTYPE, lams=solvers.LAMS_PER_SEARCH)
    assert solvers.cheapest_solver(shape) == rls.Spectral()
    assert solvers.cheapest_solver(shape._replace(rows=8000)) == rls.Cholesky()


@pytest.mark.slow
def test_taken_by_itself_where_a_spectrum_takes_as_long_as_many_factors(data, monkeypatch):
    X, Y, _ = data
    assert rls.fit(GAUSSIAN, X, Y).route == "gram"
    monkeypatch.setattr(solvers, "LAMS_PER_SPECTRUM", {"cpu": ((1, 100),)})
    found = rls.fit(GAUSSIAN, X, Y)
    assert found.route == "cholesky" and "a search for λ" in found.plan
    assert "a search for λ" in rls.fit(GAUSSIAN, X, Y, solver=rls.Cholesky()).plan
    assert rls.fit(GAUSSIAN, X, Y, solver=rls.Spectral("gram")).route == "gram"
    assert rls.fit(rls.Linear(), X, Y).route == "covariance"
    assert rls.fit(GAUSSIAN, X, Y, per_target=True).route == "gram"


@EDGE
def test_equal_errors_take_the_largest_lam(data):
    """As a grid does: constant labels need no kernel."""
    with pytest.warns(UserWarning, match="labels are all equal"):
        found, grid = searched(GAUSSIAN, data[0], np.ones(40, data[0].dtype))
    np.testing.assert_allclose(float(found.lam), float(grid.lam), rtol=1e-4)


def test_messages(data):
    X, Y, _ = data
    fit = lambda lams: lambda X: rls.fit(GAUSSIAN, X, Y, lams=lams).error
    refused(
        (lambda: fit("find")(X), "lams must be how many λ, .* or 'search', and is 'find'"),
        (lambda: jax.jit(fit("search"))(X), "inside jax.jit"),
    )


# the search along a line, on functions whose valleys are known, against a fine grid
# --------------------------------------------------------------------------------------------------


def run(function, low=-30.0, high=8.0, slopes=True):
    """All places that a search sees of a function that gives value and slope, with the values."""
    seen = np.empty((0, 3))
    while len(seen) < MOST and np.isfinite(place := next_place(Curve(*seen.T), low, high)):
        assert low <= place <= high and place not in seen[:, 0]
        value, slope = function(place)
        seen = np.array([*seen, (place, value, slope if slopes else np.nan)])
    return seen[:, :2].T


def valley(centre, depth=0.0, steep=1.0):
    """log cosh: a line far from its centre, a parabola near it."""
    return lambda x: (
        depth + np.logaddexp(steep * (x - centre), steep * (centre - x)) - np.log(2),
        steep * np.tanh(steep * (x - centre)),
    )


def wall(centre):
    """An evidence: exponential on one side."""
    return lambda x: (np.exp(-(x - centre)) + 0.5 * (x - centre), 0.5 - np.exp(-(x - centre)))


def lower(*functions):
    """The lower of several, smoothly."""

    def value(x):
        values, slopes = np.array([f(x) for f in functions]).T
        share = np.exp(-8 * (values - values.min()))
        return values.min() - np.log(share.sum()) / 8, (share * slopes).sum() / share.sum()

    return value


@ANY_PRECISION
@pytest.mark.parametrize(
    "make", [valley, wall, lambda c: valley(c, steep=0.2)], ids=["valley", "wall", "flat"]
)
def test_finds_what_a_hundred_points_find(make):
    """By slopes, and by values alone."""
    for centre in (-29.5, -20.3, -8.1, 0.2, 5.7):
        function = make(centre)
        grid = min(function(x)[0] for x in np.linspace(-30, 8, 100))
        assert min(run(function)[1]) <= grid + GAIN, centre
        assert min(run(function, slopes=False)[1]) <= grid + 0.1, centre


@ANY_PRECISION
def test_stops_at_a_cliff():
    """Factors that break down are not finite; nothing beyond them is looked at again."""
    nothing = np.nan, np.nan
    places, values = run(lambda x: (0.1 * x, 0.1) if x > -11.3 else nothing)
    lowest = places[np.isfinite(values)].min()
    assert -11.3 < lowest < -11.3 + 3 and (places < -11.3).sum() <= 5
    assert len(run(lambda x: nothing)[0]) == len(COARSE)


@ANY_PRECISION
def test_looks_where_another_valley_may_hide():
    """A narrow one that values and slopes on both sides of it do not tell of."""
    places, values = run(lower(valley(-10.0, 0.08, steep=0.1), valley(-16.0, -0.2)))
    assert abs(places[np.argmin(values)] + 16) < 0.5
