"""What the whole λ path with exact leave-one-out costs beside the one eigendecomposition it needs.

python benchmarks/path.py [--n 4000] [--lams 100] [--targets 1] [--rounds 5]
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved

import jaxrls as rls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--lams", type=int, default=100)
    parser.add_argument("--targets", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)

    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(args.n, 20)))
    Y = jnp.sin(X[:, :1]) + 0.1 * jnp.asarray(rng.normal(size=(args.n, args.targets)))
    K = jax.jit(rls.gram)(rls.Gaussian(4.0), X)

    @jax.jit
    def path(K, Y):
        factor = rls.factor_gram(K)
        return rls.path(factor, Y, rls.lambda_grid(factor, args.lams))

    @jax.jit
    def path_with_intercept(K, Y):
        factor = rls.factor_gram(K, intercept=True)
        return rls.path(factor, Y, rls.lambda_grid(factor, args.lams))

    eigh = jax.jit(lambda K: jax.lax.linalg.eigh(K, symmetrize_input=False))
    product = jax.jit(lambda A, B: jnp.matmul(A, B, precision="highest"))
    wide = jnp.ones((args.n, args.lams * args.targets))
    contestants = {
        "bare eigh": lambda: eigh(K),
        "product n×n×(L·t)": lambda: product(K, wide),
        "path with LOO": lambda: path(K, Y),
        "path with LOO and intercept": lambda: path_with_intercept(K, Y),
    }
    seconds, first = interleaved(contestants, args.rounds)
    print(
        f"n = {args.n}, {args.lams} λ, {args.targets} targets, float64, medians of {args.rounds} interleaved rounds, {jax.devices()[0]}\n"
    )
    print("| work | seconds | ratio to bare eigh | first call, with compilation |")
    print("|---|---|---|---|")
    for name, t in seconds.items():
        print(f"| {name} | {t:.3f} | {t / seconds['bare eigh']:.3f} | {first[name]:.2f} |")


if __name__ == "__main__":
    main()
