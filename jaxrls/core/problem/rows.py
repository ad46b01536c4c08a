"""The rows of X, wherever they are stored: a factor only needs a sum and a map over blocks of them.

No caller knows whether blocks are cut from an array, made dense from a sparse matrix, or read.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.kernels import GramBlock, Kernel, as_dense
from jaxrls.core.linalg import check_block_size, default_block_size, over_rows, wide_block_size
from jaxrls.core.support import (
    as_array,
    check_finite,
    check_inputs,
    check_matrix,
    check_row_numbers,
    check_symmetric,
    is_concrete,
    on_device,
    parts_of,
    pytree,
    static,
)

HOST_BLOCK_BYTES = 32 * 2**20  # of rows that are read at once


@jax.jit
def added(total, more):
    """The sum of two pytrees of arrays, in one program."""
    return jax.tree.map(jnp.add, total, more)


def one_behind(results: Iterable) -> Iterator:
    """The same results, each finished before the one after the next begins: otherwise all blocks
    would be read first.
    """
    before = None
    for result in results:
        jax.block_until_ready(before)
        yield result
        before = result


class Rows:
    """The n rows of X, read in blocks: inherit from this class for a data source of your own.

    A subclass defines `shape`, which is (n, d), the `dtype` of its blocks, float32 or float64, and
    `blocks()`, which runs on the host, yields rows (b, d) from the first to the last, and is called
    once for every reading. It may define `labels` (n,) or (n, t) and `row_weights` (n,), if it
    brings its own, and `block_size`, how many rows are read at a time. Factors then call
    `sum(fn, *columns)`, which adds `fn(block, *parts)` over blocks of rows, and `map`, which stacks
    the results.

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

    traceable: ClassVar[bool] = False  # whether they are arrays, which can go into `jax.jit`
    in_memory: ClassVar[bool] = False
    is_dense: ClassVar[bool] = True  # False where zeros are not stored, which nothing may fill in
    shape: Any  # (n, d), the number of rows and of columns
    dtype: Any  # of the blocks, float32 or float64
    ndim = 2
    parts: Any = 1  # equal parts of the rows, which may lie on different devices
    labels: Any = None  # of a source that brings its own, (n,) or (n, t); and weights, (n,)
    row_weights: Any = None
    block_size: Any = None  # of rows that are read at once
    first = 0  # see `own`

    def blocks(self) -> Iterable:
        """Yield the rows in blocks, each (b, d)."""
        raise TypeError(f"{type(self).__name__} must define blocks()")

    @property
    def lies(self) -> str:
        """Where the rows are stored, in words."""
        return f"is {type(self).__name__}"

    @property
    def count(self) -> int:
        """The number of rows that are not padding."""
        return self.shape[0]

    def sum(self, fn: Callable, *columns, **hints):
        """Sum `fn(block, *parts)` over blocks of rows.

        Args:
            fn: a function of a block (b, d) and its part of each column, which returns a pytree of
                arrays.
            columns: arrays (n, …), pytrees of such, or None, cut like the rows.
            hints: `temporaries`, how many numbers `fn` makes for each row, and `block_size`.
        """
        return self.over("sum", fn, columns, **hints)

    def map(self, fn: Callable, *columns, **hints):
        """Stack `fn(block, *parts)` over blocks: arrays with as many rows as the block; the
        arguments are those of `sum`.
        """
        return self.over("map", fn, columns, **hints)

    def over(self, kind: str, fn: Callable, columns: tuple, **hints):
        """`sum` or `map`, as `kind` says; here compiled for a block."""
        run = jax.jit(lambda x, *parts: DenseRows(x).over(kind, fn, parts, **hints))
        return self.reading(kind, run, columns)

    def reading(self, kind: str, run: Callable, columns: tuple):
        """As `over`, by a compiled `run`, which reads the rows once."""
        found = one_behind(run(*block) for _, block in self._with_columns(columns))
        if kind == "sum":
            return reduce(added, found)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)

    def _with_columns(self, columns) -> Iterator:
        """Blocks of equal size with their part of the columns, and the number of rows up to their
        end.
        """
        start = 0
        for x in self._equal_blocks():
            rows = slice(start, start + len(x))
            parts = jax.tree.map(lambda a: a[rows], columns)  # noqa: B023
            yield rows.stop, (jnp.asarray(x, self.dtype), *parts)
            start = rows.stop

    @property
    def own(self) -> int:
        """How many rows this process reads, starting with row number `first`."""
        return self.shape[0]

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """The size of the blocks in use, and of the last one where it is smaller."""
        n, row = self.own, 8 * self.shape[1]  # bytes of float64: threads differ in JAX's dtype
        size = check_block_size(self.block_size, n) or default_block_size(n, row, HOST_BLOCK_BYTES)
        return (size, n % size) if n % size else (size,)

    def _equal_blocks(self) -> Iterator:
        """The blocks in `block_sizes`; raises where rows or columns differ from `shape`."""
        n, d, size, found = self.own, self.shape[1], self.block_sizes[0], 0
        claim = f"{type(self).__name__} says that it has"
        for x in in_blocks(self.blocks(), size):
            found += len(x)
            if x.shape[1:] != (d,):
                raise ValueError(f"{claim} {d} columns, and a block has shape {x.shape}")
            if found > n or len(x) < size and found < n:
                break
            yield x
        if found != n:
            more = " or more" * (found > n)
            raise ValueError(f"{claim} {n} rows, and its blocks have {found}{more}")

    def check(self, kernel: Kernel, name: str = "X", *, training: bool = True) -> None:
        """Raise `ValueError` for known values that cannot be fitted or predicted."""

    def some(self, num: int) -> Float[Array, "k d"]:
        """At most `num` rows, to estimate their mean."""
        return jnp.asarray(next(self._equal_blocks())[:num], self.dtype)

    def take(self, indices) -> Float[Array, "k d"]:
        """The rows of these row numbers, by one reading."""
        return jnp.asarray(self._read(np.asarray(indices)), self.dtype)

    def _read(self, indices) -> np.ndarray:
        """The rows of these numbers, 0 for those of other processes."""
        found, start = np.zeros((len(indices), self.shape[1]), self.dtype), self.first
        for x in self.blocks():
            here = (start <= indices) & (indices < start + len(x))
            found[here] = x[indices[here] - start]
            start += len(x)
        return found

    def candidates(self) -> tuple[Any, Any]:
        """Row numbers, None where they are all, and the rows that landmarks are chosen from, an
        array or the rows themselves.
        """
        return None, self.dense()

    def dense(self) -> Float[Array, "n d"]:
        """All rows in one array on one device."""
        raise ValueError(
            f"this needs all rows in one array, as K of all pairs does, and X {self.lies}: give "
            "landmarks= as a number, row numbers or points, a kernel with fewer explicit features "
            "than rows, or X as an array on one device"
        )

    @property
    def points(self) -> Any:
        """All rows, as the second argument of a kernel."""
        return self.dense()

    def column(self, values) -> Array:
        """Labels or weights as an array that is distributed as the rows are."""
        return on_device(values)

    def like(self, values: Float[Array, "n r"]) -> "Rows":
        """Other numbers of the same rows, stored as these are."""
        return DenseRows(values, self.parts)

    def through(self, features: Any) -> "Rows":
        """The rows φ(x) = `features.features(x)`, computed from each block whenever it is read."""
        return MappedRows(self, features)

    def features(self, kernel: Kernel) -> "Rows":
        """The kernel's explicit features, computed only once where the rows are in memory."""
        return self.like(kernel.features(self.dense())) if self.in_memory else self.through(kernel)


