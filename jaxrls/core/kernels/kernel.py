"""Define the base class `Kernel` and the kernels that are made of others: sums, products, positive
multiples and kernels of some columns.

Fields that are arrays are hyperparameters, which `jax.grad` differentiates. Other fields, such as a
degree, ν or column numbers, are static. Parameters take the dtype of the data. `fit` and `tune`
check the values of parameters and data by `check`. Inside of `jax.jit` only shapes can be checked.
"""

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from jaxtyping import ArrayLike as Scalars

from jaxrls.core.kernels.block import Block, Gram, as_block, as_dense, in_order_of
from jaxrls.core.linalg import matmul, safe_sqrt
from jaxrls.core.support import as_readable, check_real, known_and, public_call, pytree, static

Matrix = Float[Array, "n d"]
Method = TypeVar("Method", bound=Callable)
# The methods of a kernel that take rows as users give them: lists, tables, arrays and blocks.
METHODS_OF_ROWS = {"__call__", "diag", "features", "transform"}


def _of_rows(method: Method) -> Method:
    """Let a method of rows take anything that `as_block` takes.

    A `Block` is made dense first, unless the kernel `takes_blocks`.
    """
    _, *names = inspect.signature(method).parameters

    @public_call(data=names[0])
    @wraps(method)
    def run(self, *rows):
        in_order = (in_order_of(rows[0], *named) for named in zip(names, rows, strict=False))
        blocks = map(as_block, names, in_order)
        return method(self, *(blocks if self.takes_blocks else map(as_dense, blocks)))

    return run  # type: ignore[return-value]


