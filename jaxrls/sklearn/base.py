"""The base class of the estimators, `RLSEstimator`: what regression and classification share.

It turns the parameters of an estimator into arguments of `jaxrls.fit`, and the `Fit` into fitted
attributes. Begin with its method `_fit`.
"""

import warnings
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.model_selection import check_cv
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

import jaxrls as rls
from jaxrls.core.criteria import CRITERIA, as_criterion
from jaxrls.core.data import Folds, folds, of_splits
from jaxrls.core.kernels import KERNELS, Kernel, columns_by_number
from jaxrls.core.support import (
    by_names,
    check_unmasked,
    column_names,
    hints_at_names,
    raise_for_wrong_column,
)
from jaxrls.front import KEPT_ROWS, Fit, inspect_lam, solution_of, with_names, without_solution
from jaxrls.landmarks.growing import landmarks_to_tune
from jaxrls.sklearn.kernels import named_kernel
from jaxrls.sklearn.scoring import (
    HeldOut,
    Regressed,
    chosen,
    left_out,
    losses,
    predicted,
    scores,
    take,
)
from jaxrls.sklearn.support import CallbackSupportMixin
from jaxrls.uncertainty.intervals import hold_whole_levels

MOST_LANDMARKS = 500  # that `partial_fit` chooses from its first rows, if no number is given
LOSSES = {
    f.__name__: f
    for f in (rls.extend.squared_error, rls.extend.absolute_error, rls.classes.zero_one_loss)
}
# Attributes that only some fits set. They are deleted before the attributes of a new fit are set.
NOT_ALWAYS = [
    "coef_",
    "dual_coef_",
    "loo_predictions_",
    "loo_error_",
    "best_score_",
    "cv_results_",
    "calibration_",
    "_rows",
    "_conformal",
]


