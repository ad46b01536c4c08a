"""Groups of rows on a mesh of devices, left out together: refits are the oracle, and no row is
brought to another device.

All of it runs in one process of four devices, `groups_on_meshes.py`, which prints what it found.
"""

import pytest
from support import on_four_devices

pytestmark = pytest.mark.any_precision


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.slow)])
def found(request):
    return on_four_devices("groups_on_meshes.py", request.param)


def test_groups_agree_with_refits_and_with_one_device(found):
    """With weights, some of them 0, an intercept and landmarks that leave: to 1e-12 of each
    result's size, K's condition number being below 1e3.
    """
    assert len(found["truth"]) >= 5
    assert {
        name: off for name, off in found["truth"].items() if not max(off.values()) < 1e-12
    } == {}


def test_derivatives_agree_with_one_device(found):
    assert {name: off for name, off in found["slopes"].items() if not off < 1e-11} == {}


def test_fits_agree_with_one_device_and_lie_as_the_rows_do(found):
    assert len(found["fits"]) >= 2
    assert {
        name: fit
        for name, fit in found["fits"].items()
        if not (fit["off"] < 1e-12 and fit["split"])
    } == {}


def test_what_cannot_be_left_out_is_refused(found):
    ways = found["ways"]
    assert ways["short"] == "groups must have 47 labels, one per row of X, and has 46"
    assert (
        "the group of rows 1, 4, 7, 10, 13, … holds all of the weight" in ways["heavy"]
        and ways["undefined"]
    )


def test_only_sums_go_between_devices(found):
    """No array with n rows, of 200,000: sums of m × m, and of groups that lie anywhere a few
    thousand rows at once, which are a sum over devices too.
    """
    for name, moved in found["programs"].items():
        assert moved["kinds"] == ["all-reduce"], name
        assert moved["largest"] <= (8192 * 64 if name[:3] in ("far", "day") else 64 * 64), name
