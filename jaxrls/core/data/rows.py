"""The rows of X, wherever they are stored: a factor only needs a sum and a map over blocks of them.

No caller knows whether blocks are cut from an array, made dense from a sparse matrix, or read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.kernels import GramBlock, Kernel, as_dense
from jaxrls.core.linalg import check_block_size, over_rows, wide_block_size
from jaxrls.core.support import (
    as_array,
    check_finite,
    check_inputs,
    check_matrix,
    check_row_numbers,
    check_symmetric,
    on_device,
    pytree,
    shards_of,
    static,
)


class Rows(ABC):
    """The n rows of X, as factors use them: `sum(fn, *columns)` adds `fn(block, *parts)` over
    blocks of rows, and `map` stacks the results.

    A kind of rows defines `shape`, `dtype`, `over`, which does both, and `few_rows(num)`: at most
    so many rows, to estimate their mean. Where it can, `take(indices)` are the rows of these
    numbers, and where zeros are not stored `as_one_block()` all rows in a `Block`. Kinds that are
    not arrays, and the class for sources of a user's, are in `jaxrls.rows`.
    """

    traceable: ClassVar[bool] = False  # whether they are arrays, which can go into `jax.jit`
    in_memory: ClassVar[bool] = False
    is_dense: ClassVar[bool] = True  # False where zeros are not stored, which nothing may fill in
    shape: Any  # (n, d), the number of rows and of columns
    dtype: Any  # of the blocks, float32 or float64
    ndim = 2
    shards: Any = 1  # equal parts of the rows, which may lie on different devices
    labels: Any = None  # of a source that brings its own, (n,) or (n, t); and weights, (n,)
    row_weights: Any = None
    few_rows: Callable
    as_one_block: Callable
    take: Callable

    @abstractmethod
    def over(self, kind: str, fn: Callable, columns: tuple, **hints) -> Any:
        """`sum` or `map`, as `kind` says."""

    def call(self, fn: Callable, args: tuple, options: dict) -> Any:
        """`fn(*args, **options)`, where these rows, which no program takes, are among the
        arguments.
        """
        return fn(*args, **options)

    @property
    def lies(self) -> str:
        """Where the rows are stored, in words."""
        return f"is {type(self).__name__}"

    @property
    def count(self) -> int:
        """The number of rows that are not padding."""
        return self.shape[0]

    def sum(self, fn: Callable, *columns, **hints) -> Any:
        """Sum `fn(block, *parts)` over blocks of rows.

        Args:
            fn: a function of a block (b, d) and its part of each column, which returns a pytree of
                arrays.
            columns: arrays (n, …), pytrees of such, or None, cut like the rows.
            hints: `temporaries`, how many numbers `fn` makes for each row, and `block_size`.
        """
        return self.over("sum", fn, columns, **hints)

    def map(self, fn: Callable, *columns, **hints) -> Any:
        """Stack `fn(block, *parts)` over blocks: arrays with as many rows as the block; the
        arguments are those of `sum`.
        """
        return self.over("map", fn, columns, **hints)

    def check(  # noqa: B027
        self, kernel: Kernel, name: str = "X", *, training: bool = True
    ) -> None:
        """Raise `ValueError` for known values that cannot be fitted or predicted; by default
        nothing, as most kinds are checked when they are made.
        """

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
    def has_pairs(self) -> bool:
        """Whether K of all pairs can be made."""
        return self.in_memory or not self.is_dense

    def for_pairs(self, kernel: Kernel) -> "Rows":
        """The rows in blocks that suit kernel values of pairs of blocks."""
        return self

    def from_origin(self, kernel: Kernel) -> tuple["Rows", Any]:
        """The rows minus an origin in the middle of them, where features are linear in X, and the
        `lift` (n,): the kernel of any rows with these is K about the origin + 1·lift. None where
        nothing was moved.
        """
        return self, None

    @property
    def points(self) -> Any:
        """All rows, as the second argument of a kernel."""
        return self.dense()

    def distinct(self, indices: np.ndarray) -> Any:
        """The rows of these numbers, those that are equal once, of known values."""
        return np.unique(self.take(indices), axis=0)

    def column(self, values: Any) -> Array:
        """Labels or weights as an array that is distributed as the rows are."""
        return on_device(values)

    def like(self, values: Float[Array, "n r"]) -> "Rows":
        """Other numbers of the same rows, stored as these are."""
        return DenseRows(values, self.shards)

    def through(self, features: Any) -> "Rows":
        """The rows φ(x) = `features.features(x)`, computed from each block whenever it is read."""
        return MappedRows(self, features)

    def features(self, kernel: Kernel) -> "Rows":
        """The kernel's explicit features, computed only once where the rows are in memory."""
        return self.like(kernel.features(self.dense())) if self.in_memory else self.through(kernel)


