"""The Gaussian process whose mean a fit is: standard deviations, covariances and samples."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from jaxrls.factors.contract import Solution
from jaxrls.inference.model import Numbers
from jaxrls.linalg.decompositions import eigh
from jaxrls.linalg.products import matmul, safe_sqrt
from jaxrls.rows.compiled import compiled
from jaxrls.rows.rows import Rows
from jaxrls.support.checks import check_whole
from jaxrls.support.door import door
from jaxrls.support.pytrees import pytree


@pytree
class Posterior:
    """f + b at m rows: `mean` (m,) or (m, t), and `covariance` (m, m) in units in which the kernel
    is that of the prior.

    `amplitude` τ, () or (t,), is what standard deviations are multiplied by; `noise` is λ, the
    variance of a label of weight 1 in the same units.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> found = rls.Posterior(jnp.zeros(2), jnp.eye(2), jnp.array(3.0), jnp.array(0.5))
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
        """Functions drawn at all rows jointly, for every target by itself: O(m³ + num m² t)."""
        check_whole("num", num)
        return _drawn(self, key, num=num)


def check_unsaid(scale, corrected: bool = True) -> None:
    """Raise where it is said how standard deviations are made, and none are asked for."""
    if not (isinstance(scale, str) and scale == "evidence" and corrected):
        raise ValueError(
            "scale= and corrected= say how standard deviations are made: pass return_std=True, or "
            "leave them out"
        )


def deviation(variance, amplitude):
    """Standard deviations of variances, for every target."""
    xp: Any = jnp if isinstance(variance, jax.Array) else np
    return xp.sqrt(variance)[(...,) + (None,) * xp.ndim(amplitude)] * amplitude


@partial(jax.jit, static_argnames="num")
def _drawn(posterior: Posterior, key, *, num: int):
    s, Q = eigh(jnp.asarray(posterior.covariance))
    mean = jnp.asarray(posterior.mean)
    z = jax.random.normal(key, (num, *mean.shape), mean.dtype)
    moved = matmul(Q * safe_sqrt(jnp.maximum(s, 0)), z.reshape(num, len(mean), -1)).reshape(z.shape)
    return mean + moved * posterior.amplitude


@pytree
class GaussianProcess:
    """λ, the amplitudes τ by the evidence and by what is left out, None where that is not known,
    and the posterior covariance in units of the kernel.
    """

    lam: Float[Numbers, ""]
    evidence: Float[Numbers, "*t"]
    loo: Float[Numbers, "*t"] | None
    spread: Any

    def amplitude(self, scale) -> Any:
        """τ by the name of what tells it, or of the number τ²."""
        named = {"evidence": self.evidence, "loo": self.loo}
        if isinstance(scale, str) and scale in named:
            if named[scale] is None:
                raise ValueError(
                    "scale='loo' needs the rows, which were changed since the fit: use "
                    "scale='evidence'"
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
        """Of a mean, and a covariance in units of the kernel."""
        parts = mean, covariance, self.amplitude(scale), self.lam
        return Posterior(*map(jnp.asarray, parts))


@compiled
def variances(spread, kernel, rows: Rows, effects, *, corrected: bool, block_size):
    """Of f + b at rows, in blocks of them."""

    def block(x, effects):
        return spread.variance(kernel, x, effects, corrected)

    hints: dict = {"temporaries": 2 * spread.half.shape[1], "block_size": block_size}
    return rows.map(block, effects, **hints)


@partial(jax.jit, static_argnames="corrected")
def covariance(spread, kernel, X, effects, corrected: bool):
    """Of f + b at all rows of X with each other."""
    return spread.covariance(kernel, X, effects, corrected)


@compiled
def process_at(solution: Solution, lam, left_out) -> GaussianProcess:
    """That of a solution at one λ: τ² = ỹᵀP̃ỹ/(n − q) where the evidence is largest, and by
    residuals left out Σ vᵢ eᵢ (yᵢ − f(xᵢ))/nλ.
    """
    factor, drop, at = solution.factor, solution.labels.drop_axis, lam.reshape(1, 1)
    by_evidence = safe_sqrt(solution.data_fit(at)[0] / factor.residual_dimensions())
    by_loo = None
    if left_out is not None:
        r, e = solution.training_residuals(at)[0], jnp.asarray(left_out).reshape(factor.n, -1)
        squares = jnp.sum(factor.weights.scale(e) * r, axis=0) / lam / factor.weights.count
        by_loo = drop(safe_sqrt(squares))
    return GaussianProcess(lam, drop(by_evidence), by_loo, factor.spread(lam))
