"""How time and memory grow with n, m, t and L: exponents fitted to measurements, as a table and a
picture.

    python benchmarks/scaling.py [--out DIR] [--quick]

Each line varies one size and keeps the others; its exponent is the slope of log time, or log
memory, over the log of the size (least squares over all sizes but the smallest). Memory is what XLA
plans for temporaries and results. Writes scaling.json, scaling.md and scaling.png into --out."""

import argparse
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved

import jaxrls as rls

KERNEL = rls.Gaussian(4.0)


def data(n, t=1):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(n, 8))), jnp.asarray(rng.normal(size=(n, t)))


def grid(count):
    return jnp.geomspace(1e-4, 1e3, count)


def whole_path(n):
    """Coefficients and leave-one-out error for 100 λ, all of K."""
    return lambda X, Y, lams: rls.path(rls.factorize(KERNEL, X, intercept=False), Y, lams), (
        *data(n),
        grid(100),
    )


def more_lams(count):
    """Leave-one-out error over L λ, n = 1000, the factor given."""
    X, Y = data(1000)
    return rls.loo, (rls.factorize(KERNEL, X, intercept=False), Y, grid(count))


def more_targets(t):
    """Leave-one-out error of t targets over 20 λ, n = 1000, the factor given."""
    X, Y = data(1000, t)
    return rls.loo, (rls.factorize(KERNEL, X, intercept=False), Y, grid(20))


def subset(n, m):
    X, Y = data(n)
    return lambda X, Y, R, lams: rls.path(
        rls.factorize(KERNEL, X, landmarks=R, intercept=False), Y, lams
    ), (X, Y, jnp.arange(m), grid(100))


def more_landmarks(m):
    """Coefficients and leave-one-out error for 100 λ on m landmarks, n = 20,000."""
    return subset(20_000, m)


def more_rows(n):
    """The same on 500 landmarks, n rows."""
    return subset(n, 500)


# size: the work, the sizes, and the exponent that the count of operations gives
LINES = {
    "n, all of K": (whole_path, (500, 1000, 2000, 4000), 3),
    "L": (more_lams, (100, 300, 1000, 3000), 1),
    "t": (more_targets, (30, 100, 300, 1000), 1),
    "m": (more_landmarks, (250, 500, 1000, 2000), 2),
    "n, on landmarks": (more_rows, (10_000, 20_000, 40_000, 80_000), 1),
}


def measure(work, sizes, rounds) -> tuple[list[float], list[int]]:
    """Seconds, medians, and bytes at every size."""
    runs, memory = {}, []
    for size in sizes:
        fn, args = work(size)
        compiled = jax.jit(fn).lower(*args).compile()
        plan = compiled.memory_analysis()
        memory.append(plan.temp_size_in_bytes + plan.output_size_in_bytes)
        runs[str(size)] = partial(compiled, *args)
    timings, *_ = interleaved(runs, rounds)
    return [timings[str(size)].median for size in sizes], memory


def exponent(sizes, values) -> float:
    """The slope over all but the smallest size."""
    return float(np.polyfit(np.log(sizes[1:]), np.log(values[1:]), 1)[0])


def markdown(report) -> str:
    """Sizes, seconds and exponents as a table."""
    lines = [
        "| in | what | sizes | seconds | exponent of time | of memory | operations |",
        "|---" * 7 + "|",
    ]
    for name, line in report.items():
        slopes = f"{line['exponent of seconds']:.2f} | {line['exponent of bytes']:.2f}"
        sizes, took = (
            ", ".join(map(str, line["sizes"])),
            ", ".join(f"{s:.3g}" for s in line["seconds"]),
        )
        lines.append(
            f"| {name} | {line['what']} | {sizes} | {took} | {slopes} | {line['operations']} |"
        )
    return "\n".join(lines)


def picture(report, file) -> None:
    """Time and memory over each size, as multiples of the smallest."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 5), layout="constrained", sharex=True)
    for name, line in report.items():
        for ax, what in zip(axes, ("seconds", "bytes"), strict=True):
            values = np.array(line[what]) / line[what][0]
            ax.plot(
                np.array(line["sizes"]) / line["sizes"][0],
                values,
                "o-",
                label=f"{name}: {line[f'exponent of {what}']:.2f}",
            )
    for ax, what in zip(axes, ("time", "memory"), strict=True):
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="size, as a multiple of the smallest",
            ylabel=f"{what}, as a multiple of the smallest size's",
        )
        ax.legend(title="exponent in", loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    figure.savefig(file, dpi=90)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("benchmark-report"),
        help="folder of scaling.json, scaling.md and scaling.png",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the sizes, to see that it runs"
    )
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    args.out.mkdir(parents=True, exist_ok=True)
    report = {}
    for name, (work, sizes, order) in LINES.items():
        sizes = [size // 10 for size in sizes] if args.quick else list(sizes)
        seconds, memory = measure(work, sizes, args.rounds)
        report[name] = {
            "what": (work.__doc__ or "").strip(),
            "sizes": sizes,
            "seconds": seconds,
            "bytes": memory,
            "exponent of seconds": exponent(sizes, seconds),
            "exponent of bytes": exponent(sizes, memory),
            "operations": order,
        }
        print(f"{name}: {report[name]['exponent of seconds']:.2f}", flush=True)
    print(markdown(report))
    (args.out / "scaling.json").write_text(
        json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8"
    )
    (args.out / "scaling.md").write_text(markdown(report) + "\n", encoding="utf-8")
    picture(report, args.out / "scaling.png")


if __name__ == "__main__":
    main()
