"""Classification by regression on ±1 codes: one label of several for each row, or several labels at
once.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import scipy.sparse
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    check_classification_targets,
    type_of_target,
)
from sklearn.utils.validation import check_is_fitted, column_or_1d

import jaxrls as rls
from jaxrls.sklearn.base import RLSEstimator, adds_rows
from jaxrls.sklearn.scoring import CALIBRATIONS, Classified, probabilities

NO_ROWS = "needs scores of rows left out, of which partial_fit has none: use fit"


@dataclass(eq=False, repr=False, kw_only=True)
class RLSClassifier(ClassifierMixin, RLSEstimator):
    """Regularized least-squares classification: regression on ±1 codes, one column for each class,
    the largest score wins.

    `RLSClassifier("linear", lams=alphas)` stands for `RidgeClassifierCV(alphas)`. Two classes share
    one column.

    Parameters
    ----------
    kernel, width, gamma, degree, coef0, lams, criterion, loss, per_target, conservative, tune,
    landmarks, fit_intercept, cv, random_state, keep, \
scoring, by_fold, store_cv_results
        As in `RLSRegressor`. With `loss="zero_one_loss"` λ is chosen by the held-out error rate,
        kernel parameters by squared error still; `per_target` chooses one λ for each class; folds
        are stratified.
    class_weight : dict, "balanced", list of them for several labels, or None, default=None
        Weights of classes, by which those of rows are multiplied: "balanced" is n_samples /
        (n_classes · how often a class is there).
    probability : "sigmoid", "isotonic" or None, default=None
        How `predict_proba` makes probabilities of scores: by Platt's sigmoid, or by isotonic
        regression, which takes more rows. Either is fitted on the scores of rows that were left
        out, so that no rows are held out for it, one class against the rest, with the weights of
        rows but not those of classes, as `CalibratedClassifierCV` does. `predict` goes by scores
        still, so that near a boundary the likeliest label may be another.

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
        What makes probabilities of scores, each column by itself, where `probability` asks for it.

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

    def fit(self, X, y, sample_weight=None, groups=None):
        """Fit to X (n, d) and labels y (n,), or an indicator matrix (n, t) of 0 and 1, one column
        for each label that a row may have.

        Rows weigh by `sample_weight` (n,); rows of equal `groups` (n,) are left out together.
        """
        X, y = self._labelled(X, y, ensure_min_samples=2)
        codes, self.classes_ = self._coded(y)
        self.multilabel_ = y.ndim == 2
        self._fit(X, y, codes, sample_weight, groups)
        given = codes.astype(X.dtype), super()._weights(X, y, sample_weight)
        if self.probability is not None:
            self.calibration_ = CALIBRATIONS[self.probability](self.loo_predictions_, *given)
        conformal = self.path_.kept is not None and groups is None
        if not self.multilabel_:
            self._rows = (X if conformal else None, *given, self._of_classes(y))
        return self

    @available_if(adds_rows)
    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Add rows to those of earlier calls, as `RLSRegressor.partial_fit` does; the first one
        names all `classes` that there will be.
        """
        first = self._begins()
        X, y = self._labelled(X, y, reset=first, ensure_min_samples=1 + first)
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} depends on rows to come: give a dict of "
                "weights"
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
            return rls.encode(y, classes)
        if not np.isin(y, (0, 1)).all():
            raise ValueError("y as an indicator matrix must hold 0 and 1")
        if self._loss is rls.zero_one_loss:
            raise ValueError(
                "loss='zero_one_loss' compares columns, and those of an indicator matrix do not "
                "compete: take another loss"
            )
        return 2.0 * y - 1, np.arange(y.shape[1])

    def _weights(self, X, y, sample_weight):
        """Those of rows times those of their classes."""
        rows = super()._weights(X, y, sample_weight)
        if self.class_weight is None:
            return rows
        of_classes = compute_sample_weight(self.class_weight, y).astype(X.dtype)
        return of_classes if rows is None else rows * of_classes

    def _for_scorers(self, Y, weights):
        make = CALIBRATIONS[self.probability or "sigmoid"]
        each = lambda held: lambda: make(held, Y, weights)
        return lambda held: Classified(self.classes_, self.multilabel_, each(held))

    def _of_classes(self, y):
        """The weight of each class, None where there are none."""
        weight = self.class_weight
        return weight and compute_class_weight(weight, classes=self.classes_, y=y)

    def decision_function(self, X):
        """Scores (m,) for two classes, positive for `classes_[1]`, or (m, n_classes)."""
        return self._scores(X)

    def predict(self, X):
        """The label of the largest score (m,) for the rows of X, in O(m n d); for an indicator
        matrix (m, t), 1 where a score is positive.
        """
        scores = self._scores(X)
        return (scores > 0).astype(int) if self.multilabel_ else rls.decode(scores, self.classes_)

    @available_if(lambda self: self.probability is not None)
    def predict_proba(self, X):
        """Probabilities (m, n_classes), which add up to 1; for an indicator matrix those of each
        label by itself (m, t).
        """
        scores = self._scores(X)
        if not hasattr(self, "calibration_"):
            raise ValueError(f"predict_proba {NO_ROWS}")
        return probabilities(self.calibration_, scores, self.multilabel_)

    def predict_set(self, X, level=0.9, *, method="conformal"):
        """Sets of labels that hold the true one with probability `level`: booleans (m, n_classes)
        for the rows of X, a column for each of `classes_`.

        "conformal" takes a fit that kept its solution, and has it for any number of rows, over
        draws of all of them, where these are exchangeable, of equal weight and not in groups, and
        λ, kernel and landmarks were not chosen by them: see `jaxrls.conformal_labels`. "jackknife"
        compares scores with those of rows or groups left out, at next to no cost, and comes to it
        as rows become many: see `jaxrls.label_p_values`. Sets may be empty, where no label is like
        the rows that have it. O(m n²) or O(m n d)."""
        check_is_fitted(self)
        if not isinstance(level, float | np.floating) or not 0 < level < 1:
            raise ValueError(f"level must be a number between 0 and 1, and is {level!r}")
        if method not in ("conformal", "jackknife"):
            raise ValueError(f"method must be 'conformal' or 'jackknife', and is {method!r}")
        if self.multilabel_:
            raise ValueError("predict_set is for one label a row, and y was an indicator matrix")
        if not hasattr(self, "_rows"):
            raise ValueError(f"predict_set {NO_ROWS}")
        rows, codes, weights, of_classes = self._rows
        if method == "jackknife":
            scores = self._scores(X)
            p = rls.label_p_values(self.loo_predictions_, codes, scores, weights)
            return np.asarray(p) > 1 - level
        if rows is None:
            raise ValueError(
                "method='conformal' takes keep=True and a fit without groups, which are not "
                "exchangeable: or use method='jackknife'"
            )
        if not hasattr(self, "_conformal"):
            rows = rows.toarray() if scipy.sparse.issparse(rows) else rows
            made = rls.conformal_labels(self.path_, rows, codes, weights, of_classes)
            self._conformal = jax.tree.map(np.asarray, made)
        return self._conformal.p_values(self._checked(X, reset=False)) > 1 - level
