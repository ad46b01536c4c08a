"""One matrix, R = D − MMᵀ, and r: every held-out prediction is a solve with a block of R.

An index is a row of the data, with M_i = √v [A⁻¹φᵢ, T⁻ᵀbᵢ], D = 1 and r = √v (y − f); or a query, a
row of weight 0, with M_z = [A⁻¹φ_z, T⁻ᵀb_z], D = 0 and r = y − f. With a set S of rows left out and
x = R_SS⁻¹ r_S, the held-out residuals are x/√v, and those of queries r_z − R_zS x.

A landmark k that leaves with its row is the constraint βₖ = 0, one more index with M_k =
[−A⁻¹L⁻¹eₖ, 0] and D = 0: eliminating it first projects its direction out of every M.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.linalg.products import matmul
from jaxrls.support.pytrees import pytree, static


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

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers of a row one entry is computed from."""

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
    def of_rows(cls, u, q, labels, weights, fixed, planes=None, indices=None) -> "LowRank":
        """I − HHᵀ − UUᵀ with U = √v u of features u (n, r) at one λ, q = Mᵀỹ. `planes` are the
        constraints of the landmarks that are rows, `indices` their row numbers.
        """
        unit = weights.root_or_one[:, None]
        U, H = u * unit, fixed.basis(fixed.rows, weights.n) * unit
        residuals = (labels.Y - labels.mean) * unit - matmul(U, q)
        diagonal = 1 - jnp.sum(U * U, axis=1) - jnp.sum(H * H, axis=1)
        diagonal, constraints = jnp.where(weights.used, diagonal, 1), None
        if indices is not None:
            constraints = Constraints(slots(indices, weights.n), planes, U, q)
        return cls(residuals, diagonal, H, U, -U, weights.used, constraints)

    @property
    def width(self):
        """r."""
        return self.U.shape[1]

    def entries(self, i, j):
        """By one product. Where U is square it includes I and HHᵀ, except HHᵀ of queries."""
        R, HH = matmul(self.left[i], self.U[j].T), matmul(self.H[i], self.H[j].T)
        used = self.used[i][:, None]
        if self.complete:
            return R - jnp.where(used, 0, HH)
        return R - HH + (used & (i[:, None] == j)).astype(R.dtype)

    def some(self, pick: Callable) -> "LowRank":
        """The view of some of the rows, where these lie on several devices."""
        names = "residuals", "diagonal", "H", "U", "left"
        part = {name: pick(getattr(self, name)) for name in names}
        part["used"] = pick(self.used.astype(self.H.dtype)) > 0
        found = self.constraints
        if found is not None:
            found = replace(found, slots=pick(found.slots), rows=pick(found.rows))
        return replace(self, constraints=found, **part)


@pytree
class Dense(View):
    """R as a full matrix, rows of queries included."""

    matrix: Float[Array, "n n"]

    @property
    def width(self):
        """1: entries are stored."""
        return 1

    def entries(self, i, j):
        """Its entries."""
        return self.matrix[i[:, None], j[None, :]]


# landmarks that leave with their rows: directions that are projected out --------------------------


def slots(indices: Int[Array, " m"], n: int) -> Int[Array, " n"]:
    """For each of n rows the number of its landmark; m for a row that is none."""
    m = indices.shape[0]
    return jnp.full(n, m).at[indices].set(jnp.arange(m))


def slots_of(slot: Int[Array, " b"], m: int, mask: Float[Array, " b"]):
    """The landmark numbers of some rows, from `slots`, and a mask: 0 for a row that is none."""
    return jnp.minimum(slot, m - 1), jnp.where(slot < m, mask, 0)


def _root(d: Float[Array, "b b"], inside: Float[Array, " b"]) -> Float[Array, "b b"]:
    """L of LLᵀ = d + diag(1 − inside); d may be singular to rounding."""
    jitter = len(d) * float(jnp.finfo(d.dtype).eps)
    return jnp.linalg.cholesky(
        d * (1 + jitter * jnp.eye(len(d), dtype=d.dtype)) + jnp.diag(1 - inside)
    )


def _under(L, A):
    return jax.lax.linalg.triangular_solve(L, A, left_side=True, lower=True)


def orthonormal(W: Float[Array, "b r"], inside: Float[Array, " b"]) -> Float[Array, "b r"]:
    """Orthonormal rows with the same span as the rows of W inside, and 0 for the others.

    By two Cholesky factors: products of nearly equal rows lose their difference, which L⁻¹W of the
    first factor recovers. Derivatives take the first factor as constant, as only the span matters.
    Source: Yamamoto, Nakatsukasa, Yanagisawa and Fukaya 2015 (CholeskyQR2).
    """
    squares = jnp.sum(W * W, axis=1)
    inside = jnp.where(squares > 0, inside, 0)
    unit = jax.lax.stop_gradient(jnp.where(squares > 0, jax.lax.rsqrt(squares), 0))
    W = W * (unit * inside)[:, None]
    W = _under(jax.lax.stop_gradient(_root(matmul(W, W.T), inside)), W)
    return _under(_root(matmul(W, W.T), inside), W)


def without_landmarks(d, rho, alpha, residual, remaining, v):
    """Held-out residuals of rows that are landmarks, and 1 − leverage in the fit without the
    landmark.

    d, ρ and α are the products of a constraint with itself, with its row and with the labels, all
    in the same coordinates of M; `residual` is y − f and `remaining` Rᵢᵢ with the landmark in: e =
    (d (y − f) + ρα)/(dRᵢᵢ + vρ²).
    """
    remaining = d * remaining + v * rho * rho
    return (d * residual + rho * alpha) / remaining, remaining / d
