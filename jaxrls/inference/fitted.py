"""What `fit` and `tune` return: a model, how it was chosen, and pictures of both."""

from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar, overload

import numpy as np
from jaxtyping import Array, Float

from jaxrls.inference.intervals import Predictive, intervals, predictive
from jaxrls.inference.model import Model, Numbers
from jaxrls.inference.posterior import Posterior, check_unsaid, covariance, variances
from jaxrls.kernels.kernel import Kernel, Standardized
from jaxrls.linalg.conjugate import Run
from jaxrls.problem.landmarks import TOLERANCE, certificate_words
from jaxrls.support.checks import is_concrete
from jaxrls.support.door import door
from jaxrls.support.pictures import plot_errors, plot_function, plot_left_out, plot_search
from jaxrls.support.pytrees import pytree, static

K = TypeVar("K", bound=Kernel)  # what was fitted or tuned comes back as what it was


@pytree
class History:
    """How a search by `tune` went: S steps, its best start first.

    `converged` says whether the gradient norm fell below `tol`, `reason` why the search stopped;
    `stages` are searches on few rows before it.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> history = rls.tune(rls.Gaussian(1.0), X, np.sin(6 * X[:, 0]), steps=2).history
    >>> len(history.errors), history.stages, bool(history.errors[2] < history.start_error)
    (3, (), True)
    """

    errors: Float[Array, " S"]
    gradient_norms: Float[Array, " S"]
    lams: Float[Array, " S"]
    kernels: Any  # every leaf with a leading axis S
    start_error: Float[Numbers, ""] | None = None
    converged: bool = static(default=False)
    reason: str = static(default="")
    stages: "tuple[Stage, ...]" = ()


@pytree
class Stage:
    """A search on `rows` of the rows and so many landmarks, one of those before that on all: errors
    are of those rows, left out of those.
    """

    rows: int = static()
    landmarks: int = static()
    history: History


