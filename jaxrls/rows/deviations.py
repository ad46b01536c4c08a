"""Columns to mean 0 and standard deviation 1."""

from typing import Any, NamedTuple

import numpy as np

CONSTANT = 1e-12  # of the mean: less than this is rounding


class Deviations(NamedTuple):
    """Means and standard deviations of columns, weighted, from one block of rows after the other,
    in float64.

    >>> import numpy as np
    >>> first, second = np.array([[1.0], [2.0]]), np.array([[3.0]])
    >>> means, scales = Deviations.of(first).join(Deviations.of(second, np.array([2.0]))).known()
    >>> float(means[0]), round(float(scales[0]), 3)
    (2.25, 0.829)
    """

    total: Any = 0.0
    means: Any = 0.0
    squares: Any = 0.0  # about the means

    @classmethod
    def of(cls, X, weights=None) -> "Deviations":
        """Those of rows (b, d) with weights (b,), all 1 where there are none."""
        X = np.asarray(X, np.float64)
        shares = np.ones(len(X)) if weights is None else np.asarray(weights, np.float64)
        if not shares.sum() > 0:
            return cls()
        means = np.average(X, axis=0, weights=shares)
        return cls(shares.sum(), means, shares @ (X - means) ** 2)

    def join(self, other: "Deviations") -> "Deviations":
        """Those of both."""
        if not other.total > 0:
            return self
        total, moved = self.total + other.total, other.means - self.means
        share = other.total / total
        squares = self.squares + other.squares + moved**2 * (self.total * share)
        return Deviations(total, self.means + moved * share, squares)

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every column; 1 for the deviation where a column is
        constant.
        """
        scales = np.sqrt(self.squares / (self.total or 1))
        return self.means, np.where(scales > CONSTANT * np.abs(self.means), scales, 1.0)


def standardise(X, means, scales) -> np.ndarray:
    """(X − means)/scales in the dtype of X."""
    with np.errstate(over="ignore"):  # what is too far away is infinite, and is told of as such
        return ((np.asarray(X, np.float64) - means) / scales).astype(X.dtype)
