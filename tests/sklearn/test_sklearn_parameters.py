"""What scikit-learn's users know, with its meaning: gamma, coef0 and degree, class weights, several
labels, an alpha for each target, and `partial_fit`, against fits to all rows at once.
"""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sklearn
from scipy.spatial.distance import pdist
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    StratifiedGroupKFold,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support import ANY_PRECISION, EDGE, assert_close, refused

import jaxrls as rls
from jaxrls.core.kernels.given import KERNELS
from jaxrls.sklearn import RLSClassifier, RLSRegressor

pytestmark = ANY_PRECISION  # estimators compute in float64 where the switch is off

TOLERANCE = 1e-8
RNG = np.random.default_rng(0)
N = 45
X = RNG.normal(size=(N, 5)) + 1
Y = np.stack([X[:, 0] ** 2, X[:, 1] - X[:, 2], np.sin(X[:, 3])], axis=1)
Y += 0.3 * RNG.normal(size=(N, 3))
V = RNG.uniform(0.3, 2, N)
NEW = RNG.normal(size=(9, 5)) + 1
NAMES = np.array(["red", "green", "blue"])[np.digitize(Y[:, 1], np.quantile(Y[:, 1], [0.15, 0.4]))]
CLASSES = np.unique(NAMES)
# Columns of 0 and 1, none the complement of the others.
LABELS = (np.diag(np.quantile(Y, [0.2, 0.5, 0.8], axis=0)) < Y).astype(int)


# kernels
# --------------------------------------------------------------------------------------------------


def kernel_ridge(X=X, **options):
    return KernelRidge(alpha=0.5, **options).fit(X, Y, sample_weight=V)


def regressor(X=X, **options):
    model = RLSRegressor(lams=0.5, fit_intercept=False, **options)
    return model.fit(X, Y, sample_weight=V)


@pytest.mark.parametrize(
    "kernel", ["rbf", *(pytest.param(k, marks=pytest.mark.slow) for k in ("laplacian", "poly"))]
)
def test_gamma_is_that_of_kernel_ridge(kernel):
    """A number, and its default there, which is "auto" here; with weights."""
    for theirs, ours in ((0.3, 0.3), (None, "auto"), (1 / (5 * X.var()), "scale")):
        theirs = kernel_ridge(kernel=kernel, gamma=theirs)
        ours = regressor(kernel=kernel, gamma=ours)
        assert_close(ours.dual_coef_, theirs.dual_coef_, TOLERANCE, "dual_coef_")
        assert_close(ours.predict(NEW), theirs.predict(NEW), TOLERANCE, "predict")
        assert not hasattr(ours, "coef_")


@pytest.mark.slow
def test_kernels_by_scikit_learns_names():
    """χ² of rows that are not negative, cosine, and a function of two matrices, as `SVC` takes
    one.
    """
    for kernel, options in (("chi2", {"gamma": 0.3}), ("cosine", {})):
        theirs = kernel_ridge(abs(X), kernel=kernel, **options)
        ours = regressor(abs(X), kernel=kernel, **options)
        assert_close(ours.predict(abs(NEW)), theirs.predict(abs(NEW)), TOLERANCE, kernel)
    refused((lambda: RLSRegressor("chi2", lams=0.5).fit(X, Y), "ChiSquared is for X ≥ 0"))
    theirs, ours = kernel_ridge(kernel="poly", degree=2, gamma=1.0), regressor(kernel=squared)
    assert_close(ours.predict(NEW), theirs.predict(NEW), TOLERANCE, "a function")


def squared(X, Z):
    return (X @ Z.T + 1) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(("degree", "coef0"), [(2, 0), (3, 2)])
def test_degree_and_coef0_are_those_of_kernel_ridge(degree, coef0):
    options = {"kernel": "polynomial", "degree": degree, "coef0": coef0, "gamma": 0.3}
    assert_close(regressor(**options).predict(NEW), kernel_ridge(**options).predict(NEW), TOLERANCE)
    del options["gamma"]  # which is 1 where none is given
    assert regressor(**options).kernel_ == rls.Polynomial(degree, float(coef0))


