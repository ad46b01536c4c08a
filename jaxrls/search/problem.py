"""The problem: kernel, rows, labels, weights, intercept, criterion and landmarks, as `fit`, `tune`,
`objective` and the doors share them.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.left_out import loo
from jaxrls.criteria.named import as_criterion
from jaxrls.factors.contract import Coefficients, Solution, Solver
from jaxrls.factors.iterative import Iterative
from jaxrls.factors.slopes import holds_nothing, left_out_sum
from jaxrls.factors.solvers import Cholesky, Spectral, check_kernel, check_solver
from jaxrls.kernels.kernel import Kernel
from jaxrls.models.model import Model
from jaxrls.problem.fixed_effects import FixedEffects, as_fixed_effects
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
    solver: Solver | None = None
    conservative: float = static(default=0.0)  # standard errors above the smallest error

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        X,
        Y,
        *,
        criterion: Any = loo,
        groups=None,
        weights=None,
        intercept: bool = True,
        fixed_effects=None,
        landmarks=None,
        solver: Solver | None = None,
        block_size: int | None = None,
        progress: bool = False,
    ) -> "Problem":
        """A problem from what a caller gives, shapes checked; arguments as in `fit`."""
        check_kernel(kernel)
        rows = as_rows(kernel, X)
        check_solver(solver)
        if landmarks is not None or isinstance(solver, Iterative):
            kernel, rows = on_landmarks(kernel, rows)
        Y = rows.column(as_floats("Y", labels_of(rows, Y), rows.dtype))
        check_targets("Y", Y, rows.shape[0])
        measured = as_criterion(criterion, groups).bind(Y, rows)
        weights = Weights.of_rows(weights, rows)
        chosen = resolve_landmarks(kernel, rows, landmarks, weights, progress)
        if isinstance(solver, Iterative):
            near = solver.enough(rows.count) if solver.landmarks is None else solver.landmarks
            near = resolve_landmarks(kernel, rows, near, weights, progress)
            solver = replace(solver, landmarks=near)
        fixed = as_fixed_effects(fixed_effects, intercept, weights, rows)
        return cls(kernel, rows, Y, weights, measured, chosen, fixed, block_size, solver)

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
            if isinstance(leaf, Weights):
                return Weights.of(
                    None if leaf.values is None else leaf.values.astype(dtype), leaf.n, dtype
                )
            return (
                jnp.asarray(leaf, dtype)
                if isinstance(leaf, ARRAYS) and jnp.issubdtype(leaf.dtype, jnp.floating)
                else leaf
            )

        made = jax.tree.map(cast, self, is_leaf=lambda leaf: isinstance(leaf, Weights))
        fixed = made.fixed.from_gram(made.fixed.gram(made.fixed.rows, made.weights.array))
        return replace(made, fixed=replace(fixed, rows=made.fixed.rows))  # T in the other dtype too

    def with_constant(self) -> "Problem":
        """With a constant in place of other fixed effects, and labels less what those fit of them:
        near it, to begin a search with.
        """
        if self.fixed.rows is None:
            return self
        labels = Labels.of(self.Y, self.weights, self.fixed)
        Y = labels.drop_axis(labels.Y - labels.mean)
        return replace(self, Y=Y, fixed=FixedEffects.constant(self.weights.total))

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

    def solution(self, solver: Solver | None = None) -> Solution:
        """The factor with the labels, by its own solver or another: the one hard step."""
        made: Any = solver or self.solver or Spectral()
        data = Labels.of(self.Y, self.weights, self.fixed), self.weights, self.fixed
        options: dict = {"landmarks": self.landmarks, "block_size": self.block_size}
        return made.solve(self.kernel, self.rows, *data, leave=True, **options)

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
            return jnp.mean(self.errors(self.solution(Cholesky()), lam[None]))

        def made(kernel, points, rest):
            return replace(
                rest, kernel=kernel, landmarks=replace(rest.landmarks, points=points)
            ).solution(Cholesky())

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

    def model(self, solution: Solution, found: Coefficients) -> Model:
        """The smallest model of coefficients at one λ."""
        points, coef = solution.factor.expansion.compact(self.kernel, found.coef)
        effects = None if found.free is None else self.fixed.lean()
        return Model(self.kernel, points, coef, found.intercept, found.free, effects)


def check_refinable(problem: Problem) -> None:
    """Raise for a problem that `Refined` has no way with."""
    if problem.landmarks is not None or not problem.rows.in_memory:
        found = "landmarks=" if problem.landmarks is not None else type(problem.rows).__name__
        raise ValueError(
            f"Refined() is for K of all rows of a dense X, and {found} was given: leave it out, or "
            "give float64 NumPy data"
        )
    if not is_concrete(problem):
        raise ValueError(
            "Refined() computes in float64 whatever jax.jit was traced in: call fit outside of it"
        )


def resolve_landmarks(
    kernel: Kernel, rows: Rows, landmarks, weights: Weights, progress: bool = False
) -> Landmarks | None:
    """`Landmarks` of what was given, checked where values are known; of a number, so many rows, the
    same ones every time.
    """
    if isinstance(landmarks, str):
        raise ValueError(
            "landmarks must be a number, row numbers, points or what jaxrls.landmarks chose, or in fit "
            f"'auto', and is {landmarks!r}"
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
