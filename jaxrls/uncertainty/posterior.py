"""The Gaussian process whose mean a fit is: standard deviations, covariances and samples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from jaxrls.core.factors.solution import Solution
from jaxrls.core.fit.model import Numbers
from jaxrls.core.linalg.decompositions import eigh
from jaxrls.core.linalg.products import matmul, safe_sqrt
from jaxrls.core.problem.compiled import compiled
from jaxrls.core.problem.rows import Rows
from jaxrls.core.support.checks import check_whole
from jaxrls.core.support.door import door
from jaxrls.core.support.pytrees import pytree


@pytree
class Posterior:
    """The posterior of f + b at m rows, as `Fit.posterior` returns it.

    Args:
        mean: (m,) or (m, t).
        covariance: (m, m), for a prior whose covariance is the kernel itself: amplitude 1.
        amplitude: τ, () or (t,), by which standard deviations are multiplied.
        noise: λ, the variance of a label of weight 1, in the units of `covariance`.

    >>> import jax, jax.numpy as jnp
    >>> from jaxrls.extend import Posterior
    >>> found = Posterior(jnp.zeros(2), jnp.eye(2), jnp.array(3.0), jnp.array(0.5))
    >>> found.std.tolist(), found.sample(jax.random.key(0), 4).shape
    ([3.0, 3.0], (4, 2))
    """

    mean: Float[Numbers, "m *t"]
    covariance: Float[Numbers, "m m"]
    amplitude: Float[Numbers, "*t"]
    noise: Float[Numbers, ""]

    @property
    def std(self) -> Any:
        """Standard deviation of f + b, shaped as the mean."""
        return deviation(self.covariance.diagonal(), self.amplitude)

    @property
    def label_std(self) -> Any:
        """Standard deviation of a new label of weight 1, shaped as the mean."""
        return deviation(self.covariance.diagonal() + self.noise, self.amplitude)

    @door("self.mean")
    def sample(self, key: PRNGKeyArray, num: int) -> Float[Numbers, "num m *t"]:
        """Draw functions from the posterior, jointly at all rows, for every target separately.

        Args:
            key: a JAX random key.
            num: how many.

        Returns:
            Samples (num, m) or (num, m, t).

        Raises:
            ValueError: for a `num` that is not a whole number of at least 1.

        **Cost** O(m³ + num m² t).
        """
        check_whole("num", num)
        return _drawn(self, key, num=num)


def check_unsaid(scale, corrected: bool = True, diag=None) -> None:
    """Raise where options of standard deviations are given, and none are asked for."""
    if not (isinstance(scale, str) and scale == "evidence" and corrected and diag is None):
        raise ValueError(
            "scale=, corrected= and diag= are for standard deviations, not asked for: pass "
            "return_std=True, or leave them out"
        )


def deviation(variance, amplitude):
    """Standard deviations of variances, for every target."""
    xp: Any = jnp if isinstance(variance, jax.Array) else np
    return xp.sqrt(variance)[(...,) + (None,) * xp.ndim(amplitude)] * amplitude


@compiled
def _drawn(posterior: Posterior, key, *, num: int):
    s, Q = eigh(jnp.asarray(posterior.covariance))
    mean = jnp.asarray(posterior.mean)
    z = jax.random.normal(key, (num, *mean.shape), mean.dtype)
    moved = matmul(Q * safe_sqrt(jnp.maximum(s, 0)), z.reshape(num, len(mean), -1)).reshape(z.shape)
    return mean + moved * posterior.amplitude


@pytree
class GaussianProcess:
    """The Gaussian process of a fit: λ, the amplitudes τ by the evidence and by held-out residuals
    (None where these are unknown), and the posterior covariance in units of the kernel.
    """

    lam: Float[Numbers, ""]
    evidence: Float[Numbers, "*t"]
    loo: Float[Numbers, "*t"] | None
    spread: Any

    def amplitude(self, scale) -> Any:
        """The amplitude τ, by the name of its estimate or from the number τ²."""
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

    def label_std(self, variance, scale) -> Any:
        """Standard deviation of a new label, from the variance of f + b in units of the kernel."""
        return deviation(variance + self.lam, self.amplitude(scale))

    def posterior(self, mean, covariance, scale) -> Posterior:
        """The posterior with this mean, and a covariance in units of the kernel."""
        parts = mean, covariance, self.amplitude(scale), self.lam
        return Posterior(*map(jnp.asarray, parts))


@compiled
def variances(spread, kernel, rows: Rows, effects, diag, *, corrected: bool, block_size):
    """Variances of f + b at rows, in blocks of rows, with k(x, x) where the kernel has it not."""

    def block(x, effects, diag):
        return spread.variance(kernel, x, effects, corrected, diag)

    made = 2 * spread.half.shape[1]
    return rows.map(block, effects, diag, temporaries=made, block_size=block_size)


@compiled
def covariance(spread, kernel, X, effects, *, corrected: bool):
    """Covariance of f + b between all rows of X."""
    return spread.covariance(kernel, X, effects, corrected)


@compiled
def process_at(solution: Solution, lam, left_out) -> GaussianProcess:
    """The Gaussian process of a solution at one λ: τ² = ỹᵀP̃ỹ/(n − q), where the evidence is
    largest, and by held-out residuals Σ vᵢ eᵢ (yᵢ − f(xᵢ))/nλ.
    """
    factor, drop, at = solution.factor, solution.labels.drop_axis, lam.reshape(1, 1)
    by_evidence = safe_sqrt(solution.data_fit(at)[0] / factor.residual_dimensions())
    by_loo = None
    if left_out is not None:
        r, e = solution.training_residuals(at)[0], jnp.asarray(left_out).reshape(factor.n, -1)
        squares = jnp.sum(factor.weights.scale(e) * r, axis=0) / lam / factor.weights.count
        by_loo = drop(safe_sqrt(squares))
    return GaussianProcess(lam, drop(by_evidence), by_loo, factor.spread(lam))
