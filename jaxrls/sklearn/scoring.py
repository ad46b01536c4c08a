"""What is made of predictions of rows left out: λ by a scorer of scikit-learn's, and
probabilities, by the library's sigmoid or scikit-learn's isotonic regression.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import get_scorer

import jaxrls as rls
from jaxrls.factors.contract import Solution
from jaxrls.search.conclude import fit_at
from jaxrls.search.estimate import of_problem
from jaxrls.search.grid import Choice
from jaxrls.search.kept import beside
from jaxrls.search.plan import as_lams
from jaxrls.search.problem import Problem
from jaxrls.support.precision import scope, to_host


class Swept(NamedTuple):
    """A problem that was factored once, and what all of it takes: λ, or the grid from the spectrum,
    and predictions (L, n) or (L, n, t) of each row by fits without it, or its group."""

    problem: Problem
    solution: Solution
    lams: np.ndarray
    held: np.ndarray

    @classmethod
    def of(cls, kernel, X, Y, lams, **options) -> "Swept":
        """Options as of `rls.fit`."""
        with scope(X.dtype == np.float64):
            problem = Problem.of(kernel, X, Y, **options)
            given = as_lams(lams, problem)
            of_problem(problem, solver=problem.solver or rls.Spectral()).check()
            solution = _solved(problem)
            factor = solution.factor
            grid = _grid(factor) if isinstance(given, int) else factor.with_floor(given)
            each = [np.asarray(_left_out(solution, problem.criterion.groups, lam)) for lam in grid]
            return cls(problem, solution, np.asarray(grid), Y - np.stack(each))

    def fit(self, lam, keep: bool | None) -> rls.Fit:
        """That of λ, or of one for each target, from the same factor."""
        problem, solution = self.problem, self.solution
        with scope(self.lams.dtype == np.float64):
            choice = Choice(problem.criterion, self.lams, per_target=np.ndim(lam) > 0)
            return to_host(beside(fit_at(problem, solution, lam), solution, problem, choice, keep))


@jax.jit
def _solved(problem):
    return problem.solution()


_grid = jax.jit(rls.lambda_grid)


@jax.jit
def _left_out(solution, groups, lam):
    """One λ at a time, as what is left out of all at once may not fit."""
    return solution.labels.drop_axis(solution.residuals(lam.reshape(1, -1), groups))[0]


def losses(loss, residuals, Y):
    """Those of every row and target."""
    with scope(Y.dtype == np.float64):
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
        return (scores > 0).astype(int) if self.several else rls.decode(scores, self.classes_)

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
    """That of `rls.fit_sigmoid`."""
    return jax.tree.map(np.asarray, rls.fit_sigmoid(scores, codes, weights))


CALIBRATIONS: dict[str, Callable] = {"sigmoid": sigmoid, "isotonic": Isotonic}


def probabilities(calibrated, scores, several: bool):
    """Of all classes (m, T), or of every label by itself."""
    each = np.asarray(calibrated(scores))
    return each if several else rls.class_probabilities(each)
