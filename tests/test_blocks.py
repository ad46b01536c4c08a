"""Blocks of rows: maps and sums equal to those in one piece, ragged ends, pytrees and missing
columns included.
"""

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
SIZES = [1, 2, 4, 5, 10, 11, 12, 100]  # of all N rows, of N + 1, ragged by 1 and by more
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


def mapped(size):
    return jax.jit(lambda args: map_rows(of_rows, args, size))


def summed(size):
    return jax.jit(lambda args: sum_rows(of_block, args, size))


@pytest.mark.parametrize("size", SIZES)
def test_a_map_in_blocks_is_the_map(size):
    assert_same(mapped(size)(columns()), of_rows(columns()))


@pytest.mark.parametrize("size", SIZES)
def test_a_sum_in_blocks_is_the_sum(size):
    assert_same(summed(size)(columns()), of_block(columns()))


@pytest.mark.parametrize("size", SIZES)
def test_what_fits_into_one_block_takes_no_loop(size):
    for program in (mapped(size), summed(size)):
        assert ("scan" in str(jax.make_jaxpr(program)(columns()))) == (size < N)


@pytest.mark.parametrize("size", [4, 11])
def test_without_jit(size):
    assert_same(map_rows(of_rows, columns(), size), of_rows(columns()))
    assert_same(sum_rows(of_block, columns(), size), of_block(columns()))


@pytest.mark.parametrize("block", SIZES)
def test_split(block):
    """Whole blocks and the rest, which together are all rows in their order."""
    whole, rest = split(columns(), block)
    k, ragged = divmod(N, block)
    assert (whole is None) == (k == 0) and (rest is None) == (ragged == 0)
    for name in ("X", "v"):
        parts = (
            []
            if whole is None
            else [np.asarray(whole[name]).reshape(-1, *columns()[name].shape[1:])]
        )
        assert whole is None or whole[name].shape[:2] == (k, block)
        parts += [] if rest is None else [np.asarray(rest[name])]
        np.testing.assert_array_equal(np.concatenate(parts), columns()[name])
    assert all(part is None or part["none"] is None for part in (whole, rest))


def test_one_block_and_no_rest():
    whole, rest = split(columns(), N)
    assert rest is None
    assert_same(map_blocks(of_rows, whole, rest), of_rows(columns()))
    assert_same(sum_blocks(of_block, whole, rest), of_block(columns()))


def test_a_rest_alone():
    whole, rest = split(columns(), N + 1)
    assert whole is None
    assert_same(map_blocks(of_rows, whole, rest), of_rows(columns()))
    assert_same(sum_blocks(of_block, whole, rest), of_block(columns()))


def scalar(X, w, size, kind):
    """A number made of a map or a sum, of rows and of something that all blocks share."""
    if kind == "map":
        return jnp.sum(map_rows(lambda x: jnp.tanh(x @ w), X, size) ** 2)
    return jnp.sum(sum_rows(lambda x: jnp.tanh(x @ w).T @ x, X, size) ** 2)


@pytest.mark.parametrize("kind", ["map", "sum"])
@pytest.mark.parametrize("size", [1, 4, 11])
def test_derivatives_are_those_without_blocks(size, kind):
    """Backwards and forwards, in the rows and in what blocks share."""
    X, w = columns()["X"], array(np.random.default_rng(1).normal(size=(3, 2)))
    for derivative in (
        lambda f: jax.grad(f, argnums=(0, 1)),
        lambda f: jax.jacfwd(f, argnums=(0, 1)),
    ):
        got, want = (
            jax.jit(derivative(lambda X, w, s=s: scalar(X, w, s, kind)))(X, w) for s in (size, N)
        )
        assert_same(got, want)


@pytest.mark.parametrize("kind", ["map", "sum"])
def test_second_derivatives(kind):
    X, w = columns()["X"], array(np.random.default_rng(1).normal(size=(3, 2)))
    got, want = (jax.jit(jax.hessian(lambda w, s=s: scalar(X, w, s, kind)))(w) for s in (4, N))
    assert_close(got, want, 10 * TOLERANCE)


@pytest.mark.parametrize("kind", ["map", "sum"])
def test_under_vmap(kind):
    X, w = columns()["X"], array(np.random.default_rng(1).normal(size=(5, 3, 2)))
    got = jax.jit(jax.vmap(lambda w: scalar(X, w, 4, kind)))(w)
    assert_close(got, [scalar(X, one, N, kind) for one in w], TOLERANCE)


@pytest.mark.parametrize("size", [4, 11])
def test_a_program_is_made_once(size):
    """A second call with other numbers runs what the first compiled."""
    traced = []
    run = jax.jit(
        lambda args: (
            traced.append(1),
            map_rows(of_rows, args, size),
            sum_rows(of_block, args, size),
        )[1:]
    )
    run(columns())
    run(jax.tree.map(lambda a: 2 * a, columns()))
    assert len(traced) == 1


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


@pytest.mark.parametrize(
    ("n", "row_bytes", "size"),
    [
        (10, 8, 10),
        (2**20, 8 * 2**10, 2**10),
        (3 * 2**10, 8 * 2**10, 2**10),
        (5, 10**9, 5),
        (35, 10**9, 7),
    ],
)
def test_sizes_that_can_be_foreseen(n, row_bytes, size):
    assert default_block_size(n, row_bytes) == size


def test_a_divisor_is_taken_where_there_is_one():
    """1500 rows of which 1024 fit: two blocks of 750; a prime number of rows is left ragged."""
    assert default_block_size(1500, 8 * 2**10) == 750
    assert default_block_size(1511, 8 * 2**10) == 756


def test_a_given_size():
    assert (
        check_block_size(3, 10) == 3
        and check_block_size(30, 10) == 10
        and check_block_size(np.int64(4), 10) == 4
    )
    for wrong in (0, -1, 2.0, True, "4", None):
        with pytest.raises(ValueError, match="block_size must be a whole number of at least 1"):
            check_block_size(wrong, 10)
