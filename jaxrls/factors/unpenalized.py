"""Factors of problems with columns that have no penalty beside the kernel: what these span is taken out of K, or of features, before it is factored.

    minimise ½ Σ vᵢ (yᵢ − f(xᵢ) − bᵢᵀβ)² + (λ/2)‖f‖²_H,        √v B = HR,        C = I − HHᵀ,

has the residuals of C√v y on C√v K √vC, and β = R⁻¹Hᵀ√v (y − f). What is left out follows from U = CU and the leverage of H, as with an intercept, of
which H is √v/‖√v‖. A row, or a group, without which B has fewer dimensions cannot be left out.
"""

from dataclasses import fields, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.cholesky import CholeskyGram, GramSolution
from jaxrls.factors.contract import Factor, Solution, times
from jaxrls.factors.free import Free
from jaxrls.factors.makers import factor_features
from jaxrls.factors.outcome import FreeCoefficients
from jaxrls.factors.spectrum import SpectralSolution, Spectrum, factor_symmetric, solve_features
from jaxrls.factors.weights import Labels, Weights
from jaxrls.linalg.products import matmul
from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.support.pytrees import pytree

ROUTES = ("gram", "cholesky", "features", "covariance", "subset")


def check_free_route(route: str | None) -> None:
    """Raise for a route by which columns without penalty do not go."""
    if route is not None and route not in ROUTES:
        raise ValueError(f"unpenalized= goes by routes {', '.join(map(repr, ROUTES))}, and route is {route!r}: name one of these, or none")


def check_free(rows: Rows, route: str | None, keep_moments: bool) -> None:
    """Raise for what columns without penalty do not go with."""
    check_free_route(route)
    if keep_moments:
        raise ValueError("unpenalized= keeps no moments: leave keep_moments out")
    if not rows.in_memory:
        raise ValueError(f"unpenalized= needs a dense X in memory of one device, and X is {type(rows).__name__}")


class Freed(Factor):
    """What is the same for every factor with such columns: they take the intercept's place."""

    def solve(self, Y):
        """With what the columns fit of the labels taken off."""
        return self.solve_labels(self.free.labels(Y))

    def residual_dimensions(self):
        """The number of rows of positive weight, less one for each column."""
        return self.weights.count - self.free.count

    def span(self):
        """H and H/√v."""
        return self.free.H, self.free.level

    @property
    def log_volume(self):
        """log |BᵀVB|."""
        return self.free.log_volume

    @property
    def constant(self):
        """The diagonal of HHᵀ, of all rows at once."""
        leverage = jnp.sum(self.free.H**2, axis=1)
        return lambda v: leverage

    def spread(self, lam):
        """Not yet."""
        raise ValueError(f"a factor by route {self.route!r} with unpenalized= tells no variances: make it without")

    def smoother(self, lam):
        """Not yet."""
        raise ValueError(f"a factor by route {self.route!r} with unpenalized= tells no intervals: make it without")


class FreedSolution(Solution):
    """The same of solutions: a row, or a group, can be left out where the columns stay independent without it."""

    def check_rest(self, groups=None):
        """By the columns of those that stay."""
        self.factor.free.check_rest(groups)

    def has_rest(self, groups=None):
        """By the columns of those that stay."""
        return self.factor.free.has_rest(groups)

    def _may_lack_rest(self):
        return True

    def apart(self, groups, lams):
        """Not: what makes a fit to the rest knows no columns."""

    def pair_system(self):
        """Not yet."""
        raise ValueError(f"a factor by route {self.factor.route!r} with unpenalized= leaves no pairs out: make it without")

    def levels(self, steps, columns=slice(None)) -> tuple[Any, Any]:
        """Intercept and β, from the labels' coordinates on and these steps (…, q, t), of some targets."""
        return self.factor.free.beta(self.labels.start[:, columns] + steps)  # type: ignore[index]


@pytree
class FreedSpectrum(Freed, Spectrum):
    """A `Spectrum` with such columns."""

    free: Any = None
    across: Any = None  # (q, r): from D ∘ z to the coordinates of what f has of the columns

    @property
    def whole(self):
        """All rows at once, as their leverage in the columns is known by their number."""
        return self.n

    def dof(self, lams):
        """Σ s/(s + λ), and 1 for every column."""
        return Spectrum.dof(self, lams) + self.free.count

    def with_labels(self, labels, z):
        """The same solution, which knows of the columns."""
        made = Spectrum.with_labels(self, labels, z)
        return FreedSpectral(**{field.name: getattr(made, field.name) for field in fields(made)})


@pytree
class FreedSpectral(FreedSolution, SpectralSolution):
    """A `FreedSpectrum` with labels."""

    factor: FreedSpectrum

    def with_levels(self, coef, solved):
        """With β."""
        return FreeCoefficients(coef, *self.levels(-jnp.moveaxis(times(self.factor.across, solved), 1, 0)))


@pytree
class FreedGram(Freed, CholeskyGram):
    """A `CholeskyGram` with such columns."""

    free: Any = None

    def solve_labels(self, labels):
        """Nothing yet: the work begins with λ."""
        return FreedGramSolution(self, labels)


@pytree
class FreedGramSolution(FreedSolution, GramSolution):
    """A `FreedGram` with labels."""

    factor: FreedGram

    def _with_levels(self, coef, step, lifted):
        intercept, free = self.levels(step)
        return FreeCoefficients(coef, intercept - lifted, free)


def free_kernel_matrix(made, weights: Weights, free: Free, route: str, semidefinite: bool) -> Factor:
    """The factor of what `kernel_matrix` made, with such columns."""
    K, expansion, lift = made
    if route == "cholesky":
        return FreedGram(K, weights, expansion, False, lift, free)
    across = free.along(K)
    # The largest entry of H beside that of the constant's direction, to which what is taken is compared.
    taken = jnp.linalg.norm(free.along(across.T)) * (jnp.max(jnp.abs(free.H)) / jnp.max(weights.direction))
    centred = free.rest(free.rest(K).T)
    found = factor_symmetric(centred, weights, False, expansion, "gram", semidefinite=semidefinite, taken=taken)
    if lift is not None:
        across = across + jnp.sum(free.along(jnp.ones((free.H.shape[0], 1), K.dtype)), axis=1)[:, None] * lift[None, :]
    U = free.out_of(found.left_vectors())
    return freed(replace(found, rows=DenseRows(U)), free, matmul(across, weights.scale(U)))


def free_features(Phi: Float[Array, "n r"], weights: Weights, free: Free, route: str) -> Factor:
    """The factor of features, with such columns."""
    across, centred = free.along(Phi), free.rest(Phi)
    if route == "features":
        found: Any = factor_features(centred, weights=weights, intercept=False)
    else:
        found = solve_features(DenseRows(centred), Labels.none(weights), weights, False).factor
    U, design = DenseRows(free.out_of(found.left_vectors())), None if weights.values is None else DenseRows(centred)
    return freed(replace(found, rows=U, design=design, rotation=None, middle=None), free, matmul(across, found.basis))


def freed(found: Spectrum, free: Free, across: Float[Array, "q r"]) -> FreedSpectrum:
    """A spectrum without an intercept as one with such columns, which were taken out of its rows."""
    named = {field.name: getattr(found, field.name) for field in fields(found)}
    return FreedSpectrum(**named, free=free, across=across)
