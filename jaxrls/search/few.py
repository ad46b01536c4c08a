"""Few of the rows to begin a search on: a step on all of them costs many times as much, and most steps are far from the end."""

from dataclasses import dataclass, replace

import numpy as np

from jaxrls.factors.weights import Weights
from jaxrls.kernels.kernel import Kernel
from jaxrls.rows.rows import DenseRows
from jaxrls.search.problem import Problem, resolve_landmarks
from jaxrls.search.start import sample

ROWS = 4000  # as many tell widths apart, and resolve most of what all rows do
LANDMARKS = 500  # likewise
DEAR = 1e9  # rows times landmarks²: below it all steps together take less than the compilation of a second program


@dataclass(frozen=True)
class Few:
    """A problem on some of the rows, and how many landmarks to choose from them."""

    problem: Problem
    landmarks: int

    @property
    def sizes(self) -> tuple[int, int]:
        """How many rows and landmarks."""
        return len(self.problem.Y), self.landmarks

    def with_landmarks(self, kernel: Kernel, progress: bool) -> Problem:
        """The problem with landmarks chosen by that kernel."""
        some = self.problem
        return replace(some, landmarks=resolve_landmarks(kernel, some.rows, self.landmarks, some.weights, progress))


def few_rows(problem: Problem, landmarks, grow: bool | None) -> Few | None:
    """The problem to begin with, the same rows every time, or None where the search begins on all.

    With `grow` None only where a step on all is dear. Its rows are drawn by chance in proportion to their weights.
    """
    m = np.shape(landmarks.points if hasattr(landmarks, "points") else landmarks)
    m = 0 if landmarks is None or isinstance(landmarks, str) else int(landmarks) if m == () else m[0]
    n, criterion = problem.rows.count, problem.criterion
    able = bool(m) and n > 2 * ROWS and criterion.any_factor and criterion.groups is None and problem.free is None
    if grow and not able:
        raise ValueError(
            f"grow=True begins on {ROWS} of the rows, and needs landmarks, more than {2 * ROWS} rows and a criterion without groups, and no "
            "unpenalized=: leave it out"
        )
    if grow is False or not able or not grow and n * m**2 < DEAR:
        return None
    X, Y, v = problem.sample()
    used = np.arange(len(X)) if v is None else np.flatnonzero(np.asarray(v) > 0)
    rows, counted = sample(np.random.default_rng(0).permutation(used), v, ROWS)
    some = replace(problem, rows=DenseRows(X[rows]), Y=Y[rows], weights=Weights.of(counted, len(rows), X.dtype))
    return Few(some, min(m, LANDMARKS))
