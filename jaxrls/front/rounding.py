"""`rounding_of` estimates how far rounding moves held-out residuals of single rows.

By it `run` and `tune` decide whether to try a larger λ, and `inspection` warns. Other functions say
whether λ is below the floor, and whether K is indefinite beyond rounding.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxrls.core.fit import Problem, Result

# Rounding may move held-out residuals of single rows by this share of their root mean square
# without a warning, by bytes of the dtype. Data whose best λ is near the floor are usual in
# float32, and rare in float64.
LARGEST_ROUNDING = {4: 0.1, 8: 0.02}


class Rounding(NamedTuple):
    """How far rounding may move held-out residuals of single rows, and how far is acceptable.

    `share` and `acceptable` are shares of the root mean square of the residuals. From `sound_lam`
    on, residuals are right to `acceptable`, for any degrees of freedom.
    """

    share: float
    acceptable: float
    sound_lam: float

    @property
    def is_too_large(self) -> bool:
        """Whether rounding may move residuals by more than is acceptable."""
        return self.share > self.acceptable


def rounding_of(result: Result) -> Rounding:
    """Return how far rounding may move held-out residuals of single rows of a fit."""
    acceptable = LARGEST_ROUNDING[np.asarray(result.chosen.lam).dtype.itemsize]
    sound_lam = float(result.diagnostics.floor) / acceptable
    return Rounding(_share_of_rounding(result), acceptable, sound_lam)


def _share_of_rounding(result: Result) -> float:
    """Return how far rounding may move residuals, as a share of their root mean square.

    It is 0 for a fit that did not factor K of all rows, or that stores weights of features in
    place of coefficients of the rows. The estimate has three steps:

    * Rounding adds a matrix E of random entries to K, and so changes R = λP̃ by RER/λ.
    * If most eigenvalues of K are below λ, R is close to a projection. Then residuals move by
      floor/λ of their root mean square, as measured.
    * If f has many degrees of freedom, residuals move less, by the factor 1 − dof/n, where n counts
      rows of positive weight. Below the floor, dof is rounding too, so the factor is not taken.
    """
    diagnostics = result.diagnostics
    rows_are_points = result.function.points is not None and not diagnostics.num_landmarks
    if not rows_are_points or diagnostics.run is not None:  # an iteration has no factor of K
        return 0.0
    lam = np.asarray(result.chosen.lam)
    floor = float(diagnostics.floor)
    factor: Any = 1.0
    if diagnostics.dof is not None:
        left = 1 - np.asarray(diagnostics.dof) / float(diagnostics.num_rows)
        factor = np.where(is_below_floor(lam, floor), 1, np.clip(left, 0, 1))
    return float(np.max(factor * floor / lam))


def is_below_floor(lams: Any, floor: Any) -> Any:
    """Whether each λ is below the floor, by more than 1 %: the ends of a grid are rounded."""
    return lams < 0.99 * floor


def is_at_floor(lams: Any, floor: Any) -> Any:
    """Whether each λ is at the floor to 1 %, or below it."""
    return lams <= 1.01 * floor


def is_indefinite(result: Result) -> bool:
    """Whether K has a negative eigenvalue that is larger than rounding.

    Only a spectrum of K shows it.
    """
    diagnostics = result.diagnostics
    if diagnostics.indefinite is None or diagnostics.loo_residuals is None:
        return False
    rounding = 100 * float(np.finfo(result.function.coef.dtype).eps)
    return float(diagnostics.indefinite) > float(diagnostics.num_rows) * rounding


def is_as_good(larger: Any, error: Any, share: float, problem: Problem) -> bool:
    """Whether the error at a larger λ is about as good as the error at a λ near the floor.

    The error at the larger λ may be larger by 1 %. It may also be larger by a tenth of `share`, the
    share of `Rounding` near the floor, but by at most 10 %: there the error itself is too small by
    about that much. A likelihood of all rows may be worse by half a nat.
    """
    problem = problem.in_units_of(error)
    more = problem.to_search(larger) - problem.to_search(error)
    most = 0.01 + 0.1 * min(share, 1.0)
    if problem.criterion.is_likelihood:
        most = 0.5 / float(problem.weights.count)
    return bool(more <= most)
