"""Labels in float64 that are far from 0, beside rows in float32: as accurate as in float64."""

import warnings
from functools import partial

import jax
import numpy as np
import pytest
from support import ANY_PRECISION, assert_close

import jaxrls as rls
from jaxrls.sklearn import RLSRegressor

pytestmark = [ANY_PRECISION, pytest.mark.filterwarnings("ignore:the chosen λ")]
RNG, N = np.random.default_rng(0), 60
WIDE = RNG.normal(size=(N, 3)).astype(np.float32).astype(float)
NEW_WIDE = RNG.normal(size=(9, 3)).astype(np.float32).astype(float)
X, NEW = WIDE.astype(np.float32), NEW_WIDE.astype(np.float32)
OFFSET = np.array([1.7e9, 0.0, -3e6])
Y = 10 * np.sin(WIDE) + RNG.normal(size=(N, 3)) + OFFSET
Y_NEW = 10 * np.sin(NEW_WIDE) + OFFSET
V = np.where(np.arange(N) % 7 == 3, 0, RNG.uniform(0.5, 2, N))
FAR = np.where(V[:, None] > 0, Y, -9999)  # rows of weight 0 do not count
KERNEL, LAMS = rls.Gaussian(1.0), np.array([0.3, 1.0, 3.0])
LONG = pytest.mark.slow
TOLERANCE = 2e-4  # of float32, λ and K of this size, relative to labels that vary by 7


def pair(Y=FAR, **options):
    """The fit in float32, and in float64."""
    options = {"lams": LAMS, "weights": V, "keep": True} | options
    return rls.fit(KERNEL, X, Y, **options), rls.fit(KERNEL, WIDE, Y, **options)


def assert_same(got, want, origin=OFFSET, what=""):
    """Relative to what varies."""
    assert np.asarray(got).dtype == np.float64
    assert_close(np.asarray(got) - origin, np.asarray(want) - origin, TOLERANCE, what)


@pytest.mark.filterwarnings("ignore:variances take rows as independent")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"per_target": True}, id="each", marks=LONG),
        pytest.param(
            {"groups": np.arange(N) // 6, "landmarks": np.arange(0, N, 2)}, id="folds", marks=LONG
        ),
        pytest.param(
            {"criterion": "gcv", "fixed_effects": (np.arange(N) % 2)[:, None] * 1.0},
            id="columns",
            marks=LONG,
        ),
        pytest.param(
            {"criterion": "evidence", "solver": rls.Cholesky()}, id="evidence", marks=LONG
        ),
        pytest.param({"criterion": rls.holdout(NEW_WIDE, Y_NEW)}, id="held out", marks=LONG),
    ],
)
def test_float32_rows_keep_labels_far_from_0(options):
    ours, theirs = pair(**options)
    assert ours.model.coef.dtype == np.float32
    assert_close(ours.errors, theirs.errors, 5 * TOLERANCE, "errors")
    assert_close(ours.loo_residuals[V > 0], theirs.loo_residuals[V > 0], TOLERANCE, "left out")
    beside = {}
    if "fixed_effects" in options:
        beside["fixed_effects"] = np.ones((9, 1))
    new, wide = partial(ours.predict, NEW, **beside), partial(theirs.predict, NEW_WIDE, **beside)
    assert_same(new(), wide(), what="predictions")
    assert abs(ours.score(NEW, Y_NEW, **beside) - theirs.score(NEW_WIDE, Y_NEW, **beside)) < 1e-3
    assert jax.jit(partial(ours.predict, **beside))(NEW).shape == (9, 3)
    if not np.ndim(ours.lam):
        mean = ours.posterior(NEW, **beside).mean
        assert_same(mean, theirs.posterior(NEW_WIDE, **beside).mean, what="posterior")
        effects = ours.effects().mean[0], theirs.effects().mean[0]
        assert_same(*effects, what="constant")
    ends = ours.intervals(NEW, **beside), theirs.intervals(NEW_WIDE, **beside)
    assert_same(*ends, what="ends")
    other = (
        ours.with_lam(0.7).predict(NEW, **beside),
        theirs.with_lam(0.7).predict(NEW_WIDE, **beside),
    )
    assert_same(*other, what="another λ")


@LONG
def test_what_comes_of_such_a_fit(tmp_path):
    """Further rows, files, tuned kernels, several kernels, chosen columns and estimators."""
    ours, theirs = pair(landmarks=np.arange(0, N, 2))
    more = ours.update(NEW, Y_NEW), theirs.update(NEW_WIDE, Y_NEW)
    assert_same(*(fit.predict(NEW_WIDE.astype(fit.model.coef.dtype)) for fit in more), what="more")
    rls.save(tmp_path / "fit.safetensors", ours)
    loaded = rls.load(tmp_path / "fit.safetensors")
    assert (np.asarray(loaded.predict(NEW)) == ours.predict(NEW)).all()
    assert_same(loaded.posterior(NEW).mean, ours.posterior(NEW).mean)
    tuned = rls.tune(KERNEL, X, FAR[:, 0], weights=V, steps=3)
    wide = rls.fit(tuned.kernel, WIDE, FAR[:, 0], weights=V, lams=[tuned.lam])
    assert_same(tuned.predict(NEW), wide.predict(NEW_WIDE), OFFSET[0], "tuned")
    kernels, given = [rls.Linear(), KERNEL], {"shares": [[0.5, 0.5]], "lams": LAMS, "weights": V}
    several = [rls.several.fit_kernels(kernels, rows, FAR, **given) for rows in (X, WIDE)]
    assert_same(several[0].predict(NEW), several[1].predict(NEW_WIDE), what="several")
    split = several[0].score_split(NEW, Y_NEW), several[1].score_split(NEW_WIDE, Y_NEW)
    assert_close(*split, 1e-3, "score_split")
    chosen = [rls.several.select_columns(rows, FAR[:, 0], 2, 1.0, weights=V) for rows in (X, WIDE)]
    assert_close(chosen[0].errors, chosen[1].errors, 1e-3, "select_columns")
    for options in ({}, {"scoring": "r2"}, {"store_cv_results": "predictions"}):
        models = [
            RLSRegressor(KERNEL, lams=LAMS, **options).fit(rows, FAR, V) for rows in (X, WIDE)
        ]
        names = ["loo_predictions_", *(["cv_results_"] * ("store_cv_results" in options))]
        for name in names:
            got, want = (np.moveaxis(getattr(model, name)[V > 0], 1, -1) for model in models)
            assert_same(got, want, what=name)
        assert_same(models[0].predict(NEW), models[1].predict(NEW_WIDE), what="estimator")


