"""What a user asks of a factor, as functions: coefficients and errors at every λ (`path`), both at
one λ, and degrees of freedom. For two-sided data also errors of held-out entries, rows or columns.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from jaxrls.core.criteria.criterion import as_grid
from jaxrls.core.criteria.losses import check_loss, squared_error
from jaxrls.core.criteria.standard import loo
from jaxrls.core.factors.factor import Factor
from jaxrls.core.factors.solution import Solution
from jaxrls.core.problem.folds import Folds, as_folds
from jaxrls.core.support.checks import Listed, as_array, as_lam
from jaxrls.core.support.door import door
from jaxrls.core.support.pytrees import pytree
from jaxrls.two_sided.kronecker import SETTINGS


@pytree
class Path:
    """The whole regularisation path: coefficients, intercept and leave-one-out error at every λ.

    Args:
        lams: λ (L,), or (L, t) with one for each target.
        coef: (L, q) or (L, q, t): dual coefficients c(λ), q = n, or weights w(λ) on explicit
            features, q = r, by the factor's route.
        intercept: (L,) or (L, t), 0 where none was fitted.
        loo: the leave-one-out error Σ vᵢ eᵢ² / Σ vᵢ, (L,) or (L, t).
        free: coefficients β of the fixed effects, (L, p) or (L, p, t); None where there are none.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.path(factor, jnp.array([1.0, 3.0]), jnp.array([1.0, 2.0])).coef.shape
    (2, 2)
    """

    lams: Float[Array, " L"]
    coef: Float[Array, "L q"] | Float[Array, "L q t"]
    intercept: Float[Array, " L"] | Float[Array, "L t"]
    loo: Float[Array, " L"] | Float[Array, "L t"]
    free: Float[Array, "L p"] | Float[Array, "L p t"] | None = None


def one_lam(lam, solution: Solution) -> Float[Array, "1 *k"]:
    """One λ, or one for each target, as a grid of length one."""
    factor, targets = solution.factor, solution.labels.given.shape[1:]
    return factor.with_floor(as_lam(lam, factor.dtype, targets, zero=True))[None]


@door()
def path(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lams: Float[Array, " L"] | Float[Array, "L t"] | Listed,
) -> Path:
    """Compute coefficients and the exact leave-one-out error for every λ, from one factorization.

    With K = U diag(s) Uᵀ, z = Uᵀy and D = 1/(s + λ): c(λ) = U (D ∘ z) and e(λ) = c/p with p = (U∘U)
    D. These are two matrix products for the whole grid. λ is taken in chunks of 1024 columns (λ ×
    targets), so that n × 1024 and r × L × t numbers are in memory in addition to the result.

    Args:
        factor: what `factorize` made.
        Y: labels (n,) or (n, t).
        lams: λ (L,), or (L, t) with one for each target; 0 is taken as `factor.precision_floor()`.

    Returns:
        A `Path`.

    Raises:
        ValueError: for shapes that do not fit or λ < 0.

    **Cost** O(n r L (t + 1)) after the factorization; the result holds q·t·L coefficients: where
    these are too many, use `loo` and then `coef` at the chosen λ. **Fails**: λ below
    `factor.precision_floor()` gives rounding noise. **Source**: Rifkin (lecture), "LOOE
    derivation"; Rifkin and Lippert 2007, eq. 10.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.array([[1.0], [2.0], [3.0]]), intercept=False)
    >>> rls.path(factor, jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 1.0])).loo.shape
    (2,)
    """
    solution = factor.solve(Y)
    lams = as_grid(lams, factor, solution.labels.given.shape[1:])
    found = jax.tree.map(solution.labels.drop_axis, solution.coefficients(lams))
    error = solution.labels.drop_axis(loo.values(solution, lams, None))
    return Path(lams, found.coef, found.intercept, error, found.free)


class Pair(NamedTuple):
    """Coefficients and intercept."""

    coef: Any
    intercept: Any


@door()
def coef(
    factor: Factor, Y: Float[Array, "n *t"] | Listed, lam: Float[Array, "*#t"] | float | Listed
) -> tuple[Any, ...]:
    """Compute coefficients and intercept at one λ, or at one λ per target.

    c(λ) = (K + λI)⁻¹y for weights 1 and no intercept, or w(λ) = (ΦᵀΦ + λI)⁻¹Φᵀy on explicit
    features Φ; from a spectrum without a further factorization.

    Args:
        factor: what `factorize` made.
        Y: labels (n,) or (n, t).
        lam: λ (), or (t,) with one for each target; 0 is taken as `factor.precision_floor()`.

    Returns:
        `(coef, intercept)`, (q,) and (), or (q, t) and (t,). With fixed effects their coefficients
        `free`, (p,) or (p, t), come third.

    Raises:
        ValueError: for λ < 0 or shapes that do not fit.

    **Cost** O(n r t). **Source**: Rifkin (lecture), "Solving RLS, Varying λ".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.array([[1.0], [2.0]]), intercept=False)
    >>> rls.coef(factor, jnp.array([1.0, 2.0]), 5.0)[0].round(3).tolist()
    [0.5]
    """
    solution = factor.solve(Y)
    found = solution.coefficients(one_lam(lam, solution))
    found = jax.tree.map(lambda part: solution.labels.drop_axis(part[0]), found)
    return Pair(*found[:2]) if found.free is None else found


@door()
def loo_residuals(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lam: Float[Array, "*#t"] | float | Listed,
    groups: Folds | Listed | None = None,
) -> Float[Array, "n *t"]:
    """Compute exact leave-one-out residuals at one λ, or at one λ per target.

    eᵢ = yᵢ − f₍without i₎(xᵢ) = c̃ᵢ/(pᵢ√vᵢ). With groups e_B = [P_BB]⁻¹ c_B. A row of weight vᵢ is
    left out with all its weight; one of weight 0 takes no part in the fit, and has eᵢ = yᵢ − f(xᵢ).

    Args:
        factor: what `factorize` made.
        Y: labels (n,) or (n, t).
        lam: λ (), or (t,) with one for each target; 0 is taken as `factor.precision_floor()`.
        groups: labels (n,), or what `folds` made of them: each row's whole group is left out.

    Returns:
        Held-out residuals in the shape and units of Y.

    Raises:
        ValueError: as `coef` and `loo` do.

    **Cost** O(n r t). **Source**: Rifkin (lecture), "LOOE derivation, VII".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.loo_residuals(factor, jnp.array([1.0, 2.0]), 1.0).tolist()
    [1.0, 2.0]
    """
    solution, plan = factor.solve(Y), None if groups is None else as_folds(groups, factor.n)
    return solution.labels.drop_axis(solution.residuals(one_lam(lam, solution), plan)[0])


@door()
def effective_dof(factor: Factor, lams: Float[Array, " L"] | Listed) -> Float[Array, " L"]:
    """Compute the effective degrees of freedom of the fit at every λ: how many free parameters it
    is worth.

    df(λ) = Σ s/(s + λ) = trace of the hat matrix, and 1 more for an unpenalised intercept.

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
    >>> rls.effective_dof(factor, jnp.array([1.0])).tolist()
    [1.0]
    """
    return factor.dof(as_grid(lams, factor))[:, 0]


@door()
def kronecker_left_out(
    factor: Factor,
    Y: Float[Array, "n1 n2"] | Listed,
    lams: Float[Array, " L"] | Listed,
    setting: str = "entries",
    *,
    loss: Callable = squared_error,
) -> Float[Array, " L"]:
    """Exact cross-validation error of two-sided data at every λ, for the kind of predictions that
    are wanted.

    Σ vᵢⱼ loss(eᵢⱼ, yᵢⱼ) / Σ vᵢⱼ, where eᵢⱼ is the label minus the prediction of a fit without

    * `"entries"` (setting A): that entry, for missing labels of known rows and columns; as `loo`.
    * `"rows"` (setting B): all of row i, for new rows.
    * `"columns"` (setting C): all of column j, for new columns.
    * `"both"` (setting D): all of row i and all of column j, for pairs of which both are new.

    Args:
        factor: what `factor_kronecker` made.
        Y: labels (n₁, n₂), none missing.
        lams: λ (L,).
        setting: what is left out, one of the four above.
        loss: as in `LeaveOneOut`.

    Returns:
        The error at every λ, (L,).

    Raises:
        ValueError: for a factor of one-sided data, a Y of another shape, or where nothing is left
            to fit.

    **Cost** for every λ O(n₁n₂(n₁ + n₂)), as the fit; for `"both"` O(n₁²n₂²), and once O(m⁴), m the
    smaller of n₁ and n₂, as that side is factored without each of its rows. **Fails**: a λ chosen
    by entries is mostly too small for new rows and columns: validate what will be predicted.
    **Source**: the settings and the first three, Stock, Pahikkala, Airola, De Baets and Waegeman
    2018, "A comparative study of pairwise learning methods based on kernel ridge regression"; with
    an intercept, and for both, derived in `factors/kronecker.py`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> K1, K2 = jnp.eye(2) + 1, jnp.eye(3)
    >>> factor = rls.factor_kronecker(K1, K2, intercept=False)
    >>> Y = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    >>> [round(value, 3) for value in rls.kronecker_left_out(factor, Y, [1.0], "rows").tolist()]
    [2.074]
    """
    check_loss(loss)
    sides, solution = _solved(factor, Y, setting)
    return sides.errors(solution, loss, setting, as_grid(lams, sides))[:, 0]


@door()
def kronecker_residuals(
    factor: Factor,
    Y: Float[Array, "n1 n2"] | Listed,
    lam: Float[Array, ""] | float,
    setting: str = "entries",
) -> Float[Array, "n1 n2"]:
    """Compute the held-out residuals of two-sided data at one λ: labels minus held-out predictions.

    Args:
        factor: what `factor_kronecker` made.
        Y: labels (n₁, n₂), none missing.
        lam: one λ.
        setting: what is left out: `"entries"`, `"rows"`, `"columns"` or `"both"`, as in
            `kronecker_left_out`.

    Returns:
        Held-out residuals (n₁, n₂), in the units of Y.

    Raises:
        ValueError: as `kronecker_left_out` does.

    **Cost** as `kronecker_left_out` for one λ. **Source**: as there.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factor_kronecker(jnp.eye(2) + 1, jnp.eye(2), intercept=False)
    >>> rls.kronecker_residuals(factor, jnp.ones((2, 2)), 1.0, "both").round(3).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    sides, solution = _solved(factor, Y, setting)
    return sides.left_out(solution, setting, one_lam(lam, solution)[0])[0]


def check_table(Y, setting: str, shape: tuple[int, int], intercept: bool) -> None:
    """Raise for labels that are not a full table of pairs, an unknown setting, or a setting that
    would leave nothing to fit.
    """
    if Y.shape != shape:
        raise ValueError(
            f"Y must have shape {shape}, a label for every pair of rows of the two sides, and has "
            f"shape {Y.shape}"
        )
    if setting not in SETTINGS:
        raise ValueError(f"setting must be one of {', '.join(SETTINGS)}, and is {setting!r}")
    for n, name in zip(shape, ("rows", "columns"), strict=True):
        if setting in (name, "both") and n < 2:
            raise ValueError(
                f"setting={setting!r} leaves {name} out, and Y has only one, so that nothing would "
                "be left to fit: give more, or another setting"
            )
    if intercept and shape == (1, 1):
        raise ValueError(
            "leaving an entry out with an intercept needs two entries, and Y has one: give more, "
            "or intercept=False"
        )


def _solved(factor, Y, setting):
    """The two-sided factor, and its solution for a matrix of labels, both checked."""
    sides, Y = factor.sides(), as_array("Y", Y, factor.dtype)
    check_table(Y, setting, sides.shape, sides.intercept)
    return sides, sides.solve(Y.reshape(-1))