@pytree
class Fit(Generic[K]):
    """The result of `fit` and `tune`: the model at the chosen λ, and how it was chosen.

    After `update` and `forget` what needs rows that are gone is None: `loo_residuals`, and `lams`,
    `errors` and `error` but by GCV or the evidence.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> print(rls.fit(rls.Gaussian(0.3), X, y, lams=[1e-4, 1e-2, 1.0]))
    Gaussian on 20 rows: λ = 0.01 of 3, loo error 0.00899, 5.7 degrees of freedom
    Spectral (gram), 3 λ from one factorization
    """

    # `| Any` in the place of `| None`, which they are after some updates: whoever never updates
    # should not have to rule that out at every use.
    model: Model  # what predicts
    lams: Float[Numbers, "L *#t"] | Any  # all λ that were looked at, ascending
    errors: Float[Numbers, "L *t"] | Any  # the criterion there, smaller better
    lam: Float[Numbers, "*#t"]  # the chosen λ, shared or one for each target
    error: Float[Numbers, "*#t"] | Any  # the criterion there, averaged over targets
    loo_residuals: Float[Numbers, "n *t"] | Any  # left out as the criterion does
    dof: Float[Numbers, "*#t"] | Any  # effective degrees of freedom
    floor: Float[Numbers, ""]  # the λ below which rounding rules
    indefinite: Float[Numbers, ""]  # most negative eigenvalue of K over the largest
    route: str = static()  # what was factored
    criterion: str = static()
    plan: str = static(default="")  # solver, and how λ were looked at, in words
    trace_residual: Float[Numbers, ""] | None = None  # tr √v(K − K̂)√v, of landmarks
    num_landmarks: int = static(default=0)
    # How an iteration, or a refinement, went, and how sure the error is that it estimates.
    run: Run | None = None
    loo_standard_error: Float[Numbers, "*#t"] | None = None
    # A bound on how far rounding of nearly dependent landmarks moved the fit, as a share of what is
    # left out: above 1 % `fit` warns. What landmarks would tell by smaller differences is lost.
    ridge_effect: Float[Numbers, ""] | None = None
    history: History | None = None  # of `tune`
    kept: Any = None  # the solution, see `keep=` of `fit`

    def __repr__(self) -> str:
        values = [self.lam, self.error, self.dof]
        if not is_concrete(*values) or np.ndim(self.dof) > 1:
            return f"Fit(kernel={self.model.kernel}, criterion={self.criterion!r})"
        lam, error, dof = (None if v is None else float(np.mean(v)) for v in values)
        freedom = "" if dof is None else f", {dof:.1f} degrees of freedom"
        of = "" if self.lams is None else f" of {len(self.lams)}"
        left = "" if self.loo_residuals is None else f" on {len(self.loo_residuals)} rows"
        reached = "" if error is None else f", {self.criterion} error {error:.3g}"
        kernel, standardized = self.model.kernel, ""
        if isinstance(kernel, Standardized):
            kernel, standardized = kernel.kernel, ", standardized"
        of_rows = f"{type(kernel).__name__}{left}{standardized}"
        return f"{of_rows}: λ = {lam:.3g}{of}{reached}{freedom}\n{self.plan}"

    @property
    def kernel(self) -> K:
        """That of the model."""
        return self.model.kernel  # type: ignore[return-value]

    @property
    def certificate(self) -> str:
        """How close landmarks keep the fit to that of all of K, in words; empty where there are
        none, or values are not known.
        """
        if self.trace_residual is None or not is_concrete(self.lam):
            return ""
        trace, chosen = float(self.trace_residual), float(np.min(self.lam))
        words = certificate_words(trace, self.num_landmarks, TOLERANCE)
        among = "" if chosen >= trace / TOLERANCE else "not "
        return f"{words}; the chosen λ = {chosen:.3g} is {among}among them"

    plot_left_out = plot_left_out
    plot_function = plot_function

    def plot(self, ax=None):
        """The criterion over λ with the chosen one, on Matplotlib axes, which it returns; of a fit
        by `tune` error and gradient norm at every step, on two.
        """
        return plot_errors(self, ax) if self.history is None else plot_search(self, ax)

    def score(self, X, Y, weights=None) -> Any:
        """R² of predictions for the rows of X: 1 − Σ v (y − f)² / Σ v (y − ȳ)², averaged over
        targets.
        """
        mean, Y = partial(np.average, axis=0, weights=weights), np.asarray(Y)
        left = mean((np.asarray(self.predict(X)) - Y) ** 2)
        return np.mean(1 - left / mean((Y - mean(Y)) ** 2))

    @door("self.model.coef")
    def at(self, lam) -> "Fit":
        """The fit at another λ, or at one for each target: from the solution that is kept, O(n r)
        where that is a spectrum. Not after `update` and `load`, which have no data.
        """
        return self._kept().at(self, lam)

    def for_file(self) -> "Fit":
        """What `save` writes: with the solution where `keep=True` asked for it."""
        saved = self.kept is not None and self.kept.saved
        return replace(self, kept=self.kept.for_file(self) if saved else None)

    def _kept(self):
        if self.kept is None:
            raise ValueError("this fit kept no solution, from which that comes: fit with keep=True")
        return self.kept

    def of_kept(self, name: str) -> Any:
        """What is made of the solution, once for this object where its values are known: "summed",
        "process" or "jackknife".
        """
        if f"_{name}" not in vars(self):
            made = self._made_of_kept(name)
            if not is_concrete(made):
                return made
            vars(self)[f"_{name}"] = made
        return vars(self)[f"_{name}"]

    @door("self.model.coef")
    def _made_of_kept(self, name: str) -> Any:
        return getattr(self._kept(), name)(self)

    @overload
    def predict(
        self,
        X,
        *,
        return_std: Literal[False] = False,
        scale=...,
        corrected: bool = ...,
        fixed_effects=...,
        block_size: int | None = ...,
    ) -> Float[Numbers, "m *t"]: ...

    @overload
    def predict(
        self,
        X,
        *,
        return_std: Literal[True],
        scale=...,
        corrected: bool = ...,
        fixed_effects=...,
        block_size: int | None = ...,
    ) -> tuple[Float[Numbers, "m *t"], Float[Numbers, "m *t"]]: ...

    @door("self.model.coef")
    def predict(
        self,
        X,
        *,
        return_std: bool = False,
        scale="evidence",
        corrected: bool = True,
        fixed_effects=None,
        block_size: int | None = None,
    ) -> Any:
        """Predictions for the rows of X: see `Model.predict`; with `return_std` a pair of them and
        the standard deviation of a new label of weight 1.

        That of the Gaussian process f ~ N(0, τ²k) with noise of variance τ²λ and a flat prior on
        the intercept: see `posterior`, whose `label_std` it is.

        **Shapes**: the standard deviation is shaped as the predictions. **Cost** beside them O(m
        n²) where K of all rows was factored for, O(m r²) else. **Raises** `ValueError` where
        no solution was kept, or for `scale` or `corrected` without `return_std`."""
        if not return_std:
            check_unsaid(scale, corrected)
        mean = self.model.predict(X, fixed_effects=fixed_effects, block_size=block_size)
        if not return_std:
            return mean
        process = self.of_kept("process")
        data = process.spread, self.kernel, *self.model.read(X, fixed_effects)
        found = variances(*data, corrected=corrected, block_size=block_size)
        return mean, process.label_std(found, scale)

    @door("self.model.coef")
    def posterior(
        self, X, *, scale="evidence", corrected: bool = True, fixed_effects=None
    ) -> Posterior:
        """Mean and covariance of f + b at the rows of X, for the Gaussian process of which this fit
        is the mean.

        f ~ N(0, τ²k), a flat prior on the intercept b, labels of variance τ²λ/v: τ² is what the
        kernel's scale is to be multiplied by. By "evidence" it is √vyᵀ(K̃ + λI)⁻¹√vy/(n − 1), n
        without an intercept, where the evidence is largest; by "loo" that for which residuals left
        out are as large as they are held to be, τ² = Σ vᵢ eᵢ (yᵢ − f(xᵢ))/nλ; or the number given,
        1 for the kernel as it stands.

        **Arguments**: on landmarks `corrected` adds what they leave over of the prior, k − k̂, so
        that far from them it is as wide as k says. **Shapes**: X (m, d); see `Posterior`. **Cost**
        as `predict(return_std=True)`, and O(m² r); memory m². **Raises** `ValueError` where
        no solution was kept, or for "loo" where rows were added or given up since.
        **Source**: Rasmussen and Williams 2006, eqs. 2.26, 2.42 and 5.10–5.12, §8.3.3.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> fit = rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0]))
        >>> near, far = fit.posterior(np.array([[0.5], [3.0]])).std
        >>> bool(far > 10 * near)
        True
        """
        process = self.of_kept("process")
        rows, effects = self.model.read(X, fixed_effects)
        mean = self.model.predict(rows, fixed_effects=fixed_effects)
        found = covariance(process.spread, self.kernel, rows.dense(), effects, corrected)
        return process.posterior(mean, found, scale)

    @door("self.model.coef")
    def intervals(
        self,
        X,
        level: float | np.floating | Float[Numbers, ""] = 0.9,
        *,
        method: str | None = None,
        studentised: bool = False,
        fixed_effects=None,
        block_size: int | None = None,
    ) -> tuple[Float[Numbers, "m *t"], Float[Numbers, "m *t"]]:
        """Lower and upper ends of intervals for new labels, by the jackknife+ or CV+: every fit
        that leaves a row, or its group, out, and its residual there.

            lower = the ⌊(1 − level)(n + 1)⌋-th smallest of f₋ᵢ(x) − |eᵢ|,        upper = the ⌈level
            (n + 1)⌉-th smallest of f₋ᵢ(x) + |eᵢ|,

        −∞ and ∞ where level (n + 1) > n. They hold a new label with probability 2·level − 1 at
        least, whatever the distribution and however wrong the model, and in practice with about
        `level`, where rows and the new one are exchangeable, and λ, kernel and landmarks were not
        chosen by the labels; by CV+ of folds drawn by chance with 2·level − 1 − √(2/n). Rows of
        weight 0 count for none, all others as one, whatever their weight. Exact: f₋ᵢ(x) = f(x) −
        wᵢ(x) eᵢ with w(x) the smoother's row; a landmark leaves with its row.

        **Arguments**: `method` "jackknife+", or "cv+" for a fit that left groups out, by default
        what it did. `studentised` makes the width follow x: |eᵢ| becomes |eᵢ| σ₋ᵢ(x)/σᵢ, both
        standard deviations of a label as the fit without row i tells them, σᵢ² = 1/Pᵢᵢ of label i
        and σ₋ᵢ(x)² = var f(x) + λ + wᵢ(x)²/Pᵢᵢ of a new one of weight 1; on landmarks those of what
        they span. **Shapes**: X (m, d), or a source of rows; gives
        (m,) or (m, t) each. **Cost** that of a product m × q × n, q as of the coefficients, by
        groups m × q × their number, and some 30 readings of m × n numbers, for each target; a block
        of rows at a time. **Raises** `ValueError` where no solution was kept.
        **Fails** where the distribution drifts, or rows come in groups that were not left out
        together: too narrow then. **Source**: Barber, Candès, Ramdas and Tibshirani 2021,
        "Predictive inference with the jackknife+", theorems 1 and 4.

        >>> import numpy as np, jaxrls as rls
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 1, (300, 1))
        >>> y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=300)
        >>> fit = rls.fit(rls.Gaussian(0.3), X[:100], y[:100])
        >>> lower, upper = fit.intervals(X[100:], level=0.9)
        >>> bool(abs(np.mean((lower <= y[100:]) & (y[100:] <= upper)) - 0.9) < 0.05)
        True
        """
        jackknife = self.of_kept("jackknife")
        jackknife.check(method)
        spread = self.of_kept("process").spread if studentised else None
        data = self.kernel, spread, *self.model.read(X, fixed_effects), jackknife.rank(level)
        return intervals(jackknife, *data, block_size=block_size)

    @door("self.model.coef")
    def loo_predictive(self, *, scale="loo") -> Predictive:
        """Every label as the other rows tell it, Gaussian: whether standard deviations are right at
        any level, from what is left out alone.

        yᵢ ~ N(yᵢ − eᵢ, τ²/Pᵢᵢ) with 1/Pᵢᵢ = λ/(vᵢ(1 − hᵢ)), the variance of label i by the Gaussian
        process fitted to the others, the dictionary without its landmark; τ² = Σ eᵢ²Pᵢᵢ/n, for
        which they are right on average. With z = eᵢ/σᵢ its continuous ranked probability score is
        σᵢ(z(2Φ(z) − 1) + 2φ(z) − 1/√π).

        **Arguments**: `scale` "loo", or "evidence" or the number τ² as in `posterior`. **Cost** O(n
        t). **Raises** `ValueError` where no solution was kept, or groups were left out. **Fails**:
        too optimistic where rows come in groups.
        **Source**: Rasmussen and Williams 2006, eq. 5.12; Gneiting and Raftery 2007, "Strictly
        proper scoring rules, prediction, and estimation", eq. 21.

        >>> import numpy as np, jaxrls as rls
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 1, (300, 1))
        >>> fit = rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=300))
        >>> inside = fit.loo_predictive().coverage([0.5, 0.9])
        >>> bool(np.abs(inside - np.array([0.5, 0.9])).max() < 0.05)
        True
        """
        by_loo = isinstance(scale, str) and scale == "loo"
        amplitude = None if by_loo else self.of_kept("process").amplitude(scale)
        return predictive(self.of_kept("jackknife"), self.loo_residuals, amplitude)

    @door("self.model.coef")
    def update(
        self, X, Y=None, *, weights=None, fixed_effects=None, block_size: int | None = None
    ) -> "Fit":
        """The fit with further rows, by the moments that were kept: that of `fit` to all rows, on
        the same landmarks.

        λ is chosen anew where it was by GCV or the evidence, over the λ that were named or the grid
        that all rows have; these need moments alone. Else it stays, also where it was searched for,
        and as leave-one-out needs the rows that are gone, `error`, `errors`, `lams` and
        `loo_residuals` are None. Residuals, in GCV and the evidence, are
        a difference of squares of labels: right to about eps of those.

        **Arguments**: as in `fit`; Y with as many columns as before; X dense, sparse or a source of
        rows, such as a `stream`. **Returns** a new `Fit`, this one stays as it is. **Cost** O(b r²)
        for b rows, and O(r³). **Raises** `ValueError` where no solution was kept, for a fit of K of
        all rows, or for what does not fit. **Warns** where more than a third of the digits are
        lost, and for a λ below the precision of the factor.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 30)[:, None]
        >>> fit = rls.fit(rls.Linear(), X[:20], 2 * X[:20, 0], lams=[1e-3])
        >>> all_rows = rls.fit(rls.Linear(), X, 2 * X[:, 0], lams=[1e-3])
        >>> bool(abs(fit.update(X[20:], 2 * X[20:, 0]).model.coef - all_rows.model.coef) < 1e-12)
        True
        """
        return self._kept().changed(self, X, Y, weights, fixed_effects, block_size, 1)

    @door("self.model.coef")
    def forget(
        self, X, Y=None, *, weights=None, fixed_effects=None, block_size: int | None = None
    ) -> "Fit":
        """The fit without some of its rows, which are given up with the labels and weights that
        they came with: `update` the other way.

        What is said there holds. Subtraction leaves rounding at the level of all that there was:
        where more than a third of the digits are lost, there is a warning. **Raises** `ValueError`
        where what would be left is no sum of rows: no weight, or a negative square. That rows were
        never there is noticed by that alone.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 30)[:, None]
        >>> fit = rls.fit(rls.Linear(), X, 2 * X[:, 0], lams=[1e-3])
        >>> some = rls.fit(rls.Linear(), X[:20], 2 * X[:20, 0], lams=[1e-3])
        >>> bool(abs(fit.forget(X[20:], 2 * X[20:, 0]).model.coef - some.model.coef) < 1e-12)
        True
        """
        return self._kept().changed(self, X, Y, weights, fixed_effects, block_size, -1)
