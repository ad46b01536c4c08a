"""Factors that serve every λ from one eigendecomposition, that of K, of features or of their
moments: (I − HHᵀ) √v K √v (I − HHᵀ) = U diag(s) Uᵀ, with weights v and fixed effects √vB = HT.

With D = 1/(s + λ) and z = Uᵀ√v y: coefficients = directions (D ∘ z), β = labels.beta −
fixed_directions (D ∘ z), and R = (I − HHᵀ − UUᵀ) + U diag(λD) Uᵀ, whose first part is exactly 0
where U is square.
Nothing is computed as a difference of numbers of size 1/λ.

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
    """The eigendecomposition of one kernel and one X, which serves every λ.

    (I − HHᵀ) K̃ (I − HHᵀ) = U diag(s) Uᵀ with K̃ = √v K √v.

    Args:
        data: the rows that U is made of, weights and fixed effects.
        s: eigenvalues (r,).
        fixed_directions: (q, r), coefficients of the fit of each direction by the fixed effects.
        expansion: what coefficients multiply.
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
        """U of a block of rows; where it is made of rows, U/√v if its weights are None."""

    def left_vectors(self) -> Float[Array, "n r"]:
        """U, (n, r)."""
        return self.data.map(self.left)

    def spectrum(self):
        """Itself."""
        return self

    @property
    def s_above_rounding(self) -> Float[Array, " r"]:
        """s, and 0 where it may be rounding, as sums over directions take it."""
        return self.s

    def trace(self):
        """Σ s."""
        return jnp.sum(self.s_above_rounding)

    # at λ -----------------------------------------------------------------------------------------

    def residual_share(self, lams: PerLam) -> Float[Array, "r L k"]:
        """λ/(s + λ), (r, L, k). Computed with λ first: XLA would otherwise move the divisions into
        its product for CPUs, where they are slow.
        """
        return jnp.moveaxis(lams[:, None] / (self.s[:, None] + lams[:, None]), 1, 0)

    def coefficients(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """directions (D ∘ z), O(c r t L)."""
        solved = self.report.where_informative(
            solution.state[:, None] / (self.s[:, None, None] + lams)
        )
        beta = solution.labels.beta[:, None] - matmul_lams(self.fixed_directions, solved)
        coef = matmul_lams(self.directions, solved)
        return jnp.moveaxis(coef, 1, 0), jnp.moveaxis(beta, 1, 0)

    def data_fit(self, solution: Solution, lams: PerLam) -> PerTarget:
        """‖λc̃‖²/λ + ‖f‖²_H."""
        s = self.s[:, None, None]
        length = jnp.sum(s * (solution.state[:, None] / (s + lams)) ** 2, axis=0)
        return self.residual_norm(solution, lams) / lams + length

    def logdet(self, solution: Solution, lams: PerLam) -> PerLam:
        """Σ log(s + λ), and log λ outside of U."""
        inside = jnp.log(self.s_above_rounding[:, None, None] + lams)
        return self.over_dimensions(inside, jnp.log(lams))

    def residual_dof(self, solution: Solution, lams: PerLam) -> PerLam:
        """Σ λ/(s + λ), and 1 outside of U."""
        inside = lams / (self.s_above_rounding[:, None, None] + lams)
        return self.over_dimensions(inside, jnp.ones_like(lams))

    def over_dimensions(self, inside: Float[Array, "r L k"], outside: PerLam) -> PerLam:
        """Σ over the dimensions of U, and over the n − r outside."""
        missing = self.residual_dimensions() - self.s.shape[0]
        return jnp.sum(inside, axis=0) + missing * outside

    def sweep(
        self, solution: Solution, lams: PerLam, fn: OfResiduals, *columns, stack: bool = False
    ) -> Any:
        """One pass over the rows for all λ: O(n r L (t + 1))."""
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
        """The diagonal of I − HHᵀ − UUᵀ for a block of rows."""
        if self.complete:
            return jnp.zeros_like(U[:, 0])
        weights = self.weights.block(block.v, len(U))
        return 1 - jnp.sum(U * U, axis=1) - self.fixed.leverage(block.b, weights.array)


@pytree
class OneBlock(DenseRows):
    """Dense rows that are read all at once, in one large product."""

    def over(
        self,
        kind: str,
        fn: Callable,
        columns: tuple,
        temporaries: int = 0,
        block_size: int | None = None,
        **hints,
    ) -> Any:
        """One block of all rows."""
        return fn(self.X, *columns)


@pytree
class DenseSpectrum(Spectrum):
    """A spectrum whose left vectors U are kept: that of K, or of features where they are few rows.

    Args:
        training: (kernel, rows), to predict the rows as if they were new.
        feature_directions: (c, r), coefficients of each direction; None where they are dual, √v U.
        present: (r,), 0 in directions that get no coefficients: of negative eigenvalues of K, and
            of features those that are rounding; else None.
        origin: (q, p), what the fixed effects fit of features; None where K is given.
        complete: whether U is square.
    """

    training: Any = None
    feature_directions: Float[Array, "c r"] | None = None
    present: Float[Array, " r"] | None = None
    origin: Any = None
    complete: bool = static(default=False)

    def left(self, block: DataBlock) -> Float[Array, "b r"]:
        """As it is kept."""
        return block.x

    def left_vectors(self):
        """As they are kept."""
        return self.data.rows.X

    @property
    def directions(self):
        """`feature_directions`, or √v U where coefficients are dual."""
        if self.feature_directions is not None:
            return self.feature_directions
        dual = self.weights.scale(self.left_vectors())
        return dual if self.present is None else dual * self.present

    def project(self, labels: Labels) -> Float[Array, "r t"]:
        """z = Uᵀ√v y."""
        return transposed_matmul(self.left_vectors(), labels.scaled)

    def residual_norm(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Where U is square Σ(λDz)²."""
        if not self.complete:
            return super().residual_norm(solution, lams)
        return jnp.sum((self.residual_share(lams) * solution.state[:, None]) ** 2, axis=0)

    def over_dimensions(self, inside: Float[Array, "r L k"], outside: PerLam) -> PerLam:
        """Where U is square, it has directions of the fixed effects and of rows of weight 0 too:
        what is left of a column after these were taken out is shorter than 1, and its square is
        the share with which it counts.
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
        """By fits to the other rows where these cost less than R_SS at every λ, and K is as exact
        as U.
        """
        if self.complete and self.route != "features" and pays_to_refit(folds, len(lams)):
            return sweep_dual_refits(self, solution, fn, lams, folds, stack)
        return super().sweep_folds(solution, fn, lams, folds, stack=stack)

    def raise_floor(self, folds: Folds | None) -> "DenseSpectrum":
        """Of features, whose own floor is that of fits to all rows."""
        if self.route != "features" or self.complete and folds is None:
            return self
        floor = jnp.maximum(self.report.floor, interpolation_floor(self, folds))
        return replace(self, report=replace(self.report, floor=floor))

    def view(self, solution: Solution, lam: Number) -> LowRankView:
        """R and r of all rows; rows of weight 0 are queries, at which something is predicted."""
        if self.complete:
            view = self.square_view(solution, lam)
        else:
            view = self.thin_view(solution, lam)
        return view if self.weights.values is None else self.with_queries(view, solution, lam)

    def square_view(self, solution: Solution, lam: Number) -> LowRankView:
        """R = U diag(λ/(s + λ)) Uᵀ, where U has a column for every row, of which the fixed effects
        were projected out: UUᵀ = I − HHᵀ.
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
        """R = I − HHᵀ − U diag(s/(s + λ)) Uᵀ, where U has fewer columns than there are rows."""
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
        """r and the diagonal of R of every row, without cancellation."""
        of_rows = lambda r, diagonal, v: (r[:, 0], diagonal[:, 0, 0])
        return self.sweep(solution, lam.reshape(1, 1), of_rows, stack=True)

    def with_queries(self, view: LowRankView, solution: Solution, lam: Number) -> LowRankView:
        """The view with rows z of weight 0 as queries: f(z) = mean + G D z̃ with the map G of a
        query and z̃ = Uᵀỹ, so that R_zS = −(G D Uᵀ + HHᵀ)_zS, and r = y − f.
        """
        labels = solution.labels
        used = self.weights.used
        column = used[:, None]
        map_at_lam = self.query_map() / (self.s + lam)
        unseen = labels.Y - labels.mean - matmul(map_at_lam, solution.state)
        return replace(
            view,
            residuals=jnp.where(column, view.residuals, unseen),
            diagonal=jnp.where(used, view.diagonal, 1),
            row_U=jnp.where(column, view.row_U, -map_at_lam),
            row_H=jnp.where(column, view.row_H, view.H),
            adds_identity=view.adds_identity & used,
        )

    def training_design(self) -> Float[Array, "n c"]:
        """K or features of the rows, which coefficients multiply, computed again."""
        kernel, rows = self.training
        return rows.map(lambda x: self.expansion.design(kernel, x))

    def query_map(self) -> Float[Array, "n r"]:
        """G = design·directions − B fixed_directions of the rows of X, predicted as if they were
        new: f = mean + G (D ∘ z).
        """
        G = matmul(self.training_design(), self.directions)
        return G - self.fixed.fitted(self.fixed.values, self.fixed_directions)


def factor_symmetric(matrix: KernelMatrix, semidefinite: bool = False) -> DenseSpectrum:
    """The dual route: the eigendecomposition of all of K. Cost: about 9n³ flops.

    Fixed effects are projected out of K, and of its eigenvectors once more, which keeps them exact
    for λ down to the precision of K. Eigenvalues below 0 are set to 0; directions in which they are
    negative by more than rounding get no coefficients, unless K is known to be `semidefinite`. Of
    explicit features, K may have a low rank: coefficients along what is rounding alone would be
    1/λ times labels, of which the weights Φᵀc would keep rounding, and are left out.
    Source: Rifkin (lecture), "Varying λ".
    """
    weights = matrix.data.weights
    fixed = matrix.data.fixed
    trace_before = weights.sum(diagonal_of(matrix.K))
    K, effects_fit, removed = fixed.centre_both(weights, matrix.K)
    if matrix.lift is not None:
        constant: Any = fixed.constant_coef
        effects_fit = effects_fit + constant[:, None] * matrix.lift
    s, U = eigh(weights.scale_both(K))
    U = fixed.project(weights, U)
    # What is removed from entries is rounded one by one: 4√n·eps of one.
    heaviest = weights.largest / weights.total
    centring_rounding = 4 * jnp.sqrt(heaviest / weights.count) * removed
    floor = eigh_rounding(weights.count, s, centring_rounding)
    fixed_directions = matmul(effects_fit, weights.scale(U))
    kernel, rows = matrix.training
    has_features = kernel.num_features(rows.shape[1], rows.dtype) is not None
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
    """1 for directions of K that get coefficients, 0 for others; None where all do."""
    if semidefinite and not has_features:
        return None
    # Of features K has a low rank, and what is rounding gets none; of any K what is negative by
    # more than that.
    smallest_kept = floor if semidefinite else -floor
    return jnp.where(s < smallest_kept, 0, 1).astype(s.dtype)


def factor_svd(kernel: Kernel, data: Data) -> Factor:
    """Explicit features by their thin SVD, the most precise route: K's condition number is never
    squared. Directions whose σ may be rounding alone, as where columns are dependent, are left out,
    as `lstsq` does. Cost: O(n r min(n, r)), some 25 products ΦᵀΦ. Source: Rifkin (lecture), "SVD
    approach".
    """
    rows = data.rows
    weights = data.weights
    fixed = data.fixed
    Phi = rows.features(kernel).dense()
    origin = fixed.fit(weights, Phi)
    U, sigma, Vt = svd(weights.scale(fixed.residual(weights, Phi)))
    complete = U.shape[0] == U.shape[1]
    square_before = jnp.sum(weights.scale(Phi) ** 2)
    svd_rounding = rounding(len(sigma), sigma)
    centring_rounding = centred_rounding(square_before)
    floor = (
        jnp.maximum(20 * svd_rounding, 5 * centring_rounding) ** 2
    )  # σ is rounded, not its square: 5 % of √λ
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