class Kernel:
    """The base class of all kernels: positive semidefinite functions k(x, z) of rows, computed as
    matrices.

    A subclass is decorated with `@jaxrls.extend.pytree`. It defines `__call__(X, Z) -> (n, m)` and
    `diag(X) -> (n,)`. A kernel with an explicit, finite feature map defines `num_features` and
    `features` instead. Then k(x, z) = ⟨φ(x), φ(z)⟩, and solvers take the cheaper linear routes.
    Sums, products and positive multiples of kernels are kernels too: `k1 + k2`, `k1 * k2`, `a * k`,
    `k.on(columns)`.

    Class variables tell a search what the fields are, and tell `fit` what the kernel can do:

    * `positive`: names of fields that must be positive, unless `check` is overridden. A search
      moves their logarithm.
    * `length_scales`: names of fields in the units of X, one number or one per column. They can be
      guessed from distances between rows.
    * `metric`: the distance that length scales divide, "euclidean" or "cityblock".
    * `constants`: names of fields that no search moves.
    * `evaluable`: False for a kernel given as a matrix. It has no value at other points, not even
      k(x, x) of new rows.
    * `takes_blocks`: whether the methods take any `Block` as X, such as sparse rows, because they
      call only the functions of `block.py`. If False, they get dense rows. A class that defines
      `__call__` does not inherit this variable and must set it again.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> kernel = 2.0 * rls.Linear() + rls.Gaussian(1.0).on(0)
    >>> kernel(jnp.ones((1, 2)), jnp.ones((1, 2))).tolist()
    [[5.0]]
    """

    positive: ClassVar[tuple[str, ...]] = ()
    length_scales: ClassVar[tuple[str, ...]] = ()
    metric: ClassVar[str] = "euclidean"
    constants: ClassVar[tuple[str, ...]] = ()
    evaluable: ClassVar[bool] = True
    takes_blocks: ClassVar[bool] = False

    # A subclass defines `__call__`, `diag` and `features` as functions of arrays, and users call
    # them with lists, tables and blocks. No method of this class can read these first and then call
    # the method of the subclass, because both have the same name. So each class wraps the methods
    # that it defines itself. This class is no subclass, and wraps its own by `@_of_rows`.
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A new `__call__` may be for dense rows alone, although that of the parent takes blocks.
        if "__call__" in vars(cls):
            cls.takes_blocks = vars(cls).get("takes_blocks", False)
        for name in METHODS_OF_ROWS & vars(cls).keys():
            setattr(cls, name, _of_rows(vars(cls)[name]))

    # a kernel of your own defines `__call__` and `diag`, or `num_features` and `features` ---------

    @_of_rows
    def __call__(self, X: Matrix, Z: Float[Array, "m d"]) -> Gram:
        """Compute the kernel matrix (n, m): k(xᵢ, zⱼ) for each row of X (n, d) and of Z (m, d)."""
        return matmul(self.features(X), self.features(Z).T)

    @_of_rows
    def diag(self, X: Matrix) -> Float[Array, " n"]:
        """Compute k(xᵢ, xᵢ), (n,), for every row of X (n, d), without the kernel matrix."""
        return jnp.sum(self.features(X) ** 2, axis=1)

    def num_features(self, d: int, dtype: Any) -> int | None:
        """Return the number r of explicit features for rows of `d` columns.

        The result is None for a kernel that is used only through its matrix.
        """
        return None

    def features(self, X: Matrix) -> Float[Array, "n r"]:
        """Compute the explicit features φ(X), (n, r), where `num_features` is not None.

        Raises:
            TypeError: for a kernel without explicit features.
        """
        raise TypeError(
            f"{type(self).__name__} has no explicit features: use gram (a kernel of one's own "
            "defines num_features and features, or __call__ and diag)"
        )

    # what else a kernel can be asked --------------------------------------------------------------

    def times(self, X: Any, w: Float[Array, "r t"]) -> Float[Array, "n t"]:
        """Compute φ(X) w, where `num_features` is not None."""
        return matmul(self.features(X), w)

    def is_linear(self) -> bool:
        """Whether the features are a linear function of X."""
        return False

    def keeps_sparse(self) -> bool:
        """Whether this kernel and all of its parts take sparse rows without making them dense."""
        return self.takes_blocks and all(part.keeps_sparse() for part in self._parts().values())

    def check(self, X: Array | np.ndarray | Block) -> None:
        """Check parameters and data, as far as their values are known.

        Raises:
            ValueError: for values outside the kernel's domain.
        """
        for name in self.positive:
            what = f"{type(self).__name__}.{name}"
            value = getattr(self, name)
            check_real(what, value)
            if known_and(_is_not_positive, value):
                raise ValueError(f"{what} must be positive and finite, and is {value}")
        for child in self._parts().values():
            child.check(X)

    def is_semidefinite(self) -> bool:
        """Whether K is positive semidefinite by construction.

        False for a kernel function or a kernel matrix that the caller gave.
        """
        return all(child.is_semidefinite() for child in self._parts().values())

    def map_length_scales(
        self, fn: Callable[["Kernel", str, Any], Any], X: Array | np.ndarray | Block
    ) -> "Kernel":
        """Return the kernel with every length scale replaced by `fn(part, name, X)`.

        Args:
            fn: a function of the kernel or the part of it that has the length scale, of the field's
                name, and of X with only the columns that this part uses.
            X: rows (n, d).
        """
        changes: dict[str, Any] = {name: fn(self, name, X) for name in self.length_scales}
        changes |= {name: part.map_length_scales(fn, X) for name, part in self._parts().items()}
        return replace(self, **changes)  # type: ignore[type-var]

    def multiplied(self, factor: Any) -> "Kernel | None":
        """Return the kernel times a positive number, if some multiple in it can absorb that number.

        In `2.0 * k`, for example, the number 2.0 becomes 2.0 · factor. The result is None if no
        multiple can absorb the number.
        """
        return None

    def _parts(self) -> dict[str, "Kernel"]:
        """Return the fields that are kernels, by name."""
        if jax.tree_util.all_leaves([self]):
            raise TypeError(
                f"{type(self).__name__} is no pytree: put @jaxrls.extend.pytree above its class"
            )
        return {
            f.name: value
            for f in fields(self)  # type: ignore[arg-type]
            if isinstance(value := getattr(self, f.name), Kernel)
        }

    @property
    def title(self) -> str:
        """The kernel's name in results, without its parameters."""
        return type(self).__name__

    # algebra --------------------------------------------------------------------------------------

    def on(self, columns: Any) -> "Kernel":
        """Return the same kernel on some columns of X only.

        Args:
            columns: one column index or several, such as 0, [0, 2] or range(3). Also a slice with
                an end, such as `slice(2, 5)`, or a slice of the last columns, `slice(-3, None)`.
                Also a mask, with True for each of the columns. Also names, which `fit`, `tune` and
                the estimators look up in X, a data frame or files.

        Raises:
            ValueError: for anything else, for a slice whose end depends on the number of columns,
                or for a kernel given as a matrix.
        """
        indices = np.atleast_1d(_sliced(columns) if isinstance(columns, slice) else columns)
        if indices.ndim == 1 and indices.dtype == bool:
            indices = np.flatnonzero(indices)
        numbers = indices.dtype.kind in "iu"
        known = numbers or all(isinstance(name, str) for name in indices)
        if indices.ndim > 1 or not indices.size or not known:
            raise ValueError(
                "columns must be one index or several, such as 0, [0, 2] or range(3), and is "
                f"{columns!r}: names, a mask or a slice with an end are taken too"
            )
        return On(self, tuple(indices.tolist()))

    def __add__(self, other: Any) -> "Kernel":
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Any) -> "Kernel":
        if isinstance(other, Kernel):
            return Product(self, other)
        scalar = isinstance(other, int | float | np.number) or getattr(other, "shape", None) == ()
        return Scaled(other, self) if scalar else NotImplemented

    __rmul__ = __mul__


