"""The estimators: regression, and classification by regression on ±1 codes, of one label of
several for each row, or of several labels at once.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    check_classification_targets,
    type_of_target,
)
from sklearn.utils.validation import check_is_fitted, column_or_1d

import jaxrls as rls
from jaxrls.core.support import check_unmasked, hints_at_names
from jaxrls.sklearn.base import RLSEstimator, adds_rows
from jaxrls.sklearn.scoring import CALIBRATIONS, Classified, labels, predicted, probabilities, take
from jaxrls.sklearn.support import available, calls_back


class RLSRegressor(RegressorMixin, MultiOutputMixin, RLSEstimator):
    """Regularized least squares (kernel ridge regression) with λ chosen by exact leave-one-out in
    one fit.

    Minimises ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖²: λ is the `alpha` of `Ridge` and `KernelRidge`.
    `RLSRegressor()` replaces a grid search over `KernelRidge(kernel="rbf")`,
    `RLSRegressor("linear", lams=alphas)` for `RidgeCV(alphas)`.

    Parameters
    ----------
    kernel : str or jaxrls kernel, default="gaussian"
        "linear", "polynomial" (or "poly"), "gaussian" (or "rbf"), "laplacian", "matern12",
        "matern32", "matern52", "rational_quadratic", "chi2", "cosine", "tanimoto" or "precomputed",
        or an object such as `0.5 * jaxrls.Gaussian(2.0) + jaxrls.Linear()`.
    width : float, array of shape (n_features,), "median" or list of those, default="median"
        Width of a kernel of distances, as in exp(−‖x − z‖² / (2 width²)). Scale the columns alike
        first. "median" is the median distance between distinct rows; `["median"] * n_features` is
        one for each column.
    gamma : float, "auto", "scale" or None, default=None
        γ of "gaussian", exp(−γ‖x − z‖²), and "laplacian", exp(−γ Σ |xⱼ − zⱼ|), in place of `width`;
        of "polynomial", where None is 1. "auto" is 1/n_features, what None is in `KernelRidge`, and
        "scale" 1/(n_features · X.var()), as in `SVC`.
    degree : int, default=3
        Degree of "polynomial", (γ⟨x, z⟩ + coef0)^degree.
    coef0 : float, default=1
        What "polynomial" adds to inner products, not negative.
    lams : float, array, "search" or "auto", default="auto"
        λ to choose from: "auto", 100 values from the spectrum; "search", the best without a grid;
        an array (L,); or one number, which is taken. An array (L, n_targets) has values for each
        column of y.
    criterion : "loo", "kfold", "gcv", "evidence", "log_predictive_density", "crps", "pairs",
    Criterion or \
