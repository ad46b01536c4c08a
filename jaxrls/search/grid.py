"""The grid of λ that spans all fits a factor can tell apart."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.contract import Factor
from jaxrls.support.checks import check_whole


def lambda_grid(factor: Factor, num: int = 100) -> Float[Array, " num"]:
    """A geometric grid of λ that spans all fits the factor can tell apart, ascending.

    From λ where effective degrees of freedom are at most 1/10, 10·Σs, down to a thousandth of the smallest eigenvalue that is
    not rounding, or to the precision of the factor, √n·eps·s_max, whichever is larger: below it λ is noise.

    **Shapes**: (num,). `num` is static. **Cost** O(r). **Raises** `ValueError` for a `num` below 1, and for a factor without a spectrum.
    **Source**: the rule of GURLS's
    `paramsel`, with both ends tied to spectrum and dtype.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.lambda_grid(rls.factor_gram(jnp.eye(2)), 3).shape
    (3,)
    """
    check_whole("num", num)
    floor, s = factor.precision_floor(), factor.spectrum().s
    largest = jnp.max(s)
    smallest = jnp.min(jnp.where(s > floor, s, largest))
    tiny = jnp.finfo(factor.dtype).tiny
    low = jnp.maximum(jnp.maximum(floor, 1e-3 * smallest), tiny)
    high = jnp.maximum(10 * jnp.sum(s), 10 * low)
    return jnp.exp(jnp.linspace(jnp.log(low), jnp.log(high), num, dtype=factor.dtype))
