"""Distances between all rows of two matrices, right to rounding whatever the offset and the spread
of the columns.

‖x‖² + ‖z‖² − 2⟨x, z⟩ is one matrix product, and loses eps·(‖x‖² + ‖z‖²): near rows that lie far
from the origin come out equal. Differences lose nothing. They cost no more where columns are few;
elsewhere they are taken for blocks of rows that lie far out. Sparse rows cannot be centred, which
would make them dense: they are far out where they are far from the origin."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.kernels.kernel import Gram, Rows
from jaxrls.linalg.products import matmul
from jaxrls.linalg.sparse import SparseBlock, squared_lengths

# Up to so many columns, differences take no longer than a product: they fuse with the kernel's
# profile.
FEW_COLUMNS = 2
# Columns whose differences are added in one pass over the result.
COLUMNS_A_PASS = 8
# ‖x‖² in widths, up to which for all of X or all of Z a product is taken. What it loses, (2 + √d)
# eps (‖x‖² + ‖z‖²), is then no more than (2 + √d) eps (3 · NEAR + 2 r²): where ‖x‖² ≤ NEAR, ‖z‖² ≤
# 2 NEAR + 2 r².
NEAR = 4.0
SPARSE_NEAR = (
    16 * NEAR
)  # the same of sparse rows, about the origin: what becomes dense costs far more than a few times eps


def distances_squared(X: Any, Z: Float[Array, "m d"], inverse: Float[Array, " d"]) -> Gram:
    """As `squared_distances`, X dense or a `SparseBlock`: of sparse rows within 12 (2 + √d) eps (16
    + r²), and 0 for equal rows.

    **Cost** of sparse rows O(stored entries · m), and where rows of both X and Z are longer than 8
    widths that of dense ones."""
    if not isinstance(X, SparseBlock):
        return squared_distances(X, Z, inverse)
    x, z = X.times(inverse), Z * inverse
    own, other = x.squared_lengths(), squared_lengths(z)

    def product():
        lengths = own[:, None] + other[None, :]
        found = lengths - 2 * x.inner(z)
        return jnp.where(found <= _rounding(X) * lengths, 0, found)

    near = jnp.minimum(jnp.max(own), jnp.max(other)) <= SPARSE_NEAR
    return jax.lax.cond(_for_all(near), product, lambda: squared_distances(X.dense(), Z, inverse))


def _rounding(X) -> float:
    return (2 + math.sqrt(X.shape[1])) * float(jnp.finfo(X.dtype).eps)


@jax.custom_jvp
def squared_distances(X: Rows, Z: Float[Array, "m d"], inverse: Float[Array, " d"]) -> Gram:
    """r² = Σₖ ((xₖ − zₖ) · inverseₖ)², `inverse` 1/width: within d eps r² for few columns, 12 (2 +
    √d) eps (1 + r²) for many; 0 for equal rows.

    **Cost** O(n m d), by one product for many columns, and some five times as much where rows of
    both X and Z lie far out."""
    if X.shape[1] <= FEW_COLUMNS:
        return _sum_of_squares(X.T, Z.T, inverse)
    x, z, near = _centred(X, Z, inverse)
    lengths = jnp.sum(x * x, axis=1)[:, None] + jnp.sum(z * z, axis=1)[None, :]
    # One matrix from either branch, so that all the rest is one pass that fuses with the kernel's
    # profile.
    found = jax.lax.cond(near, lambda: -2 * matmul(x, z.T), lambda: _by_differences(X, Z, inverse))
    product = lengths + found
    return jnp.where(near, jnp.where(product <= _rounding(X) * lengths, 0, product), found)


@squared_distances.defjvp
def _squared_distances_jvp(primals, tangents):
    X, Z, inverse = primals
    x, z, near = _centred(X, Z, inverse)

    def by_products(dX, dZ, dinverse):
        """2 (x − z)·(dx − dz), multiplied out."""
        stretch = jnp.where(inverse > 0, dinverse / inverse, 0)  # d log inverse, as x is in widths
        dx, dz = dX * inverse + x * stretch, dZ * inverse + z * stretch
        own = jnp.sum(x * dx, axis=1)[:, None] + jnp.sum(z * dz, axis=1)[None, :]
        return 2 * (own - matmul(x, dz.T) - matmul(dx, z.T))

    def by_differences(*tangents):
        one_by_one = partial(
            _by_differences, at_once=1
        )  # the gaps of one column at a time are kept on the way back
        return jax.jvp(one_by_one, primals, tangents)[1]

    return squared_distances(X, Z, inverse), jax.lax.cond(
        near, by_products, by_differences, *tangents
    )


def city_block_distances(X: Rows, Z: Float[Array, "m d"], inverse: Float[Array, " d"]) -> Gram:
    """Σₖ |xₖ − zₖ| · inverseₖ, no matrix product, so added up column by column: O(n m d) time at
    O(n m) memory.
    """

    return _column_by_column(lambda x, z: jnp.abs(x - z), X, Z, inverse)


def chi_squared_distances(X: Rows, Z: Float[Array, "m d"], inverse: Float[Array, " d"]) -> Gram:
    """Σₖ (xₖ − zₖ)² / (xₖ + zₖ) · inverseₖ for rows that are not negative, 0 of 0 and 0: as
    `city_block_distances`.
    """

    def gap(x, z):
        total = x + z
        positive = total > 0
        return jnp.where(positive, (x - z) ** 2 / jnp.where(positive, total, 1), 0)

    return _column_by_column(gap, X, Z, inverse)


def _column_by_column(gap, X, Z, inverse):
    """Σₖ gap(xₖ, zₖ) · inverseₖ."""

    @jax.checkpoint
    def add(total, columns):
        x, z, scale = columns
        return total + gap(x[:, None], z[None, :]) * scale, None

    return jax.lax.scan(add, jnp.zeros((X.shape[0], Z.shape[0]), X.dtype), (X.T, Z.T, inverse))[0]


def _centred(X, Z, inverse):
    """Rows in widths from the mean of Z, and whether all of X or all of Z lie near it, so that a
    product loses nothing.
    """
    center = jax.lax.stop_gradient(
        jnp.mean(Z, axis=0)
    )  # a distance does not see it, but its rounding does
    x, z = (X - center) * inverse, (Z - center) * inverse
    farthest = jnp.minimum(jnp.max(jnp.sum(x * x, axis=1)), jnp.max(jnp.sum(z * z, axis=1)))
    return x, z, _for_all(farthest <= NEAR)


@jax.custom_batching.custom_vmap
def _for_all(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag; under `vmap` one for the whole batch, as a conditional on a batch of flags would
    compute both of its branches.
    """
    return flag


@_for_all.def_vmap
def _for_all_of_a_batch(size, batched, flags):
    return _for_all(jnp.all(flags)), False


def _by_differences(X, Z, inverse, at_once=COLUMNS_A_PASS):
    """Column by column, `at_once` of them in each pass over the result."""
    passes = -(-X.shape[1] // at_once)
    missing = passes * at_once - X.shape[1]

    def columns(rows):
        return jnp.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1))).reshape(
            passes, at_once, *rows.shape[1:]
        )

    @jax.checkpoint
    def add(total, part):
        return total + _sum_of_squares(*part), None

    start = jnp.zeros((X.shape[0], Z.shape[0]), X.dtype)
    return jax.lax.scan(add, start, (columns(X.T), columns(Z.T), columns(inverse)))[0]


def _sum_of_squares(x, z, inverse):
    """For few columns, given as rows: unrolled, which makes it one pass."""
    total = 0.0
    for column in range(len(inverse)):
        gap = (x[column][:, None] - z[column][None, :]) * inverse[column]
        total = total + gap * gap
    return total
