"""The posterior covariance at new rows and one λ, for f ~ N(0, k), labels of noise λ/v and a flat
prior on the fixed effects. It is −λR over queries, with R of `leave_out.view`.

`spread(factor, λ)` makes it, in one of three forms, of which each has the digits that its factor
has: a sum of squares of features, which does not cancel; the kernel less what labels explain; and
the same on explicit features, where these are more than the rows.
"""

from abc import ABC, abstractmethod
from functools import singledispatch
from typing import Any

import jax.numpy as jnp
from jax.lax.linalg import triangular_solve
from jaxtyping import Array, Float

from jaxrls.core.data import FixedEffects, gram
from jaxrls.core.factors import (
    CholeskyFeatures,
    CholeskyGram,
    DenseSpectrum,
    Expansion,
    Factor,
    Primal,
    PrimalSpectrum,
)
from jaxrls.core.kernels import Kernel, Linear
from jaxrls.core.linalg import matmul, triangular_inverse
from jaxrls.core.support import pytree


@pytree
class NewRows:
    """New rows as coordinates: the covariance of two of them is

        added·added' + k(x, x') − taken·J taken',

    where J is the signs of `Spread.signed`.
    """

    X: Any  # None where k(x, x') takes no part
    added: Float[Array, "m s"]
    taken: Float[Array, "m c"]


@pytree
class Spread(ABC):
    """The posterior covariance of f + b at one λ: of rows with each other, or the variance of each.

    Every form has the coordinates u = design·row_map − b·fixed_map of a new row. `effects` of
    methods are the fixed effects' data of new rows, None for an intercept. On landmarks, with
    `corrected`, the covariance includes what they leave of k(x, x).
    """

    expansion: Expansion
    fixed: FixedEffects  # without their rows
    row_map: Float[Array, "c r"]
    fixed_map: Float[Array, "q r"]
    lam: Float[Array, ""]

    def new_rows(self, kernel, X, effects=None, corrected=False) -> NewRows:
        """The coordinates of rows: O(m c r), computed once for all others."""
        design = self.expansion.design(kernel, X)
        return self.coordinates(X, design, self.fixed.dense(effects, design.shape[0]), corrected)

    def between(self, kernel, rows: NewRows, others: NewRows) -> Float[Array, "m k"]:
        """The covariance of rows with others."""
        known = matmul(self.signed(rows.taken), others.taken.T)
        if rows.X is not None:
            known -= gram(self.prior(kernel), rows.X, None if rows is others else others.X)
        return matmul(rows.added, others.added.T) - known

    def variances(self, kernel, rows: NewRows, diag=None) -> Float[Array, " m"]:
        """The variance of each row; `diag` is k(x, x), where the kernel does not know it."""
        prior: Any = 0
        if rows.X is not None:
            prior = self.prior(kernel).diag(rows.X) if diag is None else diag
        rest = prior - jnp.sum(self.signed(rows.taken) * rows.taken, axis=1)
        return jnp.sum(rows.added**2, axis=1) + jnp.maximum(rest, self.least(rows.taken))

    def covariance(self, kernel, rows: NewRows) -> Float[Array, "m m"]:
        """The covariance of rows with each other, with `variances` on its diagonal."""
        diagonal = jnp.diag_indices(len(rows.added))
        return self.between(kernel, rows, rows).at[diagonal].set(self.variances(kernel, rows))

    def of_fixed_effects(self) -> Float[Array, "q q"]:
        """Of the coefficients of the columns as given: of rows without any part in f, with a 1 in
        one of these; infinite for levels without weight, of which nothing is known.
        """
        b = self.fixed.as_given(jnp.eye(self.fixed.count, dtype=self.fixed_map.dtype))
        design = jnp.zeros((len(b), len(self.row_map)), b.dtype)
        rows = self.coordinates(None, design, b, False)
        unknown = jnp.diag(jnp.all(self.flat(b) == 0, axis=1))
        # Nothing is read of a kernel, as the rows have no X.
        return jnp.where(unknown, jnp.inf, self.covariance(None, rows))

    def u_of(self, design, b):
        """u, (m, r)."""
        return matmul(design, self.row_map) - matmul(b, self.fixed_map)

    def flat(self, b):
        """What the flat prior on fixed effects adds, √λ bT⁻¹, (m, q)."""
        return jnp.sqrt(self.lam) * self.fixed.basis_of(b)

    def prior(self, kernel) -> Kernel:
        """The kernel of `NewRows.X`."""
        return kernel

    @abstractmethod
    def coordinates(self, X, design, b, corrected) -> NewRows:
        """Of rows with this design and these columns b; without X, k(x, x') is 0."""

    def signed(self, taken):
        """J times each row's `taken`."""
        return taken

    def least(self, taken) -> Any:
        """What the difference of k and `taken` is at least: by rounding it may be less."""
        return 0


