"""What the estimators compute from held-out predictions.

λ is chosen by a scorer of scikit-learn (`scores`, `chosen`). Probabilities come from a sigmoid or
from isotonic regression (`CALIBRATIONS`).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import get_scorer

import jaxrls as rls
from jaxrls.core.data import Folds
from jaxrls.core.factors import Solution
from jaxrls.core.fit import Numbers, choose_lam
from jaxrls.core.support import public_call, warn


@public_call(fitted="fit.model.coef")
def left_out(fit: rls.extend.Fit) -> np.ndarray:
    """Compute the held-out residuals of every row for every λ, (L, n) or (L, n, t).

    Each row is left out alone, or with its group if the fit has groups.
    """
    held_out = _left_out(fit.solution, fit.kept.folds, jnp.asarray(fit.lams))
    return np.asarray(held_out)[:, : len(fit.loo_residuals)]  # without padding


@jax.jit
def _left_out(
    solution: Solution, groups: Folds | None, lams: Float[Array, "L *k"]
) -> Float[Array, "L n *t"]:
    """Compute the residuals for one λ after the other, as all at once may not fit into memory."""
    drop = solution.labels.drop_axis
    return jax.lax.map(
        lambda lam: drop(solution.held_out_residuals(lam.reshape(1, -1), groups))[0], lams
    )


@public_call(data="errors")
def best(lams: Any, errors: Any) -> tuple[Any, Any]:
    """Return the λ of the smallest error, and this error.

    From errors (L,) both are one number, from errors (L, t) one number for each target.
    """
    return choose_lam(jnp.asarray(lams), jnp.asarray(errors), per_target=True)


@public_call(data="Y")
def losses(loss: Callable, residuals: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return the loss of every row and target, in the shape of Y."""
    both = (jnp.asarray(part.reshape(len(Y), -1)) for part in (residuals, Y))
    return np.asarray(loss(*both)).reshape(Y.shape)


class Regressed(RegressorMixin, BaseEstimator):
    """A stand-in for a regressor that scorers accept.

    Scorers pass held-out predictions as X. Its `predict` returns them.
    """

    def predict(self, predictions: np.ndarray) -> np.ndarray:
        return predictions


class Classified(ClassifierMixin, BaseEstimator):
    """A stand-in for a classifier that scorers accept.

    Scorers pass held-out scores as X. Its methods turn them into labels and probabilities.
    `several` says whether each column is a label by itself, as for an indicator matrix.
    """

    def __init__(self, classes: np.ndarray, several: bool, calibrate: Callable):
        self.classes_ = classes
        self.several = several
        self.calibrate = calibrate

    def decision_function(self, scores: np.ndarray) -> np.ndarray:
        return scores

    def predict(self, scores: np.ndarray) -> np.ndarray:
        return labels(scores, self.classes_, self.several)

    def predict_proba(self, scores: np.ndarray) -> np.ndarray:
        """Return probabilities, by a function that is fitted to the very scores that are judged."""
        return probabilities(self.calibrate(), scores, self.several)


def predicted(held_out: np.ndarray) -> np.ndarray:
    """Return a mask (n,): whether each row has held-out predictions, from these (n,) or (n, t).

    Rows that no split tests have none, and are NaN.
    """
    return ~np.isnan(held_out.reshape(len(held_out), -1)).any(axis=1)


def take(rows: np.ndarray, *parts) -> list:
    """Return the given rows of every part, and None for a part that is None."""
    return [part if part is None else part[rows] for part in parts]


def labels(scores: np.ndarray, classes: np.ndarray, several: bool) -> np.ndarray:
    """Return the label of the largest score of each row.

    If `several`, return 1 for every score above 0, and else 0.
    """
    return (scores > 0).astype(int) if several else rls.classes.decode(scores, classes)


class HeldOut(NamedTuple):
    """The held-out predictions of rows for every λ, with what scorers compare them with."""

    predictions: Any  # (L, n) or (L, n, t)
    labels: Any  # as the caller gave them
    targets: Any  # the numbers or ±1 codes that were fitted
    weights: Any  # sample weights (n,), or None
    folds: Any  # the number of each row's fold if each fold is scored by itself, else None

    def of_targets(self) -> Iterator["HeldOut"]:
        """Yield the rows with one target after another."""
        for t in range(self.targets.shape[1]):
            yield self._replace(
                predictions=self.predictions[..., t],
                labels=self.labels[:, t],
                targets=self.targets[:, t],
            )


def scores(scoring: Any, make: Callable, rows: HeldOut) -> np.ndarray:
    """Compute the score for every λ, (L,).

    Args:
        scoring: a scorer of scikit-learn, or its name.
        make: a function from held-out predictions of all rows to the estimator that is scored.
        rows: the held-out predictions. With folds, the score is the mean of their scores.
    """
    scorer = get_scorer(scoring)
    folds = rows.folds
    parts = [slice(None)] if folds is None else [folds == fold for fold in np.unique(folds)]

    def score(held_out: np.ndarray, part: slice | Bool[Numbers, " n"]) -> Any:
        weighted = {} if rows.weights is None else {"sample_weight": rows.weights[part]}
        return scorer(make(held_out), held_out[part], rows.labels[part], **weighted)

    by_lam = [[score(held_out, part) for part in parts] for held_out in rows.predictions]
    return np.mean(by_lam, axis=1)


def chosen(
    lams: np.ndarray, errors: np.ndarray, squares: np.ndarray, scoring: Any, by_fold: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the λ of the smallest error.

    For one λ (L,), raise if an error is not a number. For a λ of each target (L, t), squared errors
    choose the λ of a target whose errors are not numbers at any λ, with a warning. This happens for
    a constant target.

    Args:
        lams: λ (L,), or (L, t).
        errors: minus the scores, (L,), or (L, t) to choose a λ for each target.
        squares: mean squared errors of the same shape.
        scoring: the scorer, for messages.
        by_fold: whether the scores are means over folds, for messages.

    Returns:
        The λ and its error, one of each or (t,).
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
    """Isotonic regression from scores to probabilities, for each column of scores by itself.

    The function is piecewise linear and does not fall. It is constant beyond the scores to which it
    was fitted.
    """

    def __init__(self, scores: np.ndarray, codes: np.ndarray, weights: np.ndarray | None):
        self.columns = [
            IsotonicRegression(out_of_bounds="clip").fit(s, c > 0, sample_weight=weights)
            for s, c in zip(*map(np.atleast_2d, (scores.T, codes.T)), strict=True)
        ]

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        columns = zip(self.columns, np.atleast_2d(scores.T), strict=True)
        return np.stack([column.predict(s) for column, s in columns], axis=1).reshape(scores.shape)


CALIBRATIONS: dict[str, Callable] = {"sigmoid": rls.classes.fit_sigmoid, "isotonic": Isotonic}


def probabilities(calibrated: Callable, scores: np.ndarray, several: bool) -> np.ndarray:
    """Return probabilities from scores.

    Args:
        calibrated: a function from scores to probabilities, column by column.
        scores: (m,) for two classes, else (m, t).
        several: whether each column is a label by itself. Otherwise the probabilities of all
            classes, (m, n_classes), are scaled so that they add up to 1.
    """
    by_column = np.asarray(calibrated(scores))
    return by_column if several else rls.classes.class_probabilities(by_column)
