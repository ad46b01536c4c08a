"""Predictions of a fit without some of its rows.

All of them are solves with blocks of one matrix, the residual operator R. It is I minus the hat
matrix.
"""

from jaxrls.core.leave_out.view import (
    Constraints,
    DenseView,
    LowRankView,
    View,
    fold_residuals,
    landmark_of_row,
    levels_inside,
    members_of,
    orthonormal,
)