def _sliced(columns: slice) -> Any:
    """Return the indices of a slice, or the slice where they depend on the number of columns."""
    first = columns.start or 0
    end = columns.stop
    step = columns.step or 1
    if end is None and first < 0:
        return range(first, 0, step)
    unknown = end is None or (first < 0) != (end < 0)
    return columns if unknown or step < 0 else range(first, end, step)


def _is_not_positive(value: Any) -> bool:
    """Whether some number is not positive and finite."""
    return not (np.isfinite(value) & (np.asarray(value) > 0)).all()


def check_not_negative(what: str, X: Any, then: str) -> None:
    """Raise for inputs below 0, where their values are known."""
    if known_and(lambda X: X.min() < 0, X):
        raise ValueError(f"{what}, and the smallest input is {X.min()}: {then}")


def parameter(
    kernel: Kernel, name: str, X: Array | np.ndarray | Block, per_column: bool = False
) -> Float[Array, "..."]:
    """Return a parameter in the dtype of the data: one number, or one per column if `per_column`.

    Other shapes raise, because they would broadcast along rows.
    """
    what = f"{type(kernel).__name__}.{name}"
    value = getattr(kernel, name)
    check_real(what, value)
    value = jnp.asarray(value, X.dtype)
    if value.shape != () and not (per_column and value.shape == X.shape[1:]):
        or_more = f" or one per column, shape ({X.shape[1]},)" if per_column else ""
        raise ValueError(f"{what} must be one number{or_more}, and has shape {value.shape}")
    return value


class _OfKernels(Kernel):
    """A kernel made of other kernels, which must be known as functions of rows."""

    def __post_init__(self):
        for kernel in self._parts().values():
            if not kernel.evaluable:
                raise ValueError(
                    f"{type(kernel).__name__}() has no sums, products, multiples or columns, as it "
                    "stands for a given matrix: compute them into K, such as 0.5 * K1 + K2, and "
                    "pass that as X"
                )


@pytree
class OfTwo(_OfKernels):
    """A kernel whose values combine the values of two kernels by `joined`."""

    takes_blocks = True
    left: Kernel
    right: Kernel
    joined: ClassVar[Callable]

    def __call__(self, X: Any, Z: Any) -> Gram:
        return self.joined(self.left(X, Z), self.right(X, Z))

    def diag(self, X: Any) -> Float[Array, " n"]:
        return self.joined(self.left.diag(X), self.right.diag(X))


