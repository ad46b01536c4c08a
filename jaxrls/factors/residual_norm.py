"""The norm of a fit's residuals at many λ, through left vectors, from one reading of the rows."""

from typing import Any

import jax.numpy as jnp

from jaxrls.factors.contract import references, times


def about_the_fit(solution: Any, lams):
    """z (r, L, t) and ‖λc̃‖² = ‖r‖² + ‖lost z‖² − ‖Uᵀr‖², where ‖√v y‖² − ‖z‖² would cancel: one reading of the rows, O(n r t).

    Here r are residuals of a fit at a λ not far below each: one far below would bring in that U is orthogonal to eps·√(s_max/s) only.
    """
    f, lost = solution.factor, solution.lost(lams)
    if f.complete:
        base = jnp.zeros((), f.dtype) if solution.base is None else jnp.sum(solution.base**2, axis=0)
        return solution.z[:, None], base + jnp.sum((lost * solution.z[:, None]) ** 2, axis=0)
    points, nearest = references(lams)
    fitted = solution.z[:, None] * (1 - solution.lost(points))
    cross, square = solution.residual_sums(fitted if f.rotation is None else times(f.rotation, fitted))
    step = cross if f.rotation is None else times(f.rotation.T, cross)
    at = jnp.broadcast_to(nearest, (len(lams), square.shape[1]))
    z, step = (jnp.take_along_axis(A, at[None], axis=1) for A in (fitted + step, step))
    norm = jnp.take_along_axis(square, at, axis=0) + jnp.sum((lost * z - step) * (lost * z + step), axis=0)
    return z, jnp.maximum(norm, 0)
