"""Regularized least squares as scikit-learn estimators: `RLSRegressor` and `RLSClassifier`.

They stand where `GridSearchCV(KernelRidge(), …)`, `RidgeCV` and `RidgeClassifierCV` do, choose λ by exact leave-one-out in a
single `fit`, and go through pipelines, searches, `clone` and pickle like any other estimator.
"""

import warnings
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxrls as rls
from jaxrls.support.checks import as_floats, check_unmasked
from jaxrls.support.precision import scope

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, is_classifier
    from sklearn.model_selection import KFold, StratifiedKFold, check_cv
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("jaxrls.sklearn needs scikit-learn 1.6 or newer: pip install 'jaxrls[sklearn]'") from error

__all__ = ["RLSClassifier", "RLSRegressor"]

RADIAL: dict[str, Callable] = {
    "gaussian": rls.Gaussian,
    "rbf": rls.Gaussian,
    "laplacian": rls.Laplacian,
    "matern12": partial(rls.Matern, 0.5),
    "matern32": partial(rls.Matern, 1.5),
    "matern52": partial(rls.Matern, 2.5),
    "rational_quadratic": rls.RationalQuadratic,
}
KERNELS = ("linear", "polynomial", *RADIAL, "precomputed")
CRITERIA = {"loo": rls.loo, "gcv": rls.gcv, "kfold": rls.kfold}
LOSSES = {f.__name__: f for f in (rls.squared_error, rls.absolute_error, rls.zero_one_loss)}
OLD_LOSSES = {"misclassification": "zero_one_loss"}
LANDMARKS_TO_TUNE = 500
MOST_LANDMARKS = 500  # of the first rows of `partial_fit`, where no number is given
start_from_data = jax.jit(rls.start_from_data)
FLOATS = (np.float64, np.float32)
FOLDS = 5


