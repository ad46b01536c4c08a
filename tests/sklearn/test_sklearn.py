"""The scikit-learn door: its own checks of every estimator, parity with its ridge estimators, and
life among its tools.
"""

import functools
import importlib.util
import pickle
import sys

import numpy as np
import pandas
import pytest
import scipy.sparse
import sklearn
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.metrics import pairwise_distances, r2_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneOut,
    PredefinedSplit,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_predict,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from support import ANY_PRECISION, EDGE, assert_close, refused

import jaxrls as rls
from jaxrls.core.kernels.given import KERNELS, RADIAL
from jaxrls.sklearn import RLSClassifier, RLSRegressor

TOLERANCE = 1e-9
ALPHAS = np.logspace(-2, 3, 11)
# Those without ANY_PRECISION show that estimators compute in float64 where the switch is off, as
# users have it.


RNG, N = np.random.default_rng(0), 40
X = RNG.normal(size=(N, 6)) + 1
Y = X @ RNG.normal(size=(6, 3)) + RNG.normal(size=(N, 3)) * [0.3, 3, 10] + 3
V, NEW = RNG.uniform(0.3, 2, N), RNG.normal(size=(9, 6)) + 1
y, GROUPS = Y[:, 0], np.arange(N) // 8
NAMES = np.array(["red", "green", "blue"])[np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))]
CLASSES = pytest.mark.parametrize("names", [NAMES, NAMES == "red"], ids=["three classes", "two"])


# scikit-learn's checks
# --------------------------------------------------------------------------------------------------


# Their data are noise and blobs: the chosen λ may well be at the edge of its grid. And they skip
# the array API with a warning.
@ANY_PRECISION
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([RLSRegressor(), RLSClassifier("linear")])
def test_estimator_checks(estimator, check):
    check(estimator)


# parity
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("intercept", "weights", "targets"), [(False, None, y), (True, V, Y), (True, None, Y[:, :1])]
)
def test_ridge_cv(intercept, weights, targets):
    theirs = RidgeCV(ALPHAS, fit_intercept=intercept).fit(X, targets, sample_weight=weights)
    ours = RLSRegressor("linear", lams=ALPHAS, fit_intercept=intercept)
    ours.fit(X, targets, sample_weight=weights)
    assert ours.lam_ == theirs.alpha_
    assert ours.predict(NEW).shape == (9, *targets.shape[1:])  # theirs drops the axis of (n, 1)
    assert_close(ours.predict(NEW).squeeze(), theirs.predict(NEW), TOLERANCE, "predict")
    assert_close(ours.coef_.squeeze(), theirs.coef_, TOLERANCE, "coef_")
    level = np.broadcast_to(theirs.intercept_, targets.shape[1:])
    assert_close(ours.intercept_, level, TOLERANCE, "intercept_")
    assert_close(ours.score(X, targets), theirs.score(X, targets), TOLERANCE, "R²")
    assert not hasattr(ours, "dual_coef_")


# what fit leaves
# --------------------------------------------------------------------------------------------------

ELSEWHERE = "precomputed", "linear", "cosine", "polynomial"


@ANY_PRECISION
@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(k, marks=[] if k == "gaussian" else pytest.mark.slow)
        for k in KERNELS
        if k not in ELSEWHERE
    ],
)
def test_every_kernel_by_name(kernel):
    """Whose width is the median distance."""
    inputs = abs(X) if kernel == "chi2" else X
    model = RLSRegressor(kernel, degree=2, lams=1.0).fit(inputs, y)
    assert np.isfinite(model.predict(inputs)).all()
    if kernel in RADIAL:
        metric = "cityblock" if kernel in ("laplacian", "chi2") else "euclidean"
        assert_close(model.kernel_.width, np.median(pdist(inputs, metric)), TOLERANCE, "width")


