"""Run the benchmarks: ours, the peers that are installed, and the floor of unavoidable operations,
in one process, in turn.

    python benchmarks/run.py                        # all works, float64, on the default device
    (some 40 minutes on two CPU cores) python benchmarks/run.py --only path gradient   # some of
    them python benchmarks/run.py --quick                # small sizes: does it run? python
    benchmarks/run.py --device gpu           # the same on a GPU; works that time processes or CPU
    libraries are left out python benchmarks/run.py --from OUT/report.json # tables and picture from
    a report, nothing measured

Prints a summary, and writes report.json, report.md and report.png into --out. A peer that is not
installed is named as missing, as is what fails, for want of memory or otherwise. On a GPU no case
is begun after seven minutes, and those left out are named."""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path

import report as reports

NOT_ON_GPU = ("cold", "datasets")
PACKAGES = (
    "jax",
    "jaxlib",
    "numpy",
    "scikit-learn",
    "himalaya",
    "gpytorch",
    "torch",
    "falkon",
    "rlscore",
)


def measure(work, case, rounds) -> dict:
    """One case, timed and judged, as plain data."""
    from common import interleaved

    kinds = {"jaxrls": ("ours", case.ours)}
    kinds |= {f"jaxrls, {name}": ("variant", one) for name, one in case.variants.items()}
    kinds |= {name: ("peer", one) for name, one in case.peers.items()}
    present = {name: one.run for name, (_, one) in kinds.items() if not isinstance(one, str)}
    timings, results, failures = interleaved(case.floor | present, rounds)

    def entry(name, kind, one) -> dict:
        missing = one if isinstance(one, str) else failures.get(name)
        if missing:
            return {"name": name, "kind": kind, "missing": missing}
        return {
            "name": name,
            "kind": kind,
            **asdict(timings[name]),
            "judged": one.judge(results[name]) if one.judge else None,
        }

    return {
        "work": work.__name__,
        "what": work.__doc__.strip(),
        "size": case.size,
        "accuracy": case.accuracy,
        "flops": case.flops,
        "floor": [
            {
                "name": name,
                **(asdict(timings[name]) if name in timings else {"missing": failures[name]}),
            }
            for name in case.floor
        ],
        "contestants": [entry(name, *one) for name, one in kinds.items()],
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
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="WORK", help="names of works")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that all of it runs"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="interleaved repeats, of which medians are shown"
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "gpu"],
        default=None,
        help="where ours runs, by default where JAX does",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=None,
        help="begin no case after so many minutes: by default 7 on a GPU, any on a CPU",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("benchmark-report"),
        help="folder of report.json, report.md and report.png",
    )
    parser.add_argument(
        "--update", action="store_true", help="keep what the report in --out says of other works"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, help="a report.json to make table and picture from"
    )
    parser.add_argument(
        "--readme", type=Path, help="a file whose table, between two marks, is made from the report"
    )
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    kept = reports.read(args.out / "report.json") if args.update else None
    report = reports.read(args.source) if args.source else run(args)
    if kept:
        report = reports.updated(kept, report)
    save(report, args.out)
    (args.out / "report.md").write_text(reports.markdown(report), encoding="utf-8")
    if args.readme:
        args.readme.write_text(
            reports.with_table(args.readme.read_text(encoding="utf-8"), report, reports.FRONT),
            encoding="utf-8",
        )
    try:
        reports.picture(report, args.out / "report.png")
    except ImportError:
        print("no picture: pip install matplotlib")
    print(f"\n{reports.summary(report)}")


def save(report, folder) -> None:
    (folder / "report.json").write_text(
        json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8"
    )


def run(args) -> dict:
    """All cases of the chosen works, printed and saved as they come."""
    import jax

    if args.device:
        jax.config.update("jax_platforms", {"cpu": "cpu", "gpu": "cuda"}[args.device])
    jax.config.update("jax_enable_x64", True)
    from works import ON_GPU, WORKS

    unknown = set(args.only or ()) - set(WORKS)
    if unknown:
        raise SystemExit(
            f"no such work: {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}"
        )
    minutes = (7 if ON_GPU else float("inf")) if args.minutes is None else args.minutes
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
                print(
                    f"{report['not begun'][-1]}: not begun, {minutes:g} minutes are over",
                    flush=True,
                )
                break
            report["cases"].append(measure(WORKS[name], case, args.rounds))
            if not args.update:
                save(report, args.out)  # what is measured stays, whatever comes next
            reports.print_case(report)
    return report


if __name__ == "__main__":
    main()
