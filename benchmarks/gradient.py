"""What a gradient of the leave-one-out error costs, in Cholesky factors and matrix products, and beside GPyTorch where it is installed.

    python benchmarks/gradient.py [--n 4000] [--d 8] [--repeats 5]

Float64. One run times all of them in turn and reports medians; compilation is apart.
"""

import argparse
import time
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

import jaxrls as rls

jax.config.update("jax_enable_x64", True)

LAM, WIDTH = 0.1, 2.0


def gpytorch_gradient(X, y):
    """A function that returns GPyTorch's leave-one-out pseudo-likelihood with its gradient, or None without GPyTorch."""
    try:
        import gpytorch
        import torch
    except ImportError:
        return None
    torch.set_num_threads(2)
    X, y = torch.from_numpy(np.array(X)), torch.from_numpy(np.array(y))

    class ExactGP(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.RBFKernel()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = ExactGP(likelihood).double()
    likelihood.noise, model.covar_module.lengthscale = LAM, WIDTH
    model.train(), likelihood.train()
    objective = gpytorch.mlls.LeaveOneOutPseudoLikelihood(likelihood, model)

    def run():
        model.zero_grad()
        value = objective(model(X), y)  # by a Cholesky factor, whatever n
        value.backward()
        return value.item()

    return run


def check(value_and_grad, X, y):
    """The gradient in log width and log λ against central differences."""

    def value(t):
        return rls.loo_objective(rls.Gaussian(WIDTH * jnp.exp(t[0])), X, y, LAM * jnp.exp(t[1]))

    value, step = jax.jit(value), 1e-4
    differences = np.array([(value(h) - value(-h)) / (2 * step) for h in step * jnp.eye(2)])
    _, (kernel, lam) = value_and_grad(rls.Gaussian(jnp.asarray(WIDTH)), X, y, jnp.asarray(LAM))
    exact = np.array([WIDTH * kernel.width, LAM * lam])
    error = np.abs(exact - differences).max() / np.abs(differences).max()
    print(f"gradient in (log width, log λ) {exact}, central differences {differences}: {error:.1e} apart")
    if error > 1e-5:
        raise SystemExit("the gradient disagrees with central differences")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--d", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(options.n, options.d)))
    y = jnp.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.1 * jnp.asarray(rng.normal(size=options.n))

    value_and_grad = jax.jit(jax.value_and_grad(rls.loo_objective, argnums=(0, 3)))
    check(value_and_grad, X, y)
    G = jax.jit(lambda X: rls.gram(rls.Gaussian(WIDTH), X) + LAM * jnp.eye(len(X)))(X)
    contenders = {
        "Cholesky": partial(jax.jit(lambda G: jax.lax.linalg.cholesky(G, symmetrize_input=False)), G),
        "matrix product": partial(jax.jit(lambda G: G @ G), G),
        "value and gradient": partial(value_and_grad, rls.Gaussian(jnp.asarray(WIDTH)), X, y, jnp.asarray(LAM)),
        "GPyTorch": gpytorch_gradient(X, y),
    }
    times: dict[str, list[float]] = {name: [] for name, run in contenders.items() if run}
    for repeat in range(options.repeats + 1):
        for name in times:
            start = time.perf_counter()
            jax.block_until_ready(contenders[name]())
            if repeat:  # the first one compiles
                times[name].append(time.perf_counter() - start)

    seconds = {name: median(values) for name, values in times.items()}
    print(f"\nn = {options.n}, d = {options.d}, float64, {jax.devices()[0].platform}, jax {jax.__version__}, median of {options.repeats}\n")
    print("| | median, s | fastest, s | slowest, s |\n|---|---|---|---|")
    for name, values in times.items():
        print(f"| {name} | {seconds[name]:.3f} | {min(values):.3f} | {max(values):.3f} |")
    ours = seconds["value and gradient"]
    print(f"\nvalue and gradient / (Cholesky + matrix product): {ours / (seconds['Cholesky'] + seconds['matrix product']):.2f}")
    print(
        f"GPyTorch / value and gradient: {seconds['GPyTorch'] / ours:.2f}"
        if "GPyTorch" in seconds
        else "GPyTorch: missing (pip install gpytorch)"
    )


if __name__ == "__main__":
    main()
