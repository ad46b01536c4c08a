"""Fits whose rows change: further ones, and without some, against brute-force refits to the rows
that are left.
"""

import functools
import warnings

import jax
import numpy as np
import oracle
import pandas
import pytest
import scipy.sparse
from contract.cases import WIDTH, draw, gaussian
from support import DTYPE, EDGE, EPS, FLOAT64, X64, array, assert_close, refused, wide

import jaxrls as rls

N, HALF, NEW, LAM = 48, 24, 5, 0.3


X, X_NEW = draw(0, N, 3) + 0.5, draw(1, NEW, 3) + 0.5
Y = wide(np.stack([np.sin(2 * X[:, 0]), X[:, 1] - 4 + X[:, 2] ** 2], axis=1) + 0.1 * draw(2, N, 2))
V = wide(np.random.default_rng(3).uniform(0.5, 2.0, N))
ZEROS = wide(np.where(np.arange(N) % 5 == 2, 0, V))
POINTS = draw(4, 7, 3) + 0.5
MAP = rls.FeatureMap(lambda scale, X: scale * X[:, :2] ** 2, array(0.5))


def on_points(X):
    return np.linalg.solve(np.linalg.cholesky(gaussian(POINTS, POINTS)), gaussian(POINTS, X)).T


def quadratic(X):
    return 0.5 * X[:, :2] ** 2


# kernel, options of fit, features for the oracle
KINDS = {
    "linear": (rls.Linear(), {}, lambda X: X),
    "a map": (MAP, {}, quadratic),
    "points": (rls.Gaussian(WIDTH), {"landmarks": POINTS.astype(DTYPE)}, on_points),
}
# Parts of one size, which share their programs.
ROWS = {
    "all": np.arange(N),
    "first": np.arange(HALF),
    "rest": np.arange(HALF, N),
    "gone": np.arange(12, 36),
    "left": np.r_[:12, 36:N],
}
KEPT = {"lams": [LAM], "keep": True}
FRESH = X_NEW.astype(DTYPE)


def some(name, weights=None):
    """Rows, labels and weights as arguments."""
    parts = {"X": X, "Y": Y} if weights is None else {"X": X, "Y": Y, "weights": weights}
    return {key: part[ROWS[name]].astype(DTYPE) for key, part in parts.items()}


def fit(kind, name, weights=None, **more):
    kernel, options, _ = KINDS[kind]
    return rls.fit(kernel, **some(name, weights), **{**KEPT, **options, **more})


def moved(kind, weights=None, **more):
    """The fit to the first rows with the rest, without those that go."""
    later = fit(kind, "first", weights, **more).update(**some("rest", weights))
    return later.forget(**some("gone", weights))


def truth(kind, name, weights, intercept):
    """Predictions of a refit at the new rows."""
    features, rows = KINDS[kind][2], ROWS[name]
    v = None if weights is None else weights[rows]
    w, b = oracle.refit(features(X[rows]), Y[rows], LAM, v, intercept)
    return features(X_NEW) @ w + b


def assert_predicts(found, kind, name, weights=None, intercept=True):
    want = truth(kind, name, weights, intercept)
    assert_close(found.predict(FRESH), want, tolerance(kind))


def tolerance(kind, lam=LAM):
    """As in the contract: 4 n eps (1 + s_max/λ), s of all rows that there were, whose sums came and
    went.
    """
    return 4 * N * EPS * (1 + 2 * np.linalg.norm(KINDS[kind][2](X), 2) ** 2 / lam)


@pytest.mark.parametrize(
    ("kind", "weights", "intercept"),
    [
        ("points", ZEROS, True),
        pytest.param("a map", ZEROS, True, marks=pytest.mark.slow),
        pytest.param("points", None, False, marks=pytest.mark.slow),
    ],
)
def test_a_fit_with_other_rows_is_that_of_a_refit(kind, weights, intercept):
    found = moved(kind, weights, intercept=intercept)
    assert_predicts(found, kind, "left", weights, intercept)
    again = fit(kind, "left", weights, intercept=intercept)
    for name in ("dof", "floor"):
        assert_close(getattr(found, name), getattr(again, name), tolerance(kind), name)
    for name in ("route", "criterion", "num_landmarks"):
        assert getattr(found, name) == getattr(again, name)
    if kind == "points":
        assert_close(found.trace_residual, again.trace_residual, tolerance(kind) * N)


