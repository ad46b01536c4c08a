"""Prediction intervals, and leave-one-out predictive distributions, without refitting.

Intervals hold a new label with a given probability, whatever its distribution. The predictive
distribution of a label, by the fit to the other rows, shows whether standard deviations are right.
Both need the coefficients of every fit without one row, or without one fold.

A fit without row i equals the fit with label i replaced by its held-out prediction yᵢ − eᵢ.
Coefficients are linear in the labels, coef = M y. With w(x) = design·M therefore

    coef₋ᵢ = coef − Mᵢeᵢ
    f₋ᵢ(x) = f(x) − wᵢ(x)eᵢ

For a fold, eᵢ and Mᵢ are summed over its rows. Fixed effects are further coefficients, and their
columns are further columns of the design.

A landmark k may leave with its row. Then βₖ = 0, which moves the other coefficients along column k
of N, the covariance of coefficients at unit scale:

    coef₋ᵢ = (coef − Mᵢeᵢ) − Nₖ(coef − Mᵢeᵢ)ₖ/Nₖₖ

For a fold S this is the same with a sum over its rows, and with N_SS in place of Nₖₖ.

In units where a label of weight v has variance λ/v, label i given all others has the variance

    1/Pᵢᵢ = λ/(vᵢRᵢᵢ)

Without row i the variance of f at x is larger by wᵢ(x)²/Pᵢᵢ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data import (
    FixedEffects,
    FixedLevels,
    Folds,
    Labels,
    Rows,
    Weights,
    check_groups,
    compiled,
)
from jaxrls.core.factors import Expansion, Factor, Solution
from jaxrls.core.fit import Numbers
from jaxrls.core.kernels import Kernel
from jaxrls.core.leave_out import landmark_of_row, orthonormal
from jaxrls.core.linalg import FEWEST_ROWS, MAP, Number, matmul, safe_sqrt
from jaxrls.core.support import as_floats, known_and, public_call, pytree, static, where_known
from jaxrls.front import (
    Fit,
    came_from_host,
    in_few_sizes,
    once_per_fit,
    solution_of,
    with_constant,
)
from jaxrls.uncertainty.posterior import (
    process_for_rows,
    process_of,
    residuals_of_all,
    weights_of_new,
)
from jaxrls.uncertainty.spread import Spread, spread

# The most entries of an array (new rows, rows) in a block. With very many rows, blocks therefore
# have fewer new rows than elsewhere.
AT_ONCE = 2**24


@pytree
class Predictive:
    """Leave-one-out predictive distributions N(yᵢ − eᵢ, std²) of the labels, as
    `Fit.loo_predictive` returns them.

    All fields are (n,) or (n, t), and NaN for rows of weight 0.

    Args:
        residuals: held-out residuals e.
        std: standard deviations of the labels, by the fit to the other rows.
        reached: the level of the central interval that ends at the label. It is uniform on (0, 1)
            if the standard deviations are right.
        crps: the continuous ranked probability score in units of the labels, smaller is better. It
            is |eᵢ| for a prediction of standard deviation 0.

    >>> import jax.numpy as jnp
    >>> from jaxrls.diagnostics import Predictive
    >>> parts = [0.5, -2.0], [1.0, 1.0], [0.38, 0.95], [0.33, 1.45]
    >>> predictive = Predictive(*map(jnp.array, parts))
    >>> predictive.coverage([0.5, 0.9]).tolist()
    [0.5, 0.5]
    """

    residuals: Float[Numbers, "n *t"]
    std: Float[Numbers, "n *t"]
    reached: Float[Numbers, "n *t"]
    crps: Float[Numbers, "n *t"]

    @public_call(fitted="self.reached")
    def coverage(self, levels: Any) -> Float[Numbers, "L *t"]:
        """Return the share of labels that lie within their central interval of each level.

        The share is the level itself if the standard deviations are right.

        Args:
            levels: a probability, or several (L,).

        Returns:
            Shares (L,), or (L, t).

        Raises:
            ValueError: for levels outside [0, 1].
        """
        reached = jnp.asarray(self.reached)
        levels = jnp.asarray(as_levels("levels", levels, 1), reached.dtype)
        inside = reached <= levels.reshape(-1, *[1] * reached.ndim)
        return jnp.mean(inside, axis=1, dtype=reached.dtype, where=~jnp.isnan(reached))

    def plot(self, ax: Any = None) -> Any:
        """Plot coverage against level.

        Args:
            ax: Matplotlib axes; by default those of a new figure.

        Returns:
            The axes.
        """
        from jaxrls.pictures.plots import plot_coverage

        return plot_coverage(self, ax)


def as_levels(name: str, levels: Any, most: int) -> Any:
    """Return probabilities as an array of at most `most` dimensions.

    Raise for probabilities outside [0, 1], if their values are known (outside of `jax.jit`).
    """
    levels = as_floats(name, levels)
    impossible = known_and(lambda levels: not ((levels >= 0) & (levels <= 1)).all(), levels)
    if levels.ndim > most or impossible:
        raise ValueError(
            f"{name} must be between 0 and 1, such as 0.9, and holds {levels.tolist()}"
        )
    return levels


# the map from labels to coefficients
# --------------------------------------------------------------------------------------------------


class Smoother(NamedTuple):
    """The linear map M from labels to coefficients at one λ, and Pᵢᵢ.

    It also holds the m landmarks that leave with their row; m may be 0. Their coefficients come
    first. The covariance of all coefficients with the coefficients of these landmarks is

        N = directions·directions[:m]ᵀ
    """

    label_map: Any  # M, (c, n), with the fixed effects among the c coefficients
    information: Any  # Pᵢᵢ, (n,)
    indices: Any  # the rows of the landmarks, (m,)
    directions: Any  # (c, r)


def smoother(factor: Factor, lam: Float[Array, ""]) -> Smoother:
    """Return the linear map from labels to coefficients and fixed effects at one λ.

    Column i is the fit to a label of 1 for row i and 0 for all others.
    """
    weights = factor.weights
    lams = lam.reshape(1, 1)
    eye = jnp.eye(factor.n, dtype=factor.dtype)
    unlabelled = factor.solve_labels(Labels.none(weights, factor.fixed))
    R = factor.sweep(MAP, unlabelled, lams, lambda residuals: residuals.diagonal)[:, 0, 0]
    solution = factor.solve_labels(Labels.unchecked(eye, weights, factor.fixed, False))
    label_map = jnp.concatenate([part[0] for part in factor.coef_and_beta(solution, lams)])
    indices = jnp.zeros(0, int)
    directions = label_map[:, :0]
    if factor.indices is not None:
        posterior = spread(factor, lam)
        indices = factor.indices
        directions = jnp.concatenate([posterior.row_map, -posterior.fixed_map])
    return Smoother(label_map, weights.array * R / lam, indices, directions)


# the fits
# --------------------------------------------------------------------------------------------------


@pytree
class Without(ABC):
    """All fits without one row, or without its fold, which predict at new rows from their design.

    In a `Jackknife` the fields have a leading axis k of λ. `Jackknife.for_lams` takes one λ after
    another, without this axis.
    """

    coef: Float[Array, "*k c t"]
    widths: Float[Array, "*k n t"]  # |e|, infinite for rows of weight 0, so that they do not count

    @abstractmethod
    def for_targets(self, design: Float[Array, "b c"], use: Callable) -> Any:
        """Return `use(f₋ᵢ(x) (b, n), widths (n,))` for every target.

        Results are stacked along the last axis.
        """

    def over_targets(self, fn: Callable, design: Float[Array, "b c"], *columns) -> Any:
        """Return `fn(f(x) (b, 1), widths (n,), …)` for one target after another.

        The further arguments of `fn` are row j of every array in `columns`, for target j. Results
        are stacked along the last axis.
        """
        f = matmul(design, self.coef).T[..., None]
        results = jax.lax.map(lambda target: fn(*target), (f, self.widths.T, *columns))
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), results)


def widths_of(weights: Weights, e: Float[Array, "n t"]) -> Float[Array, "n t"]:
    """Return |e| of held-out residuals e, infinite for rows of weight 0."""
    return jnp.where(weights.used[:, None], jnp.abs(e), jnp.inf)


@pytree
class WithoutRows(Without):
    """All fits without one row, and without the landmark that leaves with it."""

    residuals: Float[Array, "*k n t"]  # e
    label_map: Float[Array, "*k c n"]  # M; the column of a landmark's row has βₖ = 0
    information: Float[Array, "*k n"]  # Pᵢᵢ without landmark i; 1 for rows of weight 0
    lam: Float[Array, "*k"]
    landmarks: Int[Array, "*k m"]  # the rows of landmarks
    unit: Float[Array, "*k c m"]  # Nₖ/√Nₖₖ, a column for each landmark
    beta: Float[Array, "*k m t"]  # βₖ/√Nₖₖ

    @classmethod
    def of(
        cls,
        smoother: Smoother,
        weights: Weights,
        lam: Number,
        coef: Float[Array, "c t"],
        e: Float[Array, "n t"],
    ) -> "WithoutRows":
        """Make all fits from the coefficients of all rows and the held-out residuals e."""
        label_map, information, rows, directions = smoother
        of_landmarks = directions[: len(rows)]
        lengths = jnp.linalg.norm(of_landmarks, axis=1)  # √Nₖₖ
        unit = matmul(directions, (of_landmarks / lengths[:, None]).T)
        own = label_map[jnp.arange(len(rows)), rows]
        moved = own / lengths  # how βₖ moves with the label of row k
        label_map = label_map.at[:, rows].add(-unit * moved)
        information = jnp.where(weights.used, information.at[rows].add(moved**2), 1)
        beta = coef[: len(rows)] / lengths[:, None]
        widths = widths_of(weights, e)
        return cls(coef, widths, e, label_map, information, lam, rows, unit, beta)

    def for_targets(self, design: Float[Array, "b c"], use: Callable) -> Any:
        """Return `use(f₋ᵢ(x), widths)` for every target, with f₋ᵢ(x) = f(x) − wᵢ(x)eᵢ.

        If row i is a landmark, its coefficient becomes 0, and the change by this is subtracted too.
        """
        w = matmul(design, self.label_map)
        along = matmul(design, self.unit)

        def without(
            f: Float[Array, "b 1"],
            widths: Float[Array, " n"],
            e: Float[Array, " n"],
            beta: Float[Array, " m"],
        ) -> Any:
            return use((f - w * e).at[:, self.landmarks].add(-along * beta), widths)

        return self.over_targets(without, design, self.residuals.T, self.beta.T)

    def ratios(
        self,
        design: Float[Array, "b c"],
        variance: Float[Array, " b"],
        weights: Float[Array, " b"] | int,
    ) -> Float[Array, "b n"]:
        """Return σ₋ᵢ(x)/σᵢ = √(Pᵢᵢ (var f(x) + λ/w) + wᵢ(x)²).

        σ₋ᵢ(x) and σᵢ are standard deviations of a new label and of label i, in the fit without row
        i.

        Args:
            design: the design of new rows.
            variance: var f(x) in the fit to all rows.
            weights: the weights w of the new labels.
        """
        w = matmul(design, self.label_map)
        known = jnp.broadcast_to((variance + self.lam / weights)[:, None], w.shape)
        known = known.at[:, self.landmarks].add(-(matmul(design, self.unit) ** 2))
        return jnp.sqrt(self.information * known + w**2)

    def deviations(self) -> Float[Array, " n"]:
        """Return σᵢ = 1/√Pᵢᵢ of every label given all others; infinite for labels of weight 0."""
        return jnp.where(jnp.isinf(self.widths[:, 0]), jnp.inf, 1 / jnp.sqrt(self.information))


@pytree
class WithoutFolds(Without):
    """All fits without one of g folds."""

    moves: Float[Array, "*k t g c"]  # the change of all coefficients, Σ Mᵢeᵢ, for each fold
    fold: Int[Array, "*k n"]  # the fold of each row

    @classmethod
    def of(
        cls,
        smoother: Smoother,
        weights: Weights,
        folds: Folds,
        coef: Float[Array, "c t"],
        e: Float[Array, "n t"],
    ) -> "WithoutFolds":
        """Make all fits from the coefficients of all rows and the held-out residuals e.

        The coefficients of a fold's own landmarks become 0. With Q an orthonormal basis of the rows
        of D_S,

            D_S = AQ
            N_·S N_SS⁻¹ = D Qᵀ A⁻¹
        """
        moves = jax.lax.map(lambda e: folds.sums((smoother.label_map * e).T), e.T)
        D = smoother.directions
        m = len(smoother.indices)
        numbers = landmark_of_row(smoother.indices, folds.n)

        def of_fold(fold: tuple) -> Float[Array, "t c"]:
            rows, mask, moves = fold
            slot = jnp.where(mask > 0, numbers[rows], m)
            of_landmarks = lambda A: A[:m].at[slot].get(mode="fill", fill_value=0)
            D_S = of_landmarks(D)
            Q = orthonormal(D_S)
            A = matmul(D_S, Q.T) + jnp.diag(jnp.where(slot < m, 0, 1))
            beta = jnp.linalg.solve(A, of_landmarks(coef - moves.T))
            return moves + matmul(matmul(D, Q.T), beta).T

        if m:
            by_fold = folds.left_out, folds.left_out_mask, jnp.moveaxis(moves, 1, 0)
            moves = jnp.moveaxis(jax.lax.map(of_fold, by_fold), 0, 1)
        return cls(coef, widths_of(weights, e), moves, folds.predicted_by)

    def for_targets(self, design: Float[Array, "b c"], use: Callable) -> Any:
        """Return `use(f₋ᵢ(x), widths)` for every target, with f₋ᵢ(x) = f(x) − w(x)e, a sum over the
        fold of i.
        """

        def without(
            f: Float[Array, "b 1"], widths: Float[Array, " n"], moves: Float[Array, "g c"]
        ) -> Any:
            return use((f - matmul(design, moves.T))[:, self.fold], widths)

        return self.over_targets(without, design, self.moves)


# the fits of a fit
# --------------------------------------------------------------------------------------------------


@pytree
class Jackknife:
    """All fits of a `Fit` that leave out one row, or one group.

    `fits` is stacked along a leading axis of λ: one λ for all targets, or one for every target.
    """

    fits: Without
    expansion: Expansion
    fixed: FixedEffects  # without the values at rows
    count: Float[Numbers, ""]  # the number of rows of positive weight
    root: Float[Numbers, " n"]  # √v, 1 for rows of weight 0
    flat: bool = static()

    def rank(self, level: Float[Numbers, ""]) -> Int[Array, ""]:
        """Return ⌈level (n + 1)⌉, at least 1.

        The level was rounded to its dtype. A product that is above a whole number only by rounding
        becomes this number.
        """
        slack = 4 * float(max(jnp.finfo(a.dtype).eps for a in (level, self.count)))
        rank = jnp.ceil(level.astype(self.count.dtype) * (self.count + 1) * (1 - slack))
        return jnp.maximum(1, rank.astype(jnp.int32))

    def for_lams(self, fn: Callable) -> Any:
        """Return `fn(fits)` of every λ, with the results joined along the last axis, (…, t)."""
        joined = lambda a: jnp.moveaxis(a, 0, -2).reshape(*a.shape[1:-1], -1)
        return jax.tree.map(joined, jax.lax.map(fn, self.fits))


@once_per_fit
def jackknife_of(fit: Fit) -> Jackknife:
    """Return all fits without one row, or one group, at the λ of a fit that kept its solution."""
    solution = solution_of(fit)
    if fit.loo_residuals is None:
        raise ValueError(
            "held-out residuals are not known after update, forget or load of rows: fit all "
            "rows again"
        )
    if fit.kept.folds is not None:
        check_groups(fit.kept.folds, "intervals and predictive distributions need")
        _check_levels(solution.factor.fixed, fit.kept.folds, solution.factor.weights)
    return _jackknife(solution, fit.kept.folds, jnp.asarray(fit.lam), residuals_of_all(fit))


@where_known
def _check_levels(fixed: FixedEffects, folds: Folds, weights: Weights) -> None:
    """Raise if a fold holds a whole level of fixed effects.

    The constant of such a level cannot be fitted without the fold.
    """
    if hold_whole_levels(fixed, folds, weights):
        raise ValueError(
            "groups= held out whole levels of fixed_effects, and their residuals lack the "
            "constant of the level, which intervals need: fit without groups=, or take "
            "1.0 * Levels() in the kernel in place of fixed effects"
        )


def hold_whole_levels(fixed: FixedEffects, folds: Folds, weights: Weights) -> bool:
    """Return whether one of the groups holds a whole level of fixed effects.

    It is asked of NumPy, which compiles nothing.
    """
    if not isinstance(fixed, FixedLevels):
        return False
    pairs = np.stack([fixed.values, folds.predicted_by])[:, np.asarray(weights.used)]
    groups_of_level = np.bincount(np.unique(pairs, axis=1)[0])
    return bool((groups_of_level == 1).any())


@compiled
def _jackknife(
    solution: Solution,
    folds: Folds | None,
    lam: Float[Array, "*k"],
    left_out: Float[Numbers, "n *t"],
) -> Jackknife:
    """Return all fits without one row, or one group, with λ as a leading axis."""
    factor = solution.factor
    weights = solution.factor.weights
    fixed = solution.factor.fixed
    coef = jnp.concatenate([part[0] for part in factor.coef_and_beta(solution, lam.reshape(1, -1))])
    by_lam = lambda a: jnp.moveaxis(a.reshape(len(a), lam.size, -1), 1, 0)

    def fits_at(part: tuple | list) -> Without:
        lam, coef, e = part
        if folds is None:
            return WithoutRows.of(smoother(factor, lam), weights, lam, coef, e)
        return WithoutFolds.of(smoother(factor, lam), weights, folds, coef, e)

    parts = lam.reshape(-1), by_lam(coef), by_lam(left_out)
    # A single λ has no loop, because rows on the host cannot be read within a loop.
    one_fit = lambda: jax.tree.map(lambda a: a[None], fits_at([part[0] for part in parts]))
    fits = one_fit() if lam.size == 1 else jax.lax.map(fits_at, parts)
    return Jackknife(
        fits,
        factor.expansion,
        fixed.without_values(),
        weights.count,
        weights.root_or_one,
        solution.labels.flat,
    )


def check_single_rows(fit: Fit, what: str) -> None:
    """Raise if the fit held out groups."""
    if fit.kept.folds is not None:
        raise ValueError(
            f"{what} needs a fit that left out single rows, and this fit left out groups: fit "
            "without groups="
        )


# intervals
# --------------------------------------------------------------------------------------------------


def intervals(
    fit: Fit,
    X: Any,
    level: Any,
    weights: Any,
    studentised: bool,
    fixed_effects: Any,
    block_size: int | None,
) -> Any:
    """Compute `Fit.intervals`."""
    jackknife = jackknife_of(fit)
    spread = None
    if studentised:
        check_single_rows(fit, "studentised=True")
        spread = process_for_rows(fit).spread
    rows, effects = fit.model.read(X, fixed_effects)
    weights = weights_of_new(weights, rows)
    level = as_levels("level", level, 0)
    program = partial(_intervals, block_size=block_size)
    fitted = jackknife, fit.kernel, spread, level
    of_rows = rows, effects, weights
    ends = in_few_sizes(program, fitted, of_rows, from_host=came_from_host(X))
    return (
        ends
        if fit.label_offset is None
        else tuple(with_constant(end, fit.label_offset) for end in ends)
    )


@compiled
def _intervals(
    jackknife: Jackknife,
    kernel: Kernel,
    spread: Spread | None,
    level: Float[Numbers, ""],
    rows: Rows,
    effects: Any,
    weights: Float[Array, " m"] | None,
    *,
    block_size: int | None,
) -> tuple:
    """Return the lower and upper ends of the intervals at rows.

    If `spread` is given, the width of an interval depends on x. If `weights` are given, it depends
    on the noise of each new label.
    """
    n = jackknife.fits.widths.shape[-2]
    rank = jackknife.rank(level)
    if block_size is None and n * FEWEST_ROWS > AT_ONCE:
        block_size = max(1, AT_ONCE // n)

    def ends_of_block(x: Any, effects: Any, weights: Float[Array, " b"] | None) -> Any:
        design = jackknife.expansion.design(kernel, x)
        columns = jackknife.fixed.dense(effects, design.shape[0])
        design = jnp.concatenate([design, columns], axis=1)

        def ends(fits: Any) -> Any:
            ratios = 1 if weights is None else jackknife.root / jnp.sqrt(weights)[:, None]
            if spread is not None:
                variance = spread.variances(kernel, spread.new_rows(kernel, x, effects))
                ratios = fits.ratios(design, variance, 1 if weights is None else weights)
            return fits.for_targets(design, partial(_ends, ratios, rank))

        return jackknife.for_lams(ends)

    ends = rows.map(ends_of_block, effects, weights, temporaries=4 * n, block_size=block_size)
    return tuple(end[:, 0] if jackknife.flat else end for end in ends)


def _ends(
    ratios: Float[Numbers, "b n"] | int,
    rank: Int[Array, ""],
    left_out: Float[Array, "b n"],
    widths: Float[Array, " n"],
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Return the lower and upper ends of intervals, with half widths hᵢ = |eᵢ|·ratioᵢ.

    * The lower end is the ⌊(1 − level)(n + 1)⌋-th smallest of f₋ᵢ(x) − hᵢ.
    * The upper end is the ⌈level (n + 1)⌉-th smallest of f₋ᵢ(x) + hᵢ.

    The two mirror each other. An end is infinite if there are fewer rows of positive weight, as the
    widths of rows of weight 0 are infinite.
    """

    def end(sign: int) -> Float[Array, " b"]:
        ranked = jnp.sort(sign * left_out + widths * ratios, axis=1)
        return sign * ranked.at[:, rank - 1].get(mode="fill", fill_value=jnp.inf)

    return end(-1), end(1)


