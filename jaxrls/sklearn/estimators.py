"""The two estimators, `RLSRegressor` and `RLSClassifier`.

Classification is regression on ±1 codes. A row has one label of several classes, or several labels
at once, which an indicator matrix gives.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
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

    It minimises ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖². λ is the `alpha` of `Ridge` and
    `KernelRidge`. `RLSRegressor()` replaces a grid search over `KernelRidge(kernel="rbf")`.
    `RLSRegressor("linear", lams=alphas)` replaces `RidgeCV(alphas)`.

    Parameters
    ----------
    kernel : str or jaxrls kernel, default="gaussian"
        "linear", "polynomial" (or "poly"), "gaussian" (or "rbf"), "laplacian", "matern12",
        "matern32", "matern52", "rational_quadratic", "chi2", "cosine", "tanimoto" or "precomputed",
        or an object such as `0.5 * jaxrls.Gaussian(2.0) + jaxrls.Linear()`.
    width : float, array of shape (n_features,), "median" or list of those, default="median"
        Width of a kernel of distances, as in exp(−‖x − z‖² / (2 width²)). Scale the columns alike
        first. "median" is the median distance between distinct rows. `["median"] * n_features` is
        one median width for each column.
    gamma : float, "auto", "scale" or None, default=None
        γ in place of `width`, for "gaussian", exp(−γ‖x − z‖²), "laplacian", exp(−γ Σ |xⱼ − zⱼ|),
        and "chi2". Also the γ of "polynomial", where None is 1. "auto" is 1/n_features, which None
        means in `KernelRidge`. "scale" is 1/(n_features · X.var()), as in `SVC`.
    degree : int, default=3
        Degree of "polynomial", (γ⟨x, z⟩ + coef0)^degree.
    coef0 : float, default=1
        The constant that "polynomial" adds to γ⟨x, z⟩, 0 or more.
    lams : float, array, "search" or "auto", default="auto"
        The λ to choose from. "auto" takes 100 values from the spectrum. "search" finds the best λ
        without a grid. An array (L,) holds the values to try. An array (L, n_targets) holds values
        for each column of y. A single number is used as it is.
    criterion : "loo", "kfold", "gcv", "evidence", "log_predictive_density", "crps", "pairs",
    Criterion or \
callable, default="loo"
        The error by which λ is chosen, as in `jaxrls.fit`.
    loss : "squared_error", "absolute_error", "zero_one_loss" or callable, default="squared_error"
        The loss that "loo" and "kfold" average over held-out rows.
    per_target : bool, default=False
        Whether to choose one λ for each column of y, in place of one for their mean error.
    conservative : float, default=0.0
        A number of standard errors. The largest λ is taken whose error is at most so much above the
        smallest error. 1 is the one-standard-error rule.
    tune : bool, default=False
        Whether to tune the kernel's parameters by the gradient of the criterion, starting from the
        given ones: see `jaxrls.tune`. An array of widths is tuned column by column. With one number
        as `lams` they are tuned at that λ.
    landmarks : int, "auto", array or None, default=None
        The rows on which K is approximated, if there are too many rows to factor K: their number,
        row numbers or points. "auto" takes as many as keep the fit close to the fit without
        landmarks: see `jaxrls.fit`. With `tune` the kernel is tuned on landmarks too. For "auto"
        these are 500 landmarks if there are more than 2000 rows, else none.
    fit_intercept : bool, default=True
        Whether to fit a constant b that is not penalised.
    cv : int, splitter, iterable or None, default=None
        Folds. They imply `criterion="kfold"`, for which None means 5 folds. Each test row is
        predicted by a fit to the training rows of its split. The training rows may be purged, have
        a gap, or be drawn. A row is tested once at most. A row that is never tested does not count,
        and its prediction is NaN.
    random_state : int, RandomState or None, default=None
        Shuffles the rows before they are split into a number of folds. None keeps their order.
    keep : bool or None, default=None
        Whether to keep the solution, which `predict(X, return_std=True)` needs. It has n² numbers
        without landmarks. None keeps it for at most 2000 rows.
    scoring : str, callable or None, default=None
        A scorer of scikit-learn, or its name. It chooses λ in place of `loss`, by the score of
        held-out predictions.
    by_fold : bool, default=False
        Whether to average the scores of folds, as `GridSearchCV` does, in place of one score of all
        held-out rows.
    store_cv_results : bool or "predictions", default=False
        Whether to keep `cv_results_`: held-out predictions for "predictions" or with `scoring`,
        else losses.
    progress : bool, default=False
        Whether to show progress bars (needs tqdm).

    Attributes
    ----------
    lam_ : float or array of shape (n_targets,)
        The chosen λ.
    loo_error_ : float or array of shape (n_targets,)
        Leave-one-out error at `lam_`: the mean `loss` if that chose λ, else the mean squared error.
    loo_predictions_ : array of the shape of y
        The prediction for each row by a fit to all others, with `lam_`.
    best_score_ : float or array of shape (n_targets,)
        The score at `lam_`, if `scoring` chose it.
    cv_results_ : array of shape (n_samples, n_lams) or (n_samples, n_targets, n_lams)
        Losses of held-out rows for each of `path_.lams`, or their predictions: see
        `store_cv_results`.
    path_ : jaxrls.extend.Fit
        The whole fit. `path_.errors` is the criterion, or minus the score, for each of
        `path_.lams`.
    kernel_ : jaxrls kernel
        The kernel with its parameters, tuned or not.
    coef_ : array of shape (n_features,) or (n_targets, n_features)
        Weights of the features, for a kernel with explicit features.
    dual_coef_ : array of shape (n_samples,) or (n_samples, n_targets)
        Weights of the rows, for all other kernels. With landmarks, weights of the landmarks.
    intercept_ : float or array of shape (n_targets,)
        The constant b, or 0 without an intercept.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    `fit` costs one eigendecomposition, O(n³), whatever the number of λ. With the linear kernel and
    fewer columns than rows it costs O(n d²), also for a sparse X. `tune` adds some dozen times
    O(n³). JAX compiles once for each new shape of X, which takes seconds. float32 input is computed
    in float32, everything else in float64. A row of `sample_weight` 2 counts as two equal rows that
    are left out together. A warning says if the chosen λ is at the end of the grid.

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
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        groups: Any = None,
        fixed_effects: Any = None,
    ):
        """Fit to rows X (n, d) and targets y (n,) or (n, t), weighted by `sample_weight` (n,).

        Rows of equal `groups` (n,) are left out together. `fixed_effects`, which are columns (n, q)
        or `jaxrls.levels(labels)`, are not penalised.
        """
        X, y = self._checked(X, y, multi_output=True, y_numeric=True, ensure_min_samples=2)
        weights = self._row_weights(X, sample_weight)
        return self._fit(X, y, y, weights, groups, fixed_effects)

    @available(adds_rows)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None):
        """Add rows to the rows of earlier calls. The fit is exactly the fit to all rows so far.

        The first call sets the kernel. For kernels without explicit features it also sets the
        landmarks: as many as `landmarks` says, or up to 500. Every call chooses λ from `lams` by
        GCV, which needs only sums over rows. With `lams="search"` the first call finds λ. There are
        no `loo_error_` and `loo_predictions_`, which need the rows. `path_.forget(X, y)` removes
        rows.
        """
        first = self._begins()
        X, y = self._checked(
            X, y, reset=first, ensure_min_samples=1 + first, multi_output=True, y_numeric=True
        )
        return self._partial_fit(X, y, y, self._row_weights(X, sample_weight), first)

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        fixed_effects: Any = None,
        diag: Any = None,
        sample_weight: Any = None,
    ) -> Any:
        """Return the predictions (m,) or (m, t) for the rows of X, in O(m n d).

        With `return_std` return a tuple (predictions, standard deviations of new labels): see
        `Fit.posterior`. They are for labels of weight 1, or of weights `sample_weight`. For a
        precomputed kernel they need `diag`, k(x, x) of the new rows. A fit with `fixed_effects`
        needs the fixed effects of the rows of X.
        """
        return self._of_path(
            "predict",
            X,
            return_std=return_std,
            fixed_effects=fixed_effects,
            diag=diag,
            weights=sample_weight,
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None, fixed_effects: Any = None) -> Any:
        """Return R² of `predict`, as the mean over targets.

        A fit with `fixed_effects` needs the fixed effects of the rows of X.
        """
        check_is_fitted(self)
        check_unmasked("y", y)
        check_unmasked("sample_weight", sample_weight)
        self.path_.model.check_effects("score", fixed_effects)
        predicted = self.predict(X, fixed_effects=fixed_effects)
        return r2_score(y, predicted, sample_weight=sample_weight)

    def predict_interval(
        self,
        X: Any,
        level: float | np.floating = 0.9,
        studentised: bool = False,
        fixed_effects: Any = None,
        sample_weight: Any = None,
    ) -> Any:
        """Return the ends (lower, upper) of intervals that hold a new label with probability
        `level`.

        They follow from the jackknife+, or from CV+ if groups or folds were left out: see
        `Fit.intervals`.
        """
        return self._of_path(
            "intervals",
            X,
            level,
            studentised=studentised,
            fixed_effects=fixed_effects,
            weights=sample_weight,
        )


def has_probabilities(estimator: "RLSClassifier") -> None:
    """Raise AttributeError if a classifier has no `predict_proba`."""
    if estimator.probability is None:
        raise AttributeError(
            "predict_proba needs probability='sigmoid' or 'isotonic', by which scores become "
            "probabilities: RLSClassifier(probability='sigmoid')"
        )


class Labelled(NamedTuple):
    """The fitted rows, which `predict_set` needs."""

    X: Any  # None if sets cannot be conformal
    codes: Any  # ±1 codes of the labels
    weights: Any  # sample weights (n,), or None
    of_classes: Any  # the weight of each class, or None


NO_ROWS = "needs held-out scores, which partial_fit does not have: use fit"


@hints_at_names
@dataclass(eq=False, repr=False, kw_only=True)
class RLSClassifier(ClassifierMixin, RLSEstimator):
    """Regularized least-squares classification: regression on ±1 codes, with one column for each
    class. The largest score wins.

    Two classes share one column. `RLSClassifier("linear", lams=alphas)` replaces
    `RidgeClassifierCV(alphas)`.

    Parameters
    ----------
    kernel, width, gamma, degree, coef0, lams, criterion, loss, per_target, conservative, tune,
    landmarks, fit_intercept, cv, random_state, keep, \
