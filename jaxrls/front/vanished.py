"""Scales of a kernel that vanished in a search by likelihood: where `a` of `a * k` is so small that
the likelihood is the same without k, its slope in log a is 0 whether the best a is 0 or large.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import Rows, compiled
from jaxrls.core.kernels import Block, Kernel, Scaled

SOME = 100  # rows, whose prior variance is near enough to that of all


def scales_of(kernel: Kernel) -> list[bool]:
    """For every leaf in order, whether it is the number that multiplies a kernel."""
    marks: list[bool] = []
    for f in fields(kernel):  # type: ignore[arg-type]
        value = getattr(kernel, f.name)
        if isinstance(value, Kernel):
            marks += scales_of(value)
        elif not f.metadata.get("static"):
            marks += [isinstance(kernel, Scaled)] * len(jax.tree.leaves(value))
    return marks


def vanished_scales(
    params: list, space: Any, value_of: Callable[[list], float], most: float
) -> list[int]:
    """The places of scales without which the value that is minimised grows by at most so much."""
    value = value_of(params)
    vanished = []
    for place, is_scale in enumerate(scales_of(space.guess[0])):
        if is_scale and value_of(space.without(params, [place])) - value <= most:
            vanished.append(place)
    return vanished


def with_scales_raised(params: list, vanished: list[int], space: Any, rows: Rows) -> list:
    """The parameters with the parts of these scales raised to the variance that all others and the
    noise have together.
    """
    first = space.first()
    raised = list(params)
    for place in vanished:
        raised[place] = first[place]  # where it has a slope
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
    """The mean prior variance of labels, and the part of it of each scale: its derivative in the
    logarithm of that.
    """

    def variance(params: list) -> tuple[Float[Array, ""], Float[Array, ""]]:
        kernel, lam = space.unpack(params)
        of_function = jnp.mean(kernel.diag(X))
        return of_function, of_function + lam

    parts, total = jax.grad(variance, has_aux=True)(params)
    return total, parts
