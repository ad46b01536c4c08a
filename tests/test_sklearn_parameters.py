"""Parameters that scikit-learn's users know, with its meaning: gamma, coef0 and degree, class
weights, several labels, an alpha for each target.
"""

import numpy as np
import pytest
import scipy.sparse
from support import assert_close

import jaxrls as rls

pytest.importorskip(
    "sklearn", reason="scikit-learn is not installed: pip install 'jaxrls[sklearn]'"
)

from sklearn.kernel_ridge import KernelRidge  # noqa: E402
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV  # noqa: E402

from jaxrls.sklearn import RLSClassifier, RLSRegressor  # noqa: E402

pytestmark = pytest.mark.any_precision  # estimators compute in float64 where the switch is off

TOLERANCE = 1e-8
RNG = np.random.default_rng(0)
N = 40
X = RNG.normal(size=(N, 5)) + 1
Y = np.stack([X[:, 0] ** 2, X[:, 1] - X[:, 2], np.sin(X[:, 3])], axis=1) + 0.3 * RNG.normal(
    size=(N, 3)
)
V = RNG.uniform(0.3, 2, N)
NEW = RNG.normal(size=(9, 5)) + 1
NAMES = np.array(["red", "green", "blue"])[np.digitize(Y[:, 1], np.quantile(Y[:, 1], [0.15, 0.4]))]
LABELS = (np.diag(np.quantile(Y, [0.2, 0.5, 0.8], axis=0)) < Y).astype(
    int
)  # columns of 0 and 1, none the complement of the others


# kernels
# ---------------------------------------------------------------------------------------------------------------------------


def kernel_ridge(weights=None, **options):
    return KernelRidge(alpha=0.5, **options).fit(X, Y, sample_weight=weights)


def regressor(weights=None, **options):
    model = RLSRegressor(lams=0.5, fit_intercept=False, **options)
    return model.fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "poly"])
def test_gamma_is_that_of_kernel_ridge(kernel):
    """A number, and its default there, which is "auto" here; with weights."""
    for theirs, ours in ((0.3, 0.3), (None, "auto"), (1 / (5 * X.var()), "scale")):
        theirs = kernel_ridge(V, kernel=kernel, gamma=theirs)
        ours = regressor(V, kernel=kernel, gamma=ours)
        assert_close(ours.dual_coef_, theirs.dual_coef_, TOLERANCE, "dual_coef_")
        assert_close(ours.predict(NEW), theirs.predict(NEW), TOLERANCE, "predict")
        assert not hasattr(ours, "coef_")


def test_kernels_by_scikit_learns_names():
    """χ² of rows that are not negative, cosine, and a function of two matrices, as `SVC` takes
    one.
    """
    for kernel, options in (("chi2", {"gamma": 0.3}), ("cosine", {})):
        theirs = KernelRidge(alpha=0.5, kernel=kernel, **options).fit(abs(X), Y)
        ours = RLSRegressor(kernel, lams=0.5, fit_intercept=False, **options).fit(abs(X), Y)
        assert_close(ours.predict(abs(NEW)), theirs.predict(abs(NEW)), TOLERANCE, kernel)
    with pytest.raises(ValueError, match="ChiSquared is for X ≥ 0"):
        RLSRegressor("chi2", lams=0.5).fit(X, Y)
    theirs, ours = kernel_ridge(kernel="poly", degree=2, gamma=1.0), regressor(kernel=squared)
    assert_close(ours.predict(NEW), theirs.predict(NEW), TOLERANCE, "a function")


def squared(X, Z):
    return (X @ Z.T + 1) ** 2


@pytest.mark.parametrize(("degree", "coef0"), [(2, 0), (3, 2.5)])
def test_degree_and_coef0_are_those_of_kernel_ridge(degree, coef0):
    options = {"kernel": "polynomial", "degree": degree, "coef0": coef0, "gamma": 0.3}
    assert_close(regressor(**options).predict(NEW), kernel_ridge(**options).predict(NEW), TOLERANCE)
    del options["gamma"]  # which is 1 where none is given
    assert regressor(**options).kernel_ == rls.Polynomial(degree, float(coef0))


