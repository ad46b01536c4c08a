"""What regression and classification share: kernel, criterion, fit, and the scores that they
predict.
"""

import warnings
from dataclasses import replace

import jax
import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

import jaxrls as rls
from jaxrls.search.conclude import inspect_lam
from jaxrls.sklearn.names import CRITERIA, LOSSES, look_up, named_kernel
from jaxrls.sklearn.scoring import Regressed, Swept, best, losses, scores, scores_by_target
from jaxrls.support.checks import check_unmasked

LANDMARKS_TO_TUNE = 500
MOST_LANDMARKS = 500  # of the first rows of `partial_fit`, where no number is given
FLOATS = (np.float64, np.float32)
FOLDS = 5
# What only some fits leave behind.
NOT_ALWAYS = (
    *(
        "coef_",
        "dual_coef_",
        "loo_predictions_",
        "loo_error_",
        "best_score_",
        "cv_results_",
        "calibration_",
    ),
    *("_by_jackknife", "_by_conformal", "_adds_rows"),
)


def adds_rows(estimator) -> bool:
    """Whether there is a `partial_fit`, for `available_if`; which says why not."""
    plain = estimator.criterion in ("loo", "gcv") and estimator.loss == "squared_error"
    if (
        not plain
        or estimator.cv is not None
        or estimator.scoring is not None
        or estimator.store_cv_results
    ):
        raise AttributeError(
            "partial_fit chooses λ by GCV, from moments alone: leave criterion=, loss= and cv= out, and scoring= and store_cv_results=, or use fit"
        )
    return True