scoring, by_fold, store_cv_results, progress
        As in `RLSRegressor`. With `loss="zero_one_loss"` the held-out error rate chooses λ, but
        squared error tunes the kernel. `per_target` chooses one λ for each class. Folds are
        stratified.
    class_weight : dict, "balanced", list of them for several labels, or None, default=None
        Factors by which row weights are multiplied, for each class. "balanced" is n_samples /
        (n_classes · rows of the class), counted over rows of positive weight.
    probability : "sigmoid", "isotonic" or None, default=None
        How `predict_proba` turns scores into probabilities: by Platt's sigmoid, or by isotonic
        regression, which needs more rows. Either is fitted to held-out scores, one class against
        the rest. Row weights count but class weights do not, as in `CalibratedClassifierCV`.
        `predict` takes the largest score, which near a boundary may not have the largest
        probability.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The labels, sorted. For an indicator matrix, the numbers of its columns.
    multilabel_ : bool
        Whether y was an indicator matrix.
    lam_, loo_error_, best_score_, cv_results_, path_, kernel_, coef_, dual_coef_, intercept_,
    n_features_in_, feature_names_in_
        As in `RLSRegressor`, where the targets are the codes. Two classes have a single target.
    loo_predictions_ : array of shape (n_samples,) or (n_samples, n_classes)
        Scores of each row by a fit to all others, or to all rows outside of its fold or group. They
        have the scale of `decision_function`.
    calibration_ : callable
        The function that turns scores into probabilities, column by column, if `probability` is
        given.

    Notes
    -----
    `fit` costs as much as `RLSRegressor`, because the columns share the factorization.

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @calls_back
    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None):
        """Fit to rows X (n, d) and labels y (n,), weighted by `sample_weight` (n,).

        If a row may have several labels, y is an indicator matrix (n, t) of 0 and 1 with one column
        for each label. Rows of equal `groups` (n,) are left out together.
        """
        X, y = self._labelled(X, y, ensure_min_samples=2)
        codes, self.classes_ = self._coded(y)
        self.multilabel_ = y.ndim == 2
        weights = self._row_weights(X, sample_weight)
        self._fit(X, y, codes, weights, groups)
        codes = codes.astype(X.dtype)
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
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None):
        """Add rows to the rows of earlier calls, as `RLSRegressor.partial_fit` does.

        The first call names all `classes` that there will be.
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
        self._partial_fit(X, y, codes, self._row_weights(X, sample_weight), first)
        return self

    def _labelled(self, X: Any, y: Any, **options) -> tuple[Any, np.ndarray]:
        """Check rows and labels. Return X and labels y (n,), or an indicator matrix (n, t)."""
        X, y = self._checked(X, y, multi_output=True, **options)
        check_classification_targets(y)
        if (kind := type_of_target(y)).endswith("multioutput"):
            raise ValueError(
                f"y must be labels (n,), or an indicator matrix of 0 and 1, and is of type {kind!r}"
            )
        if kind.startswith("multilabel"):
            return X, y.toarray() if scipy.sparse.issparse(y) else y
        return X, column_or_1d(y, warn=True)

    def _coded(
        self, y: np.ndarray, classes: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ±1 codes of labels, and the classes.

        The classes are the sorted labels, or the numbers of the columns of an indicator matrix.
        """
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

    def _weights(
        self, labels: np.ndarray, row_weights: np.ndarray | None, dtype: Any
    ) -> np.ndarray | None:
        """Return the weights with which rows are fitted: row weights times class weights."""
        if self.class_weight is None:
            return row_weights
        of_classes = self._of_classes(labels, row_weights).astype(dtype)
        return of_classes if row_weights is None else row_weights * of_classes

    def _estimator(
        self, targets: np.ndarray, weights: np.ndarray | None, held_out: np.ndarray
    ) -> BaseEstimator:
        """Return the stand-in for a classifier to which a scorer passes held-out scores."""
        calibrate = partial(CALIBRATIONS[self.probability or "sigmoid"], held_out, targets, weights)
        return Classified(self.classes_, self.multilabel_, calibrate)

    def _of_classes(self, y: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        """Return for each row the weight of its class, (n,).

        For "balanced" weights only rows of positive weight are counted.
        """
        counted = None
        if isinstance(self.class_weight, str) and rows is not None:
            counted = np.flatnonzero(rows > np.finfo(rows.dtype).eps * rows.max())
        return compute_sample_weight(self.class_weight, y, indices=counted)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Return the share of rows whose label is predicted.

        For an indicator matrix, all labels of a row must be predicted.
        """
        check_unmasked("y", y)
        check_unmasked("sample_weight", sample_weight)
        return super().score(X, y, sample_weight)

    def decision_function(self, X: Any) -> Any:
        """Return scores (m,) for two classes, positive for `classes_[1]`, else (m, n_classes)."""
        return self._of_path("predict", X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the label of the largest score (m,) for the rows of X, in O(m n d).

        After a fit to an indicator matrix, return (m, t), with 1 for each positive score.
        """
        return labels(self._of_path("predict", X), self.classes_, self.multilabel_)

    @available(has_probabilities)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes (m, n_classes), which add up to 1.

        After a fit to an indicator matrix, return the probability of each label by itself, (m, t).
        """
        scores = self._of_path("predict", X)
        if not hasattr(self, "calibration_"):
            raise ValueError(f"predict_proba {NO_ROWS}")
        return probabilities(self.calibration_, scores, self.multilabel_)

    def predict_set(
        self, X: Any, level: float | np.floating = 0.9, *, method: str = "conformal"
    ) -> np.ndarray:
        """Return sets of labels that hold the true label with probability `level`.

        The result has booleans (m, n_classes) for the rows of X, with a column for each of
        `classes_`. A set may be empty. There are two methods:

        * "conformal", in O(m n²), needs a fit that kept its solution. It reaches the level for any
          number of rows, on average over draws of all rows. This holds if rows are exchangeable, of
          equal weight and not in groups, and did not choose λ, kernel and landmarks. See
          `jaxrls.classes.conformal_labels`.
        * "jackknife", in O(m n d), compares scores with held-out scores of rows or groups. It tends
          to the level as the number of rows grows. See `jaxrls.classes.label_p_values`.
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
