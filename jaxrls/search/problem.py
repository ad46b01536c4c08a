"""The problem: kernel, rows, labels, weights, intercept, criterion and landmarks, as `fit`, `tune`, `objective` and the doors share them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.left_out import loo
from jaxrls.criteria.losses import squared_error
from jaxrls.criteria.resolve import as_criterion, as_ranking
from jaxrls.factors.choose import check_kernel, solve
from jaxrls.factors.contract import Solution
from jaxrls.factors.free import Free
from jaxrls.factors.groups import Folds, check_rest
from jaxrls.factors.iterative import Iteration
from jaxrls.factors.landmarks import Landmarks, as_landmarks, check_evaluable, on_landmarks, without_trace
from jaxrls.factors.outcome import AnyCoefficients, Coefficients
from jaxrls.factors.slopes import holds_nothing, left_out_sum
from jaxrls.factors.smoother import Without
from jaxrls.factors.unpenalized import check_free
from jaxrls.factors.weights import Labels, Weights
from jaxrls.factors.within import solve_within
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import matmul, power_of_two, safe_sqrt
from jaxrls.models.intervals import Jackknife
from jaxrls.models.model import Model
from jaxrls.models.posterior import Sure, by_evidence
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import as_rows
from jaxrls.search.landmarks import landmarks as choose_landmarks
from jaxrls.support.checks import as_floats, check_finite, check_lams, check_targets, check_whole, is_concrete, values_unknown
from jaxrls.support.meshes import seen
from jaxrls.support.pytrees import pytree, static

ARRAYS = (jax.Array, np.ndarray, np.generic)


@pytree
class Problem:
    """All that a fit is made of but λ.

    >>> import numpy as np, jaxrls as rls
    >>> problem = rls.Problem.of(rls.Gaussian(1.0), np.eye(3, dtype=np.float32), [0.0, 1.0, 2.0])
    >>> problem.criterion.name, problem.solution().factor.route
    ('loo', 'gram')
    """

    kernel: Kernel
    rows: Rows
    Y: Float[Array, "n *t"]
    weights: Weights
    criterion: Criterion
    landmarks: Landmarks | None
    intercept: bool = static()
    block_size: int | None = static()
    iteration: Iteration | None = None
    keep_moments: bool = static(default=False)
    keep_variance: bool = static(default=False)
    keep_intervals: bool = static(default=False)
    queries: Folds | None = None  # each with a constant of its own
    free: Free | None = None  # columns without penalty, the intercept's among them
    conservative: float = static(default=0.0)  # how many standard errors above the smallest an error may be

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        X,
        Y,
        *,
        criterion: Any = loo,
        loss: Callable = squared_error,
        weights=None,
        intercept: bool = True,
        groups=None,
        validation=None,
        landmarks=None,
        block_size: int | None = None,
        iteration: Iteration | None = None,
        progress: bool = False,
        keep_moments: bool = False,
        keep_variance: bool = False,
        keep_intervals: bool = False,
        rank: bool = False,
        unpenalized=None,
    ) -> "Problem":
        """A problem from what a caller gives, shapes checked; arguments as in `fit`."""
        check_kernel(kernel)
        rows = as_rows(kernel, X)
        if landmarks is not None and not keep_moments:
            kernel, rows = on_landmarks(kernel, rows)
        Y = rows.column(as_floats("Y", labels_of(rows, Y), rows.dtype))
        check_targets("Y", Y, rows.shape[0])
        queries = None
        if rank:
            measured, queries = as_ranking(criterion, loss, groups, validation, rows, Y)
            check_rankable(queries, rows, intercept, iteration, keep_moments or keep_variance or keep_intervals)
        else:
            measured = as_criterion(criterion, loss, groups, validation, rows, Y)
        weights = Weights.of_rows(weights, rows)
        chosen = resolve_landmarks(kernel, rows, landmarks, weights, progress)
        keeps = keep_moments, keep_variance, keep_intervals
        free = None if unpenalized is None else Free.of(unpenalized, weights, intercept)
        if free is not None:
            check_freeable(rank, validation is not None, keep_variance or keep_intervals)
            check_free(rows, None, keep_moments)
        intercept = intercept and queries is None and free is None
        return cls(kernel, rows, Y, weights, measured, chosen, intercept, block_size, iteration, *keeps, queries, free)

    def check(self) -> "Problem":
        """Itself, after every check that needs values, with Python floats in the kernel as arrays: a given and a tuned width share a program."""
        Y, v = self.Y, self.weights.values
        self.rows.check(self.kernel)
        self.criterion.check(self.kernel)
        if self.landmarks is not None:
            self.kernel.check(self.landmarks.points)
        check_range(Y)
        used = len(Y) if v is None or not is_concrete(v) else int(seen(lambda xp, v: xp.count_nonzero(v > 0), v))
        if self.intercept and used < 2:
            raise ValueError(
                f"X has {used} row{'s' * (used != 1)} of positive weight: leaving one out with an intercept takes two, or intercept=False"
            )
        if self.intercept and self.criterion.groups is not None:
            check_rest(self.weights, self.criterion.groups)
        if self.free is not None and not self.criterion.keeps_all_rows:
            self.free.check_rest(self.criterion.groups)
        self.criterion.check_rows(Y, self.weights, self.rows.count)
        dtype = self.rows.dtype
        return replace(self, kernel=jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if isinstance(leaf, float) else leaf, self.kernel))

    def astype(self, dtype) -> "Problem":
        """The same problem with every array of numbers in another dtype; Python numbers in the kernel stay."""

        def cast(leaf):
            if isinstance(leaf, Weights):
                return Weights.of(None if leaf.values is None else leaf.values.astype(dtype), leaf.n, dtype)
            return jnp.asarray(leaf, dtype) if isinstance(leaf, ARRAYS) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return jax.tree.map(cast, self, is_leaf=lambda leaf: isinstance(leaf, Weights))

    def in_units(self) -> "tuple[Problem, Any]":
        """The same problem with labels divided by a power of two, at which they are near 1 and their squares in range, and that unit.

        Nothing is rounded, so that λ is the same, and errors are to be multiplied by unit^degree.
        """
        unit = unit_of(self.criterion, self.Y)
        return replace(self, Y=self.Y / unit, criterion=self.criterion.in_units(unit)), unit

    def without_free(self) -> "Problem":
        """With a constant in place of columns without penalty, and labels less what those fit of them: near it, to begin a search with."""
        if self.free is None:
            return self
        labels = self.free.labels(self.Y)
        return replace(self, Y=labels.drop_axis(labels.Y - labels.mean), intercept=True, free=None)

    def out_of_units(self, error, unit):
        """An error of the problem in units as one of this problem."""
        return out_of_units(self.criterion, error, unit)

    def sample(self) -> tuple[Any, Any, Any]:
        """X, Y and the weights of the rows to try things on: all of them, where X is one array on one device."""
        drawn, X = self.rows.candidates()
        return (X, self.Y, self.weights.values) if drawn is None else (X, self.Y[drawn], self.weights.some(drawn))

    @property
    def traceable(self) -> bool:
        """Whether it can go into `jax.jit`: all of its rows, and those of its criterion."""
        return self.rows.traceable and self.criterion.traceable

    def solution(self, route: str | None = None) -> Solution:
        """The factor with the labels: the one hard step."""
        if self.queries is not None:
            options: dict = {"landmarks": self.landmarks, "route": route, "block_size": self.block_size}
            return solve_within(self.kernel, self.rows, self.Y, self.weights, self.queries, **options)
        labels = Labels.of(self.Y, self.weights, self.intercept) if self.free is None else self.free.labels(self.Y)
        options = {"landmarks": self.landmarks, "route": route, "block_size": self.block_size}
        options |= {"iteration": self.iteration, "keep_moments": self.keep_moments, "free": self.free}
        return solve(self.kernel, self.rows, labels, self.weights, self.intercept, **options)

    def errors(self, solution: Solution, lams) -> Float[Array, "L *t"]:
        """The criterion over λ, smaller better."""
        return self.criterion.errors(solution, lams, self.kernel)

    def error(self, lam) -> Float[Array, ""]:
        """The criterion at one λ, averaged over targets: differentiable in everything."""
        lam = as_floats("lam", lam, self.rows.dtype)
        if lam.shape != ():
            raise ValueError(f"lam must be one number, and has shape {lam.shape}")
        check_lams(lam, "lam")
        lam, (problem, unit) = jnp.asarray(lam), self.in_units()
        error = jnp.asarray(self.out_of_units(problem.mean_error(lam), unit))
        if not self.intercept or self.weights.values is None:
            return error
        return jnp.where(self.weights.count > 1, error, jnp.nan)  # what `check` refuses where values are known

    def mean_error(self, lam) -> Float[Array, ""]:
        """The criterion at one λ in its units, averaged over targets; on landmarks with the derivative of what is left out in closed form."""
        total, chosen = self.criterion.total, self.landmarks
        # On several devices that form moves blocks of rows between them; the derivative of every step does not.
        if (
            chosen is None
            or total is None
            or self.queries is not None
            or self.free is not None
            or not self.rows.traceable
            or self.rows.parts > 1
            or self._captures()
        ):
            return jnp.mean(self.errors(self.solution("cholesky"), lam[None]))

        def made(kernel, points, rest):
            return replace(rest, kernel=kernel, landmarks=replace(rest.landmarks, points=points)).solution("cholesky")

        kernel, points = jax.tree.map(jnp.asarray, (self.kernel, chosen.points))
        rest = replace(self, kernel=jax.lax.stop_gradient(kernel), landmarks=replace(chosen, points=jax.lax.stop_gradient(points)))
        return left_out_sum(made, total, kernel, points, lam, rest) / self.weights.total / self.Y[0].size

    def _captures(self) -> bool:
        """Whether the loss or the kernel is a function that holds what a caller differentiates."""
        Y, points = self.Y.reshape(len(self.Y), -1)[:1], self.landmarks.points[:1]  # type: ignore[union-attr]
        with values_unknown(f"criterion {self.criterion.name}, or its loss,"):
            pure = holds_nothing(self.criterion.total, Y, Y, Y[:, 0])  # type: ignore[arg-type]
        return not (pure and holds_nothing(lambda kernel, x: kernel(x, x), self.kernel, points))

    def sure(self, solution: Solution, lam, found: Coefficients, left_out) -> Sure:
        """What variances at one λ take, with its coefficients and what is left out of it."""
        factor, drop, weights = solution.factor, solution.labels.drop_axis, self.weights
        if not self.kernel.knows_diag:
            raise ValueError("keep_variance=True needs k(x, x) of new rows, which a kernel matrix cannot tell: leave it out")
        design = lambda x: matmul(factor.expansion.design(self.kernel, x), found.coef)  # noqa: E731
        fitted = self.rows.stored.map(design, temporaries=2 * len(found.coef), block_size=self.block_size)
        squares = weights.sum(left_out * (solution.labels.Y - fitted - found.intercept)) / lam / weights.count
        return Sure(lam, drop(by_evidence(solution, lam)), drop(safe_sqrt(squares)), factor.spread(lam))

    def jackknife(self, solution: Solution, lam, found: Coefficients, left_out) -> Jackknife:
        """What intervals take: every fit at these λ that leaves out a row, or a group where the criterion does, from the residuals left out."""
        factor, weights, groups = solution.factor, self.weights, self.criterion.groups

        def fits(lam, coef, intercept, e) -> Without:
            smoother = factor.smoother(lam)
            if groups is None:
                return smoother.without_rows(weights, lam, coef, intercept, e)
            return smoother.without_groups(weights, groups, coef, intercept, e)

        stacked = lam.ndim == 1
        columns = (lam, *(part.T[..., None] for part in (*found, left_out))) if stacked else (lam, *found, left_out)
        made = jax.lax.map(lambda each: fits(*each), columns) if stacked else fits(*columns)
        return Jackknife(made, factor.expansion, weights.count, solution.labels.flat, stacked)

    def model(self, solution: Solution, found: AnyCoefficients) -> Model:
        """The smallest model of coefficients at one λ."""
        points, coef = solution.factor.expansion.compact(self.kernel, found.coef)
        return Model(self.kernel, points, coef, *found[1:])


def largest(Y):
    """The largest of |y|."""
    return seen(lambda xp, Y: xp.abs(Y).max(), Y)[()]


def check_refinable(problem: Problem, landmarks, route: str | None, keeps: bool) -> None:
    """Raise for a problem that `refine` has no way with."""
    if landmarks is not None or route not in (None, "gram", "cholesky", "refined"):
        found = "landmarks= was given" if landmarks is not None else f"route is {route!r}"
        raise ValueError(f"refine=True is for K of all rows, and {found}: leave it out, or give float64 NumPy data")
    if problem.free is not None:
        raise ValueError(
            "unpenalized= goes with factors in the precision of X, and refine is True: leave it out, or give float64 NumPy data"
        )
    if keeps:
        raise ValueError(
            "refine=True keeps nothing beside the model: leave keep_moments, keep_variance and keep_intervals out, or give float64 NumPy data"
        )
    if not problem.rows.in_memory:
        raise ValueError(f"refine=True needs a dense X for K of all rows, and X is {type(problem.rows).__name__}")
    if not is_concrete(problem):
        raise ValueError("refine=True computes in float64 whatever jax.jit was traced in: call fit outside of it")


def check_freeable(rank: bool, held_out: bool, keeps: bool) -> None:
    """Raise for what columns without penalty do not go with, beside what factors say."""
    if rank:
        raise ValueError("unpenalized= goes with fits of labels, and rank=True fits their order: leave one of them out")
    if held_out:
        raise ValueError("unpenalized= goes with rows that are left out, and validation= has none of its columns: leave validation out")
    if keeps:
        raise ValueError("unpenalized= keeps nothing beside the model: leave keep_variance and keep_intervals out")


def check_rankable(queries: Folds | None, rows: Rows, intercept: bool, iteration, keeps: bool) -> None:
    """Raise for what fits of order do not go with."""
    if not intercept:
        raise ValueError("rank=True fits differences, in which a constant has no part, and intercept is False: leave intercept out")
    if queries is not None and not rows.in_memory:
        raise ValueError(f"rank=True with groups= needs a dense X in memory of one device, and X is {type(rows).__name__}")
    if queries is not None and (iteration is not None or keeps):
        raise ValueError(
            "rank=True with groups= keeps no moments, variances or intervals, and has no iteration: leave keep_moments, keep_variance, "
            "keep_intervals and iteration out"
        )


def resolve_landmarks(kernel: Kernel, rows: Rows, landmarks, weights: Weights, progress: bool = False) -> Landmarks | None:
    """`Landmarks` of what was given, checked where values are known; of a number, so many rows, the same ones every time."""
    if isinstance(landmarks, str):
        raise ValueError(f"landmarks must be a number, row numbers, points or what jaxrls.landmarks chose, and is {landmarks!r}")
    if landmarks is None:
        return None
    check_evaluable(kernel)
    if not isinstance(landmarks, int | np.integer) or isinstance(landmarks, bool):
        return without_trace(as_landmarks(rows, landmarks))
    check_whole("landmarks, as their number,", landmarks, rows.candidates()[1].shape[0])
    return choose_landmarks(kernel, rows, int(landmarks), key=jax.random.key(0), weights=weights.values, progress=progress)


def unit_of(criterion: Criterion, Y) -> Any:
    """The power of two by which labels are near 1, and 1 where errors are in no power of it: such a loss is to see the labels as they are."""
    if criterion.degree is None:
        return np.ones((), Y.dtype)[()]
    if not is_concrete(Y):
        return power_of_two(jnp.max(jnp.abs(Y)))
    most = largest(Y)
    exponent = np.frexp(most)[1] - 1 if 0 < most < np.inf else 0
    return np.ldexp(Y.dtype.type(1), max(exponent, np.finfo(Y.dtype).minexp))


def out_of_units(criterion: Criterion, error, unit):
    """An error of labels in units as one of labels: on the host where it is known, as devices round the smallest numbers to 0."""
    degree = criterion.degree or 0
    if is_concrete(error, unit):
        with np.errstate(over="ignore"):
            return (np.asarray(error, np.float64) * float(unit) ** degree).astype(error.dtype)
    return error * unit**degree


def check_range(Y) -> None:
    """Raise for labels that are not finite, or whose sums of squares would not be, where values are known."""
    check_finite("Y", Y)
    if is_concrete(Y) and largest(Y) > (float(np.finfo(Y.dtype).max) / len(Y)) ** 0.5:
        raise ValueError(f"Y holds {largest(Y):.3g}, and sums of squares overflow {Y.dtype}: divide Y by a scale")


def labels_of(rows: Rows, Y) -> Any:
    """Labels as given, or those that the rows bring."""
    if Y is None and rows.labels is None:
        raise ValueError(f"Y must be labels, one for each of the {rows.shape[0]} rows of X, which brings none of its own")
    return rows.labels if Y is None else Y