class RLSEstimator(BaseEstimator):
    """All that regression and classification share: kernel, criterion, fit, and the scores that it
    predicts.
    """

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
        conservative=0.0,
        tune=False,
        landmarks=None,
        fit_intercept=True,
        cv=None,
        random_state=None,
        keep=None,
        scoring=None,
        by_fold=False,
        store_cv_results=False,
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
        self.conservative = conservative
        self.tune = tune
        self.landmarks = landmarks
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.random_state = random_state
        self.keep = keep
        self.scoring = scoring
        self.by_fold = by_fold
        self.store_cv_results = store_cv_results

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._kernel_is("precomputed", rls.Precomputed)
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags

    def _kernel_is(self, name, cls):
        return isinstance(self.kernel, cls) or (
            isinstance(self.kernel, str) and self.kernel == name
        )

    def _validate(self, X, *args, **options):
        """scikit-learn's own checks: columns and their names, NaN, sparse or not."""
        for name, value in zip(("X", "y"), (X, *args), strict=False):
            check_unmasked(name, value)
        accept_sparse = False if self._kernel_is("precomputed", rls.Precomputed) else "csr"
        return validate_data(self, X, *args, accept_sparse=accept_sparse, dtype=FLOATS, **options)

    def _fit(self, X, y, Y, sample_weight, groups):
        """Fit the targets Y, numbers or the codes of y."""
        Y, weights = np.asarray(Y, X.dtype), self._weights(X, y, sample_weight)
        how = self._criterion(X, y, groups)
        kernel, lams = self._tuned(X, Y, weights, how), self._lams()
        if self.scoring is None:
            fit = self._fitted(kernel, X, Y, weights, lams, **how)
            self._keep(fit)
            self._keep_left_out(fit, Y, weights)
            if self.store_cv_results:
                self._store(self._swept(kernel, X, Y, weights, how, self.path_.lams).held, Y)
        else:
            self._check_scoring(how)
            swept = self._swept(kernel, X, Y, weights, how, lams)
            scored = self._scored(
                swept, y, Y, RLSEstimator._weights(self, X, y, sample_weight), how
            )
            fit = swept.fit(scored["lam"], self.keep)
            self._keep(fit)
            self._keep_left_out(fit, Y, weights)
            self._keep_scores(scored, isinstance(lams, int))
            if self.store_cv_results:
                self._store(swept.held, Y)
        return self

    def _lams(self):
        if isinstance(self.lams, str) and self.lams == "auto":
            return 100
        return self.lams if isinstance(self.lams, str) else np.atleast_1d(self.lams)

    def _tuned(self, X, Y, weights, how):
        """The kernel, with parameters that are tuned where that is asked for."""
        loss, kernel = look_up("loss", self.loss, LOSSES), self._make_kernel(X, weights)
        if not (self.tune and jax.tree.leaves(kernel)):
            return kernel
        smooth = rls.squared_error if loss is rls.zero_one_loss else loss
        landmarks = self._landmarks_to_tune(X.shape[0])
        options = {"weights": weights, "intercept": bool(self.fit_intercept), **_of(how, smooth)}
        return rls.tune(kernel, X, Y, landmarks=landmarks, keep=False, **options).kernel

    def _fitted(self, kernel, X, Y, weights, lams, **options):
        """The fit with the estimator's parameters."""
        options = {
            "weights": weights,
            "intercept": bool(self.fit_intercept),
            "lams": lams,
            "per_target": bool(self.per_target),
            "conservative": self.conservative,
            "keep": self.keep,
            "landmarks": self.landmarks,
        } | options
        return rls.fit(kernel, X, Y, **_of(options, look_up("loss", self.loss, LOSSES)))

    def _swept(self, kernel, X, Y, weights, how, lams) -> Swept:
        """Predictions of rows left out at every λ, by `loo` or `kfold`."""
        if (
            not isinstance(how["criterion"], rls.LeaveOneOut)
            or isinstance(self.landmarks, str)
            or isinstance(lams, str)
        ):
            raise ValueError(
                "scoring= and store_cv_results= take criterion='loo' or 'kfold', and neither lams='search' nor landmarks='auto'"
            )
        options = {
            "weights": weights,
            "intercept": bool(self.fit_intercept),
            "landmarks": self.landmarks,
        } | how
        return Swept.of(kernel, X, Y, lams, **options)

    def _check_scoring(self, how):
        """Raise where something else says what λ is chosen by."""
        if self.conservative:
            raise ValueError(
                "conservative= goes by the losses that loss= names, and scoring= chooses λ by scores: leave one of them out"
            )
        if self.loss != "squared_error":
            raise ValueError(
                f"scoring= and loss= both say what λ is chosen by, {self.scoring!r} and {self.loss!r}: leave one of them out"
            )
        if self.by_fold and how["groups"] is None:
            raise ValueError("by_fold=True needs folds: give cv= or groups=")

    def _scored(self, swept: Swept, y, Y, of_rows, how):
        """λ by a scorer, and its errors, the scores negated."""
        lams, held = swept.lams, swept.held
        folds = np.asarray(how["groups"]) if self.by_fold else None
        if (self.per_target or lams.ndim == 2) and Y.ndim == 2:
            if is_classifier(self):
                raise ValueError(
                    "scoring= chooses one λ for all classes: leave per_target= out, and lams (L,)"
                )
            errors = -scores_by_target(self.scoring, held, Y, of_rows, folds)
            chosen = [
                best(lams[:, t] if lams.ndim == 2 else lams, -errors[:, t])
                for t in range(Y.shape[1])
            ]
            lam = np.array(
                [lams[i, t] if lams.ndim == 2 else lams[i] for t, i in enumerate(chosen)]
            )
            return {
                "lams": lams,
                "errors": errors,
                "lam": lam,
                "error": errors[chosen, np.arange(Y.shape[1])],
            }
        errors = -scores(self.scoring, self._for_scorers(), held, y, of_rows, folds)
        i = best(lams, -errors)
        of_columns = np.broadcast_to(
            errors.reshape(-1, *[1] * (Y.ndim - 1)), (len(lams), *Y.shape[1:])
        )  # the same for all, as of the error rate
        return {"lams": lams, "errors": of_columns, "lam": lams[i], "error": errors[i]}

    def _keep_scores(self, scored, default_grid):
        """Those by which λ was chosen, with what there is to say of it."""
        errors, error = (
            np.asarray(scored[name], self.path_.lam.dtype) for name in ("errors", "error")
        )
        self.best_score_ = -scored["error"]
        self.path_: rls.Fit = replace(self.path_, lams=scored["lams"], errors=errors, error=error)
        inspect_lam(self.path_, default_grid)

    def _for_scorers(self):
        """What a scorer takes for the estimator."""
        return Regressed()

    def _store(self, held, Y):
        """What was left out at every λ, which come last: predictions where a scorer has seen them,
        or by name, else losses.
        """
        if isinstance(self.store_cv_results, str) and self.store_cv_results != "predictions":
            raise ValueError(
                f"store_cv_results must be True, False or 'predictions', and is {self.store_cv_results!r}"
            )
        if self.scoring is None and self.store_cv_results != "predictions":
            loss = look_up("loss", self.loss, LOSSES)
            held = np.stack([losses(loss, Y - each, Y) for each in held])
        self.cv_results_ = np.moveaxis(held, 0, -1)

    def _weights(self, X, y, sample_weight):
        """Those of the rows, checked."""
        del y
        if sample_weight is None:
            return None
        check_unmasked("sample_weight", sample_weight)
        return _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)

    def _begins(self) -> bool:
        """Whether `partial_fit` is at its first rows."""
        first = not hasattr(self, "_adds_rows")
        if first and hasattr(self, "path_"):
            warnings.warn(
                "fit is to all its rows at once: partial_fit begins anew, without them",
                UserWarning,
                stacklevel=3,
            )
        return first

    def _partial_fit(self, X, y, Y, sample_weight, first):
        """Fit the first targets, or add further ones to the moments of those before."""
        Y, weights = np.asarray(Y, X.dtype), self._weights(X, y, sample_weight)
        if not first:
            self._keep(self.path_.update(X, Y, weights=weights))
            self._adds_rows = True
            return self
        options = {"criterion": rls.gcv, "keep": True}
        kernel, given = (
            self._tuned(X, Y, weights, {"criterion": rls.gcv}),
            self.landmarks is not None and not isinstance(self.landmarks, str),
        )
        if not given and kernel.num_features(X.shape[1], X.dtype) is None:
            options["landmarks"] = min(X.shape[0], MOST_LANDMARKS)
        self._keep(self._fitted(kernel, X, Y, weights, self._lams(), **options))
        self._adds_rows = True
        return self

    def _landmarks_to_tune(self, n):
        """The number given; "auto" depends on a kernel, so that a fixed number takes its place
        where rows are many.
        """
        if not isinstance(self.landmarks, str):
            return self.landmarks
        return LANDMARKS_TO_TUNE if n > 4 * LANDMARKS_TO_TUNE else None

    def _criterion(self, X, y, groups):
        """`criterion` and `groups` for `rls.fit`: anything said about folds means k-fold."""
        check_unmasked("groups", groups)
        named = look_up("criterion", self.criterion, CRITERIA)
        criterion = rls.loo if named is rls.kfold else named
        if self.cv is None and (named is not rls.kfold or groups is not None):
            return {"criterion": criterion, "groups": groups}
        if not isinstance(criterion, rls.LeaveOneOut):
            raise ValueError(
                f"cv= does not go with criterion={self.criterion!r}, which has no folds: leave one "
                "of them out"
            )
        cv, splitter = (
            FOLDS if self.cv is None else self.cv,
            StratifiedKFold if is_classifier(self) and y.ndim == 1 else KFold,
        )
        if isinstance(cv, int) and self.random_state is not None:
            cv = splitter(cv, shuffle=True, random_state=self.random_state)
        labels = np.full(X.shape[0], -1)
        times = np.zeros(X.shape[0], int)
        for fold, (_, rows) in enumerate(
            check_cv(cv, y, classifier=is_classifier(self)).split(X, y, groups)
        ):
            labels[rows] = fold
            times[rows] += 1
        if (times != 1).any():
            raise ValueError(
                f"cv= must leave every row out once, as KFold and GroupKFold do, and leaves {(times > 1).sum()} rows out more often "
                f"and {(times == 0).sum()} never"
            )
        return {"criterion": criterion, "groups": labels}

    def _make_kernel(self, X, sample_weight):
        counted = slice(None) if sample_weight is None else sample_weight > 0
        numbers = {
            "width": self.width,
            "gamma": self.gamma,
            "degree": self.degree,
            "coef0": self.coef0,
        }
        return named_kernel(self.kernel, X, counted, **numbers)

    def _keep(self, fit):
        """The fitted attributes."""
        fit = jax.tree.map(np.asarray, fit)
        self.path_, self.kernel_, self.lam_ = fit, fit.model.kernel, fit.lam[()]
        self.intercept_ = fit.model.intercept[()]
        for name in NOT_ALWAYS:  # of an earlier fit
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
        return jax.tree.map(
            np.asarray, self.path_.predict(self._validate(X, reset=False), return_std=return_std)
        )


def _of(options, loss):
    """Options with the loss in the criterion, where that averages one."""
    criterion = options.get("criterion", rls.loo)
    if isinstance(criterion, rls.LeaveOneOut):
        return options | {"criterion": replace(criterion, loss=loss)}
    if loss is not rls.squared_error:
        raise ValueError(
            f"loss= is what criterion='loo' or 'kfold' averages, and criterion is {criterion!r}: "
            "leave one of them out"
        )
    return options
