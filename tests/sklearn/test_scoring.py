"""λ by a scorer of scikit-learn's on rows left out, pooled or fold by fold, and what is stored of
them.
"""

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge, RidgeClassifier, RidgeClassifierCV, RidgeCV
from sklearn.metrics import get_scorer, make_scorer, mean_pinball_loss
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneOut,
    StratifiedKFold,
    cross_val_predict,
)
from support import ANY_PRECISION, EDGE, assert_close, refused

import jaxrls as rls
from jaxrls.sklearn import RLSClassifier, RLSRegressor
from jaxrls.sklearn.scoring import probabilities

pytestmark = [
    ANY_PRECISION,  # estimators compute in float64 where the switch is off
    EDGE,
]

TOLERANCE = 1e-8
ALPHAS = np.logspace(-2, 3, 6)
RNG = np.random.default_rng(0)
N = 40
X = RNG.normal(size=(N, 5)) + 1
Y = np.stack([X[:, 0] ** 2, X[:, 1] - X[:, 2], np.sin(X[:, 3])], axis=1)
Y += RNG.normal(size=(N, 3)) * [0.3, 3, 1]
V = RNG.uniform(0.3, 2, N)
NAMES = np.array(["red", "green", "blue"])[
    np.digitize(X[:, 0] + 0.5 * RNG.normal(size=N), [0.5, 1.3])
]
GROUPS = np.arange(N) // 8
LINE = {"kernel": "linear", "lams": ALPHAS}


@pytest.mark.slow
def test_a_scorer_of_rows_left_out_is_that_of_ridge_cv():
    """By name or itself; of all targets, and of each by itself."""
    pinball = make_scorer(mean_pinball_loss, alpha=0.8, greater_is_better=False)

    def assert_best(ours, theirs):
        assert np.all(ours.lam_ == theirs.alpha_)
        assert_close(ours.best_score_, theirs.best_score_, TOLERANCE, "best_score_")

    for scoring in ("r2", "neg_median_absolute_error", pinball):
        theirs = RidgeCV(ALPHAS, scoring=scoring).fit(X, Y[:, 0])
        ours = RLSRegressor(**LINE, scoring=scoring).fit(X, Y[:, 0])
        assert_best(ours, theirs)
        assert_close(ours.coef_, theirs.coef_, TOLERANCE, "coef_")
    each = RLSRegressor(**LINE, scoring="r2", per_target=True).fit(X, Y)
    assert_best(each, RidgeCV(ALPHAS, scoring="r2", alpha_per_target=True).fit(X, Y))
    assert len(set(each.lam_)) > 1
    own = RLSRegressor("linear", lams=np.stack([ALPHAS] * 3, axis=1), scoring="r2").fit(X, Y)
    assert_close(own.path_.errors, each.path_.errors, TOLERANCE, "of a grid for each")


@pytest.mark.slow
def test_a_scorer_of_classes_is_that_of_ridge_classifier_cv():
    """On predicted labels, and on the scores of two classes."""
    for names, scoring in ((NAMES, "balanced_accuracy"), (NAMES == "red", "roc_auc")):
        held = [
            cross_val_predict(
                RidgeClassifier(a), X, names, cv=LeaveOneOut(), method="decision_function"
            )
            for a in ALPHAS
        ]
        ours = RLSClassifier(**LINE, scoring=scoring, store_cv_results=True)
        ours.fit(X, names)
        assert_close(ours.cv_results_, np.moveaxis(held, 0, -1), TOLERANCE, "scores left out")
        if names is NAMES:  # of two classes theirs takes the argmax over one column
            theirs = RidgeClassifierCV(ALPHAS, scoring=scoring).fit(X, names)
            assert_close(ours.best_score_, theirs.best_score_, TOLERANCE, "best_score_")
            best = ALPHAS[-ours.path_.errors[:, 0] == -ours.path_.errors[:, 0].min()]
            assert theirs.alpha_ == best.min() and ours.lam_ == best.max()
    labels = (np.median(Y, axis=0) < Y).astype(int)
    several = RLSClassifier(**LINE, scoring="f1_micro").fit(X, labels)
    assert several.path_.errors.shape == (6, 3)
    assert several.best_score_ == -several.path_.errors.min()