@pytree
class Sum(OfTwo):
    """The sum k₁ + k₂ of two kernels, whose functions are f₁ + f₂.

    If both kernels have explicit features, the features of the sum are both, concatenated.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> (rls.Linear() + rls.Polynomial(1))(jnp.ones((1, 1)), jnp.ones((1, 1))).tolist()
    [[3.0]]
    """

    joined = staticmethod(operator.add)

    @property
    def title(self):
        return f"{self.left.title} + {self.right.title}"

    def num_features(self, d: int, dtype: Any) -> int | None:
        left = self.left.num_features(d, dtype)
        right = self.right.num_features(d, dtype)
        return None if left is None or right is None else left + right

    def features(self, X: Any) -> Float[Array, "n r"]:
        return jnp.concatenate([self.left.features(X), self.right.features(X)], axis=1)

    def times(self, X: Any, w: Float[Array, "r t"]) -> Float[Array, "n t"]:
        count = self.left.num_features(X.shape[1], X.dtype)
        return self.left.times(X, w[:count]) + self.right.times(X, w[count:])

    def is_linear(self) -> bool:
        return self.left.is_linear() and self.right.is_linear()

    def multiplied(self, factor: Any) -> Kernel | None:
        left = self.left.multiplied(factor)
        right = self.right.multiplied(factor)
        return None if left is None or right is None else Sum(left, right)


@pytree
class Product(OfTwo):
    """The entrywise (Schur) product k₁ k₂ of two kernels. Its space is their tensor product.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> (rls.Linear() * rls.Polynomial(1))(jnp.ones((1, 1)), jnp.ones((1, 1))).tolist()
    [[2.0]]
    """

    joined = staticmethod(operator.mul)

    @property
    def title(self):
        parts = self.left, self.right
        return " * ".join(f"({k.title})" if isinstance(k, Sum) else k.title for k in parts)

    def multiplied(self, factor: Any) -> Kernel | None:
        left = self.left.multiplied(factor)
        right = self.right.multiplied(factor)
        if left is not None:
            return Product(left, self.right)
        return None if right is None else Product(self.left, right)


@pytree
class Scaled(_OfKernels):
    """A kernel times a number, a·k with a > 0: the same functions, with ‖f‖² divided by a.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> (0.5 * rls.Linear())(jnp.ones((1, 1)), jnp.ones((1, 1))).tolist()
    [[0.5]]
    """

    positive = ("scale",)
    takes_blocks = True
    scale: Scalars
    kernel: Kernel

    @property
    def title(self):
        return self.kernel.title

    def __call__(self, X: Any, Z: Any) -> Gram:
        return parameter(self, "scale", X) * self.kernel(X, Z)

    def diag(self, X: Any) -> Float[Array, " n"]:
        return parameter(self, "scale", X) * self.kernel.diag(X)

    def num_features(self, d: int, dtype: Any) -> int | None:
        return self.kernel.num_features(d, dtype)

    def features(self, X: Any) -> Float[Array, "n r"]:
        return safe_sqrt(parameter(self, "scale", X)) * self.kernel.features(X)

    def times(self, X: Any, w: Float[Array, "r t"]) -> Float[Array, "n t"]:
        return safe_sqrt(parameter(self, "scale", X)) * self.kernel.times(X, w)

    def is_linear(self) -> bool:
        return self.kernel.is_linear()

    def multiplied(self, factor: Any) -> Kernel | None:
        return Scaled(self.scale * factor, self.kernel)


@pytree
class Transformed(_OfKernels, ABC):
    """A kernel of transformed rows, k(transform(x), transform(z))."""

    takes_blocks = True
    kernel: Kernel

    def transform(self, X: Any) -> Any:
        """Compute the rows that the inner kernel is given."""
        return self._transformed(X)

    @abstractmethod
    def _transformed(self, X: Any) -> Any:
        """Compute the same of a JAX array, of a NumPy array on the host, or of a `Block`."""

    @property
    def title(self):
        return self.kernel.title

    def __call__(self, X: Any, Z: Any) -> Gram:
        return self.kernel(self.transform(X), self.transform(Z))

    def diag(self, X: Any) -> Float[Array, " n"]:
        return self.kernel.diag(self.transform(X))

    def check(self, X: Any) -> None:
        # NumPy compiles nothing for a new number of rows.
        readable = jax.tree.map(as_readable, self)
        with np.errstate(over="ignore"):
            transformed = readable._transformed(as_readable(X))
        self.kernel.check(transformed)

    def map_length_scales(self, fn: Callable[[Kernel, str, Any], Any], X: Any) -> Kernel:
        kernel = self.kernel.map_length_scales(fn, self.transform(X))
        return replace(self, kernel=kernel)

    def multiplied(self, factor: Any) -> Kernel | None:
        kernel = self.kernel.multiplied(factor)
        return None if kernel is None else replace(self, kernel=kernel)

    def num_features(self, d: int, dtype: Any) -> int | None:
        return self.kernel.num_features(d, dtype)

    def features(self, X: Any) -> Float[Array, "n r"]:
        return self.kernel.features(self.transform(X))

    def times(self, X: Any, w: Float[Array, "r t"]) -> Float[Array, "n t"]:
        return self.kernel.times(self.transform(X), w)


