"""The problem: kernel, rows, labels, weights, intercept, criterion and solver, as `fit`, `tune`,
`objective`, the estimators and the command line share them.
"""

from dataclasses import replace
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria import Criterion, as_criterion, loo
from jaxrls.core.data import (
    Data,
    DenseRows,
    FixedEffects,
    Labels,
    Rows,
    Weights,
    as_fixed_effects,
    as_rows,
    common_size,
    compiled,
    pad_rows,
)
from jaxrls.core.factors import Cholesky, Solution, Solver, Spectral, choose_route, named_solver
from jaxrls.core.kernels import NAMED, Kernel, Standardized, check_kernel, columns_by_number
from jaxrls.core.linalg import matmul, safe_sqrt
from jaxrls.core.support import (
    arrays_alone,
    as_floats,
    as_lam,
    by_names,
    check_labels,
    check_ratio,
    check_scale,
    check_targets,
    column_names,
    is_concrete,
    on_device,
    pytree,
    static,
    warn,
)
from jaxrls.front.start import from_median

# The share of the standard deviation of labels that rounding may take; and labels whose squares
# stay within float32.
ROUNDED_SHARE = 1e-5
SMALLEST_SPREAD = 1e-9
LARGEST_LABEL = 1e18


@pytree
class Problem:
    """Everything that defines a fit, except λ; build one with `Problem.of`.

    Args:
        kernel: a jaxrls kernel.
        rows: the n rows of X, as `Rows`.
        weights: their weights.
        fixed: the columns without penalty, the intercept among them.
        Y: labels (n,) or (n, t).
        criterion: what λ is chosen by.
        block_size: rows at a time, None to choose by memory.
        solver: how to factor, None for `Spectral()`.
        label_offset: what was taken off the labels, (t,) or (), where rounding would lose much.

    >>> from jaxrls import extend
    >>> import numpy as np, jaxrls as rls
    >>> problem = extend.Problem.of(rls.Gaussian(1.0), np.eye(3, dtype=np.float32), [0.0, 1.0, 2.0])
    >>> problem.criterion.name, problem.solution().factor.route
    ('loo', 'gram')
    """

    kernel: Kernel
    rows: Rows
    weights: Weights
    fixed: FixedEffects
    Y: Float[Array, "n *t"]
    criterion: Criterion
    block_size: int | None = static()
    solver: Solver | None = None
    label_offset: Any = None

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
        estimates: bool = True,
    ) -> "Problem":
        """Build a problem from the arguments of `fit`, checking shapes, and values where they are
        known; call `prepare` before it is factored. With `estimates` false a criterion of the
        prior's variance takes it for 1, as on a factor, unless it was given.

        Parameters of the kernel take the dtype of the rows, so that a given width and a tuned one
        share a compiled program.

        Raises:
            ValueError: as `fit`.
        """
        kernel = NAMED.get(kernel, kernel) if isinstance(kernel, str) else kernel
        check_kernel(kernel)
        names = column_names(X)
        kernel = columns_by_number(kernel, names)
        landmarks = by_names("landmarks", landmarks, names)
        solver = named_solver(solver, landmarks)
        rows = as_rows(kernel, X)
        weights = Weights.of_rows(weights, rows)
        check_ratio(weights.values)
        criterion = as_criterion(criterion, groups)
        fixed = as_fixed_effects(fixed_effects, intercept, weights, rows.column)
        Y = rows.labels if Y is None else Y
        removable = fixed.intercept and criterion.ignores_offset
        offset = far_from_zero(Y, weights, fixed, removable)
        Y = read_labels(Y, rows, offset)
        if standardize:
            kernel = standardized(kernel, rows, weights)
        kernel = from_median(kernel, rows, weights)
        rows.check(kernel)
        criterion = criterion.match_columns(names, offset).bind(Y, rows)
        criterion = criterion.with_estimates() if estimates else criterion
        criterion.check(kernel)
        criterion.check_rank(fixed, weights)
        criterion.check_rows(Y, weights)
        kernel = _in_dtype(kernel, rows.dtype)
        return cls(kernel, rows, weights, fixed, Y, criterion, block_size, solver, offset)

    @property
    def explicit(self) -> int | None:
        """The number of the kernel's explicit features, None where it has none."""
        return self.kernel.num_features(self.rows.shape[1], self.rows.dtype)

    def prepare(self, progress: bool = False) -> "Problem":
        """The problem with what its solver chooses once, such as landmarks."""
        if self.solver is None:
            return self
        solver = self.solver.prepare(self.kernel, self.rows, self.weights, progress)
        return replace(self, solver=solver)

    def sample(self, count: int) -> tuple["Problem", np.ndarray]:
        """The problem on a sample of the rows, and their row numbers. An intercept takes the place
        of other fixed effects, and labels are minus what those fit.

        Args:
            count: how many rows to draw, at random with probabilities proportional to their
                weights; the same rows every time. With weights a row may be drawn several times,
                and counts as often; the mean weight of what is drawn is kept.

        Returns:
            The smaller problem, and the numbers (k,) of its rows in X.
        """
        numbers, X = self.rows.candidates()
        Y = self.Y
        v = self.weights.values
        fixed = self.fixed
        if fixed.values is not None:
            labels = Labels.of(Y, self.weights, fixed)
            Y = labels.drop_axis(labels.Y - labels.mean)
        numbers = np.arange(len(X)) if numbers is None else np.asarray(numbers)
        w = np.ones(len(X)) if v is None else np.asarray(v, np.float64)[numbers]
        drawn, w = sample(w, count, often=v is not None)
        X = on_device(np.asarray(X)[drawn])
        Y = on_device(np.asarray(Y)[numbers[drawn]])
        weights = Weights.of(None if v is None else w, len(drawn), X.dtype)
        fixed = FixedEffects.constant(weights.total) if fixed.count else fixed
        some = replace(self, rows=DenseRows(X), weights=weights, fixed=fixed, Y=Y)
        return some, numbers[drawn]

    def pad(self) -> "Problem":
        """The problem with rows of weight 0 at the end, up to one of a few numbers of rows, so that
        programs compiled for these serve others. It is unchanged if there are many rows, if they
        are committed to a device, or if the criterion or the fixed effects hold data of each row.
        """
        rows = self.rows
        n, d = self.rows.shape
        missing = common_size(n) - n
        usual = isinstance(self.solver, Spectral | Cholesky | None) and self.fixed.values is None
        usual = usual and self.criterion.fits_samples and type(rows) is DenseRows
        if not (missing and usual and is_concrete(self)) or rows.dense().committed:
            return self
        if len({choose_route(self.kernel, (k, d), rows.dtype) for k in (n, n + missing)}) > 1:
            return self
        more = lambda values, mode="edge": on_device(pad_rows(np.asarray(values), missing, mode))
        v = self.weights.values
        padded = v is None
        v = more(np.ones(n, rows.dtype) if padded else v, "constant")
        weights = Weights(v, n + missing, rows.dtype, padded)
        X = DenseRows(more(rows.dense()))
        return replace(self, rows=X, weights=weights, Y=more(self.Y))

    @property
    def traceable(self) -> bool:
        """Whether it can be passed into `jax.jit`: its rows, and those of its criterion, are
        arrays.
        """
        return self.rows.traceable and arrays_alone(self.criterion)

    @property
    def solver_or_default(self) -> Solver:
        """The solver, `Spectral()` where none was named."""
        return self.solver or Spectral()

    def solution(self) -> Solution:
        """Factor the rows and attach the labels: the one expensive step."""
        data = Data(self.rows, self.weights, self.fixed)
        labels = Labels.of(self.Y, self.weights, self.fixed)
        solver = self.solver_or_default
        solution = solver.solve(self.kernel, data, labels, block_size=self.block_size)
        return self.criterion.raise_floor(solution)

    def errors(self, solution: Solution, lams) -> Float[Array, "L *t"]:
        """The criterion at each λ, (L,) or (L, t); smaller is better."""
        return self.criterion.errors(solution, lams, self.kernel)

    def error(self, lam) -> Float[Array, ""]:
        """The criterion at one λ, averaged over targets, differentiable in everything."""
        solver = self.solver_or_default.differentiable()
        lam = as_lam(lam, self.rows.dtype)
        return criterion_error(solver, replace(self, solver=solver), lam)


