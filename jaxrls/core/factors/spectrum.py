"""Factors that serve every λ from one eigendecomposition, of K, of features or of their moments.

With weights v and fixed effects √v B = H T, the decomposition is

    (I − HHᵀ) √v K √v (I − HHᵀ) = U diag(s) Uᵀ.

With D = 1/(s + λ) and z = Uᵀ√v y, everything at λ follows:

    coefficients = directions (D ∘ z)
    β = labels.beta − fixed_directions (D ∘ z)
    R = (I − HHᵀ − UUᵀ) + U diag(λD) Uᵀ

Nothing is computed as a difference of numbers of size 1/λ. If U is square, the first part of R is
exactly 0, and several sums are shorter: these are in `SquareSpectrum`.

Begin with the class `Spectrum`. Its subclass `DenseSpectrum` keeps U. `factor_symmetric` makes a
`GramSpectrum` of K, and `factor_svd` a `FeatureSpectrum` of explicit features.

Theory: `docs/theory.md`, "One factorization, every λ".
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Data, Folds, Labels, Weights
from jaxrls.core.factors.expansion import Expansion, KernelMatrix, Primal
from jaxrls.core.factors.factor import Factor
from jaxrls.core.factors.floor import (
    ABOVE_ROUNDING,
    CENTRING_ROUNDINGS,
    SVD_ROUNDINGS,
    Report,
    centred_rounding,
    interpolation_floor,
)
from jaxrls.core.factors.lams import PerLam, PerTarget, matmul_lams, over_lams
from jaxrls.core.factors.refits import pays_to_refit, sweep_dual_refits
from jaxrls.core.factors.residuals import Residuals, RowLabels
from jaxrls.core.factors.solution import Solution
from jaxrls.core.kernels import Kernel
from jaxrls.core.leave_out import LowRankView
from jaxrls.core.linalg import (
    MAP,
    Number,
    Reduction,
    clip_negative,
    diagonal_of,
    eigh,
    eigh_rounding,
    matmul,
    rounding,
    svd,
    transposed_matmul,
)
from jaxrls.core.support import pytree


class LeftBlock(NamedTuple):
    """A block of rows of U, and what belongs to them."""

    U: Float[Array, "b r"]
    weights: Weights
    b: Any  # their part of `FixedEffects.values`
    added: Any = None  # their part of what the caller added


class OutsideOfU(NamedTuple):
    """The residuals of a block of rows outside of the directions U. They are the same at every λ.

    Args:
        r: (I − UUᵀ)ỹ.
        diagonal: that of I − HHᵀ − UUᵀ.
    """

    r: Float[Array, "b t"]
    diagonal: Float[Array, " b"]


@pytree
class Spectrum(Factor):
    """The eigendecomposition of one kernel on one X, which serves every λ.

    (I − HHᵀ) K̃ (I − HHᵀ) = U diag(s) Uᵀ with K̃ = √v K √v.

    Args:
        data: the rows, or their features, with weights and fixed effects.
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
    is_dual: ClassVar[bool] = False  # whether coefficients belong to the rows, not to features
    data: Data
    s: Float[Array, " r"]
    fixed_directions: Float[Array, "q r"]
    expansion: Expansion
    report: Report

    @abstractmethod
    def read_left(self, reduction: Reduction, fn: Callable, added: Any = None) -> Any:
        """Sum or map `fn(block)` over blocks of rows, each a `LeftBlock`.

        `added` is what else `fn` reads of the rows, as `block.added`.
        """

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
        lams = lams[:, None]
        return jnp.moveaxis(lams / (self.s[None, :, None] + lams), 1, 0)

    def coef_and_beta(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """Return directions (D ∘ z) and β = labels.beta − fixed_directions (D ∘ z).

        Where K has no information, s is 0, but directions √v U of rows are not. So D ∘ z is set to
        0 too. Cost: O(c r t L).
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

    def sweep(self, reduction: Reduction, solution: Solution, lams: PerLam, fn: Callable) -> Any:
        """Sum or map `fn` of residuals over rows, in one pass for all λ.

        Cost: O(n r L (t + 1)).
        """
        z = solution.state
        t = solution.labels.Y.shape[1]

        def of_block(block: LeftBlock) -> Any:
            U = block.U
            labels: RowLabels = block.added
            outside = self.outside(block, z)

            def of_lams(lams: PerLam) -> Any:
                residual_share = self.residual_share(lams)
                r = matmul_lams(U, residual_share * z[:, None])
                diagonal = matmul_lams(U * U, residual_share)
                if outside is not None:
                    r = outside.r[:, None] + r
                    diagonal = outside.diagonal[:, None, None] + diagonal
                return fn(Residuals(r, diagonal, block.weights, labels))

            return over_lams(reduction, of_lams, lams, t)

        return self.read_left(reduction, of_block, self.labels_of_rows(solution))

    def outside(self, block: LeftBlock, z: Float[Array, "r t"]) -> OutsideOfU | None:
        """Return what a block of rows has outside of U, or None if U leaves no dimension out."""
        return OutsideOfU(
            r=block.added.scaled - matmul(block.U, z), diagonal=self.diagonal_outside(block)
        )

    def diagonal_outside(self, block: LeftBlock) -> Float[Array, " b"]:
        """Return the diagonal of I − HHᵀ − UUᵀ for a block of rows."""
        U = block.U
        return 1 - jnp.sum(U * U, axis=1) - self.fixed.leverage(block.b, block.weights.array)


@pytree
class DenseSpectrum(Spectrum):
    """The base class of spectra that keep their left vectors U, thin unless `SquareSpectrum`.

    Args:
        kernel: the kernel, to predict the rows as if they were new.
        U: (n, r).
    """

    shards: ClassVar[Any] = 1  # U is one array, wherever the rows are stored
    kernel: Any
    U: Float[Array, "n r"]

    @property
    @abstractmethod
    def directions(self) -> Float[Array, "c r"]:
        """The coefficients (c, r) of every direction."""

    def read_left(self, reduction: Reduction, fn: Callable, added: Any = None) -> Any:
        """Apply `fn` to all rows at once, in one large product."""
        return fn(LeftBlock(self.U, self.weights, self.fixed.values, added))

    def state_of(self, labels: Labels) -> Float[Array, "r t"]:
        """Compute z = Uᵀ√v y."""
        return transposed_matmul(self.U, labels.scaled)

    def view(self, solution: Solution, lam: Number) -> LowRankView:
        """Return R and r of all rows. Rows of weight 0 are queries, at which something is
        predicted.
        """
        H = self.fixed_basis * self.weights.root_or_one[:, None]
        view = self.without_queries(H, lam, *self.single_rows(solution, lam))
        if self.weights.values is None:
            return view
        labels = solution.labels
        map_at_lam = self.query_map() / (self.s + lam)
        unseen = labels.Y - labels.by_effects - matmul(map_at_lam, solution.state)
        return view.with_queries(self.weights.used, unseen, map_at_lam)

    def without_queries(
        self,
        H: Float[Array, "n q"],
        lam: Number,
        residuals: Float[Array, "n t"],
        diagonal: Float[Array, " n"],
    ) -> LowRankView:
        """Return R and r of all rows, where no row is a query."""
        return LowRankView.from_thin(self.U, H, self.s / (self.s + lam), residuals, diagonal)

    def single_rows(
        self, solution: Solution, lam: Number
    ) -> tuple[Float[Array, "n t"], Float[Array, " n"]]:
        """Return r and the diagonal of R of every row.

        For a thin U the part of the diagonal outside of U is 1 − ΣU² − ΣH², a difference.
        """
        of_rows = lambda residuals: (residuals.r[:, 0], residuals.diagonal[:, 0, 0])
        return self.sweep(MAP, solution, lam.reshape(1, 1), of_rows)

    def training_design(self) -> Float[Array, "n c"]:
        """Compute what coefficients multiply at the rows: K, or their features."""
        return self.data.rows.map(lambda x: self.expansion.design(self.kernel, x))

    def query_map(self) -> Float[Array, "n r"]:
        """Return G = design·directions − B fixed_directions, with f = mean + G (D ∘ z).

        It is made from the rows of X as if they were new.
        """
        G = matmul(self.training_design(), self.directions)
        return G - self.fixed.fitted(self.fixed.values, self.fixed_directions)


class SquareSpectrum(DenseSpectrum):
    """The base class of spectra with a square U, which leaves no dimension out.

    The first part of R is exactly 0, so that R = U diag(λD) Uᵀ.
    """

    def outside(self, block: LeftBlock, z: Float[Array, "n t"]) -> None:
        """Return None: both parts are 0."""

    def diagonal_outside(self, block: LeftBlock) -> Float[Array, " n"]:
        """Return 0."""
        return jnp.zeros_like(block.U[:, 0])

    def residual_norm(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute Σ vᵢ (yᵢ − f(xᵢ))² as Σ (λDz)²."""
        return jnp.sum((self.residual_share(lams) * solution.state[:, None]) ** 2, axis=0)

    def over_dimensions(self, inside: Float[Array, "n L k"], outside: PerLam) -> PerLam:
        """Sum `inside` over `residual_dimensions()` dimensions.

        Some of the n columns of U lie along the fixed effects or along rows of weight 0. After both
        are removed from a column, its squared length is the weight with which the column counts.
        """
        squares = self.U**2
        if self.weights.values is not None:
            squares = jnp.where(self.weights.used[:, None], squares, 0)
        squared_lengths = jnp.sum(squares, axis=0)
        return jnp.sum(squared_lengths[:, None, None] * inside, axis=0)

    def without_queries(
        self,
        H: Float[Array, "n q"],
        lam: Number,
        residuals: Float[Array, "n t"],
        diagonal: Float[Array, " n"],
    ) -> LowRankView:
        """Return R and r of all rows, where no row is a query."""
        return LowRankView.from_square(self.U, H, lam / (self.s + lam), residuals, diagonal)


@pytree
class GramSpectrum(SquareSpectrum):
    """A spectrum of K of all rows.

    Args:
        present: (n,), 1 for directions that get coefficients and 0 for others. If K may be
            indefinite, 0 marks its negative directions. If K is semidefinite and of features, 0
            marks directions that are rounding. For any other K all directions get coefficients,
            and this is None.
    """

    is_dual: ClassVar[bool] = True
    present: Float[Array, " n"] | None

    @property
    def directions(self):
        """The coefficients of each direction, √v U, with 0 for directions that are not present."""
        dual = self.weights.scale(self.U)
        return dual if self.present is None else dual * self.present

    @property
    def drops_rounding(self) -> bool:
        """Whether a fit to some of the rows drops directions that are not above rounding.

        It does unless all directions of K get coefficients. Negative directions are not above
        rounding either.
        """
        return self.present is not None

    def sweep_folds(
        self, reduction: Reduction, solution: Solution, lams: PerLam, fn: Callable, folds: Folds
    ) -> Any:
        """Compute `Factor.sweep_folds`, by fits to the other rows if these cost less than R_SS at
        every λ.
        """
        if pays_to_refit(folds, len(lams)):
            return sweep_dual_refits(reduction, self, solution, lams, fn, folds)
        return super().sweep_folds(reduction, solution, lams, fn, folds)


@pytree
class FeatureSpectrum(DenseSpectrum):
    """A spectrum of fewer explicit features than rows.

    Args:
        feature_directions: (c, r), the coefficients of each direction.
        fixed_fit: (q, c), coefficients of the fit of the features by the fixed effects.
    """

    feature_directions: Float[Array, "c r"]
    fixed_fit: Float[Array, "q c"]

    @property
    def directions(self):
        """The coefficients of each direction."""
        return self.feature_directions

    def raise_floor(self, folds: Folds | None) -> "FeatureSpectrum":
        """Return the factor with a floor from which on these folds are held out exactly.

        The floor so far is that of a fit to all rows.
        """
        floor = jnp.maximum(self.report.floor, interpolation_floor(self, folds))
        return replace(self, report=replace(self.report, floor=floor))


@pytree
class SquareFeatureSpectrum(SquareSpectrum, FeatureSpectrum):
    """A spectrum of at least as many explicit features as rows."""

    def raise_floor(self, folds: Folds | None) -> FeatureSpectrum:
        """Return the factor with a floor from which on these folds are held out exactly.

        Single rows need no other floor than the fit to all rows.
        """
        return self if folds is None else super().raise_floor(folds)


def factor_symmetric(matrix: KernelMatrix, semidefinite: bool = False) -> GramSpectrum:
    """Return the spectrum of K of all rows, the dual route. Cost: about 9n³ flops.

    Fixed effects are projected out of K. They are projected out of its eigenvectors once more,
    which keeps them exact for λ down to the precision of K.

    Eigenvalues below 0 are set to 0. Directions whose eigenvalue is negative by more than rounding
    get no coefficients, unless K is known to be `semidefinite`.

    K of explicit features may have a low rank. If it is also `semidefinite`, directions that are
    only rounding get no coefficients. Such coefficients would be of size 1/λ times labels, and the
    feature weights Φᵀc would keep their rounding.

    Source: Rifkin (lecture), "Varying λ".
    """
    weights = matrix.data.weights
    fixed = matrix.data.fixed
    trace_before = weights.sum(diagonal_of(matrix.K))
    centred = fixed.centre_both(weights, matrix.K)
    eigenvalues, U = eigh(weights.scale_both(centred.K))
    U = fixed.project(weights, U)
    removed = _eigenvalue_rounded_like(centred.removed, weights)
    floor = eigh_rounding(weights.count, jnp.maximum(jnp.max(eigenvalues), removed))
    has_features = matrix.data.rows.num_features(matrix.kernel) is not None
    present = _present_directions(eigenvalues, floor, has_features, semidefinite)
    s, below = clip_negative(eigenvalues, removed)
    effects_coef = centred.coef
    if matrix.lift is not None:
        constant: Any = fixed.constant_coef
        effects_coef = effects_coef + constant[:, None] * matrix.lift
    fixed_directions = matmul(effects_coef, weights.scale(U))
    if present is not None:
        fixed_directions = fixed_directions * present
        s = s * present
    report = Report("gram", floor, below).with_information(
        jnp.max(s), ABOVE_ROUNDING * floor, trace_before
    )
    return GramSpectrum(
        data=matrix.data,
        s=report.where_informative(s),
        fixed_directions=fixed_directions,
        expansion=matrix.expansion,
        report=report,
        kernel=matrix.kernel,
        U=U,
        present=present,
    )


def _eigenvalue_rounded_like(removed: Number, weights: Weights) -> Number:
    """Return the eigenvalue whose rounding is as large as that of what centring removed from K̃.

    `removed` is that of `Centred`. For an intercept the removed part of K̃ has entries m√(vᵢvⱼ),
    where m = `removed`/Σv is about the mean of K. Each entry is rounded by about eps of itself. A
    random matrix of such errors has a norm of at most

        2 eps m √(v_max Σv) = 2 eps `removed` √(v_max/Σv).

    Twice as much is taken. An eigenvalue s of n rows is rounded by √n eps s, which is as much for
    s = 4 `removed` √(v_max/(n Σv)). With weights 1, this is 4m.
    """
    heaviest = weights.largest / weights.total
    return 4 * jnp.sqrt(heaviest / weights.count) * removed


def _present_directions(
    eigenvalues: Float[Array, " r"],
    size_of_rounding: Number,
    has_features: bool,
    semidefinite: bool,
) -> Float[Array, " r"] | None:
    """Return 1 for directions of K that get coefficients, 0 for others; None if all get them."""
    if not semidefinite:
        is_absent = eigenvalues < -size_of_rounding  # negative by more than rounding
    elif has_features:
        is_absent = eigenvalues < size_of_rounding  # K of features may have a low rank
    else:
        return None
    return jnp.where(is_absent, 0, 1).astype(eigenvalues.dtype)


def factor_svd(kernel: Kernel, data: Data) -> Factor:
    """Return the spectrum of explicit features by their thin SVD, which is the most precise route.

    The condition number of K is never squared. Directions whose singular value σ may be rounding
    alone are left out, as `lstsq` does. They occur if columns are dependent.

    Cost: O(n r min(n, r)), about as long as 25 products ΦᵀΦ. Source: Rifkin (lecture), "SVD
    approach".
    """
    weights = data.weights
    fixed = data.fixed
    Phi = data.rows.feature_rows(kernel).dense()
    fixed_fit = fixed.fit(weights, Phi)
    U, sigma, Vt = svd(weights.scale(fixed.residual(weights, Phi)))
    square_before = jnp.sum(weights.scale(Phi) ** 2)
    largest = jnp.max(sigma)
    svd_rounding = rounding(len(sigma), largest)
    centring_rounding = centred_rounding(square_before)
    floor = jnp.maximum(SVD_ROUNDINGS * svd_rounding, CENTRING_ROUNDINGS * centring_rounding) ** 2
    report = Report("features", floor, jnp.zeros_like(floor))
    report = report.with_information(largest, centring_rounding, square_before)
    is_present = sigma > jnp.maximum(2 * svd_rounding, centring_rounding)
    sigma = jnp.where(is_present, sigma, 0)
    directions = Vt.T * sigma
    kind = FeatureSpectrum if Phi.shape[0] > Phi.shape[1] else SquareFeatureSpectrum
    factor = kind(
        data=data,
        s=report.where_informative(sigma**2),
        fixed_directions=matmul(fixed_fit, directions),
        expansion=Primal(),
        report=report,
        kernel=kernel,
        U=fixed.project(weights, U),
        feature_directions=directions,
        fixed_fit=fixed_fit,
    )
    return factor.raise_floor(None)
