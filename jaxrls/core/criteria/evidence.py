"""The evidence, and the base class of all criteria that depend on the variance of a prior.

Theory: `docs/theory.md`, "Criteria".
"""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria.criterion import Criterion
from jaxrls.core.data import FixedEffects, Weights
from jaxrls.core.factors import Solution
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number, at_least_tiny
from jaxrls.core.support import pytree, static


@pytree
class OfPrior(Criterion):
    """A criterion of the Gaussian process with prior covariance τ²k and noise of variance τ²λ/v.

    τ² is called `scale`, and τ is called `amplitude`. The field `scale` says what τ² is:

    * a number is τ² itself;
    * the string `best_scale` of the class means the best τ² for every λ and target;
    * None means 1 if the criterion is called on a factor, and `best_scale` in `fit` and `tune`.

    The property `given_scale` decides between them. With the best τ², the chosen λ does not depend
    on the unit of the labels.
    """

    scale: Any = static(default=None)
    best_scale: ClassVar[str]
    fits_samples = ignores_offset = True

    def __post_init__(self):
        if self.scale in (None, self.best_scale):
            return
        if isinstance(self.scale, bool | str) or not 0 < self.scale < np.inf:
            raise ValueError(
                "scale must be a positive number, by which the kernel is multiplied, or "
                f"{self.best_scale!r}, and is {self.scale!r}"
            )

    @property
    def given_scale(self) -> float | None:  # type: ignore[override]
        """The number τ²; None if the best τ² is taken for every λ and target."""
        if self.scale == self.best_scale:
            return None
        return 1.0 if self.scale is None else self.scale

    @property
    def takes_best(self) -> bool:  # type: ignore[override]
        """Whether τ² is the best one for every λ and target, and not a number."""
        return self.given_scale is None

    def with_best_scale(self) -> "OfPrior":
        """Return the criterion with the best τ², unless the user gave a number."""
        return replace(self, scale=self.best_scale) if self.scale is None else self

    def amplitude(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L t"]:
        """Return τ for every λ and target: the best one, or that of the given τ²."""
        scale = self.given_scale
        if scale is None:
            return self.best_amplitude(solution, lams)
        return jnp.full((len(lams), solution.labels.Y.shape[1]), math.sqrt(scale), lams.dtype)

    @abstractmethod
    def best_amplitude(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L t"]:
        """Return the τ that suits the labels best, for every λ and target."""


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
    best_scale = "evidence"
    larger_is_better = needs_only_sums = True

    def best_amplitude(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L t"]:
        """Return τ = √(yᵀP̃y/(n − q)), the maximiser of the evidence."""
        return solution.amplitude(lams)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return −½ (yᵀP̃y/τ² + log determinant + (n − q) log 2πτ² + constants).

        With the best τ², the first term yᵀP̃y/τ² is n − q.
        """
        factor = solution.factor
        dimensions = factor.residual_dimensions()
        scale = self.given_scale
        log_scale: Any
        if scale is None:
            data_fit = dimensions
            log_scale = 2 * jnp.log(at_least_tiny(self.best_amplitude(solution, lams)))
        else:
            data_fit = solution.data_fit(lams) / scale
            log_scale = math.log(scale)
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


log_marginal_likelihood = Evidence()
