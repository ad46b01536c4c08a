"""Rows that only the host reads, in blocks, and the class that sources of rows inherit from.

One sum over a stream of files is this chain of calls:

    over → read_blocks → with_columns → equal_blocks → in_blocks → blocks → pieces → Files
    → Table.batches

The first five are in this module. `StreamedRows` defines the next two, which read `Files`, and
extends `read_blocks` and `equal_blocks`. In a compiled function, a reading of `readings.py` calls
`read_blocks` in place of `over`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import DenseRows, Rows
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import SUM, Reduction, check_block_size, default_block_size
from jaxrls.core.support import check_row_numbers, numpy_or_jax
from jaxrls.rows.readings import run_between_readings

HOST_BLOCK_BYTES = 32 * 2**20  # the bytes of rows that are read at once
FAR = 1e15  # numbers of this size are refused by a kernel that takes only some numbers


class HostRows(Rows):
    """The n rows of X, read in blocks: inherit from this class for a data source of your own.

    A subclass defines:

    * `shape`, which is (n, d);
    * `dtype`, the dtype of its blocks, float32 or float64;
    * `blocks()`, which runs on the host and yields rows (b, d) from the first to the last. It is
      called once for every reading.

    It may also define `labels` (n,) or (n, t) and `row_weights` (n,), if the source has its own,
    and `block_size`, how many rows are read at a time. Factors then call `sum(fn, *columns)`, which
    adds `fn(block, *parts)` over blocks of rows, and `map`, which stacks the results.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> class Counted(rls.rows.Rows):
    ...     shape, dtype = (4, 1), jnp.zeros(()).dtype
    ...     def blocks(self):
    ...         yield jnp.array([[0.0], [1.0]])
    ...         yield jnp.array([[2.0], [3.0]])
    >>> round(float(rls.fit(rls.Linear(), Counted(), [0.0, 1.0, 2.0, 3.5]).model.coef[0]), 2)
    1.15
    """

    block_size: Any = None  # how many rows are read at a time; None for HOST_BLOCK_BYTES
    first = 0  # the number, among all rows, of the first row that this process reads

    @property
    def own(self) -> int:
        """The number of rows that this process reads, starting with row number `first`."""
        return self.shape[0]

    def blocks(self) -> Iterable:
        """Yield the rows in blocks, each (b, d). Every subclass defines this method."""
        raise TypeError(f"{type(self).__name__} must define blocks()")

    call = staticmethod(run_between_readings)

    @property
    def ends(self) -> Float[np.ndarray, "2 d"]:
        """Two rows between which the numbers of every column lie, as far as is known."""
        return far_ends(self.shape[1], self.dtype)

    def check(self, kernel: Kernel, name: str = "X", *, training: bool = True) -> None:
        """Raise if rows lie outside of the kernel's domain.

        All rows are read for this only if the kernel does not take all numbers between the `ends`.
        Whether numbers are finite is not checked.
        """
        check_domain(kernel, self.ends, self.blocks)

    def over(self, reduction: Reduction, fn: Callable, columns: Any, **hints) -> Any:
        """Compute `Rows.over` over the blocks that are read.

        `fn` is compiled once for each size of block.
        """
        of_block = jax.jit(lambda x, part: DenseRows(x).over(reduction, fn, part, **hints))
        return self.read_blocks(reduction, of_block, columns)

    def read_blocks(self, reduction: Reduction, of_block: Callable, columns: Any) -> Any:
        """Read all rows once, and sum or stack the results of the blocks.

        Args:
            reduction: `SUM`, or `MAP`, which stacks.
            of_block: a compiled function of a block and of the block's part of the columns.
            columns: a pytree of arrays with one entry for each row.
        """
        results = one_behind(of_block(x, part) for _, x, part in self.with_columns(columns))
        if reduction is SUM:
            return reduce(added, results)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *results)

    def with_columns(self, columns: Any) -> Iterator:
        """Yield `(stop, block, part)` for blocks of equal size.

        `stop` is the number, among all rows, of the row after the block. `part` has the entries of
        the columns for the rows of the block.
        """
        stop = self.first
        for x in self.equal_blocks():
            rows = slice(stop, stop := stop + len(x))
            part = jax.tree.map(lambda a: a[rows], columns)  # noqa: B023
            yield stop, jnp.asarray(x, self.dtype), part

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """The number of rows in a block, and the number in the last block if that is smaller."""
        # Bytes are counted as for float64: JAX's dtype may differ between threads, and the size of
        # blocks must not.
        n = self.own
        row = 8 * self.shape[1]
        size = check_block_size(self.block_size, n) or default_block_size(n, row, HOST_BLOCK_BYTES)
        return (size, n % size) if n % size else (size,)

    def equal_blocks(self) -> Iterator:
        """Yield the rows in blocks of the sizes `block_sizes`.

        Raise if the number of rows or columns differs from `shape`.
        """
        n = self.own
        d = self.shape[1]
        size = self.block_sizes[0]
        count = 0
        claim = f"{type(self).__name__} says that it has"
        for x in in_blocks(self.blocks(), size):
            count += len(x)
            if x.shape[1:] != (d,):
                raise ValueError(f"{claim} {d} columns, and a block has shape {x.shape}")
            if count > n or len(x) < size and count < n:
                break
            yield x
        if count != n:
            more = " or more" if count > n else ""
            raise ValueError(f"{claim} {n} rows, and its blocks have {count}{more}")

    @property
    def few_at_most(self) -> int:
        """The most rows that `few_rows` can return."""
        return self.block_sizes[0]

    def few_rows(self, num: int) -> Float[Array, "k d"]:
        """Return the first rows, at most `num`."""
        return jnp.asarray(next(self.equal_blocks())[:num], self.dtype)

    def take(self, indices: Array | np.ndarray) -> Float[Array, "k d"]:
        """Return the rows with these numbers, 0 to n − 1, by one reading of all rows."""
        indices = np.asarray(indices)
        check_row_numbers(indices, self.shape[0])
        return jnp.asarray(self.rows_here(indices), self.dtype)

    def rows_here(self, indices: np.ndarray) -> np.ndarray:
        """Return the rows with these numbers that this process reads, and zeros for all others."""
        taken = np.zeros((len(indices), self.shape[1]), self.dtype)
        start = self.first
        for x in self.blocks():
            here = (start <= indices) & (indices < start + len(x))
            taken[here] = x[indices[here] - start]
            start += len(x)
        return taken


def far_ends(d: int, dtype: Any) -> Float[np.ndarray, "2 d"]:
    """Return two rows of d numbers that are far from 0, one of negative numbers."""
    return np.broadcast_to(np.array([[-FAR], [FAR]], dtype), (2, d))


def takes(kernel: Kernel, rows: Any) -> bool:
    """Whether rows lie within a kernel's domain."""
    with suppress(ValueError):
        kernel.check(rows)
        return True
    return False


