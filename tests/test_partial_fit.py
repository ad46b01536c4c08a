"""Estimators that take rows in parts: scikit-learn's meaning of `partial_fit`, against fits to all
rows at once.
"""

import numpy as np
import pytest
from support import assert_close

import jaxrls as rls

pytest.importorskip(
    "sklearn", reason="scikit-learn is not installed: pip install 'jaxrls[sklearn]'"
)

from sklearn.base import clone  # noqa: E402

from jaxrls.sklearn import RLSClassifier, RLSRegressor  # noqa: E402

pytestmark = pytest.mark.any_precision  # estimators compute in float64 where the switch is off

RNG = np.random.default_rng(0)
N, PART = 60, 20
X = RNG.normal(size=(N, 4)) + 1
Y = np.stack([np.sin(X[:, 0]), X[:, 1] - 3], axis=1) + 0.2 * RNG.normal(size=(N, 2))
V = RNG.uniform(0.5, 2, N)
NAMES = np.array(["red", "green", "blue"])[np.digitize(X[:, 0], [0.7, 1.4])]
NEW = RNG.normal(size=(7, 4)) + 1
PARTS = [np.s_[start : start + PART] for start in range(0, N, PART)]
TOLERANCE = 1e-9


@pytest.mark.parametrize("target", [Y, Y[:, 0]], ids=["(n, t)", "(n,)"])
def test_a_linear_regressor_is_that_of_all_rows(target):
    """λ by GCV over the grid of all rows."""
    model = RLSRegressor("linear")
    for part in PARTS:
        assert model.partial_fit(X[part], target[part], V[part]) is model
    whole = RLSRegressor("linear", criterion="gcv").fit(X, target, sample_weight=V)
    for name in ("lam_", "coef_", "intercept_"):
        assert_close(getattr(model, name), getattr(whole, name), TOLERANCE, name)
    assert_close(model.predict(NEW), whole.predict(NEW), TOLERANCE)
    assert not hasattr(model, "loo_error_") and not hasattr(model, "loo_predictions_")


def test_a_gaussian_regressor_keeps_kernel_and_landmarks_of_the_first_rows():
    model = RLSRegressor(landmarks=12)
    for part in PARTS:
        model.partial_fit(X[part], Y[part])
    first = RLSRegressor(landmarks=12, lams=1.0).fit(X[PARTS[0]], Y[PARTS[0]])
    assert model.kernel_ == first.kernel_ and model.dual_coef_.shape == (12, 2)
    whole = rls.fit(model.kernel_, X, Y, landmarks=model.path_.model.points, lams=[model.lam_])
    assert_close(model.predict(NEW), whole.predict(NEW), 1e-7)
    by_default = clone(model.set_params(landmarks=None, lams=1.0)).partial_fit(X[:PART], Y[:PART])
    assert by_default.dual_coef_.shape == (PART, 2)


@pytest.mark.filterwarnings("ignore:the chosen λ")  # of rows of one class all are equally right
@pytest.mark.parametrize("names", [NAMES, NAMES == "red"], ids=["three classes", "two"])
def test_a_classifier_names_its_classes_first(names):
    """In whatever order rows come: the first call sees a single class here."""
    order = np.argsort(names, kind="stable")
    model = RLSClassifier("linear")
    for part in PARTS:
        rows = order[part]
        model.partial_fit(X[rows], names[rows], np.unique(names), sample_weight=V[rows])
    whole = RLSClassifier("linear", criterion="gcv").fit(X, names, sample_weight=V)
    assert model.classes_.tolist() == whole.classes_.tolist()
    assert_close(model.lam_, whole.lam_, TOLERANCE, "lam_")
    assert_close(model.decision_function(NEW), whole.decision_function(NEW), TOLERANCE)
    assert model.predict(NEW).tolist() == whole.predict(NEW).tolist()


def test_fit_begins_anew():
    model = RLSRegressor("linear").partial_fit(X, Y).fit(X[:PART], Y[:PART])
    first = RLSRegressor("linear").fit(X[:PART], Y[:PART])
    assert model.loo_predictions_.shape == (PART, 2)
    assert model.predict(NEW).tolist() == first.predict(NEW).tolist()


def test_after_fit_it_begins_anew_and_says_so():
    model = RLSClassifier("linear").fit(X, NAMES)
    with pytest.warns(UserWarning, match="fit is to all its rows at once: partial_fit begins anew"):
        model.partial_fit(X[:PART], NAMES[:PART])  # classes are known from fit
    first = RLSClassifier("linear").partial_fit(X[:PART], NAMES[:PART], np.unique(NAMES))
    assert model.decision_function(NEW).tolist() == first.decision_function(NEW).tolist()


def test_there_is_none_beside_what_takes_rows():
    """So that `hasattr` says so, as scikit-learn's checks and pipelines ask."""
    assert hasattr(RLSRegressor(), "partial_fit")
    why = "partial_fit chooses λ by GCV, from moments alone: leave criterion=, loss=, cv="
    beside = {"cv": 5, "loss": "absolute_error", "scoring": "r2", "store_cv_results": True}
    for option in beside.items():
        assert not hasattr(RLSClassifier(**dict([option])), "partial_fit")
        with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as error:
            RLSRegressor(**dict([option])).partial_fit(X, Y)
        assert why in str(error.value.__cause__)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: (
                RLSRegressor("precomputed", lams=1.0)
                .partial_fit(np.eye(4), Y[:4])
                .partial_fit(np.eye(4), Y[:4])
            ),
            "a fit to a given kernel matrix cannot be updated",
        ),
        (
            lambda: RLSRegressor("linear").partial_fit(X, Y).partial_fit(X[:, :2], Y),
            "X has 2 features, but RLSRegressor is expecting 4",
        ),
        (
            lambda: RLSRegressor("linear").partial_fit(X, Y).partial_fit(X, Y[:, 0]),
            r"Y must have shape \(60, 2\)",
        ),
        (
            lambda: RLSClassifier("linear").partial_fit(X, NAMES),
            "classes must be passed on the first call to partial_fit",
        ),
        (
            lambda: RLSClassifier("linear").partial_fit(X, NAMES, ["red", "blue"]),
            r"among classes, \['blue', 'red'\], and one is .*'green'",
        ),
        (
            lambda: (
                RLSClassifier("linear")
                .partial_fit(X, NAMES, np.unique(NAMES))
                .partial_fit(X, NAMES, ["red", "blue"])
            ),
            "is not the same as on last call to partial_fit",
        ),
    ],
)
def test_what_cannot_be(call, message, unchecked):
    with pytest.raises(ValueError, match=message):
        call()
