"""Rows on a mesh of devices: the same numbers as on one, sums alone between devices, and results
that lie as the rows do.

All of it runs in one process of four devices, `on_meshes.py`, which prints what it found.
"""

import re

import jax
import numpy as np
import pandas
import pytest
from jax.sharding import PartitionSpec as P
from support import ANY_PRECISION, array, printed_by, refused

import jaxrls as rls

pytestmark = [ANY_PRECISION, pytest.mark.slow]


@pytest.fixture(scope="module")
def found():
    return printed_by("rows/on_meshes.py")


# Largest differences, by each result's size; K's condition number is below 1e3. `ragged` has the
# counts, errors and places of the rows that there are.
@pytest.mark.parametrize("part", ["agreement", "ragged", "outside"])
def test_everything_agrees_with_one_device(found, part):
    assert {name: off for name, off in found[part].items() if not off < 1e-12} == {}


def test_results_lie_as_the_rows_do(found):
    assert [name for name, right in found["places"].items() if not right] == []


def test_only_sums_go_between_devices(found):
    """No array with n rows, of 200,000, is gathered or moved: sums of m × m, once each, and in
    loops one yes or no; of groups that lie anywhere a few thousand rows at once.
    """
    for name, moved in found["programs"].items():
        groups, many = name[:3] in ("few", "far", "day"), name[:3] in ("far", "day")
        assert moved["kinds"] == ["all-reduce"], name
        assert moved["largest"] <= (8192 if many else 64) * 64, name
        assert groups or moved["in loops"] <= 1, name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("K", "this needs all rows in one array, .* and X lies on 4 devices: give landmarks="),
        (
            "columns",
            "X must have whole rows on every device, and its columns are split too, by Named",
        ),
        ("nan", "X holds 1 values that are NaN or infinite"),
        ("padding", "row numbers must be rows of X, 0 to 46, and include 47"),
        ("mesh", r"mesh= is needed, as X does not lie on one: jax.make_mesh\("),
        ("short", "groups must have 47 labels, one per row of X, and has 46"),
        ("heavy", "the group of rows 1, 4, 7, 10, 13, … holds all of the weight"),
    ],
)
def test_what_does_not_go_on_a_mesh_is_refused_by_name(found, name, words):
    assert re.search(words, found["errors"][name])


# without several devices
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def mesh():
    return jax.make_mesh((1,), ("rows",))


def test_rows_on_a_mesh_of_one_device(mesh, rng):
    X, y = rng.normal(size=(9, 2)), rng.normal(size=9)
    rows = rls.rows.shard(array(X), array(y), mesh=mesh)
    assert (rows.shape, rows.count, rows.shards, rows.row_weights) == ((9, 2), 9, 1, None)
    np.testing.assert_array_equal(rows.labels, array(y))
    assert rls.rows.shard(rows.X).sharding.spec == P("rows")


def test_labels_of_frames_on_a_mesh_have_their_index(mesh, rng):
    """Those that `shard` takes, and those that come later."""
    X, y = pandas.DataFrame(rng.normal(size=(9, 2))), pandas.Series(rng.normal(size=9))
    rows = rls.rows.shard(X, y, mesh=mesh)
    words = "Y has another index than X"
    refused(
        (lambda: rls.rows.shard(X, y[::-1], mesh=mesh), words),
        (lambda: rls.fit(rls.Linear(), rows, y[::-1], lams=[1.0]), words),
    )
