"""The contract: a `Factor` knows neither λ nor labels; its `Solution` for some labels answers for any λ.

Criteria, searches and models see these methods and nothing else, so that factors and criteria add up instead of multiplying. A new factor is one file:
a `Factor`, its `Solution`, and an entry where `factorize` chooses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.factors.expansion import Expansion
from jaxrls.factors.groups import OPERATIONS_IN_PLACE, Folds, check_rest, has_rest
from jaxrls.factors.outcome import Coefficients, Outcome
from jaxrls.factors.pairs import OfRows, Pairs, sum_pairs
from jaxrls.factors.weights import Labels, Weights
from jaxrls.linalg.products import matmul
from jaxrls.rows.blocks import map_blocks, split
from jaxrls.support.pytrees import pytree, static
from jaxrls.support.target import platform

# λ × targets handled in one matrix product: enough columns to run at its full rate, few enough that n times as many fit beside U.
COLUMNS_AT_ONCE = 1024
# Random signs, where a diagonal is estimated: each is one more column of a product whose matrix costs as much as some thirty.
PROBES = 32
REFERENCES = 4  # λ whose fits moments are taken about: of a hundred λ over fifteen decades one in less than four


@pytree
class Report:
    """What is to be said of a factorization before its numbers are trusted.

    `floor` is how far eigenvalues may be off by rounding, and so the λ below which all is noise; `indefinite` the most negative eigenvalue over the
    largest; `trace_residual` tr √v(K − K̂)√v on landmarks, else None; `ridge` what was added to the landmarks' diagonal, relative to it.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factor_gram(jnp.eye(3)).report.route
    'gram'
    """

    route: str = static()
    floor: Float[Array, ""]
    indefinite: Float[Array, ""]
    trace_residual: Float[Array, ""] | None = None
    ridge: Float[Array, ""] | None = None


class HatRows(NamedTuple):
    """√v (y − f), and the diagonals of H, I − H, H² and (I − H)², H the matrix from √v y to √v f."""

    residuals: Any
    leverage: Any
    remaining: Any
    squared: Any
    remaining_squared: Any


class Factor(ABC):
    """One kernel, its rows, weights and intercept, factored: knows neither λ nor labels.

    Made by `factorize` or by one of the makers under it; `factor.route` says which. Criteria take it with labels and a vector of λ.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factor_gram(jnp.eye(3))
    >>> factor.n, factor.route, factor.intercept
    (3, 'gram', True)
    """

    weights: Weights
    expansion: Expansion
    intercept: bool
    free: Any = None  # columns without penalty, where there are others than the intercept's: a `Free`, in its place

    @property
    @abstractmethod
    def report(self) -> Report:
        """Route, precision floor, indefiniteness, what landmarks leave out."""

    @abstractmethod
    def trace(self) -> Float[Array, ""]:
        """The sum of the eigenvalues of K̃, centred where there is an intercept."""

    @abstractmethod
    def solve_labels(self, labels: Labels) -> "Solution":
        """`solve` for labels that were centred and weighted already."""

    def solve(self, Y) -> "Solution":
        """The factor with labels (n,) or (n, t): all that coefficients and validation at any λ need."""
        return self.solve_labels(Labels.of(Y, self.weights, self.intercept))

    def dof(self, lams) -> Float[Array, "L 1"]:
        """Effective degrees of freedom at every λ, (L,)."""
        return self.solve_labels(Labels.none(self.weights)).dof(jnp.asarray(lams)[:, None])

    def spectrum(self) -> Any:
        """The factor as one with eigenvalues and left vectors."""
        raise ValueError(
            f"a factor by route {self.route!r} has no spectrum: make it by another, such as factorize(kernel, X, route='gram')"
        )

    def spread(self, lam: Float[Array, ""]) -> Any:
        """The posterior covariance at one λ, as a `Spread`; of two-sided data as a `SidesSpread`."""
        raise ValueError(
            f"a factor by route {self.route!r} tells no variances: make it by another, such as factorize(kernel, X, route='gram')"
        )

    def sides(self) -> Any:
        """The factor as one of two-sided data."""
        raise ValueError(f"a factor by route {self.route!r} has one side: make it by factor_kronecker(K1, K2)")

    def smoother(self, lam: Float[Array, ""]) -> Any:
        """Coefficients and intercept at one λ as sums over labels, a `Smoother`: what intervals take."""
        raise ValueError(
            f"a factor by route {self.route!r} tells no intervals: make it by another, such as factorize(kernel, X, route='gram')"
        )

    def smallest_eigenvalue(self) -> Float[Array, ""]:
        """The smallest eigenvalue above the precision of the factor, which is where a grid of λ may end; the largest where there is none."""
        s = self.spectrum().s
        largest = jnp.max(s)
        return jnp.min(jnp.where(s > self.precision_floor(), s, largest))

    @property
    def n(self) -> int:
        """Number of rows of X."""
        return self.weights.n

    @property
    def parts(self) -> int:
        """In how many equal parts its rows lie, which may be on different devices."""
        return 1

    @property
    def dtype(self) -> Any:
        """The dtype of everything computed from the factor."""
        return self.weights.dtype

    @property
    def route(self) -> str:
        """How it was made."""
        return self.report.route

    @property
    def points(self) -> Any:
        """The rows or landmarks that the coefficients belong to, or None for explicit features."""
        return self.expansion.points

    @property
    def trace_residual(self) -> Any:
        """tr √v(K − K̂)√v on landmarks, else None."""
        return self.report.trace_residual

    def precision_floor(self) -> Float[Array, ""]:
        """√n·eps·s_max, n the size of the matrix that was decomposed, and four times that on GPUs: a λ below it is lost in the rounding of the factor."""
        return self.report.floor

    def residual_dimensions(self) -> Float[Array, ""]:
        """The number of rows of positive weight, less one for the intercept: the dimension the fit lives in."""
        return self.weights.count - int(self.intercept)

    @property
    def why_not_zero(self) -> str:
        """The reason against λ = 0, the fit of minimum norm, empty where there is none."""
        return f", as a factor by route {self.route!r} cannot tell which eigenvalues are 0: make it by another, such as route='gram'"

    def span(self) -> tuple[Float[Array, "n q"], Float[Array, "n q"]]:
        """H and H/√v, known for rows of weight 0 too, of what is fitted with no penalty: √v/‖√v‖ and 1/‖√v‖ of an intercept, else no column."""
        h = self.weights.direction[:, None]
        return (h, jnp.full_like(h, 1 / jnp.sqrt(self.weights.total))) if self.intercept else (h[:, :0], h[:, :0])

    @property
    def log_volume(self) -> Float[Array, ""] | float:
        """log |BᵀVB| of the same columns B: log Σv of an intercept."""
        return jnp.log(self.weights.total) if self.intercept else 0.0

    @property
    def constant(self) -> Callable:
        """The diagonal of hhᵀ as a function of the weights of rows, in which the intercept fits, or 0: to ask for before rows are read, as it sums v."""
        total = self.weights.total
        return lambda v: v / total if self.intercept else jnp.zeros_like(v)


class Solution(ABC):
    """A factor with labels. Every method takes the whole vector of λ, (L,), or one λ per target, (L, t).

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> solution = rls.factor_gram(jnp.eye(3), intercept=False).solve([1.0, 2.0, 3.0])
    >>> solution.residuals([1.0]).tolist(), solution.dof([1.0]).tolist()
    ([[[1.0], [2.0], [3.0]]], [[1.5]])
    """

    factor: Factor
    labels: Labels
    summed: Any = None  # the moments that it is made of, where they are kept
    shares_work: ClassVar[bool] = False  # whether several λ at once take hardly more memory than one
    exact: ClassVar[bool] = True  # whether it is no estimate, so that slopes in λ are worth following

    @abstractmethod
    def coefficients(self, lams) -> Coefficients:
        """`coef` (L, q, t) for the factor's expansion, `intercept` (L, t)."""

    @abstractmethod
    def residual_norm(self, lams) -> Float[Array, "L t"]:
        """Σᵢ vᵢ (yᵢ − f(xᵢ) − b)²."""

    @abstractmethod
    def data_fit(self, lams) -> Float[Array, "L t"]:
        """√v yᵀ (K̃ + λI)⁻¹ √v y, centred: the smallest value of twice the objective, over λ."""

    @abstractmethod
    def logdet(self, lams) -> Float[Array, "L k"]:
        """log of the product of the eigenvalues of K̃ + λI, over the dimension the fit lives in."""

    @abstractmethod
    def residual_dof(self, lams) -> Float[Array, "L k"]:
        """Σ (1 − leverage), without cancellation."""

    def dof(self, lams) -> Float[Array, "L k"]:
        """Σ leverage: the effective degrees of freedom, that of the intercept included."""
        return self.factor.weights.count - self.residual_dof(lams)

    @abstractmethod
    def rows_left_out(self, fn: Callable, lams) -> Any:
        """`rows_and_leverages` for λ as columns (L, k)."""

    @abstractmethod
    def residuals_left_out(self, lams) -> Float[Array, "L n t"]:
        """`residuals` of single rows, λ as columns (L, k)."""

    @abstractmethod
    def group_residuals(self, groups: Folds) -> Callable:
        """A function of one λ, or one per target, (k,), that gives the held-out residuals (groups, rows, t) of every group."""

    def pair_system(self) -> Callable:
        """A function of one λ, (), and columns, that gives the `PairSystem` of these targets."""
        raise ValueError(
            f"a factor by route {self.factor.route!r} leaves no pairs out: make it by another, such as factorize(kernel, X, route='gram')"
        )

    def pairs_left_out(self, fn: Callable, lams, pairs: Pairs | None = None, own: tuple = (), directions=None) -> Any:
        """Σ over pairs of rows of `fn(one, other)`, both `Held`, for every λ, the two of each pair left out together; of all pairs where none are named.

        What `fn` gives must broadcast to the pairs, (t, a, b) or (t, p), and be 0 where a weight is; results have leading axes (L, t). `own` are further
        arrays (n,), which `Held` has for both rows. With `directions` (n,), √v/‖√v‖ in its group for every row, a constant fits in each of these groups,
        with no penalty, where the factor has none: for pairs within groups. At one λ a block of rows of pairs is there, and what the factor keeps.
        """
        lams, system, f = self._columns(lams), self.pair_system(), self.factor

        def at_one(lam, columns):
            of_rows = OfRows(self.labels.Y[:, columns].T, f.weights.values, own)
            return sum_pairs(fn, replace(system(lam, columns), directions=directions), pairs, of_rows)

        def at(lam):
            if lam.shape[0] == 1:
                return at_one(lam[0], slice(None))
            return jax.lax.map(lambda j: jax.tree.map(lambda a: a[0], at_one(lam[j], j[None])), jnp.arange(lam.shape[0]))

        total = jax.lax.map(at, lams)
        if not f.intercept:
            return total
        return jax.tree.map(lambda a: jnp.where(f.weights.count > 2, a, jnp.nan), total)

    def left_out(self, fn: Callable, lams, groups: Folds | None = None) -> Any:
        """Σ over rows of `fn(residuals (b, t), labels (b, t), weights (b,))` for every λ, each row, or each group, left out in turn.

        A held-out residual is yᵢ − f₍without i₎(xᵢ). `fn` must give nothing for a weight of 0; results have a leading axis L. Where a row or
        group holds all of the weight and an intercept is fitted, there is no fit without it: an error, or NaN inside `jax.jit`.
        """
        lams = self._columns(lams)
        self.check_rest(groups)
        if groups is not None:
            return self.with_rest(self.groups_left_out(fn, lams, groups), groups)
        return self.with_rest(self.rows_left_out(lambda residuals, _, labels, weights: fn(residuals, labels, weights), lams))

    def rows_and_leverages(self, fn: Callable, lams) -> Any:
        """`left_out` of single rows by `fn(residuals, remaining, labels, weights)`, remaining (b, 1) or (b, t).

        That is 1 − leverage, which times v/λ is one over the variance of the label given all others; of a landmark that leaves with its row, in the fit
        without it.
        """
        lams = self._columns(lams)
        self.check_rest()
        return self.with_rest(self.rows_left_out(fn, lams))

    def check_rest(self, groups: Folds | None = None) -> None:
        """Raise where a row, or a group, holds all of the weight and an intercept is fitted (where values are known)."""
        if self.factor.intercept:
            check_rest(self.factor.weights, groups)

    def has_rest(self, groups: Folds | None = None):
        """Whether a fit is left with each row, or group, out."""
        return has_rest(self.factor.weights, groups)

    def with_rest(self, total, groups: Folds | None = None):
        """`total`, or NaN where a row, or a group, holds all of the weight and an intercept is fitted."""
        if not self._may_lack_rest():
            return total
        defined = jnp.all(self.has_rest(groups))
        return jax.tree.map(lambda a: jnp.where(defined, a, jnp.full_like(a, jnp.nan)), total)

    def outcome(self, lam: Float[Array, "1 k"], groups: Folds | None = None, fn: Callable | None = None) -> Outcome:
        """Coefficients, residuals left out and degrees of freedom at one λ, or one per target; and how sure `left_out(fn)` is, where it is an estimate."""
        del fn
        return Outcome(self.coefficients(lam), self.residuals(lam, groups), self.dof(lam))

    def apart(self, groups: Folds, lams) -> Any:
        """How groups are left out where rows lie in parts, or fits to the rest are cheaper, with `left_out(fn, lams)` and `residuals(lams)`; else None."""
        del groups, lams

    def groups_left_out(self, fn: Callable, lams, groups: Folds) -> Any:
        """`left_out` of groups, λ as columns (L, k)."""
        apart = self.apart(groups, lams)
        return self.left_out_together(fn, lams, groups) if apart is None else apart.left_out(fn, lams)

    def left_out_together(self, fn: Callable, lams, groups: Folds) -> Any:
        """`groups_left_out` in closed form, of rows that are brought together."""
        residuals_at, rows = self.group_residuals(groups), groups.inside.reshape(-1)
        weight = self.factor.weights.array[rows] * groups.inside_mask.reshape(-1).astype(self.factor.dtype)
        Y = self.labels.Y[rows]
        at = lambda lams: jax.vmap(lambda lam: fn(residuals_at(lam).reshape(Y.shape), Y, weight))(lams)  # noqa: E731
        b, t = groups.inside.shape[1], Y.shape[1]
        together = lams_together(b, t) if self.shares_work else 1
        return over_lams(at, lams, COLUMNS_AT_ONCE // together)

    def residuals(self, lams, groups: Folds | None = None) -> Float[Array, "L n t"]:
        """Held-out residuals of every row, those of weight 0 included: yᵢ − f₍without i, or its group₎(xᵢ)."""
        lams = self._columns(lams)
        self.check_rest(groups)
        if groups is None:
            e = self.residuals_left_out(lams)
            return jnp.where(self.has_rest()[:, None], e, jnp.nan) if self._may_lack_rest() else e
        apart = self.apart(groups, lams)
        e = self.residuals_together(lams, groups) if apart is None else apart.residuals(lams)
        return jnp.where(self.has_rest(groups)[groups.numbers][:, None], e, jnp.nan) if self._may_lack_rest() else e

    def residuals_together(self, lams, groups: Folds) -> Float[Array, "L n t"]:
        """`residuals` of groups in closed form, λ as columns, of rows that are brought together."""
        residuals_at = self.group_residuals(groups)

        def at(lam):
            held = residuals_at(lam) * groups.inside_mask[:, :, None].astype(self.factor.dtype)
            return jnp.zeros_like(self.labels.Y).at[groups.inside.reshape(-1)].add(held.reshape(-1, held.shape[2]))

        return jax.lax.map(at, lams)

    def _columns(self, lams):
        """λ as columns, checked against the targets."""
        lams, t = as_columns(lams), self.labels.Y.shape[1]
        if lams.shape[1] not in (1, t):
            raise ValueError(f"lams must have shape (L,), or (L, {t}) with a λ for each target, and has shape {lams.shape}")
        return lams

    def _may_lack_rest(self) -> bool:
        """Whether all of the weight may be left out at once, with an intercept to fit."""
        return self.factor.intercept and (self.factor.weights.values is not None or self.factor.n == 1)


def as_columns(lams) -> Float[Array, "L k"]:
    """λ (L,) as one column for all targets, (L, 1); one λ per target, (L, t), as it is."""
    lams = jnp.asarray(lams)
    if lams.ndim not in (1, 2):
        raise ValueError(f"lams must have shape (L,), or (L, t) with a λ for each target, and has shape {lams.shape}")
    return lams[:, None] if lams.ndim == 1 else lams


def over_lams(fn: Callable, lams: Any, columns: int):
    """`fn` of all λ, (L, k), or of what has an entry for each; results have a leading axis L: in chunks with so many matrix `columns` for each in flight."""
    return map_blocks(fn, *lam_chunks(lams, columns))


def lam_chunks(lams: Any, columns: int):
    """λ as equal chunks (chunks, size, k) and the rest (size, k), either None where there is none: see `over_lams`."""
    count = jax.tree.leaves(lams)[0].shape[0]
    chunks = -(-count // max(1, COLUMNS_AT_ONCE // max(1, columns)))
    whole, rest = split(lams, -(-count // chunks))
    return (None, jax.tree.map(lambda a: a[0], whole)) if chunks == 1 else (whole, rest)


def lams_together(b: int, t: int) -> int:
    """How many λ are handled at once for groups of b rows with t targets: on CPUs one, where several make too large a batch."""
    most = max(1, COLUMNS_AT_ONCE // (4 * max(b, t)))
    return most if platform() != "cpu" or most * b * b * max(b, t) <= OPERATIONS_IN_PLACE else 1


def references(lams: Float[Array, "L k"]):
    """A few of λ, (R, k), evenly spread over their order, and which of them is next below each, (L, k); no result depends on it but by rounding."""
    ordered = jnp.sort(jax.lax.stop_gradient(lams), axis=0)
    points = ordered[np.arange(0, len(lams), -(-len(lams) // REFERENCES))]
    return points, jnp.sum(points[None] <= jax.lax.stop_gradient(lams)[:, None], axis=1) - 1


def times(A: Float[Array, "b r"], B: Float[Array, "r L t"]) -> Float[Array, "b L t"]:
    """A times every B[:, l], as one product."""
    return matmul(A, B.reshape(B.shape[0], -1)).reshape(A.shape[0], *B.shape[1:])
