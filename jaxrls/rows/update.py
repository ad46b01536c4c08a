"""Moments of rows in place of the rows themselves, so that rows can be added, and removed again by
subtraction.

Everything except held-out residuals follows from moments about one origin: spectrum, coefficients,
GCV and evidence; the last two by a difference, ‖√v(y − ŷ)‖² = Σvy² − 2wᵀΣvφy + wᵀΣvφφᵀw. Rounding
stays at the level of the largest sums that there were: subtracting most of a sum leaves few correct
digits.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.core.data import (
    Data,
    FixedEffects,
    Labels,
    Moments,
    Rows,
    SummedWeights,
    as_rows,
    compiled,
    moments,
)
from jaxrls.core.factors import Features, Solution, feature_moments, spectrum_of
from jaxrls.core.fit import Choice, Chosen, Prequential, Problem, Result, result_of_moments
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import by_names, is_concrete, pytree, static, warn
from jaxrls.front import (
    Fit,
    Kept,
    Model,
    add_names_and_offset,
    inspect_fit,
    once_per_fit,
    read_problem,
    solution_of,
)

# Subtracting up to so many times the remaining sum costs no digits worth reporting.
MODEST = 10
# A difference of up to so many units of rounding may be rounding alone.
HIDDEN = 100
# The share of the digits, as a power of eps, whose loss is warned of.
SHOWN = -1 / 3


@pytree
class NoRows(Rows):
    """Rows of which only moments are kept."""

    kind: Any = static()

    @property
    def dtype(self):
        """That of the moments."""
        return self.kind

    def over(self, kind, fn, columns, **hints):
        """Raises: the rows are not kept."""
        raise ValueError(
            "this needs the rows, and the fit kept only their moments: fit all rows again"
        )


@pytree
class Explicit(Features):
    """Explicit features, whose moments are taken without a change of basis."""

    left_over = None


@pytree
class Sizes:
    """How large sums are."""

    weight: Any  # Σv
    diagonal: Any  # of the second moments
    squares: Any  # of labels


@pytree
class Summed:
    """Moments about the origins of the first rows, the features that they are of, and the largest
    values that they have had.
    """

    features: Any  # `Explicit`, or landmarks as features
    moments: Moments
    past: Sizes  # the largest
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

    def changed(self, more: Moments, sign: int) -> "Summed":
        """With moments of other rows added, or subtracted."""
        total = self.moments + more if sign > 0 else self.moments - more
        past = jax.tree.map(jnp.maximum, self.past, _sizes(total))
        return replace(self, moments=total, past=past)

    def check_width(self, d: int) -> None:
        """Raise unless rows have the columns that the first ones had."""
        second = self.moments.second
        features = self.features
        fits = features.kernel.num_features(d, second.dtype) == len(second)
        if features.points is not None:
            fits = d == features.points.shape[1]
        if not fits:
            raise ValueError(f"X must have as many columns as the rows of the fit, and has {d}")

    def solution(self, flat: bool) -> Solution:
        """The solution, for all that needs no rows; its floor includes the rounding of earlier,
        larger sums.
        """
        sums = self.moments
        fixed = self.fixed.from_gram(self.moments.gram)
        centred = sums.centred(fixed)
        dtype = sums.second.dtype
        weights = SummedWeights(None, 0, dtype, sums=(sums.weight, sums.count, sums.log_weight))
        largest = self.past.diagonal
        before = jnp.where(largest > MODEST * jnp.diagonal(sums.second), largest, 0)
        factor = spectrum_of(self.features, Data(NoRows(dtype), weights, fixed), sums, before)
        none = jnp.zeros((0, sums.cross.shape[1]), dtype)
        labels = Labels(none, centred.label_origin, none[:1], none, flat)
        return replace(factor, sums=centred).solve_moments(labels, sums)

    def cancellation(self, lam) -> Float[Array, ""]:
        """How many times larger rounding is than in a fit to the remaining rows alone, at the
        smallest λ; 1/eps where it hides them.
        """
        sums = self.moments
        past = self.past
        centred = sums.centred(self.fixed.from_gram(sums.gram))
        now = jnp.trace(centred.second) + jnp.min(lam)
        # Coefficients are linear in labels, so that it is their length that counts.
        labels = jnp.max(jnp.sqrt(_ratio(past.squares, sums.square, 2)), initial=0)
        return jnp.maximum(_ratio(jnp.sum(past.diagonal), now), labels)

    def possible(self) -> Bool[Array, ""]:
        """Whether some rows can have these moments, up to rounding: weight is left, and no square
        is negative in any direction.

        By a Cholesky factor of the moments of φ, and what it leaves of those of the labels, in
        units of their largest values so far.
        """
        sums = self.moments
        past = self.past
        centred = sums.centred(self.fixed.from_gram(sums.gram))
        sizes = past.diagonal, past.squares
        unit, label_unit = (1 / jnp.sqrt(jnp.where(size > 0, size, 1)) for size in sizes)
        # Half of the digits: rows that go differ by rounding from what they were when they came.
        eps = float(jnp.finfo(unit.dtype).eps)
        k = len(unit) + self.fixed.count
        tolerance = eps**0.5
        second = unit[:, None] * centred.second * unit
        L = jnp.linalg.cholesky(second + tolerance * jnp.eye(len(unit), dtype=unit.dtype))
        cross = unit[:, None] * centred.cross * label_unit
        half = jax.scipy.linalg.solve_triangular(L, cross, lower=True)
        rest = label_unit**2 * centred.square + tolerance - jnp.sum(half**2, axis=0)
        least = 1 + int(self.fixed.constant_coef is not None)
        enough = (centred.weight > 4 * k * eps * past.weight) & (jnp.round(centred.count) >= least)
        return enough & jnp.all(rest >= 0)  # which NaN is not


def _ratio(past, now, power=1):
    """past/now, or eps^−power where now is only rounding; 0 where past is 0."""
    eps = float(jnp.finfo(past.dtype).eps)
    ratio = jnp.where(now > HIDDEN * eps * past, past / jnp.where(now > 0, now, 1), eps**-power)
    return jnp.where(past > 0, ratio, 0)


def _sizes(sums: Moments) -> Sizes:
    return Sizes(sums.weight, jnp.diagonal(sums.second), sums.square)


@compiled
def _summed_features(problem: Problem, labels: Labels) -> Summed:
    """Of a kernel's explicit features."""
    features = problem.rows.features(problem.kernel)
    sums = feature_moments(Data(features, problem.weights, problem.fixed), labels)
    return Summed(Explicit(problem.kernel), sums, _sizes(sums), problem.fixed)


