"""Diagnostics of a fit or a factor: the influence of every row at one λ, and the kernel's
eigenfunctions.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.core.criteria import known_lam
from jaxrls.core.data import Labels, compiled, first_rows
from jaxrls.core.factors import AtPoints, Factor, LeftBlock, Solution, Spectrum
from jaxrls.core.linalg import MAP, matmul, safe_sqrt
from jaxrls.core.support import Listed, as_array, check_whole, column_names, public_call, pytree
from jaxrls.front import Fit, Model, solution_of


@pytree
class Influence:
    """How much each row determines the fit, as `influence` returns it.

    Args:
        leverage: hᵢ, (n,), which does not depend on the labels.
        residuals: standardised residuals rᵢ/(σ √[(I − H)²]ᵢᵢ), (n,) or (n, t).
        cooks_distance: Cook's distances (n,) or (n, t).
        noise: the standard deviation σ of the labels' noise, in their units, () or (t,).
        dof: effective degrees of freedom, (), which do not depend on the labels.
        studentised: externally studentised residuals (n,) or (n, t).
        dffits: DFFITS (n,) or (n, t).
        noise_without: σ of the fit without each row, (n,) or (n, t).

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(3), intercept=False)
    >>> rls.diagnostics.influence(factor, jnp.array([1.0, 0.0, -1.0]), 1.0).leverage.tolist()
    [0.5, 0.5, 0.5]
    """

    leverage: Float[Array, " n"]
    residuals: Float[Array, "n *t"]
    cooks_distance: Float[Array, "n *t"]
    noise: Float[Array, "*t"]
    dof: Float[Array, ""]
    studentised: Float[Array, "n *t"]
    dffits: Float[Array, "n *t"]
    noise_without: Float[Array, "n *t"]


# The fields of `Influence` that have a value for each row.
OF_ROWS = "leverage", "residuals", "cooks_distance", "studentised", "dffits", "noise_without"


@public_call(arrays_of="fit")
def influence(
    fit: Fit | Factor,
    Y: Float[Array, "n *t"] | Listed | None = None,
    lam: Float[Array, "..."] | float | None = None,
) -> Influence:
    """Compute leverage, residuals, Cook's distance and DFFITS of every row.

    They say how far a row determines its own fitted value, how far it deviates from it, and how far
    it moves the whole fit and its own value.

    With H(λ) the matrix from √v y to √v f, the fit of the intercept included, and r = √v (y − f):

        leverage             hᵢ = Hᵢᵢ
        noise                σ² = ‖r‖² / tr (I − H)²
        standardised         rᵢ / (σ √[(I − H)²]ᵢᵢ)
        Cook's distance      Dᵢ = ‖√v (f − f₍without i₎)‖² / (dof σ²)
                                = rᵢ² [H²]ᵢᵢ / ((1 − hᵢ)² dof σ²)
        studentised          tᵢ = rᵢ / (σᵢ √[(I − H)²]ᵢᵢ), externally, with the noise σᵢ of the
                                fit without row i
        DFFITS               √v (f − f₍without i₎) at row i / (σᵢ √[H²]ᵢᵢ)
                                = rᵢ hᵢ / ((1 − hᵢ) σᵢ √[H²]ᵢᵢ)

    The variance of rᵢ is exactly σ²[(I − H)²]ᵢᵢ if f has no bias. For λ → 0 these are the textbook
    formulas of least squares. σᵢ is that of a refit without row i. It is computed from sums over
    rows, with R = I − H and eᵢ = rᵢ/(1 − hᵢ):

        σᵢ² = (‖r‖² − 2eᵢ(Rr)ᵢ + eᵢ²[R²]ᵢᵢ) / (tr R² − 2[R³]ᵢᵢ/Rᵢᵢ + ([R²]ᵢᵢ/Rᵢᵢ)²)

    With landmarks, f without row i keeps all landmarks. A row of weight 0 has no influence: all of
    its values are 0, except σᵢ, which is σ.

    Args:
        fit: a fit that kept its solution; or a factor of the rows, such as `factorize` makes.
        Y: labels (n,) or (n, t), for a factor. A fit has its own labels.
        lam: λ ≥ 0, one number; 0 stands for the floor of the factor. For a fit the default is its
            chosen λ.

    Returns:
        An `Influence`, in the precision of the fit or factor.

    Raises:
        ValueError: for λ < 0 or shapes that do not fit; for a fit that kept no solution, or one
            without a spectrum, such as `Cholesky`.

    **Warns** of a λ below the precision of the factor. **Cost** O(n r t). **Fails** (NaN) for
    residuals that are all 0; tᵢ and DFFITS where those of all other rows are. **Source**: Cook
    1977; Belsley, Kuh and Welsch 1980, "Regression Diagnostics", §2.1; Eubank 1985, "Diagnostics
    for smoothing splines".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.array([[0.0], [1.0], [2.0], [10.0]])
    >>> factor = rls.factorize(rls.Linear(), X)
    >>> influence = rls.diagnostics.influence(factor, jnp.array([0.0, 1.0, 2.0, 3.0]), 0.1)
    >>> int(influence.leverage.argmax()), int(influence.cooks_distance.argmax())
    (3, 3)
    >>> int(abs(influence.dffits).argmax())
    3
    """
    if not isinstance(fit, Fit):
        if Y is None or lam is None:
            raise ValueError("a factor knows neither Y nor lam: give both")
        spectrum = fit.spectrum()
        return _influence(spectrum.solve(Y), known_lam(lam, spectrum))
    if Y is not None:
        raise ValueError("a fit knows its Y: leave it out, or give a factor")
    solution = solution_of(fit)
    residuals = fit.loo_residuals
    spectrum = solution.factor.spectrum()
    found = _influence_of_fit(solution, known_lam(fit.lam if lam is None else lam, spectrum))
    n = spectrum.n if residuals is None else len(residuals)
    if n == spectrum.n:
        return found
    of_rows = {name: first_rows(getattr(found, name), n) for name in OF_ROWS}  # without padding
    return replace(found, **of_rows)


def _influence(solution: Solution, lam: Float[Array, ""]) -> Influence:
    """Return the influence of every row, from a solution by a spectrum and one λ."""
    spectrum = solution.factor
    used = spectrum.weights.used
    r = solution.training_residuals(jnp.atleast_1d(lam))[0]
    leverage, diagonal_H2, diagonal_R, diagonal_R2, diagonal_R3 = _diagonals(spectrum, lam).T

    def ratio(A: Float[Array, "n t"], scale: Float[Array, " n"]) -> Float[Array, "n t"]:
        """Return A/scale, and 0 for rows of weight 0 and where the scale is 0."""
        known = (used & (scale > 0))[:, None]
        return jnp.where(known, A / jnp.where(known, scale[:, None], 1), 0)

    dof = jnp.sum(leverage)
    squares = jnp.sum(r * r, axis=0)
    trace_R2 = jnp.sum(jnp.where(used, diagonal_R2, 0))
    noise = safe_sqrt(squares / trace_R2)
    standardised = ratio(r / noise, safe_sqrt(diagonal_R2))
    moved = ratio(r / noise * safe_sqrt(diagonal_H2)[:, None], diagonal_R) ** 2 / dof
    # σᵢ of the fit without each row. Without some rows the fixed effects cannot be fitted. Such a
    # row has no held-out residual, and the residuals of the others stay.
    stays = _keeps_rank(spectrum)[:, None]
    held_out = jnp.where(stays, ratio(r, diagonal_R), 0)
    Rr = _residuals_of(spectrum, r, lam)
    squares_of_row = 2 * held_out * Rr - held_out**2 * diagonal_R2[:, None]
    R2_over_R = jnp.where(stays, ratio(diagonal_R2[:, None], diagonal_R), 0)
    R3_over_R = jnp.where(stays, ratio(diagonal_R3[:, None], diagonal_R), 0)
    trace_of_row = 2 * R3_over_R - R2_over_R**2
    noise_without = safe_sqrt(jnp.maximum(squares - squares_of_row, 0) / (trace_R2 - trace_of_row))
    studentised = ratio(r / noise_without, safe_sqrt(diagonal_R2))
    change_of_own = held_out * leverage[:, None] / noise_without
    dffits = ratio(change_of_own, safe_sqrt(diagonal_H2))
    drop = solution.labels.drop_axis
    return Influence(
        leverage=leverage,
        residuals=drop(standardised),
        cooks_distance=drop(moved),
        noise=drop(noise),
        dof=dof,
        studentised=drop(studentised),
        dffits=drop(dffits),
        noise_without=drop(noise_without),
    )


def _keeps_rank(spectrum: Spectrum) -> Bool[Array, " n"]:
    """Whether the fixed effects can be fitted without each row."""
    kept = spectrum.fixed.keeps_rank(spectrum.weights, None)
    return jnp.ones(spectrum.n, bool) if kept is None else jnp.asarray(kept)


def _residuals_of(
    spectrum: Spectrum, r: Float[Array, "n t"], lam: Float[Array, ""]
) -> Float[Array, "n t"]:
    """Return R r, the residuals of a fit to the residuals r."""
    weights = spectrum.weights
    labels = Labels.unchecked(weights.unscale(r), weights, spectrum.fixed, flat=False)
    return spectrum.solve_labels(labels).training_residuals(jnp.atleast_1d(lam))[0]


_influence_of_fit = compiled(_influence)


def _diagonals(spectrum: Spectrum, lam: Float[Array, ""]) -> Float[Array, "n 5"]:
    """Return the diagonals of H, H², R, R² and R³ at one λ, with H = I − R, as five columns."""
    kept = spectrum.s / (spectrum.s + lam)
    left = lam / (spectrum.s + lam)
    shares = jnp.stack([kept, kept**2, left, left**2, left**3], axis=1)

    def of_block(block: LeftBlock) -> Float[Array, "b 5"]:
        of_fixed = spectrum.fixed.leverage(block.b, block.weights.array)
        outside = jnp.maximum(spectrum.diagonal_outside(block), 0)
        fixed_and_rest = jnp.stack([of_fixed, of_fixed, outside, outside, outside], axis=1)
        return matmul(block.U**2, shares) + fixed_and_rest

    return spectrum.read_left(MAP, of_block)


class Eigenfunctions(NamedTuple):
    """The leading eigenvalues (num,), and a `Model` that predicts the eigenfunctions, (m, num)."""

    values: Float[Array, " num"]
    functions: Model


@public_call(arrays_of="fit")
def eigenfunctions(
    fit: Fit | Factor,
    kernel: Any = None,
    X: Float[Array, "n d"] | Listed | None = None,
    num: int = 10,
) -> Eigenfunctions:
    """The leading eigenvalues and eigenfunctions of the kernel under the distribution of the rows:
    Mercer's theorem, from the data.

        ∫ k(x, z) φⱼ(z) dp(z) = μⱼ φⱼ(x) with ∫ φᵢφⱼ dp = δᵢⱼ

    p is the distribution of the rows with their weights. At the rows φⱼ = √(Σv) Uⱼ/√v and μⱼ =
    sⱼ/Σv; elsewhere by Nyström's extension, φⱼ(x) = (1/μⱼΣv) Σᵢ vᵢ k(x, xᵢ) φⱼ(xᵢ). With an
    intercept the kernel is the centred one, whose eigenfunctions have mean 0.

    Args:
        fit: a fit that kept its solution, or a factor of the rows, without fixed effects.
        kernel: the kernel that a factor was made with; a fit has its own.
        X: the rows (n, d) that a factor was made of; a fit has its own.
        num: how many, by default 10.

    Returns:
        `(values, functions)`: μ (num,), the largest first, and a `Model` whose `predict` gives the
        eigenfunctions (m, num), of arbitrary sign.

    Raises:
        ValueError: for a `num` that is not from 1 to the factor's rank r, a factor with fixed
            effects, a fit that kept no solution, or one without a spectrum, such as `Cholesky`.

    **Cost** O(n r num). **Fails**: an eigenvalue below `factor.precision_floor()` is noise, and its
    function NaN or infinite where it is 0. **Source**: Rasmussen and Williams 2006, §4.3.2.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.array([[-1.0], [1.0]])
    >>> factor = rls.factorize(rls.Linear(), X, intercept=False)
    >>> values, functions = rls.diagnostics.eigenfunctions(factor, rls.Linear(), X, 1)
    >>> round(float(values[0]), 4), abs(functions.predict(jnp.array([[3.0]]))).round(4).tolist()
    (1.0, [[3.0]])
    """
    factor: Factor
    names: tuple
    num_columns: int | None
    if isinstance(fit, Fit):
        if kernel is not None or X is not None:
            raise ValueError("a fit knows its kernel and X: leave both out, or give a factor")
        factor = solution_of(fit).factor
        names = fit.model.names
        num_columns = fit.model.num_columns
    else:
        if kernel is None or X is None:
            raise ValueError("a factor knows neither kernel nor X: give both")
        factor = fit
        names = column_names(X)
        num_columns = np.shape(X)[1] if kernel.evaluable else None
    if factor.fixed.are_given:
        raise ValueError(
            "eigenfunctions needs a factor without fixed effects, and this one has some: "
            "factorize without fixed_effects="
        )
    spectrum = factor.spectrum()
    check_whole("num", num, spectrum.s.shape[0])
    leading = jnp.argsort(-spectrum.s)[:num]
    total = spectrum.weights.total
    s = spectrum.s[leading]
    scale = safe_sqrt(total) / s
    basis = spectrum.directions
    expansion = spectrum.expansion
    if isinstance(fit, Fit):
        kernel = fit.kernel
    elif spectrum.is_dual and kernel.evaluable:  # a factor made from K alone has no rows
        expansion = AtPoints(as_array("X", X, factor.dtype))
    points, coef = expansion.compact(kernel, basis[:, leading] * scale)
    across = spectrum.fixed_directions[:, leading] if factor.fixed.count else jnp.zeros((1, num))
    intercept = -across[0] * scale
    of_columns: dict = {"names": names, "num_columns": num_columns}
    return Eigenfunctions(s / total, Model(kernel, points, coef, intercept, **of_columns))