def in_blocks(arrays: Iterable, size: int) -> Iterator:
    """The same rows in arrays of `size` rows, except for the last."""
    join = lambda parts: (np if is_concrete(parts) else jnp).concatenate(parts)
    held: list = []
    missing = size
    for X in arrays:
        while len(X):
            held.append(X[:missing])
            X, missing = X[missing:], missing - len(held[-1])
            if not missing:
                yield join(held)
                held, missing = [], size
    if held:
        yield join(held)


@pytree
class DenseRows(Rows):
    """Rows in one array.

    Args:
        X: (n, d).
        parts: into how many equal parts the rows are cut, which may lie on different devices.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rows = rls.rows.DenseRows(jnp.ones((5, 2)))
    >>> float(rows.sum(lambda x, v: jnp.sum(v * x[:, 0]), jnp.arange(5.0), block_size=2))
    10.0
    """

    traceable: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True
    X: Float[Array, "n d"]
    parts: int = static(default=1)

    def check(self, kernel, name="X", *, training=True):
        """Raise `ValueError` for values that are not finite, too large, or outside of the kernel's
        domain, where values are known.
        """
        # A kernel that is a matrix has no inputs to check.
        (check_inputs if kernel.evaluable else check_finite)(name, as_dense(self.X))
        kernel.check(self.X)

    @property
    def shape(self):
        """(n, d)."""
        return self.X.shape

    def dense(self):
        """All rows."""
        return self.X

    @property
    def dtype(self):
        """The dtype of the array."""
        return self.X.dtype

    def over(self, kind, fn, columns, temporaries=0, block_size=None, **hints):
        """As `Rows.over`, in one compiled loop, or one for each part."""
        n, row = self.shape[0] // self.parts, (self.shape[1] + temporaries) * self.dtype.itemsize
        size = check_block_size(block_size, n) or wide_block_size(n, row)
        columns = self.X, *columns
        return over_rows(kind, lambda args: fn(*args), columns, size, self.parts, self._placed)

    def _placed(self, arrays, whole: bool = False):
        """Arrays with a row for each part, or each row, on the devices of those, or on every
        device: here, wherever the compiler puts them.
        """
        return arrays

    def some(self, num):
        """Rows spread evenly over all."""
        return self.take(
            np.unique(np.linspace(0, self.count - 1, min(self.count, num)).astype(int))
        )

    def take(self, indices):
        """The rows of these row numbers, 0 to n − 1."""
        check_row_numbers(indices, self.count)
        return self._placed(self.X[indices], whole=True)


