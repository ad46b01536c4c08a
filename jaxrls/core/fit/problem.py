"""The problem: kernel, rows, labels, weights, intercept, criterion and solver, as arrays. All that
`fit`, `tune` and `objective` compute follows from it and λ.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria import Criterion
from jaxrls.core.data import Data, FixedEffects, Labels, Rows, Weights
from jaxrls.core.factors import Solution, Solver, Spectral
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number
from jaxrls.core.support import arrays_alone, as_lam, pytree, static


@pytree
class Problem:
    """Everything that defines a fit, except λ; `read_problem` makes it from the arguments of `fit`.

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

    @property
    def solver_or_default(self) -> Solver:
        """The solver, `Spectral()` where none was named."""
        return self.solver or Spectral()

    def prepare(self, progress: bool = False) -> "Problem":
        """The problem with what its solver chooses once, such as landmarks."""
        if self.solver is None:
            return self
        solver = self.solver.prepare(self.kernel, self.rows, self.weights, progress)
        return replace(self, solver=solver)

    def solution(self) -> Solution:
        """Factor the rows and attach the labels: the one expensive step."""
        data = Data(self.rows, self.weights, self.fixed)
        Y = self.Y.reshape(self.weights.n, -1)
        labels = Labels.unchecked(Y, self.weights, self.fixed, flat=self.Y.ndim == 1)
        solver = self.solver_or_default
        solution = solver.solve(self.kernel, data, labels, block_size=self.block_size)
        return self.criterion.raise_floor(solution)

    def errors(self, solution: Solution, lams: Float[Array, "L *k"]) -> Float[Array, "L *t"]:
        """The criterion at each λ, (L,) or (L, t); smaller is better."""
        return self.criterion.errors(solution, lams, self.kernel)

    def to_search(self, error: Any) -> Any:
        """What a search minimises in place of an error: of a likelihood that of a row which
        counts.
        """
        return self.criterion.to_search(error, self.weights.count)

    def from_search(self, value: np.ndarray) -> Any:
        """The inverse of `to_search`, on the host."""
        return self.criterion.from_search(value, float(self.weights.count))

    def error(self, lam: Any) -> Number:
        """The criterion at one λ, averaged over targets, differentiable in everything."""
        solver = self.solver_or_default.differentiable()
        lam = as_lam(lam, self.rows.dtype)
        return solver.mean_error(replace(self, solver=solver), lam)
