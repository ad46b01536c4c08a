"""Add rows to a fit, and remove them again, by sums over rows in place of the rows themselves.

A fit on features or landmarks depends on its rows only through moments about one origin, except for
held-out residuals. Spectrum, coefficients, GCV and evidence follow from the moments. GCV and
evidence need a difference:

    ‖√v(y − ŷ)‖² = Σvy² − 2wᵀΣvφy + wᵀΣvφφᵀw

Rounding errors stay at the level of the largest sums that there were. Subtracting most of a sum
therefore leaves few correct digits.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.core.data import (
    Data,
    DenseRows,
    FixedEffects,
    Labels,
    Moments,
    Rows,
    SummedWeights,
    Weights,
    as_rows,
    compiled,
    moments,
    pad_rows,
)
from jaxrls.core.factors import Features, Solution, feature_moments, spectrum_of
from jaxrls.core.fit import (
    Choice,
    Grid,
    HeldLam,
    Prequential,
    Problem,
    Result,
    result_of_moments,
)
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Reduction
from jaxrls.core.support import (
    by_names,
    known_values,
    labels_by_names,
    labels_of_rows,
    on_device,
    pytree,
    static,
    warn,
    where_known,
)
from jaxrls.front import (
    LARGEST_PART,
    Fit,
    Kept,
    came_from_host,
    check_levels_fit_dtype,
    common_number,
    inspect_result,
    model_of,
    once_per_fit,
    read_labels,
    read_problem,
    solution_of,
    with_offset,
)

# A sum may have been up to this many times as large as it is now: the digits that it thereby lacks
# are not worth reporting.
MODEST = 10
# A sum of at most HIDDEN · eps times its largest earlier value may be rounding alone.
HIDDEN = 100
# Warn if rounding has grown to more than eps^SHOWN times: a third of the digits are then wrong.
SHOWN = -1 / 3


@pytree
class NoRows(Rows):
    """Rows that are not kept: only their moments are."""

    kind: Any = static()  # the dtype of the moments, by the name that files hold

    @property
    def dtype(self):
        """The dtype of the moments."""
        return self.kind

    def over(self, reduction: Reduction, fn: Callable, columns: Any, **hints) -> Any:
        """Raise, because the rows are not kept."""
        raise ValueError(
            "this needs the rows, and the fit kept only their moments: fit all rows again"
        )


@pytree
class Explicit(Features):
    """The explicit features of a kernel, whose moments are taken without a change of basis."""

    left_over = None


@pytree
class Magnitudes:
    """The sums that measure how large moments are."""

    weight: Any  # Σv, ()
    diagonal: Any  # the diagonal of the second moments, (r,)
    squares: Any  # Σv(y − p)² of the labels, (t,)


@pytree
class Summed:
    """Moments of the rows of a fit, from which rows can be added and subtracted.

    All moments are about the origins of the rows that were fitted first.
    """

    features: Any  # `Explicit`, or features on landmarks
    moments: Moments
    past: Magnitudes  # the largest values that the moments have had
    fixed: FixedEffects

    @classmethod
    def of_solution(cls, solution: Solution, problem: Problem | None) -> "Summed":
        """Return the moments of a first fit, before any rows are subtracted.

        Raise if the fit has no explicit features, or a factor that keeps no moments.
        """
        if solution.summed is not None:
            features, sums = solution.summed
            return cls(features, sums, _magnitudes(sums), solution.factor.fixed)
        if problem is None or problem.num_features is None:
            raise ValueError(
                "update and forget need the moments of features or landmarks, and this fit keeps "
                "none: fit with landmarks= and without solver=, or fit all rows again"
            )
        return _of_features(problem, solution.labels)

    def moments_of(
        self, data: Data, Y: Float[Array, "n t"], *, block_size: int | None = None
    ) -> Moments:
        """Return the moments of other rows about the same origins."""
        return moments(
            data,
            self.features,
            Y,
            left_over=self.features.left_over,
            block_size=block_size,
            origin=self.moments.origin,
            label_origin=self.moments.label_origin,
        )

    def with_moments(self, more: Moments, sign: int) -> "Summed":
        """Return the sums with the moments `more` added, or subtracted if `sign` is negative."""
        total = self.moments + more if sign > 0 else self.moments - more
        past = jax.tree.map(jnp.maximum, self.past, _magnitudes(total))
        return replace(self, moments=total, past=past)

    def solution(self, flat: bool) -> Solution:
        """Return the solution from the moments, for everything that needs no rows.

        Its floor accounts for the rounding errors of earlier, larger sums. `flat` says whether
        labels have the shape (n,).
        """
        sums = self.moments
        fixed = self.fixed.from_gram(self.moments.gram)
        centred = sums.centred(fixed)
        dtype = sums.second.dtype
        weights = SummedWeights(None, 0, dtype, sums=(sums.weight, sums.count, sums.log_weight))
        largest = self.past.diagonal
        before = jnp.where(largest > MODEST * jnp.diagonal(sums.second), largest, 0)
        factor = spectrum_of(self.features, Data(NoRows(dtype), weights, fixed), centred, before)
        none = jnp.zeros((0, sums.cross.shape[1]), dtype)
        labels = Labels(none, centred.label_fit, none[:1], none, flat)
        return replace(factor, sums=centred).solve_moments(labels, centred)

    def cancellation(self, lam: Float[Array, "*k"]) -> Float[Array, ""]:
        """Return how many times larger rounding is than in a fit to the remaining rows alone.

        It is computed at the smallest λ. It is 1/eps if rounding hides the rows.
        """
        sums = self.moments
        past = self.past
        centred = sums.centred(self.fixed.from_gram(sums.gram))
        now = jnp.trace(centred.second) + jnp.min(lam)
        # Coefficients are linear in the labels. So the root of their sum of squares counts.
        labels = jnp.max(jnp.sqrt(_ratio(past.squares, sums.square, 2)), initial=0)
        return jnp.maximum(_ratio(jnp.sum(past.diagonal), now), labels)

    def can_exist(self) -> Bool[Array, ""]:
        """Whether some rows could have these moments, up to rounding.

        * Enough weight is left, and at least one row, or two rows if a constant is fitted.
        * In no direction is a sum of squares negative.

        The second condition is checked in units of the largest values so far. The moments of φ must
        have a Cholesky factor LLᵀ. What L⁻¹Σvφy leaves of the sum of squares of the labels must not
        be negative: Σvy² − ‖L⁻¹Σvφy‖² ≥ 0.
        """
        sums = self.moments
        past = self.past
        centred = sums.centred(self.fixed.from_gram(sums.gram))
        sizes = past.diagonal, past.squares
        unit, label_unit = (1 / jnp.sqrt(jnp.where(size > 0, size, 1)) for size in sizes)
        # The tolerance is half of the digits: the moments of rows that are removed differ by
        # rounding from the moments that were added for them.
        eps = float(jnp.finfo(unit.dtype).eps)
        k = len(unit) + self.fixed.count
        tolerance = eps**0.5
        second = unit[:, None] * centred.second * unit
        L = jnp.linalg.cholesky(second + tolerance * jnp.eye(len(unit), dtype=unit.dtype))
        cross = unit[:, None] * centred.cross * label_unit
        half = jax.scipy.linalg.solve_triangular(L, cross, lower=True)
        rest = label_unit**2 * centred.square + tolerance - jnp.sum(half**2, axis=0)
        least = 1 + int(self.fixed.has_constant)
        enough = (sums.weight > 4 * k * eps * past.weight) & (jnp.round(sums.count) >= least)
        return enough & jnp.all(rest >= 0)  # false for NaN


def _ratio(past: Float[Array, "*r"], now: Float[Array, "*r"], power: int = 1) -> Float[Array, "*r"]:
    """Return past/now, eps^−power if `now` is only rounding, and 0 if `past` is 0."""
    eps = float(jnp.finfo(past.dtype).eps)
    ratio = jnp.where(now > HIDDEN * eps * past, past / jnp.where(now > 0, now, 1), eps**-power)
    return jnp.where(past > 0, ratio, 0)


def _magnitudes(sums: Moments) -> Magnitudes:
    """Return the sums that measure how large these moments are."""
    return Magnitudes(sums.weight, jnp.diagonal(sums.second), sums.square)


@compiled
def _of_features(problem: Problem, labels: Labels) -> Summed:
    """Return the moments of a kernel's explicit features, for the rows and labels of a fit."""
    features = problem.rows.feature_rows(problem.kernel)
    sums = feature_moments(Data(features, problem.weights, problem.fixed), labels)
    return Summed(Explicit(problem.kernel), sums, _magnitudes(sums), problem.fixed)


