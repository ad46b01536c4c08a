"""Validation error at one λ as a scalar that can be differentiated in everything, and the best λ as
a differentiable function of the data.

Theory: `docs/theory.md`, "Gradients".
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

    Errors are averaged over targets. Smaller is better; the evidence is negated. Where the
    criterion is a likelihood with the variance of the prior, as the evidence is, kernel and λ are
    taken as they are; `fit` and `tune` estimate τ² beside them, and so does
    `criterion=Evidence("evidence")`. The CRPS estimates it here too, unless it is given.

    For leave-one-out, E = Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ with the held-out residuals e = c/p, where c =
    G⁻¹y, p = diag G⁻¹ and G = K + λI. With the loss φ, a = φ′(e)/p and b = φ′(e) c/p², the
    derivative in K is −sym((G⁻¹a)cᵀ) + G⁻¹ diag(b) G⁻¹, from which those of the kernel's parameters
    follow in blocks of rows. No eigenvector is differentiated, so that the gradient is right where
    eigenvalues repeat or vanish.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d).
        Y: labels (n,) or (n, t).
        lam: λ, one number.
        criterion: as in `fit`.
        groups: as in `fit`; inside `jax.jit` give `folds(groups)`.
        weights: as in `fit`; the derivative in a weight that is exactly 0 is taken as 0. In a
            program X and Y of such rows may be NaN, but for a given matrix.
        intercept, fixed_effects, block_size: as in `fit`.
        landmarks: points (m, d), which have derivatives too, or row numbers (m,): such a landmark
            is held out with its row.

    Returns:
        A scalar, in the units of the criterion.

    Raises:
        ValueError: for shapes that do not fit and, where values are known, for those that `fit`
            refuses.

    **Cost** about n³ flops, 3n³ with gradient, in four n×n arrays; O(n r²) on r < n explicit
    features; O(n m²) on m landmarks, in row blocks and O(m²) memory beyond X and Y; k-fold takes
    one more product for its gradient. **Fails** (NaN) where K + λI is singular to working
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
    """Find the λ of the smallest leave-one-out error, differentiable in kernel, X, Y and weights.

    λ⋆ minimises E(λ, θ) between the neighbours of the best grid point, and by the implicit function
    theorem dλ⋆ = −(∂²E/∂λ²)⁻¹ (∂²E/∂λ∂θ) dθ. The derivative of E(λ⋆(θ), θ) itself does not need
    dλ⋆, since ∂E/∂λ = 0 at its minimum (the envelope theorem); that of another error at λ⋆, such as
    one on validation data, does. Where an end of the grid is best, λ⋆ is that end and its
    derivative 0.

    Args:
        kernel, X, Y: as in `objective`.
        lams: the grid (L,), by default `lambda_grid`.
        weights, intercept: as in `fit`.
        criterion: the `Criterion` that λ⋆ minimises.

    Returns:
        λ⋆, a scalar.

    Raises:
        ValueError: as `objective`.

    **Cost** one eigendecomposition; a derivative adds second derivatives of `objective`.
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
        """The root, which is known: only its derivative by the implicit function theorem is new."""
        return log_lam

    def divided(change: Callable, value: Number) -> Number:
        """By the curvature; where that is not above 0, λ stands still."""
        curvature = change(jnp.ones_like(value))
        is_minimum = curvature > 0
        return jnp.where(is_minimum, value / jnp.where(is_minimum, curvature, 1), 0)

    return jnp.exp(jax.lax.custom_root(slope_at, grid_best, already_solved, divided))


class Minimum(NamedTuple):
    """The logarithm of the best λ of a grid, whether it lies inside of the grid, and the logarithm
    of the minimum between its neighbours, where the slope changes its sign.
    """

    grid_best: Array
    inside: Array
    log_lam: Array


def _by_spectrum(problem: Problem, lams: Array | None) -> Minimum:
    """The minimum of the error."""
    solution = problem.solution()
    grid = jnp.log(lambda_grid(solution.factor) if lams is None else lams)

    def errors(log_lams: Float[Array, " L"]) -> Float[Array, " L"]:
        return problem.errors(solution, jnp.exp(log_lams)).reshape(len(log_lams), -1).mean(axis=1)

    best = grid[jnp.argmin(errors(grid))]
    # The neighbours among other λ: a grid may name one twice.
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