def test_gamma_of_columns_without_spread_is_that_of_equal_ones():
    assert RLSRegressor(gamma="scale", lams=1.0).fit(
        np.ones((4, 5)), Y[:4]
    ).kernel_ == rls.Gaussian.from_gamma(0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": -1.0}, "'gamma' parameter .* Got -1.0"),
        ({"gamma": "median"}, "'gamma' parameter .* Got 'median'"),
        ({"gamma": 1.0, "width": 2.0}, "gamma takes the place of width .* leave one of them out"),
        ({"gamma": 1.0, "kernel": "matern32"}, "in gaussian, .*poly, and kernel is 'matern32'"),
        ({"coef0": -1, "kernel": "poly"}, "'coef0' parameter .* Got -1"),
        ({"lams": ["0.1", "1"]}, "lams must hold real numbers"),
        ({"lams": "0.1"}, "lams must be how many λ, .* or 'search', and is '0.1'"),
        (
            {"lams": [[1.0, 2.0]]},
            r"lams must have shape \(L,\), or \(L, 3\) with those of each target, and has shape \(1, 2\)",
        ),
    ],
    ids=lambda value: (
        None if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items())[:40]
    ),
)
def test_numbers_that_make_no_sense_are_refused(options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        RLSRegressor(**options).fit(X, Y)


# λ for each target
# -----------------------------------------------------------------------------------------------------------------


def test_a_given_lam_for_each_target_is_an_alpha_for_each():
    alphas = np.array([0.2, 1.0, 7.0])
    theirs = KernelRidge(alpha=alphas, kernel="rbf", gamma=0.3).fit(X, Y, sample_weight=V)
    options = {"gamma": 0.3, "fit_intercept": False}
    ours = RLSRegressor(lams=alphas[None], **options).fit(X, Y, sample_weight=V)
    assert ours.lam_.tolist() == alphas.tolist() and ours.loo_error_.shape == (3,)
    assert_close(ours.dual_coef_, theirs.dual_coef_, TOLERANCE, "dual_coef_")
    for t, a in enumerate(alphas):
        one = RLSRegressor(lams=a, **options).fit(X, Y[:, t], sample_weight=V)
        assert_close(ours.loo_error_[t], one.loo_error_, TOLERANCE, "leave-one-out error")
        assert_close(ours.loo_predictions_[:, t], one.loo_predictions_, TOLERANCE, "held out")


def test_lams_of_each_target_stay_when_rows_come():
    grids = np.logspace([-2, -2, 0], [1, 1, 3], 6)
    options = {"lams": grids, "criterion": rls.gcv}
    part = rls.fit(rls.Linear(), X[:30], Y[:30], **options, keep=True).update(X[30:], Y[30:])
    whole = rls.fit(rls.Linear(), X, Y, **options)
    assert_close(part.lam, whole.lam, 1e-15, "λ")
    assert_close(part.model.coef, whole.model.coef, TOLERANCE, "coef")


# class weights
# ---------------------------------------------------------------------------------------------------------------------

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


def test_class_weights_take_part_in_the_choice_of_lam():
    theirs = RidgeClassifierCV(np.logspace(-2, 2, 9), class_weight="balanced").fit(X, NAMES)
    ours = RLSClassifier("linear", lams=np.logspace(-2, 2, 9), class_weight="balanced").fit(
        X, NAMES
    )
    assert ours.lam_ == theirs.alpha_
    assert_close(
        ours.loo_error_,
        -theirs.best_score_ * N / V_OF_CLASSES.sum(),
        TOLERANCE,
        "their mean is over rows, ours over weights",
    )


V_OF_CLASSES = N / 3 / np.array([np.sum(name == NAMES) for name in NAMES])


def test_class_weights_in_parts():
    """A dict is that of all rows; what depends on later rows is refused, and so is a class that
    is none.
    """
    model = RLSClassifier("linear", lams=0.7, class_weight=UNEVEN)
    for part in (np.s_[:25], np.s_[25:]):
        model.partial_fit(X[part], NAMES[part], classes=np.unique(NAMES))
    whole = RidgeClassifier(0.7, class_weight=UNEVEN).fit(X, NAMES)
    assert_close(model.decision_function(NEW), whole.decision_function(NEW), TOLERANCE, "scores")
    none = "needs held-out scores, which partial_fit does not have"
    for ask in ("predict_set", "predict_proba"):
        with pytest.raises(ValueError, match=f"{ask} {none}"):
            getattr(model.set_params(probability="sigmoid"), ask)(NEW)
    with pytest.raises(
        ValueError, match="class_weight='balanced' depends on the rows of later calls"
    ):
        RLSClassifier(class_weight="balanced").partial_fit(X, NAMES, classes=np.unique(NAMES))
    with pytest.raises(ValueError, match="class_weight"):
        RLSClassifier(class_weight="even").fit(X, NAMES)


# several labels
# --------------------------------------------------------------------------------------------------------------------


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


def test_several_labels_by_folds_and_in_parts():
    shuffled = RLSClassifier("linear", lams=0.7, cv=4, random_state=0).fit(
        X, LABELS
    )  # stratified there is none of several labels
    assert shuffled.path_.criterion == "kfold"
    model = RLSClassifier("linear", lams=0.7)
    for part in (np.s_[:25], np.s_[25:]):
        model.partial_fit(X[part], LABELS[part])
    assert_close(model.decision_function(NEW), shuffled.decision_function(NEW), TOLERANCE, "scores")
    with pytest.raises(
        ValueError, match="y must be an indicator matrix as in the first call to partial_fit"
    ):
        model.partial_fit(X, NAMES)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (2 * LABELS - 1, {}, "y as an indicator matrix must hold 0 and 1"),
        (LABELS, {"loss": "zero_one_loss"}, "loss='zero_one_loss' compares columns"),
        (
            np.c_[LABELS, [2] * N],
            {},
            "y must be labels .* or an indicator matrix .*, and is of type 'multiclass-multioutput'",
        ),
    ],
    ids=["-1", "error rate", "several classes"],
)
def test_what_is_no_indicator_matrix_is_refused(labels, options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        RLSClassifier(**options).fit(X, labels)
