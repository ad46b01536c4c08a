"""Solve the subset of regressors by conjugate gradients, if landmarks are too many for moments.

A step takes O(n m), while the moments of all n rows would take O(n m²). The linear system is

    (Φ̃ᵀΦ̃ + λI) w = Φ̃ᵀ√v y,   Φ̃ = √v (K_TR L⁻ᵀ − its fit by the fixed effects),   K_RR = LLᵀ

The approximate inverse is that of S + λI. Here S is the moments of some of the rows, drawn with
equal probabilities. S is right along all directions that these rows determine, so few steps
suffice. The method follows FALKON: Rudi, Carratino and Rosasco 2017.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxrls.core.data import Data, DataBlock, Labels, Weights, gram, moments
from jaxrls.core.factors import AtPoints, CallShape, Expansion, Footprint, Report, Solution, Solver
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number, matmul, transposed_matmul
from jaxrls.core.support import check_whole, known_values, pytree, static
from jaxrls.iterative.by_products import ByProducts, Iterated
from jaxrls.iterative.conjugate import Run
from jaxrls.iterative.iterative import Iterative
from jaxrls.landmarks.cholesky import landmarks_rounding
from jaxrls.landmarks.dictionary import Dictionary, Jittered
from jaxrls.landmarks.named import solver_with_landmarks
from jaxrls.landmarks.points import Landmarks
from jaxrls.landmarks.solver import Subset

SAMPLED = 3  # rows in the approximate inverse, for each landmark


@pytree
class IterativeSubset(Solver):
    """The solver of the subset of regressors by conjugate gradients.

    `landmarks=` together with `Iterative()` makes it. A landmark that is a row of X stays when its
    row is held out.

    Args:
        landmarks: their number, row numbers, points, or `Landmarks`.
        iteration: how to iterate.
    """

    landmarks: Any
    iteration: Iterative

    @property
    def name(self) -> str:
        """The name of the solver that is used on landmarks."""
        return self.iteration.name

    def prepare(
        self, kernel: Any, rows: Any, weights: Weights, progress: bool = False
    ) -> "IterativeSubset":
        """Return the solver with `Landmarks` of these rows.

        If `landmarks` is a number, rows are drawn with equal probabilities. Other methods would
        keep n × m numbers.
        """
        rows.dense()  # raises where they are not in memory
        landmarks = self.landmarks
        if not isinstance(landmarks, Landmarks) and np.ndim(landmarks) == 0:
            check_whole("landmarks, as their number,", landmarks, rows.count)
            used = known_values(weights.count)
            most = rows.count if used is None else int(used)
            landmarks = drawn_rows(jax.random.key(0), weights, min(int(landmarks), most))
        return replace(self, landmarks=Subset(landmarks).prepare(kernel, rows, weights).landmarks)

    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Make the solution, with a preconditioner from the moments of some of the rows.

        These moments are taken about the exact fit of all rows by the fixed effects.
        """
        points = self.landmarks.points
        dictionary = Dictionary.of(kernel, points, gram(kernel, points))
        fixed = data.fixed
        m = len(dictionary.whitener)
        whitener = dictionary.whitener
        cross = lambda block: fixed.sums(block.b, block.weights.array, dictionary.design(block.x))
        cross = data.sum(cross, temporaries=m, block_size=block_size)
        fixed_fit = matmul(fixed.solve(cross), whitener)
        some, share = some_rows(data, SAMPLED * m)
        sums = moments(
            some,
            dictionary,
            left_over=dictionary.left_over,
            origin=fixed_fit,
            block_size=block_size,
        )
        second = share * sums.second
        trace = share * sums.trace
        floor = landmarks_rounding(dictionary, second, trace)
        report = Report("iterative subset", floor, jnp.zeros_like(floor), trace, dictionary.jitter)
        factor = IterativeLandmarks(
            data=data,
            kernel=kernel,
            expansion=AtPoints(dictionary.points),
            whitener=whitener,
            fixed_fit=fixed_fit,
            second=second,
            report=report,
            signs=self.iteration.signs(data.weights),
            iteration=self.iteration,
            block_size=block_size,
        )
        return factor.solve_labels(labels)

    def points(self, rows: Any) -> Any:
        """Return the points of the landmarks."""
        return self.landmarks.points

    def memory(self, shape: CallShape) -> Footprint:
        """Return the memory of the landmarks' matrices, of blocks of rows, and of vectors."""
        m = Subset(self.landmarks).count
        numbers = self.iteration.vector_numbers(shape, 4)
        words = "the landmarks' matrices, blocks of rows, and vectors for targets and probes"
        numbers += 6 * m**2 + shape.block(m)
        # Its width is that of the vectors, because no matrix of n·m numbers is stored.
        return Footprint("iterative subset", shape.targets, numbers, words, points=m)

    def explain(self, run: Run) -> str:
        """Say why the iteration stopped, with its error in units of the residuals of the fit."""
        return self.iteration.explain(run, "a larger λ")


def drawn_rows(key: PRNGKeyArray, weights: Weights, count: int) -> Array:
    """Draw the numbers of `count` rows of positive weight, with equal probabilities."""
    chances = weights.used.astype(weights.dtype)
    return jax.random.choice(key, weights.n, (count,), replace=False, p=chances)


