"""Search for a kernel on landmarks, for `tune`, beginning on a sample of the rows.

The sample is used if a step on all rows costs many times as much. The history of the search holds
the earlier searches as stages.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxrls.core.fit import Problem
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import check_whole
from jaxrls.front import (
    CANNOT_GROW,
    SAMPLE_ROWS,
    Guesses,
    Sample,
    SearchOptions,
    Stage,
    Tuned,
    descend,
    sample_of,
)
from jaxrls.landmarks.choice import resolve_landmarks
from jaxrls.landmarks.points import Landmarks, as_landmarks

# The landmarks of the first stage. They show most of what more landmarks show, in a quarter of the
# time.
LANDMARKS = 250
# Rows for each landmark in the second stage. They bring the best kernel near that of all rows.
ROWS_A_LANDMARK = 16
# The value of rows · landmarks² below which all steps take less time than compiling a second
# program.
DEAR = 1e9
# How many landmarks a kernel is tuned on if the number for the fit is chosen later.
LANDMARKS_TO_TUNE = 500


def landmarks_to_tune(landmarks: Any, n: int) -> Any:
    """Return the landmarks on which to tune a kernel for a fit to n rows.

    "auto" needs a kernel, so it becomes a number, or None for few rows.
    """
    if not isinstance(landmarks, str):
        return landmarks
    return LANDMARKS_TO_TUNE if n > 4 * LANDMARKS_TO_TUNE else None


def begins_on_few(problem: Problem, m: int, grow: bool | None) -> bool:
    """Whether the search begins on a sample of the rows.

    With `grow=None` it does so only if a step on all rows is expensive. `grow=True` raises if the
    problem does not allow it.
    """
    n = problem.rows.count
    able = n > 2 * SAMPLE_ROWS and problem.criterion.fits_samples and not problem.fixed.are_given
    if grow and not able:
        raise ValueError(CANNOT_GROW)
    return bool(able and grow is not False and (grow or n * m**2 >= DEAR))


def search_in_stages(
    whole: Problem, solver: Any, guesses: Guesses, options: SearchOptions
) -> Tuned:
    """Search on few rows, then on the final landmarks with some rows for each, then on all rows.

    The second stage has `more` rows. It is left out unless SAMPLE_ROWS < `more` ≤ n/3. Each stage
    starts where the stage before it ended.
    """
    n = len(whole.Y)
    m = solver.count
    more = ROWS_A_LANDMARK * m
    end_of = lambda stage: guesses.best._replace(kernel=stage.kernel, lam=stage.lam)

    # 1. Few rows, and few landmarks.
    first, record = on_few_rows(whole, solver, min(m, LANDMARKS), guesses, options)
    records = [record]
    options = options._replace(starts=1)

    # 2. The final landmarks, with some rows for each. Landmarks are rows of this sample.
    second = first
    sample = sample_of(whole, more) if SAMPLE_ROWS < more <= n / 3 else None
    landmarks = final_landmarks(whole, solver, sample, first.kernel, options.progress)
    if sample is not None:
        of_points = solver_on_given(solver, replace(landmarks, indices=None))
        some = replace(sample.problem, solver=of_points)
        second = descend(some, Guesses(end_of(first)), options, last_point=first.last_point)
        records.append(Stage(len(some.Y), len(landmarks.points), second.history))

    # 3. The final landmarks, with all rows. Here the kernel that was given is compared too.
    whole = replace(whole, solver=solver_on_given(solver, landmarks))
    either = Guesses(guesses.given, better=end_of(second))
    final = descend(whole, either, options, last_point=second.last_point)
    return final._replace(history=replace(final.history, stages=tuple(records)))


def on_few_rows(
    whole: Problem, solver: Any, num: int, guesses: Guesses, options: SearchOptions
) -> tuple[Tuned, Stage]:
    """Search on few rows, and on landmarks chosen by the best kernel at the start.

    Return the result and the `Stage` for the history.
    """
    few = sample_of(whole, SAMPLE_ROWS).problem
    landmarks = chosen_for(guesses.best.kernel, few, num, options.progress)
    best = descend(replace(few, solver=solver_on_given(solver, landmarks)), guesses, options)
    return best, Stage(len(few.Y), num, best.history)


def solver_on_given(solver: Any, landmarks: Landmarks) -> Any:
    """Return the solver, a `Subset`, on these landmarks, with Cholesky factors.

    Landmarks that are rows are left out with their rows.
    """
    return replace(solver, landmarks=landmarks, cholesky=True, leave=True)


def chosen_for(kernel: Kernel, problem: Problem, count: int, progress: bool) -> Landmarks:
    """Choose `count` rows of the problem as landmarks, by this kernel."""
    count = min(count, len(problem.Y))
    return resolve_landmarks(kernel, problem.rows, count, problem.weights, progress)


def final_landmarks(
    whole: Problem, solver: Any, sample: Sample | None, kernel: Kernel, progress: bool
) -> Landmarks:
    """Return the landmarks that the user gave, or choose rows of the sample, if any, or of all.

    `kernel` is the kernel found so far, which chooses them.
    """
    landmarks = solver.landmarks
    if np.ndim(landmarks) or isinstance(landmarks, Landmarks):
        return as_landmarks(whole.rows, landmarks)
    most = whole.rows.candidates().rows.shape[0]
    check_whole("landmarks, as their number,", solver.count, most)
    of_rows = whole if sample is None else sample.problem
    numbers = np.asarray(chosen_for(kernel, of_rows, solver.count, progress).indices)
    return as_landmarks(whole.rows, numbers if sample is None else sample.numbers[numbers])