@pytree
class GramRows(DenseRows):
    """Rows of a kernel matrix that was computed elsewhere: blocks are `GramBlock`s, whose rows know
    their numbers.
    """

    X: GramBlock  # type: ignore[assignment]

    def dense(self):
        """The matrix."""
        return self.X.values

    @property
    def points(self):
        """All rows, with their numbers."""
        return self.X

    def check(self, kernel, name="X", *, training=True):
        """Raise unless the matrix of training rows is symmetric too; rows to predict have one
        column for each training row.
        """
        super().check(kernel, name)
        if training:
            check_symmetric("X, as the precomputed kernel matrix,", self.dense())


@pytree
class MappedRows(Rows):
    """Rows φ(x) of other rows x, computed block by block and never stored."""

    source: Rows
    feature_map: Any

    @property
    def traceable(self):  # type: ignore[override]
        """That of the source."""
        return self.source.traceable

    @property
    def shape(self):
        """(n, r)."""
        n, d = self.source.shape
        row = jax.ShapeDtypeStruct((1, d), self.dtype)
        return n, jax.eval_shape(self.feature_map.features, row).shape[1]

    @property
    def dtype(self):
        """That of the source."""
        return self.source.dtype

    @property
    def parts(self):
        """Those of the source."""
        return self.source.parts

    @property
    def lies(self):
        """As the source does."""
        return self.source.lies

    def over(self, kind, fn, columns, temporaries=0, **hints):
        """As `Rows.over`."""
        hints["temporaries"] = temporaries + self.shape[1]
        mapped = lambda x, *parts: fn(self.feature_map.features(x), *parts)
        return self.source.over(kind, mapped, columns, **hints)

    def some(self, num):
        """φ of some rows of the source."""
        return self.feature_map.features(self.source.some(num))

    def take(self, indices):
        """φ of these rows of the source."""
        return self.feature_map.features(self.source.take(indices))


# from what a caller gives
# --------------------------------------------------------------------------------------------------

# Kinds of rows of other rooms, which add them here: `kind.takes(X)` says whether X is for this kind
# and no plain array, and `kind.read(name, X, dtype)` are its rows.
KINDS_OF_ROWS: list[Any] = []


def kind_of(X) -> type[Rows]:
    """The kind of rows that X is, or is read as."""
    if isinstance(X, Rows):
        return type(X)
    return next((kind for kind in KINDS_OF_ROWS if kind.takes(X)), DenseRows)


def as_rows(kernel: Kernel, X, name: str = "X", *, dtype=None, devices: int = 1) -> Rows:
    """X as `Rows`: a source of rows as it is; what some kind takes; or an array, of kernel values if
    the kernel is a matrix. `dtype`, such as that of a model, if it must be another.

    `devices` over which an array may lie where that is not known, inside of `jax.jit` without a
    mesh that is set.
    """
    if isinstance(X, Rows):
        return X
    kind: Any = kind_of(X)
    if kind in KINDS_OF_ROWS:
        return kind.read(name, X, dtype)
    X = as_array(name, X, dtype)
    check_matrix(name, X)
    return DenseRows(X, parts_of(X, devices)) if kernel.evaluable else GramRows(GramBlock.of(X))
