"""Tuning by gradient against a grid: the leave-one-out error reached and the time taken; and one width per column against one for all.

    python benchmarks/tuning.py [--data FOLDER] [--only airfoil] [--quick]

FOLDER (or the environment variable JAXRLS_DATA) holds concrete.csv.gz and energy.csv.gz: no header, the target last. The airfoil data come
with the package. Columns are standardised, so that errors are fractions of the target's variance. Times are medians of five interleaved
rounds after a first call.
"""

import argparse
import os
import time

import datasets
import jax
import jax.numpy as jnp
import numpy as np

import jaxrls as rls

jax.config.update("jax_enable_x64", True)

DATA_SETS = ("airfoil", "concrete", "energy")
ARD_SETS = ("airfoil", "energy")


def load(name, folder):
    """Standardised (X, y), or None where the file is not there."""
    table = datasets.table(name, folder)
    if table is None:
        return None
    X, y = table[:, :-1], table[:, -1]
    return (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()


@jax.jit
def best_of_path(width, X, y):
    """The smallest leave-one-out error over 100 λ at one width."""
    factor = rls.factorize(rls.Gaussian(width), X, intercept=True)
    return jnp.min(rls.loo(factor, y, rls.lambda_grid(factor, 100)))


def timed(fn):
    start = time.perf_counter()
    result = jax.block_until_ready(fn())
    return result, time.perf_counter() - start


def against_grid(X, y, num_widths, rounds):
    """Error and time of a grid of widths around the median distance, and of the search, medians of interleaved rounds."""
    X, y = jnp.asarray(X), jnp.asarray(y)
    widths = rls.median_distance(X) * jnp.geomspace(1 / 20, 20, num_widths)
    jax.block_until_ready(best_of_path(widths[0], X, y))
    _, first_time = timed(lambda: rls.tune(rls.Gaussian(1.0), X, y))
    grid_times, tune_times = [], []
    for _ in range(rounds):
        errors, seconds = timed(lambda: [best_of_path(width, X, y) for width in widths])
        grid_times.append(seconds)
        tuned, seconds = timed(lambda: rls.tune(rls.Gaussian(1.0), X, y))
        tune_times.append(seconds)
    best = int(np.argmin(errors))
    if best in (0, num_widths - 1):
        print(f"the best width of the grid, {widths[best]:.3g}, is at its end")
    return float(errors[best]), float(widths[best]), float(np.median(grid_times)), tuned, first_time, float(np.median(tune_times))


def against_one_width(X, y, splits):
    """Test RMSE of one width and of one per column, over random splits 90/10."""
    rmse = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(X))
        train, test = order[: int(0.9 * len(X))], order[int(0.9 * len(X)) :]
        row = []
        for width in (1.0, np.ones(X.shape[1])):
            tuned = rls.tune(rls.Gaussian(width), X[train], y[train])
            row.append(np.sqrt(np.mean((y[test] - np.asarray(tuned.predict(X[test]))) ** 2)))
        rmse.append(row)
    return np.array(rmse).T


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("JAXRLS_DATA"), help="folder of NAME.csv.gz")
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=DATA_SETS)
    parser.add_argument("--quick", action="store_true", help="10 widths and 2 splits in place of 40 and 10")
    options = parser.parse_args()
    num_widths, splits, rounds = (10, 2, 1) if options.quick else (40, 10, 5)
    data = {name: pair for name in options.only if (pair := load(name, options.data)) is not None}

    print(
        f"\n| data | n | best of {num_widths} × 100 | its width | s | tuned | its width | steps | s | first call, s | time ratio | stopped |"
    )
    print("|" + "---|" * 12, flush=True)
    for name, (X, y) in data.items():
        error, width, grid_time, tuned, first_time, tune_time = against_grid(X, y, num_widths, rounds)
        print(
            f"| {name} | {len(X)} | {error:.6f} | {width:.3g} | {grid_time:.2f} | {float(tuned.error):.6f} | {float(tuned.kernel.width):.3g} "
            f"| {len(tuned.history.errors) - 1} | {tune_time:.2f} | {first_time:.1f} | {tune_time / grid_time:.2f} | {tuned.reason} |",
            flush=True,
        )

    print(f"\nTest RMSE over {splits} random splits, mean ± standard deviation\n\n| data | one width | one per column | splits improved |")
    print("|" + "---|" * 4, flush=True)
    for name in ARD_SETS:
        if name in data:
            one, each = against_one_width(*data[name], splits)
            cells = " | ".join(f"{r.mean():.4f} ± {r.std(ddof=1):.4f}" for r in (one, each))
            print(f"| {name} | {cells} | {int((each < one).sum())} of {splits} |", flush=True)


if __name__ == "__main__":
    main()