@dataclass(frozen=True)
class Call:
    """What one call of `fit` or `partial_fit` asks for, checked: rows, and arguments of `rls.fit`.

    Targets are the numbers or ±1 codes that are fitted. For a regressor they are the labels.
    """

    X: Any
    labels: np.ndarray  # as the caller gave them
    targets: np.ndarray
    row_weights: np.ndarray | None  # that the caller gave, None if there are none
    weights: np.ndarray | None  # of the fit: row weights, times class weights for a classifier
    criterion: Any
    lams: Any
    groups: Folds | None = None
    fixed_effects: Any = None

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `rls.fit` and `rls.tune` that are the same in both."""
        names = "weights", "criterion", "groups", "fixed_effects"
        return {name: getattr(self, name) for name in names}


def adds_rows(estimator: "RLSEstimator") -> None:
    """Raise AttributeError if the parameters of an estimator do not allow `partial_fit`."""
    plain = estimator.criterion in ("loo", "gcv") and estimator.loss == "squared_error"
    if not plain or any((estimator.cv, estimator.scoring, estimator.store_cv_results)):
        raise AttributeError(
            "partial_fit chooses λ by GCV, from moments alone: leave criterion=, loss=, cv=, "
            "scoring= and store_cv_results= out, or use fit"
        )


@hints_at_names
@dataclass(eq=False, repr=False)
class RLSEstimator(CallbackSupportMixin, BaseEstimator):
    """The base class of both estimators.

    It fits targets Y, (n,) or (n, t). For a classifier these are ±1 codes of the labels y.
    """

    kernel: Any = "gaussian"
    _: KW_ONLY
    width: Any = "median"
    gamma: Any = None
    degree: int = 3
    coef0: float = 1
    lams: Any = "auto"
    criterion: Any = "loo"
    loss: Any = "squared_error"
    per_target: bool = False
    conservative: float = 0.0
    tune: bool = False
    landmarks: Any = None
    fit_intercept: bool = True
    cv: Any = None
    random_state: Any = None
    keep: bool | None = None
    scoring: Any = None
    by_fold: bool = False
    store_cv_results: bool | str = False
    progress: bool = False

    _parameter_constraints = {
        "kernel": [StrOptions(set(KERNELS)), rls.extend.Kernel, callable],
        "width": [StrOptions({"median"}), Interval(Real, 0, None, closed="neither"), "array-like"],
        "gamma": [StrOptions({"auto", "scale"}), Interval(Real, 0, None, closed="neither"), None],
        "degree": [Interval(Integral, 1, None, closed="left")],
        "coef0": [Interval(Real, 0, None, closed="left")],
        "criterion": [StrOptions(set(CRITERIA)), callable],
        "loss": [StrOptions(set(LOSSES)), callable],
        "keep": ["boolean", None],
        "store_cv_results": ["boolean", StrOptions({"predictions"})],
        **dict.fromkeys(
            ("per_target", "tune", "fit_intercept", "by_fold", "progress"), ["boolean"]
        ),
    }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._pairwise
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags

    def get_metadata_routing(self) -> Any:
        """Return the metadata routing, which requests `groups` if `cv` splits by them."""
        routing = super().get_metadata_routing()
        of_cv = getattr(self.cv, "get_metadata_routing", None)
        by_groups = of_cv is not None and of_cv().split.requests.get("groups") is True
        if by_groups and routing.fit.requests["groups"] is None:
            routing.fit.add_request(param="groups", alias=True)
        return routing

    @property
    def _pairwise(self) -> bool:
        return isinstance(self.kernel, rls.Precomputed) or self.kernel == "precomputed"

    @property
    def _landmarks(self) -> Any:
        """The parameter `landmarks`; points in a data frame with the columns in the order of X."""
        return by_names("landmarks", self.landmarks, self._column_names)

    @property
    def _width(self) -> Any:
        """The parameter `width`; widths in a series in the order of the columns of X.

        They go by place if the series has no index of its own.
        """
        if not hasattr(self.width, "to_frame"):
            return self.width
        row = self.width.to_frame().T  # a data frame with a column for each width
        found = column_names(row)
        unnamed = found == tuple(range(len(found))) and {*found} != {*self._column_names}
        return self.width if unnamed else by_names("width", row, self._column_names).iloc[0]

    def _checked(self, X: Any, *args, **options) -> Any:
        """Check the arguments as scikit-learn does, and return them as arrays.

        It checks columns and their names, NaN, and whether X may be sparse. Unless `reset=False`,
        it also checks the parameters of the estimator and stores the names of the columns.
        """
        for name, value in zip(("X", "y"), (X, *args), strict=False):
            check_unmasked(name, value)
        if options.get("reset", True):
            self._validate_params()
            self._column_names = column_names(X)  # the fit gets an array without names
        elif not hasattr(self, "feature_names_in_"):  # scikit-learn compares names of text alone
            X = by_names("X", X, self._column_names)
        options["accept_sparse"] = not self._pairwise and "csr"
        try:
            return validate_data(self, X, *args, dtype=[np.float64, np.float32], **options)
        except (TypeError, ValueError):
            raise_for_wrong_column("X", X)  # scikit-learn does not name the column of a frame
            raise

    def _row_weights(self, X: Any, sample_weight: Any) -> np.ndarray | None:
        """Return the weights that the caller gave, checked; None if there are none."""
        if sample_weight is None:
            return None
        check_unmasked("sample_weight", sample_weight)
        return _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)

    def _weights(
        self, labels: np.ndarray, row_weights: np.ndarray | None, dtype: Any
    ) -> np.ndarray | None:
        """Return the weights with which rows are fitted. A classifier multiplies class weights."""
        return row_weights

    def _set_fitted(self, fit: Fit) -> "RLSEstimator":
        """Set the fitted attributes from a `Fit`, and return the estimator."""
        for name in NOT_ALWAYS:
            self.__dict__.pop(name, None)
        self.path_: Any = with_names(jax.tree.map(np.asarray, fit), self._column_names)
        model = self.path_.model
        self.lam_ = self.path_.lam[()]
        self.kernel_ = model.kernel
        self.intercept_ = model.intercept[()]
        if model.points is None and not isinstance(self.kernel_, rls.Precomputed):
            self.coef_ = model.coef.T
        else:
            self.dual_coef_ = model.coef
        return self

    def _fit(
        self,
        X: Any,
        labels: np.ndarray,
        targets: np.ndarray,
        row_weights: np.ndarray | None,
        groups: Any,
        fixed_effects: Any = None,
    ) -> "RLSEstimator":
        """Fit the targets, set the fitted attributes and return the estimator.

        For a regressor the targets are the labels, for a classifier codes of the labels.
        """
        call = Call(
            X=X,
            labels=labels,
            targets=targets,
            row_weights=row_weights,
            weights=self._weights(labels, row_weights, X.dtype),
            criterion=self._criterion(),
            groups=self._folds(X, labels, groups),
            fixed_effects=fixed_effects,
            lams=self._lams(),
        )
        kernel = self._tuned(call)
        if self.scoring is None and not self.store_cv_results:
            self._set_fitted(self._fitted(kernel, call, keep=self.keep, landmarks=self._landmarks))
        else:
            self._set_swept(kernel, call)
        return self._set_held_out(call)

    def _set_swept(self, kernel: Kernel, call: Call) -> None:
        """Fit, predict the held-out rows for every λ, and set the fitted attributes.

        Scores of these predictions choose λ, or `cv_results_` holds them, or both.
        """
        self._check_sweep(call)
        fit = self._sweep(kernel, call)
        held_out = np.asarray(call.targets, fit.model.intercept.dtype) - np.asarray(left_out(fit))
        if self.scoring is not None:
            self._check_levels(fit)
            fit = self._at_best_score(fit, call, self._held_out(call, held_out))
        kept = call.X.shape[0] <= KEPT_ROWS if self.keep is None else self.keep
        self._set_fitted(fit if kept else without_solution(fit))
        if self.scoring is not None:
            self.best_score_ = -self.path_.error[()]
        if self.store_cv_results:
            self.cv_results_ = self._cv_results(held_out, call.targets)

    def _held_out(self, call: Call, predictions: np.ndarray) -> HeldOut:
        """Return the rows that have held-out predictions, (L, n) or (L, n, t), for a scorer."""
        known = predicted(predictions[0])
        folds = call.groups.predicted_by if self.by_fold and call.groups is not None else None
        labels, targets, weights, folds = take(
            known, call.labels, call.targets, call.row_weights, folds
        )
        return HeldOut(
            predictions=predictions[:, known],
            labels=labels,
            targets=targets,
            weights=weights,
            folds=folds,
        )

    def _cv_results(self, held_out: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the attribute `cv_results_`, (n, L) or (n, t, L).

        These are held-out predictions with `scoring` or if the user asked for them, else losses.
        """
        if self.scoring is None and self.store_cv_results != "predictions":
            Y = np.asarray(targets, held_out.dtype)
            held_out = np.stack([losses(self._loss, Y - part, Y) for part in held_out])
        return np.moveaxis(held_out, 0, -1)

    def _set_held_out(self, call: Call) -> "RLSEstimator":
        """Set the attributes of held-out rows at the chosen λ, and return the estimator.

        `loo_error_` is the criterion if it is "loo" or "kfold" and no scores chose λ. Otherwise it
        is the weighted mean of squared held-out residuals.
        """
        residuals = self.path_.loo_residuals
        targets = np.asarray(call.targets, self.intercept_.dtype)  # float64 if far from 0
        self.loo_error_ = self.path_.error[()]
        self.loo_predictions_ = targets - residuals
        if self.scoring is not None or self.path_.criterion not in ("loo", "kfold"):
            known = predicted(residuals)
            residuals, weights = take(known, residuals, call.weights)
            errors = np.average(residuals**2, axis=0, weights=weights)
            self.loo_error_ = errors if np.ndim(self.lam_) else errors.mean()
        return self

    @property
    def _loss(self) -> Any:
        """The loss as a function: the parameter `loss`, or the loss of the criterion.

        A criterion may have a loss of its own. Raise if it differs from a `loss` that is not the
        default.
        """
        criterion = self.criterion
        if isinstance(criterion, str):
            criterion = CRITERIA[criterion]
        own = criterion.loss if isinstance(criterion, rls.extend.LeaveOneOut) else None
        named = LOSSES.get(self.loss, self.loss)
        if own in (None, rls.extend.squared_error):
            return named
        if self.loss != "squared_error" and named is not own:
            raise ValueError(
                f"loss={self.loss!r} and a criterion with a loss of its own, {own.__name__}, "
                "cannot be used together: leave one of them out"
            )
        return own

    def _lams(self) -> Any:
        """Return the argument `lams` of `jaxrls.fit`. Raise for unknown names."""
        if isinstance(self.lams, str) and self.lams not in ("auto", "search"):
            raise ValueError(f"lams must be 'auto', 'search' or numbers, and is {self.lams!r}")
        if isinstance(self.lams, str):
            return 100 if self.lams == "auto" else self.lams
        return np.atleast_1d(self.lams)

    def _tuned(self, call: Call) -> Kernel:
        """Return the kernel to fit with. If `tune`, its parameters are tuned.

        The parameter `kernel` may be a name, a kernel, or a function as in `FunctionKernel`.
        """
        kernel = self.kernel
        if isinstance(kernel, str):
            counted = slice(None) if call.weights is None else call.weights > 0
            numbers = {name: getattr(self, name) for name in ("gamma", "degree", "coef0")}
            kernel = named_kernel(kernel, call.X[counted], width=self._width, **numbers)
        elif isinstance(kernel, type):
            raise ValueError(f"kernel must be an object, and is the class {kernel.__name__}")
        elif not isinstance(kernel, rls.extend.Kernel):
            kernel = rls.FunctionKernel(kernel)
        kernel = columns_by_number(kernel, self._column_names)
        if not (self.tune and jax.tree.leaves(kernel)):
            return kernel
        if self._loss is rls.classes.zero_one_loss:
            call = replace(call, criterion=rls.loo)
        one = not isinstance(self.lams, str) and np.ndim(self.lams) == 0
        # 0 stands for the floor of the factor, at which no search is held.
        held = float(self.lams) if one and self.lams != 0 else None
        return rls.tune(
            kernel,
            call.X,
            call.targets,
            lams=held,
            intercept=self.fit_intercept,
            landmarks=landmarks_to_tune(self._landmarks, len(call.targets)),
            keep=False,
            progress=self.progress,
            **call.options,
        ).kernel

    def _fitted(self, kernel: Kernel, call: Call, **options) -> Fit:
        """Call `jaxrls.fit` with the parameters of the estimator, and return its `Fit`.

        Args:
            kernel: the kernel.
            call: the rows, and what is fitted to them.
            **options: `keep`, `landmarks` and `solver` of `jaxrls.fit`.
        """
        return rls.fit(
            kernel,
            call.X,
            call.targets,
            lams=call.lams,
            intercept=self.fit_intercept,
            per_target=self.per_target,
            conservative=self.conservative,
            progress=self.progress,
            **call.options,
            **options,
        )

    def _check_sweep(self, call: Call) -> None:
        """Raise if held-out predictions for every λ are not known, or if two options conflict."""
        named = isinstance(self.landmarks, str) or isinstance(call.lams, str)
        if named or not isinstance(call.criterion, rls.extend.LeaveOneOut):
            raise ValueError(
                "scoring= and store_cv_results= need criterion='loo' or 'kfold', without "
                "lams='search' and landmarks='auto'"
            )
        if self.scoring is not None and (self.conservative or self.loss != "squared_error"):
            raise ValueError(
                f"scoring={self.scoring!r} chooses λ by scores, and conservative= and loss= by "
                "losses: leave one of them out"
            )
        if self.by_fold and call.groups is None:
            raise ValueError("by_fold=True needs folds: give cv= or groups=")

    def _check_levels(self, fit: Fit) -> None:
        """Raise if held-out predictions lack constants of levels, which scores would take for 0."""
        factor = solution_of(fit).factor
        folds = fit.kept.folds
        if folds is not None and hold_whole_levels(factor.fixed, folds, factor.weights):
            raise ValueError(
                f"scoring={self.scoring!r} compares predictions, which lack the constants of levels "
                "of fixed_effects whose rows are all held out together: leave scoring= out"
            )

    def _sweep(self, kernel: Kernel, call: Call) -> Fit:
        """Return a fit that keeps its solution, from which every λ is predicted."""
        keep = self.keep or call.X.shape[0] > KEPT_ROWS or None
        fitted = partial(self._fitted, kernel, call, keep=keep, landmarks=self._landmarks)
        if self.scoring is None:
            return fitted()
        with warnings.catch_warnings():  # scores choose another λ, so do not warn of this one
            warnings.simplefilter("ignore", UserWarning)
            return fitted(solver=rls.Spectral())

    def _at_best_score(self, fit: Fit, call: Call, rows: HeldOut) -> Fit:
        """Return the fit at the λ of the best score. Its errors are minus the scores.

        With several targets that each have a λ, each is scored by itself.
        """
        targets = rows.targets
        by_target = targets.ndim == 2 and (self.per_target or fit.lams.ndim == 2)
        if by_target and is_classifier(self):
            raise ValueError("scoring= chooses one λ for all classes: leave per_target= out")
        score = partial(scores, self.scoring, partial(self._estimator, targets, rows.weights))
        if by_target:
            errors = -np.stack([score(target) for target in rows.of_targets()], axis=1)
            squares = np.average((rows.predictions - targets) ** 2, axis=1, weights=rows.weights)
        else:
            errors = squares = -score(rows)
        lam, error = chosen(np.asarray(fit.lams), errors, squares, self.scoring, self.by_fold)
        if errors.ndim < targets.ndim:
            errors = np.broadcast_to(errors[:, None], (len(errors), targets.shape[1]))
        errors, error = (part.astype(fit.model.coef.dtype) for part in (errors, error))
        at_best = fit.with_lam(lam)
        of_scores = replace(at_best.chosen, lams=fit.lams, errors=errors, error=error)
        without = replace(  # a score has no mean loss
            at_best.diagnostics,
            loo_standard_error=None,
            error_of_targets=None,
            standard_error_of_targets=None,
        )
        fit = replace(at_best, chosen=of_scores, diagnostics=without)
        inspect_lam(fit.lam, fit.lams, fit.floor, names_lams=not isinstance(call.lams, int))
        return fit

    def _estimator(
        self, targets: np.ndarray, weights: np.ndarray | None, held_out: np.ndarray
    ) -> BaseEstimator:
        """Return the stand-in for an estimator to which a scorer passes held-out predictions."""
        return Regressed()

    def _begins(self) -> bool:
        """Whether this call of `partial_fit` is the first one.

        Warn if it follows a call of `fit`, whose rows are then not counted.
        """
        if hasattr(self, "loo_predictions_"):
            words = "fit is to all its rows at once: partial_fit begins anew, without them"
            warnings.warn(words, UserWarning, stacklevel=3)
        return hasattr(self, "loo_predictions_") or not hasattr(self, "path_")

    def _partial_fit(
        self,
        X: Any,
        labels: np.ndarray,
        targets: np.ndarray,
        row_weights: np.ndarray | None,
        first: bool,
    ) -> "RLSEstimator":
        """Fit the first rows, or add rows to the moments of the rows before them."""
        weights = self._weights(labels, row_weights, X.dtype)
        if not first:
            return self._set_fitted(self.path_.update(X, targets, weights=weights))
        call = Call(
            X=X,
            labels=labels,
            targets=targets,
            row_weights=row_weights,
            weights=weights,
            criterion=rls.gcv,
            lams=self._lams(),
        )
        kernel = self._tuned(call)
        landmarks = self._landmarks
        if landmarks is None or isinstance(landmarks, str):
            explicit = kernel.num_features(X.shape[1], X.dtype) is not None
            landmarks = None if explicit else min(X.shape[0], MOST_LANDMARKS)
        with warnings.catch_warnings():  # the first rows may be of one class
            warnings.filterwarnings("ignore", message="the labels are all equal")
            return self._set_fitted(self._fitted(kernel, call, keep=True, landmarks=landmarks))

    def _criterion(self) -> Any:
        """Return the argument `criterion` of `jaxrls.fit`, which contains the loss."""
        criterion = rls.loo if self.criterion == "kfold" else as_criterion(self.criterion)
        criterion = criterion.match_columns(self._column_names, (), None)
        if isinstance(criterion, rls.extend.LeaveOneOut):
            return replace(criterion, loss=self._loss)
        if self.cv is not None or self.loss != "squared_error":
            raise ValueError(
                f"cv= and loss= are for criterion='loo' or 'kfold', and it is {self.criterion!r}: "
                "leave one of them out"
            )
        return criterion

    def _folds(self, X: Any, labels: np.ndarray, groups: Any) -> Folds | None:
        """Return the argument `groups` of `jaxrls.fit`, None if single rows are held out.

        If the caller gives `cv` or `groups`, or the criterion is "kfold", folds are held out.
        """
        if self.cv is None and (self.criterion != "kfold" or groups is not None):
            return None if groups is None else folds(groups)
        cv: Any = check_cv(self.cv, labels, classifier=is_classifier(self))
        if self.random_state is not None and isinstance(self.cv, int | None):
            cv.shuffle = True
            cv.random_state = self.random_state
        return of_splits(cv.split(X, labels, groups), X.shape[0])

    def _of_path(self, method: str, X: Any, *args, **options) -> Any:
        """Call a method of the `Fit` on new rows, and return its results as NumPy arrays."""
        check_is_fitted(self)
        results = getattr(self.path_, method)(self._checked(X, reset=False), *args, **options)
        return jax.tree.map(np.asarray, results)