# predictive distributions
# --------------------------------------------------------------------------------------------------


def loo_predictive(fit: Fit, scale: Any) -> Predictive:
    """Compute `Fit.loo_predictive`."""
    jackknife = jackknife_of(fit)
    check_single_rows(fit, "loo_predictive")
    by_loo = isinstance(scale, str) and scale == "loo"
    amplitude = None if by_loo else process_of(fit).amplitude(scale)
    return _predictive(jackknife, fit.loo_residuals, amplitude)


@compiled
def _predictive(
    jackknife: Jackknife, residuals: Float[Numbers, "n *t"], amplitude: Float[Numbers, "*t"] | None
) -> Predictive:
    """Return predictive distributions from held-out residuals and the amplitude τ.

    For None, τ is the number that makes the mean of (eᵢ/σᵢ)² equal to 1.
    """
    sigma = jackknife.for_lams(lambda fits: fits.deviations()[:, None])[: len(residuals)]
    e = jnp.asarray(residuals).reshape(len(sigma), -1)
    if amplitude is None:
        amplitude = safe_sqrt(jnp.sum((e / sigma) ** 2, axis=0) / jackknife.count)
    std = jnp.where(jnp.isinf(sigma), jnp.nan, amplitude * sigma)
    z = e / jnp.where(std == 0, 1, std)  # where std is 0, so is e
    inside = jax.scipy.special.erf(jnp.abs(z) / 2**0.5)
    density = jnp.exp(-(z**2) / 2) / (2 * jnp.pi) ** 0.5
    crps = std * (jnp.abs(z) * inside + 2 * density - 1 / jnp.pi**0.5)
    parts = jnp.where(jnp.isnan(std), jnp.nan, e), std, inside, crps
    return Predictive(*(part.reshape(residuals.shape) for part in parts))
