"""The `Problem`: everything that defines a fit except λ.

All that `fit`, `tune` and `objective` compute follows from the problem and λ.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria import Criterion
from jaxrls.core.data import Data, FixedEffects, Labels, Rows, Weights
from jaxrls.core.factors import GRID_SIZE, CallShape, Solution, Solver, Spectral
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number
from jaxrls.core.support import arrays_alone, as_lam, pytree, static


@pytree
class Problem:
    """Everything that defines a fit except λ.

    `read_problem` makes it from the arguments of `fit`.

    Args:
        kernel: a jaxrls kernel.
        rows: the n rows of X, as `Rows`.
        weights: the weights of the rows.
        fixed: the fixed effects: columns without penalty, the intercept among them.
        Y: labels (n,) or (n, t).
        criterion: the criterion by which λ is chosen.
        block_size: the number of rows in a block; None for blocks that fit the cache of a CPU, or
            that keep an accelerator busy.
        solver: how to factor; None if the user named no solver. Then `fit` chooses one, and
            `solution()` takes `Spectral()`.
        label_offset: the number subtracted from the labels of each target, (t,) or (), because
            labels far from 0 would lose digits by rounding; None if nothing was subtracted.
        error_unit: the size of errors by which searches divide them; None for 1.

    >>> from jaxrls import extend
    >>> import numpy as np, jaxrls as rls
    >>> X = np.eye(3, dtype=np.float32)
    >>> problem = extend.read_problem(rls.Gaussian(1.0), X, [0.0, 1.0, 2.0])
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
    error_unit: Any = None

    @property
    def num_features(self) -> int | None:
        """The number of explicit features of the kernel; None if it has none."""
        return self.rows.num_features(self.kernel)

    @property
    def traceable(self) -> bool:
        """Whether the problem can be passed into `jax.jit`.

        It can if its rows, and any rows that its criterion holds, are arrays.
        """
        return self.rows.traceable and arrays_alone(self.criterion)

    def call_shape(self, lams: int = GRID_SIZE, gradient: bool = False) -> CallShape:
        """Return the shapes of a call on the problem, from which its solver and memory follow.

        Args:
            lams: how many λ.
            gradient: whether derivatives are taken.
        """
        targets = int(np.prod(self.Y.shape[1:]))
        of_rows = CallShape.of_rows(self.kernel, self.rows)
        return of_rows._replace(targets=targets, lams=lams, gradient=gradient)

    @property
    def route(self) -> str:
        """What is factored at the least cost, as `CallShape.route`."""
        return CallShape.of_rows(self.kernel, self.rows).route

    @property
    def solver_or_default(self) -> Solver:
        """The solver, which is `Spectral()` if the user named none."""
        return self.solver or Spectral()

    def prepare(self, progress: bool = False) -> "Problem":
        """Return the problem after its solver has chosen what it chooses once, such as landmarks.

        Args:
            progress: whether to show a progress bar.
        """
        if self.solver is None:
            return self
        solver = self.solver.prepare(self.kernel, self.rows, self.weights, progress)
        return replace(self, solver=solver)

    def solution(self) -> Solution:
        """Return the `Solution`: factor the rows, which is expensive, and attach the labels."""
        data = Data(self.rows, self.weights, self.fixed)
        Y = self.Y.reshape(self.weights.n, -1)
        labels = Labels.unchecked(Y, self.weights, self.fixed, flat=self.Y.ndim == 1)
        solver = self.solver_or_default
        solution = solver.solve(self.kernel, data, labels, block_size=self.block_size)
        return self.criterion.raise_floor(solution)

    def errors(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L *t"]:
        """Return the criterion at each λ, (L,) or (L, t), with its sign set so that smaller is
        better.
        """
        return self.criterion.errors(solution, lams, self.kernel)

    def to_search(self, error: Any) -> Any:
        """Return the number that a search minimises in place of an error.

        `Criterion.to_search` says which number, such as the error per row for the evidence.
        """
        value = self.criterion.to_search(error, self.weights.count)
        return value if self.error_unit is None else value / self.error_unit

    def from_search(self, value: np.ndarray) -> Any:
        """Return the error from the number that a search minimises: the inverse of `to_search`.

        It is computed on the host, by NumPy.
        """
        if self.error_unit is not None:
            value = value * np.asarray(self.error_unit)
        return self.criterion.from_search(value, float(self.weights.count))

    def in_units_of(self, error: Any) -> "Problem":
        """Return the problem with |error| as the unit of errors, if its criterion needs one."""
        if not self.criterion.needs_unit:
            return self
        size = jnp.abs(jnp.asarray(error))
        is_unit = jnp.isfinite(size) & (size > 0)
        return replace(self, error_unit=jnp.where(is_unit, size, 1))

    def error(self, lam: Any) -> Number:
        """Return the criterion at one λ, averaged over targets; smaller is better.

        It is differentiable in all arrays of the problem and in λ.
        """
        solver = self.solver_or_default.differentiable()
        lam = as_lam(lam, self.rows.dtype)
        return solver.mean_error(replace(self, solver=solver), lam)
