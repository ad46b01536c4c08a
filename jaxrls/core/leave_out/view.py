"""Held-out residuals of any rows, from the residual operator R, which is I minus the hat matrix.

With a set S of rows left out and x = R_SS⁻¹ r_S, the held-out residuals of these rows are x/√v. The
residuals of queries z are r_z − R_zS x. `fold_residuals` computes both. A factor supplies R and r
as a `View`.

The hat matrix of the fitted rows is MMᵀ, where M has r + q columns, so R = D − MMᵀ with D = I.
Each row i has

    M_i = √vᵢ [A⁻¹φᵢ, T⁻ᵀbᵢ]   Dᵢ = 1   rᵢ = √vᵢ (yᵢ − f(xᵢ))

Here φ are the r features of a row minus their fit by the fixed effects, and AAᵀ = ΦᵀVΦ + λI. The q
fixed effects are b, with √v B = H T.

A query z, which is a row of weight 0, is one more index. It takes no part in the fit:

    M_z = [A⁻¹φ_z, T⁻ᵀb_z]     D_z = 0   r_z = y − f(z)

A landmark k that is held out with its row is the constraint βₖ = 0. It is one more index, with D =
0 and M_k = [−A⁻¹L⁻¹eₖ, 0]. Eliminating this index first means to project its direction out of every
row of M.

Theory: `docs/theory.md`, "One matrix".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data import FixedEffects, Folds, Labels, Weights
from jaxrls.core.linalg import matmul
from jaxrls.core.support import platform, pytree

# How many numbers the folds that are handled together may hold.
NUMBERS_AT_ONCE = 2**17
# How many rows of folds are gathered at once, if rows are on several devices.
ROWS_AT_ONCE = 8192
# How many operations a batch of LAPACK calls may have on CPUs. A larger batch is handed to the pool
# of threads by one of its threads, which then waits. As many batches as there are cores would wait
# for each other forever. A smaller batch, or a single call, runs in the thread that makes it. For
# a fold of b rows jaxlib counts at most b² max(b, t) operations.
OPERATIONS_IN_PLACE = 199_999


@pytree
class Constraints:
    """Landmarks that are held out with their row, in the coordinates of the first part of M."""

    landmark_of_row: Int[Array, " n"]  # the number of each row's landmark; m for a row without one
    planes: Float[Array, "m r"]  # A⁻¹L⁻¹eₖ, of any length
    coordinates: Float[Array, "n r"]  # A⁻¹φ of all rows, times √v except for queries
    label_coordinates: Float[Array, "r t"]  # Mᵀỹ


@pytree
class View(ABC):
    """The residual operator R and the residuals r at one λ, for all targets."""

    residuals: Float[Array, "n t"]  # r
    diagonal: Float[Array, " n"]  # of R; for queries 1, which has no meaning
    H: Float[Array, "n q"]  # the fixed effects' part of M
    constraints = None  # a field in views whose landmarks are held out with their row
    width: ClassVar[Any] = 1  # how many numbers of each row an entry is computed from

    @abstractmethod
    def entries(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Float[Array, "a b"]:
        """Return R_ij for indices i and j. Entries have no meaning where j is a query."""

    def take(self, rows: Int[Array, " b"]) -> "View":
        """Return the view of some of the rows, which folds of rows on several devices need."""
        raise ValueError(f"a {type(self).__name__} is of all rows: give X on one device")


@pytree
class LowRankView(View):
    """A view that computes R = D − MMᵀ from left vectors U.

    R_ij = row_U_i·U_j − row_H_i·H_j, plus 1 for i = j if row i `adds_identity`.

    | row i                    | `row_U`       | `row_H` | `adds_identity` | made by         |
    |--------------------------|---------------|---------|-----------------|-----------------|
    | of X, U thin             | −U s/(s + λ)  | H       | yes             | `from_thin`     |
    | of X, U square           | U λ/(s + λ)   | 0       | no              | `from_square`   |
    | a query, of weight 0     | −`map_at_lam` | H       | no              | `with_queries`  |
    | of X, U = √v u at one λ  | −U            | H       | yes             | `from_features` |
    | a query, U = u at one λ  | −U            | H       | no              | `from_features` |

    The rows of M are U √(s/(s + λ)) and H, or U and H if U is that of features u at one λ. If U is
    square, UUᵀ = I − HHᵀ, and D − MMᵀ is U diag(λ/(s + λ)) Uᵀ, which is not a difference.
    """

    U: Float[Array, "n r"]
    row_U: Float[Array, "n r"]
    row_H: Float[Array, "n q"]
    adds_identity: Bool[Array, " n"]
    constraints: Constraints | None = None  # type: ignore[assignment]

    @classmethod
    def from_square(
        cls,
        U: Float[Array, "n r"],
        H: Float[Array, "n q"],
        residual_share: Float[Array, " r"],
        residuals: Float[Array, "n t"],
        diagonal: Float[Array, " n"],
    ) -> "LowRankView":
        """Return R = U diag(residual_share) Uᵀ with UUᵀ = I − HHᵀ, without queries.

        `residual_share` is λ/(s + λ).
        """
        return cls(
            residuals=residuals,
            diagonal=diagonal,
            H=H,
            U=U,
            row_U=U * residual_share,
            row_H=jnp.zeros_like(H),
            adds_identity=jnp.zeros(len(U), bool),
        )

    @classmethod
    def from_thin(
        cls,
        U: Float[Array, "n r"],
        H: Float[Array, "n q"],
        fitted_share: Float[Array, " r"],
        residuals: Float[Array, "n t"],
        diagonal: Float[Array, " n"],
    ) -> "LowRankView":
        """Return R = I − HHᵀ − U diag(fitted_share) Uᵀ, without queries.

        `fitted_share` is s/(s + λ).
        """
        return cls(
            residuals=residuals,
            diagonal=diagonal,
            H=H,
            U=U,
            row_U=-U * fitted_share,
            row_H=H,
            adds_identity=jnp.ones(len(U), bool),
        )

    @classmethod
    def from_features(
        cls,
        u: Float[Array, "n r"],
        label_coordinates: Float[Array, "r t"],
        labels: Labels,
        weights: Weights,
        fixed: FixedEffects,
    ) -> "LowRankView":
        """Return R = I − HHᵀ − UUᵀ with U = √v u from features u at one λ, also for queries.

        `label_coordinates` is Uᵀỹ.
        """
        unit = weights.root_or_one[:, None]
        U = u * unit
        H = fixed.basis(fixed.values, weights.n) * unit
        diagonal = 1 - jnp.sum(U * U, axis=1) - jnp.sum(H * H, axis=1)
        return cls(
            residuals=(labels.Y - labels.by_effects) * unit - matmul(U, label_coordinates),
            diagonal=jnp.where(weights.used, diagonal, 1),
            H=H,
            U=U,
            row_U=-U,
            row_H=H,
            adds_identity=weights.used,
        )

    def with_queries(
        self,
        used: Bool[Array, " n"],
        residuals: Float[Array, "n t"],
        map_at_lam: Float[Array, "n r"],
    ) -> "LowRankView":
        """Return the view with queries in place of the rows that are not `used`.

        A query z has the prediction f(z) = mean + (map_at_lam Uᵀỹ)_z and the residual y − f(z).
        Hence R_zS = −(map_at_lam Uᵀ + HHᵀ)_zS.
        """
        column = used[:, None]
        return replace(
            self,
            residuals=jnp.where(column, self.residuals, residuals),
            diagonal=jnp.where(used, self.diagonal, 1),
            row_U=jnp.where(column, self.row_U, -map_at_lam),
            row_H=jnp.where(column, self.row_H, self.H),
            adds_identity=self.adds_identity & used,
        )

    @property
    def width(self) -> int:
        """The number r of columns of U."""
        return self.U.shape[1]

    def entries(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Float[Array, "a b"]:
        """Return R_ij by two products."""
        R = matmul(self.row_U[i], self.U[j].T) - matmul(self.row_H[i], self.H[j].T)
        identity = self.adds_identity[i][:, None] & (i[:, None] == j)
        return R + identity.astype(R.dtype)

    def take(self, rows: Int[Array, " b"]) -> "LowRankView":
        """Return the view of some of the rows."""
        known = self.constraints
        part = jax.tree.map(lambda a: a[rows], replace(self, constraints=None))
        if known is None:
            return part
        of_rows = replace(
            known,
            landmark_of_row=known.landmark_of_row[rows],
            coordinates=known.coordinates[rows],
        )
        return replace(part, constraints=of_rows)


@pytree
class DenseView(View):
    """A view that holds R as a full matrix, the rows of queries included."""

    matrix: Float[Array, "n n"]

    def entries(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Float[Array, "a b"]:
        """Return entries of the matrix."""
        return self.matrix[i[:, None], j[None, :]]


# landmarks that are held out with their rows: directions that are projected out ------------------


def landmark_of_row(indices: Int[Array, " m"], n: int) -> Int[Array, " n"]:
    """Return the number of each row's landmark, m for a row that is none."""
    m = indices.shape[0]
    return jnp.full(n, m).at[indices].set(jnp.arange(m))


