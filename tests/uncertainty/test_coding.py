"""Labels ↔ ±1 codes, and the error rate that goes with them."""

import re

import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from support import refused

import jaxrls as rls


@pytest.mark.parametrize(
    "labels",
    [
        ["cat", "dog", "cat"],
        [True, False],
        [0.5, -1.5, 7.0],
        np.array(["b", "a", "c"]),
        np.array([1, 0], np.uint8),
    ],
    ids=str,
)
def test_decoding_undoes_encoding(labels):
    Y, classes = rls.classes.encode(labels)
    assert Y.dtype == np.float64 and set(np.unique(Y)) == {-1.0, 1.0}
    assert Y.shape == ((len(labels),) if len(classes) == 2 else (len(labels), len(classes)))
    assert classes.tolist() == sorted(set(np.asarray(labels).tolist()))
    assert rls.classes.decode(Y, classes).tolist() == np.asarray(labels).tolist()
    assert (
        rls.classes.decode(jnp.asarray(Y, jnp.float32), classes).tolist()
        == np.asarray(labels).tolist()
    )


def test_codes():
    Y, classes = rls.classes.encode(["b", "a", "b"])
    assert Y.tolist() == [1.0, -1.0, 1.0]  # +1 for the second class in order
    # one column of scores is read by its sign: an argmax over it would always name the first class
    for scores in ([[0.3], [-0.3]], [0.3, -0.3]):
        assert rls.classes.decode(scores, ["no", "yes"]).tolist() == ["yes", "no"]
    Y, classes = rls.classes.encode([2, 0, 1])
    assert Y.tolist() == [[-1, -1, 1], [1, -1, -1], [-1, 1, -1]]
    assert rls.classes.decode([[-3.0, -1.0, -2.0]], classes).tolist() == [
        1
    ]  # the most confident, even where none is positive
    named = pandas.DataFrame([[0.1, 0.9, 0.2]], columns=[2, 0, 1])
    assert rls.classes.decode(named, classes).tolist() == [0]  # by name


def test_messages():
    labels = "labels must have shape (n,), one label per row, and has shape "
    cases = (
        (lambda: rls.classes.encode([[0, 1]]), labels + "(1, 2)"),
        (lambda: rls.classes.encode([]), labels + "(0,)"),
        (
            lambda: rls.classes.encode([0.0, np.nan]),
            "labels must have none missing, and holds 1 that are",
        ),
        (
            lambda: rls.classes.encode(["a", "a"]),
            "labels must hold at least two classes, and hold only 'a'",
        ),
        (
            lambda: rls.classes.decode([[1.0, 2.0]], [0, 1]),
            "scores must have 1 columns for 2 classes, and have 2",
        ),
        (
            lambda: rls.classes.decode([1.0], [0, 1, 2]),
            "scores must have 3 columns for 3 classes, and have 1",
        ),
    )
    refused(*((call, re.escape(words)) for call, words in cases))
