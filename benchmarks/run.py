"""Run the benchmarks: ours, the peers that are installed, and the floor of unavoidable operations,
in one process, in turn.

    python benchmarks/run.py                 # all works, float64: some 40 minutes on two CPU cores
    python benchmarks/run.py --only path gradient            # some of them
    python benchmarks/run.py --quick                         # small sizes: does it run?
    python benchmarks/run.py --device gpu    # but for works that time processes or CPU libraries
    python benchmarks/run.py --from OUT/report.json          # tables and picture, nothing measured

Prints a summary, and writes report.json, report.md and report.png into --out. A peer that is not
installed is named as missing, as is what fails, for want of memory or otherwise. On a GPU no case
is begun after seven minutes, and those left out are named."""

import datetime
import importlib.metadata
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path

import report as reports
from common import interleaved, options_of, read, say, write

NOT_ON_GPU = ("cold", "datasets", "stream")
PACKAGES = (
    *("jax", "jaxlib", "numpy", "scikit-learn", "himalaya"),
    *("gpytorch", "torch", "falkon", "rlscore"),
)


def measure(work, case, rounds) -> dict:
    """One case, timed and judged, as plain data."""
    kinds = {"jaxrls": ("ours", case.ours)}
    kinds |= {f"jaxrls, {name}": ("variant", one) for name, one in case.variants.items()}
    kinds |= {name: ("peer", one) for name, one in case.peers.items()}
    present = {name: one.run for name, (_, one) in kinds.items() if not isinstance(one, str)}
    timings, results, failures = interleaved(case.floor | present, rounds)

    def entry(name, **more) -> dict:
        taken = asdict(timings[name]) if name in timings else {"missing": failures[name]}
        return {"name": name, **more, **taken}

    def contestant(name, kind, one) -> dict:
        if isinstance(one, str):
            return {"name": name, "kind": kind, "missing": one}
        judged = one.judge(results[name]) if one.judge and name in results else None
        return entry(name, kind=kind, judged=judged)

    return {
        "work": work.__name__,
        "what": " ".join(work.__doc__.split()),
        "size": case.size,
        "accuracy": case.accuracy,
        "flops": case.flops,
        "floor": [entry(name) for name in case.floor],
        "contestants": [contestant(name, *one) for name, one in kinds.items()],
    }


def machine() -> dict:
    import jax

    device = jax.devices()[0]
    return {
        "device": str(device.device_kind),
        "platform": device.platform,
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }


def versions() -> dict:
    there = {one.name.lower() for one in importlib.metadata.distributions()}
    return {name: importlib.metadata.version(name) for name in PACKAGES if name in there}


def main():
    parser = options_of(__doc__)
    add = parser.add_argument
    add("--only", nargs="+", metavar="WORK", help="names of works")
    add("--quick", action="store_true", help="small sizes, to see that all of it runs")
    add("--rounds", type=int, default=5, help="interleaved repeats, of which medians are shown")
    add("--device", choices=["cpu", "gpu"], help="where ours runs, by default where JAX does")
    add("--minutes", type=float, help="begin no case after so many: by default 7 on a GPU")
    add("--out", type=Path, default=Path("benchmark-report"), help="folder of the report")
    add("--update", action="store_true", help="keep what the report in --out says of other works")
    add("--from", dest="source", type=Path, help="a report.json to make table and picture from")
    add("--readme", type=Path, help="a file whose table, between two marks, is made anew")
    args = parser.parse_args()

    kept = read(args.out / "report.json") if args.update else None
    report = read(args.source) if args.source else run(args)
    if kept:
        report = reports.updated(kept, report)
    write(args.out, "report", report, reports.markdown(report))
    if args.readme:
        text = args.readme.read_text(encoding="utf-8")
        args.readme.write_text(reports.with_table(text, report, reports.FRONT), encoding="utf-8")
    try:
        reports.picture(report, args.out / "report.png")
    except ImportError:
        say("no picture: pip install matplotlib")
    say(f"\n{reports.summary(report)}")


def run(args) -> dict:
    """All cases of the chosen works, printed and saved as they come."""
    import jax

    if args.device:
        jax.config.update("jax_platforms", {"cpu": "cpu", "gpu": "cuda"}[args.device])
    jax.config.update("jax_enable_x64", True)
    from works import ON_GPU, WORKS

    if unknown := set(args.only or ()) - set(WORKS):
        names = ", ".join(sorted(unknown))
        raise SystemExit(f"no such work: {names}; there are {', '.join(WORKS)}")
    minutes = args.minutes or (7 if ON_GPU else float("inf"))
    start = time.monotonic()
    report = {
        "machine": machine(),
        "versions": versions(),
        "dtype": "float64",
        "date": datetime.date.today().isoformat(),
        "quick": args.quick,
        "not begun": [],
        "cases": [],
    }
    for name in args.only or [name for name in WORKS if not (ON_GPU and name in NOT_ON_GPU)]:
        for case in WORKS[name](args.quick):
            if time.monotonic() - start > 60 * minutes:
                report["not begun"].append(f"{name}: {case.size}")
                say(f"{report['not begun'][-1]}: not begun, {minutes:g} minutes are over")
                break
            report["cases"].append(measure(WORKS[name], case, args.rounds))
            if not args.update:  # what is measured stays, whatever comes next
                write(args.out, "report", report, reports.markdown(report))
            for row in reports.rows(report["cases"][-1]):
                say(f"{name}: {reports.shown(row)}")
    return report


if __name__ == "__main__":
    main()
