"""The base class of criteria, and the class of criteria that are functions of the caller.

A criterion computes an error for every λ from a factor with labels. It also states its sign,
whether it has a gradient and which rows it holds out together, so that λ can be searched by it.
"""

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
    zero_one_loss,
)
from jaxrls.core.data import FixedEffects, Folds, Rows, Weights, as_folds
from jaxrls.core.factors import Factor, Solution, Summand
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number, at_least_tiny
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
    """A validation error as a function of λ: the base class of all criteria.

    To define your own criterion, write a subclass under the decorator `jaxrls.extend.pytree`. Its
    fields hold its data. Its method `values(solution, lams, kernel)` returns (L, t), computed by
    the methods of a `Solution`. These attributes may be set too:

    * `larger_is_better`: whether the criterion is maximised; by default it is minimised.
    * `smooth`: whether it has a gradient; by default it has.
    * `groups`: which rows it leaves out together; by default single rows.
    * `title` and `unit`: the label of its axis in plots, and the unit of what is minimised. "nats"
      make it a log likelihood.

    A fit relies on three more, which are False by default:

    * `fits_samples`: whether it can be computed on a sample of the rows, because it holds no data
      about each row. If so, the rows may be padded, and `tune` may begin on few of them.
    * `needs_only_sums`: whether sums over the whole fit suffice, as for GCV. If so, `Fit.update`
      chooses λ by it again, without the rows.
    * `ignores_offset`: whether nothing changes if a constant is added to all labels and an
      intercept is fitted. If so, `fit` subtracts a constant from labels that are far from 0.

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
    # The unit of the values that are minimised. For "nats" these are minus the criterion, and for
    # "AUC" they are 1 − AUC, the share of pairs in the wrong order.
    unit: ClassVar[str] = "error"
    larger_is_better: ClassVar[bool] = False
    # Rows that are left out together: `Folds` after `bind`; None for single rows.
    groups: Any = None
    fits_samples: bool = False
    needs_only_sums: ClassVar[bool] = False
    ignores_offset: bool = False
    # What the criteria of this package are, where a fit needs to know.
    averages_loss: ClassVar[bool] = False  # whether it is a mean of `loss` over single predictions
    has_standard_error: ClassVar[bool] = False  # whether this mean is over rows of the fit
    has_own_rows: ClassVar[bool] = False  # whether it predicts further rows instead
    takes_best: bool = False  # whether it chooses the variance τ² of the prior
    given_scale: float | None = None  # the number τ², if it has one
    asks_for_factor: ClassVar[bool] = False  # whether it may need a factor of a certain class

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
            kernel: the kernel of the factor. Criteria that predict further rows, such as `holdout`,
                need it; others take None.

        Returns:
            The criterion, (L,) or (L, t), with its own sign.

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
        """Return the criterion for every λ and target, (L, t). Every subclass defines this method.

        Args:
            solution: a factor with labels.
            lams: λ (L,), or (L, t) with one for each target.
            kernel: the kernel of the factor, or None where the caller gave none.
        """

    def errors(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L *t"]:
        """Return the criterion with its sign set so that smaller is better.

        The result has shape (L,) if the labels were given as (n,), else (L, t).
        """
        with values_unknown(f"criterion {self.name}, or its loss,"):
            values = solution.labels.drop_axis(self.values(solution, lams, kernel))
        return -values if self.larger_is_better else values

    def amplitude(
        self, solution: Solution, lams: Float[Array, "L *k"]
    ) -> Float[Array, "L t"] | None:
        """Return τ of the prior τ²k, for every λ and target: the best one, or a given one.

        None if the criterion has no τ.
        """
        return None

    @property
    def summand(self) -> Summand | None:
        """The function `fn` for which the criterion is `Solution.sum_held_out(fn)` / Σv.

        None if the criterion is not such a sum over single rows.
        """
        return None

    def raise_floor(self, solution: Solution) -> Solution:
        """Return the solution with a floor so high that the held-out residuals are exact.

        Only groups can need a higher floor than the factor has. The floor is the λ below which
        rounding dominates.
        """
        if self.groups is None:
            return solution
        return replace(solution, factor=solution.factor.raise_floor(self.groups))

    @property
    def is_likelihood(self) -> bool:
        """Whether the criterion is a log likelihood in nats, of all rows or per row."""
        return self.unit == "nats"

    @property
    def of_rows(self) -> dict[str, Any]:
        """What has an entry for each row of the fit, as the caller gave it, by its name."""
        return {"groups": self.groups}

    @property
    def title(self) -> str:
        """The label of an axis of its values in plots, with a minus if larger is better."""
        return ("− " if self.larger_is_better else "") + self.name.replace("_", " ")

    def memory_options(self) -> dict[str, Any]:
        """Return the options of `memory` that say how many rows are left out together."""
        return {} if self.groups is None else {"groups": self.groups.width}

    # before a fit ---------------------------------------------------------------------------------
    # `read_problem` calls these methods in this order. A call with a factor calls `bind` and
    # `check_rows` alone. `match_columns` reads the data in fields as the user gave them. `bind`
    # turns them into arrays, `Rows` and `Folds`, which all other methods read.

    def match_columns(self, names: tuple, targets: tuple, offset: np.ndarray | None) -> "Criterion":
        """Return the criterion with its own rows, if it has any, prepared as the fitted rows are.

        Args:
            names: the names of the fitted columns. The columns of its rows are taken by them.
            targets: the names of the targets, by which its labels are ordered; () if they have
                none.
            offset: what is subtracted from the labels of its rows, as from the fitted labels; None
                for nothing.
        """
        del names, targets, offset
        return self

    def bind(self, Y: Float[Array | np.ndarray, "n *t"], rows: Rows | None = None) -> "Criterion":
        """Return the criterion for one fit, with its own data read and checked.

        The data are checked against the labels Y and the rows of the fit, as far as they are given.
        """
        if self.groups is None:
            return self
        count = None if rows is None else rows.count
        return replace(self, groups=as_folds(self.groups, len(Y), count))  # type: ignore[type-var]

    def with_best_scale(self) -> "Criterion":
        """Return the criterion as `fit` and `tune` use it.

        A criterion that depends on the variance τ² of the prior τ²k then takes the best τ² for
        every λ, unless the user gave a number. Any other criterion returns itself.
        """
        return self

    def check(self, kernel: Kernel) -> None:
        """Raise if the criterion's own rows lie outside the kernel's domain.

        Arrays without values, inside `jax.jit`, are not checked.
        """
        del kernel

    def check_rank(self, fixed: FixedEffects, weights: Weights) -> None:
        """Raise if the fixed effects cannot be fitted without some row or group that is left out.

        Arrays without values, inside `jax.jit`, are not checked.
        """
        fixed.check_rank(weights, self.groups)

    def check_rows(self, Y: Any, weights: Weights) -> None:
        """Raise if the criterion cannot be computed on these labels and weights.

        Arrays without values, inside `jax.jit`, are not checked.
        """
        del Y
        if self.groups is not None:
            _check_held_out(self.groups, weights)

    # in a search ----------------------------------------------------------------------------------

    @property
    def smooth(self) -> bool:
        """Whether its derivatives can guide a search."""
        return True

    @property
    def needs_unit(self) -> bool:
        """Whether a search minimises the error itself, whose unit it does not know.

        Differences of such errors are compared with their size. Nats need no other unit.
        """
        return type(self).to_search is Criterion.to_search and self.unit != "nats"

    def to_search(self, error: Array | np.ndarray | np.floating, count: Number) -> Any:
        """Return the number that a search minimises in place of `error`.

        Args:
            error: the criterion, smaller is better.
            count: the number of rows of positive weight.
        """
        return error

    def from_search(self, value: np.ndarray, count: float) -> Any:
        """Return the error from the number that a search minimises: the inverse of `to_search`.

        It is computed on the host, by NumPy.
        """
        return value


@where_known
def _check_held_out(folds: Folds, weights: Weights) -> None:
    """Raise if no row of positive weight is held out."""
    if weights.values is None and folds.are_groups:
        return
    with jax.ensure_compile_time_eval():
        if not folds.weights_of_predicted(weights).total > 0:
            raise ValueError("groups or splits hold out no row of weight above 0: give others")


@where_known
def _check_codes(Y: Any, weights: Weights) -> None:
    """Raise unless the labels of rows of positive weight are −1 and 1."""
    used = np.asarray(Y).ravel()[np.asarray(weights.used)]
    other = used[np.abs(used) != 1]
    if len(other):
        raise ValueError(
            f"Y must hold −1 and 1 for zero_one_loss, and holds {other[0]}: give 2 Y − 1 for "
            "labels 0 and 1"
        )


class Positive(Criterion):
    """A criterion that cannot be negative. Searches minimise its logarithm."""

    def to_search(self, error: Array | np.ndarray | np.floating, count: Number) -> Any:
        """Return log error, with an error of 0 replaced by the smallest normal number."""
        return jnp.log(at_least_tiny(jnp.asarray(error)))

    def from_search(self, value: np.ndarray, count: float) -> Any:
        """Return exp of the value, which is infinite for the huge value of a failed search step."""
        with np.errstate(over="ignore"):
            return np.exp(value)


class OfLoss(Positive):
    """A criterion that averages a loss, by default the squared error."""

    loss: Callable = squared_error

    def __post_init__(self):
        check_loss(self.loss)

    @property
    def ignores_offset(self):  # type: ignore[override]
        """Whether the loss depends on residuals alone, and not on labels."""
        return self.loss in OF_RESIDUALS

    @property
    def smooth(self):
        """Whether the loss has a gradient."""
        return self.loss not in PIECEWISE_CONSTANT

    def check_rows(self, Y: Any, weights: Weights) -> None:
        """Raise also if one column of labels has no classes −1 and 1, and the loss needs them."""
        super().check_rows(Y, weights)
        if self.loss is zero_one_loss and Y.size == len(Y):
            _check_codes(Y, weights)


@pytree
class FunctionCriterion(Criterion):
    """A criterion made of a function `(factor, Y, lams)` of the caller.

    The function returns (L,) or (L, t), and smaller is better.
    """

    fn: Callable = static()
    asks_for_factor = True

    @property
    def name(self):  # type: ignore[override]
        """The name of the function."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return the result of the function as (L, t). Raise if it has another shape."""
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
    """Return λ as an array in the factor's dtype, with 0 replaced by the factor's floor.

    The result has shape (L,), or (L, t) with one λ for each target. Raise for λ < 0 and for other
    shapes.
    """
    return factor.zero_as_floor(as_lams(lams, factor.dtype, targets, zero=True))
