"""Fits whose rows change: further ones, and without some, against brute-force refits to the rows
that are left.
"""

import warnings

import jax
import numpy as np
import oracle
import pytest
from contract.cases import WIDTH, gaussian
from support import DTYPE, EPS, X64, array, assert_close, wide

import jaxrls as rls

N, FIRST, GONE, NEW, LAM = 40, 24, 6, 5, 0.3


def draw(seed, *shape):
    return wide(np.random.default_rng(seed).normal(size=shape))


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
ROWS = {
    "all": np.s_[:],
    "first": np.s_[:FIRST],
    "rest": np.s_[FIRST:],
    "gone": np.s_[:GONE],
    "left": np.s_[GONE:],
}
OF = {
    name: {part: A[rows].astype(DTYPE) for part, A in (("X", X), ("Y", Y))}
    for name, rows in ROWS.items()
}
KEPT = {"lams": [LAM], "keep": True}


def some(name, weights=None):
    """Rows, labels and weights as arguments."""
    return (
        OF[name]["X"],
        OF[name]["Y"],
        None if weights is None else weights[ROWS[name]].astype(DTYPE),
    )


def fit(kind, name, weights=None, **more):
    kernel, options, _ = KINDS[kind]
    rows, labels, v = some(name, weights)
    return rls.fit(kernel, rows, labels, weights=v, **{**KEPT, **options, **more})


def moved(kind, weights=None, **more):
    """The fit to the first rows with the rest, without those that go."""
    rows, labels, v = some("rest", weights)
    later = fit(kind, "first", weights, **more).update(rows, labels, weights=v)
    rows, labels, v = some("gone", weights)
    return later.forget(rows, labels, weights=v)


def truth(kind, name, weights, intercept, lam=LAM):
    """Predictions of a refit at the new rows."""
    features, rows = KINDS[kind][2], ROWS[name]
    w, b = oracle.refit(
        features(X[rows]), Y[rows], lam, None if weights is None else weights[rows], intercept
    )
    return features(X_NEW) @ w + b


def tolerance(kind, lam=LAM):
    """As in the contract: 4 n eps (1 + s_max/λ), s of all rows that there were, whose sums came and
    went.
    """
    return 4 * N * EPS * (1 + 2 * np.linalg.norm(KINDS[kind][2](X), 2) ** 2 / lam)


@pytest.mark.parametrize(
    ("kind", "weights", "intercept"),
    [*((kind, ZEROS, True) for kind in KINDS), ("points", None, False)],
)
def test_a_fit_with_other_rows_is_that_of_a_refit(kind, weights, intercept):
    found = moved(kind, weights, intercept=intercept)
    assert_close(
        found.predict(X_NEW.astype(DTYPE)), truth(kind, "left", weights, intercept), tolerance(kind)
    )
    again = fit(kind, "left", weights, intercept=intercept)
    for name in ("dof", "floor"):
        assert_close(getattr(found, name), getattr(again, name), tolerance(kind), name)
    assert (found.route, found.criterion, found.num_landmarks) == (
        again.route,
        again.criterion,
        again.num_landmarks,
    )
    if kind == "points":
        assert_close(found.trace_residual, again.trace_residual, tolerance(kind) * N)


def test_nothing_stays_that_is_no_longer_true(unchecked):
    """λ does; what leaves rows out is gone, and plots say so. The fit that was updated is as it
    was.
    """
    first = fit("points", "first", lams=[0.1, LAM, 1.0])
    before = first.predict(X_NEW.astype(DTYPE)), first.error
    found = first.update(*some("rest")[:2])
    assert found.lam == first.lam and found.certificate != first.certificate
    assert (found.lams, found.errors, found.error, found.loo_residuals) == (None,) * 4
    for plot, what in (
        (found.plot, "errors over λ"),
        (lambda: found.plot_left_out(Y), "residuals of rows left out"),
    ):
        with pytest.raises(ValueError, match=f"there are no {what} to plot: the rows have changed"):
            plot()
    assert (first.predict(X_NEW.astype(DTYPE)) == before[0]).all() and first.error == before[1]


