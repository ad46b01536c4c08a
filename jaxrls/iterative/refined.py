"""Inverses to the precision of float64 from Cholesky factors in float32, and the solver of them.

A Cholesky factor in float32 of G, with a little added to its diagonal, brings W G Wᵀ as near to the
identity as rounding in float32 lets it; that product is made in the precision of G, and what is
left of it is factored again. Two such steps do for condition numbers to 1e8, three to 1e13, and a
polynomial for the last digits. Nothing but products is asked of the wide precision: devices that
have no float64 make these of pairs of float32."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import Rows, kind_of
from jaxrls.core.factors import (
    CholeskyGram,
    Footprint,
    Outcome,
    Solver,
    kernel_matrix,
)
from jaxrls.core.linalg import matmul, rule_of_inverse, rule_of_solve_diag, triangular_inverse
from jaxrls.core.support import as_floats, is_concrete, is_wide, pytree
from jaxrls.iterative.conjugate import ALL_STEPS, CONVERGED, Run

# Steps at most. The distance from the identity, ‖·‖ by all entries, that leaves the polynomial
# 2e-11; where it stays above the second nothing is right.
STEPS = 6
CLOSE = 3e-3
USELESS = 0.1


class InverseRoot(NamedTuple):
    """B with B G Bᵀ = I, log |G|, and ‖W G Wᵀ − I‖ after every step, infinite after the last."""

    root: Any  # (n, n)
    logdet: Float[Array, ""]
    distances: Float[Array, " steps"]


def inverse_root(G: Float[Array, "n n"]) -> InverseRoot:
    """The inverse root of a symmetric positive definite G; NaN where steps do not bring it near the
    identity, as G is not positive definite to its rounding.

    **Cost** a Cholesky factor and its inverse in float32 and three products a step, but two in the
    first, and three at the end: 16n³ flops in the dtype of G where two steps do. **Source**: Rump
    2009, "Inversion of extremely ill-conditioned matrices in floating-point"; Ogita and Oishi 2012,
    "Accurate and robust inverse Cholesky factorization"."""
    start = InverseRoot(None, jnp.zeros((), G.dtype), jnp.full(STEPS, jnp.inf, G.dtype))
    number, F, last = jax.lax.while_loop(_unfinished, _following, _following((0, G, start)))
    root, logdet = _polished(F, last)
    sound = last.distances[number - 1] <= USELESS
    root = jnp.where(sound, root, jnp.nan)
    logdet = jnp.where(sound, logdet, jnp.nan)
    return InverseRoot(root, logdet, last.distances)


def _unfinished(state):
    number, _, last = state
    return (last.distances[number - 1] > CLOSE) & (number < STEPS)


def _following(state):
    """One more step, from its number, F = W G Wᵀ and W; before the first F is G and W None, for I.

    That of F in float32 has ones on the diagonal and √n·eps added to them, and taken off again of
    what is 1.
    """
    number, F, (root, logdet, distances) = state
    n = len(F)
    length = jnp.sqrt(jnp.diagonal(F))
    eps = float(jnp.finfo(jnp.float32).eps)
    jitter = 4 * n**0.5 * eps
    scaled = (F / length[:, None] / length).astype(jnp.float32)
    scaled = scaled + jitter * jnp.eye(n, dtype=jnp.float32)
    narrow = triangular_inverse(jax.lax.linalg.cholesky(scaled, symmetrize_input=False))
    W = (1 + jitter) ** 0.5 * narrow.astype(F.dtype) / length
    F = matmul(matmul(W, F), W.T)
    F = (F + F.T) / 2
    logdet = logdet - 2 * jnp.sum(jnp.log(jnp.diagonal(W)))
    distances = distances.at[number].set(jnp.linalg.norm(F - jnp.eye(n, dtype=F.dtype)))
    root = W if root is None else matmul(W, root)
    return jnp.asarray(number + 1), F, InverseRoot(root, logdet, distances)


def _polished(F, last: InverseRoot) -> tuple[Any, Any]:
    """B and log |G|: with (I + rest)^(-1/2) as I − rest/2 + 3 rest²/8 − 5 rest³/16, to the fourth
    power of the rest.
    """
    rest = F - jnp.eye(len(F), dtype=F.dtype)
    square = matmul(rest, rest)
    change = rest / 2 - 0.375 * square + 0.3125 * matmul(rest, square)
    series = rest * square / 3 - rest * rest / 2 - square * square / 4
    return last.root - matmul(change, last.root), last.logdet + jnp.trace(rest) + jnp.sum(series)


@jax.custom_jvp
def refined_inverse(G: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`inverse` by `inverse_root`."""
    root = inverse_root(G).root
    return matmul(root.T, root)


