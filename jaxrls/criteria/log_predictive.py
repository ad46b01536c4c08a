"""The leave-one-out log predictive density: how probable every label is, given all others."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrls.criteria.criterion import Criterion
from jaxrls.factors.contract import as_columns
from jaxrls.support.pytrees import pytree, static


@pytree
class LogPredictive(Criterion):
    """Leave-one-out log predictive density: the mean of log p(yᵢ | all other labels), larger is
    better.

    −½ (log 2πτσᵢ² + eᵢ²/(τσᵢ²)) averaged over rows, with e = c/p and σᵢ² = 1/pᵢ, p = diag (K +
    λV⁻¹)⁻¹, V the weights. As in `log_marginal_likelihood`, y ~ N(0, τ(K + λV⁻¹)), with a flat
    prior on an intercept. It judges variances too, which `loo` does not, and asks less of the
    kernel than the evidence does: each label is predicted from all others, whatever the prior says
    of them together. In nats for each row of positive weight; the cost of `loo`.

    Args:
        scale: τ, by default 1: the noise variance is λ and the kernel is the prior covariance, as it
            stands. With `"loo"` τ is the mean of e²/σ², at which the density is largest, for every λ
            and target: the choice then depends on the labels' unit and the kernel's size through
            their ratio to λ alone.

    **Raises** for the iterative route, which knows no leverage exactly. **Fails**: on landmarks the
    prior is that of the model, k̂, which is sure of itself far from them. **Source**: Rasmussen and
    Williams 2006, eq. 5.10 to 5.12; Sundararajan and Keerthi 2001.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> round(float(rls.log_predictive_density(factor, jnp.array([0.0, 0.0]), [1.0])[0]), 4)
    -1.2655
    """

    scale: Any = static(default=1.0)
    name = "log_predictive_density"
    larger_is_better = of_some_rows = True

    def __post_init__(self):
        number = isinstance(self.scale, int | float | np.number) and not isinstance(
            self.scale, bool
        )
        if self.scale != "loo" and not (number and 0 < self.scale < np.inf):
            raise ValueError(
                f"scale must be a positive number, by which the kernel is multiplied, or 'loo', and is {self.scale!r}"
            )

    def values(self, solution, lams, kernel):
        """One pass over the rows: with 1/σᵢ² = vᵢ(1 − hᵢ)/λ, the means of its logarithm and of
        eᵢ²/σᵢ².
        """
        del kernel
        count, columns = solution.factor.weights.count, as_columns(lams)
        logs, squares = solution.rows_and_leverages(_sums, lams)
        squares = squares / count / columns
        scale = (
            jnp.maximum(squares, jnp.finfo(squares.dtype).tiny)
            if self.scale == "loo"
            else self.scale
        )
        return 0.5 * (
            logs / count - jnp.log(columns) - jnp.log(2 * np.pi * scale) - squares / scale
        )


def _sums(residuals, remaining, labels, weights):
    """Σ log v(1 − h) and Σ v(1 − h) e² over rows of positive weight."""
    del labels
    v = weights[:, None]
    information = jnp.where(v > 0, jnp.maximum(v * remaining, jnp.finfo(v.dtype).tiny), 1)
    return jnp.sum(jnp.log(information), axis=0), jnp.sum(
        jnp.where(v > 0, information * residuals**2, 0), axis=0
    )


log_predictive_density = LogPredictive()