@singledispatch
def criterion_error(solver: Solver, problem: Problem, lam) -> Float[Array, ""]:
    """`Problem.error` with a solver that is differentiable in everything; for solvers that have
    its derivative in closed form another function.
    """
    return jnp.mean(problem.errors(problem.solution(), lam[None]))


def _in_dtype(kernel: Kernel, dtype) -> Kernel:
    """The kernel with its real parameters in this dtype."""

    def cast(leaf):
        real = isinstance(leaf, int) or jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        if not real:
            return leaf
        known = not isinstance(leaf, jax.Array)
        return on_device(np.asarray(leaf, dtype)) if known else jnp.asarray(leaf, dtype)

    return jax.tree.map(cast, kernel)


def sample(weights, count, often):
    """At most so many places, drawn in proportion to their weights, and the weights for them; a
    place may be drawn `often`, and counts as often.
    """
    places = np.flatnonzero(weights)
    weights = weights[places]
    if count >= len(places):
        return places, weights
    chances = weights / weights.sum() if often else None
    drawn = np.random.default_rng(0).choice(places, count, replace=often, p=chances)
    places, times = np.unique(drawn, return_counts=True)
    return places, times * weights.mean()


def _known_float64(Y, weights) -> np.ndarray | None:
    """Labels of float64 in the right number, where their values are known."""
    if Y is None or not is_concrete(Y, weights):
        return None
    Y = np.asarray(as_floats("Y", Y))
    right = Y.dtype == np.float64 and Y.shape[:1] == (weights.n,) and Y.size
    return Y if right else None


