"""Distances between all rows of two matrices, accurate to rounding for columns of any offset.

‖x‖² + ‖z‖² − 2⟨x, z⟩ is one matrix product, and loses eps·(‖x‖² + ‖z‖²), which hides distances
between rows far from the origin; differences lose nothing. They are taken where columns are few,
and for rows far out. Sparse rows are not centred, which would make them dense.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.core.kernels.kernel import Gram, Rows
from jaxrls.rows.sparse_block import SparseBlock, inner_products, made_dense, squared_lengths

# The most columns for which differences take no longer than a product, as they fuse with the
# kernel's profile.
FEW_COLUMNS = 2
# The number of columns whose differences are added in one pass over the result.
COLUMNS_A_PASS = 8
# ‖x‖² in widths, up to which for all of X or all of Z a product is taken. What it loses, (2 + √d)
# eps (‖x‖² + ‖z‖²), is then no more than (2 + √d) eps (3 · NEAR + 2 r²): where ‖x‖² ≤ NEAR, ‖z‖² ≤
# 2 NEAR + 2 r². Of sparse rows, which become dense elsewhere, it is 16 times that.
NEAR, SPARSE_NEAR = 4.0, 64.0


def squared_distances(X: Any, Z: Float[Array, "m d"], inverse: Float[Array, " d"]) -> Gram:
    """Squared distances r² = Σₖ ((xₖ − zₖ) · inverseₖ)², where `inverse` is 1/width; 0 for equal
    rows.

    Errors are at most d eps r² for few columns, 12 (2 + √d) eps (1 + r²) for many, and 12 (2 + √d)
    eps (16 + r²) for sparse rows.

    **Cost** O(n m d), by one product for many columns, and some five times as much where rows of
    both X and Z lie far out; for sparse rows O(stored entries · m), and that of dense ones where
    both lie farther than 8 widths from 0.
    """
    sparse = isinstance(X, SparseBlock)
    if not sparse and X.shape[1] <= FEW_COLUMNS:
        return _by_columns(_square, X, Z, inverse)
    # The center changes no distance, but its rounding error.
    center = 0 if sparse else jax.lax.stop_gradient(jnp.mean(Z, axis=0))
    x, z = X.times(inverse) if sparse else (X - center) * inverse, (Z - center) * inverse
    own, other = squared_lengths(x), squared_lengths(z)
    farthest = jax.lax.stop_gradient(jnp.minimum(own.max(), other.max()))
    near = _for_all(farthest <= (SPARSE_NEAR if sparse else NEAR))

    # One matrix from either branch, so that all the rest is one pass that fuses with the kernel's
    # profile.
    found = jax.lax.cond(near, _by_product, _by_differences, (x, z), (X, Z, inverse))
    lengths = own[:, None] + other[None, :]
    product = lengths + found
    hidden = product < (2 + math.sqrt(X.shape[1])) * float(jnp.finfo(X.dtype).eps) * lengths
    # A distance lost in rounding is set to 0, and keeps the derivative of the formula.
    rounded = jax.lax.stop_gradient(jnp.where(hidden, product, 0))
    return jnp.where(near, product - rounded, found)


def city_block_distances(
    X: Rows | SparseBlock, Z: Float[Array, "m d"], inverse: Float[Array, " d"]
) -> Gram:
    """Σₖ |xₖ − zₖ| · inverseₖ, which is no matrix product, so it is summed column by column: O(n m
    d) time at O(n m) memory.
    """
    return _by_columns(lambda x, z, scale: jnp.abs(x - z) * scale, made_dense(X), Z, inverse)


def chi_squared_distances(
    X: Rows | SparseBlock, Z: Float[Array, "m d"], inverse: Float[Array, " d"]
) -> Gram:
    """Σₖ (xₖ − zₖ)² / (xₖ + zₖ) · inverseₖ for non-negative rows, where 0/0 counts as 0; computed
    as `city_block_distances`.
    """

    def gap(x, z, scale):
        total = x + z
        positive = total > 0
        return jnp.where(positive, (x - z) ** 2 / jnp.where(positive, total, 1), 0) * scale

    return _by_columns(gap, made_dense(X), Z, inverse)


# Branches of the conditional: functions of the module, so that outside of jit it compiles once.


def _by_product(scaled, _):
    return -2 * inner_products(*scaled)


def _by_differences(_, given):
    X, *rest = given
    if isinstance(X, SparseBlock):
        return squared_distances(X.dense(), *rest)
    return _by_columns(_square, X, *rest)


@jax.custom_batching.custom_vmap
def _for_all(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag; under `vmap` one for the whole batch, as a conditional on a batch of flags would
    compute both of its branches.
    """
    return flag


@_for_all.def_vmap
def _for_all_of_a_batch(size, batched, flags):
    return _for_all(jnp.all(flags)), False


def _square(x, z, scale):
    gap = (x - z) * scale
    return gap * gap


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _by_columns(gap, X, Z, inverse):
    """Σₖ gap(xₖ, zₖ, inverseₖ), COLUMNS_A_PASS of them in each pass over the result."""
    return _in_passes(gap, COLUMNS_A_PASS, X, Z, inverse)


@_by_columns.defjvp
def _by_columns_jvp(gap, primals, tangents):
    # The backward pass stores the gaps of a pass, so there one column is taken at a time.
    return _by_columns(gap, *primals), jax.jvp(partial(_in_passes, gap, 1), primals, tangents)[1]


def _in_passes(gap, at_once, X, Z, inverse):
    @jax.checkpoint
    def add(total, columns):
        for x, z, scale in zip(*columns, strict=True):  # unrolled, which makes it one pass
            total = total + gap(x[:, None], z[None, :], scale)
        return total, None

    start, d = jnp.zeros((X.shape[0], Z.shape[0]), X.dtype), len(inverse)
    if d <= at_once:
        return add(start, (X.T, Z.T, inverse))[0]
    fill = lambda rows: jnp.pad(rows, ((0, -d % at_once), *((0, 0),) * (rows.ndim - 1)))
    passes = lambda rows: fill(rows).reshape(-1, at_once, *rows.shape[1:])
    return jax.lax.scan(add, start, tuple(map(passes, (X.T, Z.T, inverse))))[0]
