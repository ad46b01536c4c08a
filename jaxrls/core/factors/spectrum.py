"""Factors that serve every λ from one eigendecomposition, of K, of features or of their moments.

With weights v and fixed effects √v B = H T, the decomposition is

    (I − HHᵀ) √v K √v (I − HHᵀ) = U diag(s) Uᵀ.

With D = 1/(s + λ) and z = Uᵀ√v y, everything at λ follows:

    coefficients = directions (D ∘ z)
    β = labels.beta − fixed_directions (D ∘ z)
    R = (I − HHᵀ − UUᵀ) + U diag(λD) Uᵀ

The first part of R is exactly 0 if U is square. Nothing is computed as a difference of numbers of
size 1/λ.

Begin with the class `Spectrum`. `factor_symmetric` and `factor_svd` make its subclass
`DenseSpectrum`.

Theory: `docs/theory.md`, "One factorization, every λ".
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Data, DataBlock, DenseRows, Folds, Labels
from jaxrls.core.factors.expansion import Expansion, KernelMatrix, Primal
from jaxrls.core.factors.factor import Factor
from jaxrls.core.factors.floor import (
    ABOVE_ROUNDING,
    Report,
    centred_rounding,
    interpolation_floor,
)
from jaxrls.core.factors.lams import OfFolds, OfResiduals, PerLam, PerTarget, matmul_lams, over_lams
from jaxrls.core.factors.refits import pays_to_refit, sweep_dual_refits
from jaxrls.core.factors.solution import Solution
from jaxrls.core.kernels import Kernel
from jaxrls.core.leave_out import LowRankView
from jaxrls.core.linalg import (
    Number,
    clip_negative,
    diagonal_of,
    eigh,
    eigh_rounding,
    matmul,
    rounding,
    svd,
    transposed_matmul,
)
from jaxrls.core.support import pytree, static


@pytree
class Spectrum(Factor):
    """The eigendecomposition of one kernel on one X, which serves every λ.

    (I − HHᵀ) K̃ (I − HHᵀ) = U diag(s) Uᵀ with K̃ = √v K √v.

    Args:
        data: the rows that U is made of, their weights and the fixed effects.
        s: eigenvalues (r,).
        fixed_directions: (q, r), for each direction the coefficients of its fit by the fixed
            effects.
        expansion: what the coefficients multiply.
        report: how the factor was made, and its floor.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factorize(rls.Precomputed(), jnp.eye(3), intercept=False).spectrum().s.tolist()
    [1.0, 1.0, 1.0]
    """

    shares_work: ClassVar[bool] = True
    complete = False  # whether U is square
    data: Data
    s: Float[Array, " r"]
    fixed_directions: Float[Array, "q r"]
    expansion: Expansion
    report: Report

    @abstractmethod
    def left(self, block: DataBlock) -> Float[Array, "b r"]:
        """Return the rows of U that belong to a block of rows.

        A factor that makes U from features returns U/√v for a block whose weights are None.
        """

    def left_vectors(self) -> Float[Array, "n r"]:
        """Return U, (n, r)."""
        return self.data.map(self.left)

    def spectrum(self):
        """Return the factor itself."""
        return self

    @property
    def s_above_rounding(self) -> Float[Array, " r"]:
        """The eigenvalues s for sums over directions, with 0 in place of values that may be
        rounding.
        """
        return self.s

    def trace(self):
        """Return Σ s."""
        return jnp.sum(self.s_above_rounding)

    # at λ -----------------------------------------------------------------------------------------

    def residual_share(self, lams: PerLam) -> Float[Array, "r L k"]:
        """Return λ/(s + λ), (r, L, k).

        It is computed with λ as the first axis. Otherwise XLA moves the divisions into its product
        for CPUs, where they are slow.
        """
        return jnp.moveaxis(lams[:, None] / (self.s[:, None] + lams[:, None]), 1, 0)

    def coefficients(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """Return directions (D ∘ z) and β = labels.beta − fixed_directions (D ∘ z).

        Cost: O(c r t L).
        """
        solved = self.report.where_informative(
            solution.state[:, None] / (self.s[:, None, None] + lams)
        )
        beta = solution.labels.beta[:, None] - matmul_lams(self.fixed_directions, solved)
        coef = matmul_lams(self.directions, solved)
        return jnp.moveaxis(coef, 1, 0), jnp.moveaxis(beta, 1, 0)

    def data_fit(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute ỹᵀ P̃ ỹ as ‖r‖²/λ + ‖f‖²_ℋ, with the norm of f in the space ℋ of the kernel."""
        s = self.s[:, None, None]
        length = jnp.sum(s * (solution.state[:, None] / (s + lams)) ** 2, axis=0)
        return self.residual_norm(solution, lams) / lams + length

    def logdet(self, solution: Solution, lams: PerLam) -> PerLam:
        """Compute Σ log(s + λ), plus log λ for each dimension outside of U."""
        inside = jnp.log(self.s_above_rounding[:, None, None] + lams)
        return self.over_dimensions(inside, jnp.log(lams))

    def residual_dof(self, solution: Solution, lams: PerLam) -> PerLam:
        """Compute Σ λ/(s + λ), plus 1 for each dimension outside of U."""
        inside = lams / (self.s_above_rounding[:, None, None] + lams)
        return self.over_dimensions(inside, jnp.ones_like(lams))

    def over_dimensions(self, inside: Float[Array, "r L k"], outside: PerLam) -> PerLam:
        """Sum `inside` over the r dimensions of U, and `outside` over those that U leaves out.

        Together these are `residual_dimensions()` dimensions.
        """
        missing = self.residual_dimensions() - self.s.shape[0]
        return jnp.sum(inside, axis=0) + missing * outside

    def sweep(
        self, solution: Solution, lams: PerLam, fn: OfResiduals, *columns, stack: bool = False
    ) -> Any:
        """Sum `fn` of residuals over rows, in one pass for all λ. Cost: O(n r L (t + 1))."""
        z = solution.state
        t = solution.labels.Y.shape[1]

        def of_block(block: DataBlock, y: Float[Array, "b t"], *columns) -> Any:
            U = self.left(block)
            missed: Any = 0.0
            outside: Any = 0.0
            if not self.complete:
                missed = (y - matmul(U, z))[:, None]
                outside = self.outside(U, block)[:, None, None]

            def of_lams(lams: PerLam) -> Any:
                residual_share = self.residual_share(lams)
                r = missed + matmul_lams(U, residual_share * z[:, None])
                diagonal = outside + matmul_lams(U * U, residual_share)
                return fn(r, diagonal, block.v, *columns)

            return of_lams(lams) if stack else over_lams(of_lams, lams, t)

        read = self.data.map if stack else self.data.sum
        return read(of_block, solution.labels.scaled, *columns)

    def outside(self, U: Float[Array, "b r"], block: DataBlock) -> Float[Array, " b"]:
        """Return the diagonal of I − HHᵀ − UUᵀ for a block of rows."""
        if self.complete:
            return jnp.zeros_like(U[:, 0])
        weights = self.weights.block(block.v, len(U))
        return 1 - jnp.sum(U * U, axis=1) - self.fixed.leverage(block.b, weights.array)


