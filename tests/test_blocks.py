"""Blocks of rows: maps and sums equal to those in one piece, ragged ends, pytrees and missing
columns included.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import EPS, array, assert_close

from jaxrls.rows import blocks
from jaxrls.rows.blocks import (
    check_block_size,
    default_block_size,
    map_blocks,
    map_rows,
    split,
    sum_blocks,
    sum_rows,
)

N = 11
SIZES = [1, 4, 10, 11, 12]  # of all N rows, of N + 1, ragged by 1 and by more
TOLERANCE = 100 * EPS


def columns(n=N):
    """A pytree of arrays (n, …) with a column that is missing."""
    rng = np.random.default_rng(n)
    return {
        "X": array(rng.normal(size=(n, 3))),
        "v": array(rng.uniform(1, 2, n)),
        "none": None,
        "pair": (array(rng.normal(size=(n, 2, 2))),),
    }


def of_rows(args):
    """Results of one and of two axes, of each row by itself."""
    (pair,) = args["pair"]
    return {
        "f": jnp.sin(args["X"]) * args["v"][:, None],
        "g": (args["v"] ** 2, jnp.sum(pair, axis=(1, 2))),
    }


def of_block(args):
    """Sums over the rows of a block, of several shapes."""
    return {
        "gram": args["X"].T @ (args["v"][:, None] * args["X"]),
        "rest": (jnp.sum(args["v"]), jnp.sum(jnp.cos(args["pair"][0]), axis=0)),
    }


def assert_same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        assert_close(one, other, TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
def test_maps_and_sums_in_blocks_are_those_of_all_rows(size):
    """And what fits into one block takes no loop."""

    def both(args):
        return map_rows(of_rows, args, size), sum_rows(of_block, args, size)

    assert_same(jax.jit(both)(columns()), (of_rows(columns()), of_block(columns())))
    assert ("scan" in str(jax.make_jaxpr(both)(columns()))) == (size < N)


@pytest.mark.parametrize("size", SIZES)
def test_split(size):
    """Whole blocks and the rest, which together are all rows in their order."""
    whole, rest = split(columns(), size)
    k, ragged = divmod(N, size)
    assert (whole is None) == (k == 0) and (rest is None) == (ragged == 0)
    for name in ("X", "v"):
        want, parts = columns()[name], []
        if whole is not None:
            assert whole[name].shape[:2] == (k, size)
            parts.append(np.reshape(whole[name], (-1, *want.shape[1:])))
        parts += [] if rest is None else [np.asarray(rest[name])]
        np.testing.assert_array_equal(np.concatenate(parts), want)
    assert all(part is None or part["none"] is None for part in (whole, rest))
    if not (k and ragged):  # one of the two alone
        assert_same(map_blocks(of_rows, whole, rest), of_rows(columns()))
        assert_same(sum_blocks(of_block, whole, rest), of_block(columns()))


def scalar(X, w, size):
    """A number made of a map and a sum, of rows and of something that all blocks share."""
    squares = map_rows(lambda x: jnp.tanh(x @ w), X, size) ** 2
    return jnp.sum(squares) + jnp.sum(sum_rows(lambda x: jnp.tanh(x @ w).T @ x, X, size) ** 2)


def test_derivatives_are_those_without_blocks():
    """Backwards, forwards and twice, in the rows and in what blocks share; under vmap."""
    X, w = columns()["X"], array(np.random.default_rng(1).normal(size=(2, 3, 2)))

    @functools.partial(jax.jit, static_argnums=2)
    def derivatives(X, w, size):
        one = functools.partial(scalar, size=size)
        back, forth, twice = jax.grad(one, (0, 1)), jax.jacfwd(one, (0, 1)), jax.hessian(one, 1)
        return jax.vmap(lambda w: (one(X, w), back(X, w), forth(X, w), twice(X, w)))(w)

    for size in (1, 4):
        jax.tree.map(
            lambda got, want: assert_close(got, want, 10 * TOLERANCE),
            derivatives(X, w, size),
            derivatives(X, w, N),
        )


# sizes
# -----------------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10**6), st.integers(0, 10**7))
def test_the_default_size(n, row_bytes):
    """At least one row and at most all, within the budget but for 16 rows; and at most twice as
    many blocks as need be, so as to divide n.
    """
    size = default_block_size(n, row_bytes)
    fitting = max(16, blocks.CPU_BLOCK_BYTES // max(1, row_bytes))
    assert 1 <= size <= min(n, fitting)
    assert -(-n // size) <= 2 * -(-n // fitting)


def test_a_divisor_is_taken_where_there_is_one():
    """1500 rows of which 1024 fit: two blocks of 750; a prime number of rows is left ragged."""
    for n, row_bytes, size in (
        (1500, 8 * 2**10, 750),
        (1511, 8 * 2**10, 756),
        (10, 8, 10),
        (2**20, 8 * 2**10, 2**10),
        (3 * 2**10, 8 * 2**10, 2**10),
        (35, 10**9, 7),
    ):
        assert default_block_size(n, row_bytes) == size


def test_a_given_size():
    assert [check_block_size(size, 10) for size in (3, 30, np.int64(4))] == [3, 10, 4]
    for wrong in (0, -1, 2.0, True, "4", None):
        with pytest.raises(ValueError, match="block_size must be a whole number of at least 1"):
            check_block_size(wrong, 10)
