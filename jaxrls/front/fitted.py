"""`Fit`, the result of `fit` and `tune`: a model, and how its λ and kernel were chosen."""

from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from jaxtyping import Bool, Float

from jaxrls.core.data import Folds
from jaxrls.core.factors import Solution
from jaxrls.core.fit import (
    Choice,
    Chosen,
    Diagnostics,
    HeldLam,
    Number,
    Numbers,
    PerTarget,
    Problem,
)
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import labels_by_names, printable, public_call, pytree, static
from jaxrls.front.history import History
from jaxrls.front.model import Model, came_from_host
from jaxrls.front.scores import r_squared_of
from jaxrls.front.words import fit_in_words, table_of

if TYPE_CHECKING:
    import jaxrls.uncertainty.effect
    import jaxrls.uncertainty.intervals
    import jaxrls.uncertainty.posterior

K = TypeVar("K", bound=Kernel)  # the type of the kernel that was fitted or tuned


@pytree
class About:
    """A description of a fit in words: its criterion and its plan.

    Args:
        criterion: the name of the criterion.
        title: the name of the criterion in plots.
        unit: the unit of the criterion's values: "error"; "nats" for minus a likelihood in nats; or
            "AUC" for 1 − AUC.
        plan: the solver, and how λ was searched.
        scale: the variance τ² of the prior, if the criterion is a likelihood that was given it;
            None if it estimates τ², or has none.
        targets: the names of the columns of Y, if it was a data frame; () if it had none. Further
            labels with these names are taken by name.
    """

    criterion: str = static(default="")
    title: str = static(default="")
    unit: str = static(default="")
    plan: str = static(default="")
    scale: float | None = static(default=None)
    targets: tuple = static(default=())


@pytree
class Kept:
    """The parts of a fit that later calls need, if the fit keeps its solution.

    If it does not, every field but `saved` is None, and `saved` is False.

    Args:
        solution: the factor with labels; None if the fit does not keep it.
        problem: the problem that was solved, which another λ needs; None after `load`, `update` and
            `forget`.
        folds: the rows that were held out together; None for single rows, and after `update` and
            `forget`.
        choice: how `update` chooses λ again from moments, or computes the error of the λ that
            `tune` found or `with_lam` set; `HeldLam` if moments do not suffice, or if `fit` found λ
            by a search.
        saved: whether `save` writes the solution.
    """

    solution: Solution | None = None
    problem: Problem | None = None
    folds: Folds | None = None
    choice: Choice | HeldLam | None = None
    saved: bool = static(default=False)