def some_rows(data: Data, count: int) -> tuple[Data, Float[Array, ""]]:
    """Draw at most `count` rows.

    Return their data, and the factor by which their sums stand for those of all rows.
    """
    weights = data.weights
    count = min(count, data.weights.n)
    drawn = drawn_rows(jax.random.key(1), weights, count)
    some = Weights(weights.take(drawn), count, weights.dtype)
    rows = replace(data.rows, X=data.rows.take(drawn))
    fixed = replace(data.fixed, values=data.fixed.values_at(drawn))
    return Data(rows, some, fixed), weights.total / some.total


@pytree
class IterativeLandmarks(ByProducts, Jittered):
    """The factor on landmarks by products with K_TR alone. No matrix of n·m numbers is stored.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, solver = jnp.linspace(0, 1, 30)[:, None], rls.Iterative()
    >>> factor = rls.factorize(rls.Gaussian(0.3), X, landmarks=10, solver=solver)
    >>> factor.route, factor.solve(jnp.sin(6 * X[:, 0])).coefficients(jnp.array([0.1])).coef.shape
    ('iterative subset', (1, 10, 1))
    """

    data: Data
    kernel: Kernel
    expansion: Expansion
    whitener: Float[Array, "m m"]  # L⁻ᵀ
    fixed_fit: Float[Array, "q m"]  # the fit of φ by the fixed effects
    second: Float[Array, "m m"]  # Φ̃ᵀΦ̃, estimated from some of the rows
    report: Report
    signs: Float[Array, "n p"]
    iteration: Iterative
    block_size: int | None = static()
    begin: Float[Array, "m k"] | None = None

    @property
    def planes(self):
        """L⁻ᵀ, so that βₖ = planesₖ·w."""
        return self.whitener

    def gathered(self, of_block: Callable, added: Any = None) -> Float[Array, "m k"]:
        """Compute Φ̃ᵀ√v u with u = `of_block(block, ψ)`, where `added` is as for `Data.sum`.

        Each block ψ of K_TR is made only once.
        """

        def sums(block: DataBlock) -> tuple[Float[Array, "m k"], Float[Array, "q k"]]:
            psi = self.kernel(block.x, self.points)
            v = block.weights.array
            u = of_block(block, psi)
            return transposed_matmul(psi, v[:, None] * u), self.fixed.sums(block.b, v, u)

        hints = {"temporaries": len(self.whitener), "block_size": self.block_size}
        of_rows, of_fixed = self.data.sum(sums, added, **hints)
        return matmul(self.whitener.T, of_rows) - matmul(self.fixed_fit.T, of_fixed)

    def iterate(self, lam: Number, B: Float[Array, "n k"], signs: Float[Array, "n p"]) -> Iterated:
        """Compute the fits to B at λ, with a product by K_TR and one by its transpose a step."""
        weights = self.weights
        fixed = self.fixed
        B = fixed.project(weights, B)
        eye = jnp.eye(len(self.whitener), dtype=self.dtype)
        regularized = self.second + jnp.maximum(lam, self.report.floor) * eye
        root = jax.lax.linalg.cholesky(regularized, symmetrize_input=False)
        precondition = lambda R: jax.scipy.linalg.cho_solve((root, True), R)
        right = self.gathered(lambda block, psi: block.added, weights.unscale(B))

        def apply(W: Float[Array, "m k"]) -> Float[Array, "m k"]:
            coef = matmul(self.whitener, W)
            beta = matmul(self.fixed_fit, W)
            f = lambda block, psi: matmul(psi, coef) - fixed.fitted(block.b, beta)
            return self.gathered(f) + lam * W

        measure = self.measure(lam, B, right)
        W, run = self.conjugate_gradients(apply, right, precondition, measure)
        coef = matmul(self.whitener, W)
        f = self.times_kernel(coef) - fixed.fitted(fixed.values, matmul(self.fixed_fit, W))
        return Iterated(columns=W, coef=coef, residuals=B - weights.scale(f), run=run)

    def measure(self, lam: Number, B: Float[Array, "n k"], right: Float[Array, "m k"]) -> Callable:
        """Return a function that measures how far fitted values are off.

        The measure is a share of the residuals. Let r be the residual of Φ̃ᵀb in the linear system,
        and let Mr be the error of w. Then:

        * The squared error of the fitted values is rᵀMr − λ‖Mr‖².
        * The squared length of the residuals is ‖b‖² − wᵀ(Φ̃ᵀb + r + λw).
        """
        whole = jnp.sum(B * B, axis=0)
        eps = jnp.finfo(B.dtype).eps

        def share(
            W: Float[Array, "m k"], R: Float[Array, "m k"], MR: Float[Array, "m k"]
        ) -> Float[Array, " k"]:
            off = jnp.sum(MR * (R - lam * MR), axis=0)
            left = whole - jnp.sum(W * (right + R + lam * W), axis=0)
            # NaN, of a preconditioner that failed, is not 0.
            return jnp.where(off <= 0, 0, jnp.sqrt(off / jnp.maximum(left, eps * whole)))

        return share


@solver_with_landmarks.register
def _(solver: Iterative, landmarks: Any, leave: bool) -> Solver:
    """Make the solver on landmarks. Raise if `Iterative()` has landmarks or a dtype of its own."""
    if solver.landmarks is not None or solver.dtype is not None:
        raise ValueError(
            "with landmarks= Iterative() takes neither landmarks nor a dtype of its own, and is "
            f"given {'landmarks' if solver.dtype is None else 'dtype'}: leave it out"
        )
    return IterativeSubset(landmarks, solver)
