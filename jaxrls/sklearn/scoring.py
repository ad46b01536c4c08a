"""From held-out predictions: λ by a scorer of scikit-learn, and probabilities by a sigmoid or by
isotonic regression.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import get_scorer

import jaxrls as rls
from jaxrls.core.fit import choose_lam
from jaxrls.core.support import public_call, warn


@public_call(fitted="fit.model.coef")
def left_out(fit: rls.extend.Fit):
    """Residuals (L, n) or (L, n, t) of each row by fits without it, or its group, at every λ."""
    held_out = _left_out(fit.solution, fit.kept.folds, jnp.asarray(fit.lams))
    return np.asarray(held_out)[:, : len(fit.loo_residuals)]  # without padding


@jax.jit
def _left_out(solution, groups, lams):
    """One λ after the other, as what is left out of all at once may not fit."""
    drop = solution.labels.drop_axis
    return jax.lax.map(
        lambda lam: drop(solution.held_out_residuals(lam.reshape(1, -1), groups))[0], lams
    )


@public_call(data="errors")
def best(lams, errors):
    """The λ of the smallest error (L,), or of each of several targets (L, t), and that error."""
    return choose_lam(jnp.asarray(lams), jnp.asarray(errors), per_target=True)


@public_call(data="Y")
def losses(loss, residuals, Y):
    """Those of every row and target."""
    both = (jnp.asarray(part.reshape(len(Y), -1)) for part in (residuals, Y))
    return np.asarray(loss(*both)).reshape(Y.shape)


class Regressed(RegressorMixin, BaseEstimator):
    """What a scorer takes for an estimator: predictions are given."""

    def predict(self, predictions):
        return predictions


class Classified(ClassifierMixin, BaseEstimator):
    """The same, of scores of classes, or of several labels at once."""

    def __init__(self, classes, several, calibrate):
        self.classes_ = classes
        self.several = several
        self.calibrate = calibrate

    def decision_function(self, scores):
        return scores

    def predict(self, scores):
        return labels(scores, self.classes_, self.several)

    def predict_proba(self, scores):
        """By a sigmoid, or a step function, fitted on what is scored."""
        return probabilities(self.calibrate(), scores, self.several)


def predicted(held_out):
    """Which rows have held-out predictions (n,) or (n, t): all but those that no split tests."""
    return ~np.isnan(held_out.reshape(len(held_out), -1)).any(axis=1)


def take(rows, *parts):
    """These rows of every part that there is."""
    return [part if part is None else part[rows] for part in parts]


def labels(scores, classes, several):
    """The label of the largest score, or 1 for every one of several labels whose score is above
    0.
    """
    return (scores > 0).astype(int) if several else rls.classes.decode(scores, classes)


class HeldOut(NamedTuple):
    """Rows left out: their predictions at every λ, labels, targets and weights, and folds where
    each is scored by itself.
    """

    predictions: Any  # (L, n) or (L, n, t)
    y: Any
    Y: Any
    weights: Any
    folds: Any

    def of_targets(self):
        """One target after another."""
        for t in range(self.Y.shape[1]):
            yield self._replace(predictions=self.predictions[..., t], y=self.y[:, t])


def scores(scoring, make, rows: HeldOut):
    """The score at every λ (L,): of all rows at once, or the mean of those of folds where there
    are; `make` makes an estimator of the predictions of all rows.
    """
    scorer = get_scorer(scoring)
    folds = rows.folds
    parts = [slice(None)] if folds is None else [folds == fold for fold in np.unique(folds)]

    def score(held_out, part):
        weighted = {} if rows.weights is None else {"sample_weight": rows.weights[part]}
        return scorer(make(held_out), held_out[part], rows.y[part], **weighted)

    by_lam = [[score(held_out, part) for part in parts] for held_out in rows.predictions]
    return np.mean(by_lam, axis=1)


def chosen(lams, errors, squares, scoring, by_fold):
    """The λ of the smallest error (L,), and that error; or of each of several targets (L, t), by
    squared errors where a score is no number at any λ, as that of a target that is constant.
    """
    bad = ~np.isfinite(errors)
    if errors.ndim == 1 and bad.any():
        remedy = "take folds in which it is defined, or leave by_fold= out"
        raise ValueError(
            f"the score of scoring={scoring!r} is not a number at {bad.sum()} of {len(bad)} λ: "
            f"{remedy if by_fold else 'take another, which is defined for these labels'}"
        )
    undefined = bad.all(axis=0)
    if undefined.any():
        warn(
            f"the score of scoring={scoring!r} is not a number for {undefined.sum()} of "
            f"{len(undefined)} targets, number {undefined.argmax()} the first: their λ are those "
            "of the smallest squared errors"
        )
    known = np.where(bad, np.inf, errors)
    lam, error = map(np.asarray, best(lams, np.where(undefined, squares, known)))
    return lam, np.where(undefined, np.nan, error)


class Isotonic:
    """A rising step function for each column of scores, with lines between, constant beyond the
    scores that it was made of.
    """

    def __init__(self, scores, codes, weights):
        self.columns = [
            IsotonicRegression(out_of_bounds="clip").fit(s, c > 0, sample_weight=weights)
            for s, c in zip(*map(np.atleast_2d, (scores.T, codes.T)), strict=True)
        ]

    def __call__(self, scores):
        columns = zip(self.columns, np.atleast_2d(scores.T), strict=True)
        return np.stack([column.predict(s) for column, s in columns], axis=1).reshape(scores.shape)


CALIBRATIONS: dict[str, Callable] = {"sigmoid": rls.classes.fit_sigmoid, "isotonic": Isotonic}


def probabilities(calibrated, scores, several):
    """Of all classes (m, T), or of every label by itself."""
    by_column = np.asarray(calibrated(scores))
    return by_column if several else rls.classes.class_probabilities(by_column)
