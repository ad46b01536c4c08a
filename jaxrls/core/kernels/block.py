"""What kernels are given: a block of rows, which is an array or another `Block`; and the functions
of blocks that kernels are made of: inner products, lengths, and distances.

Their defaults are those of arrays; a kind of block registers its own where it has a faster way.
Distances between all rows of two matrices are accurate to rounding for columns of any offset:
‖x‖² + ‖z‖² − 2⟨x, z⟩ is one matrix product, and loses eps·(‖x‖² + ‖z‖²), which hides distances
between rows far from the origin; differences lose nothing. They are taken where columns are few,
and for rows far out.
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
from jaxrls.core.support import as_array, check_matrix, platform

Gram = Float[Array, "n m"]
# The most columns for which differences take no longer than a product, as they fuse with the
# kernel's profile. On a GPU, bound by memory, a block is then written and read once, where product,
# conditional and profile take two times each.
FEW_COLUMNS = {"cpu": 2, "gpu": 16}
# The number of columns whose differences are added in one pass over the result.
COLUMNS_A_PASS = {"cpu": 8, "gpu": 16}
# ‖x‖² in widths, up to which for all of X or all of Z a product is taken. What it loses, (2 + √d)
# eps (‖x‖² + ‖z‖²), is then no more than (2 + √d) eps (3 · NEAR + 2 r²): where ‖x‖² ≤ NEAR, ‖z‖² ≤
# 2 NEAR + 2 r².
NEAR = 4.0


class Block:
    """Rows (b, d) that are more than one array: a frozen pytree with `shape`, `values`, and what
    tells where these lie. Kernels of a class with `takes_blocks = True` get it as it is, others
    dense.
    """

    ndim = 2
    shape: Any
    values: Any

    @property
    def dtype(self):
        """That of the values."""
        return self.values.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def astype(self, dtype: Any) -> Any:
        """The same rows in another dtype."""
        return replace(self, values=self.values.astype(dtype))  # type: ignore[type-var]

    def dense(self) -> Float[Array, "b d"]:
        """The same rows in one array."""
        return self.values


def as_block(name: str, X: Any) -> Any:
    """Rows (n, d) of a table, list or array, or a `Block` as it is."""
    X = X if isinstance(X, jax.Array | Block) else as_array(name, X)
    if X.ndim != 2:
        check_matrix(name, X)
    return X


def as_dense(X: Any) -> Any:
    """Rows in one array."""
    return X.dense() if isinstance(X, Block) else X


@singledispatch
def inner_products(X: Any, Z: Any) -> Gram:
    """⟨x, z⟩ of all rows."""
    return matmul(X, Z.T)


@singledispatch
def times(X: Any, w: Float[Array, "d t"]) -> Float[Array, "n t"]:
    """X w."""
    return matmul(X, w)


@singledispatch
def squared_lengths(X: Any) -> Float[Array, " n"]:
    """⟨x, x⟩ of every row."""
    return jnp.sum(X * X, axis=1)


# distances
# --------------------------------------------------------------------------------------------------


@singledispatch
def squared_distances(X: Any, Z: Any, inverse: Float[Array, " d"]) -> Gram:
    """Squared distances r² = Σₖ ((xₖ − zₖ) · inverseₖ)², where `inverse` is 1/width; 0 for equal
    rows.

    Errors are at most d eps r² for few columns, 12 (2 + √d) eps (1 + r²) for many.

    **Cost** O(n m d), by one product for many columns, and some five times as much where rows of
    both X and Z lie far out.
    """
    if X.shape[1] <= FEW_COLUMNS.get(platform(), 2):
        return _by_columns(squared_gap, X, Z, inverse)
    # The center changes no distance, but its rounding error.
    center = jax.lax.stop_gradient(jnp.mean(Z, axis=0))
    x = (X - center) * inverse
    z = (Z - center) * inverse
    return near_product(x, z, NEAR, _by_differences, (X, Z, inverse))


def near_product(x: Any, z: Any, near: float, far: Callable, rows: Any) -> Gram:
    """Squared distances of scaled rows, ‖x‖² + ‖z‖² − 2⟨x, z⟩ with one product for all pairs; but
    `far(scaled, rows)` where rows of both are longer than √near, which would cost digits.

    `far` should be a function of a module, so that outside of jit the conditional compiles once.
    """
    squares = squared_lengths(x), squared_lengths(z)
    farthest = jnp.minimum(squares[0].max(), squares[1].max())
    is_near = _for_all(jax.lax.stop_gradient(farthest) <= near)
    return jax.lax.cond(is_near, _by_product, far, (x, z, *squares), rows)


@singledispatch
def gaps(X: Any, Z: Any, inverse: Float[Array, " d"], gap: Callable) -> Gram:
    """Σₖ gap(xₖ, zₖ, inverseₖ), which is no matrix product, so it is summed column by column: O(n m
    d) time at O(n m) memory. gap(0, 0, ·) is 0.
    """
    return _by_columns(gap, X, Z, inverse)


def city_block_distances(X: Any, Z: Any, inverse: Float[Array, " d"]) -> Gram:
    """Σₖ |xₖ − zₖ| · inverseₖ."""
    return gaps(X, Z, inverse, _absolute)


def chi_squared_distances(X: Any, Z: Any, inverse: Float[Array, " d"]) -> Gram:
    """Σₖ (xₖ − zₖ)² / (xₖ + zₖ) · inverseₖ for non-negative rows, where 0/0 counts as 0."""
    return gaps(X, Z, inverse, _chi_squared)


def _by_product(scaled: tuple[Any, ...], _: Any) -> Gram:
    """‖x‖² + ‖z‖² − 2⟨x, z⟩. All of it stands in the branch of the conditional, as a select between
    two branches afterwards is one more pass over all pairs.
    """
    x, z, x_squares, z_squares = scaled
    lengths = x_squares[:, None] + z_squares
    distances = lengths - 2 * inner_products(x, z)
    least = (2 + math.sqrt(x.shape[1])) * float(jnp.finfo(x.dtype).eps) * lengths
    # A distance lost in rounding is set to 0, and keeps the derivative of the formula.
    below = jnp.where(distances < least, distances, 0)
    return distances - jax.lax.stop_gradient(below)


def _by_differences(_: Any, rows: tuple) -> Gram:
    return _by_columns(squared_gap, *rows)


@jax.custom_batching.custom_vmap
def _for_all(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag; under `vmap` one for the whole batch, as a conditional on a batch of flags would
    compute both of its branches.
    """
    return flag


