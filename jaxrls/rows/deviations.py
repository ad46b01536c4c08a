"""Columns to mean 0 and standard deviation 1."""

from typing import Any

import numpy as np

CONSTANT = 1e-12  # of the largest entry: less than this is rounding


class Deviations:
    """Means and standard deviations of columns, weighted, from one block of rows after the other,
    in float64.

    >>> import numpy as np
    >>> found = Deviations()
    >>> found.add(np.array([[1.0], [2.0]]))
    >>> found.add(np.array([[3.0]]), np.array([2.0]))
    >>> means, scales = found.known()
    >>> float(means[0]), round(float(scales[0]), 3)
    (2.25, 0.829)
    """

    def __init__(self):
        self.total: Any = 0.0
        self.largest, self.means = np.zeros(()), np.zeros(())
        self.squares = np.zeros(())  # about the means

    def add(self, X, weights=None) -> None:
        """Take in rows (b, d) and their weights (b,), all 1 where there are none."""
        if not len(X):
            return
        block, X = Deviations(), np.asarray(X, np.float64)
        shares = np.ones(len(X)) if weights is None else np.asarray(weights, np.float64)
        block.total, block.largest = shares.sum(), np.abs(X).max(axis=0)
        if block.total > 0:
            block.means = np.average(X, axis=0, weights=shares)
            block.squares = shares @ (X - block.means) ** 2
        self.join(block)

    def join(self, other: "Deviations") -> None:
        """Take in what another has of other rows."""
        if not other.total > 0:
            return
        before, moved = self.total, other.means - self.means
        self.total = before + other.total
        share = other.total / self.total
        self.largest = np.maximum(self.largest, other.largest)
        self.squares = self.squares + other.squares + moved**2 * (before * share)
        self.means = self.means + moved * share

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every column; 1 for the deviation where a column is
        constant.
        """
        scales = np.sqrt(self.squares / (self.total or 1))
        return self.means, np.where(scales > CONSTANT * self.largest, scales, 1.0)


def standardise(X, means, scales) -> np.ndarray:
    """(X − means)/scales in the dtype of X."""
    with np.errstate(over="ignore"):  # what is too far away is infinite, and is told of as such
        return ((np.asarray(X, np.float64) - means) / scales).astype(X.dtype)
