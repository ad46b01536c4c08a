"""What every factor can do, and what criteria and searches use: a `Factor` is made without λ and
labels; with labels it is a `Solution`, which gives coefficients, residuals and sums at any λ.

A new factor is one class that gives its coefficients, sums and residuals at some λ, and the
residual operator R as a `View`. Criteria and searches use the `Solution` only."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.factors.expansion import Expansion
from jaxrls.core.factors.other_folds import PrimalForm, sweep_other_folds
from jaxrls.core.leave_out.view import View, fold_residuals, folds_in_chunks
from jaxrls.core.linalg.blocks import map_blocks, split
from jaxrls.core.linalg.products import matmul
from jaxrls.core.problem.fixed_effects import FixedEffects
from jaxrls.core.problem.folds import Folds
from jaxrls.core.problem.labels import Labels
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.pytrees import pytree, static

# λ × targets in one matrix product: enough columns to run at its full rate, few enough that n times
# as many fit into memory with U.
COLUMNS_AT_ONCE = 1024


@pytree
class Report:
    """How a factor was made and how far its numbers can be trusted.

    Args:
        route: how it was made, such as `"gram"`.
        floor: the λ below which rounding dominates.
        indefinite: the most negative eigenvalue of K over the largest.
        trace_residual: tr √v(K − K̂)√v on landmarks, else None.
        ridge: jitter that was added to the diagonal of the landmarks' kernel matrix, relative to
            it, else None.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factorize(rls.Precomputed(), jnp.eye(3)).report.route
    'gram'
    """

    route: str = static()
    floor: Float[Array, ""]
    indefinite: Float[Array, ""]
    trace_residual: Float[Array, ""] | None = None
    ridge: Float[Array, ""] | None = None


class Coefficients(NamedTuple):
    """Coefficients, unpenalised intercept, and coefficients of other fixed effects or None; with a
    leading axis where there are several λ.
    """

    coef: Any
    intercept: Any
    free: Any = None


class Outcome(NamedTuple):
    """All results of a fit at λ. Where held-out residuals are estimates, `total` is an unbiased sum
    over them and `error` its standard error; `run` says how an iteration went.
    """

    coefficients: Coefficients
    residuals: Any
    dof: Any
    total: Any = None
    error: Any = None
    run: Any = None


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
        self,
        kernel: Any,
        rows: Any,
        labels: Labels,
        weights: Weights,
        fixed: FixedEffects,
        *,
        landmarks: Any,
        block_size: int | None,
    ) -> "Solution":
        """Factor and attach the labels, in as few readings of the rows as possible.

        Args:
            kernel: a jaxrls kernel.
            rows: the rows of X, as `Rows`.
            labels: labels, checked.
            weights: sample weights.
            fixed: fixed effects, an intercept among them.
            landmarks: `Landmarks`, row numbers (m,) or points (m, d); None for all rows.
            block_size: rows at a time; None for the default.

        Returns:
            A `Solution` of the factor.
        """

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


class Factor(ABC):
    """A factorization of one kernel, its rows, weights and fixed effects, without λ or labels: the
    base class of factors.

    `factorize` makes it; `factor.route` says how. Methods take a `Solution` of this factor, and λ
    as columns (L, k), with k = 1 for all targets or t.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(3))
    >>> factor.n, factor.route, factor.intercept
    (3, 'gram', True)
    """

    weights: Weights
    fixed: FixedEffects
    expansion: Expansion
    rows: Any
    report: Any  # a `Report`
    training: Any = None  # (kernel, rows), to predict the rows as if they were new
    indices: Any = None  # numbers of the rows that are landmarks and leave with them
    shares_work: ClassVar[bool] = False  # whether several λ take hardly more than one
    exact: ClassVar[bool] = True  # whether results are exact, so that λ can be searched by slopes

    @abstractmethod
    def trace(self) -> Float[Array, ""]:
        """The sum of the eigenvalues of K̃, with the fixed effects projected out."""

    def project(self, labels: Labels) -> Any:
        """The labels as the factor needs them, an array whose last axis is that of targets; by
        default √v (y − mean), if all work depends on λ.
        """
        return labels.scaled

    @abstractmethod
    def coefficients(self, solution: "Solution", lams) -> tuple[Any, Any]:
        """Coefficients (L, c, t) of the expansion, and β (L, q, t) of the fixed effects."""

    def residual_norm(self, solution: "Solution", lams) -> Float[Array, "L t"]:
        """Σ vᵢ (yᵢ − f(xᵢ))², from the residuals of all rows, without cancellation."""
        return self.sweep(solution, lams, lambda r, R, v: jnp.sum(r * r, axis=0))

    @abstractmethod
    def data_fit(self, solution: "Solution", lams) -> Float[Array, "L t"]:
        """ỹᵀ P̃ ỹ, the smallest value of twice the objective over λ."""

    @abstractmethod
    def logdet(self, solution: "Solution", lams) -> Float[Array, "L k"]:
        """log of the product of the eigenvalues of K̃ + λI, over the dimensions in which the fit
        lives.
        """

    @abstractmethod
    def residual_dof(self, solution: "Solution", lams) -> Float[Array, "L k"]:
        """tr R, computed without cancellation."""

    @abstractmethod
    def sweep(self, solution: "Solution", lams, fn: Callable, *columns, stack: bool = False) -> Any:
        """Σ over blocks of rows of `fn(r (b, L, t), diagonal of R (b, L, k), v, *columns)`, for all
        λ from one reading of the rows. With `stack` the results (b, L, t) are stacked over blocks
        instead.
        """

    def view(self, solution: "Solution", lam: Float[Array, ""]) -> View:
        """R and r of all rows at one λ, as a `View`."""
        raise ValueError(self._lacks("does not support leaving groups or pairs out"))

    def landmarks_out(self, solution: "Solution", lams) -> Any:
        """For the landmarks that leave with their rows: d, ρ, α, the fit without the fixed effects,
        and R, (m, L, …), as `without_landmarks` takes them.
        """
        raise ValueError(self._lacks("has no landmarks"))

    def unseen(self, solution: "Solution", lams) -> Float[Array, "L n t"]:
        """y − f of all rows, predicted as if they were new: the held-out residual of a row of
        weight 0.
        """
        (kernel, rows), fixed = self.training, self.fixed
        coef, beta = (jnp.moveaxis(part, 0, 1) for part in self.coefficients(solution, lams))

        def block(x, b, Y):
            of_fixed = jax.vmap(lambda beta: fixed.fitted(b, beta), 1, 1)(beta)
            return Y[:, None] - times(self.expansion.design(kernel, x), coef) - of_fixed

        e = rows.map(block, fixed.rows, solution.labels.Y)
        return jnp.moveaxis(e, 1, 0)

    def spectrum(self) -> Any:
        """The factor as one with eigenvalues and left vectors, a `Spectrum`."""
        raise ValueError(self._lacks("has no spectrum"))


    def outcome(self, solution: "Solution", lams, groups: Folds | None, fn: Callable | None) -> Any:
        """`Solution.outcome`, from its parts, where a factor has no cheaper way or an estimate."""
        left_out = solution.residuals(lams, groups)
        return Outcome(solution.coefficients(lams), left_out, solution.dof(lams))

    def sweep_folds(
        self, solution: "Solution", fn: Callable, lams, folds: Folds, *, stack: bool = False
    ) -> Any:
        """`fn(e (b, L, t), labels, weights)` of the held-out residuals e of folds, summed over rows
        with λ leading, or stacked.

        Where folds have more rows than there are features, by fits to the other folds; else in
        closed form at one λ after another.
        """
        form = self.primal_form()
        if form is not None and folds.inside.shape[1] > form.turn.shape[1]:
            return sweep_other_folds(form, solution, fn, lams, folds, stack)
        mask = folds.inside_mask.astype(self.dtype)

        def held(lam, one):
            of: Any = self.view(one, lam), self.weights, folds.inside, mask
            return fold_residuals(*of) if self.parts == 1 else folds_in_chunks(self.parts, *of)

        def at(lam):
            e = folds.as_rows(solution.per_target(lam, held))
            return fn(e[:, None], solution.labels.Y, self.weights.array)

        return one_by_one(at, lams, stack)

    def primal_form(self) -> PrimalForm | None:
        """The factor in terms of features of its rows; None where it is one of K."""
        return None

    def _lacks(self, what: str) -> str:
        return f"a factor by route {self.route!r} {what}: use another solver, such as Spectral()"

    def solve(self, Y) -> "Solution":
        """Combine the factor with labels (n,) or (n, t) into a `Solution`, which serves any λ."""
        return self.solve_labels(Labels.of(Y, self.weights, self.fixed))

    def solve_labels(self, labels: Labels) -> "Solution":
        """`solve` for labels that were checked already."""
        return Solution(self, labels, self.project(labels))

    @property
    def has_residuals(self) -> bool:
        """Whether the factor gives held-out residuals."""
        return True

    def dof(self, lams) -> Float[Array, "L 1"]:
        """Effective degrees of freedom at every λ."""
        return self.solve_labels(Labels.none(self.weights, self.fixed)).dof(lams)

    def smallest_eigenvalue(self) -> Float[Array, ""]:
        """The smallest eigenvalue above the floor, where a grid of λ may end; the largest
        eigenvalue where none is above it.
        """
        s = self.eigenvalues
        return jnp.min(jnp.where(s > self.precision_floor(), s, jnp.max(s)))

    @property
    def eigenvalues(self) -> Array:
        """Those of K̃, in an array of any shape."""
        return self.spectrum().s

    @property
    def n(self) -> int:
        """Number of rows of X."""
        return self.weights.n

    @property
    def parts(self) -> int:
        """The number of equal parts in which the rows are stored, which may be on different
        devices.
        """
        return 1

    @property
    def dtype(self) -> Any:
        """The dtype of everything computed from the factor."""
        return self.weights.dtype

    @property
    def intercept(self) -> bool:
        """Whether a constant is fitted without penalty."""
        return self.fixed.one is not None

    @property
    def route(self) -> str:
        """How the factor was made, such as `"gram"`."""
        return self.report.route

    @property
    def points(self) -> Any:
        """The rows or landmarks that the coefficients belong to; None for explicit features."""
        return self.expansion.points

    @property
    def trace_residual(self) -> Any:
        """tr √v(K − K̂)√v on landmarks, else None."""
        return self.report.trace_residual

    def precision_floor(self) -> Float[Array, ""]:
        """The λ below which the rounding of the factor dominates."""
        return self.report.floor

    def with_floor(self, lams):
        """λ, with 0 replaced by `precision_floor`."""
        return jnp.where(lams == 0, self.precision_floor(), lams)

    def residual_dimensions(self) -> Float[Array, ""]:
        """The number of rows of positive weight, less one for each fixed effect."""
        return self.weights.count - self.fixed.rank


class AtLam(NamedTuple):
    """Results of a factor with labels at one λ; under `jax.jit` only those used are computed."""

    coef: Any  # (c, t)
    beta: Any  # (q, t)
    r: Any  # (n, t)
    R: Any  # its diagonal, (n, 1)
    fit: Any  # ỹᵀ P̃ ỹ, (t,)
    logdet: Any  # (1,)
    dof: Any  # tr R, (1,)
    steps: Any = None  # (steps, 1), how near to its solution every step of an iteration came


class OneByOne(Factor):
    """A factor that handles one λ after another."""

    @abstractmethod
    def at_lam(self, lam, one: "Solution") -> AtLam:
        """All results at one λ, for all targets of a solution."""

    def _each(self, solution, lams, fn):
        return solution.at_each(lams, lambda lam, one: fn(self.at_lam(lam, one)))

    def coefficients(self, solution, lams):
        """At one λ after another."""
        return self._each(solution, lams, lambda at: (at.coef, at.beta))

    def data_fit(self, solution, lams):
        """At one λ after another."""
        return self._each(solution, lams, lambda at: at.fit)

    def logdet(self, solution, lams):
        """At one λ after another."""
        return self._each(solution, lams, lambda at: at.logdet)

    def residual_dof(self, solution, lams):
        """At one λ after another."""
        return self._each(solution, lams, lambda at: at.dof)

    def sweep(self, solution, lams, fn, *columns, stack=False):
        """All rows, at one λ after another."""

        def at(lam):
            r, R = solution.per_target(lam, lambda lam, one: self.at_lam(lam, one)[2:4])
            return fn(r[:, None], R[:, None], self.weights.values, *columns)

        return one_by_one(at, lams, stack)


@pytree
class Solution:
    """A factor with labels: coefficients, residuals and sums at any λ.

    `Factor.solve` makes it. Methods take λ as (L,), or (L, t) with one for each target.

    Args:
        factor: the factor.
        labels: labels, minus their fit by the fixed effects.
        state: what the factor needs of the labels, from `Factor.project`.
        summed: features and their `Moments`, where the solution is made of these; else None.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(3), intercept=False)
    >>> solution = factor.solve([1.0, 2.0, 3.0])
    >>> solution.residuals([1.0]).tolist(), solution.dof([1.0]).tolist()
    ([[[1.0], [2.0], [3.0]]], [[1.5]])
    """

    factor: Factor
    labels: Labels
    state: Any  # what the factor makes of the labels
    summed: Any = None  # features and their moments, where it is made of them

    # λ and targets --------------------------------------------------------------------------------

    def columns(self, lams) -> Float[Array, "L k"]:
        """λ as columns (L, 1) or (L, t), checked against the targets."""
        return as_columns(lams, self.labels.Y.shape[1])

    def target(self, j: Any) -> "Solution":
        """The solution of target j alone."""
        labels, state = jax.tree.map(lambda a: a[..., j[None]], (self.labels, self.state))
        return replace(self, labels=labels, state=state)

    def per_target(self, lam: Float[Array, " k"], fn: Callable) -> Any:
        """`fn(λ, solution)` once for all targets where they share one λ, else for each target at
        its own; results (…, t).
        """
        if lam.shape[0] == 1:
            return fn(lam[0], self)
        each = jax.lax.map(lambda j: fn(lam[j], self.target(j)), jnp.arange(lam.shape[0]))
        return jax.tree.map(lambda a: jnp.moveaxis(a[..., 0], 0, -1), each)

    def at_each(self, lams: Float[Array, "L k"], fn: Callable) -> Any:
        """`per_target` at every λ, one after the other."""
        return jax.lax.map(lambda lam: self.per_target(lam, fn), lams)

    # sums over the fit ----------------------------------------------------------------------------

    def coefficients(self, lams) -> Coefficients:
        """Coefficients (L, c, t), intercept (L, t), and coefficients of other fixed effects (L, p,
        t) or None.
        """
        coef, beta = self.factor.coefficients(self, self.columns(lams))
        return Coefficients(coef, *self.factor.fixed.split(beta))

    def residual_norm(self, lams) -> Float[Array, "L t"]:
        """Σ vᵢ (yᵢ − f(xᵢ))², (L, t)."""
        return self.factor.residual_norm(self, self.columns(lams))

    def data_fit(self, lams) -> Float[Array, "L t"]:
        """ỹᵀ P̃ ỹ, (L, t)."""
        return self.factor.data_fit(self, self.columns(lams))

    def logdet(self, lams) -> Float[Array, "L k"]:
        """log of the product of the eigenvalues of K̃ + λI."""
        return self.factor.logdet(self, self.columns(lams))

    def residual_dof(self, lams) -> Float[Array, "L k"]:
        """Residual degrees of freedom, Σ (1 − leverage)."""
        return self.factor.residual_dof(self, self.columns(lams))

    def dof(self, lams) -> Float[Array, "L k"]:
        """Effective degrees of freedom, Σ leverage, those of fixed effects included."""
        return self.factor.weights.count - self.residual_dof(lams)

    # held-out rows -------------------------------------------------------------------------------

    def left_out(self, fn: Callable, lams, groups: Folds | None = None) -> Any:
        """Sum a function of held-out residuals over rows, for every λ, with each row, or each
        group, left out in turn.

        A held-out residual is yᵢ − f₍without i₎(xᵢ).

        Args:
            fn: `fn(residuals (b, t), labels (b, t), weights (b,))` of a block of rows, summed over
                these; it must give 0 for a weight of 0.
            lams: λ (L,), or (L, t) with one for each target.
            groups: `Folds` of rows that are left out together; None for single rows.

        Returns:
            What `fn` gives, summed, with a leading axis L. NaN inside `jax.jit` where the fixed
            effects cannot be fitted without a row or group.

        Raises:
            ValueError: outside `jax.jit`, where the fixed effects cannot be fitted without a row or
                group.
        """
        if groups is None and self.factor.exact:
            return self.rows_and_leverages(lambda e, _, Y, v: fn(e, Y, v), lams)
        lams = self.columns(lams)
        if groups is None:
            return self.estimated(lams, fn).total
        each = jax.vmap(fn, in_axes=(1, None, None))
        return self.with_rest(self.factor.sweep_folds(self, each, lams, groups), groups)

    def rows_and_leverages(self, fn: Callable, lams) -> Any:
        """Sum a function of held-out residuals and leverages over rows, for every λ: `left_out` of
        single rows with one more argument.

        v/λ · (1 − leverage) is one over the variance of a label given all others. For a row that is
        a landmark it belongs to the fit without this landmark.

        Args:
            fn: `fn(residuals, remaining, labels, weights)`, with `remaining` = 1 − leverage, (b, 1)
                or (b, t).
            lams: λ (L,), or (L, t).

        Returns:
            The sums, as `left_out` gives them.

        Raises:
            ValueError: as `left_out` does.
        """
        lams, f = self.columns(lams), self.factor
        each = jax.vmap(fn, in_axes=(1, 1, None, None))
        counted = f.weights if f.indices is None else f.weights.without(f.indices)

        def block(r, R, v, counted, Y):
            own = f.weights.block(counted, len(Y))
            e, remaining = held_out(r, R, v)
            if counted is not None:
                e = jnp.where(own.used[:, None, None], e, 0)
            return each(e, remaining, Y, own.array)

        total = f.sweep(self, lams, block, counted.values, self.labels.Y)
        if f.indices is not None:
            Y, v = self.labels.Y[f.indices], f.weights.array[f.indices]
            found = lambda lams: self.without_landmarks(f.landmarks_out(self, lams))
            landmarks = lambda lams: each(*found(lams), Y, v)

            more = over_lams(landmarks, lams, Y.shape[1] if f.shares_work else COLUMNS_AT_ONCE)
            total = jax.tree.map(jnp.add, total, more)
        return self.with_rest(total, None)

    def residuals(self, lams, groups: Folds | None = None) -> Float[Array, "L n t"]:
        """Held-out residuals of every row, those of weight 0 included: yᵢ − f₍without i, or its
        group₎(xᵢ).

        Args:
            lams: λ (L,), or (L, t) with one for each target.
            groups: `Folds` of rows that are left out together; None for single rows.

        Returns:
            (L, n, t), in units of Y; inside `jax.jit` NaN for a row if the fixed effects cannot be
            fitted without it or its group.

        Raises:
            ValueError: outside `jax.jit`, where that is so for some row.
        """
        lams, f = self.columns(lams), self.factor
        f.fixed.check_rest(f.weights, groups)
        if groups is not None:
            e = f.sweep_folds(self, lambda e, Y, v: e, lams, groups, stack=True)
            e = jnp.moveaxis(e, 1, 0)
        elif not f.exact:
            return self.estimated(lams).residuals
        else:
            e = f.sweep(self, lams, lambda r, R, v: held_out(r, R, v)[0], stack=True)
            e = jnp.moveaxis(e, 1, 0)
            if f.weights.values is not None:
                e = jnp.where(f.weights.used[:, None], e, f.unseen(self, lams))
            if f.indices is not None:
                landmarks, _ = self.without_landmarks(f.landmarks_out(self, lams))
                e = e.at[:, f.indices].set(jnp.moveaxis(landmarks, 1, 0))
        if not f.fixed.count:
            return e
        rest = f.fixed.has_rest(f.weights, groups)
        rest = rest if groups is None else rest[groups.numbers]
        return jnp.where(rest[:, None], e, jnp.nan)

    def without_landmarks(self, found) -> tuple[Any, Any]:
        """Held-out residuals of rows that are landmarks and leave as such too, and 1 − leverage in
        the fit without the landmark, from `Factor.landmarks_out`.

        d, ρ and α are the products of a constraint with itself, with its row and with the labels,
        all in the same coordinates of M: e = (d (y − f) + ρα)/(dRᵢᵢ + vρ²).
        """
        f, (d, rho, alpha, fitted, remaining) = self.factor, found
        residual = (self.labels.Y - self.labels.mean)[f.indices][:, None] - fitted
        remaining = d * remaining + f.weights.array[f.indices][:, None, None] * rho * rho
        return (d * residual + rho * alpha) / remaining, remaining / d

    def estimated(self, lams, fn: Callable | None = None) -> Outcome:
        """The `Outcome` with single rows left out, of a factor that estimates it."""
        if not self.factor.has_residuals:
            raise ValueError(
                "leave-one-out needs probes, and the solver has probes=0: give probes=32, a "
                "single λ as lams=, or criterion=holdout(X, Y)"
            )
        return self.factor.outcome(self, lams, None, fn)

    def training_residuals(self, lams) -> Float[Array, "L n t"]:
        """Training residuals √v (y − f) of every row."""
        r = self.factor.sweep(self, self.columns(lams), lambda r, R, v: r, stack=True)
        return jnp.moveaxis(r, 1, 0)

    def outcome(self, lam, groups: Folds | None = None, fn: Callable | None = None) -> Outcome:
        """Coefficients, held-out residuals and degrees of freedom at one λ, or one per target; and
        the standard error of `left_out(fn)`, where that is an estimate.
        """
        return self.factor.outcome(self, self.columns(lam), groups, fn)

    def with_rest(self, total, groups: Folds | None = None):
        """`total`, if the fixed effects can be fitted without each row, or group. Otherwise an
        error, or NaN inside `jax.jit`.
        """
        f = self.factor
        if not f.fixed.count:
            return total
        f.fixed.check_rest(f.weights, groups)
        defined = jnp.all(f.fixed.has_rest(f.weights, groups))
        return jax.tree.map(lambda a: jnp.where(defined, a, jnp.nan), total)


def held_out(r, R, v):
    """e = r/(R√v) of rows, and R; 0 and 1 for rows of weight 0, with finite derivatives."""
    own = Weights(v, len(r), r.dtype)
    R = jnp.where(own.used[:, None, None], R, 1)
    return own.unscale(r / R), R


def as_columns(lams, t: int | None = None) -> Float[Array, "L k"]:
    """λ (L,) as one column for all targets, (L, 1); one λ per target, (L, t), as it is."""
    lams = jnp.asarray(lams)
    if lams.ndim not in (1, 2) or lams.ndim == 2 and t and lams.shape[1] not in (1, t):
        raise ValueError(
            f"lams must have shape (L,), or (L, {t or 't'}) with a λ for each target, and has "
            f"shape {lams.shape}"
        )
    return lams[:, None] if lams.ndim == 1 else lams


def over_lams(fn: Callable, lams: Float[Array, "L k"], columns: int):
    """`fn` of all λ, results with a leading axis L: in equal chunks of λ, so that at most
    `COLUMNS_AT_ONCE` matrix columns, `columns` for each λ, are in memory at once.
    """
    chunks = -(-len(lams) // max(1, COLUMNS_AT_ONCE // max(1, columns)))
    return fn(lams) if chunks == 1 else map_blocks(fn, *split(lams, -(-len(lams) // chunks)))


def one_by_one(fn: Callable, lams: Float[Array, "L k"], stack: bool) -> Any:
    """`fn` of one λ after another, each as an axis of length one: sums with λ leading, or with
    `stack` rows, (n, L, …).
    """
    out = jax.lax.map(lambda lam: jax.tree.map(lambda a: a[:, 0] if stack else a[0], fn(lam)), lams)
    return jnp.moveaxis(out, 0, 1) if stack else out


def times(A: Float[Array, "b r"], B: Float[Array, "r L t"]) -> Float[Array, "b L t"]:
    """A times every B[:, l], as one product."""
    return matmul(A, B.reshape(B.shape[0], -1)).reshape(A.shape[0], *B.shape[1:])