def orthonormal(W: Float[Array, "b r"]) -> Float[Array, "b r"]:
    """Return orthonormal rows with the same span as the rows of W. Rows of 0 stay 0.

    It takes two Cholesky factors. Products of nearly equal rows lose their difference, and L⁻¹W of
    the first factor recovers it. Derivatives take the first factor as constant, because only the
    span matters.

    Source: Yamamoto, Nakatsukasa, Yanagisawa and Fukaya 2015 (CholeskyQR2).
    """
    squares = jnp.sum(W * W, axis=1)
    eye = jnp.eye(len(W), dtype=W.dtype)
    jitter = len(W) * float(jnp.finfo(W.dtype).eps)  # W Wᵀ may be singular to rounding

    def whitened(W: Float[Array, "b r"], known: Callable) -> Float[Array, "b r"]:
        gram = matmul(W, W.T) * (1 + jitter * eye) + jnp.diag(jnp.where(squares > 0, 0, 1))
        return jax.scipy.linalg.solve_triangular(known(jnp.linalg.cholesky(gram)), W, lower=True)

    constant = jax.lax.stop_gradient
    W = W * constant(jnp.where(squares > 0, jax.lax.rsqrt(squares), 0))[:, None]
    return whitened(whitened(W, constant), lambda root: root)