@pytree
class On(Transformed):
    """A kernel of some columns of X. Sums of these make multiple-kernel learning and banded ridge.

    `kernel.on(columns)` makes it from one index or several.

    Args:
        kernel: the kernel of those columns.
        columns: the column numbers, static. They may be names until `fit` or `tune` knows X.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.Linear().on([0, 2])(jnp.array([[1.0, 9.0, 2.0]]), jnp.array([[3.0, 9.0, 4.0]])).tolist()
    [[11.0]]
    """

    columns: tuple[Any, ...] = static()

    def _transformed(self, X: Any) -> Any:
        """Return the columns of X that the inner kernel is given."""
        for name in self.columns:
            if isinstance(name, str):
                raise ValueError(
                    f"column {name!r} goes by name, and names of columns are known to fit, tune "
                    "and estimators alone, of data frames and files in which no name is there "
                    "twice: give its number"
                )
        outside = [c for c in self.columns if not -X.shape[1] <= c < X.shape[1]]
        if outside:
            raise ValueError(
                f"columns {outside} are not in X, which has {X.shape[1]} columns: count them from 0"
            )
        return X[:, np.array(self.columns)]

    def num_features(self, d: int, dtype: Any) -> int | None:
        return self.kernel.num_features(len(self.columns), dtype)

    def is_linear(self) -> bool:
        return self.kernel.is_linear()


def columns_by_number(kernel: Kernel, names: Any) -> Kernel:
    """Replace column names in a kernel by column numbers.

    `names` are the names of the columns of X, empty if they have none.
    """
    if not len(names):
        return kernel
    if isinstance(kernel, On):
        known = [*map(str, names)]
        kernel = replace(kernel, columns=tuple(_number(c, known) for c in kernel.columns))
        names = [known[c] for c in kernel.columns if -len(known) <= c < len(known)]
    parts = {name: columns_by_number(part, names) for name, part in kernel._parts().items()}
    return replace(kernel, **parts) if parts else kernel  # type: ignore[type-var]


def _number(column: Any, names: list[str]) -> int:
    """Return the number of a column given by name; return a number as it is."""
    if isinstance(column, str) and names.count(column) != 1:
        raise ValueError(
            f"columns must be names of X, and include {column!r}, which {names.count(column)} of "
            f"its columns have: {', '.join(map(repr, names[:20]))}"
        )
    return names.index(column) if isinstance(column, str) else column


@pytree
class Standardized(Transformed):
    """A kernel of standardized columns, k((x − centre)/scale, (z − centre)/scale).

    `fit(…, standardize=True)` makes it. No search moves `centre` and `scale`.

    Args:
        kernel: the kernel of the standardized rows.
        centre: what is subtracted from each column, (d,).
        scale: what each column is then divided by, (d,).

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> kernel = Standardized(rls.Linear(), jnp.array([1.0]), jnp.array([2.0]))
    >>> kernel(jnp.array([[5.0]]), jnp.array([[3.0]])).tolist()
    [[2.0]]
    """

    takes_blocks = False
    constants = ("centre", "scale")
    centre: Float[Array | np.ndarray, " d"]
    scale: Float[Array | np.ndarray, " d"]

    def _transformed(self, X: Any) -> Any:
        """Return the columns of X, centred and scaled.

        Equal rows stay equal, whatever the program. XLA may divide many rows by multiplication with
        1/scale, and a single row by division, which differs in the last bit.
        """
        return (as_dense(X) - self.centre) * (1 / self.scale)
