"""Criteria that judge the predictive distribution of each row given all others.

They are the log predictive density and the CRPS, means over rows that are left out.

Theory: `docs/theory.md`, "Criteria".
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria.criterion import Criterion, Positive
from jaxrls.core.criteria.evidence import OfPrior
from jaxrls.core.data import Rows
from jaxrls.core.factors import HeldOut, Solution, as_columns
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import at_least_tiny, safe_sqrt
from jaxrls.core.support import pytree, static


@pytree
class OfPredictive(OfPrior):
    """A criterion that averages a score of the predictive distributions of held-out labels.

    The distribution of yᵢ given all other labels is N(yᵢ − eᵢ, τ²σᵢ²). Here eᵢ is the held-out
    residual, hᵢ the leverage and σᵢ² = λ/(vᵢ(1 − hᵢ)). The best τ², named "loo", is the mean of
    eᵢ²/σᵢ². It maximises the mean log density of the labels.
    """

    best_scale = "loo"

    def best_amplitude(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L t"]:
        """Return τ, the root of the mean of eᵢ²/σᵢ², from one pass over the rows."""
        solution, unit = solution.of_unit_labels()
        return unit * safe_sqrt(self.sums(solution, lams)[1])

    def in_units(self, solution: Solution) -> tuple[Solution, Any]:
        """Return the solution for labels of unit size, and the unit, if the best τ² is taken.

        A given τ² is in the units of the labels as they are, so that the unit is 1.
        """
        return solution.of_unit_labels() if self.takes_best else (solution, 1.0)

    def variance(self, squares: Callable[[], Any]) -> Any:
        """Return τ²: the given one, or the best one, from the mean of eᵢ²/σᵢ²."""
        scale = self.given_scale
        return at_least_tiny(squares()) if scale is None else scale

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
        solution, unit = self.in_units(solution)
        logs, squares = self.sums(solution, lams)
        scale = self.variance(lambda: squares)
        return 0.5 * (logs - jnp.log(2 * np.pi * scale) - squares / scale) - jnp.log(unit)


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
            λ the variance of the noise. None means 1 if the criterion is called on a factor, and
            "loo" in `fit` and `tune`.

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

        The score is not linear in τ², so that a sum over rows must know τ²λ beforehand. With the
        best τ² each λ therefore takes two passes over the rows: one for τ², one for the scores.
        """
        count = solution.factor.weights.count
        solution, unit = self.in_units(solution)

        def of_lam(lam: Float[Array, " k"]) -> Float[Array, " t"]:
            scale = self.variance(lambda: self.sums(solution, lam[None])[1][0])
            score = partial(_crps, scale * lam)
            return solution.sum_with_remaining(score, lam[None])[0] / count

        return unit * jax.lax.map(of_lam, as_columns(lams))


def _log_density(held: HeldOut) -> tuple[Float[Array, " k"], Float[Array, " t"]]:
    """Return Σ log v(1 − h) and Σ v(1 − h) e² over the rows of positive weight in a block."""
    information = _information(held)
    squares = jnp.where(held.weights[:, None] > 0, information * held.e**2, 0)
    return jnp.sum(jnp.log(information), axis=0), jnp.sum(squares, axis=0)


def _crps(noise: Float[Array, " k"], held: HeldOut) -> Float[Array, " t"]:
    """Return the sum of scores over the rows of positive weight in a block.

    `noise` is τ²λ, the variance of the noise of a row of weight 1.
    """
    std = jnp.sqrt(at_least_tiny(noise / _information(held)))
    z = held.e / std
    normal = jnp.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    scores = std * (z * jax.scipy.special.erf(z / 2**0.5) + 2 * normal - 1 / math.sqrt(math.pi))
    return jnp.sum(jnp.where(held.weights[:, None] > 0, scores, 0), axis=0)


def _information(held: HeldOut) -> Float[Array, "b k"]:
    """Return v(1 − h) = λ/σ² for every row, and 1 for rows of weight 0."""
    v = held.weights[:, None]
    return jnp.where(v > 0, at_least_tiny(v * held.remaining), 1)


log_predictive_density = LogPredictive()


crps = CRPS()
