"""All rows by products with K: how near it comes, how sure it is of leave-one-out, and what it says
where it cannot.

    python benchmarks/iterative.py --data FOLDER                 # kin40k, 36,000 rows: error,
    steps, seconds, memory (some minutes on two cores) python benchmarks/iterative.py --parts probes
    --data FOLDER  # leave-one-out beside the exact one at n = 4000, four sets, ten seeds python
    benchmarks/iterative.py --parts matern --data FOLDER  # λ below what products in float32 can
    tell

FOLDER (or the environment variable JAXRLS_DATA) holds NAME.csv.gz: no header, the target last. The
airfoil data come with the package. Columns are standardised. Widths, one for every column, are
tuned on rows drawn from those that are fitted. `--rows` and `--landmarks` make it smaller."""

import argparse
import os
import resource
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace

import datasets
import jax
import jax.numpy as jnp
import numpy as np
import peers
import threads  # noqa: F401

import jaxrls as rls

SETS = ("airfoil", "elevators", "kin40k", "protein")
ROWS, LANDMARKS, TUNED_ROWS, TEST_ROWS = 36_000, 2000, 3000, 4000
PROBED_ROWS, PROBED_LANDMARKS, PROBES, SEEDS = 4000, 1600, 64, 10
TOO_SMALL = 2e-7


def load(name, folder, n):
    """n rows, or as many as leave a tenth over, and up to 4000 others, standardised by the first;
    None where there is no file.
    """
    table = datasets.table(name, folder)
    return None if table is None else split(table, n)


def split(table, n):
    """A table as rows and labels to fit and to test."""
    table = np.random.default_rng(0).permutation(table)
    n = min(n, int(0.9 * len(table)))
    scale = table[:n].std(axis=0)
    table = (table - table[:n].mean(axis=0)) / np.where(scale > 0, scale, 1)
    rest = table[n : n + TEST_ROWS]
    return table[:n, :-1], table[:n, -1], rest[:, :-1], rest[:, -1]


def tuned(X, y, rows, kernel=None, steps=30):
    """Kernel and λ from leave-one-out on the first rows."""
    start = rls.Gaussian(np.ones(X.shape[1])) if kernel is None else kernel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rls.tune(start, X[:rows], y[:rows], steps=steps)


@contextmanager
def stage(name, seconds):
    """Its seconds by its name."""
    begun = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - begun