@pytest.mark.slow
def test_gamma_of_columns_without_spread_is_that_of_equal_ones():
    assert regressor(np.ones((N, 5)), gamma="scale").kernel_ == rls.Gaussian.from_gamma(0.2)
    small = regressor((X * 3e-23).astype(np.float32), gamma="scale").kernel_.width
    assert_close(small / 3e-23, rls.Gaussian.from_gamma(1 / (5 * X.var())).width, 1e-5)
    refused((lambda: regressor(X * 1e-170, gamma="scale"), "which gamma='scale' needs, underflows"))


def test_numbers_that_make_no_sense_are_refused():
    fit = lambda **options: lambda: RLSRegressor(**options).fit(X, Y)
    refused(
        (fit(gamma=-1.0), "'gamma' parameter .* Got -1.0"),
        (fit(gamma="median"), "'gamma' parameter .* Got 'median'"),
        (fit(gamma=1.0, width=2.0), "gamma takes the place of width .* leave one of them out"),
        (fit(gamma=1.0, kernel="matern32"), "in gaussian, .*poly, and kernel is 'matern32'"),
        (fit(coef0=-1, kernel="poly"), "'coef0' parameter .* Got -1"),
        (fit(lams="0.1"), "lams must be 'auto', 'search' or numbers, and is '0.1'"),
        (
            fit(lams=[[1.0, 2.0]]),
            r"lams must have shape \(L,\), or \(L, 3\) with those of each .* has shape \(1, 2\)",
        ),
    )


# λ for each target
# --------------------------------------------------------------------------------------------------


def test_a_given_lam_for_each_target_is_an_alpha_for_each():
    alphas = np.array([0.2, 1.0, 7.0])
    theirs = KernelRidge(alpha=alphas, kernel="rbf", gamma=0.3).fit(X, Y, sample_weight=V)
    options = {"gamma": 0.3, "fit_intercept": False}
    ours = RLSRegressor(lams=alphas[None], **options).fit(X, Y, sample_weight=V)
    assert ours.lam_.tolist() == alphas.tolist() and ours.loo_error_.shape == (3,)
    assert_close(ours.dual_coef_, theirs.dual_coef_, TOLERANCE, "dual_coef_")


# class weights
# --------------------------------------------------------------------------------------------------

UNEVEN = {"red": 3.0, "green": 0.5, "blue": 1.5}


@pytest.mark.parametrize(
    "names", [NAMES, np.where(NAMES == "red", "red", "green")], ids=["three classes", "two"]
)
def test_class_weights_are_those_of_ridge_classifier(names):
    for weight in ({name: UNEVEN[name] for name in set(names)}, "balanced"):
        theirs = RidgeClassifier(0.7, class_weight=weight).fit(X, names, sample_weight=V)
        ours = RLSClassifier("linear", lams=0.7, class_weight=weight)
        ours.fit(X, names, sample_weight=V)
        scores = ours.decision_function(NEW)
        assert_close(scores, theirs.decision_function(NEW), TOLERANCE, "scores")
        assert_close(ours.coef_, theirs.coef_.squeeze(), TOLERANCE, "coef_")
        assert ours.predict(NEW).tolist() == theirs.predict(NEW).tolist()


@pytest.mark.slow
def test_balanced_classes_do_not_count_rows_of_weight_0():
    """Or of a weight that counts as 0. A fit with such rows is the fit without, of one label or
    several, with probabilities and sets of labels too.
    """
    v, far = np.r_[V, np.zeros(13), np.full(6, 1e-20)], np.r_[X, X[:19] + 1]
    several = np.stack([NAMES == "red", X[:, 0] > 1], axis=1).astype(int)
    for labels in (NAMES, several):
        more = np.r_[labels, np.repeat(labels[:1], 19, axis=0)]
        options = {"lams": 0.7, "class_weight": "balanced", "probability": "sigmoid"}
        ours = RLSClassifier("linear", **options).fit(far, more, sample_weight=v)
        alone = RLSClassifier("linear", **options).fit(X, labels, sample_weight=V)
        for method in ("decision_function", "predict_proba"):
            found, want = (getattr(model, method)(NEW) for model in (ours, alone))
            assert_close(found, want, TOLERANCE, method)
        if labels.ndim == 1:
            assert (ours.predict_set(NEW) == alone.predict_set(NEW)).all()


