"""The standard criteria and their names.

Means over held-out rows are the leave-one-out, k-fold and hold-out errors, the log predictive
density and the CRPS. GCV and the evidence are computed from sums over the whole fit. `as_criterion`
reads what a user passes as `criterion=`.

Theory: `docs/theory.md`, "Criteria".
"""

import inspect
import math
from abc import abstractmethod
from collections import ChainMap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria.criterion import Criterion, FunctionCriterion, Positive
from jaxrls.core.criteria.losses import squared_error
from jaxrls.core.data import FixedEffects, Rows, Weights, as_rows, folds
from jaxrls.core.factors import Solution, as_columns
from jaxrls.core.kernels import Kernel, Linear, as_dense
from jaxrls.core.linalg import Number, matmul, safe_sqrt
from jaxrls.core.support import as_floats, by_names, check_finite, check_index, pytree, static


@pytree
class LeaveOneOut(Positive):
    """The exact leave-one-out error, or leave-one-group-out error, at every λ.

    It is Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ, where every row, or every group of rows, is left out in turn.
    For weights 1 and no intercept let P = (K + λI)⁻¹ and c = Py. Then a single row has
    eᵢ = cᵢ/Pᵢᵢ, and a group S has e_S = [P_SS]⁻¹c_S. The error is exact with weights and fixed
    effects too.

    `criterion(factor, Y, lams)` returns the error at every λ, and `fit(criterion=…)` chooses λ by
    it. `loo` is this criterion with squared errors and single rows. `kfold(groups)` makes it with
    groups.

    Args:
        loss: the function that is averaged: `squared_error`, `absolute_error`, `zero_one_loss`, or
            any function (residuals (n, t), labels (n, t)) -> (n, t).
        groups: labels (n,) of rows that are left out together, splits, or what `folds` made of
            them. Default: single rows.

    **Cost** O(n r L (t + 1)) for single rows, O(k L b² (r + b)) for k groups of b rows. Groups with
    b > r, and groups of K on a CPU if that is less, take O(k n r (r + L t)). **Fails**: without
    groups the error is too optimistic for rows that come in groups. **Source**: Rifkin (lecture),
    "LOOE derivation, VII"; Pahikkala, Boberg and Salakoski 2006, theorem 1.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> criterion = rls.extend.LeaveOneOut(rls.extend.absolute_error)
    >>> criterion(factor, jnp.array([1.0, 3.0]), [1.0]).tolist()
    [2.0]
    """

    loss: Callable = static(default=squared_error)
    groups: Any = None  # `Folds`, made from labels

    def __post_init__(self):
        super().__post_init__()
        if self.groups is not None:
            object.__setattr__(self, "groups", folds(self.groups))

    @property
    def name(self):  # type: ignore[override]
        """The name: "loo" if single rows are left out, "kfold" if groups are."""
        return "loo" if self.groups is None else "kfold"

    @property
    def title(self):
        """The label of an axis of its values in plots."""
        return "leave-one-out error" if self.groups is None else "error of folds left out"

    @property
    def fits_samples(self):  # type: ignore[override]
        """Whether single rows are left out. Groups refer to all rows, and do not fit a sample."""
        return self.groups is None

    @property
    def summand(self):
        """The function that sums weight times loss over rows; None if groups are left out."""
        return None if self.groups is not None else partial(_sum_losses, self.loss)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return the mean loss, from one pass over the rows."""
        sums = solution.sum_held_out(partial(_sum_losses, self.loss), lams, self.groups)
        weights = solution.factor.weights
        counted = weights if self.groups is None else self.groups.weights_of_predicted(weights)
        return sums / counted.total


def _sum_losses(
    loss: Callable,
    residuals: Float[Array, "b t"],
    labels: Float[Array, "b t"],
    weights: Float[Array, " b"],
) -> Float[Array, " u"]:
    """Return the sum of weight times loss over a block of rows, for every target."""
    return jnp.sum(weights[:, None] * loss(residuals, labels), axis=0)


def kfold(groups: Any, loss: Callable = squared_error) -> LeaveOneOut:
    """Make the exact k-fold or leave-one-group-out error, pooled over rows.

    It is `LeaveOneOut` with groups. With labels, each row is predicted by the fit to the rows of
    all other groups.

    With splits (train, test), each test row is predicted by the fit to the training rows alone. So
    splits may be purged, have a gap or train on fewer rows. Let S be all rows outside of training.
    Then e_S = [P_SS]⁻¹c_S, and only the test rows of S are counted. A row that no split tests is
    not counted.

    Args:
        groups: labels (n,) of any kind; or splits, pairs of row numbers (train, test), as
            `cv.split(X)` of scikit-learn gives them. Inside `jax.jit` give what `folds(groups)`
            made outside of it.
        loss: as in `LeaveOneOut`.

    Returns:
        A criterion.

    Raises:
        ValueError: for fewer than two groups, for splits that test a row twice, and for a split
            that has a row in both parts.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(4), intercept=False)
    >>> rls.kfold([0, 0, 1, 1])(factor, jnp.array([1.0, 1.0, 2.0, 2.0]), [1.0]).round(4).tolist()
    [2.5]
    """
    return LeaveOneOut(loss, groups)


@pytree
class OfPrior(Criterion):
    """A criterion of the Gaussian process with prior covariance τ²k and noise of variance τ²λ/v.

    The field `scale` says what τ² is:

    * a number is τ² itself;
    * the string `estimate` of the class means that τ² is estimated for every λ and target;
    * None means 1 if the criterion is called on a factor, and the estimate in `fit` and `tune`.

    With the estimate, the chosen λ does not depend on the unit of the labels.
    """

    scale: Any = static(default=None)
    estimate: ClassVar[str]
    fits_samples = ignores_offset = True

    def __post_init__(self):
        if self.scale in (None, self.estimate):
            return
        if isinstance(self.scale, bool | str) or not 0 < self.scale < np.inf:
            raise ValueError(
                "scale must be a positive number, by which the kernel is multiplied, or "
                f"{self.estimate!r}, and is {self.scale!r}"
            )

    @property
    def given_scale(self) -> float:
        """τ² if it is not estimated: the given number, or 1 for None."""
        return 1.0 if self.scale is None else self.scale

    def with_estimates(self) -> "OfPrior":
        """Return the criterion with τ² estimated, unless the user gave a number."""
        return replace(self, scale=self.estimate) if self.scale is None else self

    def amplitude(
        self, solution: Solution, lams: Float[Array, "L *k"]
    ) -> Float[Array, "L t"] | None:
        """Return τ for every λ and target, or None if it is not estimated."""
        return self.estimated(solution, lams) if self.scale == self.estimate else None

    @abstractmethod
    def estimated(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L t"]:
        """Return the estimate of τ for every λ and target, (L, t)."""


@pytree
class OfPredictive(OfPrior):
    """A criterion that averages a score of the predictive distributions of held-out labels.

    The distribution of yᵢ given all other labels is N(yᵢ − eᵢ, τ²σᵢ²). Here eᵢ is the held-out
    residual, hᵢ the leverage and σᵢ² = λ/(vᵢ(1 − hᵢ)). The estimate of τ², named "loo", is the mean
    of eᵢ²/σᵢ².
    """

    estimate = "loo"

    def estimated(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L t"]:
        """Return τ, the root of the mean of eᵢ²/σᵢ², from one pass over the rows."""
        solution, unit = solution.of_unit_labels()
        return unit * safe_sqrt(self.sums(solution, lams)[1])

    def sums(self, solution: Solution, lams: Float[Array, "L *k"]) -> tuple[Any, Any]:
        """Return the means of log 1/σᵢ² and of eᵢ²/σᵢ² over the rows of positive weight.

        Both have a leading axis of λ.
        """
        count = solution.factor.weights.count
        columns = as_columns(lams)
        logs, squares = solution.sum_with_remaining(_log_density, lams)
        return logs / count - jnp.log(columns), squares / count / columns


@pytree
class LogPredictive(OfPredictive):
    """The leave-one-out log predictive density, the mean of log p(yᵢ | all other labels).

    Larger is better. It is the mean of −½ (log 2πτ²σᵢ² + eᵢ²/(τ²σᵢ²)) over the rows of positive
    weight, in nats per row. Without an intercept e = c/p and σᵢ² = 1/pᵢ, with P = (K + λV⁻¹)⁻¹,
    c = Py and p = diag P. V is the diagonal matrix of the weights. The model is that of
    `log_marginal_likelihood`: y ~ N(0, τ²(K + λV⁻¹)), with a flat prior on an intercept.

    Unlike `loo` it also judges the predicted variances. It suffers less from a wrong kernel than
    the evidence does: each label is predicted from all others, and the prior of all labels together
    plays no part.

    Args:
        scale: τ². `"loo"`, the default in `fit` and `tune`, takes the mean of e²/σ² for every λ and
            target, at which the density is largest. The chosen λ then does not depend on the unit
            of the labels, and a kernel that is multiplied by s gets s times the λ. 1, the default
            where the criterion is called on a factor, makes λ the noise variance and the kernel the
            prior covariance.

    Raises:
        ValueError: for the iterative route, which has no exact leverage.

    **Cost** as `loo`. **Fails**: with landmarks the prior is the covariance k̂ of the approximated
    model, and the predictive uncertainty is too small far from the landmarks. **Source**: Rasmussen
    and Williams 2006, eq. 5.10 to 5.12; Sundararajan and Keerthi 2001.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> round(float(rls.extend.log_predictive_density(factor, jnp.array([0.0, 0.0]), [1.0])[0]), 4)
    -1.2655
    """

    name = "log_predictive_density"
    unit = "nats"
    larger_is_better = True

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return the mean log density, from one pass over the rows."""
        if self.scale != self.estimate:
            return _mean_density(*self.sums(solution, lams), self.given_scale)
        solution, unit = solution.of_unit_labels()
        logs, squares = self.sums(solution, lams)
        return _mean_density(logs, squares, _not_zero(squares)) - jnp.log(unit)


