"""How time and memory grow with n, m, t and L: exponents fitted to measurements, as a table and a
picture; and what calls hold in memory beside what `jaxrls.memory` says before.

    python benchmarks/scaling.py [--out DIR] [--quick]
    python benchmarks/scaling.py --memory [gram predict ...]       # three minutes

Each line varies one size and keeps the others; its exponent is the slope of log time, or log
memory, over the log of the size (least squares over all sizes but the smallest). Memory is what XLA
plans for temporaries and results. Writes scaling.json, scaling.md and scaling.png into --out.

For --memory every call is made in a process of its own, twice, and measured the second time, so
that programs are compiled and threads have their buffers: the highest resident set during the call
less that before it, which Linux tells. Exits with 1 where a ratio is not within 2 either way."""

import gc
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from common import head, interleaved, line, options_of, say, write

# isort: split
import jax
import jax.numpy as jnp
import numpy as np

import jaxrls as rls

KERNEL = rls.Gaussian(4.0)
LINEAR = 0.5 * rls.Linear()
PAIRS = rls.ranking.PairsOut(loss=rls.extend.squared_error)


def data(n, d=8):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return jnp.asarray(X), jnp.asarray(np.sin(X[:, 0]) + 0.1 * rng.normal(size=n))


# exponents
# ------------------------------------------------------------------------------------------------


def grid(count):
    return jnp.geomspace(1e-4, 1e3, count)


def whole_path(n):
    """Coefficients and leave-one-out error for 100 λ, all of K."""
    run = lambda X, Y, lams: rls.path(rls.factorize(KERNEL, X, intercept=False), Y, lams)
    return run, (*data(n), grid(100))


def more_lams(count, t=1):
    """Leave-one-out error over L λ, n = 1000, the factor given."""
    X, y = data(1000)
    factor = rls.factorize(KERNEL, X, intercept=False)
    return rls.loo, (factor, y[:, None] * jnp.arange(1.0, t + 1), grid(count))


def more_targets(t):
    """Leave-one-out error of t targets over 20 λ, n = 1000, the factor given."""
    return more_lams(20, t)


def more_landmarks(m, n=20_000):
    """Coefficients and leave-one-out error for 100 λ on m landmarks, n = 20,000."""

    def run(X, Y, chosen, lams):
        return rls.path(rls.factorize(KERNEL, X, landmarks=chosen, intercept=False), Y, lams)

    return run, (*data(n), jnp.arange(m), grid(100))


def more_rows(n):
    """The same on 500 landmarks, n rows."""
    return more_landmarks(500, n)


# size: the work, the sizes, and the exponent that the count of operations gives
LINES = {
    "n, all of K": (whole_path, (500, 1000, 2000, 4000), 3),
    "L": (more_lams, (100, 300, 1000, 3000), 1),
    "t": (more_targets, (30, 100, 300, 1000), 1),
    "m": (more_landmarks, (250, 500, 1000, 2000), 2),
    "n, on landmarks": (more_rows, (10_000, 20_000, 40_000, 80_000), 1),
}
MEASURES = {"seconds": "time", "bytes": "memory"}


def exponent(sizes, values) -> float:
    """The slope of their logarithms over all but the smallest size."""
    return float(np.polyfit(np.log(sizes[1:]), np.log(values[1:]), 1)[0])


def measure(work, sizes, rounds, order) -> dict:
    """Seconds, medians, and bytes at every size, and their exponents."""
    runs, memory = {}, []
    for size in sizes:
        fn, args = work(size)
        compiled = jax.jit(fn).lower(*args).compile()
        plan = compiled.memory_analysis()
        memory.append(plan.temp_size_in_bytes + plan.output_size_in_bytes)
        runs[size] = partial(compiled, *args)
    timings, *_ = interleaved(runs, rounds)
    found = {"seconds": [timings[size].median for size in sizes], "bytes": memory}
    slopes = {f"exponent of {what}": exponent(sizes, found[what]) for what in MEASURES}
    return {"what": work.__doc__, "sizes": sizes, **found, **slopes, "operations": order}


def markdown(report) -> str:
    """Sizes, seconds and exponents as a table."""
    names = "in", "what", "sizes", "seconds", "exponent of time", "of memory", "operations"
    lines = [head(*names)]
    for name, one in report.items():
        sizes = ", ".join(map(str, one["sizes"]))
        took = ", ".join(f"{seconds:.3g}" for seconds in one["seconds"])
        slopes = (f"{one[f'exponent of {what}']:.2f}" for what in MEASURES)
        lines.append(line(name, one["what"], sizes, took, *slopes, one["operations"]))
    return "\n".join(lines)


