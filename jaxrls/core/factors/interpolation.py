"""The λ from which on held-out residuals of explicit features are exact where the rows that stay
hardly determine a fit: as λ → 0 it interpolates them, 1 − leverage goes to 0, and R, the difference
I − HHᵀ − U diag(s/(s + λ)) Uᵀ, is the rounding of 1.

For a unit vector a over rows that leave together, let w = aᵀUUᵀa and k = aᵀK̃a. As λ/(s + λ) is
convex in s, aᵀRa ≥ wλ/(λ + k/w). So from λ = LEAST·k/(w (w − LEAST)) on, at least LEAST remains.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.leave_out import levels_inside
from jaxrls.core.linalg import matmul
from jaxrls.core.problem import Folds

# In eps: what must remain of 1 for sums of squares to be right to 5 %, measured in float32 on 20 to
# 1000 rows; and what remains only by rounding, of which 4 were seen in rows and 17 in folds.
LEAST, NOTHING = 100, 25


def interpolation_floor(factor: Any, folds: Folds | None) -> Float[Array, ""]:
    """That λ for single rows, or folds, that leave a factor of features with kept left vectors; 0
    where those that stay determine the fit at any λ.
    """
    s = factor.s
    kept = s > factor.report.floor
    U = jnp.where(kept, factor.left_vectors(), 0)
    leave, remains, w, k = _rows(factor, U) if folds is None else _folds(factor, U, folds)
    least, nothing = (share * float(jnp.finfo(s.dtype).eps) for share in (LEAST, NOTHING))
    stay = factor.residual_dimensions() - leave
    hidden = (stay <= jnp.sum(kept, dtype=s.dtype)) | (remains < nothing)
    hidden, w = hidden & (w > 0), jnp.where(w > 0, w, 1)
    return jnp.max(jnp.where(hidden, least * k / (w * jnp.maximum(w - least, w / 2)), 0))


def _rows(factor, U):
    """Of each row: how many leave, what remains at λ → 0, w and k."""
    h = factor.fixed.leverage(factor.fixed.rows, factor.weights.array)
    w, k = jnp.sum(U * U, axis=1), matmul(U * U, factor.s)
    return 1, 1 - h - w, jnp.where(factor.weights.used, w, 0), k


def _folds(factor, U, folds: Folds):
    """The same of each fold, at worst over its rows."""
    fixed, weights = factor.fixed, factor.weights
    H, root = weights.scale(fixed.basis(fixed.rows, factor.n)), jnp.sqrt(factor.s)

    def of_fold(fold):
        rows, mask = fold[0], jnp.where(weights.used[fold[0]], fold[1], 0).astype(U.dtype)
        inside, level = U[rows] * mask[:, None], H[rows] * mask[:, None]
        level = level * (1 - levels_inside(level))  # those inside leave with the fold
        both = jnp.concatenate([inside, level], axis=1)
        w, k = _remains(level), jnp.linalg.norm(_squares(inside * root))
        return jnp.sum(mask), _remains(both), w, k

    return jax.lax.map(of_fold, (folds.inside, folds.inside_mask))


def _squares(A):
    """AAᵀ or AᵀA, the smaller."""
    return matmul(A, A.T) if A.shape[0] <= A.shape[1] else matmul(A.T, A)


def _remains(A) -> Float[Array, ""]:
    """The smallest eigenvalue of I − AAᵀ."""
    return 1 - jnp.linalg.eigvalsh(_squares(A))[-1] if A.shape[1] else jnp.ones((), A.dtype)
