"""Held-out errors and residuals of two-sided data, as functions of a factor and labels.

`kronecker_left_out` returns the error for every λ, `kronecker_residuals` the residuals at one λ.
Single entries are held out, or whole rows, whole columns, or both.
"""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from jaxrls.core.criteria import as_grid, check_loss, one_lam, squared_error
from jaxrls.core.factors import Factor, Solution
from jaxrls.core.support import Listed, as_array, public_call
from jaxrls.two_sided.kronecker import SETTINGS, Kronecker, check_order_of_sides


@public_call(arrays_of="factor")
def kronecker_left_out(
    factor: Factor,
    Y: Float[Array, "n1 n2"] | Listed,
    lams: Float[Array, " L"] | Listed,
    setting: str = "entries",
    *,
    loss: Callable = squared_error,
) -> Float[Array, " L"]:
    """Compute the exact cross-validation error of two-sided data for every λ.

    Σ vᵢⱼ loss(eᵢⱼ, yᵢⱼ) / Σ vᵢⱼ, where eᵢⱼ is the label minus the prediction of a fit without

    * `"entries"` (setting A): entry (i, j), for missing labels of known rows and columns; as `loo`.
    * `"rows"` (setting B): all of row i, for new rows.
    * `"columns"` (setting C): all of column j, for new columns.
    * `"both"` (setting D): all of row i and column j, for pairs of a new row and a new column.

    Choose the setting that matches what will be predicted.

    Args:
        factor: what `factor_kronecker` made.
        Y: labels (n₁, n₂), none missing.
        lams: λ (L,).
        setting: what is left out, one of the four above.
        loss: a function of held-out residuals and labels, as in `LeaveOneOut`.

    Returns:
        The error for every λ, (L,).

    Raises:
        ValueError: for a factor of one-sided data, a Y of another shape, or where nothing is left
            to fit.

    **Cost** for every λ O(n₁n₂(n₁ + n₂)), as the fit. For `"both"` O(n₁²n₂²) for every λ, and once
    O(m⁴) with the smaller m of n₁ and n₂, because that side is factored without each of its rows.
    **Fails**: a λ chosen by entries is mostly too small for new rows and columns. **Source**: the
    settings, and the formulas of A, B and C: Stock, Pahikkala, Airola, De Baets and Waegeman 2018,
    "A comparative study of pairwise learning methods based on kernel ridge regression". The
    formulas with an intercept, and for D, are derived in `two_sided/kronecker.py`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> K1, K2 = jnp.eye(2) + 1, jnp.eye(3)
    >>> factor = rls.two_sided.factor_kronecker(K1, K2, intercept=False)
    >>> Y = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    >>> rls.two_sided.kronecker_left_out(factor, Y, [1.0], "rows").round(3).tolist()
    [2.074]
    """
    check_loss(loss)
    sides, solution = _solution(factor, Y, setting)
    return sides.errors(solution, loss, setting, as_grid(lams, sides))[:, 0]


@public_call(arrays_of="factor")
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
    >>> factor = rls.two_sided.factor_kronecker(jnp.eye(2) + 1, jnp.eye(2), intercept=False)
    >>> rls.two_sided.kronecker_residuals(factor, jnp.ones((2, 2)), 1.0, "both").round(3).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    sides, solution = _solution(factor, Y, setting)
    return sides.left_out(solution, setting, one_lam(lam, solution)[0])[0]


def check_table(
    Y: Float[Array, "..."], setting: str, shape: tuple[int, int], intercept: bool
) -> None:
    """Raise if Y is not a matrix with a label for every pair, or if the setting is unsuitable.

    A setting is unsuitable if it is unknown, or if nothing would be left to fit.
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


def _solution(factor: Factor, Y: Any, setting: str) -> tuple[Kronecker, Solution]:
    """Return the factor and its solution for labels Y (n₁, n₂), with both arguments checked.

    Raise if the factor is not of two-sided data, and for labels that do not suit it.
    """
    if not isinstance(factor, Kronecker):
        raise ValueError(
            f"factor must be of two-sided data, and has route {factor.route!r}: make it with "
            "factor_kronecker"
        )
    check_order_of_sides("K", factor.first, factor.second, Y, None)
    Y = as_array("Y", Y, factor.dtype)
    check_table(Y, setting, factor.shape, factor.intercept)
    return factor, factor.solve(Y.reshape(-1))