class Brought(rls.rows.Rows):
    """Rows of float32 that bring such labels."""

    shape, dtype, labels = X.shape, X.dtype, Y

    def blocks(self):
        yield X


@pytest.mark.slow
def test_labels_that_rows_bring_are_as_far():
    """Of a stream, and of rows of a user's own."""
    pieces = [(X[:30], Y[:30]), (X[30:], Y[30:])]
    for kernel, rows in ((KERNEL, rls.rows.stream(pieces)), (rls.Linear(), Brought())):
        options = {"lams": LAMS, "landmarks": WIDE[::5] if kernel is KERNEL else None}
        got, want = rls.fit(kernel, rows, **options), rls.fit(kernel, WIDE, Y, **options)
        assert_same(got.predict(NEW), want.predict(NEW_WIDE))
        assert_close(got.errors, want.errors, 1e-3)


@pytest.mark.slow
def test_labels_given_for_rows_that_were_padded_are_as_far():
    """As rows are that lie on several devices."""
    n = N - 1
    counts = np.ones(N, np.float32)
    counts[n:] = 0
    padded = rls.rows.ShardedRows(jax.numpy.asarray(X), 2, count=n, row_weights=counts)
    for labels, v in ((Y, None), (Y[:, 0], V[:n])):
        given, want = (
            rls.fit(rls.Linear(), rows, labels[:n], weights=v, lams=[0.1])
            for rows in (padded, X[:n])
        )
        assert want.label_offset is not None
        assert_close(given.label_offset, want.label_offset, 1e-12)
        origin = OFFSET if labels is Y else OFFSET[0]
        assert_same(given.predict(NEW), want.predict(NEW), origin)


def test_a_label_without_weight_hides_no_offset():
    """A huge label of weight 0 tells nothing of how far labels are rounded."""
    weights = np.ones(N, np.float32)
    weights[3] = 0
    huge = Y[:, 2].copy()
    huge[3] = 1e15
    given, want = (
        rls.fit(rls.Linear(), X, labels, weights=weights, lams=[0.1]) for labels in (huge, Y[:, 2])
    )
    assert want.label_offset is not None
    assert (given.label_offset == want.label_offset).all()
    assert (np.asarray(given.model.coef) == np.asarray(want.model.coef)).all()


# Where rounding has taken all of them.
@pytest.mark.filterwarnings("ignore:the labels are all equal")
@pytest.mark.slow
def test_labels_that_rounding_takes_are_warned_of():
    """Where a constant cannot be taken off them; nothing is said of labels that it does not."""
    words = "float32, the dtype of X, rounds labels by up to .*, and they vary by"
    percent = rls.extend.LeaveOneOut(lambda e, y: (e / y) ** 2)
    levels = rls.levels(np.arange(N) % 3)
    for options in ({"intercept": False}, {"criterion": percent}, {"fixed_effects": levels}):
        with pytest.warns(UserWarning, match=words):
            rls.fit(KERNEL, X, Y[:, 0], lams=LAMS, **options)
    steps, line = np.arange(N) % 3, np.arange(N)[:, None] / 64
    far = {"levels": 1e8 * (steps - 1.0), "a column": 1e8 * line[:, 0]}
    beside = {"levels": rls.levels(steps), "a column": line}
    mesh = jax.make_mesh((1,), ("rows",))
    calls = [
        *(
            partial(rls.fit, KERNEL, X, Y[:, 1] + far[name], fixed_effects=beside[name], lams=LAMS)
            for name in far
        ),
        partial(rls.rows.shard, X, Y, mesh=mesh),
        partial(rls.two_sided.fit_kronecker, KERNEL, X[:6], KERNEL, X[6:9], Y[:6], lams=LAMS),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match=words):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="the labels are all equal")
        for name, effects in beside.items():
            for labels in (Y[:, 1] + 1e-5 * far[name], far[name]):
                rls.fit(KERNEL, X, labels, fixed_effects=effects, lams=[1.0])
        for labels in (np.full(N, 0.1), Y[:, 1], np.where(np.arange(N) == 0, 1.0, -1.0)):
            fit = rls.fit(KERNEL, X, labels, lams=LAMS[1:2], intercept=False)
            assert fit.predict(NEW).dtype == np.float32
        assert rls.fit(KERNEL, X, np.full(N, 0.1), lams=[1.0]).predict(NEW).dtype == np.float32


def test_columns_that_rounding_takes_are_warned_of():
    """In rows of devices alone, which are stored in the precision of JAX."""
    put = partial(rls.rows.shard, mesh=jax.make_mesh((1,), ("rows",)))
    with jax.enable_x64(False):
        with pytest.warns(
            UserWarning, match="float32, .* rounds 1 of 3 columns of X, number 2 by up to"
        ):
            put(WIDE + [0, 1, 1.7e9])
        put(np.c_[WIDE, np.full(N, 0.1), 2000.0 + np.arange(N)])
