"""Rows that are gone, and what stays of them: moments, to which further rows add and from which
some can be taken off again.

From moments about one origin follows all but what is left out: spectrum, coefficients, GCV and
evidence, the last two by a difference of squares, as ‖√v(y − ŷ)‖² = Σvy² − 2wᵀΣvφy + wᵀΣvφφᵀw.
Rounding stays at the level of the largest sums that there were, and so does what is said of it:
taking off most of a sum leaves few of its digits."""

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.factors.contract import Solution, times
from jaxrls.factors.spectrum import (
    Spectrum,
    feature_moments,
    of_moments,
)
from jaxrls.kernels.inner import Linear
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import matmul
from jaxrls.problem.fixed_effects import FixedEffects
from jaxrls.problem.labels import Labels
from jaxrls.problem.weights import SummedWeights, Weights
from jaxrls.rows.moments import Moments, moments
from jaxrls.rows.rows import Rows
from jaxrls.support.pytrees import pytree, static

# Up to so many times what is left, what was taken off costs no digit that is worth a word.
MODEST = 10
# So many units of rounding may be all there is of a difference.
HIDDEN = 100


@pytree
class Gone(Rows):
    """Rows of which nothing but moments is left."""

    kind: Any = static()

    @property
    def dtype(self):
        """That of the moments."""
        return self.kind

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """Not any more."""
        raise ValueError(
            "this needs the rows again, of which only moments were kept: fit to all of them anew"
        )

    map = sum


@pytree
class SummedSpectrum(Spectrum):
    """A spectrum of rows that are gone."""

    sums: Any = None  # `Moments`, centred

    def residual_norm(self, solution, lams):
        """By a quadratic form of the moments: a difference, right to the squares of labels."""
        rotation: Any = self.rotation
        coef = times(rotation, (1 - self.lost(lams)) * solution.state[:, None])
        both = 2 * self.sums.cross[:, None] - times(self.sums.second, coef)
        return jnp.maximum(self.sums.square - jnp.sum(coef * both, axis=0), 0)


@pytree
class PlainFeatures:
    """A kernel's explicit features, of which moments are taken as they are."""

    kernel: Kernel

    def check_width(self, d: int, r: int) -> None:
        """Raise unless rows of d columns have r features."""
        found = self.kernel.num_features(d, jnp.result_type(float))
        if found != r:
            raise ValueError(
                f"X must have the columns that were fitted, and has {d}, which gives {found} features in place of {r}"
            )

    def moments(self, rows: Rows, fixed: FixedEffects, Y, v, **options) -> Moments:
        """The moments of φ."""
        return moments(rows.features(self.kernel), Linear(), fixed, Y, v, **options)

    def spectrum(self, rows: Rows, sums: Moments, weights: Weights, fixed, *, before) -> Spectrum:
        """That of moments of φ."""
        return of_moments(rows, sums, weights, fixed, before)


