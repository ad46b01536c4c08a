"""Predictions of a fit without some of its rows, all of them solves with blocks of one matrix, the
residual operator R = I − H."""

from jaxrls.core.leave_out.view import (
    Constraints,
    DenseView,
    LowRankView,
    View,
    fold_residuals,
    landmark_of_row,
    levels_inside,
    orthonormal,
)