def far_from_zero(
    Y, weights: Weights, fixed: FixedEffects | None = None, removable: bool = False
) -> np.ndarray | None:
    """The mean of float64 labels, rounded to float32, where the rows are in float32 and rounding
    labels so would lose more than `ROUNDED_SHARE` of what the fixed effects leave of them: 0 for
    other targets, and None where there is none. Warns of what is lost where the mean is not
    `removable`, or does not help.
    """
    Y = None if weights.dtype == np.float64 else _known_float64(Y, weights)
    if Y is None or not np.abs(Y).max() <= LARGEST_LABEL:  # NaN is refused later
        return None
    beyond = " beyond the fixed effects" if fixed and fixed.values is not None else ""
    v = None if weights.values is None else np.asarray(weights.values, np.float64)
    average = lambda A: np.average(A, axis=0, weights=v)
    mean = average(Y)
    left = _without_effects(Y, weights, fixed) if beyond else Y - average(Y)
    spread = np.sqrt(average(left**2))
    rounded = np.finfo(np.float32).eps * np.abs(mean)
    exact = np.finfo(np.float64).eps * np.abs(Y).max(axis=0)
    # Labels that are the same to rounding have nothing to lose.
    varies = (spread > 100 * exact) & (spread > SMALLEST_SPREAD)
    far = varies & (rounded > ROUNDED_SHARE * spread)
    offset = np.where(far & removable, mean.astype(np.float32), 0).astype(np.float64)
    rest = (Y if v is None else Y[v > 0]) - offset
    rounding = np.abs(rest.astype(np.float32) - rest).max(axis=0)
    loses = varies & (rounding > ROUNDED_SHARE * spread) & (far | bool(beyond))
    if loses.any():
        _warn_of_rounding(np.max(rounding), np.min(spread), beyond)
    return offset if offset.any() else None


def warn_of_far_labels(Y, weights: Weights) -> None:
    """Warn of labels far from 0 whose mean cannot be taken off."""
    far_from_zero(Y, weights)


def _warn_of_rounding(rounding, spread, beyond):
    remedy = "their fit" if beyond else "the mean of Y"
    warn(
        f"float32, the dtype of X, rounds labels by up to {rounding:.2g}, and they vary by "
        f"{spread:.2g}{beyond}: give X in float64, or take {remedy} off first"
    )


def _without_effects(Y, weights, fixed) -> np.ndarray:
    """What fixed effects leave of labels, in float64 by refinement."""
    left = Y.reshape(len(Y), -1)
    for _ in range(3):
        beta = fixed.fit(weights, jnp.asarray(left, weights.dtype))
        left = left - np.asarray(fixed.fitted(fixed.values, beta), np.float64)
    return left.reshape(Y.shape)


def read_labels(Y, rows, offset=None) -> Float[Array, "n *t"]:
    """Labels, less an offset, checked."""
    Y = Y if offset is None else np.asarray(Y, np.float64) - offset
    if Y is None:
        raise ValueError(
            f"Y must be labels, one for each of the {rows.shape[0]} rows of X, which brings "
            "none of its own"
        )
    Y = as_floats("Y", Y)
    check_scale("Y", Y, rows.dtype)  # before they are rounded to 0
    Y = rows.column(as_floats("Y", Y, rows.dtype))
    check_targets("Y", Y, rows.shape[0])
    check_labels("Y", Y)
    return Y


def standardized(kernel, rows, weights) -> Standardized:
    """The kernel of the standardized columns: minus their mean, and divided by their standard
    deviation, or by 1 for columns that are constant to rounding.
    """
    if not kernel.evaluable or not rows.is_dense:
        what = "sparse rows, which would be dense" if kernel.evaluable else "a kernel matrix"
        raise ValueError(f"standardize= is for columns of X, and X holds {what}: leave it out")
    return Standardized(kernel, *_moments(rows, weights))


@compiled
def _moments(rows, weights):
    """Mean and standard deviation of every column, from differences to one row, which are exactly 0
    in a constant column.
    """
    v = weights.array
    if weights.values is None:
        near = rows.few_rows(1)[0]
    else:
        heaviest = jax.nn.one_hot(jnp.argmax(v), len(v), dtype=v.dtype)
        near = rows.sum(lambda x, is_heaviest: matmul(is_heaviest, x), heaviest)
    sums = rows.sum(lambda x, v: matmul(v, jnp.stack([x - near, jnp.abs(x - near)])), v)
    mean, size = sums / weights.total
    size = jnp.where(size > 0, size, 1)  # the unit of squares, which may underflow in that of X
    squares = rows.sum(lambda x, v: matmul(v, ((x - near - mean) / size) ** 2), v)
    centre = near + mean
    scale = size * safe_sqrt(squares / weights.total)
    constant = scale <= jnp.finfo(v.dtype).eps * jnp.abs(centre)
    return centre, jnp.where(constant, 1, scale)