@pytest.mark.slow
def test_a_kernel_object_and_a_width_for_each_column():
    widths = [2.0, 3.0, 4.0, 2.0, 3.0, 4.0]
    kernel = rls.Gaussian(np.array(widths))
    by_name, by_object = RLSRegressor(width=widths).fit(X, y), RLSRegressor(kernel).fit(X, y)
    assert by_name.predict(NEW).tolist() == by_object.predict(NEW).tolist()
    assert by_object.kernel_.width.tolist() == widths
    model = by_name.set_params(
        kernel="linear", width="median", lams=ALPHAS, fit_intercept=False
    ).fit(X, y)
    assert not hasattr(model, "dual_coef_") and model.coef_.shape == (6,)


@ANY_PRECISION
@pytest.mark.slow
def test_tune():
    """Never worse than its start, by what it is tuned for; one width for each column finds the
    column that matters.
    """
    target = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=40)
    start = RLSRegressor(width=np.ones(6)).fit(X, target)
    tuned = RLSRegressor(width=np.ones(6), tune=True).fit(X, target)
    held = RLSRegressor(width=np.ones(6), tune=True, lams=0.5).fit(X, target)
    of_lam = rls.tune(rls.Gaussian(np.ones(6)), X, target, lams=0.5)
    assert held.lam_ == 0.5 and np.array_equal(held.kernel_.width, of_lam.kernel.width)
    assert tuned.loo_error_ < 0.5 * start.loo_error_
    assert np.argmin(tuned.kernel_.width) == 0
    at_floor = RLSRegressor(width=np.ones(6), tune=True, lams=0.0).fit(X, target)
    assert at_floor.lam_ > 0
    assert np.array_equal(at_floor.kernel_.width, tuned.kernel_.width)


@CLASSES
@pytest.mark.slow
def test_lam_by_the_error_rate(names):
    def rate(model):
        held = model.fit(X, names).loo_predictions_
        chosen = (held > 0).astype(int) if held.ndim == 1 else held.argmax(1)
        return np.mean(model.classes_[chosen] != names)

    model = RLSClassifier(loss="zero_one_loss")
    assert_close(rate(model), model.loo_error_, TOLERANCE, "error rate")
    assert model.loo_error_ <= rate(RLSClassifier()) + TOLERANCE


def test_dtype_in_is_dtype_out():
    model = RLSRegressor()
    for dtype in (np.float32, np.float64):
        model.fit(X.astype(dtype), y.astype(dtype))
        arrays = (
            model.predict(NEW.astype(dtype)),
            model.lam_,
            model.intercept_,
            model.loo_error_,
            model.loo_predictions_,
            model.path_.errors,
            model.path_.model.coef,
        )
        assert all(isinstance(a, np.ndarray | np.generic) and a.dtype == dtype for a in arrays)
    assert model.fit(np.round(X).astype(int), y).loo_predictions_.dtype == np.float64


# choosing λ
# --------------------------------------------------------------------------------------------------


def fitted(groups=None, **options):
    return RLSRegressor(**options).fit(X, y, sample_weight=V, groups=groups)


@ANY_PRECISION
def test_cv_and_groups_are_folds():
    five = fitted(criterion="kfold").path_.errors
    by_groups = {"groups": GROUPS}, {"groups": GROUPS, "cv": GroupKFold(5)}
    for options in ({"cv": 5}, {"cv": KFold(5)}, *by_groups):
        assert_close(fitted(**options).path_.errors, five, TOLERANCE, "five folds")


@ANY_PRECISION
@pytest.mark.slow
def test_criteria():
    """Every row on its own is leave-one-out; `loo_error_` is of what is left out."""
    by_row = fitted().path_.errors
    for options in ({"cv": list(LeaveOneOut().split(X))}, {"groups": np.arange(40)}):
        assert_close(fitted(**options).path_.errors, by_row, 1e-8, "leave-one-out as folds")
    model, absolute = fitted(criterion="gcv"), fitted(loss="absolute_error", cv=5)
    assert model.path_.criterion == "gcv"
    for each, power in ((model, 2), (absolute, 1)):
        losses = abs(y - each.loo_predictions_) ** power
        assert_close(each.loo_error_, np.average(losses, weights=V), TOLERANCE, "loo_error_")


