"""Errors of two-sided data: entries, whole rows, whole columns, or of an entry both left out."""

from collections.abc import Callable

from jaxtyping import Array, Float

from jaxrls.criteria.criterion import as_grid
from jaxrls.criteria.losses import check_loss, squared_error
from jaxrls.criteria.path import one_lam
from jaxrls.factors.contract import Factor
from jaxrls.factors.kronecker import SETTINGS
from jaxrls.support.checks import Listed, as_array
from jaxrls.support.door import door


@door()
def kronecker_left_out(
    factor: Factor,
    Y: Float[Array, "n1 n2"] | Listed,
    lams: Float[Array, " L"] | Listed,
    setting: str = "entries",
    *,
    loss: Callable = squared_error,
) -> Float[Array, " L"]:
    """Exact cross-validation of two-sided data at every λ, for whichever predictions are wanted.

    Σ vᵢⱼ loss(eᵢⱼ, yᵢⱼ) / Σ vᵢⱼ, where eᵢⱼ is the label less the prediction of a fit without

    * `"entries"` (setting A): that entry, for missing labels of known rows and columns; as `loo`.
    * `"rows"` (setting B): all of row i, for new rows.
    * `"columns"` (setting C): all of column j, for new columns.
    * `"both"` (setting D): all of row i and all of column j, for pairs of which both are new.

    **Shapes**: Y (n₁, n₂), complete, lams (L,) give (L,). **Cost** for every λ O(n₁n₂(n₁ + n₂)), as
    the fit; for `"both"` O(n₁²n₂²), and once O(m⁴), m the smaller of n₁ and n₂, as that side is
    factored without each of its rows. **Raises** `ValueError` for a factor of one side, another Y,
    or where leaving out leaves nothing. **Fails**: a λ chosen by entries is mostly too small for
    new rows and columns: validate what will be predicted. **Source**: the settings and the first
    three, Stock, Pahikkala, Airola, De Baets and Waegeman 2018, "A comparative study of pairwise
    learning methods based on kernel ridge regression"; with an intercept, and for both, derived in
    `factors/kronecker.py`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> K1, K2 = jnp.eye(2) + 1, jnp.eye(3)
    >>> factor, Y = rls.factor_kronecker(K1, K2, intercept=False), jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    >>> [round(value, 3) for value in rls.kronecker_left_out(factor, Y, [1.0], "rows").tolist()]
    [2.074]
    """
    check_loss(loss)
    sides, solution = _solved(factor, Y, setting)
    return sides.errors(solution, loss, setting, as_grid(lams, solution.labels.given, factor))[:, 0]


@door()
def kronecker_residuals(
    factor: Factor,
    Y: Float[Array, "n1 n2"] | Listed,
    lam: Float[Array, ""] | float,
    setting: str = "entries",
) -> Float[Array, "n1 n2"]:
    """Labels less held-out predictions of two-sided data at one λ, by setting: see
    `kronecker_left_out`.

    **Shapes**: Y (n₁, n₂) gives (n₁, n₂). **Cost** and **Raises** as `kronecker_left_out` for one
    λ. **Source**: as there.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factor_kronecker(jnp.eye(2) + 1, jnp.eye(2), intercept=False)
    >>> rls.kronecker_residuals(factor, jnp.ones((2, 2)), 1.0, "both").round(3).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    sides, solution = _solved(factor, Y, setting)
    return sides.left_out(solution, setting, one_lam(factor, solution.labels.given, lam)[0, 0])[0]


def check_table(Y, setting: str, shape: tuple[int, int], intercept: bool) -> None:
    """Raise for labels that are not those of all pairs, a setting that there is not, or one that
    would leave nothing to fit.
    """
    if Y.shape != shape:
        raise ValueError(
            f"Y must have shape {shape}, a label for every pair of rows of the two sides, and has "
            f"shape {Y.shape}"
        )
    if setting not in SETTINGS:
        raise ValueError(f"setting must be one of {', '.join(SETTINGS)}, and is {setting!r}")
    for n, name, one in zip(shape, ("rows", "columns"), ("row", "column"), strict=True):
        if setting in (name, "both") and n < 2:
            raise ValueError(
                f"setting={setting!r} leaves out every {one}, and Y has one only: nothing would be "
                "left to fit"
            )
    if intercept and shape == (1, 1):
        raise ValueError(
            "Y has one entry: leaving it out with an intercept takes two, or intercept=False"
        )


def _solved(factor, Y, setting):
    """The factor of two sides, and the solution with a matrix of labels, checked."""
    sides, Y = factor.sides(), as_array("Y", Y, factor.dtype)
    check_table(Y, setting, sides.shape, sides.intercept)
    return sides, sides.solve(Y.reshape(-1))
