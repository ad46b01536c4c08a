"""Computations over blocks of rows, a map and a sum, so that temporaries never exceed a block."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from jaxrls.core.support import check_whole, is_symbolic, platform

# Bytes of one block's temporaries: on CPUs what stays in cache, on accelerators what keeps the
# device busy.
CPU_BLOCK_BYTES = 8 * 2**20
ACCELERATOR_BLOCK_BYTES = 256 * 2**20
FEWEST_ROWS = 512  # in a block of rows that are multiplied by a square matrix each: fewer are slow


def block_bytes() -> int:
    """The bytes of a block on the default device."""
    return CPU_BLOCK_BYTES if platform() == "cpu" else ACCELERATOR_BLOCK_BYTES


def default_block_size(n: int, row_bytes: int, most: int | None = None) -> int:
    """Rows per block for `row_bytes` of temporaries a row, down to half as many where they then
    divide `n`, so that no ragged block remains; at most `most` bytes a block, or 16 rows where
    these are more. A number that is a symbol is not divided.
    """
    if is_symbolic(n):
        return n
    blocks = -(-n // max(16, (most or block_bytes()) // max(1, row_bytes)))
    counts = range(blocks, min(2 * blocks, n) + 1)
    return next((n // count for count in counts if n % count == 0), -(-n // blocks))


def wide_block_size(n: int, row_bytes: int) -> int:
    """The same, but at least FEWEST_ROWS, or up to twice as many that divide `n`: with a ragged
    block, whole blocks would be cut out as a copy.
    """
    if is_symbolic(n):
        return n
    least = min(n, FEWEST_ROWS)
    size = default_block_size(n, row_bytes)
    sizes = range(least, 2 * least)
    return size if size >= least else next((rows for rows in sizes if n % rows == 0), least)


def check_block_size(block_size: Any, n: int) -> int | None:
    """`block_size` limited to `n`, or None if it is; raises unless it is a whole number of at least
    1.
    """
    if block_size is None or is_symbolic(block_size):
        return None
    check_whole("block_size", block_size)
    if is_symbolic(n):
        raise ValueError(
            f"block_size must be None where the number of rows is a symbol, {n}, and is "
            f"{block_size}: all rows are computed at once there"
        )
    return min(int(block_size), n)


def split(arrays: Any, block: int) -> tuple[Any, Any]:
    """Arrays (n, …) of n ≥ block rows as whole blocks (k, block, …), and the ragged rest, None if
    it is empty.
    """
    k, ragged = divmod(jax.tree.leaves(arrays)[0].shape[0], block)
    cut = lambda a: a[: k * block].reshape(k, block, *a.shape[1:])
    rest = jax.tree.map(lambda a: a[k * block :], arrays) if ragged else None
    return jax.tree.map(cut, arrays), rest


def map_blocks(fn: Callable, whole: Any, rest: Any) -> Any:
    """`fn` on every block, the results (rows, …) stacked back to (n, …); derivatives recompute each
    block instead of keeping its temporaries.
    """
    rows = jax.tree.map(join_blocks, jax.lax.map(jax.checkpoint(fn), whole))
    return rows if rest is None else jax.tree.map(lambda *a: jnp.concatenate(a), rows, fn(rest))


def join_blocks(a: Shaped[Array, "k b *s"]) -> Shaped[Array, "n *s"]:
    """Blocks (k, block, …) as rows, also where there are no columns."""
    return a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])


def sum_blocks(fn: Callable, whole: Any, rest: Any) -> Any:
    """The sum of `fn` over blocks: one carry, added to block by block, with derivatives that
    recompute.
    """
    of_block = jax.checkpoint(fn)
    if rest is None:
        shapes = jax.eval_shape(of_block, jax.tree.map(lambda a: a[0], whole))
        start = jax.tree.map(jnp.zeros_like, shapes)
    else:
        start = fn(rest)
    add = lambda total, block: (jax.tree.map(jnp.add, total, of_block(block)), None)
    return jax.lax.scan(add, start, whole)[0]


def in_parts(run: Callable, arrays: Any, parts: int, place: Callable) -> Any:
    """`run` on equal parts of arrays (n, …) in parallel: parts on different devices stay there, and
    nothing is passed between them.

    Each part has its own copy of what `run` closes over, so that derivatives too are summed within
    parts first and between them once. `place` says where arrays with a row for each part, or each
    row, are put.
    """

    def side_by_side(arrays: Any) -> Any:
        cut = jax.tree.map(lambda a: a.reshape(parts, a.shape[0] // parts, *a.shape[1:]), arrays)
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), cut)
        pure, constants = jax.closure_convert(run, shapes)
        copies = place([jnp.broadcast_to(value, (parts, *value.shape)) for value in constants])
        return jax.vmap(lambda part, copies: pure(part, *copies))(cut, copies)

    return jax.jit(lambda arrays: place(side_by_side(place(arrays))))(arrays)


# By kind: the function for blocks, and the one that joins the results of parts.
REDUCTIONS = {"sum": (sum_blocks, lambda a: jnp.sum(a, axis=0)), "map": (map_blocks, join_blocks)}


def over_rows(
    kind: str,
    fn: Callable,
    arrays: Any,
    block_size: int,
    parts: int = 1,
    place: Callable = lambda arrays: arrays,
) -> Any:
    """A "sum" or a "map" of `fn` over blocks of rows of a pytree of arrays (n, …); with several
    `parts` over blocks of each, whose sums are added or results stacked at the end.
    """
    over_blocks, together = REDUCTIONS[kind]
    if parts > 1:
        of_part = lambda part: over_rows(kind, fn, part, block_size)
        return jax.tree.map(together, in_parts(of_part, arrays, parts, place))
    if block_size >= jax.tree.leaves(arrays)[0].shape[0]:
        return fn(arrays)
    return over_blocks(fn, *split(arrays, block_size))


map_rows = partial(over_rows, "map")
sum_rows = partial(over_rows, "sum")