def check_domain(kernel: Kernel, ends: Float[np.ndarray, "2 d"], blocks: Callable) -> None:
    """Raise if rows lie outside of a kernel's domain.

    `blocks()` has all rows, and `ends` are two rows between which they lie. The rows are looked at
    only if the kernel refuses the ends. It may do so although it takes the rows, for example if the
    numbers of a row must sum to 1.
    """
    if not takes(kernel, ends):
        for x in filter(len, blocks()):
            kernel.check(x)


@jax.jit
def added(total: Any, more: Any) -> Any:
    """Return the sum of two pytrees of arrays, computed by one program."""
    return jax.tree.map(jnp.add, total, more)


def one_behind(results: Iterable) -> Iterator:
    """Yield the same results, with at most two of them in computation at a time.

    JAX returns from a call before its result is computed. Without waiting for earlier results, the
    host would read all blocks before the first is done.
    """
    before = None
    for result in results:
        jax.block_until_ready(before)
        yield result
        before = result


def in_blocks(arrays: Iterable, size: int) -> Iterator:
    """Yield the same rows in arrays of `size` rows. The last array may have fewer."""
    join = lambda parts: numpy_or_jax(parts).concatenate(parts)
    held: list = []
    missing = size
    for X in arrays:
        while len(X):
            held.append(X[:missing])
            X = X[missing:]
            missing = missing - len(held[-1])
            if not missing:
                yield join(held)
                held = []
                missing = size
    if held:
        yield join(held)