@once_per_fit
def summed_of(fit: Fit) -> Summed:
    """Return the moments of the rows of a fit that kept its solution."""
    return Summed.of_solution(solution_of(fit), fit.kept.problem)


def with_rows(
    fit: Fit, sign: int, X: Any, Y: Any, weights: Any, fixed_effects: Any, block_size: int | None
) -> Fit:
    """Return the fit with rows added, or removed if `sign` is negative."""
    summed = summed_of(fit)
    coef = fit.model.coef
    X = by_names("X", X, fit.model.names)
    Y = labels_by_names(Y, fit.about.targets)
    new = _read(summed, fit, X, Y, weights, fixed_effects)
    if came_from_host(X):
        new = _in_few_sizes(new)
    prequential = fit.diagnostics.prequential
    if sign > 0:
        prequential = _prequential(fit, new, block_size)
    more = _moments_of(summed, new.data, new.Y.reshape(len(new.Y), -1), block_size=block_size)
    flat = coef.ndim == 1
    choice: Any = fit.kept.choice  # a fit with a solution has one
    changed = _changed(fit.model.kernel, summed, more, choice, sign=sign, flat=flat)
    from_grid = isinstance(choice, Choice) and isinstance(choice.lams, Grid)
    _inspect(changed, sign, fit.criterion, names_lams=not from_grid)
    result = changed.result
    model = fit.model
    return Fit(
        model=model_of(result.function, model.names, model.num_columns, fit.label_offset),
        chosen=result.chosen,
        diagnostics=replace(result.diagnostics, prequential=prequential),
        about=replace(fit.about, plan="sums over rows that were added or removed"),
        kept=Kept(changed.solution, choice=choice, saved=fit.kept.saved),
        label_offset=fit.label_offset,
        stored={summed_of.__name__: changed.summed},
    )


