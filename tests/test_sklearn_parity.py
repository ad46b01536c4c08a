"""scikit-learn solves some of the same problems: where it does, the numbers agree.

`fit` computes float64 NumPy input in float64 whatever JAX's switch says, so that all of this holds
to 1e-9 in both runs."""

import warnings

import numpy as np
import pytest
from support import assert_close

import jaxrls as rls

linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
kernel_ridge = pytest.importorskip("sklearn.kernel_ridge", reason="scikit-learn is not installed")

TOLERANCE = 1e-9
LAMS = np.logspace(-2, 3, 11)


def data(n=40, d=6, t=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 1
    Y = X @ rng.normal(size=(d, t)) + rng.normal(size=(n, t)) * [0.3, 3, 10] + 3
    return X, Y, rng.uniform(0.3, 2, n), rng.normal(size=(9, d)) + 1


def fit(*args, **options):
    """`fit`, where a λ at the edge of a grid that both sides are given is no news."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the chosen λ")
        return rls.fit(*args, **options)


@pytest.mark.any_precision
@pytest.mark.parametrize("route", ["gram", "features", "covariance"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("intercept", [False, True], ids=["through 0", "intercept"])
def test_ridge_cv(route, weighted, intercept):
    """The whole leave-one-out path of RidgeCV, its choice, its score and its coefficients."""
    X, Y, v, new = data()
    weights = v if weighted else None
    theirs = linear_model.RidgeCV(LAMS, fit_intercept=intercept, store_cv_results=True).fit(
        X, Y, sample_weight=weights
    )
    ours = fit(rls.Linear(), X, Y, lams=LAMS, weights=weights, intercept=intercept, route=route)
    # their mean is over rows, ours over weights
    scale = v.sum() / len(v) if weighted else 1.0
    assert_close(
        ours.errors.T * scale, theirs.cv_results_.mean(0), TOLERANCE, "leave-one-out errors"
    )
    assert float(ours.lam) == theirs.alpha_
    assert_close(-ours.error * scale, theirs.best_score_, TOLERANCE, "best_score_")
    assert_close(ours.model.coef, theirs.coef_.T, TOLERANCE, "coef_")
    assert_close(
        ours.model.intercept, np.broadcast_to(theirs.intercept_, 3), TOLERANCE, "intercept_"
    )
    assert_close(ours.predict(new), theirs.predict(new), TOLERANCE, "predict")


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_ridge_cv_with_one_alpha_for_each_target(weighted):
    X, Y, v, new = data()
    weights = v if weighted else None
    theirs = linear_model.RidgeCV(LAMS, alpha_per_target=True).fit(X, Y, sample_weight=weights)
    ours = fit(rls.Linear(), X, Y, lams=LAMS, weights=weights, per_target=True)
    assert len(set(theirs.alpha_)) > 1  # or this would be the test above
    assert ours.lam.tolist() == theirs.alpha_.tolist()
    assert_close(
        -ours.error * (v.sum() / len(v) if weighted else 1.0),
        theirs.best_score_,
        TOLERANCE,
        "best_score_",
    )
    assert_close(ours.predict(new), theirs.predict(new), TOLERANCE, "predict")


@pytest.mark.parametrize("shape", [(40, 6), (20, 30)], ids=["n > d", "n < d"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_ridge(shape, weighted):
    """One λ is no choice: `lams=[λ]` is Ridge."""
    X, Y, v, new = data(*shape)
    theirs = linear_model.Ridge(0.5, solver="cholesky").fit(
        X, Y, sample_weight=v if weighted else None
    )
    ours = rls.fit(rls.Linear(), X, Y, lams=[0.5], weights=v if weighted else None)
    assert_close(ours.model.coef, theirs.coef_.T, TOLERANCE, "coef_")
    assert_close(ours.model.intercept, theirs.intercept_, TOLERANCE, "intercept_")
    assert_close(ours.predict(new), theirs.predict(new), TOLERANCE, "predict")


KERNELS = {
    "linear": (rls.Linear(), {"kernel": "linear"}),
    "polynomial": (
        rls.Polynomial(2, 0.5),
        {"kernel": "polynomial", "degree": 2, "gamma": 1.0, "coef0": 0.5},
    ),
    "rbf": (rls.Gaussian.from_gamma(0.1), {"kernel": "rbf", "gamma": 0.1}),
    "laplacian": (rls.Laplacian(10.0), {"kernel": "laplacian", "gamma": 0.1}),
    "precomputed": (rls.Precomputed(), {"kernel": "precomputed"}),
}


@pytest.mark.any_precision  # whether float64 is kept where the switch is off is asked in test_sklearn.py
@pytest.mark.parametrize(("kernel", "options"), KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_kernel_ridge(kernel, options, weighted):
    """Dual coefficients and predictions of KernelRidge, which has no intercept; with one alpha per
    target too.
    """
    X, Y, v, new = data()
    if options["kernel"] == "precomputed":
        X, new = X @ X.T, new @ X.T
    weights = v if weighted else None
    theirs = kernel_ridge.KernelRidge(alpha=0.5, **options).fit(X, Y, sample_weight=weights)
    ours = rls.fit(kernel, X, Y, lams=[0.5], weights=weights, intercept=False)
    assert_close(ours.predict(new), theirs.predict(new), TOLERANCE, "predict")
    if kernel != rls.Linear():  # where the model keeps w
        assert_close(ours.model.coef, theirs.dual_coef_, TOLERANCE, "dual_coef_")

    alphas = np.array([0.5, 2.0, 8.0])
    theirs = kernel_ridge.KernelRidge(alpha=alphas, **options).fit(X, Y, sample_weight=weights)
    each = [
        rls.fit(
            kernel, X, Y[:, t], lams=alphas[t : t + 1], weights=weights, intercept=False
        ).predict(new)
        for t in range(3)
    ]
    assert_close(np.stack(each, axis=1), theirs.predict(new), TOLERANCE, "one alpha per target")


@pytest.mark.parametrize("classes", [2, 3])
def test_ridge_classifier_cv(classes):
    """±1 coding: the same λ, the same scores, the same labels."""
    X, Y, _, new = data()
    labels = np.array(["red", "green", "blue"])[
        np.digitize(Y[:, 0], np.quantile(Y[:, 0], np.arange(1, classes) / classes))
    ]
    theirs = linear_model.RidgeClassifierCV(LAMS).fit(X, labels)
    codes, names = rls.encode(labels)
    ours = fit(rls.Linear(), X, codes, lams=LAMS)
    assert names.tolist() == theirs.classes_.tolist()
    assert float(ours.lam) == theirs.alpha_
    assert_close(ours.predict(new), theirs.decision_function(new), TOLERANCE, "scores")
    assert rls.decode(ours.predict(new), names).tolist() == theirs.predict(new).tolist()
    if (
        classes > 2
    ):  # for two classes their accuracy is 1 whatever the data, by an argmax over one column
        theirs = linear_model.RidgeClassifierCV(LAMS, scoring="accuracy").fit(X, labels)
        ours = fit(rls.Linear(), X, codes, lams=LAMS, loss=rls.zero_one_loss)
        assert_close(1 - ours.error, theirs.best_score_, TOLERANCE, "accuracy")
