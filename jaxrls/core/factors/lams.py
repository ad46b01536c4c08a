"""λ and targets as axes of arrays, and loops over λ.

λ are columns (L, k): k = 1 if all targets share λ, and k = t if each target has its own. Results
have an axis L of λ and an axis t of targets. An axis of rows, if there is one, comes first.

| loop over λ | what the function takes |
|---|---|
| `over_lams` | many λ at once, in one product; λ are cut into chunks |
| `one_by_one` | one λ, as an axis of length one; for work that needs much memory per λ |
| `map_lams_with_columns` | one λ, and the columns of the targets that have it |
| `Solution.per_target` | one λ and a solution; called for each target unless targets share λ |
| `Solution.at_each` | the same, for one λ after another |
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.linalg import MAP, Reduction, map_blocks, matmul, split
from jaxrls.core.support import Listed

# λ as a caller gives them. `as_columns` refuses a single number.
Lams = Float[Array, "L *k"] | Listed | float
PerLam = Float[Array, "L k"]  # λ as columns, or one number for each λ
PerTarget = Float[Array, "L t"]
PerRow = Float[Array, "n L t"]

# The number of λ of a grid, unless a caller gives another.
GRID_SIZE = 100
# How many columns, λ times targets, one matrix product has. They are enough for its full rate, and
# few enough that n rows of them fit into memory with U.
COLUMNS_AT_ONCE = 1024


def as_columns(lams: Lams, t: int | None = None) -> PerLam:
    """Return λ as columns, checked: (L, 1) from λ (L,), or (L, t) as it was given."""
    lams = jnp.asarray(lams)
    if lams.ndim not in (1, 2) or lams.ndim == 2 and t and lams.shape[1] not in (1, t):
        raise ValueError(
            f"lams must have shape (L,), or (L, {t or 't'}) with a λ for each target, and has "
            f"shape {lams.shape}"
        )
    return lams[:, None] if lams.ndim == 1 else lams


def matmul_lams(A: Float[Array, "b r"], B: Float[Array, "r L t"]) -> Float[Array, "b L t"]:
    """Multiply A with every B[:, l], in one product."""
    return matmul(A, B.reshape(len(B), -1)).reshape(len(A), *B.shape[1:])


def over_lams(reduction: Reduction, fn: Callable, lams: PerLam, columns: int) -> Any:
    """Apply `fn`, which reduces rows, to many λ at once.

    `fn` makes `columns` matrix columns for each λ. For sums it takes λ in equal chunks, which keep
    at most `COLUMNS_AT_ONCE` columns in memory at once. A map keeps its columns anyway.

    The chunks are cut along the first axis, which is that of λ here and of rows elsewhere.
    """
    if reduction is MAP:
        return fn(lams)
    chunks = -(-len(lams) // max(1, COLUMNS_AT_ONCE // max(1, columns)))
    return fn(lams) if chunks == 1 else map_blocks(fn, *split(lams, -(-len(lams) // chunks)))


def one_by_one(reduction: Reduction, fn: Callable, lams: PerLam) -> Any:
    """Apply `fn`, which reduces rows, to one λ after another.

    Results of `fn` have an axis of λ, of length one.
    """
    axis = reduction.lam_axis
    of_one = lambda lam: jax.tree.map(lambda a: jnp.squeeze(a, axis), fn(lam))
    results = jax.lax.map(of_one, lams)
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, axis), results)


def map_lams_with_columns(fn: Callable, lams: PerLam, A: Float[Array, "r t"]) -> Any:
    """Apply `fn(λ, columns of A)` to one λ after another, and return results (L k, …).

    If targets share λ (k = 1), `fn` gets all columns. Otherwise (k = t) it gets the column of one
    target with the λ of this target.
    """
    L, k = lams.shape
    r, t = A.shape
    columns = jnp.moveaxis(A.reshape(r, k, t // k), 1, 0)
    pairs = lams.reshape(L * k), jnp.tile(columns, (L, 1, 1))
    return jax.lax.map(lambda pair: fn(*pair), pairs)


def with_lams_inside(results: Any, lams: PerLam) -> Any:
    """Reshape results (L k, b, t/k) of `map_lams_with_columns` to (b, L, t).

    With k = 1, one result has all targets. With k = t, each target has a result of its own.
    """

    def inside(a: Float[Array, "N b u"]) -> Float[Array, "b L t"]:
        a = jnp.moveaxis(a, 0, 1)
        return a.reshape(len(a), len(lams), lams.shape[1] * a.shape[2])

    return jax.tree.map(inside, results)