def _mean_density(
    logs: Float[Array, "L #t"], squares: Float[Array, "L t"], scale: Float[Array, "L t"] | float
) -> Float[Array, "L t"]:
    """Return the mean log density, from the means of log 1/σᵢ² and of eᵢ²/σᵢ² and from τ²."""
    return 0.5 * (logs - jnp.log(2 * np.pi * scale) - squares / scale)


def _log_density(
    residuals: Float[Array, "b t"],
    remaining: Float[Array, "b k"],
    labels: Float[Array, "b t"],
    weights: Float[Array, " b"],
) -> tuple[Float[Array, " k"], Float[Array, " t"]]:
    """Return Σ log v(1 − h) and Σ v(1 − h) e² over the rows of positive weight in a block."""
    v = weights[:, None]
    information = _information(remaining, weights)
    squares = jnp.where(v > 0, information * residuals**2, 0)
    return jnp.sum(jnp.log(information), axis=0), jnp.sum(squares, axis=0)


def _information(
    remaining: Float[Array, "b k"], weights: Float[Array, " b"]
) -> Float[Array, "b k"]:
    """Return v(1 − h) = λ/σ² for every row, and 1 for rows of weight 0."""
    v = weights[:, None]
    return jnp.where(v > 0, _not_zero(v * remaining), 1)


