"""The posterior covariance of f + b at new rows, at one λ.

The prior is f ~ N(0, k), labels have noise of variance λ/v, and the fixed effects b have a flat
prior. The posterior covariance is then −λR over queries, with R of `leave_out.view`.

`spread(factor, λ)` makes a `Spread`. Each class computes the covariance in a form that keeps the
digits of its factor:

* `PrimalSpread`: a sum of squares of features, in which nothing cancels;
* `DualSpread` and `SolvedSpread`: the kernel minus what the labels explain;
* `FeatureSpread`: the same difference on explicit features, if there are more features than rows.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import singledispatch
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.lax.linalg import triangular_solve
from jaxtyping import Array, Float

from jaxrls.core.data import FixedEffects, gram
from jaxrls.core.factors import (
    CholeskyFeatures,
    CholeskyGram,
    Expansion,
    Factor,
    FeatureSpectrum,
    GramSpectrum,
    OuterSpectrum,
    Primal,
    PrimalSpectrum,
    Spectrum,
)
from jaxrls.core.fit import Numbers
from jaxrls.core.kernels import Kernel, Linear
from jaxrls.core.linalg import Number, Square, matmul, triangular_inverse
from jaxrls.core.support import pytree


@pytree
class NewRows:
    """New rows as coordinates, from which covariances are computed.

    The covariance of two rows is

        added·added' + k(x, x') − taken·J taken'

    with J the symmetric matrix of `Spread.signed`, and with the kernel k of `Spread.prior`.
    """

    prior_points: Any  # what k is a function of: rows, or ψ; None if there is no term k(x, x')
    added: Float[Array, "m s"]
    taken: Float[Array, "m c"]


@pytree
class Spread(ABC):
    """The posterior covariance of f + b at one λ; `spread` makes it.

    Every subclass computes coordinates u of a new row, which are linear in its design and in its
    columns b of fixed effects. The argument `effects` of methods is the fixed effects' data of new
    rows, None for an intercept. The argument `kernel` may be None for rows without `prior_points`.
    """

    expansion: Expansion
    fixed: FixedEffects  # without the values at rows
    lam: Float[Array, ""]

    @property
    @abstractmethod
    def map_shape(self) -> tuple[int, ...]:
        """The shape (c, r) of the map from a design to the coordinates u."""

    @abstractmethod
    def u_of(self, design: Float[Array, "m c"], b: Float[Array, "m q"]) -> Float[Array, "m r"]:
        """Return the coordinates u, (m, r)."""

    def new_rows(
        self, kernel: Kernel, X: Any, effects: Any = None, corrected: bool = False
    ) -> NewRows:
        """Return the coordinates of new rows, O(m c r).

        They are computed once, and used for covariances with any other rows. On landmarks,
        `corrected` adds to the covariance what the landmarks miss of k, which is k − φφᵀ.
        """
        spread = self if corrected else self.uncorrected()
        design = self.expansion.design(kernel, X)
        return spread.coordinates(X, design, self.fixed.dense(effects, design.shape[0]))

    def between(self, kernel: Kernel | None, rows: NewRows, others: NewRows) -> Float[Array, "m k"]:
        """Return the covariance of rows with other rows."""
        known = matmul(self.signed(rows.taken), others.taken.T)
        if rows.prior_points is not None:
            points = None if rows is others else others.prior_points
            known -= gram(self.prior(kernel), rows.prior_points, points)
        return matmul(rows.added, others.added.T) - known

    def variances(
        self, kernel: Kernel | None, rows: NewRows, diag: Float[Array, " m"] | None = None
    ) -> Float[Array, " m"]:
        """Return the variance of each row.

        `diag` is k(x, x) if the kernel does not know it, else None.
        """
        prior: Any = 0
        if rows.prior_points is not None:
            prior = self.prior(kernel).diag(rows.prior_points) if diag is None else diag
        rest = prior - jnp.sum(self.signed(rows.taken) * rows.taken, axis=1)
        return jnp.sum(rows.added**2, axis=1) + jnp.maximum(rest, self.least(rows.taken))

    def covariance(self, kernel: Kernel | None, rows: NewRows) -> Float[Array, "m m"]:
        """Return the covariance of rows with each other, with `variances` on its diagonal."""
        diagonal = jnp.diag_indices(len(rows.added))
        return self.between(kernel, rows, rows).at[diagonal].set(self.variances(kernel, rows))

    def of_fixed_effects(self) -> Float[Array, "q q"]:
        """Return the covariance of the coefficients of the fixed effects, for the columns as given.

        It is computed as the covariance of rows without any part in f, each with a 1 in one column
        and 0 in the others. The variance is infinite for levels without weight, of which nothing is
        known.
        """
        b = self.fixed.as_given(jnp.eye(self.fixed.count, dtype=self.fixed.dtype))
        design = jnp.zeros((len(b), self.map_shape[0]), b.dtype)
        rows = self.uncorrected().coordinates(None, design, b)
        unknown = jnp.diag(jnp.all(self.flat(b) == 0, axis=1))
        return jnp.where(unknown, jnp.inf, self.covariance(None, rows))

    def flat(self, b: Float[Array, "m q"]) -> Float[Array, "m q"]:
        """Return √λ bT⁻¹, (m, q): the coordinates that the flat prior on fixed effects adds."""
        return jnp.sqrt(self.lam) * self.fixed.basis_of(b)

    def prior(self, kernel: Kernel | None) -> Any:
        """Return the kernel whose values at `NewRows.prior_points` enter the covariance."""
        return kernel

    def uncorrected(self) -> "Spread":
        """Return the covariance without what landmarks miss of k. Here nothing is missed."""
        return self

    @abstractmethod
    def coordinates(self, X: Any, design: Float[Array, "m c"], b: Float[Array, "m q"]) -> NewRows:
        """Return the coordinates of rows with this design and these columns b of fixed effects.

        Without X, k(x, x') counts as 0.
        """

    def signed(self, taken: Float[Array, "m k"]) -> Float[Array, "m k"]:
        """Return `taken`·J, with the symmetric matrix J of this class; here J = I."""
        return taken

    def least(self, taken: Float[Array, "m k"]) -> Any:
        """Return a lower bound of k(x, x) − taken·J taken. Rounding may make the difference
        smaller.
        """
        return 0


@pytree
class MappedSpread(Spread):
    """A covariance whose coordinates are u = design·row_map − b·fixed_map."""

    row_map: Float[Array, "c r"]
    fixed_map: Float[Array, "q r"]

    @property
    def map_shape(self) -> tuple[int, ...]:
        """The shape of `row_map`."""
        return self.row_map.shape

    def u_of(self, design: Float[Array, "m c"], b: Float[Array, "m q"]) -> Float[Array, "m r"]:
        """Return the coordinates u, (m, r), by two products."""
        return matmul(design, self.row_map) - matmul(b, self.fixed_map)


@pytree
class PrimalSpread(MappedSpread):
    """The covariance uuᵀ with u = √λ A⁻¹ψ.

    On landmarks k − φφᵀ is added to it, with φ = design·whitener.
    """

    whitener: Float[Array, "c c"] | None = None

    def coordinates(self, X: Any, design: Float[Array, "m c"], b: Float[Array, "m q"]) -> NewRows:
        """Return the coordinates with `added` from u, and on landmarks with X and `taken` = φ."""
        u = self.u_of(design, b)
        added = jnp.concatenate([u, self.flat(b)], axis=1)
        if self.whitener is None:
            return NewRows(prior_points=None, added=added, taken=u[:, :0])
        return NewRows(prior_points=X, added=added, taken=matmul(design, self.whitener))

    def uncorrected(self) -> "PrimalSpread":
        """Return the covariance uuᵀ alone."""
        return replace(self, whitener=None)


@pytree
class KernelSpread(Spread):
    """The covariance k̃ − uuᵀ, with k̃ the kernel after the fixed effects are projected out.

    With fitted = design·fixed_map_of_rows, which is what the fixed effects fit of k(·, x),

        k̃(x, x') = k(x, x') − b·fitted' − fitted·b' + b·fixed_gram·b'.
    """

    shrinkage: Float[Array, "#r"]
    fixed_map_of_rows: Float[Array, "n q"]  # VB(BᵀVB)⁻¹
    fixed_gram: Float[Array, "q q"]  # PᵀKP with P = fixed_map_of_rows

    def coordinates(self, X: Any, design: Float[Array, "m c"], b: Float[Array, "m q"]) -> NewRows:
        """Return the coordinates with `taken` = [u, b, fitted]."""
        fitted = matmul(design, self.fixed_map_of_rows)
        taken = jnp.concatenate([self.u_of(design, b), b, fitted], axis=1)
        return NewRows(prior_points=X, added=self.flat(b), taken=taken)

    def signed(self, taken: Float[Array, "m k"]) -> Float[Array, "m k"]:
        """Return `taken`·J = [u, fitted − b·fixed_gram, b]."""
        r = self.map_shape[1]
        u, b, fitted = jnp.split(taken, [r, r + self.fixed.count], axis=1)
        return jnp.concatenate([u, fitted - matmul(b, self.fixed_gram), b], axis=1)

    def least(self, taken: Float[Array, "m k"]) -> Any:
        """Return the lower bound of k̃ − uuᵀ, from u alone."""
        return _left_of(self.shrinkage, taken[:, : self.map_shape[1]])


@pytree
class DualSpread(KernelSpread, MappedSpread):
    """The covariance k̃ − uuᵀ, with u by two products."""


@pytree
class SolvedSpread(KernelSpread):
    """The covariance k̃ − uuᵀ, with u by a triangular solve.

        u = L⁻¹(I − HHᵀ)√v(design − b·effects_coef)

    L⁻¹ has entries as large as 1/√λ, so that u by a product with L⁻¹ has an error 50 times as
    large. In k̃ − uuᵀ nearly all digits cancel if λ is small.
    """

    lower: Float[Array, "n n"]  # L
    effects_coef: Float[Array, "q n"]  # of the fit of K by the fixed effects
    root: Float[Array, " n"]  # √v
    H: Float[Array, "n q"]

    @property
    def map_shape(self) -> tuple[int, ...]:
        """The shape of L."""
        return self.lower.shape

    def u_of(self, design: Float[Array, "m c"], b: Float[Array, "m q"]) -> Float[Array, "m r"]:
        """Return the coordinates u, (m, n), by the triangular solve."""
        scaled = (design - matmul(b, self.effects_coef)) * self.root
        left = scaled - matmul(matmul(scaled, self.H), self.H.T)
        return triangular_solve(self.lower, left, lower=True, transpose_a=True)


@pytree
class FeatureSpread(MappedSpread):
    """The covariance ψψᵀ − uuᵀ on explicit features.

    ψ = φ − b·fixed_fit are the features minus what the fixed effects fit of them.
    """

    shrinkage: Float[Array, "#r"]
    fixed_fit: Float[Array, "q c"]

    def coordinates(self, X: Any, design: Float[Array, "m c"], b: Float[Array, "m q"]) -> NewRows:
        """Return the coordinates with ψ as rows of the linear kernel, and `taken` = u."""
        psi = design - matmul(b, self.fixed_fit)
        return NewRows(prior_points=psi, added=self.flat(b), taken=self.u_of(design, b))

    def prior(self, kernel: Kernel | None) -> Linear:
        """Return the linear kernel, whose values at ψ are ψψᵀ."""
        return Linear()

    def least(self, taken: Float[Array, "m k"]) -> Any:
        """Return the lower bound of ψψᵀ − uuᵀ, from all of `taken`, which is u."""
        return _left_of(self.shrinkage, taken)


def _left_of(shrinkage: Float[Numbers, "#r"], u: Float[Array, "m r"]) -> Float[Array, " m"]:
    """Return a lower bound of k̃ − uuᵀ, with `shrinkage` = λ/(s + λ) of every coordinate of u.

    With a = G⁻¹k̃ and G = K̃ + λI,

        k̃(x, x) − uuᵀ = ‖φ(x) − Σ aᵢφ(xᵢ)‖² + λ‖a‖²

    The last term is the bound, in which nothing cancels. With G = U (s + λ) Uᵀ and u = (s + λ)^(−½)
    Uᵀk̃,

        λ‖a‖² = Σ λu²/(s + λ)

    If eigenvalues are not known, Σ s takes the place of each of them, which gives a lower bound
    too.
    """
    return jnp.sum(shrinkage * u * u, axis=1)


# of every factor
# --------------------------------------------------------------------------------------------------


@singledispatch
def spread(factor: Factor, lam: Float[Array, ""]) -> Any:
    """Return the posterior covariance of a factor at one λ.

    It is a `Spread`, or what another folder has registered for a factor of its own.
    """
    raise ValueError(
        f"a factor by route {factor.route!r} has no posterior variances: use another solver, such "
        "as Spectral()"
    )


class _Maps(NamedTuple):
    """The maps to the coordinates u of all directions, and the share that λ takes of each."""

    row_map: Float[Array, "c r"]
    fixed_map: Float[Array, "q r"]  # what the fixed effects fit of the coordinates
    shrinkage: Float[Array, "#r"]  # λ/(s + λ)


@spread.register(GramSpectrum)
def _of_gram_spectrum(factor: GramSpectrum, lam: Number) -> Spread:
    """Return the covariance from a spectrum of K of all rows."""
    maps = _maps_of_spectrum(factor, lam)
    if factor.expansion.origin is not None:
        return _of_features_about_origin(factor, lam, maps)
    return _of_matrix(factor, lam, maps, factor.training_design())


def _maps_of_spectrum(factor: Spectrum, lam: Number) -> _Maps:
    """Return the maps to u = (s + λ)^(−½) Uᵀk̃."""
    root = jnp.sqrt(factor.s + lam)
    return _Maps(
        row_map=factor.directions / root,
        fixed_map=factor.fixed_directions / root,
        shrinkage=lam / (factor.s + lam),
    )


@spread.register(PrimalSpectrum)
def _of_primal_spectrum(factor: PrimalSpectrum, lam: Number) -> Spread:
    """Return the covariance from a spectrum on features or on landmarks."""
    if factor.trace_residual is None:
        return _of_basis(factor, lam)
    root = jnp.sqrt(factor.s)  # directions hidden by rounding keep their prior variance
    scale = jnp.sqrt(lam / (factor.s_above_rounding + lam)) / root
    return PrimalSpread(
        expansion=factor.expansion,
        fixed=factor.fixed.without_values(),
        lam=lam,
        row_map=factor.directions * scale,
        fixed_map=factor.fixed_directions * scale,
        whitener=factor.directions / root,
    )


@spread.register(FeatureSpectrum)
@spread.register(OuterSpectrum)
def _of_basis(factor: Any, lam: Number) -> Spread:
    """Return the covariance on explicit features, from the coefficients of every direction."""
    basis = factor.directions
    c, r = basis.shape
    if c > r:
        return FeatureSpread(
            expansion=factor.expansion,
            fixed=factor.fixed.without_values(),
            lam=lam,
            fixed_fit=factor.fixed_fit,
            **_maps_of_spectrum(factor, lam)._asdict(),
        )
    second = matmul(basis, basis.T)  # of features minus their fit by the fixed effects
    A = jnp.linalg.cholesky(second + lam * jnp.eye(c, dtype=factor.dtype))
    row_map = jnp.sqrt(lam) * triangular_inverse(A).T
    return PrimalSpread(
        expansion=factor.expansion,
        fixed=factor.fixed.without_values(),
        lam=lam,
        row_map=row_map,
        fixed_map=matmul(factor.fixed_fit, row_map),
    )


@spread.register(CholeskyGram)
def _of_cholesky(factor: CholeskyGram, lam: Number) -> Spread:
    """Return the covariance from a Cholesky factor of K with the fixed effects projected out.

    This is one more factor than the factor itself.
    """
    weights = factor.weights
    fixed = factor.fixed
    K, effects_coef, _ = fixed.centre_both(weights, factor.K)
    if factor.lift is not None:
        effects_coef = effects_coef + fixed.constant_coef[:, None] * factor.lift
    shrinkage = (lam / (jnp.trace(weights.scale_both(K)) + lam))[None]
    G = factor.with_effects(K) + lam * jnp.eye(factor.n, dtype=factor.dtype)
    if factor.lift is None and not factor.refines:
        fixed_map_of_rows = _fixed_map_of_rows(factor)
        return SolvedSpread(
            expansion=factor.expansion,
            fixed=fixed.without_values(),
            lam=lam,
            shrinkage=shrinkage,
            fixed_map_of_rows=fixed_map_of_rows,
            fixed_gram=_fixed_gram(fixed_map_of_rows, factor.K),
            lower=jnp.linalg.cholesky(G),
            effects_coef=effects_coef,
            root=weights.root,
            H=factor.H,
        )
    row_map = weights.scale(fixed.project(weights, factor.inverse_root(G).T))
    maps = _Maps(row_map=row_map, fixed_map=matmul(effects_coef, row_map), shrinkage=shrinkage)
    if factor.expansion.origin is not None:
        return _of_features_about_origin(factor, lam, maps)
    # With a lift, the K of the factor is not that of the expansion.
    of_expansion = factor.lift is None
    K = factor.K if of_expansion else gram(factor.kernel, factor.expansion.points)
    return _of_matrix(factor, lam, maps, K)


@spread.register(CholeskyFeatures)
def _of_cholesky_features(factor: CholeskyFeatures, lam: Number) -> Spread:
    """Return the covariance from the Cholesky factor of the moments itself."""
    maps = factor.maps_at(lam, factor.second[:, :0])
    root = jnp.sqrt(lam)
    return PrimalSpread(
        expansion=factor.expansion,
        fixed=factor.fixed.without_values(),
        lam=lam,
        row_map=root * maps.row_map,
        fixed_map=root * maps.fixed_map,
        whitener=factor.feature_map.whitener,
    )


def _of_matrix(factor: Factor, lam: Number, maps: _Maps, K: Square) -> Spread:
    """Return the covariance from the kernel matrix of all rows, which is that of the expansion."""
    fixed_map_of_rows = _fixed_map_of_rows(factor)
    return DualSpread(
        expansion=factor.expansion,
        fixed=factor.fixed.without_values(),
        lam=lam,
        fixed_map_of_rows=fixed_map_of_rows,
        fixed_gram=_fixed_gram(fixed_map_of_rows, K),
        **maps._asdict(),
    )


def _of_features_about_origin(factor: Factor, lam: Number, maps: _Maps) -> Spread:
    """Return the covariance on the explicit features of a dual factor.

    Its kernel matrix is that of features about the origin of the expansion.
    """
    phi = factor.kernel.features(factor.expansion.points)
    return FeatureSpread(
        expansion=Primal(),
        fixed=factor.fixed.without_values(),
        lam=lam,
        row_map=matmul((phi - factor.expansion.origin).T, maps.row_map),
        fixed_map=maps.fixed_map,
        shrinkage=maps.shrinkage,
        fixed_fit=matmul(_fixed_map_of_rows(factor).T, phi),
    )


def _fixed_map_of_rows(factor: Factor) -> Float[Array, "n q"]:
    """Return VB(BᵀVB)⁻¹, whose transpose fits the fixed effects to values at rows."""
    fixed = factor.fixed
    B = fixed.fitted(fixed.values, fixed.solve(jnp.eye(fixed.count, dtype=factor.dtype)))
    return factor.weights.array[:, None] * jnp.broadcast_to(B, (factor.n, fixed.count))


def _fixed_gram(fixed_map_of_rows: Float[Array, "n q"], K: Square) -> Float[Array, "q q"]:
    """Return PᵀKP with P = fixed_map_of_rows."""
    return matmul(fixed_map_of_rows.T, matmul(K, fixed_map_of_rows))