@EDGE
@pytest.mark.parametrize(
    ("kind", "weights"),
    [("points", ZEROS), pytest.param("linear", None, marks=pytest.mark.slow)],
)
def test_rows_are_predicted_before_they_are_added(kind, weights, tmp_path):
    """Over two updates, by refits to what there was before each; of a fit that was saved too."""
    features, v = KINDS[kind][2], np.ones(N) if weights is None else weights
    first = fit(kind, "first", weights)
    squares = np.zeros((N, 2))
    for known, more in ((ROWS["first"], np.r_[24:36]), (np.r_[:36], np.r_[36:48])):
        w, b = oracle.refit(features(X[known]), Y[known], LAM, v[known], True)
        squares[more] = (Y[more] - features(X[more]) @ w - b) ** 2
    rest = some("rest", weights)
    part = lambda rows: {name: values[rows] for name, values in rest.items()}
    once = first.update(**part(np.s_[:12]))
    mean = lambda rows: v[rows] @ squares[rows] / v[rows].sum()
    assert first.prequential_error is None
    close = 100 * tolerance(kind)
    assert_close(once.prequential_error, mean(np.r_[24:36]), close)
    rls.save(tmp_path / "once", once)
    for updated in (once, rls.load(tmp_path / "once")):
        twice = updated.update(**part(np.s_[12:]))
        assert_close(twice.prequential_error, mean(ROWS["rest"]), close)
    assert_close(twice.summary()["prequential_error"], mean(ROWS["rest"]), close)
    assert f"prequential error {twice.prequential_error.mean():.3g}, " in repr(twice)
    less = twice.forget(**part(np.s_[:12]))
    assert_close(less.prequential_error, twice.prequential_error, 0)


@EDGE
@FLOAT64
@pytest.mark.slow
def test_rows_are_predicted_with_their_fixed_effects_from_streams_and_inside_jit():
    levels, y = np.arange(N) % 3, Y[:, 0]
    first, rest = ROWS["first"], ROWS["rest"]
    of_levels = rls.fit(
        rls.Linear(), X[first], y[first], fixed_effects=rls.levels(levels[first]), **KEPT
    )
    missed = y[rest] - of_levels.predict(X[rest], fixed_effects=levels[rest])
    found = of_levels.update(X[rest], y[rest], fixed_effects=levels[rest], weights=V[rest])
    assert_close(found.prequential_error, V[rest] @ missed**2 / V[rest].sum(), 1e-9)
    plain = rls.fit(rls.Linear(), X[first], y[first], **KEPT)
    missed = y[rest] - plain.predict(X[rest])
    blocks = [(X[rest][:9], y[rest][:9]), (X[rest][9:], y[rest][9:])]
    for rows in ((rls.rows.stream(blocks),), (scipy.sparse.csr_array(X[rest]), y[rest])):
        assert_close(plain.update(*rows).prequential_error, np.mean(missed**2), 1e-9)

    def padded_first(X, y, padding):
        """A batch of rows of weight 0, as padding may be, before the others."""
        after = plain.update(X, y, weights=padding)
        return after.update(X, y).prequential_error

    inside = jax.jit(padded_first)
    given = array(X[rest]), array(y[rest]), array(np.zeros(len(y[rest])))
    assert_close(inside(*given), np.mean(missed**2), 1e-9)
    mean_square = float(np.mean(missed**2))
    want = np.asarray(plain.update(X[rest], y[rest]).predict(X)) + 1e6
    with jax.enable_x64(False):  # float32 rows with labels far from 0, given or of a stream
        far = y + 1e6
        rows = X.astype(np.float32)
        distant = rls.fit(rls.Linear(), rows[first], far[first], **KEPT)
        assert distant.label_offset is not None
        blocks = [(rows[rest][:9], far[rest][:9]), (rows[rest][9:], far[rest][9:])]
        for added in ((rows[rest], far[rest]), (rls.rows.stream(blocks),)):
            moved = distant.update(*added)
            assert_close(moved.prequential_error, mean_square, 1e-3)
            assert np.abs(np.asarray(moved.predict(rows), float) - want).max() < 0.1