GAP = TimeSeriesSplit(4, gap=3)
DRAWN = [(RNG.permutation(train)[:20], test) for train, test in KFold(4).split(X)]
SPLITS = {
    "a gap before the test": GAP,
    "drawn training rows": DRAWN,
    "a part that is fixed": PredefinedSplit(np.where(np.arange(N) < 25, -1, np.arange(N) % 2)),
    "masks": [(np.arange(N) > 9, np.arange(N) < 7)],
    "an iterator": None,
}


@EDGE
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n.startswith("a gap") else pytest.mark.slow) for n in SPLITS],
)
def test_splits_are_those_of_scikit_learn(name):
    """Errors, scores and predictions are those of fits to the training rows alone."""
    cv = SPLITS[name] or iter([*GAP.split(X)])
    options = {"lams": ALPHAS, "cv": cv}
    ours = RLSRegressor("linear", **options, per_target=True).fit(X, Y, sample_weight=V)
    splits = list(cv.split(X)) if hasattr(cv, "split") else list(GAP.split(X))
    splits = cv if isinstance(cv, list) else splits
    held = np.full((len(ALPHAS), *Y.shape), np.nan)
    for i, alpha in enumerate(ALPHAS):
        for train, test in splits:
            fit = Ridge(alpha).fit(X[train], Y[train], V[train])
            held[i, test] = fit.predict(X[test])
    known = np.isfinite(held[0, :, 0])
    errors = [np.average((Y - f)[known] ** 2, axis=0, weights=V[known]) for f in held]
    assert_close(ours.path_.errors, np.array(errors), TOLERANCE, "errors")
    best = held[np.argmin(errors, axis=0), :, range(3)].T
    assert_close(ours.loo_predictions_[known], best[known], TOLERANCE, "predictions")
    assert np.isnan(ours.loo_predictions_[~known]).all()
    score = r2_score(Y[known], best[known], sample_weight=V[known])
    assert_close(ours.path_.r2, score, TOLERANCE, "r2")


@EDGE
@pytest.mark.slow
def test_scores_and_probabilities_are_those_of_splits():
    """Of fits to the training rows alone, as of what is held out."""
    scored = RLSRegressor("linear", lams=ALPHAS, cv=GAP, scoring="r2", by_fold=True).fit(X, y)
    search = GridSearchCV(Ridge(), {"alpha": ALPHAS}, cv=GAP, scoring="r2").fit(X, y)
    assert_close(-scored.path_.errors, search.cv_results_["mean_test_score"], TOLERANCE, "scores")
    assert np.isfinite(scored.loo_error_)
    model = RLSClassifier("linear", cv=GAP, probability="sigmoid").fit(X, NAMES, V)
    codes = rls.classes.encode(NAMES)[0][8:]
    sigmoid = rls.classes.fit_sigmoid(model.loo_predictions_[8:], codes, V[8:])
    scores = model.decision_function(NEW)
    assert_close(model.calibration_(scores), sigmoid(scores), TOLERANCE, "of rows that are tested")
    assert model.predict_set(NEW, method="jackknife").any()
    words = "intervals and predictive distributions need groups of rows, .* fewer training rows"
    refused((lambda: scored.predict_interval(NEW), words))


@ANY_PRECISION
@pytest.mark.slow
def test_folds_are_those_of_scikit_learn():
    """The k-fold error is that of its own splits and refits; labels are stratified, and
    random_state shuffles.
    """
    folds = KFold(5, shuffle=True, random_state=7)
    model = RLSRegressor(cv=5, random_state=7, width=3.0).fit(X, y)
    left_out = cross_val_predict(RLSRegressor(width=3.0, lams=model.lam_), X, y, cv=folds)
    assert_close(model.loo_error_, np.mean((left_out - y) ** 2), 1e-8, "shuffled")
    own, theirs = (
        RLSClassifier(**by).fit(X, NAMES == "red").path_.errors
        for by in ({"criterion": "kfold"}, {"cv": StratifiedKFold(5)})
    )
    assert_close(own, theirs, TOLERANCE, "stratified")


