"""The same works by other packages: each function gives a contestant, or says in words which
package is missing.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass
class Contestant:
    """What is timed, and how its result is judged."""

    run: Callable[[], Any]
    judge: Callable[[Any], float] | None = None


def mean_square(predicted, wanted) -> float:
    return float(np.mean((np.asarray(predicted).reshape(wanted.shape) - wanted) ** 2))


def of(package: str, hint: str, gpu: bool = False):
    """A maker of a contestant that needs a package; without it, or where it would be measured on
    another device, its answer says so.
    """

    def decorate(make):
        @functools.wraps(make)
        def made(*args, **options) -> Contestant | str:
            if jax.default_backend() == "gpu" and not gpu:
                return "not run: this is the GPU's run, and it would use the CPU"
            try:
                return make(*args, **options)
            except ImportError:
                return f"missing: {package} is not installed ({hint})"

        return made

    return decorate


in_scikit_learn = of("scikit-learn", "pip install scikit-learn")


def _fitted(model, X, y, X_new, wanted) -> Contestant:
    """An estimator fitted to X and y, judged on new rows."""
    return Contestant(
        lambda: model.fit(X, y), lambda model: mean_square(model.predict(X_new), wanted)
    )


@of("RLScore", "build it from its source")
def rlscore(X, y, lams, gamma, X_new, wanted):
    """The whole path with leave-one-out, λ by λ."""
    from rlscore.learner import RLS

    def run():
        learner, errors = RLS(X, y, kernel="GaussianKernel", gamma=gamma), []
        for lam in lams:
            learner.solve(lam)
            errors.append(np.mean((learner.leave_one_out() - y) ** 2))
        learner.solve(lams[int(np.argmin(errors))])
        return learner

    return Contestant(run, lambda learner: mean_square(learner.predict(X_new), wanted))


@of("himalaya", "pip install himalaya", gpu=True)
def himalaya(X, Y, lams, gamma, X_new, wanted):
    """KernelRidgeCV by five folds, on a GPU by torch."""
    from himalaya.backend import set_backend
    from himalaya.kernel_ridge import KernelRidgeCV

    backend = set_backend("torch_cuda" if jax.default_backend() == "gpu" else "numpy")
    model = KernelRidgeCV(
        alphas=lams, kernel="rbf", kernel_params={"gamma": gamma}, cv=5, warn=False
    )
    X, Y, X_new = (backend.asarray(A) for A in (X, Y, X_new))

    def run():
        model.fit(X, Y)
        backend.to_numpy(model.best_alphas_)  # waits for the fit, on a GPU too
        return model

    return Contestant(
        run, lambda model: mean_square(backend.to_numpy(model.predict(X_new)), wanted)
    )


@in_scikit_learn
def grid_search(X, y, X_new, wanted, gammas, alphas):
    """GridSearchCV(KernelRidge) by five folds."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.model_selection import GridSearchCV

    grid = {"alpha": alphas, "gamma": gammas}
    return _fitted(GridSearchCV(KernelRidge(kernel="rbf"), grid, cv=5), X, y, X_new, wanted)


@of("GPyTorch", "pip install gpytorch", gpu=True)
def gpytorch_gradient(X, y, width, lam):
    """LeaveOneOutPseudoLikelihood with its backward pass."""
    import gpytorch
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y = torch.from_numpy(X.copy()).to(device), torch.from_numpy(y.copy()).to(device)

    class ExactGP(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.RBFKernel()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double().to(device)
    model = ExactGP(likelihood).double().to(device)
    likelihood.noise, model.covar_module.lengthscale = lam, width
    model.train(), likelihood.train()
    objective = gpytorch.mlls.LeaveOneOutPseudoLikelihood(likelihood, model)

    def run():
        model.zero_grad()
        value = objective(model(X), y)  # by a Cholesky factor, whatever n
        value.backward()
        return (
            value.item() + 0 * model.covar_module.raw_lengthscale.grad.item()
        )  # waits for the gradient, on a GPU too

    return Contestant(run)


@in_scikit_learn
def nystroem(X, y, m, lams, X_new, wanted):
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline

    features = Nystroem(gamma=1 / 16, n_components=m, random_state=0)
    return _fitted(make_pipeline(features, RidgeCV(lams)), X, y, X_new, wanted)


@of("falkon", "build it from its source")
def falkon(X, y, m, X_new, wanted, *, width=8**0.5, penalty=1e-6):
    """One λ by preconditioned conjugate gradients, rows divided by the width."""
    import falkon
    import torch

    kernel, options = falkon.kernels.GaussianKernel(1.0), falkon.FalkonOptions(use_cpu=True)
    model = falkon.Falkon(kernel, penalty=penalty, M=m, options=options)
    parts = map(torch.from_numpy, (X / width, y[:, None].copy(), X_new / width))
    return _fitted(model, *parts, wanted)


@in_scikit_learn
def ridge_cv(X, y, lams, w):
    """RidgeCV, judged by its coefficients."""
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(lams, fit_intercept=False)
    return Contestant(lambda: model.fit(X, y), lambda model: mean_square(model.coef_, w))


@in_scikit_learn
def ridge_cv_loop(grams, Y, lams):
    """A loop over RidgeCV on the Cholesky factors of kernel matrices: the same functions as
    explicit features.
    """
    from sklearn.linear_model import RidgeCV

    roots = [np.linalg.cholesky(K + 1e-10 * np.eye(len(K))) for K in grams]
    return Contestant(
        lambda: [
            RidgeCV(lams, fit_intercept=False).fit(root, y).best_score_
            for root, y in zip(roots, Y, strict=True)
        ],
        lambda scores: -float(np.mean(scores)),
    )


@in_scikit_learn
def rbf_matmul(X, Z, V, gamma):
    from sklearn.metrics.pairwise import rbf_kernel

    return Contestant(lambda: rbf_kernel(X, Z, gamma=gamma) @ V)


@in_scikit_learn
def kernel_ridge_predict(Z, y, gamma, alpha, X, judge):
    """KernelRidge.predict, judged by its first rows."""
    from sklearn.kernel_ridge import KernelRidge

    model = KernelRidge(kernel="rbf", gamma=gamma, alpha=alpha).fit(Z, y)
    return Contestant(lambda: model.predict(X), judge)


COLD = """
import sys
import numpy as np
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV
data = np.load(sys.argv[1])
X, y = data["X"], data["y"]
X = (X - X.mean(axis=0)) / X.std(axis=0)
mean = y[:1200].mean()
search = GridSearchCV(KernelRidge(kernel="rbf", gamma=0.5), {"alpha": np.geomspace(1e-4, 1e2, 20)})
search.fit(X[:1200], y[:1200] - mean)
print(((search.predict(X[1200:]) + mean - y[1200:]) ** 2).mean())
"""


@in_scikit_learn
def cold_grid_search(process):
    """A new process that searches 20 λ by five folds."""
    import sklearn.kernel_ridge  # noqa: F401

    return Contestant(process, float)