@pytest.mark.parametrize("probability", [None, "sigmoid", "isotonic"])
@pytest.mark.slow
def test_scorers_of_probabilities_are_given_calibrated_ones(probability):
    """Those that `predict_proba` makes of scores of rows left out, at every λ."""
    options = {"kernel": "linear", "probability": probability}
    for scoring, names, more in (
        ("neg_log_loss", NAMES, {}),
        ("roc_auc_ovr", NAMES, {"multi_class": "ovr"}),
        ("neg_brier_score", NAMES == "red", {}),
    ):
        model = RLSClassifier(lams=ALPHAS, scoring=scoring, **options).fit(X, names, V)
        if probability is None:
            continue  # it is given some, without being asked to keep them
        plain = RLSClassifier(lams=model.lam_, **options).fit(X, names, V)
        p = probabilities(plain.calibration_, plain.loo_predictions_, False)
        p = p if names is NAMES else p[:, 1]
        want = get_scorer(scoring)._score_func(names, p, sample_weight=V, **more)
        assert_close(abs(model.best_score_), want, TOLERANCE, scoring)


@pytest.mark.parametrize(
    ("theirs", "ours", "cv", "scoring", "target", "groups"),
    [
        pytest.param(
            *(KernelRidge(kernel="rbf", gamma=0.3), RLSRegressor, KFold(4), "r2", Y[:, 0], None),
            id="folds",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(RidgeClassifier(), RLSClassifier, StratifiedKFold(4), "accuracy", NAMES, None),
            id="stratified",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(Ridge(), RLSRegressor, GroupKFold(5), "neg_mean_squared_error", Y[:, 1], GROUPS),
            id="groups",
        ),
    ],
)
def test_scores_fold_by_fold_are_those_of_a_grid_search(theirs, ours, cv, scoring, target, groups):
    search = GridSearchCV(theirs, {"alpha": ALPHAS}, cv=cv, scoring=scoring)
    search.fit(X, target, groups=groups)
    rbf = isinstance(theirs, KernelRidge)
    options = {"gamma": 0.3, "fit_intercept": False} if rbf else {"kernel": "linear"}
    model = ours(lams=ALPHAS, cv=cv, scoring=scoring, by_fold=True, **options)
    model.fit(X, target, groups=groups)
    found = np.asarray(model.path_.errors).reshape(len(ALPHAS), -1)  # a column for each class
    want = np.repeat(search.cv_results_["mean_test_score"][:, None], found.shape[1], axis=1)
    assert_close(-found, want, TOLERANCE, "scores")
    assert model.lam_ == search.best_params_["alpha"] or not rbf


@pytest.mark.slow
def test_what_is_stored_is_the_loss_of_rows_left_out():
    """Squared as RidgeCV has it, any other, and predictions by groups left out."""

    def stored(groups=None, kept=True, **options):
        model = RLSRegressor(**LINE, store_cv_results=kept, **options)
        return model.fit(X, Y, groups=groups)

    theirs = RidgeCV(ALPHAS, store_cv_results=True).fit(X, Y)
    assert_close(stored().cv_results_, theirs.cv_results_, TOLERANCE, "squares")
    absolute = stored(loss="absolute_error")
    assert_close(absolute.cv_results_, np.sqrt(theirs.cv_results_), 1e-7, "absolute values")
    means = absolute.path_.errors.mean(axis=1)
    assert_close(absolute.cv_results_.mean(axis=(0, 1)), means, TOLERANCE, "their mean")
    groups, plain = stored(GROUPS, scoring="r2"), stored(GROUPS, "predictions")
    held = [cross_val_predict(Ridge(a), X, Y, cv=GroupKFold(5), groups=GROUPS) for a in ALPHAS]
    assert_close(groups.cv_results_, np.moveaxis(held, 0, -1), TOLERANCE, "by groups")
    assert_close(plain.cv_results_, groups.cv_results_, TOLERANCE, "by name, without a scorer")
    assert not hasattr(stored(kept=False), "cv_results_")