@pytree
class Summed:
    """Moments about the origins of the first rows, of what they are, and the largest that they have
    been.

    `of` has `moments(rows, Y, weights, origin=, label_origin=)` and `spectrum(rows, moments,
    weights, intercept, before=)`."""

    of: Any
    moments: Moments
    past: tuple[Any, Any, Any]  # the largest Σv, diagonal of the second moments, squares of labels
    fixed: FixedEffects

    @classmethod
    def of_fit(cls, of, sums: Moments, fixed: FixedEffects) -> "Summed":
        """With nothing behind it."""
        return cls(of, sums, _sizes(sums), fixed)

    def changed(self, more: Moments, sign: int) -> "Summed":
        """With those of other rows added, or taken off."""
        total = self.moments + more if sign > 0 else self.moments - more
        past = jax.tree.map(jnp.maximum, self.past, _sizes(total))
        return replace(self, moments=total, past=past)

    def moments_of(self, rows: Rows, fixed, Y, weights: Weights, block_size=None) -> Moments:
        """Those of other rows, about the same origins."""
        origins = {"origin": self.moments.origin, "label_origin": self.moments.label_origin}
        return self.of.moments(rows, fixed, Y, weights.values, block_size=block_size, **origins)

    def solution(self, flat: bool) -> Solution:
        """The solution, of which nothing can be asked that needs rows; its floor counts what
        rounding has left of larger sums.
        """
        sums, fixed = self.moments, self.fixed.from_gram(self.moments.gram)
        centred = sums.centred(fixed)
        dtype, t = sums.second.dtype, sums.cross.shape[1]
        weights = SummedWeights(None, 0, dtype, (sums.weight, sums.count, sums.log_weight))
        before = jnp.where(self.past[1] > MODEST * jnp.diagonal(sums.second), self.past[1], 0)
        made = self.of.spectrum(Gone(dtype), sums, weights, fixed, before=before)
        named = {field.name: getattr(made, field.name) for field in fields(made)}
        none = jnp.zeros((0, t), dtype)
        labels = Labels(none, centred.label_origin, none[:1], none, flat)
        z = matmul(made.rotation.T, centred.cross)
        return Solution(SummedSpectrum(**named, sums=centred), labels, z)

    def lost(self, lam) -> Float[Array, ""]:
        """By how much rounding is larger than that of a fit to the rows that are left, at the
        smallest λ; 1/eps where it hides what is left.
        """
        m, (_, diagonal, squares) = self.moments, self.past
        now = jnp.sum(jnp.diagonal(m.centred(self.fixed.from_gram(m.gram)).second)) + jnp.min(lam)
        # Labels about 0, as their mean is told too. Coefficients are linear in them, so that it is
        # their length that counts.
        labels = m.square + self._labels_taken()
        return jnp.maximum(
            _ratio(jnp.sum(diagonal), now), jnp.max(jnp.sqrt(_ratio(squares, labels, 2)), initial=0)
        )

    def _labels_taken(self) -> Float[Array, " t"]:
        """Σ v of the squares of labels less those about their origin."""
        m, o = self.moments, self.moments.label_origin
        gram = jnp.diag(m.gram) if m.gram.ndim == 1 else m.gram
        return jnp.sum(o * (2 * m.label + matmul(gram, o)), axis=0)

    def possible(self) -> Bool[Array, ""]:
        """Whether there may be rows that sum to this: weight is left, and no square is negative,
        whatever the direction, beyond rounding.

        By a Cholesky factor of the moments of (1, φ, y) for each target, in units of the largest
        that they have been."""
        m, (weight, diagonal, squares) = self.moments, self.past
        gram = jnp.diag(m.gram) if m.gram.ndim == 1 else m.gram
        unit = jnp.where(diagonal > 0, diagonal, 1)
        units = 1 / jnp.sqrt(jnp.concatenate([jnp.full(len(gram), weight), unit]))
        corner = jnp.block([[gram, m.first], [m.first.T, m.second]])
        beside = jnp.concatenate([m.label, m.cross]) * units[:, None]
        beside = beside / jnp.sqrt(jnp.where(squares > 0, squares, 1))
        # Half of the digits: rows that go differ by rounding from what they were when they came.
        eps, k = float(jnp.finfo(m.second.dtype).eps), len(units)
        tolerance = eps**0.5
        eye = tolerance * jnp.eye(k, dtype=corner.dtype)
        L = jnp.linalg.cholesky(units[:, None] * corner * units + eye)
        half = jax.lax.linalg.triangular_solve(L, beside, left_side=True, lower=True)
        rest = m.square / jnp.where(squares > 0, squares, 1) + tolerance
        rest = rest - jnp.sum(half**2, axis=0)
        least = 1 + int(self.fixed.one is not None)
        enough = (m.weight > 4 * k * eps * weight) & (jnp.round(m.count) >= least)
        return enough & jnp.all(jnp.isfinite(L)) & jnp.all(rest >= 0)


def _ratio(past, now, power=1):
    """past/now, or eps^−power where that is rounding, 0 of 0."""
    eps = float(jnp.finfo(past.dtype).eps)
    ratio = jnp.where(now > HIDDEN * eps * past, past / jnp.where(now > 0, now, 1), eps**-power)
    return jnp.where(past > 0, ratio, 0)


def _sizes(sums: Moments):
    return sums.weight, jnp.diagonal(sums.second), sums.square


def summed_features(
    kernel: Kernel, rows: Rows, labels: Labels, weights: Weights, fixed: FixedEffects
) -> Summed:
    """Those of a kernel's explicit features."""
    sums = feature_moments(rows.features(kernel), labels, weights, fixed)
    return Summed.of_fit(PlainFeatures(kernel), sums, fixed)