def test_class_weights_take_part_in_the_choice_of_lam():
    lams, balanced = np.logspace(-2, 2, 9), {"class_weight": "balanced"}
    theirs = RidgeClassifierCV(lams, **balanced).fit(X, NAMES)
    ours = RLSClassifier("linear", lams=lams, **balanced).fit(X, NAMES)
    assert ours.lam_ == theirs.alpha_
    # Their mean is over rows, and ours over weights.
    weights = N / 3 / np.array([np.sum(name == NAMES) for name in NAMES])
    want = -theirs.best_score_ * N / weights.sum()
    assert_close(ours.loo_error_, want, TOLERANCE, "leave-one-out error")


@pytest.mark.slow
def test_class_weights_in_parts():
    """A dict is that of all rows; what depends on later rows is refused, and so is a class that
    is none.
    """
    model = in_parts(RLSClassifier("linear", lams=0.7, class_weight=UNEVEN), NAMES, CLASSES)
    whole = RidgeClassifier(0.7, class_weight=UNEVEN).fit(X, NAMES, V)
    assert_close(model.decision_function(NEW), whole.decision_function(NEW), TOLERANCE, "scores")
    none = "needs held-out scores, which partial_fit does not have"
    asked, balanced = (
        model.set_params(probability="sigmoid"),
        RLSClassifier(class_weight="balanced"),
    )
    refused(
        (lambda: asked.predict_set(NEW), f"predict_set {none}"),
        (lambda: asked.predict_proba(NEW), f"predict_proba {none}"),
        (
            lambda: balanced.partial_fit(X, NAMES, classes=CLASSES),
            "class_weight='balanced' depends on the rows of later calls",
        ),
        (lambda: RLSClassifier(class_weight="even").fit(X, NAMES), "class_weight"),
    )


# several labels
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "make"),
    [(None, np.asarray), ("balanced", scipy.sparse.csr_array), (None, lambda y: y.astype(bool))],
    ids=["numbers", "sparse", "booleans"],
)
def test_an_indicator_matrix_is_taken_as_ridge_classifier_takes_it(weight, make):
    for labels in (LABELS, LABELS[:, :2]):  # of which two are not two classes
        theirs = RidgeClassifier(0.7, class_weight=weight).fit(X, labels)
        ours = RLSClassifier("linear", lams=0.7, class_weight=weight).fit(X, make(labels))
        scores = ours.decision_function(NEW)
        assert_close(scores, theirs.decision_function(NEW), TOLERANCE, "scores")
        assert_close(ours.coef_, theirs.coef_, TOLERANCE, "coef_")
        assert ours.predict(NEW).tolist() == theirs.predict(NEW).tolist()
        assert ours.classes_.tolist() == theirs.classes_.tolist() and ours.multilabel_
        assert ours.score(X, labels) == theirs.score(X, labels)
    assert not ours.fit(X, NAMES).multilabel_ and ours.predict(NEW).shape == (9,)


@pytest.mark.slow
def test_several_labels_by_folds_and_in_parts():
    """Stratified there is none of several labels."""
    model = RLSClassifier("linear", lams=0.7, cv=4, random_state=0).fit(X, LABELS, V)
    assert model.path_.criterion == "kfold"
    parts = in_parts(RLSClassifier("linear", lams=0.7), LABELS)
    assert_close(parts.decision_function(NEW), model.decision_function(NEW), TOLERANCE, "scores")
    first = "y must be an indicator matrix as in the first call to partial_fit"
    refused((lambda: parts.partial_fit(X, NAMES), first))


def test_what_is_no_indicator_matrix_is_refused():
    fit = lambda labels, **options: lambda: RLSClassifier(**options).fit(X, labels)
    kind = "y must be labels .* or an indicator matrix .*, and is of type 'multiclass-multioutput'"
    refused(
        (fit(2 * LABELS - 1), "y as an indicator matrix must hold 0 and 1"),
        (fit(LABELS, loss="zero_one_loss"), "loss='zero_one_loss' compares columns"),
        (fit(np.c_[LABELS, [2] * N]), kind),
    )


# rows in parts
# --------------------------------------------------------------------------------------------------

PART = 15
PARTS = [np.s_[start : start + PART] for start in range(0, N, PART)]


