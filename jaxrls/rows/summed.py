"""Moments of rows in place of the rows themselves, so that rows can be added, and removed again by
subtraction.

Everything except held-out residuals follows from moments about one origin: spectrum, coefficients,
GCV and evidence; the last two by a difference, ‖√v(y − ŷ)‖² = Σvy² − 2wᵀΣvφy + wᵀΣvφφᵀw. Rounding
stays at the level of the largest sums that there were: subtracting most of a sum leaves few correct
digits.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.core.factors import Features, Solution, feature_moments, spectrum_of
from jaxrls.core.fit import Problem
from jaxrls.core.problem import (
    Data,
    FixedEffects,
    Labels,
    Moments,
    Rows,
    SummedWeights,
    compiled,
    moments,
)
from jaxrls.core.support import pytree, static

# Subtracting up to so many times the remaining sum costs no digits worth reporting.
MODEST = 10
# A difference of up to so many units of rounding may be rounding alone.
HIDDEN = 100


@pytree
class NoRows(Rows):
    """Rows of which only moments are kept."""

    kind: Any = static()

    @property
    def dtype(self):
        """That of the moments."""
        return self.kind

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """Raises: the rows are not kept."""
        raise ValueError(
            "this needs the rows, and the fit kept only their moments: fit all rows again"
        )

    map = sum


@pytree
class Explicit(Features):
    """Explicit features, whose moments are taken without a change of basis."""

    left_over = None


@pytree
class Summed:
    """Moments about the origins of the first rows, the features that they are of, and the largest
    values that they have had.
    """

    features: Any  # `Explicit`, or landmarks as features
    moments: Moments
    past: tuple[Any, Any, Any]  # the largest Σv, diagonal of the second moments, squares of labels
    fixed: FixedEffects

    @classmethod
    def of_solution(cls, solution: Solution, problem: Problem | None) -> "Summed":
        """Of a first fit, with no rows subtracted."""
        if solution.summed is not None:
            features, sums = solution.summed
            return cls(features, sums, _sizes(sums), solution.factor.fixed)
        if problem is None or problem.explicit is None:
            raise ValueError(
                "update and forget need a fit on features or landmarks, and this one has the full "
                "kernel matrix: fit with landmarks=, or fit all rows again"
            )
        return _summed_features(problem, solution.labels)

    def changed(self, more: Moments, sign: int) -> "Summed":
        """With moments of other rows added, or subtracted."""
        total = self.moments + more if sign > 0 else self.moments - more
        past = jax.tree.map(jnp.maximum, self.past, _sizes(total))
        return replace(self, moments=total, past=past)

    def check_width(self, d: int) -> None:
        """Raise unless rows have the columns that the first ones had."""
        second, features = self.moments.second, self.features
        fits = features.kernel.num_features(d, second.dtype) == len(second)
        if features.points is not None:
            fits = d == features.points.shape[1]
        if not fits:
            raise ValueError(f"X must have as many columns as the rows of the fit, and has {d}")

    def moments_of(self, data: Data, Y, *, block_size=None) -> Moments:
        """Moments of other rows, about the same origins."""
        return moments(
            data,
            self.features,
            Y,
            left_over=self.features.left_over,
            block_size=block_size,
            origin=self.moments.origin,
            label_origin=self.moments.label_origin,
        )

    def solution(self, flat: bool) -> Solution:
        """The solution, for all that needs no rows; its floor includes the rounding of earlier,
        larger sums.
        """
        sums, fixed = self.moments, self.fixed.from_gram(self.moments.gram)
        centred, dtype = sums.centred(fixed), sums.second.dtype
        weights = SummedWeights(None, 0, dtype, sums=(sums.weight, sums.count, sums.log_weight))
        before = jnp.where(self.past[1] > MODEST * jnp.diagonal(sums.second), self.past[1], 0)
        factor = spectrum_of(self.features, Data(NoRows(dtype), weights, fixed), sums, before)
        none = jnp.zeros((0, sums.cross.shape[1]), dtype)
        labels = Labels(none, centred.label_origin, none[:1], none, flat)
        return replace(factor, sums=centred).solve_moments(labels, sums)

    def cancellation(self, lam) -> Float[Array, ""]:
        """How many times larger rounding is than in a fit to the remaining rows alone, at the
        smallest λ; 1/eps where it hides them.
        """
        sums, (_, diagonal, squares) = self.moments, self.past
        centred = sums.centred(self.fixed.from_gram(sums.gram))
        now = jnp.trace(centred.second) + jnp.min(lam)
        # Coefficients are linear in labels, so that it is their length that counts.
        labels = jnp.max(jnp.sqrt(_ratio(squares, sums.square, 2)), initial=0)
        return jnp.maximum(_ratio(jnp.sum(diagonal), now), labels)

    def possible(self) -> Bool[Array, ""]:
        """Whether some rows can have these moments, up to rounding: weight is left, and no square
        is negative in any direction.

        By a Cholesky factor of the moments of φ, and what it leaves of those of the labels, in
        units of their largest values so far.
        """
        sums, weight = self.moments, self.past[0]
        centred = sums.centred(self.fixed.from_gram(sums.gram))
        unit, label_unit = (1 / jnp.sqrt(jnp.where(past > 0, past, 1)) for past in self.past[1:])
        # Half of the digits: rows that go differ by rounding from what they were when they came.
        eps, k = float(jnp.finfo(unit.dtype).eps), len(unit) + self.fixed.count
        tolerance = eps**0.5
        second = unit[:, None] * centred.second * unit
        L = jnp.linalg.cholesky(second + tolerance * jnp.eye(len(unit), dtype=unit.dtype))
        cross = unit[:, None] * centred.cross * label_unit
        half = jax.scipy.linalg.solve_triangular(L, cross, lower=True)
        rest = label_unit**2 * centred.square + tolerance - jnp.sum(half**2, axis=0)
        least = 1 + int(self.fixed.one is not None)
        enough = (centred.weight > 4 * k * eps * weight) & (jnp.round(centred.count) >= least)
        return enough & jnp.all(rest >= 0)  # which NaN is not


def _ratio(past, now, power=1):
    """past/now, or eps^−power where now is only rounding; 0 where past is 0."""
    eps = float(jnp.finfo(past.dtype).eps)
    ratio = jnp.where(now > HIDDEN * eps * past, past / jnp.where(now > 0, now, 1), eps**-power)
    return jnp.where(past > 0, ratio, 0)


def _sizes(sums: Moments):
    return sums.weight, jnp.diagonal(sums.second), sums.square


@compiled
def _summed_features(problem: Problem, labels: Labels) -> Summed:
    """Of a kernel's explicit features."""
    features = problem.rows.features(problem.kernel)
    sums = feature_moments(Data(features, problem.weights, problem.fixed), labels)
    return Summed(Explicit(problem.kernel), sums, _sizes(sums), problem.fixed)
