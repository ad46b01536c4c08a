"""λ and targets as axes of arrays. λ are columns (L, k): k = 1 where all targets share them, or t
with one for each. Results have an axis L of λ and an axis t of targets.

| loop over λ | for |
|---|---|
| `over_lams` | what takes many λ in one product: chunks of λ, all of a chunk at once |
| `one_by_one` | what takes an axis of λ and needs much memory for each: an axis of length one |
| `map_lams_with_columns` | what takes one λ and the columns of its targets |
| `Solution.at_each`, `per_target` | what takes one λ and a solution: once where targets share |
| | λ, else once for each target |
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.linalg import map_blocks, matmul, split
from jaxrls.core.support import Listed

# As a caller gives them; `as_columns` refuses a single number.
Lams = Float[Array, "L *k"] | Listed | float
PerLam = Float[Array, "L k"]  # λ, or a number for each
PerTarget = Float[Array, "L t"]
PerRow = Float[Array, "L n t"]

# Functions of a block of b rows that callers hand in, with weights v, None where all are 1.
# Of `sweep`: of residuals r, the diagonal of R, v and columns of one's own.
OfResiduals = Callable[..., Any]
# Of held-out residuals e at one λ: of e, labels and v, as a criterion's `summand` is; and of
# e, 1 − leverage (b, k), labels and v.
OfLeftOut = Callable[[Float[Array, "b t"], Float[Array, "b t"], Any], Any]
OfLeftOutRows = Callable[[Float[Array, "b t"], Float[Array, "b k"], Float[Array, "b t"], Any], Any]
# Of held-out residuals of folds, for all λ: of e, labels and v.
OfFolds = Callable[[Float[Array, "b L t"], Float[Array, "b t"], Any], Any]

# λ × targets in one matrix product: enough columns to run at its full rate, few enough that n times
# as many fit into memory with U.
COLUMNS_AT_ONCE = 1024


def as_columns(lams: Lams, t: int | None = None) -> PerLam:
    """λ (L,) as one column for all targets, (L, 1); one λ per target, (L, t), as it is."""
    lams = jnp.asarray(lams)
    if lams.ndim not in (1, 2) or lams.ndim == 2 and t and lams.shape[1] not in (1, t):
        raise ValueError(
            f"lams must have shape (L,), or (L, {t or 't'}) with a λ for each target, and has "
            f"shape {lams.shape}"
        )
    return lams[:, None] if lams.ndim == 1 else lams


def matmul_lams(A: Float[Array, "b r"], B: Float[Array, "r L t"]) -> Float[Array, "b L t"]:
    """A times every B[:, l], as one product."""
    return matmul(A, B.reshape(len(B), -1)).reshape(len(A), *B.shape[1:])


def over_lams(fn: Callable, lams: PerLam, columns: int) -> Any:
    """`fn` of all λ, results with a leading axis L: in equal chunks of λ, so that at most
    `COLUMNS_AT_ONCE` matrix columns, `columns` for each λ, are in memory at once.
    """
    chunks = -(-len(lams) // max(1, COLUMNS_AT_ONCE // max(1, columns)))
    return fn(lams) if chunks == 1 else map_blocks(fn, *split(lams, -(-len(lams) // chunks)))


def one_by_one(fn: Callable, lams: PerLam, stack: bool) -> Any:
    """`fn` of one λ after another, each as an axis of length one: sums with λ leading, or with
    `stack` rows, (n, L, …).
    """
    axis = 1 if stack else 0  # of the one λ
    of_one = lambda lam: jax.tree.map(lambda a: jnp.squeeze(a, axis), fn(lam))
    results = jax.lax.map(of_one, lams)
    return jnp.moveaxis(results, 0, 1) if stack else results


def map_lams_with_columns(fn: Callable, lams: PerLam, A: Float[Array, "r t"]) -> Any:
    """`fn(λ, columns of A)` of one λ after another, (L k, …): with all columns where targets share
    λ, k = 1, else with that of its target, k = t.
    """
    L, k = lams.shape
    r, t = A.shape
    columns = jnp.moveaxis(A.reshape(r, k, t // k), 1, 0)
    pairs = lams.reshape(L * k), jnp.tile(columns, (L, 1, 1))
    return jax.lax.map(lambda pair: fn(*pair), pairs)


def with_lams_inside(results: Any, lams: PerLam) -> Any:
    """Results (L k, b, t/k) of one λ after another as (b, L, t): for k = 1 all targets come from
    one result, for k = t one from each, as `map_lams_with_columns` makes them.
    """

    def inside(a: Float[Array, "N b u"]) -> Float[Array, "b L t"]:
        a = jnp.moveaxis(a, 0, 1)
        return a.reshape(len(a), len(lams), lams.shape[1] * a.shape[2])

    return jax.tree.map(inside, results)
