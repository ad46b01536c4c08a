"""The standard criteria and their names: leave-one-out, k-fold and hold-out errors and predictive
densities, which are means over held-out rows; GCV and the evidence, from sums over the whole fit.

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

    Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ, with every row, or every group of rows, left out in turn. For
    weights 1, P = (K + λI)⁻¹ and c = Py, single rows have eᵢ = cᵢ/Pᵢᵢ, and a group S has e_S =
    [P_SS]⁻¹c_S. Weights and fixed effects are exact too.

    Called as `criterion(factor, Y, lams)` it returns the error at every λ, and `fit(criterion=…)`
    chooses λ by it. `loo` is this criterion with squared errors and single rows, `kfold(groups)`
    with groups.

    Args:
        loss: what is averaged: `squared_error`, `absolute_error`, `zero_one_loss`, or any function
            (residuals (n, t), labels (n, t)) -> (n, t).
        groups: labels (n,) of rows that are left out together, splits, or what `folds` made of
            them. Default: single rows.

    **Cost** O(n r L (t + 1)); for k groups of b rows O(k L b² (r + b)), or where b > r, and of K on
    a CPU where it is less, O(k n r (r + L t)). **Fails**: without groups too optimistic where rows
    come in groups. **Source**: Rifkin (lecture), "LOOE derivation, VII"; Pahikkala, Boberg and
    Salakoski 2006, theorem 1.

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
        """Its name, by what is left out."""
        return "loo" if self.groups is None else "kfold"

    @property
    def title(self):
        """What it is, by what is left out."""
        return "leave-one-out error" if self.groups is None else "error of folds left out"

    @property
    def fits_samples(self):  # type: ignore[override]
        """True unless it holds groups, which are of all rows."""
        return self.groups is None

    @property
    def summand(self):
        """The loss of every row, times its weight."""
        return None if self.groups is not None else partial(_sum_losses, self.loss)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """One pass over the rows."""
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
    return jnp.sum(weights[:, None] * loss(residuals, labels), axis=0)


def kfold(groups: Any, loss: Callable = squared_error) -> LeaveOneOut:
    """Exact k-fold or leave-one-group-out error, pooled over rows: `LeaveOneOut` of groups.

    Of splits (train, test) each test row is predicted by the fit to the training rows alone, as
    where splits are purged, have a gap or draw fewer rows: with S all rows outside of training, e_S
    = [P_SS]⁻¹c_S, of which the test rows are counted. A row that no split tests is not counted.

    Args:
        groups: labels (n,) of any kind; or splits, pairs of row numbers, as `cv.split(X)` of
            scikit-learn gives them; inside `jax.jit` what `folds(groups)` made outside of it.
        loss: as in `LeaveOneOut`.

    Returns:
        A criterion.

    Raises:
        ValueError: for fewer than two groups, and splits that test a row twice, or have it in both
            parts.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(4), intercept=False)
    >>> rls.kfold([0, 0, 1, 1])(factor, jnp.array([1.0, 1.0, 2.0, 2.0]), [1.0]).round(4).tolist()
    [2.5]
    """
    return LeaveOneOut(loss, groups)


@pytree
class OfPrior(Criterion):
    """What is computed of the prior τ²k of the function and noise of variance τ²λ/v. τ² is `scale`,
    a number, or by the name of an `estimate` what the data say at every λ, for every target.

    With None it is 1 where the criterion is called on a factor, and estimated in `fit` and `tune`,
    whose results then do not depend on the unit of the labels.
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
        """τ², where it is not estimated."""
        return 1.0 if self.scale is None else self.scale

    def with_estimates(self) -> "OfPrior":
        """With τ² estimated, unless it is a number."""
        return replace(self, scale=self.estimate) if self.scale is None else self

    def amplitude(
        self, solution: Solution, lams: Float[Array, "L *k"]
    ) -> Float[Array, "L t"] | None:
        """τ, if it is estimated."""
        return self.estimated(solution, lams) if self.scale == self.estimate else None

    @abstractmethod
    def estimated(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L t"]:
        """The estimate of τ."""


@pytree
class OfPredictive(OfPrior):
    """A mean over the predictive distributions N(yᵢ − eᵢ, τ²σᵢ²) of rows that are left out, with
    σᵢ² = λ/(vᵢ(1 − hᵢ)); the estimate of τ², "loo", is the mean of e²/σ².
    """

    estimate = "loo"

    def estimated(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L t"]:
        """From one pass over the rows."""
        solution, unit = solution.of_unit_labels()
        return unit * safe_sqrt(self.sums(solution, lams)[1])

    def sums(self, solution: Solution, lams: Float[Array, "L *k"]) -> tuple[Any, Any]:
        """The means of log 1/σᵢ² and of eᵢ²/σᵢ² over rows of positive weight."""
        count = solution.factor.weights.count
        columns = as_columns(lams)
        logs, squares = solution.sum_with_remaining(_log_density, lams)
        return logs / count - jnp.log(columns), squares / count / columns


@pytree
class LogPredictive(OfPredictive):
    """Leave-one-out log predictive density: the mean of log p(yᵢ | all other labels), larger is
    better.

    −½ (log 2πτ²σᵢ² + eᵢ²/(τ²σᵢ²)) averaged over rows, in nats for each row of positive weight, with
    e = c/p and σᵢ² = 1/pᵢ, p = diag (K + λV⁻¹)⁻¹, V the weights. As in `log_marginal_likelihood`, y
    ~ N(0, τ²(K + λV⁻¹)), with a flat prior on an intercept.

    Unlike `loo` it also judges the predicted variances. It suffers less from a wrong kernel than
    the evidence does, as each label is predicted from all others and the prior of all labels
    together plays no part.

    Args:
        scale: τ². With `"loo"`, as `fit` and `tune` take it by default, it is the mean of e²/σ²,
            for every λ and target, at which the density is largest. The chosen λ then does not
            depend on the unit of the labels, and a kernel that is multiplied by s gets s times the
            λ. With 1, the default where it is called on a factor, the noise variance is λ and the
            kernel is the prior covariance, as it is.

    Raises:
        ValueError: for the iterative route, which has no exact leverage.

    **Cost** as `loo`. **Fails**: on landmarks the prior is that of the model, k̂, whose predictive
    uncertainty is too small far from them. **Source**: Rasmussen and Williams 2006, eq. 5.10 to
    5.12; Sundararajan and Keerthi 2001.

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
        """From one pass over the rows."""
        if self.scale != self.estimate:
            return _mean_density(*self.sums(solution, lams), self.given_scale)
        solution, unit = solution.of_unit_labels()
        logs, squares = self.sums(solution, lams)
        return _mean_density(logs, squares, _not_zero(squares)) - jnp.log(unit)


def _mean_density(
    logs: Float[Array, "L #t"], squares: Float[Array, "L t"], scale: Float[Array, "L t"] | float
) -> Float[Array, "L t"]:
    """From the means of log 1/σᵢ² and of eᵢ²/σᵢ²."""
    return 0.5 * (logs - jnp.log(2 * np.pi * scale) - squares / scale)


def _log_density(
    residuals: Float[Array, "b t"],
    remaining: Float[Array, "b k"],
    labels: Float[Array, "b t"],
    weights: Float[Array, " b"],
) -> tuple[Float[Array, " k"], Float[Array, " t"]]:
    """Σ log v(1 − h) and Σ v(1 − h) e² over rows of positive weight."""
    v = weights[:, None]
    information = _information(remaining, weights)
    squares = jnp.where(v > 0, information * residuals**2, 0)
    return jnp.sum(jnp.log(information), axis=0), jnp.sum(squares, axis=0)


def _information(
    remaining: Float[Array, "b k"], weights: Float[Array, " b"]
) -> Float[Array, "b k"]:
    """v(1 − h), and 1 for rows of weight 0."""
    v = weights[:, None]
    return jnp.where(v > 0, _not_zero(v * remaining), 1)


def _not_zero(values: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.maximum(values, jnp.finfo(values.dtype).tiny)


@pytree
class CRPS(OfPredictive, Positive):
    """The continuous ranked probability score of labels given all others, in units of the labels:
    smaller is better.

    The mean over rows of positive weight of σ(z(2Φ(z) − 1) + 2φ(z) − 1/√π) with z = eᵢ/σ, σ² =
    τ²λ/(vᵢ(1 − hᵢ)): the integral of (F(t) − 1(t ≥ yᵢ))² for the predictive distribution F = N(yᵢ −
    eᵢ, σ²). It judges predicted variances as `log_predictive_density` does, but suffers less from
    single rows far outside, as it grows like |e| and not e². It is the mean of
    `fit.loo_predictive().crps`.

    Args:
        scale: τ². By default "loo", the mean of e²(1 − h)v/λ for every λ and target, with which the
            choice of λ does not depend on the unit of the labels; or a number, 1 for noise of
            variance λ.

    Raises:
        ValueError: for the iterative route, which has no exact leverage, and for rows that are
            read from elsewhere, as they are read anew for every λ.

    **Cost** O(n r t) for each λ, one λ after another; twice that with "loo". **Source**: Gneiting
    and Raftery 2007, eq. 21.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> round(float(rls.extend.crps(factor, jnp.array([1.0, 3.0]), [1.0])[0]), 4)
    1.3114
    """

    scale: Any = static(default="loo")
    name = "crps"
    title = "continuous ranked probability score"

    def bind(self, Y: Float[Array | np.ndarray, "n *t"], rows: Rows | None = None) -> Criterion:
        """The same, for rows that a program takes."""
        if rows is not None and not rows.traceable:
            raise ValueError(
                "criterion crps reads the rows anew for every λ, which these rows do not allow: "
                "take criterion='log_predictive_density', or put them into memory"
            )
        return super().bind(Y, rows)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """One λ after another, as rows must know τ²λ."""
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
    """Σ of scores over rows of positive weight, for noise of variance τ²λ at weight 1."""
    std = jnp.sqrt(_not_zero(noise / _information(remaining, weights)))
    z = residuals / std
    normal = jnp.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    scores = std * (z * jax.scipy.special.erf(z / 2**0.5) + 2 * normal - 1 / math.sqrt(math.pi))
    return jnp.sum(jnp.where(weights[:, None] > 0, scores, 0), axis=0)


@pytree
class GCV(Positive):
    """Generalised cross-validation: leave-one-out with every leverage replaced by their mean.

    GCV(λ) = (Σ vᵢ rᵢ² / Σ vᵢ) / (1 − df(λ)/n)², with r the training residuals and n the number of
    rows of positive weight. It is in squared units of Y. Unlike leave-one-out it does not depend on
    the basis in which the data are written.

    **Cost** O(r L t). **Fails**: where squares of labels leave the range of the dtype, as
    `squared_error` says. **Source**: Golub, Heath and Wahba 1979, eq. 1.4.

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
        """From the residual norm and its degrees of freedom; one row with an intercept has none, as
        nothing is left to fit without it.
        """
        weights = solution.factor.weights
        share = solution.residual_dof(lams) / weights.count
        return solution.nan_where_rank_drops(
            solution.residual_norm(lams) / weights.total / share**2
        )


@pytree
class Evidence(OfPrior):
    """Log evidence (log marginal likelihood) of the Gaussian process with this kernel: larger is
    better.

    −½ yᵀG⁻¹y − ½ log |G| − (n/2) log 2π, in nats, for y ~ N(0, G), G = τ²(K + λ V⁻¹), V the
    weights. With an intercept, or other fixed effects, it is the restricted likelihood (REML) under
    a flat prior on them.

    Args:
        scale: τ². With `"evidence"`, as `fit` and `tune` take it by default, it is where the
            evidence is largest for every λ and target, yᵀP̃y/(n − q) with P̃ = P − PB(BᵀPB)⁻¹BᵀP, P
            = (K + λV⁻¹)⁻¹ and q fixed effects B; the same with which `posterior` multiplies
            variances. The chosen λ then does not depend on the unit of the labels. With 1, the
            default where it is called on a factor, the noise variance is λ and the kernel is the
            prior covariance, as it is.

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
        """√(yᵀP̃y/(n − q)), at which yᵀP̃y/τ² is n − q."""
        return solution.amplitude(lams)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """−½ (data fit/τ² + log determinant + (n − q) log 2πτ² + constants)."""
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
        """Nothing: no row is left out."""

    def to_search(self, error: Array | np.ndarray | np.floating, count: Number) -> Any:
        """The error per row."""
        return error / count

    def from_search(self, value: np.ndarray, count: float) -> Any:
        """The error of all rows."""
        return value * count


@pytree
class HoldOut(Positive):
    """The error on held-out rows, as a criterion: what `holdout` makes, of the same arguments.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.holdout(jnp.ones((2, 1)), jnp.array([1.0, 2.0])).name
    'holdout'
    """

    X: Any  # as it was given, `Rows` once it is bound
    Y: Any
    weights: Any = None
    loss: Callable = static(default=squared_error)
    name = "holdout"
    title = "hold-out error"
    fits_samples = True

    def bind(self, Y: Float[Array | np.ndarray, "n *t"], rows: Rows | None = None) -> Criterion:
        """Held-out rows, labels and weights, checked to have the columns and targets of those that
        are fitted.
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
        """With columns of X by name, and labels less an offset."""
        Y = self.Y if offset is None else np.asarray(self.Y, np.float64) - offset
        return replace(self, X=by_names("X of holdout", self.X, names), Y=Y)

    def check(self, kernel: Kernel) -> None:
        """Raise for held-out rows outside the kernel's domain."""
        self.X.check(kernel, "X of holdout", training=False)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """From one pass over the held-out rows, in the precision of the factor whatever theirs is.
        Without a kernel the rows are taken as what multiplies the coefficients.
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
    """Make a criterion of the error on held-out rows.

    Σⱼ vⱼ loss(yⱼ − f_λ(xⱼ), yⱼ) / Σⱼ vⱼ, f_λ fitted on the other rows.

    Args:
        X: held-out rows (m, d), with the columns of those that are fitted. If you call the
            criterion with a factor and no kernel, give the matrix (m, q) that multiplies the
            coefficients: `gram(kernel, X, factor.points)`, or explicit features.
        Y: their labels, (m,) or (m, t).
        weights: (m,), 0 or more. Default 1.
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
# A room adds those of its own.
NAMED: dict[str, Criterion] = {
    "loo": loo,
    "gcv": gcv,
    "evidence": log_marginal_likelihood,
    "log_marginal_likelihood": log_marginal_likelihood,
    "log_predictive_density": log_predictive_density,
    "crps": crps,
}
# As estimators and the command line take them; "kfold" is by groups, which are given or drawn.
CRITERIA: ChainMap[str, Criterion] = ChainMap({"kfold": loo}, NAMED)


def as_criterion(criterion: Any, groups: Any = None) -> Criterion:
    """A criterion from its name, a function, or itself; where it is one of single rows, with
    `groups` left out in their place.
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
    """Raise unless it is a function of (factor, Y, lams): neither a class nor what makes criteria,
    and no wrapper around a criterion, whose own data would not be read.
    """
    innermost = inspect.unwrap(getattr(criterion, "func", criterion))
    makes_criteria = innermost is kfold or innermost is holdout
    if not callable(criterion) or makes_criteria or isinstance(innermost, type | Criterion):
        raise ValueError(
            f"criterion must be one of {', '.join(map(repr, NAMED))}, kfold(groups), "
            f"holdout(X, Y), a jaxrls.extend.Criterion or a function of (factor, Y, lams), and is "
            f"{criterion!r}"
        )
