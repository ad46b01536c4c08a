"""What is known of a column of numbers."""

import numpy as np

from jaxrls.rows.deviations import Deviations
from jaxrls.support.checks import check_squares


def standardisation(X, weights) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column in float64; 1 for the deviation where a column is
    constant.
    """
    check_squares("X", X)
    return Deviations.of(X, weights).known()


def rms(residual, weights=None) -> float:
    """√ of the mean square."""
    return float(np.sqrt(np.average(np.asarray(residual, np.float64) ** 2, weights=weights)))
