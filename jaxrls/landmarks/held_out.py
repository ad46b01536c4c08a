"""What factors on landmarks have in common: a landmark that is a row of X is held out with its row.

For such a row d, ρ and α are the products of the constraint βₖ = 0 with itself, with its row and
with the labels, all in the same coordinates of M (see `core.leave_out.view`): the held-out residual
is e = (d (y − f) + ρα)/(dRᵢᵢ + vρ²).
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.factors import COLUMNS_AT_ONCE, Factor, over_lams
from jaxrls.core.leave_out import Constraints, LowRank, slots
from jaxrls.core.problem import gram
from jaxrls.landmarks.points import ridge_effect


class LandmarkRows(NamedTuple):
    """Of the rows that are landmarks, at all λ: d, ρ, α, the fit without the fixed effects, and R."""

    d: Float[Array, "m L k"]
    rho: Float[Array, "m L k"]
    alpha: Float[Array, "m L t"]
    fitted: Float[Array, "m L t"]
    remaining: Float[Array, "m L k"]


class OnLandmarks(Factor):
    """A factor on landmarks; `indices` are the numbers of the rows that are landmarks and leave
    with them, None where none leave.
    """

    indices: Any

    @abstractmethod
    def landmark_rows(self, solution, lams) -> LandmarkRows:
        """What `left_out_landmarks` takes of the landmarks that leave with their rows."""

    def left_out_landmarks(self, solution, rows: LandmarkRows) -> tuple[Any, Any]:
        """Held-out residuals of rows that are landmarks and leave as such too, and 1 − leverage in
        the fit without the landmark.
        """
        labels = (solution.labels.Y - solution.labels.mean)[self.indices][:, None]
        v = self.weights.array[self.indices][:, None, None]
        remaining = rows.d * rows.remaining + v * rows.rho * rows.rho
        e = (rows.d * (labels - rows.fitted) + rows.rho * rows.alpha) / remaining
        return e, remaining / rows.d

    def jitter_effect(self, kernel, lams, coef, missed):
        """Of the jitter of the landmarks' kernel matrix."""
        K = gram(kernel, self.points)
        return ridge_effect(K, self.report.ridge, coef, lams, missed)

    def sum_left_out(self, solution, fn, lams, counted=None):
        """Over the other rows, and over those that are landmarks."""
        if self.indices is None:
            return super().sum_left_out(solution, fn, lams, counted)
        others = self.weights.without(self.indices)
        total = super().sum_left_out(solution, fn, lams, others)
        Y, v = solution.labels.Y[self.indices], self.weights.array[self.indices]
        of_all_lams = jax.vmap(fn, in_axes=(1, 1, None, None))

        def of_lams(lams):
            rows = self.landmark_rows(solution, lams)
            return of_all_lams(*self.left_out_landmarks(solution, rows), Y, v)

        columns = Y.shape[1] if self.shares_work else COLUMNS_AT_ONCE
        return jax.tree.map(jnp.add, total, over_lams(of_lams, lams, columns))

    def rows_left_out(self, solution, lams):
        """With landmarks left out with their rows."""
        e = super().rows_left_out(solution, lams)
        if self.indices is None:
            return e
        of_landmarks, _ = self.left_out_landmarks(solution, self.landmark_rows(solution, lams))
        return e.at[:, self.indices].set(jnp.moveaxis(of_landmarks, 1, 0))

    def constrained(self, view: LowRank, planes, q) -> LowRank:
        """The view, from which landmarks leave with their rows."""
        if self.indices is None:
            return view
        numbers = slots(self.indices, self.n)
        return replace(view, constraints=Constraints(numbers, planes, view.U, q))