def in_parts(model, target, *classes, parts=PARTS):
    """Fitted to one part after another."""
    for part in parts:
        assert model.partial_fit(X[part], target[part], *classes, sample_weight=V[part]) is model
    return model


@pytest.mark.parametrize(
    "target",
    [pytest.param(Y, id="(n, t)", marks=pytest.mark.slow), pytest.param(Y[:, 0], id="(n,)")],
)
def test_a_linear_regressor_is_that_of_all_rows(target):
    """λ by GCV over the grid of all rows."""
    model = in_parts(RLSRegressor("linear"), target)
    whole = RLSRegressor("linear", criterion="gcv").fit(X, target, sample_weight=V)
    for name in ("lam_", "coef_", "intercept_"):
        assert_close(getattr(model, name), getattr(whole, name), TOLERANCE, name)
    assert_close(model.predict(NEW), whole.predict(NEW), TOLERANCE)
    assert not hasattr(model, "loo_error_") and not hasattr(model, "loo_predictions_")


@pytest.mark.slow
def test_a_gaussian_regressor_keeps_kernel_and_landmarks_of_the_first_rows():
    model = in_parts(RLSRegressor(landmarks=12), Y)
    assert_close(model.kernel_.width, np.median(pdist(X[:PART])), TOLERANCE, "width")
    assert model.dual_coef_.shape == (12, 3)
    options = {"landmarks": model.path_.model.points, "lams": [model.lam_], "weights": V}
    whole = rls.fit(model.kernel_, X, Y, **options)
    assert_close(model.predict(NEW), whole.predict(NEW), 1e-7)
    by_default = in_parts(RLSRegressor(lams=1.0), Y, parts=PARTS[:1])
    assert by_default.dual_coef_.shape == (PART, 3)


