"""Several kernels, with weights for every target: random search over the simplex, and the gradient
from there.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.factors.solvers import Spectral, check_kernel
from jaxrls.kernels.kernel import Kernel
from jaxrls.models.several import KernelsFit, weighted
from jaxrls.search.descent import default_optimizer
from jaxrls.search.grid import choose_lam, lambda_grid
from jaxrls.search.problem import Problem
from jaxrls.support.checks import as_array, as_floats, check_lams, check_whole, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.precision import in_precision_of
from jaxrls.support.pytrees import pytree

CONCENTRATIONS = (0.1, 1.0)  # of Dirichlet draws, by turns: near a few of the kernels, and anywhere


@pytree
class _Best:
    """For every target, the best so far."""

    error: Float[Array, "*t"]
    lam: Float[Array, "*t"]
    shares: Float[Array, "k *t"]
    coef: Float[Array, "q *t"]
    intercept: Float[Array, "*t"]


@on_any_mesh
@in_precision_of("X")
def fit_kernels(
    kernels,
    X,
    Y,
    *,
    num: int = 100,
    shares=None,
    key=None,
    lams=None,
    weights=None,
    intercept: bool = True,
    groups=None,
    landmarks=None,
    steps: int = 0,
) -> KernelsFit:
    """Fit a sum of kernels with weights for every target by itself, of the smallest leave-one-out
    error: multiple-kernel and banded ridge.

    minimise ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖² in the space of Σₖ sₖ k, over λ of a grid and
    over weights s ≥ 0, Σₖ sₖ = 1: equal ones, and draws of the Dirichlet distribution, of
    concentration 0.1 and 1 by turns. Every target keeps the best of all.

    **Arguments**: `kernels`, such as `[Linear().on(range(5)), Gaussian(1.0).on([5, 6])]`; `num`
    weights to try, the same ones for the same `key`, or `shares` (S, K), those to try, each divided
    by its sum. `lams` (L,), by default from the spectrum at equal weights; `weights`, `groups`,
    which are left out together, and `landmarks` as in `fit`. `steps` of L-BFGS go on from there for
    each target, along the gradient of its error in the logarithms of the weights and of λ.
    **Shapes**: X (n, d), Y (n,) or (n, t). **Returns** a `KernelsFit`. **Cost** `num` spectra,
    O(num n³), whatever the number of targets and λ; O(num n m²) on landmarks; with `steps` a few
    values with gradients of `objective` for each step and target. **Raises** `ValueError` for fewer
    than two kernels, shares below 0, and as `fit`. **Fails**: with many kernels few of the draws
    lie near the best: use `steps`. **Source**: Dupré la Tour, Eickenberg, Nunez-Elizalde and
    Gallant 2022, "Feature-space selection with banded ridge regression".

    >>> import jax, numpy as np, jaxrls as rls
    >>> rng = np.random.default_rng(0)
    >>> X, noise = rng.normal(size=(60, 2)), 0.3 * rng.normal(size=(60, 2))
    >>> Y = np.stack([np.sin(2 * X[:, 0]), X[:, 1]], axis=1) + noise
    >>> fit = rls.fit_kernels([rls.Gaussian(1.0).on(0), rls.Linear().on(1)], X, Y, num=10, key=jax.random.key(0))
    >>> bool(fit.shares[0, 0] > 0.5), bool(fit.shares[1, 1] > 0.5)
    (True, True)
    """
    kernels = _checked(kernels)
    named = {"weights": weights, "intercept": intercept, "groups": groups}
    equal = weighted(kernels, [1 / len(kernels)] * len(kernels))
    problem = Problem.of(equal, X, Y, landmarks=landmarks, **named)
    if not problem.traceable:
        raise ValueError(
            f"fit_kernels needs X in memory, which it reads many times, and X is {type(problem.rows).__name__}: read it whole, or some of it"
        )
    tried = _shares(len(kernels), num, shares, key, problem.rows.dtype)
    if lams is not None:
        lams = jnp.atleast_1d(as_array("lams", lams, problem.rows.dtype))
        if lams.ndim != 1:
            raise ValueError(
                f"lams must have shape (L,), from which every target chooses, and has shape {lams.shape}"
            )
        check_lams(lams)
    best, points = _search(problem, kernels, tried, lams)
    if steps:
        check_whole("steps", steps)
        with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
            best = _descended(problem, kernels, best, steps=int(steps))
    return KernelsFit(kernels, points, best.coef, best.intercept, best.shares, best.lam, best.error)


def _checked(kernels) -> tuple[Kernel, ...]:
    kernels = tuple(kernels) if isinstance(kernels, list | tuple) else ()
    if len(kernels) < 2:
        raise ValueError(
            "kernels must be a list of two kernels or more: with one, fit(kernel, X, Y, per_target=True)"
        )
    for kernel in kernels:
        check_kernel(kernel)
        if not kernel.evaluable:
            raise ValueError(
                "kernels must be functions of rows, and one stands for a matrix: FunctionKernel reads it by row numbers as X"
            )
    return kernels


def _shares(count: int, num, given, key, dtype) -> Float[Array, "s k"]:
    """The weights to try, equal ones first where they are drawn."""
    if given is not None:
        shares = jnp.asarray(as_floats("shares", given, dtype))
        if shares.ndim != 2 or shares.shape[1] != count or len(shares) == 0:
            raise ValueError(
                f"shares must have shape (S, {count}), a column for each kernel, and has shape {shares.shape}"
            )
        if is_concrete(shares) and not (
            (np.asarray(shares) >= 0).all() and (np.asarray(shares).sum(axis=1) > 0).all()
        ):
            raise ValueError(
                "shares must be 0 or more, and not all 0 in a row: they are weights of kernels"
            )
        return shares / jnp.sum(shares, axis=1, keepdims=True)
    check_whole("num", num)
    if key is None:
        raise ValueError(
            "fit_kernels draws weights at random: give key=jax.random.key(0), or shares= to try"
        )
    alpha = jnp.asarray(CONCENTRATIONS, dtype)[jnp.arange(num - 1) % len(CONCENTRATIONS)]
    drawn = jax.random.dirichlet(
        key, jnp.broadcast_to(alpha[:, None], (num - 1, count)), dtype=dtype
    )
    return jnp.concatenate([jnp.full((1, count), 1 / count, dtype), drawn])


def _at(problem: Problem, kernels, shares):
    """The problem with its kernels so weighted, solved with coefficients of rows or landmarks."""
    made = replace(problem, kernel=weighted(kernels, shares))
    return made, made.solution(Spectral("gram") if problem.landmarks is None else None)


@jax.jit
def _search(problem: Problem, kernels, tried, lams):
    """The best of all for every target, and what its coefficients multiply."""
    if lams is None:
        lams = lambda_grid(_at(problem, kernels, tried[0])[1].factor)
    t = 1 if problem.Y.ndim == 1 else problem.Y.shape[1]

    def judged(shares):
        made, solution = _at(problem, kernels, shares)
        lam, error = choose_lam(
            lams, made.errors(solution, lams).reshape(len(lams), t), per_target=True
        )
        found = solution.coefficients(lam[None])
        return _Best(
            error,
            lam,
            jnp.broadcast_to(shares[:, None], (len(shares), t)),
            found.coef[0],
            found.intercept[0],
        )

    def better(best, shares):
        new = judged(shares)
        wins = (new.error < best.error) | jnp.isnan(best.error)
        return jax.tree.map(lambda old, new: jnp.where(wins, new, old), best, new), None

    best, _ = jax.lax.scan(better, judged(tried[0]), tried[1:])
    of = problem.rows if problem.landmarks is None else problem.landmarks
    return best, of.points  # type: ignore[union-attr]


@partial(jax.jit, static_argnames="steps")
def _descended(problem: Problem, kernels, best: _Best, *, steps: int) -> _Best:
    """From the best of every target along the gradient in the logarithms of weights, λ being their
    sum; what is 0 begins at a hundredth of the mean.
    """
    import optax  # here, as in `default_optimizer`

    optimizer, least = default_optimizer(), 0.01 / len(kernels)

    def of_target(args):
        y, before = args
        own = replace(problem, Y=y)

        def value(log_shares):
            error = replace(own, kernel=weighted(kernels, jnp.exp(log_shares))).error(before.lam)
            return jnp.log(jnp.maximum(error, jnp.finfo(error.dtype).tiny))

        def step(carry, _):
            at, state = carry
            error, slope = optax.value_and_grad_from_state(value)(at, state=state)
            update, state = optimizer.update(
                slope, state, at, value=error, grad=slope, value_fn=value
            )
            return (at + update, state), None

        start = jnp.log(jnp.maximum(before.shares, least))
        (end, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
        total = jnp.sum(jnp.exp(end))
        shares, lam = jnp.exp(end) / total, before.lam / total
        made, solution = _at(own, kernels, shares)
        found = solution.coefficients(lam[None])
        new = _Best(
            made.errors(solution, lam[None])[0],
            lam,
            shares,
            found.coef[0, :, 0],
            found.intercept[0, 0],
        )
        wins = new.error < before.error  # and not where it is NaN
        return jax.tree.map(lambda old, new: jnp.where(wins, new, old), before, new)

    each = (
        problem.Y.reshape(len(problem.Y), -1).T,
        jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), best),
    )
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), jax.lax.map(of_target, each))