def peak() -> int:
    """The most bytes that this process ever held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def accuracy(data, landmarks, solver, tuned_rows=TUNED_ROWS):
    """A fit to all rows: test error in units of the target's standard deviation, how the iteration
    went, seconds of every stage.
    """
    X, y, X_new, y_new = data
    seconds = {}
    with stage("tuning", seconds):
        found = tuned(X, y, tuned_rows)
    with stage("landmarks", seconds):
        chosen = rls.landmarks(found.kernel, X, min(landmarks, len(X)), key=jax.random.key(0))
    options = {
        "lams": [float(found.lam)],
        "solver": replace(solver, landmarks=chosen),
    }
    if solver.probes == 0:  # then the one λ is judged by rows that are not fitted
        options["criterion"] = rls.holdout(X_new, y_new)
    with stage("iteration", seconds), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = rls.fit(found.kernel, X, y, **options)
    with stage("predictions", seconds):
        rmse = peers.mean_square(fit.predict(X_new), y_new) ** 0.5
    sure = None if fit.loo_standard_error is None else float(fit.loo_standard_error)
    return {
        "rows": len(X),
        "landmarks": len(chosen.points),
        "lam": float(found.lam),
        "rmse": rmse,
        "loo": None if sure is None else float(fit.error),
        "standard error": sure,
        "residual": float(np.max(fit.run.residuals)),
        "steps": int(fit.run.steps),
        "words": [str(one.message) for one in caught],
        "seconds": seconds,
        "bytes": peak(),
        "kernel": found.kernel,
    }


def by_falkon(data, kernel, lam, centres):
    """falkon's test error and seconds with the same kernel and λ in float32, on so many centres, or
    in words why there are none.
    """
    X, y, X_new, y_new = (part.astype(np.float32) for part in data)
    contestant = peers.falkon(
        X,
        y,
        min(centres, len(X)),
        X_new,
        y_new,
        width=np.asarray(kernel.width, np.float32),
        penalty=lam / len(X),
    )
    if isinstance(contestant, str):
        return contestant
    begun = time.perf_counter()
    model = contestant.run()
    return f"RMSE {contestant.judge(model) ** 0.5:.4f} in {time.perf_counter() - begun:.1f} s"


@jax.jit
def estimated(factor, y, lam):
    """Leave-one-out by the probes of a factor, and its standard error."""
    solution, total = factor.solve(y), rls.LeaveOneOut().total
    return solution.left_out(total, lam)[0, 0] / factor.n, solution.outcome(lam, fn=total).error[
        0, 0
    ] / factor.n


def scores(data, landmarks, probes, seeds, tuned_rows=500, tol=1e-5):
    """(estimate − exact)/(standard error) for every seed, the exact error, and the mean standard
    error as a share of it.
    """
    X, y = data[:2]
    found = tuned(X, y, tuned_rows)
    lam = float(found.lam)
    exact = float(rls.fit(found.kernel, X, y, lams=[lam], solver=rls.Cholesky()).error)
    X, y, lam = jnp.asarray(X), jnp.asarray(y), jnp.array([[lam]])
    chosen = rls.landmarks(found.kernel, X, min(landmarks, 2 * len(X) // 5), key=jax.random.key(0))
    factor = rls.factorize(found.kernel, X, solver=rls.Iterative(chosen, tol=tol, probes=probes))
    out = []
    for seed in range(seeds):
        drawn = rls.Iterative(tol=tol, probes=probes, key=jax.random.key(seed)).signs(
            len(X), X.dtype
        )
        out.append([float(part) for part in estimated(replace(factor, signs=drawn), y, lam)])
    errors, sure = np.array(out).T
    return (errors - exact) / sure, exact, float(sure.mean() / exact)


def too_small(data, landmarks, tuned_rows=500, lam=TOO_SMALL):
    """What a fit with a Matérn kernel says at a λ that products in float32 cannot tell: its
    warnings, or its error; and predictions, if any.
    """
    X, y, X_new, _ = data
    kernel = tuned(X, y, tuned_rows, rls.Matern(2.5, np.ones(X.shape[1]))).kernel
    options = {
        "solver": rls.Iterative(min(landmarks, len(X) // 2), probes=2, dtype="float32"),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fit = rls.fit(kernel, X, y, lams=[lam], **options)
        except ValueError as error:
            return f"refused: {error}", None
    return "; ".join(str(one.message) for one in caught), fit.predict(X_new)


def show_accuracy(options, solver):
    if (data := load("kin40k", options.data, options.rows)) is None:
        return
    found = accuracy(data, options.landmarks, solver, min(options.tuned_rows, options.rows))
    print(
        f"kin40k, {found['rows']:,} rows, {found['landmarks']} landmarks, λ = {found['lam']:.3g}: test RMSE {found['rmse']:.4f}",
        flush=True,
    )
    if found["loo"] is not None:
        print(
            f"leave-one-out {found['loo']:.5f} ± {found['standard error']:.2g}, its root {found['loo'] ** 0.5:.4f}"
        )
    print(
        f"residual {found['residual']:.2g} after {found['steps']} steps; {'; '.join(found['words']) or 'no warning'}"
    )
    print(
        ", ".join(f"{name} {value:.1f} s" for name, value in found["seconds"].items())
        + f"; peak {found['bytes'] / 2**30:.2f} GiB"
    )
    for centres in options.centres:
        print(
            f"falkon, {centres} centres: {by_falkon(data, found['kernel'], found['lam'], centres)}",
            flush=True,
        )


def show_probes(options):
    print(
        f"| data | rows | exact | (estimate − exact)/(standard error), {options.seeds} seeds | within 2 | standard error/exact |"
    )
    print("|" + "---|" * 6, flush=True)
    for name in options.only:
        if (data := load(name, options.data, min(options.rows, PROBED_ROWS))) is None:
            continue
        z, exact, share = scores(
            data, min(options.landmarks, PROBED_LANDMARKS), options.probes or PROBES, options.seeds
        )
        within = f"{int((np.abs(z) <= 2).sum())} of {len(z)}"
        print(
            f"| {name} | {len(data[0])} | {exact:.5f} | {' '.join(f'{one:+.1f}' for one in z)} | {within} | {share:.2g} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default=os.environ.get("JAXRLS_DATA"), help="folder of NAME.csv.gz"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=("accuracy", "probes", "matern"), default=("accuracy",)
    )
    parser.add_argument(
        "--only", nargs="+", choices=SETS, default=SETS, help="data of --parts probes"
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--tuned-rows", type=int, default=TUNED_ROWS)
    parser.add_argument("--landmarks", type=int, default=LANDMARKS)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument(
        "--probes",
        type=int,
        default=0,
        help="of --parts accuracy none by default, of --parts probes 64",
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--centres", type=int, nargs="*", default=(2000, 10_000), help="of falkon")
    options = parser.parse_args()
    if "accuracy" in options.parts:
        show_accuracy(
            options,
            rls.Iterative(
                tol=options.tol, steps=options.steps, probes=options.probes, dtype="float32"
            ),
        )
    if "probes" in options.parts:
        jax.config.update("jax_enable_x64", True)
        show_probes(options)
    if (
        "matern" in options.parts
        and (data := load("kin40k", options.data, min(options.rows, PROBED_ROWS))) is not None
    ):
        print(f"Matérn at λ = {TOO_SMALL}: {too_small(data, options.landmarks)[0]}")


if __name__ == "__main__":
    main()