@pytree
class DenseRows(Rows):
    """Rows in one array.

    Args:
        X: (n, d).
        shards: into how many equal parts the rows are cut, which may lie on different devices.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rows = rls.rows.DenseRows(jnp.ones((5, 2)))
    >>> float(rows.sum(lambda x, v: jnp.sum(v * x[:, 0]), jnp.arange(5.0), block_size=2))
    10.0
    """

    traceable: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True
    X: Float[Array, "n d"]
    shards: int = static(default=1)

    def check(self, kernel: Kernel, name: str = "X", *, training: bool = True) -> None:
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

    def over(
        self,
        kind: str,
        fn: Callable,
        columns: tuple,
        temporaries: int = 0,
        block_size: int | None = None,
        **hints,
    ) -> Any:
        """As `Rows.over`, in one compiled loop, or one for each part."""
        n = self.shape[0] // self.shards
        row = (self.shape[1] + temporaries) * self.dtype.itemsize
        size = check_block_size(block_size, n) or wide_block_size(n, row)
        columns = self.X, *columns
        return over_rows(kind, lambda args: fn(*args), columns, size, self.shards, self._placed)

    def _placed(self, arrays: Any, whole: bool = False) -> Any:
        """Arrays with a row for each shard, or for each row, on the devices of these, or `whole` on
        every device; of rows on one device as they are.
        """
        return arrays

    def few_rows(self, num: int) -> Any:
        """Rows spread evenly over all."""
        return self.take(
            np.unique(np.linspace(0, self.count - 1, min(self.count, num)).astype(int))
        )

    def take(self, indices: Array | np.ndarray) -> Any:
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

    def check(self, kernel: Kernel, name: str = "X", *, training: bool = True) -> None:
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
    def shards(self):
        """Those of the source."""
        return self.source.shards

    @property
    def lies(self):
        """As the source does."""
        return self.source.lies

    def over(self, kind: str, fn: Callable, columns: tuple, temporaries: int = 0, **hints) -> Any:
        """As `Rows.over`."""
        hints["temporaries"] = temporaries + self.shape[1]
        mapped = lambda x, *parts: fn(self.feature_map.features(x), *parts)
        return self.source.over(kind, mapped, columns, **hints)

    def few_rows(self, num: int) -> Float[Array, "m r"]:
        """φ of some rows of the source."""
        return self.feature_map.features(self.source.few_rows(num))

    def take(self, indices: Array | np.ndarray) -> Float[Array, "m r"]:
        """φ of these rows of the source."""
        return self.feature_map.features(self.source.take(indices))


# from what a caller gives
# --------------------------------------------------------------------------------------------------

# Kinds of rows of other rooms, which add them here: `kind.takes(X)` says whether X is for this kind
# and no plain array, and `kind.read(name, X, dtype)` are its rows.
KINDS_OF_ROWS: list[Any] = []


def kind_of(X: Any) -> type[Rows]:
    """The kind of rows that X is, or is read as."""
    if isinstance(X, Rows):
        return type(X)
    return next((kind for kind in KINDS_OF_ROWS if kind.takes(X)), DenseRows)


def as_rows(
    kernel: Kernel, X: Any, name: str = "X", *, dtype: Any = None, devices: int = 1
) -> Rows:
    """X as `Rows`: a source of rows as it is; what some kind takes; or an array, of kernel values
    if the kernel is a matrix. `dtype`, such as that of a model, if it must be another.

    `devices` over which an array may lie where that is not known, inside of `jax.jit` without a
    mesh that is set.
    """
    if isinstance(X, Rows):
        return X
    kind: Any = kind_of(X)
    if kind is not DenseRows:
        return kind.read(name, X, dtype)
    X = as_array(name, X, dtype)
    check_matrix(name, X)
    return DenseRows(X, shards_of(X, devices)) if kernel.evaluable else GramRows(GramBlock.of(X))
