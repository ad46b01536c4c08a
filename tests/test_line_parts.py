"""What the search along a line is made of, each part against brute force or by hand."""

import numpy as np
import pytest

from jaxrls.search import line

pytestmark = pytest.mark.any_precision
NAN = np.nan


def seen(*triples):
    return line.Seen(*np.array(triples, float).T)


def hermite(width, left, right, slope_left, slope_right):
    """The cubic with these ends at a million places."""
    t = np.linspace(0, 1, 1_000_001)
    ends = (2 * t**3 - 3 * t**2 + 1) * left + (3 * t**2 - 2 * t**3) * right
    return t * width, ends + width * (
        (t**3 - 2 * t**2 + t) * slope_left + (t**3 - t**2) * slope_right
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_lowest_place_of_a_cubic(seed):
    """Anywhere inside, against a fine grid, but for what lies within its first or last step;
    without a valley it promises nothing.
    """
    rng = np.random.default_rng(seed)
    for _ in range(10):
        start, width, *ends = rng.normal(size=6) * 10.0 ** rng.integers(-2, 3, 6)
        width = abs(width)
        t, f = hermite(width, *ends)
        inside = (f[1:-1] < f[:-2]) & (f[1:-1] < f[2:])
        lowest, place = line._cubic(start, width, *ends)
        if not inside.any():
            assert (lowest == np.inf and place == start) or min(
                place - start, start + width - place
            ) < 2e-6 * width
            continue
        want = np.flatnonzero(inside)[0] + 1
        scale = np.abs(f).max()
        assert abs(lowest - f[want]) < 1e-9 * scale and abs(place - start - t[want]) < 2e-5 * width


def test_where_tangents_meet():
    """y = −2x + 3 and y = x − 3 at x = 2 and y = −1; nothing where one of them does not lead in."""
    x, f, g = (
        np.array([1.0, 4.0, 5.0, 7.0]),
        np.array([1.0, 1.0, 3.0, 2.0]),
        np.array([-2.0, 1.0, -0.5, -1.0]),
    )
    np.testing.assert_allclose(line._hidden(x, f, g), [-1.0, np.inf, np.inf], rtol=1e-12)
    assert (line._hidden(x, f, np.full(4, NAN)) == np.inf).all()
    assert (
        line._hidden(x[:2], f[:2], np.array([0.0, 1.0]))
        == line._hidden(x[:2], f[:2], np.array([-2.0, 0.0]))
        == np.inf
    )


def test_which_places_are_valleys():
    """Lower than the left neighbour, no higher than the right one, within 1 % of the lowest, ends
    included; cliffs are high.
    """
    places = lambda *values: line.valleys(
        seen(*((i, value, 0.0) for i, value in enumerate(values)))
    ).tolist()
    assert places(0.0, 1.0, 0.005, 1.0, 0.01) == [0.0, 2.0, 4.0]
    assert places(0.5, 0.0, 0.0, 0.5, 0.011, 0.5) == [1.0]
    assert places(NAN, 3.0, NAN, 2.0, -np.inf) == [3.0]
    assert places(NAN, NAN) == []


def test_the_first_places():
    """Tenths and so on of the line, or beside what is known its lower end, then as many as are
    left.
    """
    search, asked = line.lowest(-10.0, 30.0), []
    wanted = next(search)
    for _ in line.COARSE:
        asked.append(wanted)
        wanted = search.send((abs(wanted - 3.0), np.sign(wanted - 3.0)))
    np.testing.assert_allclose(asked, -10 + 40 * np.array(line.COARSE))
    below = line.lowest(-10.0, 0.0, {0.0: (1.0, NAN)})
    assert next(below) == -10.0


def test_no_more_places_than_there_may_be():
    """MOST of them, and of what is known as many fewer as the coarse ones are more."""
    rough = lambda x: np.sin(37.0 * x) - 1e-3 * x
    for known, most in (
        (None, line.MOST),
        ({0.0: (rough(0.0), NAN), -0.5: (rough(-0.5), NAN)}, line.MOST - len(line.COARSE) + 2),
    ):
        search = line.lowest(-40.0, 0.0, known)
        wanted = next(search)
        with pytest.raises(StopIteration) as end:
            while True:
                wanted = search.send((rough(wanted), 37 * np.cos(37.0 * wanted) - 1e-3))
        assert len(end.value.value.at) == most


@pytest.mark.parametrize(
    ("cliffs", "slopes", "best", "want"),
    [
        ([], [1.0, 0.0, 0.0], 0, -8.0),  # down to the left: the end of the line
        ([], [0.0, 0.0, -1.0], 2, 20.0),
        ([], [-1.0, 0.0, 1.0], 0, None),  # the way down leads inside
        ([], [-1.0, 0.0, 1.0], 2, None),
        ([], [1.0, -1.0, -1.0], 1, None),  # not an outermost place
        ([-6.0, -4.0, 9.0], [1.0, 0.0, 0.0], 0, -2.0),  # half way to the nearest cliff on that side
        ([-6.0, 9.0, 15.0], [0.0, 0.0, -1.0], 2, 7.0),
        ([-1.0], [1.0, 0.0, 0.0], 0, None),  # a cliff so near that half way is no news
        ([-1.75], [1.0, 0.0, 0.0], 0, -0.875),
    ],
)
def test_beyond_the_outermost(cliffs, slopes, best, want):
    assert line.CLOSE / 4 < 0.875 and line.CLOSE / 4 > 0.5
    for shift in (0.0, 128.0, -128.0):
        found = line._outside(
            np.array(cliffs) + shift,
            np.array([0.0, 2.0, 5.0]) + shift,
            np.array(slopes),
            best,
            shift - 8,
            shift + 20,
        )
        assert found == (None if want is None else want + shift)


def test_at_the_end_of_the_line_there_is_nothing_beyond():
    assert (
        line._outside(np.array([]), np.array([0.0, 2.0]), np.array([1.0, 0.0]), 0, 0.0, 20.0)
        is None
    )


@pytest.mark.parametrize(
    ("x", "f", "best", "want"),
    [
        (
            [0.0, 4.0, 9.0, 12.0],
            [0.2, 0.1, 0.0, 1.0],
            2,
            6.5,
        ),  # the widest of two that are wide and low
        ([0.0, 5.0, 9.0, 12.0], [0.2, 0.1, 0.0, 1.0], 2, 2.5),
        (
            [0.0, 4.0, 9.0, 30.0],
            [0.9, 0.8, 0.0, 0.1],
            2,
            6.5,
        ),  # nothing to the right of the lowest, nor between two high places
        (
            [0.0, 6.0, 9.0, 12.0],
            [0.9, 0.8, 0.0, 1.0],
            2,
            None,
        ),  # low at one end only where it is narrow
        ([0.0, 3.3, 6.6, 12.0], [0.2, 0.1, 0.0, 1.0], 2, None),  # near to each other
        ([2.0, 3.0, 4.0], [0.2, 0.1, 0.0], 2, 0.0),  # the end of the line, low and not looked at
        ([2.0, 3.0, 4.0], [0.4, 0.1, 0.0], 2, None),  # high there
        ([0.8, 1.0, 4.0], [0.2, 0.1, 0.0], 2, None),  # near to it
    ],
)
def test_where_another_valley_may_hide(x, f, best, want):
    assert 3.3 < line.CLOSE < 3.5 and line.HIDES == 0.3
    assert line._unseen(np.array(x), np.array(f), best, 0.0) == want


@pytest.mark.parametrize(
    ("x", "j", "last", "want"),
    [
        ([0.0, 0.2, 1.2, 5.0], 1, 0.2, True),  # it cut .2 off what is 1 now
        ([0.0, 0.4, 1.4, 5.0], 1, 0.4, False),
        ([0.0, 3.0, 4.0, 4.2], 1, 4.0, True),
        ([0.0, 3.0, 4.0, 4.2], 1, 4.2, False),  # no end of it
        ([0.0, 1.0, 1.2], 0, 0.0, False),  # the first place of all cut nothing off
        ([0.0, 0.2, 1.2], 1, 1.2, False),  # nor did the last
    ],
)
def test_whether_the_last_place_cut_off_little(x, j, last, want):
    x = np.array(x)
    assert line._cut_little(x, np.diff(x), j, last) is want


def test_a_place_keeps_off_those_that_are_known():
    """By a tenth of the gap, .2 at most."""
    known = {0.0: (0.0, -1.0), 10.0: (40.0, 30.0), -20.0: (20.0, -1.0)}
    wanted = line._next(dict(known), -20.0, 10.0, 5)
    t, f = hermite(10.0, 0.0, np.log1p(40.0), -1.0, 30.0 / 41.0)
    assert abs(wanted - t[np.argmin(f)]) < 1e-4
    near = {-20.0: (20.0, -1.0), 0.0: (0.0, -1e-2), 10.0: (np.expm1(30.0), np.exp(30.0))}
    t, f = hermite(10.0, 0.0, 30.0, -1e-2, 1.0)
    assert t[np.argmin(f)] < 0.2 == line._next(near, -20.0, 10.0, 5)


@pytest.mark.parametrize(
    ("high", "slope", "want"),
    [(10.0, 0.5, 5.0), (3.3, 0.5, None), (3.3, NAN, 1.65), (1.1, NAN, None)],
)
def test_the_middle_beside_the_lowest_where_nothing_else_is_promised(high, slope, want):
    """Unless it is near: nearer where the slope at the lowest is not known."""
    found = line._next({0.0: (0.0, slope), high: (high, slope)}, 0.0, high, 5)
    assert found == want


def test_of_nothing_but_cliffs_and_of_a_single_place():
    assert line._next({0.0: (NAN, NAN), 1.0: (np.inf, NAN)}, 0.0, 1.0, 3) is None
    assert line._next({3.0: (1.0, NAN)}, 0.0, 5.0, 3) is None
    assert line._next({3.0: (1.0, -1.0)}, 0.0, 5.0, 3) == 5.0
