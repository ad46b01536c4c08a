"""What calls hold in memory where they hold most, beside what `jaxrls.estimate` says before: a row for every route, each in a process of its own.

    python benchmarks/memory.py [--only gram predict] [--keep benchmarks/report/memory.json]

A call is made twice, and measured the second time, so that programs are compiled and threads have their buffers: the highest resident set during the
call less that before it, which Linux tells. Exits with 1 where a ratio is not within 1.5 either way. Measured bytes that are kept hold
the estimate with every run of the tests, which measure few rows themselves.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxrls as rls

MOST = 1.5
KERNEL = rls.Gaussian(4.0)
LINEAR = rls.Linear()


def data(n, d=5):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return jnp.asarray(X), jnp.asarray(np.sin(X[:, 0]) + 0.1 * rng.normal(size=n))


def fitted(kernel, n, d=5, *, called=None, **options):
    """A fit, and what is estimated of it: options of both, and those of the call alone."""

    def prepare():
        X, Y = data(n, d)
        return lambda: rls.fit(kernel, X, Y, **{**options, **(called or {})})

    return prepare, rls.estimate(kernel, (n, d), **options)


def freed(kernel, n, d=5, *, called=None, **options):
    """A fit with three columns that have no penalty."""
    return fitted(kernel, n, d, unpenalized=3, called=(called or {}) | {"unpenalized": beside(n)}, **options)


def beside(n, q=3):
    return jnp.asarray(np.random.default_rng(1).normal(size=(n, q)))


def factored(kernel, n, m, keep):
    """Leave-one-out on landmarks."""

    def prepare():
        X, Y = data(n)
        chosen, lams = jnp.arange(m), jnp.geomspace(1e-2, 1e2, 100)
        run = jax.jit(lambda X, Y: rls.loo(rls.factor_subset(kernel, X, chosen, keep=keep), Y, lams))
        return lambda: run(X, Y)

    return prepare, rls.estimate(kernel, (n, 5), landmarks=m, keep=keep, call="factorize")


def objective(kernel, n, d=5, *, gradient, landmarks=None, unpenalized=None):
    """One value, or a value with its gradient."""

    def prepare():
        X, Y = data(n, d)
        chosen, B = None if landmarks is None else jnp.arange(landmarks), None if unpenalized is None else beside(n, unpenalized)

        def value(kernel, X, Y):
            return rls.loo_objective(kernel, X, Y, 0.1, landmarks=chosen, unpenalized=B)

        run = jax.jit(jax.value_and_grad(value) if gradient else value)
        return lambda: run(kernel, X, Y)

    return prepare, rls.estimate(kernel, (n, d), landmarks=landmarks, unpenalized=unpenalized, call="gradient" if gradient else "objective")


def path(n):
    def prepare():
        X, Y = data(n)
        run = jax.jit(lambda X, Y: rls.path(rls.factorize(KERNEL, X), Y, jnp.geomspace(1e-2, 1e2, 100)))
        return lambda: run(X, Y)

    return prepare, rls.estimate(KERNEL, (n, 5), call="path")


def predict(n, new):
    def prepare():
        fit, others = rls.fit(KERNEL, *data(n), lams=[1.0]), data(new)[0]
        return lambda: fit.predict(others)

    return prepare, rls.estimate(KERNEL, (n, 5), call="predict", rows=new)


def weights(n):
    return np.random.default_rng(0).uniform(0.5, 2, n)


def names(n, count):
    return np.arange(n) % count


# A row for every route, at its size or at another: what makes data and hands back the call, and what is estimated of it, of which no array is made.
ROWS = {
    "gram": lambda n=2000: fitted(KERNEL, n),
    "gram, weights": lambda n=2000: fitted(KERNEL, n, weights=True, called={"weights": weights(n)}),
    "gram, few large groups": lambda n=2000: fitted(KERNEL, n, groups=n // 5, called={"groups": names(n, 5)}),
    "gram, many small groups": lambda n=2000: fitted(KERNEL, n, groups=5, called={"groups": names(n, n // 5)}),
    "features": lambda n=6000: fitted(LINEAR, n, n // 5),
    "covariance": lambda n=20_000: fitted(LINEAR, n, n // 10),
    "covariance, many rows": lambda n=200_000: fitted(LINEAR, n, 100),
    "covariance, made features": lambda n=20_000: fitted(rls.FeatureMap(jnp.cos), n, n // 40),
    "features, groups": lambda n=4000: fitted(LINEAR, n, n // 5, groups=n // 5, called={"groups": names(n, 5)}),
    "covariance, groups": lambda n=20_000: fitted(LINEAR, n, n // 40, groups=10, called={"groups": names(n, n // 10)}),
    "subset, groups": lambda n=10_000: fitted(KERNEL, n, landmarks=300, groups=n // 5, called={"groups": names(n, 5)}),
    "subset": lambda n=20_000: fitted(KERNEL, n, landmarks=500),
    "subset, kept": lambda n=6000: factored(KERNEL, n, n // 4, True),
    "subset, not kept": lambda n=50_000: factored(KERNEL, n, 500, False),
    "cholesky gram": lambda n=2000: fitted(KERNEL, n, lams=2, called={"lams": [0.1, 1.0]}),
    "refined": lambda n=2000: fitted(KERNEL, n, lams=2, route="refined", called={"lams": [0.1, 1.0]}),
    "cholesky features": lambda n=20_000: fitted(LINEAR, n, n // 16, lams=2, route="cholesky", called={"lams": [0.1, 1.0]}),
    "cholesky landmarks": lambda n=20_000: fitted(KERNEL, n, lams=2, route="cholesky", landmarks=n // 16, called={"lams": [0.1, 1.0]}),
    "objective": lambda n=2500: objective(KERNEL, n, gradient=False),
    "gradient": lambda n=2000: objective(KERNEL, n, gradient=True),
    "gradient, features": lambda n=20_000: objective(0.5 * LINEAR, n, n // 20, gradient=True),
    "gradient, landmarks": lambda n=20_000: objective(KERNEL, n, landmarks=n // 20, gradient=True),
    "cholesky gram, groups": lambda n=2000: fitted(KERNEL, n, lams=1, groups=n // 5, called={"lams": [1.0], "groups": names(n, 5)}),
    "objective, landmarks": lambda n=100_000: objective(KERNEL, n, landmarks=n // 300, gradient=False),
    "gradient, many rows": lambda n=100_000: objective(0.5 * LINEAR, n, n // 300, gradient=True),
    "iterative": lambda n=20_000: fitted(KERNEL, n, lams=1, route="iterative", landmarks=n // 50, called={"lams": [1.0]}),
    "tridiagonal": lambda n=2000: fitted(KERNEL, n, route="tridiagonal"),
    "tridiagonal, weights": lambda n=2000: fitted(KERNEL, n, weights=True, route="tridiagonal", called={"weights": weights(n)}),
    "tridiagonal, groups": lambda n=2000: fitted(KERNEL, n, groups=10, route="tridiagonal", called={"groups": names(n, n // 10)}),
    "gram, variance": lambda n=2000: fitted(KERNEL, n, keep_variance=True),
    "gram, intervals": lambda n=2000: fitted(KERNEL, n, keep_intervals=True),
    "gram, both": lambda n=2000: fitted(KERNEL, n, keep_variance=True, keep_intervals=True),
    "gram, weights and both": lambda n=2000: fitted(
        KERNEL, n, weights=True, keep_variance=True, keep_intervals=True, called={"weights": weights(n)}
    ),
    "gram, groups and intervals": lambda n=2000: fitted(KERNEL, n, groups=5, keep_intervals=True, called={"groups": names(n, n // 5)}),
    "gram, rank": lambda n=2000: fitted(KERNEL, n, rank=True),
    "gram, rank within queries": lambda n=2000: fitted(KERNEL, n, groups=n // 20, rank=True, called={"groups": names(n, 20)}),
    "features, variance": lambda n=6000: fitted(LINEAR, n, n // 5, keep_variance=True),
    "features, intervals": lambda n=6000: fitted(LINEAR, n, n // 5, keep_intervals=True),
    "features, rank": lambda n=6000: fitted(LINEAR, n, n // 5, rank=True),
    "covariance, variance": lambda n=20_000: fitted(LINEAR, n, n // 10, keep_variance=True),
    "covariance, intervals": lambda n=20_000: fitted(LINEAR, n, n // 40, keep_intervals=True),
    "covariance, both": lambda n=20_000: fitted(LINEAR, n, n // 20, keep_variance=True, keep_intervals=True),
    "covariance, rank": lambda n=8000: fitted(LINEAR, n, n // 20, lams=2, route="covariance", rank=True, called={"lams": [0.1, 1.0]}),
    "subset, variance": lambda n=20_000: fitted(KERNEL, n, landmarks=500, keep_variance=True),
    "subset, intervals": lambda n=20_000: fitted(KERNEL, n, landmarks=500, keep_intervals=True),
    "subset, groups and intervals": lambda n=20_000: fitted(
        KERNEL, n, landmarks=500, groups=10, keep_intervals=True, called={"groups": names(n, n // 10)}
    ),
    "subset, rank": lambda n=8000: fitted(KERNEL, n, lams=2, landmarks=n // 20, rank=True, called={"lams": [0.1, 1.0]}),
    "subset, rank within queries": lambda n=10_000: fitted(
        KERNEL, n, landmarks=400, groups=50, rank=True, called={"groups": names(n, n // 50)}
    ),
    "cholesky gram, variance": lambda n=2000: fitted(KERNEL, n, lams=1, keep_variance=True, called={"lams": [1.0]}),
    "cholesky gram, intervals": lambda n=2000: fitted(KERNEL, n, lams=1, keep_intervals=True, called={"lams": [1.0]}),
    "cholesky gram, rank": lambda n=2000: fitted(KERNEL, n, lams=2, route="cholesky", rank=True, called={"lams": [0.1, 1.0]}),
    "cholesky features, variance": lambda n=20_000: fitted(
        LINEAR, n, n // 16, lams=1, route="cholesky", keep_variance=True, called={"lams": [1.0]}
    ),
    "cholesky features, intervals": lambda n=20_000: fitted(
        LINEAR, n, n // 40, lams=1, route="cholesky", keep_intervals=True, called={"lams": [1.0]}
    ),
    "cholesky landmarks, intervals": lambda n=20_000: fitted(
        KERNEL, n, lams=1, route="cholesky", landmarks=n // 40, keep_intervals=True, called={"lams": [1.0]}
    ),
    "tridiagonal, intervals": lambda n=2000: fitted(KERNEL, n, route="tridiagonal", keep_intervals=True),
    "refined, intervals": lambda n=2000: fitted(KERNEL, n, lams=1, route="refined", keep_intervals=True, called={"lams": [1.0]}),
    "gram, unpenalized": lambda n=2000: freed(KERNEL, n),
    "gram, unpenalized and groups": lambda n=2000: freed(KERNEL, n, groups=5, called={"groups": names(n, n // 5)}),
    "features, unpenalized": lambda n=6000: freed(LINEAR, n, n // 5),
    "covariance, unpenalized": lambda n=20_000: freed(LINEAR, n, n // 10),
    "subset, unpenalized": lambda n=20_000: freed(KERNEL, n, landmarks=500),
    "cholesky gram, unpenalized": lambda n=2000: freed(KERNEL, n, lams=1, called={"lams": [1.0]}),
    "cholesky features, unpenalized": lambda n=20_000: freed(LINEAR, n, n // 16, lams=2, route="cholesky", called={"lams": [0.1, 1.0]}),
    "cholesky landmarks, unpenalized": lambda n=20_000: freed(
        KERNEL, n, lams=2, route="cholesky", landmarks=n // 16, called={"lams": [0.1, 1.0]}
    ),
    "objective, unpenalized": lambda n=2000: objective(KERNEL, n, gradient=False, unpenalized=3),
    "gradient, unpenalized": lambda n=2000: objective(KERNEL, n, gradient=True, unpenalized=3),
    "gradient, features and unpenalized": lambda n=20_000: objective(0.5 * LINEAR, n, n // 20, gradient=True, unpenalized=3),
    "gradient, landmarks and unpenalized": lambda n=20_000: objective(KERNEL, n, landmarks=n // 20, gradient=True, unpenalized=3),
    "path": lambda n=2000: path(n),
    "predict": lambda n=4000: predict(n, 100 * n),
}


def status(name) -> int:
    """Bytes that the system says of this process."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(text.split(f"{name}:")[1].split()[0])


