"""A search by `tune` on landmarks, which begins on a sample of the rows where a step on all rows
costs many times as much; its history holds the earlier searches as stages.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxrls.core.factors import CANNOT_GROW, SAMPLE_ROWS
from jaxrls.core.fit import Problem
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import check_whole
from jaxrls.front import Sample, SearchOptions, Stage, Tuned, descend, sample_of
from jaxrls.landmarks.points import Landmarks, as_landmarks
from jaxrls.landmarks.resolve import resolve_landmarks

LANDMARKS = 250  # which show most of what more of them do, for a quarter of the time
ROWS_A_LANDMARK = 16  # enough for a best kernel near that of all rows
# Rows times landmarks²: below it all steps take less than the compilation of a second program.
DEAR = 1e9
# A kernel is tuned on so many where the number for the fit is chosen later.
LANDMARKS_TO_TUNE = 500


def landmarks_to_tune(landmarks: Any, n: int) -> Any:
    """The landmarks on which to tune a kernel for a fit to n rows; "auto", which needs a kernel,
    becomes a number or None.
    """
    if not isinstance(landmarks, str):
        return landmarks
    return LANDMARKS_TO_TUNE if n > 4 * LANDMARKS_TO_TUNE else None


def begins_on_few(problem: Problem, m: int, grow: bool | None) -> bool:
    """Whether the search begins on a sample of the rows: with `grow` None only where a step on all
    rows is expensive.
    """
    n = problem.rows.count
    able = n > 2 * SAMPLE_ROWS and problem.criterion.fits_samples and problem.fixed.values is None
    if grow and not able:
        raise ValueError(CANNOT_GROW)
    return bool(able and grow is not False and (grow or n * m**2 >= DEAR))


def search_in_stages(whole: Problem, solver: Any, guesses: list, way: SearchOptions) -> Tuned:
    """A search on few rows, then on the final landmarks with some rows for each, then on all."""
    n = len(whole.Y)
    m = solver.count
    more = ROWS_A_LANDMARK * m  # if they are more than SAMPLE_ROWS, and few of all
    between = SAMPLE_ROWS < more <= n / 3
    sample = sample_of(whole, more) if between else Sample(whole, np.arange(n))
    best, stage = on_few_rows(whole, solver, min(m, LANDMARKS), guesses, way)
    stages = [stage]
    way = way._replace(starts=1)
    final = final_landmarks(whole, solver, sample, best.kernel, way.progress)
    if between:
        smaller = replace(sample.problem, solver=on(solver, replace(final, indices=None)))
        here = [guesses[-1]._replace(kernel=best.kernel, lam=best.lam)]
        best = descend(smaller, here, way, learned=best.learned)
        stages.append(Stage(len(smaller.Y), len(final.points), best.history))
    last = [guesses[0], guesses[-1]._replace(kernel=best.kernel, lam=best.lam)]
    best = descend(replace(whole, solver=on(solver, final)), last, way, learned=best.learned)
    return best._replace(history=replace(best.history, stages=tuple(stages)))


def on_few_rows(
    whole: Problem, solver: Any, num: int, guesses: list, way: SearchOptions
) -> tuple[Tuned, Stage]:
    """The search on few rows, and on landmarks that the kernel at its start chooses."""
    few = sample_of(whole, SAMPLE_ROWS).problem
    landmarks = chosen_for(guesses[-1].kernel, few, num, way.progress)
    best = descend(replace(few, solver=on(solver, landmarks)), guesses, way)
    return best, Stage(len(few.Y), num, best.history)


def on(solver: Any, landmarks: Landmarks) -> Any:
    """The solver, a `Subset`, on these landmarks, by Cholesky factors; rows leave with theirs."""
    return replace(solver, landmarks=landmarks, cholesky=True, leave=True)


def chosen_for(kernel: Kernel, problem: Problem, count: int, progress: bool) -> Landmarks:
    """So many rows of the problem as landmarks of this kernel."""
    count = min(count, len(problem.Y))
    return resolve_landmarks(kernel, problem.rows, count, problem.weights, progress)


def final_landmarks(
    whole: Problem, solver: Any, sample: Sample, kernel: Kernel, progress: bool
) -> Landmarks:
    """Those that were given, or as many rows of the sample, chosen by the kernel that was found."""
    landmarks = solver.landmarks
    if not np.ndim(landmarks) and not isinstance(landmarks, Landmarks):
        most = whole.rows.candidates()[1].shape[0]
        check_whole("landmarks, as their number,", solver.count, most)
        chosen = chosen_for(kernel, sample.problem, solver.count, progress)
        landmarks = sample.numbers[np.asarray(chosen.indices)]
    return as_landmarks(whole.rows, landmarks)