def _not_zero(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return values that are at least the smallest normal number of their dtype."""
    return jnp.maximum(values, jnp.finfo(values.dtype).tiny)


@pytree
class CRPS(OfPredictive, Positive):
    """The continuous ranked probability score of each label given all others, averaged over rows.

    It is in units of the labels, and smaller is better. It is the mean over the rows of positive
    weight of σ(z(2Φ(z) − 1) + 2φ(z) − 1/√π), with z = eᵢ/σ and σ² = τ²λ/(vᵢ(1 − hᵢ)). Each term is
    the integral over t of (F(t) − 1(t ≥ yᵢ))², where F is the distribution function of the
    predictive distribution N(yᵢ − eᵢ, σ²).

    The score judges predicted variances, as `log_predictive_density` does. But it suffers less from
    single outliers, because it grows like |e| and not like e². It is the mean of
    `fit.loo_predictive().crps`.

    Args:
        scale: τ². "loo", the default, takes the mean of e²(1 − h)v/λ for every λ and target. The
            chosen λ then does not depend on the unit of the labels. A number is τ² itself; 1 makes
            λ the variance of the noise.

    Raises:
        ValueError: for the iterative route, which has no exact leverage; for rows that are read
            from files or other sources, because every λ would read them again.

    **Cost** O(n r t) for each λ, one λ after another, and twice that with "loo". **Source**:
    Gneiting and Raftery 2007, eq. 21.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> round(float(rls.extend.crps(factor, jnp.array([1.0, 3.0]), [1.0])[0]), 4)
    1.3114
    """

    scale: Any = static(default="loo")
    name = "crps"
    title = "continuous ranked probability score"

    def bind(self, Y: Float[Array | np.ndarray, "n *t"], rows: Rows | None = None) -> Criterion:
        """Return the criterion for one fit. Raise if the rows cannot enter `jax.jit`."""
        if rows is not None and not rows.traceable:
            raise ValueError(
                "criterion crps reads the rows anew for every λ, which these rows do not allow: "
                "take criterion='log_predictive_density', or put them into memory"
            )
        return super().bind(Y, rows)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return the mean score, for one λ after another.

        The score is not linear in τ², so that a sum over rows must know τ²λ beforehand. With an
        estimated τ² each λ therefore takes two passes over the rows: one for τ², one for the
        scores.
        """
        count = solution.factor.weights.count
        unit: Any = 1.0
        if self.scale == self.estimate:
            solution, unit = solution.of_unit_labels()

        def of_lam(lam: Float[Array, " k"]) -> Float[Array, " t"]:
            scale = self.scale
            if scale == self.estimate:
                scale = _not_zero(self.sums(solution, lam[None])[1][0])
            score = partial(_crps, scale * lam)
            return solution.sum_with_remaining(score, lam[None])[0] / count

        return unit * jax.lax.map(of_lam, as_columns(lams))


def _crps(
    noise: Float[Array, " k"],
    residuals: Float[Array, "b t"],
    remaining: Float[Array, "b _"],
    labels: Float[Array, "b t"],
    weights: Float[Array, " b"],
) -> Float[Array, " t"]:
    """Return the sum of scores over the rows of positive weight in a block.

    `noise` is τ²λ, the variance of the noise of a row of weight 1.
    """
    std = jnp.sqrt(_not_zero(noise / _information(remaining, weights)))
    z = residuals / std
    normal = jnp.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    scores = std * (z * jax.scipy.special.erf(z / 2**0.5) + 2 * normal - 1 / math.sqrt(math.pi))
    return jnp.sum(jnp.where(weights[:, None] > 0, scores, 0), axis=0)


@pytree
class GCV(Positive):
    """Generalised cross-validation: leave-one-out with every leverage replaced by their mean.

    GCV(λ) = (Σ vᵢ rᵢ² / Σ vᵢ) / (1 − df(λ)/n)². Here r are the training residuals and n is the
    number of rows of positive weight. It is in squared units of Y. Unlike the leave-one-out error,
    GCV does not change if an orthogonal matrix mixes the rows and their labels.

    **Cost** O(r L t). **Fails**: if squares of labels leave the range of the dtype, as in
    `squared_error`. **Source**: Golub, Heath and Wahba 1979, eq. 1.4.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.gcv(factor, jnp.array([1.0, 3.0]), [1.0]).tolist()
    [5.0]
    """

    name = "gcv"
    title = "GCV error"
    needs_only_sums = fits_samples = ignores_offset = True

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return GCV, from the norm of the residuals and their degrees of freedom.

        It is NaN, or an error outside `jax.jit`, if the fixed effects cannot be fitted without some
        row. An intercept and a single row are such a case.
        """
        weights = solution.factor.weights
        share = solution.residual_dof(lams) / weights.count
        return solution.nan_where_rank_drops(
            solution.residual_norm(lams) / weights.total / share**2
        )


@pytree
class Evidence(OfPrior):
    """The log evidence (log marginal likelihood) of the Gaussian process with this kernel.

    Larger is better. It is −½ yᵀG⁻¹y − ½ log |G| − (n/2) log 2π, in nats, for y ~ N(0, G) with
    G = τ²(K + λV⁻¹). V is the diagonal matrix of the weights. With an intercept or other fixed
    effects it is the restricted likelihood (REML), under a flat prior on their coefficients.

    Args:
        scale: τ². `"evidence"`, the default in `fit` and `tune`, takes for every λ and target the
            τ² at which the evidence is largest. It is yᵀP̃y/(n − q), with P = (K + λV⁻¹)⁻¹,
            P̃ = P − PB(BᵀPB)⁻¹BᵀP and q fixed effects B. `posterior` multiplies variances by this
            τ². The chosen λ then does not depend on the unit of the labels. 1, the default where
            the criterion is called on a factor, makes λ the noise variance and the kernel the prior
            covariance.

    **Cost** O(r L t). **Source**: Rasmussen and Williams 2006, eq. 2.30; with intercept, Patterson
    and Thompson 1971.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(1), intercept=False)
    >>> round(float(rls.log_marginal_likelihood(factor, jnp.array([0.0]), [1.0])[0]), 4)
    -1.2655
    """

    name = "log_marginal_likelihood"
    unit = "nats"
    estimate = "evidence"
    larger_is_better = needs_only_sums = True

    def estimated(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L t"]:
        """Return τ = √(yᵀP̃y/(n − q)), the maximiser of the evidence."""
        return solution.amplitude(lams)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return −½ (yᵀP̃y/τ² + log determinant + (n − q) log 2πτ² + constants).

        With the estimated τ², the first term yᵀP̃y/τ² is n − q.
        """
        factor = solution.factor
        dimensions = factor.residual_dimensions()
        log_scale: Any
        if self.scale == self.estimate:
            data_fit = dimensions
            log_scale = 2 * jnp.log(_not_zero(self.estimated(solution, lams)))
        else:
            data_fit = solution.data_fit(lams) / self.given_scale
            log_scale = math.log(self.given_scale)
        constant = factor.weights.log_product - factor.fixed.log_volume
        constant = constant - dimensions * (math.log(2 * math.pi) + log_scale)
        return 0.5 * (constant - data_fit - solution.logdet(lams))

    def check_rank(self, fixed: FixedEffects, weights: Weights) -> None:
        """Check nothing, because no row is left out."""

    def to_search(self, error: Array | np.ndarray | np.floating, count: Number) -> Any:
        """Return the error per row."""
        return error / count

    def from_search(self, value: np.ndarray, count: float) -> Any:
        """Return the error of all rows."""
        return value * count