def test_nothing_stays_that_is_no_longer_true():
    """λ does; what leaves rows out is gone, and plots say so. The fit that was updated is as it
    was.
    """
    first = fit("points", "first", lams=[0.1, LAM, 1.0])
    before = first.predict(FRESH), first.error
    found = first.update(**some("rest"))
    assert found.lam == first.lam and found.certificate != first.certificate
    assert (found.lams, found.errors, found.error, found.loo_residuals) == (None,) * 4
    why = "to plot, as the rows have changed"
    refused(
        (found.plot, f"there are no errors over λ {why}"),
        (lambda: found.plot_left_out(Y), f"there are no residuals of rows left out {why}"),
    )
    assert (first.predict(FRESH) == before[0]).all() and first.error == before[1]


@FLOAT64
@pytest.mark.parametrize(
    ("kind", "criterion", "lams"),
    [("points", rls.gcv, 30), ("linear", rls.log_marginal_likelihood, [0.01, 0.1, 1.0, 10.0])],
)
@EDGE
@pytest.mark.slow
def test_lam_is_chosen_anew_where_moments_are_enough(kind, criterion, lams):
    """Over the grid that the rows which are left have, or the λ that were named."""
    options = {"criterion": criterion, "per_target": lams == 30, "lams": lams}
    found, again = moved(kind, V, **options), fit(kind, "left", V, **options)
    one, other = (np.asarray(each.lams, np.float64) for each in (found, again))
    moved_by = np.abs(
        np.log(one / other)
    )  # the low end is the precision of the factor, which is made of rounding
    assert (moved_by == 0).all() if lams != 30 else moved_by[-1] < tolerance(kind, np.inf)
    errors = np.asarray(again.errors, np.float64).reshape(len(one), -1)
    scale = len(X) if criterion is rls.log_marginal_likelihood else np.abs(errors)
    off = np.abs(np.asarray(found.errors).reshape(len(one), -1) - errors) / scale
    assert (
        off <= (tolerance(kind, other) + 2 * moved_by)[:, None]
    ).all()  # the slope in log λ of either is in [−2, 2] of its scale
    assert (
        one.searchsorted(found.lam) == other.searchsorted(again.lam)
    ).all() and found.error.shape == again.error.shape
    assert (found.amplitude is None) == (criterion is rls.gcv)
    if found.amplitude is not None:
        assert_close(found.amplitude, again.amplitude, tolerance(kind, float(again.lam)))


@pytest.mark.slow
def test_a_given_variance_of_the_prior_stays():
    """Where λ was searched too, so that it is not chosen again. So does a λ that was set after the
    fit.
    """
    rows, labels = some("first").values()
    given = rls.extend.Evidence(scale=100.0)
    first = rls.fit(rls.Linear(), rows, labels[:, 0], criterion=given, lams="search", keep=True)
    again = first.update(rows[:1], labels[:1, 0])
    for fit in (first, again):
        assert_close(fit.posterior(FRESH).amplitude, 10.0, tolerance("linear"))
    on_grid = rls.fit(rls.Linear(), rows, labels[:, 0], criterion=given, keep=True)
    for other in (0.5, 5.0):
        assert float(on_grid.with_lam(other).update(rows[:1], labels[:1, 0]).lam) == other


@pytest.mark.slow
def test_streams_and_blocks_of_one_row():
    kind, rest = "points", some("rest", V)
    first = fit(kind, "first", V)
    halves = [tuple(part[rows] for part in rest.values()) for rows in (np.s_[:9], np.s_[9:])]
    assert_predicts(first.update(rls.rows.stream(halves)), kind, "all", V)
    part = lambda rows: {name: values[rows] for name, values in rest.items()}
    one_by_one = first
    for i in range(3):
        one_by_one = one_by_one.update(**part(np.s_[i : i + 1]))
    together = first.update(**part(np.s_[:3]))
    assert_close(one_by_one.predict(FRESH), together.predict(FRESH), tolerance(kind))


@pytest.mark.slow
def test_fewer_rows_than_features_at_first():
    """Where the fit itself is made of K: moments are kept beside it."""
    rows, labels = some("all").values()
    found = rls.fit(rls.Linear(), rows[:2], labels[:2], **KEPT).update(rows[2:], labels[2:])
    assert_predicts(found, "linear", "all")