@pytree
class OneBlock(DenseRows):
    """Dense rows that are read as one block, in one large product."""

    def over(
        self,
        kind: str,
        fn: Callable,
        columns: tuple,
        temporaries: int = 0,
        block_size: int | None = None,
        **hints,
    ) -> Any:
        """Apply `fn` to all rows at once."""
        return fn(self.X, *columns)


@pytree
class DenseSpectrum(Spectrum):
    """A spectrum that keeps its left vectors U: a spectrum of K, or of features by their SVD or
    ΦΦᵀ.

    Args:
        training: (kernel, rows), to predict the rows as if they were new.
        feature_directions: (c, r), coefficients of each direction on features; None if coefficients
            are dual, and directions are √v U.
        present: (r,), 1 for directions that get coefficients and 0 for others; None if all do. Left
            out are directions of negative eigenvalues of K, and directions of features that are
            rounding.
        origin: (q, p), coefficients of the fit of the features by the fixed effects; None if
            coefficients are dual.
        complete: whether U is square.
    """

    training: Any = None
    feature_directions: Float[Array, "c r"] | None = None
    present: Float[Array, " r"] | None = None
    origin: Any = None
    complete: bool = static(default=False)

    def left(self, block: DataBlock) -> Float[Array, "b r"]:
        """Return the rows of U that are stored for a block."""
        return block.x

    def left_vectors(self):
        """Return U as it is stored."""
        return self.data.rows.X

    @property
    def directions(self):
        """The coefficients of each direction: `feature_directions`, or √v U if coefficients are
        dual.
        """
        if self.feature_directions is not None:
            return self.feature_directions
        dual = self.weights.scale(self.left_vectors())
        return dual if self.present is None else dual * self.present

    def state_of(self, labels: Labels) -> Float[Array, "r t"]:
        """Compute z = Uᵀ√v y."""
        return transposed_matmul(self.left_vectors(), labels.scaled)

    def residual_norm(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute Σ vᵢ (yᵢ − f(xᵢ))², as Σ (λDz)² if U is square."""
        if not self.complete:
            return super().residual_norm(solution, lams)
        return jnp.sum((self.residual_share(lams) * solution.state[:, None]) ** 2, axis=0)

    def over_dimensions(self, inside: Float[Array, "r L k"], outside: PerLam) -> PerLam:
        """Sum `inside` and `outside` over dimensions, also for a square U.

        A square U has n columns, so some lie along the fixed effects or along rows of weight 0.
        After both are removed from a column, its squared length is the weight with which the column
        counts.
        """
        if not self.complete:
            return super().over_dimensions(inside, outside)
        squares = self.left_vectors() ** 2
        if self.weights.values is not None:
            squares = jnp.where(self.weights.used[:, None], squares, 0)
        squared_lengths = jnp.sum(squares, axis=0)
        return jnp.sum(squared_lengths[:, None, None] * inside, axis=0)

    def sweep_folds(
        self, solution: Solution, fn: OfFolds, lams: PerLam, folds: Folds, *, stack: bool = False
    ) -> Any:
        """Apply `fn` to held-out residuals by fold, by fits to the other rows if that is cheaper.

        These fits are taken for a spectrum of K only, and if they cost less than R_SS at every λ.
        """
        if self.complete and self.route != "features" and pays_to_refit(folds, len(lams)):
            return sweep_dual_refits(self, solution, fn, lams, folds, stack)
        return super().sweep_folds(solution, fn, lams, folds, stack=stack)

    def raise_floor(self, folds: Folds | None) -> "DenseSpectrum":
        """Return the factor with a floor from which on these folds are held out exactly.

        Only a factor of features raises its floor, because its own floor is that of a fit to all
        rows.
        """
        if self.route != "features" or self.complete and folds is None:
            return self
        floor = jnp.maximum(self.report.floor, interpolation_floor(self, folds))
        return replace(self, report=replace(self.report, floor=floor))

    def view(self, solution: Solution, lam: Number) -> LowRankView:
        """Return R and r of all rows. Rows of weight 0 are queries, at which something is
        predicted.
        """
        if self.complete:
            view = self.square_view(solution, lam)
        else:
            view = self.thin_view(solution, lam)
        return view if self.weights.values is None else self.with_queries(view, solution, lam)

    def square_view(self, solution: Solution, lam: Number) -> LowRankView:
        """Return R = U diag(λ/(s + λ)) Uᵀ, for a U with a column for every row.

        The fixed effects were projected out of U, so that UUᵀ = I − HHᵀ.
        """
        U = self.left_vectors()
        residual_share = lam / (self.s + lam)
        residuals, diagonal = self.single_rows(solution, lam)
        H = self.fixed_basis * self.weights.root_or_one[:, None]
        return LowRankView(
            residuals=residuals,
            diagonal=diagonal,
            H=H,
            U=U,
            row_U=U * residual_share,
            row_H=jnp.zeros_like(H),
            adds_identity=jnp.zeros(self.n, bool),
        )

    def thin_view(self, solution: Solution, lam: Number) -> LowRankView:
        """Return R = I − HHᵀ − U diag(s/(s + λ)) Uᵀ, for a U with fewer columns than rows."""
        U = self.left_vectors()
        fitted_share = self.s / (self.s + lam)
        residuals, diagonal = self.single_rows(solution, lam)
        H = self.fixed_basis * self.weights.root_or_one[:, None]
        return LowRankView(
            residuals=residuals,
            diagonal=diagonal,
            H=H,
            U=U,
            row_U=-U * fitted_share,
            row_H=H,
            adds_identity=self.weights.used,
        )

    def single_rows(
        self, solution: Solution, lam: Number
    ) -> tuple[Float[Array, "n t"], Float[Array, " n"]]:
        """Return r and the diagonal of R of every row, without cancellation."""
        of_rows = lambda r, diagonal, v: (r[:, 0], diagonal[:, 0, 0])
        return self.sweep(solution, lam.reshape(1, 1), of_rows, stack=True)

    def with_queries(self, view: LowRankView, solution: Solution, lam: Number) -> LowRankView:
        """Return the view with rows z of weight 0 as queries.

        With G from `query_map` and z̃ = Uᵀỹ, a query has

            f(z) = mean + (G D z̃)_z
            R_zS = −(G D Uᵀ + HHᵀ)_zS
            r_z = y − f(z)
        """
        labels = solution.labels
        used = self.weights.used
        column = used[:, None]
        map_at_lam = self.query_map() / (self.s + lam)
        unseen = labels.Y - labels.by_effects - matmul(map_at_lam, solution.state)
        return replace(
            view,
            residuals=jnp.where(column, view.residuals, unseen),
            diagonal=jnp.where(used, view.diagonal, 1),
            row_U=jnp.where(column, view.row_U, -map_at_lam),
            row_H=jnp.where(column, view.row_H, view.H),
            adds_identity=view.adds_identity & used,
        )

    def training_design(self) -> Float[Array, "n c"]:
        """Compute what coefficients multiply at the rows: K, or their features."""
        kernel, rows = self.training
        return rows.map(lambda x: self.expansion.design(kernel, x))

    def query_map(self) -> Float[Array, "n r"]:
        """Return G = design·directions − B fixed_directions, with f = mean + G (D ∘ z).

        It is made from the rows of X as if they were new.
        """
        G = matmul(self.training_design(), self.directions)
        return G - self.fixed.fitted(self.fixed.values, self.fixed_directions)


def factor_symmetric(matrix: KernelMatrix, semidefinite: bool = False) -> DenseSpectrum:
    """Return the spectrum of K of all rows, the dual route. Cost: about 9n³ flops.

    Fixed effects are projected out of K. They are projected out of its eigenvectors once more,
    which keeps them exact for λ down to the precision of K.

    Eigenvalues below 0 are set to 0. Directions whose eigenvalue is negative by more than rounding
    get no coefficients, unless K is known to be `semidefinite`.

    K of explicit features may have a low rank. Then directions that are only rounding get no
    coefficients. Such coefficients would be of size 1/λ times labels, and the feature weights Φᵀc
    would keep their rounding.

    Source: Rifkin (lecture), "Varying λ".
    """
    weights = matrix.data.weights
    fixed = matrix.data.fixed
    trace_before = weights.sum(diagonal_of(matrix.K))
    K, effects_coef, removed = fixed.centre_both(weights, matrix.K)
    if matrix.lift is not None:
        constant: Any = fixed.constant_coef
        effects_coef = effects_coef + constant[:, None] * matrix.lift
    s, U = eigh(weights.scale_both(K))
    U = fixed.project(weights, U)
    # What centring removes from the entries of K is rounded entry by entry: 4√n·eps of one entry.
    heaviest = weights.largest / weights.total
    centring_rounding = 4 * jnp.sqrt(heaviest / weights.count) * removed
    floor = eigh_rounding(weights.count, s, centring_rounding)
    fixed_directions = matmul(effects_coef, weights.scale(U))
    kernel, rows = matrix.training
    has_features = rows.num_features(kernel) is not None
    present = _present_directions(s, floor, has_features, semidefinite)
    if present is not None:
        fixed_directions = fixed_directions * present
    s, below = clip_negative(s, centring_rounding)
    s = s * present if has_features else s
    report = Report("gram", floor, below).with_information(
        jnp.max(s), ABOVE_ROUNDING * floor, trace_before
    )
    return DenseSpectrum(
        data=replace(matrix.data, rows=OneBlock(U)),
        s=report.where_informative(s),
        fixed_directions=fixed_directions,
        expansion=matrix.expansion,
        report=report,
        training=matrix.training,
        present=present,
        complete=True,
    )


def _present_directions(
    s: Float[Array, " r"], floor: Number, has_features: bool, semidefinite: bool
) -> Float[Array, " r"] | None:
    """Return 1 for directions of K that get coefficients, 0 for others; None if all get them."""
    if semidefinite and not has_features:
        return None
    # `floor` is the size of rounding. A semidefinite K of features keeps the directions above it.
    # Any other K loses only those whose eigenvalue is negative by more than it.
    smallest_kept = floor if semidefinite else -floor
    return jnp.where(s < smallest_kept, 0, 1).astype(s.dtype)


def factor_svd(kernel: Kernel, data: Data) -> Factor:
    """Return the spectrum of explicit features by their thin SVD, which is the most precise route.

    The condition number of K is never squared. Directions whose singular value σ may be rounding
    alone are left out, as `lstsq` does. They occur if columns are dependent.

    Cost: O(n r min(n, r)), about as long as 25 products ΦᵀΦ. Source: Rifkin (lecture), "SVD
    approach".
    """
    rows = data.rows
    weights = data.weights
    fixed = data.fixed
    Phi = rows.feature_rows(kernel).dense()
    origin = fixed.fit(weights, Phi)
    U, sigma, Vt = svd(weights.scale(fixed.residual(weights, Phi)))
    complete = U.shape[0] == U.shape[1]
    square_before = jnp.sum(weights.scale(Phi) ** 2)
    svd_rounding = rounding(len(sigma), sigma)
    centring_rounding = centred_rounding(square_before)
    # √floor is at least 20 times the rounding of σ, so that σ is off by at most 5 % of √λ.
    floor = jnp.maximum(20 * svd_rounding, 5 * centring_rounding) ** 2
    report = Report("features", floor, jnp.zeros_like(floor))
    report = report.with_information(jnp.max(sigma), centring_rounding, square_before)
    is_present = sigma > jnp.maximum(2 * svd_rounding, centring_rounding)
    sigma = jnp.where(is_present, sigma, 0)
    feature_directions = Vt.T * sigma
    factor = DenseSpectrum(
        data=replace(data, rows=OneBlock(fixed.project(weights, U))),
        s=report.where_informative(sigma**2),
        fixed_directions=matmul(origin, feature_directions),
        expansion=Primal(),
        report=report,
        training=(kernel, rows),
        feature_directions=feature_directions,
        origin=origin,
        complete=complete,
    )
    return factor.raise_floor(None)
