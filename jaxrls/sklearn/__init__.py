"""Regularized least squares as scikit-learn estimators: `RLSRegressor` and `RLSClassifier`.

They stand where `GridSearchCV(KernelRidge(), …)`, `RidgeCV` and `RidgeClassifierCV` do, choose λ by
exact leave-one-out in a single `fit`, and go through pipelines, searches, `clone` and pickle like
any other estimator."""

try:
    import sklearn as sklearn
except ImportError as error:
    raise ImportError(
        "jaxrls.sklearn needs scikit-learn 1.6 or newer: pip install 'jaxrls[sklearn]'"
    ) from error

from jaxrls.sklearn.estimators import RLSClassifier, RLSRegressor

__all__ = ["RLSClassifier", "RLSRegressor"]
