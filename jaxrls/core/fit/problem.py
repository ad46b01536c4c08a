"""The problem: kernel, rows, labels, weights, intercept, criterion and landmarks, as `fit`, `tune`,
`objective`, the estimators and the command line share them.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria.criterion import Criterion
from jaxrls.core.criteria.standard import as_criterion, loo
from jaxrls.core.factors.cholesky_features import left_out_sum
from jaxrls.core.factors.contract import Solution, Solver
from jaxrls.core.factors.solvers import Cholesky, Spectral, check_solver, choose_route
from jaxrls.core.fit.start import from_median
from jaxrls.core.kernels.kernel import Kernel, Standardized
from jaxrls.core.kernels.named import NAMED, check_kernel
from jaxrls.core.linalg.products import matmul, safe_sqrt
from jaxrls.core.problem.compiled import common_size, compiled, padded
from jaxrls.core.problem.fixed_effects import FixedEffects, as_fixed_effects
from jaxrls.core.problem.labels import Labels
from jaxrls.core.problem.rows import DenseRows, Rows, as_rows
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.checks import (
    as_floats,
    as_lam,
    check_labels,
    check_ratio,
    check_targets,
    check_whole,
    is_concrete,
    on_device,
    values_unknown,
)
from jaxrls.core.support.pytrees import arrays_alone, pytree, static
from jaxrls.iterative.iterative import Iterative
from jaxrls.landmarks.choice import choose_landmarks
from jaxrls.landmarks.points import (
    Landmarks,
    as_landmarks,
    check_evaluable,
    check_kernel,
)


@pytree
class Problem:
    """Everything that defines a fit, except λ; build one with `Problem.of`.

    Args:
        kernel: a jaxrls kernel.
        rows: the n rows of X, as `Rows`.
        Y: labels (n,) or (n, t).
        weights: the sample weights, as `Weights`.
        criterion: what λ is chosen by.
        landmarks: `Landmarks`, or None to fit on all rows.
        fixed: the columns without penalty, the intercept among them.
        block_size: rows at a time, None to choose by memory.
        solver: how to factor, None for `Spectral()`.

    >>> from jaxrls import extend
    >>> import numpy as np, jaxrls as rls
    >>> problem = extend.Problem.of(rls.Gaussian(1.0), np.eye(3, dtype=np.float32), [0.0, 1.0, 2.0])
    >>> problem.criterion.name, problem.solution().factor.route
    ('loo', 'gram')
    """

    kernel: Kernel
    rows: Rows
    Y: Float[Array, "n *t"]
    weights: Weights
    criterion: Criterion
    landmarks: Landmarks | None
    fixed: FixedEffects
    block_size: int | None = static()
    solver: Solver | None = None

    @classmethod
    def of(
        cls,
        kernel: Any,
        X,
        Y,
        *,
        criterion: Any = loo,
        groups=None,
        weights=None,
        intercept: bool = True,
        fixed_effects=None,
        standardize: bool = False,
        landmarks=None,
        solver: Solver | None = None,
        block_size: int | None = None,
        progress: bool = False,
    ) -> "Problem":
        """Build a problem from the arguments of `fit`, checking shapes, and values where they are
        known.

        Parameters of the kernel take the dtype of the rows, so that a given width and a tuned one
        share a compiled program.

        Raises:
            ValueError: as `fit`.
        """
        kernel = NAMED.get(kernel, kernel) if isinstance(kernel, str) else kernel
        check_kernel(kernel)
        check_solver(solver)
        rows = as_rows(kernel, X)
        if landmarks is not None or isinstance(solver, Iterative):
            check_evaluable(kernel, rows)
        if Y is None and rows.labels is None:
            raise ValueError(
                f"Y must be labels, one for each of the {rows.shape[0]} rows of X, which brings "
                "none of its own"
            )
        Y = rows.column(as_floats("Y", rows.labels if Y is None else Y, rows.dtype))
        check_targets("Y", Y, rows.shape[0])
        check_labels("Y", Y)
        weights = Weights.of_rows(weights, rows)
        check_ratio(weights.values)
        if standardize:
            kernel = standardized(kernel, rows, weights)
        kernel = from_median(kernel, rows, weights)
        rows.check(kernel)
        criterion = as_criterion(criterion, groups).bind(Y, rows)
        criterion.check(kernel)
        landmarks = resolve_landmarks(kernel, rows, landmarks, weights, progress)
        if landmarks is not None:
            kernel.check(landmarks.points)
        if isinstance(solver, Iterative):
            near = solver.enough(rows.count) if solver.landmarks is None else solver.landmarks
            near = resolve_landmarks(kernel, rows, near, weights, progress)
            solver = replace(solver, landmarks=near)
        fixed = as_fixed_effects(fixed_effects, intercept, weights, rows)
        criterion.check_rest(fixed, weights)
        criterion.check_rows(Y, weights)

        def cast(leaf):
            real = isinstance(leaf, int) or jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            return jnp.asarray(leaf, rows.dtype) if real else leaf

        kernel = jax.tree.map(cast, kernel)
        return cls(kernel, rows, Y, weights, criterion, landmarks, fixed, block_size, solver)

    def padded(self) -> "Problem":
        """The same problem with rows of weight 0 at the end, up to one of a few sizes: programs
        compiled for it serve other numbers of rows. It is unchanged if there are many rows, if they
        are committed to a device, or if the criterion or the fixed effects hold data of each row.
        """
        rows, (n, d) = self.rows, self.rows.shape
        size = common_size(n)
        routes = {choose_route(self.kernel, count, d, rows.dtype) for count in (n, size)}
        # Rows that are committed to a device stay there.
        free = is_concrete(self) and type(rows) is DenseRows and not rows.dense().committed
        usual = isinstance(self.solver, Spectral | Cholesky | None) and self.criterion.of_some_rows
        usual &= self.landmarks is self.fixed.rows is None
        if n == size or len(routes) > 1 or not (free and usual):
            return self

        def more(a, mode="edge"):
            return on_device(padded(np.asarray(a), size - n, mode))

        v = self.weights.values
        each = more(np.ones(n, rows.dtype) if v is None else v, "constant")
        weights = Weights(each, size, rows.dtype)
        return replace(self, rows=DenseRows(more(rows.dense())), Y=more(self.Y), weights=weights)

    def some(self, count: int) -> tuple["Problem", np.ndarray]:
        """The problem on a sample of the rows, and their row numbers. An intercept takes the place
        of other fixed effects, and labels are minus what those fit.

        Args:
            count: how many rows to draw, at random with probabilities proportional to their
                weights; the same rows every time. With weights a row may be drawn several times,
                and counts as often; the mean weight of what is drawn is kept.

        Returns:
            The smaller problem, and the numbers (k,) of its rows in X.
        """
        drawn, X = self.rows.candidates()
        Y, v, fixed = self.Y, self.weights.values, self.fixed
        if fixed.rows is not None:
            labels = Labels.of(Y, self.weights, fixed)
            Y = labels.drop_axis(labels.Y - labels.mean)
        if drawn is not None:
            Y, v = Y[drawn], self.weights.some(drawn)
        w = np.ones(len(X)) if v is None else np.asarray(v, np.float64)
        rows, chances = np.flatnonzero(w), None if v is None else w[w > 0] / w.sum()
        w = w[rows]
        if count < len(rows):
            random, often = np.random.default_rng(0), v is not None
            rows = random.choice(rows, count, replace=often, p=chances)
            rows, times = np.unique(rows, return_counts=True)
            w = times * w.mean()
        X, Y = (on_device(np.asarray(part)[rows]) for part in (X, Y))
        weights = Weights.of(None if v is None else w, len(rows), X.dtype)
        fixed = FixedEffects.constant(weights.total) if fixed.count else fixed
        some = replace(self, rows=DenseRows(X), Y=Y, weights=weights, fixed=fixed)
        return some, rows if drawn is None else np.asarray(drawn)[rows]

    @property
    def explicit(self) -> int | None:
        """The number of the kernel's explicit features, None where it has none."""
        return self.kernel.num_features(self.rows.shape[1], self.rows.dtype)

    @property
    def traceable(self) -> bool:
        """Whether it can be passed into `jax.jit`: its rows, and those of its criterion, are
        arrays.
        """
        return self.rows.traceable and arrays_alone(self.criterion)

    def solution(self, solver: Solver | None = None) -> Solution:
        """Factor the rows and attach the labels, by `solver` or else the problem's own: the one
        expensive step.
        """
        made: Any = solver or self.solver or Spectral()
        return made.solve(
            self.kernel,
            self.rows,
            Labels.of(self.Y, self.weights, self.fixed),
            self.weights,
            self.fixed,
            landmarks=self.landmarks,
            block_size=self.block_size,
        )

    def errors(self, solution: Solution, lams) -> Float[Array, "L *t"]:
        """The criterion at each λ, (L,) or (L, t); smaller is better."""
        return self.criterion.errors(solution, lams, self.kernel)

    def error(self, lam) -> Float[Array, ""]:
        """The criterion at one λ, averaged over targets, differentiable in everything; on landmarks
        held-out residuals have a derivative in closed form.
        """
        lam = as_lam(lam, self.rows.dtype)
        if not self._has_slopes():
            return jnp.mean(self.errors(self.solution(Cholesky()), lam[None]))
        kernel, chosen = jax.tree.map(jnp.asarray, (self.kernel, self.landmarks))
        constant = jax.lax.stop_gradient((kernel, chosen))
        rest = replace(self, kernel=constant[0], landmarks=constant[1])

        def made(kernel, points, rest):
            landmarks = replace(rest.landmarks, points=points)
            return replace(rest, kernel=kernel, landmarks=landmarks).solution(Cholesky())

        total: Any = self.criterion.total
        total = left_out_sum(made, total, kernel, chosen.points, lam, rest)
        return total / self.weights.total / self.Y[0].size

    def _has_slopes(self) -> bool:
        """Whether `left_out_sum` has the derivatives: of losses on landmarks, unless the loss or
        the kernel is a function that holds what a caller differentiates.

        On several devices it moves blocks of rows between them; the derivative of every step does
        not."""
        total, chosen = self.criterion.total, self.landmarks
        if chosen is None or total is None or self.fixed.rows is not None:
            return False
        if not self.rows.traceable or self.rows.parts > 1:
            return False
        labels = self.Y.reshape(len(self.Y), -1)[:1]
        loss = lambda kernel, x, y: total(kernel(x, x) + y, y, y[:, 0])
        with values_unknown(f"criterion {self.criterion.name}, or its loss,"):
            return not jax.closure_convert(loss, self.kernel, chosen.points[:1], labels)[1]