callable, default="loo"
        What λ is chosen by, as in `jaxrls.fit`.
    loss : "squared_error", "absolute_error", "zero_one_loss" or callable, default="squared_error"
        What "loo" and "kfold" average over held-out rows.
    per_target : bool, default=False
        One λ for each column of y, in place of one for their mean error.
    conservative : float, default=0.0
        Number of standard errors: take the largest λ whose error is at most so much above the
        smallest. 1 is the one-standard-error rule.
    tune : bool, default=False
        Tune the kernel's parameters by the gradient of the criterion, starting from the given ones:
        see `jaxrls.tune`. An array of widths is tuned column by column. With one number as `lams`
        they are tuned at that λ.
    landmarks : int, "auto", array or None, default=None
        The rows on which K is approximated, for more rows than K can be factored for: their number,
        row numbers or points. "auto" takes as many as keep the fit close to that of all rows: see
        `jaxrls.fit`. With `tune` the kernel is tuned on landmarks too, 500 of them for "auto" past
        2000 rows.
    fit_intercept : bool, default=True
        Fit a constant b that is not penalised.
    cv : int, splitter, iterable or None, default=None
        Folds, which imply `criterion="kfold"`, whose default is 5. Each test row is predicted by a
        fit to the training rows of its split, which may be purged, have a gap, or be drawn; a row
        is tested once at most. One that never is does not count, and its prediction is NaN.
    random_state : int, RandomState or None, default=None
        Shuffles rows into a number of folds; None leaves them in order.
    keep : bool or None, default=None
        Keep the solution, which `predict(X, return_std=True)` needs: n² numbers without landmarks.
        None keeps it up to 2000 rows.
    scoring : str, callable or None, default=None
        A scorer of scikit-learn, or its name, which chooses λ in place of `loss`, from held-out
        predictions.
    by_fold : bool, default=False
        Average the scores of folds, as `GridSearchCV` does, in place of one score of all held-out
        rows.
    store_cv_results : bool or "predictions", default=False
        Keep `cv_results_`: held-out predictions for "predictions" or with `scoring`, else losses.
    progress : bool, default=False
        Show progress bars (needs tqdm).

    Attributes
    ----------
    lam_ : float or array of shape (n_targets,)
        The chosen λ.
    loo_error_ : float or array of shape (n_targets,)
        Leave-one-out error at `lam_`: of `loss` where that chose λ, else mean squared.
    loo_predictions_ : array of the shape of y
        What is predicted for each row by a fit to all others, with `lam_`.
    best_score_ : float or array of shape (n_targets,)
        The score at `lam_`, where `scoring` chose it.
    cv_results_ : array of shape (n_samples, n_lams) or (n_samples, n_targets, n_lams)
        Losses of held-out rows at each of `path_.lams`, or their predictions: see
        `store_cv_results`.
    path_ : jaxrls.extend.Fit
        All of the fit; `path_.errors` is the criterion, or the score negated, over `path_.lams`.
    kernel_ : jaxrls kernel
        The kernel with its parameters, tuned or not.
    coef_ : array of shape (n_features,) or (n_targets, n_features)
        Weights, for a kernel with explicit features.
    dual_coef_ : array of shape (n_samples,) or (n_samples, n_targets)
        Weights of the rows in the expansion by kernels, for all others.
    intercept_ : float or array of shape (n_targets,)
        b, or 0.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    `fit` costs one eigendecomposition, O(n³), whatever the number of λ; with the linear kernel and
    fewer columns than rows O(n d²), sparse X included. `tune` adds some dozen times O(n³). JAX
    compiles for each new shape of X once, which takes seconds. float32 input is computed in
    float32, everything else in float64. A row of `sample_weight` 2 is two equal rows, left out
    together. Warns where the chosen λ is at the end of the grid.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from jaxrls.sklearn import RLSRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), RLSRegressor()).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.5
    True
    """

    @calls_back
    def fit(self, X, y, sample_weight=None, groups=None, fixed_effects=None):
        """Fit to X (n, d) and y (n,) or (n, t), weighted by `sample_weight` (n,); rows of equal
        `groups` (n,) are left out together, and `fixed_effects`, columns (n, q) or
        `jaxrls.levels(labels)`, are not penalised.
        """
        X, y = self._checked(X, y, multi_output=True, y_numeric=True, ensure_min_samples=2)
        return self._fit(X, y, y, sample_weight, groups, fixed_effects)

    @available(adds_rows)
    def partial_fit(self, X, y, sample_weight=None):
        """Add rows to those of earlier calls, exactly: coefficients are those of all rows so far.

        The first call sets the kernel, and for kernels without explicit features the landmarks: as
        many as `landmarks` says, or up to 500. Every call chooses λ from `lams` by GCV, which needs
        sums over rows only; "search" finds it in the first call. There are no `loo_error_` and
        `loo_predictions_`, which need the rows. `path_.forget(X, y)` removes rows.
        """
        first = self._begins()
        X, y = self._checked(
            X, y, reset=first, ensure_min_samples=1 + first, multi_output=True, y_numeric=True
        )
        return self._partial_fit(X, y, y, sample_weight, first)

    def predict(self, X, return_std=False, fixed_effects=None, diag=None, sample_weight=None):
        """Predictions (m,) or (m, t) for the rows of X, in O(m n d); with `return_std` also the
        standard deviations of new labels: see `Fit.posterior`. A fit with `fixed_effects` needs
        those of the rows of X. Standard deviations of a precomputed kernel need `diag`, k(x, x) of
        the new rows, and are of labels of weight 1 or `sample_weight`.
        """
        return self._of_path(
            "predict",
            X,
            return_std=return_std,
            fixed_effects=fixed_effects,
            diag=diag,
            weights=sample_weight,
        )

    def score(self, X, y, sample_weight=None, fixed_effects=None):
        """R² of `predict`, the mean over targets; `fixed_effects` are those of the rows of X."""
        check_is_fitted(self)
        check_unmasked("y", y)
        check_unmasked("sample_weight", sample_weight)
        self.path_.model.check_effects("score", fixed_effects)
        predicted = self.predict(X, fixed_effects=fixed_effects)
        return r2_score(y, predicted, sample_weight=sample_weight)

    def predict_interval(
        self, X, level=0.9, studentised=False, fixed_effects=None, sample_weight=None
    ):
        """Ends (lower, upper) of intervals that hold a new label with probability `level`, by the
        jackknife+, or CV+ where groups or folds were left out: see `Fit.intervals`.
        """
        return self._of_path(
            "intervals",
            X,
            level,
            studentised=studentised,
            fixed_effects=fixed_effects,
            weights=sample_weight,
        )


def has_probabilities(estimator) -> None:
    """Raise unless there is a `predict_proba`."""
    if estimator.probability is None:
        raise AttributeError(
            "predict_proba needs probability='sigmoid' or 'isotonic', by which scores become "
            "probabilities: RLSClassifier(probability='sigmoid')"
        )


class Labelled(NamedTuple):
    """What `predict_set` needs of the rows; X only where sets can be conformal."""

    X: Any
    codes: Any
    weights: Any
    of_classes: Any  # weights of labels


NO_ROWS = "needs held-out scores, which partial_fit does not have: use fit"


@hints_at_names
@dataclass(eq=False, repr=False, kw_only=True)
class RLSClassifier(ClassifierMixin, RLSEstimator):
    """Regularized least-squares classification: regression on ±1 codes, one column for each class,
    the largest score wins.

    `RLSClassifier("linear", lams=alphas)` replaces `RidgeClassifierCV(alphas)`. Two classes share
    one column.

    Parameters
    ----------
    kernel, width, gamma, degree, coef0, lams, criterion, loss, per_target, conservative, tune,
    landmarks, fit_intercept, cv, random_state, keep, \
