"""What held-out scores say of new ones: probabilities, by the library's sigmoid or scikit-learn's isotonic regression, and sets of labels."""

from collections.abc import Callable

import jax
import numpy as np
import scipy.sparse
from sklearn.isotonic import IsotonicRegression

import jaxrls as rls
from jaxrls.support.precision import scope

fit_sigmoid, label_p_values = jax.jit(rls.fit_sigmoid), jax.jit(rls.label_p_values)


class Isotonic:
    """A rising step function for each column of scores, with lines between, constant beyond the scores that it was made of."""

    def __init__(self, scores, codes, weights):
        columns = zip(scores.reshape(len(scores), -1).T, codes.reshape(len(codes), -1).T, strict=True)
        self.columns = [IsotonicRegression(out_of_bounds="clip").fit(s, c > 0, sample_weight=weights) for s, c in columns]

    def __call__(self, scores):
        each = zip(self.columns, scores.reshape(len(scores), -1).T, strict=True)
        return np.stack([column.predict(s) for column, s in each], axis=1).reshape(scores.shape)


def sigmoid(scores, codes, weights):
    """That of `rls.fit_sigmoid`, in the precision of the scores."""
    with scope(scores.dtype == np.float64):
        return jax.tree.map(np.asarray, fit_sigmoid(scores, codes, weights))


CALIBRATIONS: dict[str, Callable] = {"sigmoid": sigmoid, "isotonic": Isotonic}


def probabilities(calibrated, scores, multilabel: bool):
    """Of all classes (m, T), or of every label by itself."""
    with scope(scores.dtype == np.float64):
        each = np.asarray(calibrated(scores))
    return each if multilabel else rls.class_probabilities(each)


def jackknife(left_out, codes, weights, scores):
    """p-values of all labels (m, T) by scores of rows left out."""
    with scope(scores.dtype == np.float64):
        return np.asarray(label_p_values(left_out, codes, scores, weights))


def conformal(fit, X, codes, weights, of_classes):
    """What p-values of full conformal prediction take."""
    points = X.toarray() if scipy.sparse.issparse(X) else X
    return jax.tree.map(np.asarray, rls.conformal_labels(fit, points, codes, weights, of_classes))
