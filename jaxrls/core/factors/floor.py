"""The floor of a factor: the λ below which rounding dominates held-out residuals.

A `Report` holds the floor. It also says whether K has any information above rounding.

At the floor, sums over rows begin to be right. Single rows need a larger λ. Where most eigenvalues
of K are below λ, the factor's error E moves held-out residuals by RER/λ. At the floor, this is as
much as their root mean square, and it falls as 1/λ above. `benchmarks/floors.py` measured this on a
hundred data sets. Leave-one-out errors of 9 in 10 were right to 4 to 10 % at the floor, and to 1 %
from 30 times the floor on. Single rows were right to 1 % from 100 times on. `front/rounding.py`
estimates this error for a fit.

The first reason for a floor is the rounding of what is factored. ρ is √n·eps times its largest
eigenvalue, or times what an entry of K lost by centring, in units of eigenvalues, if that is
larger. n counts rows, or features where ΦᵀΦ is factored. ρ is larger if a GPU computes eigenvalues.
c = 2·eps·√Σv|φ|² is the rounding of singular values by centring. A direction is absent, without
coefficients, if its eigenvalue is below the third column. K has information if its largest
eigenvalue is above the last column:

| factor                     | floor                       | absent below | informative above |
|----------------------------|-----------------------------|--------------|-------------------|
| spectrum of K              | ρ                           | –            | 5ρ                |
| … if K is of features      | ρ                           | ρ            | 5ρ                |
| … if K may be indefinite   | ρ                           | −ρ           | 5ρ                |
| SVD of Φ, with ρ of σ      | max(20ρ, 5c)²               | max(2ρ, c)²  | c²                |
| spectrum of ΦᵀΦ            | 2ρ, or 18ρ for few rows     | max(ρ, c²)   | max(5ρ′, c²)      |
| Cholesky factors of ΦᵀΦ    | 2ρ, or 18ρ for few rows     | –            | max(5ρ′, c²)      |
| Cholesky factors of K      | 6ρ                          | –            | 30ρ               |

ρ′ is the rounding of what centring removed alone. If the spectrum of ΦΦᵀ replaces that of ΦᵀΦ, its
floor is at least ρ with the number of features in place of rows. Cholesky factors do not know the
largest eigenvalue. ‖ΦᵀΦ‖ stands for it, and for K the largest vᵢKᵢᵢ in ρ, and the trace in the last
column. With weights ρ takes at most three times the largest vᵢKᵢᵢ of a row that makes lighter rows
less exact (`_largest_that_costs` in `cholesky.py`). On landmarks the features are rounded too, so
that their factors have floors of their own.

Features have a second reason for a floor: the rows that stay may hardly determine a fit. As λ → 0
the fit interpolates these rows, and 1 − leverage goes to 0. Then R = I − HHᵀ − U diag(s/(s + λ)) Uᵀ
is a difference that leaves the rounding of 1. So aᵀRa must be at least ε = EXACT_ABOVE·eps for a
unit vector a over rows that are held out together. The floor follows in steps:

    aᵀRa ≥ Σⱼ (Uᵀa)ⱼ² λ/(sⱼ + λ), as I − HHᵀ − UUᵀ is positive semidefinite.
    The weights (Uᵀa)ⱼ² sum to w = aᵀUUᵀa. Their mean of s is k/w with k = aᵀK̃a.
    λ/(s + λ) is convex in s, so by Jensen's inequality the sum is at least wλ/(λ + k/w).
    So aᵀRa ≥ ε if λ ≥ ε·k/(w (w − ε)).

If w itself is smaller than ε, no λ helps.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data import CentredMoments, Folds
from jaxrls.core.leave_out import levels_inside, members_of
from jaxrls.core.linalg import Number, eigh_rounding, matmul
from jaxrls.core.support import pytree, static

# K is informative if its largest eigenvalue is above this multiple of its rounding. For a λ below
# this multiple of the floor, `front/run.py` tries Cholesky factors, which are rounded less.
ABOVE_ROUNDING = 5
# A floor of at least this many times the rounding of σ, squared. σ is then off by at most 5 % of √λ.
SVD_ROUNDINGS = 20
# The same for the rounding of σ by centring, which is itself a bound.
CENTRING_ROUNDINGS = 5
# The floor of Cholesky factors of K, in roundings of the largest entry of its diagonal.
CHOLESKY_ROUNDINGS = 6
# How many eps of 1 − leverage must remain for sums of squared residuals to be right to 5 %. It was
# measured in float32 on 20 to 1000 rows. Rounding alone left 4 eps for rows and 17 eps for folds.
EXACT_ABOVE = 100


@pytree
class Report:
    """How a factor was made and how far its numbers can be trusted.

    Args:
        route: how it was made, for example `"gram"`.
        floor: the λ below which rounding dominates.
        indefinite: how far the most negative eigenvalue of K is below 0, relative to the largest;
            None if K may have some, and none are computed.
        trace_residual: tr √v (K − K̂) √v on landmarks, else None.
        jitter: what was added to the diagonal of the landmarks' kernel matrix, relative to it; None
            without jitter.
        informative: whether anything of K is above rounding after the fixed effects are projected
            out. The rounding is that of K before. If not, the fit is that of the fixed effects
            alone, at any λ, and the floor is tr K before. None if it was not checked.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factorize(rls.Precomputed(), jnp.eye(3)).report.route
    'gram'
    """

    route: str = static()
    floor: Number
    indefinite: Number | None
    trace_residual: Number | None = None
    jitter: Number | None = None
    informative: Bool[Array, ""] | None = None

    def with_information(self, largest: Number, least: Number, trace_before: Number) -> "Report":
        """Return the report with `informative`: whether `largest` is above `least`.

        `largest` is the size of what is left of K, such as its largest eigenvalue or its trace. A
        size below `least` cannot be distinguished from rounding. `trace_before` is tr K before
        fixed effects were projected out. It becomes the floor if K has no information.
        """
        informative = largest > least
        floor = jnp.where(informative, self.floor, trace_before)
        return replace(self, floor=floor, informative=informative)

    def with_information_from_moments(
        self, sums: CentredMoments, largest: Number, least: Any = 0
    ) -> "Report":
        """Return the report with `informative`, from centred moments."""
        of_removed = ABOVE_ROUNDING * eigh_rounding(len(sums.second), sums.removed)
        square_before = sums.square_before
        least = jnp.maximum(jnp.maximum(least, of_removed), centred_rounding(square_before) ** 2)
        return self.with_information(largest, least, square_before)

    def where_informative(self, values: Array, else_: Any = 0) -> Array:
        """Return `values`, or `else_` if K has no information."""
        return values if self.informative is None else jnp.where(self.informative, values, else_)


def centred_rounding(square_before: Number) -> Number:
    """Return how large singular values of centred features may be by rounding alone.

    `square_before` is the sum of their squares before the features were centred.
    """
    return 2 * float(jnp.finfo(square_before.dtype).eps) * jnp.sqrt(square_before)


def roundings_of_moments(sums: CentredMoments) -> Any:
    """Return how many roundings of the moments of features the floor must be above.

    From there on, held-out residuals are right to 5 %. Few rows need more: without some of them,
    the others may interpolate.
    """
    return jnp.where(sums.count < 8 * len(sums.second), 18, 2).astype(sums.second.dtype)


# features that interpolate ------------------------------------------------------------------------


class LeftOut(NamedTuple):
    """For each row, or fold, that is held out: bounds over unit vectors a on its rows.

    `inside` and `variance` are w and k of the derivation at the top of this module.
    """

    count: Any  # the number of rows
    remaining: Any  # the least aᵀRa as λ → 0
    inside: Any  # the least aᵀUUᵀa over vectors a for which aᵀRa → 0
    variance: Any  # the largest aᵀK̃a


def interpolation_floor(factor: Any, folds: Folds | None) -> Number:
    """Return the λ from which on single rows, or folds, are held out exactly.

    `factor` is one of features that keeps its left vectors. The result is 0 if the rows that stay
    determine the fit at any λ.
    """
    s = factor.s
    eps = float(jnp.finfo(factor.dtype).eps)
    kept = s > 0
    U = jnp.where(kept, factor.U, 0)
    held = _bounds_of_rows(factor, U) if folds is None else _bounds_of_folds(factor, U, folds)
    stay = factor.residual_dimensions() - held.count
    least_exact = EXACT_ABOVE * eps  # ε
    others_interpolate = stay < jnp.sum(kept, dtype=s.dtype)
    is_rounding = held.remaining < least_exact
    helped_by_lam = held.inside > least_exact  # otherwise no λ lets more than rounding remain
    raised = (others_interpolate | is_rounding) & helped_by_lam
    inside = jnp.where(raised, held.inside, 1)
    # If w is below 2ε, w/2 replaces w − ε, so that the floor stays bounded.
    above_exact = jnp.maximum(inside - least_exact, inside / 2)
    floors = least_exact * held.variance / (inside * above_exact)
    return jnp.max(jnp.where(raised, floors, 0))


def _bounds_of_rows(factor: Any, U: Float[Array, "n r"]) -> LeftOut:
    """Return the bounds for single rows."""
    by_effects = factor.fixed.leverage(factor.fixed.values, factor.weights.array)
    inside = jnp.sum(U * U, axis=1)
    variance = matmul(U * U, factor.s)
    remaining = 1 - by_effects - inside
    return LeftOut(1, remaining, jnp.where(factor.weights.used, inside, 0), variance)


def _bounds_of_folds(factor: Any, U: Float[Array, "n r"], folds: Folds) -> LeftOut:
    """Return the bounds for folds."""
    used = factor.weights.used
    H = factor.H
    members = members_of(H)
    root = jnp.sqrt(factor.s)

    def of_fold(fold: tuple[Int[Array, " b"], Float[Array, " b"]]) -> LeftOut:
        rows, mask = fold
        mask = jnp.where(used[rows], mask, 0).astype(U.dtype)[:, None]
        left = U[rows] * mask
        level = H[rows] * mask
        is_inside = levels_inside(level, members)  # levels that are held out with the fold
        level = level * (1 - is_inside)
        remaining = _smallest(jnp.concatenate([left, level], axis=1))
        inside = _smallest(level)  # where nothing remains, aᵀUUᵀa = 1 − aᵀHHᵀa
        variance = jnp.linalg.norm(_squares(left * root))
        return LeftOut(jnp.sum(mask), remaining, inside, variance)

    return jax.lax.map(of_fold, (folds.left_out, folds.left_out_mask))


def _squares(A: Float[Array, "a b"]) -> Float[Array, "_ _"]:
    """Return AAᵀ or AᵀA, whichever is smaller."""
    return matmul(A, A.T) if A.shape[0] <= A.shape[1] else matmul(A.T, A)


def _smallest(A: Float[Array, "b r"]) -> Number:
    """Return the smallest eigenvalue of I − AAᵀ."""
    return 1 - jnp.linalg.eigvalsh(_squares(A))[-1] if A.shape[1] else jnp.ones((), A.dtype)