@pytest.mark.slow
def test_fixed_effects_are_those_of_fit():
    levels = rls.levels(GROUPS)
    model = RLSRegressor("linear", lams=1.0).fit(X, y, V, fixed_effects=levels)
    direct = rls.fit(rls.Linear(), X, y, weights=V, lams=[1.0], fixed_effects=levels)
    ours, theirs = (each.predict(X, fixed_effects=GROUPS) for each in (model, direct))
    assert_close(ours, theirs, TOLERANCE)
    ours, theirs = (each.score(X, y, V, fixed_effects=GROUPS) for each in (model, direct))
    assert_close(ours, theirs, TOLERANCE)
    refused((lambda: model.score(X, y), "labels, which have fixed effects: give fixed_effects="))


@pytest.mark.slow
def test_an_integer_weight_is_that_many_rows():
    """Width, λ and predictions; 0 is a row that was never there."""
    counts = np.random.default_rng(0).integers(0, 4, N)
    rows = np.arange(N).repeat(counts)
    weighted = RLSRegressor().fit(X, y, sample_weight=counts)
    repeated = RLSRegressor().fit(X[rows], y[rows], groups=rows)
    assert weighted.kernel_.width == repeated.kernel_.width
    assert_close(weighted.lam_, repeated.lam_, 1e-8, "lam_")
    assert_close(weighted.predict(NEW), repeated.predict(NEW), 1e-7, "predict")


@CLASSES
@pytest.mark.slow
def test_rows_of_weight_0_may_take_a_class_with_them(names):
    """All but one of them here."""
    with pytest.warns(UserWarning, match="the labels are all equal"):
        model = RLSClassifier().fit(X, names, sample_weight=1.0 * (names == names[0]))
    assert (model.predict(NEW) == names[0]).all()


# among scikit-learn's tools
# --------------------------------------------------------------------------------------------------


@ANY_PRECISION
@pytest.mark.parametrize(("estimator", "target"), [(RLSRegressor, y), (RLSClassifier, y > 3)])
def test_pipelines_searches_and_pickles(estimator, target):
    model = make_pipeline(StandardScaler(), estimator())
    assert cross_val_score(model, X, target, cv=2).min() > 0.3
    step = estimator.__name__.lower()
    grid = {f"{step}__kernel": ["linear", rls.Gaussian(2.0)], f"{step}__lams": [0.1, "auto"]}
    search = GridSearchCV(model, grid, cv=2).fit(X, target)
    assert search.best_score_ >= cross_val_score(model, X, target, cv=2).mean() - 0.1
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert again.predict(NEW).tolist() == search.predict(NEW).tolist()
    cloned = clone(model.fit(X, target)).fit(X, target)
    assert cloned.predict(NEW).tolist() == model.predict(NEW).tolist()
    assert "RLS" in repr(model) and model._repr_html_()


@ANY_PRECISION
def test_pandas():
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    model = RLSRegressor().fit(frame, pandas.Series(y), sample_weight=pandas.Series(V))
    plain = RLSRegressor().fit(X, y, sample_weight=V)
    assert len(plain.path_.lams) == 100
    assert model.feature_names_in_.tolist() == list("abcdef")
    assert model.predict(frame).tolist() == plain.predict(X).tolist()
    other = frame[list("fedcba")]
    refused((lambda: model.predict(other), "feature names should match"))
    labels = RLSClassifier().fit(frame, pandas.Series(NAMES, dtype="category"))
    assert labels.predict(frame).tolist() == RLSClassifier().fit(X, NAMES).predict(X).tolist()
    with sklearn.config_context(transform_output="pandas"):
        piped = make_pipeline(StandardScaler(), RLSRegressor()).fit(frame, y)
        assert piped.predict(frame).shape == (40,)


