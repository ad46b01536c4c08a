"""The rows of X, wherever they live: all that a factor asks of them is a sum and a map over blocks.

No caller knows whether the blocks are cut from one array, made dense from a sparse one, or read
from somewhere else."""

import operator
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import matmul
from jaxrls.rows.blocks import check_block_size, in_parts, map_rows, sum_rows, wide_block_size
from jaxrls.rows.gram import gram
from jaxrls.support.checks import check_finite, check_row_numbers, check_squares, check_symmetric
from jaxrls.support.pytrees import pytree, static

# What rows on several devices say where there is no way with them.
NO_PAIRS = (
    "K of all pairs needs rows in memory of one device, and X lies on {parts}: give landmarks=, a kernel with fewer explicit features than rows, or an X "
    "on one device, for which K is factored, or multiplied by route='iterative'"
)


@jax.jit
def added(total, more):
    """The sum of two pytrees of arrays, in one program."""
    return jax.tree.map(jax.numpy.add, total, more)


class Rows:
    """n rows of d numbers: what to inherit from for a source of rows of one's own.

    `sum(fn, *columns)` adds `fn(block, *parts)` over blocks of rows, `map` stacks its results;
    `columns` are arrays (n, …), pytrees of such or None, cut like the rows. `temporaries`, the
    numbers that `fn` makes for each row, and `block_size` are hints. Rows whose blocks are made on
    the host, such as those of a file, set `traceable = False`; they cannot go into `jax.jit`, and
    `fit` then runs outside of it.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> class Counted(rls.Rows):
    ...     shape, dtype, traceable = (4, 1), jnp.zeros(()).dtype, False
    ...     def blocks(self):
    ...         yield jnp.array([[0.0], [1.0]])
    ...         yield jnp.array([[2.0], [3.0]])
    >>> round(float(rls.fit(rls.Linear(), Counted(), [0.0, 1.0, 2.0, 3.5]).model.coef[0]), 2)
    1.15
    """

    traceable: ClassVar[bool] = True
    in_memory: ClassVar[bool] = False
    ndim = 2
    parts: Any = 1  # of equally many rows, which may lie on different devices
    labels: Any = None  # of a source that brings its own, (n,) or (n, t); and weights, (n,)
    row_weights: Any = None
    block_sizes: Any = None  # of blocks made on the host, all that there are, the usual one first; None where not known before

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d), the number of rows and of columns."""
        raise TypeError(f"{type(self).__name__} must define shape = (n, d)")

    @property
    def dtype(self) -> Any:
        """The dtype of the blocks, float32 or float64."""
        raise TypeError(f"{type(self).__name__} must define dtype")

    def blocks(self):
        """The rows, some at a time, from the first to the last: each (b, d); called once for every
        reading.
        """
        raise TypeError(f"{type(self).__name__} must define blocks(), or sum and map and some")

    @property
    def stored(self) -> "Rows":
        """The same rows, their blocks as they are stored, for what `reads_stored`."""
        return self

    def read_by(self, features: Any) -> "Rows":
        """The rows as they are stored for a kernel, and what is made of one; dense for others."""
        return self.stored if getattr(features, "reads_stored", False) else self

    @property
    def count(self) -> int:
        """How many rows are no padding."""
        return self.shape[0]

    def sum(self, fn: Callable, *columns, temporaries: int = 0, block_size: int | None = None):
        """Σ over blocks of `fn(block, *parts)`, any pytree of arrays."""
        del temporaries, block_size
        total = None
        for out in self._each(fn, columns):
            total = out if total is None else added(total, out)
        return total

    def map(self, fn: Callable, *columns, temporaries: int = 0, block_size: int | None = None):
        """`fn(block, *parts)`, arrays of as many rows as the block, stacked."""
        del temporaries, block_size
        return jax.tree.map(lambda *parts: jax.numpy.concatenate(parts), *self._each(fn, columns))

    def pick(self, columns: Any, numbers: Any) -> Any:
        """The entries of these rows of a pytree of arrays (n, …), wherever they lie."""
        return jax.tree.map(lambda a: a[numbers], columns)

    def in_parts(self, run: Callable, *columns):
        """`run(rows, *parts)` on each of the `parts`, by itself, results stacked; `columns` are
        pytrees of arrays with as many entries for each part.
        """
        return jax.tree.map(lambda a: a[None], run(self, *columns))

    def _each(self, fn, columns):
        start, part = 0, slice(0, 0)
        for block in self.blocks():
            part = slice(start, start + block.shape[0])
            if block.shape[1:] != self.shape[1:]:
                raise ValueError(
                    f"{type(self).__name__} says that it has {self.shape[1]} columns, and a block has shape {block.shape}"
                )
            if part.stop > self.shape[0]:
                break
            yield fn(block, *jax.tree.map(operator.itemgetter(part), columns))
            start = part.stop
        if part.stop != self.shape[0]:
            found = f"{part.stop} or more" if part.stop > self.shape[0] else part.stop
            raise ValueError(
                f"{type(self).__name__} says that it has {self.shape[0]} rows, and its blocks have {found}"
            )

    def check(self, kernel: Kernel, name: str = "X", *, training: bool = True) -> None:
        """Raise for values that cannot be fitted, or predicted, where they are known."""
        del kernel, name, training

    def some(self, num: int) -> Float[Array, "k d"]:
        """At most `num` rows, to find an origin near their mean."""
        for block in self.blocks():
            return block[:num]
        raise ValueError(
            f"{type(self).__name__} says that it has {self.shape[0]} rows, and its blocks have 0"
        )

    def take(self, indices) -> Float[Array, "k d"]:
        """The rows of these numbers."""
        raise ValueError(
            f"{type(self).__name__} cannot be read by row numbers: give landmarks as points (m, d)"
        )

    def candidates(self) -> tuple[Any, Any]:
        """Rows that landmarks are chosen from, an array or the rows themselves, and their numbers,
        None where they are all.
        """
        return None, self.dense()

    def dense(self) -> Float[Array, "n d"]:
        """All rows in one array."""
        raise ValueError(
            f"this needs a dense X, and X is {type(self).__name__}: leave route= out, or give landmarks as points"
        )

    def kernel_matrix(self, kernel: Kernel, block_size: int | None = None) -> Float[Array, "n n"]:
        """K of all pairs of rows."""
        del kernel, block_size
        raise ValueError(
            f"K of all pairs needs rows in memory, and X is {type(self).__name__}: give landmarks=, a kernel with explicit features, "
            "or, of a sparse X, X.toarray()"
        )

    def products(self, origin: Float[Array, " d"]) -> Float[Array, "n n"]:
        """The inner products of all pairs of rows, about an origin."""
        if self.parts > 1 and not self.in_memory:
            raise ValueError(NO_PAIRS.format(parts=self.parts))
        return self.map(
            lambda some: self.map(lambda others: matmul(others - origin, (some - origin).T)).T
        )

    def column(self, values) -> Array:
        """Labels, or weights, as an array that lies as the rows do."""
        return jax.numpy.asarray(values)

    def like(self, values: Float[Array, "n r"]) -> "Rows":
        """Other numbers of the same rows, kept as these are."""
        return DenseRows(values, self.parts)

    def through(self, features: Any) -> "Rows":
        """The rows φ(x) = `features.features(x)`, made from each block whenever it is read."""
        return MappedRows(self, features)

    def features(self, kernel: Kernel) -> "Rows":
        """The kernel's explicit features of the rows."""
        return self.through(kernel)


