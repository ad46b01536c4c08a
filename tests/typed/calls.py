"""What a type checker sees of the main calls, as users' code does: `mypy --strict tests/typed` and
`pyright tests/typed` find nothing.

Nobody runs these functions.
"""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np

import jaxrls as rls
from jaxrls import extend

Numbers = (
    jax.Array | np.ndarray[Any, np.dtype[Any]]
)  # JAX arrays; of float64 NumPy data NumPy arrays


def kernels(X: jax.Array) -> None:
    assert_type(rls.Gaussian(width=2.0), rls.Gaussian)
    kernel = 0.5 * rls.Gaussian(width=jnp.ones(5)) + rls.Linear().on([0, 2]) * rls.Polynomial(2)
    assert_type(kernel, rls.extend.Kernel)
    assert_type(kernel(X, X), jax.Array)
    assert_type(kernel.diag(X), jax.Array)
    assert_type(rls.extend.gram(kernel, X), jax.Array)


def fits(kernel: rls.extend.Kernel) -> float:
    X, y, names = rls.airfoil()
    assert_type(names, tuple[str, ...])
    fit = rls.fit(kernel, X, y, lams=np.geomspace(1e-3, 1e3, 50), keep=True)
    assert_type(fit, rls.extend.Fit[rls.extend.Kernel])
    assert_type(fit.model, rls.extend.Model)
    assert_type(fit.route, str)
    best, left_out = fit.errors.argmin(), y - fit.loo_residuals
    assert fit.lams[best] == fit.lam and left_out.shape == y.shape
    mean, std = fit.predict(X, return_std=True)
    assert_type(fit.update(X, y), rls.extend.Fit[rls.extend.Kernel])
    lower, upper = fit.intervals(X, 0.9)
    residuals = y - fit.predict(X)
    return float(fit.error) + float(
        (residuals**2).mean() + (upper - lower).mean() + (mean / std).mean()
    )


def searches() -> float:
    X, y, _ = rls.airfoil()
    tuned = rls.tune(rls.Gaussian(width=np.ones(5)), X, y, landmarks=100)
    assert_type(tuned, rls.extend.Fit[rls.Gaussian])
    assert_type(tuned.kernel, rls.Gaussian)
    assert_type(
        rls.fit(
            tuned.kernel,
            X,
            y,
            landmarks=rls.choose_landmarks(tuned.kernel, X, 100, key=jax.random.key(0)),
        ),
        rls.extend.Fit[rls.Gaussian],
    )
    return float(tuned.error)


def pieces(kernel: rls.extend.Kernel, X: jax.Array, y: jax.Array) -> jax.Array:
    factor = rls.factorize(kernel, X)
    assert_type(factor, extend.Factor)
    lams = rls.extend.lambda_grid(factor, 20)
    assert_type(lams, jax.Array)
    path = rls.path(factor, y, lams)
    assert_type(path, extend.Path)
    assert_type(path.lams[path.loo.argmin()], jax.Array)
    for criterion in (rls.loo, rls.gcv, rls.log_marginal_likelihood):
        assert_type(criterion(factor, y, lams), jax.Array)
    coef, intercept = rls.extend.coef(factor, y, 0.1)
    assert_type(rls.objective(kernel, X, y, 0.1), jax.Array)
    total: jax.Array = path.loo.min() + intercept + coef.sum()
    return total


def others(X: jax.Array, Y: jax.Array) -> None:
    two_sided = rls.two_sided.fit_kronecker(rls.Linear(), X, rls.Linear(), X, Y, setting="both")
    assert_type(two_sided, rls.two_sided.KroneckerFit)
    two_sided.predict(X, X)
    _, std = two_sided.predict(X, X, pairs=[[0, 0]], return_std=True)
    assert_type(two_sided.posterior(X, X).std.sum() + std.sum(), Any)
    codes, classes = rls.classes.encode(["a", "b"])
    rls.classes.decode(codes, classes)
    rls.save("fit.safetensors", two_sided)
    assert_type(rls.load("fit.safetensors"), Any)


@extend.pytree
class Cosine(rls.extend.Kernel):
    """A kernel of one's own."""

    positive = length_scales = ("width",)
    width: Any

    def __call__(self, X: jax.Array, Z: jax.Array) -> jax.Array:
        return jnp.cos((X[:, :1] - Z[:, 0]) / self.width)

    def diag(self, X: jax.Array) -> jax.Array:
        return jnp.ones(X.shape[0], X.dtype)


def own(X: jax.Array, y: jax.Array) -> None:
    assert_type(rls.tune(Cosine(width=2.0), X, y).kernel, Cosine)
    assert_type(2.0 * Cosine(width=1.0), rls.extend.Kernel)