def settle() -> None:
    """Wait until nothing is given back any more: the last arrays are, by another thread, and late on a busy machine."""
    held = [0, 0, status("VmRSS")]
    while len(set(held[-3:])) > 1 and len(held) < 100:
        time.sleep(0.3)
        held.append(status("VmRSS"))


def peak(run) -> int:
    """The most that is held during a call, over what was held before."""
    jax.block_until_ready(jax.tree.leaves(run()))
    gc.collect()
    settle()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status("VmRSS")
    out = run()
    jax.block_until_ready(jax.tree.leaves(out))
    return status("VmHWM") - before


def measure(name, *size) -> dict:
    """Measured and estimated bytes, here and now."""
    jax.config.update("jax_enable_x64", True)
    prepare, said = ROWS[name](*size)
    return {"measured": peak(prepare()), "estimated": said.bytes, "route": said.route, "words": said.words}


def in_a_process(name, *size) -> dict:
    """The same in a fresh process, which gives arrays back once they are freed: glibc learns to keep those of up to 32 MiB, and calls take them again."""
    command = [sys.executable, "-W", "ignore", __file__, "--measure", name, *map(str, size)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**17)}  # its own until it learns
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.splitlines()[-1])


def within(row) -> bool:
    return 1 / MOST <= row["measured"] / row["estimated"] <= MOST


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), help="some rows")
    parser.add_argument("--keep", type=Path, help="where measured bytes are kept, of these rows anew")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, *size = args.measure
        print(json.dumps(measure(name, *map(int, size))))
        return
    missed, kept = 0, json.loads(args.keep.read_text()) if args.keep and args.keep.exists() else {}
    print("| call | measured | estimated | ratio | for |\n|---|---|---|---|---|")
    for name in args.only:
        row = in_a_process(name)
        missed += not within(row)
        kept[name] = row["measured"]
        sizes = " | ".join(f"{row[part] / 1e6:,.0f} MB" for part in ("measured", "estimated"))
        print(f"| {name} | {sizes} | {row['measured'] / row['estimated']:.2f} | {row['words']} |", flush=True)
    if args.keep:
        args.keep.write_text(json.dumps(kept, indent=2) + "\n", encoding="ascii")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
