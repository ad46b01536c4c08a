"""The base class of criteria. A criterion gives an error for every λ, from a factor with labels,
and says how to search it: its sign, whether it has a gradient, which rows it holds out together."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria.losses import (
    OF_RESIDUALS,
    PIECEWISE_CONSTANT,
    check_loss,
    squared_error,
)
from jaxrls.core.data import FixedEffects, Folds, Rows, Weights, as_folds
from jaxrls.core.factors import Factor, Solution
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number
from jaxrls.core.support import (
    Listed,
    as_lams,
    public_call,
    pytree,
    static,
    values_unknown,
    where_known,
)


class Criterion(ABC):
    """A validation error as a function of λ: the base class of criteria, your own included.

    One of your own inherits from it, under `jaxrls.extend.pytree`, and defines `values(solution,
    lams, kernel)`, which returns (L, t) from the methods of a `Solution`. Its fields hold its data.
    `larger_is_better` says whether it is maximised, `smooth` whether it has a gradient, `groups`
    which rows it leaves out together, and `title` what plots say of it.

    >>> from jaxrls import extend
    >>> import jax, jax.numpy as jnp, numpy as np, jaxrls as rls
    >>> @extend.pytree
    ... class WorstRow(rls.extend.Criterion):
    ...     name = "worst row left out"
    ...     def values(self, solution, lams, kernel):
    ...         return jnp.max(jnp.abs(solution.held_out_residuals(lams)), axis=1)
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> float(rls.fit(rls.Gaussian(0.3), X, y, lams=[1e-5, 1e-2, 1.0], criterion=WorstRow()).lam)
    0.01
    """

    name: str
    # What its values are: an "error"; "nats", with a minus; or 1 − "AUC", a share of pairs.
    unit: ClassVar[str] = "error"
    larger_is_better: ClassVar[bool] = False
    # Whether it needs only sums over the whole fit, and not the rows.
    needs_only_sums: ClassVar[bool] = False
    # Whether it can be computed on some of the rows, because it holds no data about single rows.
    fits_samples: bool = False
    groups: Any = None  # `Folds` of rows that it leaves out together
    # Whether it stays the same where a constant is added to all labels, and one is fitted.
    ignores_offset: bool = False

    @public_call(arrays_of="factor")
    def __call__(
        self,
        factor: Factor,
        Y: Float[Array, "n *t"] | Listed,
        lams: Float[Array, "L *k"] | Listed,
        kernel: Kernel | None = None,
    ) -> Float[Array, "L *t"]:
        """Evaluate the criterion at every λ, from one factorization.

        Args:
            factor: what `factorize` made.
            Y: labels (n,) or (n, t).
            lams: λ (L,), or (L, t) with one for each target; 0 is taken as the factor's floor.
            kernel: that of the factor, for criteria that predict further rows, such as `holdout`.

        Returns:
            (L,) or (L, t).

        Raises:
            ValueError: for λ < 0, or shapes that do not fit.
        """
        solution = factor.solve(Y)
        labels = solution.labels.given
        criterion = self.bind(labels)
        criterion.check_rows(labels, factor.weights)
        solution = criterion.raise_floor(solution)
        grid = as_grid(lams, solution.factor, labels.shape[1:])
        return solution.labels.drop_axis(criterion.values(solution, grid, kernel))

    @abstractmethod
    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """The criterion at every λ for every target, (L, t): what a class of your own defines.

        Args:
            solution: a factor with labels.
            lams: λ (L,), or (L, t) with one for each target.
            kernel: that of the factor, or None where it was not given.
        """

    def bind(self, Y: Float[Array | np.ndarray, "n *t"], rows: Rows | None = None) -> "Criterion":
        """The criterion for one fit: its own data are read, and checked against the labels and
        rows.
        """
        if self.groups is None:
            return self
        count = None if rows is None else rows.count
        return replace(self, groups=as_folds(self.groups, len(Y), count))  # type: ignore[type-var]

    def with_estimates(self) -> "Criterion":
        """The criterion as `fit` and `tune` take it: what it asks of the prior's variance beyond
        the kernel is estimated, unless it was given.
        """
        return self

    def amplitude(
        self, solution: Solution, lams: Float[Array, "L *k"]
    ) -> Float[Array, "L t"] | None:
        """τ of the prior τ²k that it estimates for every λ and target; None where it estimates
        none.
        """
        return None

    def match_columns(self, names: tuple, offset: np.ndarray | None) -> "Criterion":
        """The criterion with rows of its own, if it has such, as those that are fitted: columns by
        their names, labels less an offset.
        """
        del names, offset
        return self

    def raise_floor(self, solution: Solution) -> Solution:
        """The solution, its floor raised so far that what the criterion holds out is exact."""
        if self.groups is None:
            return solution
        return replace(solution, factor=solution.factor.raise_floor(self.groups))

    def errors(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L *t"]:
        """The criterion with its sign set so that smaller is better, (L,) where the labels came as
        (n,).
        """
        with values_unknown(f"criterion {self.name}, or its loss,"):
            values = solution.labels.drop_axis(self.values(solution, lams, kernel))
        return -values if self.larger_is_better else values

    @property
    def is_likelihood(self) -> bool:
        """Whether its values are nats, of all rows or their mean."""
        return self.unit == "nats"

    @property
    def title(self) -> str:
        """What it is, beside an axis of its values; with a minus where larger is better."""
        return ("− " if self.larger_is_better else "") + self.name.replace("_", " ")

    @property
    def summand(self) -> Callable | None:
        """A function `fn` such that the criterion is `Solution.sum_held_out(fn)` / Σv, or None if
        it is no such sum.
        """
        return None

    def check(self, kernel: Kernel) -> None:
        """Raise where the criterion's own data lie outside the kernel's domain, if their values are
        known.
        """
        del kernel

    def check_rows(self, Y: Any, weights: Weights) -> None:
        """Raise for rows that the criterion cannot be computed on, where values are known."""
        del Y
        if self.groups is not None:
            _check_held_out(self.groups, weights)

    def check_rank(self, fixed: FixedEffects, weights: Weights) -> None:
        """Raise where the fixed effects cannot be fitted without a row, or a group, that it leaves
        out, if values are known.
        """
        fixed.check_rank(weights, self.groups)

    def memory_options(self) -> dict[str, Any]:
        """Which rows it leaves out together, as options of `memory`."""
        return {} if self.groups is None else {"groups": self.groups.inside.shape[1]}

    @property
    def smooth(self) -> bool:
        """Whether its derivatives can guide a search."""
        return True

    def to_search(self, error: Array | np.ndarray | np.floating, count: Number) -> Any:
        """What a search minimises in place of the error of so many rows of positive weight."""
        return error

    def from_search(self, value: np.ndarray, count: float) -> Any:
        """The inverse of `to_search`, on the host."""
        return value


@where_known
def _check_held_out(groups: Folds, weights: Weights) -> None:
    """Raise where no row that counts is held out."""
    if weights.values is None and groups.are_groups:
        return
    with jax.ensure_compile_time_eval():
        if not groups.weights_of_predicted(weights).total > 0:
            raise ValueError("groups or splits hold out no row of weight above 0: give others")


class Positive(Criterion):
    """An error that cannot be negative, of squares by default; it is searched by its logarithm."""

    loss: Callable = squared_error

    def __post_init__(self):
        check_loss(self.loss)

    @property
    def ignores_offset(self):  # type: ignore[override]
        """Whether its loss is of residuals alone."""
        return self.loss in OF_RESIDUALS

    @property
    def smooth(self):
        """Whether the loss has a gradient."""
        return self.loss not in PIECEWISE_CONSTANT

    def to_search(self, error: Array | np.ndarray | np.floating, count: Number) -> Any:
        """log error."""
        return jnp.log(jnp.maximum(error, jnp.finfo(error.dtype).tiny))

    def from_search(self, value: np.ndarray, count: float) -> Any:
        """The error, infinite for a failure."""
        with np.errstate(over="ignore"):
            return np.exp(value)


@pytree
class FunctionCriterion(Criterion):
    """A function `(factor, Y, lams)` of the caller as a criterion; it returns (L,) or (L, t), and
    smaller is better.
    """

    fn: Callable = static()

    @property
    def name(self):  # type: ignore[override]
        """The name of the function."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """The result of the function, its shape checked."""
        labels = solution.labels.given
        lams = lams[:, 0] if lams.shape[1:] == (1,) else lams
        values = self.fn(solution.factor, labels, lams)
        expected = (len(lams), *labels.shape[1:])
        if np.shape(values) != expected:
            raise ValueError(
                f"criterion {self.name} must return shape {expected}, an error for each λ, and "
                f"returned {np.shape(values)}"
            )
        return jnp.reshape(values, (len(lams), -1))


def as_grid(
    lams: Float[Array | np.ndarray, "L *k"] | Listed, factor: Factor, targets: tuple = ()
) -> Float[Array, "L *k"]:
    """λ as a vector, or one for every target, in the factor's dtype, checked; 0 is its floor."""
    return factor.zero_as_floor(as_lams(lams, factor.dtype, targets, zero=True))
