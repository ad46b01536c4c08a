"""Standard deviations, covariances and samples of the Gaussian process whose mean a fit is."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxrls.factors.contract import Solution
from jaxrls.inference.model import Model
from jaxrls.linalg.decompositions import eigh
from jaxrls.linalg.products import matmul, safe_sqrt
from jaxrls.rows.compiled import compiled
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import as_rows
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

    mean: Float[Array | np.ndarray, "m *t"]
    covariance: Float[Array | np.ndarray, "m m"]
    amplitude: Float[Array | np.ndarray, "*t"]
    noise: Float[Array | np.ndarray, ""]

    @property
    def std(self) -> Any:
        """Standard deviation of f + b, shaped as the mean."""
        return deviation(self.covariance.diagonal(), self.amplitude)

    @property
    def label_std(self) -> Any:
        """Standard deviation of a new label of weight 1, shaped as the mean."""
        return deviation(self.covariance.diagonal() + self.noise, self.amplitude)

    @door("self.mean")
    def sample(self, key: PRNGKeyArray, num: int) -> Float[Array | np.ndarray, "num m *t"]:
        """Functions drawn at all rows jointly, for every target by itself: O(m³ + num m² t)."""
        check_whole("num", num)
        return _drawn(self, key, num=num)


def check_unsaid(scale, corrected: bool = True) -> None:
    """Raise where it is said how standard deviations are made, and none are asked for."""
    if not (isinstance(scale, str) and scale == "evidence" and corrected):
        raise ValueError(
            "scale= and corrected= say how standard deviations are made: pass return_std=True, or leave them out"
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
class Scales:
    """λ, and the amplitudes that standard deviations are multiplied by, as the evidence tells them
    and what is left out.
    """

    lam: Float[Array | np.ndarray, ""]
    evidence: Float[Array | np.ndarray, "*t"]
    loo: Float[Array | np.ndarray, "*t"] | None

    def amplitude(self, scale) -> Any:
        """τ by the name of what tells it, or of the number τ²."""
        if isinstance(scale, str) and scale not in ("evidence", "loo"):
            raise ValueError(
                f"scale must be 'evidence', 'loo' or a positive number, and is {scale!r}"
            )
        if scale == "loo" and self.loo is None:
            raise ValueError(
                "scale='loo' needs the rows, which were changed since the fit: use scale='evidence'"
            )
        if isinstance(scale, str):
            return self.evidence if scale == "evidence" else self.loo
        value = np.asarray(scale, self.evidence.dtype)
        if (
            isinstance(scale, bool)
            or value.shape not in ((), self.evidence.shape)
            or not (value > 0).all()
        ):
            raise ValueError(
                f"scale must be 'evidence', 'loo' or a positive number, or one for each target, and is {scale!r}"
            )
        return jnp.broadcast_to(jnp.sqrt(value), self.evidence.shape)


@pytree
class Sure(Scales):
    """What a fit keeps to say how sure it is: λ, amplitudes, and the covariance in units of the
    kernel.
    """

    spread: Any

    def label_std(self, model: Model, X, given, scale, corrected: bool, block_size) -> Any:
        """Standard deviation of a new label, in blocks of rows."""

        def found(rows):
            effects = model.new_effects(given, rows.shape[0])
            options: dict = {"corrected": corrected, "block_size": block_size}
            variance = _variances(self, model, rows, effects, **options)
            return deviation(variance + self.lam, self.amplitude(scale))

        return at_rows(model, X, found)

    def posterior(self, model: Model, X, given, scale, corrected: bool) -> Posterior:
        """Mean and covariance."""

        def found(rows):
            mean = jnp.asarray(model.predict(rows, fixed_effects=given))
            effects = model.new_effects(given, rows.shape[0])
            covariance = _covariance(self, model, rows.dense(), effects, corrected=corrected)
            return Posterior(
                mean, covariance, jnp.asarray(self.amplitude(scale)), jnp.asarray(self.lam)
            )

        return at_rows(model, X, found)


def at_rows(model: Model, X, found) -> Any:
    """What is found at rows that were checked."""

    rows = as_rows(model.kernel, X, dtype=model.coef.dtype)
    rows.check(model.kernel, training=False)
    return found(rows)


@compiled
def _variances(sure: Sure, model: Model, rows: Rows, effects, *, corrected: bool, block_size):
    def block(x, effects):
        return sure.spread.variance(model.kernel, x, effects, corrected)

    hints: dict = {"temporaries": 2 * sure.spread.half.shape[1], "block_size": block_size}
    return rows.map(block, effects, **hints)


@partial(jax.jit, static_argnames="corrected")
def _covariance(sure: Sure, model: Model, X, effects, *, corrected: bool):
    return sure.spread.covariance(model.kernel, X, effects, corrected)


def by_evidence(solution: Solution, lam) -> Float[Array, " t"]:
    """τ where the evidence is largest: √(√vyᵀ(K̃ + λI)⁻¹√vy/n), n less one for the intercept."""
    return safe_sqrt(
        solution.data_fit(lam.reshape(1, 1))[0] / solution.factor.residual_dimensions()
    )
