"""The kernel matrix K, and K·V without K, in row blocks.

Theory: `docs/theory.md`, "The objective".
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data.rows import DenseRows, Rows
from jaxrls.core.kernels import Block, Kernel, as_block
from jaxrls.core.linalg import check_block_size, default_block_size, matmul
from jaxrls.core.support import platform, public_call, shards_of


def _block_size(X: Any, Z: Any, block_size: int | None, shards: int = 1, more: int = 0) -> int:
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

    Kᵢⱼ = k(xᵢ, zⱼ). Without Z, Z = X and the diagonal is `kernel.diag(X)` exactly.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d), or `Rows`.
        Z: rows (m, d), by default X.
        block_size: rows at a time, by default as many as fit the cache.

    Returns:
        K (n, m), in the dtype of X.

    Raises:
        ValueError: for matrices of different widths or a bad `block_size`.

    **Cost** O(n m d) time; besides K itself only temporaries of a block. The derivative recomputes
    each block. **Source**: Rifkin (lecture), "Basics".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.extend.gram(rls.Linear(), jnp.array([[1.0], [2.0]])).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    X = X if isinstance(X, Rows) else as_block("X", X)
    Z = Z if isinstance(Z, Rows | None) else as_block("Z", Z)
    _check_pair(kernel, X, Z)
    if Z is None:
        return _of_itself(kernel, X, block_size)
    return _of_pairs(kernel, X, Z, block_size)


def _of_itself(kernel: Kernel, X: Any, block_size: int | None) -> Float[Array, "n m"]:
    """K of all rows, whose diagonal is exact."""
    if isinstance(X, Rows):  # raises where they are read from elsewhere
        X = X.points if kernel.evaluable else X.dense()
    rows = _in_blocks(kernel, X)
    if rows is None:
        return kernel(X, X)
    n = X.shape[0]

    def with_diagonal(x: Any, number: Int[Array, " b"]) -> Float[Array, "b n"]:
        same = number[:, None] == jnp.arange(n)
        return jnp.where(same, kernel.diag(x)[:, None], _of_pairs(kernel, x, X))

    return rows.map(with_diagonal, jnp.arange(n), block_size=_block_size(X, X, block_size))


def _of_pairs(kernel: Kernel, X: Any, Z: Any, block_size: int | None = None) -> Float[Array, "n m"]:
    """K of the rows of X with those of Z."""
    if isinstance(Z, Rows):
        return _by_blocks_of_columns(kernel, X, Z)
    rows = _in_blocks(kernel, X)
    if rows is None:
        return kernel(X, Z)
    of_block = lambda x: _of_block(kernel, x, Z)
    return rows.map(of_block, block_size=_block_size(X, Z, block_size))


def _by_blocks_of_columns(kernel: Kernel, X: Any, Z: Rows) -> Float[Array, "n m"]:
    """K of the rows of X with those of Z, of which a block is read at a time."""

    def of_block(z: Any) -> Float[Array, "b n"]:
        return _of_pairs(kernel, X, z).T if isinstance(X, Rows) else kernel(z, X)

    return Z.for_pairs(kernel).map(of_block).T


def _of_block(kernel: Kernel, x: Any, Z: Any) -> Float[Array, "b m"]:
    """K of a block of rows with Z; of a `Block` and an array a kernel takes the `Block` first."""
    block_is_second = isinstance(Z, Block) and not isinstance(x, Block)
    return kernel(Z, x).T if block_is_second else kernel(x, Z)


def _in_blocks(kernel: Kernel, X: Any) -> Rows | None:
    """X as rows that are taken in blocks; None where its kernel values are computed at once."""
    if isinstance(X, Rows):
        return X.for_pairs(kernel)
    return None if isinstance(X, Block) or not kernel.evaluable else DenseRows(X)


# Ways to compute K·V of arrays, tried in turn before blocks: functions of (kernel, X, Z, V) that
# give None where they do not take it. Rooms add theirs.
PRODUCTS: list[Callable] = []


def kernel_times(
    kernel: Kernel, X: Any, Z: Any, V: Float[Array, "m *t"], block_size: int | None = None
) -> Float[Array, "n *t"]:
    """K·V of an array or any `Rows`."""
    for product in PRODUCTS if block_size is None else ():
        if (result := product(kernel, _one_array(X), _one_array(Z), V)) is not None:
            return result
    return times_in_blocks(kernel, X, Z, V, block_size)


def _one_array(X: Any) -> Any:
    """The array of rows that lie on one device, else the rows as they are."""
    return X.X if isinstance(X, DenseRows) and X.shards == 1 else X


def times_in_blocks(
    kernel: Kernel, X: Any, Z: Any, V: Float[Array, "m *t"], block_size: int | None = None
) -> Float[Array, "n *t"]:
    """K·V, a block of rows of K after another."""
    rows = X if isinstance(X, Rows) else DenseRows(X)
    rows = rows.for_pairs(kernel)
    size = _block_size(rows, Z, block_size, rows.shards, math.prod(V.shape[1:]))
    return rows.map(lambda x: matmul(gram(kernel, x.astype(V.dtype), Z), V), block_size=size)


# K·V of rows with themselves
# --------------------------------------------------------------------------------------------------

# Rows of a block of pairs on CPUs, by bytes of the dtype: with fewer, the products with V take as
# long as all of K, and with more a block leaves the cache (`benchmarks/studies.py products`).
PAIR_ROWS = {4: 1024, 8: 512}


def square_times(
    kernel: Kernel, X: Float[Array, "n d"], V: Float[Array, "n *t"], block_size: int | None = None
) -> Float[Array, "n *t"]:
    """K·V of rows with themselves, on one device: on a CPU with half of the entries of K."""
    pair_rows = PAIR_ROWS.get(V.dtype.itemsize)
    pays = platform() == "cpu" and pair_rows and len(X) >= 2 * pair_rows and kernel.evaluable
    if block_size is not None or not pays:
        return kernel_times(kernel, X, X, V, block_size)
    return _by_pairs_of_blocks(kernel, X, V)


def _by_pairs_of_blocks(
    kernel: Kernel, X: Float[Array, "n d"], V: Float[Array, "n *t"]
) -> Float[Array, "n *t"]:
    """Σ over pairs of blocks i ≤ j: the block K_ij is made once, as K_ji is its transpose, and adds
    K_ij V_j to rows i and, where i < j, K_ijᵀ V_i to rows j. Derivatives make it again.
    """
    n = len(X)
    count = -(-n // PAIR_ROWS[V.dtype.itemsize])
    size = -(-n // count)
    X_blocks = _cut(X.astype(V.dtype), count, size, "edge")
    V_blocks = _cut(V.reshape(n, -1), count, size, "constant")
    numbers = np.triu_indices(count)

    @jax.checkpoint
    def products(i: Any, j: Any) -> tuple[Float[Array, "b t"], Float[Array, "b t"]]:
        K = kernel(X_blocks[i], X_blocks[j])
        mirrored = jnp.where(i < j, V_blocks[i], 0)
        # V_iᵀ K, as a product with a transposed K would make a copy of it.
        return matmul(K, V_blocks[j]), matmul(mirrored.T, K).T

    def add_pair(total: Float[Array, "k b t"], pair: tuple) -> tuple[Float[Array, "k b t"], None]:
        i, j = pair
        to_i, to_j = products(i, j)
        return total.at[i].add(to_i).at[j].add(to_j), None

    pairs = tuple(map(jnp.asarray, numbers))
    total, _ = jax.lax.scan(add_pair, jnp.zeros_like(V_blocks), pairs)
    return total.reshape(count * size, -1)[:n].reshape(V.shape)


def _cut(A: Float[Array, "n p"], count: int, size: int, mode: str) -> Float[Array, "k b p"]:
    """Rows in blocks of one size, the last one filled up with 0, or with copies of the last row."""
    missing = count * size - len(A)
    return jnp.pad(A, ((0, missing), (0, 0)), mode=mode).reshape(count, size, -1)


@public_call(data="X")
def gram_matmul(
    kernel: Kernel,
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    V: Float[Array, "m *t"],
    *,
    block_size: int | None = None,
) -> Float[Array, "n *t"]:
    """Compute the product K·V without storing K: each block of rows of K is made, used and dropped.

    (K V)ᵢ = Σⱼ k(xᵢ, zⱼ) Vⱼ.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d).
        Z: rows (m, d).
        V: (m, t) or (m,).
        block_size: rows at a time, by default as many as fit the cache.

    Returns:
        (n, t) or (n,).

    Raises:
        ValueError: for shapes that do not fit.

    **Cost** O(n m (d + t)) time and O(block_size · m) memory, derivatives included, as they
    recompute each block; on a CPU, where Z is X, half of the entries of K are made; where X lies on
    several devices each computes its own rows, and Z and V are copied to all. **Source**: as
    `gram`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.array([[1.0], [2.0]])
    >>> rls.extend.gram_matmul(rls.Linear(), X, X, jnp.ones(2)).tolist()
    [3.0, 6.0]
    """
    is_square = Z is X
    X = as_block("X", X)
    Z = as_block("Z", Z)
    _check_pair(kernel, X, Z)
    columns = Z.shape[0] if kernel.evaluable else X.shape[1]
    if V.shape[0] != columns:
        raise ValueError(
            f"V must have {columns} rows, one per column of K, and has shape {V.shape}"
        )
    # Neither whole numbers nor a narrower dtype of V may round the rows.
    wider = np.promote_types(X.dtype, V.dtype)
    V = jnp.asarray(V).astype(jax.dtypes.canonicalize_dtype(wider))
    rows = DenseRows(X, shards_of(X, jax.device_count()))
    if is_square and rows.shards == 1 and isinstance(X, jax.Array):
        return square_times(kernel, X, V, block_size)
    return kernel_times(kernel, rows, Z, V, block_size)


def _check_pair(kernel: Kernel, X: Any, Z: Any) -> None:
    if Z is not None and kernel.evaluable and X.shape[1] != Z.shape[1]:
        raise ValueError(
            f"X and Z must have equally many columns, and have {X.shape[1]} and {Z.shape[1]}"
        )
