"""What one factor says at every λ, and at one: coefficients, leave-one-out, degrees of freedom."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.criteria.criterion import as_grid
from jaxrls.criteria.left_out import loo
from jaxrls.factors.contract import Factor
from jaxrls.problem.folds import Folds, as_folds
from jaxrls.support.checks import Listed, as_array, check_lams
from jaxrls.support.door import door
from jaxrls.support.pytrees import pytree


@pytree
class Path:
    """The whole regularisation path: coefficients, intercept and leave-one-out error at every λ.

    `coef` is (L, q) or (L, q, t): dual coefficients c(λ), q = n, or weights w(λ) on explicit
    features, q = r, by the factor's route. `loo` is Σ vᵢ eᵢ² / Σ vᵢ, (L,) or (L, t); `intercept`
    has the same shape, and is 0 where none was fitted. `free` are coefficients β of columns without
    penalty, where there are such.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.path(rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False), jnp.array([1.0, 3.0]), jnp.array([1.0, 2.0])).coef.shape
    (2, 2)
    """

    lams: Float[Array, " L"]
    coef: Float[Array, "L q"] | Float[Array, "L q t"]
    intercept: Float[Array, " L"] | Float[Array, "L t"]
    loo: Float[Array, " L"] | Float[Array, "L t"]
    free: Float[Array, "L p"] | Float[Array, "L p t"] | None = None


class Pair(NamedTuple):
    """Coefficients and intercept."""

    coef: Any
    intercept: Any


def one_lam(factor: Factor, Y, lam) -> Float[Array, "1 k"]:
    """One λ, or one per target, as a grid of one."""
    lam = as_array("lam", lam, factor.dtype)
    if lam.shape != () and (jnp.ndim(Y) != 2 or lam.shape != (Y.shape[1],)):
        raise ValueError(
            f"lam must be one number, or one per target where Y is (n, t): it has shape {lam.shape}, and Y {jnp.shape(Y)}"
        )
    check_lams(lam, "lam", zero=True)
    return factor.with_floor(lam).reshape(1, -1)


@door()
def path(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lams: Float[Array, " L"] | Float[Array, "L t"] | Listed,
) -> Path:
    """Coefficients and exact leave-one-out error for every λ, from one factorization.

    c(λ) = U (D ∘ z) and e(λ) = c/p with D = 1/(s + λ), z = Uᵀy, p = (U∘U) D: two matrix products
    for the whole grid. λ goes in chunks of 1024 columns (λ × targets), so that beside the result
    itself n × 1024 and r × L × t numbers are in flight.

    **Shapes**: Y (n,) or (n, t), lams (L,), where 0 is taken as `factor.precision_floor()`.
    **Cost** O(n r L (t + 1)) after the factorization; the result holds q·t·L coefficients: where
    these are too many, use `loo` and then `coef` at the chosen λ. **Raises** `ValueError` for
    shapes that do not fit or λ < 0. **Fails**: λ below `factor.precision_floor()` gives rounding
    noise. **Source**: Rifkin (lecture), "LOOE derivation"; Rifkin and Lippert 2007, eq. 10.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.array([[1.0], [2.0], [3.0]]), intercept=False)
    >>> rls.path(factor, jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 1.0])).loo.shape
    (2,)
    """
    Y = as_array("Y", Y, factor.dtype)
    lams, solution = as_grid(lams, Y, factor), factor.solve(Y)
    found = jax.tree.map(solution.labels.drop_axis, solution.coefficients(lams))
    error = solution.labels.drop_axis(loo.values(solution, lams, None))
    return Path(lams, found.coef, found.intercept, error, found.free)


@door()
def coef(
    factor: Factor, Y: Float[Array, "n *t"] | Listed, lam: Float[Array, "*#t"] | float | Listed
) -> tuple[Any, ...]:
    """Coefficients and intercept at one λ, or at one λ per target.

    c(λ) = √v U (D ∘ z), or w(λ) = basis (D ∘ z) on explicit features; b(λ) = mean(y) − shift·(D ∘
    z).

    **Shapes**: Y (n,) or (n, t), lam () or (t,), where 0 is taken as `factor.precision_floor()`.
    **Returns** `(coef, intercept)`, (q,) and (), or (q, t) and (t,); β last where columns have no
    penalty. **Cost** O(n r t). **Raises** `ValueError` for λ < 0 or shapes that do not fit.
    **Source**: Rifkin (lecture), "Solving RLS, Varying λ".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.array([[1.0], [2.0]]), intercept=False)
    >>> rls.coef(factor, jnp.array([1.0, 2.0]), 5.0)[0].round(3).tolist()
    [0.5]
    """
    Y = as_array("Y", Y, factor.dtype)
    solution = factor.solve(Y)
    found = solution.coefficients(one_lam(factor, Y, lam))
    found = jax.tree.map(lambda part: solution.labels.drop_axis(part[0]), found)
    return Pair(*found[:2]) if found.free is None else found


@door()
def loo_residuals(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lam: Float[Array, "*#t"] | float | Listed,
    groups: Folds | Listed | None = None,
) -> Float[Array, "n *t"]:
    """Exact leave-one-out residuals eᵢ = yᵢ − f₍without i₎(xᵢ), at one λ or at one λ per target.

    e = c̃/(p√v); a row of weight vᵢ is left out with all its weight, and one of weight 0 was never
    in: eᵢ = yᵢ − f(xᵢ). With `groups` (n,), labels or what `folds` made of them, every row's whole
    group is left out: e_B = [P_BB]⁻¹ c_B.

    **Shapes**: Y (n,) or (n, t), lam () or (t,); returns the shape of Y, in its units. **Cost** O(n
    r t). **Raises** as `coef`, and `loo`. **Source**: Rifkin (lecture), "LOOE derivation, VII".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.loo_residuals(factor, jnp.array([1.0, 2.0]), 1.0).tolist()
    [1.0, 2.0]
    """
    Y = as_array("Y", Y, factor.dtype)
    solution, plan = (
        factor.solve(Y),
        None if groups is None else as_folds(groups, factor.n),
    )
    return solution.labels.drop_axis(solution.residuals(one_lam(factor, Y, lam), plan)[0])


@door()
def effective_dof(factor: Factor, lams: Float[Array, " L"] | Listed) -> Float[Array, " L"]:
    """Effective degrees of freedom of the fit at every λ: how many parameters it amounts to.

    df(λ) = Σ s/(s + λ) = trace of the hat matrix, and 1 more for an unpenalised intercept.

    **Shapes**: lams (L,) gives (L,). **Cost** O(r L). **Raises** `ValueError` for λ < 0;
    0 is the floor, as in `coef`. **Source**: Hastie, Tibshirani and Friedman 2009, eq. 3.50.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.effective_dof(rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False), jnp.array([1.0])).tolist()
    [1.0]
    """
    lams = as_array("lams", lams, factor.dtype)
    if lams.ndim != 1:
        raise ValueError(f"lams must have shape (L,), and has shape {lams.shape}")
    check_lams(lams, zero=True)
    return factor.dof(factor.with_floor(lams))[:, 0]