def picture(report, file) -> None:
    """Time and memory over each size, as multiples of the smallest."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 5), layout="constrained", sharex=True)
    for ax, (what, name) in zip(axes, MEASURES.items(), strict=True):
        for size, one in report.items():
            label = f"{size}: {one[f'exponent of {what}']:.2f}"
            sizes, values = (np.array(one[key]) / one[key][0] for key in ("sizes", what))
            ax.loglog(sizes, values, "o-", label=label)
        ax.set_ylabel(f"{name}, as a multiple of the smallest size's")
        ax.set_xlabel("size, as a multiple of the smallest")
        ax.legend(title="exponent in", loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    figure.savefig(file, dpi=90)


# memory beside what is estimated
# ------------------------------------------------------------------------------------------------


def fitted(kernel, n, d=5, *, called=None, pairs=False, keep=False, **options):
    """A fit, and what is estimated of it: options of both, and those of the call alone. What is
    kept is asked for intervals, which make the most of it.
    """

    def prepare():
        X, Y = data(n, d)

        def run():
            fit = rls.fit(kernel, X, Y, keep=keep, **options | (called or {}))
            return (fit, fit.intervals(X[:2])) if keep else fit

        return run

    return prepare, rls.memory(kernel, (n, d), pairs=pairs, keep=keep, **options)


def gradient(kernel, n, d=5, *, criterion=rls.loo, landmarks=None, **options):
    """A value with its derivatives."""

    def prepare():
        chosen = None if landmarks is None else jnp.arange(landmarks)
        value = partial(rls.objective, criterion=criterion, landmarks=chosen)
        return partial(jax.jit(jax.value_and_grad(value)), kernel, *data(n, d), 0.1)

    return prepare, rls.memory(kernel, (n, d), landmarks=landmarks, call="gradient", **options)


def predict(n, new):
    def prepare():
        return partial(rls.fit(KERNEL, *data(n, 5), lams=[1.0]).predict, data(new, 5)[0])

    return prepare, rls.memory(KERNEL, (n, 5), call="predict", rows=new)


def in_groups(n, b):
    """Options for groups of b rows."""
    return {"groups": b, "called": {"groups": np.arange(n) // b}}


AT_TWO = {"lams": 2, "called": {"lams": [0.1, 1.0]}}

# What makes data and hands back the call, and what is estimated of it, of which no array is made.
ROWS = {
    "gram": lambda: fitted(KERNEL, 2000),
    "gram, weights": lambda: fitted(
        KERNEL, 2000, weights=True, called={"weights": np.linspace(0.5, 2, 2000)}
    ),
    "gram, groups": lambda: fitted(KERNEL, 2000, **in_groups(2000, 400)),
    "gram, pairs": lambda: fitted(
        KERNEL, 2000, pairs=True, called={"criterion": rls.ranking.pairwise_ranking_error}
    ),
    "gram, intervals": lambda: fitted(KERNEL, 2000, keep=True),
    "cholesky gram": lambda: fitted(KERNEL, 2000, **AT_TWO),
    "refined": lambda: fitted(KERNEL, 2000, solver=rls.Refined(), **AT_TWO),
    "features": lambda: fitted(LINEAR, 3000, 600),
    "covariance": lambda: fitted(LINEAR, 20_000, 1000),
    "subset": lambda: fitted(KERNEL, 20_000, landmarks=500),
    "subset, groups": lambda: fitted(KERNEL, 10_000, landmarks=300, **in_groups(10_000, 2000)),
    "cholesky features": lambda: fitted(LINEAR, 20_000, 1000, solver=rls.Cholesky(), **AT_TWO),
    "iterative": lambda: fitted(
        KERNEL, 10_000, lams=1, solver=rls.Iterative(200), called={"lams": [1.0]}
    ),
    "gradient": lambda: gradient(KERNEL, 2000),
    "gradient, pairs": lambda: gradient(KERNEL, 2000, criterion=PAIRS, pairs=True),
    "gradient, features": lambda: gradient(LINEAR, 20_000, 1000),
    "gradient, landmarks": lambda: gradient(KERNEL, 20_000, landmarks=1000),
    "predict": lambda: predict(4000, 400_000),
}


def status(name) -> int:
    """Bytes that the system says of this process."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(text.split(f"{name}:")[1].split()[0])


def held_in(name) -> dict:
    """Measured and estimated bytes of a row of ROWS, here and now."""
    prepare, said = ROWS[name]()
    run = prepare()
    jax.block_until_ready(jax.tree.leaves(run()))
    gc.collect()
    held = [0, 0, status("VmRSS")]
    while len(set(held[-3:])) > 1 and len(held) < 100:  # arrays are given back by another thread
        time.sleep(0.3)
        held.append(status("VmRSS"))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, out = status("VmRSS"), run()
    jax.block_until_ready(jax.tree.leaves(out))
    most = status("VmHWM") - before
    return {"measured": most, "estimated": said.bytes, "words": said.words}


def held_apart(name) -> dict:
    """The same in a process of its own.

    glibc learns to keep arrays of up to 32 MiB once they are freed, and calls take them again: a
    threshold of its own keeps it from learning."""
    command = [sys.executable, "-W", "ignore", __file__, "--held", name]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def beside_estimates(names) -> bool:
    """A line for every call, and whether one was missed."""
    say(head("call", "measured", "estimated", "ratio", "for"))
    missed = False
    for name in names:
        row = held_apart(name)
        ratio = row["measured"] / row["estimated"]
        missed |= not 1 / 2 <= ratio <= 2
        sizes = (f"{row[part] / 1e6:,.0f} MB" for part in ("measured", "estimated"))
        say(line(name, *sizes, f"{ratio:.2f}", row["words"]))
    return missed


def main():
    parser = options_of(__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("benchmark-report"), help="a folder")
    add("--rounds", type=int, default=3)
    add("--quick", action="store_true", help="a tenth of the sizes: does it run?")
    add("--memory", nargs="*", metavar="CALL", help=", ".join(ROWS))
    add("--held", metavar="CALL", help="one call of --memory, here and now, as JSON")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if args.held:
        say(json.dumps(held_in(args.held)))
        return
    if args.memory is not None:
        sys.exit(beside_estimates(args.memory or ROWS))
    report = {}
    for name, (work, sizes, order) in LINES.items():
        sizes = [size // 10 if args.quick else size for size in sizes]
        report[name] = measure(work, sizes, args.rounds, order)
        say(f"{name}: {report[name]['exponent of seconds']:.2f}")
    say(markdown(report))
    write(args.out, "scaling", report, markdown(report))
    picture(report, args.out / "scaling.png")


if __name__ == "__main__":
    main()
