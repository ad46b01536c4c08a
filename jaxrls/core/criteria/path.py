"""Public functions of a factor: what its fits are at one λ or at every λ.

`path` computes coefficients and leave-one-out errors at every λ. `coef` and `loo_residuals` compute
coefficients and residuals at one λ, and `effective_dof` the degrees of freedom at every λ.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria.criterion import as_grid
from jaxrls.core.criteria.leave_one_out import loo
from jaxrls.core.data import Folds, as_folds
from jaxrls.core.factors import Factor, Solution
from jaxrls.core.support import Listed, as_lam, public_call, pytree, warn, where_known


@pytree
class Path:
    """The whole regularisation path: coefficients, intercept and leave-one-out error at every λ.

    Args:
        lams: λ (L,), or (L, t) with one for each target.
        coef: coefficients (L, q) or (L, q, t). The factor's route decides which: dual coefficients
            c(λ) with q = n, or weights w(λ) on explicit features with q = r.
        intercept: (L,) or (L, t), 0 if no intercept was fitted.
        loo: the leave-one-out error Σ vᵢ eᵢ² / Σ vᵢ, (L,) or (L, t).
        free: coefficients β of the fixed effects, (L, p) or (L, p, t); None if there are none.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.path(factor, jnp.array([1.0, 3.0]), jnp.array([1.0, 2.0])).coef.shape
    (2, 2)
    """

    lams: Float[Array, "L *k"]
    coef: Float[Array, "L q *t"]
    intercept: Float[Array, "L *t"]
    loo: Float[Array, "L *t"]
    free: Float[Array, "L p *t"] | None = None


def one_lam(lam: Any, solution: Solution) -> Float[Array, "1 *k"]:
    """Return one λ, or one λ for each target, with a leading axis of length one."""
    return known_lam(lam, solution.factor, solution.labels.given.shape[1:])[None]


def known_lam(lam: Any, factor: Factor, targets: tuple = ()) -> Float[Array, "*k"]:
    """Return one λ, or one λ for each target, checked and with 0 replaced by the factor's floor.

    Warn of a λ below the floor, if λ has values, which it does not inside `jax.jit`.
    """
    lam = as_lam(lam, factor.dtype, targets, zero=True)
    floor = factor.precision_floor()
    _warn_below(lam, floor)
    return jnp.where(lam == 0, floor, lam)


@where_known
def _warn_below(lam: Any, floor: Any) -> None:
    """Warn if some λ is below the floor of a factor, so that results are rounding errors."""
    below = np.asarray((lam > 0) & (lam < 0.99 * floor))
    if not below.any():
        return
    narrow = floor.dtype == np.float32
    wider = ", or factor in float64, as fit does float64 NumPy data" if narrow else ""
    warn(
        f"lam, {np.asarray(lam)[below].min():.2g}, is below the precision of the factor, "
        f"{float(floor):.2g}, and results are rounding: give a larger one{wider}"
    )


@public_call(arrays_of="factor")
def path(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lams: Float[Array, "L *k"] | Listed,
) -> Path:
    """Compute coefficients and the exact leave-one-out error for every λ, from one factorization.

    Let K = U diag(s) Uᵀ, z = Uᵀy and D = 1/(s + λ). Then c(λ) = U (D ∘ z) and e(λ) = c/p with
    p = (U∘U) D. These are two matrix products for the whole grid.

    The grid is computed in chunks of 1024 columns (λ × targets). So memory holds n × 1024 and
    r × L × t numbers in addition to the result.

    Args:
        factor: what `factorize` made.
        Y: labels (n,) or (n, t).
        lams: λ (L,), or (L, t) with one for each target; 0 is taken as `factor.precision_floor()`.

    Returns:
        A `Path`.

    Raises:
        ValueError: for shapes that do not fit or λ < 0.

    **Cost** O(n r L (t + 1)) after the factorization. The result holds q·t·L coefficients. If these
    are too many, use `loo` and then `coef` at the chosen λ. **Fails**: λ below
    `factor.precision_floor()` gives rounding noise. **Source**: Rifkin (lecture), "LOOE
    derivation"; Rifkin and Lippert 2007, eq. 10.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.array([[1.0], [2.0], [3.0]]), intercept=False)
    >>> rls.path(factor, jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 1.0])).loo.shape
    (2,)
    """
    solution = factor.solve(Y)
    lams = as_grid(lams, factor, solution.labels.given.shape[1:])
    drop = solution.labels.drop_axis
    coef, intercept, free = jax.tree.map(drop, solution.coefficients(lams))
    return Path(lams, coef, intercept, drop(loo.values(solution, lams, None)), free)


@public_call(arrays_of="factor")
def coef(
    factor: Factor, Y: Float[Array, "n *t"] | Listed, lam: Float[Array, "*#t"] | float | Listed
) -> tuple[Any, ...]:
    """Compute coefficients and intercept at one λ, or at one λ per target.

    For weights 1 and no intercept c(λ) = (K + λI)⁻¹y, or w(λ) = (ΦᵀΦ + λI)⁻¹Φᵀy on explicit
    features Φ. If the factor has a spectrum, no further factorization is needed.

    Args:
        factor: what `factorize` made.
        Y: labels (n,) or (n, t).
        lam: λ (), or (t,) with one for each target; 0 is taken as `factor.precision_floor()`.

    Returns:
        `(coef, intercept)` of shapes (q,) and (), or (q, t) and (t,). With fixed effects
        `(coef, intercept, free)`, where `free`, (p,) or (p, t), are their coefficients.

    Raises:
        ValueError: for λ < 0 or shapes that do not fit.

    **Warns** of a λ below the precision of the factor. **Cost** O(n r t). **Source**: Rifkin
    (lecture), "Solving RLS, Varying λ".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.array([[1.0], [2.0]]), intercept=False)
    >>> rls.extend.coef(factor, jnp.array([1.0, 2.0]), 5.0)[0].round(3).tolist()
    [0.5]
    """
    solution = factor.solve(Y)
    coefficients = solution.coefficients(one_lam(lam, solution))
    known = [part for part in coefficients if part is not None]
    return tuple(solution.labels.drop_axis(part[0]) for part in known)


@public_call(arrays_of="factor")
def loo_residuals(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lam: Float[Array, "*#t"] | float | Listed,
    groups: Folds | Listed | None = None,
) -> Float[Array, "n *t"]:
    """Compute exact leave-one-out residuals at one λ, or at one λ per target.

    For single rows eᵢ = yᵢ − f₍without i₎(xᵢ) = c̃ᵢ/(pᵢ√vᵢ), with c̃ = P̃ √v y and p = diag P̃. Here
    P̃ is the inverse of √v K √v + λI with the fixed effects projected out. For a group S,
    √v e_S = [P̃_SS]⁻¹ c̃_S. A row of weight vᵢ is left out with all its weight. A row of weight 0
    takes no part in the fit, and has eᵢ = yᵢ − f(xᵢ).

    Args:
        factor: what `factorize` made.
        Y: labels (n,) or (n, t).
        lam: λ (), or (t,) with one for each target; 0 is taken as `factor.precision_floor()`.
        groups: labels (n,), or what `folds` made of them. Each row's whole group is left out with
            the row. None leaves out single rows.

    Returns:
        Held-out residuals in the shape and units of Y.

    Raises:
        ValueError: as `coef` and `loo` do.

    **Warns** as `coef`. **Cost** O(n r t). **Source**: Rifkin (lecture), "LOOE derivation, VII".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.diagnostics.loo_residuals(factor, jnp.array([1.0, 2.0]), 1.0).tolist()
    [1.0, 2.0]
    """
    solution = factor.solve(Y)
    folds = None if groups is None else as_folds(groups, factor.n)
    return solution.labels.drop_axis(solution.held_out_residuals(one_lam(lam, solution), folds)[0])


@public_call(arrays_of="factor")
def effective_dof(factor: Factor, lams: Float[Array, " L"] | Listed) -> Float[Array, " L"]:
    """Compute the effective degrees of freedom of the fit at every λ.

    They say how many free parameters the fit is worth. Without fixed effects df(λ) = Σ s/(s + λ),
    the trace of the hat matrix. An unpenalised intercept adds 1.

    Args:
        factor: what `factorize` made.
        lams: λ (L,); 0 is taken as the floor, as in `coef`.

    Returns:
        Degrees of freedom (L,).

    Raises:
        ValueError: for λ < 0.

    **Cost** O(r L). **Source**: Hastie, Tibshirani and Friedman 2009, eq. 3.50.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.diagnostics.effective_dof(factor, jnp.array([1.0])).tolist()
    [1.0]
    """
    return factor.dof(as_grid(lams, factor))[:, 0]
