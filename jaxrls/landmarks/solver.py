"""Define `Subset`, the solver that `landmarks=` of public calls stands for.

It chooses the landmarks and states how much memory they take. It makes a spectrum or, for
derivatives, Cholesky factors.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import Data, Labels, Weights, coef_near_fit, gram, moments
from jaxrls.core.factors import CallShape, Footprint, HeldOut, Solution, Solver
from jaxrls.core.fit import Problem
from jaxrls.core.kernels import IDENTITY, Kernel
from jaxrls.core.linalg import Number, tall_matmul
from jaxrls.core.support import pytree, static, values_unknown
from jaxrls.front import Guesses, SearchOptions, Tuned, descend_in_memory, search_kernel
from jaxrls.landmarks.choice import resolve_landmarks
from jaxrls.landmarks.cholesky import cholesky_on_landmarks
from jaxrls.landmarks.dictionary import Dictionary, keeps_rows, kept_features
from jaxrls.landmarks.growing import begins_on_few, search_in_stages
from jaxrls.landmarks.slopes import left_out_sum
from jaxrls.landmarks.spectrum import spectrum_on_landmarks


@pytree
class Subset(Solver):
    """A solver by the subset of regressors, a sum of kernel functions at landmarks alone.

    Args:
        landmarks: their number, row numbers, points, or `Landmarks`.
        cholesky: whether to make a Cholesky factor for each λ instead of a spectrum.
        leave: whether a landmark that is a row of X is held out with its row.
    """

    landmarks: Any
    cholesky: bool = static(default=False)
    leave: bool = static(default=True)

    @property
    def has_spectrum(self):  # type: ignore[override]
        """Whether the factor gives eigenvalues."""
        return not self.cholesky

    @property
    def name(self):
        """The name of the solver that is used on landmarks."""
        return "Cholesky" if self.cholesky else "Spectral"

    @property
    def count(self) -> int:
        """The number of landmarks."""
        points = getattr(self.landmarks, "points", self.landmarks)
        return np.shape(points)[0] if np.ndim(points) else int(points)

    def prepare(self, kernel: Any, rows: Any, weights: Weights, progress: bool = False) -> "Subset":
        """Return the solver with `Landmarks` of these rows."""
        chosen = resolve_landmarks(kernel, rows, self.landmarks, weights, progress)
        kernel.check(chosen.points)
        chosen = chosen if self.leave else replace(chosen, indices=None)
        return replace(self, landmarks=chosen)

    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Make the solution from moments of the landmarks' features, in one pass over the rows.

        The landmarks have a trace residual only if `prepare` chose them, by these rows.
        """
        chosen = self.landmarks
        rows = data.rows
        K = gram(kernel, chosen.points)
        dictionary = Dictionary.of(kernel, chosen.points, K)
        corner = tall_matmul(K, dictionary.whitener)  # φ of the landmarks
        kept = None if self.cholesky else kept_features(dictionary, rows, block_size)
        features = rows.through(dictionary) if kept is None else rows.like(kept)
        of_features = replace(data, rows=features)
        near_fit = coef_near_fit_on_landmarks(of_features, corner, kept is not None)
        trace = None if self.cholesky else chosen.trace_residual
        left_over = dictionary.left_over if trace is None else None
        sums = moments(
            data,
            dictionary,
            labels.Y,
            kept=kept,
            left_over=left_over,
            origin=near_fit,
            label_origin=labels.beta,
            block_size=block_size,
        )
        if trace is not None:
            sums = replace(sums, trace=jnp.asarray(trace, rows.dtype))
        centred = sums.centred(data.fixed)
        if self.cholesky:
            return cholesky_on_landmarks(
                dictionary, data, centred, labels, chosen.indices, block_size
            )
        factor = spectrum_on_landmarks(dictionary, of_features, centred)
        solution = factor.with_rows(chosen.indices, corner).solve_moments(labels, centred)
        return replace(solution, summed=(dictionary, sums))

    def differentiable(self):
        """Return the solver by Cholesky factors on the same landmarks."""
        return replace(self, cholesky=True)

    def mean_error(self, problem: Problem, lam: Number) -> Number:
        """Return the criterion at one λ, averaged over targets.

        If the criterion is a mean of losses, the derivative has a closed form.
        """
        if not has_slopes(problem):
            return super().mean_error(problem, lam)
        kernel, chosen = jax.tree.map(jnp.asarray, (problem.kernel, self.landmarks))
        constant = jax.lax.stop_gradient((kernel, chosen))
        rest = replace(problem, kernel=constant[0], solver=replace(self, landmarks=constant[1]))

        def solve(kernel: Kernel, points: Any, rest: Any) -> Solution:
            moved = replace(rest.solver, landmarks=replace(rest.solver.landmarks, points=points))
            return replace(rest, kernel=kernel, solver=moved).solution()

        summand: Any = problem.criterion.summand
        summed = left_out_sum(solve, summand, kernel, chosen.points, lam, rest)
        return summed / problem.weights.total / problem.Y[0].size

    def points(self, rows: Any) -> Any:
        """Return the points of the landmarks."""
        return self.landmarks.points

    def memory(self, shape: CallShape) -> Footprint:
        """Return the memory of the landmarks' matrices, of blocks of rows, and of kept features."""
        n = shape.rows
        m = self.count
        kept = n * m * keeps_rows(n, m, jnp.dtype(shape.dtype).itemsize)
        if not self.cholesky:
            numbers = 8 * m**2 + shape.block(m) + kept
            words = "the landmarks' matrices and rows"
            return Footprint("subset", m, max(numbers, n * m), words)
        numbers = shape.twice * ((9 + 2 * shape.count_of_lams) * m**2 + 3 * shape.block(m) // 2)
        numbers = max(numbers + shape.gradient * kept, n * m)  # n·m: to choose landmarks
        words = "the landmarks' matrices and blocks of rows"
        return Footprint("cholesky landmarks", m, numbers, words)


@search_kernel.register
def _(
    solver: Subset, problem: Problem, guesses: Guesses, options: SearchOptions, grow: bool | None
) -> Tuned:
    """Search for the best kernel and λ, on landmarks chosen by the best kernel at the start.

    If the problem has many rows, the search runs in stages instead.
    """
    if begins_on_few(problem, solver.count, grow):
        return search_in_stages(problem, solver, guesses, options)
    chooses = replace(problem, kernel=guesses.best.kernel)
    return descend_in_memory(chooses.prepare(options.progress), guesses, options)


def coef_near_fit_on_landmarks(data: Data, corner: Float[Array, "m m"], kept: bool) -> Any:
    """Return a point near the fit of φ by the fixed effects, (q, m), as `coef_near_fit` does.

    For an intercept alone it is the mean of φ over the landmarks, which saves a pass over the rows.
    It is `coef_near_fit` itself if there are other fixed effects, or if φ of all rows is kept and
    the rows have weights. It is None without fixed effects.
    """
    known = kept and data.weights.values is not None
    if data.fixed.only_intercept and not known:
        return jnp.mean(corner, axis=0)[None]
    return jax.lax.stop_gradient(coef_near_fit(data, IDENTITY))


def has_slopes(problem: Problem) -> bool:
    """Whether `left_out_sum` knows the derivative of this problem. Four conditions must hold:

    * The criterion is a sum of losses over rows.
    * There are no fixed effects but an intercept.
    * The rows are arrays on one device. On several devices `left_out_sum` would move blocks of rows
      between them, which the derivative of every single step does not.
    * Neither the loss nor the kernel is a function that closes over an array which the caller
      differentiates.
    """
    summand = problem.criterion.summand
    rows = problem.rows
    fixed = problem.fixed
    if summand is None or fixed.are_given or not rows.traceable or rows.shards > 1:
        return False
    labels = problem.Y.reshape(len(problem.Y), -1)[:1]
    points = problem.solver.landmarks.points[:1]  # type: ignore[union-attr]
    loss = lambda kernel, x, y: summand(HeldOut(kernel(x, x) + y, None, y, y[:, 0]))
    with values_unknown(f"criterion {problem.criterion.name}, or its loss,"):
        return not jax.closure_convert(loss, problem.kernel, points, labels)[1]
