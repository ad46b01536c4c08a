"""Regularized least squares as scikit-learn estimators: `RLSRegressor` and `RLSClassifier`.

They replace `GridSearchCV(KernelRidge(), …)`, `RidgeCV` and `RidgeClassifierCV`. A single `fit`
chooses λ by exact leave-one-out. Pipelines, searches, `clone` and pickle take them like any other
estimator.
"""

try:
    import sklearn as sklearn
except ImportError as error:
    raise ImportError(
        "jaxrls.sklearn needs scikit-learn 1.6 or newer: pip install 'jaxrls[sklearn]'"
    ) from error

from jaxrls.sklearn.estimators import RLSClassifier, RLSRegressor

__all__ = ["RLSClassifier", "RLSRegressor"]
