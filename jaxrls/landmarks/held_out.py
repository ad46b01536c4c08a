"""Hold out a landmark together with its row, for all factors on landmarks.

If landmark k is a row of X, holding the row out adds the constraint βₖ = 0. In the coordinates of M
(see `core.leave_out.view`), let d, ρ and α be the products of this constraint with itself, with its
row, and with the labels. The held-out residual of the row is then

    e = (d (y − f) + ρα)/(dRᵢᵢ + vρ²)
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Weights
from jaxrls.core.factors import HeldOut, PerLam, PerRow, Solution, Summand, over_lams
from jaxrls.core.leave_out import Constraints, LowRankView, landmark_of_row
from jaxrls.core.linalg import SUM, Number
from jaxrls.landmarks.dictionary import Jittered


class OnLandmarks(Jittered):
    """A factor on landmarks that can be left out with their rows.

    `indices` are the row numbers of the landmarks that are left out with their rows. It is None if
    landmarks stay when rows are left out.
    """

    @abstractmethod
    def landmarks_left_out(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """Return held-out residuals and 1 − leverage of the m rows that are landmarks.

        Each row is left out together with its landmark. The held-out residuals are (m, L, t), and
        1 − leverage, (m, L, k), belongs to the fit without the landmark.
        """

    @abstractmethod
    def constraints(self, solution: Solution, lam: Number) -> tuple[Any, Any]:
        """Return the constraints βₖ = 0 in the coordinates of the view, of any length, and Mᵀỹ."""

    @property
    def weights_of_landmarks(self) -> Weights:
        """The weights of the rows that are landmarks."""
        return self.weights.block(self.weights.take(self.indices), len(self.indices))

    def about_landmarks(self, solution: Solution) -> Float[Array, "m t"]:
        """Return the labels of the rows that are landmarks, minus the fit of the fixed effects
        alone.
        """
        return (solution.labels.Y - solution.labels.by_effects)[self.indices]

    def left_out_at(
        self,
        d: Float[Array, "m *L k"],
        rho: Float[Array, "m *L k"],
        alpha: Float[Array, "m *L t"],
        missed: Float[Array, "m *L t"],
        remaining: Float[Array, "m *L k"],
    ) -> tuple[Any, Any]:
        """Compute `landmarks_left_out` from d, ρ and α of these rows.

        `missed` is y − f, and `remaining` is Rᵢᵢ. With k = 1, an array is for all targets.
        """
        denominator = d * remaining + self.weights_of_landmarks.times(rho * rho)
        e = (d * missed + rho * alpha) / denominator
        return e, denominator / d

    def sum_held_out_rows(self, solution: Solution, lams: PerLam, summand: Summand) -> Any:
        """Sum over the other rows, and over the rows that are landmarks."""
        total = super().sum_held_out_rows(solution, lams, summand)
        if self.indices is None:
            return total
        labels = solution.labels.Y[self.indices]
        v = self.weights_of_landmarks.array

        def of_lams(lams: PerLam) -> Any:
            e, remaining = self.landmarks_left_out(solution, lams)
            return HeldOut(e, remaining, labels, v).at_each_lam(SUM, summand)

        of_landmarks = over_lams(SUM, of_lams, lams, labels.shape[1])
        return jax.tree.map(jnp.add, total, of_landmarks)

    def held_out_rows(self, solution: Solution, lams: PerLam) -> PerRow:
        """Return held-out residuals of all rows, with landmarks left out with their rows."""
        e = super().held_out_rows(solution, lams)
        if self.indices is None:
            return e
        of_landmarks, _ = self.landmarks_left_out(solution, lams)
        return e.at[self.indices].set(of_landmarks)

    def primal_form(self):
        """Return the primal form, with the landmarks that are left out with their rows."""
        form: Any = super().primal_form()
        if self.indices is None:
            return form
        return form._replace(planes=self.planes, indices=self.indices)

    def view(self, solution: Solution, lam: Number) -> LowRankView:
        """Return the view, with the landmarks that are left out with their rows."""
        view: Any = super().view(solution, lam)
        if self.indices is None:
            return view
        planes, label_coordinates = self.constraints(solution, lam)
        constraints = Constraints(
            landmark_of_row=landmark_of_row(self.indices, self.n),
            planes=planes,
            coordinates=view.U,
            label_coordinates=label_coordinates,
        )
        return replace(view, constraints=constraints)
