"""Make `Landmarks` from what the caller gave: their number, row numbers, or points."""

from typing import Any

import numpy as np

from jaxrls.core.data import Rows, Weights
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import check_whole
from jaxrls.landmarks.choice import choose_landmarks
from jaxrls.landmarks.points import Landmarks, as_landmarks, check_evaluable


def resolve_landmarks(
    kernel: Kernel,
    rows: Rows,
    landmarks: Any,
    weights: Weights,
    progress: bool = False,
    tol: float | None = None,
) -> Landmarks:
    """Make `Landmarks` from what the caller gave, checked where values are known.

    For a number, this many rows are chosen, the same ones every time. With `tol` too, the choice
    ends as soon as the rows miss at most this share of the trace.
    """
    check_evaluable(kernel, rows)
    if isinstance(landmarks, Landmarks) or np.ndim(landmarks):
        return as_landmarks(rows, landmarks)
    most = rows.candidates()[1].shape[0]
    check_whole("landmarks, as their number, or 'auto' in fit,", landmarks, most)
    return choose_landmarks(
        kernel,
        rows,
        int(landmarks),
        tol=tol,
        weights=weights.values,
        progress=progress,
    )
