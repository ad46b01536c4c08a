"""The base class of solvers: how a problem is factored, what that holds in memory, and what has to
be chosen before.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from jaxrls.core.factors.outcome import COLUMNS_AT_ONCE
from jaxrls.core.factors.solution import Solution
from jaxrls.core.linalg import wide_block_size
from jaxrls.core.problem import Data, Labels, Weights


class Shape(NamedTuple):
    """The shapes of a call, from which the memory that it takes follows."""

    kernel: Any
    rows: int
    columns: int
    dtype: Any
    targets: int = 1
    lams: int | None = None  # how many λ; None for those of a default fit
    gradient: bool = False  # whether derivatives are taken, which hold everything twice

    @property
    def features(self) -> int | None:
        """The number of the kernel's explicit features, None where it has none."""
        return self.kernel.num_features(self.columns, self.dtype)

    @property
    def twice(self) -> int:
        """2 where derivatives are taken, else 1."""
        return 1 + self.gradient

    def lam_columns(self) -> int:
        """Columns of the products for all λ and targets that are in memory at once."""
        count = 1 if self.gradient else self.lams or 100
        return max(self.targets, min(count * self.targets, COLUMNS_AT_ONCE))

    def block(self, width: int) -> int:
        """Numbers of a block of rows with so many features each, and of its products."""
        rows = wide_block_size(self.rows, 2 * width * jnp.dtype(self.dtype).itemsize)
        return 4 * rows * (width + self.lam_columns())


class Holding(NamedTuple):
    """The numbers that a solver holds, and in words what of: `width` columns for each row."""

    route: str
    width: int
    numbers: int
    words: str
    of_kernel: bool = False  # whether the matrix is K of all rows


class Solver(ABC):
    """The base class of solvers, your own included: how the factorization is done.

    One of your own is a `pytree` that defines `solve`, whose solution holds a `Factor`.

    >>> import jaxrls as rls
    >>> [type(one).__name__ for one in (rls.Spectral(), rls.Cholesky()) if one.has_spectrum]
    ['Spectral']
    """

    has_spectrum: ClassVar[bool] = False  # whether its factor gives eigenvalues, for a grid of λ

    @abstractmethod
    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Factor and attach the labels, in as few readings of the rows as possible.

        Args:
            kernel: a jaxrls kernel.
            data: rows of X, weights and fixed effects.
            labels: labels, checked.
            block_size: rows at a time; None for the default.

        Returns:
            A `Solution` of the factor.
        """

    def prepare(self, kernel: Any, rows: Any, weights: Weights, progress: bool = False) -> "Solver":
        """The solver with what is chosen once, before any factorization, such as landmarks. Raises
        for what it cannot solve.
        """
        return self

    def differentiable(self) -> "Solver":
        """The solver of the same problem that is differentiable in everything, at one λ."""
        return self

    def points(self, rows: Any) -> Any:
        """The rows, or landmarks, that dual coefficients belong to."""
        return rows.points

    def memory(self, shape: Shape) -> Holding:
        """What it holds for a problem of these shapes; by default what K and its factor take."""
        n = shape.rows
        words = "K and its factors"
        return Holding(type(self).__name__.lower(), n, 4 * n**2, words, of_kernel=True)

    def rows_to_fit(self, X: Any) -> Any:
        """X as `fit` shall read it, such as in another dtype."""
        return X

    def explain(self, run: Any) -> str:
        """Why an iteration stopped, and what to do; empty where it reached its tolerance."""
        return ""

    @property
    def name(self) -> str:
        """Its name in `Fit.plan`."""
        return type(self).__name__

    def __str__(self) -> str:
        return f"{type(self).__name__}()"