@pytree
class HoldOut(Positive):
    """A criterion that is the mean loss on given held-out rows. `holdout` makes it.

    The fields X, Y, weights and loss are the arguments of `holdout`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.holdout(jnp.ones((2, 1)), jnp.array([1.0, 2.0])).name
    'holdout'
    """

    X: Any  # as the user gave it; `bind` turns it into `Rows`
    Y: Any
    weights: Any = None
    loss: Callable = static(default=squared_error)
    name = "holdout"
    title = "hold-out error"
    fits_samples = True

    def bind(self, Y: Float[Array | np.ndarray, "n *t"], rows: Rows | None = None) -> Criterion:
        """Return the criterion with X, Y and weights read, and checked against the fitted data.

        X must have the columns of the fitted rows, and Y the targets of the fitted labels.
        """
        held = as_rows(Linear(), self.X, "X of holdout")
        labels = held.column(as_floats("Y of holdout", self.Y))
        expected = held.shape[0], *Y.shape[1:]
        if labels.shape != expected:
            raise ValueError(
                f"Y of holdout must have shape {expected}, as its X and Y do, and has shape "
                f"{labels.shape}"
            )
        check_finite("Y of holdout", labels)
        if rows is not None and held.shape[1] != rows.shape[1]:
            raise ValueError(
                f"X of holdout must have the {rows.shape[1]} columns of X, and has {held.shape[1]}"
            )
        return replace(self, X=held, Y=labels, weights=Weights.of_rows(self.weights, held))

    def match_columns(self, names: tuple, offset: np.ndarray | None) -> Criterion:
        """Return the criterion with X's columns taken by name and the offset subtracted from Y."""
        Y = self.Y if offset is None else np.asarray(self.Y, np.float64) - offset
        return replace(self, X=by_names("X of holdout", self.X, names), Y=Y)

    def check(self, kernel: Kernel) -> None:
        """Raise if held-out rows lie outside the kernel's domain."""
        self.X.check(kernel, "X of holdout", training=False)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return the mean loss, from one pass over the held-out rows, in the factor's dtype.

        Without a kernel, the held-out rows are themselves the matrix that multiplies the
        coefficients.
        """
        factor = solution.factor
        rows = self.X
        if factor.fixed.values is not None:
            raise ValueError(
                "criterion holdout cannot be used with fixed_effects=, as those of its rows are "
                "not known: use loo or kfold"
            )
        coef, intercept, _ = solution.coefficients(lams)
        labels = self.Y.reshape(len(self.Y), -1)
        together = min(len(coef), max(1, 256 // labels.shape[1]))  # λ in one product

        def errors_of_block(
            x: Any, v: Float[Array, " b"], y: Float[Array, "b t"]
        ) -> Float[Array, "L u"]:
            x, v, y = (part.astype(factor.dtype) for part in (x, v, y))
            phi = as_dense(x) if kernel is None else factor.expansion.design(kernel, x)
            if phi.shape[1] != coef.shape[1]:
                raise ValueError(
                    f"X of holdout must have {coef.shape[1]} columns, one for each coefficient, "
                    f"where no kernel is given, and has {phi.shape[1]}"
                )
            error = lambda fit: matmul(v, self.loss(y - matmul(phi, fit[0]) - fit[1], y))
            return jax.lax.map(error, (coef, intercept), batch_size=together)

        total = self.weights.total.astype(factor.dtype)
        return rows.sum(errors_of_block, self.weights.array, labels) / total


def holdout(X: Any, Y: Any, *, weights: Any = None, loss: Callable = squared_error) -> HoldOut:
    """Make a criterion that is the mean loss on held-out rows.

    It is Σⱼ vⱼ loss(yⱼ − f_λ(xⱼ), yⱼ) / Σⱼ vⱼ over the held-out rows, where f_λ is fitted on the
    rows that `fit` or the factor has.

    Args:
        X: held-out rows (m, d), with the columns of the fitted rows. If you call the criterion with
            a factor and no kernel, give the matrix (m, q) that multiplies the coefficients:
            `gram(kernel, X, factor.points)`, or explicit features.
        Y: labels of the held-out rows, (m,) or (m, t).
        weights: weights of the held-out rows (m,), 0 or more. Default 1.
        loss: as in `LeaveOneOut`.

    Returns:
        A criterion: `fit(…, criterion=holdout(X, Y))`, `holdout(X, Y)(factor, Y, lams, kernel)`.

    **Cost** O((n + m) q L t). **Source**: Rifkin (lecture), "Types of Validation".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X, X_new = jnp.array([[1.0], [2.0]]), jnp.array([[3.0]])
    >>> factor = rls.factorize(rls.Linear(), X, intercept=False)
    >>> held = rls.holdout(X_new, jnp.array([6.0]))
    >>> held(factor, jnp.array([2.0, 4.0]), [5.0], rls.Linear()).round(4).tolist()
    [9.0]
    """
    check_index({"X": X, "Y": Y, "weights": weights})
    return HoldOut(X, Y, weights, loss)


loo = LeaveOneOut()
log_predictive_density = LogPredictive()
crps = CRPS()
gcv = GCV()
log_marginal_likelihood = Evidence()
# The criteria that have a name. A room adds its own criteria.
NAMED: dict[str, Criterion] = {
    "loo": loo,
    "gcv": gcv,
    "evidence": log_marginal_likelihood,
    "log_marginal_likelihood": log_marginal_likelihood,
    "log_predictive_density": log_predictive_density,
    "crps": crps,
}
# The names that estimators and the command line take. "kfold" is here `loo`, to which groups are
# added: the groups that the user gave, else random ones.
CRITERIA: ChainMap[str, Criterion] = ChainMap({"kfold": loo}, NAMED)


def as_criterion(criterion: Any, groups: Any = None) -> Criterion:
    """Return a criterion made from a name, a function or a criterion.

    With `groups`, the criterion must leave out single rows. It is then returned with these groups
    left out in their place.
    """
    if isinstance(criterion, str):
        criterion = NAMED.get(criterion, criterion)
    if not isinstance(criterion, Criterion):
        _check_function(criterion)
        criterion = FunctionCriterion(criterion)
    if groups is None:
        return criterion
    if not isinstance(criterion, LeaveOneOut) or criterion.groups is not None:
        raise ValueError(
            f"groups= leaves groups out in place of single rows, and criterion is "
            f"{criterion.name}: leave one of them out, or give kfold(groups) or "
            "PairsOut(within=groups)"
        )
    return replace(criterion, groups=groups)


def _check_function(criterion: Any) -> None:
    """Raise unless `criterion` is a function, which is taken for one of (factor, Y, lams).

    These callables are refused:

    * a class;
    * `kfold` and `holdout`, which make criteria;
    * a wrapper around a criterion, because `bind` would not read that criterion's own data.
    """
    innermost = inspect.unwrap(getattr(criterion, "func", criterion))
    makes_criteria = innermost is kfold or innermost is holdout
    if not callable(criterion) or makes_criteria or isinstance(innermost, type | Criterion):
        raise ValueError(
            f"criterion must be one of {', '.join(map(repr, NAMED))}, kfold(groups), "
            f"holdout(X, Y), a jaxrls.extend.Criterion or a function of (factor, Y, lams), and is "
            f"{criterion!r}"
        )
