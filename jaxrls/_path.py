"""c(λ) and the leave-one-out error over a grid of λ, and at one."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls._checks import check_lams, check_whole
from jaxrls._factor import Factor
from jaxrls._losses import squared_error
from jaxrls._pytree import pytree
from jaxrls._weighted import Weighted

# λ × targets handled in one matrix product: enough columns to run at its full rate, few enough to keep n × columns small.
COLUMNS_AT_ONCE = 256


@pytree
class Path:
    """The whole regularisation path: coefficients, intercept and leave-one-out error at every λ.

    `coef` is (L, q) or (L, q, t): dual coefficients c(λ), q = n, or weights w(λ) on explicit features, q = r, by the factor's
    route. `loo` is Σ vᵢ eᵢ² / Σ vᵢ, (L,) or (L, t); `intercept` has the same shape, and is 0 where none was fitted.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.path(rls.factor_gram(jnp.eye(2)), jnp.array([1.0, 3.0]), jnp.array([1.0, 2.0])).coef.shape
    (2, 2)
    """

    lams: Float[Array, " L"]
    coef: Float[Array, "L q"] | Float[Array, "L q t"]
    intercept: Float[Array, " L"] | Float[Array, "L t"]
    loo: Float[Array, " L"] | Float[Array, "L t"]


def sweep(fn: Callable, lams: Float[Array, " L"], columns: int):
    """`fn` at every λ: vmapped in batches such that batch × `columns` matrix columns are in flight, whatever L is."""
    batch = max(1, COLUMNS_AT_ONCE // max(1, columns))
    count = lams.shape[0]
    if batch >= count:
        return jax.vmap(fn)(lams)
    return jax.lax.map(fn, lams, batch_size=-(-count // -(-count // batch)))


def as_grid(factor: Weighted, lams) -> Float[Array, " L"]:
    """λ as a vector in the factor's dtype, checked."""
    lams = jnp.asarray(lams, factor.dtype)
    if lams.ndim != 1:
        raise ValueError(f"lams must have shape (L,), and has shape {lams.shape}: use coef and loo_residuals for one λ per target")
    check_lams(lams)
    return lams


def _as_lam(factor: Factor, Y, lam):
    """One λ, or one per target."""
    lam = jnp.asarray(lam, factor.dtype)
    if lam.shape != () and (jnp.ndim(Y) != 2 or lam.shape != (Y.shape[1],)):
        raise ValueError(f"lam must be one number, or one per target where Y is (n, t): it has shape {lam.shape}, and Y {jnp.shape(Y)}")
    check_lams(lam, "lam")
    return lam


def drop_target_axis(Y, *arrays):
    """Results without the t axis where Y came without it."""
    return tuple(a[..., 0] for a in arrays) if jnp.ndim(Y) == 1 else arrays


def mean_left_out(factor: Weighted, target, lam, loss: Callable) -> Float[Array, " t"]:
    """Σ vᵢ loss(eᵢ, yᵢ) / Σ vᵢ at one λ."""
    total = factor.loo_sum(lambda e, Y, v: jnp.sum(v[:, None] * loss(e, Y), axis=0), target, lam)
    return total / factor.total_weight()


def lambda_grid(factor: Factor, num: int = 100) -> Float[Array, " num"]:
    """A geometric grid of λ that spans all fits the factor can tell apart, ascending.

    From λ where effective degrees of freedom are at most 1/10, 10·Σs, down to a thousandth of the smallest eigenvalue that is
    not rounding, or to the precision of the factor, n·eps·s_max, whichever is larger: below it λ is noise.

    **Shapes**: (num,). `num` is static. **Cost** O(r). **Raises** `ValueError` for a `num` below 1. **Source**: the rule of GURLS's
    `paramsel`, with both ends tied to spectrum and dtype.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.lambda_grid(rls.factor_gram(jnp.eye(2)), 3).shape
    (3,)
    """
    check_whole("num", num)
    floor = factor.precision_floor()
    largest = jnp.max(factor.s)
    smallest = jnp.min(jnp.where(factor.s > floor, factor.s, largest))
    tiny = jnp.finfo(factor.dtype).tiny
    low = jnp.maximum(jnp.maximum(floor, 1e-3 * smallest), tiny)
    high = jnp.maximum(10 * jnp.sum(factor.s), 10 * low)
    return jnp.exp(jnp.linspace(jnp.log(low), jnp.log(high), num, dtype=factor.dtype))