@pytest.mark.filterwarnings("ignore:Only one class is present")
def test_what_does_not_go_with_a_scorer_is_refused():
    fit = lambda **options: lambda: RLSRegressor(**LINE | options).fit(X, Y)
    both = "scoring= and store_cv_results= need"
    alone = RLSClassifier(**LINE, scoring="roc_auc", by_fold=True)
    of_levels = {"groups": GROUPS, "fixed_effects": rls.levels(GROUPS)}
    refused(
        (fit(scoring="r3"), "'r3'"),
        (fit(scoring="r2", loss="absolute_error"), "scoring='r2' chooses λ by scores"),
        (fit(scoring="r2", by_fold=True), "by_fold=True needs folds: give cv= or groups="),
        (fit(scoring="r2", lams="search"), f"{both} .* without lams='search'"),
        (fit(store_cv_results="losses"), "'store_cv_results' parameter .* Got 'losses'"),
        (fit(scoring="r2", criterion="gcv"), f"{both} criterion='loo' or 'kfold'"),
        (
            lambda: alone.fit(X, GROUPS > 1, groups=GROUPS),
            "the score of scoring='roc_auc' is not a number at 6 of 6 λ: take folds in which",
        ),
        (
            lambda: RLSRegressor(**LINE, scoring="r2").fit(X, Y, **of_levels),
            "scoring='r2' compares predictions, which lack the constants of levels",
        ),
    )


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:the chosen")
@pytest.mark.slow
def test_a_constant_target_does_not_end_a_fit_of_each_target():
    """Its score is undefined for it alone."""
    labels = np.column_stack([Y[:, :2], np.full(len(Y), 2.5)])
    correlation = make_scorer(lambda y, held_out: np.corrcoef(y, held_out)[0, 1])
    options = {"lams": [0.1, 1.0, 10.0], "scoring": correlation, "per_target": True}
    with pytest.warns(UserWarning, match="not a number for 1 of 3 targets, number 2 the first"):
        model = RLSRegressor("linear", **options).fit(X, labels)
    alone = RLSRegressor("linear", **options).fit(X, Y[:, :2])
    assert_close(model.lam_[:2], alone.lam_, TOLERANCE, "λ of the others")
    assert_close(model.best_score_[:2], alone.best_score_, TOLERANCE, "their scores")
    assert np.isnan(model.best_score_[2]) and np.isfinite(model.lam_[2])
    assert_close(model.predict(X)[:, 2], labels[:, 2], 1e-6, "the constant")
    one = RLSRegressor("linear", **options | {"per_target": False})
    words = "is not a number at 3 of 3 λ: take another, which is defined for these labels"
    refused((lambda: one.fit(X, labels[:, 2]), words))


@pytest.mark.slow
def test_a_scorer_takes_one_factorization():
    """Of which scores, what is stored and the model are all made; a shape of its own, so that
    programs are traced here.
    """
    solved, options = [], {"width": 2.0, "cv": 3}

    def counted(solve):
        return lambda *args, **kwargs: solved.append(1) or solve(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for solver in (rls.Spectral, rls.Cholesky):
            patch.setattr(solver, "solve", counted(solver.solve))
        model = RLSRegressor(lams=ALPHAS, scoring="r2", store_cv_results=True, **options)
        model.fit(X[:37], Y[:37, 0])
        assert len(solved) == 1
        plain = RLSRegressor(lams=[model.lam_], **options).fit(X[:37], Y[:37, 0])
        assert len(solved) == 2  # so that the test can fail
    for name in ("dual_coef_", "loo_predictions_", "loo_error_"):
        assert_close(getattr(model, name), getattr(plain, name), TOLERANCE, name)
