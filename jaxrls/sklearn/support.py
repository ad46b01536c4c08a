"""Two decorators of methods of the estimators: `calls_back` and `available`.

They cover what differs between versions of scikit-learn, or is missing there: callbacks of `fit`,
and methods that only some estimators have.
"""

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # before scikit-learn 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """An empty class, as this version of scikit-learn has no callbacks."""


def calls_back(fit: Callable) -> Callable:
    """Decorate a `fit` so that the callbacks of the estimator are called as it begins and ends.

    The `fit` is one task without further steps. Without callbacks in scikit-learn it is unchanged.
    """
    if not hasattr(CallbackSupportMixin, "set_callbacks"):
        return fit

    @with_callbacks
    @wraps(fit)
    def run(self: Any, X: Any, y: Any, sample_weight: Any = None, *args, **options) -> Any:
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        task: dict = {"estimator": self, "X": X, "y": y, "metadata": metadata}
        context = self._init_callback_context()
        context.call_on_fit_task_begin(**task)
        fit(self, X, y, sample_weight, *args, **options)
        context.call_on_fit_task_end(**task, reconstruction_attributes={})
        return self

    return run


def available(check: Callable[[Any], Any]) -> Callable:
    """Decorate a method so that only the estimators that pass a check have it.

    For other estimators, access to the method raises the error of the check. scikit-learn's
    `available_if` would hide the message of this error.
    """

    class Available:
        def __init__(self, method: Callable):
            self.method = method

        def __get__(self, estimator: Any, owner: Any = None) -> Any:
            if estimator is None:
                return self.method
            check(estimator)
            return MethodType(self.method, estimator)

    return Available
