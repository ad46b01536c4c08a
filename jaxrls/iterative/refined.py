"""Compute inverses to the precision of float64 from Cholesky factors in float32, and define the
solver `Refined` that uses them.

A step factors G in float32, with a little added to its diagonal. This gives W with W G Wᵀ as near
to the identity as rounding in float32 lets it. The product W G Wᵀ is computed in the precision of
G, and is factored again in the next step. Two steps suffice for condition numbers up to 1e8, and
three up to 1e13. A polynomial adds the last digits.

Only matrix products are done in the wide precision. Devices without float64 compute these from
pairs of float32.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.core.data import Data, Folds, Labels, Rows, kind_of
from jaxrls.core.factors import (
    CallShape,
    CholeskyGram,
    DualAtLam,
    Footprint,
    Outcome,
    PerLam,
    Solution,
    Solver,
    Summand,
    kernel_matrix,
)
from jaxrls.core.linalg import (
    Number,
    Square,
    matmul,
    rule_of_inverse,
    rule_of_solve_diag,
    triangular_inverse,
)
from jaxrls.core.support import as_floats, is_wide, pytree, require_values
from jaxrls.iterative.conjugate import ALL_STEPS, CONVERGED, Run

# STEPS is the largest number of steps. The distance from the identity is ‖·‖ over all entries.
# Steps end when it is at most CLOSE, from where the polynomial leaves 2e-11. If it stays above
# USELESS, no result is right.
STEPS = 6
CLOSE = 3e-3
USELESS = 0.1


class InverseRoot(NamedTuple):
    """An inverse root of a symmetric positive definite G, with how it was found.

    `logdet` is log |G|. `distances` holds ‖W G Wᵀ − I‖ after every step, infinite after the last
    step.
    """

    root: Any  # B with B G Bᵀ = I, (n, n)
    logdet: Float[Array, ""]
    distances: Float[Array, " steps"]


def inverse_root(G: Float[Array, "n n"]) -> InverseRoot:
    """Compute the inverse root of a symmetric positive definite G.

    It is NaN if steps do not bring W G Wᵀ near the identity. Then G is not positive definite to its
    rounding.

    **Cost** a Cholesky factor and its inverse in float32 and three products a step, but two in the
    first, and three at the end: 16n³ flops in the dtype of G if two steps suffice. **Source**: Rump
    2009, "Inversion of extremely ill-conditioned matrices in floating-point"; Ogita and Oishi 2012,
    "Accurate and robust inverse Cholesky factorization".
    """
    last = jax.lax.while_loop(_unfinished, _next_step, _first_step(G))
    root, logdet = _polished(last)
    sound = last.distances[last.number - 1] <= USELESS
    root = jnp.where(sound, root, jnp.nan)
    logdet = jnp.where(sound, logdet, jnp.nan)
    return InverseRoot(root, logdet, last.distances)


class Steps(NamedTuple):
    """Where the steps have come. `logdet` and `distances` mean the same as in `InverseRoot`."""

    number: Any  # how many steps were run
    F: Any  # W G Wᵀ, (n, n)
    root: Any  # W, (n, n); None before the first step, which stands for I
    logdet: Any
    distances: Any


def _unfinished(steps: Steps) -> Bool[Array, ""]:
    """Whether one more step is needed and allowed."""
    return (steps.distances[steps.number - 1] > CLOSE) & (steps.number < STEPS)


def _first_step(G: Square) -> Steps:
    """Run the first step. It does not multiply by a root, which is I, and so saves a product."""
    none = Steps(
        number=jnp.asarray(0),
        F=G,
        root=None,
        logdet=jnp.zeros((), G.dtype),
        distances=jnp.full(STEPS, jnp.inf, G.dtype),
    )
    change = _narrow_root(G)
    return _after(none, change, root=change)


def _next_step(steps: Steps) -> Steps:
    """Run one more step."""
    change = _narrow_root(steps.F)
    return _after(steps, change, root=matmul(change, steps.root))


def _narrow_root(F: Square) -> Square:
    """Return the inverse of the Cholesky factor of F in float32, in the dtype of F.

    F is scaled to ones on the diagonal, and 4√n·eps is added to them, so that it can be factored.
    Afterwards the inverse is multiplied by √(1 + 4√n·eps), so that an F which is I stays I.
    """
    n = len(F)
    length = jnp.sqrt(jnp.diagonal(F))
    eps = float(jnp.finfo(jnp.float32).eps)
    jitter = 4 * n**0.5 * eps
    scaled = (F / length[:, None] / length).astype(jnp.float32)
    scaled = scaled + jitter * jnp.eye(n, dtype=jnp.float32)
    narrow = triangular_inverse(jax.lax.linalg.cholesky(scaled, symmetrize_input=False))
    return (1 + jitter) ** 0.5 * narrow.astype(F.dtype) / length


def _after(steps: Steps, change: Square, root: Square) -> Steps:
    """Return the steps with one more, which multiplied the root by `change`, and so made `root`."""
    F = matmul(matmul(change, steps.F), change.T)
    F = (F + F.T) / 2
    distance = jnp.linalg.norm(F - jnp.eye(len(F), dtype=F.dtype))
    return Steps(
        number=steps.number + 1,
        F=F,
        root=root,
        logdet=steps.logdet - 2 * jnp.sum(jnp.log(jnp.diagonal(change))),
        distances=steps.distances.at[steps.number].set(distance),
    )


def _polished(last: Steps) -> tuple[Any, Any]:
    """Return B and log |G| after the last step, with F = I + rest.

    (I + rest)^(-1/2) is taken as I − rest/2 + 3 rest²/8 − 5 rest³/16. The logarithm is expanded to
    the fourth power of the rest.
    """
    rest = last.F - jnp.eye(len(last.F), dtype=last.F.dtype)
    square = matmul(rest, rest)
    change = rest / 2 - 0.375 * square + 0.3125 * matmul(rest, square)
    series = rest * square / 3 - rest * rest / 2 - square * square / 4
    return last.root - matmul(change, last.root), last.logdet + jnp.trace(rest) + jnp.sum(series)


@jax.custom_jvp
def refined_inverse(G: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Compute `inverse` by `inverse_root`."""
    root = inverse_root(G).root
    return matmul(root.T, root)