@pytree
class PrimalSpread(Spread):
    """uuᵀ with u = √λ A⁻¹ψ, and on landmarks k − φφᵀ with φ = design·whitener."""

    whitener: Float[Array, "c c"] | None = None

    def coordinates(self, X, design, b, corrected):
        """A sum of squares, and on request what landmarks leave of k."""
        u = self.u_of(design, b)
        added = jnp.concatenate([u, self.flat(b)], axis=1)
        if self.whitener is None or not corrected:
            return NewRows(None, added, u[:, :0])
        return NewRows(X, added, matmul(design, self.whitener))


@pytree
class DualSpread(Spread):
    """k̃ − uuᵀ, with k̃ the kernel after the fixed effects are projected out: with `fit` =
    design·share, what they fit of k(·, x),

        k̃(x, x') = k(x, x') − b·fit' − fit·b' + b·both·b'.
    """

    shrinkage: Float[Array, "#r"]
    share: Float[Array, "n q"]  # VB(BᵀVB)⁻¹
    both: Float[Array, "q q"]  # shareᵀ K share

    def coordinates(self, X, design, b, corrected):
        """u, b and fit."""
        parts = self.u_of(design, b), b, matmul(design, self.share)
        return NewRows(X, self.flat(b), jnp.concatenate(parts, axis=1))

    def signed(self, taken):
        """u, fit − b·both and b."""
        r = self.fixed_map.shape[1]
        q = len(self.fixed_map)
        u, b, fit = jnp.split(taken, [r, r + q], axis=1)
        return jnp.concatenate([u, fit - matmul(b, self.both), b], axis=1)

    def least(self, taken):
        """Of u alone."""
        return _left_of(self.shrinkage, taken[:, : self.fixed_map.shape[1]])


@pytree
class SolvedSpread(DualSpread):
    """With u = L⁻¹(I − HHᵀ)√v(design − b·fit) by a triangular solve, where `row_map` is L and
    `fixed_map` is fit. L⁻¹ has entries as large as 1/√λ: u by a product with it has an error 50
    times as large, in k̃ − uuᵀ, of which nearly all digits cancel where λ is small.
    """

    root: Float[Array, " n"]  # √v
    H: Float[Array, "n q"]

    def u_of(self, design, b):
        """By the solve."""
        scaled = (design - matmul(b, self.fixed_map)) * self.root
        left = scaled - matmul(matmul(scaled, self.H), self.H.T)
        return triangular_solve(self.row_map, left, lower=True, transpose_a=True)


@pytree
class FeatureSpread(Spread):
    """ψψᵀ − uuᵀ with features ψ = φ − b·origin, which are the design less what the fixed effects
    fit of it.
    """

    shrinkage: Float[Array, "#r"]
    origin: Float[Array, "q c"]

    def coordinates(self, X, design, b, corrected):
        """ψ as rows of the linear kernel, and u."""
        psi = design - matmul(b, self.origin)
        return NewRows(psi, self.flat(b), self.u_of(design, b))

    def prior(self, kernel):
        """ψψᵀ."""
        return Linear()

    def least(self, taken):
        """Of all of it, which is u."""
        return _left_of(self.shrinkage, taken)


def _left_of(shrinkage, u) -> Float[Array, " m"]:
    """What k̃ − uuᵀ is at least, with the `shrinkage` λ/(s + λ) of every coordinate of u.

    With a = G⁻¹k̃ it is ‖φ(x) − Σ aᵢφ(xᵢ)‖² + λ‖a‖², of which the last does not cancel. With G = U
    (s + λ) Uᵀ and u = (s + λ)^(−½) Uᵀk̃ it is Σ λu²/(s + λ). Without eigenvalues it is bounded by
    Σ s in the place of each.
    """
    return jnp.sum(shrinkage * u * u, axis=1)


# of every factor
# --------------------------------------------------------------------------------------------------


@singledispatch
def spread(factor: Factor, lam: Float[Array, ""]) -> Any:
    """The posterior covariance of a factor at one λ: a `Spread`, or what a room has registered for
    a factor of its own.
    """
    raise ValueError(
        f"a factor by route {factor.route!r} has no posterior variances: use another solver, such "
        "as Spectral()"
    )


@spread.register(DenseSpectrum)
def _of_dense_spectrum(factor: DenseSpectrum, lam):
    """Of all of K, or of features of few rows."""
    if factor.feature_directions is not None:
        return _of_basis(factor, lam)
    row_map, fixed_map, shrinkage = _kept(factor, lam)
    return _of_matrix(factor, lam, row_map, fixed_map, shrinkage, factor.training_design())


