"""What the tridiagonal route takes, as a share of one eigendecomposition of K: GCV, evidence, coefficients, and what leaves rows out.

    python benchmarks/tridiagonal.py [--sizes 3000 4000] [--lams 100] [--rounds 5] [--float32]

Every contestant in turn, round after round; each ratio is the median over rounds of its time over that of `eigh` in the same round. Accuracy is the largest
relative difference from the same criterion by the spectrum.
"""

import argparse
import statistics
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from timing import timed

import jaxrls as rls


def leave_one_out(factor, y, lams):
    """The path: coefficients and leave-one-out at every λ."""
    found = rls.path(factor, y, lams)
    return found.loo, found.coef


CRITERIA = {"GCV": rls.gcv, "evidence": rls.log_marginal_likelihood, "leave-one-out": rls.loo, "path with leave-one-out": leave_one_out}


def contestants(n, count, dtype):
    """Programs of K and labels: one eigendecomposition, the reduction, and each criterion on the tridiagonal route; and the criteria by the spectrum."""
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(n, 8)), dtype)
    y, lams = jnp.sin(X[:, 0]), jnp.geomspace(1e-3, 1e2, count, dtype=dtype)
    K = jax.jit(rls.gram)(rls.Gaussian(dtype(8**0.5)), X)

    def run(criterion, K, y, lams, route):
        return criterion(rls.factorize(rls.Precomputed(), K, intercept=False, route=route), y, lams)

    programs = {name: jax.jit(partial(run, criterion), static_argnames="route") for name, criterion in CRITERIA.items()}
    ways = {
        "eigh": partial(jax.jit(lambda K: jax.lax.linalg.eigh(K, symmetrize_input=False)), K),
        "reduction alone": partial(jax.jit(lambda K: jax.lax.linalg.tridiagonal(K, lower=True)), K),
        **{name: partial(program, K, y, lams, route="tridiagonal") for name, program in programs.items()},
    }
    return ways, {name: partial(program, K, y, lams, route="gram") for name, program in programs.items()}


def difference(one, other):
    """The largest, relative to the largest number."""
    one, other = (np.asarray(jax.tree.leaves(part)[0], float) for part in (one, other))
    return np.abs(one - other).max() / np.abs(other).max()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[3000, 4000])
    parser.add_argument("--lams", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--float32", action="store_true")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", not args.float32)
    print("| n | work | seconds | share of eigh | from to | differs from the spectrum's by |\n|---|---|---|---|---|---|")
    for n in args.sizes:
        ways, by_spectrum = contestants(n, args.lams, np.float32 if args.float32 else np.float64)
        results = {name: timed(run)[1] for name, run in ways.items()}  # compiles
        rounds = [{name: timed(run)[0] for name, run in ways.items()} for _ in range(args.rounds)]
        for name, result in results.items():
            shares = [one[name] / one["eigh"] for one in rounds]
            off = f"{difference(result, by_spectrum[name]()):.1g}" if name in by_spectrum else ""
            seconds = statistics.median(one[name] for one in rounds)
            print(
                f"| {n} | {name} | {seconds:.2f} | {statistics.median(shares):.2f} | {min(shares):.2f} – {max(shares):.2f} | {off} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
