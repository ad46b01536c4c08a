"""Computes the Gram matrix K, and the product K·V without storing K, in blocks of rows.

`gram` and `gram_matmul` are public. Factors call `gram`, `kernel_times` and `square_times`. Theory:
`docs/theory.md`, "The objective".
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data.rows import DenseRows, Rows
from jaxrls.core.kernels import Block, Kernel, as_block, in_order_of
from jaxrls.core.linalg import check_block_size, default_block_size, matmul
from jaxrls.core.support import platform, public_call, shards_of


def _block_size(X: Any, Z: Any, block_size: int | None, shards: int = 1, more: int = 0) -> int:
    """Return `block_size`, or by default the rows of X for which a block of K fits the cache.

    `more` is how many numbers each row needs besides its row of K.
    """
    n = X.shape[0] // shards
    row = (Z.shape[0] + more) * X.dtype.itemsize
    return check_block_size(block_size, n) or default_block_size(n, row)


@public_call(data="X")
def gram(
    kernel: Kernel,
    X: Any,
    Z: Any = None,
    *,
    block_size: int | None = None,
) -> Float[Array, "n m"]:
    """Compute the kernel matrix K in blocks of rows.

    Kᵢⱼ = k(xᵢ, zⱼ). If Z is None, Z is X. Then the diagonal is exactly `kernel.diag(X)`, unless X
    is a `Block` or a kernel matrix, whose entries are taken as they are.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d), or `Rows`.
        Z: rows (m, d), by default X. Columns of two data frames are matched by their names.
        block_size: rows at a time, by default as many as fit the cache. Rows that are not one
            array keep blocks of their own, and so does a Z of `Rows`.

    Returns:
        K (n, m), in the dtype of X.

    Raises:
        ValueError: for matrices of different widths or a bad `block_size`.

    **Cost** O(n m d) time, and memory for K and the temporaries of one block. The derivative
    recomputes each block. **Source**: Rifkin (lecture), "Basics".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.extend.gram(rls.Linear(), jnp.array([[1.0], [2.0]])).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    Z = in_order_of(X, "Z", Z)
    X = X if isinstance(X, Rows) else as_block("X", X)
    Z = Z if isinstance(Z, Rows | None) else as_block("Z", Z)
    _check_pair(kernel, X, Z)
    match X, Z:
        case _, None:
            return _of_itself(kernel, X, block_size)
        case Rows(), Rows():  # by rows of Z, and for each block of them by rows of X
            return Z.for_pairs(kernel).map(lambda z: _by_rows(kernel, X, z).T).T
        case _, Rows():
            return _of_block_with_rows(kernel, X, Z)
        case _ if not _is_cut(kernel, X):  # X is a `Block`, or a kernel matrix
            return kernel(X, Z)
        case _:  # by rows of X
            return _by_rows(kernel, X, Z, block_size)


def _of_itself(kernel: Kernel, X: Any, block_size: int | None) -> Float[Array, "n m"]:
    """Return K of all rows with themselves, with the diagonal from `kernel.diag`."""
    if isinstance(X, Rows):  # raises `ValueError` for rows that are not in memory
        X = X.points if kernel.evaluable else X.dense()
    if not _is_cut(kernel, X):
        return kernel(X, X)
    n = X.shape[0]

    def with_diagonal(x: Any, number: Int[Array, " b"]) -> Float[Array, "b n"]:
        same = number[:, None] == jnp.arange(n)
        K = _of_block_with_rows(kernel, x, X) if isinstance(X, Rows) else kernel(x, X)
        return jnp.where(same, kernel.diag(x)[:, None], K)

    size = _block_size(X, X, block_size)
    return _blocks_of(kernel, X).map(with_diagonal, jnp.arange(n), block_size=size)


def _by_rows(kernel: Kernel, X: Any, Z: Any, block_size: int | None = None) -> Float[Array, "n m"]:
    """Return K of X with an array or a `Block` Z, one block of rows of X at a time."""
    of_block = lambda x: _of_blocks(kernel, x, Z)
    return _blocks_of(kernel, X).map(of_block, block_size=_block_size(X, Z, block_size))


