"""The problem: kernel, rows, labels, weights, intercept, criterion and landmarks, as `fit`, `tune`,
`objective` and the doors share them.
"""

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
from jaxrls.criteria.resolve import as_criterion
from jaxrls.factors.choose import check_kernel, solve
from jaxrls.factors.contract import Coefficients, Solution
from jaxrls.factors.iterative import Iteration
from jaxrls.factors.slopes import holds_nothing, left_out_sum
from jaxrls.kernels.kernel import Kernel
from jaxrls.leave_out.without import Without
from jaxrls.linalg.products import safe_sqrt
from jaxrls.models.intervals import Jackknife
from jaxrls.models.model import Model
from jaxrls.models.posterior import Sure, by_evidence
from jaxrls.problem.fixed_effects import FixedEffects, Intercept, NoEffects, as_fixed_effects
from jaxrls.problem.labels import Labels
from jaxrls.problem.landmarks import (
    Landmarks,
    as_landmarks,
    check_evaluable,
    on_landmarks,
    without_trace,
)
from jaxrls.problem.weights import Weights
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import as_rows
from jaxrls.search.landmarks import landmarks as choose_landmarks
from jaxrls.support.checks import (
    as_floats,
    check_lams,
    check_range,
    check_ratio,
    check_targets,
    check_whole,
    is_concrete,
    values_unknown,
)
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
    fixed: FixedEffects
    block_size: int | None = static()
    iteration: Iteration | None = None
    keep_moments: bool = static(default=False)
    keep_variance: bool = static(default=False)
    keep_intervals: bool = static(default=False)
    conservative: float = static(
        default=0.0
    )  # how many standard errors above the smallest an error may be

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
        fixed_effects=None,
    ) -> "Problem":
        """A problem from what a caller gives, shapes checked; arguments as in `fit`."""
        check_kernel(kernel)
        rows = as_rows(kernel, X)
        if landmarks is not None and not keep_moments:
            kernel, rows = on_landmarks(kernel, rows)
        Y = rows.column(as_floats("Y", labels_of(rows, Y), rows.dtype))
        check_targets("Y", Y, rows.shape[0])
        measured = as_criterion(criterion, loss, groups, validation, rows, Y)
        weights = Weights.of_rows(weights, rows)
        chosen = resolve_landmarks(kernel, rows, landmarks, weights, progress)
        fixed = as_fixed_effects(fixed_effects, intercept, weights, rows)
        if fixed.rows is not None and validation is not None:
            raise ValueError(
                "fixed_effects= goes with rows that are left out, and validation= has none of its "
                "own: leave validation out"
            )
        keeps = keep_moments, keep_variance, keep_intervals
        problem = kernel, rows, Y, weights, measured, chosen, fixed
        return cls(*problem, block_size, iteration, *keeps)

    @property
    def intercept(self) -> bool:
        """Whether a constant is fitted without penalty."""
        return self.fixed.one is not None

    def check(self) -> "Problem":
        """Itself, after every check that needs values, with Python floats in the kernel as arrays:
        a given and a tuned width share a program.
        """
        Y, v = self.Y, self.weights.values
        self.rows.check(self.kernel)
        self.criterion.check(self.kernel)
        if self.landmarks is not None:
            self.kernel.check(self.landmarks.points)
        check_range("Y", Y)
        check_ratio(v)
        if not self.criterion.keeps_all_rows:
            self.fixed.check_rest(self.weights, self.criterion.groups)
        self.criterion.check_rows(Y, self.weights, self.rows.count)
        dtype = self.rows.dtype
        return replace(
            self,
            kernel=jax.tree.map(
                lambda leaf: jnp.asarray(leaf, dtype) if isinstance(leaf, float) else leaf,
                self.kernel,
            ),
        )

    def astype(self, dtype) -> "Problem":
        """The same problem with every array of numbers in another dtype; Python numbers in the
        kernel stay.
        """

        def cast(leaf):
            if isinstance(leaf, NoEffects):
                return NoEffects(jnp.dtype(dtype))
            if isinstance(leaf, Weights):
                return Weights.of(
                    None if leaf.values is None else leaf.values.astype(dtype), leaf.n, dtype
                )
            return (
                jnp.asarray(leaf, dtype)
                if isinstance(leaf, ARRAYS) and jnp.issubdtype(leaf.dtype, jnp.floating)
                else leaf
            )

        return jax.tree.map(cast, self, is_leaf=lambda leaf: isinstance(leaf, Weights | NoEffects))

    def with_constant(self) -> "Problem":
        """With a constant in place of other fixed effects, and labels less what those fit of them:
        near it, to begin a search with.
        """
        if self.fixed.rows is None:
            return self
        labels = Labels.of(self.Y, self.weights, self.fixed)
        Y = labels.drop_axis(labels.Y - labels.mean)
        return replace(self, Y=Y, fixed=Intercept(self.weights.total))

    def sample(self) -> tuple[Any, Any, Any]:
        """X, Y and the weights of the rows to try things on: all of them, where X is one array on
        one device.
        """
        drawn, X = self.rows.candidates()
        return (
            (X, self.Y, self.weights.values)
            if drawn is None
            else (X, self.Y[drawn], self.weights.some(drawn))
        )

    @property
    def traceable(self) -> bool:
        """Whether it can go into `jax.jit`: all of its rows, and those of its criterion."""
        return self.rows.traceable and self.criterion.traceable

    def solution(self, route: str | None = None) -> Solution:
        """The factor with the labels: the one hard step."""
        labels = Labels.of(self.Y, self.weights, self.fixed)
        options: dict = {"landmarks": self.landmarks, "route": route, "block_size": self.block_size}
        options |= {"iteration": self.iteration, "keep_moments": self.keep_moments}
        return solve(self.kernel, self.rows, labels, self.weights, self.fixed, **options)

    def errors(self, solution: Solution, lams) -> Float[Array, "L *t"]:
        """The criterion over λ, smaller better."""
        return self.criterion.errors(solution, lams, self.kernel)

    def error(self, lam) -> Float[Array, ""]:
        """The criterion at one λ, averaged over targets: differentiable in everything."""
        lam = as_floats("lam", lam, self.rows.dtype)
        if lam.shape != ():
            raise ValueError(f"lam must be one number, and has shape {lam.shape}")
        check_lams(lam, "lam")
        error = self.mean_error(jnp.asarray(lam))
        if not self.intercept or self.weights.values is None:
            return error
        return jnp.where(
            self.weights.count > 1, error, jnp.nan
        )  # what `check` refuses where values are known

    def mean_error(self, lam) -> Float[Array, ""]:
        """The criterion at one λ, averaged over targets; on landmarks with the
        derivative of what is left out in closed form.
        """
        total, chosen = self.criterion.total, self.landmarks
        # On several devices that form moves blocks of rows between them; the derivative of every
        # step does not.
        if (
            chosen is None
            or total is None
            or self.fixed.rows is not None
            or not self.rows.traceable
            or self.rows.parts > 1
            or self._captures()
        ):
            return jnp.mean(self.errors(self.solution("cholesky"), lam[None]))

        def made(kernel, points, rest):
            return replace(
                rest, kernel=kernel, landmarks=replace(rest.landmarks, points=points)
            ).solution("cholesky")

        kernel, points = jax.tree.map(jnp.asarray, (self.kernel, chosen.points))
        rest = replace(
            self,
            kernel=jax.lax.stop_gradient(kernel),
            landmarks=replace(chosen, points=jax.lax.stop_gradient(points)),
        )
        return (
            left_out_sum(made, total, kernel, points, lam, rest)
            / self.weights.total
            / self.Y[0].size
        )

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
            raise ValueError(
                "keep_variance=True needs k(x, x) of new rows, which a kernel matrix cannot tell: leave it out"
            )
        r = solution.training_residuals(lam.reshape(1, 1))[0]
        squares = jnp.sum(weights.scale(left_out) * r, axis=0) / lam / weights.count
        scales = drop(by_evidence(solution, lam)), drop(safe_sqrt(squares))
        return Sure(lam, *scales, factor.spread(lam))

    def jackknife(self, solution: Solution, lam, found: Coefficients, left_out) -> Jackknife:
        """What intervals take: every fit at these λ that leaves out a row, or a group where the
        criterion does, from the residuals left out.
        """
        factor, weights, groups = solution.factor, self.weights, self.criterion.groups

        def fits(lam, coef, e) -> Without:
            smoother = factor.smoother(lam)
            if groups is None:
                return smoother.without_rows(weights, lam, coef, e)
            return smoother.without_folds(weights, groups, coef, e)

        coef = jnp.concatenate([found.coef, factor.fixed.joined(found.intercept, found.free)])
        stacked = lam.ndim == 1
        columns = lam, *(part.T[..., None] if stacked else part for part in (coef, left_out))
        made = jax.lax.map(lambda each: fits(*each), columns) if stacked else fits(*columns)
        fixed, flat = self.fixed.lean(), solution.labels.flat
        return Jackknife(made, factor.expansion, fixed, weights.count, flat, stacked)

    def model(self, solution: Solution, found: Coefficients) -> Model:
        """The smallest model of coefficients at one λ."""
        points, coef = solution.factor.expansion.compact(self.kernel, found.coef)
        effects = None if found.free is None else self.fixed.lean()
        return Model(self.kernel, points, coef, found.intercept, found.free, effects)