def standardized(kernel: Kernel, rows: Rows, weights: Weights) -> Standardized:
    """The kernel of the standardized columns: minus their mean, and divided by their standard
    deviation, or by 1 for columns that are constant to rounding.
    """
    if not kernel.evaluable or not rows.is_dense:
        found = "sparse rows, which would be dense" if kernel.evaluable else "a kernel matrix"
        raise ValueError(f"standardize= is for columns of X, and X holds {found}: leave it out")
    return Standardized(kernel, *_moments(rows, weights))


@compiled
def _moments(rows: Rows, weights: Weights):
    """Mean and standard deviation of every column, from differences to one row, which are exactly 0
    in a constant column.
    """
    v = weights.array
    first = jax.nn.one_hot(jnp.argmax(v), len(v), dtype=v.dtype)
    one = rows.sum(lambda x, first: matmul(first, x), first)
    sums = rows.sum(lambda x, v: matmul(v, jnp.stack([x - one, jnp.abs(x - one)])), v)
    mean, size = sums / weights.total
    size = jnp.where(size > 0, size, 1)  # the unit of squares, which may underflow in that of X
    squares = rows.sum(lambda x, v: matmul(v, ((x - one - mean) / size) ** 2), v)
    centre, scale = one + mean, size * safe_sqrt(squares / weights.total)
    constant = scale <= jnp.finfo(v.dtype).eps * jnp.abs(centre)
    return centre, jnp.where(constant, 1, scale)


def resolve_landmarks(
    kernel: Kernel, rows: Rows, landmarks, weights: Weights, progress: bool = False
) -> Landmarks | None:
    """`Landmarks` of what the caller gave, checked where values are known; for a number, that many
    chosen rows, the same ones every time.
    """
    if landmarks is None:
        return None
    check_evaluable(kernel, rows)
    if isinstance(landmarks, Landmarks) or np.ndim(landmarks):
        return as_landmarks(rows, landmarks)
    most = rows.candidates()[1].shape[0]
    check_whole("landmarks, as their number, or 'auto' in fit,", landmarks, most)
    return choose_landmarks(
        kernel,
        rows,
        int(landmarks),
        key=jax.random.key(0),
        weights=weights.values,
        progress=progress,
    )
