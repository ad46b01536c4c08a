"""The search along a line, on functions whose valleys are known, against a fine grid."""

import numpy as np
import pytest

from jaxrls.search import line

pytestmark = pytest.mark.any_precision


def run(function, low=-30.0, high=8.0, slopes=True):
    """All that a search sees of a function that gives value and slope."""
    search = line.lowest(low, high)
    wanted = next(search)
    while True:
        value, slope = function(wanted)
        assert low <= wanted <= high
        try:
            wanted = search.send((value, slope if slopes else np.nan))
        except StopIteration as end:
            return end.value


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
    assert len(seen.at) <= line.MOST and (np.diff(seen.at) > 0).all()
    assert seen.values.min() <= grid + (line.GAIN if slopes else 0.1)


def test_stops_at_a_cliff():
    """Factors that break down are not finite; nothing beyond them is looked at again."""

    def function(x):
        return (0.1 * x, 0.1) if x > -11.3 else (np.nan, np.nan)

    seen = run(function)
    finite = np.isfinite(seen.values)
    assert -11.3 < seen.at[finite].min() < -11.3 + line.CLOSE
    assert not np.isfinite(run(lambda x: (np.nan, np.nan)).values).any()


def test_names_two_valleys_that_are_as_deep_and_no_others():
    double = lower(valley(-20.0, 0.005), valley(-4.0))
    found = line.valleys(run(double))
    assert np.abs(found - [-20.0, -4.0]).max() < 0.3
    single = lower(valley(-20.0, 0.05), valley(-4.0))
    (found,) = line.valleys(run(single))
    assert abs(found + 4) < 0.1
    assert len(line.valleys(run(lambda x: (np.nan, np.nan)))) == 0


def test_no_more_places_than_there_may_be():
    rough = lambda x: (np.sin(37.0 * x) - 1e-3 * x, 37 * np.cos(37.0 * x) - 1e-3)
    assert len(run(rough, -40.0, 0.0).at) == line.MOST


@pytest.mark.parametrize(
    ("hidden", "steep"), [(-16.0, 0.1), (-30.0, 0.03)], ids=["between", "at the end"]
)
def test_looks_where_another_valley_may_hide(hidden, steep):
    """A narrow one that values and slopes on both sides of it do not tell of, and one beyond the
    first point.
    """
    seen = run(lower(valley(-10.0, 0.08, steep=steep), valley(hidden, -0.2)))
    assert abs(seen.at[np.argmin(seen.values)] - hidden) < 0.5 and len(seen.at) <= line.MOST


def test_goes_on_from_what_is_known():
    """To the lower end first, then between, and never above."""
    known = {-6.0: (4.0, np.nan), -5.8: (4.2, np.nan)}
    search = line.lowest(-10.0, -5.8, known)
    asked = [next(search)]
    with pytest.raises(StopIteration) as end:
        while True:
            asked.append(search.send(valley(-9.0, steep=1.3)(asked[-1])))
    assert asked[0] == -10 and len(asked) <= line.MOST - len(line.COARSE) and max(asked) < -6
    seen = end.value.value
    assert abs(seen.at[np.argmin(seen.values)] + 9) < 0.05 and seen.at[-1] == -5.8