@pytest.mark.float64
@pytest.mark.parametrize(
    ("kind", "criterion", "per_target"),
    [("points", rls.gcv, True), ("linear", rls.log_marginal_likelihood, False)],
)
@pytest.mark.filterwarnings("ignore:the chosen λ")
def test_lam_is_chosen_anew_where_moments_are_enough(kind, criterion, per_target):
    """Over the grid that the rows which are left have, or the λ that were named."""
    for lams in (30, [1e-2, 0.1, 1.0, 10.0]):
        options = {"criterion": criterion, "per_target": per_target, "lams": lams}
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


def test_streams_and_blocks_of_one_row():
    kind = "points"
    rows, labels, v = some("rest", V)
    first, halves = fit(kind, "first", V), [(part[:9], part[9:]) for part in (rows, labels, v)]
    at_once = first.update(rls.stream(list(zip(*halves, strict=True))))
    assert_close(at_once.predict(X_NEW.astype(DTYPE)), truth(kind, "all", V, True), tolerance(kind))
    one_by_one = first
    for i in range(3):
        one_by_one = one_by_one.update(rows[i : i + 1], labels[i : i + 1], weights=v[i : i + 1])
    together = first.update(rows[:3], labels[:3], weights=v[:3])
    assert_close(
        one_by_one.predict(X_NEW.astype(DTYPE)),
        together.predict(X_NEW.astype(DTYPE)),
        tolerance(kind),
    )


def test_fewer_rows_than_features_at_first():
    """Where the fit itself is made of K: moments are kept beside it."""
    rows, labels, _ = some("all")
    found = rls.fit(rls.Linear(), rows[:2], labels[:2], **KEPT).update(rows[2:], labels[2:])
    assert_close(
        found.predict(X_NEW.astype(DTYPE)), truth("linear", "all", None, True), tolerance("linear")
    )


def test_moments_are_saved_and_loaded(tmp_path):
    first = fit("points", "first", V, criterion=rls.gcv, lams=[0.1, LAM, 3.0])
    rls.save(tmp_path / "fit.npz", first)
    loaded = rls.load(tmp_path / "fit.npz")
    rows, labels, v = some("rest", V)
    found, again = (one.update(rows, labels, weights=v) for one in (loaded, first))
    assert (
        found.lam == again.lam
        and (np.asarray(found.model.coef) == np.asarray(again.model.coef)).all()
    )
    rls.save(tmp_path / "again.npz", found)
    assert rls.load(tmp_path / "again.npz") == found


def test_inside_jit():
    """Values are not looked at there: nothing is refused, and nothing said."""
    rest, new = [array(part[FIRST:]) for part in (X, Y)], array(X_NEW)
    first = rls.fit(rls.Linear(), array(X[:FIRST]), array(Y[:FIRST]), **KEPT)
    found = jax.jit(lambda X, Y: first.update(X, Y).model.predict(new))(*rest)
    assert_close(found, truth("linear", "all", None, True), tolerance("linear"))
    assert jax.grad(lambda Y: first.update(rest[0], Y).model.coef.sum())(rest[1]).shape == (16, 2)


# rounding
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", ["rows", "labels", "weights"])
def test_lost_digits_are_told(large):
    """Rows, labels or weights so large that the sums of the others lie in their rounding: what is
    left is as wrong as is said, and no more.
    """
    factor = EPS**-0.35  # squares of which take 70 % of the digits
    rows, labels, _ = some("gone")
    extra = {
        "X": rows * (factor if large == "rows" else 1),
        "Y": labels * (factor**2 if large == "labels" else 1),
    }
    extra["weights"] = np.full(GONE, factor**2 if large == "weights" else 1, DTYPE)
    extra = {name: A.astype(DTYPE) for name, A in extra.items()}
    first = fit("linear", "first", intercept=False).update(**extra)
    with pytest.warns(
        UserWarning,
        match=r"removing rows left about .* digits, .* large before: fit the remaining",
    ):
        found = first.forget(**extra)
    want = truth("linear", "first", None, False)
    error = np.abs(np.asarray(found.predict(X_NEW.astype(DTYPE))) - want).max() / np.abs(want).max()
    assert 10 * EPS < error < 100 * N * EPS * factor**2


