"""What is known of a column of numbers, in any units."""

import numpy as np

from jaxrls.rows.deviations import Deviations


def standardisation(X, weights) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column in float64; 1 for the deviation where a column is constant."""
    spread = Deviations()
    spread.add(X, weights)
    return spread.known()


def rms(residual, weights=None) -> float:
    """√ of the mean square."""
    residual = np.abs(np.asarray(residual, np.float64))
    exponent = np.frexp(residual.max(initial=0.0))[1]
    shares = None if weights is None else weights / weights.max()
    return float(np.ldexp(np.sqrt(np.average(np.ldexp(residual, -exponent) ** 2, weights=shares)), exponent))
