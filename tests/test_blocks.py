"""Blocks of rows: their sizes, and derivatives through them; sums and maps in test_rows.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import EPS, array, assert_close

from jaxrls.rows import blocks
from jaxrls.rows.blocks import default_block_size, map_rows, sum_rows

N = 11


def test_derivatives_are_those_without_blocks():
    """Of a map and of a sum, which are those of all rows; backwards, forwards and twice, in the
    rows and in what blocks share; under vmap.
    """
    rng = np.random.default_rng(1)
    X, w = array(rng.normal(size=(N, 3))), array(rng.normal(size=(2, 3, 2)))

    @functools.partial(jax.jit, static_argnums=2)
    def derivatives(X, w, size):
        def one(X, w):
            squares = map_rows(lambda x: jnp.tanh(x @ w), X, size) ** 2
            total = sum_rows(lambda x: jnp.tanh(x @ w).T @ x, X, size)
            return jnp.sum(squares) + jnp.sum(total**2)

        back, forth, twice = jax.grad(one, (0, 1)), jax.jacfwd(one, (0, 1)), jax.hessian(one, 1)
        return jax.vmap(lambda w: (one(X, w), back(X, w), forth(X, w), twice(X, w)))(w)

    for size in (1, 4):
        parts = derivatives(X, w, size), derivatives(X, w, N), (100, 100, 100, 1000)
        for got, want, units in zip(*parts, strict=True):
            close = functools.partial(assert_close, tolerance=units * EPS)
            jax.tree.map(close, got, want)


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
