"""Functions that find and raise scales of a kernel that vanished in a search by likelihood.

A scale is the number a of a part `a * k` of a kernel. It vanished if it is so small that the
likelihood is the same without the part. There the slope in log a is 0, whether the best a is 0 or
large, so a gradient cannot tell which.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import Rows, compiled
from jaxrls.core.kernels import Block

SOME = 100  # the prior variance of this many rows is near enough to that of all rows


def vanished_scales(
    params: list, space: Any, value_of: Callable[[list], float], most: float
) -> list[int]:
    """Return the places in θ of the scales that vanished.

    Args:
        params: the parameters θ of the search.
        space: the `Space` of the search.
        value_of: what the search minimises, as a function of θ.
        most: a scale vanished if the value without it is larger by at most this.
    """
    value = value_of(params)
    vanished = []
    for place, leaf in enumerate(space.leaves):
        if leaf.is_scale and value_of(space.without(params, [place])) - value <= most:
            vanished.append(place)
    return vanished


def with_scales_raised(params: list, vanished: list[int], space: Any, rows: Rows) -> list:
    """Return θ with the vanished scales raised, so that their parts matter.

    Each of their parts gets the mean prior variance that a label has at `params`, from the other
    parts and the noise together.
    """
    first = space.first()
    raised = list(params)
    for place in vanished:
        raised[place] = first[place]  # at the start the scale has a slope
    few = rows.few_rows(SOME)
    total, _ = _prior_variances(params, space, few)
    _, parts = _prior_variances(raised, space, few)
    for place in vanished:
        part = float(parts[place])
        if part > 0:
            param = np.asarray(raised[place])
            raised[place] = param + param.dtype.type(np.log(float(total) / part))
    return raised


@compiled
def _prior_variances(params: list, space: Any, X: Array | Block) -> tuple[Float[Array, ""], list]:
    """Return the mean prior variance of a label, and contributions to it, one for each parameter.

    The variance is the mean of k(x, x) + λ. A contribution is the derivative of the mean of k(x, x)
    in the parameter. For a scale a, whose parameter is log a, it is the mean of a times the
    k(x, x) of its part.
    """

    def variance(params: list) -> tuple[Float[Array, ""], Float[Array, ""]]:
        kernel, lam = space.unpack(params)
        of_function = jnp.mean(kernel.diag(X))
        return of_function, of_function + lam

    parts, total = jax.grad(variance, has_aux=True)(params)
    return total, parts
