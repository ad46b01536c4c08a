"""Held-out residuals of any rows, from the residual operator R = I − H: with a set S of rows left
out and x = R_SS⁻¹ r_S, they are x/√v, and the residuals of queries are r_z − R_zS x.

R = D − MMᵀ, where each index has a row of M. A row of the data has M_i = √v [A⁻¹φᵢ, T⁻ᵀbᵢ], D = 1
and r = √v (y − f); a query, or a row of weight 0, has M_z = [A⁻¹φ_z, T⁻ᵀb_z], D = 0 and r = y − f.
Here φ are features, AAᵀ = ΦᵀVΦ + λI, and b fixed effects with √vB = HT.

A landmark k that is held out with its row is the constraint βₖ = 0: one more index, with M_k =
[−A⁻¹L⁻¹eₖ, 0] and D = 0. Eliminating it first projects its direction out of every M.

Theory: `docs/theory.md`, "One matrix".
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.linalg import matmul
from jaxrls.core.problem import Weights
from jaxrls.core.support import platform, pytree, static

# Numbers of whole folds that are handled together; and rows of folds that are gathered at once
# where they lie on several devices.
NUMBERS_AT_ONCE, ROWS_AT_ONCE = 2**17, 8192
# On CPUs a batch of LAPACK calls with more operations is handed to the pool of threads, by one of
# those threads, which waits for it: as many batches as there are cores wait for each other for
# ever. Smaller ones, and single calls, run where they are. For a fold of b rows jaxlib counts at
# most b² max(b, t).
OPERATIONS_IN_PLACE = 199_999


@pytree
class Constraints:
    """Landmarks that leave with their row, in the coordinates of the first part of M."""

    slots: Int[Array, " n"]  # of each row its landmark, m where it is none
    planes: Float[Array, "m r"]  # A⁻¹L⁻¹eₖ, of any length
    rows: Float[Array, "n r"]  # A⁻¹φ of all rows, times √v but for queries
    labels: Float[Array, "r t"]  # Mᵀỹ


@pytree
class View(ABC):
    """R and r at one λ for all targets."""

    residuals: Float[Array, "n t"]  # r
    diagonal: Float[Array, " n"]  # of R, as it is without cancellation; 1 for queries
    H: Float[Array, "n q"]  # the fixed effects' part of M
    constraints = None  # a field where landmarks leave
    width: ClassVar[Any] = 1  # how many numbers of a row one entry is computed from

    @abstractmethod
    def entries(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Float[Array, "a b"]:
        """R_ij for indices i and rows j of the data."""


@pytree
class LowRank(View):
    """R from left vectors U: I − HHᵀ − U diag(kept) Uᵀ, or U diag(D) Uᵀ where U is square."""

    U: Float[Array, "n r"]
    left: Float[Array, "n r"]  # −U kept, or where U is square U D, and for queries −U kept too
    used: Bool[Array, " n"]  # rows of the data
    constraints: Constraints | None = None  # type: ignore[assignment]
    complete: bool = static(default=False)  # whether U is square

    @classmethod
    def of_rows(cls, u, q, labels, weights, fixed) -> "LowRank":
        """I − HHᵀ − UUᵀ with U = √v u of features u (n, r) at one λ, q = Mᵀỹ."""
        unit = weights.root_or_one[:, None]
        U, H = u * unit, fixed.basis(fixed.rows, weights.n) * unit
        residuals = (labels.Y - labels.mean) * unit - matmul(U, q)
        diagonal = 1 - jnp.sum(U * U, axis=1) - jnp.sum(H * H, axis=1)
        diagonal = jnp.where(weights.used, diagonal, 1)
        return cls(residuals, diagonal, H, U, -U, weights.used)

    @property
    def width(self) -> int:
        """r."""
        return self.U.shape[1]

    def entries(self, i, j):
        """By one product. Where U is square it includes I and HHᵀ, except HHᵀ of queries."""
        R, HH = matmul(self.left[i], self.U[j].T), matmul(self.H[i], self.H[j].T)
        used = self.used[i][:, None]
        if self.complete:
            return R - jnp.where(used, 0, HH)
        return R - HH + (used & (i[:, None] == j)).astype(R.dtype)

    def some(self, rows: Int[Array, " b"]) -> "LowRank":
        """The view of some of the rows."""
        names = "residuals", "diagonal", "H", "U", "left", "used"
        part: dict = {name: getattr(self, name)[rows] for name in names}
        if (out := self.constraints) is not None:
            part["constraints"] = replace(out, slots=out.slots[rows], rows=out.rows[rows])
        return replace(self, **part)


@pytree
class Dense(View):
    """R as a full matrix, rows of queries included."""

    matrix: Float[Array, "n n"]

    def entries(self, i, j):
        """Its entries."""
        return self.matrix[i[:, None], j[None, :]]


# landmarks that leave with their rows: directions that are projected out --------------------------


def slots(indices: Int[Array, " m"], n: int) -> Int[Array, " n"]:
    """For each of n rows the number of its landmark; m for a row that is none."""
    m = indices.shape[0]
    return jnp.full(n, m).at[indices].set(jnp.arange(m))


def orthonormal(W: Float[Array, "b r"]) -> Float[Array, "b r"]:
    """Orthonormal rows with the same span as the rows of W; rows of 0 stay 0.

    By two Cholesky factors: products of nearly equal rows lose their difference, which L⁻¹W of the
    first factor recovers. Derivatives take the first factor as constant, as only the span matters.
    Source: Yamamoto, Nakatsukasa, Yanagisawa and Fukaya 2015 (CholeskyQR2).
    """
    squares, eye = jnp.sum(W * W, axis=1), jnp.eye(len(W), dtype=W.dtype)
    jitter = len(W) * float(jnp.finfo(W.dtype).eps)  # W Wᵀ may be singular to rounding

    def whitened(W, known):
        gram = matmul(W, W.T) * (1 + jitter * eye) + jnp.diag(jnp.where(squares > 0, 0, 1))
        return jax.scipy.linalg.solve_triangular(known(jnp.linalg.cholesky(gram)), W, lower=True)

    constant = jax.lax.stop_gradient
    W = W * constant(jnp.where(squares > 0, jax.lax.rsqrt(squares), 0))[:, None]
    return whitened(whitened(W, constant), lambda root: root)


# folds --------------------------------------------------------------------------------------------


def fold_residuals(
    view: View, weights: Weights, rows: Int[Array, "k b"], mask: Float[Array, "k b"]
) -> Float[Array, "k b t"]:
    """Held-out residuals of every fold at one λ: y − f of the fit without it, x = R_SS⁻¹ r_S over
    all rows S of the fold, after its landmarks were eliminated.

    Cost: O(b² r + b³) for a fold of b rows.
    """
    (k, b), t = rows.shape, view.residuals.shape[1]
    together = NUMBERS_AT_ONCE // (b * max(view.width, 1))
    if platform() == "cpu":
        together = min(together, OPERATIONS_IN_PLACE // (b * b * max(b, t)))
    fold = lambda args: _fold(view, weights, *args)
    if together >= k:
        return jax.vmap(fold)((rows, mask))
    return jax.lax.map(fold, (rows, mask), batch_size=max(1, together))


def folds_in_chunks(parts: int, view: LowRank, weights: Weights, rows, mask):
    """`fold_residuals` of rows on several devices: the rows of a few folds at a time are copied to
    each device.
    """
    k, b = rows.shape
    together = max(1, min(k, min(ROWS_AT_ONCE, weights.n // parts) // b))
    fill = lambda a: jnp.pad(a, ((0, -k % together), (0, 0))).reshape(-1, together, b)

    def chunk(args):
        rows, mask = args
        flat = rows.ravel()
        copied = view.some(flat), weights.block(weights.some(flat), len(flat))
        return fold_residuals(*copied, jnp.arange(len(flat)).reshape(rows.shape), mask)

    e = jax.lax.map(jax.checkpoint(chunk), (fill(rows), fill(mask)))
    return e.reshape(-1, *e.shape[2:])[:k]


def _fold(view: View, weights: Weights, rows, mask):
    """Held-out residuals of one fold."""
    used = jnp.where(weights.used[rows], mask, 0)
    R, r, H = view.entries(rows, rows), view.residuals[rows], view.H[rows]
    H = H * levels_inside(H * used[:, None])  # left out with these rows
    R = R + matmul(H, H.T)
    if view.constraints is not None:
        out = view.constraints
        W = out.planes.at[out.slots[rows]].get(mode="fill", fill_value=0)
        Q = orthonormal(W * mask[:, None])
        along = matmul(out.rows[rows], Q.T)
        R, r = R + matmul(along, along.T), r + matmul(along, matmul(Q, out.labels))
    root = jnp.linalg.cholesky(R * used[:, None] * used + jnp.diag(1 - used))
    x = jax.scipy.linalg.cho_solve((root, True), r * used[:, None])
    root_v = jnp.where(used > 0, weights.root[rows], 1)[:, None]
    return jnp.where(used[:, None] > 0, x / root_v, r - matmul(R * used, x))


def levels_inside(H):
    """1 for fixed effects whose column of H is 0 outside these rows, else 0.

    They are left out with these rows: held-out residuals are known only up to such effects.
    """
    eps = 4 * float(jnp.finfo(H.dtype).eps) * H.shape[0]
    return jax.lax.stop_gradient((jnp.sum(H * H, axis=0) > 1 - eps).astype(H.dtype))
