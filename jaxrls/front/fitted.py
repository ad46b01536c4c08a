"""What `fit` and `tune` return: a model, which predicts, how its λ and kernel were chosen, and
pictures of both.
"""

from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from jaxtyping import Bool, Float

from jaxrls.core.data import Folds
from jaxrls.core.factors import Solution
from jaxrls.core.fit import Choice, Chosen, Diagnostics, Number, Numbers, PerTarget, Problem
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import door, printable, pytree, static
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
    """A fit in words.

    Args:
        criterion: the name of the criterion.
        title: what it is, as plots of it say.
        unit: what its values are: an "error"; "nats", with a minus; or 1 − "AUC".
        plan: the solver, and how λ were tried.
    """

    criterion: str = static(default="")
    title: str = static(default="")
    unit: str = static(default="")
    plan: str = static(default="")


@pytree
class Kept:
    """What later calls need of a fit that keeps its solution.

    Args:
        solution: the factor with labels.
        problem: for another λ; None after `load`, `update` and `forget`.
        groups: of rows that were left out together.
        choice: how moments choose λ again; None where they do not suffice.
        saved: whether `save` writes the solution.
    """

    solution: Solution | None = None
    problem: Problem | None = None
    groups: Folds | None = None
    choice: Choice | None = None
    saved: bool = static(default=False)