class RefinedParts(NamedTuple):
    """`InverseParts`, and the distances of its steps from the identity."""

    times_B: Float[Array, "n k"]
    diagonal: Float[Array, " n"]
    logdet: Float[Array, ""]
    distances: Float[Array, " steps"]


@jax.custom_jvp
def refined_solve_diag(
    K: Float[Array, "n n"], shift: Float[Array, ""], B: Float[Array, "n k"]
) -> RefinedParts:
    """`solve_diag` by `inverse_root`, and the distances of its steps."""
    root, logdet, distances = inverse_root(K + shift * jnp.eye(len(K), dtype=K.dtype))
    times_B = matmul(root.T, matmul(root, B))
    return RefinedParts(times_B, jnp.sum(root * root, axis=0), logdet, distances)


refined_inverse.defjvp(rule_of_inverse(refined_inverse))
refined_solve_diag.defjvp(
    rule_of_solve_diag(refined_solve_diag, refined_inverse), symbolic_zeros=True
)


@pytree
class RefinedGram(CholeskyGram):
    """K̃ + λI inverted in float64 from decompositions in float32, for λ below what float32 can
    resolve: one λ after another, about 16n³ flops each in products, and n³ in float32.

    Rows, K and vectors are in the dtype of X, which is to be float64.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.eye(3), solver=rls.Refined())
    >>> rls.loo(factor, jnp.arange(3.0), jnp.array([0.1, 1.0])).shape
    (2,)
    """

    name: ClassVar[str] = "refined"
    inverse = staticmethod(refined_inverse)
    solve_diag = staticmethod(refined_solve_diag)

    def lower(self, G):
        """None: steps make its inverse."""
        return None

    def inverse_root(self, G):
        """By steps."""
        return inverse_root(G).root

    def outcome(self, solution, lams, groups, fn):
        """All from one inverse, and how it was found: `residuals` of the run are distances from the
        identity.
        """

        def with_distances(lam, solution):
            parts: Any = self.solve_at(lam, solution)
            return self.results(lam, solution, parts), parts.distances[:, None]

        results, distances = solution.per_target(lams[0], with_distances)
        count = jnp.sum(jnp.isfinite(distances), axis=0)
        last = jnp.take_along_axis(distances, jnp.maximum(count - 1, 0)[None], axis=0)[0]
        run = Run(last, distances, jnp.max(count), jnp.where(last <= CLOSE, CONVERGED, ALL_STEPS))
        plain = groups is None and self.weights.values is None
        e = (
            (results.residuals / results.diagonal)[None]
            if plain
            else solution.held_out_residuals(lams, groups)
        )
        coefficients = results.coef[None], results.beta[None]
        return Outcome(coefficients, e, self.weights.count - results.residual_dof[None], run=run)


@pytree
class Refined(Solver):
    """Solve by Cholesky factors of K + λI in float32, refined by products in float64: for λ far
    below what float32 alone can resolve.

    It takes about 16n³ operations for each λ. Whatever the dtype of X, `fit` returns coefficients,
    held-out residuals and error in float64. `fit.run` says how good each step was: the distance of
    W (K + λI) Wᵀ from the identity, where W is the refined inverse of the Cholesky factor.

    >>> import jaxrls as rls
    >>> rls.factorize(rls.Gaussian(1.0), [[1.0], [2.0]], solver=rls.Refined()).route
    'refined'
    """

    def rows_to_fit(self, X):
        """In float64, whatever their dtype."""
        if is_wide(X) and hasattr(X, "dtype"):
            return X
        if isinstance(X, Rows) or not kind_of(X).is_dense or not is_concrete(X):
            raise ValueError(
                f"Refined() needs a dense X with known values, and X is {type(X).__name__}: call "
                "fit outside of jax.jit, or give float64 NumPy data"
            )
        values = np.asarray(as_floats("X", X))
        return X if values.dtype == np.float64 else values.astype(np.float64)

    def solve(self, kernel, data, labels, *, block_size=None):
        """Factor K of all rows."""
        matrix = kernel_matrix(kernel, data, block_size)
        return RefinedGram(**matrix._asdict()).solve_labels(labels)

    def memory(self, shape):
        """K, and what its refined inverse is made of."""
        n = shape.rows
        words = "K, roots of its inverse and their products"
        return Footprint("refined", n, 7 * n**2, words, of_kernel=True)

    def explain(self, run):
        """With the distance from the identity."""
        return run.why("at a residual of {:.2g}".format, "a larger λ")