@pytree
class Fit(Generic[K]):
    """The result of `fit` and `tune`: the model at the chosen λ, and how λ was chosen.

    The numbers in its parts are also properties: `fit.lam` is `fit.chosen.lam`.

    After `update` and `forget`, `loo_residuals` is None, as it needs the earlier rows. So are
    `lams`, `errors` and `error`, unless the criterion is GCV or the evidence, and `fit` made no
    search for λ.

    Args:
        model: the `Model` that predicts.
        chosen: all λ that were tried with their errors, and the chosen one.
        diagnostics: held-out residuals, degrees of freedom, and how far rounding is felt.
        about: criterion and plan, in words.
        history: the `History` of a search by `tune`, else None.
        kept: the solution, if the fit keeps it, and what other λ or rows need.
        label_offset: what was subtracted from the labels before the fit; None for nothing.
        stored: results that were computed from rows that the fit does not keep, by name.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> print(rls.fit(rls.Gaussian(0.3), X, y, lams=[1e-4, 1e-2, 1.0]))
    Gaussian on 20 rows: λ = 0.01 of 3, loo error 0.00899, held-out R² 0.982, 5.7 degrees of freedom
    Spectral (gram), 3 λ from one factorization
    """

    model: Model
    chosen: Chosen
    diagnostics: Diagnostics
    about: About = About()
    history: History | None = None
    kept: Kept = Kept()
    label_offset: Any = None  # the model's constant has it included
    # Results of functions under `once_per_fit`, by the names of the functions.
    stored: dict[str, Any] = field(default_factory=dict)

    @property
    def lams(self) -> Float[Numbers, "L *#t"] | Any:
        """All λ that were tried, (L,), or (L, t) if each target has its own.

        Those of a grid or a search are ascending. Named ones keep their order.
        """
        return self.chosen.lams

    @property
    def errors(self) -> Float[Numbers, "L *t"] | Any:
        """The criterion at each of `lams`, (L,) or (L, t); smaller is better."""
        return self.chosen.errors

    @property
    def lam(self) -> PerTarget:
        """The chosen λ, (), or (t,) where each target has its own."""
        return self.chosen.lam

    @property
    def error(self) -> PerTarget | Any:
        """The criterion at the chosen λ, shaped as `lam`; the mean over targets that share λ."""
        return self.chosen.error

    @property
    def loo_residuals(self) -> Float[Numbers, "n *t"] | Any:
        """Held-out residuals (n,) or (n, t), of single rows, or of groups as in the criterion."""
        return self.diagnostics.loo_residuals

    @property
    def dof(self) -> PerTarget | Any:
        """Effective degrees of freedom at the chosen λ, shaped as `lam`."""
        return self.diagnostics.dof

    @property
    def floor(self) -> Number:
        """The λ below which rounding errors dominate."""
        return self.diagnostics.floor

    @property
    def indefinite(self) -> Number | None:
        """The most negative eigenvalue of K, as a share of the largest; 0 if none is negative.

        None if it is not known: `Cholesky()`, which some fits with few or searched λ take, and
        `Iterative()` compute no eigenvalues of K. K of features and of landmarks has none below 0.
        """
        return self.diagnostics.indefinite

    @property
    def informative(self) -> Bool[Numbers, ""] | None:
        """Whether K distinguishes rows beyond the fixed effects; None if this was not computed.

        If it does not, the fit is that of the fixed effects alone, such as the mean, and `fit`
        warns.
        """
        return self.diagnostics.informative

    @property
    def route(self) -> str:
        """The name of the matrix that was factored, such as "gram" for K."""
        return self.diagnostics.route

    @property
    def trace_residual(self) -> Number | None:
        """tr √v(K − K̂)√v, the part of K that the landmarks miss; None without landmarks."""
        return self.diagnostics.trace_residual

    @property
    def num_landmarks(self) -> int:
        """The number of landmarks, 0 without."""
        return self.diagnostics.num_landmarks

    @property
    def jitter_effect(self) -> Number | None:
        """How far jitter moved the fit at most, as a share of the held-out residuals.

        Nearly dependent landmarks need jitter. Above 1 % `fit` warns. None without jitter.
        """
        return self.diagnostics.jitter_effect

    @property
    def run(self) -> Any:
        """The record of the iteration of `Iterative` or `Refined`; None for other solvers."""
        return self.diagnostics.run

    @property
    def loo_standard_error(self) -> PerTarget | None:
        """The standard error of `error`, of the same shape; of the mean over targets that share λ.

        It belongs to leave-one-out errors and to those of folds and groups. It is None for other
        criteria, after `update` and `forget`, and for estimators with `scoring=`. For
        leave-one-out it is the weighted standard deviation of the losses over √n. For folds or
        groups it is that of their means.

        It is an approximation: fits without one row or another share nearly all rows, so that
        held-out residuals are dependent, and λ was chosen by them. For `Iterative`, `error` is
        itself an estimate from random vectors. Then this is how far `error` may be from the exact
        error, and it says nothing of the spread over rows.

        **Source**: Breiman, Friedman, Olshen and Stone 1984, §3.4.3.
        """
        return self.diagnostics.loo_standard_error

    @property
    def prequential_error(self) -> Float[Numbers, "*t"] | None:
        """The weighted mean squared error of the rows that `update` added, () or (t,).

        Each row is predicted by the fit before the call that added it. So this is an honest error
        of rows that come one after another, even if later rows differ from earlier ones. It pools
        all updates, and `forget` does not change it. None before the first update.

        **Source**: Dawid 1984, "Statistical theory: the prequential approach".
        """
        known = self.diagnostics.prequential
        return None if known is None else known.error

    @property
    def r2(self) -> Number | None:
        """R² of the held-out predictions, averaged over targets: 1 − Σ v e² / Σ v (y − ȳ)², 0 for
        constant labels.

        If all rows of a level of fixed effects are held out together, e lacks its constant. Then ȳ
        is the mean of the level for these rows, so that they count by what f explains within it.
        """
        return self.diagnostics.r2

    @property
    def loo_rms(self) -> Float[Numbers, "*t"] | None:
        """The root mean square of the held-out residuals, with weights, () or (t,)."""
        return self.diagnostics.loo_rms

    @property
    def amplitude(self) -> Float[Numbers, "*t"] | None:
        """τ of the prior τ²k, () or (t,), if the criterion has one, as the evidence; else None.

        It is an estimate, or the root of the number that was given as `scale=` of the criterion.
        `error` and `errors` are computed at τ². The variance of the noise is τ²λ.
        """
        return self.diagnostics.amplitude

    @property
    def criterion(self) -> str:
        """The name of the criterion."""
        return self.about.criterion

    @property
    def title(self) -> str:
        """The name of the criterion in plots."""
        return self.about.title

    @property
    def unit(self) -> str:
        """The unit of the criterion's values: "error"; "nats" for minus a likelihood; or "AUC" for
        1 − AUC.
        """
        return self.about.unit

    @property
    def plan(self) -> str:
        """The solver, and how λ was searched, in words."""
        return self.about.plan

    @property
    def solution(self) -> Solution | None:
        """The factor with labels, or None if the fit does not keep it: see `keep` of `fit`."""
        return self.kept.solution

    def __repr__(self) -> str:
        return printable(fit_in_words(self))

    def summary(self) -> dict[str, np.ndarray]:
        """Return what `print` says as a table: a dict of columns, with a row for each target.

        `pandas.DataFrame(fit.summary())` makes a data frame of it.

        Returns:
            Arrays (t,). They are always `target`, counted from 0, `kernel`, `standardized`,
            `criterion` and `lam`. If the fit knows them, there are also `rows`, `error`,
            `loo_standard_error`, `prequential_error`, `r2` of held-out predictions, and `dof`. What
            targets share is repeated for each of them. `error` and its standard error are those of
            each target, and NaN if only the mean over targets is known.

        Raises:
            ValueError: inside `jax.jit`, and for several fits made by `jax.vmap`.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> Y = np.hstack([np.sin(6 * X), X]) + 0.1 * np.cos(40 * X)
        >>> table = rls.fit(rls.Gaussian(0.3), X, Y, lams=[1e-4, 1e-2, 1.0]).summary()
        >>> table["target"].tolist(), table["lam"].tolist(), table["r2"].round(2).tolist()
        ([0, 1], [0.01, 0.01], [0.98, 0.9])
        """
        return table_of(self)

    @property
    def kernel(self) -> K:
        """The kernel of the model."""
        return self.model.kernel  # type: ignore[return-value]

    @property
    def sample_array(self) -> Any:
        """One array of the fit. Results of its methods have the dtype and the library of it."""
        return self.model.coef

    @property
    def certificate(self) -> str:
        """How close landmarks keep the fit to that of the full K, in words.

        It is empty without landmarks, or inside of `jax.jit`.
        """
        from jaxrls.landmarks.points import certificate

        return certificate(self)

    def plot_left_out(self, Y: Any, ax: Any = None) -> Any:
        """Plot labels against their held-out predictions, with the diagonal where they agree.

        Args:
            Y: the labels that were fitted, (n,) or (n, t).
            ax: Matplotlib axes; by default those of a new figure.

        Returns:
            The axes.

        Raises:
            ValueError: for labels of another shape, or a fit without held-out residuals.
        """
        from jaxrls.pictures.plots import plot_left_out

        return plot_left_out(self, Y, ax)

    def plot_function(self, X: Any, Y: Any, ax: Any = None, level: Any = None) -> Any:
        """Plot the fitted function of one input with the data, and on request a band of intervals.

        Args:
            X: the rows that were fitted, (n, 1).
            Y: their labels, (n,) or (n, t).
            ax: Matplotlib axes; by default those of a new figure.
            level: the level of `intervals` to draw as a band; none by default.

        Returns:
            The axes.

        Raises:
            ValueError: for an X of more than one column.
        """
        from jaxrls.pictures.plots import plot_function

        return plot_function(self, X, Y, ax, level)

    def plot_effect(self, X: Any, column: Any, ax: Any = None, level: float = 0.95) -> Any:
        """Plot the partial effect of a column, with a band from the posterior.

        For each value of the column, all rows take this value. The effect is the change of their
        predictions, averaged over rows.

        Args:
            X: rows to average over (m, d); if they are more than 200, 200 of them are used.
            column: its name, or its index among the columns that were fitted.
            ax: Matplotlib axes; by default those of a new figure.
            level: the level of the band.

        Returns:
            The axes.

        Raises:
            ValueError: as `effect`.
        """
        from jaxrls.pictures.plots import plot_effect

        return plot_effect(self, X, column, ax, level)

    def plot(self, ax: Any = None) -> Any:
        """Plot the criterion over λ, and the chosen λ.

        For a fit by `tune`, plot the error and the gradient norm at every step.

        Args:
            ax: Matplotlib axes, two of them for a fit by `tune`; by default those of a new figure.

        Returns:
            The axes.
        """
        from jaxrls.pictures.plots import plot_errors, plot_search

        return plot_errors(self, ax) if self.history is None else plot_search(self, ax)

    @public_call(fitted="self.model.coef")
    def score(
        self,
        X: Any,
        Y: Any,
        weights: Any = None,
        *,
        fixed_effects: Any = None,
        per_target: bool = False,
    ) -> Any:
        """Compute R² of predictions: 1 − Σ v (y − f)² / Σ v (y − ȳ)², 0 for constant labels.

        Args:
            X: rows (m, d).
            Y: their labels (m,) or (m, t).
            weights: sample weights v (m,); by default all are 1.
            fixed_effects: the fixed effects of the rows, as in `predict`.
            per_target: whether to return R² of every target (t,), in place of their mean.

        Raises:
            ValueError: if the fit has fixed effects, and none are given.
        """
        self.model.check_effects("score", fixed_effects)
        Y = labels_by_names(Y, self.about.targets)
        return r_squared_of(self.predict(X, fixed_effects=fixed_effects), Y, weights, per_target)

    @public_call(fitted="self.model.coef")
    def with_lam(self, lam: Any) -> "Fit[K]":
        """Return the fit at another λ, from the solution that the fit keeps.

        Args:
            lam: λ > 0, one number, or one for each target, (t,).

        Returns:
            A new `Fit`.

        Raises:
            ValueError: for a fit that kept no solution; for a fit after `update` or `load`, which
                has no data; and for λ that are not positive or have a wrong shape.

        **Cost** O(n r) if the solution is a spectrum.
        """
        from jaxrls.front.run import with_lam

        return with_lam(self, lam)

    @public_call(fitted="self.model.coef")
    def predict(
        self,
        X: Any,
        *,
        return_std: bool = False,
        weights: Any = None,
        scale: Any = "evidence",
        corrected: bool = True,
        fixed_effects: Any = None,
        diag: Any = None,
        block_size: int | None = None,
    ) -> Any:
        """Predict new rows, and with `return_std` also the standard deviation of a new label.

        The standard deviation is `posterior(X).label_std`. It is that of a label of weight w under
        the Gaussian process f ~ N(0, τ²k), with noise of variance τ²λ/w and a flat prior on the
        intercept.

        Args:
            X: new rows (m, d), as in `Model.predict`.
            return_std: whether to return the standard deviation too.
            weights: the weights w of the new labels (m,), for their standard deviations. A label of
                weight w is like a mean of w measurements. By default they are the weights of a
                source of rows, else 1.
            scale: how τ² is set: "evidence", "loo" or a number, as in `posterior`.
            corrected: as in `posterior`.
            fixed_effects: the fixed effects of the new rows, as in `Model.predict`.
            diag: k(x, x) of the new rows (m,). Standard deviations need it if X is a kernel matrix
                (`Precomputed`); other kernels compute it.
            block_size: rows at a time.

        Returns:
            Predictions (m,) or (m, t). With `return_std`, a pair of predictions and standard
            deviations, of the same shape.

        Raises:
            ValueError: with `return_std`, for a fit that kept no solution, or weights that are not
                positive; without it, if `weights`, `scale`, `corrected` or `diag` are given; and as
                `Model.predict`.

        **Cost** of the standard deviation O(m n²) if K of all rows was factored, else O(m r²).
        """
        if not return_std:
            check_no_std_options(scale, corrected, diag, weights)
            return self.model.predict(X, fixed_effects=fixed_effects, block_size=block_size)
        self.model.check_effects("return_std", fixed_effects)
        from jaxrls.uncertainty.posterior import label_deviations

        of_rows = self.model.read(X, fixed_effects)
        from_host = came_from_host(X)
        mean = self.model.of_rows(*of_rows, block_size, from_host=from_host)
        return mean, label_deviations(
            self, *of_rows, weights, scale, corrected, diag, block_size, from_host=from_host
        )

    @public_call(fitted="self.model.coef")
    def posterior(
        self,
        X: Any,
        *,
        weights: Any = None,
        scale: Any = "evidence",
        corrected: bool = True,
        fixed_effects: Any = None,
    ) -> "jaxrls.uncertainty.posterior.Posterior":
        """Compute mean and covariance of f + b at new rows, by the Gaussian process of this fit.

        The mean of the process is the fitted function. The prior is f ~ N(0, τ²k), with a flat
        prior on the intercept b. Labels have noise of variance τ²λ/v. τ² multiplies all variances.
        Labels are assumed independent given f. If labels of a group have more in common than k
        says, variances are too small, unless the kernel has `Levels`.

        Args:
            X: new rows (m, d).
            weights: the weights of the new labels, for `label_std`, as in `predict`.
            scale: how τ² is set. One of:

                * "evidence": maximise the evidence, τ² = √vyᵀ(K̃ + λI)⁻¹√vy/(n − 1); without an
                  intercept, divide by n.
                * "loo": make held-out residuals as large as the process expects, τ² = Σ vᵢ eᵢ
                  (yᵢ − f(xᵢ))/nλ. A level of fixed effects whose rows are all held out together
                  counts as one row less.
                * a number: τ² itself, 1 for the kernel as it is.
            corrected: with landmarks, whether to add the prior variance that they leave out, k −
                k̂, so that the posterior far from them is as wide as k says.
            fixed_effects: the fixed effects of the new rows, as in `Model.predict`.

        Returns:
            A `Posterior` at the m rows.

        Raises:
            ValueError: for a fit that kept no solution, or for "loo" after `update` or `forget`.

        **Warns** if the fit held out groups, and its kernel has no `Levels`.
        **Cost** as `predict(return_std=True)`, and O(m² r); memory m². **Source**: Rasmussen and
        Williams 2006, eqs. 2.26, 2.42 and 5.10–5.12, §8.3.3.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> fit = rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0]))
        >>> near, far = fit.posterior(np.array([[0.5], [3.0]])).std
        >>> bool(far > 10 * near)
        True
        """
        self.model.check_effects("posterior", fixed_effects)
        from jaxrls.uncertainty.posterior import posterior_at

        return posterior_at(self, X, weights, scale, corrected, fixed_effects)

    @public_call(fitted="self.model.coef")
    def effects(self, *, scale: Any = "evidence") -> "jaxrls.uncertainty.posterior.Posterior":
        """Compute the posterior of the coefficients β of the fixed effects.

        It has a `mean`, standard errors (`std`), a `covariance` and joint samples. The prior on β
        is flat, the prior on f is N(0, τ²k), and noise has variance τ²λ/v. This is generalised
        least squares: cov β = τ²(Bᵀ(K + λV⁻¹)⁻¹B)⁻¹. Labels are assumed independent given f and β,
        as in `posterior`. With `1.0 * Levels()` in the kernel it is a mixed model.

        Args:
            scale: how τ² is set, as in `posterior`. "evidence" is the estimate of REML.

        Returns:
            A `Posterior` of shape (q,) or (q, t): first the intercept, if one is fitted besides
            columns, then each column or level, in the order of `model.free`. Its `names` are the
            names of the columns of a data frame, x0, x1, … for an array, and the labels of levels.

        Raises:
            ValueError: as `posterior`.

        **Cost** O(q² n). **Source**: Rasmussen and Williams 2006, §2.7; Robinson 1991.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
        >>> fit = rls.fit(rls.Gaussian(0.3), X, y + 3 * (X[:, 0] > 0.5), fixed_effects=X > 0.5)
        >>> beta = fit.effects()
        >>> beta.names, bool(abs(beta.mean[1] - 3) < 2 * beta.std[1])
        (('intercept', 'x0'), True)
        """
        from jaxrls.uncertainty.posterior import posterior_of_effects

        return posterior_of_effects(self, scale)

    @public_call(fitted="self.model.coef")
    def effect(
        self,
        X: Any,
        column: Any,
        *,
        values: Any = None,
        weights: Any = None,
        scale: Any = "evidence",
    ) -> "jaxrls.uncertainty.effect.Effect":
        """Compute the average effect of a column of X on f, with its standard error.

            (1/m) Σᵢ ∂f(xᵢ)/∂x_column, or for a column of two values a < b
            (1/m) Σᵢ f(xᵢ with b) − f(xᵢ with a)

        If b marks a treatment, give the treated rows as X for the effect on the treated.

        The standard error is that of the posterior, under the assumptions of `posterior`. Fixed
        effects stay as they are; `effects` has their coefficients.

        Args:
            X: rows to average over (m, d), such as those that were fitted.
            column: its name, or its index among the columns that were fitted.
            values: two values (a, b) to compare. By default, if the column has exactly two values
                in X and the rows that the fit keeps, these are compared. Otherwise the derivative
                is averaged. A fit with explicit features keeps no rows after `load` and `update`.
            weights: the weights of the rows in the average (m,). Default 1.
            scale: how τ² is set, as in `posterior`.

        Returns:
            An `Effect`: `mean` and `std`, () or (t,).

        Raises:
            ValueError: as `posterior`; for an unknown column; for a column with a single value, or
                two values other than 0 and 1 where the fit keeps no rows, if `values` are not
                given; and for the derivative, if functions of the kernel have none in this column,
                such as `Laplacian`, `Matern(0.5, …)` and `Levels`.

        **Cost** O(m² d), and O(m n²) if K of all rows was factored, else O(m r²). **Source**:
        Hainmueller and Hazlett 2014, §4.3; Rasmussen and Williams 2006, §9.4.

        >>> import numpy as np, jaxrls as rls
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 2))
        >>> fit = rls.fit(rls.Gaussian(3.0), X, 2 * X[:, 0] + 0.1 * rng.normal(size=100))
        >>> found = fit.effect(X, 0)
        >>> bool(abs(found.mean - 2) < 3 * found.std), bool(found.std < 0.05)
        (True, True)
        """
        from jaxrls.uncertainty.effect import effect

        return effect(self, X, column, values, weights, scale)

    @public_call(fitted="self.model.coef")
    def intervals(
        self,
        X: Any,
        level: float | np.floating | Number = 0.9,
        *,
        weights: Any = None,
        studentised: bool = False,
        fixed_effects: Any = None,
        block_size: int | None = None,
    ) -> tuple[Float[Numbers, "m *t"], Float[Numbers, "m *t"]]:
        """Compute prediction intervals for new labels, whatever the distribution of labels.

        They are the jackknife+ of held-out residuals e, or CV+ for a fit with `groups`. Write f₋ᵢ
        for the fit without row i, or without its group:

            lower = the ⌊(1 − level)(n + 1)⌋-th smallest of f₋ᵢ(x) − |eᵢ|
            upper = the ⌈level (n + 1)⌉-th smallest of f₋ᵢ(x) + |eᵢ|

        If there are too few rows, level (n + 1) > n, they are −∞ and ∞. No fit is repeated:
        f₋ᵢ(x) = f(x) − wᵢ(x) eᵢ is exact, if f(x) = Σᵢ wᵢ(x) yᵢ. A landmark is held out with its
        row.

        In practice an interval holds a new label with probability of about `level`. The guaranteed
        probability is 2·level − 1, or 2·level − 1 − √(2/n) for CV+ with random folds. It is
        guaranteed for any distribution and any model, if the rows are exchangeable with the new
        one, and λ, kernel and landmarks were not chosen by these labels.

        Rows of weight 0 do not count, and all others count as one. So an interval is right on
        average over new labels whose weights are like those of the fit. If `weights` w of the new
        labels are given, each |eᵢ| is multiplied by √(vᵢ/w). Then the interval is right at each
        weight, if residuals are mostly noise of variance ∝ 1/v.

        Args:
            X: new rows (m, d), or a source of rows.
            level: the probability, by default 0.9.
            weights: the weights of the new labels (m,); by default those of a source of rows.
            studentised: whether the width of intervals depends on x: each |eᵢ| is multiplied by
                σ₋ᵢ(x)/σᵢ. Both are standard deviations of a label by the fit without row i. That of
                label i is σᵢ² = 1/Pᵢᵢ. That of a new label of weight w, by default 1, is
                σ₋ᵢ(x)² = var f(x) + λ/w + wᵢ(x)²/Pᵢᵢ. With `weights` this factor replaces √(vᵢ/w),
                and is right even if f is uncertain. With landmarks the prior is over the functions
                that they span.
            fixed_effects: the fixed effects of the new rows, as in `Model.predict`.
            block_size: new rows at a time.

        Returns:
            Lower and upper ends of the intervals, (m,) or (m, t) each.

        Raises:
            ValueError: for a fit that kept no solution, a level outside [0, 1], or weights that are
                not positive.

        **Cost** for each target one product m × q × n, with q coefficients (for groups m × q ×
        their number), and some 30 passes over m × n numbers, in blocks of rows. **Fails** if the
        distribution drifts, or if rows come in groups that were not held out together: the
        intervals are then too narrow. **Source**: Barber, Candès, Ramdas and
        Tibshirani 2021, "Predictive inference with the jackknife+", theorems 1 and 4.

        >>> import numpy as np, jaxrls as rls
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 1, (300, 1))
        >>> y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=300)
        >>> fit = rls.fit(rls.Gaussian(0.3), X[:100], y[:100])
        >>> lower, upper = fit.intervals(X[100:], level=0.9)
        >>> bool(abs(np.mean((lower <= y[100:]) & (y[100:] <= upper)) - 0.9) < 0.05)
        True
        """
        self.model.check_effects("intervals", fixed_effects)
        from jaxrls.uncertainty.intervals import intervals

        return intervals(self, X, level, weights, studentised, fixed_effects, block_size)

    @public_call(fitted="self.model.coef")
    def loo_predictive(self, *, scale: Any = "loo") -> "jaxrls.uncertainty.intervals.Predictive":
        """Compute the leave-one-out predictive distribution of every label.

        It shows whether standard deviations are right at any level.

            yᵢ ~ N(yᵢ − eᵢ, τ²/Pᵢᵢ), 1/Pᵢᵢ = λ/(vᵢ(1 − hᵢ))

        eᵢ is the held-out residual, and hᵢ is the leverage. τ²/Pᵢᵢ is the variance of label i by
        the Gaussian process fitted to the other rows. If row i is a landmark, it is held out as a
        landmark too. With σᵢ² = τ²/Pᵢᵢ and z = eᵢ/σᵢ, the continuous ranked probability score is
        σᵢ(z(2Φ(z) − 1) + 2φ(z) − 1/√π).

        Args:
            scale: how τ² is set. By default "loo", τ² = Σ eᵢ²Pᵢᵢ/n, so that standard deviations are
                right on average; or "evidence" or a number, as in `posterior`.

        Returns:
            A `Predictive`, with fields shaped as the labels.

        Raises:
            ValueError: for a fit that kept no solution, or held out groups.

        **Cost** O(n t). **Fails**: too optimistic if rows come in groups. **Source**: Rasmussen
        and Williams 2006, eq. 5.12; Gneiting and Raftery 2007, "Strictly proper scoring rules,
        prediction, and estimation", eq. 21.

        >>> import numpy as np, jaxrls as rls
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 1, (300, 1))
        >>> fit = rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=300))
        >>> inside = fit.loo_predictive().coverage([0.5, 0.9])
        >>> bool(np.abs(inside - np.array([0.5, 0.9])).max() < 0.05)
        True
        """
        from jaxrls.uncertainty.intervals import loo_predictive

        return loo_predictive(self, scale)

    @public_call(fitted="self.model.coef")
    def update(
        self,
        X: Any,
        Y: Any = None,
        *,
        weights: Any = None,
        fixed_effects: Any = None,
        block_size: int | None = None,
    ) -> "Fit[K]":
        """Return the fit to the earlier rows and further rows together, on the same landmarks.

        It is computed from the moments that this fit keeps, without the earlier rows. GCV and the
        evidence need only moments. If one of them chose λ from a grid or among given values, it
        chooses again. If `tune` by one of them found λ, or `with_lam` set it, λ stays, and `error`
        is that of all rows. In all other cases, as after `lams="search"`, λ stays, and `error`,
        `errors` and `lams` are None. `loo_residuals` are always None. `prequential_error` gets the
        errors of the new rows by this fit, pooled with those of earlier updates. The residual sum
        of squares is computed as a difference, with a rounding error of about eps times the labels'
        sum of squares.

        Args:
            X: further rows (b, d), dense, sparse or a source of rows, such as a `stream`.
            Y: their labels, with as many columns as before.
            weights: their sample weights (b,); by default 1.
            fixed_effects: their fixed effects, as in `fit`.
            block_size: rows at a time.

        Returns:
            A new `Fit`; this one stays as it is.

        Raises:
            ValueError: for a fit that kept no solution, or factored K of all rows, and for shapes
                that do not fit.

        **Cost** O(b r²) for b rows, and O(r³). A stream is read twice. Up to 32,768 rows from the
        host are padded to few sizes, as in `predict`, by rows of weight 0. **Warns** if more than a
        third of the digits are lost, and for a λ below the precision of the factor.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 30)[:, None]
        >>> fit = rls.fit(rls.Linear(), X[:20], 2 * X[:20, 0], lams=[1e-3])
        >>> all_rows = rls.fit(rls.Linear(), X, 2 * X[:, 0], lams=[1e-3])
        >>> updated = fit.update(X[20:], 2 * X[20:, 0])
        >>> bool(abs(updated.model.coef - all_rows.model.coef) < 1e-12)
        True
        >>> missed = 2 * X[20:, 0] - fit.predict(X[20:])
        >>> bool(abs(updated.prequential_error - np.mean(missed**2)) < 1e-12)
        True
        """
        self.model.check_effects("update", fixed_effects)
        from jaxrls.rows.update import with_rows

        return with_rows(self, 1, X, Y, weights, fixed_effects, block_size)

    @public_call(fitted="self.model.coef")
    def forget(
        self,
        X: Any,
        Y: Any = None,
        *,
        weights: Any = None,
        fixed_effects: Any = None,
        block_size: int | None = None,
    ) -> "Fit[K]":
        """Return the fit without some of its rows: the opposite of `update`, from the same moments.

        The result has the rounding errors of the sums over all rows, before the removal.

        Args:
            X: rows (b, d) of the fit to remove.
            Y: the labels that they were fitted with.
            weights: the sample weights that they were fitted with.
            fixed_effects: the fixed effects that they were fitted with.
            block_size: rows at a time.

        Returns:
            A new `Fit`; this one stays as it is.

        Raises:
            ValueError: as `update`, and if the remaining moments cannot be moments of any rows.
                There is no other check that the rows were fitted.

        **Cost** as `update`. **Warns** if more than a third of the digits are lost.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 30)[:, None]
        >>> fit = rls.fit(rls.Linear(), X, 2 * X[:, 0], lams=[1e-3])
        >>> some = rls.fit(rls.Linear(), X[:20], 2 * X[:20, 0], lams=[1e-3])
        >>> bool(abs(fit.forget(X[20:], 2 * X[20:, 0]).model.coef - some.model.coef) < 1e-12)
        True
        """
        self.model.check_effects("forget", fixed_effects)
        from jaxrls.rows.update import with_rows

        return with_rows(self, -1, X, Y, weights, fixed_effects, block_size)


def check_no_std_options(
    scale: Any, corrected: bool = True, diag: Any = None, weights: Any = None
) -> None:
    """Raise if options of standard deviations are given to a call that returns none."""
    named = isinstance(scale, str) and scale == "evidence"
    if not (named and corrected and diag is weights is None):
        raise ValueError(
            "weights=, scale=, corrected= and diag= are for standard deviations, not asked for: "
            "pass return_std=True, or leave them out"
        )
