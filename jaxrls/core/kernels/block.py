"""Define blocks of rows, the input of kernels, and the functions of blocks that kernels call.

A block of rows is an array or a `Block`. The functions compute inner products, lengths and
distances. Their default versions are for arrays. A kind of `Block` registers its own version where
it has a faster one.

Distances between the rows of two matrices are accurate to rounding, whatever the offset of the
columns. There are two formulas:

* ‖x‖² + ‖z‖² − 2⟨x, z⟩ takes one matrix product. It loses eps·(‖x‖² + ‖z‖²), which hides the
  distances between rows far from the origin.
* The sum of squared differences loses nothing. It is used for few columns, and for rows far from
  the origin.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial, singledispatch
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.core.linalg import matmul
from jaxrls.core.support import as_array, by_names, check_matrix, column_names, platform

Gram = Float[Array, "n m"]
# The largest number of columns for which differences take no longer than a matrix product. XLA
# fuses differences with the kernel's profile. On a GPU, bound by memory, the block is then written
# and read once. Product, conditional and profile write and read it once each.
FEW_COLUMNS = {"cpu": 2, "gpu": 16}
# How many columns are added in one pass over the result.
COLUMNS_A_PASS = {"cpu": 8, "gpu": 16}
# A product is used if ‖x‖² ≤ NEAR, in widths, for all rows of X, or ‖z‖² ≤ NEAR for all rows of Z.
# The product loses (2 + √d) eps (‖x‖² + ‖z‖²).
# If ‖x‖² ≤ NEAR, then ‖z‖² ≤ 2 NEAR + 2 r².
# So the loss is at most (2 + √d) eps (3 NEAR + 2 r²).
NEAR = 4.0


class Block:
    """A block of rows (b, d) that is more than one array, such as sparse rows.

    A subclass is a frozen pytree with the fields or properties `shape` and `values`, and with
    fields for the places of the values. A kernel whose class sets `takes_blocks = True` gets the
    block as it is. Other kernels get `dense()`.
    """

    ndim = 2
    shape: Any
    values: Any

    @property
    def dtype(self):
        """The dtype of the values."""
        return self.values.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def astype(self, dtype: Any) -> Any:
        """Return the same rows in another dtype."""
        return replace(self, values=self.values.astype(dtype))  # type: ignore[type-var]

    def dense(self) -> Float[Array, "b d"]:
        """Return the same rows as one array."""
        return self.values


def as_block(name: str, X: Any) -> Any:
    """Return rows (n, d) of a table, a list or an array as a JAX array.

    A `Block` is returned as it is.
    """
    X = X if isinstance(X, jax.Array | Block) else as_array(name, X)
    if X.ndim != 2:
        check_matrix(name, X)
    return X


def in_order_of(X: Any, name: str, Z: Any) -> Any:
    """Return the rows Z with their columns in the order of those of X, where both have names.

    Raise if they have different names.
    """
    if isinstance(X, jax.Array | Block) or isinstance(Z, jax.Array | Block):
        return Z
    wanted = column_names(X)
    found = column_names(Z)
    if wanted and found and (differing := {*wanted} ^ {*found}):
        raise ValueError(
            f"{name} must have the columns of X, and {min(map(repr, differing))} is in one of both "
            "alone: give the same columns, or arrays of them in the same order"
        )
    return by_names(name, Z, wanted)


def as_dense(X: Any) -> Any:
    """Return the rows as one array."""
    return X.dense() if isinstance(X, Block) else X


@singledispatch
def inner_products(X: Any, Z: Any) -> Gram:
    """Compute ⟨x, z⟩ for all pairs of rows."""
    return matmul(X, Z.T)


@singledispatch
def times(X: Any, w: Float[Array, "d t"]) -> Float[Array, "n t"]:
    """Compute X w."""
    return matmul(X, w)


@singledispatch
def squared_lengths(X: Any) -> Float[Array, " n"]:
    """Compute ⟨x, x⟩ for every row."""
    return jnp.sum(X * X, axis=1)


# distances
# --------------------------------------------------------------------------------------------------


@singledispatch
def squared_distances(X: Any, Z: Any, inverse: Float[Array, " d"]) -> Gram:
    """Compute the squared distances r² = Σₖ ((xₖ − zₖ) · inverseₖ)² of all pairs of rows.

    Equal rows have distance 0. `inverse` is 1/width for each column. Errors are at most d eps r²
    for few columns, and 12 (2 + √d) eps (1 + r²) for many.

    **Cost** O(n m d). Many columns take one matrix product. They take about five times as long
    where rows of both X and Z lie far from their center.
    """
    if X.shape[1] <= FEW_COLUMNS.get(platform(), 2):
        return _by_columns(squared_gap, X, Z, inverse)
    # Centring does not change the distances. It only reduces their rounding errors.
    center = jax.lax.stop_gradient(jnp.mean(Z, axis=0))
    x = (X - center) * inverse
    z = (Z - center) * inverse
    return near_product(x, z, NEAR, _by_differences, (X, Z, inverse))


def near_product(x: Any, z: Any, near: float, fallback: Callable, rows: Any) -> Gram:
    """Compute squared distances of scaled rows by one product, or by `fallback` where that loses
    digits.

    The product gives ‖x‖² + ‖z‖² − 2⟨x, z⟩. This formula loses digits where rows of both x and z
    are longer than √near. In that case the result is `fallback(scaled, rows)`, where `scaled` is
    (x, z, ‖x‖², ‖z‖²).

    `fallback` should be a function of a module. Outside of jit the conditional then compiles only
    once.
    """
    squares = squared_lengths(x), squared_lengths(z)
    farthest = jnp.minimum(squares[0].max(), squares[1].max())
    is_near = _for_all(jax.lax.stop_gradient(farthest) <= near)
    return jax.lax.cond(is_near, _by_product, fallback, (x, z, *squares), rows)


@singledispatch
def gaps(X: Any, Z: Any, inverse: Float[Array, " d"], gap: Callable) -> Gram:
    """Compute Σₖ gap(xₖ, zₖ, inverseₖ) for all pairs of rows.

    The sum is no matrix product, so it is computed column by column: O(n m d) time, O(n m) memory.
    gap(0, 0, ·) must be 0.
    """
    return _by_columns(gap, X, Z, inverse)


def city_block_distances(X: Any, Z: Any, inverse: Float[Array, " d"]) -> Gram:
    """Compute Σₖ |xₖ − zₖ| · inverseₖ for all pairs of rows."""
    return gaps(X, Z, inverse, _absolute)


def chi_squared_distances(X: Any, Z: Any, inverse: Float[Array, " d"]) -> Gram:
    """Compute Σₖ (xₖ − zₖ)² / (xₖ + zₖ) · inverseₖ for all pairs of non-negative rows.

    0/0 counts as 0.
    """
    return gaps(X, Z, inverse, _chi_squared)


def _by_product(scaled: tuple[Any, ...], _: Any) -> Gram:
    """Compute ‖x‖² + ‖z‖² − 2⟨x, z⟩, with distances below the rounding error set to 0.

    The whole computation is inside of one branch of the conditional. A select between two branches
    afterwards would be one more pass over all pairs.
    """
    x, z, x_squares, z_squares = scaled
    lengths = x_squares[:, None] + z_squares
    distances = lengths - 2 * inner_products(x, z)
    least = (2 + math.sqrt(x.shape[1])) * float(jnp.finfo(x.dtype).eps) * lengths
    # A distance below the rounding error is set to 0. Its derivative stays that of the formula.
    below = jnp.where(distances < least, distances, 0)
    return distances - jax.lax.stop_gradient(below)


def _by_differences(_: Any, rows: tuple) -> Gram:
    """Compute squared distances from differences, as the `fallback` of `near_product`."""
    return _by_columns(squared_gap, *rows)


@jax.custom_batching.custom_vmap
def _for_all(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """Return the flag. Under `vmap`, return one flag for the whole batch.

    A conditional on a batch of flags would compute both of its branches.
    """
    return flag


@_for_all.def_vmap
def _for_all_of_a_batch(
    size: int, batched: list, flags: Bool[Array, " B"]
) -> tuple[Bool[Array, ""], bool]:
    """Return whether the flag holds for every element of the batch; the result is not batched."""
    return _for_all(jnp.all(flags)), False


# Gaps between the numbers of one column. They are functions of the module, so that each is compiled
# only once.


def squared_gap(
    x: Float[Array, "..."], z: Float[Array, "..."], scale: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Return ((x − z) · scale)², the term of `squared_distances` for one column."""
    gap = (x - z) * scale
    return gap * gap


