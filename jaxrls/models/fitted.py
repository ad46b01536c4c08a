"""What `fit` and `tune` return: a model, how it was chosen, and pictures of both."""

from typing import Any, Generic, Literal, TypeVar, overload

import numpy as np
from jaxtyping import Array, Float

from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.conjugate import Run
from jaxrls.models.model import Model
from jaxrls.models.posterior import Posterior, check_unsaid
from jaxrls.models.predictive import Predictive, predictive
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pictures import plot_errors, plot_function, plot_left_out, plot_search
from jaxrls.support.pytrees import pytree, static

K = TypeVar("K", bound=Kernel)  # what was tuned comes back as what it was


class _Fitted:
    """What every result of a fit offers."""

    model: Model
    loo_residuals: Float[Array | np.ndarray, "n *t"] | Any

    def predict(
        self, X, *, fixed_effects=None, block_size: int | None = None
    ) -> Float[Array | np.ndarray, "m *t"]:
        """Predictions for the rows of X: see `Model.predict`."""
        return self.model.predict(X, fixed_effects=fixed_effects, block_size=block_size)

    def plot_left_out(self, Y, ax=None):
        """The labels Y that were fitted against their predictions with the row, or its group, left
        out.
        """
        return plot_left_out(self, Y, ax)

    def plot_function(self, X, Y, ax=None, level=None):
        """The fitted function of a single input, with the data, and where a level is named the band
        of its `intervals`.
        """
        return plot_function(self, X, Y, ax, level)