def _kept(factor, lam):
    """Directions and what the fixed effects fit of them, over √(s + λ), and λ/(s + λ)."""
    root = jnp.sqrt(factor.s + lam)
    return factor.directions / root, factor.fixed_directions / root, lam / (factor.s + lam)


@spread.register(PrimalSpectrum)
def _of_primal_spectrum(factor: PrimalSpectrum, lam):
    """On features, or on landmarks."""
    if factor.trace_residual is None:
        return _of_basis(factor, lam)
    root = jnp.sqrt(factor.s)  # of what is hidden the prior is left
    scale = jnp.sqrt(lam / (factor.s_above_rounding + lam)) / root
    row_map = factor.directions * scale
    fixed_map = factor.fixed_directions * scale
    whitener = factor.directions / root
    return PrimalSpread(
        factor.expansion, factor.fixed.without_values(), row_map, fixed_map, lam, whitener
    )


def _of_basis(factor, lam) -> Spread:
    """On features, from the coefficients of each direction on them."""
    basis = factor.directions
    fixed = factor.fixed.without_values()
    c, r = factor.directions.shape
    if c > r:
        row_map, fixed_map, shrinkage = _kept(factor, lam)
        return FeatureSpread(
            factor.expansion, fixed, row_map, fixed_map, lam, shrinkage, factor.origin
        )
    second = matmul(basis, basis.T)  # of features, less their fit by fixed effects
    A = jnp.linalg.cholesky(second + lam * jnp.eye(c, dtype=factor.dtype))
    row_map = jnp.sqrt(lam) * triangular_inverse(A).T
    return PrimalSpread(factor.expansion, fixed, row_map, matmul(factor.origin, row_map), lam)


@spread.register(CholeskyGram)
def _of_cholesky(factor: CholeskyGram, lam):
    """By one more Cholesky factor, of K with the fixed effects projected out."""
    weights = factor.weights
    fixed = factor.fixed
    K, effects_coef, _ = fixed.centre_both(weights, factor.K)
    if factor.lift is not None:
        effects_coef = effects_coef + fixed.constant_coef[:, None] * factor.lift
    shrinkage = (lam / (jnp.trace(weights.scale_both(K)) + lam))[None]
    G = factor.with_effects(K) + lam * jnp.eye(factor.n, dtype=factor.dtype)
    lower = None if factor.lift is not None else factor.lower(G)
    if lower is not None:
        root = weights.root
        H = factor.H
        share, both = _of_effects(factor, factor.K)
        maps = lower, effects_coef, lam, shrinkage
        return SolvedSpread(factor.expansion, fixed.without_values(), *maps, share, both, root, H)
    row_map = weights.scale(fixed.project(weights, factor.inverse_root(G).T))
    K = factor.K if factor.lift is None else None
    return _of_matrix(factor, lam, row_map, matmul(effects_coef, row_map), shrinkage, K)


@spread.register(CholeskyFeatures)
def _of_cholesky_features(factor: CholeskyFeatures, lam):
    """By the factor itself."""
    maps = factor.maps_at(lam, factor.second[:, :0])
    root = jnp.sqrt(lam)
    row_map = root * maps.row_map
    fixed_map = root * maps.fixed_map
    fixed = factor.fixed.without_values()
    return PrimalSpread(factor.expansion, fixed, row_map, fixed_map, lam, factor.map.whitener)


def _of_effects(factor, K) -> tuple[Any, Any]:
    """`share` and `both` of a `DualSpread`; without K only the former."""
    fixed = factor.fixed
    q = factor.fixed.count
    B = fixed.fitted(fixed.values, fixed.solve(jnp.eye(q, dtype=factor.dtype)))
    share = factor.weights.array[:, None] * jnp.broadcast_to(B, (factor.n, q))
    return share, None if K is None else matmul(share.T, matmul(K, share))


def _of_matrix(factor, lam, row_map, fixed_map, shrinkage, K) -> Spread:
    """From a factor of K of all rows; K is None where that is not the expansion's kernel."""
    fixed = factor.fixed.without_values()
    expansion = factor.expansion
    if expansion.origin is None:
        K = gram(factor.training[0], expansion.points) if K is None else K
        effects = _of_effects(factor, K)
        return DualSpread(expansion, fixed, row_map, fixed_map, lam, shrinkage, *effects)
    share, _ = _of_effects(factor, None)
    phi = factor.training[0].features(expansion.points)
    row_map = matmul((phi - expansion.origin).T, row_map)
    origin = matmul(share.T, phi)
    return FeatureSpread(Primal(), fixed, row_map, fixed_map, lam, shrinkage, origin)