# rounding
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", ["X", "Y", "weights"])
@pytest.mark.slow
def test_lost_digits_are_told(large):
    """Rows, labels or weights so large that the sums of the others lie in their rounding: what is
    left is as wrong as is said, and no more.
    """
    factor = EPS**-0.35  # squares of which take 70 % of the digits
    extra = {name: part[:6] for name, part in some("first", np.ones(N)).items()}
    extra[large] *= DTYPE(factor if large == "X" else factor**2)
    first = fit("linear", "first", intercept=False).update(**extra)
    with pytest.warns(
        UserWarning, match=r"removing rows left about .* digits, .* large before: fit the remaining"
    ):
        found = first.forget(**extra)
    want = truth("linear", "first", None, False)
    error = np.abs(np.asarray(found.predict(FRESH)) - want).max() / np.abs(want).max()
    assert 10 * EPS < error < 100 * N * EPS * factor**2


@pytest.mark.slow
def test_rows_far_from_the_first_lose_digits_too():
    """The origin stays that of the first rows."""
    far, first = (1e3 * EPS**-0.3 + 1e-2 * X[HALF:]).astype(DTYPE), fit("linear", "gone")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        first.update(far, some("rest")["Y"]).forget(**some("gone"))
    digits, floor = (str(each.message) for each in said[-2:])
    assert (
        "digits, as sums over rows were" in digits and "matrix has no information beyond" in floor
    )


@pytest.mark.filterwarnings("ignore:the landmarks are nearly dependent")
@pytest.mark.slow
def test_landmarks_that_nearly_depend_raise_no_alarm():
    """Their rows of B are rounded otherwise in blocks of another size, a thousand times more than
    the rows themselves.
    """
    rows = draw(6, 400, 3).astype(DTYPE)
    labels = np.sin(rows[:, 0])
    kernel = rls.Gaussian(3.0)
    options = {"landmarks": rows[:80], "lams": [0.01], "keep": True}
    found = rls.fit(kernel, rows, labels, **options).forget(rows[90:], labels[90:])
    again = rls.fit(kernel, rows[:90], labels[:90], **options)
    assert_close(found.predict(rows[:20]), again.predict(rows[:20]), 5e4 * EPS if X64 else 1e-2)


# errors
# --------------------------------------------------------------------------------------------------


def test_rows_that_cannot_come_or_go():
    first = fit("linear", "first")
    rows, rest, left = map(some, ("first", "rest", "gone"))
    few = {"X": rest["X"][:, :2]}
    refused(
        *(
            (functools.partial(getattr(fitted, method), **named), message)
            for fitted, method, named, message in (
                (first, "forget", rows, "cannot be removed: they hold all of the weight"),
                (
                    first,
                    "forget",
                    left | {"X": 100 * left["X"]},
                    "or were not fitted with these labels",
                ),
                (
                    first,
                    "forget",
                    left | {"Y": left["Y"] + 100},
                    "or were not fitted with these labels",
                ),
                (first, "update", rest | few, "X must have 3 columns, the columns it .* and has 2"),
                (
                    first,
                    "update",
                    rest | {"Y": rest["Y"][:, 0]},
                    r"Y must have shape \(24, 2\), .* and has shape \(24,\)",
                ),
                (first, "update", {"X": rest["X"]}, "Y must be labels, one for each of the 24"),
                (
                    rls.fit(rls.Gaussian(1.0), **rows, **KEPT),
                    "update",
                    rest,
                    "this fit keeps none: fit with landmarks=",
                ),
            )
        )
    )


@EDGE
@pytest.mark.slow
def test_a_frame_that_is_distributed_keeps_its_names():
    """Columns of new rows, of rows that are added, and of distributed ones, by name."""
    mesh = jax.make_mesh((1,), ("rows",))
    frame, new = (pandas.DataFrame(A.astype(DTYPE), columns=[*"abc"]) for A in (X, X_NEW))
    turned = new[[*"cab"]]
    fit = rls.fit(rls.Linear(), rls.rows.shard(frame, Y.astype(DTYPE), mesh=mesh), **KEPT)
    want = rls.fit(rls.Linear(), X.astype(DTYPE), Y.astype(DTYPE), **KEPT)
    labels = Y[:NEW].astype(DTYPE)
    for part in (turned, rls.rows.shard(turned, mesh=mesh)):
        assert_close(fit.predict(part), want.predict(FRESH), 1e4 * EPS, "new rows")
        added, same = fit.update(part, labels), want.update(FRESH, labels)
        assert_close(added.predict(part), same.predict(FRESH), 1e4 * EPS, "added rows")
