"""Define `Iterative`, the solver for more rows than K can be factored for. K is never stored.

It runs conjugate gradients with products K·V, computed in blocks. An approximate inverse from
landmarks and from blocks of near rows keeps the number of steps small.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxrls.core.data import Data, Labels, Weights, kernel_times, square_times
from jaxrls.core.factors import (
    SOLVERS_WITHOUT_K,
    AtPoints,
    CallShape,
    Expansion,
    Footprint,
    Report,
    Solution,
    Solver,
)
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number, matmul, transposed_matmul
from jaxrls.core.support import check_whole, pytree, static
from jaxrls.iterative.by_products import ByProducts, Iterated
from jaxrls.iterative.conjugate import Run
from jaxrls.iterative.near_inverse import ApproximateInverse, Near
from jaxrls.landmarks.choice import resolve_landmarks
from jaxrls.landmarks.solver import Subset

# How many signs all probes together must have to estimate leverages well enough.
ENOUGH = 2**14


@pytree
class Iterative(Solver):
    """Solve with all of K by conjugate gradients, for more rows than K can be factored for.

    It solves (K̃ + λI) c̃ = √v y with K̃ = √v K √v, for one λ after another. Targets and probes are
    solved for together. A probe is a random vector of ±1. Each step is a product of K with t +
    probes columns. An approximate inverse, from landmarks and from blocks of near rows, reduces the
    steps to some tens.

    Together with `landmarks=` of `fit` it solves for the subset of regressors on these landmarks. A
    step then takes O(n m), and the approximate inverse comes from the moments of some of the rows.
    This suits more landmarks than their moments can be summed for. A landmark that is a row then
    stays when its row is held out. If `landmarks` is a number, rows are drawn with equal
    probabilities.

    The leave-one-out error is an estimate. Its standard error says how much it depends on the draw
    of the probes. A λ far too small nearly interpolates the labels. There the estimate may be off
    by more.

    Args:
        landmarks: the landmarks of the preconditioner, as in `landmarks=` of `fit`. Default 10√n,
            at most 3000. They must be left out if `fit` is given `landmarks=`.
        tol: how far fitted values may be off, as a share of the residuals of the fit, root mean
            square.
        steps: the largest number of steps.
        probes: how many random vectors to use for the leave-one-out error, 3 or more. With as many
            as rows it is exact. Default 8, and more for fewer than 2000 rows. 0 is cheaper if λ is
            given or chosen by held-out rows. Held-out residuals and degrees of freedom are then
            None.
        dtype: the dtype of K's entries and products, such as "float32". Vectors stay in the dtype
            of X. By default both have the dtype of X, but a search for λ in float64 compares most
            λ by products in float32. The fit at the best λ is then in float64.
        key: a JAX random key for the probes, by default the same every time.

    **Source**: Snelson and Ghahramani 2007 for the approximate inverse; Hutchinson 1990 for random
    vectors; Epperly, Tropp and Webber 2024 for their control variate; Rudi, Carratino and Rosasco
    2017, "FALKON", on landmarks.

    >>> import jaxrls as rls
    >>> rls.Iterative(landmarks=500, steps=40, dtype="float32").tol
    0.02
    """

    landmarks: Any = None
    tol: float = static(default=0.02)
    steps: int = static(default=200)
    probes: int | None = static(default=None)
    dtype: Any = static(default=None)
    key: PRNGKeyArray | None = None

    def __post_init__(self):
        check_whole("steps", self.steps)
        if self.probes:
            check_whole("probes", self.probes)
        if self.probes in (1, 2):
            raise ValueError(
                f"probes must be 0, or at least 3 for a standard error, and is {self.probes}"
            )
        if not 0 < self.tol < 1:
            raise ValueError(f"tol must be a number between 0 and 1, and is {self.tol!r}")
        if self.dtype not in (None, "float32", "float64"):
            raise ValueError(
                f"dtype must be 'float32' or 'float64', or None for that of X: found {self.dtype!r}"
            )

    def prepare(
        self, kernel: Any, rows: Any, weights: Weights, progress: bool = False
    ) -> "Iterative":
        """Return the solver with landmarks for its preconditioner, by default `enough` of them."""
        wanted = self.enough(rows.count) if self.landmarks is None else self.landmarks
        chosen = resolve_landmarks(kernel, rows, wanted, weights, progress)
        return replace(self, landmarks=chosen)

    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Make the solution, whose factor iterates when it is asked for results at some λ."""
        rows = data.rows
        weights = data.weights
        fixed = data.fixed
        if self.dtype == "float64" and rows.dtype != jnp.float64:
            raise ValueError(
                f"dtype must not be wider than that of X, {rows.dtype}, and is 'float64': leave it "
                "out, or give X in float64"
            )
        rows.dense()  # raises where they are not in memory
        n = rows.shape[0]
        dtype = jnp.dtype(self.dtype or rows.dtype)
        H = weights.scale(fixed.basis(fixed.values, n))
        narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), kernel)
        parts = rows.points, weights.root, H, self.landmarks.points
        near = Near.of(narrow, *(part.astype(dtype) for part in parts))
        floor = rounding_of_products(near.B).astype(rows.dtype)
        report = Report("iterative", floor, None)
        factor = IterativeGram(
            data=data,
            kernel=kernel,
            expansion=AtPoints(rows.points),
            near=near,
            report=report,
            signs=self.signs(weights),
            iteration=self,
            block_size=block_size,
        )
        return factor.solve_labels(labels)

    def memory(self, shape: CallShape) -> Footprint:
        """Return the memory of rows of landmarks, blocks of near rows, and vectors."""
        n = shape.rows
        landmarks = self.landmarks
        m = self.enough(n) if landmarks is None else Subset(landmarks).count
        numbers = 4 * n * m + 3 * m**2 + self.vector_numbers(shape, 16)
        words = "rows of landmarks, blocks of near rows, and vectors for targets and probes"
        return Footprint("iterative", m, numbers, words, points=n)

    def vector_numbers(self, shape: CallShape, each: int) -> int:
        """Return how many numbers the vectors over the rows hold.

        `each` is the count of vectors for each column that is solved for.
        """
        t = shape.targets
        p = self.vectors(shape.rows)
        return shape.rows * (each * (t + p) + p**2 + shape.lams * t * p)

    def explain(self, run: Run, remedy: str = "more landmarks, or a larger λ") -> str:
        """Say why the iteration stopped, with its error in units of the residuals of the fit."""
        where = "with fitted values off by {:.0%} of the residuals".format
        narrow = "float32" in (self.dtype, run.residuals.dtype)
        return run.why(where, remedy + (", or float64" if narrow else ""))

    def enough(self, n: int) -> int:
        """Return the default number of landmarks for n rows."""
        return min(n, 3000, math.ceil(10 * n**0.5))

    def vectors(self, n: int) -> int:
        """Return the number of probes for n rows."""
        return max(8, ENOUGH // n) if self.probes is None else self.probes

    def signs(self, weights: Weights) -> Float[Array, "n p"]:
        """Return the random signs (n, p), one column for each probe, with 0 for rows of weight 0.

        If there are at least as many probes as rows, return √n I, which gives the diagonal exactly.
        """
        n = weights.n
        dtype = weights.dtype
        probes = self.vectors(weights.n)
        if probes >= n:
            return n**0.5 * jnp.diag(weights.used.astype(dtype))
        key = jax.random.key(0) if self.key is None else self.key
        return jnp.where(weights.used[:, None], jax.random.rademacher(key, (n, probes), dtype), 0)


def rounding_of_products(B: Float[Array, "n m"]) -> Float[Array, ""]:
    """Return the floor of products with K: the λ below which their rounding dominates.

    No eigenvector is computed, so the rounding is that of one sum. Eigenvalues are at most ‖BᵀB‖.
    Products with 8 random vectors estimate this norm to some 25 %.
    """
    drawn = jax.random.normal(jax.random.key(0), (B.shape[1], 8), B.dtype)
    largest = jnp.linalg.norm(transposed_matmul(B, matmul(B, drawn))) / 8**0.5
    return 2 * float(jnp.finfo(B.dtype).eps) * largest


@pytree
class IterativeGram(ByProducts):
    """The factor of K̃ + λI by products alone.

    No matrix of n² numbers is stored. A λ costs some tens of products of K with a few columns.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, solver = jnp.linspace(0, 1, 30)[:, None], rls.Iterative(jnp.arange(0, 30, 5))
    >>> factor = jax.jit(lambda X: rls.factorize(rls.Gaussian(0.3), X, solver=solver))(X)
    >>> factor.route, factor.solve(jnp.sin(6 * X[:, 0])).coefficients(jnp.array([0.1])).coef.shape
    ('iterative', (1, 30, 1))
    """

    data: Data
    kernel: Kernel
    expansion: Expansion
    near: Near
    report: Report
    signs: Float[Array, "n p"]
    iteration: Iterative
    block_size: int | None = static()
    begin: Float[Array, "n k"] | None = None  # the columns with which an iteration begins

    def times_kernel(self, V: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """Compute K·V, with entries and products in the dtype that the user asked for."""
        kernel = self.near.kernel
        X = self.near.X
        narrow = V.astype(X.dtype)
        if self.shards > 1:
            product = kernel_times(kernel, X, X, narrow, self.block_size)
        else:
            product = square_times(kernel, X, narrow, self.block_size)
        return product.astype(self.dtype)

    def narrow_solver(self) -> Iterative | None:
        """Return the solver by products in float32, unless the user named a dtype or X has it."""
        has_default = self.iteration.dtype is None
        is_wide = self.dtype == jnp.float64
        return replace(self.iteration, dtype="float32") if has_default and is_wide else None

    def iterate(self, lam: Number, B: Float[Array, "n k"], signs: Float[Array, "n p"]) -> Iterated:
        """Compute the fits to B at λ. Residuals are λc̃, and λM⁻¹ approximates R."""
        inverse = self.near.inverse(jnp.maximum(lam, self.report.floor))
        X, run = self.solve_columns(lam, inverse, B)
        diagonal = lam * inverse.diagonal.astype(lam.dtype)
        return Iterated(
            columns=X,
            coef=self.weights.scale(X),
            residuals=lam * X,
            run=run,
            approximate_diagonal=jnp.clip(diagonal, jnp.finfo(lam.dtype).eps, 1),
            approximate_times_signs=lam * inverse(signs),
        )

    def solve_columns(
        self, lam: Number, inverse: ApproximateInverse, B: Float[Array, "n k"]
    ) -> tuple[Float[Array, "n k"], Run]:
        """Compute P̃ B at λ, and how the iteration went.

        Columns are NaN if their fitted values are too far off to be of use. If r is the residual of
        column b, its fitted values are off by K̃P̃r = r − λP̃r.
        """
        centred = partial(self.fixed.project, self.weights)

        def apply(V: Float[Array, "n k"]) -> Float[Array, "n k"]:
            K_V = self.weights.scale(self.times_kernel(self.weights.scale(centred(V))))
            return centred(K_V) + lam * V

        def measure(
            X: Float[Array, "n k"], R: Float[Array, "n k"], MR: Float[Array, "n k"]
        ) -> Float[Array, " k"]:
            off = jnp.linalg.norm(R - lam * MR, axis=0)
            return jnp.where(off == 0, 0, off / (lam * jnp.linalg.norm(X, axis=0)))

        X, run = self.conjugate_gradients(apply, centred(B), inverse, measure)
        # By rounding, steps add a part that `apply` projects out and `measure` does not see.
        return centred(X), run


SOLVERS_WITHOUT_K.append(Iterative)
