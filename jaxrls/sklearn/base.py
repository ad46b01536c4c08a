"""What regression and classification share: kernel, criterion, fit, and the scores that they predict."""

import warnings

import jax
import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

import jaxrls as rls
from jaxrls.sklearn.names import CRITERIA, LOSSES, look_up, named_kernel, renamed
from jaxrls.support.checks import check_unmasked

LANDMARKS_TO_TUNE = 500
MOST_LANDMARKS = 500  # of the first rows of `partial_fit`, where no number is given
FLOATS = (np.float64, np.float32)
FOLDS = 5


class RLSEstimator(BaseEstimator):
    """All that regression and classification share: kernel, criterion, fit, and the scores that it predicts."""

    def __init__(
        self,
        kernel="gaussian",
        *,
        width="median",
        gamma=None,
        degree=3,
        coef0=1,
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
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
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
        Y, sample_weight = np.asarray(Y, X.dtype), self._weights(X, y, sample_weight)
        fit = self._fitted(X, Y, sample_weight, **self._criterion(X, y, groups))
        self._keep(fit)
        self._keep_left_out(fit, Y, sample_weight)
        return self

    def _fitted(self, X, Y, sample_weight, keep_moments=False, **options):
        """The fit with the estimator's parameters."""
        loss, landmarks = look_up("loss", renamed(self.loss), LOSSES), self.landmarks
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

    def _weights(self, X, y, sample_weight):
        """Those of the rows, checked."""
        del y
        if sample_weight is None:
            return None
        check_unmasked("sample_weight", sample_weight)
        return _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)

    def _begins(self) -> bool:
        """Whether `partial_fit` is at its first rows."""
        if hasattr(self, "path_") and self.path_.kept is None:
            warnings.warn("fit kept no moments to add to: partial_fit begins anew, without the rows of fit", UserWarning, stacklevel=3)
        return not hasattr(self, "path_") or self.path_.kept is None

    def _partial_fit(self, X, y, Y, sample_weight, first):
        """Fit the first targets, or add further ones to the moments of those before."""
        Y, sample_weight = np.asarray(Y, X.dtype), self._weights(X, y, sample_weight)
        if self.criterion not in ("loo", "gcv") or renamed(self.loss) != "squared_error" or self.cv is not None:
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
        criterion = look_up("criterion", self.criterion, CRITERIA)
        if self.cv is None and (criterion is not rls.kfold or groups is not None):
            return {"criterion": criterion, "groups": groups}
        if criterion is rls.gcv:
            raise ValueError("cv= does not go with criterion='gcv', which has no folds: leave one of them out")
        cv, splitter = FOLDS if self.cv is None else self.cv, StratifiedKFold if is_classifier(self) and y.ndim == 1 else KFold
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
        counted = slice(None) if sample_weight is None else sample_weight > 0
        numbers = {"width": self.width, "gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}
        return named_kernel(self.kernel, X, counted, **numbers)

    def _keep(self, fit):
        """The fitted attributes."""
        fit = jax.tree.map(np.asarray, fit)
        self.path_, self.kernel_, self.lam_ = fit, fit.model.kernel, fit.lam[()]
        self.intercept_ = fit.model.intercept[()]
        for name in (
            "coef_",
            "dual_coef_",
            "loo_predictions_",
            "loo_error_",
            "calibration_",
            "_by_jackknife",
            "_by_conformal",
        ):  # of an earlier fit
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
            self.loo_error_ = errors if np.ndim(self.lam_) else errors.mean()

    def _scores(self, X, return_std=False):
        check_is_fitted(self)
        return jax.tree.map(np.asarray, self.path_.predict(self._validate(X, reset=False), return_std=return_std))
