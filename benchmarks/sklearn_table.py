"""RLSClassifier and RLSRegressor beside tuned scikit-learn on the data sets that it carries:
accuracy or R² on held-out rows, and seconds.

python benchmarks/sklearn_table.py [--splits 10] [--only digits wine cancer diabetes]

Both see standardised columns and the same splits (half of the rows to fit, stratified by class).
scikit-learn: a grid search over 6 α × 9 γ by five folds for `KernelRidge` (labels as ±1, targets
standardised, as it fits no constant), and `RidgeCV` / `RidgeClassifierCV` over 100 α. Here: width
the median distance and λ by leave-one-out; with `tune=True` both by its gradient where rows are
few; and the best of four kernels, the leave-one-out error being there to choose by."""

import argparse
import platform
import time
import warnings

import threads  # noqa: F401

# isort: split
import jax
import numpy as np
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import jaxrls as rls
from jaxrls.sklearn import RLSClassifier, RLSRegressor

DATA = {
    "digits": load_digits,
    "wine": load_wine,
    "cancer": load_breast_cancer,
    "diabetes": load_diabetes,
}
ALPHAS, GAMMAS = np.logspace(-4, 1, 6), np.logspace(-4, 0, 9)
LINEAR_ALPHAS = np.logspace(-3, 5, 100)
ROWS_TO_TUNE = 1000
KERNELS = ("gaussian", "matern52", "matern32", "laplacian")


class KernelRidgeClassifier(ClassifierMixin, BaseEstimator):
    """scikit-learn's KernelRidge on ±1 codes."""

    def __init__(self, alpha=1.0, gamma=None):
        self.alpha = alpha
        self.gamma = gamma

    def fit(self, X, y):
        codes, self.classes_ = rls.encode(y)
        self.ridge_ = KernelRidge(kernel="rbf", alpha=self.alpha, gamma=self.gamma).fit(X, codes)
        return self

    def predict(self, X):
        return rls.decode(self.ridge_.predict(X), self.classes_)


class BestKernel(BaseEstimator):
    """Of four kernels, each with its λ, the one of the least leave-one-out error."""

    def __init__(self, make):
        self.make = make

    def fit(self, X, y):
        self.best_ = min(
            (self.make(kernel).fit(X, y) for kernel in KERNELS),
            key=lambda fitted: np.mean(fitted.loo_error_),
        )
        return self

    def score(self, X, y):
        return self.best_.score(X, y)


def contestants(classes: bool, rows: int) -> dict:
    """Name: estimator."""
    grid = {"alpha": ALPHAS, "gamma": GAMMAS}
    if classes:
        ours, search, linear = (
            RLSClassifier,
            GridSearchCV(KernelRidgeClassifier(), grid),
            RidgeClassifierCV(LINEAR_ALPHAS),
        )
    else:
        ours, linear = RLSRegressor, RidgeCV(LINEAR_ALPHAS)
        search = TransformedTargetRegressor(
            GridSearchCV(KernelRidge(kernel="rbf"), grid), transformer=StandardScaler()
        )
    models = {
        "gaussian": ours(),
        "gaussian, tuned": ours(tune=True),
        "best of four": BestKernel(ours),
        "grid search": search,
        "linear": ours("linear"),
        "RidgeCV": linear,
    }
    return {
        name: make_pipeline(StandardScaler(), model)
        for name, model in models.items()
        if name != "gaussian, tuned" or rows <= ROWS_TO_TUNE
    }


def judge(name: str, splits: int) -> tuple[dict[str, list[float]], dict[str, list[float]], str]:
    """Scores and seconds of every contestant on every split, and the shape of what is fitted."""
    X, y = DATA[name](return_X_y=True)
    classes = name != "diabetes"
    scores: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(splits):
        X_fit, X_new, y_fit, y_new = train_test_split(
            X, y, test_size=0.5, random_state=seed, stratify=y if classes else None
        )
        for who, model in contestants(classes, len(X_fit)).items():
            start = time.perf_counter()
            model.fit(X_fit, y_fit)
            seconds.setdefault(who, []).append(time.perf_counter() - start)
            scores.setdefault(who, []).append(100 * model.score(X_new, y_new))
    return scores, seconds, f"{X_fit.shape[0]} × {X_fit.shape[1]}"


def row(name, shape, scores, seconds, who, against) -> str:
    gain = np.subtract(scores[who], scores[against])
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.nan
    measure = "R²" if name == "diabetes" else "accuracy"
    cells = [
        name,
        shape,
        who,
        f"{measure} {np.mean(scores[who]):.1f}",
        f"{against} {np.mean(scores[against]):.1f}",
        f"{gain.mean():+.2f} ± {error:.2f}",
    ]
    cells += [
        f"{seconds[who][0]:.2f}",
        f"{np.median(seconds[who][1:] or seconds[who]):.3f}",
        f"{np.median(seconds[against]):.3f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=DATA, default=list(DATA))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        f"{args.splits} splits, scikit-learn {sklearn.__version__}, JAX {jax.__version__} on {jax.devices()[0]}, {platform.machine()}\n"
    )
    print(
        "| data | rows × columns | jaxrls | score (%) | scikit-learn | gain ± standard error | first fit (s) | fit (s) | theirs (s) |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in args.only:
        scores, seconds, shape = judge(name, args.splits)
        for who, against in (
            ("gaussian", "grid search"),
            ("gaussian, tuned", "grid search"),
            ("best of four", "grid search"),
            ("linear", "RidgeCV"),
        ):
            if who in scores:
                print(row(name, shape, scores, seconds, who, against), flush=True)


if __name__ == "__main__":
    main()