def test_rows_far_from_the_first_lose_digits_too():
    """The origin stays that of the first rows."""
    far, first = (1e3 * EPS**-0.3 + 1e-2 * X).astype(DTYPE), fit("linear", "gone")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        first.update(far, OF["all"]["Y"]).forget(*some("gone")[:2])
    assert "digits, as sums over rows were" in str(
        said[-2].message
    ) and "below the precision of the factor" in str(said[-1].message)


@pytest.mark.filterwarnings("ignore:the landmarks are nearly dependent")
def test_landmarks_that_nearly_depend_raise_no_alarm():
    """Their rows of B are rounded otherwise in blocks of another size, a thousand times more than
    the rows themselves.
    """
    rows = draw(6, 400, 3).astype(DTYPE)
    labels = np.sin(rows[:, 0])
    kernel, options = (
        rls.Gaussian(3.0),
        {"landmarks": rows[:80], "lams": [0.01], "keep": True},
    )
    found = rls.fit(kernel, rows, labels, **options).forget(rows[90:], labels[90:])
    again = rls.fit(kernel, rows[:90], labels[:90], **options)
    assert_close(found.predict(rows[:20]), again.predict(rows[:20]), 5e4 * EPS if X64 else 1e-2)


def test_whether_rows_were_there_does_not_depend_on_their_units():
    unit = 1e-6
    rows, labels, _ = some("all")
    first = rls.fit(rls.Linear(), rows * DTYPE(unit), labels, lams=[LAM * unit**2], keep=True)
    gone, labels, _ = some("gone")
    left = first.forget(gone * DTYPE(unit), labels)
    w, b = oracle.refit(X[GONE:], Y[GONE:], LAM, None, True)
    assert_close(left.predict((X_NEW * unit).astype(DTYPE)), X_NEW @ w + b, tolerance("linear"))
    with pytest.raises(ValueError, match="or were not fitted with these labels"):
        first.forget(20 * gone * DTYPE(unit), labels)


# errors
# --------------------------------------------------------------------------------------------------


FIRST_ROWS, REST, LEFT = OF["first"], OF["rest"], OF["gone"]


@pytest.mark.parametrize(
    ("method", "named", "message"),
    [
        (
            "forget",
            FIRST_ROWS,
            "cannot be removed: they hold all of the weight",
        ),
        ("forget", FIRST_ROWS | {"weights": np.full(FIRST, 1.5, DTYPE)}, "cannot be removed"),
        ("forget", LEFT | {"X": 100 * LEFT["X"]}, "or were not fitted with these labels"),
        (
            "forget",
            LEFT | {"Y": LEFT["Y"] + 100},
            "or were not fitted with these labels",
        ),
        (
            "update",
            REST | {"X": REST["X"][:, :2]},
            "X must have as many columns as the rows of the fit, and has 2",
        ),
        (
            "update",
            REST | {"Y": REST["Y"][:, 0]},
            r"Y must have shape \(16, 2\), .* and has shape \(16,\)",
        ),
        ("update", REST | {"X": REST["X"] * np.nan}, "X holds 48 values that are NaN or infinite"),
        ("update", REST | {"Y": REST["Y"] * np.inf}, "Y holds 32 values that are NaN or infinite"),
        ("update", {"X": REST["X"]}, "Y must be labels, one for each of the 16 rows"),
        ("update", REST | {"weights": -V[FIRST:]}, "weights must not be negative"),
    ],
)
def test_rows_that_cannot_come_or_go(method, named, message, unchecked):
    with pytest.raises(ValueError, match=message):
        getattr(fit("linear", "first"), method)(**named)


def test_fits_that_cannot_be_changed(unchecked):
    for call, message in (
        (
            lambda: fit("linear", "first", keep=False).update(**REST),
            "this fit kept no solution, .* fit with keep=True",
        ),
        (
            lambda: fit("points", "first").update(REST["X"][:, :2], REST["Y"]),
            "X must have as many columns as the rows of the fit, and has",
        ),
        (
            lambda: rls.fit(rls.Gaussian(1.0), *some("first")[:2], **KEPT).update(**REST),
            "this one has the full kernel matrix: fit with landmarks=",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
