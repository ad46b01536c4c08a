"""Columns to mean 0 and standard deviation 1, whatever their units: squares of 1e200 or of 1e-170 would leave the range of numbers."""

from typing import Any

import numpy as np

CONSTANT = 1e-12  # of the largest entry: less than this is rounding
LEAST = np.finfo(np.float64).smallest_subnormal
NOTHING = -5000  # the exponent of a unit before there was any number: below that of all numbers


class Deviations:
    """Means and standard deviations of columns, weighted, from one block of rows after the other, in float64.

    Each column is held in units of a power of two, in which its largest entry so far is between ½ and 1: that rounds nothing.

    >>> import numpy as np
    >>> found = Deviations()
    >>> found.add(np.array([[1e200], [2e200]]))
    >>> found.add(np.array([[3e200]]), np.array([2.0]))
    >>> means, scales = found.known()
    >>> float(means[0]), round(float(scales[0] / 1e200), 3)
    (2.25e+200, 0.829)
    """

    def __init__(self):
        self.exponents: Any = NOTHING  # of the columns' units; of the weights' below
        self.unit: Any = NOTHING
        self.total, self.means, self.squares = 0.0, np.zeros(()), np.zeros(())  # squares about the means

    def add(self, X, weights=None) -> None:
        """Take in rows (b, d) and their weights (b,), all 1 where there are none."""
        if not len(X):
            return
        block, X = Deviations(), np.asarray(X, np.float64)
        shares = np.ones(len(X)) if weights is None else np.asarray(weights, np.float64)
        block.exponents, block.unit = exponents_of(X), exponents_of(shares)
        X, shares = np.ldexp(X, -block.exponents), np.ldexp(shares, -block.unit)
        block.total = shares.sum()
        if block.total > 0:
            block.means = np.average(X, axis=0, weights=shares)
            block.squares = shares @ (X - block.means) ** 2
        self.join(block)

    def join(self, other: "Deviations") -> None:
        """Take in what another has of other rows."""
        if not other.total > 0:
            return
        exponents, unit = np.maximum(self.exponents, other.exponents), np.maximum(self.unit, other.unit)
        before, means, squares = self._in_units(exponents, unit)
        weight, new_means, new_squares = other._in_units(exponents, unit)
        self.exponents, self.unit, self.total = exponents, unit, before + weight
        moved = new_means - means
        self.squares = squares + new_squares + moved**2 * (before * (weight / self.total))
        self.means = means + moved * (weight / self.total)

    def _in_units(self, exponents, unit):
        """Weight, means and squares in other units."""
        up, heavier = self.exponents - exponents, self.unit - unit
        return float(np.ldexp(self.total, heavier)), np.ldexp(self.means, up), np.ldexp(self.squares, 2 * up + heavier)

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every column; 1 for the deviation where a column is constant."""
        scales = np.sqrt(self.squares / (self.total or 1))
        varies = scales > CONSTANT
        scales = np.maximum(np.ldexp(scales, self.exponents), LEAST)
        return np.ldexp(self.means, self.exponents), np.where(varies, scales, 1.0)


def exponents_of(values) -> np.ndarray:
    """The power of two above the largest of each column."""
    largest = np.abs(values).max(axis=0)
    return np.where(largest > 0, np.frexp(largest)[1], NOTHING)


def standardise(X, means, scales) -> np.ndarray:
    """(X − means)/scales in the dtype of X, where no difference overflows."""
    exponents = np.frexp(scales)[1]
    with np.errstate(over="ignore"):  # what is too far away becomes infinite, and is told of as such
        wide, centre, unit = (np.ldexp(np.asarray(part, np.float64), -exponents) for part in (X, means, scales))
        return ((wide - centre) / unit).astype(X.dtype)
