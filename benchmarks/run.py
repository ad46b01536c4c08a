"""Run the benchmarks: ours, the peers that are installed, and the floor of unavoidable operations, in one process, in turn.

    python benchmarks/run.py                        # all works, float64, on the default device (some 40 minutes on two CPU cores)
    python benchmarks/run.py --only path gradient   # some of them
    python benchmarks/run.py --quick                # small sizes: does it run?
    python benchmarks/run.py --device gpu           # the same on a GPU; works that time processes or CPU libraries are left out
    python benchmarks/run.py --from OUT/report.json # tables and picture from a report, nothing measured

Prints a summary, and writes report.json, report.md and report.png into --out. Peers run where they run best: on the CPU.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path

NOT_ON_GPU = ("cold", "datasets")
PACKAGES = ("jax", "jaxlib", "numpy", "scikit-learn", "himalaya", "gpytorch", "torch", "falkon", "rlscore")


def measure(work, case, rounds) -> dict:
    """One case, timed and judged, as plain data."""
    from timing import interleaved

    kinds = {"jaxrls": ("ours", case.ours)}
    kinds |= {f"jaxrls, {name}": ("variant", one) for name, one in case.variants.items()}
    kinds |= {name: ("peer", one) for name, one in case.peers.items()}
    present = {name: one for name, (_, one) in kinds.items() if not isinstance(one, str)}
    timings, results = interleaved(case.floor | {name: one.run for name, one in present.items()}, rounds)
    contestants: list[dict] = []
    for name, (kind, one) in kinds.items():
        if isinstance(one, str):
            contestants.append({"name": name, "kind": kind, "missing": one})
            continue
        judged = one.judge(results[name]) if one.judge else None
        contestants.append({"name": name, "kind": kind, **asdict(timings[name]), "judged": judged})
    return {
        "work": work.__name__,
        "what": work.__doc__.strip(),
        "size": case.size,
        "accuracy": case.accuracy,
        "flops": case.flops,
        "floor": [{"name": name, **asdict(timings[name])} for name in case.floor],
        "contestants": contestants,
    }


def machine() -> dict:
    import jax

    device = jax.devices()[0]
    return {"device": str(device.device_kind), "platform": device.platform, "cores": os.cpu_count(), "system": platform.platform()}


def versions() -> dict:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORK", help="names of works")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all of it runs")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repeats, of which medians are shown")
    parser.add_argument("--device", choices=["cpu", "gpu"], default=None, help="where ours runs, by default where JAX does")
    parser.add_argument("--out", type=Path, default=Path("benchmark-report"), help="folder of report.json, report.md and report.png")
    parser.add_argument("--from", dest="source", type=Path, help="a report.json to make table and picture from")
    args = parser.parse_args()

    import report as reports

    args.out.mkdir(parents=True, exist_ok=True)
    report = reports.read(args.source) if args.source else run(args)
    save(report, args.out)
    (args.out / "report.md").write_text(reports.markdown(report), encoding="utf-8")
    try:
        reports.picture(report, args.out / "report.png")
    except ImportError:
        print("no picture: pip install matplotlib")
    print(f"\n{reports.summary(report)}")


def save(report, folder) -> None:
    (folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def run(args) -> dict:
    """All cases of the chosen works, printed and saved as they come."""
    import jax

    if args.device:
        jax.config.update("jax_platforms", {"cpu": "cpu", "gpu": "cuda"}[args.device])
    jax.config.update("jax_enable_x64", True)
    from works import WORKS

    unknown = set(args.only or ()) - set(WORKS)
    if unknown:
        raise SystemExit(f"no such work: {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")
    chosen = args.only or [name for name in WORKS if jax.default_backend() == "cpu" or name not in NOT_ON_GPU]
    import report as reports

    report = {
        "machine": machine(),
        "versions": versions(),
        "dtype": "float64",
        "date": datetime.date.today().isoformat(),
        "quick": args.quick,
        "cases": [],
    }
    for name in chosen:
        for case in WORKS[name](args.quick):
            measured = measure(WORKS[name], case, args.rounds)
            report["cases"].append(measured)
            save(report, args.out)
            for row in reports.rows({**report, "cases": [measured]}):
                if "missing" in row:
                    print(f"{name}, {row['size']}: {row['name']}: {row['missing']}", flush=True)
                else:
                    judged = "" if row["judged"] is None else f", judged {row['judged']:.3g}"
                    print(
                        f"{name}, {row['size']}: {row['name']} {row['median']:.3g} s, {row['to_floor']:.2f} × the floor{judged}", flush=True
                    )
    return report


if __name__ == "__main__":
    main()
