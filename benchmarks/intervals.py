"""Intervals by the jackknife+: how often they hold a label, how wide they are, and what they cost.

    python benchmarks/intervals.py coverage --data FOLDER     # levels .8, .9 and .95 over 50 random splits, beside split-conformal's with the same rows
    python benchmarks/intervals.py time                       # 10,000 new rows at n = 4000, beside the product of 10,000 × 4000 × 4000

FOLDER (or the environment variable JAXRLS_DATA) holds concrete, energy and elevators as NAME.csv.gz: no header, the target last; the airfoil data come with
the package. In every split four fifths of the rows, 2000 at most, are fitted and up to as many others predicted; columns are standardised by the former. The
kernel is Gaussian, its width the median distance, λ the best of 100 by leave-one-out: of all rows for the jackknife+ and CV+ in ten folds, of half of them for
split-conformal, which takes its quantile from the other half. Widths are in standard deviations of the target.
"""

import argparse
import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from datasets import table
from timing import interleaved

import jaxrls as rls

SETS = ("airfoil", "concrete", "energy", "elevators")
LEVELS = (0.8, 0.9, 0.95)
MOST = 2000
WAYS = ("jackknife+", "studentised", "cv+", "split")


def split(values, rng):
    """Rows to fit and rows to predict, in units of the former."""
    values = rng.permutation(values)
    n = min(MOST, 4 * len(values) // 5)
    mean, scale = values[:n].mean(axis=0), values[:n].std(axis=0)
    values = (values[: 2 * n] - mean) / np.where(scale > 0, scale, 1)
    return values[:n, :-1], values[:n, -1], values[n:, :-1], values[n:, -1]


def intervals(kernel, X, y, X_new):
    """Both ends by every way, at every level: {way: {level: (lower, upper)}}."""
    all_rows = rls.fit(kernel, X, y, keep_intervals=True, keep_variance=True)
    folds = rls.fit(kernel, X, y, groups=np.arange(len(X)) % 10, lams=[float(all_rows.lam)], keep_intervals=True)
    half = len(X) // 2
    part = rls.fit(kernel, X[:half], y[:half])
    centre, scores = part.predict(X_new), np.sort(np.abs(y[half:] - part.predict(X[half:])))
    found: dict = {way: {} for way in WAYS}
    for level in LEVELS:
        found["jackknife+"][level] = all_rows.intervals(X_new, level)
        found["studentised"][level] = all_rows.intervals(X_new, level, studentised=True)
        found["cv+"][level] = folds.intervals(X_new, level)
        reach = scores[int(np.ceil(level * (len(scores) + 1))) - 1]
        found["split"][level] = centre - reach, centre + reach
    return found


def coverage(args):
    """One line for each data set, level and way."""
    print(f"mean over {args.splits} splits; coverage with its standard error; 'held' is coverage at least the level less that\n")
    print("| data | n | level | way | coverage | | mean width | |\n|---|---|---|---|---|---|---|---|")
    for name in SETS:
        values = table(name, args.data)
        if values is None:
            continue
        inside, width = ({way: {level: [] for level in LEVELS} for way in WAYS} for _ in range(2))
        for seed in range(args.splits):
            X, y, X_new, y_new = split(values, np.random.default_rng(seed))
            kernel = rls.Gaussian(float(rls.median_distance(jnp.asarray(X))))
            for way, ends in intervals(kernel, X, y, X_new).items():
                for level, (lower, upper) in ends.items():
                    inside[way][level].append(np.mean((lower <= y_new) & (y_new <= upper)))
                    width[way][level].append(np.mean(upper - lower))
        for level in LEVELS:
            for way in WAYS:
                share, wide = np.array(inside[way][level]), np.mean(width[way][level])
                error = share.std(ddof=1) / len(share) ** 0.5
                held = "held" if share.mean() >= level - error else "guaranteed" if share.mean() >= 2 * level - 1 - error else "below"
                beside = f"{wide / np.mean(width['split'][level]):.2f} of split's"
                print(
                    f"| {name} | {len(X)} | {level} | {way} | {share.mean():.4f} ± {error:.4f} | {held} | {wide:.3f} | {beside} |",
                    flush=True,
                )


def time(args):
    """Ratios in rounds, as a machine that drifts drifts for both."""
    rng = np.random.default_rng(0)
    n, m = args.n, args.m
    for dtype in (np.float64, np.float32):
        X, new = rng.normal(size=(n, 8)).astype(dtype), rng.normal(size=(m, 8)).astype(dtype)
        y = (np.sin(X[:, 0]) + 0.3 * rng.standard_t(4, n)).astype(dtype)
        A, B = jnp.asarray(rng.normal(size=(m, n)), dtype), jnp.asarray(rng.normal(size=(n, n)), dtype)
        fit = rls.fit(rls.Gaussian(3.0), *map(jnp.asarray, (X, y)), lams=[0.1], keep_intervals=True, keep_variance=True)
        product = jax.jit(lambda A, B: jnp.matmul(A, B, precision="highest"))
        new = jnp.asarray(new)
        contestants = {
            f"product {m} × {n} × {n}": lambda A=A, B=B, product=product: product(A, B),
            "intervals": lambda fit=fit, new=new: fit.intervals(new, 0.9),
            "intervals, studentised": lambda fit=fit, new=new: fit.intervals(new, 0.9, studentised=True),
        }
        timings, _, failures = interleaved(contestants, args.rounds)
        floor = next(iter(timings.values())).median
        print(f"{np.dtype(dtype)}, {jax.devices()[0].platform}, medians of {args.rounds}")
        for name, timing in timings.items():
            print(f"  {name:36} {timing.median:8.3f} s   {timing.median / floor:.2f} of the product")
        for name, words in failures.items():
            print(f"  {name}: {words}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["coverage", "time"])
    parser.add_argument("--data", default=os.environ.get("JAXRLS_DATA"), help="folder of the data sets")
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--m", type=int, default=10_000)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.filterwarnings("ignore", "the chosen λ")
    {"coverage": coverage, "time": time}[args.what](args)


if __name__ == "__main__":
    main()
