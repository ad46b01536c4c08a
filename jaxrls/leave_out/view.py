"""One matrix: R = D − MMᵀ and r, of which everything that is left out is a solve with a block.

An index is a row of the data, with M_i = √v [A⁻¹φᵢ, T⁻ᵀbᵢ] and D = 1, or a query, a row of weight
0, with M_z = [A⁻¹φ_z, T⁻ᵀb_z] and D = 0. r is √v (y − f) of a row and y − f of a query. Without a set
S of rows, x = R_SS⁻¹ r_S, the held-out residuals are x/√v and those of queries r_z − R_zS x.
A landmark k that leaves with its row is the constraint βₖ = 0, M_k = [−A⁻¹L⁻¹eₖ, 0] with D = 0:
eliminated first, it takes its direction out of every M.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.leave_out.constraints import slots
from jaxrls.linalg.products import matmul
from jaxrls.support.pytrees import pytree, static


class View(ABC):
    """R and r at one λ for all targets."""

    residuals: Float[Array, "n t"]  # r
    diagonal: Float[Array, " n"]  # of R, as it is without cancellation; 1 for queries
    H: Float[Array, "n q"]  # the fixed effects' part of M
    constraints: "Constraints | None"

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers of a row an entry is made of."""

    @abstractmethod
    def entries(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Float[Array, "a b"]:
        """R_ij of indices i with rows of the data j."""


@pytree
class Constraints:
    """Landmarks that leave with their row, in the coordinates of the first part of M."""

    slots: Int[Array, " n"]  # of each row its landmark, m where it is none
    planes: Float[Array, "m r"]  # A⁻¹L⁻¹eₖ, of any length
    rows: Float[Array, "n r"]  # A⁻¹φ of all rows, times √v but for queries
    labels: Float[Array, "r t"]  # Mᵀỹ


@pytree
class LowRank(View):
    """R of left vectors U: I − HHᵀ − U diag(kept) Uᵀ, or U diag(lost) Uᵀ where U is square."""

    residuals: Float[Array, "n t"]
    diagonal: Float[Array, " n"]
    H: Float[Array, "n q"]
    U: Any  # (n, r), or what makes its rows as they are asked for
    left: Any  # −U kept, or where U is square U lost, and for queries −U kept too
    used: Bool[Array, " n"]  # rows of the data
    constraints: Constraints | None
    complete: bool = static()  # whether U is square

    @classmethod
    def of_rows(cls, u, q, labels, weights, fixed, planes=None, indices=None) -> "LowRank":
        """I − HHᵀ − UUᵀ with U = √v u of features u (n, r) at one λ, q = Mᵀỹ; `planes` are the
        constraints of landmarks that are rows, whose numbers are `indices`.
        """
        unit = weights.root_or_one[:, None]
        U, H = u * unit, fixed.basis(fixed.rows, weights.n) * unit
        residuals = (labels.Y - labels.mean) * unit - matmul(U, q)
        diagonal = 1 - jnp.sum(U * U, axis=1) - jnp.sum(H * H, axis=1)
        diagonal, leaving = jnp.where(weights.used, diagonal, 1), None
        if indices is not None:
            leaving = Constraints(slots(jnp.asarray(indices), weights.n), planes, U, q)
        return cls(residuals, diagonal, H, U, -U, weights.used, leaving, False)

    @property
    def width(self):
        """r."""
        return self.U.shape[1]

    def entries(self, i, j):
        """By one product."""
        R = matmul(self.left[i], self.U[j].T)
        whole, beside = self._beside(i)
        R = R - beside[:, None] * matmul(self.H[i], self.H[j].T)
        same = (i[:, None] == j[None, :]).astype(R.dtype)
        return R + whole[:, None] * same

    def some(self, pick: Callable) -> "LowRank":
        """That of some of the rows, where those lie on several devices."""
        names = "residuals", "diagonal", "H", "U", "left"
        part = {name: pick(getattr(self, name)) for name in names}
        part["used"] = pick(self.used.astype(self.H.dtype)) > 0
        found = self.constraints
        if found is not None:
            found = replace(found, slots=pick(found.slots), rows=pick(found.rows))
        return replace(self, constraints=found, **part)

    def _beside(self, i):
        """Whether I is to be added for indices i, and HHᵀ to be taken off."""
        used = self.used[i].astype(self.H.dtype)
        return (jnp.zeros_like(used), 1 - used) if self.complete else (used, jnp.ones_like(used))


@pytree
class Dense(View):
    """R as a matrix, with rows of queries in it."""

    residuals: Float[Array, "n t"]
    diagonal: Float[Array, " n"]
    H: Float[Array, "n q"]
    matrix: Float[Array, "n n"]
    constraints: None = None

    @property
    def width(self):
        """The entry itself."""
        return 1

    def entries(self, i, j):
        """Its entries."""
        return self.matrix[i[:, None], j[None, :]]