def _of_block_with_rows(kernel: Kernel, x: Any, Z: Rows) -> Float[Array, "b m"]:
    """Return K of one block, an array or a `Block`, with all Z, one block of rows of Z at a time.

    Kᵀ is made, by its rows: kernels are symmetric, and take a `Block` z as their first argument.
    """
    return Z.for_pairs(kernel).map(lambda z: kernel(z, x)).T


def _of_blocks(kernel: Kernel, x: Any, z: Any) -> Float[Array, "b m"]:
    """Return K of two blocks of rows, each an array or a `Block`.

    A kernel takes a `Block` as its first argument. So if only z is a `Block`, K is a transpose.
    """
    block_is_second = isinstance(z, Block) and not isinstance(x, Block)
    return kernel(z, x).T if block_is_second else kernel(x, z)


def _is_cut(kernel: Kernel, X: Any) -> bool:
    """Whether X is cut into blocks, which neither a `Block` nor a kernel matrix is."""
    return isinstance(X, Rows) or kernel.evaluable and not isinstance(X, Block)


def _blocks_of(kernel: Kernel, X: Any) -> Rows:
    """Return X as `Rows`, in blocks that suit kernel values."""
    return X.for_pairs(kernel) if isinstance(X, Rows) else DenseRows(X)


# Functions of (kernel, X, Z, V) that compute K·V of arrays faster than blocks of rows do, or return
# None if they do not apply. They are tried in turn. Other folders add theirs here.
PRODUCTS: list[Callable] = []


def kernel_times(
    kernel: Kernel, X: Any, Z: Any, V: Float[Array, "m *t"], block_size: int | None = None
) -> Float[Array, "n *t"]:
    """Return K·V of an array or any `Rows`.

    The first of `PRODUCTS` that applies makes it. If none does, it is made in blocks of rows. With
    a `block_size` it is always made in blocks, of this size.
    """
    for product in PRODUCTS if block_size is None else ():
        if (result := product(kernel, _one_array(X), _one_array(Z), V)) is not None:
            return result
    return times_in_blocks(kernel, X, Z, V, block_size)


def _one_array(X: Any) -> Any:
    """Return the array of `DenseRows` with one shard, and anything else as it is."""
    return X.X if isinstance(X, DenseRows) and X.shards == 1 else X


def times_in_blocks(
    kernel: Kernel, X: Any, Z: Any, V: Float[Array, "m *t"], block_size: int | None = None
) -> Float[Array, "n *t"]:
    """Return K·V, one block of rows of K after another."""
    rows = _blocks_of(kernel, X)
    size = _block_size(rows, Z, block_size, rows.shards, math.prod(V.shape[1:]))
    return rows.map(lambda x: matmul(gram(kernel, x.astype(V.dtype), Z), V), block_size=size)


# K·V of rows with themselves
# --------------------------------------------------------------------------------------------------

# On CPUs, how many rows a block of pairs has, by the bytes of the dtype. With fewer rows, the
# products with V take as long as all of K. With more rows, a block does not fit the cache
# (`benchmarks/studies.py products`).
PAIR_ROWS = {4: 1024, 8: 512}


def square_times(
    kernel: Kernel, X: Float[Array, "n d"], V: Float[Array, "n *t"], block_size: int | None = None
) -> Float[Array, "n *t"]:
    """Return K·V of rows with themselves, on one device.

    On a CPU only half of the entries of K are computed, if there are enough rows.
    """
    pair_rows = PAIR_ROWS.get(V.dtype.itemsize)
    pays = platform() == "cpu" and pair_rows and len(X) >= 2 * pair_rows and kernel.evaluable
    if block_size is not None or not pays:
        return kernel_times(kernel, X, X, V, block_size)
    return _by_pairs_of_blocks(kernel, X, V)