@pytree
class DenseRows(Rows):
    """Rows in one array.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> float(rls.DenseRows(jnp.ones((5, 2))).sum(lambda block, v: jnp.sum(v * block[:, 0]), jnp.arange(5.0), block_size=2))
    10.0
    """

    in_memory: ClassVar[bool] = True
    X: Float[Array, "n d"]
    parts: int = static(default=1)

    def check(self, kernel, name="X", *, training=True):
        """Raise for values that are not finite, too large, or outside of the kernel's domain, where
        they are known.
        """
        check_finite(name, self.X)
        if kernel.evaluable:  # else these are no inputs
            check_squares(name, self.X)
        kernel.check(self.X)

    @property
    def shape(self):
        """(n, d)."""
        return self.X.shape

    @property
    def points(self):
        """All rows."""
        return self.X

    def dense(self):
        """All rows."""
        return self.X

    @property
    def dtype(self):
        """The dtype of the array."""
        return self.X.dtype

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.sum`, in one compiled loop, or one for each part, whose sums are added."""
        return sum_rows(
            lambda args: fn(*args),
            (self.X, *columns),
            self._block(temporaries, block_size),
            self.parts,
            self._placed,
        )

    def map(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.map`, in one compiled loop, or one for each part; the results lie as the rows
        do.
        """
        return map_rows(
            lambda args: fn(*args),
            (self.X, *columns),
            self._block(temporaries, block_size),
            self.parts,
            self._placed,
        )

    def in_parts(self, run, *columns):
        """As `Rows.in_parts`, side by side."""
        if self.parts == 1:
            return super().in_parts(run, *columns)
        return in_parts(
            lambda args: run(DenseRows(args[0]), *args[1:]),
            (self.X, *columns),
            self.parts,
            self._placed,
        )

    def _placed(self, arrays):
        """Arrays with a row for each part, or each row, where they shall lie: where the compiler
        leaves them.
        """
        return arrays

    def _block(self, temporaries, block_size):
        n, d = self.shape[0] // self.parts, self.shape[1]
        if block_size is not None:
            return check_block_size(block_size, n)
        return wide_block_size(n, (d + temporaries) * self.dtype.itemsize)

    def some(self, num):
        """Rows spread evenly over all."""
        return self.X[np.unique(np.linspace(0, self.count - 1, min(self.count, num)).astype(int))]

    def take(self, indices):
        """The rows of these numbers, 0 to n − 1."""
        check_row_numbers(indices, self.count)
        return self.X[indices]

    def features(self, kernel):
        """Made once, as there is memory for the rows."""
        return DenseRows(kernel.features(self.X), self.parts)

    def kernel_matrix(self, kernel, block_size=None):
        """K, in blocks of rows."""
        return gram(kernel, self.X, block_size=block_size)


@pytree
class GramRows(DenseRows):
    """Rows of a kernel matrix computed elsewhere."""

    def check(self, kernel, name="X", *, training=True):
        """Raise unless the matrix of training rows is symmetric too; rows to predict have one
        column for each training row.
        """
        super().check(kernel, name)
        if training:
            check_symmetric("X, as the precomputed kernel matrix,", self.X)

    def kernel_matrix(self, kernel, block_size=None):
        """K as it was given, checked."""
        del kernel, block_size
        check_symmetric("X, as the precomputed kernel matrix,", self.X)
        return self.X

    def numbered(self) -> "NumberedRows":
        """The same rows for `KernelValues`."""
        check_symmetric("X, as the precomputed kernel matrix,", self.X)
        return NumberedRows(self.X, self.parts)


@pytree
class NumberedRows(GramRows):
    """Rows of a kernel matrix as `KernelValues` reads them, each with its number and its diagonal
    entry behind it; K is not copied.
    """

    @property
    def tail(self) -> Float[Array, "n 2"]:
        """Numbers and diagonal."""
        return jax.numpy.stack(
            [jax.numpy.arange(len(self.X), dtype=self.dtype), jax.numpy.diagonal(self.X)], axis=1
        )

    @property
    def shape(self):
        """(n, n + 2)."""
        return len(self.X), len(self.X) + 2

    @property
    def points(self):
        """All rows."""
        return self.dense()

    def dense(self):
        """All rows in one array."""
        return jax.numpy.concatenate([self.X, self.tail], axis=1)

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.sum`, in one compiled loop."""
        return sum_rows(
            self._on(fn),
            (self.X, self.tail, *columns),
            self._block(temporaries, block_size),
            self.parts,
        )

    def map(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.map`, in one compiled loop."""
        return map_rows(
            self._on(fn),
            (self.X, self.tail, *columns),
            self._block(temporaries, block_size),
            self.parts,
        )

    @staticmethod
    def _on(fn):
        return lambda args: fn(jax.numpy.concatenate(args[:2], axis=1), *args[2:])

    def take(self, indices):
        """The rows of these numbers, 0 to n − 1."""
        check_row_numbers(indices, self.count)
        return jax.numpy.concatenate([self.X[indices], self.tail[indices]], axis=1)

    def kernel_matrix(self, kernel, block_size=None):
        """K as it was given."""
        del kernel, block_size
        return self.X


@pytree
class MappedRows(Rows):
    """Rows φ(x) of other rows x, made block by block and never kept."""

    source: Rows
    of: Any

    @property
    def traceable(self):  # type: ignore[override]
        """That of the source."""
        return self.source.traceable

    @property
    def shape(self):
        """(n, r)."""
        n, d = self.source.shape
        return n, jax.eval_shape(self.of.features, jax.ShapeDtypeStruct((1, d), self.dtype)).shape[
            1
        ]

    @property
    def dtype(self):
        """That of the source."""
        return self.source.dtype

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.sum`."""
        hints = {"temporaries": temporaries + self.shape[1], "block_size": block_size}
        return self.source.read_by(self.of).sum(
            lambda x, *parts: fn(self.of.features(x), *parts), *columns, **hints
        )

    def map(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.map`."""
        hints = {"temporaries": temporaries + self.shape[1], "block_size": block_size}
        return self.source.read_by(self.of).map(
            lambda x, *parts: fn(self.of.features(x), *parts), *columns, **hints
        )

    def in_parts(self, run, *columns):
        """As `Rows.in_parts`."""
        return self.source.in_parts(
            lambda rows, *parts: run(MappedRows(rows, self.of), *parts), *columns
        )

    def some(self, num):
        """φ of some rows of the source."""
        return self.of.features(self.source.some(num))

    def take(self, indices):
        """φ of these rows of the source."""
        return self.of.features(self.source.take(indices))

    @property
    def parts(self):
        """Those of the source."""
        return self.source.parts

    def like(self, values):
        """As the source would keep them."""
        return self.source.like(values)
