"""Maps and sums over blocks of rows, so that temporary arrays are never larger than one block.

Begin reading at `over_rows`, the last function.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from jaxrls.core.support import check_whole, is_symbolic, platform

# The largest size of one block's temporary arrays. On CPUs they stay in cache. On accelerators they
# are large enough to keep the device busy.
CPU_BLOCK_BYTES = 8 * 2**20
ACCELERATOR_BLOCK_BYTES = 256 * 2**20
# The fewest rows in a block that is multiplied by a square matrix. With fewer rows products are
# slow.
FEWEST_ROWS = 512


def block_bytes() -> int:
    """Return the largest size of a block's temporary arrays on the default device, in bytes."""
    return CPU_BLOCK_BYTES if platform() == "cpu" else ACCELERATOR_BLOCK_BYTES


def default_block_size(n: int, row_bytes: int, most: int | None = None) -> int:
    """Return the number of rows in a block.

    A block has as many rows as its bytes allow. If this number does not divide n, the largest
    smaller number that does is taken, down to half as many rows, so that no ragged block remains.

    Args:
        n: the number of rows. If it is a symbol of `jax.export`, one block has all rows.
        row_bytes: the bytes of temporary arrays for each row.
        most: the most bytes of a block; None for `block_bytes()`. 16 rows are always allowed.
    """
    if is_symbolic(n):
        return n
    blocks = -(-n // max(16, (most or block_bytes()) // max(1, row_bytes)))
    counts = range(blocks, min(2 * blocks, n) + 1)
    return next((n // count for count in counts if n % count == 0), -(-n // blocks))


def wide_block_size(n: int, row_bytes: int) -> int:
    """Return the number of rows in a block that is multiplied by a square matrix.

    It is `default_block_size`, but at least `FEWEST_ROWS`, or n if n is smaller. Instead of
    `FEWEST_ROWS` a number that divides n is taken, if there is one below twice as many. With a
    ragged block, the whole blocks would have to be copied.
    """
    if is_symbolic(n):
        return n
    least = min(n, FEWEST_ROWS)
    size = default_block_size(n, row_bytes)
    sizes = range(least, 2 * least)
    return size if size >= least else next((rows for rows in sizes if n % rows == 0), least)


def check_block_size(block_size: Any, n: int) -> int | None:
    """Return `block_size`, limited to n. Raise unless it is a whole number of at least 1.

    None is returned for None, and for a symbol of `jax.export`.
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
    """Cut a pytree of arrays (n, …), n ≥ block, into blocks of rows.

    Returns:
        `(whole, rest)`: the k whole blocks (k, block, …), and the fewer rows that remain, or None
        if none remain.
    """
    k, ragged = divmod(jax.tree.leaves(arrays)[0].shape[0], block)
    cut = lambda a: a[: k * block].reshape(k, block, *a.shape[1:])
    rest = jax.tree.map(lambda a: a[k * block :], arrays) if ragged else None
    return jax.tree.map(cut, arrays), rest


def map_blocks(fn: Callable, whole: Any, rest: Any) -> Any:
    """Apply `fn` to every block, and concatenate the results (rows, …) to (n, …).

    Derivatives compute each block again instead of storing its temporary arrays.
    """
    rows = jax.tree.map(join_blocks, jax.lax.map(jax.checkpoint(fn), whole))
    return rows if rest is None else jax.tree.map(lambda *a: jnp.concatenate(a), rows, fn(rest))


def join_blocks(a: Shaped[Array, "k b *s"]) -> Shaped[Array, "n *s"]:
    """Reshape blocks (k, b, …) to rows (k·b, …), also if there are no columns."""
    return a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])


def sum_blocks(fn: Callable, whole: Any, rest: Any) -> Any:
    """Return the sum of `fn` over all blocks, accumulated block by block.

    Derivatives compute each block again instead of storing its temporary arrays.
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
    """Apply `run` to equal parts of the rows in parallel, and stack the results (parts, …).

    Parts that lie on different devices stay there, and no data pass between devices. Each part gets
    its own copy of the arrays that `run` closes over. So derivatives in these arrays are summed
    within each part first, and between parts only once.

    Args:
        run: a function of one part.
        arrays: a pytree of arrays (n, …).
        parts: the number of parts. It divides n.
        place: a function that puts arrays on devices. The first axis of its arrays has length n or
            `parts`.
    """

    def side_by_side(arrays: Any) -> Any:
        cut = jax.tree.map(lambda a: a.reshape(parts, a.shape[0] // parts, *a.shape[1:]), arrays)
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), cut)
        pure, constants = jax.closure_convert(run, shapes)
        copies = place([jnp.broadcast_to(value, (parts, *value.shape)) for value in constants])
        return jax.vmap(lambda part, copies: pure(part, *copies))(cut, copies)

    return jax.jit(lambda arrays: place(side_by_side(place(arrays))))(arrays)


class Reduction(NamedTuple):
    """How the results of blocks of rows become one result: `SUM` adds them, `MAP` concatenates."""

    over_blocks: Callable  # applies a function to blocks, and reduces its results
    join_parts: Callable  # reduces results (parts, …)
    lam_axis: int  # the axis of λ in a result, after that of rows if there is one


SUM = Reduction(sum_blocks, lambda a: jnp.sum(a, axis=0), lam_axis=0)
MAP = Reduction(map_blocks, join_blocks, lam_axis=1)


def over_rows(
    reduction: Reduction,
    fn: Callable,
    arrays: Any,
    block_size: int,
    parts: int = 1,
    place: Callable = lambda arrays: arrays,
) -> Any:
    """Sum or map `fn` over blocks of rows.

    Args:
        reduction: `SUM` adds the results of all blocks; `MAP` concatenates them to (n, …).
        fn: a function of a block of the arrays.
        arrays: a pytree of arrays (n, …).
        block_size: the number of rows in a block.
        parts: the number of equal parts of the rows, which may lie on different devices. Each part
            is cut into its own blocks.
        place: a function that puts arrays on the devices of the parts.
    """
    if parts > 1:
        of_part = lambda part: over_rows(reduction, fn, part, block_size)
        return jax.tree.map(reduction.join_parts, in_parts(of_part, arrays, parts, place))
    if block_size >= jax.tree.leaves(arrays)[0].shape[0]:
        return fn(arrays)
    return reduction.over_blocks(fn, *split(arrays, block_size))


map_rows = partial(over_rows, MAP)
sum_rows = partial(over_rows, SUM)
