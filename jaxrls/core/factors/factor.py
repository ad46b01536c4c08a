"""What every factor can do: a `Factor` is made without λ and labels; with labels it is a
`Solution`, which gives coefficients, residuals and sums at any λ.

K̃ = √v K √v and ỹ = √v (y − mean), with the mean that the fixed effects alone fit; P̃ is the
inverse of K̃ + λI with the fixed effects projected out.

A new factor is one class that gives its coefficients, sums and residuals at some λ, and the
residual operator R as a `View`. Criteria and searches use the `Solution` only.

Held-out residuals are the same by whichever of these a factor can give most cheaply:

| what leaves | asked by | how |
|---|---|---|
| each row, summed | `sum_left_out_rows` | e = r/(R√v) from a `sweep` over rows, for all λ |
| each row, as it is | `held_out_rows` | the same; `query_residuals` for rows of weight 0 |
| folds of few rows | `sweep_folds` | a solve with R_SS of a `view`, `core/leave_out`, for each λ |
| folds of more rows than features | `sweep_folds` | fits to other rows from `primal_form` |
| large folds, all of K, many λ | `DenseSpectrum.sweep_folds` | fits to the other rows |
| pairs, and rows for intervals | `view` | solves with R_SS, in the rooms |
| landmarks with their rows | `landmarks/held_out.py` | one more index of R for each |
| each row, by an iteration | `outcome` | an estimate with its standard error |

Callers hand in functions of blocks of rows: `OfResiduals`, `OfLeftOut`, `OfLeftOutRows` and
`OfFolds` of `lams.py`.

Theory: `docs/theory.md`, "One matrix".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import Data, FixedEffects, Folds, Labels, Weights
from jaxrls.core.factors.expansion import Expansion
from jaxrls.core.factors.lams import (
    Lams,
    OfFolds,
    OfLeftOut,
    OfLeftOutRows,
    OfResiduals,
    PerLam,
    PerRow,
    PerTarget,
    one_by_one,
)
from jaxrls.core.factors.refits import PrimalForm, sweep_primal_refits
from jaxrls.core.factors.solution import Outcome, Solution
from jaxrls.core.leave_out import View, fold_residuals
from jaxrls.core.linalg import Number, matmul


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

    data: Data  # rows that the factor reads, of X, of features or of U; weights, fixed effects
    expansion: Expansion
    report: Any  # a `Report`
    training: Any = None  # (kernel, rows), to predict the rows as if they were new
    indices: Any = None  # numbers of the rows that are landmarks and leave with them
    directions: Any  # of a spectrum, (c, r): the coefficients of every direction
    jitter_effect: Callable  # where the report has jitter: how far it moves the fit
    shares_work: ClassVar[bool] = False  # whether several λ take hardly more than one
    exact: ClassVar[bool] = True  # whether results are exact, so that λ can be searched by slopes
    has_residuals: Any = True  # whether the factor gives held-out residuals

    # what a factor gives --------------------------------------------------------------------------

    @abstractmethod
    def trace(self) -> Number:
        """The sum of the eigenvalues of K̃ with the fixed effects projected out."""

    def project(self, labels: Labels) -> Any:
        """The labels as the factor needs them, an array whose last axis is that of targets; by
        default √v (y − mean), if all work depends on λ.
        """
        return labels.scaled

    @abstractmethod
    def coefficients(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """Coefficients (L, c, t) of the expansion, and β (L, q, t) of the fixed effects."""

    def residual_norm(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Σ vᵢ (yᵢ − f(xᵢ))², from the residuals of all rows, without cancellation."""
        return self.sweep(solution, lams, lambda r, diagonal, v: jnp.sum(r * r, axis=0))

    @abstractmethod
    def data_fit(self, solution: Solution, lams: PerLam) -> PerTarget:
        """ỹᵀ P̃ ỹ: twice the least value of the objective, divided by λ."""

    @abstractmethod
    def logdet(self, solution: Solution, lams: PerLam) -> PerLam:
        """log |K̃ + λI| over the rows of positive weight, with the dimensions of the fixed effects
        left out.
        """

    @abstractmethod
    def residual_dof(self, solution: Solution, lams: PerLam) -> PerLam:
        """tr R, computed without cancellation."""

    @abstractmethod
    def sweep(
        self, solution: Solution, lams: PerLam, fn: OfResiduals, *columns, stack: bool = False
    ) -> Any:
        """Σ over blocks of rows of `fn(r (b, L, t), diagonal of R (b, L, k), v, *columns)`, for all
        λ from one reading of the rows. With `stack` the results (b, L, t) are stacked over blocks
        instead.
        """

    def view(self, solution: Solution, lam: Number) -> View:
        """R and r of all rows at one λ, as a `View`."""
        raise ValueError(self.refusal("does not support leaving groups or pairs out"))

    def primal_form(self) -> PrimalForm | None:
        """The factor in terms of features of its rows; None where it is one of K."""
        return None

    def spectrum(self) -> Any:
        """The factor as one with eigenvalues and left vectors, a `Spectrum`."""
        raise ValueError(self.refusal("has no spectrum"))

    # held-out rows --------------------------------------------------------------------------------

    def sum_left_out_rows(
        self, solution: Solution, fn: OfLeftOutRows, lams: PerLam, counted: Weights | None = None
    ) -> Any:
        """Σ over rows of `fn(held-out residuals, 1 − leverage, labels, weights)` for all λ; only
        over rows of positive weight among those `counted`, by default all.
        """
        counted = self.weights if counted is None else counted
        of_all_lams = jax.vmap(fn, in_axes=(1, 1, None, None))

        def of_block(
            r: Float[Array, "b L t"],
            diagonal: Float[Array, "b L k"],
            v: Float[Array, " b"] | None,
            counted_v: Float[Array, " b"] | None,
            Y: Float[Array, "b t"],
        ) -> Any:
            counts = self.weights.block(counted_v, len(Y))
            e, remaining = held_out(r, diagonal, self.weights.block(v, len(Y)))
            if counted_v is not None:
                e = jnp.where(counts.used[:, None, None], e, 0)
            return of_all_lams(e, remaining, Y, counts.array)

        return self.sweep(solution, lams, of_block, counted.values, solution.labels.Y)

    def held_out_rows(self, solution: Solution, lams: PerLam) -> PerRow:
        """Held-out residuals of single rows; those of weight 0 as if they were new, but for
        padding, of which nothing is asked.
        """
        of_block = lambda r, diagonal, v: held_out(r, diagonal, self.weights.block(v, len(r)))[0]
        e = jnp.moveaxis(self.sweep(solution, lams, of_block, stack=True), 1, 0)
        if self.weights.values is None or self.weights.padded:
            return e
        return jnp.where(self.weights.used[:, None], e, self.query_residuals(solution, lams))

    def query_residuals(self, solution: Solution, lams: PerLam) -> PerRow:
        """y − f of all rows, predicted as if they were new: the held-out residual of a row of
        weight 0.
        """
        kernel, rows = self.training
        fixed = self.fixed
        fits = self.coefficients(solution, lams)

        def of_block(x: Any, b: Any, Y: Float[Array, "b t"]) -> Float[Array, "b L t"]:
            design = self.expansion.design(kernel, x)
            missed = lambda coef, beta: Y - matmul(design, coef) - fixed.fitted(b, beta)
            return jax.vmap(missed, out_axes=1)(*fits)

        return jnp.moveaxis(rows.map(of_block, fixed.values, solution.labels.Y), 1, 0)

    def sweep_folds(
        self, solution: Solution, fn: OfFolds, lams: PerLam, folds: Folds, *, stack: bool = False
    ) -> Any:
        """`fn(e (b, L, t), labels, weights)` of the held-out residuals e of folds, summed over rows
        with λ leading, or stacked.

        Where folds have more rows than there are features, by fits to the rows that stay; else in
        closed form at one λ after another.
        """
        form = self.primal_form()
        if form is not None and folds.inside.shape[1] > form.turn.shape[1]:
            return sweep_primal_refits(form, solution, fn, lams, folds, stack)

        def left_out(lam: Number, solution: Solution) -> Float[Array, "k b t"]:
            return fold_residuals(self.view(solution, lam), self.weights, folds, self.shards)

        def of_lam(lam: Float[Array, " k"]) -> Any:
            e = folds.as_rows(solution.per_target(lam, left_out))
            return fn(e[:, None], solution.labels.Y, folds.weights_of_predicted(self.weights).array)

        return one_by_one(of_lam, lams, stack)

    def raise_floor(self, folds: Folds | None) -> "Factor":
        """The factor, with a floor above which these folds can be held out, or single rows."""
        return self

    def outcome(
        self, solution: Solution, lams: PerLam, groups: Folds | None, fn: OfLeftOut | None
    ) -> Any:
        """`Solution.outcome`, from its parts, where a factor has no cheaper way or an estimate."""
        e = solution.held_out_residuals(lams, groups)
        return Outcome(self.coefficients(solution, lams), e, solution.dof(lams))

    # with labels ----------------------------------------------------------------------------------

    def solve(self, Y: Any) -> Solution:
        """Combine the factor with labels (n,) or (n, t) into a `Solution`, which serves any λ."""
        return self.solve_labels(Labels.of(Y, self.weights, self.fixed))

    def solve_labels(self, labels: Labels) -> Solution:
        """`solve` for labels that were checked already."""
        return Solution(self, labels, self.project(labels))

    def dof(self, lams: Lams) -> Float[Array, "L 1"]:
        """Effective degrees of freedom at every λ."""
        return self.solve_labels(Labels.none(self.weights, self.fixed)).dof(lams)

    # what it is of --------------------------------------------------------------------------------

    def smallest_eigenvalue(self) -> Number:
        """The smallest eigenvalue above the floor, where a grid of λ may end; the largest
        eigenvalue where none is above it.
        """
        s = self.eigenvalues
        return jnp.min(jnp.where(s > self.precision_floor(), s, jnp.max(s)))

    @property
    def eigenvalues(self) -> Array:
        """Those of (I − HHᵀ) K̃ (I − HHᵀ), in an array of any shape."""
        return self.spectrum().s

    @property
    def weights(self) -> Weights:
        """Those of the rows."""
        return self.data.weights

    @property
    def fixed(self) -> FixedEffects:
        """The fixed effects, an intercept among them."""
        return self.data.fixed

    @property
    def fixed_basis(self) -> Float[Array, "n q"]:
        """B T⁻¹ of all rows, the fixed effects' part of M but for weights."""
        return self.fixed.basis(self.fixed.values, self.n)

    @property
    def H(self) -> Float[Array, "n q"]:
        """√v B = H T."""
        return self.weights.scale(self.fixed_basis)

    @property
    def n(self) -> int:
        """Number of rows of X."""
        return self.weights.n

    @property
    def shards(self) -> int:
        """The number of equal parts in which the rows are stored, which may be on different
        devices.
        """
        return self.data.rows.shards

    @property
    def dtype(self) -> Any:
        """The dtype of everything computed from the factor."""
        return self.weights.dtype

    @property
    def sample_array(self) -> Any:
        """One of its arrays, whose precision and library results of the factor have."""
        arrays = [
            leaf for leaf in jax.tree.leaves(self) if isinstance(leaf, jax.Array | np.ndarray)
        ]
        real = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
        return real[0] if real else jnp.zeros((), self.dtype)

    @property
    def intercept(self) -> bool:
        """Whether a constant is fitted without penalty."""
        return self.fixed.has_constant

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

    def precision_floor(self) -> Number:
        """The λ below which the rounding of the factor dominates."""
        return self.report.floor

    def zero_as_floor(self, lams: Float[Array | np.ndarray, "L *k"]) -> Float[Array, "L *k"]:
        """λ, with 0 replaced by `precision_floor`."""
        return jnp.where(lams == 0, self.precision_floor(), lams)

    def residual_dimensions(self) -> Number:
        """The number of rows of positive weight, less one for each fixed effect."""
        return self.weights.count - self.fixed.rank

    def refusal(self, what: str) -> str:
        """The words of a refusal."""
        return f"a factor by route {self.route!r} {what}: use another solver, such as Spectral()"


