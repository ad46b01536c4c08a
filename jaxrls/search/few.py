"""Few of the rows to begin a search on: a step on all of them costs many times as much, and most
steps are far from the end.
"""

from dataclasses import replace

import numpy as np

from jaxrls.inference.fitted import Stage
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


def begins_on_few(problem: Problem, landmarks, grow: bool | None) -> bool:
    """Whether the search does not begin on all rows: with `grow` None only where a step on all is
    dear.
    """
    n, m = problem.rows.count, _count(landmarks)
    able = m and n > 2 * ROWS and problem.criterion.of_some_rows and problem.fixed.rows is None
    if grow and not able:
        raise ValueError(
            f"grow=True begins on {ROWS} of the rows, and needs landmarks, more than {2 * ROWS} "
            "rows, a criterion that holds nothing of single rows, such as groups, and no "
            "fixed_effects=: leave it out"
        )
    return bool(able and grow is not False and (grow or n * m**2 >= DEAR))


def _count(landmarks) -> int:
    """How many landmarks these are, or this is."""
    if landmarks is None or isinstance(landmarks, str):
        return 0
    shape = np.shape(landmarks.points if isinstance(landmarks, Landmarks) else landmarks)
    return shape[0] if shape else int(landmarks)


def some_rows(problem: Problem, count: int) -> tuple[Problem, np.ndarray]:
    """The problem on so many of the rows, drawn by chance in proportion to their weights, the same
    ones every time, and their numbers.
    """
    X, Y, v = problem.sample()
    rows, counted = sample(len(X), v, count)
    drawn, _ = problem.rows.candidates()
    if len(rows) < len(X):  # or no copy of them all is made
        X, Y = X[rows], Y[rows]
    weights = Weights.of(counted, len(rows), X.dtype)
    fixed = problem.fixed.from_gram(problem.fixed.gram(None, weights.array))
    some = replace(problem, rows=DenseRows(X), Y=Y, weights=weights, fixed=fixed)
    return some, rows if drawn is None else np.asarray(drawn)[rows]


def grown(whole: Problem, landmarks, guesses: list, way: Way, tries: tuple) -> Found:
    """A search on few rows, then on the landmarks of the end and some rows for each, and on all
    rows from there; its history tells what went before that.
    """

    def chosen(kernel, some, count):
        count = min(count, len(some.Y))
        return resolve_landmarks(kernel, some.rows, count, some.weights, way.progress)

    def ended(found):
        """Where a search ended, as a guess on all rows."""
        there = replace(whole, kernel=found.kernel)
        return first_guess(there, "kernel", found.lam[None], False)[0]

    n, m = len(whole.Y), _count(landmarks)
    given = not isinstance(landmarks, int | np.integer)
    if not given:
        check_whole("landmarks, as their number,", m, whole.rows.candidates()[1].shape[0])
    some, _ = some_rows(whole, ROWS)
    first = replace(some, landmarks=chosen(guesses[-1][0], some, min(m, LANDMARKS)))
    found = descend(first, guesses, way, *tries)
    stages = [Stage(len(some.Y), min(m, LANDMARKS), found.history)]

    # All landmarks on some rows for each, where these are more than there were and few of all.
    more = ROWS_A_LANDMARK * m
    more = more if len(some.Y) < more <= n / 3 else n
    (some, numbers), there = some_rows(whole, more), ended(found)
    if given:
        sets = [as_landmarks(whole.rows, landmarks)]
    else:  # as many by chance do better at times
        rows = np.asarray(chosen(found.kernel, some, m).indices)
        others, _ = sample(len(numbers), some.weights.values, len(rows), seed=1)
        sets = [as_landmarks(whole.rows, numbers[each]) for each in (rows, others)]
    if not given:
        sets.sort(key=lambda each: value_at(there, replace(whole, landmarks=without_trace(each))))
    best = without_trace(sets[0])
    if more < n:
        few = replace(some, landmarks=replace(best, indices=None))
        found = descend(few, [there], way, learned=found.learned)
        stages.append(Stage(len(numbers), len(best.points), found.history))
        there = ended(found)
    last = replace(whole, landmarks=best)
    found = descend(last, [there], way, given=guesses[0], learned=found.learned)
    return found._replace(history=replace(found.history, stages=tuple(stages)))