class NewRows(NamedTuple):
    """Rows with weights and fixed effects, and their labels (b,) or (b, t)."""

    data: Data
    Y: Any


def _read(summed: Summed, fit: Fit, X: Any, Y: Any, weights: Any, fixed_effects: Any) -> NewRows:
    """Return the new rows, checked as the rows of a fit are, and labels minus its offset."""
    kernel = summed.features.kernel
    fixed = summed.fixed
    coef = fit.model.coef
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
    fit.model.check_columns(d)
    check_levels_fit_dtype(kernel, fit.model.points, X)
    Y = labels_of_rows(rows, fit.about.targets) if Y is None else Y
    if fit.label_offset is not None:
        Y = read_labels(Y, rows, fit.label_offset)
    new = read_problem(kernel, rows, Y, weights=weights, intercept=False)
    if new.Y.shape != (expected := (n, *coef.shape[1:])):
        raise ValueError(
            f"Y must have shape {expected}, one row for each of X and as many columns as before, "
            f"and has shape {new.Y.shape}"
        )
    columns = fixed.new_values(fixed_effects, n, dtype)
    if fixed.are_given:
        fixed = replace(fixed, values=new.rows.column(columns))
    return NewRows(Data(new.rows, new.weights, fixed), new.Y)


def _in_few_sizes(new: NewRows) -> NewRows:
    """Return the rows with rows of weight 0 at their end, up to a common number of rows.

    Sums over them stay the same. So a few compiled programs serve every number of rows. Rows that
    are not one array with values now, or too many to be copied, are returned as they are.
    """
    rows = new.data.rows
    few = type(rows) is DenseRows and rows.shape[0] <= LARGEST_PART
    known = known_values(new) if few else None
    if known is None:
        return new
    weights = known.data.weights
    fixed = new.data.fixed
    n = weights.n
    size = common_number(n)
    more = lambda a, mode="edge": on_device(pad_rows(a, size - n, mode))
    v = np.ones(n, weights.dtype) if weights.values is None else weights.values
    padded = Weights(more(v, "constant"), size, weights.dtype, padded=weights.values is None)
    if fixed.are_given:
        fixed = replace(fixed, values=more(known.data.fixed.values))
    return NewRows(Data(DenseRows(more(known.data.rows.X)), padded, fixed), more(known.Y))


