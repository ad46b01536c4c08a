"""How well the two leave-one-outs on landmarks foresee the test, and what pivoted and uniform
landmarks leave of K.

python benchmarks/two_loos.py --data FOLDER     # kin40k, protein and elevators as
FOLDER/<name>.csv.gz, target last

Files: no header, the target last, as in github.com/treforevans/uci_datasets. FOLDER may also be
given as JAXRLS_DATA. Some two minutes."""

import argparse
import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxrls as rls

DATA_SETS = ("kin40k", "protein", "elevators")


@functools.partial(jax.jit, static_argnames=("count", "leave"))
def path(kernel, X, Y, landmarks, count, leave):
    factor = rls.factorize(kernel, X, landmarks=landmarks, leave=leave)
    return rls.path(factor, Y, rls.lambda_grid(factor, count))


def load(folder, name):
    """Standardised columns, rows shuffled, the target last."""
    values = np.loadtxt(folder / f"{name}.csv.gz", delimiter=",")
    scale = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(scale > 0, scale, 1)
    values = jnp.asarray(np.random.default_rng(0).permutation(values))
    return values[:, :-1], values[:, -1]


def tables(folder, n):
    print("| data | tr(K − K̂)/n, m = 1000: rpcholesky | uniform |\n|---|---|---|")
    for name in DATA_SETS:
        X, _ = load(folder, name)
        kernel = rls.Gaussian(float(np.sqrt(X.shape[1])))
        left = [
            float(
                rls.landmarks(kernel, X, 1000, key=jax.random.key(0), method=method).trace_residual
            )
            for method in ("rpcholesky", "uniform")
        ]
        print(f"| {name} | {left[0] / len(X):.3g} | {left[1] / len(X):.3g} |")
    print(
        f"\nmean |log(LOO/test)| over 50 λ, n = {n}, the rest (at most 10000 rows) for the test\n"
    )
    print("| data | m | dictionary fixed | landmark leaves |\n|---|---|---|---|")
    for name in DATA_SETS:
        X, y = load(folder, name)
        kernel = rls.Gaussian(float(np.sqrt(X.shape[1])))
        new, y_new = X[n : n + 10_000], y[n : n + 10_000]
        for m in (n // 10, n // 2):
            chosen = rls.landmarks(kernel, X[:n], m, key=jax.random.key(0), method="uniform")
            K, gaps = rls.gram(kernel, new, chosen.points), []
            for leave in (False, True):
                found = path(kernel, X[:n], y[:n], chosen, 50, leave=leave)
                test = jnp.mean((y_new - found.coef @ K.T - found.intercept[:, None]) ** 2, axis=1)
                gaps.append(float(jnp.mean(jnp.abs(jnp.log(found.loo / test)))))
            print(f"| {name} | {len(chosen.indices)} | {gaps[0]:.3f} | {gaps[1]:.3f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=int, default=2000, help="rows of each data set to train on")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("JAXRLS_DATA"), help="folder of the data sets"
    )
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    missing = [
        name
        for name in DATA_SETS
        if args.data is None or not (Path(args.data) / f"{name}.csv.gz").exists()
    ]
    if missing:
        return print(
            f"skipped: {', '.join(missing)} not found as <name>.csv.gz in --data or JAXRLS_DATA, which is {args.data}"
        )
    return tables(Path(args.data), args.train)


if __name__ == "__main__":
    main()