class AtLam(NamedTuple):
    """Results of a factor with labels at one λ; under `jax.jit` only those used are computed."""

    coef: Any  # (c, t)
    beta: Any  # (q, t)
    data_fit: Any  # ỹᵀ P̃ ỹ; of features ‖w‖², (t,)
    logdet: Any  # (1,)
    residual_dof: Any  # tr R, (1,)
    residuals: Any = None  # r, (n, t)
    diagonal: Any = None  # of R, (n, 1)


class OneByOne(Factor):
    """A factor that handles one λ after another."""

    @abstractmethod
    def at_lam(self, lam: Number, solution: Solution) -> AtLam:
        """All results at one λ, for all targets of a solution."""

    def _at_lams(self, solution: Solution, lams: PerLam, *names: str) -> Any:
        """These results at one λ after another."""
        named = attrgetter(*names)
        return solution.at_each(lams, lambda lam, solution: named(self.at_lam(lam, solution)))

    def coefficients(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """At one λ after another."""
        coef, beta = self._at_lams(solution, lams, "coef", "beta")
        report = self.report
        beta = report.where_informative(beta, solution.labels.beta)
        return report.where_informative(coef), beta

    def data_fit(self, solution: Solution, lams: PerLam) -> PerTarget:
        """At one λ after another."""
        return self._at_lams(solution, lams, "data_fit")

    def logdet(self, solution: Solution, lams: PerLam) -> PerLam:
        """At one λ after another."""
        return self._at_lams(solution, lams, "logdet")

    def residual_dof(self, solution: Solution, lams: PerLam) -> PerLam:
        """At one λ after another."""
        return self._at_lams(solution, lams, "residual_dof")

    def sweep(
        self, solution: Solution, lams: PerLam, fn: OfResiduals, *columns, stack: bool = False
    ) -> Any:
        """All rows, at one λ after another."""
        results = attrgetter("residuals", "diagonal")
        of_rows = lambda lam, solution: results(self.at_lam(lam, solution))

        def of_lam(lam: Float[Array, " k"]) -> Any:
            r, diagonal = solution.per_target(lam, of_rows)
            return fn(r[:, None], diagonal[:, None], self.weights.values, *columns)

        return one_by_one(of_lam, lams, stack)


def held_out(
    r: Float[Array, "b L t"], diagonal: Float[Array, "b L k"], weights: Weights
) -> tuple[Any, Any]:
    """e = r/(R√v) of rows, and the diagonal of R; 0 and 1 for rows of weight 0, with finite
    derivatives.
    """
    if weights.values is not None:
        diagonal = jnp.where(weights.used[:, None, None], diagonal, 1)
    return weights.unscale(r / diagonal), diagonal
