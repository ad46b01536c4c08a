"""The primal problem, through moments of features, by a Cholesky factor for each λ.

Everything is differentiable.

A row has features ψ, which the coefficients multiply, and φ = ψ·whitener, whose weights the penalty
measures. For explicit features φ = ψ. Let Φ be the weighted φ minus their fit by the fixed effects,
which is b·fixed_fit at a row. Then

    ΦᵀΦ + λI = AAᵀ
    row_map = whitener·A⁻ᵀ and fixed_map = fixed_fit·A⁻ᵀ
    u = ψ·row_map − b·fixed_map   the coordinates of a row
    ℓ = A⁻¹Φᵀ√v y                 the coordinates of the labels

u is the row's part of M in `leave_out.view`. Coefficients are row_map·ℓ, f minus the mean is u·ℓ,
and the leverage is v|u|², apart from the fixed effects.

Theory: `docs/theory.md`, "One matrix".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Data, DataBlock, Labels, coef_near_fit, moments
from jaxrls.core.factors.expansion import Expansion, Features, Primal
from jaxrls.core.factors.factor import AtLam, OneByOne
from jaxrls.core.factors.floor import Report, roundings_of_moments
from jaxrls.core.factors.lams import (
    PerLam,
    PerTarget,
    map_lams_with_columns,
    with_lams_inside,
)
from jaxrls.core.factors.refits import PrimalForm
from jaxrls.core.factors.residuals import Residuals, RowLabels
from jaxrls.core.factors.solution import Solution
from jaxrls.core.kernels import Kernel
from jaxrls.core.leave_out import LowRankView
from jaxrls.core.linalg import (
    Number,
    Reduction,
    diagonal_of,
    matmul,
    rounding,
    tall_matmul,
    triangular_inverse,
)
from jaxrls.core.support import pytree, static


@pytree
class CholeskyFeatures(OneByOne):
    """A factor of moments of features, by a Cholesky factor ΦᵀΦ + λI = AAᵀ for each λ.

    The moments take O(n r²), in blocks of rows.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.arange(6.0).reshape(3, 2), solver=rls.Cholesky())
    >>> factor.solve([0.0, 1.0, 2.0]).coefficients(jnp.array([0.1])).coef.shape
    (1, 2, 1)
    """

    data: Data
    feature_map: Features
    second: Float[Array, "r r"]  # ΦᵀΦ of weighted features, minus their fit by the fixed effects
    fixed_fit: Float[Array, "q r"]  # coefficients of the fit of φ by the fixed effects
    expansion: Expansion
    report: Report
    block_size: int | None = static()

    @property
    def kernel(self):
        """The kernel, to predict the rows as if they were new."""
        return self.feature_map.kernel

    @property
    def hints(self) -> dict:
        """Keyword arguments of `Data.sum` and `Data.map` that say how to cut blocks of rows."""
        return {"temporaries": self.second.shape[0], "block_size": self.block_size}

    def trace(self):
        """Return tr ΦᵀΦ."""
        return jnp.sum(diagonal_of(self.second))

    def state_of(self, labels: Labels) -> Float[Array, "r t"]:
        """Compute Φᵀ√v y. Cost: O(n r t)."""

        def of_block(block: DataBlock) -> Float[Array, "r t"]:
            phi = self.feature_map.features(block.x) - self.fixed.fitted(block.b, self.fixed_fit)
            return matmul(phi.T, block.weights.scale(block.added))

        return self.data.sum(of_block, labels.scaled, **self.hints)

    def maps_at(self, lam: Number, state: Float[Array, "r t"]) -> "CoordinateMaps":
        """Return the `CoordinateMaps` at one λ."""
        A = jnp.linalg.cholesky(self.second + lam * jnp.eye(len(self.second), dtype=self.dtype))
        inverse_A = triangular_inverse(A)
        whitener = self.feature_map.whitener
        return CoordinateMaps(
            row_map=inverse_A.T if whitener is None else matmul(inverse_A, whitener.T).T,
            fixed_map=matmul(self.fixed_fit, inverse_A.T),
            of_labels=matmul(inverse_A, state),
            inverse_A=inverse_A,
        )

    def at_lam(self, lam: Number, solution: Solution) -> AtLam:
        """Compute the results at one λ from moments."""
        maps = self.maps_at(lam, solution.state)
        inverse_A = maps.inverse_A
        outside = self.residual_dimensions() - len(self.second)  # dimensions outside of Φ
        logdet = outside * jnp.log(lam) - 2 * jnp.sum(jnp.log(diagonal_of(inverse_A)))
        return AtLam(
            coef=matmul(maps.row_map, maps.of_labels),
            beta=solution.labels.beta - matmul(maps.fixed_map, maps.of_labels),
            logdet=logdet[None],
            residual_dof=(outside + lam * jnp.sum(inverse_A**2))[None],
        )

    def data_fit(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute ỹᵀ P̃ ỹ as (‖√v (y − f)‖² + λ‖w‖²)/λ."""
        return self.residual_norm(solution, lams) / lams + solution.at_each(lams, self.penalty)

    def penalty(self, lam: Number, solution: Solution) -> Float[Array, " t"]:
        """Return ‖w‖² of w = A⁻ᵀℓ at one λ."""
        maps = self.maps_at(lam, solution.state)
        return jnp.sum(matmul(maps.inverse_A.T, maps.of_labels) ** 2, axis=0)

    def coordinates(
        self, psi: Float[Array, "n r"], b: Any, maps: "CoordinateMaps"
    ) -> Float[Array, "n r"]:
        """Return u of a block of rows, from their ψ."""
        return tall_matmul(psi, maps.row_map) - self.fixed.fitted(b, maps.fixed_map)

    def coordinates_of_block(self, block: DataBlock, maps: "CoordinateMaps") -> Float[Array, "n r"]:
        """Return u of a block of rows."""
        return self.coordinates(self.feature_map.design(block.x), block.b, maps)

    def sweep(self, reduction: Reduction, solution: Solution, lams: PerLam, fn: Callable) -> Any:
        """Sum or map `fn` of residuals over rows, in one pass for all λ. Cost: O(n r² L)."""
        maps = map_lams_with_columns(self.maps_at, lams, solution.state)

        def of_block(block: DataBlock) -> Any:
            labels: RowLabels = block.added
            psi = self.feature_map.design(block.x)
            weights = block.weights
            h = self.fixed.leverage(block.b, weights.array)

            def fitted(maps: CoordinateMaps) -> tuple[Float[Array, "b t"], Float[Array, "b 1"]]:
                u = self.coordinates(psi, block.b, maps)
                leverage = weights.array * jnp.sum(u * u, axis=1)
                return matmul(u, maps.of_labels), (1 - leverage - h)[:, None]

            f, diagonal = with_lams_inside(jax.lax.map(fitted, maps), lams)
            r = labels.scaled[:, None] - weights.scale(f)
            return fn(Residuals(r, diagonal, weights, labels))

        return self.data.over(reduction, of_block, self.labels_of_rows(solution), **self.hints)

    def primal_form(self):
        """Return the factor in terms of φ minus its fit by the fixed effects.

        Fits to other rows take a Cholesky factor for each λ, which has derivatives.
        """
        eye = jnp.eye(len(self.second), dtype=self.dtype)

        def solve(
            second: Float[Array, "r r"], cross: Float[Array, "r t"], lams: PerLam
        ) -> Float[Array, "r L t"]:
            def of_lam(lam: Number, cross: Float[Array, "r t"]) -> Float[Array, "r t"]:
                A = jnp.linalg.cholesky(second + lam * eye)
                return jax.scipy.linalg.cho_solve((A, True), cross)

            return with_lams_inside(map_lams_with_columns(of_lam, lams, cross), lams)

        return PrimalForm(self.data, self.feature_map, eye, self.fixed_fit, solve)

    def view(self, solution: Solution, lam: Number) -> LowRankView:
        """Return R = I − HHᵀ − UUᵀ with U = √v u, and r."""
        maps = self.maps_at(lam, solution.state)
        u = self.data.map(lambda block: self.coordinates_of_block(block, maps), **self.hints)
        return LowRankView.from_features(
            u, maps.of_labels, solution.labels, self.weights, self.fixed
        )


