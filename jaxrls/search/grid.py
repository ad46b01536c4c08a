"""The λ that span all fits a factor can tell apart: their ends, and a grid between."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.contract import Factor
from jaxrls.support.checks import as_array, check_lams, check_whole
from jaxrls.support.meshes import on_any_mesh


@on_any_mesh
def lambda_grid(factor: Factor, num: int = 100) -> Float[Array, " num"]:
    """A geometric grid of λ that spans all fits the factor can tell apart, ascending.

    From λ where effective degrees of freedom are at most 1/10, 10·Σs, down to a thousandth of the
    smallest eigenvalue that is not rounding, or to the precision of the factor, √n·eps·s_max,
    whichever is larger: below it λ is noise.

    **Shapes**: (num,). `num` is static. **Cost** O(r). **Raises** `ValueError` for a `num` below 1,
    and for a factor without eigenvalues. **Source**: the rule of GURLS's `paramsel`, with both ends
    tied to spectrum and dtype.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.lambda_grid(rls.factorize(rls.Precomputed(), jnp.eye(2)), 3).shape
    (3,)
    """
    check_whole("num", num)
    low, high = lambda_range(factor, 1e-3 * factor.smallest_eigenvalue())
    return jnp.exp(jnp.linspace(jnp.log(low), jnp.log(high), num, dtype=factor.dtype))


def lambda_range(factor: Factor, low=0.0) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The ends of that grid: the precision of the factor, or `low` where that is larger, and 10·Σs,
    which takes no spectrum.
    """
    tiny = (
        2 * jnp.finfo(factor.dtype).tiny
    )  # twice, as what exp and log round must not fall out of the range
    low = jnp.maximum(jnp.maximum(factor.precision_floor(), low), tiny)
    return low, jnp.maximum(10 * factor.trace(), 10 * low)


def lam_vector(lams, dtype) -> Float[Array, " L"]:
    """λ (L,) as given, of which one is chosen, checked."""
    lams = as_array("lams", lams, dtype)
    if lams.ndim != 1:
        raise ValueError(f"lams must have shape (L,), and has shape {lams.shape}")
    check_lams(lams)
    return lams


def choose_lam(lams, errors, per_target: bool, within: Any = None):
    """The λ of the smallest error, the larger of equals: shared, by the mean over targets, or one
    per target, of its own where `lams` is (L, t).

    The largest λ whose error is no more than `within` above the smallest, where that is given.
    """
    if errors.ndim == 2 and not per_target:
        errors = jnp.mean(errors, axis=1)
    if len(lams) == 1:  # nothing to choose: what was made for the errors serves the model too
        return jnp.broadcast_to(lams[0], errors.shape[1:]), errors[0]
    smallest = jnp.min(errors, axis=0)
    each = lams if lams.ndim == errors.ndim else lams[:, None]
    if within is None:
        return jnp.max(jnp.where(errors <= smallest, each, 0), axis=0), smallest
    lam = jnp.max(jnp.where(errors <= smallest + within, each, 0), axis=0)
    return lam, jnp.min(jnp.where(each == lam, errors, jnp.inf), axis=0)
