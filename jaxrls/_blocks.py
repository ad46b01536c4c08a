"""Work on row blocks: one map and one sum, so that temporaries stay within a block of rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrls._checks import check_whole
from jaxrls._linalg import matmul
from jaxrls._sparse import SparseRows

# Bytes of one block's temporaries: on CPUs what stays in cache, on accelerators what keeps the device busy.
CPU_BLOCK_BYTES = 8 * 2**20
ACCELERATOR_BLOCK_BYTES = 256 * 2**20


def default_block_size(n: int, row_bytes: int) -> int:
    """Rows per block for a row of temporaries of `row_bytes`, nudged to divide `n` so that no ragged block is left."""
    budget = CPU_BLOCK_BYTES if jax.default_backend() == "cpu" else ACCELERATOR_BLOCK_BYTES
    blocks = -(-n // max(16, budget // max(1, row_bytes)))
    for count in range(blocks, min(2 * blocks, n) + 1):
        if n % count == 0:
            return n // count
    return -(-n // blocks)


def check_block_size(block_size, n: int) -> int:
    """`block_size` as given, cut to `n`; raises unless it is a whole number of at least 1."""
    check_whole("block_size", block_size)
    return min(int(block_size), n)


def _is_sparse(leaf) -> bool:
    return isinstance(leaf, SparseRows)


def _split(arrays, block_size: int):
    """The rows as a list of whole blocks (k, block, …) and of the ragged rest, either None where there is none.

    The third result turns one such part back into what the caller passed, with dense rows. Sparse leaves come in blocks already,
    of their own size, which then holds for all.
    """
    leaves, tree = jax.tree.flatten(arrays, is_leaf=_is_sparse)
    sparse = [leaf for leaf in leaves if _is_sparse(leaf)]
    n = leaves[0].shape[0]
    block = sparse[0].block if sparse else min(block_size, n)
    k, ragged = divmod(n, block)

    def join(parts, rows):
        return jax.tree.unflatten(tree, [a.dense_block(p, rows) if _is_sparse(a) else p for a, p in zip(leaves, parts, strict=True)])

    if not sparse and block == n:
        return None, leaves, join, n, n
    whole = [a.whole if _is_sparse(a) else a[: k * block].reshape(k, block, *a.shape[1:]) for a in leaves]
    rest = [a.rest if _is_sparse(a) else a[k * block :] for a in leaves] if ragged else None
    return whole, rest, join, block, ragged


def map_rows(fn: Callable, arrays, block_size: int):
    """`fn` on blocks of rows of a pytree of arrays (n, …), the results stacked back to (n, …).

    Derivatives recompute each block instead of keeping its temporaries.
    """
    whole, rest, join, block, ragged = _split(arrays, block_size)
    last = None if rest is None else fn(join(rest, ragged))
    if whole is None:
        return last
    out = jax.lax.map(jax.checkpoint(lambda parts: fn(join(parts, block))), whole)
    out = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), out)
    return out if rest is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, last)


def sum_rows(fn: Callable, arrays, block_size: int):
    """The sum of `fn` over blocks of rows: one carry, added to block by block, with derivatives that recompute."""
    whole, rest, join, block, ragged = _split(arrays, block_size)
    if whole is None:
        return fn(join(rest, block))
    each = jax.checkpoint(lambda parts: fn(join(parts, block)))
    if rest is None:
        shapes = jax.eval_shape(each, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), whole))
        start = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    else:
        start = fn(join(rest, ragged))
    return jax.lax.scan(lambda total, parts: (jax.tree.map(jnp.add, total, each(parts)), None), start, whole)[0]


def rows_matmul(A, V):
    """A @ V for a dense A or for sparse rows."""
    return map_rows(lambda rows: matmul(rows, V), A, 0) if _is_sparse(A) else matmul(A, V)
