"""How well a fit knows how sure it is: every label beside what the others tell of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.inference.intervals import Jackknife
from jaxrls.linalg.products import safe_sqrt
from jaxrls.support.checks import as_floats, is_concrete
from jaxrls.support.pictures import plot_coverage
from jaxrls.support.pytrees import pytree


@pytree
class Predictive:
    """Every label as the other rows tell it, N(yᵢ − eᵢ, std²): (n,) or (n, t), NaN for rows of
    weight 0.

    `reached` is the level of the central interval that just reaches the label, uniform on (0, 1)
    where the standard deviations are right; `crps` the continuous ranked probability score in units
    of the labels, less being better: what |eᵢ| is of a prediction without any deviation.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> found = rls.Predictive(jnp.array([0.5, -2.0]), jnp.array([1.0, 1.0]), jnp.array([0.38, 0.95]), jnp.array([0.33, 1.45]))
    >>> found.coverage([0.5, 0.9]).tolist()
    [0.5, 0.5]
    """

    residuals: Float[Array | np.ndarray, "n *t"]
    std: Float[Array | np.ndarray, "n *t"]
    reached: Float[Array | np.ndarray, "n *t"]
    crps: Float[Array | np.ndarray, "n *t"]

    def coverage(self, levels) -> Float[Array | np.ndarray, "L *t"]:
        """The share of labels within their central interval of each level: the level itself where
        the standard deviations are right.
        """
        xp: Any = jnp if isinstance(self.reached, jax.Array) else np
        levels = as_floats("levels", levels)
        if (
            is_concrete(levels)
            and not ((np.asarray(levels) >= 0) & (np.asarray(levels) <= 1)).all()
        ):
            raise ValueError(
                f"levels must be numbers between 0 and 1, such as 0.9, and are {levels.tolist()}"
            )
        levels = xp.asarray(levels, self.reached.dtype).reshape(-1, *[1] * self.reached.ndim)
        inside = xp.sum(self.reached <= levels, axis=1).astype(self.reached.dtype)
        return inside / xp.sum(~xp.isnan(self.reached), axis=0).astype(self.reached.dtype)

    def plot(self, ax=None):
        """Coverage against level, on Matplotlib axes, which it returns."""
        return plot_coverage(self, ax)


def predictive(jackknife: Jackknife, residuals, amplitude) -> Predictive:
    """From residuals left out, at an amplitude, or at that by which they are as large on average as
    they are held to be.
    """
    return _predictive(jackknife, residuals, amplitude)


@jax.jit
def _predictive(jackknife: Jackknife, residuals, amplitude) -> Predictive:
    own = (
        jax.vmap(lambda fits: fits.deviations())(jackknife.fits).T
        if jackknife.stacked
        else jackknife.fits.deviations()
    )
    e, own = jnp.asarray(residuals), jnp.asarray(own)
    own = own if own.ndim == e.ndim else own[:, None]
    tau = (
        safe_sqrt(jnp.sum((e / own) ** 2, axis=0) / jackknife.count)
        if amplitude is None
        else jnp.asarray(amplitude)
    )
    std = jnp.where(jnp.isinf(own), jnp.nan, tau * own)
    z = e / jnp.where(
        std == 0, 1, std
    )  # where there is no deviation nothing is left to be told either
    inside = jax.scipy.special.erf(jnp.abs(z) / 2**0.5)
    density = jnp.exp(-(z**2) / 2) / (2 * jnp.pi) ** 0.5
    return Predictive(
        jnp.where(jnp.isnan(std), jnp.nan, e),
        std,
        inside,
        std * (jnp.abs(z) * inside + 2 * density - 1 / jnp.pi**0.5),
    )
