"""Leave-fold-out: x = R_SS⁻¹ r_S over all rows S of a fold, after its landmarks were eliminated."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.leave_out.view import LowRank, View, orthonormal, slots_of
from jaxrls.linalg.products import matmul
from jaxrls.problem.folds import folds_together, over_folds
from jaxrls.problem.weights import Weights
from jaxrls.rows.rows import Rows

# Rows of folds that are gathered at once where they lie on several devices.
ROWS_AT_ONCE = 8192


def fold_residuals(
    view: View, weights: Weights, rows: Int[Array, "k b"], mask: Float[Array, "k b"]
) -> Float[Array, "k b t"]:
    """Held-out residuals of every fold at one λ: y − f of the fit without it.

    Cost: O(b² r + b³) for a fold of b rows.
    """
    t, r = view.residuals.shape[1], view.width
    most = folds_together(rows.shape[1], r, t)
    return over_folds(lambda rows, mask: _fold(view, weights, rows, mask), rows, mask, most)


def folds_in_chunks(
    source: Rows,
    view: LowRank,
    weights: Weights,
    rows: Int[Array, "k b"],
    mask: Float[Array, "k b"],
) -> Float[Array, "k b t"]:
    """`fold_residuals` of rows on several devices: the rows of a few folds at a time are copied to
    each device.
    """
    (k, b), n = rows.shape, weights.n
    together = max(1, min(k, min(ROWS_AT_ONCE, n // source.parts) // b))
    fill = lambda a: jnp.pad(a, ((0, -k % together), (0, 0))).reshape(-1, together, b)

    def chunk(args):
        rows, mask = args
        flat = rows.reshape(-1)
        pick = lambda tree: source.pick(tree, flat)
        own = weights.block(pick(weights.array), len(flat))
        local = jnp.arange(len(flat)).reshape(rows.shape)
        return fold_residuals(view.some(pick), own, local, mask)

    e = jax.lax.map(jax.checkpoint(chunk), (fill(rows), fill(mask)))
    return e.reshape(-1, *e.shape[2:])[:k]


def _fold(view: View, weights: Weights, rows, mask):
    """Held-out residuals of one fold."""
    used = jnp.where(weights.used[rows], mask, 0)
    R, r = view.entries(rows, rows), view.residuals[rows]
    inside = view.H[rows] * used[:, None]
    H = view.H[rows] * levels_inside(inside)
    R = R + matmul(H, H.T)
    if view.constraints is not None:
        out = view.constraints
        slot, has = slots_of(out.slots[rows], len(out.planes), mask)
        Q = orthonormal(out.planes[slot], has)
        along = matmul(out.rows[rows], Q.T)
        R, r = R + matmul(along, along.T), r + matmul(along, matmul(Q, out.labels))
    block = R * used[:, None] * used[None, :] + jnp.diag(1 - used)
    root = jnp.linalg.cholesky(block)
    x = jax.scipy.linalg.cho_solve((root, True), r * used[:, None])
    root_v = jnp.where(used > 0, weights.root[rows], 1)[:, None]
    return jnp.where(used[:, None] > 0, x / root_v, r - matmul(R * used, x))


def levels_inside(H: Float[Array, "b q"]) -> Float[Array, " q"]:
    """1 for fixed effects whose column of H is 0 outside these rows, else 0.

    They are left out with these rows: held-out residuals are known only up to such effects.
    """
    eps = 4 * float(jnp.finfo(H.dtype).eps) * H.shape[0]
    return jax.lax.stop_gradient((jnp.sum(H * H, axis=0) > 1 - eps).astype(H.dtype))