@once_per_fit
def summed_of(fit: Fit) -> Summed:
    """Moments of the rows of a fit that kept its solution."""
    return Summed.of_solution(solution_of(fit), fit.kept.problem)


def with_rows(fit: Fit, sign: int, X, Y, weights, fixed_effects, block_size: int | None) -> Fit:
    """The fit with rows added, or with a negative `sign` removed."""
    summed = summed_of(fit)
    coef = fit.model.coef
    X = by_names("X", X, fit.model.names)
    if fit.label_offset is not None and Y is not None:
        Y = np.asarray(Y, np.float64) - fit.label_offset
    new = _read(summed, coef, X, Y, weights, fixed_effects)
    prequential = fit.diagnostics.prequential
    if sign > 0:
        prequential = _prequential(fit, new, block_size)
    more = _summed(summed, new.data, new.Y.reshape(len(new.Y), -1), block_size=block_size)
    flat = coef.ndim == 1
    lam = jnp.asarray(fit.lam)
    choice = fit.kept.choice
    changed = _changed(fit.model.kernel, summed, more, choice, lam, sign=sign, flat=flat)
    known = is_concrete(changed)
    if known and sign < 0 and not changed.possible:
        raise ValueError(
            "X and Y cannot be removed: they hold all of the weight, or were not fitted with "
            "these labels and weights"
        )
    result = changed.result
    updated: Fit = Fit(
        model=Model(**vars(result.function)),
        chosen=result.chosen,
        diagnostics=replace(result.diagnostics, prequential=prequential),
        about=replace(fit.about, plan="sums over rows that were added or removed"),
        kept=Kept(changed.solution, choice=choice, saved=fit.kept.saved),
        stored={summed_of.__name__: changed.summed},
    )
    if known:
        _inspect_digits(float(changed.cancellation), coef.dtype)
        inspect_fit(updated, choice is not None and choice.lams is None)
    return add_names_and_offset(updated, fit.model.names, fit.label_offset)