# folds --------------------------------------------------------------------------------------------


def fold_residuals(
    view: View, weights: Weights, folds: Folds, shards: int = 1
) -> Float[Array, "k b t"]:
    """Return the held-out residuals of every fold at one λ.

    They are y − f of the fit without the fold, from x = R_SS⁻¹ r_S over all rows S of the fold.
    Landmarks of the fold are eliminated first. If the rows are stored in several `shards`, on as
    many devices, the rows of a few folds at a time are copied to each device.

    Cost: O(b² r + b³) for a fold of b rows.
    """
    rows = folds.left_out
    mask = folds.left_out_mask.astype(weights.dtype)
    members = members_of(jnp.where(weights.used[:, None], view.H, 0))
    if shards == 1:
        return _folds(view, weights, members, rows, mask)
    k, b = rows.shape
    together = max(1, min(k, min(ROWS_AT_ONCE, weights.n // shards) // b))
    fill = lambda a: jnp.pad(a, ((0, -k % together), (0, 0))).reshape(-1, together, b)

    def of_few(few: tuple[Int[Array, "f b"], Float[Array, "f b"]]) -> Float[Array, "f b t"]:
        rows, mask = few
        flat = rows.ravel()
        weights_of_few = weights.block(weights.take(flat), len(flat))
        numbers = jnp.arange(rows.size).reshape(-1, b)
        return _folds(view.take(flat), weights_of_few, members, numbers, mask)

    e = jax.lax.map(jax.checkpoint(of_few), (fill(rows), fill(mask)))
    return e.reshape(-1, *e.shape[2:])[:k]


def _folds(
    view: View,
    weights: Weights,
    members: Int[Array, " q"],
    rows: Int[Array, "k b"],
    mask: Float[Array, "k b"],
) -> Float[Array, "k b t"]:
    """Return held-out residuals of folds, as many at once as memory and the pool of threads
    allow.
    """
    k, b = rows.shape
    t = view.residuals.shape[1]
    together = NUMBERS_AT_ONCE // (b * max(view.width, 1))
    if platform() == "cpu":
        together = min(together, OPERATIONS_IN_PLACE // (b * b * max(b, t)))
    of_fold = lambda fold: _fold(view, weights, members, *fold)
    if together >= k:
        return jax.vmap(of_fold)((rows, mask))
    return jax.lax.map(of_fold, (rows, mask), batch_size=max(1, together))


class FoldBlock(NamedTuple):
    """R_SS and r_S for the rows S of a fold."""

    R: Float[Array, "b b"]
    residuals: Float[Array, "b t"]


def _fold(
    view: View,
    weights: Weights,
    members: Int[Array, " q"],
    rows: Int[Array, " b"],
    mask: Float[Array, " b"],
) -> Float[Array, "b t"]:
    """Return the held-out residuals of one fold.

    For rows of positive weight they are x/√v with R_SS x = r_S. For rows z of weight 0, which are
    queries, they are r_z − R_zS x.
    """
    counted = jnp.where(weights.used[rows], mask, 0)
    block = FoldBlock(view.entries(rows, rows), view.residuals[rows])
    block = _without_levels_inside(block, view.H[rows], counted, members)
    if view.constraints is not None:
        block = _without_landmarks(block, view.constraints, rows, mask)
    x = _solve(block, counted)
    unscaled = x / weights.root_or_one[rows][:, None]
    of_queries = block.residuals - matmul(block.R, x)
    return jnp.where(counted[:, None] > 0, unscaled, of_queries)


def _without_levels_inside(
    block: FoldBlock,
    H: Float[Array, "b q"],
    counted: Float[Array, " b"],
    members: Int[Array, " q"],
) -> FoldBlock:
    """Return the block with R + H'H'ᵀ in place of R.

    H' are the fixed effects that only these rows determine. They are left out with the rows.
    """
    H = H * levels_inside(H * counted[:, None], members)
    return block._replace(R=block.R + matmul(H, H.T))


def _without_landmarks(
    block: FoldBlock, known: Constraints, rows: Int[Array, " b"], mask: Float[Array, " b"]
) -> FoldBlock:
    """Return the block after the landmarks among these rows were eliminated.

    With orthonormal directions Q of their planes:

        M loses MQᵀQ
        R = D − MMᵀ gains MQᵀ(MQᵀ)ᵀ
        r gains MQᵀQMᵀỹ
    """
    landmarks = known.landmark_of_row[rows]
    planes = known.planes.at[landmarks].get(mode="fill", fill_value=0)
    Q = orthonormal(planes * mask[:, None])
    along = matmul(known.coordinates[rows], Q.T)
    R = block.R + matmul(along, along.T)
    residuals = block.residuals + matmul(along, matmul(Q, known.label_coordinates))
    return FoldBlock(R, residuals)


def _solve(block: FoldBlock, counted: Float[Array, " b"]) -> Float[Array, "b t"]:
    """Return x for the rows that are counted, 0 for all others."""
    column = counted[:, None]
    of_counted = block.R * column * counted + jnp.diag(1 - counted)  # I for all other rows
    root = jnp.linalg.cholesky(of_counted)
    return jax.scipy.linalg.cho_solve((root, True), block.residuals * column)


def members_of(H: Float[Array, "n q"]) -> Int[Array, " q"]:
    """Return the number of rows of every level: those that are not 0 in its column of H."""
    return jnp.sum(H != 0, axis=0)


def levels_inside(H: Float[Array, "b q"], members: Int[Array, " q"]) -> Float[Array, " q"]:
    """Return 1 for levels all of whose `members` are among these rows of H, else 0.

    Such levels are left out with the rows: held-out residuals are determined only up to them. Rows
    are counted, since squares of H that sum to nearly 1 may leave out rows of small weight. Of
    other fixed effects, a fold that leaves too few rows to determine them is refused.
    """
    return jax.lax.stop_gradient((members_of(H) == members).astype(H.dtype))