def path(factor: Factor, Y: Float[Array, "n *t"], lams: Float[Array, " L"]) -> Path:
    """Coefficients and exact leave-one-out error for every λ, from one factorization.

    c(λ) = U (D ∘ z) and e(λ) = c/p with D = 1/(s + λ), z = Uᵀy, p = (U∘U) D: two matrix products for the whole grid. λ is vmapped, in
    batches, so that beside the result itself only n × 256 numbers are in flight.

    **Shapes**: Y (n,) or (n, t), lams (L,), all positive. **Cost** O(n r L (t + 1)) after the factorization; the result holds
    q·t·L coefficients: where these are too many, use `loo` and then `coef` at the chosen λ. **Raises** `ValueError` for shapes
    that do not fit, or λ ≤ 0. **Fails**: λ below `factor.precision_floor()` gives rounding noise. **Source**: Rifkin (lecture),
    "LOOE derivation"; Rifkin and Lippert 2007, eq. 10.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.array([[1.0], [2.0], [3.0]]))
    >>> rls.path(factor, jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 1.0])).loo.shape
    (2,)
    """
    lams, target = as_grid(factor, lams), factor.project(Y)

    def at(lam):
        return factor.coef(target, lam), factor.intercept(target, lam), mean_left_out(factor, target, lam, squared_error)

    coef, intercept, loo = sweep(at, lams, target.Y.shape[1])
    return Path(lams, *drop_target_axis(Y, coef, intercept, loo))


def coef(factor: Factor, Y: Float[Array, "n *t"], lam: Float[Array, "*#t"] | float):
    """Coefficients and intercept at one λ, or at one λ per target.

    c(λ) = √v U (D ∘ z), or w(λ) = basis (D ∘ z) on explicit features; b(λ) = mean(y) − shift·(D ∘ z).

    **Shapes**: Y (n,) or (n, t), lam () or (t,). **Returns** `(coef, intercept)`, (q,) and (), or (q, t) and (t,).
    **Cost** O(n r t). **Raises** `ValueError` for λ ≤ 0 or shapes that do not fit. **Source**: Rifkin (lecture), "Solving RLS, Varying λ".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.array([[1.0], [2.0]]))
    >>> rls.coef(factor, jnp.array([1.0, 2.0]), 5.0)[0].round(3).tolist()
    [0.5]
    """
    lam, target = _as_lam(factor, Y, lam), factor.project(Y)
    return drop_target_axis(Y, factor.coef(target, lam), factor.intercept(target, lam))


def loo_residuals(factor: Factor, Y: Float[Array, "n *t"], lam: Float[Array, "*#t"] | float) -> Float[Array, "n *t"]:
    """Exact leave-one-out residuals eᵢ = yᵢ − f₍without i₎(xᵢ), at one λ or at one λ per target.

    e = c̃/(p√v); a row of weight vᵢ is left out with all its weight, and one of weight 0 was never in: eᵢ = yᵢ − f(xᵢ).

    **Shapes**: Y (n,) or (n, t), lam () or (t,); returns the shape of Y, in its units. **Cost** O(n r t). **Raises** as `coef`.
    **Source**: Rifkin (lecture), "LOOE derivation, VII".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factor_gram(jnp.eye(2))
    >>> rls.loo_residuals(factor, jnp.array([1.0, 2.0]), 1.0).tolist()
    [1.0, 2.0]
    """
    lam, target = _as_lam(factor, Y, lam), factor.project(Y)
    return drop_target_axis(Y, factor.loo_residuals(target, lam))[0]


def effective_dof(factor: Factor, lams: Float[Array, " L"]) -> Float[Array, " L"]:
    """Effective degrees of freedom of the fit at every λ: how many parameters it amounts to.

    df(λ) = Σ s/(s + λ) = trace of the hat matrix, and 1 more for an unpenalised intercept.

    **Shapes**: lams (L,) gives (L,). **Cost** O(r L). **Raises** `ValueError` for λ ≤ 0. **Source**: Hastie, Tibshirani and Friedman 2009,
    eq. 3.50.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.effective_dof(rls.factor_gram(jnp.eye(2)), jnp.array([1.0])).tolist()
    [1.0]
    """
    return jax.vmap(factor.dof)(as_grid(factor, lams))
