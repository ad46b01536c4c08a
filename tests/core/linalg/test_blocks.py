"""Sizes of blocks of rows; sums and maps in test_rows.py, derivatives in the contract's tests."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrls.core.linalg import blocks
from jaxrls.core.linalg.blocks import default_block_size


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
