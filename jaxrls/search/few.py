"""Few of the rows to begin a search on: a step on all of them costs many times as much, and most
steps are far from the end.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxrls.kernels.kernel import Kernel
from jaxrls.models.fitted import Stage
from jaxrls.problem.landmarks import Landmarks, as_landmarks, without_trace
from jaxrls.problem.weights import Weights
from jaxrls.rows.rows import DenseRows
from jaxrls.search.descent import Found, Way, descend, value_at
from jaxrls.search.problem import Problem, resolve_landmarks
from jaxrls.search.start import first_guess, sample
from jaxrls.support.checks import check_whole

ROWS = 4000  # as many tell widths apart
LANDMARKS = 250  # and so many show most of what the others do, for a quarter of the time
ROWS_A_LANDMARK = 16  # on as many the landmarks' own best kernel is near that of all rows
DEAR = 1e9  # rows times landmarks²: below it all steps together take less than the compilation of a second program


@dataclass(frozen=True)
class Few:
    """A problem on some of the rows and how many landmarks to choose from them, beside what was
    asked for: the whole problem, and the landmarks of it.
    """

    problem: Problem
    landmarks: int
    whole: Problem
    asked: Any

    @property
    def sizes(self) -> tuple[int, int]:
        """How many rows and landmarks."""
        return len(self.problem.Y), self.landmarks

    @property
    def more(self) -> int | None:
        """So many rows for all of the landmarks, None where these are no more than there were, or
        no small part of all.
        """
        rows = ROWS_A_LANDMARK * _count(self.asked)
        return rows if len(self.problem.Y) < rows <= len(self.whole.Y) / 3 else None

    def with_landmarks(self, kernel: Kernel, progress: bool) -> Problem:
        """The problem with landmarks chosen by that kernel."""
        some = self.problem
        return replace(
            some,
            landmarks=resolve_landmarks(
                kernel, some.rows, min(self.landmarks, len(some.Y)), some.weights, progress
            ),
        )


def _count(landmarks) -> int:
    """How many landmarks these are, or this is."""
    of = np.shape(landmarks.points if hasattr(landmarks, "points") else landmarks)
    return int(landmarks) if of == () else of[0]


def few_rows(problem: Problem, landmarks, grow: bool | None) -> Few | None:
    """The problem to begin with, the same rows every time, or None where the search begins on all.

    With `grow` None only where a step on all is dear. Its rows are drawn by chance in proportion to
    their weights."""
    m = 0 if landmarks is None or isinstance(landmarks, str) else _count(landmarks)
    n, criterion = problem.rows.count, problem.criterion
    able = bool(m) and n > 2 * ROWS and criterion.of_some_rows and problem.fixed.rows is None
    if grow and not able:
        raise ValueError(
            f"grow=True begins on {ROWS} of the rows, and needs landmarks, more than {2 * ROWS} rows, a criterion that holds nothing of single rows, "
            "such as groups, and no fixed_effects=: leave it out"
        )
    if grow is False or not able or not grow and n * m**2 < DEAR:
        return None
    if not np.ndim(landmarks) and not hasattr(landmarks, "points"):
        check_whole("landmarks, as their number,", landmarks, problem.rows.candidates()[1].shape[0])
    return Few(some_rows(problem, ROWS)[0], min(m, LANDMARKS), problem, landmarks)


def some_rows(problem: Problem, count: int) -> tuple[Problem, np.ndarray]:
    """The problem on so many of the rows, and their numbers."""
    X, Y, v = problem.sample()
    used = np.arange(len(X)) if v is None else np.flatnonzero(np.asarray(v) > 0)
    rows, counted = sample(np.random.default_rng(0).permutation(used), v, count)
    drawn, _ = problem.rows.candidates()
    if len(rows) < len(X):  # or no copy of them all is made
        X, Y = X[rows], Y[rows]
    weights = Weights.of(counted, len(rows), X.dtype)
    fixed = problem.fixed.from_gram(problem.fixed.gram(None, weights.array))
    some = replace(problem, rows=DenseRows(X), Y=Y, weights=weights, fixed=fixed)
    return some, rows if drawn is None else np.asarray(drawn)[rows]


def grown(few: Few, guesses: list, way: Way, tries: tuple) -> Found:
    """A search on few rows, then on the landmarks of the end and some rows for each, and on all
    rows from there; its history tells what went before that.
    """
    found = descend(few.with_landmarks(guesses[-1][0], way.progress), guesses, way, *tries)
    stages, way = [Stage(*few.sizes, found.history)], way.again()
    some, numbers = some_rows(few.whole, few.more or len(few.whole.Y))
    there = _there(few, found)
    points, problem = _on_the_best(
        there, few.whole, _sets(found.kernel, few, some, numbers, way.progress)
    )
    if few.more:
        found = descend(
            replace(some, landmarks=Landmarks(None, points, None)),
            [there],
            way,
            learned=found.learned,
        )
        stages.append(Stage(len(numbers), len(points), found.history))
        there = _there(few, found)
    found = descend(problem, [there], way, given=guesses[0], learned=found.learned)
    return found._replace(history=replace(found.history, stages=tuple(stages)))


def _there(few: Few, found: Found) -> tuple:
    """Where another search ended, as a guess on all rows."""
    return first_guess(replace(few.whole, kernel=found.kernel), "kernel", found.lam[None], False)[0]


def _sets(kernel: Kernel, few: Few, some: Problem, numbers, progress: bool) -> list[Landmarks]:
    """Those that were given; or of some rows as many as were asked for, chosen for the kernel, and
    as many by chance, which do better at times.
    """
    rows, weights = few.whole.rows, some.weights
    if not isinstance(few.asked, int | np.integer):
        return [as_landmarks(rows, few.asked)]
    chosen: Any = resolve_landmarks(
        kernel, some.rows, min(few.asked, len(numbers)), weights, progress
    )
    used = (
        np.arange(len(numbers))
        if weights.values is None
        else np.flatnonzero(np.asarray(weights.values) > 0)
    )
    others = np.sort(np.random.default_rng(1).permutation(used)[: len(chosen.points)])
    return [as_landmarks(rows, numbers[np.asarray(each)]) for each in (chosen.indices, others)]


def _on_the_best(guess, problem: Problem, sets: list[Landmarks]) -> tuple[Any, Problem]:
    """Those of the landmarks where the error is smallest, and the problem on them."""
    best = (
        sets[0]
        if len(sets) == 1
        else min(
            sets,
            key=lambda chosen: value_at(guess, replace(problem, landmarks=without_trace(chosen))),
        )
    )
    return best.points, replace(problem, landmarks=without_trace(best))
