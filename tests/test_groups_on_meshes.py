"""Groups of rows on a mesh of devices, left out together: refits are the oracle, and no row is brought to another device.

All of it runs in one process of four devices, `groups_on_meshes.py`, which prints what it found.
"""

import numpy as np
import pytest
from support import on_four_devices

import jaxrls as rls

pytestmark = pytest.mark.any_precision


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.slow)])
def found(request):
    return on_four_devices("groups_on_meshes.py", request.param)


def test_groups_agree_with_refits_and_with_one_device(found):
    """With weights, some of them 0, an intercept and landmarks that leave: to 1e-12 of each result's size, K's condition number being below 1e3."""
    assert len(found["truth"]) >= 5
    assert {name: off for name, off in found["truth"].items() if not max(off.values()) < 1e-12} == {}


def test_derivatives_agree_with_one_device(found):
    assert {name: off for name, off in found["slopes"].items() if not off < 1e-11} == {}


def test_fits_agree_with_one_device_and_lie_as_the_rows_do(found):
    assert len(found["fits"]) >= 2
    assert {name: fit for name, fit in found["fits"].items() if not (fit["off"] < 1e-12 and fit["split"])} == {}


def test_shapes_say_how_groups_are_left_out(found):
    ways = found["ways"]
    assert {plan: ways[plan] for plan in ("few", "days", "uneven", "far")} == {
        "few": "Refits",
        "days": "Parted",
        "uneven": "Parted",
        "far": "Scattered",
    }
    assert ways["short"] == "groups must have 47 labels, one per row of X, and has 46"
    assert "the group of rows 1, 4, 7, 10, 13, … holds all of the weight" in ways["heavy"] and ways["undefined"]


def test_only_sums_go_between_devices(found):
    """No array with n rows, of 200,000: sums of m × m, and of groups that lie anywhere a few thousand rows at once, which are a sum over devices too."""
    for name, moved in found["programs"].items():
        assert moved["kinds"] == ["all-reduce"], name
        assert moved["largest"] <= (8192 * 64 if name.startswith("far") else 64 * 64), name
        assert not name.startswith("days") or moved["in loops"] <= 1, name


def test_groups_in_the_order_of_parts():
    """As many for each part, padded by groups of no rows; and as they are where one lies in two parts."""
    plan = rls.folds(["c", "a", "a", "b", "d", "d"])
    assert plan.in_parts(3) is plan and plan.in_parts(4) is plan
    two = rls.folds(["c", "a", "a", "d", "d", "d"]).in_parts(2)
    assert (two.parts, two.numbers.tolist()) == (2, [1, 0, 0, 2, 2, 2])
    assert [sorted({*np.asarray(rows)[np.asarray(mask) > 0].tolist()}) for rows, mask in zip(two.inside, two.inside_mask, strict=True)] == [
        [1, 2],
        [0],
        [3, 4, 5],
        [],
    ]
    assert (np.asarray(two.inside) // 3 == np.array([0, 0, 1, 1])[:, None]).all()
