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
        elif not f.metadata.get("static"):
            positive = f.name in kernel.positive
            kinds += [
                "free" if not positive else "log" if np.all(np.asarray(a) > 0) else "fixed"
                for a in jax.tree.leaves(value)
            ]
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
        leaves = [
            np.log(a) if kind == "log" else a
            for a, kind in zip(jax.tree.leaves(self.kernel), self.kinds, strict=True)
        ]
        return leaves, self.log_lam / LAM_UNIT

    def unpack(self, params):
        """Kernel and λ at θ, held within REACH of the start."""
        leaves, log_lam = params
        origins, tree = jax.tree.flatten(self.kernel)
        values = []
        for value, origin, kind in zip(leaves, origins, self.kinds, strict=True):
            if kind == "log":
                value = jnp.exp(jnp.clip(value, jnp.log(origin) - REACH, jnp.log(origin) + REACH))
            values.append(origin if kind == "fixed" else value)
        lam = (
            jnp.exp(
                jnp.clip(LAM_UNIT * log_lam, self.log_lam - 2 * REACH, self.log_lam + 2 * REACH)
            )
            + self.floor
        )
        return jax.tree.unflatten(tree, values), lam


def spread(first, starts, key):
    """`starts` copies of the parameters, all but the first moved at random, logarithms by a
    standard deviation of 1.
    """
    if starts == 1:
        return jax.tree.map(lambda a: np.asarray(a)[None], first)
    leaves, tree = jax.tree.flatten(first)
    keys = jax.random.split(key, len(leaves))
    moves = [
        jax.random.normal(k, (starts, *np.shape(a)), a.dtype).at[0].set(0)
        for k, a in zip(keys, leaves, strict=True)
    ]
    moves[-1] = moves[-1] / LAM_UNIT
    return jax.tree.unflatten(tree, [a + m for a, m in zip(leaves, moves, strict=True)])
