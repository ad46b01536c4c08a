"""Validation error at one λ as a scalar that can be differentiated in everything, and the best λ as
such.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.left_out import loo
from jaxrls.factors.solvers import factorize
from jaxrls.kernels.kernel import Kernel
from jaxrls.problem.landmarks import Landmarks
from jaxrls.search.grid import lam_vector, lambda_grid
from jaxrls.search.problem import Problem
from jaxrls.support.checks import Listed, as_array
from jaxrls.support.meshes import on_any_mesh


@on_any_mesh
def objective(
    kernel: Kernel,
    X: Float[Array, "n d"] | Listed,
    Y: Float[Array, "n *t"] | Listed,
    lam: Float[Array, ""] | float,
    *,
    criterion: Criterion | Callable | str = loo,
    groups=None,
    weights: Float[Array, " n"] | Listed | None = None,
    intercept: bool = True,
    fixed_effects: Any = None,
    landmarks: Landmarks | Int[Array, " m"] | Float[Array, "m d"] | Listed | None = None,
    block_size: int | None = None,
) -> Float[Array, ""]:
    """A validation error at one λ, averaged over targets: differentiable to any order in every
    array. Smaller is better; the evidence is negated.

    Of leave-one-out E = Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ with e = c/p, c = G⁻¹y, p = diag G⁻¹, G = K + λI.
    With a = φ′(e)/p and b = φ′(e) c/p² its cotangent in K is −sym((G⁻¹a)cᵀ) + G⁻¹ diag(b) G⁻¹,
    pushed through the kernel in row blocks. No eigenvector is differentiated, so that the gradient
    is right where eigenvalues repeat or vanish.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d).
        Y: labels (n,) or (n, t).
        lam: one λ.
        criterion: as in `fit`, and so `groups`, `weights`, `intercept`, `fixed_effects` and
            `block_size`; inside `jax.jit` give `folds(groups)`. The derivative in a weight that is
            exactly 0 is taken as 0.
        landmarks: points (m, d), which have derivatives too, or row numbers, which leave with their
            row.

    Returns:
        A scalar, in the units of the criterion.

    Raises:
        ValueError: for shapes that do not fit and, where values are known, for those that `fit`
            refuses.

    **Cost** about n³ flops, 3n³ with gradient, in four n×n arrays; O(n r²) on r < n explicit
    features; O(n m²) on m landmarks, in row blocks and O(m²) memory beside X and Y; k-fold takes
    one more product for its gradient. **Fails** (NaN) where K + λI is singular to working
    precision. **Source**: the derivative of Rifkin (lecture), "LOOE derivation, VII"; Sundararajan
    and Keerthi 2001, eq. 25.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.linspace(0, 1, 8)[:, None], jnp.arange(8.0)
    >>> slope = jax.jit(jax.grad(rls.objective))(rls.Gaussian(0.5), X, y, 0.1)
    >>> bool(slope.width < 0)
    True
    """
    named: dict = {"criterion": criterion, "groups": groups, "weights": weights}
    named |= {"intercept": intercept, "fixed_effects": fixed_effects}
    problem = Problem.of(kernel, X, Y, landmarks=landmarks, block_size=block_size, **named)
    return problem.check().error(lam)


@on_any_mesh
def best_lam(
    kernel: Kernel,
    X: Float[Array, "n d"] | Listed,
    Y: Float[Array, "n *t"] | Listed,
    lams: Float[Array, " L"] | Listed | None = None,
    *,
    weights: Float[Array, " n"] | Listed | None = None,
    intercept: bool = True,
    criterion: Criterion = loo,
) -> Float[Array, ""]:
    """The λ of the smallest leave-one-out error, or other criterion, differentiable in kernel, X, Y and weights by the
    implicit function theorem.

    λ* minimises E(λ, θ) between the neighbours of the best grid point, and dλ* = −(∂²E/∂λ²)⁻¹
    (∂²E/∂λ∂θ) dθ. By the envelope theorem the derivative of E(λ*(θ), θ) itself needs no dλ*: at its
    minimum, ∂E/∂λ = 0. For another error at λ*, such as one on validation data, dλ* is what makes
    its derivative whole.

    **Shapes**: as `objective`; `lams` (L,) by default `lambda_grid`. **Cost** one
    eigendecomposition; a derivative adds second derivatives of `objective`. Where the grid's
    end is best, λ* is that end and its derivative 0. **Raises** as `objective`. **Source**: the
    implicit function theorem; Pedregosa 2016, eq. 3.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.linspace(0, 1, 8)[:, None]
    >>> y = jnp.array([0.0, 1.0, 0.0, 1.0, 2.0, 1.0, 2.0, 3.0])
    >>> jax.jit(jax.grad(rls.best_lam))(rls.Gaussian(0.5), X, y).width.shape
    ()
    """
    X, Y = as_array("X", X), as_array("Y", Y)
    weights = None if weights is None else as_array("weights", weights)
    Problem.of(kernel, X, Y, weights=weights, intercept=intercept, criterion=criterion).check()
    lams = None if lams is None else lam_vector(lams, X.dtype)
    return jnp.exp(_best_log_lam(criterion, intercept, kernel, X, Y, lams, weights))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _best_log_lam(criterion, intercept, kernel, X, Y, lams, weights):
    factor = factorize(kernel, X, weights=weights, intercept=intercept)
    lams = lambda_grid(factor) if lams is None else jnp.sort(lams)

    def error(log_lam):
        return jnp.mean(criterion(factor, Y, jnp.exp(log_lam)[None]))

    grid = jnp.log(lams)
    errors = criterion(factor, Y, lams)
    best = lams[jnp.argmin(errors if errors.ndim == 1 else jnp.mean(errors, axis=1))]
    # The neighbours among other λ: a grid may name one twice.
    below, above = lams < best, lams > best
    low, high = (
        jnp.max(grid, initial=-jnp.inf, where=below),
        jnp.min(grid, initial=jnp.inf, where=above),
    )
    inside, best = jnp.any(below) & jnp.any(above), jnp.log(best)
    low, high = jnp.where(inside, low, best), jnp.where(inside, high, best)
    slope, curvature = jax.grad(error), jax.grad(jax.grad(error))

    def shrink(_, state):
        # Newton's step where it stays inside the bracket, its middle where it does not: the bracket
        # closes on a zero slope.
        low, high, x = state
        g, h = slope(x), curvature(x)
        low, high = jnp.where(g < 0, x, low), jnp.where(g < 0, high, x)
        step = x - g / jnp.where(h > 0, h, 1)
        return (
            low,
            high,
            jnp.where((h > 0) & (step > low) & (step < high), step, 0.5 * (low + high)),
        )

    x = jax.lax.fori_loop(0, 60, shrink, (low, high, best))[2]
    return jnp.where(inside, x, best)


@_best_log_lam.defjvp
def _best_log_lam_jvp(criterion, intercept, primals, tangents):
    kernel, X, Y, lams, weights = primals
    log_lam = _best_log_lam(criterion, intercept, *primals)

    def slope(kernel, X, Y, weights, log_lam) -> Array:
        return jax.grad(
            lambda u: objective(
                kernel, X, Y, jnp.exp(u), criterion=criterion, weights=weights, intercept=intercept
            )
        )(log_lam)

    moving = (primals[0], X, Y, weights), (tangents[0], tangents[1], tangents[2], tangents[4])
    _, cross = jax.jvp(lambda kernel, X, Y, weights: slope(kernel, X, Y, weights, log_lam), *moving)
    curvature = jax.grad(lambda u: slope(kernel, X, Y, weights, u))(log_lam)
    flat = jnp.abs(slope(kernel, X, Y, weights, log_lam)) > 1e-3 * jnp.abs(
        curvature
    )  # not stationary: an end of the grid
    return log_lam, jnp.where(
        flat | (curvature <= 0), 0, -cross / jnp.where(curvature > 0, curvature, 1)
    )
