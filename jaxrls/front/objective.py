"""`objective` is a validation error at one λ, as a scalar that is differentiable in every array.

`best_lam` is the best λ as a differentiable function of the kernel and the data. Theory:
`docs/theory.md`, "Gradients".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.criteria import Criterion, loo
from jaxrls.core.fit import Problem, lambda_grid
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number
from jaxrls.core.support import as_lams, public_call
from jaxrls.front.read import read_problem


@public_call()
def objective(
    kernel: Kernel,
    X: Any,
    Y: Any,
    lam: Any,
    *,
    criterion: Criterion | Callable | str = loo,
    groups: Any = None,
    weights: Any = None,
    intercept: bool = True,
    fixed_effects: Any = None,
    landmarks: Any = None,
    block_size: int | None = None,
) -> Float[Array, ""]:
    """Compute a validation error at one λ, differentiable to any order in every array.

    Errors are averaged over targets. Smaller is better, so the evidence is negated. A likelihood,
    such as the evidence, is computed with the variance τ² = 1 of the prior τ²k. In contrast, `fit`
    and `tune` estimate τ², and so does `criterion=Evidence("evidence")`. The CRPS estimates τ² here
    too, unless it is given.

    For leave-one-out, with G = K + λI, c = G⁻¹y and p = diag G⁻¹, the error is

        E = Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ with the held-out residuals e = c/p

    Write φ for the loss, a = φ′(e)/p and b = φ′(e) c/p². The derivative in K is

        −sym((G⁻¹a)cᵀ) + G⁻¹ diag(b) G⁻¹

    From it the derivatives in the kernel's parameters follow in blocks of rows. No eigenvector is
    differentiated. So the gradient is right even if eigenvalues repeat or vanish.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d).
        Y: labels (n,) or (n, t).
        lam: λ, one number.
        criterion: as in `fit`.
        groups: as in `fit`; inside `jax.jit` give `folds(groups)`.
        weights: as in `fit`. The derivative in a weight that is exactly 0 is taken as 0. Inside of
            `jax.jit`, X and Y of rows of weight 0 may be NaN, unless X is a kernel matrix.
        intercept, fixed_effects, block_size: as in `fit`.
        landmarks: points (m, d), in which the error is differentiable too; or row numbers (m,). A
            landmark that is given by its row number is held out with its row.

    Returns:
        A scalar, in the units of the criterion.

    Raises:
        ValueError: for shapes that do not fit and, outside of `jax.jit`, for values that `fit`
            refuses.

    **Cost** about n³ flops, 3n³ with gradient, in four n×n arrays. With r < n explicit features
    O(n r²). With m landmarks O(n m²), in blocks of rows, and O(m²) memory beyond X and Y. K-fold
    takes one more product for its gradient. **Fails** (NaN) if K + λI is singular to working
    precision. **Source**: the derivative of Rifkin (lecture), "LOOE derivation, VII"; Sundararajan
    and Keerthi 2001, eq. 25.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.linspace(0, 1, 8)[:, None], jnp.arange(8.0)
    >>> slope = jax.jit(jax.grad(rls.objective))(rls.Gaussian(0.5), X, y, 0.1)
    >>> bool(slope.width < 0)
    True
    """
    problem = read_problem(
        kernel,
        X,
        Y,
        criterion=criterion,
        groups=groups,
        weights=weights,
        intercept=intercept,
        fixed_effects=fixed_effects,
        landmarks=landmarks,
        block_size=block_size,
        estimates=False,
    )
    return problem.prepare().error(lam)


@public_call()
def best_lam(
    kernel: Kernel,
    X: Any,
    Y: Any,
    lams: Any = None,
    *,
    weights: Any = None,
    intercept: bool = True,
    criterion: Criterion = loo,
) -> Float[Array, ""]:
    """Find the λ of the smallest validation error, differentiable in kernel, X, Y and weights.

    Let θ be the kernel, X, Y and weights, and E the criterion, by default the leave-one-out error.
    λ⋆ minimises E(λ, θ) between the neighbours of the best grid point. By the implicit function
    theorem

        dλ⋆ = −(∂²E/∂λ²)⁻¹ (∂²E/∂λ∂θ) dθ

    The derivative of E(λ⋆(θ), θ) itself does not need dλ⋆, as ∂E/∂λ = 0 at the minimum (the
    envelope theorem). The derivative of another error at λ⋆, such as an error on validation data,
    needs it. If an end of the grid is best, λ⋆ is that end, and its derivative is 0.

    Args:
        kernel, X, Y: as in `objective`.
        lams: the grid (L,), by default `lambda_grid`.
        weights, intercept: as in `fit`.
        criterion: the `Criterion` E. A likelihood estimates the variance τ² of the prior, unless it
            is given, as in `fit` and not as in `objective`.

    Returns:
        λ⋆, a scalar.

    Raises:
        ValueError: as `objective`.

    **Cost** one eigendecomposition; a derivative adds second derivatives of E at λ⋆.
    **Source**: the implicit function theorem; Pedregosa 2016, eq. 3.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.linspace(0, 1, 8)[:, None]
    >>> y = jnp.array([0.0, 1.0, 0.0, 1.0, 2.0, 1.0, 2.0, 3.0])
    >>> jax.jit(jax.grad(rls.extend.best_lam))(rls.Gaussian(0.5), X, y).width.shape
    ()
    """
    problem = read_problem(kernel, X, Y, weights=weights, intercept=intercept, criterion=criterion)
    lams = None if lams is None else as_lams(lams, problem.rows.dtype)
    grid_best, inside, log_lam = _by_spectrum(*jax.lax.stop_gradient((problem, lams)))

    def slope_at(log_lam: Number) -> Number:
        slope = jax.grad(lambda log_lam: problem.error(jnp.exp(log_lam)))(log_lam)
        return jnp.where(inside, slope, log_lam - grid_best)

    def already_solved(slope_at: Callable, start: Number) -> Number:
        """Return the known root: `custom_root` only adds its derivative."""
        return log_lam

    def divided(change: Callable, value: Number) -> Number:
        """Return the value divided by the curvature, or 0 if the curvature is not above 0."""
        curvature = change(jnp.ones_like(value))
        is_minimum = curvature > 0
        return jnp.where(is_minimum, value / jnp.where(is_minimum, curvature, 1), 0)

    # In `custom_root`, f is `slope_at`, ∂E/∂ log λ, and its root is log λ⋆. `solve` is
    # `already_solved`, and `tangent_solve` is `divided`, which divides by ∂²E/∂(log λ)². At an end
    # of the range, f is log λ less a constant, so that λ⋆ does not depend on θ and dλ⋆ is 0.
    return jnp.exp(jax.lax.custom_root(slope_at, grid_best, already_solved, divided))


class Minimum(NamedTuple):
    """The minimum of the error over λ."""

    grid_best: Array  # the logarithm of the best λ of the grid
    inside: Array  # whether that λ has a smaller and a larger neighbour on the grid
    log_lam: Array  # the logarithm of the minimum between these neighbours, else `grid_best`


def _by_spectrum(problem: Problem, lams: Array | None) -> Minimum:
    """Return the minimum of the error over λ, from a spectrum, by bisection of the slope."""
    solution = problem.solution()
    grid = jnp.log(lambda_grid(solution.factor) if lams is None else lams)

    def errors(log_lams: Float[Array, " L"]) -> Float[Array, " L"]:
        return problem.errors(solution, jnp.exp(log_lams)).reshape(len(log_lams), -1).mean(axis=1)

    best = grid[jnp.argmin(errors(grid))]
    # The nearest λ that differ from the best, as a grid may name a λ twice.
    low = jnp.max(grid, initial=-jnp.inf, where=grid < best)
    high = jnp.min(grid, initial=jnp.inf, where=grid > best)
    inside = jnp.isfinite(low) & jnp.isfinite(high)
    slope = jax.grad(lambda log_lam: errors(log_lam[None])[0])

    def halved(_: Any, ends: tuple[Number, Number]) -> tuple[Number, Number]:
        low, high = ends
        middle = (low + high) / 2
        falls = slope(middle) < 0
        return jnp.where(falls, middle, low), jnp.where(falls, high, middle)

    ends = jnp.where(inside, low, best), jnp.where(inside, high, best)
    return Minimum(best, inside, sum(jax.lax.fori_loop(0, 60, halved, ends)) / 2)
