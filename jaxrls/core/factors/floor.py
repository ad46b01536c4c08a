"""The floor of a factor: the λ below which rounding dominates what is left out. A `Report` holds
it, and whether K says anything beyond rounding at all.

It is where sums over rows begin to hold. Single rows need more: where most eigenvalues of K are
below λ, the factor's error E moves held-out residuals by RER/λ, at the floor by as much as their
root mean square, and as 1/λ above it. Of a hundred data sets (`benchmarks/floors.py`) 9 of 10 have
leave-one-out errors right to 4 to 10 % at the floor and to 1 % from 30 times the floor on, and
single rows from 100 times on; `front/inspection.py` asks what of it a fit has.

Of features there is a second reason for a floor, where the rows that stay hardly determine a fit:
as λ → 0 it interpolates them, 1 − leverage goes to 0, and R, the difference I − HHᵀ − U diag(s/(s +
λ)) Uᵀ, is the rounding of 1. For a unit vector a over rows that leave together, let w = aᵀUUᵀa and
k = aᵀK̃a. As λ/(s + λ) is convex in s, aᵀRa ≥ wλ/(λ + k/w). So from λ = EXACT_ABOVE·k/(w (w −
EXACT_ABOVE)) on, at least EXACT_ABOVE remains. Where w itself is smaller no λ helps.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data import Folds, Moments
from jaxrls.core.leave_out import levels_inside
from jaxrls.core.linalg import Number, eigh_rounding, matmul
from jaxrls.core.support import pytree, static

# How many times the floor of a spectrum is to stand above the rounding of K: from there on what is
# left out is right to 1 %.
ABOVE_ROUNDING = 5
# In eps: what must remain of 1 for sums of squares to be right to 5 %, measured in float32 on 20 to
# 1000 rows. By rounding alone remained 4 in rows and 17 in folds.
EXACT_ABOVE = 100


@pytree
class Report:
    """How a factor was made and how far its numbers can be trusted.

    Args:
        route: how it was made, such as `"gram"`.
        floor: the λ below which rounding dominates.
        indefinite: the most negative eigenvalue of K over the largest.
        trace_residual: tr √v(K − K̂)√v on landmarks, else None.
        jitter: jitter that was added to the diagonal of the landmarks' kernel matrix, relative to
            it, else None.
        informative: whether eigenvalues stand above the rounding of K before fixed effects were
            projected out. Else the fit is that of the fixed effects alone, at any λ, and the floor
            is the trace of that K. None where it was not asked.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factorize(rls.Precomputed(), jnp.eye(3)).report.route
    'gram'
    """

    route: str = static()
    floor: Number
    indefinite: Number
    trace_residual: Number | None = None
    jitter: Number | None = None
    informative: Bool[Array, ""] | None = None

    def with_information(self, largest: Number, least: Number, trace_before: Number) -> "Report":
        """With whether K is informative: whether its largest eigenvalue is above the `least` that
        is told from rounding. `trace_before` is tr K before fixed effects were projected out.
        """
        informative = largest > least
        floor = jnp.where(informative, self.floor, trace_before)
        return replace(self, floor=floor, informative=informative)

    def with_information_of(
        self, sums: Moments, removed: Number, largest: Number, least: Any = 0
    ) -> "Report":
        """The same of centred moments, of which so much was `removed`."""
        rounding = ABOVE_ROUNDING * eigh_rounding(len(sums.second), removed[None])
        square_before = sums.square_before
        least = jnp.maximum(jnp.maximum(least, rounding), centred_rounding(square_before) ** 2)
        return self.with_information(largest, least, square_before)

    def where_informative(self, values: Array, else_: Any = 0) -> Array:
        """The values, or 0 or others where K has no information."""
        return values if self.informative is None else jnp.where(self.informative, values, else_)


def centred_rounding(square_before: Number) -> Number:
    """How large singular values of features may be by rounding alone after they were centred, from
    the sum of their squares before.
    """
    return 2 * float(jnp.finfo(square_before.dtype).eps) * jnp.sqrt(square_before)


def roundings_of_moments(sums: Moments) -> Any:
    """How many times the rounding of their moments features need for what is left out to be right
    to 5 %: more where rows are few, and the others, without some, may interpolate.
    """
    return jnp.where(sums.count < 8 * len(sums.second), 18, 2).astype(sums.second.dtype)


# features that interpolate ------------------------------------------------------------------------


class LeftOut(NamedTuple):
    """For each row, or fold, that leaves: bounds over unit vectors a on its rows."""

    count: Any  # how many rows
    remaining: Any  # the least aᵀRa, as λ → 0
    least_w: Any  # the least aᵀUUᵀa of those of which nothing remains
    most_k: Any  # the largest aᵀK̃a


def interpolation_floor(factor: Any, folds: Folds | None) -> Number:
    """The λ from which on held-out residuals of single rows, or folds, are exact, for a factor of
    features with kept left vectors; 0 where the rows that stay determine the fit at any λ.
    """
    s = factor.s
    eps = float(jnp.finfo(factor.dtype).eps)
    kept = s > 0
    U = jnp.where(kept, factor.left_vectors(), 0)
    held = _rows(factor, U) if folds is None else _folds(factor, U, folds)
    stay = factor.residual_dimensions() - held.count
    least = EXACT_ABOVE * eps
    others_interpolate = stay < jnp.sum(kept, dtype=s.dtype)
    is_rounding = held.remaining < least
    helped_by_lam = held.least_w > least  # the others have no more at any λ
    raised = (others_interpolate | is_rounding) & helped_by_lam
    w = jnp.where(raised, held.least_w, 1)
    # Below twice `least` half of w stands for w − least, so that the floor stays bounded.
    floors = least * held.most_k / (w * jnp.maximum(w - least, w / 2))
    return jnp.max(jnp.where(raised, floors, 0))


def _rows(factor: Any, U: Float[Array, "n r"]) -> LeftOut:
    h = factor.fixed.leverage(factor.fixed.values, factor.weights.array)
    w = jnp.sum(U * U, axis=1)
    k = matmul(U * U, factor.s)
    return LeftOut(1, 1 - h - w, jnp.where(factor.weights.used, w, 0), k)


def _folds(factor: Any, U: Float[Array, "n r"], folds: Folds) -> LeftOut:
    used = factor.weights.used
    H = factor.H
    root = jnp.sqrt(factor.s)

    def of_fold(fold: tuple[Int[Array, " b"], Float[Array, " b"]]) -> LeftOut:
        rows, mask = fold
        mask = jnp.where(used[rows], mask, 0).astype(U.dtype)[:, None]
        inside = U[rows] * mask
        level = H[rows] * mask
        level = level * (1 - levels_inside(level))  # those inside leave with the fold
        remaining = _smallest(jnp.concatenate([inside, level], axis=1))
        least_w = _smallest(level)  # where nothing remains, aᵀUUᵀa = 1 − aᵀHHᵀa
        most_k = jnp.linalg.norm(_squares(inside * root))
        return LeftOut(jnp.sum(mask), remaining, least_w, most_k)

    return jax.lax.map(of_fold, (folds.inside, folds.inside_mask))


def _squares(A: Float[Array, "a b"]) -> Float[Array, "_ _"]:
    """AAᵀ or AᵀA, the smaller."""
    return matmul(A, A.T) if A.shape[0] <= A.shape[1] else matmul(A.T, A)


def _smallest(A: Float[Array, "b r"]) -> Number:
    """The smallest eigenvalue of I − AAᵀ."""
    return 1 - jnp.linalg.eigvalsh(_squares(A))[-1] if A.shape[1] else jnp.ones((), A.dtype)