@EDGE  # of rows of one class all are equally right
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(NAMES, id="three classes"),
        pytest.param(NAMES == "red", id="two", marks=pytest.mark.slow),
    ],
)
def test_a_classifier_names_its_classes_first(names):
    """In whatever order rows come: the first call sees a single class here."""
    parts = np.split(np.argsort(names, kind="stable"), N // PART)
    model = in_parts(RLSClassifier("linear"), names, np.unique(names), parts=parts)
    whole = RLSClassifier("linear", criterion="gcv").fit(X, names, sample_weight=V)
    assert model.classes_.tolist() == whole.classes_.tolist()
    assert_close(model.lam_, whole.lam_, TOLERANCE, "lam_")
    assert_close(model.decision_function(NEW), whole.decision_function(NEW), TOLERANCE)
    assert model.predict(NEW).tolist() == whole.predict(NEW).tolist()


def test_fit_begins_anew_and_after_fit_so_does_partial_fit_which_says_so():
    model = in_parts(RLSRegressor("linear"), Y, parts=PARTS[1:2]).fit(X, Y, V)
    assert model.loo_predictions_.shape == (N, 3)
    plain = RLSRegressor("linear").fit(X, Y, V)
    assert model.predict(NEW).tolist() == plain.predict(NEW).tolist()
    model = RLSClassifier("linear").fit(X, NAMES, V)
    with pytest.warns(UserWarning, match="fit is to all its rows at once: partial_fit begins anew"):
        in_parts(model, NAMES, parts=PARTS[:1])  # classes are known from fit
    plain = in_parts(RLSClassifier("linear"), NAMES, CLASSES, parts=PARTS[:1])
    assert model.decision_function(NEW).tolist() == plain.decision_function(NEW).tolist()


def test_there_is_none_beside_what_takes_rows():
    """So that `hasattr` says so, as scikit-learn's checks and pipelines ask."""
    assert hasattr(RLSRegressor(), "partial_fit")
    why = "partial_fit chooses λ by GCV, from moments alone: leave criterion=, loss=, cv="
    beside = {"cv": 5, "loss": "absolute_error", "scoring": "r2", "store_cv_results": True}
    for option in beside.items():
        assert not hasattr(RLSClassifier(**dict([option])), "partial_fit")
        with pytest.raises(AttributeError, match=why):
            RLSRegressor(**dict([option])).partial_fit(X, Y)
    assert not hasattr(RLSClassifier(), "predict_proba")
    with pytest.raises(AttributeError, match="predict_proba needs probability='sigmoid' or 'iso"):
        RLSClassifier("linear", lams=1.0).fit(X, NAMES).predict_proba(X)


@pytest.mark.slow
def test_a_median_width_for_each_column_and_columns_by_name():
    given = rls.fit(rls.Gaussian(["median"] * 5), X, Y, lams=[1.0])
    for width in (["median"] * 5, np.array(["median"] * 5), ("median",) * 5):
        found = RLSRegressor(width=width, lams=1.0).fit(X, Y)
        assert_close(found.kernel_.width, given.kernel.width, TOLERANCE, "widths")
    table = pd.DataFrame(X, columns=[*"abcde"])
    one, other = rls.Gaussian(1.0).on("b"), rls.Gaussian(1.0).on(1)
    named, numbered = RLSRegressor(one, lams=1.0).fit(table, Y), RLSRegressor(other, lams=1.0)
    assert_close(named.predict(table), numbered.fit(X, Y).predict(X), TOLERANCE, "by name")
    widths = pd.Series(np.arange(1.0, 6.0), index=[*"edcba"])
    days = pd.to_datetime([f"2020-01-0{i}" for i in range(1, 6)])
    dated, by_day = table.set_axis(days, axis=1), widths.set_axis(days[::-1])
    for named, given in ((table, widths), (dated, by_day)):
        found = RLSRegressor(width=given, lams=1.0).fit(named, Y)
        assert_close(found.kernel_.width, np.arange(5.0, 0.0, -1), TOLERANCE, "widths by name")
    refused(
        (lambda: RLSRegressor(width=widths).fit(table.add_suffix("2"), Y), "width lacks 5 of the"),
        (lambda: RLSRegressor(width=["median", 1.0]).fit(X, Y), "width must hold real numbers"),
        (lambda: RLSRegressor(one).fit(X, Y), "column 'b' goes by name"),
        (lambda: RLSRegressor(lambda x, z: x @ z).fit(X, Y), "FunctionKernel.fn failed: it takes"),
    )


def test_columns_whose_names_are_numbers_are_taken_by_name():
    """scikit-learn compares names of text alone, and refuses them in another order itself."""
    table = pd.DataFrame(X)
    turned = table[table.columns[::-1]]
    fitted = RLSRegressor("linear", lams=1.0).fit(table, Y)
    assert_close(fitted.predict(turned), fitted.predict(X), TOLERANCE, "new rows")
    added = RLSRegressor("linear", lams=1.0).partial_fit(table, Y).partial_fit(turned, Y)
    assert_close(added.coef_, fitted.fit(X, Y, np.full(N, 2.0)).coef_, TOLERANCE, "added")


def test_the_docstring_names_every_kernel():
    assert [name for name in KERNELS if f'"{name}"' not in RLSRegressor.__doc__] == []


@EDGE
@pytest.mark.slow
def test_groups_go_where_cv_splits_by_them():
    """Without being asked for; unless the estimator is told otherwise."""
    groups = np.arange(N) // 5
    want = RLSRegressor("linear", cv=GroupKFold(3)).fit(X, Y, groups=groups)
    with sklearn.config_context(enable_metadata_routing=True):
        for cv in (GroupKFold(3), LeaveOneGroupOut(), StratifiedGroupKFold(3)):
            asks = RLSClassifier("linear", cv=cv).get_metadata_routing()
            assert asks.fit.requests["groups"] is True
        model = make_pipeline(StandardScaler(), RLSRegressor("linear", cv=GroupKFold(3)))
        model.fit(X, Y, groups=groups)
        scaled = RLSRegressor("linear", cv=GroupKFold(3))
        scaled.fit(StandardScaler().fit_transform(X), Y, groups=groups)
        assert_close(model[-1].lam_, scaled.lam_, TOLERANCE, "in a pipeline")
        search = GridSearchCV(want, {"degree": [3]}, cv=GroupKFold(3)).fit(X, Y, groups=groups)
        assert_close(search.best_estimator_.lam_, want.lam_, TOLERANCE, "the same folds")
        for cv in (None, 5, KFold(5)):
            assert RLSRegressor(cv=cv).get_metadata_routing().fit.requests["groups"] is None
        told = RLSRegressor(cv=GroupKFold(3)).set_fit_request(groups=False)
        assert told.get_metadata_routing().fit.requests["groups"] is False


def test_callbacks_are_told():
    callback = pytest.importorskip("sklearn.callback")
    seen = []

    class Told:
        def setup(self, estimator, context):
            seen.append("setup")

        def on_fit_task_begin(self, estimator, context, *, X, metadata):
            seen.append(("begin", X is not None, metadata))

        def on_fit_task_end(self, estimator, context, *, fitted_estimator):
            seen.append(("end", fitted_estimator.predict(NEW).shape))

        def teardown(self, estimator, context):
            seen.append("teardown")

    for model, labels in ((RLSRegressor("linear"), Y), (RLSClassifier("linear"), NAMES)):
        seen.clear()
        assert model.set_callbacks(Told()).fit(X, labels, V) is model
        assert seen[0] == "setup" and seen[-1] == "teardown" and len(seen) == 4
        assert seen[1][:2] == ("begin", True) and (seen[1][2]["sample_weight"] == V).all()
        assert seen[2] == ("end", model.predict(NEW).shape)
        with pytest.raises(ValueError, match="inconsistent"):
            model.fit(X, labels[:-1])
        assert seen[-1] == "teardown"
    monitor = callback.ScoringMonitor(scoring="r2")
    RLSRegressor("linear").set_callbacks(monitor).fit(X, Y)


def test_parts_that_do_not_go_together():
    given, two = RLSRegressor("precomputed", lams=1.0), ["red", "blue"]
    add = lambda model, *given, v=V[:PART]: model.partial_fit(X[:PART], *given, sample_weight=v)
    classifier, names = lambda: RLSClassifier("linear"), NAMES[:PART]
    refused(
        (
            lambda: given.partial_fit(np.eye(4), Y[:4]).partial_fit(np.eye(4), Y[:4]),
            "a fit to a given kernel matrix cannot be updated",
        ),
        (
            lambda: add(add(RLSRegressor("linear"), Y[:PART]), Y[:PART, 0]),
            r"Y must have shape \(15, 3\)",
        ),
        (
            lambda: add(classifier(), names),
            "classes must be passed on the first call to partial_fit",
        ),
        (
            lambda: add(classifier(), names, two),
            r"among classes, \['blue', 'red'\], and one is .*'green'",
        ),
        (
            lambda: add(add(classifier(), names, CLASSES), names, two),
            "is not the same as on last call to partial_fit",
        ),
    )


def test_a_criterion_keeps_its_own_loss():
    """As `rls.fit` has it, and as `loss=` names it; the loss of `store_cv_results` too."""
    absolute = rls.extend.LeaveOneOut(rls.extend.absolute_error)
    target = Y[:, 0] if Y.ndim > 1 else Y
    target = target + 20 * (np.arange(len(target)) == 3)  # an outlier, which tells the losses apart
    want = rls.fit("gaussian", X, target, criterion=absolute)
    squared = rls.fit("gaussian", X, target)
    assert float(want.lam) != float(squared.lam)
    found = RLSRegressor(criterion=absolute, store_cv_results=True).fit(X, target)
    named = RLSRegressor(loss="absolute_error", store_cv_results=True).fit(X, target)
    assert found.lam_ == named.lam_ == float(want.lam)
    assert_close(found.cv_results_, named.cv_results_, TOLERANCE, "losses")
    both = RLSRegressor(criterion=absolute, loss="absolute_error").fit(X, target)
    assert both.lam_ == found.lam_
    why = "loss='zero_one_loss' and a criterion with a loss of its own, absolute_error, cannot"
    with pytest.raises(ValueError, match=why):
        RLSRegressor(criterion=absolute, loss="zero_one_loss").fit(X, target)


@pytest.mark.slow
def test_progress_is_that_of_fit_and_tune(capsys):
    for progress in (False, True):
        RLSRegressor(lams=1.0, progress=progress).fit(X, Y)
        assert ("fit" in capsys.readouterr().err) == progress
        RLSRegressor(tune=True, lams=1.0, progress=progress).fit(X, Y)
        assert ("tune" in capsys.readouterr().err) == progress