@_for_all.def_vmap
def _for_all_of_a_batch(
    size: int, batched: list, flags: Bool[Array, " B"]
) -> tuple[Bool[Array, ""], bool]:
    return _for_all(jnp.all(flags)), False


# Gaps between numbers of one column, as functions of the module: each is compiled once.


def squared_gap(
    x: Float[Array, "..."], z: Float[Array, "..."], scale: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Of `squared_distances`."""
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
    positive = total > 0  # the square of a gap may underflow where its share does not
    return jnp.where(positive, gap * (gap / jnp.where(positive, total, 1)), 0) * scale


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _by_columns(
    gap: Callable, X: Float[Array, "n d"], Z: Float[Array, "m d"], inverse: Float[Array, " d"]
) -> Gram:
    """Σₖ gap(xₖ, zₖ, inverseₖ), COLUMNS_A_PASS of them in each pass over the result."""
    return _in_passes(gap, COLUMNS_A_PASS.get(platform(), 8), X, Z, inverse)


@_by_columns.defjvp
def _by_columns_jvp(gap: Callable, primals: tuple, tangents: tuple) -> tuple[Gram, Gram]:
    # The backward pass stores the gaps of a pass, so there one column is taken at a time.
    return _by_columns(gap, *primals), jax.jvp(partial(_in_passes, gap, 1), primals, tangents)[1]


def _in_passes(
    gap: Callable,
    at_once: int,
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    inverse: Float[Array, " d"],
) -> Gram:
    @jax.checkpoint
    def add(total: Gram, column: tuple) -> tuple[Gram, None]:
        x, z, scale = column
        return total + gap(x[:, None], z[None, :], scale), None

    if len(inverse) > at_once:  # columns of 0, so that all passes are alike
        missing = -len(inverse) % at_once
        X = jnp.pad(X, ((0, 0), (0, missing)))
        Z = jnp.pad(Z, ((0, 0), (0, missing)))
        inverse = jnp.pad(inverse, (0, missing))
    start = jnp.zeros((X.shape[0], Z.shape[0]), X.dtype)
    # Unrolled, which makes columns of one pass one operation.
    return jax.lax.scan(add, start, (X.T, Z.T, inverse), unroll=at_once)[0]