@pytree
class Fit(Generic[K]):
    """The result of `fit` and `tune`: the model at the chosen λ, and how it was chosen.

    After `update` and `forget`, fields that need the earlier rows are None: `loo_residuals`, and,
    except for GCV and the evidence, `lams`, `errors` and `error`.

    A fit is made of parts, each of which says what it is for; what they hold is read from the fit
    itself.

    Args:
        model: the `Model` that predicts.
        chosen: all λ that were tried, and the chosen one.
        diagnostics: what tells how good the fit is.
        about: criterion and plan, in words.
        history: the `History` of a search by `tune`, else None.
        kept: the solution, where the fit keeps it, and what goes with it.
        label_offset: what was taken off labels before they were fitted, None where nothing was.
        stored: what was computed from rows that are not kept.

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
    label_offset: Any = None  # what was taken off labels first, as `intercept` knows
    # Results of functions under `once_per_fit`, by their names, in place of rows that are not kept.
    stored: dict[str, Any] = field(default_factory=dict)

    @property
    def lams(self) -> Float[Numbers, "L *#t"] | Any:
        """All λ that were tried, ascending, (L,), or (L, t) where each target has its own."""
        return self.chosen.lams

    @property
    def errors(self) -> Float[Numbers, "L *t"] | Any:
        """The criterion at each of them, (L,) or (L, t); smaller is better."""
        return self.chosen.errors

    @property
    def lam(self) -> PerTarget:
        """The chosen λ, (), or (t,) where each target has its own."""
        return self.chosen.lam

    @property
    def error(self) -> PerTarget | Any:
        """The criterion at the chosen λ, shaped as `lam`; the mean over targets that share it."""
        return self.chosen.error

    @property
    def loo_residuals(self) -> Float[Numbers, "n *t"] | Any:
        """Held-out residuals (n,) or (n, t), with rows held out as by the criterion."""
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
    def indefinite(self) -> Number:
        """The most negative eigenvalue of K over the largest."""
        return self.diagnostics.indefinite

    @property
    def informative(self) -> Bool[Numbers, ""] | None:
        """Whether K tells rows apart beyond the fixed effects. If not, the fit is that of these
        alone, such as the mean, and `fit` warns. None where it was not asked.
        """
        return self.diagnostics.informative

    @property
    def route(self) -> str:
        """The matrix that was factored, in a word, such as "gram"."""
        return self.diagnostics.route

    @property
    def trace_residual(self) -> Number | None:
        """tr √v(K − K̂)√v, the part of K that landmarks miss; None without landmarks."""
        return self.diagnostics.trace_residual

    @property
    def num_landmarks(self) -> int:
        """The number of landmarks, 0 without."""
        return self.diagnostics.num_landmarks

    @property
    def jitter_effect(self) -> Number | None:
        """How far jitter, which nearly dependent landmarks need, moved the fit at most, as a share
        of the held-out residuals; above 1 % `fit` warns.
        """
        return self.diagnostics.jitter_effect

    @property
    def run(self) -> Any:
        """How the iteration of `Iterative`, or the refinement of `Refined`, went; else None."""
        return self.diagnostics.run

    @property
    def loo_standard_error(self) -> PerTarget | None:
        """The standard error of `error`, shaped as it; None for criteria that are no mean of losses
        over held-out rows.

        Of leave-one-out it is the standard deviation of the losses over √n, with weights; of folds
        or groups that of their means. Fits without one row or another share nearly all of their
        rows, so that held-out residuals are dependent, and λ was chosen by them: take it for an
        approximation. By `Iterative`, whose error is itself an estimate, it is how far that may be
        from the exact error, and says nothing of the spread of rows.

        **Source**: Breiman, Friedman, Olshen and Stone 1984, §3.4.3.
        """
        return self.diagnostics.loo_standard_error

    @property
    def prequential_error(self) -> Float[Numbers, "*t"] | None:
        """The mean squared error of predictions of the rows that `update` added, each by the fit
        before that call, with weights, () or (t,): an honest error of rows that come one after
        another, as those to come may differ from those before. Over all updates; `forget` leaves it
        as it is. None before the first update.

        **Source**: Dawid 1984, "Statistical theory: the prequential approach".
        """
        known = self.diagnostics.prequential
        return None if known is None else known.error

    @property
    def r2(self) -> Number | None:
        """R² of the held-out predictions, averaged over targets: 1 − Σ v e² / Σ v (y − ȳ)², 0 for
        constant labels.
        """
        return self.diagnostics.r2

    @property
    def loo_rms(self) -> Float[Numbers, "*t"] | None:
        """The root mean square of the held-out residuals, with weights, () or (t,)."""
        return self.diagnostics.loo_rms

    @property
    def amplitude(self) -> Float[Numbers, "*t"] | None:
        """τ of the prior τ²k, where the criterion estimates it as the evidence does, () or (t,);
        else None. `error` and `errors` are those at τ², and `lam` is in its units: the variance of
        the noise is τ²λ.
        """
        return self.diagnostics.amplitude

    @property
    def criterion(self) -> str:
        """The name of the criterion."""
        return self.about.criterion

    @property
    def title(self) -> str:
        """What the criterion is, as plots of it say."""
        return self.about.title

    @property
    def unit(self) -> str:
        """What its values are: an "error"; "nats", with a minus; or 1 − "AUC"."""
        return self.about.unit

    @property
    def plan(self) -> str:
        """The solver, and how λ were tried, in words."""
        return self.about.plan

    @property
    def solution(self) -> Solution | None:
        """The factor with labels, where the fit keeps it: see `keep` of `fit`."""
        return self.kept.solution

    def __repr__(self) -> str:
        return printable(fit_in_words(self))

    def summary(self) -> dict[str, np.ndarray]:
        """What `print` says, as data: a table with a row for each target, by the names of its
        columns. `pandas.DataFrame(fit.summary())` makes a data frame of it.

        Returns:
            Arrays (t,). Always `target`, counted from 0, `kernel`, `standardized`, `criterion` and
            `lam`; where the fit knows them `rows`, `error`, `loo_standard_error`,
            `prequential_error`, `r2` of held-out predictions and `dof`. What targets share is the same in all their rows. `error` and its
            standard error are those of each target, and NaN where only the mean over several is
            known.

        Raises:
            ValueError: inside `jax.jit`, and for fits out of `jax.vmap`.

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
        """One of its arrays, whose precision and library results of the fit have."""
        return self.model.coef

    @property
    def certificate(self) -> str:
        """How close landmarks keep the fit to that of all of K, in words; empty without landmarks,
        or inside `jax.jit`.
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
        """Plot the fitted function of one input with the data, and on request the band of its
        intervals.

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
        """Plot the partial effect of a column: what predictions change by, on average over rows, as
        all rows take each value of the column, with a band from the posterior.

        Args:
            X: rows to average over (m, d); of more than 200, 200 of them.
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
        """Plot the criterion over λ with the chosen one; for a fit by `tune`, error and gradient
        norm at every step.

        Args:
            ax: Matplotlib axes, two of them for a fit by `tune`; by default those of a new figure.

        Returns:
            The axes.
        """
        from jaxrls.pictures.plots import plot_errors, plot_search

        return plot_errors(self, ax) if self.history is None else plot_search(self, ax)

    @door("self.model.coef")
    def score(
        self,
        X: Any,
        Y: Any,
        weights: Any = None,
        *,
        fixed_effects: Any = None,
        per_target: bool = False,
    ) -> Any:
        """R² of the predictions: 1 − Σ v (y − f)² / Σ v (y − ȳ)², 0 for constant labels.

        Args:
            X: rows (m, d).
            Y: their labels (m,) or (m, t).
            weights: sample weights v (m,); by default all are 1.
            fixed_effects: those of the rows, as in `predict`.
            per_target: whether to return that of every target (t,), in place of their mean.

        Raises:
            ValueError: where the fit has fixed effects, and none are given.
        """
        self.model.check_effects("score", fixed_effects)
        return r_squared_of(self.predict(X, fixed_effects=fixed_effects), Y, weights, per_target)

    @door("self.model.coef")
    def with_lam(self, lam: Any) -> "Fit[K]":
        """The fit at another λ, from the solution that it keeps.

        Args:
            lam: λ > 0, one number, or one for each target, (t,).

        Returns:
            A new `Fit`.

        Raises:
            ValueError: for a fit that kept no solution, after `update` and `load`, which have no
                data, and for λ that are not positive or do not fit.

        **Cost** O(n r) where the solution is a spectrum.
        """
        from jaxrls.front.run import with_lam

        return with_lam(self, lam)

    @door("self.model.coef")
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
        """Predictions for new rows, and with `return_std` also the standard deviation of a new
        label.

        The standard deviation is that of a label of weight w by the Gaussian process f ~ N(0, τ²k)
        with noise of variance τ²λ/w and a flat prior on the intercept: `posterior(X).label_std`.

        Args:
            X: new rows (m, d), as in `Model.predict`.
            return_std: whether to return the standard deviation too.
            weights: those w of the new labels (m,), for their standard deviations, as of a mean of
                w measurements; default those that a source of rows brings, else 1.
            scale: how τ² is set: "evidence", "loo" or a number, as in `posterior`.
            corrected: as in `posterior`.
            fixed_effects: those of the new rows, as in `Model.predict`.
            diag: k(x, x) of the new rows (m,), which standard deviations need where X is a kernel
                matrix (`Precomputed`); other kernels know it.
            block_size: rows at a time.

        Returns:
            Predictions (m,) or (m, t); with `return_std` a pair of these and standard deviations of
            the same shape.

        Raises:
            ValueError: with `return_std` for a fit that kept no solution, or weights that are not
                positive; without it for `weights`, `scale` or `corrected`; and as `Model.predict`.

        **Cost** of the standard deviation O(m n²) where K of all rows was factored, else O(m r²).
        """
        if not return_std:
            check_no_std_options(scale, corrected, diag, weights)
            return self.model.predict(X, fixed_effects=fixed_effects, block_size=block_size)
        self.model.check_effects("return_std", fixed_effects)
        from jaxrls.uncertainty.posterior import label_deviations

        rows, effects = self.model.read(X, fixed_effects)
        mean = self.model.of_rows(rows, effects, block_size, from_host=came_from_host(X))
        return mean, label_deviations(
            self, mean, rows, effects, weights, scale, corrected, diag, block_size
        )

    @door("self.model.coef")
    def posterior(
        self,
        X: Any,
        *,
        weights: Any = None,
        scale: Any = "evidence",
        corrected: bool = True,
        fixed_effects: Any = None,
    ) -> "jaxrls.uncertainty.posterior.Posterior":
        """Mean and covariance of f + b at new rows, for the Gaussian process of which this fit is
        the mean.

        The prior is f ~ N(0, τ²k) with a flat prior on the intercept b, and labels have noise of
        variance τ²λ/v. τ² multiplies all variances. Rows are independent given f: where rows of a
        group share more than k says, variances are too small without `Levels` in the kernel.

        Args:
            X: new rows (m, d).
            weights: those of the new labels, for `label_std`, as in `predict`.
            scale: how τ² is estimated. "evidence": where the evidence is largest, τ² = √vyᵀ(K̃ +
                λI)⁻¹√vy/(n − 1), over n without an intercept. "loo": where held-out residuals are
                as large as the process expects, τ² = Σ vᵢ eᵢ (yᵢ − f(xᵢ))/nλ. Or the number τ²
                itself, 1 for the kernel as it is.
            corrected: with landmarks, whether to add the prior variance that they leave out, k −
                k̂, so that the posterior far from them is as wide as k says.
            fixed_effects: those of the new rows, as in `Model.predict`.

        Returns:
            A `Posterior` at the m rows.

        Raises:
            ValueError: for a fit that kept no solution, or for "loo" after `update` or `forget`.

        **Warns** where the fit held out groups, and its kernel has no `Levels`.
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

    @door("self.model.coef")
    def effects(self, *, scale: Any = "evidence") -> "jaxrls.uncertainty.posterior.Posterior":
        """The posterior of the fixed effects' coefficients β: `mean`, standard errors (`std`),
        `covariance` and joint samples.

        The prior on β is flat, that on f is N(0, τ²k), and noise has variance τ²λ/v. This is
        generalised least squares: cov β = τ²(Bᵀ(K + λV⁻¹)⁻¹B)⁻¹. Rows are independent given f and
        β, as in `posterior`; with `1.0 * Levels()` in the kernel it is a mixed model.

        Args:
            scale: how τ² is set, as in `posterior`. "evidence" is the estimate of REML.

        Returns:
            A `Posterior` of shape (q,) or (q, t): first the intercept, if one is fitted besides
            columns, then each column or level, in the order of `model.free`. Its `names` are those
            of the columns of a data frame, x0, x1, … of an array, and the labels of levels.

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

    @door("self.model.coef")
    def effect(
        self,
        X: Any,
        column: Any,
        *,
        values: Any = None,
        weights: Any = None,
        scale: Any = "evidence",
    ) -> "jaxrls.uncertainty.effect.Effect":
        """The average effect of a column of X on f, with its standard error from the posterior.

            (1/m) Σᵢ ∂f(xᵢ)/∂x_column, for a column of two values a < b
            (1/m) Σᵢ f(xᵢ with b) − f(xᵢ with a)

        The effect on those that were treated is that over their rows.

        The posterior is that of `posterior`, with its assumptions. Fixed effects are those of other
        columns, and stay as they are; their own are in `effects`.

        Args:
            X: rows to average over (m, d), such as those that were fitted.
            column: its name, or its index among the columns that were fitted.
            values: two values (a, b) to compare. By default those of a column that has two in X and
                the rows that the model keeps; else None, for the derivative.
            weights: what each row counts in the average (m,). Default 1.
            scale: how τ² is set, as in `posterior`.

        Returns:
            An `Effect`: `mean` and `std`, () or (t,).

        Raises:
            ValueError: as `posterior`; for what is no column of X; for one that has a single value
                there and `values` are not given; and, unless it has two values, for kernels whose
                functions have no derivative in it, such as `Laplacian`, `Matern(0.5, …)` and
                `Levels`.

        **Cost** O(m² d), and O(m n²) where K of all rows was factored, else O(m r²). **Source**:
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

    @door("self.model.coef")
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
        """Prediction intervals for new labels, whatever their distribution: the jackknife+, from
        held-out residuals, or CV+ for a fit with `groups`.

            lower = the ⌊(1 − level)(n + 1)⌋-th smallest of f₋ᵢ(x) − |eᵢ|
            upper = the ⌈level (n + 1)⌉-th smallest of f₋ᵢ(x) + |eᵢ|

        If there are too few rows, level (n + 1) > n, they are −∞ and ∞. In practice an interval
        holds a new label with probability of about `level`. The guarantee is 2·level − 1, or
        2·level − 1 − √(2/n) by CV+ with random folds, for any distribution and any model. It needs
        rows that are exchangeable with the new one, and λ, kernel and landmarks that were not
        chosen by these labels. Rows of weight 0 do not count; all others count as one, so that an
        interval is right on average over weights as those that were fitted. With the `weights` w
        of new labels each |eᵢ| is multiplied by √(vᵢ/w), and the interval is right at each weight,
        where residuals are mostly noise of variance ∝ 1/v. No fit is
        repeated: f₋ᵢ(x) = f(x) − wᵢ(x) eᵢ is exact, where w(x) are the weights of the labels in
        f(x). A landmark is held out with its row.

        Args:
            X: new rows (m, d), or a source of rows.
            level: the probability, by default 0.9.
            weights: those of the new labels (m,); default those that a source of rows brings.
            studentised: whether the width follows x: each |eᵢ| is multiplied by σ₋ᵢ(x)/σᵢ. Both are
                standard deviations of a label by the fit without row i: of label i, σᵢ² = 1/Pᵢᵢ,
                and of a new one of weight w, by default 1, σ₋ᵢ(x)² = var f(x) + λ/w + wᵢ(x)²/Pᵢᵢ.
                With `weights` this replaces √(vᵢ/w), and holds where f is uncertain too. On
                landmarks the prior is that of the functions they span.
            fixed_effects: those of the new rows, as in `Model.predict`.
            block_size: new rows at a time.

        Returns:
            Lower and upper ends, (m,) or (m, t) each.

        Raises:
            ValueError: for a fit that kept no solution, a level outside [0, 1], or weights that are
                not positive.

        **Cost** for each target one product m × q × n, with q coefficients (for groups m × q ×
        their number), and some 30 passes over m × n numbers, in blocks of rows. **Fails** where the
        distribution drifts, or rows come in groups that were not left out
        together: the intervals are then too narrow. **Source**: Barber, Candès, Ramdas and
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

    @door("self.model.coef")
    def loo_predictive(self, *, scale: Any = "loo") -> "jaxrls.uncertainty.intervals.Predictive":
        """The leave-one-out predictive distribution of every label, which shows whether standard
        deviations are right at any level.

            yᵢ ~ N(yᵢ − eᵢ, τ²/Pᵢᵢ), 1/Pᵢᵢ = λ/(vᵢ(1 − hᵢ))

        eᵢ is the held-out residual, and 1/Pᵢᵢ the variance of label i by the Gaussian process
        fitted to the other rows. If row i is a landmark, it is left out as one too. With σᵢ² =
        τ²/Pᵢᵢ and z = eᵢ/σᵢ the continuous ranked probability score is σᵢ(z(2Φ(z) − 1) + 2φ(z) −
        1/√π).

        Args:
            scale: τ²: by default "loo", Σ eᵢ²Pᵢᵢ/n, with which standard deviations are right on
                average; or "evidence" or a number, as in `posterior`.

        Returns:
            A `Predictive`, with fields shaped as the labels.

        Raises:
            ValueError: for a fit that kept no solution, or left out groups.

        **Cost** O(n t). **Fails**: too optimistic where rows come in groups. **Source**: Rasmussen
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

    @door("self.model.coef")
    def update(
        self,
        X: Any,
        Y: Any = None,
        *,
        weights: Any = None,
        fixed_effects: Any = None,
        block_size: int | None = None,
    ) -> "Fit[K]":
        """Add rows: the fit to all rows, on the same landmarks, from the moments that this fit
        keeps.

        If λ was chosen by GCV or the evidence, which need moments only, it is chosen again.
        Otherwise λ stays, and `error`, `errors`, `lams` and `loo_residuals` are None, as they need
        the earlier rows. `prequential_error` has the errors of the new rows by this fit, added to
        those of updates before. The residual sum of squares is computed as a difference, with a rounding
        error of about eps times the labels' sum of squares.

        Args:
            X: further rows (b, d), dense, sparse or a source of rows, such as a `stream`.
            Y: their labels, with as many columns as before.
            weights: their sample weights (b,); by default 1.
            fixed_effects: theirs, as in `fit`.
            block_size: rows at a time.

        Returns:
            A new `Fit`; this one stays as it is.

        Raises:
            ValueError: for a fit that kept no solution, or factored K of all rows, and for shapes
                that do not fit.

        **Cost** O(b r²) for b rows, and O(r³); a stream is read twice. **Warns** where more than a third of the digits are
        lost, and for a λ below the precision of the factor.

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

    @door("self.model.coef")
    def forget(
        self,
        X: Any,
        Y: Any = None,
        *,
        weights: Any = None,
        fixed_effects: Any = None,
        block_size: int | None = None,
    ) -> "Fit[K]":
        """Remove rows: the opposite of `update`, and otherwise like it.

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
            ValueError: as `update`, and where the remaining moments cannot be those of any rows.
                There is no other check that the rows were fitted.

        **Cost** as `update`. **Warns** where more than a third of the digits are lost.

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
    """Raise where options of standard deviations are given, and none are asked for."""
    named = isinstance(scale, str) and scale == "evidence"
    if not (named and corrected and diag is weights is None):
        raise ValueError(
            "weights=, scale=, corrected= and diag= are for standard deviations, not asked for: "
            "pass return_std=True, or leave them out"
        )