@ANY_PRECISION
@EDGE
@pytest.mark.slow
def test_points_and_held_out_rows_in_frames_go_by_the_names_of_x():
    """Although the fit gets arrays."""
    frame = pandas.DataFrame(X, columns=[*"abcdef"])
    turned = frame[[*"fedcba"]]
    held = frame.index[:9]
    for given in (
        lambda rows: {"landmarks": rows.iloc[:12]},
        lambda rows: {"criterion": rls.holdout(rows.loc[held], y[:9])},
    ):
        found, want = (RLSRegressor(lams=[0.1, 1.0], **given(rows)) for rows in (turned, frame))
        assert_close(found.fit(frame, y).path_.errors, want.fit(frame, y).path_.errors, 0)


PATHS = {
    "regressor": lambda frame, codes: (RLSRegressor("linear").fit(frame, y), y),
    "scorer": lambda frame, codes: (RLSRegressor("linear", scoring="r2").fit(frame, y), y),
    "classifier": lambda frame, codes: (RLSClassifier("linear").fit(frame, codes), codes),
    "parts": lambda frame, codes: (
        RLSRegressor("linear").partial_fit(frame[:30], y[:30]).partial_fit(frame[30:], y[30:]),
        y,
    ),
}


@ANY_PRECISION
@pytest.mark.slow
@pytest.mark.parametrize("made", PATHS)
def test_path_takes_columns_by_name(made):
    """What scikit-learn read as an array was a data frame: `path_` knows its columns, strings or
    numbers, as a fit to the frame does, and after rows were added and removed.
    """
    for names in ("abcdef", [10, 11, 12, 13, 14, 15]):
        frame = pandas.DataFrame(X, columns=[*names])
        other = frame[[*names][::-1]]
        codes = np.where(y > np.median(y), 1.0, -1.0)
        model, labels = PATHS[made](frame, codes)
        path = model.path_
        assert path.model.names == (*names,)
        for ours in (path, path.update(other[:3], labels[:3]), path.forget(other[:3], labels[:3])):
            assert_close(ours.predict(other), ours.predict(X), 1e-12)
        added = path.update(X[:3], labels[:3]).predict(X)
        assert_close(path.update(other[:3], labels[:3]).predict(X), added, 1e-12)
        lacking = functools.partial(path.predict, frame.iloc[:, :5])
        refused((lacking, "X lacks 1 of the 6 columns"))


@ANY_PRECISION
def test_precomputed():
    """Splits of scikit-learn cut rows and columns of K alike."""
    K = np.exp(-0.1 * pairwise_distances(X, metric="sqeuclidean"))
    direct = RLSRegressor(rls.Gaussian.from_gamma(0.1)).fit(X, y)
    scores = cross_val_score(direct, X, y, cv=2)
    for kernel in ("precomputed", rls.Precomputed()):
        given = RLSRegressor(kernel).fit(K, y)
        assert_close(given.predict(K[:5]), direct.predict(X[:5]), 1e-8, "predict")
        assert_close(given.dual_coef_, direct.dual_coef_, 1e-6, "dual_coef_")
    assert_close(cross_val_score(given, K, y, cv=2), scores, 1e-6, "scores")


@ANY_PRECISION
def test_weights_and_groups_are_routed():
    with sklearn.config_context(enable_metadata_routing=True):
        model = RLSRegressor().set_fit_request(sample_weight=True, groups=True)
        routed = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model)
        routed.fit(X, y, sample_weight=V, groups=GROUPS)
    direct = RLSRegressor().fit(StandardScaler().fit_transform(X), y, V, GROUPS)
    assert routed[-1].path_.errors.tolist() == direct.path_.errors.tolist()
    assert direct.path_.criterion == "kfold"


# what it says
# --------------------------------------------------------------------------------------------------


