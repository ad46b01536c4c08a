"""Intervals by the jackknife+: how often they hold a label, how wide they are, and what they cost.

    python benchmarks/intervals.py coverage --data FOLDER     # levels .8, .9 and .95 over 50 random
    splits, beside split-conformal's with the same rows python benchmarks/intervals.py coverage
    --data FOLDER --out benchmarks/report/intervals.md python benchmarks/intervals.py time
    # 10,000 new rows at n = 4000, beside the product of 10,000 × 4000 × 4000

FOLDER (or the environment variable JAXRLS_DATA) holds concrete, energy and elevators as
NAME.csv.gz: no header, the target last; the airfoil data come with the package. `coverage` takes
minutes, as every split of a data set has the same shapes, and so is compiled once: 600 rows
(`--rows`) are fitted, and of the others as many are predicted as there are, 600 at most. It exits
with 1 where coverage by the jackknife+ is below what is guaranteed, less a standard error."""

import argparse
import os
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from datasets import table
from timing import interleaved

import jaxrls as rls

SETS = ("airfoil", "concrete", "energy", "elevators")
LEVELS = (0.8, 0.9, 0.95)
LAMS = np.geomspace(1e-8, 1e2, 61)
GUARANTEES = {
    "jackknife+": 2,
    "studentised": 2,
    "cv+": 2,
    "split": 1,
}  # 1 − kα for every distribution; of cv+ but for √(2/n)
WORDS = """# How often intervals hold

By `python benchmarks/intervals.py coverage --data FOLDER --out benchmarks/report/intervals.md`: {splits} random splits of each data set into n rows to
fit and m to predict, in units of the former. The kernel is Gaussian, its width the median distance, λ the best of {lams} from {least:g} to {most:g} by
leave-one-out: of all n rows for the jackknife+, plain and studentised by the posterior variance, and for CV+ in ten folds; of half of them for
split-conformal, which takes its quantile from the other half. Widths are in standard deviations of the target.

Coverage is the mean over splits ± its standard error, as if splits were independent: they share rows, so that the error is that of splitting, not of
another sample of rows. For a level of 1 − α, `level` says whether coverage is at least the level, `less an error` whether it is at least the level less
one standard error, and `guarantee` whether it is at least what is proved for every distribution, less one standard error: 1 − 2α for the jackknife+ and
CV+, the level itself for split-conformal. `of split's` is the ratio of mean widths.

| data | n | m | level | way | coverage | level | less an error | guarantee | width | of split's |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def split(values, rng, rows):
    """Rows to fit and rows to predict, in units of the former."""
    values = rng.permutation(values)[: 2 * rows]
    if len(values) <= rows:
        raise SystemExit(f"--rows {rows} leaves none of {len(values)} rows to predict: take fewer")
    mean, scale = values[:rows].mean(axis=0), values[:rows].std(axis=0)
    values = (values - mean) / np.where(scale > 0, scale, 1)
    return values[:rows, :-1], values[:rows, -1], values[rows:, :-1], values[rows:, -1]


def rank(level, n):
    """⌈level (n + 1)⌉, of the level that is meant."""
    return int(np.ceil(round(level * (n + 1), 9)))


def intervals(X, y, X_new):
    """Both ends by every way, at every level: {way: {level: (lower, upper)}}."""
    kernel = rls.Gaussian(float(rls.median_distance(jnp.asarray(X))))
    all_rows = rls.fit(kernel, X, y, lams=LAMS, keep=True)
    folds = rls.fit(
        kernel, X, y, groups=np.arange(len(X)) % 10, lams=[float(all_rows.lam)], keep=True
    )
    half = len(X) // 2
    part = rls.fit(kernel, X[:half], y[:half], lams=LAMS)
    centre, scores = part.predict(X_new), np.sort(np.abs(y[half:] - part.predict(X[half:])))
    found: dict = {way: {} for way in GUARANTEES}
    for level in LEVELS:
        found["jackknife+"][level] = all_rows.intervals(X_new, level)
        found["studentised"][level] = all_rows.intervals(X_new, level, studentised=True)
        found["cv+"][level] = folds.intervals(X_new, level)
        reach = scores[rank(level, len(scores)) - 1]
        found["split"][level] = centre - reach, centre + reach
    return found


def counted(values, splits, rows):
    """Shares inside and mean widths of every split: {(level, way): (splits, 2)}."""
    found: dict = {(level, way): [] for level in LEVELS for way in GUARANTEES}
    for seed in range(splits):
        X, y, X_new, y_new = split(values, np.random.default_rng(seed), rows)
        for way, ends in intervals(X, y, X_new).items():
            for level, (lower, upper) in ends.items():
                found[level, way].append(
                    (np.mean((lower <= y_new) & (y_new <= upper)), np.mean(upper - lower))
                )
    return {key: np.array(parts) for key, parts in found.items()}


def verdicts(shares, level, way):
    """Mean and standard error of coverage, and whether it is at least the level, the level less the
    error, and the guarantee less the error.
    """
    mean, error = shares.mean(), shares.std(ddof=1) / len(shares) ** 0.5
    return (
        mean,
        error,
        mean >= level,
        mean >= level - error,
        mean >= 1 - GUARANTEES[way] * (1 - level) - error,
    )


def coverage(args):
    """One line for each data set, level and way."""
    text = WORDS.format(splits=args.splits, lams=len(LAMS), least=LAMS[0], most=LAMS[-1])
    print(text, end="", flush=True)
    kept = True
    for name in SETS:
        values = table(name, args.data)
        if values is None:
            continue
        found, m = counted(values, args.splits, args.rows), min(args.rows, len(values) - args.rows)
        for (level, way), parts in found.items():
            mean, error, *held = verdicts(parts[:, 0], level, way)
            width, beside = parts[:, 1].mean(), found[level, "split"][:, 1].mean()
            said = " | ".join("yes" if each else "no" for each in held)
            line = f"| {name} | {args.rows} | {m} | {level} | {way} | {mean:.4f} ± {error:.4f} | {said} | {width:.3f} | {width / beside:.2f} |\n"
            print(line, end="", flush=True)
            text, kept = text + line, kept and (held[-1] or way == "split")
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8")
    sys.exit(not kept)


def time(args):
    """Ratios in rounds, as a machine that drifts drifts for both."""
    rng = np.random.default_rng(0)
    n, m = args.n, args.m
    for dtype in (np.float64, np.float32):
        X, new = rng.normal(size=(n, 8)).astype(dtype), rng.normal(size=(m, 8)).astype(dtype)
        y = (np.sin(X[:, 0]) + 0.3 * rng.standard_t(4, n)).astype(dtype)
        A, B = (
            jnp.asarray(rng.normal(size=(m, n)), dtype),
            jnp.asarray(rng.normal(size=(n, n)), dtype),
        )
        fit = rls.fit(rls.Gaussian(3.0), *map(jnp.asarray, (X, y)), lams=[0.1], keep=True)
        product = jax.jit(lambda A, B: jnp.matmul(A, B, precision="highest"))
        new = jnp.asarray(new)
        contestants = {
            f"product {m} × {n} × {n}": lambda A=A, B=B, product=product: product(A, B),
            "intervals": lambda fit=fit, new=new: fit.intervals(new, 0.9),
            "intervals, studentised": lambda fit=fit, new=new: fit.intervals(
                new, 0.9, studentised=True
            ),
        }
        timings, _, failures = interleaved(contestants, args.rounds)
        floor = next(iter(timings.values())).median
        print(f"{np.dtype(dtype)}, {jax.devices()[0].platform}, medians of {args.rounds}")
        for name, timing in timings.items():
            print(
                f"  {name:36} {timing.median:8.3f} s   {timing.median / floor:.2f} of the product"
            )
        for name, words in failures.items():
            print(f"  {name}: {words}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["coverage", "time"])
    parser.add_argument(
        "--data", default=os.environ.get("JAXRLS_DATA"), help="folder of the data sets"
    )
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument("--rows", type=int, default=600, help="rows to fit in a split")
    parser.add_argument("--out", help="a file to write the table to")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--m", type=int, default=10_000)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.filterwarnings("ignore", "the chosen λ")
    {"coverage": coverage, "time": time}[args.what](args)


if __name__ == "__main__":
    main()