def _absolute(
    x: Float[Array, "..."], z: Float[Array, "..."], scale: Float[Array, "..."]
) -> Float[Array, "..."]:
    return jnp.abs(x - z) * scale


def _chi_squared(
    x: Float[Array, "..."], z: Float[Array, "..."], scale: Float[Array, "..."]
) -> Float[Array, "..."]:
    gap = x - z
    total = x + z
    positive = total > 0  # gap² may underflow where gap²/total does not
    return jnp.where(positive, gap * (gap / jnp.where(positive, total, 1)), 0) * scale


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _by_columns(
    gap: Callable, X: Float[Array, "n d"], Z: Float[Array, "m d"], inverse: Float[Array, " d"]
) -> Gram:
    """Compute Σₖ gap(xₖ, zₖ, inverseₖ), with COLUMNS_A_PASS columns in each pass over the sum."""
    return _in_passes(gap, COLUMNS_A_PASS.get(platform(), 8), X, Z, inverse)


@_by_columns.defjvp
def _by_columns_jvp(gap: Callable, primals: tuple, tangents: tuple) -> tuple[Gram, Gram]:
    # The backward pass stores the gaps of one pass, so the derivative takes one column per pass.
    return _by_columns(gap, *primals), jax.jvp(partial(_in_passes, gap, 1), primals, tangents)[1]


def _in_passes(
    gap: Callable,
    at_once: int,
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    inverse: Float[Array, " d"],
) -> Gram:
    """Compute Σₖ gap(xₖ, zₖ, inverseₖ), with `at_once` columns in each pass over the sum."""

    @jax.checkpoint
    def add(total: Gram, column: tuple) -> tuple[Gram, None]:
        x, z, scale = column
        return total + gap(x[:, None], z[None, :], scale), None

    if len(inverse) > at_once:  # add columns of 0, so that all passes have one shape
        missing = -len(inverse) % at_once
        X = jnp.pad(X, ((0, 0), (0, missing)))
        Z = jnp.pad(Z, ((0, 0), (0, missing)))
        inverse = jnp.pad(inverse, (0, missing))
    start = jnp.zeros((X.shape[0], Z.shape[0]), X.dtype)
    # Unrolling makes one operation of the columns of a pass.
    return jax.lax.scan(add, start, (X.T, Z.T, inverse), unroll=at_once)[0]
