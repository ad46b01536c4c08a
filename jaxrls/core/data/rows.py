"""The rows of X, wherever they are stored.

Factors need only sums and maps over blocks of rows. So they do not know whether a block is cut from
an array, taken from a sparse matrix, or read from a file. Begin with the class `Rows`. The function
`as_rows` makes an instance from what a user passes as X.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.kernels import GramBlock, Kernel, as_dense
from jaxrls.core.linalg import (
    MAP,
    SUM,
    Reduction,
    check_block_size,
    over_rows,
    wide_block_size,
)
from jaxrls.core.support import (
    as_array,
    check_finite,
    check_inputs,
    check_matrix,
    check_row_numbers,
    check_symmetric,
    is_symbolic,
    known_values,
    on_device,
    pytree,
    shards_of,
    static,
)


class Candidates(NamedTuple):
    """The rows from which landmarks are chosen: all rows, or a sample of them.

    Args:
        numbers: the row numbers of a sample; None if all rows are candidates.
        rows: the candidates, as an array or as `Rows`.
    """

    numbers: Any
    rows: Any

    @property
    def are_all(self) -> bool:
        """Whether all rows are candidates."""
        return self.numbers is None


class Rows(ABC):
    """The n rows of X, as factors use them.

    `sum(fn, *columns)` adds `fn(block, *parts)` over blocks of rows. `map` stacks the results.

    A subclass defines

    * `shape` and `dtype`.
    * `over`, which computes a sum or a map.
    * `few_rows`, from which means are estimated.
    * `take`, if it can return rows by their numbers.
    * `as_one_block`, if zeros are not stored.
    * What it can do, where it differs: `traceable`, `in_memory` and `is_dense`.

    The other methods have defaults, which suit rows that are read in blocks.

    `jaxrls.rows` has the subclasses for rows that are not one array. It also has the class from
    which the data source of a user inherits.
    """

    traceable: ClassVar[bool] = False  # whether the rows are arrays, which can go into `jax.jit`
    in_memory: ClassVar[bool] = False  # whether `dense()` gives all rows
    is_dense: ClassVar[bool] = True  # False if zeros are not stored, and no code may fill them in
    shape: Any  # (n, d), the number of rows and of columns
    dtype: Any  # of the blocks, float32 or float64
    ndim = 2
    shards: Any = 1  # the number of equal parts of the rows, which may lie on different devices
    labels: Any = None  # (n,) or (n, t), if the source of the rows has labels
    target_names: tuple = ()  # of the columns of labels, if these have names
    row_weights: Any = None  # (n,), if the source of the rows has weights

    @abstractmethod
    def over(
        self,
        reduction: Reduction,
        fn: Callable,
        columns: Any,
        *,
        temporaries: int = 0,
        block_size: int | None = None,
    ) -> Any:
        """Sum (`SUM`) or stack (`MAP`) `fn(block, part)` over blocks of rows.

        Args:
            reduction: `SUM` or `MAP`.
            fn: a function of a block of rows and of the part of `columns` for these rows.
            columns: a pytree of arrays (n, …).
            temporaries: how many numbers `fn` makes for each row.
            block_size: rows at a time; None for the default.
        """

    def few_rows(self, num: int) -> Any:
        """Return at most `num` rows, in one array."""
        raise self._lacks("few_rows(num)")

    def take(self, indices: Array | np.ndarray) -> Any:
        """Return the rows of these numbers, in one array."""
        raise self._lacks("take(indices)")

    def as_one_block(self) -> Any:
        """Return all rows in one `Block`."""
        raise self._lacks("as_one_block()")

    def _lacks(self, method: str) -> ValueError:
        """Return the error for a method that this kind of rows does not define."""
        return ValueError(f"this needs {method} of the rows, and X {self.lies} without it")

    def call(self, fn: Callable, args: tuple, options: dict) -> Any:
        """Return `fn(*args, **options)`, for rows that cannot be an argument of `jax.jit`.

        `compiled` calls this method if such rows are among the arguments.
        """
        return fn(*args, **options)

    @property
    def lies(self) -> str:
        """How the rows are stored, as the verb of a sentence that begins with "X"."""
        return f"is {type(self).__name__}"

    @property
    def count(self) -> int:
        """The number of rows that are not padding."""
        return self.shape[0]

    def sum(self, fn: Callable, *columns, **hints) -> Any:
        """Sum `fn(block, *parts)` over blocks of rows.

        Args:
            fn: a function of a block (b, d) and of the block's part of each column. It returns a
                pytree of arrays.
            columns: arrays (n, …), pytrees of arrays, or None. They are cut like the rows.
            hints: `temporaries` and `block_size` of `over`.
        """
        return self.over(SUM, lambda block, parts: fn(block, *parts), columns, **hints)

    def map(self, fn: Callable, *columns, **hints) -> Any:
        """Stack `fn(block, *parts)` over blocks of rows.

        The arguments are those of `sum`. `fn` returns arrays with as many rows as the block.
        """
        return self.over(MAP, lambda block, parts: fn(block, *parts), columns, **hints)

    def check(  # noqa: B027
        self, kernel: Kernel, name: str = "X", *, training: bool = True
    ) -> None:
        """Raise `ValueError` for known values that cannot be fitted or predicted.

        This method checks nothing, because most kinds of rows are checked when they are made.
        """

    def candidates(self) -> Candidates:
        """Return the rows from which landmarks are chosen."""
        return Candidates(None, self.dense())

    def dense(self) -> Float[Array, "n d"]:
        """Return all rows in one array on one device, or raise `ValueError`."""
        raise ValueError(
            f"this needs all rows in one array, as K of all pairs does, and X {self.lies}: give "
            "landmarks= as a number, row numbers or points, a kernel with fewer explicit features "
            "than rows, or X as an array on one device"
        )

    @property
    def has_pairs(self) -> bool:
        """Whether K of all pairs of rows can be computed."""
        return self.in_memory or not self.is_dense

    def for_pairs(self, kernel: Kernel) -> "Rows":
        """Return the same rows, in blocks of a size that suits kernel values of block pairs."""
        return self

    def from_origin(self, kernel: Kernel) -> tuple["Rows", Any]:
        """Return the rows minus an origin o near their mean, and the `lift` (n,).

        With a linear kernel, for any row z and the moved rows,

            k(z, xᵢ − o) = k(z − o, xᵢ − o) + liftᵢ,  liftᵢ = k(o, xᵢ − o).

        Kernels that are not linear, and most kinds of rows, leave the rows as they are. Then `lift`
        is None.
        """
        return self, None

    @property
    def points(self) -> Any:
        """All rows, in the form of the second argument of a kernel."""
        return self.dense()

    def distinct(self, indices: np.ndarray) -> Any:
        """Return the rows of these numbers, and each of several equal rows only once.

        Inside of `jax.jit`, where values are not known, equal rows are all returned.
        """
        taken = self.take(indices)
        known = known_values(taken)
        return taken if known is None else np.unique(known, axis=0)

    def column(self, values: Any) -> Array:
        """Return labels or weights as an array that is distributed over devices like the rows."""
        return on_device(values)

    def like(self, values: Float[Array, "n r"]) -> "Rows":
        """Return `values`, one row for each of these rows, as `Rows` that are stored like these."""
        return DenseRows(values, self.shards)

    def through(self, feature_map: Any) -> "Rows":
        """Return the rows φ(x) = `feature_map.features(x)`, computed anew for each block in use."""
        return MappedRows(self, feature_map)

    def num_features(self, kernel: Kernel) -> int | None:
        """Return the number of the kernel's explicit features of these rows; None without any."""
        return kernel.num_features(self.shape[1], self.dtype)

    def feature_rows(self, kernel: Kernel) -> "Rows":
        """Return the rows φ(x) of the kernel's explicit features.

        φ is computed only once if the rows are in memory.
        """
        return self.like(kernel.features(self.dense())) if self.in_memory else self.through(kernel)


