"""What held-out scores say of new ones: probabilities, by the library's sigmoid or scikit-learn's
isotonic regression, and sets of labels.
"""

from collections.abc import Callable
from functools import cached_property

import jax
import numpy as np
import scipy.sparse
from sklearn.isotonic import IsotonicRegression

import jaxrls as rls


class Isotonic:
    """A rising step function for each column of scores, with lines between, constant beyond the
    scores that it was made of.
    """

    def __init__(self, scores, codes, weights):
        columns = zip(
            scores.reshape(len(scores), -1).T, codes.reshape(len(codes), -1).T, strict=True
        )
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


def probabilities(calibrated, scores, multilabel: bool):
    """Of all classes (m, T), or of every label by itself."""
    each = np.asarray(calibrated(scores))
    return each if multilabel else rls.class_probabilities(each)


def jackknife(left_out, codes, weights, scores):
    """p-values of all labels (m, T) by scores of rows left out."""
    return np.asarray(rls.label_p_values(left_out, codes, scores, weights))


class Conformal:
    """What p-values of full conformal prediction take: made when they are first asked for, of rows
    that have been fitted.
    """

    def __init__(self, fit, X, codes, weights, of_classes):
        self.given = fit, X, codes, weights, of_classes

    @cached_property
    def labels(self):
        fit, X, *rest = self.given
        points = X.toarray() if scipy.sparse.issparse(X) else X
        return jax.tree.map(np.asarray, rls.conformal_labels(fit, points, *rest))

    def __call__(self, X):
        return self.labels.p_values(X)