def _by_pairs_of_blocks(
    kernel: Kernel, X: Float[Array, "n d"], V: Float[Array, "n *t"]
) -> Float[Array, "n *t"]:
    """Return K·V by a loop over the pairs of blocks i ≤ j.

    K_ji is the transpose of K_ij, so K_ij is computed once. K_ij V_j is added to the rows of block
    i. If i < j, K_ijᵀ V_i is added to the rows of block j. Derivatives compute K_ij again.
    """
    n = len(X)
    count = -(-n // PAIR_ROWS[V.dtype.itemsize])
    size = -(-n // count)
    X_blocks = _cut(X.astype(V.dtype), count, size, "edge")
    V_blocks = _cut(V.reshape(n, -1), count, size, "constant")
    # K_ijᵀ V_i is computed as (V_iᵀ K_ij)ᵀ. XLA would turn this back into K_ijᵀ V_i, which takes ten
    # times as long. So these products are transposed only after all are added.
    V_transposed = jnp.swapaxes(V_blocks, 1, 2)
    numbers = np.triu_indices(count)

    @jax.checkpoint
    def products(i: Any, j: Any) -> tuple[Float[Array, "b t"], Float[Array, "t b"]]:
        K = kernel(X_blocks[i], X_blocks[j])
        mirrored = jnp.where(i < j, V_transposed[i], 0)
        return matmul(K, V_blocks[j]), matmul(mirrored, K)

    def add_pair(totals: tuple, pair: tuple) -> tuple[tuple, None]:
        by_rows, by_columns = totals
        i, j = pair
        to_i, to_j = products(i, j)
        return (by_rows.at[i].add(to_i), by_columns.at[j].add(to_j)), None

    pairs = tuple(map(jnp.asarray, numbers))
    zeros = jnp.zeros_like(V_blocks), jnp.zeros_like(V_transposed)
    (by_rows, by_columns), _ = jax.lax.scan(add_pair, zeros, pairs)
    total = by_rows + jnp.swapaxes(by_columns, 1, 2)
    return total.reshape(count * size, -1)[:n].reshape(V.shape)


def _cut(A: Float[Array, "n p"], count: int, size: int, mode: str) -> Float[Array, "k b p"]:
    """Return rows in `count` blocks of `size` rows.

    The last block is padded: by 0 for the mode "constant", and by the last row for "edge".
    """
    missing = count * size - len(A)
    return jnp.pad(A, ((0, missing), (0, 0)), mode=mode).reshape(count, size, -1)


@public_call(data="X")
def gram_matmul(
    kernel: Kernel,
    X: Any,
    Z: Any,
    V: Float[Array, "m *t"],
    *,
    block_size: int | None = None,
) -> Float[Array, "n *t"]:
    """Compute the product K·V without storing K.

    (K V)ᵢ = Σⱼ k(xᵢ, zⱼ) Vⱼ. Each block of rows of K is computed, used and dropped.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d).
        Z: rows (m, d). Columns of two data frames are matched by their names.
        V: (m, t) or (m,).
        block_size: rows at a time, by default as many as fit the cache.

    Returns:
        K·V, (n, t) or (n,).

    Raises:
        ValueError: for shapes that do not fit.

    **Cost** O(n m (d + t)) time and O(block_size · m) memory. Derivatives recompute each block, so
    they need no more. On a CPU only half of the entries of K are computed if Z is X. If X lies on
    several devices, each device computes its own rows, and Z and V are copied to all devices.
    **Source**: as `gram`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.array([[1.0], [2.0]])
    >>> rls.extend.gram_matmul(rls.Linear(), X, X, jnp.ones(2)).tolist()
    [3.0, 6.0]
    """
    is_square = Z is X
    Z = in_order_of(X, "Z", Z)
    X = as_block("X", X)
    Z = as_block("Z", Z)
    _check_pair(kernel, X, Z)
    columns = Z.shape[0] if kernel.evaluable else X.shape[1]
    if V.shape[0] != columns:
        raise ValueError(
            f"V must have {columns} rows, one per column of K, and has shape {V.shape}"
        )
    # The rows must not be rounded, if V has integers or a narrower dtype.
    wider = np.promote_types(X.dtype, V.dtype)
    V = jnp.asarray(V).astype(jax.dtypes.canonicalize_dtype(wider))
    rows = DenseRows(X, shards_of(X, jax.device_count()))
    if is_square and rows.shards == 1 and isinstance(X, jax.Array):
        return square_times(kernel, X, V, block_size)
    return kernel_times(kernel, rows, Z, V, block_size)


def _check_pair(kernel: Kernel, X: Any, Z: Any) -> None:
    """Raise `ValueError` if X and Z have different numbers of columns, unless K is given."""
    if Z is not None and kernel.evaluable and X.shape[1] != Z.shape[1]:
        raise ValueError(
            f"X and Z must have equally many columns, and have {X.shape[1]} and {Z.shape[1]}"
        )