def check_refinable(problem: Problem, landmarks, route: str | None, keeps: bool) -> None:
    """Raise for a problem that `refine` has no way with."""
    if landmarks is not None or route not in (None, "gram", "cholesky", "refined"):
        found = "landmarks= was given" if landmarks is not None else f"route is {route!r}"
        raise ValueError(
            f"refine=True is for K of all rows, and {found}: leave it out, or give float64 NumPy data"
        )
    if keeps:
        raise ValueError(
            "refine=True keeps nothing beside the model: leave keep_moments, keep_variance and keep_intervals out, or give float64 NumPy data"
        )
    if not problem.rows.in_memory:
        raise ValueError(
            f"refine=True needs a dense X for K of all rows, and X is {type(problem.rows).__name__}"
        )
    if not is_concrete(problem):
        raise ValueError(
            "refine=True computes in float64 whatever jax.jit was traced in: call fit outside of it"
        )


def resolve_landmarks(
    kernel: Kernel, rows: Rows, landmarks, weights: Weights, progress: bool = False
) -> Landmarks | None:
    """`Landmarks` of what was given, checked where values are known; of a number, so many rows, the
    same ones every time.
    """
    if isinstance(landmarks, str):
        raise ValueError(
            f"landmarks must be a number, row numbers, points or what jaxrls.landmarks chose, and is {landmarks!r}"
        )
    if landmarks is None:
        return None
    check_evaluable(kernel)
    if not isinstance(landmarks, int | np.integer) or isinstance(landmarks, bool):
        return without_trace(as_landmarks(rows, landmarks))
    check_whole("landmarks, as their number,", landmarks, rows.candidates()[1].shape[0])
    return choose_landmarks(
        kernel,
        rows,
        int(landmarks),
        key=jax.random.key(0),
        weights=weights.values,
        progress=progress,
    )


def labels_of(rows: Rows, Y) -> Any:
    """Labels as given, or those that the rows bring."""
    if Y is None and rows.labels is None:
        raise ValueError(
            f"Y must be labels, one for each of the {rows.shape[0]} rows of X, which brings none of its own"
        )
    return rows.labels if Y is None else Y
