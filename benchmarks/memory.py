"""What calls hold in memory where they hold most, beside what `jaxrls.estimate` says before: a row
for the main solvers, each in a process of its own.

    python benchmarks/memory.py [--only gram predict]

A call is made twice, and measured the second time, so that programs are compiled and threads have
their buffers: the highest resident set during the call less that before it, which Linux tells.
Exits with 1 where a ratio is not within 2 either way."""

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

MOST = 2
KERNEL = rls.Gaussian(4.0)
LINEAR = 0.5 * rls.Linear()
PAIRS = rls.PairsOut(loss=rls.squared_error)


def data(n, d=5):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return jnp.asarray(X), jnp.asarray(np.sin(X[:, 0]) + 0.1 * rng.normal(size=n))


def fitted(kernel, n, d=5, *, called=None, pairs=False, keep=False, **options):
    """A fit, and what is estimated of it: options of both, and those of the call alone. What is kept
    is asked for intervals, which make the most of it.
    """

    def prepare():
        X, Y = data(n, d)

        def run():
            fit = rls.fit(kernel, X, Y, keep=keep, **options | (called or {}))
            return (fit, fit.intervals(X[:2])) if keep else fit

        return run

    return prepare, rls.estimate(kernel, (n, d), pairs=pairs, keep=keep, **options)


def gradient(kernel, n, d=5, *, criterion=rls.loo, landmarks=None, **options):
    """A value with its derivatives."""

    def prepare():
        X, Y = data(n, d)
        chosen = None if landmarks is None else jnp.arange(landmarks)

        def value(kernel, X, Y):
            return rls.objective(kernel, X, Y, 0.1, criterion=criterion, landmarks=chosen)

        run = jax.jit(jax.value_and_grad(value))
        return lambda: run(kernel, X, Y)

    return prepare, rls.estimate(kernel, (n, d), landmarks=landmarks, call="gradient", **options)


def predict(n, new):
    def prepare():
        fit, others = rls.fit(KERNEL, *data(n), lams=[1.0]), data(new)[0]
        return lambda: fit.predict(others)

    return prepare, rls.estimate(KERNEL, (n, 5), call="predict", rows=new)


def in_groups(n, b):
    """Options for groups of b rows."""
    return {"groups": b, "called": {"groups": np.arange(n) // b}}


def at_two_lams():
    return {"lams": 2, "called": {"lams": [0.1, 1.0]}}


# A row for every solver, at its size or at another: what makes data and hands back the call, and
# what is estimated of it, of which no array is made.
ROWS = {
    "gram": lambda n=2000: fitted(KERNEL, n),
    "gram, weights": lambda n=2000: fitted(
        KERNEL, n, weights=True, called={"weights": np.linspace(0.5, 2, n)}
    ),
    "gram, groups": lambda n=2000: fitted(KERNEL, n, **in_groups(n, n // 5)),
    "gram, pairs": lambda n=2000: fitted(
        KERNEL, n, pairs=True, called={"criterion": rls.pairwise_ranking_error}
    ),
    "gram, intervals": lambda n=2000: fitted(KERNEL, n, keep=True),
    "cholesky gram": lambda n=2000: fitted(KERNEL, n, **at_two_lams()),
    "refined": lambda n=2000: fitted(KERNEL, n, solver=rls.Refined(), **at_two_lams()),
    "features": lambda n=3000: fitted(LINEAR, n, n // 5),
    "covariance": lambda n=20_000: fitted(LINEAR, n, n // 20),
    "subset": lambda n=20_000: fitted(KERNEL, n, landmarks=n // 40),
    "subset, groups": lambda n=10_000: fitted(KERNEL, n, landmarks=300, **in_groups(n, n // 5)),
    "cholesky features": lambda n=20_000: fitted(
        LINEAR, n, n // 20, solver=rls.Cholesky(), **at_two_lams()
    ),
    "iterative": lambda n=10_000: fitted(
        KERNEL, n, lams=1, solver=rls.Iterative(n // 50), called={"lams": [1.0]}
    ),
    "gradient": lambda n=2000: gradient(KERNEL, n),
    "gradient, pairs": lambda n=2000: gradient(KERNEL, n, criterion=PAIRS, pairs=True),
    "gradient, features": lambda n=20_000: gradient(LINEAR, n, n // 20),
    "gradient, landmarks": lambda n=20_000: gradient(KERNEL, n, landmarks=n // 20),
    "predict": lambda n=4000: predict(n, 100 * n),
}


def status(name) -> int:
    """Bytes that the system says of this process."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(text.split(f"{name}:")[1].split()[0])


def settle() -> None:
    """Wait until nothing is given back any more: the last arrays are, by another thread, and late
    on a busy machine.
    """
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
    return {"measured": peak(prepare()), "estimated": said.bytes, "words": said.words}


def in_a_process(name, *size) -> dict:
    """The same in a fresh process, which gives arrays back once they are freed: glibc learns to
    keep those of up to 32 MiB, and calls take them again.
    """
    command = [sys.executable, "-W", "ignore", __file__, "--measure", name, *map(str, size)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**17)}  # its own until it learns
    return json.loads(
        subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        ).stdout.splitlines()[-1]
    )


def within(row) -> bool:
    return 1 / MOST <= row["measured"] / row["estimated"] <= MOST


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), help="some rows")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, *size = args.measure
        print(json.dumps(measure(name, *map(int, size))))
        return
    missed = 0
    print("| call | measured | estimated | ratio | for |\n|---|---|---|---|---|")
    for name in args.only:
        row = in_a_process(name)
        missed += not within(row)
        sizes = " | ".join(f"{row[part] / 1e6:,.0f} MB" for part in ("measured", "estimated"))
        ratio = row["measured"] / row["estimated"]
        print(f"| {name} | {sizes} | {ratio:.2f} | {row['words']} |", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
