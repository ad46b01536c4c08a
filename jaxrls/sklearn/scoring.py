"""λ by a scorer of scikit-learn's, on what is predicted for rows that are left out."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import get_scorer

import jaxrls as rls
from jaxrls.factors.contract import Solution
from jaxrls.search.conclude import fit_at
from jaxrls.search.estimate import of_problem
from jaxrls.search.grid import Choice
from jaxrls.search.kept import beside
from jaxrls.search.problem import Problem
from jaxrls.support.checks import as_array, check_lams
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
            given = (
                None if isinstance(lams, int) else as_array("lams", np.atleast_1d(lams), X.dtype)
            )
            if given is not None:
                check_lams(given, zero=True)
            of_problem(problem, solver=problem.solver or rls.Spectral()).check()
            solution = jax.block_until_ready(_solved(problem))
            factor = solution.factor
            lams = np.asarray(_grid(factor) if given is None else factor.with_floor(given))
            each = [
                np.asarray(_left_out(solution, problem.criterion.groups, lam))
                for lam in jnp.asarray(lams)
            ]
            return cls(problem, solution, lams, Y - np.stack(each))

    def fit(self, lam, keep: bool | None) -> rls.Fit:
        """That of λ, or of one for each target, from the same factor."""
        problem, solution = self.problem, self.solution
        with scope(self.lams.dtype == np.float64):
            choice = Choice(problem.criterion, self.lams, per_target=np.ndim(lam) > 0)
            return to_host(beside(fit_at(problem, solution, lam), problem, solution, choice, keep))


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
        return np.asarray(
            loss(*(jnp.asarray(part.reshape(len(Y), -1)) for part in (residuals, Y)))
        ).reshape(Y.shape)


class Regressed(RegressorMixin, BaseEstimator):
    """What a scorer takes for an estimator: predictions are given."""

    def predict(self, predictions):
        return predictions


class Classified(ClassifierMixin, BaseEstimator):
    """The same, of scores of classes, or of several labels at once."""

    def __init__(self, classes, several):
        self.classes_ = classes
        self.several = several

    def decision_function(self, scores):
        return scores

    def predict(self, scores):
        return (scores > 0).astype(int) if self.several else rls.decode(scores, self.classes_)


def scores(scoring, estimator, predictions, y, weights, folds):
    """The score at every λ (L,): of all rows at once, or the mean of those of folds where there
    are.
    """
    scorer, parts = (
        get_scorer(scoring),
        [slice(None)] if folds is None else [folds == fold for fold in np.unique(folds)],
    )

    def score(held, part):
        return scorer(
            estimator,
            held[part],
            y[part],
            **({} if weights is None else {"sample_weight": weights[part]}),
        )

    found = np.array([np.mean([score(held, part) for part in parts]) for held in predictions])
    if not np.isfinite(found).all():
        where = (
            ""
            if folds is None
            else " in some fold: make folds in which it is defined, or leave by_fold= out"
        )
        raise ValueError(
            f"the score of scoring={scoring!r} is not a number at {int((~np.isfinite(found)).sum())} of {len(found)} λ{where}"
        )
    return found


def best(lams, scores):
    """The place of the largest score, of equal ones that of the largest λ."""
    return max(range(len(lams)), key=lambda i: (scores[i], lams[i]))


def scores_by_target(scoring, predictions, y, weights, folds):
    """Those of each target by itself, (L, t)."""
    score = partial(scores, scoring, Regressed(), weights=weights, folds=folds)
    return np.stack([score(predictions[:, :, t], y[:, t]) for t in range(y.shape[1])], axis=1)
