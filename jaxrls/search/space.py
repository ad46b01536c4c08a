"""Where a gradient search starts and what it may move: kernel and λ as parameters, positive ones by
their logarithms.
"""

from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.kernels.kernel import Kernel
from jaxrls.support.pytrees import pytree, static

# Log-parameters may move this far from their start, a factor of e^16 ≈ 9·10⁶ either way: further, K
# is 0 or constant to rounding.
REACH = 16.0
# log λ is searched in units of 3: errors change as much for λ times e³ as for a width times e.
LAM_UNIT = 3.0


def _search_kinds(kernel: Kernel) -> list[str]:
    """For every leaf in order how it is searched: by its logarithm, freely, or, at a limit such as
    offset 0, not at all.
    """
    kinds: list[str] = []
    for f in fields(kernel):  # type: ignore[arg-type]
        value = getattr(kernel, f.name)
        if isinstance(value, Kernel):
            kinds += _search_kinds(value)
        elif f.name not in kernel.positive:
            kinds += ["free"] * (0 if f.metadata.get("static") else len(jax.tree.leaves(value)))
        else:
            positive = (np.all(np.asarray(a) > 0) for a in jax.tree.leaves(value))
            kinds += ["log" if each else "fixed" for each in positive]
    return kinds


@pytree
class Space:
    """Where the search starts and what it may move: parameters θ ↔ kernel and λ."""

    kernel: Kernel
    log_lam: Float[Array | np.ndarray, ""]
    floor: Float[Array | np.ndarray, ""]  # λ stays above the precision of K
    kinds: tuple[str, ...] = static()

    @classmethod
    def around(cls, kernel: Kernel, lam, floor):
        """The space whose origin is this kernel and this λ."""
        log_lam = np.asarray(np.log(np.maximum(lam - floor, 1e-2 * floor)))
        return cls(kernel, log_lam, np.asarray(floor), tuple(_search_kinds(kernel)))

    def first(self):
        """θ at the start."""
        leaves = zip(jax.tree.leaves(self.kernel), self.kinds, strict=True)
        return [np.log(a) if kind == "log" else a for a, kind in leaves], self.log_lam / LAM_UNIT

    def unpack(self, params):
        """Kernel and λ at θ, held within REACH of the start."""
        leaves, log_lam = params
        origins, tree = jax.tree.flatten(self.kernel)

        def value(at, origin, kind):
            if kind == "log":
                return jnp.exp(jnp.clip(at, jnp.log(origin) - REACH, jnp.log(origin) + REACH))
            return at if kind == "free" else origin

        values = [value(*each) for each in zip(leaves, origins, self.kinds, strict=True)]
        low, high = self.log_lam - 2 * REACH, self.log_lam + 2 * REACH
        lam = jnp.exp(jnp.clip(LAM_UNIT * log_lam, low, high)) + self.floor
        return jax.tree.unflatten(tree, values), lam

    def moved(self, key):
        """The start moved at random, logarithms by a standard deviation of 1."""
        leaves, tree = jax.tree.flatten(self.first())
        units = [1.0] * (len(leaves) - 1) + [LAM_UNIT]
        keys = jax.random.split(key, len(leaves))
        moves = [
            jax.random.normal(k, np.shape(a), a.dtype) / unit
            for k, a, unit in zip(keys, leaves, units, strict=True)
        ]
        return jax.tree.unflatten(tree, [a + move for a, move in zip(leaves, moves, strict=True)])
