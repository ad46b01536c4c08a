"""The function `fit_kronecker`, which fits two-sided data.

It factors both sides, computes the held-out error of a setting for every λ, chooses λ and returns a
`KroneckerFit`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria import check_loss, squared_error
from jaxrls.core.data import Weights, compiled, gram
from jaxrls.core.fit import Given, Grid, choose_lam
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import (
    as_array,
    as_floats,
    as_lams,
    check_inputs,
    check_scale,
    check_whole,
    column_names,
    public_call,
    where_known,
)
from jaxrls.front import Memory, inspect_lam, warn_of_far_labels
from jaxrls.two_sided.fitted import KroneckerFit, KroneckerModel, as_side
from jaxrls.two_sided.kronecker import (
    check_order_of_sides,
    check_semidefinite,
    factor_kronecker,
    side_weights,
)
from jaxrls.two_sided.left_out import check_table
from jaxrls.uncertainty.posterior import process_at


@public_call(data="X1")
def fit_kronecker(
    kernel1: Kernel,
    X1: Any,
    kernel2: Kernel,
    X2: Any,
    Y: Any,
    *,
    lams: Any = 100,
    setting: str = "entries",
    loss: Callable = squared_error,
    weights: tuple[Any, Any] | None = None,
    intercept: bool = True,
    keep: bool = False,
) -> KroneckerFit:
    """Fit labels of all pairs of two kinds of objects, such as drug and target or user and item,
    with the best of many λ, at the cost of two small factorizations.

    For every λ, minimise ½ Σᵢⱼ vᵢⱼ (yᵢⱼ − f(x₁ᵢ, x₂ⱼ) − b)² + (λ/2) ‖f‖² over f and b, with the
    kernel k₁k₂ of pairs. Keep the λ with the smallest held-out error in the given `setting`.

    Args:
        kernel1: the kernel k₁ of the objects that are rows of Y.
        X1: the inputs of these objects, (n₁, d₁).
        kernel2: the kernel k₂ of the objects that are columns of Y.
        X2: the inputs of these objects, (n₂, d₂).
        Y: labels (n₁, n₂), complete.
        lams: how many λ to try, on a grid made from the spectrum; or an array of λ (L,).
        setting: what is held out. It should match what will be predicted: `"entries"` for missing
            labels of known rows and columns, `"rows"` or `"columns"` for new rows or new columns,
            `"both"` for pairs of a new row and a new column.
        loss: a function of held-out residuals and labels, as in `LeaveOneOut`.
        weights: a pair of arrays (n₁,) and (n₂,): entry (i, j) has weight v₁ᵢv₂ⱼ.
        intercept: whether to fit a constant without penalty.
        keep: whether to keep what `predict(X1, X2, return_std=True)` and `posterior` need at the
            chosen λ, n₁² + n₂² + 2n₁n₂ numbers.

    Returns:
        A `KroneckerFit`, whose `predict(X1, X2)` takes any rows and columns. For float64 NumPy
        input its arrays are NumPy arrays.

    Raises:
        ValueError: for shapes that do not fit, NaN, λ < 0, a kernel matrix that is not
            semidefinite, or a problem larger than memory.

    **Cost** O(n₁³ + n₂³), and O(n₁n₂(n₁ + n₂)) for every λ. K of all pairs would take O(n₁³n₂³).
    The setting `"both"` costs as much as in `kronecker_left_out`. **Warns** of λ as `fit` does.
    **Fails**: all pairs must have a label. If some are missing, `fit` with the product of
    `kernel1.on(…)` and `kernel2.on(…)` takes the pairs that have a label. **Source**: Stock,
    Pahikkala, Airola, De Baets and Waegeman 2018, "A comparative study of pairwise learning methods
    based on kernel ridge regression".

    >>> import numpy as np, jaxrls as rls
    >>> x, z = np.linspace(0, 1, 12)[:, None], np.linspace(0, 1, 9)[:, None]
    >>> Y = np.sin(3 * x + 2 * z.T) + 0.1 * np.cos(40 * x * z.T)
    >>> kernel, options = rls.Gaussian(0.5), {"lams": [1e-4, 1e-2, 1.0], "setting": "rows"}
    >>> fit = rls.two_sided.fit_kronecker(kernel, x, kernel, z, Y, **options)
    >>> float(fit.lam), fit.predict(np.array([[0.35]]), z).shape
    (0.01, (1, 9))
    """
    check_order_of_sides("X", X1, X2, Y, weights)
    names = column_names(X1), column_names(X2)
    X1 = as_side("X1", X1, kernel1)
    X2 = as_side("X2", X2, kernel2, X1.dtype)
    warn_of_far_labels(Y, Weights.of(None, len(X1), X1.dtype))
    Y = as_floats("Y", Y)
    check_scale("Y", Y.ravel(), X1.dtype)  # as one target, before labels round to 0
    Y = as_array("Y", Y, X1.dtype)
    shape = len(X1), len(X2)
    check_table(Y, setting, shape, intercept)
    check_loss(loss)
    check_inputs("Y", Y)
    to_try: Given | Grid
    if np.ndim(lams) > 0:
        to_try = Given(as_lams(lams, X1.dtype, zero=True))
    else:
        check_whole("lams, as their number,", lams)
        to_try = Grid(int(lams))
    _check_memory(shape, to_try.num * (setting == "both"), keep, X1.dtype.itemsize)
    sides = (kernel1, X1, kernel2, X2)
    weights = side_weights(weights, shape, X1.dtype)
    fit = _fit(
        sides,
        Y,
        weights,
        to_try,
        setting=setting,
        loss=loss,
        intercept=intercept,
        keep=keep,
    )
    _inspect(fit, max(shape), names_lams=isinstance(to_try, Given))
    # Inside of `_fit`, new names would compile it again.
    return replace(fit, model=replace(fit.model, names=names))


def _check_memory(shape: tuple[int, int], tables: int, keep: bool, itemsize: int) -> None:
    """Raise if the fit needs more memory than there is.

    Args:
        shape: (n₁, n₂).
        tables: how many matrices of all pairs are needed in addition to those of every fit.
        keep: whether the fit keeps what variances need.
        itemsize: the bytes of a number.
    """
    n1, n2 = shape
    larger = max(shape)
    numbers = 4 * larger**2 + (12 + tables) * n1 * n2 + keep * (n1 + n2) ** 2
    if why := Memory("fit", "gram", numbers * itemsize, "K of both sides", larger).why_not():
        raise ValueError(f"the larger side is too large: {why}")


@where_known
def _inspect(fit: KroneckerFit, n: int, names_lams: bool) -> None:
    """Raise for errors that are not finite and for kernels that are not semidefinite. Warn of λ."""
    if not np.isfinite(np.asarray(fit.errors)).all():
        wider = "float64 (NumPy float64 input), " if fit.lam.dtype == np.float32 else ""
        raise ValueError(
            f"errors are not finite: use {wider}a larger smallest λ, or a smaller kernel width"
        )
    check_semidefinite("the kernel matrix of a side", fit.indefinite, n)
    inspect_lam(fit.lam, fit.lams, fit.floor, names_lams=names_lams)


@compiled
def _fit(
    sides: tuple[Kernel, Any, Kernel, Any],
    Y: Float[Array, "n1 n2"],
    weights: tuple[Weights, Weights],
    to_try: Given | Grid,
    *,
    setting: str,
    loss: Callable,
    intercept: bool,
    keep: bool,
) -> KroneckerFit:
    """Fit in one compiled program."""
    kernel1, X1, kernel2, X2 = sides
    K1 = gram(kernel1, X1)
    K2 = gram(kernel2, X2)
    factor = factor_kronecker(K1, K2, weights=weights, intercept=intercept)
    solution = factor.solve(Y.ravel())
    lams = to_try.values(factor)
    errors = factor.errors(solution, loss, setting, lams)[:, 0]
    lam, error = choose_lam(lams, errors, per_target=False)
    coef, constant, _ = solution.coefficients(lam[None])
    process = process_at(solution, lam, solution.held_out_residuals(lam[None])) if keep else None
    return KroneckerFit(
        model=KroneckerModel(kernel1, X1, kernel2, X2, coef.reshape(Y.shape), constant[0, 0]),
        lams=lams,
        errors=errors,
        lam=lam,
        error=error,
        left_out=factor.left_out(solution, setting, lam)[0],
        dof=solution.dof(lam[None])[0, 0],
        floor=factor.report.floor,
        indefinite=factor.report.indefinite,  # type: ignore[arg-type]
        setting=setting,
        process=process,
    )