class NewRows(NamedTuple):
    """Rows with weights and fixed effects, and their labels (b,) or (b, t)."""

    data: Data
    Y: Any


def _read(summed: Summed, coef, X, Y, weights, fixed_effects) -> NewRows:
    """New rows, checked as the rows of a fit are."""
    kernel = summed.features.kernel
    fixed = summed.fixed
    dtype = coef.dtype
    if not kernel.evaluable:
        raise ValueError(
            "a fit to a given kernel matrix cannot be updated: fit with a kernel and its inputs"
        )
    rows = as_rows(kernel, X, dtype=dtype)
    if rows.dtype != dtype:
        raise ValueError(
            f"X must have dtype {dtype}, as the rows of the fit, and has {rows.dtype}: convert it"
        )
    n, d = rows.shape
    summed.check_width(d)
    new = read_problem(kernel, rows, Y, weights=weights, intercept=False)
    if new.Y.shape != (expected := (n, *coef.shape[1:])):
        raise ValueError(
            f"Y must have shape {expected}, one row for each of X and as many columns as before, "
            f"and has shape {new.Y.shape}"
        )
    columns = fixed.new_values(fixed_effects, n, dtype)
    if columns is not None:
        fixed = replace(fixed, values=new.rows.column(columns))
    return NewRows(Data(new.rows, new.weights, fixed), new.Y)


def _prequential(fit: Fit, new: NewRows, block_size: int | None) -> Prequential:
    """The errors of rows by the fit, before it has them, with those of rows before."""
    data = new.data
    model = fit.model
    if fit.label_offset is not None:  # which was taken off these labels too
        model = add_names_and_offset(fit, (), -fit.label_offset).model
        model = replace(model, intercept=jnp.asarray(model.intercept, model.coef.dtype))
        if model.beta is not None:
            model = replace(model, beta=jnp.asarray(model.beta, model.coef.dtype))
    predicted = model.of_rows(data.rows, data.fixed.values, block_size, from_host=False)
    missed = new.Y - jnp.asarray(predicted)
    return _with_errors(fit.diagnostics.prequential, missed, data.weights)


_with_errors = compiled(Prequential.of)
_summed = compiled(Summed.moments_of)


class Changed(NamedTuple):
    """A fit to other rows; whether such rows can exist; and by how much rounding has grown."""

    result: Result
    solution: Solution
    summed: Summed
    possible: Any
    cancellation: Any


@compiled
def _changed(
    kernel: Kernel, summed: Summed, more, choice: Choice | None, lam, *, sign, flat
) -> Changed:
    """The result with moments added or subtracted."""
    summed = summed.changed(more, sign)
    solution = summed.solution(flat)
    chosen = Chosen(None, None, lam) if choice is None else choice.of(solution, kernel)
    result = result_of_moments(kernel, solution, chosen)
    cancellation = summed.cancellation(chosen.lam)
    return Changed(result, solution, summed, summed.possible(), cancellation)


def _inspect_digits(cancellation: float, dtype) -> None:
    """Warn of digits that rounding has destroyed."""
    eps = float(np.finfo(dtype).eps)
    if cancellation > eps**SHOWN:
        left = max(0, int(-np.log10(eps * cancellation)))
        whole = int(-np.log10(eps))
        warn(
            f"removing rows left about {left} of {whole} digits, as sums over rows were "
            f"{cancellation:.1g} times as large before: fit the remaining rows again"
        )