@pytree
class DenseRows(Rows):
    """Rows in one array.

    Args:
        X: (n, d).
        shards: the number of equal parts of the rows, which may lie on different devices.

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
        domain.

        Inside of `jax.jit` values are not known, and nothing is checked.
        """
        # A kernel that is a matrix has no inputs to check.
        (check_inputs if kernel.evaluable else check_finite)(name, as_dense(self.X))
        kernel.check(self.X)

    @property
    def shape(self):
        """(n, d)."""
        return self.X.shape

    def dense(self):
        """Return all rows."""
        return self.X

    @property
    def dtype(self):
        """The dtype of the array."""
        return self.X.dtype

    def over(
        self,
        reduction: Reduction,
        fn: Callable,
        columns: Any,
        *,
        temporaries: int = 0,
        block_size: int | None = None,
    ) -> Any:
        """Compute `Rows.over` in one compiled loop, or in one for each shard."""
        n = self.shape[0] // self.shards
        row = (self.shape[1] + temporaries) * self.dtype.itemsize
        size = check_block_size(block_size, n) or wide_block_size(n, row)
        of_arrays = lambda arrays: fn(*arrays)
        arrays = self.X, columns
        return over_rows(reduction, of_arrays, arrays, size, self.shards, self._placed)

    def _placed(self, arrays: Any, whole: bool = False) -> Any:
        """Return arrays as they are, because these rows lie on one device.

        In `ShardedRows` arrays with a row for each row of X, or for each shard, are put on the
        devices of X. With `whole`, every device gets all of each array.
        """
        return arrays

    def few_rows(self, num: int) -> Any:
        """Return at most `num` rows, spread evenly over all."""
        return self.take(
            np.unique(np.linspace(0, self.count - 1, min(self.count, num)).astype(int))
        )

    def take(self, indices: Array | np.ndarray) -> Any:
        """Return the rows of these numbers, which are in 0 to n − 1."""
        check_row_numbers(indices, self.count)
        return self._placed(self.X[indices], whole=True)


