"""The search along a line, on functions whose valleys are known, against a fine grid."""

import numpy as np
import pytest

from jaxrls.search import line

pytestmark = pytest.mark.any_precision


def run(function, low=-30.0, high=8.0, slopes=True, seen=None, first=line.COARSE, most=line.MOST):
    """All that a search sees of a function that gives value and slope."""
    seen = dict(seen or {})
    for look in range(most):
        if look < len(first):
            place = low + (high - low) * first[look]
        elif (place := line.next_place(seen, low, high, most - look)) is None:
            break
        assert low <= place <= high and place not in seen
        value, slope = function(place)
        seen[place] = value, slope if slopes else np.nan
    return seen


def lowest(seen):
    """Where what was seen is least, and what is there."""
    place = min(seen, key=lambda at: seen[at][0])
    return place, seen[place][0]


def valley(centre, depth=0.0, steep=1.0):
    """log cosh: a line far from its centre, a parabola near it."""
    return lambda x: (
        depth + np.logaddexp(steep * (x - centre), steep * (centre - x)) - np.log(2),
        steep * np.tanh(steep * (x - centre)),
    )


def wall(centre):
    """An evidence: exponential on one side."""
    return lambda x: (np.exp(-(x - centre)) + 0.5 * (x - centre), 0.5 - np.exp(-(x - centre)))


def lower(*functions):
    """The lower of several, smoothly."""

    def value(x):
        values, slopes = np.array([f(x) for f in functions]).T
        share = np.exp(-8 * (values - values.min()))
        return values.min() - np.log(share.sum()) / 8, (share * slopes).sum() / share.sum()

    return value


@pytest.mark.parametrize("slopes", [True, False], ids=["slopes", "values"])
@pytest.mark.parametrize("centre", [-29.5, -20.3, -8.1, 0.2, 5.7])
@pytest.mark.parametrize(
    "make", [valley, wall, lambda c: valley(c, steep=0.2)], ids=["valley", "wall", "flat"]
)
def test_finds_what_a_hundred_points_find(make, centre, slopes):
    function = make(centre)
    seen = run(function, slopes=slopes)
    grid = min(function(x)[0] for x in np.linspace(-30, 8, 100))
    assert len(seen) <= line.MOST
    assert lowest(seen)[1] <= grid + (line.GAIN if slopes else 0.1)


def test_stops_at_a_cliff():
    """Factors that break down are not finite; nothing beyond them is looked at again."""

    def function(x):
        return (0.1 * x, 0.1) if x > -11.3 else (np.nan, np.nan)

    finite = [place for place, (value, _) in run(function).items() if np.isfinite(value)]
    assert -11.3 < min(finite) < -11.3 + line.CLOSE
    assert not np.isfinite([value for value, _ in run(lambda x: (np.nan, np.nan)).values()]).any()


def test_of_equal_values_the_end_of_the_line_is_among_those_seen():
    """As a grid takes the largest of equals."""
    assert max(run(lambda x: (0.0, 0.0))) == 8.0


def test_names_two_valleys_that_are_as_deep_and_no_others():
    double = lower(valley(-20.0, 0.005), valley(-4.0))
    found = line.valleys(run(double))
    assert np.abs(np.subtract(found, [-20.0, -4.0])).max() < 0.3
    single = lower(valley(-20.0, 0.05), valley(-4.0))
    (found,) = line.valleys(run(single))
    assert abs(found + 4) < 0.1
    assert not line.valleys(run(lambda x: (np.nan, np.nan)))


def test_no_more_places_than_there_may_be():
    rough = lambda x: (np.sin(37.0 * x) - 1e-3 * x, 37 * np.cos(37.0 * x) - 1e-3)
    assert len(run(rough, -40.0, 0.0)) == line.MOST


@pytest.mark.parametrize(
    ("hidden", "steep"), [(-16.0, 0.1), (-30.0, 0.03)], ids=["between", "at the end"]
)
def test_looks_where_another_valley_may_hide(hidden, steep):
    """A narrow one that values and slopes on both sides of it do not tell of, and one beyond the
    first point.
    """
    seen = run(lower(valley(-10.0, 0.08, steep=steep), valley(hidden, -0.2)))
    assert abs(lowest(seen)[0] - hidden) < 0.5


def test_goes_on_from_what_is_known():
    """To the lower end first, then between, and never above."""
    known = {-6.0: (4.0, np.nan), -5.8: (4.2, np.nan)}
    seen = run(valley(-9.0, steep=1.3), -10.0, -5.8, seen=known, first=[0.0], most=5)
    assert max(set(seen) - set(known)) < -6
    assert abs(lowest(seen)[0] + 9) < 0.05
