"""The Gaussian process whose mean a fit is: standard deviations, covariances and samples.

`process_of(fit)` makes the `GaussianProcess`. The functions after it compute what the methods
`predict`, `posterior` and `effects` of a `Fit` return.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxrls.core.data import Folds, Rows, compiled, pad_rows
from jaxrls.core.factors import Solution
from jaxrls.core.fit import Numbers
from jaxrls.core.kernels import Kernel, Levels
from jaxrls.core.linalg import Number, eigh, matmul, safe_sqrt
from jaxrls.core.support import (
    as_array,
    check_weights,
    check_whole,
    known_and,
    on_device,
    public_call,
    pytree,
    static,
    warn,
)
from jaxrls.front import Fit, came_from_host, in_few_sizes, once_per_fit, solution_of
from jaxrls.uncertainty.spread import Spread, spread

# Variances and amplitudes. NumPy makes numbers of arrays without axes.
Values = Float[Numbers, "..."] | np.floating


@pytree
class Posterior:
    """The posterior of f + b at m rows, as `Fit.posterior` returns it.

    Args:
        mean: (m,) or (m, t).
        unit_covariance: (m, m), for a prior whose covariance is the kernel itself: τ = 1.
        amplitude: τ, () or (t,), by which standard deviations are multiplied.
        noise: λ/w, the variance of a new label of weight w, in the units of `unit_covariance`; ()
            for labels of weight 1, or (m,).
        names: what each row is in the result of `Fit.effects`: "intercept", the name of a column,
            or a level. Otherwise it is empty.

    >>> import jax, jax.numpy as jnp
    >>> from jaxrls.diagnostics import Posterior
    >>> posterior = Posterior(jnp.zeros(2), jnp.eye(2), jnp.array(3.0), jnp.array(0.5))
    >>> posterior.std.tolist(), posterior.sample(jax.random.key(0), 4).shape
    ([3.0, 3.0], (4, 2))
    >>> posterior.covariance.tolist()
    [[9.0, 0.0], [0.0, 9.0]]
    """

    mean: Float[Numbers, "m *t"]
    unit_covariance: Float[Numbers, "m m"]
    amplitude: Float[Numbers, "*t"]
    noise: Float[Numbers, "*#m"]
    names: tuple = static(default=())

    @property
    def covariance(self) -> Any:
        """The covariance of f + b, (m, m) or (m, m, t): τ² times `unit_covariance`."""
        return for_targets(self.unit_covariance, self.amplitude**2)

    @property
    def std(self) -> Any:
        """The standard deviation of f + b, shaped as the mean."""
        return deviation(self.unit_covariance.diagonal(), self.amplitude)

    @property
    def label_std(self) -> Any:
        """The standard deviation of a new label, shaped as the mean.

        The label has weight 1, or the weights that `Fit.posterior` was given.
        """
        return deviation(self.unit_covariance.diagonal() + self.noise, self.amplitude)

    @public_call(fitted="self.mean")
    def sample(self, key: PRNGKeyArray, num: int) -> Float[Numbers, "num m *t"]:
        """Draw functions from the posterior, jointly at all rows, for every target separately.

        Args:
            key: a JAX random key.
            num: how many functions to draw.

        Returns:
            Samples (num, m) or (num, m, t).

        Raises:
            ValueError: for a `num` that is not a whole number of at least 1.

        **Cost** O(m³ + num m² t).
        """
        check_whole("num", num)
        return _drawn(self, key, num=num)


def deviation(variance: Values, amplitude: Values) -> Any:
    """Return standard deviations from variances and amplitudes, for every target.

    A variance that is negative by rounding counts as 0.
    """
    xp: Any = jnp if isinstance(variance, jax.Array) else np
    return for_targets(xp.sqrt(xp.maximum(variance, 0)), amplitude)


def for_targets(values: Any, factors: Values) -> Any:
    """Return values times a factor, or, along a new last axis, times the factor of every target."""
    return values[(...,) + (None,) * np.ndim(factors)] * factors


@compiled
def _drawn(posterior: Posterior, key: PRNGKeyArray, *, num: int) -> Float[Array, "num m *t"]:
    """Return samples mean + τ Q√s z, with Q s Qᵀ the unit covariance and z standard normal."""
    mean = jnp.asarray(posterior.mean)
    s, Q = eigh(jnp.asarray(posterior.unit_covariance, mean.dtype))
    z = jax.random.normal(key, (num, *mean.shape), mean.dtype)
    moved = matmul(Q * safe_sqrt(jnp.maximum(s, 0)), z.reshape(num, len(mean), -1)).reshape(z.shape)
    return mean + moved * jnp.asarray(posterior.amplitude, mean.dtype)


@pytree
class GaussianProcess:
    """The Gaussian process of a fit at its λ.

    `evidence` and `loo` are amplitudes τ, by the evidence and by held-out residuals. `evidence` is
    the root of τ² if a likelihood was given it. `loo` is None if held-out residuals are not known.
    `spread` is the posterior covariance in units of the kernel, where τ = 1.
    """

    lam: Float[Numbers, ""]
    evidence: Float[Numbers, "*t"]
    loo: Float[Numbers, "*t"] | None
    spread: Any

    def amplitude(self, scale: Any) -> Any:
        """Return the amplitude τ, from the name of its estimate or from the number τ²."""
        named = {"evidence": self.evidence, "loo": self.loo}
        if isinstance(scale, str) and scale in named:
            if named[scale] is None:
                raise ValueError(
                    "scale='loo' needs all rows, which a fit does not have after update or "
                    "forget: use scale='evidence'"
                )
            return named[scale]
        value = np.asarray(0 if isinstance(scale, bool | str) else scale, self.evidence.dtype)
        if value.shape not in ((), self.evidence.shape) or not (value > 0).all():
            raise ValueError(
                "scale must be 'evidence', 'loo' or a positive number, or one for each target, and "
                f"is {scale!r}"
            )
        return jnp.broadcast_to(jnp.sqrt(value), self.evidence.shape)

    def noise(self, weights: Any) -> Any:
        """Return the variance of labels of these weights, None for 1, in units of the kernel."""
        return self.lam if weights is None else self.lam / weights

    def label_std(self, variance: Float[Numbers, "..."], scale: Any) -> Any:
        """Return the standard deviation of a new label of weight 1.

        `variance` is the variance of f + b in units of the kernel.
        """
        return deviation(variance + self.lam, self.amplitude(scale))

    def posterior(
        self,
        mean: Float[Numbers, "m *t"],
        covariance: Float[Numbers, "m m"],
        scale: Any,
        weights: Any = None,
        names: tuple = (),
    ) -> Posterior:
        """Return the posterior with this mean, and with this covariance in units of the kernel."""
        amplitude = self.amplitude(scale)
        noise = jnp.asarray(self.noise(weights))
        return Posterior(mean, jnp.asarray(covariance), amplitude, noise, names)


@compiled
def process_at(
    solution: Solution,
    lam: Number,
    left_out: Float[Numbers, "..."] | None,
    given: Number | None = None,
    folds: Folds | None = None,
) -> GaussianProcess:
    """Return the Gaussian process of a solution at one λ.

    The amplitude where the evidence is largest has τ² = ỹᵀP̃ỹ/(n − q). If τ² is `given`, its root
    takes the place of this estimate. The amplitude by held-out residuals has
    τ² = Σ vᵢ eᵢ (yᵢ − f(xᵢ))/mλ, with m the number of rows that are predicted. A level of fixed
    effects whose rows are all held out together counts as one row less, because eᵢ lacks its
    constant. `folds` are the rows that were held out together.
    """
    factor = solution.factor
    drop = solution.labels.drop_axis
    lams = lam.reshape(1, 1)
    by_evidence = drop(solution.amplitude(lams)[0])
    if given is not None:
        by_evidence = jnp.full_like(by_evidence, jnp.sqrt(given))
    by_loo = None
    if left_out is not None:
        r = solution.training_residuals(lams)[0]
        e = jnp.asarray(left_out).reshape(factor.n, -1)
        known = factor.weights.used[:, None] & ~jnp.isnan(e)  # NaN for rows that no split predicts
        products = jnp.where(known, factor.weights.scale(e) * r, 0)
        counts = known.astype(e.dtype)
        whole = factor.fixed.whole_levels_left_out(factor.weights, folds)
        if whole is not None:
            of_level = factor.fixed.leverage(factor.fixed.values, factor.weights.array)
            counts = counts * (1 - jnp.where(whole, of_level, 0))[:, None]
        squares = jnp.sum(products, axis=0) / lam / jnp.maximum(jnp.sum(counts, axis=0), 1)
        by_loo = drop(safe_sqrt(squares))
    return GaussianProcess(lam, by_evidence, by_loo, spread(factor, lam))


# of a fit
# --------------------------------------------------------------------------------------------------


@once_per_fit
def process_of(fit: Fit) -> GaussianProcess:
    """Return the Gaussian process of a fit that kept its solution, at its λ."""
    solution = solution_of(fit)
    if np.ndim(fit.lam):
        raise ValueError(
            "variances need one λ, and this fit has one for each target: fit with one for "
            "all, or each target alone"
        )
    lam = jnp.asarray(fit.lam)
    scale = fit.about.scale
    given = None if scale is None else on_device(np.asarray(scale, lam.dtype))
    return process_at(solution, lam, residuals_of_all(fit), given, fit.kept.folds)


def residuals_of_all(fit: Fit) -> Any:
    """Return held-out residuals of all rows of the solution, with 0 for rows of padding.

    The result is None if the fit does not know its held-out residuals.
    """
    residuals = fit.loo_residuals
    n = solution_of(fit).factor.n
    if residuals is None or len(residuals) == n:
        return residuals
    return on_device(pad_rows(np.asarray(residuals), n - len(residuals)))


@once_per_fit
def warn_of_groups(fit: Fit) -> tuple:
    """Warn, once for each fit, if groups were held out and the kernel has no part for them.

    Such a part, `Levels`, is what the rows of a group share. Splits into training and test rows are
    no groups. The function returns an empty tuple.
    """
    parts = jax.tree.leaves(fit.kernel, is_leaf=lambda part: isinstance(part, Levels))
    has_groups = fit.kept.folds is not None and fit.kept.folds.are_groups
    if has_groups and not any(isinstance(part, Levels) for part in parts):
        warn(
            "variances take rows as independent given f, and this fit held out groups: where the "
            "rows of a group share more, add 1.0 * Levels().on([j]) to the kernel, with the "
            "number of the group in column j, tune it by criterion='evidence' without groups=, and "
            "fit it with lams=[tuned.lam]"
        )
    return ()


def process_for_rows(fit: Fit, diag: Any = None) -> GaussianProcess:
    """Return `process_of(fit)` for variances of new rows. Raise if their k(x, x) is not known.

    `diag` is k(x, x) for a kernel matrix, and None for any other kernel.
    """
    if fit.kernel.evaluable != (diag is None):
        raise ValueError(
            "variances need k(x, x) of new rows, which a kernel matrix does not have: give "
            "predict(K, return_std=True, diag=…); a kernel that knows it takes no diag="
        )
    return process_of(fit)


def weights_of_new(weights: Any, rows: Rows) -> Any:
    """Return the weights of the labels of new rows, None if all are 1.

    They are given, or the source of the rows has them.
    """
    weights = rows.row_weights if weights is None else weights
    if weights is None:
        return None
    weights = as_array("weights", weights, rows.dtype)
    check_weights(weights, rows.shape[0])
    if known_and(lambda weights: (weights == 0).any(), weights):
        raise ValueError(
            "weights of new rows must be positive, and the smallest is 0.0: the label of a "
            "row of weight 0 has no finite variance"
        )
    return weights


def label_deviations(
    fit: Fit,
    rows: Rows,
    effects: Any,
    weights: Any,
    scale: Any,
    corrected: bool,
    diag: Any,
    block_size: int | None,
    *,
    from_host: bool,
) -> Any:
    """Return the standard deviations of new labels at rows, shaped as their predictions.

    `from_host` is as in `in_few_sizes`.
    """
    process = process_for_rows(fit, diag)
    warn_of_groups(fit)
    if diag is not None:
        diag = as_array("diag", diag, rows.dtype)
        check_weights(diag, rows.shape[0], "diag")
    program = partial(_label_deviations, corrected=corrected, block_size=block_size)
    fitted = process, fit.kernel, process.amplitude(scale)
    of_rows = rows, effects, weights_of_new(weights, rows), diag
    return in_few_sizes(program, fitted, of_rows, from_host=from_host)


def posterior_at(
    fit: Fit, X: Any, weights: Any, scale: Any, corrected: bool, fixed_effects: Any
) -> Posterior:
    """Compute `Fit.posterior`."""
    process = process_for_rows(fit)
    warn_of_groups(fit)
    rows, effects = fit.model.read(X, fixed_effects)
    mean = fit.model.of_rows(rows, effects, None, from_host=came_from_host(X))
    fitted = process.spread, fit.kernel
    covariance = _covariance(*fitted, rows.dense(), effects, corrected=corrected)
    return process.posterior(mean, covariance, scale, weights_of_new(weights, rows))


def posterior_of_effects(fit: Fit, scale: Any) -> Posterior:
    """Compute `Fit.effects`."""
    model = fit.model
    process = process_of(fit)
    warn_of_groups(fit)
    fixed = process.spread.fixed
    xp: Any = jnp if fit.label_offset is None else np  # labels far from 0 are in float64
    mean = xp.asarray(model.intercept)[None][: int(fixed.has_intercept)]
    if model.free is not None:
        mean = xp.concatenate([mean, model.free])
    covariance = process.spread.of_fixed_effects()
    return process.posterior(mean, covariance, scale, names=fixed.titles)


@compiled
def _label_deviations(
    process: GaussianProcess,
    kernel: Kernel,
    amplitude: Float[Numbers, "*t"],
    rows: Rows,
    effects: Any,
    weights: Float[Array, " m"] | None,
    diag: Float[Numbers, " m"] | None,
    *,
    corrected: bool,
    block_size: int | None,
) -> Float[Array, "m *t"]:
    """Return the standard deviations of new labels at rows, computed in blocks of rows.

    `diag` is k(x, x) if the kernel does not know it, else None.
    """
    spread = process.spread
    temporaries = 2 * spread.map_shape[1]

    def of_block(x: Any, effects: Any, diag: Float[Array, " b"] | None) -> Float[Array, " b"]:
        return spread.variances(kernel, spread.new_rows(kernel, x, effects, corrected), diag)

    hints = {"temporaries": temporaries, "block_size": block_size}
    variance = rows.map(of_block, effects, diag, **hints)
    return deviation(variance + process.noise(weights), amplitude)


@compiled
def _covariance(
    spread: Spread, kernel: Kernel, X: Float[Array, "m d"], effects: Any, *, corrected: bool
) -> Float[Array, "m m"]:
    """Return the covariance of f + b between all rows of X."""
    return spread.covariance(kernel, spread.new_rows(kernel, X, effects, corrected))