@pytree
class Fit(_Fitted):
    """The result of `fit`: the model at the chosen λ, and how it was chosen.

    `errors` (L,) or (L, t) is the criterion over `lams`, smaller better (the evidence negated);
    `lam` and `error` the chosen λ and its error, averaged over targets, or one of each per target.
    `loo_residuals` and `dof` belong to the chosen λ; where the criterion leaves groups out, so do
    the residuals. `floor` is the λ below which rounding rules, `route` and `criterion` say how it
    was done. On landmarks `trace_residual` is tr √v(K − K̂)√v, and `certificate` says in words how
    close that keeps the fit to that of all of K; `ridge_effect` bounds how far the ridge that
    nearly dependent landmarks take, or rounding of K_RR without one, has moved the fit, as a share
    of what is left out: above 1 % `fit` warns. What landmarks would tell by differences that are
    far below the ridge is lost, and not in it. Where λ was
    searched for, `lams` are those looked at, (L, t) where each target has its own, and `search`
    says how many factors that took; where only below a grid, `lams` are those and the grid's above.
    By the iterative route `run` has residuals, history and the reason of every column's end, and
    `loo_standard_error` says how sure `error` is, None where its loss is a step. `kept` is what
    `update` and `forget` take, `sure` what `posterior` does, and `jackknife` what `intervals` do,
    None where they were not asked for. After `update` and `forget` what needs rows that are gone is
    None: `loo_residuals`, and `lams`, `errors` and `error` but by GCV or the evidence;
    `certificate` and `search` are empty, and `ridge_effect` is beside the residuals of the fit,
    which are smaller than what is left out.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])).criterion
    'loo'
    """

    # `| Any` in the place of `| None`, which they are after some updates: whoever never updates
    # should not have to rule that out at every use.
    model: Model
    lams: Float[Array | np.ndarray, "L *#t"] | Any
    errors: Float[Array | np.ndarray, "L *t"] | Any
    lam: Float[Array | np.ndarray, "*#t"]
    error: Float[Array | np.ndarray, "*#t"] | Any
    loo_residuals: Float[Array | np.ndarray, "n *t"] | Any
    dof: Float[Array | np.ndarray, "*#t"]
    floor: Float[Array | np.ndarray, ""]
    indefinite: Float[Array | np.ndarray, ""]
    route: str = static()
    criterion: str = static()
    trace_residual: Float[Array | np.ndarray, ""] | None = None
    certificate: str = static(default="")
    num_landmarks: int = static(default=0)
    search: str = static(default="")
    run: Run | None = None
    loo_standard_error: Float[Array | np.ndarray, "*#t"] | None = None
    ridge_effect: Float[Array | np.ndarray, ""] | None = None
    kept: Any = None
    sure: Any = None
    jackknife: Any = None

    def plot(self, ax=None):
        """The criterion over λ with the chosen one, on Matplotlib axes, which it returns."""
        return plot_errors(self, ax)

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
    ) -> Float[Array | np.ndarray, "m *t"]: ...

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
    ) -> tuple[Float[Array | np.ndarray, "m *t"], Float[Array | np.ndarray, "m *t"]]: ...

    @on_any_mesh
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
        `keep_variance` was not asked for, or for `scale` or `corrected` without `return_std`."""
        if not return_std:
            check_unsaid(scale, corrected)
        mean = super().predict(X, fixed_effects=fixed_effects, block_size=block_size)
        return (
            (
                mean,
                self._sure().label_std(self.model, X, fixed_effects, scale, corrected, block_size),
            )
            if return_std
            else mean
        )

    @on_any_mesh
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
        `keep_variance` was not asked for, or for "loo" where rows were added or given up since.
        **Source**: Rasmussen and Williams 2006, eqs. 2.26, 2.42 and 5.10–5.12, §8.3.3.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> fit = rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0]), keep_variance=True)
        >>> near, far = fit.posterior(np.array([[0.5], [3.0]])).std
        >>> bool(far > 10 * near)
        True
        """
        return self._sure().posterior(self.model, X, fixed_effects, scale, corrected)

    def _sure(self):
        if self.sure is None:
            raise ValueError(
                "variances take more than the model keeps: fit with keep_variance=True"
            )
        return self.sure

    @on_any_mesh
    def intervals(
        self,
        X,
        level: float | np.floating | Float[Array | np.ndarray, ""] = 0.9,
        *,
        method: str | None = None,
        studentised: bool = False,
        fixed_effects=None,
        block_size: int | None = None,
    ) -> tuple[Float[Array | np.ndarray, "m *t"], Float[Array | np.ndarray, "m *t"]]:
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
        they span. It needs `keep_variance` too. **Shapes**: X (m, d), or a source of rows; gives
        (m,) or (m, t) each. **Cost** that of a product m × q × n, q as of the coefficients, by
        groups m × q × their number, and some 30 readings of m × n numbers, for each target; a block
        of rows at a time. **Raises** `ValueError` where `keep_intervals` was not asked for.
        **Fails** where the distribution drifts, or rows come in groups that were not left out
        together: too narrow then. **Source**: Barber, Candès, Ramdas and Tibshirani 2021,
        "Predictive inference with the jackknife+", theorems 1 and 4.

        >>> import numpy as np, jaxrls as rls
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 1, (300, 1))
        >>> y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=300)
        >>> fit = rls.fit(rls.Gaussian(0.3), X[:100], y[:100], keep_intervals=True)
        >>> lower, upper = fit.intervals(X[100:], level=0.9)
        >>> bool(abs(np.mean((lower <= y[100:]) & (y[100:] <= upper)) - 0.9) < 0.05)
        True
        """
        kept = self._jackknife()
        kept.check(method)
        spread = self._sure().spread if studentised else None
        return kept.intervals(self.model, X, fixed_effects, spread, level, block_size)

    @on_any_mesh
    def loo_predictive(self, *, scale="loo") -> Predictive:
        """Every label as the other rows tell it, Gaussian: whether standard deviations are right at
        any level, from what is left out alone.

        yᵢ ~ N(yᵢ − eᵢ, τ²/Pᵢᵢ) with 1/Pᵢᵢ = λ/(vᵢ(1 − hᵢ)), the variance of label i by the Gaussian
        process fitted to the others, the dictionary without its landmark; τ² = Σ eᵢ²Pᵢᵢ/n, for
        which they are right on average. With z = eᵢ/σᵢ its continuous ranked probability score is
        σᵢ(z(2Φ(z) − 1) + 2φ(z) − 1/√π).

        **Arguments**: `scale` "loo", or "evidence" or the number τ² as in `posterior`, which need
        `keep_variance` too. **Cost** O(n t). **Raises** `ValueError` where `keep_intervals` was not
        asked for, or groups were left out. **Fails**: too optimistic where rows come in groups.
        **Source**: Rasmussen and Williams 2006, eq. 5.12; Gneiting and Raftery 2007, "Strictly
        proper scoring rules, prediction, and estimation", eq. 21.

        >>> import numpy as np, jaxrls as rls
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 1, (300, 1))
        >>> fit = rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=300), keep_intervals=True)
        >>> bool(np.abs(np.subtract(fit.loo_predictive().coverage([0.5, 0.9]), [0.5, 0.9])).max() < 0.05)
        True
        """
        kept = self._jackknife()
        return predictive(
            kept,
            self.loo_residuals,
            None if isinstance(scale, str) and scale == "loo" else self._sure().amplitude(scale),
        )

    def _jackknife(self):
        if self.jackknife is None:
            gone = self.loo_residuals is None
            what = (
                "the rows were changed, and what each leaves out is not known any more"
                if gone
                else "intervals take more than the model keeps"
            )
            raise ValueError(f"{what}: fit {'to all rows anew ' * gone}with keep_intervals=True")
        return self.jackknife

    @on_any_mesh
    def update(
        self, X, Y=None, *, weights=None, fixed_effects=None, block_size: int | None = None
    ) -> "Fit":
        """The fit with further rows, by the moments that were kept: that of `fit` to all rows, on
        the same landmarks.

        λ is chosen anew where it was by GCV or the evidence, over the λ that were named or the grid
        that all rows have; these need moments alone. Else it stays, also where it was searched for,
        and as leave-one-out needs the rows that are gone, `error`, `errors`, `lams` and
        `loo_residuals` are None, as is `certificate` empty. Residuals, in GCV and the evidence, are
        a difference of squares of labels: right to about eps of those.

        **Arguments**: as in `fit`; Y with as many columns as before; X dense, sparse or a source of
        rows, such as a `stream`. **Returns** a new `Fit`, this one stays as it is. **Cost** O(b r²)
        for b rows, and O(r³). **Raises** `ValueError` where no moments were kept, or for what does
        not fit. **Warns** where more than a third of the digits are lost, and for a λ below the
        precision of the factor.

        >>> import numpy as np, jaxrls as rls
        >>> X = np.linspace(0, 1, 30)[:, None]
        >>> fit = rls.fit(rls.Linear(), X[:20], 2 * X[:20, 0], lams=[1e-3], keep_moments=True)
        >>> all_rows = rls.fit(rls.Linear(), X, 2 * X[:, 0], lams=[1e-3])
        >>> bool(abs(fit.update(X[20:], 2 * X[20:, 0]).model.coef - all_rows.model.coef) < 1e-12)
        True
        """
        return self._with(X, Y, weights, fixed_effects, block_size, 1)

    @on_any_mesh
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
        >>> fit = rls.fit(rls.Linear(), X, 2 * X[:, 0], lams=[1e-3], keep_moments=True)
        >>> some = rls.fit(rls.Linear(), X[:20], 2 * X[:20, 0], lams=[1e-3])
        >>> bool(abs(fit.forget(X[20:], 2 * X[20:, 0]).model.coef - some.model.coef) < 1e-12)
        True
        """
        return self._with(X, Y, weights, fixed_effects, block_size, -1)

    def _with(self, X, Y, weights, fixed_effects, block_size, sign):
        if self.kept is None:
            raise ValueError(
                "this fit kept no moments of its rows: fit with keep_moments=True to update it, or fit to all rows anew"
            )
        options = X, Y, weights, fixed_effects
        return self.kept.changed(self, *options, block_size=block_size, sign=sign)


