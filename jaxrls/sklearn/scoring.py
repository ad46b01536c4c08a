"""From held-out predictions: λ by a scorer of scikit-learn, and probabilities by a sigmoid or by
isotonic regression.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import get_scorer

import jaxrls as rls
from jaxrls.core.fit import choose_lam
from jaxrls.core.support import door


@door("fit.model.coef")
def left_out(fit: rls.extend.Fit):
    """Residuals (L, n) or (L, n, t) of each row by fits without it, or its group, at every λ."""
    found = _left_out(fit.solution, fit.groups, jnp.asarray(fit.lams))
    return np.asarray(found)[:, : len(fit.loo_residuals)]  # without padding


@jax.jit
def _left_out(solution, groups, lams):
    """One λ after the other, as what is left out of all at once may not fit."""
    drop = solution.labels.drop_axis
    return jax.lax.map(lambda lam: drop(solution.residuals(lam.reshape(1, -1), groups))[0], lams)


@door("errors")
def best(lams, errors):
    """The λ of the smallest error (L,), or of each of several targets (L, t), and that error."""
    return choose_lam(jnp.asarray(lams), jnp.asarray(errors), per_target=True)


@door("Y")
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

    def __init__(self, classes, several, calibrated):
        self.classes_, self.several, self.calibrated = classes, several, calibrated

    def decision_function(self, scores):
        return scores

    def predict(self, scores):
        return (
            (scores > 0).astype(int) if self.several else rls.classes.decode(scores, self.classes_)
        )

    def predict_proba(self, scores):
        """By a sigmoid, or a step function, fitted on what is scored."""
        return probabilities(self.calibrated(), scores, self.several)


def scores(scoring, of, predictions, y, weights, folds):
    """The score at every λ (L,): of all rows at once, or the mean of those of folds where there
    are; `of` makes an estimator of the predictions of all rows.
    """
    scorer = get_scorer(scoring)
    parts = [slice(None)] if folds is None else [folds == fold for fold in np.unique(folds)]

    def score(held, part):
        weighted = {} if weights is None else {"sample_weight": weights[part]}
        return scorer(of(held), held[part], y[part], **weighted)

    found = np.array([np.mean([score(held, part) for part in parts]) for held in predictions])
    if not np.isfinite(found).all():
        raise ValueError(
            f"the score of scoring={scoring!r} is not a number at {(~np.isfinite(found)).sum()} of "
            f"{len(found)} λ: take folds in which it is defined, or leave by_fold= out"
        )
    return found


class Isotonic:
    """A rising step function for each column of scores, with lines between, constant beyond the
    scores that it was made of.
    """

    def __init__(self, scores, codes, weights):
        columns = zip(*(part.reshape(len(part), -1).T for part in (scores, codes)), strict=True)
        self.columns = [
            IsotonicRegression(out_of_bounds="clip").fit(s, c > 0, sample_weight=weights)
            for s, c in columns
        ]

    def __call__(self, scores):
        each = zip(self.columns, scores.reshape(len(scores), -1).T, strict=True)
        return np.stack([column.predict(s) for column, s in each], axis=1).reshape(scores.shape)


def sigmoid(scores, codes, weights):
    """That of `jaxrls.classes.fit_sigmoid`."""
    return jax.tree.map(np.asarray, rls.classes.fit_sigmoid(scores, codes, weights))


CALIBRATIONS: dict[str, Callable] = {"sigmoid": sigmoid, "isotonic": Isotonic}


def probabilities(calibrated, scores, several: bool):
    """Of all classes (m, T), or of every label by itself."""
    each = np.asarray(calibrated(scores))
    return each if several else rls.classes.class_probabilities(each)
