"""The base class of solvers, and the shapes of a call, from which the memory of a solver follows.

A solver makes a factor of kernel, rows, weights and fixed effects. Rooms add solvers of their own.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from jaxrls.core.data import Data, Labels, Weights
from jaxrls.core.factors.expansion import stays_dual
from jaxrls.core.factors.lams import COLUMNS_AT_ONCE, GRID_SIZE
from jaxrls.core.factors.solution import Solution
from jaxrls.core.linalg import Number, wide_block_size


class CallShape(NamedTuple):
    """The shapes of a call, from which its route, its solver and its memory follow."""

    kernel: Any
    rows: int
    columns: int
    dtype: Any
    targets: int = 1
    lams: int = GRID_SIZE  # how many λ
    gradient: bool = False  # whether derivatives are taken, which double what is held

    @classmethod
    def of_rows(cls, kernel: Any, rows: Any) -> "CallShape":
        """Return the shapes of a default call on these rows, with one target."""
        n, d = rows.shape
        return cls(kernel, n, d, jnp.dtype(rows.dtype))

    @property
    def num_features(self) -> int | None:
        """The number of the kernel's explicit features; None if it has none."""
        return self.kernel.num_features(self.columns, self.dtype)

    @property
    def route(self) -> str:
        """What is factored at the least cost, if the rows are in memory and no solver is named.

        It is one of three:

        * "gram" for K, if there are no explicit features, or as many as rows;
        * "covariance" for the moments of features, if there are at least 8 rows for each;
        * "features" for the features themselves, otherwise.
        """
        n = self.rows
        r = self.num_features
        if r is None or r >= n:
            return "gram"
        return "covariance" if n >= 8 * r else "features"

    @property
    def twice(self) -> int:
        """2 if derivatives are taken, else 1."""
        return 1 + self.gradient

    @property
    def count_of_lams(self) -> int:
        """The number of λ: one if derivatives are taken."""
        return 1 if self.gradient else self.lams

    def lam_columns(self) -> int:
        """Return how many columns of products, for all λ and targets, are in memory at once."""
        return max(self.targets, min(self.count_of_lams * self.targets, COLUMNS_AT_ONCE))

    def coefficients(self) -> int:
        """Return how many numbers a model keeps as coefficients."""
        n, d, t = self.rows, self.columns, self.targets
        r = self.num_features
        return (n if r is None or stays_dual(n, d, r, t) else r) * t

    def block(self, width: int) -> int:
        """Return how many numbers a block of rows holds, with `width` features a row and with its
        products.
        """
        rows = wide_block_size(self.rows, 2 * width * jnp.dtype(self.dtype).itemsize)
        return 4 * rows * (width + self.lam_columns())


class Footprint(NamedTuple):
    """The memory that a solver needs, as a count of numbers.

    `route` names what is factored. `width` is how many numbers a block of rows takes for each row,
    such as n for K. `numbers` is how many numbers are held in total, and `words` says what they
    are. `points` is how many points or features a prediction reads, if these are not `width`.
    """

    route: str
    width: int
    numbers: int
    words: str
    of_kernel: bool = False  # whether K of all rows is factored
    points: int | None = None


class Solver(ABC):
    """The base class of solvers, which make factors. You may write your own.

    A solver of your own is a `pytree` that defines `solve`. The solution that it returns holds a
    `Factor`.

    >>> import jaxrls as rls
    >>> [type(one).__name__ for one in (rls.Spectral(), rls.Cholesky()) if one.has_spectrum]
    ['Spectral']
    """

    has_spectrum: ClassVar[bool] = False  # whether its factor gives eigenvalues, for a grid of λ

    @abstractmethod
    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Factor the kernel and attach the labels, in as few passes over the rows as possible.

        Args:
            kernel: a jaxrls kernel.
            data: rows of X, weights and fixed effects.
            labels: labels, checked.
            block_size: rows at a time in K and in sums over rows, where the solver lets the caller
                choose; None for the default.

        Returns:
            A `Solution` of the factor.
        """

    def prepare(self, kernel: Any, rows: Any, weights: Weights, progress: bool = False) -> "Solver":
        """Return the solver with all that is chosen once, before any factorization, such as
        landmarks.

        Raise a `ValueError` for a problem that the solver cannot solve.
        """
        return self

    def differentiable(self) -> "Solver":
        """Return the solver of the same problem that is differentiable in everything, at one λ."""
        return self

    def mean_error(self, problem: Any, lam: Number) -> Number:
        """Return the criterion of a problem at one λ, averaged over targets.

        The solver of the problem must be differentiable in everything. A solver that knows the
        derivative in closed form overrides this method.
        """
        return jnp.mean(problem.errors(problem.solution(), lam[None]))

    def points(self, rows: Any) -> Any:
        """Return the rows or landmarks that dual coefficients belong to."""
        return rows.points

    def memory(self, shape: CallShape) -> Footprint:
        """Return what the solver holds for a problem of these shapes, by default K and its
        factors.
        """
        n = shape.rows
        words = "K and its factors"
        return Footprint(type(self).__name__.lower(), n, 4 * n**2, words, of_kernel=True)

    def rows_to_fit(self, X: Any) -> Any:
        """Return X as `fit` shall read it, for example in another dtype."""
        return X

    def explain(self, run: Any) -> str:
        """Return why an iteration stopped and what to do, or "" if it reached its tolerance."""
        return ""

    @property
    def name(self) -> str:
        """The solver's name in `Fit.plan`."""
        return type(self).__name__

    def __str__(self) -> str:
        return f"{type(self).__name__}()"