@pytree
class History(Generic[K]):
    """What `tune` saw at every step, its best start first: S steps."""

    errors: Float[Array, " S"]
    gradient_norms: Float[Array, " S"]
    lams: Float[Array, " S"]
    kernels: K  # every leaf with a leading axis S


@pytree
class Stage:
    """A search on `rows` of the rows and so many landmarks, one of those before that on all: errors
    are of those rows, left out of those.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> rls.tune(rls.Gaussian(1.0), X, np.sin(6 * X[:, 0]), steps=2).stages
    ()
    """

    rows: int = static()
    landmarks: int = static()
    history: History
    reason: str = static()


@pytree
class Tuned(_Fitted, Generic[K]):
    """The result of `tune`: the kernel and λ of the smallest error seen, a model fitted with them,
    and how it went.

    `error` is the criterion there (the evidence negated), never above `start_error`. `converged`
    says whether the gradient norm fell below `tol`, `reason` why the search stopped; the rest is as
    in `Fit`, at this λ.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> tuned = rls.tune(rls.Gaussian(1.0), X, np.sin(6 * X[:, 0]), steps=5)
    >>> bool(tuned.error <= tuned.start_error)
    True
    """

    kernel: K
    lam: Float[Array | np.ndarray, ""]
    error: Float[Array | np.ndarray, ""]
    start_error: Float[Array | np.ndarray, ""]
    model: Model
    history: History[K]
    converged: bool = static()
    reason: str = static()
    loo_residuals: Float[Array | np.ndarray, "n *t"] | Any = None
    dof: Float[Array | np.ndarray, ""] | None = None
    floor: Float[Array | np.ndarray, ""] | None = None
    indefinite: Float[Array | np.ndarray, ""] | None = None
    route: str = static(default="")
    criterion: str = static(default="")
    trace_residual: Float[Array | np.ndarray, ""] | None = None
    certificate: str = static(default="")
    stages: tuple[Stage, ...] = ()  # on few rows, before `history`

    @property
    def lams(self) -> Float[Array | np.ndarray, " S"]:
        """λ at every step."""
        return self.history.lams

    @property
    def errors(self) -> Float[Array | np.ndarray, " S"]:
        """The criterion at every step."""
        return self.history.errors

    def plot(self, axes=None):
        """Error and gradient norm at every step, on two Matplotlib axes, which it returns."""
        return plot_search(self, axes)
