"""A few λ without a spectrum: one kernel matrix, and a Cholesky factor for each λ."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls._factor import rounding
from jaxrls._gram import gram
from jaxrls._linalg import matmul
from jaxrls._point import GramPoint
from jaxrls._pytree import pytree
from jaxrls._validation import evaluate
from jaxrls._weighted import prepare_weights, scale_rows

# One eigendecomposition takes as long as the Cholesky factors and inverses of 2 to 6 λ at n = 1000, 3 to 4 at 2000, 5 to 6 at 4000, the fewer in
# float32, on CPUs (benchmarks/run.py --only spectrum).
ROWS_PER_LAM, MOST_LAMS = 1000, 5
# Steps of the power method: the level of rounding needs its eigenvalue to a few percent.
POWER_STEPS = 10


def are_few(num: int, n: int) -> bool:
    """Whether `num` values of λ take less time by a Cholesky factor each than by the eigendecomposition of n rows."""
    return num <= min(MOST_LAMS, 1 + n // ROWS_PER_LAM)


@pytree
class Best:
    """What belongs to the λ of the smallest error."""

    lam: Float[Array, ""]
    error: Float[Array, ""]
    coef: Float[Array, "n *t"]
    intercept: Float[Array, "*t"]
    loo_residuals: Float[Array, "n *t"]
    dof: Float[Array, ""]


def search_few(kernel, X, Y, lams, weights, options, criterion, loss, intercept: bool, block_size):
    """The criterion at every λ, what belongs to the best of them (the larger of equals), and n·eps·s_max. NaN where Cholesky breaks down."""
    weights = prepare_weights(weights, X.shape[0], X.dtype)
    K = gram(kernel, X, block_size=block_size)

    def at(lam):
        point = GramPoint(K, lam, weights, intercept)
        target = point.project(Y)
        errors = evaluate(criterion, loss, point, kernel, X, Y, lam[None], options)[0]
        dof = point.num_rows() + int(intercept) - point.trace(target, lam)
        found = point.coef(target, lam), point.intercept(target, lam), point.loo_residuals(target, lam)
        found = found if Y.ndim == 2 else tuple(part[..., 0] for part in found)
        return Best(lam, jnp.mean(errors), *found, dof), errors

    def step(best, lam):
        now, errors = at(lam)
        better = (now.error < best.error) | (now.error == best.error) & (now.lam > best.lam)
        return jax.tree.map(partial(jnp.where, better), now, best), errors

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(at, lams[0])[0])
    best, errors = jax.lax.scan(step, replace(nothing, error=jnp.full_like(nothing.error, jnp.inf)), lams)
    point = GramPoint(K, lams[0], weights, intercept)
    return errors, best, rounding(point.n, _largest_eigenvalue(K, point)[None])


def _largest_eigenvalue(K, point):
    """s_max of √v K √v by the power method from the constant, which most kernels' first eigenvector is near."""
    root = point.root_weights

    def step(_, state):
        x, _ = state
        x = scale_rows(root, matmul(K, scale_rows(root, x)))
        length = jnp.linalg.norm(x)
        return x / jnp.where(length > 0, length, 1), length

    start = point.direction()
    return jax.lax.fori_loop(0, POWER_STEPS, step, (start, jnp.zeros((), K.dtype)))[1]
