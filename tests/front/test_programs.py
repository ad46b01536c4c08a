"""The page "In your own JAX program": its tables say what is so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import printed_by
from test_readme import PAGES

import jaxrls as rls

pytestmark = pytest.mark.any_precision  # they name their own
PAGE = PAGES["docs/jax-programs.md"]


def table(first):
    """The rows of a table of the page, by their first cell, whose heading is `first`."""
    lines = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    heads, _, *rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}


@pytest.mark.slow
def test_what_a_call_may_stand_in():
    assert printed_by("front/programs.py") == table("call")


KINDS = {
    "float32, of NumPy or JAX": [np.float32, jnp.float32],
    "float64 of JAX, with `jax_enable_x64`": [jnp.float64],
    "float64 of NumPy, also integers, float16, lists": [np.float64, np.int64, np.float16, list],
    "other dtypes of JAX: bfloat16, float16, integers": [jnp.bfloat16, jnp.float16, jnp.int32],
}


def given(values, kind):
    """Numbers as a list, or an array of NumPy or JAX."""
    if kind is list:
        return values.tolist()
    of_numpy = isinstance(kind, type) and issubclass(kind, np.generic)
    return (np if of_numpy else jnp).asarray(values, kind)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
def test_dtypes(wide):
    """That of X decides, whatever labels are; as the words of the table say."""
    X, y = np.arange(12.0).reshape(6, 2) % 5, np.arange(6.0) % 4
    said = table("X")
    assert said.keys() == KINDS.keys()
    for words, kinds in KINDS.items():
        if not wide and "of JAX, with" in words:
            continue
        fits, pieces = said[words].values()
        pieces = fits if pieces == "the same" else pieces
        for kind in kinds:
            with jax.enable_x64(wide):
                x = given(X, kind)
                labels = [given(y, each) for each in (np.float32, np.float64, jnp.float32, list)]
                found = [rls.fit(rls.Gaussian(2.0), x, y, lams=[0.1]) for y in labels]
                value = rls.objective(rls.Gaussian(2.0), x, labels[0], 0.1)
            results = [part for fit in found for part in (fit.model.coef, fit.error, fit.lam)]
            assert {str(part.dtype) for part in results} == {dtype_of(fits, wide)}, (kind, words)
            assert str(value.dtype) == dtype_of(pieces, wide), (kind, words)
            of_numpy = {isinstance(part, np.ndarray) for part in results[:1]}
            assert of_numpy == {"as NumPy arrays" in fits and not wide}


def dtype_of(words, wide):
    """The dtype that a cell names."""
    if "else" in words:
        return "float64" if wide else "float32"
    return words[:7]
