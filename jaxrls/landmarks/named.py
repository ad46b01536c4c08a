"""Turn the argument `landmarks=` of public calls into a solver."""

from functools import singledispatch
from typing import Any

from jaxrls.core.factors import SOLVER_OF_OPTION, Cholesky, Solver, Spectral
from jaxrls.landmarks.enough import CHOOSES_SOLVER, Enough
from jaxrls.landmarks.solver import Subset


def solver_on(landmarks: Any, solver: Solver | None, leave: bool = True) -> Solver:
    """Return the solver on landmarks, given the solver that the user named, or None."""
    if isinstance(landmarks, str) and landmarks == "auto":
        if solver is not None:
            raise ValueError(CHOOSES_SOLVER)
        return Enough()
    return solver_with_landmarks(solver, landmarks, leave)


@singledispatch
def solver_with_landmarks(solver: Solver | None, landmarks: Any, leave: bool) -> Solver:
    """Return the version on landmarks of the solver that the user named, or None for the default.

    A room with a further solver registers its version here.
    """
    if not isinstance(solver, Spectral | Cholesky | None) or getattr(solver, "of", None):
        raise ValueError(
            f"landmarks= cannot be used with {solver}, which fits all of K: leave one of them out"
        )
    return Subset(landmarks, isinstance(solver, Cholesky), leave)


SOLVER_OF_OPTION["landmarks"] = solver_on
