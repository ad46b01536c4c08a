"""Columns to mean 0 and standard deviation 1, whatever their units: squares of 1e200 or of 1e-170 would leave the range of numbers."""

import numpy as np

CONSTANT = 1e-12  # of the largest entry: less than this is rounding


def standardisation(X, weights) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column in float64; 1 for the deviation where a column is constant."""
    X = np.asarray(X, np.float64)
    exponents = np.frexp(np.abs(X).max(axis=0))[1]
    scaled = np.ldexp(X, -exponents)  # by a power of two, which rounds nothing: the largest entry is between 1/2 and 1
    shares = np.full(len(X), 1.0) if weights is None else weights / weights.max()
    means = np.average(scaled, axis=0, weights=shares)
    scales = np.sqrt(np.average((scaled - means) ** 2, axis=0, weights=shares))
    varies = scales > CONSTANT
    scales = np.maximum(np.ldexp(scales, exponents), np.finfo(np.float64).smallest_subnormal)
    return np.ldexp(means, exponents), np.where(varies, scales, 1.0)


def standardise(X, means, scales) -> np.ndarray:
    """(X − means)/scales in the dtype of X, where no difference overflows."""
    exponents = np.frexp(scales)[1]
    with np.errstate(over="ignore"):  # what is too far away becomes infinite, and is told of as such
        wide, centre, unit = (np.ldexp(np.asarray(part, np.float64), -exponents) for part in (X, means, scales))
        return ((wide - centre) / unit).astype(X.dtype)


def rms(residual, weights=None) -> float:
    """√ of the mean square."""
    residual = np.abs(np.asarray(residual, np.float64))
    exponent = np.frexp(residual.max(initial=0.0))[1]
    shares = None if weights is None else weights / weights.max()
    return float(np.ldexp(np.sqrt(np.average(np.ldexp(residual, -exponent) ** 2, weights=shares)), exponent))