def test_a_lam_at_the_edge_of_its_grid_warns():
    words = r"the chosen λ, 1e\+03, is the smallest of the grid: pass lams= that reach smaller"
    with pytest.warns(UserWarning, match=words):
        RLSRegressor("linear", lams=1e5 * ALPHAS, fit_intercept=False).fit(X, y)


@ANY_PRECISION
def test_bad_parameters_and_data():
    fit = lambda **options: lambda: RLSRegressor(**options).fit(X, y)
    given = lambda *data, **named: lambda: RLSRegressor().fit(*data, **named)
    repeated, half = RepeatedKFold(n_splits=2, n_repeats=2), np.arange(20)
    refused(
        (fit(kernel="cubic"), "'kernel' parameter of RLSRegressor must be .* Got 'cubic'"),
        (fit(kernel=rls.Gaussian), "kernel must be an object, and is the class Gaussian"),
        (fit(kernel="poly", degree=1.5), "'degree' parameter .* Got 1.5"),
        (fit(width="mean"), "'width' parameter .* Got 'mean'"),
        (fit(fit_intercept="no"), "'fit_intercept' parameter .* Got 'no'"),
        (fit(criterion="aic"), "'criterion' parameter .* Got 'aic'"),
        (fit(loss="hinge"), "'loss' parameter .* Got 'hinge'"),
        (fit(loss="absolute_error", criterion="gcv"), "cv= and loss= are for criterion='loo'"),
        (fit(cv=5, criterion="gcv"), "cv= and loss= are for .*, and it is 'gcv'"),
        (fit(cv=repeated), "row 0 is in the test part of 2 splits, and a row is predicted once"),
        (fit(cv=ShuffleSplit(9, test_size=10)), "is in the test part of . splits"),
        (fit(cv=[(half, half)]), "split 0 names row 0 more than once: no row can be in both"),
        (fit(cv=[(half, half + 25)]), "row numbers must be rows of X, 0 to 39, and include 44"),
        (given(X, y, sample_weight=-V), "Negative values in data passed to `sample_weight`"),
        (
            lambda: RLSClassifier().fit(X, np.zeros(N)),
            "labels must hold at least two classes, and hold only 0.0",
        ),
    )


@ANY_PRECISION
@pytest.mark.slow
def test_sparse_input_for_other_kernels():
    """As dense rows, width and γ from those that weigh; a kernel matrix must be dense."""
    dense, weights = np.where(np.abs(X - 1) > 0.7, X, 0), V * (V > 0.6)
    counted = dense[weights > 0]
    widths = np.median(pdist(counted)), np.sqrt(3 * counted.var())
    thin, square = scipy.sparse.csr_array(dense), scipy.sparse.csr_array(X @ X.T)
    for gamma, width in zip((None, "scale"), widths, strict=True):
        ours, theirs = (
            RLSRegressor(lams=1.0, gamma=gamma).fit(given, y, weights) for given in (thin, dense)
        )
        assert_close(ours.kernel_.width, width, TOLERANCE, "width")
        assert_close(ours.predict(thin), theirs.predict(dense), TOLERANCE, "predict")
    words = "Sparse data was passed for X, but dense data is required"
    refused((lambda: RLSRegressor("precomputed").fit(square, y), words), error=TypeError)


def test_without_scikit_learn():
    """The import says what to install."""
    spec = importlib.util.find_spec("jaxrls.sklearn")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
            patch.setitem(sys.modules, name, None)
        load = lambda: spec.loader.exec_module(importlib.util.module_from_spec(spec))
        refused((load, r"pip install 'jaxrls\[sklearn\]'"), error=ImportError)


@pytest.mark.slow
def test_predict_interval_is_that_of_the_fit():
    model = RLSRegressor(lams=1.0).fit(X, y)
    want = rls.fit(model.kernel_, X, y, lams=[1.0]).intervals(NEW, 0.8)
    assert_close(np.stack(model.predict_interval(NEW, 0.8)), np.stack(want), 1e-8)
