"""Work on row blocks: one map and one sum, so that temporaries stay within a block of rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

# Bytes of one block's temporaries: on CPUs what stays in cache, on accelerators what keeps the device busy.
CPU_BLOCK_BYTES = 4 * 2**20
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
    if not isinstance(block_size, int) or isinstance(block_size, bool) or block_size < 1:
        raise ValueError(f"block_size must be a whole number of at least 1, or None to choose, and is {block_size!r}")
    return min(block_size, n)


def _split(arrays, block_size: int):
    """Leading axes (n, …) as whole blocks (k, block_size, …) and the ragged rest, None where there is none."""
    n = jax.tree.leaves(arrays)[0].shape[0]
    k = n // block_size
    whole = jax.tree.map(lambda a: a[: k * block_size].reshape(k, block_size, *a.shape[1:]), arrays)
    return whole, (jax.tree.map(lambda a: a[k * block_size :], arrays) if k * block_size < n else None)


def map_rows(fn: Callable, arrays, block_size: int):
    """`fn` on blocks of rows of a pytree of arrays (n, …), the results stacked back to (n, …).

    Derivatives recompute each block instead of keeping its temporaries.
    """
    n = jax.tree.leaves(arrays)[0].shape[0]
    if block_size >= n:
        return fn(arrays)
    whole, rest = _split(arrays, block_size)
    out = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), jax.lax.map(jax.checkpoint(fn), whole))
    if rest is None:
        return out
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, fn(rest))


def sum_rows(fn: Callable, arrays, block_size: int):
    """The sum of `fn` over blocks of rows: one carry, added to block by block, with derivatives that recompute."""
    n = jax.tree.leaves(arrays)[0].shape[0]
    if block_size >= n:
        return fn(arrays)
    whole, rest = _split(arrays, block_size)
    first = jax.eval_shape(fn, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), whole))
    zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), first) if rest is None else fn(rest)

    def add(total, block):
        return jax.tree.map(jnp.add, total, jax.checkpoint(fn)(block)), None

    return jax.lax.scan(add, zero, whole)[0]
