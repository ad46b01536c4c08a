"""Two-sided data from end to end: factor both sides, sweep λ by what predictions are wanted for,
choose, and leave a model.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.criteria.left_out import LeaveOneOut
from jaxrls.criteria.losses import check_loss, squared_error
from jaxrls.criteria.two_sided import check_setting
from jaxrls.factors.kronecker import check_semidefinite, factor_kronecker, side_weights
from jaxrls.factors.sides import ENTRIES_AT_ONCE
from jaxrls.factors.solvers import check_kernel
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import safe_sqrt
from jaxrls.models.posterior import by_evidence
from jaxrls.models.two_sided import KroneckerFit, KroneckerModel, KroneckerSure
from jaxrls.rows.gram import gram
from jaxrls.search.conclude import inspect_lam
from jaxrls.search.grid import choose_lam, lambda_grid
from jaxrls.support.checks import (
    LARGEST_CPU_EIGH,
    as_array,
    check_inputs,
    check_lams,
    check_matrix,
    check_range,
    check_ratio,
    check_whole,
    in_words,
    is_concrete,
    memory_bytes,
)
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.precision import in_precision_of


@on_any_mesh
@in_precision_of("X1")
def fit_kronecker(
    kernel1: Kernel,
    X1,
    kernel2: Kernel,
    X2,
    Y,
    *,
    lams=None,
    num: int = 100,
    setting: str = "entries",
    loss: Callable = squared_error,
    weights: tuple[Any, Any] | None = None,
    intercept: bool = True,
    keep: bool = False,
) -> KroneckerFit:
    """Fit labels of all pairs of two kinds of things, with the λ that predicts best what `setting`
    names, for the price of two small factorizations.

    minimise ½ Σᵢⱼ vᵢⱼ (yᵢⱼ − f(x₁ᵢ, x₂ⱼ) − b)² + (λ/2) ‖f‖² over f and b, with the kernel k₁k₂ of
    pairs: drug and target, user and item.

    **Arguments**: X1 (n₁, d₁) the rows' own columns, X2 (n₂, d₂) the columns', and Y (n₁, n₂),
    complete. `setting` says what a prediction will be for, and so what is left out: `"entries"`,
    missing labels of known rows and columns; `"rows"` or `"columns"`, new ones of one side;
    `"both"`, pairs of which both are new. `lams` (L,), by default `num` of them from the spectrum;
    `weights` a pair (v₁, v₂), v₁v₂ᵀ those of entries. `keep` keeps what `predict(X1, X2,
    return_std=True)` and `posterior` take at the chosen λ, n₁² + n₂² + 2n₁n₂ numbers. **Returns** a
    `KroneckerFit`, whose `predict(X1, X2)` takes any rows and columns; float64 NumPy input comes
    back as NumPy arrays. **Cost** O(n₁³ + n₂³) and O(n₁n₂(n₁ + n₂)) for every λ, where K of all
    pairs would take O(n₁³n₂³); `"both"` as `kronecker_left_out` says. **Raises** `ValueError` for
    shapes that do not fit, NaN, λ < 0, a kernel matrix that is not semidefinite, or a problem
    larger than memory. **Warns** of λ as `fit` does. **Fails**: all pairs must have a label; for
    the pairs that there are, `fit` with the product of `kernel1.on(…)` and `kernel2.on(…)` takes
    any. **Source**: Stock, Pahikkala, Airola, De Baets and Waegeman 2018, "A comparative study of
    pairwise learning methods based on kernel ridge regression".

    >>> import numpy as np, jaxrls as rls
    >>> x, z = np.linspace(0, 1, 12)[:, None], np.linspace(0, 1, 9)[:, None]
    >>> Y = np.sin(3 * x + 2 * z.T) + 0.1 * np.cos(40 * x * z.T)
    >>> fit = rls.fit_kronecker(rls.Gaussian(0.5), x, rls.Gaussian(0.5), z, Y, lams=[1e-4, 1e-2, 1.0], setting="rows")
    >>> float(fit.lam), fit.predict(np.array([[0.35]]), z).shape
    (0.01, (1, 9))
    """
    X1 = as_array("X1", X1)
    X2, Y = as_array("X2", X2, X1.dtype), as_array("Y", Y, X1.dtype)
    for name, kernel, X in (("X1", kernel1, X1), ("X2", kernel2, X2)):
        check_kernel(kernel)
        if not kernel.evaluable:
            raise ValueError(
                f"{name} stands for a matrix by {type(kernel).__name__}(): give matrices to factor_kronecker"
            )
        check_matrix(name, X)
        check_inputs(name, X)
        kernel.check(X)
    shape = len(X1), len(X2)
    if Y.shape != shape:
        raise ValueError(
            f"Y must have shape {shape}, a label for every row of X1 and row of X2, and has shape {Y.shape}"
        )
    check_setting(setting, shape, intercept)
    check_loss(loss)
    check_range("Y", Y)
    check_whole("num", num)
    if lams is not None:
        lams = jnp.atleast_1d(as_array("lams", lams, X1.dtype))
        if lams.ndim > 1:
            raise ValueError(
                f"lams must have shape (L,), one λ for all of Y, and has shape {lams.shape}"
            )
        check_lams(lams, zero=True)
    if weights is not None:
        weights = side_weights(weights, shape, X1.dtype)
        for side in weights:
            check_ratio(side.values)
    _check_size(*shape, num if lams is None else len(lams), X1.dtype, keep)
    options = {
        "num": num,
        "setting": setting,
        "loss": loss,
        "intercept": intercept,
        "keep": keep,
    }
    fit = _fit((kernel1, X1), (kernel2, X2), Y, weights, lams, **options)
    if is_concrete(fit):
        _inspect(fit, lams is None)
    return fit


def _check_size(n1: int, n2: int, num: int, dtype, keep: bool) -> None:
    """The larger side's K, eigenvectors and LAPACK's workspace, beside labels at several λ."""
    n, larger = n1 * n2, max(n1, n2)
    labels = 8 * min(num * n, max(ENTRIES_AT_ONCE, n))
    numbers = max(4 * larger**2, 2 * larger**2 + labels) + 4 * n + keep * (n1 + n2) ** 2
    needed, limit = numbers * dtype.itemsize, memory_bytes()
    if limit is not None and needed > limit:
        raise ValueError(
            f"{n1} × {n2} pairs take about {in_words(needed)} for both sides' spectra and labels, and this device has {in_words(limit)}: use fewer rows"
        )
    if max(n1, n2) > LARGEST_CPU_EIGH and jax.default_backend() == "cpu":
        raise ValueError(
            f"a side has {max(n1, n2)} rows, and LAPACK's 32-bit interface cannot factor more than {LARGEST_CPU_EIGH}: use fewer rows"
        )


@partial(jax.jit, static_argnames=("num", "setting", "loss", "intercept", "keep"))
def _fit(first, second, Y, weights, lams, *, num, setting, loss, intercept, keep) -> KroneckerFit:
    factor = factor_kronecker(gram(*first), gram(*second), weights=weights, intercept=intercept)
    solution: Any = factor.solve(Y.reshape(-1))
    lams = lambda_grid(factor, num) if lams is None else factor.with_floor(lams)
    errors = (
        solution.factor.setting_left_out(solution, LeaveOneOut(loss).total, setting, lams[:, None])[
            :, 0
        ]
        / factor.weights.total
    )
    lam, error = choose_lam(lams, errors, per_target=False)
    coef, constant, _ = solution.coefficients(lam[None])
    (kernel1, X1), (kernel2, X2) = first, second
    model = KroneckerModel(kernel1, X1, kernel2, X2, coef.reshape(Y.shape), constant[0, 0])
    left_out, dof = (
        solution.factor.setting_residuals(solution, setting, lam[None])[:, :, 0],
        solution.dof(lam[None])[0, 0],
    )
    sure = _sure(solution, lam, coef[0]) if keep else None
    return KroneckerFit(
        model,
        lams,
        errors,
        lam,
        error,
        left_out,
        dof,
        factor.report.floor,
        factor.report.indefinite,
        setting,
        sure,
    )


def _sure(solution: Any, lam, coef) -> KroneckerSure:
    """What variances at one λ take; vᵢ(yᵢ − f(xᵢ)) is λ times coefficient i."""
    entries = solution.factor.setting_residuals(solution, "entries", lam[None]).reshape(coef.shape)
    squares = jnp.sum(entries * coef, axis=0) / solution.factor.weights.count
    return KroneckerSure(
        lam, by_evidence(solution, lam)[0], safe_sqrt(squares)[0], solution.factor.spread(lam)
    )


def _inspect(fit: KroneckerFit, default_grid: bool) -> None:
    """Say what a user would want to know before trusting the numbers."""
    if not np.isfinite(np.asarray(fit.errors)).all():
        raise ValueError(
            "errors are not finite: use float64 (NumPy float64 input), a larger smallest λ, or a smaller kernel width"
        )
    check_semidefinite("the kernel matrix of a side", fit.indefinite, max(fit.left_out.shape))
    inspect_lam(fit, default_grid)