scoring, by_fold, store_cv_results, progress
        As in `RLSRegressor`. With `loss="zero_one_loss"` λ is chosen by the held-out error rate,
        kernel parameters by squared error still; `per_target` chooses one λ for each class; folds
        are stratified.
    class_weight : dict, "balanced", list of them for several labels, or None, default=None
        Factors of row weights by class. "balanced" is n_samples / (n_classes · rows of the class),
        of rows of positive weight.
    probability : "sigmoid", "isotonic" or None, default=None
        How `predict_proba` turns scores into probabilities: Platt's sigmoid, or isotonic
        regression, which needs more rows. Either is fitted to held-out scores, one class against
        the rest, with row weights but not class weights, as in `CalibratedClassifierCV`. `predict`
        takes the largest score, which near a boundary may not have the largest probability.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The labels, sorted; for an indicator matrix the numbers of its columns.
    multilabel_ : bool
        Whether y was an indicator matrix.
    lam_, loo_error_, best_score_, cv_results_, path_, kernel_, coef_, dual_coef_, intercept_,
    n_features_in_, feature_names_in_
        As in `RLSRegressor`, the codes being the targets: a single one for two classes.
    loo_predictions_ : array of shape (n_samples,) or (n_samples, n_classes)
        Scores of each row by a fit to all others, or to all but its fold or group, on the scale of
        `decision_function`.
    calibration_ : callable
        Turns scores into probabilities, column by column, if `probability` is given.

    Notes
    -----
    Costs as `RLSRegressor`: columns share the factorization.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from jaxrls.sklearn import RLSClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), RLSClassifier()).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.95
    True
    """

    class_weight: Any = None
    probability: str | None = None

    _parameter_constraints = RLSEstimator._parameter_constraints | {
        "probability": [StrOptions(set(CALIBRATIONS)), None]
    }

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @calls_back
    def fit(self, X, y, sample_weight=None, groups=None):
        """Fit to X (n, d) and labels y (n,), or an indicator matrix (n, t) of 0 and 1, one column
        for each label that a row may have.

        Rows weigh by `sample_weight` (n,); rows of equal `groups` (n,) are left out together.
        """
        X, y = self._labelled(X, y, ensure_min_samples=2)
        codes, self.classes_ = self._coded(y)
        self.multilabel_ = y.ndim == 2
        self._fit(X, y, codes, sample_weight, groups)
        codes = codes.astype(X.dtype)
        weights = self._row_weights(X, sample_weight)
        if self.probability is not None:
            known = predicted(self.loo_predictions_)
            scored = take(known, self.loo_predictions_, codes, weights)
            self.calibration_ = CALIBRATIONS[self.probability](*scored)
        if not self.multilabel_:
            _, first = np.unique(y, return_index=True)
            of_classes = self.class_weight and self._of_classes(y, weights)[first]
            conformal = self.path_.solution is not None and groups is None
            self._rows = Labelled(X if conformal else None, codes, weights, of_classes)
        return self

    @available(adds_rows)
    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Add rows to those of earlier calls, as `RLSRegressor.partial_fit` does; the first one
        names all `classes` that there will be.
        """
        first = self._begins()
        X, y = self._labelled(X, y, reset=first, ensure_min_samples=1 + first)
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} depends on the rows of later calls: give a "
                "dict of weights"
            )
        if not first and (y.ndim == 2) != self.multilabel_:
            wanted = "an indicator matrix" if self.multilabel_ else "labels (n,)"
            raise ValueError(f"y must be {wanted} as in the first call to partial_fit")
        if first and classes is not None:
            self.__dict__.pop("classes_", None)
        if y.ndim == 1:
            _check_partial_fit_first_call(self, classes)
        codes, self.classes_ = self._coded(y, getattr(self, "classes_", None))
        self.multilabel_ = y.ndim == 2
        self._partial_fit(X, y, codes, sample_weight, first)
        return self

    def _labelled(self, X, y, **options):
        """Rows and labels (n,), or an indicator matrix (n, t)."""
        X, y = self._checked(X, y, multi_output=True, **options)
        check_classification_targets(y)
        if (kind := type_of_target(y)).endswith("multioutput"):
            raise ValueError(
                f"y must be labels (n,), or an indicator matrix of 0 and 1, and is of type {kind!r}"
            )
        if kind.startswith("multilabel"):
            return X, y.toarray() if scipy.sparse.issparse(y) else y
        return X, column_or_1d(y, warn=True)

    def _coded(self, y, classes=None):
        """±1 codes of labels, and what their columns stand for."""
        if y.ndim == 1:
            return rls.classes.encode(y, classes)
        if not np.isin(y, (0, 1)).all():
            raise ValueError("y as an indicator matrix must hold 0 and 1")
        if self._loss is rls.classes.zero_one_loss:
            raise ValueError(
                "loss='zero_one_loss' compares columns, and those of an indicator matrix do not "
                "compete: take another loss"
            )
        return 2.0 * y - 1, np.arange(y.shape[1])

    def _weights(self, X, y, sample_weight):
        """Those of rows times those of their classes."""
        rows = self._row_weights(X, sample_weight)
        if self.class_weight is None:
            return rows
        of_classes = self._of_classes(y, rows).astype(X.dtype)
        return of_classes if rows is None else rows * of_classes

    def _estimator(self, Y, weights, held_out):
        calibrate = partial(CALIBRATIONS[self.probability or "sigmoid"], held_out, Y, weights)
        return Classified(self.classes_, self.multilabel_, calibrate)

    def _of_classes(self, y, rows):
        """The weight of the class of each row; those balanced count rows of weight above 0."""
        counted = None
        if isinstance(self.class_weight, str) and rows is not None:
            counted = np.flatnonzero(rows > np.finfo(rows.dtype).eps * rows.max())
        return compute_sample_weight(self.class_weight, y, indices=counted)

    def score(self, X, y, sample_weight=None):
        """The share of rows whose label is predicted; of an indicator matrix, all of whose are."""
        check_unmasked("y", y)
        check_unmasked("sample_weight", sample_weight)
        return super().score(X, y, sample_weight)

    def decision_function(self, X):
        """Scores (m,) for two classes, positive for `classes_[1]`, or (m, n_classes)."""
        return self._of_path("predict", X)

    def predict(self, X):
        """The label of the largest score (m,) for the rows of X, in O(m n d); for an indicator
        matrix (m, t), 1 where a score is positive.
        """
        return labels(self._of_path("predict", X), self.classes_, self.multilabel_)

    @available(has_probabilities)
    def predict_proba(self, X):
        """Probabilities (m, n_classes), which add up to 1; for an indicator matrix those of each
        label by itself (m, t).
        """
        scores = self._of_path("predict", X)
        if not hasattr(self, "calibration_"):
            raise ValueError(f"predict_proba {NO_ROWS}")
        return probabilities(self.calibration_, scores, self.multilabel_)

    def predict_set(self, X, level=0.9, *, method="conformal"):
        """Sets of labels that hold the true one with probability `level`: booleans (m, n_classes)
        for the rows of X, a column for each of `classes_`.

        "conformal" needs a fit that kept its solution. It reaches the level for any number of rows,
        on average over draws of all rows, if these are exchangeable, of equal weight and not in
        groups, and did not choose λ, kernel and landmarks: see `jaxrls.classes.conformal_labels`.
        "jackknife" compares scores with held-out scores of rows or groups, at next to no cost. It
        tends to the level as rows grow: see `jaxrls.classes.label_p_values`. A set may be empty.
        O(m n²) or O(m n d).
        """
        check_is_fitted(self)
        if not isinstance(level, float | np.floating) or not 0 < level < 1:
            raise ValueError(f"level must be a number between 0 and 1, and is {level!r}")
        if method not in ("conformal", "jackknife"):
            raise ValueError(f"method must be 'conformal' or 'jackknife', and is {method!r}")
        if self.multilabel_:
            raise ValueError(
                "predict_set is for one label a row, and y was an indicator matrix: use predict"
            )
        if not hasattr(self, "_rows"):
            raise ValueError(f"predict_set {NO_ROWS}")
        X_fitted, codes, weights, of_classes = self._rows
        if method == "jackknife":
            scores = self._of_path("predict", X)
            known = predicted(self.loo_predictions_)
            left_out, codes, weights = take(known, self.loo_predictions_, codes, weights)
            p = rls.classes.label_p_values(left_out, codes, scores, weights)
            return np.asarray(p) > 1 - level
        if X_fitted is None:
            raise ValueError(
                "method='conformal' needs keep=True and a fit without groups: fit so, or use "
                "method='jackknife'"
            )
        if not hasattr(self, "_conformal"):
            dense = X_fitted.toarray() if scipy.sparse.issparse(X_fitted) else X_fitted
            sets = rls.classes.conformal_labels(self.path_, dense, codes, weights, of_classes)
            self._conformal = jax.tree.map(np.asarray, sets)
        return self._conformal.p_values(self._checked(X, reset=False)) > 1 - level