class _RLS(BaseEstimator):
    """All that regression and classification share: kernel, criterion, fit, and the scores that it predicts."""

    def __init__(
        self,
        kernel="gaussian",
        *,
        width="median",
        degree=3,
        lams="auto",
        criterion="loo",
        loss="squared_error",
        per_target=False,
        tune=False,
        landmarks=None,
        fit_intercept=True,
        cv=None,
        random_state=None,
        variance=False,
    ):
        self.kernel = kernel
        self.width = width
        self.degree = degree
        self.lams = lams
        self.criterion = criterion
        self.loss = loss
        self.per_target = per_target
        self.tune = tune
        self.landmarks = landmarks
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.random_state = random_state
        self.variance = variance

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._kernel_is("linear", rls.Linear)
        tags.input_tags.pairwise = self._kernel_is("precomputed", rls.Precomputed)
        return tags

    def _kernel_is(self, name, cls):
        return isinstance(self.kernel, cls) or (isinstance(self.kernel, str) and self.kernel == name)

    def _validate(self, X, *args, **options):
        """scikit-learn's own checks: columns and their names, NaN, sparse or not."""
        for name, value in zip(("X", "y"), (X, *args), strict=False):
            check_unmasked(name, value)
        accept_sparse = "csr" if self._kernel_is("linear", rls.Linear) else False
        return validate_data(self, X, *args, accept_sparse=accept_sparse, dtype=FLOATS, **options)

    def _fit(self, X, y, Y, sample_weight, groups):
        """Fit the targets Y, numbers or the codes of y."""
        Y, sample_weight = np.asarray(Y, X.dtype), self._weights(X, sample_weight)
        fit = self._fitted(X, Y, sample_weight, **self._criterion(X, y, groups))
        self._keep(fit)
        self._keep_left_out(fit, Y, sample_weight)
        return self

    def _fitted(self, X, Y, sample_weight, keep_moments=False, **options):
        """The fit with the estimator's parameters."""
        loss, landmarks = _look_up("loss", _renamed(self.loss), LOSSES), self.landmarks
        options |= {"weights": sample_weight, "intercept": bool(self.fit_intercept)}
        kernel = self._make_kernel(X, sample_weight)
        if self.tune and jax.tree.leaves(kernel):
            smooth = rls.squared_error if loss is rls.zero_one_loss else loss
            kernel = rls.tune(kernel, X, Y, loss=smooth, landmarks=self._landmarks_to_tune(len(X)), **options).kernel
        given = landmarks is not None and not isinstance(landmarks, str)
        if keep_moments and not given and kernel.num_features(X.shape[1], X.dtype) is None:
            landmarks = min(X.shape[0], MOST_LANDMARKS)
        options |= {"lams": None if isinstance(self.lams, str) and self.lams == "auto" else self.lams, "keep_moments": keep_moments}
        options |= {"per_target": bool(self.per_target), "keep_variance": bool(self.variance)}
        return rls.fit(kernel, X, Y, loss=loss, landmarks=landmarks, **options)

    def _weights(self, X, sample_weight):
        if sample_weight is None:
            return None
        check_unmasked("sample_weight", sample_weight)
        return _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)

    def _begins(self) -> bool:
        """Whether `partial_fit` is at its first rows."""
        if hasattr(self, "path_") and self.path_.kept is None:
            warnings.warn("fit kept no moments to add to: partial_fit begins anew, without the rows of fit", UserWarning, stacklevel=3)
        return not hasattr(self, "path_") or self.path_.kept is None

    def _partial_fit(self, X, Y, sample_weight, first):
        """Fit the first targets, or add further ones to the moments of those before."""
        Y, sample_weight = np.asarray(Y, X.dtype), self._weights(X, sample_weight)
        if self.criterion not in ("loo", "gcv") or _renamed(self.loss) != "squared_error" or self.cv is not None:
            raise ValueError("partial_fit chooses λ by GCV, from moments alone: leave criterion=, loss= and cv= out, or use fit")
        begun = self._fitted(X, Y, sample_weight, criterion=rls.gcv, keep_moments=True) if first else None
        self._keep(begun or self.path_.update(X, Y, weights=sample_weight))
        return self

    def _landmarks_to_tune(self, n):
        """The number given; "auto" depends on a kernel, so that a fixed number takes its place where rows are many."""
        if not isinstance(self.landmarks, str):
            return self.landmarks
        return LANDMARKS_TO_TUNE if n > 4 * LANDMARKS_TO_TUNE else None

    def _criterion(self, X, y, groups):
        """`criterion` and `groups` for `rls.fit`: anything said about folds means k-fold."""
        check_unmasked("groups", groups)
        criterion = _look_up("criterion", self.criterion, CRITERIA)
        if self.cv is None and (criterion is not rls.kfold or groups is not None):
            return {"criterion": criterion, "groups": groups}
        if criterion is rls.gcv:
            raise ValueError("cv= does not go with criterion='gcv', which has no folds: leave one of them out")
        cv, splitter = FOLDS if self.cv is None else self.cv, StratifiedKFold if is_classifier(self) else KFold
        if isinstance(cv, int) and self.random_state is not None:
            cv = splitter(cv, shuffle=True, random_state=self.random_state)
        labels = np.full(X.shape[0], -1)
        times = np.zeros(X.shape[0], int)
        for fold, (_, held_out) in enumerate(check_cv(cv, y, classifier=is_classifier(self)).split(X, y, groups)):
            labels[held_out] = fold
            times[held_out] += 1
        if (times != 1).any():
            raise ValueError(
                f"cv= must leave every row out once, as KFold and GroupKFold do, and leaves {(times > 1).sum()} rows out more often "
                f"and {(times == 0).sum()} never"
            )
        return {"criterion": rls.kfold, "groups": labels}

    def _make_kernel(self, X, sample_weight):
        if isinstance(self.kernel, rls.Kernel):
            return self.kernel
        if not isinstance(self.kernel, str) or self.kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(map(repr, KERNELS))}, or a jaxrls kernel, and is {self.kernel!r}")
        if self.kernel not in RADIAL:
            others: dict[str, Callable] = {"linear": rls.Linear, "precomputed": rls.Precomputed}
            return others.get(self.kernel, partial(rls.Polynomial, self.degree))()
        if not isinstance(self.width, str):
            return RADIAL[self.kernel](np.asarray(as_floats("width", self.width, X.dtype)))
        if self.width != "median":
            raise ValueError(f"width must be a positive number, one for each column of X, or 'median', and is {self.width!r}")
        distinct = np.unique(X if sample_weight is None else X[sample_weight > 0], axis=0)  # a row of weight 2 is two equal rows
        with scope(X.dtype == np.float64):
            return jax.tree.map(np.asarray, start_from_data(RADIAL[self.kernel](1.0), jnp.asarray(distinct)))

    def _keep(self, fit):
        """The fitted attributes."""
        fit = jax.tree.map(np.asarray, fit)
        self.path_, self.kernel_, self.lam_ = fit, fit.model.kernel, fit.lam[()]
        self.intercept_ = fit.model.intercept[()]
        for name in ("coef_", "dual_coef_", "loo_predictions_", "loo_error_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if fit.model.points is None and not isinstance(self.kernel_, rls.Precomputed):
            self.coef_ = fit.model.coef.T
        else:
            self.dual_coef_ = fit.model.coef

    def _keep_left_out(self, fit, Y, sample_weight):
        """Those of rows left out."""
        fit = jax.tree.map(np.asarray, fit)
        self.loo_predictions_ = Y - fit.loo_residuals
        if fit.criterion == "loo":
            self.loo_error_ = fit.error[()]
        else:
            errors = np.average(fit.loo_residuals**2, axis=0, weights=sample_weight)
            self.loo_error_ = errors if self.per_target else errors.mean()

    def _scores(self, X, return_std=False):
        check_is_fitted(self)
        return jax.tree.map(np.asarray, self.path_.predict(self._validate(X, reset=False), return_std=return_std))


class RLSRegressor(RegressorMixin, MultiOutputMixin, _RLS):
    """Regularized least squares (kernel ridge regression) with λ chosen by exact leave-one-out in one fit.

    Minimises ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖²: λ is the `alpha` of `Ridge` and `KernelRidge`. `RLSRegressor()` stands for a
    grid search over `KernelRidge(kernel="rbf")`, `RLSRegressor("linear", lams=alphas)` for `RidgeCV(alphas)`.

    Parameters
    ----------
    kernel : str or jaxrls kernel, default="gaussian"
        "linear", "polynomial", "gaussian" (or "rbf"), "laplacian", "matern12", "matern32", "matern52", "rational_quadratic" or
        "precomputed", or an object such as `0.5 * jaxrls.Gaussian(2.0) + jaxrls.Linear()`.
    width : float, array of shape (n_features,) or "median", default="median"
        Width of the kernels from "gaussian" to "rational_quadratic", exp(−‖x − z‖² / (2 width²)): scale the columns alike
        first. "median" is the median distance between distinct rows.
    degree : int, default=3
        Degree of "polynomial", (⟨x, z⟩ + 1)^degree.
    lams : float, array, "search" or "auto", default="auto"
        λ to choose from; "auto" is 100 of them from the spectrum, "search" finds the best between those, and one number is no choice.
    criterion : "loo", "gcv" or "kfold", default="loo"
        What λ is chosen by.
    loss : "squared_error", "absolute_error", "zero_one_loss" or callable, default="squared_error"
        What "loo" and "kfold" average over held-out rows.
    per_target : bool, default=False
        One λ for each column of y, in place of one for their mean error.
    tune : bool, default=False
        Tune the kernel's parameters first, from here, by the gradient of the criterion: see `jaxrls.tune`. One width for each column takes
        part as an array of them.
    landmarks : int, "auto", array or None, default=None
        How many rows carry the solution where there are too many for all to, or which ones; "auto" takes as many as it needs to be close
        to all: see `jaxrls.fit`. With `tune` the kernel is tuned on landmarks too, 500 of them for "auto" past 2000 rows.
    fit_intercept : bool, default=True
        Fit a constant b that is not penalised.
    cv : int, splitter, iterable or None, default=None
        Folds that leave each row out once. Anything but None means `criterion="kfold"`, which takes 5 without it.
    random_state : int, RandomState or None, default=None
        Shuffles rows into a number of folds; None leaves them in order.
    variance : bool, default=False
        Keep what `predict(X, return_std=True)` takes, n² numbers where all rows carry the solution.

    Attributes
    ----------
    lam_ : float or array of shape (n_targets,)
        The chosen λ.
    loo_error_ : float or array of shape (n_targets,)
        Leave-one-out error at `lam_`: of `loss` where that chose λ, else mean squared.
    loo_predictions_ : array of the shape of y
        What is predicted for each row by a fit to all others, with `lam_`.
    path_ : jaxrls.Fit
        All of the fit; `path_.errors` is the criterion over `path_.lams`.
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
    `fit` costs one eigendecomposition, O(n³), whatever the number of λ; with the linear kernel and fewer columns than rows O(n d²),
    sparse X included. `tune` adds some dozen times O(n³). JAX compiles for each new shape of X once, which takes seconds. float32
    input is computed in float32, everything else in float64. A row of `sample_weight` 2 is two equal rows, left out together. Warns
    where the chosen λ is at the end of the grid.

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

    def fit(self, X, y, sample_weight=None, groups=None):
        """Fit to X (n, d) and y (n,) or (n, t), weighted by `sample_weight` (n,); rows of equal `groups` (n,) are left out together."""
        X, y = self._validate(X, y, multi_output=True, y_numeric=True, ensure_min_samples=2)
        return self._fit(X, y, y, sample_weight, groups)

    def partial_fit(self, X, y, sample_weight=None):
        """Add rows to those of earlier calls, exactly: coefficients are those of all rows so far.

        The kernel, and of kernels without explicit features the landmarks, come from the rows of the first call: as many as `landmarks` says, or up to
        500. λ is chosen anew in every call by GCV, which needs sums over rows only, from `lams`; "search" finds it in the first. There are no
        `loo_error_` and `loo_predictions_`, which need the rows. `path_.forget(X, y)` gives rows up.
        """
        first = self._begins()
        X, y = self._validate(X, y, multi_output=True, y_numeric=True, reset=first, ensure_min_samples=1 + first)
        return self._partial_fit(X, y, sample_weight, first)

    def predict(self, X, return_std=False):
        """Predictions (m,) or (m, t) for the rows of X, in O(m n d); with `return_std` also how far new labels lie from them: see `Fit.posterior`."""
        return self._scores(X, return_std)


class RLSClassifier(ClassifierMixin, _RLS):
    """Regularized least-squares classification: regression on ±1 codes, one column for each class, the largest score wins.

    `RLSClassifier("linear", lams=alphas)` stands for `RidgeClassifierCV(alphas)`. Two classes share one column. There are no
    probabilities: see `CalibratedClassifierCV`.

    Parameters
    ----------
    kernel, width, degree, lams, criterion, loss, per_target, tune, landmarks, fit_intercept, cv, random_state, variance
        As in `RLSRegressor`. With `loss="zero_one_loss"` λ is chosen by the held-out error rate, kernel parameters by squared
        error still; `per_target` chooses one λ for each class; folds are stratified.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The labels, sorted.
    lam_, loo_error_, path_, kernel_, coef_, dual_coef_, intercept_, n_features_in_, feature_names_in_
        As in `RLSRegressor`, the codes being the targets: a single one for two classes.
    loo_predictions_ : array of shape (n_samples,) or (n_samples, n_classes)
        Scores of each row by a fit to all others, on the scale of `decision_function`.

    Notes
    -----
    Costs as `RLSRegressor`: columns share the factorization.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from jaxrls.sklearn import RLSClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), RLSClassifier()).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.95
    True
    """

    def fit(self, X, y, sample_weight=None, groups=None):
        """Fit to X (n, d) and labels y (n,), weighted by `sample_weight` (n,); rows of equal `groups` (n,) are left out together."""
        X, y = self._validate(X, y, ensure_min_samples=2)
        check_classification_targets(y)
        codes, self.classes_ = rls.encode(y)
        return self._fit(X, y, codes, sample_weight, groups)

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Add rows to those of earlier calls, as `RLSRegressor.partial_fit` does; the first one names all `classes` that there will be."""
        first = self._begins()
        X, y = self._validate(X, y, reset=first, ensure_min_samples=1 + first)
        check_classification_targets(y)
        if classes is None and not hasattr(self, "classes_"):
            raise ValueError("classes must be passed on the first call to partial_fit: all labels that will come")
        known = self.classes_ if classes is None else np.unique(classes)
        if not first and not np.array_equal(known, self.classes_):
            raise ValueError(f"classes must be those of the first call to partial_fit, {self.classes_.tolist()}, and are {known.tolist()}")
        codes, known = rls.encode(y, known)
        self._partial_fit(X, codes, sample_weight, first)
        self.classes_ = known
        return self

    def decision_function(self, X):
        """Scores (m,) for two classes, positive for `classes_[1]`, or (m, n_classes)."""
        return self._scores(X)

    def predict(self, X):
        """The label of the largest score (m,) for the rows of X, in O(m n d)."""
        return rls.decode(self._scores(X), self.classes_)


def _renamed(loss):
    """The present name of a loss."""
    if not isinstance(loss, str) or loss not in OLD_LOSSES:
        return loss
    warnings.warn(f"loss={loss!r} is now called {OLD_LOSSES[loss]!r}", DeprecationWarning, stacklevel=5)
    return OLD_LOSSES[loss]


def _look_up(name, value, known):
    if callable(value):
        return value
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, or a function of that kind, and is {value!r}")
    return known[value]
