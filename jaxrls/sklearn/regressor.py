"""Regression with λ chosen by exact leave-one-out in one fit."""

from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from jaxrls.sklearn.base import RLSEstimator, adds_rows


class RLSRegressor(RegressorMixin, MultiOutputMixin, RLSEstimator):
    """Regularized least squares (kernel ridge regression) with λ chosen by exact leave-one-out in
    one fit.

    Minimises ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖²: λ is the `alpha` of `Ridge` and `KernelRidge`.
    `RLSRegressor()` stands for a grid search over `KernelRidge(kernel="rbf")`,
    `RLSRegressor("linear", lams=alphas)` for `RidgeCV(alphas)`.

    Parameters
    ----------
    kernel : str or jaxrls kernel, default="gaussian"
        "linear", "polynomial" (or "poly"), "gaussian" (or "rbf"), "laplacian", "matern12",
        "matern32", "matern52", "rational_quadratic" or "precomputed", or an object such as `0.5 *
        jaxrls.Gaussian(2.0) + jaxrls.Linear()`.
    width : float, array of shape (n_features,) or "median", default="median"
        Width of the kernels from "gaussian" to "rational_quadratic", exp(−‖x − z‖² / (2 width²)):
        scale the columns alike first. "median" is the median distance between distinct rows.
    gamma : float, "auto", "scale" or None, default=None
        γ of "gaussian", exp(−γ‖x − z‖²), and "laplacian", exp(−γ Σ |xⱼ − zⱼ|), in place of `width`;
        of "polynomial", where None is 1. "auto" is 1/n_features, what None is in `KernelRidge`, and
        "scale" 1/(n_features · X.var()), as in `SVC`.
    degree : int, default=3
        Degree of "polynomial", (γ⟨x, z⟩ + coef0)^degree.
    coef0 : float, default=1
        What "polynomial" adds to inner products, not negative.
    lams : float, array, "search" or "auto", default="auto"
        λ to choose from; "auto" is 100 of them from the spectrum, "search" finds the best between
        those, and one number is no choice. An array (L, n_targets) has λ for each column of y by
        itself, of which each takes the best: of one row, a given λ for each.
    criterion : "loo", "kfold", "gcv", "evidence", "log_predictive_density", "pairs", Criterion or \
callable, default="loo"
        What λ is chosen by, as in `jaxrls.fit`.
    loss : "squared_error", "absolute_error", "zero_one_loss" or callable, default="squared_error"
        What "loo" and "kfold" average over held-out rows.
    per_target : bool, default=False
        One λ for each column of y, in place of one for their mean error.
    conservative : float, default=0.0
        Take the largest λ whose error is within so many standard errors of the smallest: 1 is the
        rule of one standard error.
    tune : bool, default=False
        Tune the kernel's parameters first, from here, by the gradient of the criterion: see
        `jaxrls.tune`. One width for each column takes part as an array of them.
    landmarks : int, "auto", array or None, default=None
        How many rows carry the solution where there are too many for all to, or which ones; "auto"
        takes as many as it needs to be close to all: see `jaxrls.fit`. With `tune` the kernel is
        tuned on landmarks too, 500 of them for "auto" past 2000 rows.
    fit_intercept : bool, default=True
        Fit a constant b that is not penalised.
    cv : int, splitter, iterable or None, default=None
        Folds that leave each row out once. Anything but None means `criterion="kfold"`, which takes
        5 without it.
    random_state : int, RandomState or None, default=None
        Shuffles rows into a number of folds; None leaves them in order.
    keep : bool or None, default=None
        Keep the solution, from which `predict(X, return_std=True)` comes: n² numbers where all rows
        carry it. None keeps it up to 2000 rows.
    scoring : str, callable or None, default=None
        A scorer of scikit-learn's, by name or itself, that λ is chosen by in place of `loss`, on
        what is predicted for rows left out.
    by_fold : bool, default=False
        Take the mean of the scores of folds, as `GridSearchCV` does, in place of one score of all
        rows left out.
    store_cv_results : bool or "predictions", default=False
        Keep `cv_results_`: losses, unless there is `scoring`, or predictions.

    Attributes
    ----------
    lam_ : float or array of shape (n_targets,)
        The chosen λ.
    loo_error_ : float or array of shape (n_targets,)
        Leave-one-out error at `lam_`: of `loss` where that chose λ, else mean squared.
    loo_predictions_ : array of the shape of y
        What is predicted for each row by a fit to all others, with `lam_`.
    best_score_ : float or array of shape (n_targets,)
        The score at `lam_`, where `scoring` chose it.
    cv_results_ : array of shape (n_samples, n_lams) or (n_samples, n_targets, n_lams)
        The loss of each row left out at all of `path_.lams`, or with `scoring`, or by name, its
        predictions.
    path_ : jaxrls.Fit
        All of the fit; `path_.errors` is the criterion, or the score negated, over `path_.lams`.
    kernel_ : jaxrls kernel
        The kernel with its parameters, tuned or not.
    coef_ : array of shape (n_features,) or (n_targets, n_features)
        Weights, for a kernel with explicit features.
    dual_coef_ : array of shape (n_samples,) or (n_samples, n_targets)
        Weights of the rows in the expansion by kernels, for all others.
    intercept_ : float or array of shape (n_targets,)
        b, or 0.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    `fit` costs one eigendecomposition, O(n³), whatever the number of λ; with the linear kernel and
    fewer columns than rows O(n d²), sparse X included. `tune` adds some dozen times O(n³). JAX
    compiles for each new shape of X once, which takes seconds. float32 input is computed in
    float32, everything else in float64. A row of `sample_weight` 2 is two equal rows, left out
    together. Warns where the chosen λ is at the end of the grid.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from jaxrls.sklearn import RLSRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), RLSRegressor()).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.5
    True
    """

    def fit(self, X, y, sample_weight=None, groups=None, fixed_effects=None):
        """Fit to X (n, d) and y (n,) or (n, t), weighted by `sample_weight` (n,); rows of equal
        `groups` (n,) are left out together, and `fixed_effects`, columns (n, q) or
        `jaxrls.levels(labels)`, are not penalised.
        """
        X, y = self._checked(X, y, multi_output=True, y_numeric=True, ensure_min_samples=2)
        return self._fit(X, y, y, sample_weight, groups, fixed_effects)

    @available_if(adds_rows)
    def partial_fit(self, X, y, sample_weight=None):
        """Add rows to those of earlier calls, exactly: coefficients are those of all rows so far.

        The kernel, and of kernels without explicit features the landmarks, come from the rows of
        the first call: as many as `landmarks` says, or up to 500. λ is chosen anew in every call by
        GCV, which needs sums over rows only, from `lams`; "search" finds it in the first. There are
        no `loo_error_` and `loo_predictions_`, which need the rows. `path_.forget(X, y)` gives rows
        up."""
        options = {"multi_output": True, "y_numeric": True, "reset": self._begins()}
        X, y = self._checked(X, y, ensure_min_samples=1 + options["reset"], **options)
        return self._partial_fit(X, y, y, sample_weight, options["reset"])

    def predict(self, X, return_std=False, fixed_effects=None):
        """Predictions (m,) or (m, t) for the rows of X, in O(m n d); with `return_std` also how far
        new labels lie from them: see `Fit.posterior`. Of a fit with `fixed_effects` those of the
        rows of X are needed too.
        """
        return self._of_path("predict", X, return_std=return_std, fixed_effects=fixed_effects)

    def predict_interval(self, X, level=0.9, studentised=False, fixed_effects=None):
        """Ends (lower, upper) of intervals that hold a new label with probability `level`, by the
        jackknife+, or CV+ where groups or folds were left out: see `Fit.intervals`.
        """
        options = {"studentised": studentised, "fixed_effects": fixed_effects}
        return self._of_path("intervals", X, level, **options)
