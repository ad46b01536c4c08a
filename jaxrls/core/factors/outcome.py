"""What a factor says of itself and of a fit: reports, coefficients, results at one λ; and λ and
targets as axes of arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.linalg import map_blocks, matmul, split
from jaxrls.core.support import pytree, static

# λ × targets in one matrix product: enough columns to run at its full rate, few enough that n times
# as many fit into memory with U.
COLUMNS_AT_ONCE = 1024


@pytree
class Report:
    """How a factor was made and how far its numbers can be trusted.

    Args:
        route: how it was made, such as `"gram"`.
        floor: the λ below which rounding dominates.
        indefinite: the most negative eigenvalue of K over the largest.
        trace_residual: tr √v(K − K̂)√v on landmarks, else None.
        ridge: jitter that was added to the diagonal of the landmarks' kernel matrix, relative to
            it, else None.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factorize(rls.Precomputed(), jnp.eye(3)).report.route
    'gram'
    """

    route: str = static()
    floor: Float[Array, ""]
    indefinite: Float[Array, ""]
    trace_residual: Float[Array, ""] | None = None
    ridge: Float[Array, ""] | None = None


class Coefficients(NamedTuple):
    """Coefficients, unpenalised intercept, and coefficients of other fixed effects or None; with a
    leading axis where there are several λ.
    """

    coef: Any
    intercept: Any
    free: Any = None


class Outcome(NamedTuple):
    """All results of a fit at λ. Where held-out residuals are estimates, `total` is an unbiased sum
    over them and `error` its standard error; `run` says how an iteration went.
    """

    coefficients: Coefficients
    residuals: Any
    dof: Any
    total: Any = None
    error: Any = None
    run: Any = None


# λ and targets ------------------------------------------------------------------------------------


def as_columns(lams, t: int | None = None) -> Float[Array, "L k"]:
    """λ (L,) as one column for all targets, (L, 1); one λ per target, (L, t), as it is."""
    lams = jnp.asarray(lams)
    if lams.ndim not in (1, 2) or lams.ndim == 2 and t and lams.shape[1] not in (1, t):
        raise ValueError(
            f"lams must have shape (L,), or (L, {t or 't'}) with a λ for each target, and has "
            f"shape {lams.shape}"
        )
    return lams[:, None] if lams.ndim == 1 else lams


def over_lams(fn: Callable, lams: Float[Array, "L k"], columns: int):
    """`fn` of all λ, results with a leading axis L: in equal chunks of λ, so that at most
    `COLUMNS_AT_ONCE` matrix columns, `columns` for each λ, are in memory at once.
    """
    chunks = -(-len(lams) // max(1, COLUMNS_AT_ONCE // max(1, columns)))
    return fn(lams) if chunks == 1 else map_blocks(fn, *split(lams, -(-len(lams) // chunks)))


def one_by_one(fn: Callable, lams: Float[Array, "L k"], stack: bool) -> Any:
    """`fn` of one λ after another, each as an axis of length one: sums with λ leading, or with
    `stack` rows, (n, L, …).
    """
    out = jax.lax.map(lambda lam: jax.tree.map(lambda a: a[:, 0] if stack else a[0], fn(lam)), lams)
    return jnp.moveaxis(out, 0, 1) if stack else out


def times(A: Float[Array, "b r"], B: Float[Array, "r L t"]) -> Float[Array, "b L t"]:
    """A times every B[:, l], as one product."""
    return matmul(A, B.reshape(B.shape[0], -1)).reshape(A.shape[0], *B.shape[1:])