@pytree
class GramRows(DenseRows):
    """Rows of a kernel matrix that the user computed.

    A block is a `GramBlock`, which also holds the numbers of its rows.
    """

    X: GramBlock  # type: ignore[assignment]

    def dense(self):
        """Return the matrix."""
        return self.X.values

    @property
    def points(self):
        """All rows, with their numbers."""
        return self.X

    def check(self, kernel: Kernel, name: str = "X", *, training: bool = True) -> None:
        """Raise `ValueError` as `DenseRows.check` does, and if the training matrix is asymmetric.

        Rows to predict are not square: they have one column for each training row.
        """
        super().check(kernel, name)
        if training:
            check_symmetric("X, as the precomputed kernel matrix,", self.dense())


@pytree
class MappedRows(Rows):
    """Rows φ(x) of other rows x, computed block by block and never stored."""

    source: Rows
    feature_map: Any  # has `features(x)`, as a kernel with explicit features has

    @property
    def traceable(self):  # type: ignore[override]
        """Whether the source is traceable."""
        return self.source.traceable

    @property
    def shape(self):
        """(n, r)."""
        n, d = self.source.shape
        row = jax.ShapeDtypeStruct((1, d), self.dtype)
        return n, jax.eval_shape(self.feature_map.features, row).shape[1]

    @property
    def dtype(self):
        """The dtype of the source."""
        return self.source.dtype

    @property
    def shards(self):
        """The number of shards of the source."""
        return self.source.shards

    @property
    def lies(self):
        """How the source is stored, in words."""
        return self.source.lies

    def over(
        self, reduction: Reduction, fn: Callable, columns: Any, *, temporaries: int = 0, **hints
    ) -> Any:
        """Compute `Rows.over` over blocks of the source, of which φ is computed."""
        hints["temporaries"] = temporaries + self.shape[1]
        mapped = lambda x, part: fn(self.feature_map.features(x), part)
        return self.source.over(reduction, mapped, columns, **hints)

    def few_rows(self, num: int) -> Float[Array, "m r"]:
        """Return φ of at most `num` rows of the source."""
        return self.feature_map.features(self.source.few_rows(num))

    def take(self, indices: Array | np.ndarray) -> Float[Array, "m r"]:
        """Return φ of the rows of these numbers."""
        return self.feature_map.features(self.source.take(indices))


# rows from what a user passes as X
# --------------------------------------------------------------------------------------------------

# Subclasses of `Rows` for other things than plain arrays. Other folders add theirs here.
# `kind.takes(X)` is whether the kind is for X, and `kind.read(name, X, dtype)` makes the rows.
KINDS_OF_ROWS: list[Any] = []


def kind_of(X: Any) -> type[Rows]:
    """Return the subclass of `Rows` that X has, or that `as_rows` makes of X."""
    if isinstance(X, Rows):
        return type(X)
    return next((kind for kind in KINDS_OF_ROWS if kind.takes(X)), DenseRows)


def as_rows(
    kernel: Kernel, X: Any, name: str = "X", *, dtype: Any = None, devices: int = 1
) -> Rows:
    """Return X as `Rows`.

    Args:
        kernel: the kernel. If it is a matrix, X is an array of kernel values.
        X: an array, a list or a table, or what one of `KINDS_OF_ROWS` takes. `Rows` are returned as
            they are.
        name: the name of X in error messages.
        dtype: the dtype of the rows, such as that of a model; by default that of X.
        devices: over how many devices the array may lie. It counts only inside of `jax.jit`, if
            no mesh is set, because there the placement of arrays is not known.
    """
    if isinstance(X, Rows):
        return X
    kind: Any = kind_of(X)
    if kind is not DenseRows:
        return kind.read(name, X, dtype)
    X = as_array(name, X, dtype)
    check_matrix(name, X)
    return DenseRows(X, shards_of(X, devices)) if kernel.evaluable else GramRows(GramBlock.of(X))


def as_training_rows(kernel: Kernel, X: Any) -> Rows:
    """Return X as `Rows` to fit. Raise if their number is a symbol, as `jax.export` takes them."""
    rows = as_rows(kernel, X)
    if is_symbolic(rows.shape[0]):
        raise ValueError(
            f"X must have a known number of rows to fit, and has the symbol {rows.shape[0]}: pad "
            "it with rows of weight 0; only rows to predict may be of any number"
        )
    return rows