class RefinedParts(NamedTuple):
    """`InverseParts`, and the distance from the identity after every step."""

    times_B: Float[Array, "n k"]
    diagonal: Float[Array, " n"]
    logdet: Float[Array, ""]
    distances: Float[Array, " steps"]


@jax.custom_jvp
def refined_solve_diag(
    K: Float[Array, "n n"], shift: Float[Array, ""], B: Float[Array, "n k"]
) -> RefinedParts:
    """Compute `solve_diag` by `inverse_root`, with the distances from the identity of its steps."""
    root, logdet, distances = inverse_root(K + shift * jnp.eye(len(K), dtype=K.dtype))
    times_B = matmul(root.T, matmul(root, B))
    return RefinedParts(times_B, jnp.sum(root * root, axis=0), logdet, distances)


refined_inverse.defjvp(rule_of_inverse(refined_inverse))
refined_solve_diag.defjvp(
    rule_of_solve_diag(refined_solve_diag, refined_inverse), symbolic_zeros=True
)


@pytree
class RefinedGram(CholeskyGram):
    """A factor that inverts K̃ + λI in float64 from Cholesky factors in float32.

    It is for λ below what float32 can resolve. Each λ takes about 16n³ flops in products, and n³ in
    float32. Rows, K and vectors have the dtype of X, which should be float64.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.eye(3), solver=rls.Refined())
    >>> rls.loo(factor, jnp.arange(3.0), jnp.array([0.1, 1.0])).shape
    (2,)
    """

    name: ClassVar[str] = "refined"
    refines: ClassVar[bool] = True
    inverse = staticmethod(refined_inverse)
    solve_diag = staticmethod(refined_solve_diag)

    def inverse_root(self, G: Square) -> Square:
        """Return B with B G Bᵀ = I, by steps."""
        return inverse_root(G).root

    def outcome(
        self, solution: Solution, lams: PerLam, folds: Folds | None, summand: Summand | None
    ) -> Outcome:
        """Return all results from one inverse, and how it was found.

        The `residuals` of the run are distances from the identity.
        """

        def with_distances(
            lam: Number, solution: Solution
        ) -> tuple[DualAtLam, Float[Array, "steps 1"]]:
            parts: Any = self.solve_at(lam, solution)
            return self.results(lam, solution, parts), parts.distances[:, None]

        results, distances = solution.per_target(lams[0], with_distances)
        count = jnp.sum(jnp.isfinite(distances), axis=0)
        last = jnp.take_along_axis(distances, jnp.maximum(count - 1, 0)[None], axis=0)[0]
        run = Run(last, distances, jnp.max(count), jnp.where(last <= CLOSE, CONVERGED, ALL_STEPS))
        if folds is None and self.weights.values is None:
            e = (results.residuals / results.diagonal)[None]
        else:
            e = jnp.moveaxis(self.held_out_residuals(solution, lams, folds), 1, 0)
        dof = self.weights.count - results.residual_dof[None]
        return Outcome(results.coef[None], results.beta[None], e, dof, run=run)


@pytree
class Refined(Solver):
    """Solve by Cholesky factors of K + λI in float32, refined by products in float64.

    It is for λ far below what float32 alone can resolve. Each λ takes about 16n³ operations.
    Whatever the dtype of X, `fit` returns coefficients, held-out residuals and error in float64.
    `fit.run` says how good each step was. It holds the distance of W (K + λI) Wᵀ from the identity,
    where W is the refined inverse of the Cholesky factor.

    >>> import jaxrls as rls
    >>> rls.factorize(rls.Gaussian(1.0), [[1.0], [2.0]], solver=rls.Refined()).route
    'refined'
    """

    def rows_to_fit(self, X: Any) -> Any:
        """Return X in float64, whatever its dtype."""
        if is_wide(X) and hasattr(X, "dtype"):
            return X
        refusal = (
            f"Refined() needs a dense X with known values, and X is {type(X).__name__}: call fit "
            "outside of jax.jit, or give float64 NumPy data"
        )
        if isinstance(X, Rows) or not kind_of(X).is_dense:
            raise ValueError(refusal)
        require_values(refusal, X)
        values = np.asarray(as_floats("X", X))
        return X if values.dtype == np.float64 else values.astype(np.float64)

    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Make the solution from K of all rows."""
        matrix = kernel_matrix(kernel, data, block_size)
        return RefinedGram(**matrix._asdict()).solve_labels(labels)

    def memory(self, shape: CallShape) -> Footprint:
        """Return the memory of K and of the matrices that make its refined inverse."""
        n = shape.rows
        words = "K, roots of its inverse and their products"
        return Footprint("refined", n, 7 * n**2, words, of_kernel=True)

    def explain(self, run: Run) -> str:
        """Say why the steps stopped, with the distance from the identity."""
        return run.why("at a residual of {:.2g}".format, "a larger λ")