def _prequential(fit: Fit, new: NewRows, block_size: int | None) -> Prequential:
    """Return the error of new rows as the fit predicts them, pooled with earlier updates."""
    data = new.data
    model = fit.model
    if fit.label_offset is not None:  # which was taken off these labels too
        model = with_offset(model, -fit.label_offset)
        model = replace(model, constant=jnp.asarray(model.constant, model.coef.dtype))
    predicted = model.of_rows(data.rows, data.fixed.values, block_size, from_host=False)
    missed = new.Y - jnp.asarray(predicted)
    return _with_errors(fit.diagnostics.prequential, missed, data.weights)


_with_errors = compiled(Prequential.of)
_moments_of = compiled(Summed.moments_of)


class Changed(NamedTuple):
    """A fit to other rows, and what was found about it.

    `can_exist` says whether such rows can exist. `cancellation` is how many times rounding has
    grown.
    """

    result: Result
    solution: Solution
    summed: Summed
    can_exist: Any
    cancellation: Any


@compiled
def _changed(
    kernel: Kernel,
    summed: Summed,
    more: Moments,
    choice: Choice | HeldLam,
    *,
    sign: int,
    flat: bool,
) -> Changed:
    """Return the fit after moments are added, or subtracted if `sign` is negative."""
    summed = summed.with_moments(more, sign)
    solution = summed.solution(flat)
    chosen = choice.of(solution, kernel)
    result = result_of_moments(kernel, solution, chosen, choice.criterion)
    cancellation = summed.cancellation(chosen.lam)
    return Changed(result, solution, summed, summed.can_exist(), cancellation)


@where_known
def _inspect(changed: Changed, sign: int, criterion: str, names_lams: bool) -> None:
    """Raise if rows were removed that the fit does not have, and warn of what its numbers show."""
    if sign < 0 and not changed.can_exist:
        raise ValueError(
            "X and Y cannot be removed: they hold all of the weight, or were not fitted with "
            "these labels and weights"
        )
    _inspect_digits(float(changed.cancellation), changed.result.function.coef.dtype)
    inspect_result(changed.result, criterion, names_lams=names_lams)


def _inspect_digits(cancellation: float, dtype: Any) -> None:
    """Warn if rounding has destroyed many digits."""
    eps = float(np.finfo(dtype).eps)
    if cancellation > eps**SHOWN:
        left = max(0, int(-np.log10(eps * cancellation)))
        whole = int(-np.log10(eps))
        warn(
            f"removing rows left about {left} of {whole} digits, as sums over rows were "
            f"{cancellation:.1g} times as large before: fit the remaining rows again"
        )
