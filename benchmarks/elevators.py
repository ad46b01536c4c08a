"""Large n on real data: a kernel tuned from a cold start, and landmarks chosen by the certificate,
beside the work on all of K.

    python benchmarks/elevators.py cold --data FOLDER    # a new process tunes and fits, beside one
    KernelRidge.fit of scikit-learn python benchmarks/elevators.py auto --data FOLDER    #
    fit(landmarks="auto") at n = 16000 beside the dense route (minutes)

FOLDER (or the environment variable JAXRLS_DATA) holds elevators.csv.gz: no header, the target last.
Columns are standardised."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import threads  # noqa: F401

LANDMARKS = 800


def load(folder, n):
    """Training rows and the rest, standardised by the training rows."""
    file = Path(folder or "") / "elevators.csv.gz"
    if not folder or not file.exists():
        raise SystemExit(
            f"skipped: no {file.name} in {folder or 'a folder named by --data or JAXRLS_DATA'}"
        )
    values = np.random.default_rng(0).permutation(np.loadtxt(file, delimiter=","))
    scale = values[:n].std(axis=0)
    values = (values - values[:n].mean(axis=0)) / np.where(scale > 0, scale, 1)
    return values[:n, :-1], values[:n, -1], values[n:, :-1], values[n:, -1]


def mean_square(values):
    return float(np.mean(np.square(values)))


def tune_and_fit(file):
    """What the new process does: imports, tunes width and λ by the leave-one-out error on all rows,
    predicts.

    Every fit gives the best of 100 λ; the width goes from the median distance, in steps of √2, to
    where that is least."""
    import jax

    import jaxrls as rls

    data = np.load(file)
    X, y = data["X"], data["y"]
    width = float(jax.jit(rls.median_distance)(X))
    landmarks = np.random.default_rng(0).permutation(len(X))[:LANDMARKS]

    def fit(step):
        return rls.fit(rls.Gaussian(width * 2 ** (step / 2)), X, y, landmarks=landmarks)

    best, wider = fit(0), fit(1)
    step, best, direction = (1, wider, 1) if wider.error < best.error else (0, best, -1)
    while (ahead := fit(step + direction)).error < best.error:
        step, best = step + direction, ahead
    np.savez(
        file,
        width=best.model.kernel.width,
        lam=best.lam,
        loo=best.error,
        predictions=best.predict(data["X_new"]),
    )


def cold(args):
    from sklearn.kernel_ridge import KernelRidge

    import jaxrls as rls

    X, y, X_new, y_new = load(args.data, 10_000)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        for _ in range(args.rounds):
            np.savez(file, X=X, y=y, X_new=X_new)
            start = time.perf_counter()
            subprocess.run([sys.executable, __file__, "child", "--file", str(file)], check=True)
            ours.append(time.perf_counter() - start)
            found = dict(np.load(file))
            start = time.perf_counter()
            KernelRidge(kernel="rbf", gamma=0.5 / found["width"] ** 2, alpha=found["lam"]).fit(X, y)
            theirs.append(time.perf_counter() - start)
    print(f"elevators, n = {len(X)}, float64, medians of {args.rounds}\n")
    print(
        f"tune and fit on {LANDMARKS} landmarks, whole process with compilation: {np.median(ours):.1f} s"
    )
    print(
        f"one KernelRidge.fit with width and λ given:                   {np.median(theirs):.1f} s\n"
    )
    print(
        f"width {float(found['width']):.3g}, λ {float(found['lam']):.3g}, LOO error {float(found['loo']):.5f}",
        end="",
    )
    error = mean_square(found["predictions"] - y_new)
    print(f", test error {error:.5f}")
    if args.dense:
        start = time.perf_counter()
        dense = rls.tune(
            rls.Gaussian(found["width"]),
            X,
            y,
            lams=[found["lam"]],
            start="kernel",
            steps=args.dense,
        )
        test = mean_square(dense.predict(X_new) - y_new)
        print(
            f"dense, tuned on from there in {time.perf_counter() - start:.0f} s: width {float(dense.kernel.width):.3g}, ",
            end="",
        )
        print(
            f"LOO error {float(dense.error):.5f}, test error {test:.5f}: ours is {100 * (error / test - 1):+.2f} % of it"
        )


def auto(args):
    import jaxrls as rls

    X, y, _, _ = load(args.data, args.n)
    kernel, seconds, fits = rls.Gaussian(args.width), {}, {}
    for name, options in (
        ("auto, first call", {"landmarks": "auto"}),
        ("auto", {"landmarks": "auto"}),
        ("dense", {}),
    ):
        start = time.perf_counter()
        fits[name] = rls.fit(kernel, X, y, **options)
        seconds[name] = time.perf_counter() - start
        fit = fits[name]
        print(
            f"{name:17} {seconds[name]:8.1f} s   LOO error {float(fit.error):.5f} at λ = {float(fit.lam):.3g}   {fit.certificate}",
            flush=True,
        )
    print(
        f"\ndense / auto: {seconds['dense'] / seconds['auto']:.1f} times, {seconds['dense'] / seconds['auto, first call']:.1f} with compilation"
    )
    print(
        f"LOO error of auto / dense: {float(fits['auto'].error) / float(fits['dense'].error):.4f}"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["cold", "auto", "child"], metavar="cold | auto")
    parser.add_argument(
        "--data", default=os.environ.get("JAXRLS_DATA"), help="folder of elevators.csv.gz"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--dense",
        type=int,
        default=0,
        metavar="STEPS",
        help="cold: tune on all of K too, in so many steps (a minute each)",
    )
    parser.add_argument("--n", type=int, default=16_000)
    parser.add_argument("--width", type=float, default=20.0)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what == "child":
        tune_and_fit(args.file)
    else:
        {"cold": cold, "auto": auto}[args.what](args)


if __name__ == "__main__":
    main()
