"""Tuning by gradient against a grid: the leave-one-out error reached and the time taken; and one
width per column against one for all.

    python benchmarks/tuning.py [--data FOLDER] [--only airfoil] [--quick]
    python benchmarks/tuning.py large [--data FOLDER] [--only pol kin40k] [--quick]

`large` searches a width per column on 500 landmarks of all rows, begun on few rows and on all, and
times a step beside its two products with the rows; kin40k and protein are in FOLDER, and pol is
drawn in the size of that data set.

FOLDER (or the environment variable JAXRLS_DATA) holds concrete.csv.gz and energy.csv.gz: no header,
the target last. The airfoil data come with the package. Columns are standardised, so that errors
are fractions of the target's variance. Times are medians of five interleaved rounds after a first
call."""

import argparse
import os
from functools import partial

import datasets
import jax
import jax.numpy as jnp
import numpy as np
from timing import timed

import jaxrls as rls

jax.config.update("jax_enable_x64", True)

DATA_SETS = ("airfoil", "concrete", "energy")
LARGE = {"pol": 13_500, "kin40k": 36_000, "protein": 41_000}
LANDMARKS = 500
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


def against_grid(X, y, num_widths, rounds):
    """Error and time of a grid of widths around the median distance, and of the search, medians of
    interleaved rounds.
    """
    X, y = jnp.asarray(X), jnp.asarray(y)
    widths = rls.median_distance(X) * jnp.geomspace(1 / 20, 20, num_widths)
    jax.block_until_ready(best_of_path(widths[0], X, y))
    first_time, _ = timed(lambda: rls.tune(rls.Gaussian(1.0), X, y))
    grid_times, tune_times = [], []
    for _ in range(rounds):
        seconds, errors = timed(lambda: [best_of_path(width, X, y) for width in widths])
        grid_times.append(seconds)
        seconds, tuned = timed(lambda: rls.tune(rls.Gaussian(1.0), X, y))
        tune_times.append(seconds)
    best = int(np.argmin(errors))
    if best in (0, num_widths - 1):
        print(f"the best width of the grid, {widths[best]:.3g}, is at its end")
    return (
        float(errors[best]),
        float(widths[best]),
        float(np.median(grid_times)),
        tuned,
        first_time,
        float(np.median(tune_times)),
    )


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


def load_large(name, folder):
    """As many standardised rows as the goals name, drawn by chance; pol by a function of some of
    its 26 columns, half of them steps.
    """
    rng, n = np.random.default_rng(0), LARGE[name]
    if name != "pol":
        pair = load(name, folder)
        some = rng.permutation(n if pair is None else len(pair[0]))[:n]
        return None if pair is None else (pair[0][some], pair[1][some])
    X = rng.normal(size=(n, 26))
    X[:, 13:] = X[:, 13:] > 0.5
    y = (
        np.sin(2 * X[:, 0]) * X[:, 1]
        + np.abs(X[:, 2] + X[:, 3] / 2)
        + np.cos(X[:, 4] * X[:, 5]) / 2
        + 0.3 * X[:, 13] * X[:, 0]
    )
    y += 0.1 * X[:, 6] + 0.1 * rng.normal(size=n)
    return (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()


def step_over_products(X, y, rounds):
    """Seconds of value and gradient over those of the products n×m×m and m×n×m, medians of
    interleaved rounds.
    """
    X, y, m = jnp.asarray(X), jnp.asarray(y), LANDMARKS
    rows, width = jnp.arange(m) * (len(X) // m), jnp.full(X.shape[1], X.shape[1] ** 0.5)
    A, B = (jax.random.normal(jax.random.key(0), shape, X.dtype) for shape in ((len(X), m), (m, m)))
    products = jax.jit(lambda A, B: (A @ B, A.T @ A))
    step = jax.jit(
        jax.value_and_grad(
            lambda width, lam: rls.objective(rls.Gaussian(width), X, y, lam, landmarks=rows),
            (0, 1),
        )
    )
    calls = lambda: products(A, B), lambda: step(width, 0.1)
    seconds = np.array([[timed(call)[0] for call in calls] for _ in range(rounds + 1)])[1:]
    return np.divide(*np.median(seconds, axis=0)[::-1])


def large(names, folder, rounds):
    """Time and leave-one-out error with the search begun on few rows, and on all."""
    print(
        "\n| data | n | d | few rows first, s | on all, s | ratio | its error | on all | ratio | steps, on few + all | on all | step / products |"
    )
    print("|" + "---|" * 12, flush=True)
    for name in names:
        if (pair := load_large(name, folder)) is None:
            continue
        X, y = pair
        kernel, found, seconds = rls.Gaussian(np.ones(X.shape[1])), {}, []
        for _ in range(rounds + 1):
            taken, found = zip(
                *(
                    timed(partial(rls.tune, kernel, X, y, landmarks=LANDMARKS, grow=grow))
                    for grow in (True, False)
                ),
                strict=True,
            )
            seconds.append(taken)
        few, every = np.median(seconds[1:], axis=0)  # the first round compiles
        errors = [float(each.error) for each in found]
        before = " + ".join(str(len(stage.history.errors) - 1) for stage in found[0].history.stages)
        steps = [before, *(len(each.history.errors) - 1 for each in found)]
        print(
            f"| {name} | {len(X)} | {X.shape[1]} | {few:.1f} | {every:.1f} | {few / every:.2f} | {errors[0]:.5f} | {errors[1]:.5f} "
            f"| {errors[0] / errors[1]:.3f} | {steps[0]} + {steps[1]} | {steps[2]} | {step_over_products(X, y, 5 * rounds):.2f} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["large"], help="large: many rows on landmarks")
    parser.add_argument(
        "--data", default=os.environ.get("JAXRLS_DATA"), help="folder of NAME.csv.gz"
    )
    parser.add_argument("--only", nargs="+", choices=(*DATA_SETS, *LARGE))
    parser.add_argument(
        "--quick", action="store_true", help="10 widths and 2 splits in place of 40 and 10"
    )
    options = parser.parse_args()
    if options.what == "large":
        return large(options.only or LARGE, options.data, 1 if options.quick else 3)
    num_widths, splits, rounds = (10, 2, 1) if options.quick else (40, 10, 5)
    data = {
        name: pair
        for name in options.only or DATA_SETS
        if (pair := load(name, options.data)) is not None
    }

    print(
        f"\n| data | n | best of {num_widths} × 100 | its width | s | tuned | its width | steps | s | first call, s | time ratio | stopped |"
    )
    print("|" + "---|" * 12, flush=True)
    for name, (X, y) in data.items():
        error, width, grid_time, tuned, first_time, tune_time = against_grid(
            X, y, num_widths, rounds
        )
        print(
            f"| {name} | {len(X)} | {error:.6f} | {width:.3g} | {grid_time:.2f} | {float(tuned.error):.6f} | {float(tuned.kernel.width):.3g} "
            f"| {len(tuned.history.errors) - 1} | {tune_time:.2f} | {first_time:.1f} | {tune_time / grid_time:.2f} | {tuned.history.reason} |",
            flush=True,
        )

    print(
        f"\nTest RMSE over {splits} random splits, mean ± standard deviation\n\n| data | one width | one per column | splits improved |"
    )
    print("|" + "---|" * 4, flush=True)
    for name in ARD_SETS:
        if name in data:
            one, each = against_one_width(*data[name], splits)
            cells = " | ".join(f"{r.mean():.4f} ± {r.std(ddof=1):.4f}" for r in (one, each))
            print(f"| {name} | {cells} | {int((each < one).sum())} of {splits} |", flush=True)


if __name__ == "__main__":
    main()