class CoordinateMaps(NamedTuple):
    """The linear maps from rows to coordinates u at one λ, and the coordinates ℓ of the labels."""

    row_map: Float[Array, "r r"]  # on landmarks, row k is A⁻¹L⁻¹eₖ, which gives βₖ
    fixed_map: Float[Array, "q r"]  # the same map for the fit by the fixed effects
    of_labels: Float[Array, "r t"]  # ℓ
    inverse_A: Float[Array, "r r"]


def solve_cholesky(
    kernel: Kernel, data: Data, labels: Labels, block_size: int | None = None
) -> Solution:
    """Return the solution on explicit features by Cholesky factors.

    It reads the rows once, and once more if there are weights or columns of fixed effects.
    """
    features = Features(kernel)
    sums = moments(
        data,
        features,
        labels.Y,
        origin=jax.lax.stop_gradient(coef_near_fit(data, features)),
        label_origin=labels.beta,
        block_size=block_size,
    ).centred(data.fixed)
    known = jax.lax.stop_gradient(sums)
    largest = jnp.linalg.norm(known.second)  # bounds s_max
    size = jnp.maximum(largest, known.removed)
    floor = roundings_of_moments(known) * rounding(len(known.second), size)
    report = Report("cholesky", floor, jnp.zeros_like(floor))
    factor = CholeskyFeatures(
        data=data,
        feature_map=features,
        second=sums.second,
        fixed_fit=sums.fixed_fit,
        expansion=Primal(),
        report=report.with_information_from_moments(known, largest),
        block_size=block_size,
    )
    return Solution(factor, labels, sums.cross)
