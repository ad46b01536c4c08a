"""How close the path on landmarks is to that of all of K."""

from jaxtyping import Array, Float

from jaxrls.factors.contract import Factor
from jaxrls.problem.landmarks import Landmarks
from jaxrls.support.checks import is_concrete

TOLERANCE = 0.1  # of coefficients, in what is certified of landmarks


def certified_lam(source: Factor | Landmarks, tol: float | Float[Array, ""]) -> Float[Array, ""]:
    """The λ from which on the low-rank path is within `tol` of that of the whole kernel matrix.

    With E = K − K̂ ⪰ 0, ĉ − c = (K + λI)⁻¹Eĉ, hence ‖ĉ(λ) − c(λ)‖ ≤ (tr E/λ)‖ĉ(λ)‖ for the dual
    coefficients, which are the training residuals over λ: the relative distance is at most `tol`
    for λ ≥ tr E/tol. With weights the trace is tr √vE√v, and c is then √v⁻¹c. It is a bound: the
    path is often good far below it.

    **Shapes**: `tol` () gives λ ().
    **Raises** `ValueError` for landmarks without a trace residual, or a `tol` that is not positive.
    **Cost** none. **Source**: the resolvent identity; ‖E‖ ≤ tr E.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> float(certified_lam(extend.Landmarks(None, jnp.ones((1, 1)), jnp.array(0.5)), 0.25))
    2.0
    """
    if source.trace_residual is None:
        raise ValueError(
            "these landmarks carry no trace residual: pass the factor made from them, which knows its own"
        )
    if is_concrete(tol) and not tol > 0:
        raise ValueError(
            f"tol must be positive, the largest relative distance from the exact coefficients, and is {tol!r}"
        )
    return source.trace_residual / tol


def certificate(source: Factor | Landmarks, tol: float = TOLERANCE) -> str:
    """`certified_lam` in words, for a reader: λ = tr(K − K̂)/tol.

    **Shapes**: one landmark set or factor gives one sentence. **Cost** none. **Raises** and
    **Source** as `certified_lam`.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> words = certificate(extend.Landmarks(None, jnp.ones((1, 1)), jnp.array(0.5)), 0.25)
    >>> words.partition(",")[0]
    'from λ = 2 on'
    """
    return certificate_words(float(certified_lam(source, tol)) * tol, source.points.shape[0], tol)


def certificate_words(trace: float, m: int, tol: float) -> str:
    """The certificate of m landmarks that leave `trace` of K out."""
    return (
        f"from λ = {trace / tol:.3g} on, the {m} landmarks change the dual coefficients by at most {100 * tol:.3g}% of their norm "
        f"(tr(K − K̂) = {trace:.3g})"
    )
