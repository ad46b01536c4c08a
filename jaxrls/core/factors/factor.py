"""What every factor can do: the base classes `Factor` and `OneByOne`.

A `Factor` is a factorization of one kernel for given rows, weights and fixed effects. It knows
neither λ nor labels. With labels it is a `Solution`, which gives coefficients, residuals and sums
at any λ. Criteria and searches are given the `Solution`.

A new factor is one class. It defines coefficients, sums and residuals at given λ, and it gives the
residual operator R as a `View`. Begin with `Factor`. `OneByOne` is for factors that handle one λ
after another.

Notation, with sample weights v:

    √v B = H T               the fixed effects B, with an orthonormal H
    K̃ = √v K √v
    ỹ = √v (y − mean)        mean is the fit of the fixed effects alone. R and P̃ remove it anyway,
                             so that `docs/theory.md` writes ỹ = √v y
    P̃                        the inverse of K̃ + λI with the fixed effects projected out. The
                             docstring of `Evidence` calls √v P̃ √v so
    r = √v (y − f)           residuals
    R                        the residual operator, I minus the hat matrix: r = Rỹ

Axes: n rows, b rows of a block, L values of λ, t targets, c coefficients, q fixed effects, and r
features or directions.

All ways to compute held-out residuals give the same numbers. A factor takes the cheapest:

| rows that are held out | method | how |
|---|---|---|
| single rows, summed over | `sum_held_out_rows` | e = r/(R√v) from a `sweep` over rows, for all λ |
| single rows, one by one | `held_out_rows` | the same; `query_residuals` for rows of weight 0 |
| folds of few rows | `sweep_folds` | a solve with R_SS of a `view` for each λ, `core/leave_out` |
| folds of more rows than features | `sweep_folds` | fits to the other rows, from `primal_form` |
| large folds, all of K, many λ | `GramSpectrum.sweep_folds` | fits to the other rows |
| pairs, and rows for intervals | `view` | the caller solves with R_SS |
| landmarks with their rows | `landmarks/held_out.py` | one more index of R for each landmark |
| single rows, by an iteration | `iterative/by_products.py` | an estimate with its standard error |

`sum_held_out` and `held_out_residuals` choose among them.

Several methods take a function of a block of rows, and a reduction: `SUM` adds its results over
blocks, and `MAP` concatenates them. `residuals.py` says what these functions get.

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

from jaxrls.core.data import Data, DataBlock, FixedEffects, Folds, Labels, Weights
from jaxrls.core.factors.expansion import Expansion
from jaxrls.core.factors.lams import (
    Lams,
    PerLam,
    PerRow,
    PerTarget,
    one_by_one,
)
from jaxrls.core.factors.refits import PrimalForm, sweep_primal_refits
from jaxrls.core.factors.residuals import HeldOut, RowLabels, Summand
from jaxrls.core.factors.solution import Outcome, Solution
from jaxrls.core.leave_out import View, fold_residuals
from jaxrls.core.linalg import MAP, SUM, Number, Reduction, matmul


class Factor(ABC):
    """A factorization of one kernel for given rows, weights and fixed effects: the base class.

    A factor knows neither λ nor labels. `factorize` makes it, and `factor.route` says how it was
    made.

    Methods take labels as a `Solution` of this factor. They take λ as columns (L, k): k = 1 if all
    targets share λ, and k = t if each target has its own.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(3))
    >>> factor.n, factor.route, factor.intercept
    (3, 'gram', True)
    """

    data: Data  # the rows of X, or of features of X, with weights and fixed effects
    expansion: Expansion  # what the coefficients multiply
    report: Any  # a `Report`: how the factor was made, and its floor
    kernel: Any  # the kernel of f, to predict the rows as if they were new
    indices: Any = None  # row numbers of landmarks that are held out with their row; else None
    directions: Any  # a `Spectrum` only: the coefficients (c, r) of every direction
    jitter_effect: Callable  # factors with jitter only: how far the jitter moves the fit
    shares_work: ClassVar[bool] = False  # whether many λ cost hardly more than one
    exact: ClassVar[bool] = True  # False if held-out residuals are estimates, without slopes in λ
    has_residuals: Any = True  # whether there are held-out residuals, exact or estimated
    index: ClassVar[Any] = None  # the pandas index of the rows; see `with_index`

    # what a factor gives --------------------------------------------------------------------------

    @abstractmethod
    def trace(self) -> Number:
        """Return the sum of the eigenvalues of K̃ with the fixed effects projected out."""

    def state_of(self, labels: Labels) -> Any:
        """Return what the factor needs of the labels, an array whose last axis is that of targets.

        The default is `labels.scaled`, for factors whose work all depends on λ.
        """
        return labels.scaled

    @abstractmethod
    def coef_and_beta(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """Return the coefficients (L, c, t) of the expansion, and β (L, q, t) of the fixed
        effects.
        """

    def residual_norm(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute Σ vᵢ (yᵢ − f(xᵢ))² from the residuals of all rows, which avoids cancellation."""
        return self.sweep(SUM, solution, lams, lambda residuals: jnp.sum(residuals.r**2, axis=0))

    @abstractmethod
    def data_fit(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute ỹᵀ P̃ ỹ, which is 2/λ times the least value of the objective."""

    @abstractmethod
    def logdet(self, solution: Solution, lams: PerLam) -> PerLam:
        """Compute log |K̃ + λI| over the rows of positive weight.

        The determinant leaves out the dimensions of the fixed effects.
        """

    @abstractmethod
    def residual_dof(self, solution: Solution, lams: PerLam) -> PerLam:
        """Compute tr R over the rows of positive weight."""

    @abstractmethod
    def sweep(self, reduction: Reduction, solution: Solution, lams: PerLam, fn: Callable) -> Any:
        """Sum or map `fn(residuals)` over blocks of rows, for all λ in one pass over the rows.

        `fn` gets the `Residuals` of a block. Its results have an axis of λ: the first axis for
        `SUM`, the second for `MAP`, after that of rows.
        """

    def view(self, solution: Solution, lam: Number) -> View:
        """Return R and r of all rows at one λ, as a `View`."""
        raise ValueError(self.refusal("does not support leaving groups or pairs out"))

    def primal_form(self) -> PrimalForm | None:
        """Return the factor in terms of features of its rows; None for a factor of K."""
        return None

    def spectrum(self) -> Any:
        """Return the factor as a `Spectrum`, which has eigenvalues and left vectors."""
        raise ValueError(self.refusal("has no spectrum"))

    # held-out rows --------------------------------------------------------------------------------

    def sum_held_out(
        self, solution: Solution, lams: PerLam, summand: Summand, folds: Folds | None
    ) -> Any:
        """Sum `summand` over rows that are held out, by fold or, without folds, one by one."""
        if folds is None:
            return self.sum_held_out_rows(solution, lams, summand)
        return self.sweep_folds(SUM, solution, lams, summand, folds)

    def held_out_residuals(self, solution: Solution, lams: PerLam, folds: Folds | None) -> PerRow:
        """Compute the held-out residual of every row, NaN for a row that no split predicts."""
        if folds is None:
            return self.held_out_rows(solution, lams)
        e = self.sweep_folds(MAP, solution, lams, lambda held: held.e, folds)
        return e if folds.are_groups else jnp.where(folds.predicted[:, None, None], e, jnp.nan)

    def sum_held_out_rows(self, solution: Solution, lams: PerLam, summand: Summand) -> Any:
        """Sum `summand` over single rows that are held out, for all λ.

        Rows that do not count have e = 0.
        """
        of_block = lambda residuals: residuals.held_out().at_each_lam(SUM, summand)
        return self.sweep(SUM, solution, lams, of_block)

    @property
    def counted(self) -> Weights:
        """The weights of rows that are held out alone, 0 for rows held out with their landmark."""
        return self.weights if self.indices is None else self.weights.without(self.indices)

    def labels_of_rows(self, solution: Solution) -> RowLabels:
        """Return what a sweep reads of all rows besides `data`."""
        return RowLabels(solution.labels.Y, solution.labels.scaled, self.counted.values)

    def held_out_rows(self, solution: Solution, lams: PerLam) -> PerRow:
        """Compute the held-out residual of every row.

        A row of weight 0 is predicted as if it were new. Padding is not: its residuals are 0.
        """
        e = self.sweep(MAP, solution, lams, lambda residuals: residuals.held_out().e)
        if self.weights.are_equal:
            return e
        return jnp.where(self.weights.used[:, None, None], e, self.query_residuals(solution, lams))

    def query_residuals(self, solution: Solution, lams: PerLam) -> PerRow:
        """Compute y − f of all rows, each predicted as if it were new.

        For a row of weight 0 this is its held-out residual.
        """
        fixed = self.fixed
        fits = self.coef_and_beta(solution, lams)

        def of_block(block: DataBlock) -> Float[Array, "b L t"]:
            design = self.expansion.design(self.kernel, block.x)
            Y = block.added
            missed_at = lambda coef, beta: Y - matmul(design, coef) - fixed.fitted(block.b, beta)
            return jax.vmap(missed_at, out_axes=1)(*fits)

        return self.data.map(of_block, solution.labels.Y)

    def sweep_folds(
        self, reduction: Reduction, solution: Solution, lams: PerLam, fn: Callable, folds: Folds
    ) -> Any:
        """Sum or map `fn(held)` over rows that are held out by fold, for all λ.

        `fn` takes `HeldOut` at one λ.

        Folds of more rows than there are features take fits to the other rows. Smaller folds take
        the closed form, for one λ after another.
        """
        form = self.primal_form()
        if form is not None and folds.width > form.rotation.shape[1]:
            return sweep_primal_refits(reduction, form, solution, lams, fn, folds)

        def left_out(lam: Number, solution: Solution) -> Float[Array, "k b t"]:
            return fold_residuals(self.view(solution, lam), self.weights, folds, self.shards)

        def of_lam(lam: Float[Array, " k"]) -> Any:
            e = folds.in_row_order(solution.per_target(lam, left_out))
            v = folds.weights_of_predicted(self.weights).array
            held = HeldOut(e[:, None], None, solution.labels.Y, v)
            return held.at_each_lam(reduction, fn)

        return one_by_one(reduction, of_lam, lams)

    def raise_floor(self, folds: Folds | None) -> "Factor":
        """Return the factor with a floor from which on these folds are held out exactly.

        `folds` is None for single rows. By default the floor stays as it is.
        """
        return self

    def outcome(
        self, solution: Solution, lams: PerLam, folds: Folds | None, summand: Summand | None
    ) -> Any:
        """Compute the `Outcome` that `Solution.outcome` returns.

        The default assembles it from its parts. A factor that has a cheaper way, or that only
        estimates held-out residuals, overrides this method.
        """
        e = self.held_out_residuals(solution, lams, folds)
        coef, beta = self.coef_and_beta(solution, lams)
        return Outcome(coef, beta, jnp.moveaxis(e, 1, 0), solution.dof(lams))

    # with labels ----------------------------------------------------------------------------------

    def solve(self, Y: Any) -> Solution:
        """Combine the factor with labels (n,) or (n, t) into a `Solution`, which serves any λ."""
        return self.solve_labels(Labels.of(Y, self.weights, self.fixed))

    def solve_labels(self, labels: Labels) -> Solution:
        """Return the `Solution` for labels that were checked already."""
        return Solution(self, labels, self.state_of(labels))

    def dof(self, lams: Lams) -> Float[Array, "L 1"]:
        """Return the effective degrees of freedom at every λ."""
        return self.solve_labels(Labels.none(self.weights, self.fixed)).dof(lams)

    # properties of the problem and of the factor --------------------------------------------------

    def smallest_eigenvalue(self) -> Number:
        """Return the smallest eigenvalue above the floor, where a grid of λ may end.

        If no eigenvalue is above the floor, it is the largest one.
        """
        s = self.eigenvalues
        return jnp.min(jnp.where(s > self.precision_floor(), s, jnp.max(s)))

    @property
    def eigenvalues(self) -> Array:
        """The eigenvalues of (I − HHᵀ) K̃ (I − HHᵀ), in an array of any shape."""
        return self.spectrum().s

    @property
    def weights(self) -> Weights:
        """The weights of the rows."""
        return self.data.weights

    @property
    def fixed(self) -> FixedEffects:
        """The fixed effects, an intercept among them."""
        return self.data.fixed

    @property
    def fixed_basis(self) -> Float[Array, "n q"]:
        """B T⁻¹ for all rows: H without the factor √v."""
        return self.fixed.basis(self.fixed.values, self.n)

    @property
    def H(self) -> Float[Array, "n q"]:
        """An orthonormal basis H of the weighted fixed effects, √v B = H T."""
        return self.weights.scale(self.fixed_basis)

    @property
    def n(self) -> int:
        """The number of rows of X."""
        return self.weights.n

    @property
    def shards(self) -> int:
        """The number of equal parts in which the rows are stored, perhaps on different devices."""
        return self.data.rows.shards

    @property
    def dtype(self) -> Any:
        """The dtype of everything computed from the factor."""
        return self.weights.dtype

    @property
    def sample_array(self) -> Any:
        """One of the factor's arrays. Results have its precision and are arrays of its library."""
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
        """How the factor was made, for example `"gram"`."""
        return self.report.route

    @property
    def points(self) -> Any:
        """The rows or landmarks that the coefficients belong to; None for explicit features."""
        return self.expansion.points

    @property
    def trace_residual(self) -> Any:
        """tr √v (K − K̂) √v of a factor on landmarks with the approximation K̂ of K; else None."""
        return self.report.trace_residual

    def precision_floor(self) -> Number:
        """Return the λ below which the rounding of the factor dominates."""
        return self.report.floor

    def zero_as_floor(self, lams: Float[Array | np.ndarray, "L *k"]) -> Float[Array, "L *k"]:
        """Return λ, with 0 replaced by `precision_floor`."""
        return jnp.where(lams == 0, self.precision_floor(), lams)

    def residual_dimensions(self) -> Number:
        """Return the number of rows of positive weight, less one for each fixed effect."""
        return self.weights.count - self.fixed.rank

    def refusal(self, what: str) -> str:
        """Return an error message: what a factor by this route lacks, and which solver to try."""
        return f"a factor by route {self.route!r} {what}: use another solver, such as Spectral()"


class AtLam(NamedTuple):
    """The results of a factor with labels at one λ, except those of single rows.

    Under `jax.jit` only those that are used are computed.
    """

    coef: Any  # (c, t)
    beta: Any  # (q, t)
    logdet: Any  # (1,)
    residual_dof: Any  # (1,), tr R


class OneByOne(Factor):
    """The base class of factors that handle one λ after another."""

    @abstractmethod
    def at_lam(self, lam: Number, solution: Solution) -> Any:
        """Compute the results at one λ, for all targets of a solution.

        They are an `AtLam`, or a tuple with its fields and others.
        """

    def at_lams(self, solution: Solution, lams: PerLam, *names: str) -> Any:
        """Compute the results of these `names`, fields of `at_lam`, for one λ after another."""
        named = attrgetter(*names)
        return solution.at_each(lams, lambda lam, solution: named(self.at_lam(lam, solution)))

    def coef_and_beta(self, solution: Solution, lams: PerLam) -> tuple[Any, Any]:
        """Return coefficients (L, c, t) and β (L, q, t), for one λ after another.

        Where K has no information, coefficients are 0 and β is the fit of the fixed effects alone.
        """
        coef, beta = self.at_lams(solution, lams, "coef", "beta")
        report = self.report
        beta = report.where_informative(beta, solution.labels.beta)
        return report.where_informative(coef), beta

    def logdet(self, solution: Solution, lams: PerLam) -> PerLam:
        """Compute log |K̃ + λI| for one λ after another."""
        return self.at_lams(solution, lams, "logdet")

    def residual_dof(self, solution: Solution, lams: PerLam) -> PerLam:
        """Compute tr R for one λ after another."""
        return self.at_lams(solution, lams, "residual_dof")
